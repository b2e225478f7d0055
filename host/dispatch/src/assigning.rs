//! What a session's worker is asked to hold: what counts as asked for, and how it goes over the link.

use kvasir_wire::limits::MAX_EXPERTS_PER_MESSAGE;
use kvasir_wire::message::{Assign, Assigned};

use crate::placement::ExpertAddress;
use crate::session::State;

impl State {
    /// Notes what the worker is asked to hold; false where the session is over.
    pub(crate) fn begin_assignment(&mut self, experts: &[Assigned]) -> bool {
        if self.ended.is_some() {
            return false;
        }
        self.assigned.extend(experts.iter().map(address));
        true
    }

    /// The worker was not asked for these after all.
    pub(crate) fn take_back(&mut self, experts: &[Assigned]) {
        for assigned in experts {
            self.assigned.remove(&address(assigned));
        }
    }

    /// What the worker was asked to hold and did not refuse.
    pub(crate) fn asked_for(&self) -> Vec<ExpertAddress> {
        self.assigned.iter().filter(|address| !self.not_held.contains_key(*address)).copied().collect()
    }

    /// Whether the worker may be asked for what others held, given whether this side's connection is there: it stays, and it is here. One
    /// that is away may never come back.
    pub(crate) fn takes_over(&self, is_whole: bool) -> bool {
        is_whole && !self.worker_away && !self.draining && self.ended.is_none()
    }
}

fn address(assigned: &Assigned) -> ExpertAddress {
    (assigned.name.layer, assigned.name.expert)
}

/// Sends an assignment; where a message is not taken, gives the experts that were not asked for. A message's experts ascend: copies
/// stand behind the worker's own, so that those are sent first, and begin a message.
pub(crate) fn in_messages<E>(
    experts: &[Assigned],
    mut send: impl FnMut(Assign) -> Result<(), E>,
) -> Result<(), (&[Assigned], E)> {
    let ascending = experts.chunk_by(|one, next| one.name < next.name);
    let mut sent = 0;
    for message in ascending.flat_map(|run| run.chunks(MAX_EXPERTS_PER_MESSAGE)) {
        send(Assign { experts: message.to_vec() }).map_err(|error| (&experts[sent..], error))?;
        sent += message.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use kvasir_wire::id::ExpertDigest;
    use kvasir_wire::message::{ExpertName, NotHeldReason};

    use super::*;

    fn assigned(layer: u16, expert: u16) -> Assigned {
        Assigned { name: ExpertName { layer, expert }, digest: ExpertDigest([7; 32]), blob_bytes: 1 }
    }

    fn state(change: impl FnOnce(&mut State)) -> State {
        let mut state = State::default();
        change(&mut state);
        state
    }

    #[test]
    fn an_assignment_goes_in_messages_that_ascend_and_are_bounded() {
        // One more than a message holds, and copies behind them.
        let own =
            (0..MAX_EXPERTS_PER_MESSAGE + 1).map(|at| assigned(1 + (at / 1000) as u16, (at % 1000) as u16));
        let experts: Vec<Assigned> = own.chain([assigned(0, 0), assigned(0, 1)]).collect();
        let mut sent = Vec::new();
        let all = in_messages(&experts, |assign| {
            sent.push(assign.experts);
            Ok::<(), ()>(())
        });
        assert_eq!(all, Ok(()));
        let lengths: Vec<usize> = sent.iter().map(Vec::len).collect();
        assert_eq!(lengths, [MAX_EXPERTS_PER_MESSAGE, 1, 2]);
        assert_eq!(sent.concat(), experts);
    }

    #[test]
    fn what_the_link_did_not_take_is_not_assigned() {
        let experts = [assigned(1, 0), assigned(1, 1), assigned(0, 4), assigned(0, 5), assigned(0, 2)];
        let mut asked = state(|_| {});
        assert!(asked.begin_assignment(&experts));
        assert_eq!(asked.assigned.len(), 5);
        let mut room = 1;
        let (left, ()) = in_messages(&experts, |_| {
            room -= 1;
            if room < 0 { Err(()) } else { Ok(()) }
        })
        .unwrap_err();
        assert_eq!(left, &experts[2..], "the first message was taken");
        asked.take_back(left);
        assert_eq!(asked.assigned, HashSet::from([(1, 0), (1, 1)]));
        // Nothing is kept of a session that is over: it would be for as long as the program runs.
        let mut over = state(|state| state.ended = Some("left".to_owned()));
        assert!(!over.begin_assignment(&experts));
        assert!(over.assigned.is_empty());
    }

    #[test]
    fn what_was_asked_for_is_without_what_was_refused_and_who_is_not_here_takes_nothing_over() {
        let here = state(|state| {
            state.assigned = HashSet::from([(0, 1), (0, 2)]);
            state.not_held.insert((0, 2), NotHeldReason::NoMemory);
        });
        assert_eq!(here.asked_for(), [(0, 1)]);
        assert!(here.takes_over(true));
        assert!(!here.takes_over(false), "this side's connection is gone");
        let away = state(|state| state.worker_away = true);
        let leaving = state(|state| state.draining = true);
        let over = state(|state| state.ended = Some("left".to_owned()));
        for state in [away, leaving, over] {
            assert!(!state.takes_over(true));
        }
    }
}
