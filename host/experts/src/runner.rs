//! The runner: a compiled kernel and as many instances of it as the experts need.

use std::error::Error;
use std::num::NonZeroUsize;

use kvasir_model::{ExpertIndex, LayerIndex};
use kvasir_numerics::{RowFormat, Swiglu};
use kvasir_plugin::{PluginDigest, VerifiedPlugin};
use kvasir_sandbox::{CompiledKernel, KernelLimits};

use crate::error::RunnerError;
use crate::request::ExpertRows;

/// Whatever kept a source from giving an expert.
pub type SourceError = Box<dyn Error + Send + Sync>;

/// Where expert weights come from when they are first needed, and again after an instance failed.
pub trait ExpertSource: Send + Sync {
    /// Calls `take` once with the matrices of the expert.
    fn expert(
        &self,
        layer: LayerIndex,
        expert: ExpertIndex,
        take: &mut dyn FnMut(&Swiglu<'_>),
    ) -> Result<(), SourceError>;
}

/// How a runner uses this machine.
#[derive(Clone, Copy, Debug)]
pub struct RunnerOptions {
    /// Lanes that compute side by side; expert e belongs to lane e mod lanes. More lanes than threads share the work more
    /// evenly. A lane opens another instance when its latest one is full.
    pub instances: NonZeroUsize,
    /// The operator's policy for each instance; an instance gets the lesser of this and what the plugin requests.
    pub limits: KernelLimits,
    /// Most expert bytes that all instances together may hold; `None`: as much as is loaded.
    pub held_bytes: Option<u64>,
}

/// Experts in kernels. Used from many threads at once.
pub struct ExpertRunner {
    kernel: CompiledKernel,
}

impl Default for RunnerOptions {
    /// Four lanes for every thread of the machine, the sandbox's default limits, no bound on the expert bytes.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        RunnerOptions {
            instances: threads.saturating_mul(NonZeroUsize::MIN.saturating_add(3)),
            limits: KernelLimits::default(),
            held_bytes: None,
        }
    }
}

impl ExpertRunner {
    /// Compiles `plugin` in the process's shared engine and proves it on its golden vectors before it may answer anything.
    pub fn new(plugin: &VerifiedPlugin, options: RunnerOptions) -> Result<Self, RunnerError> {
        let _ = (plugin, options);
        todo!()
    }

    /// A runner of a kernel that the caller has compiled, without proving it on golden vectors.
    pub fn from_kernel(kernel: CompiledKernel, options: RunnerOptions) -> Result<Self, RunnerError> {
        let _ = options;
        Ok(ExpertRunner { kernel })
    }

    /// The plugin that computes.
    pub fn plugin(&self) -> PluginDigest {
        self.kernel.plugin()
    }

    /// Loads an expert. Loading it twice is an error, as is exceeding `held_bytes`.
    pub fn load(&self, layer: LayerIndex, expert: ExpertIndex, weights: &Swiglu<'_>) -> Result<(), RunnerError> {
        let _ = (layer, expert, weights);
        todo!()
    }

    /// Frees an expert; an expert that is not held is ignored.
    pub fn unload(&self, layer: LayerIndex, expert: ExpertIndex) {
        let _ = (layer, expert);
        todo!()
    }

    /// Whether an expert is held now. An expert is lost when the instance that holds it fails.
    pub fn holds(&self, layer: LayerIndex, expert: ExpertIndex) -> bool {
        let _ = (layer, expert);
        todo!()
    }

    /// Bytes of the experts held.
    pub fn held_bytes(&self) -> u64 {
        todo!()
    }

    /// Evaluates held experts. `rows` are quantised rows of `hidden` values, back to back in `row_format`. Returns, for
    /// each request in order and each of its rows in order, `hidden` values. Weights are not used. Parallel inside: on
    /// the rayon pool that it is called in.
    pub fn each(
        &self,
        layer: LayerIndex,
        row_format: RowFormat,
        rows: &[u8],
        hidden: usize,
        requests: &[ExpertRows],
    ) -> Result<Vec<f32>, RunnerError> {
        let _ = (layer, row_format, rows, hidden, requests);
        todo!()
    }

    /// As [`ExpertRunner::each`], but experts that are not held are read from `source` first; if `held_bytes` would be
    /// exceeded, the experts unused for longest make room.
    pub fn each_from(
        &self,
        source: &dyn ExpertSource,
        layer: LayerIndex,
        row_format: RowFormat,
        rows: &[u8],
        hidden: usize,
        requests: &[ExpertRows],
    ) -> Result<Vec<f32>, RunnerError> {
        let _ = (source, layer, row_format, rows, hidden, requests);
        todo!()
    }

    /// Evaluates held experts and sums them by the weights of the requests: [`crate::combine`] of
    /// [`ExpertRunner::each`]. Returns count x hidden values, row by row; `count` is the number of rows in `rows`.
    pub fn sum(
        &self,
        layer: LayerIndex,
        row_format: RowFormat,
        rows: &[u8],
        hidden: usize,
        requests: &[ExpertRows],
    ) -> Result<Vec<f32>, RunnerError> {
        let _ = (layer, row_format, rows, hidden, requests);
        todo!()
    }
}
