//! Damage at random and at every boundary: whatever bytes a file holds, opening it ends in a model or in an error,
//! never in a panic, and a model that opens can be read.

#![allow(clippy::unwrap_used)] // a test that panics has failed

mod forge;

use std::path::Path;

use forge::{Folder, Gguf, repository};
use kvasir_model::{ExpertIndex, Model, ModelError};
use proptest::prelude::*;

/// Open bytes as a GGUF file; read everything where they are a model.
fn open_gguf(folder: &Path, bytes: &[u8]) -> Result<(), ModelError> {
    let path = folder.join("damaged.gguf");
    std::fs::write(&path, bytes).unwrap();
    exercise(&path)
}

fn exercise(path: &Path) -> Result<(), ModelError> {
    let model = Model::open(path)?;
    for layer in model.config().layer_indices() {
        for expert in 0..model.config().experts as u16 {
            let tensors = model.expert(layer, ExpertIndex(expert))?;
            let _ = tensors.check_weights();
        }
        let _ = model.layer(layer);
    }
    let tokens = model.tokenizer().encode("The ab\n 12").unwrap();
    let _ = model.tokenizer().decode(&tokens);
    model.digests()?;
    Ok(())
}

#[test]
fn a_file_cut_off_at_any_boundary_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let written = Gguf::small().write();
    open_gguf(folder.path(), &written.bytes).unwrap();
    // Every byte of the first kilobyte and of the directory's start, and both sides of every part elsewhere.
    let mut cuts: Vec<usize> = (0..1024).collect();
    cuts.extend(written.marks.values().flat_map(|&at| [at.saturating_sub(1), at, at + 1, at + 5]));
    cuts.sort();
    cuts.dedup();
    // The last tensor's padding may be missing: nothing of it is used.
    let last = written.marks.values().max().unwrap() + 2 * 32 * 34 * 2;
    for cut in cuts.into_iter().filter(|&cut| cut < last.min(written.bytes.len())) {
        let error = open_gguf(folder.path(), &written.bytes[..cut]).unwrap_err();
        assert!(matches!(error, ModelError::Damaged { .. }), "cut at {cut}: {error}");
    }
}

#[test]
fn a_folders_file_cut_off_anywhere_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::small();
    for (name, bytes) in &folder.files {
        let step = (bytes.len() / 150).max(1);
        // The last byte of config.json is a line feed.
        for cut in (0..bytes.len() - 1).step_by(step) {
            folder.clone().put(name, bytes[..cut].to_vec()).write(place.path());
            assert!(exercise(place.path()).is_err(), "{name} cut at {cut}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    /// Bytes of the header overwritten, in a real file.
    #[test]
    fn a_real_header_with_wrong_bytes(changes in prop::collection::vec((0usize..17_200, any::<u8>()), 1..6)) {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = tiny().to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        let _ = open_gguf(folder.path(), &bytes);
    }

    /// Single bits flipped anywhere in the small model.
    #[test]
    fn flipped_bits(flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..4)) {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = Gguf::small().write().bytes;
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        let _ = open_gguf(folder.path(), &bytes);
    }

    /// A number of the header (count, length, dimension, offset, type) replaced by an extreme one.
    #[test]
    fn extreme_numbers(mark in any::<prop::sample::Index>(), shift in 0usize..24, value in prop::sample::select(EXTREMES.to_vec())) {
        let folder = tempfile::tempdir().unwrap();
        let written = Gguf::small().write();
        let at = written.marks.values().nth(mark.index(written.marks.len())).unwrap() + shift;
        let mut bytes = written.bytes;
        if let Some(place) = bytes.get_mut(at..at + 8) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        let _ = open_gguf(folder.path(), &bytes);
    }

    /// Bytes of a folder's files overwritten.
    #[test]
    fn folders_with_wrong_bytes(file in 0usize..3, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5)) {
        let place = tempfile::tempdir().unwrap();
        let mut folder = Folder::small();
        let bytes = folder.files.values_mut().nth(file).unwrap();
        // In safetensors, the header is where structure lies.
        let end = bytes.len().min(9000);
        for (at, byte) in changes {
            bytes[at.index(end)] = byte;
        }
        folder.write(place.path());
        let _ = exercise(place.path());
    }

    /// Bytes that are no model at all.
    #[test]
    fn noise(mut bytes in prop::collection::vec(any::<u8>(), 0..600), magic in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        if magic && bytes.len() > 24 {
            bytes[..8].copy_from_slice(b"GGUF\x03\0\0\0");
            bytes[9..16].fill(0);
            bytes[17..24].fill(0);
        }
        prop_assert!(open_gguf(folder.path(), &bytes).is_err());
    }
}

const EXTREMES: [u64; 8] = [0, 1, 5, 1 << 20, u32::MAX as u64, 1 << 40, i64::MAX as u64, u64::MAX];

fn tiny() -> &'static [u8] {
    static TINY: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    TINY.get_or_init(|| std::fs::read(repository("tests/data/tiny/tiny-q4_0.gguf")).unwrap())
}
