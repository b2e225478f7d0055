//! What the API asks of whoever computes, and the stream in which the answer comes back.
//!
//! A [`Generation`] is one text being written. Dropping it is the whole of cancelling: the [`Writer`] at the other end
//! sees that nobody reads any more, and frees what the text held. A writer never waits for its reader: what lies between
//! them is at most `max_tokens` pieces, so a slow client costs memory that the request itself bounds.

use std::cmp::Ordering;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use kvasir_backbone::SamplerOptions;
use kvasir_model::TokenId;
use tokio::sync::mpsc;

use super::swarm::SwarmReport;

/// Computes texts. Its methods answer at once; none of them waits for a computation.
pub trait Engine: Send + Sync + 'static {
    /// Takes a text into the queue.
    ///
    /// # Errors
    /// Why it is not taken. Nothing of it is kept then.
    fn submit(&self, request: Request) -> Result<Generation, Refused>;

    /// Tokens that prompt and text may have together.
    fn context_limit(&self) -> usize;

    /// Whether requests would be computed now; else why not.
    ///
    /// # Errors
    /// Words for an operator.
    fn ready(&self) -> Result<(), String>;

    /// The swarm as it is now.
    fn swarm(&self) -> SwarmReport;
}

/// One text to write.
#[derive(Debug, Clone)]
pub struct Request {
    /// What it continues: not empty, and shorter than the context. Several texts of one prompt share it.
    pub prompt: Arc<[TokenId]>,
    /// Tokens at most; with the prompt they fit into the context.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
    /// How many of the most probable tokens are wanted beside each chosen one; `None`: no probabilities at all.
    pub top_logprobs: Option<usize>,
}

/// One token of a text, as it was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// The token.
    pub token: TokenId,
    /// Its probability and those of others, where the request asked for them.
    pub logprobs: Option<Logprobs>,
}

/// Why a text ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it. The token that says so is no piece.
    Stop,
    /// It has as many tokens as were asked for, or the context is full.
    Length,
}

/// What comes out of a generation.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// A token.
    Piece(Piece),
    /// The text is whole.
    End(Finish),
    /// It cannot go on; words for the client.
    Failed(String),
}

/// Why a request is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// As many texts wait as may.
    #[error("{waiting} texts wait already, and no more than {limit} may")]
    QueueFull {
        /// Texts that wait.
        waiting: usize,
        /// Texts that may wait.
        limit: usize,
        /// When to come back.
        retry_after: Duration,
    },
    /// The engine is being stopped.
    #[error("the engine is stopping")]
    Stopping,
    /// The text could never be held in memory, whatever else is computed.
    #[error("a text of up to {tokens} tokens takes {needed} bytes of memory, and there are {limit}")]
    NoMemory {
        /// Tokens of prompt and text.
        tokens: usize,
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that there are for texts.
        limit: u64,
    },
    /// Something is broken.
    #[error("{0}")]
    Failed(String),
}

/// Logarithms of probabilities, to base e, of the softmax of the logits as they are: temperature and cuts change what is
/// chosen, not what is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most probable tokens, most probable first, ties by lower token.
    pub top: Vec<(TokenId, f32)>,
}

impl Logprobs {
    /// From the finite `logits` that `chosen` was chosen from, with the `top` most probable tokens.
    pub fn of(logits: &[f32], chosen: TokenId, top: usize) -> Logprobs {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // One definition of exp and log for every machine, as for everything that is told about a token.
        let sum: f64 = logits.iter().map(|logit| libm::exp(f64::from(*logit) - f64::from(largest))).sum();
        let whole = f64::from(largest) + libm::log(sum);
        let of = |token: u32| (f64::from(logits[token as usize]) - whole) as f32;
        let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
        let by_logit = |a: &u32, b: &u32| {
            let order = logits[*b as usize].partial_cmp(&logits[*a as usize]);
            order.unwrap_or(Ordering::Equal).then(a.cmp(b))
        };
        if (1..tokens.len()).contains(&top) {
            tokens.select_nth_unstable_by(top - 1, by_logit);
        }
        tokens.truncate(top);
        tokens.sort_unstable_by(by_logit);
        Logprobs {
            chosen: of(chosen.0),
            top: tokens.into_iter().map(|token| (TokenId(token), of(token))).collect(),
        }
    }
}

/// A text on its way. Dropping it cancels it.
#[derive(Debug)]
pub struct Generation {
    steps: mpsc::UnboundedReceiver<Step>,
}

/// The end at which a text is written. Dropping it without an end tells the reader that the text was given up.
#[derive(Debug)]
pub struct Writer {
    steps: mpsc::UnboundedSender<Step>,
}

/// The two ends of a text.
pub fn generation() -> (Writer, Generation) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Writer { steps: sender }, Generation { steps: receiver })
}

impl Generation {
    /// The next step; `None` where the writer gave up without one.
    pub fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Option<Step>> {
        self.steps.poll_recv(context)
    }

    /// As [`Generation::poll_step`].
    pub async fn step(&mut self) -> Option<Step> {
        self.steps.recv().await
    }
}

impl Writer {
    /// Hands a token on. Returns whether anybody still reads; where nobody does, nothing more need be computed.
    pub fn piece(&self, piece: Piece) -> bool {
        self.steps.send(Step::Piece(piece)).is_ok()
    }

    /// Ends the text.
    pub fn end(self, finish: Finish) {
        // Nobody may be reading any more.
        let _ = self.steps.send(Step::End(finish));
    }

    /// Ends the text with an error.
    pub fn fail(self, why: impl Into<String>) {
        let _ = self.steps.send(Step::Failed(why.into()));
    }

    /// Whether anybody reads.
    pub fn is_wanted(&self) -> bool {
        !self.steps.is_closed()
    }

    /// Waits until nobody reads any more.
    pub async fn unwanted(&self) {
        self.steps.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_softmax() {
        let logits = [2.0f32.ln(), 0.0, 0.0, f32::MIN];
        let told = Logprobs::of(&logits, TokenId(1), 3);
        assert!((told.chosen - 0.25f32.ln()).abs() < 1e-6);
        assert_eq!(told.top.iter().map(|(token, _)| token.0).collect::<Vec<_>>(), [0, 1, 2]);
        assert!((told.top[0].1 - 0.5f32.ln()).abs() < 1e-6);
        assert_eq!(Logprobs::of(&logits, TokenId(0), 0).top, []);
        assert_eq!(Logprobs::of(&logits, TokenId(0), 9).top.len(), 4);
        assert!(Logprobs::of(&logits, TokenId(3), 0).chosen.is_finite());
    }

    #[tokio::test]
    async fn a_dropped_generation_is_seen_by_its_writer() {
        let (writer, generation) = generation();
        assert!(writer.is_wanted() && writer.piece(Piece { token: TokenId(1), logprobs: None }));
        drop(generation);
        writer.unwanted().await;
        assert!(!writer.is_wanted() && !writer.piece(Piece { token: TokenId(1), logprobs: None }));
    }

    #[tokio::test]
    async fn a_writer_that_gives_up_is_seen_by_the_reader() {
        let (writer, mut generation) = generation();
        drop(writer);
        assert_eq!(generation.step().await, None);
    }
}
