//! Products: every instruction set against the scalar reference, bit for bit, and a batch against its rows one by one.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod random;

use kvasir_numerics::{Format, InstructionSet, Matrix, RowFormat, product};
use proptest::prelude::*;
use random::{Random, Scales};

/// A NaN's payload is not defined, and no NaN is ever a result: all NaNs count as equal.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { u32::MAX } else { value.to_bits() }).collect()
}

fn run(
    isa: InstructionSet,
    matrix: Matrix<'_>,
    outputs: std::ops::Range<usize>,
    rows: &[u8],
    count: usize,
) -> Vec<u32> {
    // What stood in the output must not matter.
    let mut out = vec![f32::NAN; outputs.len() * count];
    product(isa, matrix, outputs, rows, count, &mut out);
    bits(&out)
}

#[derive(Clone, Copy, Debug)]
enum Rows {
    Usual,
    Extreme,
}

fn agree(
    seed: u64,
    format: Format,
    outputs: usize,
    columns: usize,
    count: usize,
    scales: Scales,
    kind: Rows,
) {
    let mut random = Random(seed);
    let bytes = random::weights(&mut random, format, outputs, columns, scales);
    let matrix = Matrix::new(format, outputs, columns, &bytes).unwrap();
    matrix.check_weights().unwrap();
    let row_format = format.row_format();
    let rows = match kind {
        Rows::Usual => random::rows(&mut random, row_format, columns, count),
        Rows::Extreme => random::extreme_rows(&mut random, row_format, columns, count),
    };
    kvasir_numerics::check_rows(row_format, columns, &rows, count).unwrap();
    let expected = run(InstructionSet::SCALAR, matrix, 0..outputs, &rows, count);
    let row_bytes = row_format.row_bytes(columns).unwrap();
    let mut interleaved = Vec::new();
    let interleaved = Matrix::interleaved_bytes(format, outputs, columns).map(|len| {
        interleaved.resize(len, 0xa5);
        matrix.interleave(&mut interleaved);
        Matrix::interleaved(format, outputs, columns, &interleaved).unwrap()
    });
    for isa in InstructionSet::available() {
        let context =
            format!("{format} {outputs} x {columns}, {count} rows, {isa}, {scales:?} {kind:?} seed {seed}");
        assert_eq!(run(isa, matrix, 0..outputs, &rows, count), expected, "{context}");
        let (first, last) = (outputs / 3, outputs - outputs / 4);
        if let Some(matrix) = interleaved {
            assert_eq!(run(isa, matrix, 0..outputs, &rows, count), expected, "{context}, interleaved");
            let part = run(isa, matrix, first..last, &rows, count);
            let context = format!("{context}, interleaved, outputs {first}..{last}");
            assert_eq!(part, expected[first * count..last * count], "{context}");
        }
        let part = run(isa, matrix, first..last, &rows, count);
        assert_eq!(part, expected[first * count..last * count], "{context}, outputs {first}..{last}");
        for (row, row_bytes) in rows.chunks_exact(row_bytes).enumerate() {
            let alone = run(isa, matrix, 0..outputs, row_bytes, 1);
            let batched: Vec<u32> = expected.iter().skip(row).step_by(count).copied().collect();
            assert_eq!(alone, batched, "{context}, row {row} alone");
        }
    }
}

fn columns_of(format: Format, blocks: usize) -> usize {
    if format.block_len() == 1 { blocks * 7 } else { blocks * format.block_len() }
}

#[test]
fn every_format_agrees_at_every_batch_size() {
    for format in Format::ALL {
        for count in (1..=20).chain([33]) {
            for outputs in [11, 16] {
                agree(
                    count as u64,
                    format,
                    outputs,
                    columns_of(format, 3),
                    count,
                    Scales::Usual,
                    Rows::Usual,
                );
            }
        }
    }
}

#[test]
fn every_format_agrees_on_extremes() {
    for format in Format::ALL {
        for seed in 0..40 {
            let count = 1 + seed as usize % 6;
            for outputs in [6, 8] {
                agree(seed, format, outputs, columns_of(format, 2), count, Scales::Any, Rows::Extreme);
                agree(
                    seed + 1000,
                    format,
                    outputs,
                    columns_of(format, 2),
                    count,
                    Scales::Usual,
                    Rows::Extreme,
                );
            }
        }
    }
}

#[test]
fn long_rows_agree() {
    for format in Format::ALL {
        for blocks in [31, 32, 33, 65] {
            for count in [1, 3] {
                agree(
                    blocks as u64,
                    format,
                    5,
                    columns_of(format, blocks),
                    count,
                    Scales::Usual,
                    Rows::Usual,
                );
                agree(
                    blocks as u64,
                    format,
                    8,
                    columns_of(format, blocks),
                    count,
                    Scales::Usual,
                    Rows::Usual,
                );
            }
        }
    }
}

#[test]
fn float_rows_of_any_length_agree() {
    for format in [Format::F32, Format::F16, Format::BF16] {
        for columns in 1..70 {
            agree(columns as u64, format, 5, columns, 1 + columns % 5, Scales::Usual, Rows::Usual);
        }
    }
}

#[test]
fn blocks_of_the_largest_integers_do_not_saturate() {
    let of_all = Format::ALL
        .into_iter()
        .filter(|format| format.row_format() != RowFormat::Float32 && *format != Format::Q8_0)
        .flat_map(|format| [0, 0x0f, 0x7f, 0x80, 0xf0, 0xff].map(|weight| (format, weight)));
    for (format, weight) in [(Format::Q8_0, 127u8), (Format::Q8_0, 129)].into_iter().chain(of_all) {
        for value in [127u8, 129] {
            let columns = 256;
            let mut bytes = vec![weight; format.row_bytes(columns).unwrap()];
            for block in bytes.chunks_exact_mut(format.block_bytes()) {
                let places: &[usize] = match format {
                    Format::Q6K => &[208],
                    Format::Q3K => &[108],
                    Format::Q2K => &[80, 82],
                    Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
                    Format::MXFP4 => &[],
                    _ => &[0],
                };
                for &at in places {
                    block[at..at + 2].copy_from_slice(&0x3c00u16.to_le_bytes());
                }
                if format == Format::MXFP4 {
                    block[0] = 128;
                }
            }
            let matrix = Matrix::new(format, 1, columns, &bytes).unwrap();
            let eight = bytes.repeat(8);
            let eight = Matrix::new(format, 8, columns, &eight).unwrap();
            let row_format = format.row_format();
            let mut row = vec![value; row_format.row_bytes(columns).unwrap()];
            for block in row.chunks_exact_mut(row_format.block_bytes()) {
                block[..4].copy_from_slice(&1f32.to_le_bytes());
            }
            let rows = row.repeat(4);
            let expected = run(InstructionSet::SCALAR, matrix, 0..1, &rows, 4);
            let mut interleaved = vec![0; Matrix::interleaved_bytes(format, 8, columns).unwrap_or_default()];
            for isa in InstructionSet::available() {
                assert_eq!(run(isa, matrix, 0..1, &rows, 4), expected, "{format} {weight} x {value} {isa}");
                if !interleaved.is_empty() {
                    eight.interleave(&mut interleaved);
                    let matrix = Matrix::interleaved(format, 8, columns, &interleaved).unwrap();
                    let found = run(isa, matrix, 5..6, &rows, 4);
                    assert_eq!(found, expected, "{format} {weight} x {value} {isa}, interleaved");
                }
                assert_eq!(
                    run(isa, matrix, 0..1, &row, 1),
                    expected[..1],
                    "{format} {weight} x {value} {isa}"
                );
            }
        }
    }
}

/// Values worked out by hand from the definition.
#[test]
fn a_block_gives_the_value_of_the_definition() {
    // Q8_0: d = 0.5, weights 1, 2, 3, ...; row: d = 2, values all 1: 0.5 * 2 * (1 + ... + 32) = 528.
    let mut q8_0 = 0x3800u16.to_le_bytes().to_vec();
    q8_0.extend(1..=32);
    let mut row = 2f32.to_le_bytes().to_vec();
    row.extend([1u8; 32]);
    assert_eq!(one(Format::Q8_0, 32, &q8_0, &row), 528.0);
    // Q4_0: nibbles 9 (weight 1) low, 6 (weight -2) high; row 1 in the first half, 3 in the second: 16 - 96 = -80.
    let mut q4_0 = 0x3c00u16.to_le_bytes().to_vec();
    q4_0.extend([0x69u8; 16]);
    let mut row = 1f32.to_le_bytes().to_vec();
    row.extend([[1u8; 16], [3; 16]].concat());
    assert_eq!(one(Format::Q4_0, 32, &q4_0, &row), -80.0);
    // Q4_K: d = 1, dmin = 0.5, every scale 3 and minimum 2 (packed: low four 3 | 0, 2 | 0; high four 0x23), nibbles 5, row 1:
    // 3 * 5 * 256 - 0.5 * 2 * 256 = 3584.
    let mut q4_k = [0x3c00u16.to_le_bytes(), 0x3800u16.to_le_bytes()].concat();
    q4_k.extend([3, 3, 3, 3, 2, 2, 2, 2, 0x23, 0x23, 0x23, 0x23]);
    q4_k.extend([0x55u8; 128]);
    let mut row = 1f32.to_le_bytes().to_vec();
    row.extend([1u8; 256]);
    assert_eq!(one(Format::Q4K, 256, &q4_k, &row), 3584.0);
    // Q6_K: d = 1, every scale -2, low nibbles 1 and high pairs 2: 33 - 32 = 1; row 1: -2 * 256 = -512.
    let mut q6_k = vec![0x11u8; 128];
    q6_k.extend([0b1010_1010u8; 64]);
    q6_k.extend([0xfeu8; 16]);
    q6_k.extend(0x3c00u16.to_le_bytes());
    assert_eq!(one(Format::Q6K, 256, &q6_k, &row), -512.0);
    // Q4_1: d = 0.5, m = -2, nibbles 3, row 2 * 1: (1.5 - 2) * 2 * 32 = -32.
    let mut small_row = 2f32.to_le_bytes().to_vec();
    small_row.extend([1u8; 32]);
    let halves = |halves: &[u16]| halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<u8>>();
    let q4_1 = [&halves(&[0x3800, 0xc000])[..], &[0x33; 16]].concat();
    assert_eq!(one(Format::Q4_1, 32, &q4_1, &small_row), -32.0);
    // Q5_0: nibbles 1, every fifth bit of the first half set: 16 x (17 - 16) and 16 x (1 - 16), times 2.
    let q5_0 = [&halves(&[0x3c00])[..], &[0xff, 0xff, 0, 0], &[0x11; 16]].concat();
    assert_eq!(one(Format::Q5_0, 32, &q5_0, &small_row), -448.0);
    // Q5_1: the same quants, d = 1, m = 1: (16 x 17 + 16 x 1 + 32) x 2.
    let q5_1 = [&halves(&[0x3c00, 0x3c00])[..], &[0xff, 0xff, 0, 0], &[0x11; 16]].concat();
    assert_eq!(one(Format::Q5_1, 32, &q5_1, &small_row), 640.0);
    // IQ4_NL: nibbles 0 low (-127), 15 high (113): 16 x (113 - 127) x 2.
    let iq4_nl = [&halves(&[0x3c00])[..], &[0xf0; 16]].concat();
    assert_eq!(one(Format::IQ4NL, 32, &iq4_nl, &small_row), -448.0);
    // MXFP4: 2^(129 - 128), nibbles 7 low (12) and 9 high (-1): 2 x 16 x 11 x 2.
    let mxfp4 = [&[129][..], &[0x97; 16]].concat();
    assert_eq!(one(Format::MXFP4, 32, &mxfp4, &small_row), 704.0);
    // Q2_K: every scale 3 and minimum 1, every quant 2, d = 1, dmin = 0.5: 256 x (6 - 0.5).
    let q2_k = [&[0x13u8; 16][..], &[0xaa; 64], &halves(&[0x3c00, 0x3800])].concat();
    assert_eq!(one(Format::Q2K, 256, &q2_k, &row), 1408.0);
    // Q3_K: scales 35 - 32 (low nibble 3, upper pair 2), quants 1, third bits of the first 32 weights alone: their weight is 1,
    // that of the others 1 - 4: 3 x (32 - 3 x 224).
    let q3_k = [&[0x01u8; 32][..], &[0x55; 64], &[0x33; 8], &[0xaa; 4], &halves(&[0x3c00])].concat();
    assert_eq!(one(Format::Q3K, 256, &q3_k, &row), -1920.0);
    // Q5_K: scales and minima as of Q4_K above, nibbles 5, fifth bits of the last 32 weights alone: 3 x (1280 + 16 x 32) - 256.
    let scales = [3, 3, 3, 3, 2, 2, 2, 2, 0x23, 0x23, 0x23, 0x23];
    let q5_k = [&halves(&[0x3c00, 0x3800])[..], &scales, &[0x80; 32], &[0x55; 128]].concat();
    assert_eq!(one(Format::Q5K, 256, &q5_k, &row), 5120.0);
    // IQ4_XS: scales 34 - 32 (low nibble 2, upper pair 2) but the last, 35 - 32; every nibble 8, value 1: 2 x 224 + 3 x 32.
    let iq4_xs = [&halves(&[0x3c00, 0xaaaa])[..], &[0x22, 0x22, 0x22, 0x32], &[0x88; 128]].concat();
    assert_eq!(one(Format::IQ4XS, 256, &iq4_xs, &row), 544.0);
}

fn one(format: Format, columns: usize, weights: &[u8], row: &[u8]) -> f32 {
    let matrix = Matrix::new(format, 1, columns, weights).unwrap();
    let mut results = InstructionSet::available().map(|isa| {
        let mut out = [f32::NAN];
        product(isa, matrix, 0..1, row, 1, &mut out);
        out[0]
    });
    let first = results.next().unwrap();
    assert!(results.all(|result| result.to_bits() == first.to_bits()));
    first
}

/// The product of dequantised weights and rows in f64 is near the exact-v1 product: the definition computes what it says.
#[test]
fn products_are_near_the_dequantised_ones() {
    for format in Format::ALL {
        let columns = columns_of(format, 4);
        let mut random = Random(7);
        let bytes = random::weights(&mut random, format, 3, columns, Scales::Usual);
        let matrix = Matrix::new(format, 3, columns, &bytes).unwrap();
        let row = random::rows(&mut random, format.row_format(), columns, 1);
        let (mut weights, mut values, mut out) = (vec![0f32; columns], vec![0f32; columns], [0f32; 3]);
        kvasir_numerics::read_row(format.row_format(), &row, &mut values);
        product(InstructionSet::SCALAR, matrix, 0..3, &row, 1, &mut out);
        for (output, found) in out.into_iter().enumerate() {
            kvasir_numerics::dequantise_row(matrix, output, &mut weights);
            let terms = || weights.iter().zip(&values).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let (near, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
            assert!((near - f64::from(found)).abs() <= 1e-5 * size, "{format}: {near} {found}");
        }
    }
}

#[test]
fn no_rows_and_no_outputs_are_nothing() {
    let bytes = [0; 34 * 2];
    let matrix = Matrix::new(Format::Q8_0, 2, 32, &bytes).unwrap();
    for isa in InstructionSet::available() {
        product(isa, matrix, 0..2, &[], 0, &mut []);
        product(isa, matrix, 1..1, &[0; 36], 1, &mut []);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn sets_agree(
        seed: u64,
        format in prop::sample::select(&Format::ALL[..]),
        outputs in 1usize..18,
        blocks in 1usize..6,
        count in 1usize..14,
        any: bool,
        extreme: bool,
    ) {
        let scales = if any { Scales::Any } else { Scales::Usual };
        let kind = if extreme { Rows::Extreme } else { Rows::Usual };
        agree(seed, format, outputs, columns_of(format, blocks), count, scales, kind);
    }
}

#[test]
fn row_formats_fit_the_formats() {
    for format in Format::ALL {
        assert_eq!(format.block_len() % format.row_format().block_len(), 0);
    }
    assert_eq!(Format::Q6K.row_format(), RowFormat::Q8K);
}
