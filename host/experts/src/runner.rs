//! The runner: a compiled kernel and as many instances of it as the experts need.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvasir_gpu::{Adapter, GpuOptions};
use kvasir_kernel::Walls;
use kvasir_model::{ExpertIndex, LayerIndex};
use kvasir_numerics::{RowFormat, Swiglu};
use kvasir_plugin::{Class, PluginDigest, VerifiedPlugin};
use kvasir_sandbox::{CompiledKernel, Engine, Fault, KernelLimits, SandboxError};
use kvasir_threads::share;

use crate::conformance::prove;
use crate::error::RunnerError;
use crate::evaluator::{Evaluator, EvaluatorError, Isolation};
use crate::gpu_lane::GpuLane;
use crate::lane::{Lane, Rows, Shared};
use crate::lane_work::LaneWork;
use crate::request::{ExpertRows, add_weighted};
use crate::shader_proof::{ShaderReport, prove_shader};
use crate::together::evaluate_together;

/// Values of single experts that are kept at one time while they are summed (64 MiB of them). A stranger's call of a few megabytes
/// may ask thousands of experts for thousands of rows each, and its answer is only as many rows as it brought.
const MAX_SUM_VALUES: usize = 16 << 20;

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
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// Where experts are computed.
    pub device: Device,
    /// In which process kernels compute.
    pub isolation: Isolation,
    /// Lanes that compute side by side; expert e belongs to lane e mod lanes. More lanes than threads share the work more
    /// evenly. A lane opens another instance when its latest one is full.
    pub instances: NonZeroUsize,
    /// The operator's policy for each instance; an instance gets the lesser of this and what the plugin requests.
    pub limits: KernelLimits,
    /// Most expert bytes that all instances together may hold; `None`: as much as is loaded. A GPU may hold as much again: its memory
    /// is its own.
    pub held_bytes: Option<u64>,
}

/// Where experts are computed.
#[derive(Clone, Debug, Default)]
pub enum Device {
    /// By the plugin's WASM kernel, on the processor.
    #[default]
    Cpu,
    /// By the plugin's WGSL kernel, on a GPU in a process of its own.
    Gpu(GpuOptions),
}

/// How far a runner's results may be from the definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelClass {
    /// Not at all: every bit is defined.
    Exact,
    /// Within the tolerance that the plugin states and that was proven on its golden vectors.
    Tolerance,
}

/// Experts in kernels. Used from many threads at once.
pub struct ExpertRunner {
    shared: Shared,
    lanes: Vec<Mutex<Lane>>,
    gpu: Option<Mutex<GpuLane>>,
    report: Option<ShaderReport>,
    class: KernelClass,
}

impl Default for RunnerOptions {
    /// Four lanes for every thread of the machine, the sandbox's default limits, no bound on the expert bytes.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        RunnerOptions {
            device: Device::Cpu,
            isolation: Isolation::InProcess,
            instances: threads.saturating_mul(NonZeroUsize::MIN.saturating_add(3)),
            limits: KernelLimits::default(),
            held_bytes: None,
        }
    }
}

impl ExpertRunner {
    /// Compiles `plugin` in the process's shared engine and proves it on its golden vectors before it may answer anything; with
    /// [`Device::Gpu`] its shader too. Experts whose matrices the shader does not evaluate are computed by the WASM kernel.
    pub fn new(plugin: &VerifiedPlugin, options: RunnerOptions) -> Result<Self, RunnerError> {
        let evaluator = Evaluator::new(plugin, &options.isolation, options.instances.get());
        let evaluator = evaluator.map_err(not_started)?;
        prove(plugin, &evaluator, options.limits)?;
        let device = options.device.clone();
        let mut runner = ExpertRunner::from_evaluator(evaluator, options);
        if plugin.manifest().class == Class::Tolerance {
            runner.class = KernelClass::Tolerance;
        }
        if let Device::Gpu(options) = device {
            let mut gpu = GpuLane::new(plugin, options)?;
            runner.report = Some(prove_shader(plugin, gpu.gpu())?);
            runner.gpu = Some(Mutex::new(gpu));
            runner.class = KernelClass::Tolerance;
        }
        Ok(runner)
    }

    /// As [`ExpertRunner::new`], in an engine of the caller's choice: for comparisons between engines. On the processor and in this
    /// process, whatever `options` says of either.
    ///
    /// # Errors
    /// As [`ExpertRunner::new`].
    pub fn in_engine(
        engine: &Engine,
        plugin: &VerifiedPlugin,
        options: RunnerOptions,
    ) -> Result<Self, RunnerError> {
        let evaluator = Evaluator::in_engine(engine, plugin).map_err(not_started)?;
        prove(plugin, &evaluator, options.limits)?;
        let mut runner = ExpertRunner::from_evaluator(evaluator, options);
        if plugin.manifest().class == Class::Tolerance {
            runner.class = KernelClass::Tolerance;
        }
        Ok(runner)
    }

    /// A runner of a kernel that the caller has compiled, on the processor, without proving it on golden vectors. It takes the
    /// kernel for exact.
    pub fn from_kernel(kernel: CompiledKernel, options: RunnerOptions) -> Self {
        Self::from_evaluator(Evaluator::InProcess(kernel), options)
    }

    fn from_evaluator(kernel: Evaluator, options: RunnerOptions) -> Self {
        let held_limit = options.held_bytes.unwrap_or(u64::MAX);
        let shared = Shared {
            kernel,
            limits: options.limits,
            held_limit,
            lane_limit: held_limit / options.instances.get() as u64,
            held_bytes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        };
        let lanes = (0..options.instances.get()).map(|number| Mutex::new(Lane::new(number))).collect();
        ExpertRunner { shared, lanes, gpu: None, report: None, class: KernelClass::Exact }
    }

    /// The plugin that computes.
    pub fn plugin(&self) -> PluginDigest {
        self.shared.kernel.plugin()
    }

    /// How far results may be from the definition.
    pub fn class(&self) -> KernelClass {
        self.class
    }

    /// The GPU in use, if one is.
    pub fn adapter(&self) -> Option<Adapter> {
        self.gpu().map(|gpu| gpu.adapter())
    }

    /// How close the plugin's shader came to the definition when it was proven, if a GPU is in use.
    pub fn shader_report(&self) -> Option<&ShaderReport> {
        self.report.as_ref()
    }

    /// The walls around the kernel's process; `None` where it computes in this one.
    pub fn walls(&self) -> Option<Walls> {
        self.shared.kernel.walls()
    }

    /// The number of the kernel's process, for people and for tests; `None` where none runs.
    pub fn process_id(&self) -> Option<u32> {
        self.shared.kernel.process_id()
    }

    /// Whether all experts are computed in the kernel's process, so that who asks for rows waits for it and does little else.
    pub fn is_apart(&self) -> bool {
        self.shared.kernel.is_apart() && self.gpu.is_none()
    }

    /// Loads an expert. Loading it twice is an error, as is exceeding `held_bytes`.
    pub fn load(
        &self,
        layer: LayerIndex,
        expert: ExpertIndex,
        weights: &Swiglu<'_>,
    ) -> Result<(), RunnerError> {
        if let Some(mut gpu) = self.gpu()
            && gpu.takes(weights)
        {
            if gpu.holds(&self.shared, layer, expert) {
                return Err(RunnerError::AlreadyHeld { layer, expert });
            }
            return gpu.load(&self.shared, layer, expert, weights);
        }
        self.lane(expert).load(&self.shared, layer, expert, weights)
    }

    /// Frees an expert; an expert that is not held is ignored.
    pub fn unload(&self, layer: LayerIndex, expert: ExpertIndex) {
        if let Some(mut gpu) = self.gpu() {
            gpu.unload(&self.shared, layer, expert);
        }
        self.lane(expert).unload(&self.shared, layer, expert);
    }

    /// Whether an expert is held now. An expert is lost when the instance that holds it fails.
    pub fn holds(&self, layer: LayerIndex, expert: ExpertIndex) -> bool {
        self.gpu().is_some_and(|mut gpu| gpu.holds(&self.shared, layer, expert))
            || self.lane(expert).holds(&self.shared, layer, expert)
    }

    /// Bytes of the experts held.
    pub fn held_bytes(&self) -> u64 {
        self.shared.held_bytes.load(Ordering::Relaxed)
    }

    /// Instances that failed and were replaced since the runner was made. Whoever runs plugins of strangers stops using
    /// one that keeps failing.
    pub fn failures(&self) -> u64 {
        self.shared.failures.load(Ordering::Relaxed)
    }

    /// Evaluates held experts. `rows` are quantised rows of `hidden` values, back to back in `row_format`. Returns, for
    /// each request in order and each of its rows in order, `hidden` values. Weights are not used. Parallel on
    /// the threads that the caller has entered ([`kvasir_threads::Threads`]).
    pub fn each(
        &self,
        layer: LayerIndex,
        row_format: RowFormat,
        rows: &[u8],
        hidden: usize,
        requests: &[ExpertRows],
    ) -> Result<Vec<f32>, RunnerError> {
        self.evaluate(None, check_rows(layer, row_format, rows, hidden)?, requests)
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
        self.evaluate(Some(source), check_rows(layer, row_format, rows, hidden)?, requests)
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
        self.sum_checked(None, check_rows(layer, row_format, rows, hidden)?, requests)
    }

    /// As [`ExpertRunner::sum`], with a source as in [`ExpertRunner::each_from`].
    pub fn sum_from(
        &self,
        source: &dyn ExpertSource,
        layer: LayerIndex,
        row_format: RowFormat,
        rows: &[u8],
        hidden: usize,
        requests: &[ExpertRows],
    ) -> Result<Vec<f32>, RunnerError> {
        self.sum_checked(Some(source), check_rows(layer, row_format, rows, hidden)?, requests)
    }

    fn sum_checked(
        &self,
        source: Option<&dyn ExpertSource>,
        rows: Rows<'_>,
        requests: &[ExpertRows],
    ) -> Result<Vec<f32>, RunnerError> {
        check_weights(rows.layer, requests)?;
        let mut ascending = Cow::Borrowed(requests);
        if !requests.is_sorted_by_key(|request| request.expert) {
            ascending.to_mut().sort_by_key(|request| request.expert);
        }
        let mut sums = vec![0.0; rows.bytes.len() / rows.row_bytes * rows.hidden];
        for part in parts(&ascending, MAX_SUM_VALUES / rows.hidden) {
            add_weighted(&mut sums, rows.hidden, part, &self.evaluate(source, rows, part)?);
        }
        // Beyond the largest number no bits are defined: what two infinities leave has another sign on another processor.
        let overflow = sums.iter().position(|sum| !sum.is_finite());
        if let (Some(index), Some(first)) = (overflow, ascending.first()) {
            let source = SandboxError::NotFinite { index };
            return Err(RunnerError::Kernel { layer: rows.layer, expert: first.expert, source });
        }
        Ok(sums)
    }

    fn evaluate(
        &self,
        source: Option<&dyn ExpertSource>,
        rows: Rows<'_>,
        requests: &[ExpertRows],
    ) -> Result<Vec<f32>, RunnerError> {
        let count = rows.bytes.len() / rows.row_bytes;
        let mut values_in_all = 0usize;
        for request in requests {
            if let Some(row) = request.rows.iter().find(|&&row| row as usize >= count) {
                let what = format!("expert {} is asked for row {row} of {count}", request.expert.0);
                return Err(RunnerError::Malformed { layer: rows.layer, what });
            }
            values_in_all += request.rows.len() * rows.hidden;
        }
        let mut out = vec![0.0; values_in_all];
        // Held from the choice of experts to their answers, so that no other call takes their room.
        let mut gpu = self.gpu();
        let on_gpu = match &mut gpu {
            Some(gpu) => self.on_gpu(gpu, source, rows, count, requests)?,
            None => HashSet::new(),
        };
        let mut gpu_work: Vec<(&ExpertRows, &mut [f32])> = Vec::new();
        let mut lanes: Vec<LaneWork<'_>> = self.lanes.iter().map(|_| LaneWork::default()).collect();
        let mut rest = out.as_mut_slice();
        for request in requests {
            let (mine, others) = rest.split_at_mut(request.rows.len() * rows.hidden);
            rest = others;
            if mine.is_empty() {
                continue;
            }
            if on_gpu.contains(&request.expert) {
                gpu_work.push((request, mine));
            } else {
                let lane = &mut lanes[self.lane_number(request.expert)];
                lane.rows += request.rows.len();
                lane.jobs.push((request, mine));
            }
        }
        if let (Some(gpu), false) = (&mut gpu, gpu_work.is_empty()) {
            gpu.evaluate(&self.shared, rows, &mut gpu_work)?;
        }
        drop(gpu);
        lanes.retain(|lane| !lane.jobs.is_empty());
        if self.shared.kernel.is_apart() {
            evaluate_together(self, rows, &mut lanes);
        }
        // The longest first, so that the short ones fill up what is left at the end.
        lanes.sort_by_key(|lane| Reverse(lane.rows));
        let mut left: Vec<&mut LaneWork<'_>> = lanes.iter_mut().filter(|work| !work.is_done).collect();
        share(&mut left, |work| work.run(self, source, rows));
        for work in lanes {
            work.outcome?;
        }
        Ok(out)
    }

    /// The experts of `requests` that the GPU holds, read from `source` if need be; the others, and those of one call that find no
    /// room beside each other, are the processor's. The rows are checked where the GPU is to see them: a shader does not check.
    fn on_gpu(
        &self,
        gpu: &mut GpuLane,
        source: Option<&dyn ExpertSource>,
        rows: Rows<'_>,
        count: usize,
        requests: &[ExpertRows],
    ) -> Result<HashSet<ExpertIndex>, RunnerError> {
        let mut on_gpu = HashSet::new();
        gpu.begin_call();
        let layer = rows.layer;
        for request in requests.iter().filter(|request| !request.rows.is_empty()) {
            let expert = request.expert;
            if gpu.keep(&self.shared, layer, expert) {
                on_gpu.insert(expert);
            } else if let (Some(source), false) =
                (source, self.lane(expert).holds(&self.shared, layer, expert))
            {
                let mut taken = Ok(false);
                source
                    .expert(layer, expert, &mut |weights| {
                        if gpu.takes(weights) {
                            taken = match gpu.read(&self.shared, layer, expert, weights) {
                                Ok(()) => Ok(true),
                                Err(RunnerError::NoRoom { .. }) => Ok(false),
                                Err(error) => Err(error),
                            };
                        }
                    })
                    .map_err(|source| RunnerError::Source { layer, expert, source })?;
                if taken? {
                    on_gpu.insert(expert);
                }
            }
        }
        if let Some(&expert) = on_gpu.iter().min() {
            kvasir_numerics::check_rows(rows.format, rows.hidden, rows.bytes, count).map_err(|_| {
                let source = SandboxError::Fault { call: "forward", fault: Fault::MalformedRows };
                RunnerError::Kernel { layer, expert, source }
            })?;
        }
        Ok(on_gpu)
    }

    fn gpu(&self) -> Option<MutexGuard<'_, GpuLane>> {
        // A panic leaves the books of experts as they were before or after a step, and a wrong number is refused by the process.
        self.gpu.as_ref().map(|gpu| gpu.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn lane_number(&self, expert: ExpertIndex) -> usize {
        usize::from(expert.0) % self.lanes.len()
    }

    /// What all lanes share.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The lane of an expert, for the caller alone. Whoever takes several takes them ascending.
    pub(crate) fn lane(&self, expert: ExpertIndex) -> MutexGuard<'_, Lane> {
        let lane = &self.lanes[self.lane_number(expert)];
        lane.lock().unwrap_or_else(|panicked| {
            let mut guard = panicked.into_inner();
            guard.reset(&self.shared);
            lane.clear_poison();
            guard
        })
    }
}

fn not_started(error: EvaluatorError) -> RunnerError {
    match error {
        EvaluatorError::Sandbox(error) => RunnerError::Sandbox(error),
        EvaluatorError::Process(error) => RunnerError::Process(error),
    }
}

fn check_rows(
    layer: LayerIndex,
    format: RowFormat,
    bytes: &[u8],
    hidden: usize,
) -> Result<Rows<'_>, RunnerError> {
    let malformed = |what| RunnerError::Malformed { layer, what };
    let row_bytes = format
        .row_bytes(hidden)
        .filter(|&row_bytes| row_bytes > 0)
        .ok_or_else(|| malformed(format!("rows of {hidden} values are not whole blocks of {format:?}")))?;
    if !bytes.len().is_multiple_of(row_bytes) {
        return Err(malformed(format!("{} bytes are not whole rows of {row_bytes} bytes", bytes.len())));
    }
    Ok(Rows { layer, format, bytes, row_bytes, hidden })
}

/// Requests in order, in parts of at most `most` rows each; one that is larger stands alone.
fn parts(requests: &[ExpertRows], most: usize) -> impl Iterator<Item = &[ExpertRows]> {
    let mut rest = requests;
    std::iter::from_fn(move || {
        let mut rows = 0usize;
        let fitting = rest.iter().take_while(|request| {
            rows = rows.saturating_add(request.rows.len());
            rows <= most
        });
        let (part, left) = rest.split_at(fitting.count().max(1).min(rest.len()));
        rest = left;
        (!part.is_empty()).then_some(part)
    })
}

/// What a sum needs beside what an evaluation needs: a weight for each row, each expert once.
fn check_weights(layer: LayerIndex, requests: &[ExpertRows]) -> Result<(), RunnerError> {
    let mut experts: Vec<u16> = requests.iter().map(|request| request.expert.0).collect();
    experts.sort_unstable();
    if let Some(twice) = experts.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(RunnerError::Malformed {
            layer,
            what: format!("expert {} is asked twice in one sum", twice[0]),
        });
    }
    for request in requests {
        let (rows, weights) = (request.rows.len(), request.weights.len());
        if rows != weights {
            let what = format!("expert {} has {weights} weights for {rows} rows", request.expert.0);
            return Err(RunnerError::Malformed { layer, what });
        }
        if request.weights.iter().any(|weight| !weight.is_finite()) {
            let what = format!("expert {} has a weight that is not finite", request.expert.0);
            return Err(RunnerError::Malformed { layer, what });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_hold_everything_in_order_and_no_more_than_fits() {
        let requests: Vec<ExpertRows> = [3, 1, 4, 9, 2, 2]
            .iter()
            .zip(0..)
            .map(|(&rows, expert)| ExpertRows {
                expert: ExpertIndex(expert),
                rows: (0..rows).collect(),
                weights: Vec::new(),
            })
            .collect();
        let cut = |most| parts(&requests, most).map(<[_]>::len).collect::<Vec<_>>();
        assert_eq!(cut(5), [2, 1, 1, 2]);
        assert_eq!(cut(0), [1; 6]);
        assert_eq!(cut(usize::MAX), [6]);
        assert_eq!(parts(&requests, 5).flatten().collect::<Vec<_>>(), requests.iter().collect::<Vec<_>>());
        assert_eq!(parts(&[], 5).count(), 0);
    }
}
