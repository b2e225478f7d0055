//! Matrices and experts: what shapes and weights are refused, the dequantised row, and the expert against its definition.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod random;

use kvasir_numerics::*;
use random::{Random, Scales};

#[test]
fn impossible_shapes_are_refused() {
    let bytes = [0u8; 144];
    assert!(Matrix::new(Format::Q4K, 1, 256, &bytes).is_ok());
    for (rows, columns) in
        [(0, 256), (1, 0), (MAX_DIMENSION + 1, 256), (1, MAX_DIMENSION + 256), (usize::MAX, 256)]
    {
        let error = Matrix::new(Format::Q4K, rows, columns, &bytes).unwrap_err();
        assert_eq!(error, MatrixError::Dimension { rows, columns });
    }
    assert_eq!(
        Matrix::new(Format::Q4K, 1, 255, &bytes).unwrap_err(),
        MatrixError::BrokenBlocks { format: Format::Q4K, columns: 255 }
    );
    assert_eq!(
        Matrix::new(Format::Q4K, 1, 256, &bytes[1..]).unwrap_err(),
        MatrixError::WrongLength { expected: 144, found: 143 }
    );
    assert!(matches!(
        Matrix::new(Format::F32, MAX_DIMENSION, MAX_DIMENSION, &bytes).unwrap_err(),
        MatrixError::WrongLength { .. }
    ));
}

#[test]
fn weights_that_no_quantiser_writes_are_refused() {
    let mut random = Random(9);
    for format in Format::ALL {
        let columns = 2 * format.block_len().max(16);
        let good = random::weights(&mut random, format, 3, columns, Scales::Any);
        assert_eq!(Matrix::new(format, 3, columns, &good).unwrap().check_weights(), Ok(()));
        let row_bytes = format.row_bytes(columns).unwrap();
        let block = 2 * row_bytes + row_bytes - format.block_bytes();
        let (places, infinity): (&[usize], &[u8]) = match format {
            Format::F32 => (&[0], &[0, 0, 0x80, 0xff]),
            Format::BF16 => (&[0], &[0x80, 0x7f]),
            Format::F16 | Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => (&[0], &[0, 0x7c]),
            Format::IQ4NL | Format::IQ4XS => (&[0], &[0, 0xfc]),
            Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => (&[0, 2], &[1, 0xfc]),
            Format::Q2K => (&[80, 82], &[0, 0x7c]),
            Format::Q3K => (&[108], &[0xff, 0x7f]),
            Format::MXFP4 => (&[0], &[255]),
            Format::Q6K => (&[208], &[0, 0x7e]),
        };
        for place in places {
            let mut bad = good.clone();
            bad[block + place..][..infinity.len()].copy_from_slice(infinity);
            let result = Matrix::new(format, 3, columns, &bad).unwrap().check_weights();
            assert_eq!(result, Err(WeightsError::NotFinite { row: 2 }), "{format}");
        }
        if format == Format::Q8_0 {
            let mut bad = good;
            bad[block + 33] = 0x80;
            let result = Matrix::new(format, 3, columns, &bad).unwrap().check_weights();
            assert_eq!(result, Err(WeightsError::OutOfRange { row: 2 }));
        }
    }
}

/// 255 means NaN; with 253 and 254 the largest value of the table is beyond f32, with 252 it is not.
#[test]
fn the_exponents_of_mxfp4_that_make_infinite_weights_are_refused() {
    let mut block = [0x87u8; 17];
    let mut weights = [0f32; 32];
    for exponent in 0..=255 {
        block[0] = exponent;
        let matrix = Matrix::new(Format::MXFP4, 1, 32, &block).unwrap();
        dequantise_row(matrix, 0, &mut weights);
        let (finite, value) = (exponent <= 252, 12.0 * 2f64.powi(i32::from(exponent) - 128));
        assert_eq!(matrix.check_weights().is_ok(), finite, "{exponent}");
        if finite {
            assert_eq!(f64::from(weights[0]), value, "{exponent}");
        }
    }
}

#[test]
fn dequantised_rows_have_the_values_of_the_layouts() {
    let mut random = Random(4);
    let bytes = random::weights(&mut random, Format::Q4K, 2, 256, Scales::Usual);
    let matrix = Matrix::new(Format::Q4K, 2, 256, &bytes).unwrap();
    let mut found = [0f32; 256];
    dequantise_row(matrix, 1, &mut found);
    // Weight 37 of the second row: sub-block 1, the high nibble of byte 5.
    let block = &bytes[144..];
    let half = |at: usize| {
        let bits = u16::from_le_bytes([block[at], block[at + 1]]);
        let value = (f32::from(bits & 0x3ff) / 1024.0 + f32::from(bits >> 10 & 31 != 0))
            * 2f32.powi(i32::from((bits >> 10 & 31).max(1)) - 15);
        if bits & 0x8000 == 0 { value } else { -value }
    };
    let (scale, minimum) = (f32::from(block[5] & 63), f32::from(block[9] & 63));
    let expected = (half(0) * scale) * f32::from(block[16 + 5] >> 4) - half(2) * minimum;
    assert_eq!(found[37].to_bits(), expected.to_bits());

    let mut f32_row = [0f32; 4];
    let bytes: Vec<u8> = [1f32, -2.5, 0.0, 1e-40].iter().flat_map(|value| value.to_le_bytes()).collect();
    dequantise_row(Matrix::new(Format::F32, 1, 4, &bytes).unwrap(), 0, &mut f32_row);
    assert_eq!(f32_row, [1.0, -2.5, 0.0, 1e-40]);
}

#[test]
fn experts_whose_shapes_do_not_fit_are_refused() {
    let bytes = vec![0u8; 34 * 64];
    let q8_0 =
        |rows, columns| Matrix::new(Format::Q8_0, rows, columns, &bytes[..34 * rows * columns / 32]).unwrap();
    assert!(Swiglu::new(q8_0(32, 64), q8_0(32, 64), q8_0(64, 32)).is_ok());
    assert!(matches!(Swiglu::new(q8_0(32, 64), q8_0(32, 32), q8_0(64, 32)), Err(SwigluError::Shapes { .. })));
    assert!(matches!(Swiglu::new(q8_0(32, 64), q8_0(32, 64), q8_0(32, 64)), Err(SwigluError::Shapes { .. })));
    let floats = vec![0u8; 4 * 32 * 64];
    let up = Matrix::new(Format::F32, 32, 64, &floats).unwrap();
    assert!(matches!(Swiglu::new(q8_0(32, 64), up, q8_0(64, 32)), Err(SwigluError::RowFormats { .. })));
}

#[test]
fn the_expert_is_its_definition_in_every_set_and_batch() {
    for (seed, formats, hidden, width) in [
        (1, [Format::Q4K, Format::Q4K, Format::Q6K], 512, 256),
        (2, [Format::Q8_0, Format::Q4_0, Format::F16], 96, 64),
        (3, [Format::F32, Format::BF16, Format::Q8_0], 33, 32),
        (4, [Format::Q6K, Format::Q6K, Format::Q8_0], 256, 96),
        (5, [Format::Q5K, Format::Q3K, Format::IQ4NL], 512, 96),
        (6, [Format::IQ4XS, Format::Q2K, Format::MXFP4], 256, 64),
        (7, [Format::Q5_1, Format::Q5_0, Format::Q4_1], 96, 64),
    ] {
        let mut random = Random(seed);
        let gate = random::weights(&mut random, formats[0], width, hidden, Scales::Usual);
        let up = random::weights(&mut random, formats[1], width, hidden, Scales::Usual);
        let down = random::weights(&mut random, formats[2], hidden, width, Scales::Usual);
        let gate = Matrix::new(formats[0], width, hidden, &gate).unwrap();
        let up = Matrix::new(formats[1], width, hidden, &up).unwrap();
        let down = Matrix::new(formats[2], hidden, width, &down).unwrap();
        let expert = Swiglu::new(gate, up, down).unwrap();
        let rows = random::rows(&mut random, gate.row_format(), hidden, 6);
        let row_bytes = gate.row_format().row_bytes(hidden).unwrap();
        let expected: Vec<f32> =
            rows.chunks_exact(row_bytes).flat_map(|row| by_definition(&expert, row)).collect();
        for isa in InstructionSet::available() {
            for count in 0..=6 {
                let mut scratch = vec![f32::NAN; expert.scratch_len(count).unwrap()];
                let mut out = vec![f32::NAN; hidden * count];
                swiglu(isa, &expert, &rows[..row_bytes * count], count, &mut scratch, &mut out).unwrap();
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&out), bits(&expected[..hidden * count]), "{formats:?} {count} {isa}");
            }
        }
    }
}

fn by_definition(expert: &Swiglu<'_>, row: &[u8]) -> Vec<f32> {
    let scalar = InstructionSet::SCALAR;
    let (mut g, mut u) = (vec![0f32; expert.width()], vec![0f32; expert.width()]);
    product(scalar, expert.gate(), 0..expert.width(), row, 1, &mut g);
    product(scalar, expert.up(), 0..expert.width(), row, 1, &mut u);
    let h: Vec<f32> = g.iter().zip(&u).map(|(g, u)| (g / (1.0 + exp(-g))) * u).collect();
    let format = expert.down().row_format();
    let mut quantised = vec![0; format.row_bytes(h.len()).unwrap()];
    quantise_row(&h, format, &mut quantised).unwrap();
    let mut y = vec![0f32; expert.hidden()];
    product(scalar, expert.down(), 0..expert.hidden(), &quantised, 1, &mut y);
    y
}

#[test]
fn an_overflow_is_an_error_and_never_a_value() {
    let scale = 0x7bffu16.to_le_bytes();
    let block: Vec<u8> = scale.into_iter().chain([127; 32]).collect();
    let weights = block.repeat(32);
    let matrix = Matrix::new(Format::Q8_0, 32, 32, &weights).unwrap();
    let expert = Swiglu::new(matrix, matrix, matrix).unwrap();
    let mut row = [127u8; 36];
    row[..4].copy_from_slice(&1e20f32.to_le_bytes());
    for isa in InstructionSet::available() {
        let mut scratch = vec![0.0; expert.scratch_len(1).unwrap()];
        assert_eq!(swiglu(isa, &expert, &row, 1, &mut scratch, &mut [0.0; 32]), Err(NotFinite), "{isa}");
    }
    // Gate and up are fine, the last product is not.
    let small: Vec<u8> = 0x2c00u16.to_le_bytes().into_iter().chain([1; 32]).collect::<Vec<u8>>().repeat(32);
    let small = Matrix::new(Format::Q8_0, 32, 32, &small).unwrap();
    let expert = Swiglu::new(small, small, matrix).unwrap();
    row[..4].copy_from_slice(&3e15f32.to_le_bytes());
    for isa in InstructionSet::available() {
        let mut scratch = vec![0.0; expert.scratch_len(1).unwrap()];
        assert_eq!(swiglu(isa, &expert, &row, 1, &mut scratch, &mut [0.0; 32]), Err(NotFinite), "{isa}");
    }
}
