//! How soon few rows are answered, of late: whether their answer is worth watching for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::ring::SPIN;

/// How long an answer is watched for that may be there soon: as long as it takes to wake a thread of the process, on a processor that
/// slept too, and to compute a little with weights that nobody has read for a while. Who sleeps meanwhile is woken in turn.
const LONG_SPIN: Duration = Duration::from_micros(300);
/// Where they take longer they come from larger experts, and are not watched for.
const NOT_SOON: Duration = Duration::from_micros(450);
/// One that took longer counts as if it took so long: a pause of the machine says nothing about the next one.
const LONGEST: Duration = Duration::from_micros(900);
/// Each counts for one part in so many.
const PART: u64 = 8;

/// Of one process; all threads may use it at once.
#[derive(Debug, Default)]
pub(crate) struct Promptness {
    /// Smoothed; 0 until one was measured, which is soon.
    nanoseconds: AtomicU64,
}

impl Promptness {
    /// How long the next answer is watched for.
    pub fn spin(&self) -> Duration {
        let is_soon = Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)) < NOT_SOON;
        if is_soon { LONG_SPIN } else { SPIN }
    }

    /// So long it took until few rows were answered.
    pub fn took(&self, time: Duration) {
        let took = time.min(LONGEST).as_nanos() as u64;
        let mean = self.nanoseconds.load(Ordering::Relaxed);
        // Of two threads that are here at once one is not heard, which matters to nobody.
        self.nanoseconds.store((mean * (PART - 1) + took) / PART, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pause_is_no_reason_to_sleep_and_large_experts_are() {
        let promptness = Promptness::default();
        assert_eq!(promptness.spin(), LONG_SPIN, "nothing is known");
        (0..20).for_each(|_| promptness.took(Duration::from_micros(150)));
        promptness.took(Duration::from_secs(1));
        assert_eq!(promptness.spin(), LONG_SPIN);
        (0..40).for_each(|_| promptness.took(Duration::from_millis(5)));
        assert_eq!(promptness.spin(), SPIN);
        (0..40).for_each(|_| promptness.took(Duration::from_micros(150)));
        assert_eq!(promptness.spin(), LONG_SPIN, "and little ones again");
    }
}
