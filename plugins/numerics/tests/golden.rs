//! The golden vectors of the plugin: every instruction set gives the bits that the files hold, and broken files are refused.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use kvasir_numerics::golden::{GoldenVector, Outcome};
use kvasir_numerics::{InstructionSet, Swiglu, check_rows, swiglu};

fn files() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../swiglu/vectors");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.display().to_string(), std::fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn every_set_gives_the_golden_bits() {
    let files = files();
    assert_eq!(files.len(), 25);
    for (name, bytes) in files {
        let vector = GoldenVector::parse(&bytes).unwrap();
        let expert = Swiglu::new(vector.gate, vector.up, vector.down).unwrap();
        let weights =
            [vector.gate, vector.up, vector.down].iter().all(|matrix| matrix.check_weights().is_ok());
        assert_eq!(weights, vector.outcome != Outcome::MalformedWeights, "{name}");
        let rows = check_rows(vector.gate.row_format(), expert.hidden(), vector.rows, vector.count);
        assert_eq!(rows.is_ok(), vector.outcome != Outcome::MalformedRows, "{name}");
        if !weights || rows.is_err() {
            continue;
        }
        for isa in InstructionSet::available() {
            let mut scratch = vec![f32::NAN; expert.scratch_len(vector.count).unwrap()];
            let mut out = vec![f32::NAN; expert.hidden() * vector.count];
            let result = swiglu(isa, &expert, vector.rows, vector.count, &mut scratch, &mut out);
            match vector.outcome {
                Outcome::Output(expected) => {
                    result.unwrap();
                    let found: Vec<u8> = out.iter().flat_map(|value| value.to_le_bytes()).collect();
                    assert!(found == expected, "{name} under {isa}");
                }
                _ => assert!(result.is_err(), "{name} under {isa}"),
            }
        }
    }
}

#[test]
fn cut_or_extended_files_are_refused() {
    let (_, bytes) = files().into_iter().find(|(name, _)| name.ends_with("q8_0.vector")).unwrap();
    for len in (0..60).chain([bytes.len() - 1, bytes.len() / 2]) {
        assert!(GoldenVector::parse(&bytes[..len]).is_err(), "{len}");
    }
    assert!(GoldenVector::parse(&[&bytes[..], &[0]].concat()).is_err());
    for at in 16..60 {
        let mut broken = bytes.clone();
        broken[at] ^= 0x80;
        assert!(GoldenVector::parse(&broken).is_err(), "{at}");
    }
}
