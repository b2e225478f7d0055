//! The conformance suite: what every kernel must do, check by check, with a name and a plain account of what went wrong.
//!
//! It runs a verified plugin in the same sandbox as a worker does, on golden vectors and on made-up experts, and judges every bit
//! by the exact arithmetic itself. It says nothing about speed.

mod arithmetic;
mod case;
mod engines;
mod refusals;
mod stability;
mod vectors;

use std::time::{Duration, Instant};

use kvasir_numerics::Format;
use kvasir_plugin::VerifiedPlugin;
use kvasir_sandbox::{CompiledKernel, Engine, KernelInstance, KernelLimits, SandboxError};

/// How long one call of a kernel may take here; a worker gives it less.
const CALL_DEADLINE: Duration = Duration::from_secs(60);

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel did as it must; what was compared.
    Passed(String),
    /// The kernel did not; where and how.
    Failed(String),
    /// The check could not be made; why.
    Skipped(String),
}

/// One check that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Its name: `golden-vectors`.
    pub name: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// Seconds that it took.
    pub seconds: f64,
}

/// The check without which no other can be made.
const COMPILE: &str = "compile";

/// Names of all checks, in the order in which they are made, each with what it asks.
pub const CHECKS: &[(&str, &str)] = &[
    ("scan", "imports nothing, no instruction that differs between processors, within the size limits"),
    (COMPILE, "compiles, and exports the world that the manifest names"),
    ("vectors-cover-formats", "every format in the manifest appears in a golden vector with an output"),
    ("golden-vectors", "every golden vector bit for bit, all rows at once and each alone"),
    ("exact-arithmetic", "usual, signed, extreme and subnormal weights in every format, bit for bit"),
    ("mixed-formats", "gate, up and down in different formats: the right bits, or unsupported"),
    ("batch-invariance", "a row's bits are the same alone, in a batch of any size and at any place in it"),
    ("odd-shapes", "the smallest, the flattest and the tallest experts"),
    ("refuses-weights", "NaN and infinite scales, forbidden quants and wrong lengths are malformed-weights"),
    ("refuses-rows", "NaN, infinite and negative scales, -128 and wrong lengths are malformed-rows"),
    ("refuses-unsupported", "formats that the manifest leaves out and broken blocks are unsupported"),
    ("overflow", "what overflows is not-finite, and the expert works afterwards"),
    ("two-engines", "the compiled kernel and the same kernel interpreted give the same bits"),
    ("repeated-calls", "the same call gives the same bits every time, among other experts and after faults"),
    ("flat-memory", "memory stays as it is while experts come and go and calls fail"),
    ("requested-limits", "a call of rows_per_call rows stays within the fuel that the manifest asks for"),
];

/// What is told while the suite runs.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A check begins.
    Begins(&'static str),
    /// A check has ended.
    Ended(&'a Check),
}

/// Makes the checks of [`CHECKS`] that `wanted` says, on `plugin`. A check that fails does not keep the others from being made, unless
/// the kernel does not run at all. `compile` is made whenever another one is.
pub fn suite(
    plugin: &VerifiedPlugin,
    wanted: impl Fn(&str) -> bool,
    mut tell: impl FnMut(Progress<'_>),
) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut subject = None;
    for &(name, _) in CHECKS.iter().filter(|(name, _)| *name == COMPILE || wanted(name)) {
        tell(Progress::Begins(name));
        let begun = Instant::now();
        let verdict = match (name, &subject) {
            ("scan", _) => verdict(scan(plugin)),
            (COMPILE, _) => match Subject::compile(plugin) {
                Ok(compiled) => {
                    subject = Some(compiled);
                    Verdict::Passed(format!("{} compiled", plugin.manifest().world))
                }
                Err(error) => Verdict::Failed(error.to_string()),
            },
            (_, None) => Verdict::Skipped("the kernel does not run".to_owned()),
            (name, Some(subject)) => verdict(make(name, subject)),
        };
        let check = Check { name, verdict, seconds: begun.elapsed().as_secs_f64() };
        tell(Progress::Ended(&check));
        checks.push(check);
    }
    checks
}

/// Whether no check failed. What was skipped because the kernel does not run stands behind one that failed.
pub fn passed(checks: &[Check]) -> bool {
    !checks.iter().any(|check| matches!(check.verdict, Verdict::Failed(_)))
}

/// What a check says when all is well, or what is wrong.
type Outcome = Result<String, String>;

fn verdict(outcome: Outcome) -> Verdict {
    outcome.map_or_else(Verdict::Failed, Verdict::Passed)
}

fn make(name: &str, subject: &Subject<'_>) -> Outcome {
    match name {
        "vectors-cover-formats" => vectors::cover_formats(subject),
        "golden-vectors" => vectors::golden(subject),
        "exact-arithmetic" => arithmetic::exact(subject),
        "mixed-formats" => arithmetic::mixed(subject),
        "batch-invariance" => arithmetic::batches(subject),
        "odd-shapes" => arithmetic::odd_shapes(subject),
        "refuses-weights" => refusals::weights(subject),
        "refuses-rows" => refusals::rows(subject),
        "refuses-unsupported" => refusals::unsupported(subject),
        "overflow" => refusals::overflow(subject),
        "two-engines" => engines::two(subject),
        "repeated-calls" => stability::repeated(subject),
        "flat-memory" => stability::memory(subject),
        "requested-limits" => stability::limits(subject),
        other => Err(format!("there is no check {other}")),
    }
}

fn scan(plugin: &VerifiedPlugin) -> Outcome {
    let facts = kvasir_sandbox::inspect(plugin.component()).map_err(|error| error.to_string())?;
    Ok(format!("{} bytes, {} functions, {} relaxed dots", facts.bytes, facts.functions, facts.relaxed_dots))
}

/// The kernel under test.
struct Subject<'a> {
    plugin: &'a VerifiedPlugin,
    kernel: CompiledKernel,
    formats: Vec<Format>,
}

impl<'a> Subject<'a> {
    fn compile(plugin: &'a VerifiedPlugin) -> Result<Self, SandboxError> {
        let kernel = CompiledKernel::compile(&Engine::shared()?, plugin)?;
        // A name that is no format is what `vectors-cover-formats` tells of.
        let formats = plugin.manifest().formats.iter().filter_map(|name| format_named(name)).collect();
        Ok(Subject { plugin, kernel, formats })
    }

    /// A fresh instance, with what the manifest asks for.
    fn instance(&self) -> Result<KernelInstance, String> {
        let limits = KernelLimits { deadline: CALL_DEADLINE, ..KernelLimits::default() };
        self.kernel.instantiate(limits).map_err(|error| error.to_string())
    }
}

fn format_named(name: &str) -> Option<Format> {
    Format::ALL.into_iter().find(|format| format.name() == name)
}
