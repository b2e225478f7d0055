//! Proves a plugin on the golden vectors inside its signature.

use std::time::{Duration, Instant};

use kvasir_gpu::GpuError;
use kvasir_kernel::KernelError;
use kvasir_numerics::golden::{GoldenVector, Outcome, VectorError};
use kvasir_numerics::{Swiglu, SwigluError};
use kvasir_plugin::VerifiedPlugin;
use kvasir_sandbox::{CompiledKernel, Engine, Fault, KernelLimits, SandboxError};

use crate::evaluator::{Evaluator, EvaluatorError, Handle, Instance, Isolation};
use crate::lane::shape;

/// Longest time for all golden vectors of a plugin together: each call has a deadline of its own beside this, and there may be thousands
/// of calls.
pub const PROOF_TIME: Duration = Duration::from_secs(120);

/// What was proven.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Golden vectors computed; every output was equal to the last bit, every refusal the one that was due.
    pub vectors: usize,
    /// Rows computed, each in its batch and once more alone.
    pub rows: usize,
}

/// Why a plugin is not what it promises to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConformanceError {
    /// No golden vectors: nothing is promised.
    #[error(
        "the plugin carries no golden vectors, so nothing shows that it computes what it should; do not use it"
    )]
    NoVectors,
    /// The kernel could not be compiled or instantiated.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The kernel's process failed.
    #[error(transparent)]
    Process(KernelError),
    /// A vector file that cannot be read.
    #[error("golden vector {file}: {source}; ask the publisher for a correct package")]
    Vector {
        /// The file.
        file: String,
        /// What is wrong.
        source: VectorError,
    },
    /// A vector whose matrices are no expert.
    #[error("golden vector {file}: {source}; ask the publisher for a correct package")]
    Expert {
        /// The file.
        file: String,
        /// What is wrong.
        source: SwigluError,
    },
    /// The kernel failed, or refused for another reason than the vector asks for.
    #[error("golden vector {file}: {expected} was due, but {found}; do not use this plugin")]
    Outcome {
        /// The file.
        file: String,
        /// What should have happened.
        expected: &'static str,
        /// What happened.
        found: String,
    },
    /// The kernel computed something else.
    #[error(
        "golden vector {file}: value {index} of row {row}{} has the bits {found:#010x}, {expected:#010x} were due; do not \
         use this plugin",
        if *alone { ", computed alone," } else { "" }
    )]
    Differs {
        /// The file.
        file: String,
        /// The row.
        row: usize,
        /// Whether the row was computed alone.
        alone: bool,
        /// The value's index in its row.
        index: usize,
        /// Bits found.
        found: u32,
        /// Bits due.
        expected: u32,
    },
    /// The proof took too long.
    #[error(
        "golden vector {file}: the plugin's vectors did not end within {limit:?} all together; it is too slow to be used here, or \
         carries too many of them"
    )]
    TooSlow {
        /// The file at which the time was up.
        file: String,
        /// The time granted.
        limit: Duration,
    },
    /// The shader is further from the definition than the manifest allows.
    #[error(
        "golden vector {file}: the shader's value {index} of row {row} is {found}, {expected} was due and the manifest's tolerance \
         does not cover that; compute on the CPU, or ask the publisher for a correct package"
    )]
    Deviates {
        /// The file.
        file: String,
        /// The row.
        row: usize,
        /// The value's index in its row.
        index: usize,
        /// The value found, as text.
        found: String,
        /// The value due, as text.
        expected: String,
    },
    /// A format that the manifest promises for the shader, but no golden vector shows.
    #[error(
        "the manifest promises {format} for the shader, but the package carries no golden vector in it, so nothing shows that the \
         shader computes it; ask the publisher for a correct package"
    )]
    FormatUnproven {
        /// The format's name.
        format: String,
    },
    /// A row of the shader points elsewhere than the manifest allows.
    #[error(
        "golden vector {file}: the cosine between the shader's row {row} and the one that was due is {found}, the manifest promises \
         {least}; compute on the CPU, or ask the publisher for a correct package"
    )]
    Turned {
        /// The file.
        file: String,
        /// The row.
        row: usize,
        /// The cosine found, as text.
        found: String,
        /// The least that the manifest promises, as text.
        least: String,
    },
    /// An integer sum of the shader is not the definition's.
    #[error(
        "golden vector {file}: the shader's integer sum {index} of matrix {matrix} is {found}, {expected} was due; do not use this \
         plugin on a GPU"
    )]
    Sums {
        /// The file.
        file: String,
        /// gate, up or down.
        matrix: &'static str,
        /// The sum's index: row by row, output by output, block by block.
        index: usize,
        /// The sum found.
        found: i32,
        /// The sum due.
        expected: i32,
    },
    /// The GPU gave no answer.
    #[error("golden vector {file}: {source}")]
    Gpu {
        /// The file.
        file: String,
        /// What the GPU's side says.
        source: GpuError,
    },
}

impl From<EvaluatorError> for ConformanceError {
    fn from(error: EvaluatorError) -> Self {
        match error {
            EvaluatorError::Sandbox(error) => ConformanceError::Sandbox(error),
            EvaluatorError::Process(error) => ConformanceError::Process(error),
        }
    }
}

/// Compiles the plugin and computes every golden vector in it: each output must be equal to the last bit, for all rows
/// at once and for each row alone, and each refusal must be the one that is due.
pub fn conformance(plugin: &VerifiedPlugin) -> Result<Report, ConformanceError> {
    let kernel = CompiledKernel::compile(&Engine::shared()?, plugin)?;
    prove(plugin, &Evaluator::InProcess(kernel), KernelLimits::default())
}

/// As [`conformance()`], of a plugin that others made: in the process that `isolation` says, with the lesser of `limits` and what the
/// plugin requests, and within `time` for all of it, usually [`PROOF_TIME`].
///
/// # Errors
/// As [`conformance()`], and where the kernel's process cannot be started or fails.
pub fn conformance_within(
    plugin: &VerifiedPlugin,
    isolation: &Isolation,
    limits: KernelLimits,
    time: Duration,
) -> Result<Report, ConformanceError> {
    prove_within(plugin, &Evaluator::new(plugin, isolation, 1)?, limits, time)
}

/// As [`conformance`], with a kernel that was compiled from `plugin`. Its instance gets the lesser of `limits` and what the plugin
/// requests.
pub(crate) fn prove(
    plugin: &VerifiedPlugin,
    kernel: &Evaluator,
    limits: KernelLimits,
) -> Result<Report, ConformanceError> {
    prove_within(plugin, kernel, limits, PROOF_TIME)
}

fn prove_within(
    plugin: &VerifiedPlugin,
    kernel: &Evaluator,
    limits: KernelLimits,
    time: Duration,
) -> Result<Report, ConformanceError> {
    let clock = Clock::new(time);
    if plugin.vectors().is_empty() {
        return Err(ConformanceError::NoVectors);
    }
    // One instance for all, as in use: what one expert leaves behind must not change another's answer.
    let mut instance = kernel.instantiate(0, limits)?;
    let rows_at_once = limits.grant(&kernel.request()).rows_per_call;
    let mut report = Report::default();
    for (file, bytes) in plugin.vectors() {
        let vector = GoldenVector::parse(bytes)
            .map_err(|source| ConformanceError::Vector { file: file.clone(), source })?;
        prove_one(&mut instance, file, &vector, rows_at_once, &clock)?;
        report.vectors += 1;
        report.rows += vector.count;
    }
    Ok(report)
}

/// How long a proof has gone on. It is asked between calls, which have deadlines of their own.
pub(crate) struct Clock {
    begun: Instant,
    limit: Duration,
}

impl Clock {
    pub(crate) fn new(limit: Duration) -> Self {
        Clock { begun: Instant::now(), limit }
    }

    pub(crate) fn check(&self, file: &str) -> Result<(), ConformanceError> {
        match self.begun.elapsed() >= self.limit {
            true => Err(ConformanceError::TooSlow { file: file.to_owned(), limit: self.limit }),
            false => Ok(()),
        }
    }
}

fn prove_one(
    instance: &mut Instance,
    file: &str,
    vector: &GoldenVector<'_>,
    rows_at_once: u32,
    clock: &Clock,
) -> Result<(), ConformanceError> {
    clock.check(file)?;
    let outcome =
        |expected, found: String| ConformanceError::Outcome { file: file.to_owned(), expected, found };
    let expert = Swiglu::new(vector.gate, vector.up, vector.down)
        .map_err(|source| ConformanceError::Expert { file: file.to_owned(), source })?;
    let shape =
        shape(&expert).ok_or_else(|| outcome("a known format", "the contract has none".to_owned()))?;
    let loaded = instance.load(shape, vector.gate.bytes(), vector.up.bytes(), vector.down.bytes());
    let handle = match (loaded, vector.outcome) {
        (
            Err(EvaluatorError::Sandbox(SandboxError::Fault { fault: Fault::MalformedWeights, .. })),
            Outcome::MalformedWeights,
        ) => {
            return Ok(());
        }
        (Ok(_), Outcome::MalformedWeights) => {
            return Err(outcome("malformed-weights", "they were taken".to_owned()));
        }
        (Err(error), _) => return Err(outcome("a loaded expert", error.to_string())),
        (Ok(handle), _) => handle,
    };
    let answer = forward(instance, &handle, vector, rows_at_once.max(1) as usize, || clock.check(file))?;
    match (answer, vector.outcome) {
        (
            Err(EvaluatorError::Sandbox(SandboxError::Fault { fault: Fault::MalformedRows, .. })),
            Outcome::MalformedRows,
        )
        | (
            Err(EvaluatorError::Sandbox(SandboxError::Fault { fault: Fault::NotFinite, .. })),
            Outcome::NotFinite,
        ) => {}
        (Ok(values), Outcome::Output(output)) => {
            let hidden = vector.down.rows();
            compare(file, &values, output, hidden, None)?;
            let row_bytes = vector.rows.len() / vector.count.max(1);
            for row in 0..vector.count {
                clock.check(file)?;
                let rows = &vector.rows[row * row_bytes..][..row_bytes];
                let values = instance
                    .forward(&handle, rows, 1)
                    .map_err(|error| outcome("the output of one row alone", error.to_string()))?;
                compare(file, &values, &output[row * hidden * 4..][..hidden * 4], hidden, Some(row))?;
            }
        }
        (Err(error), Outcome::Output(_)) => return Err(outcome("an output", error.to_string())),
        (found, Outcome::NotFinite) => return Err(outcome("not-finite", told(found))),
        (found, _) => return Err(outcome("malformed-rows", told(found))),
    }
    instance.unload(handle)?;
    Ok(())
}

/// All rows of the vector, in calls of at most `rows_at_once`; `between` is asked before each of several.
fn forward(
    instance: &mut Instance,
    handle: &Handle,
    vector: &GoldenVector<'_>,
    rows_at_once: usize,
    between: impl Fn() -> Result<(), ConformanceError>,
) -> Result<Result<Vec<f32>, EvaluatorError>, ConformanceError> {
    let row_bytes = vector.rows.len() / vector.count.max(1);
    // Bytes that are no whole rows cannot be cut, and are there to be refused.
    if vector.count <= rows_at_once || row_bytes == 0 || row_bytes * vector.count != vector.rows.len() {
        return Ok(instance.forward(handle, vector.rows, vector.count as u32));
    }
    let mut values = Vec::with_capacity(vector.count * vector.down.rows());
    for rows in vector.rows.chunks(rows_at_once * row_bytes) {
        between()?;
        match instance.forward(handle, rows, (rows.len() / row_bytes) as u32) {
            Ok(more) => values.extend(more),
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(values))
}

fn told(answer: Result<Vec<f32>, EvaluatorError>) -> String {
    answer.map_or_else(|error| error.to_string(), |_| "the kernel answered".to_owned())
}

/// Compares bits; the sandbox has checked the lengths.
fn compare(
    file: &str,
    values: &[f32],
    output: &[u8],
    hidden: usize,
    alone: Option<usize>,
) -> Result<(), ConformanceError> {
    for (index, (value, due)) in values.iter().zip(output.as_chunks::<4>().0).enumerate() {
        let (found, expected) = (value.to_bits(), u32::from_le_bytes(*due));
        if found != expected {
            return Err(ConformanceError::Differs {
                file: file.to_owned(),
                row: alone.unwrap_or(index / hidden),
                alone: alone.is_some(),
                index: index % hidden,
                found,
                expected,
            });
        }
    }
    Ok(())
}
