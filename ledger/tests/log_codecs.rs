//! The codecs of the log for any input: what is written reads back, what is read is written as the same bytes, and no bytes
//! from outside stop the program.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use kvasir_ledger::log::*;
use kvasir_ledger::witness::AddCheckpoint;
use kvasir_merkle::{EMPTY_ROOT, Hash};
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::KeyName;
use proptest::collection::vec;
use proptest::prelude::*;

fn name(text: &str) -> KeyName {
    text.parse().unwrap()
}

fn key() -> SecretKey {
    SecretKey::from_seed([1; 32])
}

fn hash() -> impl Strategy<Value = Hash> {
    any::<[u8; 32]>().prop_map(Hash)
}

fn checkpoint() -> impl Strategy<Value = Checkpoint> {
    (0..=i64::MAX as u64, hash()).prop_map(|(size, root)| Checkpoint {
        origin: name("kvasir.example/test/00000001"),
        size,
        root: if size == 0 { EMPTY_ROOT } else { root },
    })
}

/// Bytes with some of them replaced, taken out or put in: near to what is read, where parsers err.
fn bent(bytes: &[u8], bends: &[(prop::sample::Index, u8, u8)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, kind, value) in bends {
        if bytes.is_empty() {
            break;
        }
        let at = at.index(bytes.len());
        match kind % 3 {
            0 => bytes[at] = *value,
            1 => {
                bytes.remove(at);
            }
            _ => bytes.insert(at, *value),
        }
    }
    bytes
}

fn bends() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, u8)>> {
    let value = prop_oneof![Just(b'\n'), Just(b'0'), Just(b' '), Just(b'='), any::<u8>()];
    vec((any::<prop::sample::Index>(), any::<u8>(), value), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_checkpoint_has_one_spelling(checkpoint in checkpoint(), bends in bends()) {
        let text = checkpoint.text();
        prop_assert_eq!(&Checkpoint::parse(&text).unwrap(), &checkpoint);
        if let Ok(other) = std::str::from_utf8(&bent(text.as_bytes(), &bends))
            && let Ok(read) = Checkpoint::parse(other)
        {
            prop_assert_eq!(read.text(), other);
        }
        let signed = checkpoint.sign(&key()).unwrap();
        let log = log_verifier(&checkpoint.origin, key().public());
        let bytes = signed.note().to_string();
        prop_assert_eq!(&SignedCheckpoint::verify(bytes.as_bytes(), &log).unwrap(), &signed);
        let other = bent(bytes.as_bytes(), &bends);
        // No bent text passes for the log's; further lines of strangers may.
        if let Ok(read) = SignedCheckpoint::verify(&other, &log) {
            prop_assert_eq!(read.checkpoint(), &checkpoint);
            prop_assert_eq!(read.note().to_string().into_bytes(), other);
        }
    }

    #[test]
    fn a_bundle_has_one_spelling(entries in vec(vec(any::<u8>(), 0..40), 0..20), width in 0..22u16, bends in bends()) {
        let bytes = encode_bundle(entries.iter().map(Vec::as_slice)).unwrap();
        prop_assert_eq!(parse_bundle(&bytes, entries.len() as u16).unwrap(), entries);
        let other = bent(&bytes, &bends);
        if let Ok(read) = parse_bundle(&other, width) {
            prop_assert_eq!(read.len(), usize::from(width));
            prop_assert_eq!(encode_bundle(read).unwrap(), other);
        }
    }

    #[test]
    fn a_tile_has_one_spelling(hashes in vec(hash(), 1..=256), bytes in vec(any::<u8>(), 0..200), width in 0..8u16) {
        prop_assert_eq!(parse_tile(&encode_tile(&hashes), hashes.len() as u16).unwrap(), hashes);
        if let Ok(read) = parse_tile(&bytes, width) {
            prop_assert_eq!(encode_tile(&read), bytes);
        }
    }

    #[test]
    fn a_path_is_what_another_implementation_reads(level in 0..8u8, index in 0..1u64 << 40, width in 1..=256u16) {
        let path = TileCoordinates { level, index, width }.path();
        let theirs = tlog_tiles::Tile::from_path(&path.replacen("tile/", "tile/8/", 1)).unwrap();
        prop_assert_eq!((theirs.level(), theirs.level_index(), theirs.width()), (level, index, u32::from(width)));
        let path = BundleCoordinates { index, width }.path();
        let theirs = tlog_tiles::Tile::from_path(&path.replacen("tile/entries/", "tile/8/data/", 1)).unwrap();
        prop_assert!(theirs.is_data());
        prop_assert_eq!((theirs.level_index(), theirs.width()), (index, u32::from(width)));
    }

    #[test]
    fn a_growing_log_writes_the_tiles_that_another_implementation_writes(old in 0..200_000u64, more in 1..3_000u64) {
        let ours: Vec<String> = tiles_of(old, old + more).map(|tile| tile.path()).collect();
        let mut theirs: Vec<String> = tlog_tiles::Tile::new_tiles(8, old, old + more)
            .iter()
            .map(|tile| tile.path().replacen("tile/8/", "tile/", 1))
            .collect();
        theirs.sort();
        let mut sorted = ours;
        sorted.sort();
        prop_assert_eq!(sorted, theirs);
    }

    #[test]
    fn a_proof_file_has_one_spelling(
        extra in prop::option::of(vec(any::<u8>(), 1..60)),
        index in 0..=i64::MAX as u64,
        hashes in vec(hash(), 0..63),
        checkpoint in checkpoint(),
        bends in bends(),
    ) {
        let signed = checkpoint.sign(&key()).unwrap();
        let file = ProofFile { extra, index, hashes, checkpoint: signed.note().clone() };
        let text = file.to_string();
        prop_assert_eq!(&ProofFile::parse(text.as_bytes()).unwrap(), &file);
        let other = bent(text.as_bytes(), &bends);
        if let Ok(read) = ProofFile::parse(&other) {
            prop_assert_eq!(read.to_string().into_bytes(), other);
        }
    }

    #[test]
    fn a_request_to_a_witness_has_one_spelling(
        old in 0..=i64::MAX as u64,
        proof in vec(hash(), 0..63),
        checkpoint in checkpoint(),
        bends in bends(),
    ) {
        let signed = checkpoint.sign(&key()).unwrap();
        let request = AddCheckpoint { old, proof, checkpoint: signed.note().clone() };
        let text = request.to_string();
        prop_assert_eq!(&AddCheckpoint::parse(text.as_bytes()).unwrap(), &request);
        let other = bent(text.as_bytes(), &bends);
        if let Ok(read) = AddCheckpoint::parse(&other) {
            prop_assert_eq!(read.to_string().into_bytes(), other);
        }
    }

    #[test]
    fn a_cosignature_is_for_one_text_and_one_time(checkpoint in checkpoint(), time: u64, at: prop::sample::Index, bit in 0..8u8) {
        let cosigner = CosignerKey::new(name("witness.example"), key().public());
        prop_assert_eq!(cosigner.to_string().parse::<CosignerKey>().unwrap(), cosigner.clone());
        let line = cosign(&checkpoint.text(), cosigner.name(), &key(), time);
        prop_assert_eq!(cosigner.verify_line(&checkpoint.text(), &line).unwrap().time, time);
        let mut bent = line.clone();
        let at = at.index(bent.signature.len());
        bent.signature[at] ^= 1 << bit;
        prop_assert!(cosigner.verify_line(&checkpoint.text(), &bent).is_err());
        let mut short = line.clone();
        short.signature.pop();
        prop_assert!(cosigner.verify_line(&checkpoint.text(), &short).is_err());
        let longer = checkpoint.text() + "\n";
        prop_assert!(cosigner.verify_line(&longer, &line).is_err());
    }

    #[test]
    fn any_text_is_a_policy_or_is_not(words in vec("log|witness|group|quorum|none|all|any|0|1|2|a|b|#|\n|[ -~]{0,6}", 0..40)) {
        let _ = Policy::parse(&words.join(" "));
    }

    #[test]
    fn files_of_a_hostile_log_stop_nothing(size in any::<u64>(), at in any::<u64>(), content in vec(any::<u8>(), 0..9000)) {
        let source = Hostile(content);
        for size in [size, size % 5000, u64::MAX, i64::MAX as u64] {
            let prover = Prover::new(&source, size);
            let _ = (prover.root(), prover.inclusion(at), prover.inclusion(at % size.max(1)), prover.entry(at % size.max(1)));
            let _ = (prover.consistency(at), prover.consistency(at % size.max(1)));
        }
    }
}

/// Answers every path with the same bytes.
struct Hostile(Vec<u8>);

impl LogSource for Hostile {
    fn read(&self, _: &str, limit: usize) -> Result<Option<Vec<u8>>, SourceError> {
        Ok(Some(self.0.iter().take(limit).copied().collect()))
    }
}

#[test]
fn files_longer_than_they_may_be_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(CHECKPOINT_PATH), vec![b'a'; MAX_CHECKPOINT_BYTES + 1]).unwrap();
    let source = FolderSource(folder.path().to_owned());
    assert!(matches!(
        source.read(CHECKPOINT_PATH, MAX_CHECKPOINT_BYTES),
        Err(SourceError::TooLong { limit: MAX_CHECKPOINT_BYTES, .. })
    ));
    assert!(source.read(CHECKPOINT_PATH, MAX_CHECKPOINT_BYTES + 1).unwrap().is_some());
    assert!(source.read("tile/0/000", 8192).unwrap().is_none());
    assert!(matches!(source.read("", 1), Err(SourceError::File { .. })), "a folder is no file");
}
