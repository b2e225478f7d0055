//! Who is asked for a part of a call: the worker that it was dealt to, and where that one fails or is late, another that
//! holds the same experts.

use std::ops::Range;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kvasir_backbone::CallId;

use crate::open::{Asked, Open, PartState};
use crate::outstanding::{Arrival, Place};
use crate::swarm::Shared;

/// So long a call takes to leave this machine where others on it pass it on: each of them wakes more quickly on a core that is awake.
const LEAVING: Duration = Duration::from_micros(200);

/// Asks workers for parts.
pub(crate) struct Asker<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) arrive: &'a mpsc::Sender<Arrival>,
}

impl Asker<'_> {
    /// Asks the first worker that holds a part's experts, may be asked now and was not asked for it yet. False where there
    /// is none.
    pub(crate) fn ask_next(&self, open: &mut Open, id: CallId, index: usize) -> bool {
        let Open { call, probe, parts, .. } = open;
        let Some(PartState::Waiting(waiting)) = parts.get_mut(index) else { return false };
        let layer = call.layer.0;
        for session in self.shared.holders(layer, &waiting.part) {
            if waiting.sessions.contains(&session.id) {
                continue;
            }
            let turn = waiting.sessions.len();
            let place = Place { call: id, part: index, turn };
            let keep = self.shared.options.keep.of(*probe);
            let began = Instant::now();
            let asked = session.ask(call, &waiting.part, self.shared.hidden, place, self.arrive, keep);
            let Some(wire_call) = asked else { continue };
            if *probe {
                self.shared.count(|statistics| statistics.records.probe_calls += 1);
            }
            let expert_rows = waiting.part.expert_rows();
            let allowance = session.allowance(expert_rows, self.shared.deadlines);
            let likely = session.likely(expert_rows);
            let leaving = likely.as_ref().map(|likely| Instant::now() + leaving(likely));
            let likely = likely.map(|likely| began + likely.start..began + likely.end);
            waiting.sessions.push(session.id);
            let deadline = Instant::now() + allowance;
            waiting.asked.push(Asked { session, wire_call, turn, deadline, likely, leaving, missed: false });
            return true;
        }
        false
    }

    /// Asks another worker for a part that nobody answers in time. Where there is none, those who are late are not waited for
    /// any more either, and this machine computes the part.
    pub(crate) fn ask_another(&self, open: &mut Open, id: CallId, index: usize) {
        if self.ask_next(open, id, index) {
            self.shared.count(|statistics| statistics.hedges += 1);
            return;
        }
        let Some(PartState::Waiting(waiting)) = open.parts.get_mut(index) else { return };
        // Somebody who was asked later may be in time.
        if waiting.is_answered_in_time() || !waiting.give_up() {
            return;
        }
        if open.take_home(index) {
            self.shared.count(|statistics| statistics.failovers += 1);
        }
    }

    /// Where a deadline has passed: whoever missed it is left alone for a while, and another is asked beside it.
    pub(crate) fn look_for_overdue(&self, open: &mut Open, id: CallId, index: usize, now: Instant) {
        let Some(PartState::Waiting(waiting)) = open.parts.get_mut(index) else { return };
        let mut missed = false;
        for asked in waiting.asked.iter_mut().filter(|asked| !asked.missed && asked.deadline <= now) {
            // If the answer came in this very moment, it is already in the channel.
            if !asked.session.is_awaited(asked.wire_call) {
                continue;
            }
            asked.missed = true;
            missed = true;
            let is_away = asked.session.is_away();
            if !is_away {
                asked.session.miss(now, self.shared.options.pauses);
            }
            self.shared.count(|statistics| {
                if is_away {
                    statistics.links_lost += 1;
                } else {
                    statistics.deadlines_missed += 1;
                }
            });
        }
        if missed {
            self.ask_another(open, id, index);
        }
    }
}

/// How long whoever has sent a call stays awake that is `likely` to be answered then; not at all where that is soon, or it would
/// hardly sleep.
fn leaving(likely: &Range<Duration>) -> Duration {
    if likely.start >= 8 * LEAVING { LEAVING } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_sent_a_call_stays_awake_for_a_small_part_of_a_long_wait_alone() {
        for micros in [0, 200, 1_500, 1_600, 13_000, 100_000] {
            let start = Duration::from_micros(micros);
            let awake = leaving(&(start..2 * start));
            assert!(awake <= start / 8, "{micros}");
            assert_eq!(awake.is_zero(), micros < 1_600, "{micros}");
        }
    }
}
