//! How long a call would have waited with no other one out, from how long it waited.
//!
//! Workers and links serve one call after the other. Who asks while others wait stands behind them, for the longer the more
//! waves there are: that says nothing about how long a pass takes by itself. A call is taken to have stood behind the answer
//! before its own until that came, less the way there and back, which calls share.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// Whoever waited for less has waited for nobody: its experts are here.
const NOBODY: Duration = Duration::from_micros(100);

/// Once so many calls in turn have waited for at least half of a layer's shortest wait, one that waited for less is believed
/// only when the next one says so too. Before that, what a layer's first calls waited for was mostly computing.
const STANDS: u32 = 16;

/// What answers have told so far.
#[derive(Debug)]
pub(super) struct Answers {
    /// By layer.
    ways: Vec<Way>,
    /// When the latest one came.
    latest: Option<Instant>,
}

/// How far away a layer's experts are.
#[derive(Debug, Clone, Copy, Default)]
struct Way {
    /// The shortest wait, which is the way there and back and next to no computing.
    shortest: Option<Duration>,
    /// Calls since then that waited for at least half of it.
    stands: u32,
    /// When a call came that waited for less. A link that is cut ends the waits of all calls that are on their way, and says
    /// nothing about the next one: only a call that was asked afterwards may confirm it.
    doubted: Option<Instant>,
}

/// A call that was answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answered {
    pub(super) layer: usize,
    pub(super) asked: Instant,
    pub(super) wait: Duration,
    /// No other was out when it went.
    pub(super) first: bool,
}

/// What of a wait, or of several, would have been there in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Alone {
    pub(super) wait: Duration,
    /// Of it, what keeps nobody busy.
    pub(super) latency: Duration,
}

impl AddAssign for Alone {
    fn add_assign(&mut self, other: Alone) {
        self.wait += other.wait;
        self.latency += other.latency;
    }
}

impl Answers {
    pub(super) fn new(layers: usize) -> Answers {
        Answers { ways: vec![Way::default(); layers], latest: None }
    }

    /// Takes in an answer. Answers come in the order in which they are taken in, or nearly.
    pub(super) fn take_in(&mut self, call: Answered) -> Alone {
        let Answered { layer, asked, wait, .. } = call;
        let Some(way) = self.ways.get_mut(layer).filter(|_| wait >= NOBODY) else {
            return Alone { wait, latency: Duration::ZERO };
        };
        let latency = way.take_in(call);
        let came = asked + wait;
        let before = self.latest.map_or(asked, |latest| latest.min(came));
        self.latest = self.latest.max(Some(came));
        let behind = before.saturating_duration_since(asked + latency);
        Alone { wait: wait.saturating_sub(behind), latency }
    }
}

impl Way {
    /// Takes in a call's wait; gives what of it keeps nobody busy.
    fn take_in(&mut self, call: Answered) -> Duration {
        let Answered { asked, wait, first, .. } = call;
        if self.shortest.is_some_and(|shortest| wait < shortest / 2) {
            let is_confirmed = self.doubted.is_some_and(|came| came <= asked);
            if self.stands < STANDS || is_confirmed {
                *self = Way { shortest: Some(wait), ..Way::default() };
            } else {
                self.doubted = self.doubted.or(Some(asked + wait));
            }
            return wait;
        }
        self.stands = self.stands.saturating_add(1);
        // It went the usual way after the one that was in doubt.
        self.doubted = self.doubted.filter(|came| asked < *came);
        // A way may have become longer. Only a call that stands behind nobody can tell.
        let latency = self.shortest.filter(|shortest| !first && *shortest < wait).unwrap_or(wait);
        self.shortest = Some(latency);
        latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Answers to calls of one layer: when each went out, how long it waited, whether others were out.
    fn told(calls: &[(u64, u64, bool)]) -> Vec<(u64, u64)> {
        let (begun, mut answers) = (Instant::now(), Answers::new(1));
        let take_in = |&(asked, wait, first): &(u64, u64, bool)| {
            let call = Answered { layer: 0, asked: begun + ms(asked), wait: ms(wait), first };
            let alone = answers.take_in(call);
            (alone.wait.as_millis() as u64, alone.latency.as_millis() as u64)
        };
        calls.iter().map(take_in).collect()
    }

    #[test]
    fn what_a_call_waits_behind_others_is_not_its_own() {
        // 20 ms there and back. A worker computes for 5 ms and then for 4 for two calls that are there at once, later for 10.
        let told = told(&[(0, 20, true), (100, 25, false), (101, 28, false), (300, 30, false)]);
        assert_eq!(told, [(20, 20), (25, 20), (24, 20), (30, 20)]);
    }

    #[test]
    fn a_way_that_becomes_longer_is_learnt_from_calls_that_stand_behind_nobody() {
        let told = told(&[(0, 10, true), (50, 30, false), (100, 30, true), (200, 12, false)]);
        assert_eq!(told, [(10, 10), (30, 10), (30, 30), (12, 12)]);
    }

    /// What is told of calls after so many that waited for 13 ms each, one after the other.
    fn told_later(calls: &[(u64, u64, bool)]) -> Vec<(u64, u64)> {
        let usual = (0..u64::from(STANDS)).map(|call| (20 * call, 13, true));
        let all: Vec<(u64, u64, bool)> = usual.chain(calls.iter().copied()).collect();
        told(&all).split_off(STANDS as usize)
    }

    #[test]
    fn waits_that_a_cut_ended_are_no_short_way() {
        // Three on their way when the link is cut at 503, the first of which stood behind nobody.
        let cut = [(500, 3, true), (501, 2, false), (502, 1, false), (520, 14, false)];
        assert_eq!(told_later(&cut), [(3, 3), (2, 2), (1, 1), (14, 13)]);
        // Another cut much later is no second opinion.
        let again = [(500, 3, false), (520, 13, false), (900, 4, false), (920, 14, false)];
        assert_eq!(told_later(&again), [(3, 3), (13, 13), (4, 4), (14, 13)]);
    }

    #[test]
    fn a_way_that_becomes_shorter_is_believed_the_second_time_and_a_young_one_at_once() {
        assert_eq!(
            told_later(&[(500, 3, false), (520, 4, false), (540, 14, false)]),
            [(3, 3), (4, 4), (14, 4)]
        );
        assert_eq!(told(&[(0, 40, true), (50, 5, false), (100, 14, false)]), [(40, 40), (5, 5), (14, 5)]);
    }

    #[test]
    fn experts_that_are_here_are_no_short_way() {
        assert_eq!(told(&[(0, 13, true), (20, 0, true), (40, 14, false)]), [(13, 13), (0, 0), (14, 13)]);
        let unknown = Answered { layer: 7, asked: Instant::now(), wait: ms(3), first: true };
        assert_eq!(Answers::new(1).take_in(unknown), Alone { wait: ms(3), latency: Duration::ZERO });
    }
}
