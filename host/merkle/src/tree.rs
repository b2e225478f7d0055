//! A whole tree in memory: roots and proofs of any of its sizes.

use crate::hash::{EMPTY_ROOT, Hash, node_hash};
use crate::proof::{ConsistencyProof, InclusionProof, ProofError};

/// All perfect subtrees of a growing list of leaf hashes: about twice the leaves in memory, proofs in O(log n).
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// `levels[k][i]` is the root of the perfect subtree over leaves `i * 2^k .. (i + 1) * 2^k`.
    levels: Vec<Vec<Hash>>,
}

/// The RFC 6962 root over leaf hashes.
pub fn root(leaves: &[Hash]) -> Hash {
    leaves.iter().copied().collect::<crate::Accumulator>().root()
}

/// Proof that `leaves[index]` is in the tree over `leaves`. For many proofs of one tree build a [`Tree`] once.
pub fn inclusion_proof(leaves: &[Hash], index: u64) -> Result<InclusionProof, ProofError> {
    leaves.iter().copied().collect::<Tree>().inclusion_proof(index)
}

/// Proof that the tree over the first `old_size` leaves is a prefix of the tree over all of them.
pub fn consistency_proof(leaves: &[Hash], old_size: u64) -> Result<ConsistencyProof, ProofError> {
    leaves.iter().copied().collect::<Tree>().consistency_proof(old_size, leaves.len() as u64)
}

impl Tree {
    /// A tree without leaves.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a leaf hash; returns its index.
    pub fn push(&mut self, leaf: Hash) -> u64 {
        let index = self.size();
        let mut carried = leaf;
        for level in 0.. {
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            self.levels[level].push(carried);
            match self.levels[level].as_slice() {
                [.., left, right] if self.levels[level].len().is_multiple_of(2) => {
                    carried = node_hash(left, right)
                }
                _ => break,
            }
        }
        index
    }

    /// Number of leaves.
    pub fn size(&self) -> u64 {
        self.levels.first().map_or(0, Vec::len) as u64
    }

    /// The leaf hash at `index`.
    pub fn leaf(&self, index: u64) -> Option<Hash> {
        self.levels.first()?.get(usize::try_from(index).ok()?).copied()
    }

    /// Root over all leaves.
    pub fn root(&self) -> Hash {
        self.range(0, self.size())
    }

    /// Root that the tree had at an earlier size.
    pub fn root_at(&self, size: u64) -> Result<Hash, ProofError> {
        if size > self.size() {
            return Err(ProofError::Shrinks { old_size: size, new_size: self.size() });
        }
        Ok(self.range(0, size))
    }

    /// Proof that the leaf at `index` is in the whole tree.
    pub fn inclusion_proof(&self, index: u64) -> Result<InclusionProof, ProofError> {
        self.inclusion_proof_at(index, self.size())
    }

    /// Proof that the leaf at `index` is in the tree of the first `size` leaves.
    pub fn inclusion_proof_at(&self, index: u64, size: u64) -> Result<InclusionProof, ProofError> {
        if size == 0 {
            return Err(ProofError::EmptyTree);
        }
        if size > self.size() {
            return Err(ProofError::Shrinks { old_size: size, new_size: self.size() });
        }
        if index >= size {
            return Err(ProofError::IndexOutside { index, size });
        }
        // From the root down: the half without the leaf is the sibling; the proof lists siblings from the leaf up.
        let (mut start, mut end) = (0, size);
        let mut hashes = Vec::new();
        while end - start > 1 {
            let middle = start + left_half(end - start);
            if index < middle {
                hashes.push(self.range(middle, end));
                end = middle;
            } else {
                hashes.push(self.range(start, middle));
                start = middle;
            }
        }
        hashes.reverse();
        Ok(InclusionProof { index, size, hashes })
    }

    /// Proof that the tree of the first `old_size` leaves is a prefix of the tree of the first `new_size`.
    pub fn consistency_proof(&self, old_size: u64, new_size: u64) -> Result<ConsistencyProof, ProofError> {
        if old_size == 0 {
            return Err(ProofError::EmptyTree);
        }
        if old_size > new_size || new_size > self.size() {
            return Err(ProofError::Shrinks { old_size, new_size: new_size.min(self.size()) });
        }
        // SUBPROOF of RFC 6962 2.1.2, as a loop; `old_root_known` while the older tree is still the whole left part.
        let (mut start, mut end) = (0, new_size);
        let mut old_root_known = true;
        let mut hashes = Vec::new();
        while old_size != end {
            let middle = start + left_half(end - start);
            if old_size <= middle {
                hashes.push(self.range(middle, end));
                end = middle;
            } else {
                hashes.push(self.range(start, middle));
                start = middle;
                old_root_known = false;
            }
        }
        if !old_root_known {
            hashes.push(self.range(start, end));
        }
        hashes.reverse();
        Ok(ConsistencyProof { old_size, new_size, hashes })
    }

    /// Root over leaves `start..end`, where `start` is a multiple of the largest power of two that the range holds.
    fn range(&self, start: u64, end: u64) -> Hash {
        let mut computed = None;
        let mut end = end;
        // Peel perfect subtrees off the right: each is stored.
        while end > start {
            let level = (end - start).trailing_zeros();
            let index = (end >> level) - 1;
            let peak = self.levels[level as usize][index as usize];
            computed = Some(computed.map_or(peak, |right| node_hash(&peak, &right)));
            end -= 1 << level;
        }
        computed.unwrap_or(EMPTY_ROOT)
    }
}

impl FromIterator<Hash> for Tree {
    fn from_iter<I: IntoIterator<Item = Hash>>(leaves: I) -> Self {
        let mut tree = Self::new();
        leaves.into_iter().for_each(|leaf| {
            tree.push(leaf);
        });
        tree
    }
}

/// The largest power of two below `size` (at least 2): where RFC 6962 splits a tree.
fn left_half(size: u64) -> u64 {
    1 << (63 - (size - 1).leading_zeros())
}
