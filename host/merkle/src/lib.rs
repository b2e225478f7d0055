//! RFC 6962 Merkle trees: leaf and node hashes, roots, inclusion and consistency proofs.
//!
//! The same tree serves the model digest (experts are leaves, a worker checks one blob against the model) and the
//! running root of a session's work. Nothing here reads a file or a clock, and nothing trusts a length: hashes are
//! exactly 32 bytes, proofs exactly as long as index and size demand, trees of size 0 prove nothing.
//!
//! Formulas: RFC 6962 section 2.1; the verification loops are those of RFC 9162 sections 2.1.3.2 and 2.1.4.2.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))] // a test that unwraps fails, which is what it should do

mod accumulator;
mod hash;
mod proof;
mod tail;
mod tree;

pub use accumulator::Accumulator;
pub use hash::{EMPTY_ROOT, Hash, HashError, LeafHasher, leaf_hash, node_hash};
pub use proof::{
    ConsistencyProof, InclusionProof, MAX_PROOF_HASHES, ProofError, verify_consistency, verify_inclusion,
};
pub use tail::Tail;
pub use tree::{Tree, consistency_proof, inclusion_proof, root};
