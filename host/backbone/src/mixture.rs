//! The second half of a layer: router, shared expert, the call for the routed experts, and the combination.

use std::sync::Arc;
use std::time::Instant;

use kvasir_model::{Config, ExpertTensors, LayerIndex, Tensor};
use kvasir_numerics::{InstructionSet, NotFinite, RowFormat, sigmoid, silu_multiply};

use crate::error::{BackboneError, Place};
use crate::experts::{Call, Experts, ExpertsError, Pick, wait_for};
use crate::observer::{Observer, Timing};
use crate::parallel::{Cost, share, stretch};
use crate::products::{Product, compute, transpose_rows};
use crate::router::route;
use crate::rows::Rows;
use crate::scratch::{Scratch, SharedScratch};

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

    /// Adds the block's output for the normed rows to `hidden`.
    pub(crate) fn forward(
        &self,
        hidden: &mut [f32],
        scratch: &mut Scratch,
        experts: &mut dyn Experts,
        observer: &mut Observer<'_>,
        timing: &mut Timing,
        instructions: InstructionSet,
    ) -> Result<(), BackboneError> {
        let started = Instant::now();
        let count = scratch.normed.count();
        let not_finite = |NotFinite| BackboneError::NotFinite { place: Place::Experts(self.layer) };
        let failed = |source: ExpertsError| BackboneError::Experts { layer: self.layer, source };

        let picks = self.route(&mut scratch.normed, &mut scratch.router, observer, instructions);
        let picks = picks.map_err(not_finite)?;
        scratch.normed.prepare(self.row_format).map_err(not_finite)?;
        let rows = Arc::from(scratch.normed.bytes(self.row_format));
        let call = Call { layer: self.layer, row_format: self.row_format, rows, picks };
        let submitted = Instant::now();
        timing.router += submitted - started;
        let id = experts.submit(call).map_err(failed)?;

        // Remote experts are on their way meanwhile; local ones were computed when they were submitted. The call is
        // waited for even if the shared expert failed: nothing is left in flight.
        let shared_started = Instant::now();
        let shared = self.shared_expert(&mut scratch.normed, &mut scratch.shared, instructions);
        let waiting = Instant::now();
        let completed = wait_for(experts, id).map_err(failed)?;
        timing.shared_experts += waiting - shared_started;
        timing.waiting += waiting.elapsed();
        timing.routed_experts += submitted.elapsed();
        shared.map_err(not_finite)?;
        let sums = completed.sums;
        if sums.len() != count * self.hidden {
            let expected = count * self.hidden;
            return Err(failed(ExpertsError::WrongLength { call: id, expected, received: sums.len() }));
        }
        if let Some(tap) = &mut observer.tap {
            tap.expert_out(self.layer, &sums);
        }
        self.combine(&sums, &scratch.shared, hidden).map_err(not_finite)
    }

    /// Logits by the float product, softmax over all experts, and the picks of every row.
    fn route(
        &self,
        normed: &mut Rows,
        buffer: &mut Vec<f32>,
        observer: &mut Observer<'_>,
        instructions: InstructionSet,
    ) -> Result<Vec<Vec<Pick>>, NotFinite> {
        let count = normed.count();
        normed.prepare(RowFormat::Float32)?;
        let mut product = std::mem::take(buffer);
        let rows = normed.bytes(RowFormat::Float32);
        compute(instructions, [Product::new(self.router.matrix(), rows, count, &mut product)]);
        let mut probabilities = vec![0.0; product.len()];
        transpose_rows(&product, count, 0..count, &mut probabilities);
        *buffer = product;
        if probabilities.iter().any(|logit| !logit.is_finite()) {
            return Err(NotFinite);
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
        Ok(picks)
    }

    /// The expert that every row passes through, and the logit of its gate.
    fn shared_expert(
        &self,
        normed: &mut Rows,
        scratch: &mut SharedScratch,
        instructions: InstructionSet,
    ) -> Result<(), NotFinite> {
        let count = normed.count();
        let ExpertTensors { gate, up, down } = &self.shared;
        for tensor in [gate, &self.shared_gate] {
            normed.prepare(tensor.row_format())?;
        }
        let (rows, gate_rows) =
            (normed.bytes(gate.row_format()), normed.bytes(self.shared_gate.row_format()));
        compute(
            instructions,
            [
                Product::new(gate.matrix(), rows, count, &mut scratch.gate),
                Product::new(up.matrix(), rows, count, &mut scratch.up),
                Product::new(self.shared_gate.matrix(), gate_rows, count, &mut scratch.weight),
            ],
        );
        silu_multiply(instructions, &mut scratch.gate, &scratch.up);
        let inner = scratch.inner.reset(count, gate.rows());
        transpose_rows(&scratch.gate, count, 0..count, inner);
        scratch.inner.prepare(down.row_format())?;
        let rows = scratch.inner.bytes(down.row_format());
        compute(instructions, [Product::new(down.matrix(), rows, count, &mut scratch.product)]);
        scratch.out.resize(scratch.product.len(), 0.0);
        transpose_rows(&scratch.product, count, 0..count, &mut scratch.out);
        Ok(())
    }

    /// `hidden + (routed + sigmoid(s) * shared)`, refusing what is not finite.
    fn combine(&self, sums: &[f32], shared: &SharedScratch, hidden: &mut [f32]) -> Result<(), NotFinite> {
        let width = self.hidden;
        let rows = stretch(hidden.len() / width, width * COMBINE_COST);
        let parts = hidden.chunks_mut(rows * width).zip(sums.chunks(rows * width));
        let shared = shared.out.chunks(rows * width).zip(shared.weight.chunks(rows));
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
        let finite = tasks.iter().all(|task| task.finite);
        if finite { Ok(()) } else { Err(NotFinite) }
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
