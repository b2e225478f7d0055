//! The dequantised row of every format against the Python package `gguf`, bit for bit, and the products against the f64
//! products of those weights. How the files came about is said in `data/dequantised/make.py`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod random;

use std::path::Path;

use kvasir_numerics::{Format, InstructionSet, Matrix, dequantise_row, product, read_row};
use random::Random;

/// The blocks of a format as one matrix row, and the weights that gguf made of them.
fn stored(format: Format) -> (Vec<u8>, Vec<f32>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dequantised");
    let read = |end: &str| std::fs::read(folder.join(format!("{format}.{end}"))).unwrap();
    let weights = read("weights").as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    (read("blocks"), weights)
}

/// Both multiply and add in the same order and round each operation, so that not a bit differs.
#[test]
fn every_format_dequantises_to_the_bits_of_gguf() {
    for format in Format::ALL {
        let (blocks, expected) = stored(format);
        let matrix = Matrix::new(format, 1, expected.len(), &blocks).unwrap();
        matrix.check_weights().unwrap();
        let mut found = vec![f32::NAN; expected.len()];
        dequantise_row(matrix, 0, &mut found);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.to_bits(), expected.to_bits(), "{format}, weight {at}: {found} {expected}");
        }
    }
}

/// Block by block, since the sizes of the blocks' scales differ by orders of magnitude. The terms of a block are exact
/// whole numbers until they are scaled, so that few roundings lie between the two; a float format's sum has one per term.
#[test]
fn products_with_gguf_s_blocks_are_near_the_f64_products_of_its_weights() {
    for format in Format::ALL {
        let (blocks, weights) = stored(format);
        let len = if format.block_len() == 1 { 16 } else { format.block_len() };
        let bytes = format.row_bytes(len).unwrap();
        for (index, (block, weights)) in blocks.chunks_exact(bytes).zip(weights.chunks_exact(len)).enumerate()
        {
            let matrix = Matrix::new(format, 1, len, block).unwrap();
            for seed in 0..20 {
                let row = random::rows(&mut Random(seed), format.row_format(), len, 1);
                let mut values = vec![0f32; len];
                read_row(format.row_format(), &row, &mut values);
                let terms = || weights.iter().zip(&values).map(|(w, x)| f64::from(*w) * f64::from(*x));
                let near: f64 = terms().sum();
                // A minimum is taken off last: both sides round at the size of what it is taken off. A product of tiny scales
                // is rounded to a multiple of 2^-149, then multiplied by an integer of an MXFP4 block, below 2^16.
                let size: f64 = terms().map(f64::abs).sum::<f64>() + largest_part(format, block, &values);
                for isa in InstructionSet::available() {
                    let mut found = [f32::NAN];
                    product(isa, matrix, 0..1, &row, 1, &mut found);
                    let error = (near - f64::from(found[0])).abs();
                    assert!(
                        error <= 1e-6 * size + 2f64.powi(-133),
                        "{format} block {index} seed {seed} {isa}: {near} {} {size}",
                        found[0]
                    );
                }
            }
        }
    }
}

/// Where a format has minima: a bound of what they come to.
fn largest_part(format: Format, block: &[u8], values: &[f32]) -> f64 {
    let (at, factor) = match format {
        Format::Q4_1 | Format::Q5_1 => (2, 1.0),
        Format::Q4K | Format::Q5K => (2, 63.0),
        Format::Q2K => (82, 15.0),
        _ => return 0.0,
    };
    // A Q4_1 block of quants that are one and of d = 0 has every weight m.
    let mut one_and_nothing = [0u8; 20];
    one_and_nothing[2..4].copy_from_slice(&block[at..at + 2]);
    let mut minimum = [0f32; 32];
    dequantise_row(Matrix::new(Format::Q4_1, 1, 32, &one_and_nothing).unwrap(), 0, &mut minimum);
    f64::from(minimum[0].abs()) * factor * values.iter().map(|x| f64::from(x.abs())).sum::<f64>()
}
