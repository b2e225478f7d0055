//! One type over both ways to run a kernel: in this process, or in a confined one of its own. Lanes and proofs know no other.

use kvasir_kernel::{InstanceLimits, Kernel, KernelError, KernelOptions, Walls};
use kvasir_model::{ExpertIndex, LayerIndex};
use kvasir_plugin::{Limits, PluginDigest, VerifiedPlugin};
use kvasir_sandbox::{
    CompiledKernel, Engine, ExpertHandle, ExpertShape, KernelInstance, KernelLimits, SandboxError,
};

use crate::error::RunnerError;

/// In which process kernels compute.
#[derive(Clone, Debug, Default)]
pub enum Isolation {
    /// In this one: the WebAssembly engine is the only wall. For one's own machine.
    #[default]
    InProcess,
    /// In a confined process of the plugin's own. For machines that are lent.
    Process(KernelOptions),
}

/// A kernel that is ready to be instantiated.
pub(crate) enum Evaluator {
    InProcess(CompiledKernel),
    Process { kernel: Kernel, request: Limits },
}

/// An instance of it.
pub(crate) enum Instance {
    InProcess(KernelInstance),
    Process(kvasir_kernel::Instance),
}

/// An expert in an instance.
#[derive(Debug)]
pub(crate) enum Handle {
    InProcess(ExpertHandle),
    Process { expert: u64, hidden: u32 },
}

/// Why there is no answer: the kernel's fault, as its sandbox says, or its process's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EvaluatorError {
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Process(KernelError),
}

impl Handle {
    /// Its number in a process of its own.
    pub fn apart(&self) -> Option<u64> {
        match self {
            Handle::InProcess(_) => None,
            Handle::Process { expert, .. } => Some(*expert),
        }
    }
}

impl EvaluatorError {
    /// With the expert that was asked for.
    pub fn of(self, layer: LayerIndex, expert: ExpertIndex) -> RunnerError {
        match self {
            EvaluatorError::Sandbox(source) => RunnerError::Kernel { layer, expert, source },
            EvaluatorError::Process(source) => RunnerError::Process(source),
        }
    }
}

impl From<KernelError> for EvaluatorError {
    fn from(error: KernelError) -> Self {
        match &error {
            KernelError::Failed { report, .. } => match SandboxError::decode(report) {
                Some(error) => EvaluatorError::Sandbox(error),
                None => EvaluatorError::Process(KernelError::BrokenProtocol {
                    request: "a failure",
                    reason: "its account is none".to_owned(),
                }),
            },
            _ => EvaluatorError::Process(error),
        }
    }
}

impl Evaluator {
    /// Compiles `plugin`, for `lanes` threads at once.
    pub fn new(plugin: &VerifiedPlugin, isolation: &Isolation, lanes: usize) -> Result<Self, EvaluatorError> {
        let engine = Engine::shared()?;
        match isolation {
            Isolation::InProcess => Self::in_engine(&engine, plugin),
            Isolation::Process(options) => {
                CompiledKernel::check_world(plugin)?;
                let (digest, component) = (plugin.digest(), plugin.component());
                let kernel =
                    Kernel::start(digest, component, engine.compatibility(), lanes, options.clone())?;
                Ok(Evaluator::Process { kernel, request: plugin.manifest().limits })
            }
        }
    }

    /// Compiles `plugin` in an engine of the caller's choice, in this process.
    pub fn in_engine(engine: &Engine, plugin: &VerifiedPlugin) -> Result<Self, EvaluatorError> {
        Ok(Evaluator::InProcess(CompiledKernel::compile(engine, plugin)?))
    }

    /// The plugin.
    pub fn plugin(&self) -> PluginDigest {
        match self {
            Evaluator::InProcess(kernel) => kernel.plugin(),
            Evaluator::Process { kernel, .. } => kernel.plugin(),
        }
    }

    /// What the plugin requests.
    pub fn request(&self) -> Limits {
        match self {
            Evaluator::InProcess(kernel) => kernel.request(),
            Evaluator::Process { request, .. } => *request,
        }
    }

    /// The walls around the kernel's process, if it has one.
    pub fn walls(&self) -> Option<Walls> {
        match self {
            Evaluator::InProcess(_) => None,
            Evaluator::Process { kernel, .. } => Some(kernel.walls()),
        }
    }

    /// The kernel's process, if it has one and it runs.
    pub fn process_id(&self) -> Option<u32> {
        match self {
            Evaluator::InProcess(_) => None,
            Evaluator::Process { kernel, .. } => kernel.process_id(),
        }
    }

    /// Whether kernels compute in a process of their own.
    pub fn is_apart(&self) -> bool {
        matches!(self, Evaluator::Process { .. })
    }

    /// A fresh instance for the lane.
    pub fn instantiate(&self, lane: usize, limits: KernelLimits) -> Result<Instance, EvaluatorError> {
        match self {
            Evaluator::InProcess(kernel) => Ok(Instance::InProcess(kernel.instantiate(limits)?)),
            Evaluator::Process { kernel, request } => {
                // Rows are counted on this side, by who calls.
                let KernelLimits { memory_bytes, fuel_per_call, deadline, .. } = limits.grant(request);
                let limits = InstanceLimits { memory_bytes, fuel_per_call, deadline };
                Ok(Instance::Process(kernel.instantiate(lane, limits)?))
            }
        }
    }
}

impl Instance {
    /// As [`KernelInstance::load`].
    pub fn load(
        &mut self,
        shape: ExpertShape,
        gate: &[u8],
        up: &[u8],
        down: &[u8],
    ) -> Result<Handle, EvaluatorError> {
        match self {
            Instance::InProcess(instance) => Ok(Handle::InProcess(instance.load(shape, gate, up, down)?)),
            Instance::Process(instance) => {
                let matrix = |matrix: kvasir_sandbox::MatrixShape| {
                    [matrix.format.number(), matrix.rows, matrix.columns]
                };
                let [gate_shape, up_shape, down_shape] = [shape.gate, shape.up, shape.down].map(matrix);
                let mut numbers = [0; 9];
                for (part, matrix) in
                    numbers.as_chunks_mut::<3>().0.iter_mut().zip([gate_shape, up_shape, down_shape])
                {
                    *part = matrix;
                }
                let expert = instance.load(numbers, [gate, up, down])?;
                Ok(Handle::Process { expert, hidden: shape.hidden() })
            }
        }
    }

    /// As [`KernelInstance::forward`], into `out`: count x hidden values.
    pub fn forward_into(
        &mut self,
        expert: &Handle,
        rows: &[u8],
        count: u32,
        out: &mut [f32],
    ) -> Result<(), EvaluatorError> {
        match (self, expert) {
            (Instance::InProcess(instance), Handle::InProcess(expert)) => {
                out.copy_from_slice(&instance.forward(expert, rows, count)?);
                Ok(())
            }
            (Instance::Process(instance), Handle::Process { expert, .. }) => {
                Ok(instance.forward(*expert, rows, count, out)?)
            }
            _ => Err(SandboxError::ForeignHandle.into()),
        }
    }

    /// As [`KernelInstance::forward`].
    pub fn forward(&mut self, expert: &Handle, rows: &[u8], count: u32) -> Result<Vec<f32>, EvaluatorError> {
        match (self, expert) {
            (Instance::InProcess(instance), Handle::InProcess(expert)) => {
                Ok(instance.forward(expert, rows, count)?)
            }
            (Instance::Process(instance), Handle::Process { expert, hidden }) => {
                let mut out = vec![0.0; count as usize * *hidden as usize];
                instance.forward(*expert, rows, count, &mut out)?;
                Ok(out)
            }
            _ => Err(SandboxError::ForeignHandle.into()),
        }
    }

    /// Where it is in a process of its own, the instance there.
    pub fn apart(&self) -> Option<&kvasir_kernel::Instance> {
        match self {
            Instance::InProcess(_) => None,
            Instance::Process(instance) => Some(instance),
        }
    }

    /// As [`kvasir_kernel::Instance::stopped`].
    pub fn stopped(&mut self, error: &KernelError) {
        if let Instance::Process(instance) = self {
            instance.stopped(error);
        }
    }

    /// As [`KernelInstance::unload`].
    pub fn unload(&mut self, expert: Handle) -> Result<(), EvaluatorError> {
        match (self, expert) {
            (Instance::InProcess(instance), Handle::InProcess(expert)) => Ok(instance.unload(expert)?),
            (Instance::Process(instance), Handle::Process { expert, .. }) => Ok(instance.unload(expert)?),
            _ => Err(SandboxError::ForeignHandle.into()),
        }
    }

    /// Whether the instance failed, or went with its process.
    pub fn is_poisoned(&self) -> bool {
        match self {
            Instance::InProcess(instance) => instance.is_poisoned(),
            Instance::Process(instance) => instance.is_poisoned(),
        }
    }
}
