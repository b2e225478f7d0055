//! A worker that misses deadlines is left alone for a while, twice as long each time, and asked again only once it has
//! answered a trial. No clock is read here.

use std::time::{Duration, Instant};

/// How long a worker that missed a deadline is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// After the first miss.
    pub first: Duration,
    /// At most, however many there were.
    pub longest: Duration,
}

impl Pauses {
    /// Default after the first miss: a machine that had to swap, or a link that was cut over, is well again by then.
    pub const FIRST: Duration = Duration::from_secs(1);
    /// Default of the longest: a trial a minute costs nobody anything.
    pub const LONGEST: Duration = Duration::from_secs(60);

    /// After so many misses, at least one.
    fn after(self, misses: u32) -> Duration {
        let doublings = misses.saturating_sub(1).min(20);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

impl Default for Pauses {
    fn default() -> Self {
        Self { first: Self::FIRST, longest: Self::LONGEST }
    }
}

/// Answers in time after which earlier misses are forgotten.
const FORGIVEN_AFTER: u32 = 32;

/// Where a session stands with its deadlines.
#[derive(Debug, Default)]
pub(crate) struct Ejection {
    misses: u32,
    /// Answers in time since the last of them.
    answers: u32,
    /// Left alone until then, and from then on until a trial is passed.
    until: Option<Instant>,
    on_trial: bool,
}

impl Ejection {
    /// A deadline passed. Of several calls that are out at a time the first counts.
    pub(crate) fn miss(&mut self, now: Instant, pauses: Pauses) {
        if self.until.is_some() && !self.on_trial {
            return;
        }
        self.misses = self.misses.saturating_add(1);
        self.answers = 0;
        self.until = Some(now + pauses.after(self.misses));
        self.on_trial = false;
    }

    /// An answer came in time.
    pub(crate) fn answered(&mut self) {
        if self.until.is_some() {
            return;
        }
        self.answers += 1;
        if self.answers >= FORGIVEN_AFTER {
            *self = Ejection::default();
        }
    }

    /// Whether it is asked nothing but trials.
    pub(crate) fn is_out(&self) -> bool {
        self.until.is_some()
    }

    /// Whether it is time for a trial.
    pub(crate) fn wants_trial(&self, now: Instant) -> bool {
        !self.on_trial && self.until.is_some_and(|until| until <= now)
    }

    /// A trial is under way.
    pub(crate) fn begin_trial(&mut self) {
        self.on_trial = true;
    }

    /// The trial came to nothing without a miss: another may follow.
    pub(crate) fn drop_trial(&mut self) {
        self.on_trial = false;
    }

    /// The trial was passed: it is asked again. Its misses are remembered for a while.
    pub(crate) fn readmit(&mut self) {
        self.until = None;
        self.on_trial = false;
        self.answers = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: Pauses = Pauses { first: Duration::from_secs(1), longest: Duration::from_secs(5) };

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses: Vec<u64> = (1..6).map(|misses| PAUSES.after(misses).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        assert_eq!(Pauses::default().after(u32::MAX), Pauses::LONGEST);
    }

    #[test]
    fn after_the_pause_there_is_one_trial_and_after_it_all_is_as_before() {
        let now = Instant::now();
        let at = |millis: u64| now + Duration::from_millis(millis);
        let mut ejection = Ejection::default();
        assert!(!ejection.is_out() && !ejection.wants_trial(now));
        ejection.miss(now, PAUSES);
        assert!(ejection.is_out() && !ejection.wants_trial(at(999)) && ejection.wants_trial(at(1000)));
        ejection.begin_trial();
        assert!(ejection.is_out() && !ejection.wants_trial(at(5000)), "one at a time");
        ejection.drop_trial();
        assert!(ejection.wants_trial(at(5000)));
        ejection.readmit();
        assert!(!ejection.is_out());
        // The next miss is the second one.
        ejection.miss(now, PAUSES);
        assert!(!ejection.wants_trial(at(1999)) && ejection.wants_trial(at(2000)));
    }

    #[test]
    fn calls_that_were_out_together_are_one_miss_and_a_trial_is_another() {
        let now = Instant::now();
        let mut ejection = Ejection::default();
        (0..16).for_each(|_| ejection.miss(now, PAUSES));
        assert!(ejection.wants_trial(now + PAUSES.first));
        ejection.begin_trial();
        ejection.miss(now, PAUSES);
        assert!(!ejection.wants_trial(now + PAUSES.first) && ejection.wants_trial(now + 2 * PAUSES.first));
    }

    #[test]
    fn misses_are_forgiven_after_a_while_of_answers_in_time() {
        let now = Instant::now();
        let mut ejection = Ejection::default();
        ejection.miss(now, PAUSES);
        for _ in 0..FORGIVEN_AFTER {
            ejection.answered();
        }
        assert!(ejection.is_out(), "what comes while it is out does not count");
        ejection.readmit();
        for _ in 0..FORGIVEN_AFTER {
            ejection.answered();
        }
        ejection.miss(now, PAUSES);
        assert!(ejection.wants_trial(now + PAUSES.first), "as if it were the first");
    }
}
