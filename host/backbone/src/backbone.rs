//! The forward pass over all layers, for several sequences at once.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kvasir_model::{Config, Model, Tensor, TokenId};
use kvasir_numerics::{InstructionSet, dequantise_row};
use kvasir_threads::Threads;

use crate::error::{BackboneError, Place};
use crate::experts::{Experts, ExpertsError, wait_for};
use crate::layer::Layer;
use crate::logits::Logits;
use crate::observer::{Observer, Timing, Watch};
use crate::output::check_finite;
use crate::part::Part;
use crate::scratch::{Carried, Scratch};
use crate::sequence::Sequence;

/// Rows that one forward pass takes at most, all sequences together; it bounds scratch memory and the size of a call.
pub const MAX_ROWS: usize = 4096;

/// A model ready to run: its layers, and the threads that compute them. Share it; `forward` may be called from
/// several threads at once.
pub struct Backbone {
    pub(crate) model: Arc<Model>,
    pub(crate) layers: Vec<Layer>,
    embedding: Tensor,
    pub(crate) output: Tensor,
    threads: Threads,
    pub(crate) instructions: InstructionSet,
    context_limit: usize,
    identity: u64,
    idle: Mutex<Idle>,
}

/// Buffers that no pass is using.
#[derive(Default)]
struct Idle {
    scratches: Vec<Scratch>,
    carried: Vec<Carried>,
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
            idle: Mutex::default(),
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
        self.start_within(self.context_limit)
    }

    /// An empty sequence that will hold at most `tokens`, where that is less than the context limit: its caches never
    /// take memory for more ([`crate::SequenceCost`]).
    pub fn start_within(&self, tokens: usize) -> Sequence {
        let limit = self.context_limit.min(tokens);
        Sequence::new(self.identity, limit, self.layers.iter().map(Layer::start).collect())
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
        for feed in feeds.iter() {
            self.check_tokens(feed.tokens)?;
        }
        let tokens: Vec<TokenId> = feeds.iter().flat_map(|feed| feed.tokens).copied().collect();
        let wanted: Vec<Wanted> = feeds.iter().map(|feed| feed.logits).collect();
        let parts = feeds.iter_mut().map(|feed| (&mut *feed.sequence, feed.tokens.len()));
        let mut parts = self.parts(parts, &layers)?;
        self.within(|| {
            let mut timing = Timing { passes: 1, rows: tokens.len() as u64, ..Timing::default() };
            let (mut scratch, mut carried) = (self.take_scratch(), self.take_carried());
            let mut hidden = std::mem::take(&mut carried.hidden);
            self.embed(&tokens, &mut hidden);
            timing.embedding = started.elapsed();
            let mut watch = Watch { observer: &mut *observer, timing: &mut timing };
            let result = self
                .run(&mut parts, &layers, &mut hidden, &mut carried, &mut scratch, experts, &mut watch)
                .and_then(|()| {
                    let started = Instant::now();
                    let rows = parts.iter().zip(&wanted).map(|(part, wanted)| wanted.of(&part.rows));
                    let logits = self.logits(&hidden, &rows.collect::<Vec<_>>(), &mut scratch);
                    timing.output = started.elapsed();
                    check_finite(&mut scratch, Place::Output).map(|()| logits)
                });
            carried.hidden = hidden;
            self.give_carried(carried);
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
            let (mut scratch, mut carried) = (self.take_scratch(), self.take_carried());
            let mut timing = Timing { passes: 1, rows: rows as u64, ..Timing::default() };
            let mut watch = Watch { observer: &mut *observer, timing: &mut timing };
            let result =
                self.run(&mut parts, &layers, hidden, &mut carried, &mut scratch, experts, &mut watch);
            self.give_carried(carried);
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

    /// Checks every sequence, makes room in it, and lines up their rows.
    fn parts<'a>(
        &self,
        feeds: impl IntoIterator<Item = (&'a mut Sequence, usize)>,
        layers: &Range<usize>,
    ) -> Result<Vec<Part<'a>>, BackboneError> {
        let mut parts = Vec::new();
        let mut next = 0;
        for (sequence, fed) in feeds {
            let rows = self.admit(sequence, fed, next, layers)?;
            next = rows.end;
            parts.push(Part { sequence, rows });
        }
        Ok(parts)
    }

    /// Checks that `sequence` may be fed `fed` tokens as the rows from `first` on, which it gives, and makes room in it.
    pub(crate) fn admit(
        &self,
        sequence: &mut Sequence,
        fed: usize,
        first: usize,
        layers: &Range<usize>,
    ) -> Result<Range<usize>, BackboneError> {
        if fed == 0 {
            return Err(BackboneError::PromptEmpty);
        }
        if sequence.backbone != self.identity {
            return Err(BackboneError::ForeignSequence);
        }
        let rows = first..first.saturating_add(fed);
        check_rows(rows.end)?;
        sequence.reserve(fed, layers)?;
        Ok(rows)
    }

    pub(crate) fn check_tokens(&self, tokens: &[TokenId]) -> Result<(), BackboneError> {
        let vocabulary = self.embedding.rows();
        match tokens.iter().find(|token| token.0 as usize >= vocabulary) {
            Some(&token) => Err(BackboneError::UnknownToken { token, vocabulary }),
            None => Ok(()),
        }
    }

    /// Width of the residual stream.
    pub(crate) fn width(&self) -> usize {
        self.embedding.columns()
    }

    pub(crate) fn rotate(&self, carried: &mut Carried, parts: &[Part<'_>]) {
        let config: &Config = self.model.config();
        carried.rotations.prepare(parts, config.rope_theta, config.rope_dimensions as usize);
    }

    pub(crate) fn embed(&self, tokens: &[TokenId], hidden: &mut Vec<f32>) {
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
        carried: &mut Carried,
        scratch: &mut Scratch,
        experts: &mut dyn Experts,
        watch: &mut Watch<'_, '_>,
    ) -> Result<(), BackboneError> {
        if parts.is_empty() {
            return Ok(());
        }
        self.rotate(carried, parts);
        for part in parts.iter_mut() {
            part.sequence.begin(layers);
        }
        let Carried { rotations, shared, .. } = carried;
        for layer in &self.layers[layers.clone()] {
            let (mixer, mixture) = (Place::Mixer(layer.index()), Place::Experts(layer.index()));
            let failed = |source| BackboneError::Experts { layer: layer.index(), source };
            layer.mix(hidden, parts, rotations, scratch, watch, self.instructions);
            check_finite(scratch, mixer)?;
            let call = layer.call(hidden, scratch, watch, self.instructions);
            check_finite(scratch, mixture)?;
            let submitted = Instant::now();
            let id = experts.submit(call).map_err(failed)?;
            // Remote experts are on their way meanwhile; local ones were computed when they were submitted. The call is
            // waited for even if the shared expert failed: nothing is left in flight.
            layer.meanwhile(scratch, shared, watch, self.instructions);
            let waiting = Instant::now();
            let (at, mut unread) = (usize::from(layer.index().0), Some(submitted));
            let answer = wait_for(experts, id, |experts| self.stand_by_at(at, &mut unread, experts));
            let sums = answer.map_err(failed)?.sums;
            watch.timing.waiting += waiting.elapsed();
            watch.timing.routed_experts += submitted.elapsed();
            check_finite(scratch, mixture)?;
            if sums.len() != hidden.len() {
                let (expected, received) = (hidden.len(), sums.len());
                return Err(failed(ExpertsError::WrongLength { call: id, expected, received }));
            }
            layer.take(hidden, &sums, shared, scratch, watch);
            check_finite(scratch, mixture)?;
        }
        Ok(())
    }

    pub(crate) fn take_scratch(&self) -> Scratch {
        self.idle().scratches.pop().unwrap_or_default()
    }

    pub(crate) fn give_scratch(&self, mut scratch: Scratch) {
        // What a pass that failed had noted is nobody's any more.
        scratch.faults.take();
        self.idle().scratches.push(scratch);
    }

    pub(crate) fn take_carried(&self) -> Carried {
        self.idle().carried.pop().unwrap_or_default()
    }

    pub(crate) fn give_carried(&self, carried: Carried) {
        self.idle().carried.push(carried);
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
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

pub(crate) fn check_rows(rows: usize) -> Result<(), BackboneError> {
    if rows > MAX_ROWS {
        return Err(BackboneError::TooManyRows { rows, limit: MAX_ROWS });
    }
    Ok(())
}
