//! Looking into a forward pass: values for tests that bisect a fault, times for whoever tunes.

use std::time::Duration;

use kvasir_model::LayerIndex;

use crate::experts::Pick;

/// What may watch a pass. The default watches nothing and costs nothing.
#[derive(Default)]
pub struct Observer<'a> {
    /// Receives values as they arise.
    pub tap: Option<&'a mut (dyn Tap + 'a)>,
    /// Times are added to it.
    pub timing: Option<&'a mut Timing>,
}

/// Who watches a pass, and where its times go.
pub(crate) struct Watch<'a, 'o> {
    pub(crate) observer: &'a mut Observer<'o>,
    pub(crate) timing: &'a mut Timing,
}

/// Receives the values of a pass, layer by layer. All rows of the pass, row-major, those of the first sequence first.
pub trait Tap: Send {
    /// The residual stream (rows x hidden) before `layer`.
    fn hidden(&mut self, layer: LayerIndex, hidden: &[f32]) {
        let _ = (layer, hidden);
    }

    /// What the output matrix of the mixer of `layer` reads, before it is quantised (rows x its columns), and the
    /// product (rows x hidden), which the tap may replace.
    fn mixer_out(&mut self, layer: LayerIndex, rows: &[f32], out: &mut [f32]) {
        let _ = (layer, rows, out);
    }

    /// The router's probabilities (rows x experts) and picks, highest weight first.
    fn routed(&mut self, layer: LayerIndex, probabilities: &[f32], picks: &[Vec<Pick>]) {
        let _ = (layer, probabilities, picks);
    }

    /// What router and experts read, before it is quantised (rows x hidden).
    fn expert_in(&mut self, layer: LayerIndex, rows: &[f32]) {
        let _ = (layer, rows);
    }

    /// The weighted sum of the routed experts, without the shared expert (rows x hidden).
    fn expert_out(&mut self, layer: LayerIndex, sums: &[f32]) {
        let _ = (layer, sums);
    }
}

/// Where the time of forward passes went, summed over all passes that reported into it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timing {
    /// Passes.
    pub passes: u64,
    /// Rows of all passes.
    pub rows: u64,
    /// Embedding lookups and rotation tables.
    pub embedding: Duration,
    /// Delta nets and attention, with their norms.
    pub mixers: Duration,
    /// Norms before the router, router and submitting the calls.
    pub router: Duration,
    /// Shared experts; they are computed while routed experts are waited for.
    pub shared_experts: Duration,
    /// From the submission of a call to its answer, summed over layers.
    pub routed_experts: Duration,
    /// Time that waited for routed experts after the shared expert was done, summed over layers.
    pub waiting: Duration,
    /// Final norm and output matrix.
    pub output: Duration,
    /// Whole passes.
    pub total: Duration,
}

impl Timing {
    /// Adds the figures of `other`.
    pub fn add(&mut self, other: &Timing) {
        self.passes += other.passes;
        self.rows += other.rows;
        self.embedding += other.embedding;
        self.mixers += other.mixers;
        self.router += other.router;
        self.shared_experts += other.shared_experts;
        self.routed_experts += other.routed_experts;
        self.waiting += other.waiting;
        self.output += other.output;
        self.total += other.total;
    }
}
