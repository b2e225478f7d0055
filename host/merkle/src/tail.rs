//! Proofs for the newest leaves of a growing tree whose older leaves are gone.
//!
//! A session keeps the peaks of everything up to its last receipt and the leaves after it. That is enough to prove where
//! each of the later leaves lies: what such a proof needs of the older ones are whole peaks.

use crate::accumulator::Accumulator;
use crate::hash::{EMPTY_ROOT, Hash, node_hash};
use crate::proof::{InclusionProof, ProofError};

/// The perfect subtrees of a tree that hold at least one of its newest leaves, and the peaks of the older ones.
#[derive(Clone, Debug)]
pub struct Tail {
    older: Accumulator,
    size: u64,
    /// `levels[k]` holds the roots over `2^k` leaves from the subtree of the first newer leaf on: its number is
    /// `older.size() >> k`.
    levels: Vec<Vec<Hash>>,
}

impl Tail {
    /// The tree of the leaves in `older` and then `newer`.
    pub fn new(older: &Accumulator, newer: &[Hash]) -> Self {
        let size = older.size() + newer.len() as u64;
        let mut tail = Self { older: older.clone(), size, levels: vec![newer.to_vec()] };
        for level in 1..u64::BITS {
            let parents: Vec<Hash> = (older.size() >> level..size >> level)
                .map_while(|parent| {
                    Some(node_hash(
                        &tail.node(level - 1, 2 * parent)?,
                        &tail.node(level - 1, 2 * parent + 1)?,
                    ))
                })
                .collect();
            if parents.is_empty() {
                break;
            }
            tail.levels.push(parents);
        }
        tail
    }

    /// Number of leaves, the older ones included.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Proof that the leaf at `index`, one of the newer ones, is in the whole tree.
    pub fn inclusion_proof(&self, index: u64) -> Result<InclusionProof, ProofError> {
        if self.size == 0 {
            return Err(ProofError::EmptyTree);
        }
        if index < self.older.size() || index >= self.size {
            return Err(ProofError::IndexOutside { index, size: self.size });
        }
        // As in a whole tree: from the root down the half without the leaf is the sibling.
        let (mut start, mut end) = (0, self.size);
        let mut hashes = Vec::new();
        while end - start > 1 {
            let middle = start + (1 << (63 - (end - start - 1).leading_zeros()));
            if index < middle {
                hashes.push(self.range(middle, end));
                end = middle;
            } else {
                hashes.push(self.range(start, middle));
                start = middle;
            }
        }
        hashes.reverse();
        Ok(InclusionProof { index, size: self.size, hashes })
    }

    /// Root over leaves `start..end`: a sibling on the path of a newer leaf.
    fn range(&self, start: u64, end: u64) -> Hash {
        let mut computed = None;
        let mut end = end;
        while end > start {
            let level = (end - start).trailing_zeros();
            let Some(peak) = self.node(level, (end >> level) - 1) else { break };
            computed = Some(computed.map_or(peak, |right| node_hash(&peak, &right)));
            end -= 1 << level;
        }
        computed.unwrap_or(EMPTY_ROOT)
    }

    /// The root over the `2^level` leaves of this number; of the older ones the peaks alone are known.
    fn node(&self, level: u32, number: u64) -> Option<Hash> {
        let first = self.older.size() >> level;
        match number.checked_sub(first) {
            Some(place) => self.levels.get(level as usize)?.get(usize::try_from(place).ok()?).copied(),
            None if number + 1 == first => self.older.peak(level),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tree, leaf_hash};

    #[test]
    fn proofs_are_those_of_the_whole_tree_wherever_it_is_cut() {
        let leaves: Vec<Hash> = (0..70u8).map(|number| leaf_hash(&[number])).collect();
        for size in 1..=leaves.len() {
            let whole: Tree = leaves[..size].iter().copied().collect();
            for cut in 0..size {
                let older: Accumulator = leaves[..cut].iter().copied().collect();
                let tail = Tail::new(&older, &leaves[cut..size]);
                for index in 0..size as u64 {
                    let proof = tail.inclusion_proof(index);
                    if index < cut as u64 {
                        assert!(proof.is_err(), "an older leaf's path is not known");
                    } else {
                        let proof = proof.unwrap();
                        assert_eq!(
                            proof,
                            whole.inclusion_proof(index).unwrap(),
                            "{index} of {size}, cut at {cut}"
                        );
                        proof.verify(&leaves[index as usize], &whole.root()).unwrap();
                    }
                }
                assert!(tail.inclusion_proof(size as u64).is_err());
            }
        }
        assert_eq!(Tail::new(&Accumulator::new(), &[]).inclusion_proof(0), Err(ProofError::EmptyTree));
    }
}
