//! Digests: against values computed apart from this program, proofs against the model's digest, and blobs from anywhere.

#![allow(clippy::unwrap_used)] // a test that panics has failed

mod forge;

use forge::repository;
use kvasir_merkle::Hash;
use kvasir_model::{BlobError, ExpertBlob, ExpertIndex, Format, LayerIndex, Model, RowFormat, expert_leaf};
use proptest::prelude::*;

fn tiny(kind: &str) -> Model {
    Model::open(&repository(&format!("tests/data/tiny/tiny-{kind}.gguf"))).unwrap()
}

fn a_blob() -> Vec<u8> {
    tiny("q8_0").expert(LayerIndex(0), ExpertIndex(0)).unwrap().blob()
}

/// The values were computed by forty lines of Python over the files, from the definition alone: model, first expert,
/// last expert.
#[test]
fn digests_are_those_of_an_independent_computation() {
    for (kind, model, first, last) in [
        (
            "f16",
            "e7e35ec8c7e159c6bd2221629a2d64462bee26e7a7e30f0f15c5ce4201f3bf4b",
            "100b64df4a7fde8df65c6421707912bf45cba73e76de2668ecd96142f4fa83fa",
            "d0cd5a0810e091ef2f6efa31bf842532b4edddc50f8f7f73031fa1b96c04142d",
        ),
        (
            "q4_0",
            "132e2eac5e7932ebdd8c9fcfcfd36de5401458622e5426c8fdc0f5c184989fec",
            "4e50d42ab30b8249ee8cba7fbcff4a24a6cbebe9e61c1d1d8e50e56aeab55d87",
            "a22ce1292ceba09ee5283d64b9109d2fcc80089f30006d3f372c8ca544d94c85",
        ),
        (
            "q8_0",
            "09f950c0921b6c77f20459c3391a56bbe1af2d44f96037d67fa7c834888161fd",
            "c9e9ed75fb577c108c461091029a97849f05b5656f03b5bff73acf6577c0f7c0",
            "09ae27fd69ff66ab887489f1ecf131f670e9ea51ec646e0f027471be503cb014",
        ),
    ] {
        let opened = tiny(kind);
        let digests = opened.digests().unwrap();
        assert_eq!(digests.model.to_string(), model);
        assert_eq!(digests.leaf_count(), 97);
        assert_eq!(digests.expert(LayerIndex(0), ExpertIndex(0)).unwrap().to_string(), first);
        assert_eq!(opened.expert_digest(LayerIndex(3), ExpertIndex(7)).unwrap().to_string(), last);
    }
}

#[test]
fn every_expert_has_a_proof_and_no_proof_serves_another() {
    let model = tiny("q4_0");
    let digests = model.digests().unwrap();
    let root = Hash(digests.model.0);
    for layer in (0..4).map(LayerIndex) {
        for expert in (0..8).map(ExpertIndex) {
            let proof = digests.proof(layer, expert).unwrap();
            let digest = digests.expert(layer, expert).unwrap();
            proof.verify(&expert_leaf(layer, expert, &digest), &root).unwrap();
            assert_eq!(
                digests.expert_leaf_index(layer, expert),
                Some(65 + u64::from(layer.0) * 8 + u64::from(expert.0))
            );
            let next = ExpertIndex((expert.0 + 1) % 8);
            let other = digests.expert(layer, next).unwrap();
            assert!(proof.verify(&expert_leaf(layer, expert, &other), &root).is_err());
            assert!(proof.verify(&expert_leaf(layer, next, &digest), &root).is_err(), "under another name");
            let below = LayerIndex((layer.0 + 1) % 4);
            assert!(proof.verify(&expert_leaf(below, expert, &digest), &root).is_err(), "in another layer");
        }
    }
    assert!(digests.proof(LayerIndex(0), ExpertIndex(8)).is_none());
    assert!(digests.expert(LayerIndex(4), ExpertIndex(0)).is_none());
    assert!(digests.expert_leaf_index(LayerIndex(u16::MAX), ExpertIndex(u16::MAX)).is_none());
}

#[test]
fn blobs_round_trip() {
    for kind in ["f16", "bf16", "q8_0", "q4_0"] {
        let model = tiny(kind);
        let expert = model.expert(LayerIndex(2), ExpertIndex(5)).unwrap();
        let blob = expert.blob();
        let parsed = ExpertBlob::parse(&blob).unwrap();
        assert_eq!((parsed.hidden(), parsed.width()), (64, 32));
        assert_eq!(parsed.row_format(), expert.gate.row_format());
        assert_eq!(&blob[parsed.gate.range.clone()], expert.gate.bytes());
        assert_eq!(&blob[parsed.up.range.clone()], expert.up.bytes());
        assert_eq!(&blob[parsed.down.range.clone()], expert.down.bytes());
        assert_eq!(ExpertBlob::digest(&blob), expert.digest());
    }
}

#[test]
fn blobs_that_are_not_experts_are_refused() {
    let good = a_blob();
    let parsed = ExpertBlob::parse(&good).unwrap();
    let matrix = 16 + parsed.gate.range.len();
    let changed = |at: usize, word: u32| {
        let mut blob = good.clone();
        blob[at..at + 4].copy_from_slice(&word.to_le_bytes());
        ExpertBlob::parse(&blob)
    };
    assert!(matches!(ExpertBlob::parse(&[]), Err(BlobError::Short { matrix: "gate", .. })));
    assert!(matches!(
        ExpertBlob::parse(&good[..good.len() - 1]),
        Err(BlobError::Short { matrix: "down", needed: 1, .. })
    ));
    let longer = [&good[..], &[0]].concat();
    assert!(matches!(ExpertBlob::parse(&longer), Err(BlobError::Trailing { extra: 1, .. })));
    match changed(matrix, 16) {
        Err(error @ BlobError::Format { matrix: "up", number: 16, .. }) => {
            assert!(error.to_string().contains("format 16 (IQ2_XXS) is not supported yet"));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(changed(0, u32::MAX), Err(BlobError::Format { name: "unknown", .. })));
    assert!(matches!(changed(4, 0), Err(BlobError::Length { matrix: "gate", .. })));
    assert!(matches!(changed(8, u32::MAX), Err(BlobError::Length { .. })));
    assert!(matches!(changed(12, u32::MAX), Err(BlobError::Length { .. })));
    // As many weights, another shape.
    let mut wide = good.clone();
    wide[4..8].copy_from_slice(&16u32.to_le_bytes());
    wide[8..12].copy_from_slice(&128u32.to_le_bytes());
    assert!(matches!(ExpertBlob::parse(&wide), Err(BlobError::Shapes { gate: (16, 128), .. })));
    let mut weight = good.clone();
    weight[16 + 34 + 2] = 0x80;
    assert!(matches!(ExpertBlob::parse(&weight), Err(BlobError::Weights { matrix: "gate", .. })));
    let too_large = vec![0; kvasir_model::limits::MAX_EXPERT_BLOB_BYTES as usize + 1];
    assert!(matches!(ExpertBlob::parse(&too_large), Err(BlobError::TooLarge { .. })));
}

#[test]
fn gate_and_up_must_read_the_same_rows() {
    let (q8, f16) = (tiny("q8_0"), tiny("f16"));
    let of = |model: &Model| model.expert(LayerIndex(0), ExpertIndex(0)).unwrap().blob();
    let (q8, f16) = (of(&q8), of(&f16));
    let (a, b) = (ExpertBlob::parse(&q8).unwrap(), ExpertBlob::parse(&f16).unwrap());
    assert_eq!((a.gate.format, b.up.format), (Format::Q8_0, Format::F16));
    let mixed = [&q8[..a.gate.range.end], &f16[b.gate.range.end..]].concat();
    match ExpertBlob::parse(&mixed) {
        Err(BlobError::RowFormatsDiffer { gate: RowFormat::Q8, up: RowFormat::Float32 }) => {}
        other => panic!("{other:?}"),
    }
    // Down reads a row of its own: it may differ.
    let down = [&q8[..a.up.range.end], &f16[b.up.range.end..]].concat();
    assert_eq!(ExpertBlob::parse(&down).unwrap().down.format, Format::F16);
}

proptest! {
    /// Bytes changed anywhere: parsed or refused, never a panic; and another digest.
    #[test]
    fn changed_blobs(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<Option<prop::sample::Index>>()) {
        static BLOB: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let good = BLOB.get_or_init(a_blob);
        let mut blob = good.clone();
        let at = at.index(blob.len());
        blob[at] = byte;
        if let Some(cut) = cut {
            blob.truncate(cut.index(good.len()));
            prop_assert!(ExpertBlob::parse(&blob).is_err());
        }
        let _ = ExpertBlob::parse(&blob);
        prop_assert_eq!(ExpertBlob::digest(&blob) == ExpertBlob::digest(good), &blob == good);
    }

    /// Headers of any three words.
    #[test]
    fn any_header(words in prop::array::uniform4(any::<u32>()), tail in prop::collection::vec(any::<u8>(), 0..64)) {
        let blob: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).chain(tail).collect();
        prop_assert!(ExpertBlob::parse(&blob).is_err());
    }
}
