//! Others verify our log: `signed_note` its heads, `tlog_tiles` and `ct-merkle` its proofs and tiles, Go's sumdb all of it.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

#[path = "../examples/small-log.rs"]
mod small_log;

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use ct_merkle::{ConsistencyProof, InclusionProof, RootHash};
use kvasir_ledger::log::*;
use kvasir_merkle::Hash;
use sha2::Sha256;
use signed_note::{NoteError, StandardVerifier, VerifierList};
use small_log::{OLD_SIZE, PROVEN, SIZE, entry};
use tlog_tiles::tlog::{self, HashReader as _};
use tlog_tiles::{Tile, TileHashReader, TileReader};

/// A log in a folder, with what else `small_log` writes.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        small_log::write(folder.path()).unwrap();
        Self(folder)
    }

    fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.0.path().join(path)).unwrap()
    }

    fn text(&self, path: &str) -> String {
        String::from_utf8(self.read(path)).unwrap()
    }

    fn source(&self) -> FolderSource {
        FolderSource(self.0.path().to_owned())
    }

    fn known(&self) -> VerifierList {
        VerifierList::new(vec![Box::new(StandardVerifier::new(self.text("log.vkey").trim()).unwrap())])
    }

    /// Root and size of a head, as the other implementation reads them.
    fn head(&self, path: &str) -> (u64, tlog::Hash) {
        let note = signed_note::Note::from_bytes(&self.read(path)).unwrap();
        let (known, unknown) = note.verify(&self.known()).unwrap();
        assert_eq!((known.len(), unknown.len()), (1, 1), "the log, and a witness that is not among the keys");
        let read = tlog_tiles::Checkpoint::from_bytes(note.text()).unwrap();
        assert_eq!((read.origin(), read.extension()), (known[0].name(), ""));
        assert_eq!(read.to_bytes(), note.text());
        (read.size(), *read.hash())
    }
}

/// The other implementation's paths carry the height of tiles, and ours do not.
struct Tiles<'a>(&'a Scene);

impl TileReader for Tiles<'_> {
    fn height(&self) -> u8 {
        8
    }

    fn read_tiles(&self, tiles: &[Tile]) -> Result<Vec<Vec<u8>>, tlog::Error> {
        let read = |tile: &Tile| {
            let ours = TileCoordinates {
                level: tile.level(),
                index: tile.level_index(),
                width: u16::try_from(tile.width()).unwrap(),
            };
            assert_eq!(tile.path().replacen("tile/8/", "tile/", 1), ours.path());
            self.0.read(&ours.path())
        };
        Ok(tiles.iter().map(read).collect())
    }

    fn save_tiles(&self, _: &[Tile], _: &[Vec<u8>]) {}
}

fn theirs(hashes: &[Hash]) -> Vec<tlog::Hash> {
    hashes.iter().map(|hash| tlog::Hash(*hash.as_bytes())).collect()
}

#[test]
fn another_implementation_opens_our_heads() {
    let scene = Scene::new();
    assert_eq!(scene.head(CHECKPOINT_PATH).0, SIZE);
    assert_eq!(scene.head("checkpoint.old").0, OLD_SIZE);
    let spoiled = scene.text(CHECKPOINT_PATH).replacen("\n700\n", "\n701\n", 1);
    let spoiled = signed_note::Note::from_bytes(spoiled.as_bytes()).unwrap();
    assert!(matches!(spoiled.verify(&scene.known()), Err(NoteError::InvalidSignature { .. })));
}

#[test]
fn another_implementation_reads_our_tiles_and_makes_our_proofs() {
    let scene = Scene::new();
    let (size, root) = scene.head(CHECKPOINT_PATH);
    let (old_size, old_root) = scene.head("checkpoint.old");
    let tiles = Tiles(&scene);
    // This reader authenticates every tile that it reads by the root.
    let reader = TileHashReader::new(size, root, &tiles);
    let source = scene.source();
    let prover = Prover::new(&source, size);
    for index in (0..size).step_by(23).chain([255, 256, 511, 512, size - 1]) {
        let leaf = reader.read_hashes(&[tlog::stored_hash_index(0, index)]).unwrap()[0];
        assert_eq!(leaf, tlog::record_hash(&prover.entry(index).unwrap()));
        let ours = theirs(&prover.inclusion(index).unwrap().hashes);
        assert_eq!(ours, tlog::prove_record(size, index, &reader).unwrap(), "index {index}");
        tlog::check_record(&ours, size, root, index, leaf).unwrap();
        assert!(tlog::check_record(&ours, size, root, index, tlog::record_hash(b"another")).is_err());
    }
    for old in (1..=size).step_by(29).chain([256, 512, size]) {
        let ours = theirs(&prover.consistency(old).unwrap().hashes);
        assert_eq!(ours, tlog::prove_tree(size, old, &reader).unwrap(), "size {old}");
        let old_root = tlog::tree_hash(old, &reader).unwrap();
        tlog::check_tree(&ours, size, root, old, old_root).unwrap();
    }
    let ours = theirs(&prover.consistency(old_size).unwrap().hashes);
    tlog::check_tree(&ours, size, root, old_size, old_root).unwrap();
    assert!(tlog::check_tree(&ours, size, root, old_size, root).is_err());
}

#[test]
fn a_third_implementation_verifies_our_proofs() {
    let scene = Scene::new();
    let source = scene.source();
    let prover = Prover::new(&source, SIZE);
    let newest = root_of(SIZE);
    for index in (0..SIZE).step_by(17).chain([PROVEN, SIZE - 1]) {
        let hashes: Vec<_> =
            prover.inclusion(index).unwrap().hashes.iter().map(|hash| (*hash.as_bytes()).into()).collect();
        let proof = InclusionProof::<Sha256>::from_digests(&hashes);
        newest.verify_inclusion(&entry(index), index, &proof).unwrap();
        assert!(newest.verify_inclusion(&"another", index, &proof).is_err());
    }
    for old in (1..=SIZE).step_by(31).chain([256, OLD_SIZE, 512, SIZE]) {
        let hashes: Vec<_> =
            prover.consistency(old).unwrap().hashes.iter().map(|hash| (*hash.as_bytes()).into()).collect();
        let proof = ConsistencyProof::<Sha256>::from_digests(&hashes);
        newest.verify_consistency(&root_of(old), &proof).unwrap();
    }
}

/// The root over the first `size` entries, from the entries.
fn root_of(size: u64) -> RootHash<Sha256> {
    let leaves: kvasir_merkle::Accumulator =
        (0..size).map(|index| kvasir_merkle::leaf_hash(&entry(index))).collect();
    RootHash::new((*leaves.root().as_bytes()).into(), size)
}

#[test]
fn go_verifies_our_log_and_refuses_a_spoiled_one() {
    let scene = Scene::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/check-log-with-go");
    let check = || Command::new(&script).arg(scene.0.path()).output().unwrap();
    let good = check();
    let said = String::from_utf8(good.stdout).unwrap();
    assert!(good.status.success(), "{said}{}", String::from_utf8_lossy(&good.stderr));
    if said.starts_with("skipped: ") {
        // The handle itself: the macros' output is kept back where a test passes.
        std::io::stderr().write_all(said.as_bytes()).unwrap();
        return;
    }
    assert!(said.contains("Go verifies the log: 700 entries"), "{said}");
    for (path, at) in [("tile/0/001", 4000), ("tile/entries/000", 1500), ("entry.tlog-proof", 150)] {
        let whole = scene.read(path);
        let mut spoiled = whole.clone();
        spoiled[at] = if spoiled[at] == b'A' { b'B' } else { b'A' };
        std::fs::write(scene.0.path().join(path), spoiled).unwrap();
        assert!(!check().status.success(), "Go accepts a spoiled {path}");
        std::fs::write(scene.0.path().join(path), whole).unwrap();
    }
}
