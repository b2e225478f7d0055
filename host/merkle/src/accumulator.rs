//! A running root in O(log n) memory: what a session keeps of its work items.

use crate::hash::{EMPTY_ROOT, Hash, node_hash};

/// The roots of the perfect subtrees that make up a growing tree, largest first. Appends only; gives no proofs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accumulator {
    /// One root per set bit of `size`, from the highest bit down.
    peaks: Vec<Hash>,
    size: u64,
}

impl Accumulator {
    /// A tree without leaves; its root is [`EMPTY_ROOT`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a leaf hash.
    pub fn push(&mut self, leaf: Hash) {
        let mut carried = leaf;
        // Each trailing one bit of the old size is a perfect subtree that the new leaf completes.
        for _ in 0..self.size.trailing_ones() {
            if let Some(left) = self.peaks.pop() {
                carried = node_hash(&left, &carried);
            }
        }
        self.peaks.push(carried);
        self.size += 1;
    }

    /// Number of leaves.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The root of the perfect subtree of `2^level` leaves among the peaks, if there is one.
    pub(crate) fn peak(&self, level: u32) -> Option<Hash> {
        let larger = self.size.checked_shr(level)?;
        // Peaks stand from the highest bit of the size down.
        if larger & 1 == 1 { self.peaks.get((larger >> 1).count_ones() as usize).copied() } else { None }
    }

    /// The RFC 6962 root over all leaves so far.
    pub fn root(&self) -> Hash {
        let mut from_right = self.peaks.iter().rev();
        let Some(last) = from_right.next() else { return EMPTY_ROOT };
        from_right.fold(*last, |right, left| node_hash(left, &right))
    }
}

impl FromIterator<Hash> for Accumulator {
    fn from_iter<I: IntoIterator<Item = Hash>>(leaves: I) -> Self {
        let mut accumulator = Self::new();
        leaves.into_iter().for_each(|leaf| accumulator.push(leaf));
        accumulator
    }
}
