//! A watch on the ledger's clock: one that was set ahead would post pending credit before its time and keep settlements out until
//! the real time has caught up. Nothing of that could be taken back, since nothing in a ledger is.
//!
//! The clock is compared with one that nobody sets, and that also counts while the machine sleeps. At the start there is nothing
//! to compare with but the latest entry, and a ledger may have been idle for long.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvasir_wire::limits::CLOCK_SKEW_SECONDS;
use thiserror::Error;

/// How long before a start the latest entry may be: 30 days.
pub const MAX_IDLE_SECONDS: u64 = 30 * 24 * 3600;

/// Reads a time that only ever grows, from some beginning on; tests hand in their own.
pub type SteadyClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The system's: since it was booted where that can be read, so that a machine that slept is no machine whose clock was set.
pub fn steady_clock() -> SteadyClock {
    let begun = Instant::now();
    if since_boot().is_none() {
        return Arc::new(move || begun.elapsed());
    }
    let latest = Mutex::new(Duration::ZERO);
    Arc::new(move || {
        let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
        // A read that fails stands still: zero would make all that passed since the boot look like time that has just passed.
        *latest = since_boot().map_or(*latest, |now| now.max(*latest));
        *latest
    })
}

fn since_boot() -> Option<Duration> {
    let uptime =
        if cfg!(target_os = "linux") { std::fs::read_to_string("/proc/uptime").ok()? } else { return None };
    Duration::try_from_secs_f64(uptime.split_whitespace().next()?.parse().ok()?).ok()
}

/// The ledger's clock cannot be believed until somebody has looked. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClockAhead {
    /// It was set ahead while the ledger ran.
    #[error(
        "the ledger's clock was set ahead: it says {clock}, by the time that has passed it is {expected} (Unix seconds)"
    )]
    Jumped {
        /// What it says.
        clock: u64,
        /// What it should say.
        expected: u64,
    },
    /// The ledger was started very long after its latest entry, or with a wrong clock.
    #[error(
        "the ledger's clock says {clock}, its latest entry is of {latest} (Unix seconds), more than {} days before",
        MAX_IDLE_SECONDS / 86_400
    )]
    LongAfter {
        /// What it says.
        clock: u64,
        /// Time of the latest entry.
        latest: u64,
    },
}

/// The watch.
pub struct ClockWatch {
    steady: SteadyClock,
    /// The operator has looked at the clock before the start.
    is_trusted: bool,
    /// The highest time that was believed, and when that was by the steady clock.
    believed: Option<(u64, Duration)>,
}

impl ClockWatch {
    /// A watch that has believed nothing yet. `is_trusted`: the first time is believed however late it is.
    pub fn new(steady: SteadyClock, is_trusted: bool) -> Self {
        Self { steady, is_trusted, believed: None }
    }

    /// Whether a time was believed; from then on the latest entry does not matter.
    pub fn has_begun(&self) -> bool {
        self.believed.is_some()
    }

    /// Whether `clock` may be believed; `latest` is the time of the latest entry, 0 where there is none. Both in Unix seconds.
    ///
    /// # Errors
    /// Until the clock is back in line with the time that has passed.
    pub fn check(&mut self, clock: u64, latest: u64) -> Result<(), ClockAhead> {
        let now = (self.steady)();
        match self.believed {
            Some((highest, since)) => {
                let expected = highest.saturating_add(now.saturating_sub(since).as_secs());
                if clock > expected.saturating_add(CLOCK_SKEW_SECONDS) {
                    return Err(ClockAhead::Jumped { clock, expected });
                }
                // One that is behind keeps its mark: to be set right is no jump.
                if clock >= expected {
                    self.believed = Some((clock, now));
                }
            }
            // Before the latest entry it is wrong already: what it is set to then is seen like a start.
            None if clock < latest => {}
            None => {
                if latest > 0 && clock - latest > MAX_IDLE_SECONDS && !self.is_trusted {
                    return Err(ClockAhead::LongAfter { clock, latest });
                }
                self.believed = Some((clock, now));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const START: u64 = 1_790_000_000;
    const DAY: u64 = 24 * 3600;

    fn watch(is_trusted: bool) -> (ClockWatch, Arc<AtomicU64>) {
        let passed = Arc::new(AtomicU64::new(1_000));
        let steady = passed.clone();
        (
            ClockWatch::new(Arc::new(move || Duration::from_secs(steady.load(Ordering::SeqCst))), is_trusted),
            passed,
        )
    }

    #[test]
    fn a_jump_is_seen_until_the_clock_is_back_and_small_steps_are_none() {
        let (mut watch, passed) = watch(false);
        watch.check(START, START - 7 * DAY).unwrap();
        passed.fetch_add(10, Ordering::SeqCst);
        // A step of two minutes is what clocks may differ by; the next is measured from there.
        watch.check(START + 130, START).unwrap();
        watch.check(START + 250, START).unwrap();
        let jumped = watch.check(START + 371, START);
        assert_eq!(jumped, Err(ClockAhead::Jumped { clock: START + 371, expected: START + 250 }));
        watch.check(START + DAY, START).unwrap_err();
        // Time that passes heals nothing, a clock that is set right does.
        passed.fetch_add(3_600, Ordering::SeqCst);
        watch.check(START + DAY + 3_600, START).unwrap_err();
        watch.check(START + 3_850, START).unwrap();
        // However long nobody asked: what has passed has passed.
        passed.fetch_add(100 * DAY, Ordering::SeqCst);
        watch.check(START + 3_850 + 100 * DAY, START).unwrap();
    }

    #[test]
    fn a_clock_that_was_set_back_may_be_set_right_again() {
        let (mut watch, passed) = watch(false);
        watch.check(START, 0).unwrap();
        passed.fetch_add(60, Ordering::SeqCst);
        watch.check(START - 3_600, START).unwrap();
        passed.fetch_add(60, Ordering::SeqCst);
        watch.check(START + 120, START).unwrap();
        watch.check(START + 3_600, START).unwrap_err();
    }

    #[test]
    fn a_start_is_believed_unless_it_is_very_late() {
        let (mut late, _) = watch(false);
        let clock = START + MAX_IDLE_SECONDS + 1;
        assert_eq!(late.check(clock, START), Err(ClockAhead::LongAfter { clock, latest: START }));
        late.check(START + MAX_IDLE_SECONDS, START).unwrap();
        watch(true).0.check(clock, START).unwrap();
        // An empty ledger has nothing to be late for.
        watch(false).0.check(clock, 0).unwrap();
        // A machine that finds the time only after the ledger was started.
        let (mut early, _) = watch(false);
        early.check(5, START).unwrap();
        early.check(START + DAY, START).unwrap();
        early.check(START + 2 * DAY, START).unwrap_err();
    }

    #[test]
    fn the_system_s_steady_clock_goes_on() {
        let clock = steady_clock();
        let before = clock();
        assert!(clock() >= before);
    }
}
