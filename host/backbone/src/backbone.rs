//! The forward pass over all layers, for several sequences at once.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use kvasir_model::{Config, Model, Tensor, TokenId};
use kvasir_numerics::{InstructionSet, NotFinite, dequantise_row};
use kvasir_threads::Threads;

use crate::error::{BackboneError, Place};
use crate::experts::Experts;
use crate::layer::{Layer, norm_rows};
use crate::logits::Logits;
use crate::observer::{Observer, Timing};
use crate::part::Part;
use crate::products::{Product, compute, transpose_rows};
use crate::scratch::Scratch;
use crate::sequence::Sequence;

/// Rows that one forward pass takes at most, all sequences together; it bounds scratch memory and the size of a call.
pub const MAX_ROWS: usize = 4096;

/// A model ready to run: its layers, and the threads that compute them. Share it; `forward` may be called from
/// several threads at once.
pub struct Backbone {
    model: Arc<Model>,
    layers: Vec<Layer>,
    embedding: Tensor,
    output: Tensor,
    threads: Threads,
    instructions: InstructionSet,
    context_limit: usize,
    identity: u64,
    /// Buffers that no pass is using.
    scratches: Mutex<Vec<Scratch>>,
}

/// Tokens for one sequence in a forward pass.
#[derive(Debug)]
pub struct Feed<'a> {
    /// The sequence that reads them.
    pub sequence: &'a mut Sequence,
    /// The tokens, at least one.
    pub tokens: &'a [TokenId],
    /// For which of them logits are wanted.
    pub logits: Wanted,
}

/// Which tokens of a feed logits are wanted for; the output matrix is applied to no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// For none: a chunk of a prompt before its last.
    None,
    /// For the last one.
    Last,
    /// For every one.
    All,
}

impl Backbone {
    /// Takes a model's layers into use. `threads`: how many compute; by default as many as the machine has.
    ///
    /// # Errors
    /// A router that is not float, gate and up matrices of a shared expert that read different rows, or threads that
    /// the operating system refuses.
    pub fn new(model: Arc<Model>, threads: Option<NonZeroUsize>) -> Result<Backbone, BackboneError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let layers = model
            .config()
            .layer_indices()
            .map(|index| Layer::new(&model, index))
            .collect::<Result<Vec<Layer>, BackboneError>>()?;
        let threads = threads.or_else(|| std::thread::available_parallelism().ok());
        let threads =
            Threads::new(threads.unwrap_or(NonZeroUsize::MIN), "backbone").map_err(BackboneError::Threads)?;
        Ok(Backbone {
            embedding: model.embedding(),
            output: model.output(),
            context_limit: model.config().context_length as usize,
            layers,
            model,
            threads,
            instructions: InstructionSet::detect(),
            identity: NEXT.fetch_add(1, Ordering::Relaxed),
            scratches: Mutex::new(Vec::new()),
        })
    }

    /// Limits sequences started from now on to `tokens`, where that is less than the model's context length.
    pub fn with_context_limit(mut self, tokens: usize) -> Backbone {
        self.context_limit = self.context_limit.min(tokens);
        self
    }

    /// Computes with `instructions` instead of the machine's fastest. Every set gives the same bits; this is how a test
    /// shows it.
    pub fn with_instructions(mut self, instructions: InstructionSet) -> Backbone {
        self.instructions = instructions;
        self
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Tokens that a sequence may hold.
    pub fn context_limit(&self) -> usize {
        self.context_limit
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.threads.count()
    }

    /// An empty sequence. It takes memory only once it is fed.
    pub fn start(&self) -> Sequence {
        Sequence::new(self.identity, self.context_limit, self.layers.iter().map(Layer::start).collect())
    }

    /// Runs `work` on this thread; what it shares out, local experts for one, goes to the backbone's threads.
    pub fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        self.threads.within(work)
    }

    /// Feeds tokens to one or several sequences in one pass and returns the wanted logits, feed by feed. Bits depend
    /// neither on what else is in the pass, nor on threads, nor on how a text is cut into passes.
    ///
    /// # Errors
    /// Checked before anything changes: feeds without tokens, too many rows, tokens outside the vocabulary, a full
    /// context, sequences of another backbone or spoiled ones, lack of memory. After any other error (experts that
    /// failed, values that are not finite) the sequences of the pass are spoiled.
    pub fn forward(
        &self,
        feeds: &mut [Feed<'_>],
        experts: &mut dyn Experts,
    ) -> Result<Vec<Logits>, BackboneError> {
        self.forward_observed(feeds, experts, &mut Observer::default())
    }

    /// As [`Backbone::forward`], watched by `observer`.
    pub fn forward_observed(
        &self,
        feeds: &mut [Feed<'_>],
        experts: &mut dyn Experts,
        observer: &mut Observer<'_>,
    ) -> Result<Vec<Logits>, BackboneError> {
        let started = Instant::now();
        let layers = 0..self.layers.len();
        let vocabulary = self.embedding.rows();
        for token in feeds.iter().flat_map(|feed| feed.tokens) {
            if token.0 as usize >= vocabulary {
                return Err(BackboneError::UnknownToken { token: *token, vocabulary });
            }
        }
        let tokens: Vec<TokenId> = feeds.iter().flat_map(|feed| feed.tokens).copied().collect();
        let wanted: Vec<Wanted> = feeds.iter().map(|feed| feed.logits).collect();
        let parts = feeds.iter_mut().map(|feed| (&mut *feed.sequence, feed.tokens.len()));
        let mut parts = self.parts(parts, &layers)?;
        self.within(|| {
            let mut timing = Timing { passes: 1, rows: tokens.len() as u64, ..Timing::default() };
            let mut scratch = self.take_scratch();
            let mut hidden = std::mem::take(&mut scratch.hidden);
            self.embed(&tokens, &mut hidden);
            timing.embedding = started.elapsed();
            let result = self
                .run(&mut parts, &layers, &mut hidden, &mut scratch, experts, observer, &mut timing)
                .and_then(|()| {
                    let started = Instant::now();
                    let logits = self.logits(&hidden, &parts, &wanted, &mut scratch);
                    timing.output = started.elapsed();
                    logits
                });
            scratch.hidden = hidden;
            self.give_scratch(scratch);
            let logits = result?;
            for part in &mut parts {
                part.sequence.advance(part.rows.len());
            }
            timing.total = started.elapsed();
            if let Some(total) = &mut observer.timing {
                total.add(&timing);
            }
            Ok(logits)
        })
    }

    /// Takes rows of the residual stream (rows x hidden, in place) through some layers only: for tests that feed a
    /// reference's values, and for whoever splits a model. A sequence must always run through the same layers.
    ///
    /// # Errors
    /// As [`Backbone::forward`]; also layers that the model does not have, and a number of values that is no number
    /// of rows.
    pub fn forward_layers(
        &self,
        layers: Range<usize>,
        sequence: &mut Sequence,
        hidden: &mut [f32],
        experts: &mut dyn Experts,
        observer: &mut Observer<'_>,
    ) -> Result<(), BackboneError> {
        let width = self.embedding.columns();
        if layers.start > layers.end || layers.end > self.layers.len() {
            let what = format!("layers {layers:?} of a model with {}", self.layers.len());
            return Err(BackboneError::WrongInput { what });
        }
        if !hidden.len().is_multiple_of(width) {
            let what = format!("{} values are no rows of {width}", hidden.len());
            return Err(BackboneError::WrongInput { what });
        }
        let rows = hidden.len() / width;
        let mut parts = self.parts([(sequence, rows)], &layers)?;
        self.within(|| {
            let mut scratch = self.take_scratch();
            let mut timing = Timing { passes: 1, rows: rows as u64, ..Timing::default() };
            let result = self.run(&mut parts, &layers, hidden, &mut scratch, experts, observer, &mut timing);
            self.give_scratch(scratch);
            result?;
            for part in &mut parts {
                part.sequence.advance(part.rows.len());
            }
            if let Some(total) = &mut observer.timing {
                total.add(&timing);
            }
            Ok(())
        })
    }

    /// The final norm and the output matrix for rows of the residual stream behind the last layer (rows x hidden).
    ///
    /// # Errors
    /// No rows, too many, a number of values that is no number of rows, values that are not finite.
    pub fn output(&self, hidden: &[f32]) -> Result<Logits, BackboneError> {
        let width = self.embedding.columns();
        let rows = hidden.len() / width;
        if rows == 0 || rows * width != hidden.len() {
            let what = format!("{} values are no rows of {width}", hidden.len());
            return Err(BackboneError::WrongInput { what });
        }
        check_rows(rows)?;
        self.within(|| {
            let mut scratch = self.take_scratch();
            let logits = self.project(hidden, &mut scratch);
            self.give_scratch(scratch);
            Ok(Logits::new(self.output.rows(), logits?))
        })
    }

    /// Checks every sequence, makes room in it, and lines up their rows.
    fn parts<'a>(
        &self,
        feeds: impl IntoIterator<Item = (&'a mut Sequence, usize)>,
        layers: &Range<usize>,
    ) -> Result<Vec<Part<'a>>, BackboneError> {
        let mut parts = Vec::new();
        let mut next = 0usize;
        for (sequence, fed) in feeds {
            if fed == 0 {
                return Err(BackboneError::PromptEmpty);
            }
            if sequence.backbone != self.identity {
                return Err(BackboneError::ForeignSequence);
            }
            let rows = next..next.saturating_add(fed);
            check_rows(rows.end)?;
            next = rows.end;
            sequence.reserve(fed, layers)?;
            parts.push(Part { sequence, rows });
        }
        Ok(parts)
    }

    fn embed(&self, tokens: &[TokenId], hidden: &mut Vec<f32>) {
        let width = self.embedding.columns();
        hidden.resize(tokens.len() * width, 0.0);
        for (token, row) in tokens.iter().zip(hidden.chunks_exact_mut(width)) {
            dequantise_row(self.embedding.matrix(), token.0 as usize, row);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "what a pass carries from layer to layer, each of it once")]
    fn run(
        &self,
        parts: &mut [Part<'_>],
        layers: &Range<usize>,
        hidden: &mut [f32],
        scratch: &mut Scratch,
        experts: &mut dyn Experts,
        observer: &mut Observer<'_>,
        timing: &mut Timing,
    ) -> Result<(), BackboneError> {
        if parts.is_empty() {
            return Ok(());
        }
        let config: &Config = self.model.config();
        scratch.rotations.prepare(parts, config.rope_theta, config.rope_dimensions as usize);
        for part in parts.iter_mut() {
            part.sequence.begin(layers);
        }
        for layer in &self.layers[layers.clone()] {
            layer.forward(hidden, parts, scratch, experts, observer, timing, self.instructions)?;
        }
        Ok(())
    }

    /// Logits of the wanted rows, part by part.
    fn logits(
        &self,
        hidden: &[f32],
        parts: &[Part<'_>],
        wanted: &[Wanted],
        scratch: &mut Scratch,
    ) -> Result<Vec<Logits>, BackboneError> {
        let width = self.embedding.columns();
        let wanted_rows = parts.iter().zip(wanted).map(|(part, wanted)| match wanted {
            Wanted::None => part.rows.end..part.rows.end,
            Wanted::Last => part.rows.end - 1..part.rows.end,
            Wanted::All => part.rows.clone(),
        });
        let wanted_rows: Vec<Range<usize>> = wanted_rows.collect();
        let selected: Vec<f32> = wanted_rows
            .iter()
            .flat_map(|rows| &hidden[rows.start * width..rows.end * width])
            .copied()
            .collect();
        let vocabulary = self.output.rows();
        if selected.is_empty() {
            return Ok(wanted_rows.iter().map(|_| Logits::new(vocabulary, Vec::new())).collect());
        }
        let mut values = self.project(&selected, scratch)?;
        if let [_] = wanted_rows[..] {
            return Ok(vec![Logits::new(vocabulary, values)]);
        }
        let mut logits = Vec::with_capacity(wanted_rows.len());
        for rows in wanted_rows.iter().rev() {
            let rest = values.split_off(values.len() - rows.len() * vocabulary);
            logits.push(Logits::new(vocabulary, rest));
        }
        logits.reverse();
        Ok(logits)
    }

    /// Final norm and output matrix; rows x vocabulary.
    fn project(&self, hidden: &[f32], scratch: &mut Scratch) -> Result<Vec<f32>, BackboneError> {
        let not_finite = |NotFinite| BackboneError::NotFinite { place: Place::Output };
        let epsilon = self.model.config().rms_epsilon;
        norm_rows(hidden, self.model.output_norm(), epsilon, &mut scratch.normed, self.instructions);
        let count = scratch.normed.count();
        scratch.normed.prepare(self.output.row_format()).map_err(not_finite)?;
        let rows = scratch.normed.bytes(self.output.row_format());
        compute(self.instructions, [Product::new(self.output.matrix(), rows, count, &mut scratch.output)]);
        let mut logits = vec![0.0; scratch.output.len()];
        transpose_rows(&scratch.output, count, 0..count, &mut logits);
        if logits.iter().fold(true, |finite, logit| finite & logit.is_finite()) {
            Ok(logits)
        } else {
            Err(not_finite(NotFinite))
        }
    }

    fn take_scratch(&self) -> Scratch {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give_scratch(&self, scratch: Scratch) {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }
}

impl std::fmt::Debug for Backbone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backbone")
            .field("model", &self.model.name())
            .field("layers", &self.layers.len())
            .field("threads", &self.threads())
            .field("context_limit", &self.context_limit)
            .finish_non_exhaustive()
    }
}

fn check_rows(rows: usize) -> Result<(), BackboneError> {
    if rows > MAX_ROWS {
        return Err(BackboneError::TooManyRows { rows, limit: MAX_ROWS });
    }
    Ok(())
}
