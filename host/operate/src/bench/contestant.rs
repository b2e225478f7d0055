//! What evaluates experts in a measurement: the native sets of this machine, the sandboxed kernel, the GPU.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kvasir_experts::measure::{
    Bench, Evaluator, ExpertShape, MadeUpExperts, MeasureError, Timing, made_up_rows, on_threads, time,
};
use kvasir_experts::{
    Adapter, AdapterKind, Device, ExpertRows, ExpertRunner, Format, GpuOptions, InstructionSet, RunnerOptions,
};

use crate::local;
use crate::plugin_store;
use crate::settings::Settings;

/// Longest time that may be asked for one figure.
const SECONDS_MAX: f64 = 600.0;

/// What both measurements of experts may be told.
#[derive(Debug, Clone)]
pub struct MeasureOptions {
    /// Package of the expert kernel.
    pub plugin: Option<PathBuf>,
    /// Folder of trusted publishers' public keys.
    pub trust: Option<PathBuf>,
    /// Threads that compute; none means one.
    pub threads: Option<usize>,
    /// Seconds for each figure.
    pub seconds: f64,
    /// What to measure; nothing means the usual.
    pub implementations: Vec<Implementation>,
    /// Formats to measure; nothing means the usual.
    pub formats: Vec<Format>,
}

impl MeasureOptions {
    /// Seconds for each figure.
    ///
    /// # Errors
    /// Where they are no length of time, or more than ten minutes.
    pub fn budget(&self) -> Result<Duration> {
        if !(0.0..=SECONDS_MAX).contains(&self.seconds) {
            bail!("--seconds {} is not between 0 and {SECONDS_MAX}", self.seconds);
        }
        Ok(Duration::from_secs_f64(self.seconds))
    }

    /// The number of threads.
    ///
    /// # Errors
    /// Where zero or an absurd number is named.
    pub fn threads(&self, settings: &Settings) -> Result<NonZeroUsize> {
        match self.threads {
            None => Ok(NonZeroUsize::MIN),
            named => local::threads(settings, named),
        }
    }
}

/// A kind of contestant, as it is named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Implementation {
    /// The scalar reference.
    Scalar,
    /// Every vector instruction set of this machine.
    Native,
    /// The signed kernel in the sandbox.
    Wasm,
    /// The same plugin's shader on the GPU.
    Wgsl,
    /// One product alone, natively, with the fastest set.
    Product,
}

impl Implementation {
    /// All that evaluate whole experts.
    pub const OF_EXPERTS: [Implementation; 4] =
        [Implementation::Scalar, Implementation::Native, Implementation::Wasm, Implementation::Wgsl];
}

/// One that is measured, or the reason why it is not.
pub struct Contestant {
    /// Name in the report: `scalar`, `avx2`, `wasm`, `wgsl` and so on.
    pub name: String,
    kind: Kind,
}

enum Kind {
    Native(InstructionSet),
    Product(InstructionSet),
    Runner(Box<ExpertRunner>),
    Skipped(String),
}

impl Contestant {
    /// Everything that `implementations` name on this machine. What cannot run is there too, with its reason.
    pub fn all(
        settings: &Settings,
        options: &MeasureOptions,
        implementations: &[Implementation],
        threads: NonZeroUsize,
    ) -> Vec<Contestant> {
        let mut all = Vec::new();
        for implementation in implementations {
            let mut add = |name: String, kind| all.push(Contestant { name, kind });
            match implementation {
                Implementation::Scalar => add("scalar".to_owned(), Kind::Native(InstructionSet::SCALAR)),
                Implementation::Native => {
                    let sets: Vec<_> =
                        InstructionSet::available().filter(|set| *set != InstructionSet::SCALAR).collect();
                    if sets.is_empty() {
                        let reason = "this machine has none of the vector instructions that are supported";
                        add("native".to_owned(), Kind::Skipped(reason.to_owned()));
                    }
                    sets.into_iter().for_each(|set| add(set.name().to_owned(), Kind::Native(set)));
                }
                Implementation::Product => {
                    let set = InstructionSet::detect();
                    add(format!("{set}, one product"), Kind::Product(set));
                }
                Implementation::Wasm => {
                    let kind = runner(settings, options, threads, Device::Cpu);
                    add("wasm".to_owned(), kind.unwrap_or_else(skipped));
                }
                Implementation::Wgsl => {
                    let kind = runner(settings, options, threads, Device::Gpu(GpuOptions::default()));
                    add("wgsl".to_owned(), kind.unwrap_or_else(skipped));
                }
            }
        }
        all
    }

    /// Why this one is not measured.
    pub fn skipped(&self) -> Option<&str> {
        match &self.kind {
            Kind::Skipped(reason) => Some(reason),
            _ => None,
        }
    }

    /// The GPU that computes, if one does.
    pub fn adapter(&self) -> Option<Adapter> {
        match &self.kind {
            Kind::Runner(runner) => runner.adapter(),
            _ => None,
        }
    }

    /// Multiply-adds of an expert-row and bytes of an expert's weights, as this one computes them.
    pub fn work(&self, shape: ExpertShape) -> Option<(u64, u64)> {
        let evaluator = self.evaluator()?;
        Some((evaluator.multiply_adds(shape), evaluator.weight_bytes(shape)))
    }

    /// Loads the experts where that is needed. A kernel that refuses them (it may not know the format) is no failure of the
    /// measurement: the reason comes back.
    pub fn load(&self, experts: &MadeUpExperts) -> std::result::Result<(), String> {
        let Kind::Runner(runner) = &self.kind else { return Ok(()) };
        experts.load(runner).map_err(|error| {
            experts.unload(runner);
            error.to_string()
        })
    }

    /// Frees the experts again.
    pub fn unload(&self, experts: &MadeUpExperts) {
        if let Kind::Runner(runner) = &self.kind {
            experts.unload(runner);
        }
    }

    /// Times calls on `threads` threads.
    ///
    /// # Errors
    /// Where a call fails.
    pub fn time(
        &self,
        experts: &MadeUpExperts,
        threads: NonZeroUsize,
        budget: Duration,
        requests: impl FnMut(u64) -> Vec<ExpertRows> + Send,
    ) -> Result<Timing> {
        let evaluator = self.evaluator().context("what is skipped cannot be timed")?;
        let rows = made_up_rows(experts)?;
        let measure = || {
            let bench = Bench::new(evaluator, experts, &rows);
            time(&bench, budget, requests)
        };
        let timing: std::result::Result<Timing, MeasureError> = on_threads(threads, measure)?;
        timing.with_context(|| format!("{} with {} experts", self.name, experts.shape().format))
    }

    fn evaluator(&self) -> Option<Evaluator<'_>> {
        match &self.kind {
            Kind::Native(set) => Some(Evaluator::Native(*set)),
            Kind::Product(set) => Some(Evaluator::Product(*set)),
            Kind::Runner(runner) => Some(Evaluator::Runner(runner)),
            Kind::Skipped(_) => None,
        }
    }
}

fn runner(
    settings: &Settings,
    options: &MeasureOptions,
    threads: NonZeroUsize,
    device: Device,
) -> Result<Kind> {
    let granted = plugin_store::granted(settings, options.plugin.as_deref(), options.trust.as_deref())?;
    let instances = threads.saturating_mul(NonZeroUsize::MIN.saturating_add(3));
    let limits = granted.limits();
    let options = RunnerOptions { device, limits, instances, ..RunnerOptions::default() };
    let runner = ExpertRunner::new(&granted.plugin, options)?;
    Ok(Kind::Runner(Box::new(runner)))
}

fn skipped(error: anyhow::Error) -> Kind {
    Kind::Skipped(format!("{error:#}"))
}

/// A sentence about the GPU: a device in software is the processor again, and its figures say nothing of a GPU.
pub fn about(adapter: &Adapter) -> String {
    let software = adapter.kind == AdapterKind::Software;
    format!(
        "wgsl on {adapter}{}",
        if software { ": in software, by the processor; no GPU is measured" } else { "" }
    )
}
