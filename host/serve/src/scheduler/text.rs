//! One text being written: what it reads next, and what becomes of the logits. The same steps as `generate` takes for a
//! single one, in the same order, so that the tokens are the same.

use std::sync::Arc;

use kvasir_backbone::{
    Backbone, BackboneError, Finish, Logits, Member, Sampler, SamplerOptions, Sequence, TokenId, Wanted,
};

/// A text to be written.
#[derive(Debug, Clone)]
pub struct Request {
    /// What it continues: at least one token. Several texts of one prompt share it.
    pub prompt: Arc<[TokenId]>,
    /// Tokens to write at most.
    pub max_tokens: usize,
    /// Tokens that end it. A model's own are in `Config::end_of_text`.
    pub stop: Vec<TokenId>,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
}

/// Whoever reads a text. Called on the thread that computes everybody's: it must not wait, nor call its scheduler. A
/// reader that is dropped without an end learns so that its text was given up.
pub trait Reader: Send {
    /// So much of the prompt was read.
    fn read(&mut self, done: usize, of: usize) {
        let _ = (done, of);
    }

    /// A token was chosen, from these logits. A token that ends the text is not reported.
    fn chosen(&mut self, token: TokenId, logits: &[f32]);

    /// Whether anybody reads on; asked before every step. Where nobody does, the text ends as cancelled.
    fn is_wanted(&self) -> bool {
        true
    }

    /// The text is over.
    fn ended(self: Box<Self>, end: End);
}

/// How a text ended.
#[derive(Debug)]
pub enum End {
    /// As `generate` would say.
    Finished(Finish),
    /// It cannot go on; no other text is touched.
    Failed(BackboneError),
}

/// A text, its sequence and its reader.
pub(super) struct Text {
    request: Request,
    sampler: Sampler,
    reader: Box<dyn Reader>,
    /// Away while it is in a pass; made with the first one.
    sequence: Option<Sequence>,
    /// Tokens that its sequence holds at most.
    limit: usize,
    /// Tokens of the prompt that were read.
    read: usize,
    written: usize,
    /// The token chosen last, which is read next.
    last: Option<TokenId>,
}

/// What a step adds to a scheduler's counters.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) tokens: u64,
    pub(super) finished: u64,
    pub(super) cancelled: u64,
    pub(super) failed: u64,
}

/// What it reads in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Feed {
    pub(super) rows: usize,
    pub(super) prompt: bool,
}

impl Request {
    /// Tokens that its sequence holds at most: the last one chosen is not read.
    pub(super) fn tokens(&self, backbone: &Backbone) -> usize {
        self.prompt.len().saturating_add(self.max_tokens).min(backbone.context_limit())
    }

    /// Checks what can be checked without the rest of the world.
    pub(super) fn check(&self, backbone: &Backbone) -> Result<Sampler, BackboneError> {
        let (tokens, limit) = (self.prompt.len(), backbone.context_limit());
        if tokens == 0 {
            return Err(BackboneError::PromptEmpty);
        }
        if tokens > limit {
            return Err(BackboneError::PromptTooLong { tokens, limit });
        }
        Sampler::new(self.sampler)
    }
}

impl Text {
    /// A text of a request that was checked, which gave `sampler`.
    pub(super) fn new(
        backbone: &Backbone,
        request: Request,
        sampler: Sampler,
        reader: Box<dyn Reader>,
    ) -> Text {
        let limit = request.tokens(backbone);
        Text { request, sampler, reader, sequence: None, limit, read: 0, written: 0, last: None }
    }

    /// Tokens that its sequence holds at most.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.reader.is_wanted()
    }

    /// What it would read next, with room for `prompt_rows` rows of prompts. No rows: it has to wait for room.
    pub(super) fn next(&self, prompt_rows: usize) -> Feed {
        match self.request.prompt.len() - self.read {
            0 => Feed { rows: 1, prompt: false },
            left => Feed { rows: left.min(prompt_rows), prompt: true },
        }
    }

    /// Its part in a pass in which it reads `feed`, which [`Text::next`] gave.
    pub(super) fn member(&mut self, backbone: &Backbone, feed: Feed) -> Member {
        let sequence = self.sequence.take().unwrap_or_else(|| backbone.start_within(self.limit));
        let (tokens, logits) = if feed.prompt {
            let end = self.read + feed.rows;
            let last = end == self.request.prompt.len();
            let logits = if last { Wanted::Last } else { Wanted::None };
            (self.request.prompt[self.read..end].to_vec(), logits)
        } else {
            (self.last.into_iter().collect(), Wanted::Last)
        };
        Member { sequence, tokens, logits }
    }

    /// Takes in what came of a step in which it read `feed`: the text where it goes on, nothing where it is over and its
    /// reader was told; and what it adds to a scheduler's counters.
    pub(super) fn after(
        mut self,
        sequence: Sequence,
        feed: Feed,
        logits: Result<Logits, BackboneError>,
    ) -> (Option<Text>, Counts) {
        let before = self.written;
        let end = match logits {
            Ok(logits) => self.step(&sequence, feed, &logits).map(End::Finished),
            Err(BackboneError::TakenOut) => Some(End::Finished(Finish::Cancelled)),
            Err(error) => Some(End::Failed(error)),
        };
        let mut counts = Counts { tokens: (self.written - before) as u64, ..Counts::default() };
        let Some(end) = end else {
            self.sequence = Some(sequence);
            return (Some(self), counts);
        };
        match &end {
            End::Finished(Finish::Cancelled) => counts.cancelled = 1,
            End::Finished(_) => counts.finished = 1,
            End::Failed(_) => counts.failed = 1,
        }
        // Memory first, then whoever may ask for it again.
        drop(sequence);
        self.reader.ended(end);
        (None, counts)
    }

    /// Ends it where it stands.
    pub(super) fn cancel(self) {
        self.reader.ended(End::Finished(Finish::Cancelled));
    }

    /// Nothing while it goes on.
    fn step(&mut self, sequence: &Sequence, feed: Feed, logits: &Logits) -> Option<Finish> {
        if feed.prompt {
            self.read += feed.rows;
            self.reader.read(self.read, self.request.prompt.len());
        }
        if !self.reader.is_wanted() {
            return Some(Finish::Cancelled);
        }
        if self.read < self.request.prompt.len() {
            return None;
        }
        if self.written >= self.request.max_tokens {
            return Some(Finish::Length);
        }
        // Wanted for the last token of a prompt and for every one after it.
        let logits = logits.last()?;
        let token = self.sampler.choose(logits);
        if self.request.stop.contains(&token) {
            return Some(Finish::Stop(token));
        }
        self.reader.chosen(token, logits);
        self.written += 1;
        if self.written == self.request.max_tokens {
            return Some(Finish::Length);
        }
        if sequence.len() >= sequence.limit() {
            return Some(Finish::ContextFull);
        }
        self.last = Some(token);
        None
    }
}
