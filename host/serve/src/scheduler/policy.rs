//! How many waves there are: enough that computing covers the wait for experts, and no more, since every wave reads the
//! layers' weights anew. No clock is read here.
//!
//! For S sequences in W waves of S / W rows, a pass computes here for C, and would wait for its experts for R if there were no
//! other pass. Of R the latency L keeps nobody busy: it is the way there and back. C and R are learnt as lines over the rows
//! of a pass. A wave's pass takes at least C + R; W passes take at least W * C of the one thread that computes, and
//! W * (R - L) of the workers and links. So all S sequences take a step in `max(W * C, W * (R - L), C + R)`. The W with the
//! least of it is chosen, the smallest where several are as good, and the one that there is where it is as good.
//!
//! What passes wait behind each other is left out of R ([`super::answers`]): it follows from W, and whoever takes it for the
//! workers' own believes that no W is better than the one that there is.

use std::time::Duration;

use super::answers::Alone;
use super::line::Line;

/// A number of waves whose step is longer than the best one's by no more than this factor is as good: fewer waves have
/// more rows in a call, which is what links and workers like. Whatever it is above 1 is given away.
const AS_GOOD: f64 = 1.02;

/// Waves until a pass was measured. More would keep workers busy from the start where they are slow, so that it takes long
/// until a call stands behind nobody and shows how far away they are.
const FIRST: usize = 2;

/// The weight of the latest pass in the mean latency. Passes need not all wait for the same layers.
const LATEST: f64 = 0.25;

/// One finished pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    /// Rows that it began with.
    pub(super) rows: usize,
    /// Time that this machine computed for it.
    pub(super) compute: Duration,
    /// Time that it would have waited for its experts without other passes.
    pub(super) alone: Alone,
}

/// Decides how many waves there are.
#[derive(Debug, Default)]
pub(super) struct Policy {
    compute: Line,
    wait: Line,
    /// Mean, in seconds; nothing until a pass was measured.
    latency: Option<f64>,
    waves: usize,
}

impl Policy {
    /// Takes in a finished pass.
    pub(super) fn measure(&mut self, pass: Measured) {
        let (rows, latency) = (pass.rows as f64, pass.alone.latency.as_secs_f64());
        self.compute.measure(rows, pass.compute.as_secs_f64());
        self.wait.measure(rows, pass.alone.wait.as_secs_f64());
        self.latency = Some(self.latency.map_or(latency, |mean| mean + LATEST * (latency - mean)));
    }

    /// The number of waves for `sequences`, at least 1 and at most `most`.
    pub(super) fn decide(&mut self, sequences: usize, most: usize) -> usize {
        let most = most.min(sequences).max(1);
        self.waves = match self.latency {
            None => most.min(FIRST),
            Some(latency) => {
                // The shortest wait that was seen has some computing in it.
                let latency = latency.min(self.wait.at(0.0));
                let step = |waves: usize| {
                    let rows = sequences as f64 / waves as f64;
                    let (compute, wait) = (self.compute.at(rows), self.wait.at(rows));
                    (waves as f64 * compute.max(wait - latency)).max(compute + wait)
                };
                let good = as_good(most, step);
                if good.contains(&self.waves) { self.waves } else { good.first().copied().unwrap_or(1) }
            }
        };
        self.waves
    }

    /// The number of waves of the latest decision.
    pub(super) fn waves(&self) -> usize {
        self.waves.max(1)
    }
}

/// The numbers of waves, at most `most` and ascending, with which all sequences take a step in about the least time. `step`
/// says in how many seconds they do.
pub(crate) fn as_good(most: usize, step: impl Fn(usize) -> f64) -> Vec<usize> {
    let least = (1..=most).map(&step).fold(f64::INFINITY, f64::min);
    (1..=most).filter(|&waves| step(waves) <= least * AS_GOOD).collect()
}

#[cfg(test)]
mod simulated;

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds: those of a pass and of a row that this machine computes, the same of the workers, and the latency.
    fn policy(compute: (f64, f64), workers: (f64, f64), latency: f64) -> Policy {
        let mut policy = Policy::default();
        for rows in [4, 16, 8] {
            let seconds = |(fixed, each): (f64, f64)| Duration::from_secs_f64(fixed + each * rows as f64);
            let latency = Duration::from_secs_f64(latency);
            let alone = Alone { wait: latency + seconds(workers), latency };
            policy.measure(Measured { rows, compute: seconds(compute), alone });
        }
        policy
    }

    #[test]
    fn without_a_wait_there_is_one_wave() {
        assert_eq!(policy((0.010, 0.001), (0.0, 0.0), 0.0).decide(64, 8), 1);
    }

    #[test]
    fn waves_cover_the_wait_and_no_more() {
        // Rows are all that costs, 64 ms for all of them: the others' work covers 30 ms with two waves, 50 ms with five.
        let rows = (0.0, 0.001);
        assert_eq!(policy(rows, (0.0, 0.0), 0.030).decide(64, 16), 2);
        assert_eq!(policy(rows, (0.0, 0.0), 0.050).decide(64, 16), 5);
        assert_eq!(policy(rows, (0.0, 0.0), 0.050).decide(64, 3), 3);
        // A wave that costs something by itself is not made for little.
        assert_eq!(policy((0.010, 0.001), (0.0, 0.0), 0.050).decide(64, 16), 2);
    }

    #[test]
    fn a_wait_that_nothing_covers_is_waited_for_together() {
        assert_eq!(policy((0.010, 0.0), (0.0, 0.0), 1.0).decide(64, 16), 1);
        assert_eq!(policy((0.001, 0.0), (0.0, 0.0), 1.0).decide(1, 1), 1);
    }

    #[test]
    fn workers_that_are_busy_all_the_time_need_no_more_waves() {
        // 64 rows take them 128 ms, computing here and the way nearly nothing: two waves keep them busy. Where each call
        // costs them as much again, even the second one is too much.
        assert_eq!(policy((0.0, 0.0001), (0.0, 0.002), 0.005).decide(64, 16), 2);
        assert_eq!(policy((0.0, 0.0001), (0.128, 0.002), 0.005).decide(64, 16), 1);
    }

    #[test]
    fn there_are_two_waves_until_a_pass_was_measured() {
        let mut policy = Policy::default();
        assert_eq!(policy.waves(), 1);
        assert_eq!([8, 1, 0].map(|sequences| policy.decide(sequences, 8)), [2, 1, 1]);
        assert_eq!(policy.decide(8, 1), 1, "memory may forbid it");
        policy.measure(Measured { rows: 8, compute: Duration::from_millis(2), alone: Alone::default() });
        assert_eq!(policy.decide(8, 8), 1, "nothing was there to wait for");
    }

    #[test]
    fn a_number_that_is_as_good_stays_and_memory_may_forbid_it() {
        let mut policy = policy((0.0, 0.001), (0.0, 0.0), 0.050);
        policy.waves = 8;
        assert_eq!([policy.decide(64, 16), policy.decide(64, 7), policy.decide(64, 4)], [8, 5, 4]);
        // One that was good for few texts is not for many.
        policy.waves = 1;
        assert_eq!(policy.decide(64, 16), 5);
    }
}
