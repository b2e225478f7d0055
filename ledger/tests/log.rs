//! The public log's formats against official vectors and oracles: a real small log of another implementation, and proofs of
//! ours for every index and size up to three tiles.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use kvasir_ledger::log::*;
use kvasir_merkle::{Accumulator, Hash, Tree, leaf_hash};
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::{KeyName, Verifier};

/// A log in memory.
#[derive(Default)]
struct Files(HashMap<String, Vec<u8>>);

impl LogSource for Files {
    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, SourceError> {
        let file = self.0.get(path).cloned();
        assert!(file.as_ref().is_none_or(|bytes| bytes.len() <= limit));
        Ok(file)
    }
}

fn entry(index: u64) -> Vec<u8> {
    format!("entry {index}\n").into_bytes()
}

/// A log of `size` entries, with the tiles of this size only.
fn log_of(size: u64) -> (Files, Tree) {
    let tree: Tree = (0..size).map(|index| leaf_hash(&entry(index))).collect();
    let mut files = Files::default();
    for tile in tiles_of(0, size) {
        let leaves = 256u64.pow(u32::from(tile.level));
        let first = tile.index * TILE_HASHES;
        let hashes: Vec<Hash> = (first..first + u64::from(tile.width))
            .map(|at| {
                (at * leaves..(at + 1) * leaves)
                    .map(|index| tree.leaf(index).unwrap())
                    .collect::<Accumulator>()
            })
            .map(|subtree| subtree.root())
            .collect();
        files.0.insert(tile.path(), encode_tile(&hashes));
    }
    for bundle in bundles_of(0, size) {
        let entries: Vec<Vec<u8>> =
            (0..u64::from(bundle.width)).map(|at| entry(bundle.first_entry() + at)).collect();
        files.0.insert(bundle.path(), encode_bundle(entries.iter().map(Vec::as_slice)).unwrap());
    }
    (files, tree)
}

fn name(text: &str) -> KeyName {
    text.parse().unwrap()
}

#[test]
fn proofs_out_of_tiles_are_those_of_the_whole_tree() {
    for size in [1, 2, 3, 7, 255, 256, 257, 300, 511, 512, 513, 700] {
        let (files, tree) = log_of(size);
        let prover = Prover::new(&files, size);
        assert_eq!(prover.root().unwrap(), tree.root());
        for index in (0..size).step_by(1 + size as usize / 97).chain([size - 1]) {
            let proof = prover.inclusion(index).unwrap();
            assert_eq!(proof, tree.inclusion_proof(index).unwrap());
            proof.verify(&leaf_hash(&prover.entry(index).unwrap()), &tree.root()).unwrap();
        }
        for old in (1..=size).step_by(1 + size as usize / 97) {
            assert_eq!(
                prover.consistency(old).unwrap(),
                tree.consistency_proof(old, size).unwrap(),
                "{old} of {size}"
            );
        }
        assert!(prover.inclusion(size).is_err() && prover.consistency(0).is_err());
        assert!(prover.consistency(size + 1).is_err() && prover.entry(size).is_err());
    }
}

#[test]
fn a_partial_file_may_have_been_replaced_by_the_full_one() {
    let (mut files, tree) = log_of(600);
    let partial: Vec<String> = files.0.keys().filter(|path| path.contains(".p/")).cloned().collect();
    let (longer, _) = log_of(768);
    for path in partial.iter().filter(|path| !path.starts_with("tile/1")) {
        files.0.remove(path);
        let full = path.split(".p/").next().unwrap();
        files.0.insert(full.to_owned(), longer.0[full].clone());
    }
    let prover = Prover::new(&files, 600);
    assert_eq!(prover.root().unwrap(), tree.root());
    assert_eq!(prover.entry(599).unwrap(), entry(599));
    files.0.retain(|path, _| !path.starts_with("tile/0/002"));
    assert!(matches!(Prover::new(&files, 600).root(), Err(ProverError::Missing(_))));
}

#[test]
fn a_proof_file_convinces_a_quorum_and_nothing_less() {
    let (files, _) = log_of(300);
    let log_key = SecretKey::from_seed([1; 32]);
    let origin = name("kvasir.example/test/00000001");
    let prover = Prover::new(&files, 300);
    let checkpoint = Checkpoint { origin: origin.clone(), size: 300, root: prover.root().unwrap() };
    let signed = checkpoint.sign(&log_key).unwrap();
    let witnesses = [11, 12, 13].map(|seed| SecretKey::from_seed([seed; 32]));
    let names = ["one.example", "two.example", "three.example"].map(name);
    let lines = |count: usize| {
        let lines = names.iter().zip(&witnesses).take(count);
        lines.map(|(name, key)| cosign(signed.note().text(), name, key, 1_790_000_000)).collect::<Vec<_>>()
    };
    let keys: Vec<String> = names
        .iter()
        .zip(&witnesses)
        .map(|(name, key)| CosignerKey::new(name.clone(), key.public()).to_string())
        .collect();
    let log = log_verifier(&origin, log_key.public());
    let policy = format!(
        "# who must have seen the head\nlog {log}\nwitness a {}\nwitness b {} https://b.example/\nwitness c {}\n\
         group most 2 a b c\nquorum most\n",
        keys[0], keys[1], keys[2]
    );
    let policy = Policy::parse(&policy).unwrap();
    let proof = prover.inclusion(77).unwrap();
    let file = |count| ProofFile {
        extra: Some(entry(77)),
        index: 77,
        hashes: proof.hashes.clone(),
        checkpoint: signed.with_lines(lines(count)).unwrap().note().clone(),
    };
    let (_, quorum) = file(2).verify(&entry(77), &policy).unwrap();
    assert_eq!(
        quorum.cosigned.iter().map(|(name, one)| (name.as_str(), one.time)).collect::<Vec<_>>(),
        [("a", 1_790_000_000), ("b", 1_790_000_000)]
    );
    assert!(matches!(
        file(1).verify(&entry(77), &policy),
        Err(ProofFileError::Policy(PolicyError::NoQuorum { .. }))
    ));
    assert!(matches!(file(2).verify(&entry(78), &policy), Err(ProofFileError::Proof(_))));
    let text = file(3).to_string();
    assert_eq!(ProofFile::parse(text.as_bytes()).unwrap(), file(3));
    // One bit of a cosignature: the whole head is refused, though two others would do.
    let mut forged = file(3);
    let mut last = forged.checkpoint.signatures().last().unwrap().clone();
    last.signature[20] ^= 1;
    forged.checkpoint = signed.with_lines(lines(2).into_iter().chain([last])).unwrap().note().clone();
    assert!(matches!(
        forged.verify(&entry(77), &policy),
        Err(ProofFileError::Policy(PolicyError::Cosignature(_)))
    ));
    for (from, to) in
        [("index 77", "index 077"), ("index 77", "Index 77"), ("@v1", "@v2"), ("extra ", "extra  ")]
    {
        assert!(ProofFile::parse(text.replacen(from, to, 1).as_bytes()).is_err(), "{to}");
    }
    assert!(ProofFile::parse(&vec![b'a'; MAX_PROOF_FILE_BYTES + 1]).is_err());
}

#[test]
fn policies_are_read_strictly() {
    let log = log_verifier(&name("log.example"), SecretKey::from_seed([1; 32]).public());
    let witness = |seed| {
        let key = SecretKey::from_seed([seed; 32]).public();
        CosignerKey::new(name(&format!("w{seed}.example")), key)
    };
    let same_log = log_verifier(&name("renamed.example"), SecretKey::from_seed([1; 32]).public());
    let (one, two) = (witness(2), witness(3));
    let same_key = CosignerKey::new(name("other.example"), *one.key());
    for (text, reason) in [
        (format!("log {log}\n"), "exactly one quorum"),
        ("quorum none\n".to_owned(), "at least one log"),
        (format!("log {log}\nquorum none\nquorum none\n"), "exactly one quorum"),
        (format!("log {log}\nlog {log}\nquorum none\n"), "named twice"),
        (format!("log {log}\nquorum a\n"), "not defined above"),
        (format!("log {log}\nwitness a {one}\nwitness a {two}\nquorum a\n"), "is taken"),
        (format!("log {log}\nwitness a {one}\nwitness b {same_key}\nquorum a\n"), "another witness's"),
        (format!("log {log}\nwitness none {one}\nquorum none\n"), "is taken"),
        (format!("log {log}\nwitness a {one}\ngroup g 2 a\nquorum g\n"), "all, any or 1 to 1"),
        (format!("log {log}\nwitness a {one}\ngroup g 0 a\nquorum g\n"), "all, any or 1 to 1"),
        (format!("log {log}\nwitness a {one}\ngroup g 01 a\nquorum g\n"), "all, any or 1 to 1"),
        (format!("log {log}\nwitness a {one}\ngroup g any a a\nquorum g\n"), "names a member twice"),
        (format!("log {log}\ngroup g any a\nquorum g\n"), "not defined above"),
        (
            format!("log {log}\nwitness a {one}\ngroup g any a\ngroup h any a\ngroup i 2 g h\nquorum i\n"),
            "that another group has",
        ),
        (format!("log {log}\nlog {same_log}\nquorum none\n"), "named twice"),
        (format!("log {log}\r\nquorum none\r\n"), "printable ASCII"),
        (format!("log {log}\nwitness a {log}\nquorum a\n"), "signature type 4"),
        (format!("log {log}\nqu\u{f6}rum none\n"), "printable ASCII"),
        (format!("log {log}\nlogs\nquorum none\n"), "expected `log`"),
        ("\n".repeat(MAX_POLICY_LINES + 1), "at most"),
    ] {
        let error = Policy::parse(&text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn heads_with_other_words_are_no_checkpoints() {
    let key = SecretKey::from_seed([1; 32]);
    let root = Hash([7; 32]);
    let good = Checkpoint { origin: name("log.example"), size: 5, root };
    let text = good.text();
    assert_eq!(Checkpoint::parse(&text).unwrap(), good);
    for (from, to) in [
        ("\n5\n", "\n05\n"),
        ("\n5\n", "\n\n"),
        ("\n5\n", "\n-5\n"),
        ("\n5\n", "\n9223372036854775808\n"),
        ("\n5\n", "\n0\n"),
        ("=\n", "\n"),
        ("=\n", "=\nextension\n"),
        ("=\n", "="),
        ("log.example", "log example"),
    ] {
        assert!(Checkpoint::parse(&text.replacen(from, to, 1)).is_err(), "{to:?}");
    }
    let signed = good.sign(&key).unwrap().note().to_string();
    let log = log_verifier(&good.origin, key.public());
    SignedCheckpoint::verify(signed.as_bytes(), &log).unwrap();
    let other = log_verifier(&name("other.example"), key.public());
    assert!(matches!(
        SignedCheckpoint::verify(signed.as_bytes(), &other),
        Err(CheckpointError::OtherOrigin { .. })
    ));
    let other = log_verifier(&good.origin, SecretKey::from_seed([2; 32]).public());
    assert!(SignedCheckpoint::verify(signed.as_bytes(), &other).is_err());
    assert!(Checkpoint { size: 0, ..good }.sign(&key).is_err(), "an empty tree has one root");
}

#[test]
fn a_log_of_another_implementation_is_read_whole() {
    let Some(folder) = vectors("tessera-log") else { return };
    let source = FolderSource(folder.clone());
    let log: Verifier =
        "example.com/log/testdata+33d7b496+AeHTu4Q3hEIMHNqc6fASMsq3rKNx280NI+oO5xCFkkSx".parse().unwrap();
    let mut roots = Vec::new();
    for size in 0..=15 {
        let bytes = std::fs::read(folder.join(format!("checkpoint.{size}"))).unwrap();
        let signed = SignedCheckpoint::verify(&bytes, &log).unwrap();
        assert_eq!(signed.checkpoint().size, size);
        roots.push(signed.checkpoint().root);
    }
    let head = source.read(CHECKPOINT_PATH, MAX_CHECKPOINT_BYTES).unwrap().unwrap();
    let head = SignedCheckpoint::verify(&head, &log).unwrap().checkpoint().clone();
    let prover = Prover::new(&source, head.size);
    assert_eq!(prover.root().unwrap(), head.root);
    let mut tree = Accumulator::new();
    for index in 0..head.size {
        assert_eq!(tree.root(), roots[index as usize]);
        let leaf = leaf_hash(&prover.entry(index).unwrap());
        prover.inclusion(index).unwrap().verify(&leaf, &head.root).unwrap();
        if index > 0 {
            prover.consistency(index).unwrap().verify(&roots[index as usize], &head.root).unwrap();
        }
        tree.push(leaf);
    }
}

/// Where official vectors stand; nothing, and a word about it, where they are not at hand.
fn vectors(folder: &str) -> Option<PathBuf> {
    let root = std::env::var_os("KVASIR_VECTORS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/vectors"), PathBuf::from);
    let found = root.join(folder);
    if !found.is_dir() {
        // The handle itself: the macros' output is kept back where a test passes.
        let line = format!("skipped: no vectors ({} is not there)\n", found.display());
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return None;
    }
    Some(found)
}
