//! The numbers of the sessions that an end has had.
//!
//! The hub alone names a session, and all that an end signs in it is signed under that name. One that takes part in two sessions of one
//! name signs two receipts of one number, and whoever holds both can convict it. So it takes part in each once. A session that goes on
//! over another connection is the same one, and asks for nothing here.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvasir_wire::id::SessionId;
use kvasir_wire::refusal::{Refusal, RefusalCode};

/// Most numbers that a process remembers, some 100 bytes each: at a session a minute those of six weeks. Beyond it the oldest are
/// forgotten, as all of them are when the process ends; what has to last longer is on a disk.
pub const MAX_SESSION_NUMBERS: usize = 64 * 1024;

/// The numbers of the latest sessions, [`MAX_SESSION_NUMBERS`] at most.
#[derive(Debug, Default)]
pub struct SessionNumbers(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    known: HashSet<SessionId>,
    /// The same, the oldest first.
    order: VecDeque<SessionId>,
}

impl SessionNumbers {
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a session of this number has begun here.
    pub fn has(&self, session: SessionId) -> bool {
        self.numbers().known.contains(&session)
    }

    /// A session of this number begins; false where one has begun before.
    pub fn begin(&self, session: SessionId) -> bool {
        let mut numbers = self.numbers();
        if !numbers.known.insert(session) {
            return false;
        }
        numbers.order.push_back(session);
        if numbers.order.len() > MAX_SESSION_NUMBERS
            && let Some(oldest) = numbers.order.pop_front()
        {
            numbers.known.remove(&oldest);
        }
        true
    }

    /// What whoever gave a number for the second time is told.
    pub fn refusal(session: SessionId) -> Refusal {
        let sentence =
            "a session of this number was here before: two receipts of one number convict whoever signs them";
        let remedy = "have the hub draw a session's number at random, and connect again";
        Refusal::new(RefusalCode::TranscriptMismatch, sentence, remedy).about(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: usize) -> SessionId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
        SessionId(bytes)
    }

    #[test]
    fn a_number_begins_once() {
        let numbers = SessionNumbers::default();
        assert!(!numbers.has(session(1)));
        assert!(numbers.begin(session(1)) && numbers.begin(session(2)));
        assert!(numbers.has(session(1)));
        assert!(!numbers.begin(session(1)));
    }

    #[test]
    fn beyond_the_limit_the_oldest_are_forgotten() {
        let numbers = SessionNumbers::default();
        (0..=MAX_SESSION_NUMBERS).for_each(|number| assert!(numbers.begin(session(number))));
        assert!(!numbers.has(session(0)));
        assert!(numbers.has(session(1)) && numbers.has(session(MAX_SESSION_NUMBERS)));
        let held = numbers.numbers();
        assert_eq!((held.known.len(), held.order.len()), (MAX_SESSION_NUMBERS, MAX_SESSION_NUMBERS));
    }
}
