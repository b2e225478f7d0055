//! Calls to measure, and how long they took.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use kvasir_model::ExpertIndex;
use kvasir_threads::Threads;

use super::{Bench, MeasureError};
use crate::request::ExpertRows;

/// Most calls whose times are kept; beyond it the measurement ends.
const MAX_CALLS: usize = 1 << 20;

/// How long calls took. Seconds are of one expert and one row: a call's wall clock by its expert-rows, whatever number of
/// threads computed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Calls measured.
    pub calls: u64,
    /// Expert-rows computed in them.
    pub expert_rows: u64,
    /// Evaluations of an expert in them: each reads the expert's weights once.
    pub experts: u64,
    /// Wall clock of all calls in seconds.
    pub seconds: f64,
    /// The median call's seconds an expert-row.
    pub median_seconds: f64,
    /// The fastest call's seconds an expert-row.
    pub best_seconds: f64,
}

impl Timing {
    /// Seconds an expert-row over all calls.
    pub fn mean_seconds(&self) -> f64 {
        self.seconds / self.expert_rows.max(1) as f64
    }

    /// Rows that an evaluation of an expert had on average.
    pub fn rows_per_expert(&self) -> f64 {
        self.expert_rows as f64 / self.experts.max(1) as f64
    }
}

/// Times calls until `budget` is used up, at least one, after one that is thrown away. `requests(turn)` gives the call of
/// that turn; making it is not timed.
///
/// # Errors
/// Where a call fails.
pub fn time(
    bench: &Bench<'_>,
    budget: Duration,
    mut requests: impl FnMut(u64) -> Vec<ExpertRows>,
) -> Result<Timing, MeasureError> {
    bench.call(&requests(0))?;
    let mut each = Vec::new();
    let mut timing =
        Timing { calls: 0, expert_rows: 0, experts: 0, seconds: 0.0, median_seconds: 0.0, best_seconds: 0.0 };
    while timing.calls == 0 || (timing.seconds < budget.as_secs_f64() && each.len() < MAX_CALLS) {
        let requests = requests(timing.calls + 1);
        let rows: usize = requests.iter().map(|request| request.rows.len()).sum();
        let begun = Instant::now();
        bench.call(&requests)?;
        let seconds = begun.elapsed().as_secs_f64();
        timing.calls += 1;
        timing.expert_rows += rows as u64;
        timing.experts += requests.len() as u64;
        timing.seconds += seconds;
        each.push(seconds / rows.max(1) as f64);
    }
    each.sort_by(f64::total_cmp);
    timing.median_seconds = each[each.len() / 2];
    timing.best_seconds = each[0];
    Ok(timing)
}

/// Does `work` on threads of its own, `threads` of them: what is called inside is shared out over these.
///
/// # Errors
/// Where the system gives no such number of threads.
pub fn on_threads<T: Send>(
    threads: NonZeroUsize,
    work: impl FnOnce() -> T + Send,
) -> Result<T, MeasureError> {
    let threads = Threads::new(threads, "measured").map_err(|error| {
        MeasureError::Impossible(format!("{threads} threads cannot be started ({error}); name fewer"))
    })?;
    Ok(threads.within(work))
}

/// The call of a turn where experts take turns: `at_once` of `experts` experts, `rows` rows each.
pub fn window(turn: u64, at_once: usize, experts: usize, rows: usize) -> Vec<ExpertRows> {
    let first = turn.wrapping_mul(at_once as u64);
    (0..at_once as u64)
        .map(|offset| ExpertRows {
            expert: ExpertIndex((first.wrapping_add(offset) % experts.max(1) as u64) as u16),
            rows: (0..rows as u32).collect(),
            weights: Vec::new(),
        })
        .collect()
}

/// A layer's call where the router spreads `tokens` rows at random: each goes to `top` distinct experts of `experts`. The
/// same seed gives the same call.
pub fn spread(seed: u64, tokens: usize, experts: usize, top: usize) -> Vec<ExpertRows> {
    let mut random = super::weights::Random(seed);
    let mut rows: Vec<Vec<u32>> = vec![Vec::new(); experts];
    let mut numbers: Vec<usize> = (0..experts).collect();
    for token in 0..tokens as u32 {
        for place in 0..top.min(experts) {
            let other = place + (random.next() % (experts - place) as u64) as usize;
            numbers.swap(place, other);
            rows[numbers[place]].push(token);
        }
    }
    let requests = (0u16..).zip(rows).filter(|(_, rows)| !rows.is_empty());
    requests
        .map(|(expert, rows)| ExpertRows { expert: ExpertIndex(expert), rows, weights: Vec::new() })
        .collect()
}
