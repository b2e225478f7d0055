//! Inclusion and consistency proofs and their verification (RFC 9162 sections 2.1.3.2 and 2.1.4.2).

use crate::hash::{Hash, HashError, node_hash};

/// The longest proof accepted: a tree of 2^63 leaves. A longer list is refused before any hashing.
pub const MAX_PROOF_HASHES: usize = 63;

/// Proof that a leaf lies at `index` in the tree of `size` leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InclusionProof {
    /// Position of the leaf, from 0.
    pub index: u64,
    /// Number of leaves of the tree.
    pub size: u64,
    /// Siblings, the leaf's own first.
    pub hashes: Vec<Hash>,
}

/// Proof that the tree of `old_size` leaves is a prefix of the tree of `new_size` leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsistencyProof {
    /// Number of leaves of the older tree.
    pub old_size: u64,
    /// Number of leaves of the newer tree.
    pub new_size: u64,
    /// Hashes in RFC 6962 order.
    pub hashes: Vec<Hash>,
}

/// Why a proof proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// A tree without leaves contains nothing and is the start of every tree.
    #[error("a tree of size 0 proves nothing")]
    EmptyTree,
    /// The index lies outside the tree.
    #[error("index {index} is outside a tree of {size} leaves")]
    IndexOutside {
        /// Index asked for.
        index: u64,
        /// Leaves in the tree.
        size: u64,
    },
    /// The older tree would be larger than the newer one.
    #[error("a tree of {old_size} leaves is no prefix of one of {new_size}")]
    Shrinks {
        /// Claimed older size.
        old_size: u64,
        /// Claimed newer size.
        new_size: u64,
    },
    /// More than [`MAX_PROOF_HASHES`], or not the number that index and sizes demand.
    #[error("the proof has {found} hashes where {expected} are needed")]
    HashCount {
        /// Hashes in the proof.
        found: usize,
        /// Hashes needed.
        expected: usize,
    },
    /// A hash is not 32 bytes long.
    #[error(transparent)]
    Hash(#[from] HashError),
    /// The computed root is another one.
    #[error("the proof leads to root {computed}, not to {expected}")]
    Root {
        /// Root that the proof leads to.
        computed: Hash,
        /// Root that was expected.
        expected: Hash,
    },
}

impl InclusionProof {
    /// Builds a proof from concatenated 32-byte hashes, as it crosses the wire; checks the count at once.
    pub fn from_bytes(index: u64, size: u64, hashes: &[u8]) -> Result<Self, ProofError> {
        let expected = inclusion_length(index, size)?;
        Ok(Self { index, size, hashes: split(hashes, expected)? })
    }

    /// Checks that `leaf` (a leaf hash) is in the tree with this `root`.
    pub fn verify(&self, leaf: &Hash, root: &Hash) -> Result<(), ProofError> {
        verify_inclusion(leaf, self.index, self.size, &self.hashes, root)
    }
}

impl ConsistencyProof {
    /// Builds a proof from concatenated 32-byte hashes; at most [`MAX_PROOF_HASHES`].
    pub fn from_bytes(old_size: u64, new_size: u64, hashes: &[u8]) -> Result<Self, ProofError> {
        Ok(Self { old_size, new_size, hashes: split(hashes, hashes.len() / 32)? })
    }

    /// Checks that the newer tree begins with the older one.
    pub fn verify(&self, old_root: &Hash, new_root: &Hash) -> Result<(), ProofError> {
        verify_consistency(self.old_size, self.new_size, &self.hashes, old_root, new_root)
    }
}

/// Checks that `leaf` lies at `index` in the tree of `size` leaves with `root`.
pub fn verify_inclusion(
    leaf: &Hash,
    index: u64,
    size: u64,
    hashes: &[Hash],
    root: &Hash,
) -> Result<(), ProofError> {
    let expected = inclusion_length(index, size)?;
    if hashes.len() != expected {
        return Err(ProofError::HashCount { found: hashes.len(), expected });
    }
    let (mut node, mut last) = (index, size - 1);
    let mut computed = *leaf;
    for sibling in hashes {
        if node & 1 == 1 || node == last {
            computed = node_hash(sibling, &computed);
            // A node at the right edge has no sibling on some levels: climb until it is a right child.
            climb_to_right_child(&mut node, &mut last);
        } else {
            computed = node_hash(&computed, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    expect_root(computed, root)
}

/// Checks that the tree of `old_size` leaves with `old_root` is a prefix of the tree of `new_size` with `new_root`.
pub fn verify_consistency(
    old_size: u64,
    new_size: u64,
    hashes: &[Hash],
    old_root: &Hash,
    new_root: &Hash,
) -> Result<(), ProofError> {
    if old_size == 0 {
        return Err(ProofError::EmptyTree);
    }
    if old_size > new_size {
        return Err(ProofError::Shrinks { old_size, new_size });
    }
    if hashes.len() > MAX_PROOF_HASHES {
        return Err(ProofError::HashCount { found: hashes.len(), expected: MAX_PROOF_HASHES });
    }
    if old_size == new_size {
        if !hashes.is_empty() {
            return Err(ProofError::HashCount { found: hashes.len(), expected: 0 });
        }
        return expect_root(*old_root, new_root);
    }
    let (mut node, mut last) = (old_size - 1, new_size - 1);
    let shift = node.trailing_ones();
    node >>= shift;
    last >>= shift;
    // A perfect older tree is itself the first node of the path, so the proof leaves it out.
    let (first, rest) = if old_size.is_power_of_two() {
        (*old_root, hashes)
    } else {
        let (first, rest) = hashes.split_first().ok_or(ProofError::HashCount { found: 0, expected: 1 })?;
        (*first, rest)
    };
    let (mut old_computed, mut new_computed) = (first, first);
    for (used, sibling) in rest.iter().enumerate() {
        if last == 0 {
            return Err(ProofError::HashCount {
                found: hashes.len(),
                expected: used + hashes.len() - rest.len(),
            });
        }
        if node & 1 == 1 || node == last {
            old_computed = node_hash(sibling, &old_computed);
            new_computed = node_hash(sibling, &new_computed);
            climb_to_right_child(&mut node, &mut last);
        } else {
            new_computed = node_hash(&new_computed, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    if last != 0 {
        return Err(ProofError::HashCount { found: hashes.len(), expected: hashes.len() + 1 });
    }
    expect_root(old_computed, old_root)?;
    expect_root(new_computed, new_root)
}

/// The exact number of hashes in an inclusion proof.
fn inclusion_length(index: u64, size: u64) -> Result<usize, ProofError> {
    if size == 0 {
        return Err(ProofError::EmptyTree);
    }
    if index >= size {
        return Err(ProofError::IndexOutside { index, size });
    }
    // Below the level where the path meets the right edge every level has a sibling; above it only left ones exist.
    let inner = 64 - (index ^ (size - 1)).leading_zeros();
    let border = if inner == 64 { 0 } else { (index >> inner).count_ones() };
    let expected = (inner + border) as usize;
    if expected > MAX_PROOF_HASHES {
        return Err(ProofError::HashCount { found: expected, expected: MAX_PROOF_HASHES });
    }
    Ok(expected)
}

fn split(bytes: &[u8], expected: usize) -> Result<Vec<Hash>, ProofError> {
    let (whole, rest) = bytes.as_chunks::<32>();
    if !rest.is_empty() {
        return Err(HashError::Length(rest.len()).into());
    }
    if whole.len() != expected || whole.len() > MAX_PROOF_HASHES {
        return Err(ProofError::HashCount { found: whole.len(), expected: expected.min(MAX_PROOF_HASHES) });
    }
    Ok(whole.iter().copied().map(Hash).collect())
}

fn climb_to_right_child(node: &mut u64, last: &mut u64) {
    while *node & 1 == 0 && *node != 0 {
        *node >>= 1;
        *last >>= 1;
    }
}

fn expect_root(computed: Hash, expected: &Hash) -> Result<(), ProofError> {
    if computed == *expected { Ok(()) } else { Err(ProofError::Root { computed, expected: *expected }) }
}
