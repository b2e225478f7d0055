//! Buffers that a forward pass reuses, so that decoding allocates next to nothing.

use crate::attention::Rotations;
use crate::faults::Faults;
use crate::rows::Rows;

/// Buffers of whoever computes at the moment. Contents mean nothing while a pass waits for its experts, so that passes
/// which wait share them.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// What a mixer or the experts read: the normed residual stream.
    pub(crate) normed: Rows,
    pub(crate) mixer: MixerScratch,
    pub(crate) router: Vec<f32>,
    pub(crate) shared: SharedScratch,
    pub(crate) output: Vec<f32>,
    pub(crate) faults: Faults,
}

/// What a pass keeps while its experts compute.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// The residual stream, row-major.
    pub(crate) hidden: Vec<f32>,
    pub(crate) rotations: Rotations,
    pub(crate) shared: SharedOut,
}

/// What the shared expert of the layer at hand gave.
#[derive(Debug, Default)]
pub(crate) struct SharedOut {
    /// Its output, row-major.
    pub(crate) rows: Vec<f32>,
    /// Its gate's logit per row.
    pub(crate) logits: Vec<f32>,
}

/// Buffers of a mixer.
#[derive(Debug, Default)]
pub(crate) struct MixerScratch {
    /// Products of the input row, output-major.
    pub(crate) products: [Vec<f32>; 4],
    /// Inputs of the convolution behind what the sequences remember, row-major.
    pub(crate) window: Vec<f32>,
    /// Queries, keys and values, row-major.
    pub(crate) rows: Vec<f32>,
    /// Gates, row-major.
    pub(crate) gates: Vec<f32>,
    /// Outputs of the heads, head by head.
    pub(crate) heads: Vec<f32>,
    /// What the output matrix reads.
    pub(crate) mixed: Rows,
    /// The block's output, output-major.
    pub(crate) block: Vec<f32>,
}

/// Buffers of the shared expert.
#[derive(Debug, Default)]
pub(crate) struct SharedScratch {
    /// Output-major.
    pub(crate) gate: Vec<f32>,
    pub(crate) up: Vec<f32>,
    /// What the down matrix reads.
    pub(crate) inner: Rows,
    /// The product of the down matrix, output-major.
    pub(crate) product: Vec<f32>,
}
