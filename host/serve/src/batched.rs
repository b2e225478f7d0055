//! The API's engine: the scheduler, and for each text a reader that hands its tokens on.

use kvasir_backbone::{Finish as Over, TokenId};

use crate::api::{
    Engine, Finish, Generation, Logprobs, Piece, Refused, SwarmReport, TextRequest, Writer, generation,
};
use crate::scheduler::{End, Figures, Reader, Refused as NotTaken, Request, Scheduler};

/// Says what the swarm is, given what the scheduler does.
pub type Swarm = Box<dyn Fn(&Figures) -> SwarmReport + Send + Sync>;

/// A scheduler behind the API.
pub struct Batched {
    scheduler: Scheduler,
    /// Tokens that end a text: the model's own.
    end_of_text: Vec<TokenId>,
    swarm: Swarm,
}

impl Batched {
    /// `end_of_text` is the model's `Config::end_of_text`.
    pub fn new(scheduler: Scheduler, end_of_text: Vec<TokenId>, swarm: Swarm) -> Batched {
        Batched { scheduler, end_of_text, swarm }
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Takes no new texts, and waits for the end of those that somebody reads. Gives the last figures.
    pub fn finish(self) -> Figures {
        self.scheduler.finish()
    }
}

impl Engine for Batched {
    fn submit(&self, request: TextRequest) -> Result<Generation, Refused> {
        let (writer, generation) = generation();
        let teller = Teller { writer, top_logprobs: request.top_logprobs };
        let text = Request {
            prompt: request.prompt,
            max_tokens: request.max_tokens,
            stop: self.end_of_text.clone(),
            sampler: request.sampler,
        };
        self.scheduler.submit(text, Box::new(teller)).map_err(refused)?;
        Ok(generation)
    }

    fn context_limit(&self) -> usize {
        self.scheduler.context_limit()
    }

    fn ready(&self) -> Result<(), String> {
        if self.scheduler.is_open() { Ok(()) } else { Err("the scheduler takes no texts".to_owned()) }
    }

    fn swarm(&self) -> SwarmReport {
        (self.swarm)(&self.scheduler.figures())
    }
}

/// Hands the tokens of one text on.
struct Teller {
    writer: Writer,
    top_logprobs: Option<usize>,
}

impl Reader for Teller {
    fn chosen(&mut self, token: TokenId, logits: &[f32]) {
        let logprobs = self.top_logprobs.map(|top| Logprobs::of(logits, token, top));
        // Whether anybody reads on is asked by the scheduler itself.
        self.writer.piece(Piece { token, logprobs });
    }

    fn is_wanted(&self) -> bool {
        self.writer.is_wanted()
    }

    fn ended(self: Box<Self>, end: End) {
        match end {
            End::Finished(Over::Stop(_)) => self.writer.end(Finish::Stop),
            End::Finished(Over::Length | Over::ContextFull) => self.writer.end(Finish::Length),
            // Dropped without an end: whoever still reads learns that the text was given up.
            End::Finished(Over::Cancelled) => {}
            End::Failed(error) => self.writer.fail(error.to_string()),
        }
    }
}

fn refused(refused: NotTaken) -> Refused {
    match refused {
        NotTaken::QueueFull { waiting, limit, retry_after } => {
            Refused::QueueFull { waiting, limit, retry_after }
        }
        NotTaken::NoMemory { tokens, needed, limit } => Refused::NoMemory { tokens, needed, limit },
        NotTaken::Stopping => Refused::Stopping,
        // Requests were checked before; what is left is ours.
        other => Refused::Failed(other.to_string()),
    }
}
