//! Why a request for experts has no answer.

use kvasir_backbone::ExpertsError;
use kvasir_gpu::GpuError;
use kvasir_kernel::KernelError;
use kvasir_model::{ExpertIndex, LayerIndex};
use kvasir_numerics::RowFormat;
use kvasir_sandbox::SandboxError;

use crate::conformance::ConformanceError;
use crate::runner::SourceError;

/// Why a request for experts has no answer. A request succeeds whole or fails with the first reason found.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The caller's fault: an expert that was not loaded, or was lost when its instance failed.
    #[error("expert {} of layer {} is not loaded; load it (again) and repeat the request", expert.0, layer.0)]
    NotHeld {
        /// The layer.
        layer: LayerIndex,
        /// The expert.
        expert: ExpertIndex,
    },
    /// The caller's fault: an expert loaded twice.
    #[error("expert {} of layer {} is loaded already; unload it first", expert.0, layer.0)]
    AlreadyHeld {
        /// The layer.
        layer: LayerIndex,
        /// The expert.
        expert: ExpertIndex,
    },
    /// The caller's fault: rows in another format than the expert's gate matrix reads.
    #[error("rows come as {found:?}, expert {} of layer {} reads {expected:?}", expert.0, layer.0)]
    WrongRowFormat {
        /// The layer.
        layer: LayerIndex,
        /// The expert.
        expert: ExpertIndex,
        /// The format of the rows.
        found: RowFormat,
        /// The format that the expert reads.
        expected: RowFormat,
    },
    /// The caller's fault: rows of another length than the expert's.
    #[error("rows have {found} values, expert {} of layer {} takes {expected}", expert.0, layer.0)]
    WrongHidden {
        /// The layer.
        layer: LayerIndex,
        /// The expert.
        expert: ExpertIndex,
        /// Values in a row of the request.
        found: usize,
        /// Values in a row of the expert.
        expected: usize,
    },
    /// The caller's fault: a request that contradicts itself.
    #[error("the request for layer {} is malformed: {what}", layer.0)]
    Malformed {
        /// The layer.
        layer: LayerIndex,
        /// What is wrong with it.
        what: String,
    },
    /// The expert does not fit into the memory that the runner may use.
    #[error(
        "expert {} of layer {} does not fit: {bytes} bytes beside {held} held, the limit is {limit}; place fewer experts \
         here or raise the memory limit", expert.0, layer.0
    )]
    NoRoom {
        /// The layer.
        layer: LayerIndex,
        /// The expert.
        expert: ExpertIndex,
        /// Bytes of the expert.
        bytes: u64,
        /// Bytes held.
        held: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The weights could not be read.
    #[error("cannot read expert {} of layer {}: {source}", expert.0, layer.0)]
    Source {
        /// The layer.
        layer: LayerIndex,
        /// The expert.
        expert: ExpertIndex,
        /// What the source says.
        source: SourceError,
    },
    /// The kernel failed. If it trapped, its instance was replaced, and the experts that it held are loaded again when
    /// they are next asked for.
    #[error("expert {} of layer {}: {source}", expert.0, layer.0)]
    Kernel {
        /// The layer.
        layer: LayerIndex,
        /// The expert.
        expert: ExpertIndex,
        /// What the sandbox says.
        source: SandboxError,
    },
    /// The kernel could not be compiled or instantiated at all.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The kernel's process failed; the experts that it held are loaded again when they are next asked for.
    #[error(transparent)]
    Process(#[from] KernelError),
    /// The GPU or its process failed; the experts that it held are loaded again when they are next asked for.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The plugin does not compute what it promises.
    #[error(transparent)]
    Conformance(#[from] ConformanceError),
}

impl From<RunnerError> for ExpertsError {
    fn from(error: RunnerError) -> Self {
        use kvasir_sandbox::Fault;
        match error {
            RunnerError::Kernel {
                layer,
                expert,
                source: SandboxError::NotFinite { .. } | SandboxError::Fault { fault: Fault::NotFinite, .. },
            } => ExpertsError::NotFinite { layer, expert },
            other => ExpertsError::Backend(Box::new(other)),
        }
    }
}
