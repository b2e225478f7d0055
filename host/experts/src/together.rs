//! A call's lanes together, for kernels in a process of their own: one request for each thread that computes, not one for each
//! expert.
//!
//! Between two calls of a worker everybody sleeps, here and over there, and to wake somebody takes longer than a small expert. So
//! the lanes of a call are dealt out to as many bundles as there are threads, all bundles are asked, and then their answers are
//! taken: as many threads compute as did before, and each is woken once. What is computed sooner than a thread is awake goes to one of
//! them alone. Who computes an expert changes no bit of it. A lane whose experts are not all there, or do not take such rows, is left to
//! be computed the plain way.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::MutexGuard;

use kvasir_kernel::{Asked, KernelError, Stopped};
use kvasir_model::{ExpertIndex, LayerIndex};
use kvasir_threads::current_count;

use crate::error::RunnerError;
use crate::lane::{Lane, Rows, Seat, Shared};
use crate::lane_work::LaneWork;
use crate::runner::ExpertRunner;

/// A row's share of a lane's cost. An expert costs about half a row beside its rows: its weights are read.
const COST_OF_ROW: usize = 2;
/// An expert's share.
const COST_OF_EXPERT: usize = 1;
/// Bytes of weights, counted again for every row that meets them, that one thread computes with in the time in which another would wake
/// up: an instance computes with some fifteen kilobytes in a microsecond, and a processor that sleeps takes 50 to 100 of them.
const LITTLE_BYTES: u64 = 1 << 20;

/// Rows of one expert.
struct Entry<'a> {
    /// Which of the lanes that take part.
    lane: usize,
    seat: Seat,
    expert: ExpertIndex,
    rows: &'a [u32],
    out: &'a mut [f32],
}

/// What one thread of the process computes of a call, lane after lane.
#[derive(Default)]
struct Bundle<'a> {
    /// What is not answered yet.
    entries: VecDeque<Entry<'a>>,
    cost: usize,
}

/// Computes those of `works` whose experts are all in the kernel's process, and marks them as done. They are in ascending order of
/// their lanes, so that no two calls wait for each other.
pub(crate) fn evaluate_together(runner: &ExpertRunner, rows: Rows<'_>, works: &mut [LaneWork<'_>]) {
    let shared = runner.shared();
    let mut lanes: Vec<MutexGuard<'_, Lane>> = Vec::new();
    let mut ready = Vec::new();
    for work in works {
        let Some((first, _)) = work.jobs.first() else { continue };
        let mut lane = runner.lane(first.expert);
        if let Some(seats) = lane.seats(shared, rows, work.jobs.iter().map(|(request, _)| *request)) {
            ready.push((lanes.len(), work, seats));
            lanes.push(lane);
        }
    }
    let mut failures: Vec<Option<RunnerError>> = lanes.iter().map(|_| None).collect();
    let met = ready.iter().flat_map(|(_, work, seats)| {
        work.jobs.iter().zip(seats).map(|((request, _), seat)| seat.bytes * request.rows.len() as u64)
    });
    let threads = if met.sum::<u64>() <= LITTLE_BYTES { 1 } else { current_count() };
    let mut bundles: Vec<Bundle<'_>> = (0..threads.min(ready.len())).map(|_| Bundle::default()).collect();
    ready.sort_by_key(|(_, work, _)| Reverse(work.rows));
    for (lane, work, seats) in &mut ready {
        let Some(bundle) = bundles.iter_mut().min_by_key(|bundle| bundle.cost) else { return };
        bundle.cost += COST_OF_ROW * work.rows + COST_OF_EXPERT * seats.len();
        for ((request, out), &seat) in work.jobs.iter_mut().zip(seats.iter()) {
            let (lane, expert) = (*lane, request.expert);
            let parts = request.rows.chunks(seat.at_once).zip(out.chunks_mut(seat.at_once * rows.hidden));
            bundle.entries.extend(parts.map(|(rows, out)| Entry { lane, seat, expert, rows, out }));
        }
    }
    while bundles.iter().any(|bundle| !bundle.entries.is_empty()) {
        // All are asked before the first is waited for.
        let asked: Vec<_> = bundles.iter().map(|bundle| bundle.ask(&lanes, rows)).collect();
        let stopped: Vec<_> =
            bundles.iter_mut().zip(asked).map(|(bundle, asked)| bundle.collect(asked)).collect();
        for (bundle, stopped) in bundles.iter_mut().zip(stopped) {
            if let Err(stopped) = stopped {
                bundle.settle(stopped, shared, rows.layer, &mut lanes, &mut failures);
            }
        }
    }
    drop(bundles);
    for (lane, work, _) in ready {
        work.outcome = failures[lane].take().map_or(Ok(()), Err);
        work.is_done = true;
    }
}

impl Bundle<'_> {
    /// Asks for as much as finds room in one request: how many entries it is, and what is under way. Nothing where nothing is left.
    fn ask<'l>(
        &self,
        lanes: &'l [MutexGuard<'_, Lane>],
        rows: Rows<'_>,
    ) -> Option<(usize, Result<Asked<'l>, KernelError>)> {
        let first = self.entries.front()?;
        // Whose instance is gone has left with it, so this is for the compiler.
        let gone = || KernelError::Refused { request: "forward", reason: "its instance is gone".to_owned() };
        let instance = lanes[first.lane].instance(first.seat).ok_or_else(gone);
        let mut request = match instance.and_then(|instance| instance.together(rows.row_bytes, rows.hidden)) {
            Ok(request) => request,
            Err(error) => return Some((0, Err(error))),
        };
        let fitting = self.entries.iter().take_while(|entry| {
            let instance = lanes[entry.lane].instance(entry.seat);
            instance.is_some_and(|instance| request.add(instance, entry.seat.expert, rows.bytes, entry.rows))
        });
        let count = fitting.count();
        request.watch();
        Some((count, request.ask()))
    }

    /// Waits for what was asked; what is answered leaves.
    fn collect(&mut self, asked: Option<(usize, Result<Asked<'_>, KernelError>)>) -> Result<(), Stopped> {
        let Some((count, asked)) = asked else { return Ok(()) };
        let asked = asked.map_err(|error| Stopped { job: None, error })?;
        asked.collect(self.entries.iter_mut().take(count).map(|entry| &mut *entry.out))?;
        self.entries.drain(..count);
        Ok(())
    }

    /// Takes in why a request stopped: the lane of the expert concerned goes no further, the others do; with the process all end.
    fn settle(
        &mut self,
        Stopped { job, error }: Stopped,
        shared: &Shared,
        layer: LayerIndex,
        lanes: &mut [MutexGuard<'_, Lane>],
        failures: &mut [Option<RunnerError>],
    ) {
        let mut fail = |entry: &Entry<'_>, error| {
            failures[entry.lane].get_or_insert_with(|| {
                lanes[entry.lane].stopped(shared, entry.seat, (layer, entry.expert), error)
            });
        };
        let Some(job) = job else {
            self.entries.drain(..).for_each(|entry| fail(&entry, error.clone()));
            return;
        };
        self.entries.drain(..job);
        if let Some(failed) = self.entries.pop_front() {
            fail(&failed, error);
            self.entries.retain(|entry| entry.lane != failed.lane);
        }
    }
}
