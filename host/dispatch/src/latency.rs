//! How long a worker takes, learnt call by call: the deadline of the next call and the percentiles of the report.
//!
//! A call's time grows with its rows, so calls are sorted by the power of two of their expert-rows (experts x rows of
//! each) and every such bucket keeps a smoothed mean and deviation, as TCP does for its retransmission timer
//! (RFC 6298, gains 1/8 and 1/4). Nothing here reads a clock.

use std::ops::Range;
use std::time::Duration;

/// Bounds of a call's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Never give up earlier: below this a pause of the worker's machine would look like its loss.
    pub floor: Duration,
    /// Never wait longer; also the deadline of a size of call not measured yet.
    pub ceiling: Duration,
}

impl Deadlines {
    /// Default floor: many times a wide-area round trip, short enough that one lost worker costs a token, not a coffee.
    pub const FLOOR: Duration = Duration::from_millis(500);
    /// Default ceiling: a long prefill on a slow worker behind a slow line still fits.
    pub const CEILING: Duration = Duration::from_secs(20);
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { floor: Self::FLOOR, ceiling: Self::CEILING }
    }
}

/// Sizes of calls are told apart by powers of two up to this one.
const BUCKETS: usize = 24;

/// How many of the latest latencies the percentiles are taken from.
const KEPT: usize = 4096;

/// Measurements before a bucket's own estimate is trusted; the first calls pay for cold caches.
const TRUSTED_AFTER: u32 = 4;

/// Spread from which on nobody can say when an answer comes.
const UNSTEADY: Duration = Duration::from_micros(150);

/// A call that is off by more than so many spreads counts as if it were off by so many: a pause of some machine says nothing about the
/// next call, while a path that has become longer is learnt all the same, since the spread grows with every such call.
const FAR: f64 = 4.0;

/// As if the spread were no less, in seconds: a millionth more than ever before is no surprise.
const LEAST_SPREAD: f64 = 25e-6;

/// From so long before its usual time an answer is likely to come. A thread that sleeps until then wakes some 100 microseconds late, and
/// two or three others, through whose hands the answer goes, wake meanwhile; where those are on this machine, a core is awake for them.
/// Of a short wait it is half at the most: nobody looks out all the time.
const LIKELY_BEFORE: Duration = Duration::from_micros(300);

/// Until so long after it at most.
const LIKELY_AFTER: Duration = Duration::from_micros(200);

/// What is known about one worker's latency.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    buckets: [Bucket; BUCKETS],
    latest: Vec<u32>,
    next: usize,
}

#[derive(Debug, Default, Clone, Copy)]
struct Bucket {
    measured: u32,
    mean: f64,
    deviation: f64,
    /// The mean without what is far outside, in seconds: deadlines want to know of that, and who looks out for an answer does not.
    usual: f64,
    /// The mean deviation from that one.
    spread: f64,
}

impl Latency {
    /// Takes in one answered call of `expert_rows` expert-rows.
    pub(crate) fn measure(&mut self, expert_rows: usize, took: Duration) {
        let bucket = &mut self.buckets[bucket_of(expert_rows)];
        let sample = took.as_secs_f64();
        if bucket.measured == 0 {
            bucket.mean = sample;
            bucket.deviation = sample / 2.0;
            bucket.usual = bucket.mean;
            bucket.spread = bucket.deviation;
        } else {
            bucket.deviation += ((sample - bucket.mean).abs() - bucket.deviation) / 4.0;
            bucket.mean += (sample - bucket.mean) / 8.0;
            let far = FAR * bucket.spread.max(LEAST_SPREAD);
            let off = (sample - bucket.usual).clamp(-far, far);
            bucket.spread += (off.abs() - bucket.spread) / 4.0;
            bucket.usual += off / 8.0;
        }
        bucket.measured = bucket.measured.saturating_add(1);

        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        if self.latest.len() < KEPT {
            self.latest.push(micros);
        } else {
            self.latest[self.next] = micros;
            self.next = (self.next + 1) % KEPT;
        }
    }

    /// How long to wait for a call of `expert_rows` expert-rows. A larger size that was measured bounds a smaller one
    /// that was not, since more rows never take less time.
    pub(crate) fn allowance(&self, expert_rows: usize, bounds: Deadlines) -> Duration {
        let known =
            self.buckets[bucket_of(expert_rows)..].iter().find(|bucket| bucket.measured >= TRUSTED_AFTER);
        match known {
            None => bounds.ceiling.max(bounds.floor),
            Some(bucket) => {
                // Eight deviations where TCP takes four: giving up early costs a local recomputation of a call that
                // was about to be answered, and the answer then goes unpaid.
                let estimate = (2.0 * bucket.mean + 8.0 * bucket.deviation).max(0.0);
                let estimate = Duration::try_from_secs_f64(estimate).unwrap_or(bounds.ceiling);
                estimate.min(bounds.ceiling).max(bounds.floor)
            }
        }
    }

    /// When a call of `expert_rows` expert-rows is likely to be answered, from its start; a fraction of a millisecond. Nothing where
    /// such calls were not measured or take now less and now more time.
    pub(crate) fn likely(&self, expert_rows: usize) -> Option<Range<Duration>> {
        let Bucket { measured, usual, spread, .. } = self.buckets[bucket_of(expert_rows)];
        if measured < TRUSTED_AFTER || spread > UNSTEADY.as_secs_f64() {
            return None;
        }
        let usual = Duration::try_from_secs_f64(usual).ok()?;
        let after = Duration::from_secs_f64(3.0 * spread).min(LIKELY_AFTER);
        Some(usual - LIKELY_BEFORE.min(usual / 2)..usual + after)
    }

    /// The latest latencies in microseconds, in no particular order.
    pub(crate) fn latest_micros(&self) -> &[u32] {
        &self.latest
    }
}

fn bucket_of(expert_rows: usize) -> usize {
    (expert_rows.max(1).ilog2() as usize).min(BUCKETS - 1)
}

/// Percentiles of a set of latencies, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Percentiles {
    /// Half of the calls took no longer.
    pub p50_micros: u32,
    /// 90 in 100.
    pub p90_micros: u32,
    /// 99 in 100.
    pub p99_micros: u32,
    /// The longest.
    pub max_micros: u32,
}

impl Percentiles {
    /// Nearest-rank percentiles; all zero when nothing was measured.
    pub fn of(mut micros: Vec<u32>) -> Self {
        micros.sort_unstable();
        let at = |hundredths: usize| {
            let rank = (micros.len() * hundredths).div_ceil(100).max(1);
            micros.get(rank - 1).copied().unwrap_or(0)
        };
        Self { p50_micros: at(50), p90_micros: at(90), p99_micros: at(99), max_micros: at(100) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Deadlines = Deadlines { floor: Duration::from_millis(10), ceiling: Duration::from_secs(1) };

    #[test]
    fn an_unmeasured_size_waits_for_the_ceiling() {
        assert_eq!(Latency::default().allowance(8, BOUNDS), BOUNDS.ceiling);
    }

    #[test]
    fn a_steady_worker_gets_a_short_deadline_and_never_less_than_the_floor() {
        let mut latency = Latency::default();
        for _ in 0..50 {
            latency.measure(8, Duration::from_millis(20));
        }
        let allowed = latency.allowance(8, BOUNDS);
        assert!(allowed >= Duration::from_millis(40) && allowed < Duration::from_millis(60), "{allowed:?}");
        for _ in 0..50 {
            latency.measure(1, Duration::from_micros(50));
        }
        assert_eq!(latency.allowance(1, BOUNDS), BOUNDS.floor);
    }

    #[test]
    fn of_a_steady_worker_it_is_known_when_an_answer_is_likely_and_of_another_it_is_not() {
        let mut latency = Latency::default();
        assert_eq!(latency.likely(8), None);
        for micros in [13_990, 14_010].repeat(20) {
            latency.measure(8, Duration::from_micros(micros));
        }
        let likely = latency.likely(8).unwrap();
        assert!(likely.contains(&Duration::from_micros(13_990)), "{likely:?}");
        assert!(likely.contains(&Duration::from_micros(14_010)), "{likely:?}");
        assert!(likely.end - likely.start <= LIKELY_BEFORE + LIKELY_AFTER, "{likely:?}");
        assert_eq!(latency.likely(1), None, "another size");
        for millis in [10, 18].repeat(20) {
            latency.measure(8, Duration::from_millis(millis));
        }
        assert_eq!(latency.likely(8), None);
    }

    #[test]
    fn of_a_short_wait_half_is_looked_out_for_at_the_most() {
        let mut latency = Latency::default();
        for _ in 0..40 {
            latency.measure(1, Duration::from_micros(400));
        }
        let likely = latency.likely(1).unwrap();
        assert!(likely.contains(&Duration::from_micros(400)), "{likely:?}");
        assert!(likely.start >= Duration::from_micros(199), "{likely:?}");
    }

    #[test]
    fn a_pause_once_in_a_while_hides_nothing_and_a_longer_path_is_learnt() {
        let mut latency = Latency::default();
        let measure = |latency: &mut Latency, micros: u64, times: usize| {
            for _ in 0..times {
                latency.measure(8, Duration::from_micros(micros));
            }
        };
        measure(&mut latency, 14_000, 40);
        for _ in 0..5 {
            measure(&mut latency, 40_000, 1);
            let likely = latency.likely(8).expect("one pause");
            assert!(likely.contains(&Duration::from_micros(14_000)), "{likely:?}");
            measure(&mut latency, 14_000, 7);
        }
        let bounds = Deadlines { floor: Duration::ZERO, ..BOUNDS };
        assert!(latency.allowance(8, bounds) > Duration::from_millis(40), "a deadline allows for pauses");

        measure(&mut latency, 50_000, 80);
        let likely = latency.likely(8).expect("it is steady again");
        assert!(likely.contains(&Duration::from_micros(50_000)), "{likely:?}");
    }

    #[test]
    fn a_larger_measured_size_bounds_a_smaller_one() {
        let mut latency = Latency::default();
        for _ in 0..10 {
            latency.measure(4096, Duration::from_millis(100));
        }
        assert!(latency.allowance(2, BOUNDS) < BOUNDS.ceiling);
        assert_eq!(latency.allowance(1 << 20, BOUNDS), BOUNDS.ceiling);
    }

    #[test]
    fn percentiles_are_nearest_rank_and_forget_the_oldest() {
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
        let of_hundred = Percentiles::of((1..=100).rev().collect());
        assert_eq!((of_hundred.p50_micros, of_hundred.p90_micros, of_hundred.p99_micros), (50, 90, 99));
        assert_eq!(of_hundred.max_micros, 100);

        let mut latency = Latency::default();
        for _ in 0..KEPT {
            latency.measure(1, Duration::from_secs(1));
        }
        for _ in 0..KEPT {
            latency.measure(1, Duration::from_micros(7));
        }
        assert_eq!(Percentiles::of(latency.latest_micros().to_vec()).max_micros, 7);
    }
}
