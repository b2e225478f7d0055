//! The second half of a layer: router, shared expert, the call for the routed experts, and the combination.

use std::sync::Arc;

use kvasir_model::{Config, ExpertTensors, LayerIndex, Tensor};
use kvasir_numerics::{InstructionSet, RowFormat, sigmoid, silu_multiply};

use crate::error::BackboneError;
use crate::experts::{Call, Pick};
use crate::faults::Faults;
use crate::observer::Observer;
use crate::parallel::{Cost, share, stretch};
use crate::products::{Product, compute, transpose_rows};
use crate::router::route;
use crate::rows::Rows;
use crate::scratch::{Scratch, SharedOut};

/// Cost of one value of the combination, in multiply-adds.
const COMBINE_COST: usize = 8;

/// Cost of one expert's logit for one row in softmax and choice, in multiply-adds.
const ROUTE_COST: usize = 32;

/// What a layer holds of its mixture of experts; the routed experts themselves are elsewhere.
#[derive(Debug)]
pub(crate) struct Mixture {
    pub(crate) layer: LayerIndex,
    hidden: usize,
    experts: usize,
    per_token: usize,
    /// What the layer's routed experts read.
    row_format: RowFormat,
    router: Tensor,
    shared: ExpertTensors,
    shared_gate: Tensor,
}

impl Mixture {
    pub(crate) fn new(
        config: &Config,
        layer: LayerIndex,
        row_format: RowFormat,
        router: Tensor,
        shared: ExpertTensors,
        shared_gate: Tensor,
    ) -> Result<Mixture, BackboneError> {
        if router.row_format() != RowFormat::Float32 {
            let what = format!(
                "{} is {}: a router must be F32, F16 or BF16, since its product is the float product",
                router.name(),
                router.format().name()
            );
            return Err(BackboneError::Unsupported { what });
        }
        if shared.gate.row_format() != shared.up.row_format() {
            let what = format!(
                "{} is {} and {} is {}: they must read one row format",
                shared.gate.name(),
                shared.gate.format().name(),
                shared.up.name(),
                shared.up.format().name()
            );
            return Err(BackboneError::Unsupported { what });
        }
        Ok(Mixture {
            layer,
            hidden: config.hidden as usize,
            experts: config.experts as usize,
            per_token: config.experts_per_token as usize,
            row_format,
            router,
            shared,
            shared_gate,
        })
    }

    /// The call for the routed experts of the normed rows.
    pub(crate) fn call(
        &self,
        scratch: &mut Scratch,
        observer: &mut Observer<'_>,
        instructions: InstructionSet,
    ) -> Call {
        let Scratch { normed, router, faults, .. } = scratch;
        let picks = self.route(normed, router, faults, observer, instructions);
        normed.prepare(self.row_format, faults);
        let rows = Arc::from(normed.bytes(self.row_format));
        Call { layer: self.layer, row_format: self.row_format, rows, picks }
    }

    /// Logits by the float product, softmax over all experts, and the picks of every row.
    fn route(
        &self,
        normed: &mut Rows,
        buffer: &mut Vec<f32>,
        faults: &mut Faults,
        observer: &mut Observer<'_>,
        instructions: InstructionSet,
    ) -> Vec<Vec<Pick>> {
        let count = normed.count();
        normed.prepare(RowFormat::Float32, faults);
        let mut product = std::mem::take(buffer);
        let rows = normed.bytes(RowFormat::Float32);
        compute(instructions, [Product::new(self.router.matrix(), rows, count, &mut product)]);
        let mut probabilities = vec![0.0; product.len()];
        transpose_rows(&product, count, 0..count, &mut probabilities);
        *buffer = product;
        if probabilities.iter().any(|logit| !logit.is_finite()) {
            faults.silence(&mut probabilities, self.experts);
        }
        let rows = stretch(count, self.experts * ROUTE_COST);
        let mut tasks: Vec<RouteTask<'_>> = probabilities
            .chunks_mut(rows * self.experts)
            .map(|values| RouteTask { values, picks: Vec::new() })
            .collect();
        share(&mut tasks, &|task| {
            let rows = task.values.chunks_exact_mut(self.experts);
            task.picks = rows.map(|logits| route(instructions, logits, self.per_token)).collect();
        });
        let picks: Vec<Vec<Pick>> = tasks.into_iter().flat_map(|task| task.picks).collect();
        if let Some(tap) = &mut observer.tap {
            tap.expert_in(self.layer, normed.values());
            tap.routed(self.layer, &probabilities, &picks);
        }
        picks
    }

    /// The expert that every row passes through, and the logit of its gate, for the normed rows.
    pub(crate) fn shared_expert(
        &self,
        scratch: &mut Scratch,
        shared: &mut SharedOut,
        instructions: InstructionSet,
    ) {
        let Scratch { normed, shared: scratch, faults, .. } = scratch;
        let count = normed.count();
        let ExpertTensors { gate, up, down } = &self.shared;
        for tensor in [gate, &self.shared_gate] {
            normed.prepare(tensor.row_format(), faults);
        }
        let (rows, gate_rows) =
            (normed.bytes(gate.row_format()), normed.bytes(self.shared_gate.row_format()));
        compute(
            instructions,
            [
                Product::new(gate.matrix(), rows, count, &mut scratch.gate),
                Product::new(up.matrix(), rows, count, &mut scratch.up),
                Product::new(self.shared_gate.matrix(), gate_rows, count, &mut shared.logits),
            ],
        );
        silu_multiply(instructions, &mut scratch.gate, &scratch.up);
        let inner = scratch.inner.reset(count, gate.rows());
        transpose_rows(&scratch.gate, count, 0..count, inner);
        scratch.inner.prepare(down.row_format(), faults);
        let rows = scratch.inner.bytes(down.row_format());
        compute(instructions, [Product::new(down.matrix(), rows, count, &mut scratch.product)]);
        shared.rows.resize(scratch.product.len(), 0.0);
        transpose_rows(&scratch.product, count, 0..count, &mut shared.rows);
    }

    /// The matrices that a pass reads, in that order; the routed experts' are elsewhere.
    pub(crate) fn matrices(&self) -> [&Tensor; 5] {
        let ExpertTensors { gate, up, down } = &self.shared;
        [&self.router, gate, up, &self.shared_gate, down]
    }

    /// `hidden + (routed + sigmoid(s) * shared)`.
    pub(crate) fn combine(&self, sums: &[f32], shared: &SharedOut, hidden: &mut [f32], faults: &mut Faults) {
        let width = self.hidden;
        let rows = stretch(hidden.len() / width, width * COMBINE_COST);
        let parts = hidden.chunks_mut(rows * width).zip(sums.chunks(rows * width));
        let shared = shared.rows.chunks(rows * width).zip(shared.logits.chunks(rows));
        let mut tasks: Vec<CombineTask<'_>> = parts
            .zip(shared)
            .map(|((hidden, sums), (shared, logits))| CombineTask {
                hidden,
                sums,
                shared,
                logits,
                finite: true,
            })
            .collect();
        share(&mut tasks, &|task| task.run(width));
        if tasks.iter().any(|task| !task.finite) {
            faults.silence(hidden, width);
        }
    }
}

/// A stretch of rows.
struct CombineTask<'a> {
    hidden: &'a mut [f32],
    sums: &'a [f32],
    shared: &'a [f32],
    /// Of the shared expert's gate, one a row.
    logits: &'a [f32],
    finite: bool,
}

impl CombineTask<'_> {
    fn run(&mut self, width: usize) {
        let rows = self.hidden.chunks_exact_mut(width).zip(self.sums.chunks_exact(width));
        for ((hidden, sums), (shared, logit)) in rows.zip(self.shared.chunks_exact(width).zip(self.logits)) {
            let weight = sigmoid(*logit);
            let mut finite = true;
            for ((hidden, sum), shared) in hidden.iter_mut().zip(sums).zip(shared) {
                *hidden += sum + weight * shared;
                finite &= hidden.is_finite();
            }
            self.finite &= finite;
        }
    }
}

impl Cost for CombineTask<'_> {
    fn cost(&self) -> usize {
        self.hidden.len() * COMBINE_COST
    }
}

/// A stretch of rows on their way through the router.
struct RouteTask<'a> {
    /// rows x experts: logits, then probabilities.
    values: &'a mut [f32],
    picks: Vec<Vec<Pick>>,
}

impl Cost for RouteTask<'_> {
    fn cost(&self) -> usize {
        self.values.len() * ROUTE_COST
    }
}
