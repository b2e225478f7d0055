//! The calls that one worker owes an answer to, and who waits for each.
//!
//! A call is in one of two states: awaited, or given up - its deadline passed or the caller no longer wants it - while
//! the worker may still answer it. Every call leaves by exactly one answer, or with the link. Whether an answer counts
//! is decided here, by which of the two it meets.

use std::collections::HashMap;
use std::sync::mpsc;
use std::time::Instant;

use kvasir_backbone::CallId;
use kvasir_wire::id::sha256;

use crate::records::Keeping;

/// Whose answer it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The backbone's call.
    pub(crate) call: CallId,
    /// Which part of it.
    pub(crate) part: usize,
    /// Which question for that part: several workers may be asked.
    pub(crate) turn: usize,
}

/// What comes back to a caller: the values of one part, or that there will be none.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// The backbone's call.
    pub(crate) call: CallId,
    /// Which part of it.
    pub(crate) part: usize,
    /// Which question for that part.
    pub(crate) turn: usize,
    /// The rows, of the right length and all finite.
    pub(crate) outcome: Result<Vec<f32>, Failure>,
    /// When it came.
    pub(crate) at: Instant,
}

impl Place {
    /// What comes back for it, now.
    pub(crate) fn arrival(self, outcome: Result<Vec<f32>, Failure>) -> Arrival {
        Arrival { call: self.call, part: self.part, turn: self.turn, outcome, at: Instant::now() }
    }
}

/// Why a worker's part must be computed elsewhere. A missed deadline is the caller's own doing and not among these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The link ended, or is without a connection for too long.
    LinkLost,
    /// The worker refused, or its answer cannot be right.
    Refused,
}

/// What the books need to know of a call once it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) layer: u16,
    /// 0 = each expert's rows, 1 = summed rows.
    pub(crate) mode: u8,
    pub(crate) payload: SentPayload,
    /// Rows of the call.
    pub(crate) rows: u64,
    pub(crate) at: Instant,
    /// Why it is kept; nothing where it is not.
    pub(crate) keep: Option<Keeping>,
}

/// A call's payload. The books want its SHA-256, which takes several times as long as a copy: so it is made once the call is answered,
/// by whoever takes the answer in, and the thread that asks goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SentPayload {
    /// As it went.
    Whole(Vec<u8>),
    /// Its SHA-256, and how many bytes it has.
    Digest([u8; 32], u64),
}

impl SentPayload {
    pub(crate) fn digest(&self) -> [u8; 32] {
        match self {
            SentPayload::Whole(bytes) => sha256(&[bytes]),
            SentPayload::Digest(digest, _) => *digest,
        }
    }

    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            SentPayload::Whole(bytes) => bytes.len() as u64,
            SentPayload::Digest(_, bytes) => *bytes,
        }
    }
}

impl Sent {
    /// What is kept of it once nobody waits for it. It will not be accepted, so it leaves no record; and a worker may owe any number
    /// of such answers for as long as its session lasts, so it is small.
    fn given_up(self) -> Sent {
        let payload = SentPayload::Digest(self.payload.digest(), self.payload.bytes());
        Sent { payload, keep: None, ..self }
    }
}

/// A call that somebody waits for.
#[derive(Debug)]
pub(crate) struct Awaited {
    pub(crate) place: Place,
    pub(crate) arrive: mpsc::Sender<Arrival>,
    /// Number of f32 that a right answer has.
    pub(crate) values: usize,
    pub(crate) expert_rows: usize,
    pub(crate) sent: Sent,
}

/// What an answer meets.
#[derive(Debug)]
pub(crate) enum Owed {
    /// Somebody waits for it.
    Awaited(Awaited),
    /// Nobody does any more.
    GivenUp(Sent),
}

#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    awaited: HashMap<u64, Awaited>,
    given_up: HashMap<u64, GivenUp>,
}

#[derive(Debug)]
struct GivenUp {
    sent: Sent,
    /// Because its deadline passed, not because the caller changed its mind.
    late: bool,
}

impl Outstanding {
    pub(crate) fn insert(&mut self, wire_call: u64, awaited: Awaited) {
        self.awaited.insert(wire_call, awaited);
    }

    /// Nobody waits for the call any more, because it is `late` or not wanted. False if it was answered or is unknown.
    pub(crate) fn give_up(&mut self, wire_call: u64, late: bool) -> bool {
        match self.awaited.remove(&wire_call) {
            Some(awaited) => {
                self.given_up.insert(wire_call, GivenUp { sent: awaited.sent.given_up(), late });
                true
            }
            None => false,
        }
    }

    /// Whether somebody waits for the answer to a call that has not come.
    pub(crate) fn is_awaited(&self, wire_call: u64) -> bool {
        self.awaited.contains_key(&wire_call)
    }

    /// The number of values that the answer to a call must have, if it is awaited.
    pub(crate) fn expected_values(&self, wire_call: u64) -> Option<usize> {
        self.awaited.get(&wire_call).map(|awaited| awaited.values)
    }

    /// Takes out what an answer is for; nothing for a call that was never sent or is answered already.
    pub(crate) fn answered(&mut self, wire_call: u64) -> Option<Owed> {
        if let Some(awaited) = self.awaited.remove(&wire_call) {
            return Some(Owed::Awaited(awaited));
        }
        self.given_up.remove(&wire_call).map(|given_up| Owed::GivenUp(given_up.sent))
    }

    /// The link is gone: everybody who waits is told.
    pub(crate) fn fail_all(&mut self) {
        for (_, awaited) in self.awaited.drain() {
            // Whoever asked may be gone too.
            let _ = awaited.arrive.send(awaited.place.arrival(Err(Failure::LinkLost)));
        }
        self.given_up.clear();
    }

    /// The worker is away and may come back: everybody who waits is told, and what still comes is late.
    pub(crate) fn give_all_up(&mut self) {
        for (wire_call, awaited) in self.awaited.drain() {
            let Awaited { place, arrive, sent, .. } = awaited;
            let _ = arrive.send(place.arrival(Err(Failure::LinkLost)));
            self.given_up.insert(wire_call, GivenUp { sent: sent.given_up(), late: true });
        }
    }

    /// When the oldest of the calls that are late was sent; nothing when none is.
    pub(crate) fn late_since(&self) -> Option<Instant> {
        self.given_up.values().filter(|given_up| given_up.late).map(|given_up| given_up.sent.at).min()
    }

    /// Calls that the worker still owes an answer to.
    pub(crate) fn owed(&self) -> usize {
        self.awaited.len() + self.given_up.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn awaited(arrive: &mpsc::Sender<Arrival>) -> Awaited {
        let payload = SentPayload::Whole(vec![7; 10]);
        let sent = Sent { layer: 1, mode: 0, payload, rows: 1, at: Instant::now(), keep: None };
        let place = Place { call: CallId(9), part: 2, turn: 0 };
        Awaited { place, arrive: arrive.clone(), values: 64, expert_rows: 1, sent }
    }

    #[test]
    fn every_call_is_answered_once() {
        let (arrive, _arrivals) = mpsc::channel();
        let mut calls = Outstanding::default();
        calls.insert(1, awaited(&arrive));
        assert_eq!(calls.expected_values(1), Some(64));
        assert!(matches!(calls.answered(1), Some(Owed::Awaited(_))));
        assert!(calls.answered(1).is_none());
        assert!(!calls.give_up(1, true), "an answered call cannot be given up");
    }

    #[test]
    fn an_answer_after_giving_up_is_known_but_not_awaited() {
        let (arrive, _arrivals) = mpsc::channel();
        let mut calls = Outstanding::default();
        calls.insert(3, awaited(&arrive));
        assert!(calls.give_up(3, true));
        assert!(calls.late_since().is_some());
        assert_eq!(calls.expected_values(3), None);
        let due = SentPayload::Digest(sha256(&[&[7; 10]]), 10);
        assert!(matches!(calls.answered(3), Some(Owed::GivenUp(sent)) if sent.payload == due), "and small");
        assert!(calls.late_since().is_none());
        assert!(calls.answered(4).is_none(), "never sent");
    }

    #[test]
    fn what_is_given_up_for_a_worker_that_is_away_is_late_when_it_comes_back() {
        let (arrive, arrivals) = mpsc::channel();
        let mut calls = Outstanding::default();
        calls.insert(1, awaited(&arrive));
        calls.give_all_up();
        calls.give_all_up();
        assert_eq!(arrivals.try_recv().unwrap().outcome.unwrap_err(), Failure::LinkLost);
        assert!(arrivals.try_recv().is_err(), "told once");
        assert_eq!(calls.owed(), 1);
        assert!(calls.late_since().is_some());
        assert!(matches!(calls.answered(1), Some(Owed::GivenUp(_))));
    }

    #[test]
    fn a_lost_link_tells_everybody_once() {
        let (arrive, arrivals) = mpsc::channel();
        let mut calls = Outstanding::default();
        calls.insert(1, awaited(&arrive));
        calls.insert(2, awaited(&arrive));
        calls.give_up(2, false);
        assert!(calls.late_since().is_none(), "not wanted is not late");
        calls.fail_all();
        calls.fail_all();
        assert_eq!(calls.owed(), 0);
        let arrival = arrivals.try_recv().unwrap();
        assert_eq!((arrival.call, arrival.part), (CallId(9), 2));
        assert_eq!(arrival.outcome.unwrap_err(), Failure::LinkLost);
        assert!(arrivals.try_recv().is_err());
    }
}
