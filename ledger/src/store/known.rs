//! What the tables say, remembered: most receipts follow the session's last one, under the same grant and delegation.
//!
//! Everything here can be read out of the tables again, and is, whenever a transaction was not committed or another process
//! wrote. It answers only what the tables would answer; a receipt that does not simply fit is looked at in the tables.

use std::collections::HashMap;
use std::hash::Hash as Key;

use kvasir_merkle::Hash;
use kvasir_wire::account::{Delegation, Grant};
use kvasir_wire::id::{KeyDigest, SessionId, WalletDigest};
use kvasir_wire::receipt::{Receipt, ReceiptId};

use super::caps::Caps;

/// Most things of one sort that are remembered (a receipt is the largest, about half a kilobyte); beyond it all of the sort are
/// forgotten.
const MAX_REMEMBERED: usize = 1 << 14;

#[derive(Default)]
pub(super) struct Known {
    pub caps: Caps,
    pub grants: Memory<Hash, Grant>,
    /// From when on prices hold, Unix seconds.
    pub prices: Memory<Hash, u64>,
    /// The one that held last.
    pub delegations: Memory<(KeyDigest, WalletDigest), Delegation>,
    pub sessions: Memory<SessionId, Latest>,
    /// Every settlement that is final at this time (Unix seconds) is posted or reversed.
    pub swept: u64,
}

/// The receipt with a session's highest number.
pub(super) struct Latest {
    /// The session's row: the entry of the receipt that was accepted first.
    pub row: u64,
    pub receipt: Receipt,
    pub id: ReceiptId,
}

impl Latest {
    /// Whether `receipt` may come next, whatever is missing between them.
    pub(super) fn is_followed_by(&self, receipt: &Receipt) -> bool {
        receipt.terms == self.receipt.terms
            && receipt.mark().follows(&self.receipt.mark(), || self.id).is_ok()
    }
}

impl Known {
    /// What is here may not be what the file says.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// A map that never grows beyond [`MAX_REMEMBERED`].
pub(super) struct Memory<K, V>(HashMap<K, V>);

impl<K, V> Default for Memory<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Key + Eq, V> Memory<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key)
    }

    pub(super) fn put(&mut self, key: K, value: V) {
        if self.0.len() >= MAX_REMEMBERED && !self.0.contains_key(&key) {
            self.0.clear();
        }
        self.0.insert(key, value);
    }

    pub(super) fn remove(&mut self, key: &K) {
        self.0.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_is_bounded_and_keeps_what_came_last() {
        let mut memory = Memory::default();
        for number in 0..3 * MAX_REMEMBERED + 1 {
            memory.put(number, number);
            memory.put(number, number + 1);
            assert!(memory.0.len() <= MAX_REMEMBERED);
            assert_eq!(memory.get(&number), Some(&(number + 1)));
        }
        assert_eq!(memory.get(&0), None);
        memory.remove(&(3 * MAX_REMEMBERED));
        assert_eq!(memory.get(&(3 * MAX_REMEMBERED)), None);
    }
}
