//! The three engines that compute a call again, side by side.
//!
//! They share nothing but the kernel's bytes: one compiles for this processor, one compiles with every relaxed instruction
//! pinned to the specification's own result, one interprets. What they agree on depends on none of them. Each computes through
//! the one expert runner, so a sum has the order that workers and backbones have.

use std::num::NonZeroUsize;
use std::time::Duration;

use kvasir_experts::{
    Device, ExpertIndex, ExpertRows, ExpertRunner, Isolation, KernelLimits, LayerIndex, RowFormat,
    RunnerError, RunnerOptions, SandboxError,
};
use kvasir_model::{Model, ModelError};
use kvasir_plugin::VerifiedPlugin;
use kvasir_sandbox::Engine;
use kvasir_wire::message::{Call, CallResult, Mode};

use crate::error::ReplayError;

/// Deadline of one expert in one engine, unless told otherwise: the interpreter is tens of times slower than a worker.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);
/// Most expert bytes that each engine holds at a time, unless told otherwise.
pub const DEFAULT_HELD_BYTES: u64 = 512 << 20;
/// Most multiplications of one call, unless told otherwise: some minutes in the interpreter.
pub const DEFAULT_MAX_MULTIPLICATIONS: u64 = 1 << 36;
/// Most bytes that the experts' answers of one call may fill before they are summed: a call is a stranger's, and small calls can
/// ask for many.
pub const MAX_EACH_BYTES: u64 = 1 << 30;

/// One way to run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// Compiled for this processor, as workers do it.
    Cranelift,
    /// Compiled for this processor, relaxed instructions by the specification.
    Deterministic,
    /// Interpreted.
    Pulley,
}

/// What one engine says to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The rows, as they stand in a result.
    Rows(Vec<u8>),
    /// There is no right answer to this call: what an honest worker reports as failed. The reason depends on nothing but call,
    /// model and plugin.
    Refused(String),
    /// This engine did not get to an answer; another machine or another limit might.
    GaveUp(String),
}

/// What replaying may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Wall clock for one expert in one engine.
    pub deadline: Duration,
    /// Expert bytes that each engine may hold at a time.
    pub held_bytes: u64,
    /// Multiplications of one call beyond which it is not replayed.
    pub max_multiplications: u64,
    /// Lanes that compute side by side in an engine; threads are the caller's (`kvasir_threads`).
    pub lanes: NonZeroUsize,
}

/// The three engines with one plugin, proven on its golden vectors in each.
pub struct Engines {
    runners: [(EngineKind, ExpertRunner); 3],
    limits: Limits,
}

impl EngineKind {
    /// All three.
    pub const ALL: [EngineKind; 3] = [EngineKind::Cranelift, EngineKind::Deterministic, EngineKind::Pulley];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            EngineKind::Cranelift => "cranelift",
            EngineKind::Deterministic => "cranelift-deterministic",
            EngineKind::Pulley => "pulley",
        }
    }

    fn engine(self) -> Result<Engine, SandboxError> {
        match self {
            EngineKind::Cranelift => Engine::shared(),
            EngineKind::Deterministic => Engine::deterministic(),
            EngineKind::Pulley => Engine::interpreter(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            deadline: DEFAULT_DEADLINE,
            held_bytes: DEFAULT_HELD_BYTES,
            max_multiplications: DEFAULT_MAX_MULTIPLICATIONS,
            lanes: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        }
    }
}

impl Engines {
    /// Compiles `plugin` three times and proves it each time.
    ///
    /// # Errors
    /// [`ReplayError::Engine`]: it cannot be compiled, or does not compute its own golden vectors on one of the engines.
    pub fn new(plugin: &VerifiedPlugin, limits: Limits) -> Result<Self, ReplayError> {
        let runner = |kind: EngineKind| -> Result<(EngineKind, ExpertRunner), ReplayError> {
            let options = RunnerOptions {
                device: Device::Cpu,
                isolation: Isolation::InProcess,
                instances: limits.lanes,
                limits: KernelLimits { deadline: limits.deadline, ..KernelLimits::default() },
                held_bytes: Some(limits.held_bytes),
            };
            let failed =
                |error: RunnerError| ReplayError::Engine { engine: kind.name(), source: Box::new(error) };
            let engine = kind.engine().map_err(|error| failed(error.into()))?;
            Ok((kind, ExpertRunner::in_engine(&engine, plugin, options).map_err(failed)?))
        };
        let [first, second, third] = EngineKind::ALL;
        Ok(Engines { runners: [runner(first)?, runner(second)?, runner(third)?], limits })
    }

    /// Computes the call in all three, one after the other.
    pub fn answers(&self, model: &Model, call: &Call<'_>) -> [(EngineKind, Answer); 3] {
        EngineKind::ALL.map(|kind| (kind, self.answer(kind, model, call)))
    }

    /// Computes the call in one of them.
    pub fn answer(&self, kind: EngineKind, model: &Model, call: &Call<'_>) -> Answer {
        if let Err(answer) = self.check_size(model, call) {
            return answer;
        }
        let layer = LayerIndex(call.layer);
        let Some(format) = RowFormat::from_number(call.row_format as u8) else {
            return Answer::Refused("unknown row format".to_owned());
        };
        let hidden = model.config().hidden as usize;
        let requests: Vec<ExpertRows> = call
            .experts
            .iter()
            .map(|asked| ExpertRows {
                expert: ExpertIndex(asked.expert),
                rows: asked.rows.clone(),
                weights: asked.weights.clone(),
            })
            .collect();
        let Some((_, runner)) = self.runners.iter().find(|(own, _)| *own == kind) else {
            return Answer::GaveUp("there is no such engine".to_owned());
        };
        let values = match call.mode {
            Mode::Each => runner.each_from(model, layer, format, call.data, hidden, &requests),
            Mode::Sum => runner.sum_from(model, layer, format, call.data, hidden, &requests),
        };
        match values {
            Ok(values) => Answer::Rows(CallResult::row_bytes(&values)),
            Err(error) if is_the_calls(&error) => Answer::Refused(error.to_string()),
            Err(error) => Answer::GaveUp(error.to_string()),
        }
    }

    /// Refuses, before anything is allocated for it, a call that is not of this model, and one that is too large.
    fn check_size(&self, model: &Model, call: &Call<'_>) -> Result<(), Answer> {
        let config = model.config();
        let (hidden, width) = (u64::from(config.hidden), u64::from(config.expert_width));
        if call.columns() != Some(config.hidden as usize) {
            let found = call.columns().unwrap_or(0);
            return Err(Answer::Refused(format!("rows have {found} values, the model's have {hidden}")));
        }
        // At most 2^19 requests of 2^16 values: no overflow. Widths of a model file are bounded by its reader.
        let requests = call.requests() as u64;
        let bytes = requests.saturating_mul(hidden).saturating_mul(4);
        if bytes > MAX_EACH_BYTES {
            return Err(Answer::GaveUp(format!(
                "the experts' answers have {bytes} bytes, at most {MAX_EACH_BYTES} are computed at once"
            )));
        }
        let multiplications = requests.saturating_mul(hidden).saturating_mul(width).saturating_mul(3);
        let limit = self.limits.max_multiplications;
        if multiplications > limit {
            return Err(Answer::GaveUp(format!(
                "the call needs {multiplications} multiplications, the limit is {limit}; raise it with --max-work"
            )));
        }
        Ok(())
    }
}

/// Whether the failure follows from call, model and plugin alone, on every machine.
fn is_the_calls(error: &RunnerError) -> bool {
    match error {
        RunnerError::WrongRowFormat { .. }
        | RunnerError::WrongHidden { .. }
        | RunnerError::Malformed { .. } => true,
        RunnerError::Kernel { source, .. } => {
            matches!(source, SandboxError::Fault { .. } | SandboxError::NotFinite { .. })
        }
        RunnerError::Source { source, .. } => {
            matches!(source.downcast_ref(), Some(ModelError::NoSuchExpert { .. }))
        }
        _ => false,
    }
}
