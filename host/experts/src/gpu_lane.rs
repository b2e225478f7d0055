//! The experts on the GPU: which ones, under which numbers, and what becomes of them when its process fails.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use kvasir_gpu::message::{ExpertShape, MatrixShape, Part, Rows as GpuRows};
use kvasir_gpu::{Adapter, Gpu, GpuError, GpuOptions};
use kvasir_model::{ExpertIndex, LayerIndex};
use kvasir_numerics::{Matrix, RowFormat, Swiglu};
use kvasir_plugin::{Shader, VerifiedPlugin};
use kvasir_sandbox::{Fault, SandboxError};

use crate::error::RunnerError;
use crate::lane::{Rows, Shared, stored_bytes};
use crate::request::ExpertRows;

/// What the GPU holds.
pub(crate) struct GpuLane {
    gpu: Gpu,
    shader: Shader,
    experts: HashMap<(u16, u16), Held>,
    /// The number of the next expert: none is used twice, so that a late answer never meets another expert.
    next: u64,
    clock: u64,
    bytes: u64,
    starts: u64,
    /// Whether a process was lost and none runs in its place.
    lost: bool,
}

struct Held {
    number: u64,
    bytes: u64,
    hidden: usize,
    row_format: RowFormat,
    used: u64,
}

impl GpuLane {
    /// Starts the plugin's shader.
    pub fn new(plugin: &VerifiedPlugin, options: GpuOptions) -> Result<Self, GpuError> {
        let shader = plugin.shader().ok_or(GpuError::NoShader)?.clone();
        let gpu = Gpu::new(plugin.digest(), shader.source(), shader.formats(), options)?;
        let starts = gpu.starts();
        Ok(GpuLane { gpu, shader, experts: HashMap::new(), next: 0, clock: 0, bytes: 0, starts, lost: false })
    }

    /// The handle itself, for the proof.
    pub fn gpu(&mut self) -> &mut Gpu {
        &mut self.gpu
    }

    /// The device in use.
    pub fn adapter(&self) -> Adapter {
        self.gpu.adapter().clone()
    }

    /// Whether the shader evaluates all three matrices of an expert.
    pub fn takes(&self, weights: &Swiglu<'_>) -> bool {
        takes(&self.shader, weights)
    }

    /// Whether an expert is there now.
    pub fn holds(&mut self, shared: &Shared, layer: LayerIndex, expert: ExpertIndex) -> bool {
        self.forget_the_lost(shared);
        self.experts.contains_key(&(layer.0, expert.0))
    }

    /// Begins a call: what it uses from here on makes no room for its other experts.
    pub fn begin_call(&mut self) {
        self.clock += 1;
    }

    /// Whether an expert is there, which then stays until the call has ended.
    pub fn keep(&mut self, shared: &Shared, layer: LayerIndex, expert: ExpertIndex) -> bool {
        self.forget_the_lost(shared);
        let held = self.experts.get_mut(&(layer.0, expert.0));
        held.map(|held| held.used = self.clock).is_some()
    }

    /// Takes an expert that the caller places; never makes room.
    pub fn load(
        &mut self,
        shared: &Shared,
        layer: LayerIndex,
        expert: ExpertIndex,
        weights: &Swiglu<'_>,
    ) -> Result<(), RunnerError> {
        let bytes = stored_bytes(weights);
        let before = shared.held_bytes.load(Ordering::Relaxed);
        if before.saturating_add(bytes) > shared.held_limit {
            return Err(RunnerError::NoRoom { layer, expert, bytes, held: before, limit: shared.held_limit });
        }
        self.place(shared, layer, expert, weights)
    }

    /// Takes an expert that was read from a source; those unused for longest make room, but none of the same call.
    pub fn read(
        &mut self,
        shared: &Shared,
        layer: LayerIndex,
        expert: ExpertIndex,
        weights: &Swiglu<'_>,
    ) -> Result<(), RunnerError> {
        let bytes = stored_bytes(weights);
        while self.bytes.saturating_add(bytes) > shared.held_limit && self.drop_oldest(shared) {}
        loop {
            match self.load(shared, layer, expert, weights) {
                Err(RunnerError::NoRoom { .. }) if self.drop_oldest(shared) => {}
                result => return result,
            }
        }
    }

    /// Frees an expert, if it is there.
    pub fn unload(&mut self, shared: &Shared, layer: LayerIndex, expert: ExpertIndex) {
        let Some(held) = self.experts.remove(&(layer.0, expert.0)) else { return };
        self.bytes -= held.bytes;
        shared.held_bytes.fetch_sub(held.bytes, Ordering::Relaxed);
        if self.gpu.unload(held.number).is_err() {
            self.forget_the_lost(shared);
        }
    }

    /// Computes requests for experts that are all there; the rows were checked. `out` holds each request's values.
    pub fn evaluate(
        &mut self,
        shared: &Shared,
        rows: Rows<'_>,
        work: &mut [(&ExpertRows, &mut [f32])],
    ) -> Result<(), RunnerError> {
        let layer = rows.layer;
        let mut parts = Vec::with_capacity(work.len());
        let mut values = 0;
        for (request, out) in work.iter() {
            let expert = request.expert;
            let held =
                self.experts.get_mut(&(layer.0, expert.0)).ok_or(RunnerError::NotHeld { layer, expert })?;
            held.used = self.clock;
            if held.row_format != rows.format {
                let (found, expected) = (rows.format, held.row_format);
                return Err(RunnerError::WrongRowFormat { layer, expert, found, expected });
            }
            if held.hidden != rows.hidden {
                let (found, expected) = (rows.hidden, held.hidden);
                return Err(RunnerError::WrongHidden { layer, expert, found, expected });
            }
            parts.push(Part { expert: held.number, rows: request.rows.clone() });
            values += out.len();
        }
        let mut all = vec![0.0; values];
        let format = gpu_rows(rows.format);
        if let Err(error) = self.gpu.forward(format, rows.hidden, rows.bytes, &parts, &mut all) {
            self.forget_the_lost(shared);
            return Err(error.into());
        }
        let mut rest = all.as_slice();
        for (request, out) in work {
            let (mine, others) = rest.split_at(out.len());
            rest = others;
            if let Some(index) = mine.iter().position(|value| !value.is_finite()) {
                let source = SandboxError::NotFinite { index };
                return Err(RunnerError::Kernel { layer, expert: request.expert, source });
            }
            out.copy_from_slice(mine);
        }
        Ok(())
    }

    fn place(
        &mut self,
        shared: &Shared,
        layer: LayerIndex,
        expert: ExpertIndex,
        weights: &Swiglu<'_>,
    ) -> Result<(), RunnerError> {
        self.forget_the_lost(shared);
        check_weights(weights).map_err(|source| RunnerError::Kernel { layer, expert, source })?;
        let bytes = stored_bytes(weights);
        let number = self.next;
        self.next += 1;
        let loaded = load(&mut self.gpu, number, weights);
        // The load may have started a new process.
        self.forget_the_lost(shared);
        loaded.map_err(|error| match error {
            GpuError::NoRoom { .. } => {
                RunnerError::NoRoom { layer, expert, bytes, held: self.bytes, limit: self.bytes }
            }
            error => error.into(),
        })?;
        self.bytes += bytes;
        shared.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let (hidden, row_format) = (weights.hidden(), weights.gate().row_format());
        let held = Held { number, bytes, hidden, row_format, used: self.clock };
        self.experts.insert((layer.0, expert.0), held);
        Ok(())
    }

    fn drop_oldest(&mut self, shared: &Shared) -> bool {
        let unused = self.experts.iter().filter(|(_, held)| held.used < self.clock);
        let oldest = unused.min_by_key(|(_, held)| held.used).map(|(&key, _)| key);
        let Some((layer, expert)) = oldest else { return false };
        self.unload(shared, LayerIndex(layer), ExpertIndex(expert));
        true
    }

    /// Forgets everything if the process that held it is gone.
    fn forget_the_lost(&mut self, shared: &Shared) {
        let (runs, same) = (self.gpu.is_running(), self.gpu.starts() == self.starts);
        if runs && same && !self.lost {
            return;
        }
        if !self.lost {
            tracing::warn!(experts_lost = self.experts.len(), "the GPU's process was lost");
            shared.failures.fetch_add(1, Ordering::Relaxed);
        }
        self.lost = !runs;
        self.starts = self.gpu.starts();
        shared.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
        self.experts.clear();
    }
}

/// Whether `shader` evaluates all three matrices of an expert.
pub(crate) fn takes(shader: &Shader, weights: &Swiglu<'_>) -> bool {
    let known = |matrix: Matrix<'_>| shader.formats().iter().any(|format| format == matrix.format().name());
    [weights.gate(), weights.up(), weights.down()].into_iter().all(known)
}

/// Gives an expert to the GPU under `number`.
pub(crate) fn load(gpu: &mut Gpu, number: u64, weights: &Swiglu<'_>) -> Result<(), GpuError> {
    let matrices = [weights.gate(), weights.up(), weights.down()];
    let too_large = || GpuError::Refused {
        request: "loading an expert",
        reason: "a matrix is larger than the GPU's process takes".to_owned(),
    };
    let shape = |matrix: Matrix<'_>| {
        let row_bytes = matrix.format().row_bytes(matrix.columns())?;
        Some(MatrixShape {
            format: matrix.format().name().to_owned(),
            rows_format: gpu_rows(matrix.row_format()),
            outputs: u32::try_from(matrix.rows()).ok()?,
            columns: u32::try_from(matrix.columns()).ok()?,
            row_bytes: u32::try_from(row_bytes).ok()?,
        })
    };
    let [gate, up, down] = matrices.map(shape);
    let shape: ExpertShape =
        [gate.ok_or_else(too_large)?, up.ok_or_else(too_large)?, down.ok_or_else(too_large)?];
    gpu.load(number, shape, matrices.map(|matrix| matrix.bytes()))
}

/// The check that a WASM kernel makes itself: a shader is given nothing else.
pub(crate) fn check_weights(weights: &Swiglu<'_>) -> Result<(), SandboxError> {
    for matrix in [weights.gate(), weights.up(), weights.down()] {
        matrix
            .check_weights()
            .map_err(|_| SandboxError::Fault { call: "load", fault: Fault::MalformedWeights })?;
    }
    Ok(())
}

/// The GPU's name of a row format.
pub(crate) fn gpu_rows(format: RowFormat) -> GpuRows {
    match format {
        RowFormat::Float32 => GpuRows::F32,
        RowFormat::Q8 => GpuRows::Q8,
        RowFormat::Q8K => GpuRows::Q8K,
    }
}
