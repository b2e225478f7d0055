//! Several experts in one request, of several instances if need be: one wake-up at either end for all of them, and one thread of
//! the process computes them one after the other. Who has several lanes asks in each first, and takes the answers then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::KernelError;
use crate::instance::{Instance, unexpected};
use crate::jobs::{JOB_BYTES, Job, MAX_JOBS, TABLE_BYTES};
use crate::process::{LaneGuard, Process};
use crate::ring::{Answer, MIN_LANE_BYTES, Request, SPIN};

const NAME: &str = "forward";
/// Most bytes of a request, with its results. A lane has more, but what was once used of it stays resident, and this much computes
/// for so long that a wake-up is nothing beside it.
const MOST_BYTES: usize = MIN_LANE_BYTES;
/// Rows of a request, all jobs together, up to which the answer may be there before a thread has slept and was woken.
const FEW_ROWS: usize = 16;

/// A request in the making. The rows are in the memory of the lane already.
pub struct Together<'a> {
    process: &'a Arc<Process>,
    lane: LaneGuard<'a>,
    /// Of one job.
    limit: Duration,
    row_bytes: usize,
    hidden: usize,
    jobs: usize,
    /// Bytes of the table and the rows.
    length: usize,
    /// Values that are due.
    values: usize,
    is_watched: bool,
}

/// A request that is under way. It must be collected: a lane takes nothing else meanwhile, and where it is dropped instead, the
/// process ends.
#[must_use]
pub struct Asked<'a> {
    together: Together<'a>,
    begun: Instant,
}

/// Why a request for several experts stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// The job that the kernel failed at, counted from 0 in the order of [`Together::add`]: those before it were computed, those
    /// behind it are not. `None` where the process failed, and with it all of them.
    pub job: Option<usize>,
    /// Why.
    pub error: KernelError,
}

impl Instance {
    /// Begins a request for several experts through this instance's lane: rows of `row_bytes`, to each of which `hidden` values
    /// are due. All instances that take part are used by nobody else until it was answered.
    ///
    /// # Errors
    /// Where there is no such lane.
    pub fn together(&self, row_bytes: usize, hidden: usize) -> Result<Together<'_>, KernelError> {
        let (process, lane, limit) = (self.process(), self.lane()?, self.limit());
        Ok(Together {
            process,
            lane,
            limit,
            row_bytes,
            hidden,
            jobs: 0,
            length: TABLE_BYTES,
            values: 0,
            is_watched: false,
        })
    }
}

impl<'a> Together<'a> {
    /// Most rows that a job may have; none where not even one finds room.
    pub fn most_rows(row_bytes: usize, hidden: usize) -> usize {
        (MOST_BYTES - TABLE_BYTES).checked_div(row_and_result(row_bytes, hidden)).unwrap_or(0)
    }

    /// Takes in a job: the `chosen` of `rows`, which stand back to back. Nothing is taken, and the answer is no, where there is no
    /// room for it beside the others, or where the instance is in another process.
    ///
    /// # Panics
    /// Where a row is chosen that is not there.
    pub fn add(&mut self, instance: &Instance, expert: u64, rows: &[u8], chosen: &[u32]) -> bool {
        let Ok(count) = u32::try_from(chosen.len()) else { return false };
        let due = self.values * size_of::<f32>();
        let taken = chosen.len().saturating_mul(row_and_result(self.row_bytes, self.hidden));
        let has_room = (self.length + due).saturating_add(taken) <= MOST_BYTES;
        if !has_room
            || self.jobs == MAX_JOBS
            || chosen.is_empty()
            || !Arc::ptr_eq(self.process, instance.process())
        {
            return false;
        }
        let length = (chosen.len() * self.row_bytes) as u64;
        let job = Job { instance: instance.number(), expert, count, length };
        self.lane.memory().write(self.jobs * JOB_BYTES, &job.encode());
        for &row in chosen {
            self.lane.memory().write(self.length, &rows[row as usize * self.row_bytes..][..self.row_bytes]);
            self.length += self.row_bytes;
        }
        self.limit = self.limit.max(instance.limit());
        self.values += chosen.len() * self.hidden;
        self.jobs += 1;
        true
    }

    /// Few rows that are answered soon are waited for without sleep; whoever computes them may have the processor meanwhile.
    pub fn watch(&mut self) {
        self.is_watched = true;
    }

    /// Asks, and returns before there is an answer.
    ///
    /// # Errors
    /// Where the process has failed before, or there is no job.
    pub fn ask(mut self) -> Result<Asked<'a>, KernelError> {
        if self.jobs == 0 {
            return Err(KernelError::Refused { request: NAME, reason: "there is no job".to_owned() });
        }
        let request = Request::Together { jobs: self.jobs as u64, length: self.length as u64 };
        let begun = self.lane.begin(&request)?;
        Ok(Asked { together: self, begun })
    }
}

impl Asked<'_> {
    /// Waits for the answer and copies the results out: into a slice for each job, in the order in which they were taken in.
    ///
    /// # Errors
    /// What the kernel says of a job, or a process that fails. Then nothing in `outs` counts. The instance concerned is to be told
    /// ([`Instance::stopped`]).
    pub fn collect<'o>(self, outs: impl Iterator<Item = &'o mut [f32]>) -> Result<(), Stopped> {
        let Asked { together, begun } = self;
        let Together { process, mut lane, limit, hidden, jobs, length, values, is_watched, .. } = together;
        let whole = |error| Stopped { job: None, error };
        let may_be_soon = is_watched && values <= FEW_ROWS * hidden;
        let spin = if may_be_soon { process.spin() } else { SPIN };
        let answer = lane.finish(NAME, begun, limit, jobs as u32, spin).map_err(whole)?;
        if may_be_soon {
            process.took(begun.elapsed());
        }
        match answer {
            Answer::Values { count } if count == values as u64 => {}
            other => {
                let job = match other {
                    Answer::Failed { job, .. } => usize::try_from(job).ok().filter(|job| *job < jobs),
                    _ => None,
                };
                let error = match job {
                    None if matches!(other, Answer::Failed { .. }) => {
                        lane.broken(NAME, "a job fails that was not asked for")
                    }
                    _ => unexpected(&lane, NAME, other),
                };
                let is_the_kernels = matches!(error, KernelError::Failed { .. });
                return Err(Stopped { job: job.filter(|_| is_the_kernels), error });
            }
        }
        let (mut at, end) = (length, length + values * size_of::<f32>());
        for out in outs {
            if size_of_val(out) > end - at {
                let reason = "there are more results to take than were asked for".to_owned();
                return Err(whole(KernelError::Refused { request: NAME, reason }));
            }
            // Copied, then checked: the other side may still write.
            lane.memory().read_floats(at, out);
            at += size_of_val(out);
            if out.iter().any(|value| !value.is_finite()) {
                return Err(whole(lane.broken(NAME, "it calls a value finite that is not")));
            }
        }
        Ok(())
    }
}

/// Bytes that a row and its result take.
fn row_and_result(row_bytes: usize, hidden: usize) -> usize {
    row_bytes.saturating_add(hidden.saturating_mul(size_of::<f32>()))
}
