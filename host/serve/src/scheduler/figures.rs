//! What a scheduler did and does, for whoever watches it.

use std::time::Duration;

/// Counters since the start, and the state of the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Texts being written now.
    pub running: usize,
    /// Texts that wait for their turn now.
    pub waiting: usize,
    /// Waves wanted now: as many as the latest decision says.
    pub waves: usize,
    /// Passes under way now.
    pub passes_under_way: usize,
    /// Bytes that the texts being written may take together.
    pub memory_taken: u64,
    /// Bytes that there are for texts.
    pub memory_limit: u64,
    /// Finished passes.
    pub passes: u64,
    /// Rows of finished passes, as they began.
    pub rows: u64,
    /// Rows of prompts among them.
    pub prompt_rows: u64,
    /// Tokens written.
    pub tokens: u64,
    /// Texts that came to an end of their own.
    pub finished: u64,
    /// Texts that nobody wanted any more.
    pub cancelled: u64,
    /// Texts that could not go on.
    pub failed: u64,
    /// Time that the thread computed.
    pub computing: Duration,
    /// Time that it waited for experts with nothing else to compute.
    pub blocked: Duration,
    /// Time that passes waited for experts, summed over passes: what is beyond `blocked` was covered by computing.
    pub waited: Duration,
    /// How long calls to experts were waited for.
    pub call_waits: Waits,
}

/// Buckets of [`Waits`]: the last begins at 34 seconds.
pub const WAIT_BUCKETS: usize = 27;

/// How long calls were waited for, counted by powers of two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    counts: [u64; WAIT_BUCKETS],
    total: Duration,
}

impl Waits {
    /// Takes in that a call was waited for.
    pub(super) fn count(&mut self, wait: Duration) {
        let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.counts[bucket.min(WAIT_BUCKETS - 1)] += 1;
        self.total = self.total.saturating_add(wait);
    }

    /// Bucket i counts the calls of less than 2^i microseconds and no less than half of it, the last one all that are
    /// longer.
    pub fn counts(&self) -> &[u64; WAIT_BUCKETS] {
        &self.counts
    }

    /// Calls in all.
    pub fn calls(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All waits together.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// An upper bound of the wait that `hundredths` of a hundred calls do not exceed, to a factor of two; zero where there
    /// was no call.
    pub fn at(&self, hundredths: u64) -> Duration {
        let rank = (self.calls().saturating_mul(hundredths)).div_ceil(100).max(1);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        bucket.map_or(Duration::ZERO, |bucket| Duration::from_micros(1 << bucket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_by_powers_of_two() {
        let mut waits = Waits::default();
        assert_eq!(waits.at(50), Duration::ZERO);
        for micros in [0, 1, 900, 1000, 1023, 1024] {
            waits.count(Duration::from_micros(micros));
        }
        waits.count(Duration::from_secs(3600));
        assert_eq!(waits.counts()[..2], [1, 1]);
        assert_eq!(waits.counts()[10..12], [3, 1]);
        assert_eq!(waits.counts()[WAIT_BUCKETS - 1], 1);
        assert_eq!((waits.calls(), waits.total().as_secs()), (7, 3600));
        assert_eq!(waits.at(50), Duration::from_micros(1024));
        assert_eq!(waits.at(100), Duration::from_micros(1 << 26));
    }
}
