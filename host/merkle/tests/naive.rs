//! Tree, accumulator and proofs against the recursive definitions of RFC 6962 section 2.1, written out.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use kvasir_merkle::{
    Accumulator, EMPTY_ROOT, Hash, InclusionProof, MAX_PROOF_HASHES, ProofError, Tree, consistency_proof,
    inclusion_proof, leaf_hash, node_hash, root, verify_consistency, verify_inclusion,
};
use proptest::prelude::*;

fn split(leaves: &[Hash]) -> usize {
    let mut half = 1;
    while half * 2 < leaves.len() {
        half *= 2;
    }
    half
}

fn naive_root(leaves: &[Hash]) -> Hash {
    match leaves {
        [] => EMPTY_ROOT,
        [leaf] => *leaf,
        _ => {
            let (left, right) = leaves.split_at(split(leaves));
            node_hash(&naive_root(left), &naive_root(right))
        }
    }
}

fn naive_path(index: usize, leaves: &[Hash]) -> Vec<Hash> {
    if leaves.len() == 1 {
        return Vec::new();
    }
    let half = split(leaves);
    let (left, right) = leaves.split_at(half);
    let (mut path, sibling) = if index < half {
        (naive_path(index, left), naive_root(right))
    } else {
        (naive_path(index - half, right), naive_root(left))
    };
    path.push(sibling);
    path
}

fn naive_subproof(old: usize, leaves: &[Hash], known: bool) -> Vec<Hash> {
    if old == leaves.len() {
        return if known { Vec::new() } else { vec![naive_root(leaves)] };
    }
    let half = split(leaves);
    let (left, right) = leaves.split_at(half);
    let (mut proof, other) = if old <= half {
        (naive_subproof(old, left, known), naive_root(right))
    } else {
        (naive_subproof(old - half, right, false), naive_root(left))
    };
    proof.push(other);
    proof
}

fn leaves(count: usize) -> Vec<Hash> {
    (0..count).map(|number| leaf_hash(&number.to_le_bytes())).collect()
}

#[test]
fn every_small_tree() {
    for count in 1..=40 {
        let leaves = leaves(count);
        let tree: Tree = leaves.iter().copied().collect();
        let expected = naive_root(&leaves);
        assert_eq!(tree.root(), expected);
        assert_eq!(leaves.iter().copied().collect::<Accumulator>().root(), expected);
        for index in 0..count {
            let proof = tree.inclusion_proof(index as u64).unwrap();
            assert_eq!(proof.hashes, naive_path(index, &leaves), "{index} in {count}");
            assert_eq!(proof.verify(&leaves[index], &expected), Ok(()));
            let bytes: Vec<u8> = proof.hashes.iter().flat_map(|hash| hash.0).collect();
            assert_eq!(InclusionProof::from_bytes(index as u64, count as u64, &bytes), Ok(proof));
            assert_eq!(tree.root_at(index as u64).unwrap(), naive_root(&leaves[..index]));
        }
        for old in 1..=count {
            let proof = tree.consistency_proof(old as u64, count as u64).unwrap();
            assert_eq!(proof.hashes, naive_subproof(old, &leaves, true), "{old} of {count}");
            assert_eq!(proof.verify(&naive_root(&leaves[..old]), &expected), Ok(()));
        }
    }
}

#[test]
fn size_zero_and_outside_are_refused() {
    let leaf = leaf_hash(b"");
    assert_eq!(root(&[]), EMPTY_ROOT);
    assert_eq!(inclusion_proof(&[], 0), Err(ProofError::EmptyTree));
    assert_eq!(consistency_proof(&[leaf], 0), Err(ProofError::EmptyTree));
    assert_eq!(verify_consistency(0, 1, &[], &EMPTY_ROOT, &leaf), Err(ProofError::EmptyTree));
    assert_eq!(verify_inclusion(&leaf, 0, 0, &[], &EMPTY_ROOT), Err(ProofError::EmptyTree));
    assert_eq!(inclusion_proof(&[leaf], 1), Err(ProofError::IndexOutside { index: 1, size: 1 }));
    assert!(Tree::new().root_at(1).is_err());
    assert!([leaf].into_iter().collect::<Tree>().inclusion_proof_at(0, 2).is_err());
}

#[test]
fn proofs_beyond_the_limit_are_refused() {
    let hash = leaf_hash(b"");
    // Index 0 of a tree larger than 2^63 would need 64 hashes.
    assert!(matches!(
        verify_inclusion(&hash, 0, u64::MAX, &[hash; MAX_PROOF_HASHES + 1], &hash),
        Err(ProofError::HashCount { .. })
    ));
    assert!(matches!(
        verify_consistency(3, u64::MAX, &[hash; MAX_PROOF_HASHES + 1], &hash, &hash),
        Err(ProofError::HashCount { .. })
    ));
    assert!(matches!(InclusionProof::from_bytes(0, 2, &[0; 33]), Err(ProofError::Hash(_))));
    assert!(matches!(InclusionProof::from_bytes(0, 2, &[0; 64]), Err(ProofError::HashCount { .. })));
}

proptest! {
    #[test]
    fn large_trees_agree_with_the_recursion(count in 1usize..700, place in any::<prop::sample::Index>()) {
        let leaves = leaves(count);
        let index = place.index(count);
        let expected = naive_root(&leaves);
        prop_assert_eq!(root(&leaves), expected);
        let proof = inclusion_proof(&leaves, index as u64).unwrap();
        prop_assert_eq!(&proof.hashes, &naive_path(index, &leaves));
        prop_assert_eq!(proof.verify(&leaves[index], &expected), Ok(()));
        let old = index + 1;
        let proof = consistency_proof(&leaves, old as u64).unwrap();
        prop_assert_eq!(&proof.hashes, &naive_subproof(old, &leaves, true));
        prop_assert_eq!(proof.verify(&naive_root(&leaves[..old]), &expected), Ok(()));
    }

    #[test]
    fn a_changed_proof_fails(count in 2usize..200, place in any::<prop::sample::Index>(), bit in 0usize..256) {
        let leaves = leaves(count);
        let index = place.index(count);
        let mut proof = inclusion_proof(&leaves, index as u64).unwrap();
        let victim = bit % proof.hashes.len();
        proof.hashes[victim].0[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(proof.verify(&leaves[index], &root(&leaves)).is_err(), "bit flip went unnoticed");
    }

    #[test]
    fn arbitrary_input_never_panics(
        a: u64, b: u64, bytes in prop::collection::vec(any::<[u8; 32]>(), 0..70), leaf: [u8; 32], expected: [u8; 32],
    ) {
        let hashes: Vec<Hash> = bytes.into_iter().map(Hash).collect();
        prop_assert!(verify_inclusion(&Hash(leaf), a, b, &hashes, &Hash(expected)).is_err() || hashes.is_empty());
        let _ = verify_consistency(a, b, &hashes, &Hash(leaf), &Hash(expected));
    }
}
