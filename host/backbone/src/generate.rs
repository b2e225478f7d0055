//! From a prompt to a text: prefill in chunks, then one token after the other.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use kvasir_model::TokenId;

use crate::backbone::{Backbone, Feed, Wanted};
use crate::error::BackboneError;
use crate::experts::Experts;
use crate::observer::{Observer, Timing};
use crate::sampler::{Sampler, SamplerOptions};
use crate::sequence::Sequence;

/// Rows of a prefill pass by default: enough that a layer's experts see several rows each, few enough for a smooth
/// progress display.
pub const DEFAULT_PREFILL_CHUNK: NonZeroUsize = NonZeroUsize::new(512).unwrap();

/// How to generate.
#[derive(Debug, Clone)]
pub struct GenerateOptions {
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// Tokens of the prompt that one pass reads at most; it changes no bit.
    pub prefill_chunk: NonZeroUsize,
    /// Tokens that end the text. A model's own are in `Config::end_of_text`.
    pub stop: Vec<TokenId>,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
}

impl GenerateOptions {
    /// Greedy, ended by the model's end-of-text tokens or after `max_tokens`.
    pub fn greedy(backbone: &Backbone, max_tokens: usize) -> GenerateOptions {
        GenerateOptions {
            max_tokens,
            prefill_chunk: DEFAULT_PREFILL_CHUNK,
            stop: backbone.model().config().end_of_text.clone(),
            sampler: SamplerOptions::default(),
        }
    }
}

/// What happened during a generation, as it happens.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A chunk of the prompt was read.
    Read {
        /// Tokens of the prompt read so far.
        done: usize,
        /// Tokens of the prompt.
        of: usize,
    },
    /// A token was chosen.
    Chosen {
        /// The token; a stop token is reported too.
        token: TokenId,
        /// The logits that it was chosen from.
        logits: &'a [f32],
    },
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A stop token was chosen.
    Stop(TokenId),
    /// `max_tokens` were generated.
    Length,
    /// The context is full.
    ContextFull,
    /// The callback asked for it.
    Cancelled,
}

/// A finished generation.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The tokens chosen, without the stop token.
    pub tokens: Vec<TokenId>,
    /// Why no more came.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time until the whole prompt was read.
    pub prefill: Duration,
    /// Time from there to the end.
    pub decode: Duration,
    /// Where the time went while the prompt was read.
    pub prefill_timing: Timing,
    /// Where the time went after that.
    pub decode_timing: Timing,
}

/// Continues `sequence` with `prompt` and generates until a stop token, `max_tokens`, the end of the context, or until
/// `on_event` breaks off. Afterwards the sequence holds all tokens but the last one chosen.
///
/// # Errors
/// An empty prompt, one that does not fit into the context, sampling options out of range, and what
/// [`Backbone::forward`] says.
pub fn generate(
    backbone: &Backbone,
    sequence: &mut Sequence,
    prompt: &[TokenId],
    options: &GenerateOptions,
    experts: &mut dyn Experts,
    on_event: &mut (dyn FnMut(Event<'_>) -> ControlFlow<()> + Send),
) -> Result<Generation, BackboneError> {
    generate_between(backbone, sequence, prompt, options, experts, on_event, &mut |_| {})
}

/// As [`generate`]; between its passes, while no call of its own is in flight, `between` may use the experts for something
/// else. The text does not depend on what.
///
/// # Errors
/// As [`generate`].
pub fn generate_between(
    backbone: &Backbone,
    sequence: &mut Sequence,
    prompt: &[TokenId],
    options: &GenerateOptions,
    experts: &mut dyn Experts,
    on_event: &mut (dyn FnMut(Event<'_>) -> ControlFlow<()> + Send),
    between: &mut dyn FnMut(&mut dyn Experts),
) -> Result<Generation, BackboneError> {
    let sampler = Sampler::new(options.sampler)?;
    if prompt.is_empty() {
        return Err(BackboneError::PromptEmpty);
    }
    let tokens = sequence.len().saturating_add(prompt.len());
    if tokens > sequence.limit() {
        return Err(BackboneError::PromptTooLong { tokens, limit: sequence.limit() });
    }
    backbone
        .within(|| Generator { backbone, sequence, sampler, options, experts, on_event, between }.run(prompt))
}

struct Generator<'a> {
    backbone: &'a Backbone,
    sequence: &'a mut Sequence,
    sampler: Sampler,
    options: &'a GenerateOptions,
    experts: &'a mut dyn Experts,
    on_event: &'a mut (dyn FnMut(Event<'_>) -> ControlFlow<()> + Send),
    between: &'a mut dyn FnMut(&mut dyn Experts),
}

impl Generator<'_> {
    fn run(&mut self, prompt: &[TokenId]) -> Result<Generation, BackboneError> {
        let started = Instant::now();
        let mut generation = Generation {
            tokens: Vec::new(),
            finish: Finish::Length,
            prompt_tokens: prompt.len(),
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
            prefill_timing: Timing::default(),
            decode_timing: Timing::default(),
        };
        let logits = self.read(prompt, &mut generation.prefill_timing)?;
        generation.prefill = started.elapsed();
        generation.finish = match logits {
            Some(logits) => self.write(logits, &mut generation)?,
            None => Finish::Cancelled,
        };
        generation.decode = started.elapsed() - generation.prefill;
        Ok(generation)
    }

    /// Reads the prompt; the logits of its last token, or `None` where the callback broke off.
    fn read(&mut self, prompt: &[TokenId], timing: &mut Timing) -> Result<Option<Vec<f32>>, BackboneError> {
        let mut done = 0;
        let mut last = None;
        for chunk in prompt.chunks(self.options.prefill_chunk.get()) {
            done += chunk.len();
            let wanted = if done == prompt.len() { Wanted::Last } else { Wanted::None };
            last = self.pass(chunk, wanted, timing)?;
            if (self.on_event)(Event::Read { done, of: prompt.len() }).is_break() {
                return Ok(None);
            }
            (self.between)(self.experts);
        }
        Ok(last)
    }

    fn write(&mut self, mut logits: Vec<f32>, generation: &mut Generation) -> Result<Finish, BackboneError> {
        while generation.tokens.len() < self.options.max_tokens {
            let token = self.sampler.choose(&logits);
            let go_on = (self.on_event)(Event::Chosen { token, logits: &logits });
            if self.options.stop.contains(&token) {
                return Ok(Finish::Stop(token));
            }
            generation.tokens.push(token);
            if go_on.is_break() {
                return Ok(Finish::Cancelled);
            }
            if generation.tokens.len() == self.options.max_tokens {
                break;
            }
            if self.sequence.len() == self.sequence.limit() {
                return Ok(Finish::ContextFull);
            }
            match self.pass(&[token], Wanted::Last, &mut generation.decode_timing)? {
                Some(next) => {
                    logits = next;
                    (self.between)(self.experts);
                }
                None => unreachable!("the pass was asked for the logits of its last token"),
            }
        }
        Ok(Finish::Length)
    }

    fn pass(
        &mut self,
        tokens: &[TokenId],
        wanted: Wanted,
        timing: &mut Timing,
    ) -> Result<Option<Vec<f32>>, BackboneError> {
        let mut feeds = [Feed { sequence: self.sequence, tokens, logits: wanted }];
        let mut observer = Observer { tap: None, timing: Some(timing) };
        let mut logits = self.backbone.forward_observed(&mut feeds, self.experts, &mut observer)?;
        Ok(logits.pop().and_then(|logits| logits.into_last()))
    }
}
