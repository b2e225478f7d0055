//! The cases of transparency-dev/merkle (RFC 6962 inclusion and consistency), read where they stand. Its cases of subtrees are for
//! proofs that nothing here makes or reads.
#![allow(clippy::unwrap_used)] // a malformed vector file must fail the test

use std::io::Write as _;
use std::path::{Path, PathBuf};

use base64::{Engine, engine::general_purpose::STANDARD};
use kvasir_merkle::{Hash, HashError, leaf_hash, verify_consistency, verify_inclusion};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Inclusion {
    leaf_idx: u64,
    tree_size: u64,
    root: String,
    leaf_hash: String,
    proof: Option<Vec<String>>,
    want_err: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Consistency {
    size1: u64,
    size2: u64,
    root1: String,
    root2: String,
    proof: Option<Vec<String>>,
    want_err: bool,
}

#[test]
fn inclusion() {
    let Some(files) = cases("inclusion") else { return };
    assert_eq!(files.len(), 98);
    for (path, text) in files {
        let case: Inclusion = serde_json::from_str(&text).unwrap();
        let verdict = (|| {
            let hashes = hashes(&case.proof)?;
            let (leaf, root) = (hash(&case.leaf_hash)?, hash(&case.root)?);
            verify_inclusion(&leaf, case.leaf_idx, case.tree_size, &hashes, &root).map_err(|e| e.to_string())
        })();
        assert_eq!(verdict.is_err(), case.want_err, "{}: {verdict:?}", path.display());
    }
}

#[test]
fn consistency() {
    let Some(files) = cases("consistency") else { return };
    assert_eq!(files.len(), 98);
    for (path, text) in files {
        let case: Consistency = serde_json::from_str(&text).unwrap();
        let verdict = (|| {
            let hashes = hashes(&case.proof)?;
            let (old, new) = (placeholder(&case.root1), placeholder(&case.root2));
            verify_consistency(case.size1, case.size2, &hashes, &old, &new).map_err(|e| e.to_string())
        })();
        assert_eq!(verdict.is_err(), case.want_err, "{}: {verdict:?}", path.display());
    }
}

fn hash(text: &str) -> Result<Hash, String> {
    let bytes = STANDARD.decode(text).unwrap();
    Hash::try_from(bytes.as_slice()).map_err(|error: HashError| error.to_string())
}

/// Some consistency cases test sizes only and write words for roots. Words of another length than a hash cannot be
/// given to this API at all; here they become hashes, equal for equal words, so that the sizes decide.
fn placeholder(text: &str) -> Hash {
    hash(text).unwrap_or_else(|_| leaf_hash(text.as_bytes()))
}

fn hashes(proof: &Option<Vec<String>>) -> Result<Vec<Hash>, String> {
    proof.iter().flatten().map(|text| hash(text)).collect()
}

/// All JSON files below `merkle/<kind>`, or nothing (said aloud) where no vectors are installed.
fn cases(kind: &str) -> Option<Vec<(PathBuf, String)>> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors");
    let folder = std::env::var_os("KVASIR_VECTORS").map_or(beside, PathBuf::from).join("merkle").join(kind);
    if !folder.is_dir() {
        // The handle itself: the macros' output is kept back where a test passes.
        let line = format!("skipped: no vectors ({} is not there)\n", folder.display());
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return None;
    }
    let mut folders = vec![folder];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "json") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    Some(found)
}
