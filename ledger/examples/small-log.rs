//! Writes a small public log for programs of others to verify: `cargo run -p kvasir-ledger --example small-log -- FOLDER`.
//!
//! Beside the log's own files (`checkpoint`, `tile/`) lie the keys (`log.vkey`, `witness.vkey`), an older head
//! (`checkpoint.old`), the proof between both (`consistency`, a hash a line) and a proof file (`entry.tlog-proof`). The
//! keys are fixed and worth nothing. `scripts/check-log-with-go` reads it, and so do tests.

use std::error::Error;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kvasir_ledger::log::{
    CHECKPOINT_PATH, Checkpoint, CosignerKey, FolderSource, ProofFile, Prover, TILE_HASHES, bundles_of,
    cosign, encode_bundle, encode_tile, log_verifier, tiles_of,
};
use kvasir_merkle::{Accumulator, Hash, Tree, leaf_hash};
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::KeyName;

/// Entries of the log: three tiles and a bit, so that every kind of file is there.
pub const SIZE: u64 = 700;
/// Entries that the older head covers.
pub const OLD_SIZE: u64 = 300;
/// The entry with a proof file.
pub const PROVEN: u64 = 421;
/// Unix seconds of the cosignature.
pub const COSIGNED_AT: u64 = 1_790_000_000;

#[allow(dead_code)] // tests that take this file in call `write` alone
fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: small-log FOLDER")?;
    write(Path::new(&folder))?;
    println!("a log of {SIZE} entries in {folder}");
    Ok(())
}

/// The entry at `index`.
pub fn entry(index: u64) -> Vec<u8> {
    // Among them empty ones, and ones that are not text.
    if index % 100 == 7 { Vec::new() } else { format!("entry {index} \u{2014}\n").into_bytes() }
}

/// Writes the log into `folder`, which is made where it is missing.
pub fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    let tree: Tree = (0..SIZE).map(|index| leaf_hash(&entry(index))).collect();
    let put = |path: &str, bytes: &[u8]| -> std::io::Result<()> {
        let file = folder.join(path);
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(file, bytes)
    };
    for tile in tiles_of(0, SIZE) {
        let leaves = TILE_HASHES.pow(u32::from(tile.level));
        let first = tile.index * TILE_HASHES;
        let subtree = |at: u64| (at * leaves..(at + 1) * leaves).filter_map(|index| tree.leaf(index));
        let hashes: Vec<Hash> = (first..first + u64::from(tile.width))
            .map(|at| subtree(at).collect::<Accumulator>().root())
            .collect();
        put(&tile.path(), &encode_tile(&hashes))?;
    }
    for bundle in bundles_of(0, SIZE) {
        let first = bundle.first_entry();
        let entries: Vec<Vec<u8>> = (first..first + u64::from(bundle.width)).map(entry).collect();
        put(&bundle.path(), &encode_bundle(entries.iter().map(Vec::as_slice))?)?;
    }

    let (log_key, witness_key) = (SecretKey::from_seed([1; 32]), SecretKey::from_seed([2; 32]));
    let origin: KeyName = "kvasir.example/small/00000001".parse()?;
    let witness: KeyName = "witness.example".parse()?;
    put("log.vkey", format!("{}\n", log_verifier(&origin, log_key.public())).as_bytes())?;
    put("witness.vkey", format!("{}\n", CosignerKey::new(witness.clone(), witness_key.public())).as_bytes())?;
    let head = |size| -> Result<_, Box<dyn Error>> {
        let signed = Checkpoint { origin: origin.clone(), size, root: tree.root_at(size)? }.sign(&log_key)?;
        let line = cosign(signed.note().text(), &witness, &witness_key, COSIGNED_AT);
        Ok(signed.with_lines([line])?)
    };
    let newest = head(SIZE)?;
    put("checkpoint.old", head(OLD_SIZE)?.note().to_string().as_bytes())?;
    put(CHECKPOINT_PATH, newest.note().to_string().as_bytes())?;

    let source = FolderSource(folder.to_owned());
    let prover = Prover::new(&source, SIZE);
    let lines: String = prover
        .consistency(OLD_SIZE)?
        .hashes
        .iter()
        .map(|hash| STANDARD.encode(hash.as_bytes()) + "\n")
        .collect();
    put("consistency", lines.as_bytes())?;
    let proof = ProofFile {
        extra: Some(entry(PROVEN)),
        index: PROVEN,
        hashes: prover.inclusion(PROVEN)?.hashes,
        checkpoint: newest.note().clone(),
    };
    put("entry.tlog-proof", proof.to_string().as_bytes())?;
    Ok(())
}
