//! How long to wait before another try to connect.

use std::time::Duration;

/// Full jitter over 0.25 s x 2^n, at most 15 s; starts anew after 30 s of a healthy link.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    tries: u32,
}

impl Backoff {
    /// No try has failed yet.
    pub fn new() -> Self {
        Backoff::default()
    }

    /// The wait before the next try. `random` is any evenly spread number; `asked` is what the other side asked for,
    /// which is kept to, up to ten minutes, and spread by up to a quarter.
    pub fn next_wait(&mut self, random: u64, asked: Option<Duration>) -> Duration {
        let share = |whole: Duration| whole.mul_f64(random as f64 / u64::MAX as f64);
        if let Some(asked) = asked {
            self.tries = 0;
            // A proxy on the way may ask for a day.
            let asked = asked.min(LONGEST_ASKED);
            return asked + share(asked / 4);
        }
        let ceiling = (FIRST * 2u32.saturating_pow(self.tries.min(16))).min(LONGEST);
        self.tries += 1;
        share(ceiling)
    }

    /// Tells how long a link had lasted when it ended.
    pub fn lasted(&mut self, time: Duration) {
        if time >= HEALTHY {
            self.tries = 0;
        }
    }
}

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(15);
const LONGEST_ASKED: Duration = Duration::from_secs(600);
const HEALTHY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_ceiling_and_reset_after_a_healthy_link() {
        let mut backoff = Backoff::new();
        let waits: Vec<_> = (0..10).map(|_| backoff.next_wait(u64::MAX, None)).collect();
        assert_eq!(waits[0], FIRST);
        assert_eq!(waits[1], FIRST * 2);
        assert_eq!(waits[9], LONGEST);
        backoff.lasted(Duration::from_secs(29));
        assert_eq!(backoff.next_wait(u64::MAX, None), LONGEST);
        backoff.lasted(Duration::from_secs(30));
        assert_eq!(backoff.next_wait(u64::MAX, None), FIRST);
        assert_eq!(backoff.next_wait(0, None), Duration::ZERO);
        assert_eq!(backoff.next_wait(0, Some(Duration::from_secs(4))), Duration::from_secs(4));
        assert_eq!(backoff.next_wait(0, Some(Duration::from_secs(u32::MAX.into()))), LONGEST_ASKED);
    }
}
