//! How many waves there are: enough that computing covers the wait for experts, and no more, since every wave reads the
//! layers' weights anew. No clock is read here.
//!
//! For S sequences in W waves of S / W rows, a pass computes for C and waits for its experts for R in all, both learnt as
//! lines over the rows of a pass. A wave's pass takes at least C + R, and W passes take at least W * C of the one thread
//! that computes. What of R grows with rows is their way over the link and through the worker, one after the other
//! whatever the waves: at least r * S. So all S sequences take a step in `max(W * C, C + R, r * S)`. The W with the least
//! of it is chosen, the smallest where several are as good. More waves may still cost those who are waited for more than
//! that, so a step up that made things slower is taken back and not tried again for a while. It is judged once the texts
//! are spread over the new waves: until then some of them stand in line.

use std::time::Duration;

use super::line::Line;

/// A number of waves whose step is longer than the best one's by no more than this factor is as good: fewer waves have
/// more rows in a call, which is what links and workers like. Whatever it is above 1 is given away.
const AS_GOOD: f64 = 1.02;

/// A step up that leaves less than this share of the rate before it is taken back.
const LOSES: f64 = 0.98;

/// Decisions for which a step up that lost is not tried again.
const HOLD: u32 = 64;

/// Passes measured before anything is concluded from them; until then there are two waves.
const TRUSTED_AFTER: u32 = 4;

/// Finished passes after which there is a decision whatever happened, and steps of all texts: the rate of a few steps is
/// mostly chance. Both must have been.
const PASSES_A_DECISION: u32 = 16;
const STEPS_A_DECISION: u32 = 4;

/// One finished pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    /// Rows that it began with.
    pub(super) rows: usize,
    /// Time that this machine computed for it.
    pub(super) compute: Duration,
    /// Time that it waited for its experts.
    pub(super) wait: Duration,
}

/// Decides how many waves there are.
#[derive(Debug, Default)]
pub(super) struct Policy {
    compute: Line,
    wait: Line,
    measured: u32,
    waves: usize,
    /// Sequences at the latest decision.
    sequences: usize,
    passes: u32,
    trial: Option<Trial>,
    barred: Option<Barred>,
}

/// A step up that is being tried.
#[derive(Debug)]
struct Trial {
    from: usize,
    /// Tokens a second before it.
    rate: f64,
    /// The texts are spread over the new waves.
    settled: bool,
}

/// A step up that lost.
#[derive(Debug)]
struct Barred {
    /// The most waves meanwhile.
    most: usize,
    sequences: usize,
    left: u32,
}

/// What happened since the latest decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Since {
    /// Tokens chosen.
    pub(super) tokens: u64,
    /// Rows of prompts read.
    pub(super) prompt_rows: u64,
    /// Time.
    pub(super) elapsed: Duration,
}

impl Policy {
    /// Takes in a finished pass.
    pub(super) fn measure(&mut self, pass: Measured) {
        let rows = pass.rows as f64;
        self.compute.measure(rows, pass.compute.as_secs_f64());
        self.wait.measure(rows, pass.wait.as_secs_f64());
        self.measured = self.measured.saturating_add(1);
        self.passes += 1;
    }

    /// Whether it is time for [`Policy::decide`] with so many sequences.
    pub(super) fn is_due(&self, sequences: usize) -> bool {
        let passes = u32::try_from(self.waves).unwrap_or(u32::MAX).saturating_mul(STEPS_A_DECISION);
        self.passes >= passes.max(PASSES_A_DECISION) || !alike(sequences, self.sequences)
    }

    /// The number of waves for `sequences`, at least 1 and at most `most`.
    pub(super) fn decide(&mut self, sequences: usize, most: usize, since: Since) -> usize {
        let most = most.min(sequences).max(1);
        let rate = since.tokens as f64 / since.elapsed.as_secs_f64().max(1e-9);
        // Rates are compared only where prompts had no great part in them.
        let steady = since.tokens > since.prompt_rows && alike(sequences, self.sequences);
        if steady
            && self.waves <= most
            && let Some(trial) = self.trial.as_mut().filter(|trial| !trial.settled)
        {
            trial.settled = true;
            (self.sequences, self.passes) = (sequences, 0);
            return self.waves;
        }
        if let Some(Trial { from, rate: before, .. }) = self.trial.take_if(|trial| steady && trial.settled)
            && rate < before * LOSES
        {
            self.barred = Some(Barred { most: from, sequences, left: HOLD });
        }
        if let Some(barred) = &mut self.barred {
            barred.left = barred.left.saturating_sub(1);
            if barred.left == 0 || !alike(sequences, barred.sequences) {
                self.barred = None;
            }
        }
        let allowed = self.barred.as_ref().map_or(most, |barred| most.min(barred.most));
        let wanted = if self.measured < TRUSTED_AFTER {
            allowed.min(2)
        } else {
            best(sequences, allowed, |rows| self.compute.at(rows), |rows| self.wait.at(rows))
        };
        if wanted > self.waves && self.waves > 0 && steady {
            self.trial = Some(Trial { from: self.waves, rate, settled: false });
        } else if wanted < self.waves {
            self.trial = None;
        }
        (self.waves, self.sequences, self.passes) = (wanted, sequences, 0);
        wanted
    }

    /// The number of waves of the latest decision.
    pub(super) fn waves(&self) -> usize {
        self.waves.max(1)
    }
}

/// The smallest number of waves, at most `most`, with which all `sequences` take a step in about the least time.
/// `compute` and `wait` give seconds for a pass of so many rows.
pub(crate) fn best(
    sequences: usize,
    most: usize,
    compute: impl Fn(f64) -> f64,
    wait: impl Fn(f64) -> f64,
) -> usize {
    let through = wait(sequences as f64) - wait(0.0);
    let step = |waves: usize| {
        let rows = sequences as f64 / waves as f64;
        (waves as f64 * compute(rows)).max(compute(rows) + wait(rows)).max(through)
    };
    let least = (1..=most).map(step).fold(f64::INFINITY, f64::min);
    (1..=most).find(|&waves| step(waves) <= least * AS_GOOD).unwrap_or(1)
}

/// Whether two numbers of sequences are about the same: within a quarter.
fn alike(one: usize, other: usize) -> bool {
    one.abs_diff(other) * 4 <= one.max(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEADY: Since = Since { tokens: 100, prompt_rows: 0, elapsed: Duration::from_secs(1) };

    fn line(fixed: f64, each: f64) -> impl Fn(f64) -> f64 {
        move |rows| fixed + each * rows
    }

    #[test]
    fn without_a_wait_there_is_one_wave() {
        assert_eq!(best(64, 8, line(0.010, 0.001), line(0.0, 0.0)), 1);
    }

    #[test]
    fn waves_cover_the_wait_and_no_more() {
        // Rows are all that costs, 64 ms for all of them: the others' work covers 30 ms with two waves, 50 ms with five.
        assert_eq!(best(64, 16, line(0.0, 0.001), line(0.030, 0.0)), 2);
        assert_eq!(best(64, 16, line(0.0, 0.001), line(0.050, 0.0)), 5);
        assert_eq!(best(64, 3, line(0.0, 0.001), line(0.050, 0.0)), 3);
        // A wave that costs something by itself is not made for little.
        assert_eq!(best(64, 16, line(0.010, 0.001), line(0.050, 0.0)), 2);
    }

    #[test]
    fn a_wait_that_nothing_covers_is_waited_for_together() {
        assert_eq!(best(64, 16, line(0.010, 0.0), line(1.0, 0.0)), 1);
        assert_eq!(best(1, 1, line(0.001, 0.0), line(1.0, 0.0)), 1);
    }

    #[test]
    fn a_worker_that_is_busy_all_the_time_needs_no_more_waves() {
        // 64 rows take it 128 ms, computing here and the round trip are nearly nothing: two waves keep it busy.
        assert_eq!(best(64, 16, line(0.0, 0.0001), line(0.005, 0.002)), 2);
    }

    fn pass(rows: u64, wait: u64) -> Measured {
        let compute = Duration::from_millis(rows);
        Measured { rows: rows as usize, compute, wait: Duration::from_millis(wait) }
    }

    /// A row computes for 1 ms, a pass waits for 50 ms.
    fn policy() -> Policy {
        let mut policy = Policy::default();
        for rows in [4, 8, 16, 4, 8, 16] {
            policy.measure(pass(rows, 50));
        }
        policy
    }

    #[test]
    fn there_are_two_waves_until_something_is_known() {
        let mut policy = Policy::default();
        assert!(policy.is_due(8) && policy.waves() == 1);
        assert_eq!(policy.decide(8, 8, STEADY), 2);
        assert_eq!(policy.decide(8, 1, STEADY), 1, "memory may forbid it");
        assert_eq!(policy.decide(1, 8, STEADY), 1);
        assert_eq!(policy.decide(0, 8, STEADY), 1);
    }

    #[test]
    fn decisions_are_due_after_passes_and_when_sequences_come_or_go() {
        let mut policy = policy();
        assert_eq!(policy.decide(64, 16, STEADY), 5);
        assert!(!policy.is_due(64) && !policy.is_due(60) && policy.is_due(32) && policy.is_due(100));
        let mut passes = 0;
        while !policy.is_due(64) {
            policy.measure(pass(16, 0));
            passes += 1;
        }
        assert_eq!(passes, 5 * STEPS_A_DECISION);
        assert_eq!(policy.decide(64, 16, STEADY), 2, "most of the wait has faded");
    }

    #[test]
    fn a_step_up_that_loses_is_taken_back_and_not_tried_again_for_a_while() {
        let mut policy = policy();
        policy.waves = 2;
        policy.sequences = 64;
        assert_eq!(policy.decide(64, 16, STEADY), 5);
        let slower = Since { tokens: 90, ..STEADY };
        assert_eq!(policy.decide(64, 16, slower), 5, "some texts may have stood in line");
        assert_eq!(policy.decide(64, 16, slower), 2);
        assert_eq!(policy.decide(64, 16, STEADY), 2);
        // Other circumstances: a new try.
        assert!(policy.decide(16, 16, STEADY) > 2);
    }

    #[test]
    fn while_texts_are_spread_over_new_waves_memory_may_still_forbid_them() {
        let mut policy = policy();
        policy.waves = 2;
        policy.sequences = 64;
        assert_eq!(policy.decide(64, 16, STEADY), 5);
        assert_eq!(policy.decide(64, 3, Since { tokens: 1, ..STEADY }), 3);
        assert!(policy.barred.is_none() && policy.trial.is_none(), "it was not judged");
    }

    #[test]
    fn a_step_up_that_wins_stays_and_prompts_judge_nothing() {
        let mut policy = policy();
        policy.waves = 2;
        policy.sequences = 64;
        assert_eq!(policy.decide(64, 16, STEADY), 5);
        let reading = Since { tokens: 10, prompt_rows: 500, ..STEADY };
        assert_eq!(policy.decide(64, 16, reading), 5);
        let faster = Since { tokens: 150, ..STEADY };
        assert_eq!([(); 2].map(|()| policy.decide(64, 16, faster)), [5, 5]);
        assert!(policy.barred.is_none() && policy.trial.is_none());
    }
}
