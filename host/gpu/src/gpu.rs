//! The handle on the GPU: one process for one plugin, started when needed, ended at a deadline, started again after a while, and
//! given up when it fails too often.

use std::iter::once;
use std::time::{Duration, Instant};

use kvasir_kernel::FailureKind;
use kvasir_plugin::PluginDigest;

use crate::error::GpuError;
use crate::message::{
    ExpertShape, MAX_CALL_BYTES, MAX_CHUNK_BYTES, MAX_PARTS, MAX_SOURCE_BYTES, Part, Reply, Request, Rows,
};
use crate::options::{Adapter, GpuOptions};
use crate::process::Process;

/// Longest wait before a restart.
const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// A plugin's shader on the GPU. Requests are answered one after the other.
pub struct Gpu {
    options: GpuOptions,
    plugin: PluginDigest,
    source: String,
    formats: Vec<String>,
    process: Option<Process>,
    adapter: Adapter,
    starts: u64,
    /// No start before this.
    rest_until: Option<Instant>,
    /// While a proof runs, when it must be over.
    proof_until: Option<Instant>,
}

/// What a call cost on the device's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// From the first submission to the end of the last.
    pub time: Duration,
    /// Submissions: each is kept to a few milliseconds.
    pub submissions: u32,
}

/// Starts the program for a moment and asks it which device it would use.
///
/// # Errors
/// No program, no device, or a process that fails.
pub fn describe(options: &GpuOptions) -> Result<Adapter, GpuError> {
    open(options).map(|(_, adapter)| adapter)
}

/// Reads `bytes` of device memory and returns the bytes per second: for placement and for the comparison with the kernels'
/// own speed. No plugin is involved.
///
/// # Errors
/// As [`describe`].
pub fn bandwidth(options: &GpuOptions, bytes: u64) -> Result<f64, GpuError> {
    let (mut process, _) = open(options)?;
    match process.ask(once(Request::Bandwidth { bytes }), options.deadlines.call)? {
        Reply::Bandwidth { bytes, nanoseconds } => Ok(bytes as f64 / (nanoseconds.max(1) as f64 * 1e-9)),
        _ => Err(broken("measuring the memory")),
    }
}

impl Gpu {
    /// Starts the process, opens a device, checks and compiles the shader.
    ///
    /// # Errors
    /// No program or device, a refused shader, a process that fails, a plugin in quarantine.
    pub fn new(
        plugin: PluginDigest,
        source: &str,
        formats: &[String],
        options: GpuOptions,
    ) -> Result<Self, GpuError> {
        if source.len() > MAX_SOURCE_BYTES {
            let reason = format!("its source has {} bytes, the limit is {MAX_SOURCE_BYTES}", source.len());
            return Err(GpuError::ShaderRefused { reason });
        }
        let mut gpu = Gpu {
            options,
            plugin,
            source: source.to_owned(),
            formats: formats.to_vec(),
            process: None,
            adapter: Adapter::none(),
            starts: 0,
            rest_until: None,
            proof_until: None,
        };
        gpu.running()?;
        Ok(gpu)
    }

    /// The device in use, as it was described at the latest start.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// The plugin that runs.
    pub fn plugin(&self) -> PluginDigest {
        self.plugin
    }

    /// How often the process was started: where the number has grown, the experts loaded before are gone.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// Whether a process runs now. Where none does, the experts loaded before are gone, and the next request starts one.
    pub fn is_running(&self) -> bool {
        self.process.as_ref().is_some_and(Process::is_alive)
    }

    /// The process's number, for tests and for people.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().filter(|process| process.is_alive()).map(Process::id)
    }

    /// Starts the process where none runs.
    ///
    /// # Errors
    /// As [`Gpu::new`]; [`GpuError::BackingOff`] shortly after a failure.
    pub fn ensure_running(&mut self) -> Result<(), GpuError> {
        self.running().map(|_| ())
    }

    /// Until [`Gpu::end_proof`], calls share the deadline of a proof instead of having one each.
    pub fn begin_proof(&mut self) {
        self.proof_until = Some(Instant::now() + self.options.deadlines.proof);
    }

    /// From here on, each call has a deadline of its own again.
    pub fn end_proof(&mut self) {
        self.proof_until = None;
    }

    /// Takes an expert into device memory under a number of the caller's choice, in place of one with the same number.
    ///
    /// # Errors
    /// No room, a shape or format that the process refuses, or a process that fails.
    pub fn load(&mut self, expert: u64, shape: ExpertShape, matrices: [&[u8]; 3]) -> Result<(), GpuError> {
        for (shape, bytes) in shape.iter().zip(matrices) {
            if u64::from(shape.outputs) * u64::from(shape.row_bytes) != bytes.len() as u64 {
                let reason = format!("{} bytes are not the matrix {shape:?}", bytes.len());
                return Err(GpuError::Refused { request: "loading an expert", reason });
            }
        }
        let weights = matrices.into_iter().flat_map(|bytes| bytes.chunks(MAX_CHUNK_BYTES));
        let requests = once(Request::Load { expert, shape }).chain(weights.map(Request::Weights));
        let limit = self.options.deadlines.load;
        self.ask(requests, limit, |reply| matches!(reply, Reply::Done).then_some(()))
    }

    /// Frees an expert; one that is not held is ignored.
    ///
    /// # Errors
    /// A process that fails.
    pub fn unload(&mut self, expert: u64) -> Result<(), GpuError> {
        if !self.is_running() {
            return Ok(());
        }
        let limit = self.options.deadlines.load;
        self.ask(once(Request::Unload { expert }), limit, |reply| matches!(reply, Reply::Done).then_some(()))
    }

    /// Evaluates experts. `rows` are rows of `columns` values in `format`, back to back; `out` takes, part by part and row by
    /// row, `columns` values each. What does not fit into one message is asked in several.
    ///
    /// # Errors
    /// A request that makes no sense, or a process that fails.
    pub fn forward(
        &mut self,
        format: Rows,
        columns: usize,
        rows: &[u8],
        parts: &[Part],
        out: &mut [f32],
    ) -> Result<Timing, GpuError> {
        let refused = |reason: String| GpuError::Refused { request: "a call", reason };
        let row_bytes = format
            .row_bytes(columns)
            .filter(|bytes| *bytes > 0 && *bytes <= MAX_CALL_BYTES / 2 && columns <= MAX_CALL_BYTES / 8)
            .ok_or_else(|| refused(format!("rows of {columns} values are impossible or too long")))?;
        let count = rows.len() / row_bytes;
        let asked: usize = parts.iter().map(|part| part.rows.len()).sum();
        let out_of_range = parts.iter().flat_map(|part| &part.rows).any(|&row| row as usize >= count);
        if !rows.len().is_multiple_of(row_bytes) || out_of_range || asked * columns != out.len() {
            return Err(refused("the rows, their numbers and the output do not fit each other".to_owned()));
        }
        let mut timing = Timing::default();
        let mut done = 0;
        let (begun, whole) = (Instant::now(), self.call_limit());
        for batch in batches(parts, columns * 4, row_bytes) {
            let length = batch.iter().map(|part| part.rows.len()).sum::<usize>() * columns;
            let (parts, rows) = compact(batch, rows, row_bytes, count);
            let out = &mut out[done..done + length];
            let limit = if done == 0 { whole } else { whole.saturating_sub(begun.elapsed()) };
            done += length;
            let request = once(Request::Forward { format, parts, rows: &rows });
            let cost = self.ask(request, limit, |reply| match reply {
                Reply::Values { nanoseconds, submissions, bytes } if bytes.len() == out.len() * 4 => {
                    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                        *value = f32::from_le_bytes(*bytes);
                    }
                    Some((nanoseconds, submissions))
                }
                _ => None,
            })?;
            timing.time += Duration::from_nanos(cost.0);
            timing.submissions += cost.1;
        }
        Ok(timing)
    }

    /// The exact integer sums behind a matrix's product with `rows` (`MatrixShape::rows_format`, few): row by row, output by
    /// output, block by block; what a block has is the format's matter, `sums` is the number of an output and row in all.
    ///
    /// # Errors
    /// A format without such sums, a request that makes no sense, or a process that fails.
    pub fn accumulators(
        &mut self,
        expert: u64,
        matrix: u8,
        sums: u32,
        rows: &[u8],
    ) -> Result<Vec<i32>, GpuError> {
        let limit = self.call_limit();
        self.ask(once(Request::Accumulators { expert, matrix, sums, rows }), limit, |reply| match reply {
            Reply::Values { bytes, .. } => {
                Some(bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect())
            }
            _ => None,
        })
    }

    fn call_limit(&self) -> Duration {
        self.proof_until
            .map_or(self.options.deadlines.call, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Asks the running process; a failure is counted.
    fn ask<'r, T>(
        &mut self,
        requests: impl IntoIterator<Item = Request<'r>>,
        limit: Duration,
        read: impl FnOnce(Reply<'_>) -> Option<T>,
    ) -> Result<T, GpuError> {
        let answer = match self.running()?.ask(requests, limit) {
            Ok(reply) => read(reply).ok_or_else(|| broken("an answer")),
            Err(error) => Err(error),
        };
        answer.inspect_err(|error| self.note(error))
    }

    /// The process, started if need be.
    fn running(&mut self) -> Result<&mut Process, GpuError> {
        if !self.is_running() {
            self.process = None;
            let failures = self.options.history.failures(self.plugin);
            if failures >= self.options.quarantine_after {
                return Err(GpuError::Quarantined { plugin: self.plugin, failures });
            }
            let wait = self
                .rest_until
                .map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
            if !wait.is_zero() {
                return Err(GpuError::BackingOff { wait });
            }
            // Nothing of the plugin runs before its shader is sent, so a failure until then is not its own.
            let (mut process, adapter) = open(&self.options)?;
            let formats = self.formats.iter().map(String::as_str).collect();
            let shader = once(Request::Shader { source: &self.source, formats });
            let answer = match process.ask(shader, self.options.deadlines.shader) {
                Ok(Reply::Done) => Ok(()),
                Ok(_) => Err(broken("compiling the shader")),
                Err(error) => Err(error),
            };
            answer.inspect_err(|error| self.note(error))?;
            tracing::info!(device = %adapter, process = process.id(), "the GPU's process runs");
            self.adapter = adapter;
            self.starts += 1;
            self.process = Some(process);
        }
        self.process.as_mut().ok_or_else(|| broken("the start"))
    }

    /// Counts a failure of the process and sets when it may start again.
    fn note(&mut self, error: &GpuError) {
        let kind = match error {
            GpuError::Killed { .. } => FailureKind::Deadline,
            GpuError::Crashed { .. } | GpuError::BrokenProtocol { .. } => FailureKind::Crash,
            _ => return,
        };
        self.process = None;
        let failures = self.options.history.record(self.plugin, kind);
        let doubled = self.options.backoff.saturating_mul(1 << failures.saturating_sub(1).min(16));
        self.rest_until = Some(Instant::now() + doubled.min(MAX_BACKOFF));
        tracing::warn!(plugin = %self.plugin, failures, %error, "a plugin failed on the GPU");
    }
}

fn open(options: &GpuOptions) -> Result<(Process, Adapter), GpuError> {
    let mut process = Process::start(options)?;
    let request = Request::Open {
        adapter: options.adapter,
        memory_bytes: options.memory_bytes.unwrap_or(u64::MAX),
        binding_bytes: options.binding_bytes.unwrap_or(0),
    };
    let adapter = match process.ask(once(request), options.deadlines.start)? {
        Reply::Opened(adapter) => adapter,
        _ => return Err(broken("opening the device")),
    };
    Ok((process, adapter))
}

fn broken(request: &'static str) -> GpuError {
    GpuError::BrokenProtocol { request, reason: "the reply is not the one that is due".to_owned() }
}

/// Cuts `parts` so that neither the results nor the rows of a batch exceed a call's bytes.
fn batches(parts: &[Part], out_bytes: usize, row_bytes: usize) -> Vec<Vec<Part>> {
    let at_once = (MAX_CALL_BYTES / out_bytes.max(row_bytes)).max(1);
    let mut batches: Vec<Vec<Part>> = Vec::new();
    let mut room = 0;
    for part in parts {
        let mut rest = part.rows.as_slice();
        while !rest.is_empty() {
            if room == 0 || batches.last().is_none_or(|batch| batch.len() == MAX_PARTS) {
                batches.push(Vec::new());
                room = at_once;
            }
            let (now, later) = rest.split_at(rest.len().min(room));
            room -= now.len();
            rest = later;
            if let Some(batch) = batches.last_mut() {
                batch.push(Part { expert: part.expert, rows: now.to_vec() });
            }
        }
    }
    batches
}

/// Only the rows that a batch asks for, and the batch with their new numbers.
fn compact(mut batch: Vec<Part>, rows: &[u8], row_bytes: usize, count: usize) -> (Vec<Part>, Vec<u8>) {
    let mut numbers = vec![u32::MAX; count];
    let mut chosen = Vec::new();
    for row in batch.iter_mut().flat_map(|part| &mut part.rows) {
        let number = &mut numbers[*row as usize];
        if *number == u32::MAX {
            *number = (chosen.len() / row_bytes) as u32;
            chosen.extend_from_slice(&rows[*row as usize * row_bytes..][..row_bytes]);
        }
        *row = *number;
    }
    (batch, chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_every_row_once_in_order_and_stay_within_a_call() {
        let part = |expert, rows: u32| Part { expert, rows: (0..rows).rev().collect() };
        let parts = [part(1, 5), part(2, 0), part(3, 700), part(4, 3)];
        for out_bytes in [4, MAX_CALL_BYTES / 300, MAX_CALL_BYTES, 2 * MAX_CALL_BYTES] {
            let batches = batches(&parts, out_bytes, 36);
            let flat: Vec<(u64, u32)> = batches
                .iter()
                .flatten()
                .flat_map(|part| part.rows.iter().map(|row| (part.expert, *row)))
                .collect();
            let due: Vec<(u64, u32)> =
                parts.iter().flat_map(|part| part.rows.iter().map(|row| (part.expert, *row))).collect();
            assert_eq!(flat, due);
            for batch in &batches {
                let rows: usize = batch.iter().map(|part| part.rows.len()).sum();
                assert!(rows == 1 || rows * out_bytes <= MAX_CALL_BYTES);
            }
        }
    }

    #[test]
    fn compacting_keeps_each_row_with_its_number() {
        let rows: Vec<u8> = (0..6).flat_map(|row| [row; 3]).collect();
        let batch = vec![Part { expert: 1, rows: vec![4, 2] }, Part { expert: 2, rows: vec![2, 5] }];
        let (batch, chosen) = compact(batch, &rows, 3, 6);
        assert_eq!(chosen, [4, 4, 4, 2, 2, 2, 5, 5, 5]);
        assert_eq!((batch[0].rows.clone(), batch[1].rows.clone()), (vec![0, 1], vec![1, 2]));
    }
}
