//! How often a worker's key may connect. Each time costs the hub a handshake, a line in the log and, where the key is in a session, its
//! backbone a pause; a ticket that is good does not make that free.
//!
//! Backbones are not counted: one dials a data link for every worker that it is offered.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use kvasir_wire::{
    handshake::Admission,
    key::PublicKey,
    refusal::{Refusal, RefusalCode},
    ticket::Role,
};

use crate::accept::TokenBucket;

/// Connections that may come at once, for each session that the key's ticket allows: a link that is cut again and again, and some
/// that fail while they come back.
const AT_ONCE: NonZeroU32 = NonZeroU32::MIN.saturating_add(31);
/// Connections a second, for long, likewise.
const PER_SECOND: NonZeroU32 = NonZeroU32::MIN;
/// After so long without a connection a key has all of its connections again, whatever its ticket allows.
const REFILL: Duration = Duration::from_secs(AT_ONCE.get() as u64 / PER_SECOND.get() as u64);
/// Keys that are remembered before those are looked for that need not be any more.
const KEYS: usize = 4_096;
/// When whoever comes too often should come back, in seconds.
const RETRY_SECONDS: u32 = 10;

/// What the keys have left.
#[derive(Debug)]
pub(super) struct Attempts {
    started: Instant,
    keys: Mutex<Keys>,
}

#[derive(Debug)]
struct Keys {
    known: HashMap<PublicKey, Known>,
    /// With so many it is looked which need not be known any more.
    look_at: usize,
}

#[derive(Debug)]
struct Known {
    sessions: NonZeroU32,
    left: TokenBucket,
    /// The time of the latest connection since the start.
    latest: Duration,
    /// Whether that was one too many.
    is_over: bool,
}

/// One connection too many.
#[derive(Debug)]
pub(super) struct TooOften {
    /// What its holder is told.
    pub(super) refusal: Refusal,
    /// Whether the one before was let in: then there is something to say.
    pub(super) is_first: bool,
}

impl Attempts {
    /// All keys have all of their connections.
    pub(super) fn new() -> Self {
        let keys = Keys { known: HashMap::new(), look_at: KEYS };
        Attempts { started: Instant::now(), keys: Mutex::new(keys) }
    }

    /// Counts a connection whose holder has proved its key.
    pub(super) fn count(&self, admission: &Admission) -> Result<(), TooOften> {
        let claims = admission.ticket.claims();
        match claims.role {
            Role::Worker => {
                // As with the hub's other tables: no statement leaves it half changed.
                let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
                keys.count(admission.holder, claims.limits.sessions, self.started.elapsed())
            }
            Role::Backbone => Ok(()),
        }
    }
}

impl Keys {
    fn count(&mut self, key: PublicKey, sessions: u16, now: Duration) -> Result<(), TooOften> {
        if self.known.len() >= self.look_at {
            self.known.retain(|_, known| now.saturating_sub(known.latest) < REFILL);
            // Not again at once where they are all needed.
            self.look_at = KEYS.max(2 * self.known.len());
        }
        let sessions = NonZeroU32::new(sessions.into()).unwrap_or(NonZeroU32::MIN);
        let (per_second, at_once) = (PER_SECOND.saturating_mul(sessions), AT_ONCE.saturating_mul(sessions));
        let known = self.known.entry(key).or_insert_with(|| Known {
            sessions,
            left: TokenBucket::new(per_second, at_once),
            latest: now,
            is_over: false,
        });
        if known.sessions != sessions {
            known.sessions = sessions;
            known.left.change(per_second, at_once);
        }
        known.latest = now;
        let was_over = std::mem::replace(&mut known.is_over, !known.left.take(now));
        if !known.is_over {
            return Ok(());
        }
        let sentence = format!(
            "this key has connected {at_once} times at once and more often than {per_second} times a second since, which is what the \
             sessions of its ticket ({sessions}) allow"
        );
        let remedy = "find out why the connection does not last: `kvasir doctor` goes its way hop by hop";
        let refusal = Refusal::new(RefusalCode::LimitReached, sentence, remedy).retry_after(RETRY_SECONDS);
        Err(TooOften { refusal, is_first: !was_over })
    }
}

#[cfg(test)]
mod tests {
    use kvasir_wire::key::SecretKey;

    use super::*;

    fn keys() -> Keys {
        Keys { known: HashMap::new(), look_at: KEYS }
    }

    fn key(seed: u8) -> PublicKey {
        SecretKey::from_seed([seed; 32]).public()
    }

    #[test]
    fn a_key_that_flaps_is_held_up_and_no_other_one() {
        let mut keys = keys();
        let at = Duration::from_secs;
        for _ in 0..32 {
            keys.count(key(2), 1, at(5)).unwrap();
        }
        let first = keys.count(key(2), 1, at(5)).unwrap_err();
        assert_eq!((first.refusal.code, first.is_first), (RefusalCode::LimitReached, true));
        assert_eq!(first.refusal.retry_after, Some(RETRY_SECONDS));
        assert!(!keys.count(key(2), 1, at(5)).unwrap_err().is_first, "said once");
        keys.count(key(3), 1, at(5)).unwrap();
        keys.count(key(2), 1, at(6)).unwrap();
        assert!(keys.count(key(2), 1, at(6)).unwrap_err().is_first);
        keys.count(key(2), 1, at(6) + REFILL).unwrap();
    }

    #[test]
    fn a_ticket_for_more_sessions_allows_more() {
        let mut keys = keys();
        let let_in = |keys: &mut Keys, seed, sessions| {
            (0..1_000).filter(|_| keys.count(key(seed), sessions, Duration::ZERO).is_ok()).count()
        };
        assert_eq!(let_in(&mut keys, 2, 3), 96);
        assert_eq!(let_in(&mut keys, 3, 0), 32);
        assert_eq!(let_in(&mut keys, 2, 4), 0, "another ticket of the key fills nothing up");
    }

    #[test]
    fn keys_that_have_all_of_their_connections_are_forgotten() {
        let mut keys = Keys { look_at: 3, ..keys() };
        for seed in [2, 3, 4] {
            keys.count(key(seed), 1, Duration::ZERO).unwrap();
        }
        keys.count(key(5), 1, REFILL).unwrap();
        assert_eq!(keys.known.len(), 1);
        assert_eq!(keys.look_at, KEYS);
    }
}
