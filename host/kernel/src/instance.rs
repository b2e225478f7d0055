//! One instance of a kernel in its process, through one lane.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::KernelError;
use crate::kernel::Inner;
use crate::process::{LaneGuard, Process};
use crate::ring::{Answer, MAX_EXPERT_BYTES, MAX_REPORT_BYTES, Request};

/// How long an instance may take to be gone.
const DROP: Duration = Duration::from_secs(5);

/// What an instance may use; the process sets it before every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceLimits {
    /// Most linear memory in bytes.
    pub memory_bytes: u64,
    /// Fuel of a call.
    pub fuel_per_call: u64,
    /// Wall clock of a call.
    pub deadline: Duration,
}

/// An instance; dropping it frees what it holds.
pub struct Instance {
    kernel: Arc<Inner>,
    process: Arc<Process>,
    lane: usize,
    number: u64,
    next_expert: u64,
    /// A call's own deadline and the grace on top.
    limit: Duration,
    poisoned: bool,
}

impl Instance {
    pub(crate) fn new(
        kernel: &Arc<Inner>,
        process: Arc<Process>,
        lane: usize,
        limits: InstanceLimits,
    ) -> Result<Self, KernelError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let limit = limits.deadline.saturating_add(kernel.options().grace);
        let mut instance = Instance {
            kernel: Arc::clone(kernel),
            process,
            lane,
            number,
            next_expert: 0,
            limit,
            poisoned: true,
        };
        let request = Request::Instantiate {
            instance: number,
            memory_bytes: limits.memory_bytes,
            fuel_per_call: limits.fuel_per_call,
            deadline_nanoseconds: u64::try_from(limits.deadline.as_nanos()).unwrap_or(u64::MAX),
        };
        instance.exchange("instantiate", |lane| done(lane, "instantiate", &request, limit))?;
        instance.poisoned = false;
        Ok(instance)
    }

    /// Copies an expert in: `shape` is format, rows and columns of gate, up and down; `matrices` are their bytes. Returns its
    /// handle.
    ///
    /// # Errors
    /// What the kernel says of it, or a process that fails.
    pub fn load(&mut self, shape: [u32; 9], matrices: [&[u8]; 3]) -> Result<u64, KernelError> {
        const NAME: &str = "load";
        let bytes: u64 = matrices.iter().map(|matrix| matrix.len() as u64).sum();
        if bytes > MAX_EXPERT_BYTES {
            let reason = format!("an expert of {bytes} bytes, the limit is {MAX_EXPERT_BYTES}");
            return Err(KernelError::Refused { request: NAME, reason });
        }
        let (instance, expert, limit) = (self.number, self.next_expert, self.limit);
        self.next_expert += 1;
        let lane_bytes = self.process.lane_bytes();
        let chunked = bytes > lane_bytes as u64;
        let lengths = matrices.map(|matrix| matrix.len() as u64);
        self.exchange(NAME, |lane| {
            let mut used = 0;
            if chunked {
                // Larger than the lane: gathered over there, and copied once more.
                for chunk in matrices.iter().flat_map(|matrix| matrix.chunks(lane_bytes)) {
                    lane.memory().write(0, chunk);
                    used = used.max(chunk.len());
                    done(lane, NAME, &Request::Chunk { length: chunk.len() as u64 }, limit)?;
                }
            } else {
                for matrix in matrices {
                    lane.memory().write(used, matrix);
                    used += matrix.len();
                }
            }
            let loaded =
                done(lane, NAME, &Request::Load { instance, expert, shape, lengths, chunked }, limit);
            lane.give_back(used);
            loaded
        })?;
        Ok(expert)
    }

    /// Evaluates `count` rows, back to back, into `out`: count times as many values, row by row. What does not fit into the lane
    /// at once goes in several calls.
    ///
    /// # Errors
    /// What the kernel says of it, or a process that fails.
    pub fn forward(
        &mut self,
        expert: u64,
        rows: &[u8],
        count: u32,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        const NAME: &str = "forward";
        let refused = |reason: &str| KernelError::Refused { request: NAME, reason: reason.to_owned() };
        let rows_in_all = count as usize;
        if rows_in_all == 0
            || !out.len().is_multiple_of(rows_in_all)
            || !rows.len().is_multiple_of(rows_in_all)
        {
            return Err(refused("the rows and their results are not so many"));
        }
        let (row_bytes, hidden) = (rows.len() / rows_in_all, out.len() / rows_in_all);
        let at_once = self.process.lane_bytes() / row_bytes.max(hidden * size_of::<f32>()).max(1);
        if at_once == 0 || hidden == 0 || row_bytes == 0 {
            return Err(refused("a row is empty or larger than a lane"));
        }
        let (instance, limit) = (self.number, self.limit);
        self.exchange(NAME, |lane| {
            for (rows, out) in rows.chunks(at_once * row_bytes).zip(out.chunks_mut(at_once * hidden)) {
                lane.memory().write(0, rows);
                let (count, length) = ((rows.len() / row_bytes) as u32, rows.len() as u64);
                match lane.ask(NAME, &Request::Forward { instance, expert, count, length }, limit)? {
                    // Copied, then checked: the other side may still write.
                    Answer::Values { count } if count == out.len() as u64 => {
                        lane.memory().read_floats(0, out)
                    }
                    other => return Err(unexpected(lane, NAME, other)),
                }
                if out.iter().any(|value| !value.is_finite()) {
                    return Err(lane.broken(NAME, "it calls a value finite that is not"));
                }
            }
            Ok(())
        })
    }

    /// Frees an expert.
    ///
    /// # Errors
    /// What the kernel says of it, or a process that fails.
    pub fn unload(&mut self, expert: u64) -> Result<(), KernelError> {
        let (instance, limit) = (self.number, self.limit);
        self.exchange("unload", |lane| done(lane, "unload", &Request::Unload { instance, expert }, limit))
    }

    /// Whether the instance is gone: by a failure of its own, or with its process.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned || !self.process.is_alive()
    }

    /// Takes in why a request for several experts stopped at one of this instance's, or went with its process: a failure that is
    /// the plugin's is counted.
    pub fn stopped(&mut self, error: &KernelError) {
        self.note("forward", error);
    }

    /// Its number in the process.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Where it is.
    pub(crate) fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// The lane that it is used through.
    pub(crate) fn lane(&self) -> Result<LaneGuard<'_>, KernelError> {
        self.process.lane(self.lane)
    }

    /// A call's own deadline and the grace on top.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Something in the lane; a failure that is the plugin's is counted.
    fn exchange<T>(
        &mut self,
        request: &'static str,
        run: impl FnOnce(&mut LaneGuard<'_>) -> Result<T, KernelError>,
    ) -> Result<T, KernelError> {
        let result = self.lane().and_then(|mut lane| run(&mut lane));
        result.inspect_err(|error| self.note(request, error))
    }

    fn note(&mut self, request: &'static str, error: &KernelError) {
        self.poisoned |= matches!(error, KernelError::Failed { fatal: true, .. });
        tracing::debug!(request, %error, "a kernel's process fails a request");
        self.kernel.failed(&self.process, error);
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // A poisoned instance is gone over there already; the numbers are never used again.
        if !self.is_poisoned() {
            let request = Request::Drop { instance: self.number };
            let _ = self.exchange("drop", |lane| done(lane, "drop", &request, DROP));
        }
    }
}

fn done(
    lane: &mut LaneGuard<'_>,
    name: &'static str,
    request: &Request,
    limit: Duration,
) -> Result<(), KernelError> {
    match lane.ask(name, request, limit)? {
        Answer::Done => Ok(()),
        other => Err(unexpected(lane, name, other)),
    }
}

/// A failure's account, or an answer that is none.
pub(crate) fn unexpected(lane: &LaneGuard<'_>, name: &'static str, answer: Answer) -> KernelError {
    match answer {
        Answer::Failed { fatal, length, .. } if length <= MAX_REPORT_BYTES as u64 => {
            let mut report = vec![0; length as usize];
            lane.memory().read(&mut report);
            KernelError::Failed { report, fatal }
        }
        _ => lane.broken(name, "the answer is not the one that is due"),
    }
}
