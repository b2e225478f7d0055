//! Rows: quantisation of a hidden vector, the check of rows that came from outside, and reading them back. The format
//! is the section "Rows" of the exact-v1 definition.

use crate::format::RowFormat;
use crate::half::read_f32;

/// A NaN or an infinity stood where the arithmetic allows finite numbers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite;

impl core::fmt::Display for NotFinite {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a NaN or an infinity in the arithmetic")
    }
}

impl core::error::Error for NotFinite {}

/// Why bytes from outside are not rows of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsError {
    /// The number of bytes is not `count` whole rows.
    WrongLength {
        /// Bytes of `count` rows, or `None` where `columns` is no whole number of blocks or the product overflows.
        expected: Option<usize>,
        /// Bytes given.
        found: usize,
    },
    /// The scale of block `block` (counted over all rows) is negative, infinite or NaN.
    Scale {
        /// The block, counted over all rows.
        block: usize,
    },
    /// Value `value` (counted over all rows) is -128 (which no quantiser writes) or, in f32 rows, not finite.
    Value {
        /// The value, counted over all rows.
        value: usize,
    },
}

impl core::fmt::Display for RowsError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RowsError::WrongLength { expected: Some(expected), found } => {
                write!(f, "the rows need {expected} bytes, {found} were given")
            }
            RowsError::WrongLength { expected: None, found } => {
                write!(f, "{found} bytes are no whole number of blocks and rows")
            }
            RowsError::Scale { block } => {
                write!(f, "the scale of row block {block} is negative or not finite")
            }
            RowsError::Value { value } => write!(f, "row value {value} is -128 or not finite"),
        }
    }
}

impl core::error::Error for RowsError {}

/// Below this largest magnitude a block is all zero.
const SMALLEST_MAGNITUDE: f32 = 1e-30;

/// Adding and taking away 1.5 * 2^23 rounds a number below 2^22 in magnitude to the nearest integer, ties to even, in
/// every IEEE-754 implementation: `f32::round_ties_even` is not in `core`.
pub(crate) const ROUNDER: f32 = 12_582_912.0;

/// Quantises `row` into `out`, whose length must be `format.row_bytes(row.len())`.
///
/// Per block: `amax = max |x_i|`; below 1e-30 all is zero; else `d = amax / 127` and
/// `q_i = round_ties_even(x_i * (127 / amax))`.
///
/// # Errors
/// [`NotFinite`] where `row` holds a NaN or an infinity; `out` is then unspecified.
///
/// # Panics
/// Where `out` has another length, or `row` is no whole number of blocks.
pub fn quantise_row(row: &[f32], format: RowFormat, out: &mut [u8]) -> Result<(), NotFinite> {
    assert_eq!(
        Some(out.len()),
        format.row_bytes(row.len()),
        "quantise_row: out is not a {format} row of this length"
    );
    match format {
        RowFormat::Float32 => {
            for (value, bytes) in row.iter().zip(out.chunks_exact_mut(4)) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
            if all_finite(row) { Ok(()) } else { Err(NotFinite) }
        }
        RowFormat::Q8 => quantise_blocks::<32>(row, out),
        RowFormat::Q8K => quantise_blocks::<256>(row, out),
    }
}

/// Checks `count` rows of `columns` values that came from outside: whole rows, scales finite and not below zero, values
/// above -128 (f32 rows: finite). The kernels' exactness rests on this for foreign rows; `quantise_row` ensures it.
///
/// # Errors
/// The first fault found.
pub fn check_rows(format: RowFormat, columns: usize, rows: &[u8], count: usize) -> Result<(), RowsError> {
    let expected = format.row_bytes(columns).and_then(|bytes| bytes.checked_mul(count));
    if expected != Some(rows.len()) {
        return Err(RowsError::WrongLength { expected, found: rows.len() });
    }
    if format == RowFormat::Float32 {
        let faulty = rows.chunks_exact(4).position(|bytes| !read_f32(bytes).is_finite());
        return faulty.map_or(Ok(()), |value| Err(RowsError::Value { value }));
    }
    for (index, block) in rows.chunks_exact(format.block_bytes()).enumerate() {
        let (scale, values) = block.split_at(4);
        let scale = read_f32(scale);
        if !scale.is_finite() || scale.is_sign_negative() {
            return Err(RowsError::Scale { block: index });
        }
        // Without an early exit the compiler vectorises the search; the position is looked for only after a fault.
        if values.iter().fold(false, |found, &value| found | (value == 0x80)) {
            let at = values.iter().position(|&value| value == 0x80).unwrap_or(0);
            return Err(RowsError::Value { value: index * format.block_len() + at });
        }
    }
    Ok(())
}

/// Reads one row back as numbers: `d * q`, rounded once. For tests and for tools; no kernel needs it.
///
/// # Panics
/// Where `bytes` is not a row of `out.len()` values.
pub fn read_row(format: RowFormat, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(bytes.len()),
        format.row_bytes(out.len()),
        "read_row: bytes are not a {format} row of this length"
    );
    if format == RowFormat::Float32 {
        for (value, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
            *value = read_f32(bytes);
        }
        return;
    }
    for (values, block) in
        out.chunks_exact_mut(format.block_len()).zip(bytes.chunks_exact(format.block_bytes()))
    {
        let scale = read_f32(block);
        for (value, &quant) in values.iter_mut().zip(&block[4..]) {
            *value = scale * f32::from(quant as i8);
        }
    }
}

/// Whether no value is NaN or infinite.
pub(crate) fn all_finite(values: &[f32]) -> bool {
    const INFINITY: u32 = 0x7f80_0000;
    values.iter().fold(true, |finite, value| finite & (value.to_bits() & 0x7fff_ffff < INFINITY))
}

fn quantise_blocks<const LEN: usize>(row: &[f32], out: &mut [u8]) -> Result<(), NotFinite> {
    let (blocks, rest) = row.as_chunks::<LEN>();
    debug_assert!(rest.is_empty());
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(4 + LEN)) {
        // Magnitudes of floats order as their bits do; the bits of NaN and infinity are the largest.
        let largest =
            block.iter().fold(0i32, |largest, value| largest.max((value.to_bits() & 0x7fff_ffff) as i32));
        let largest = f32::from_bits(largest as u32);
        if !largest.is_finite() {
            return Err(NotFinite);
        }
        let (scale, quants) = out.split_at_mut(4);
        if largest < SMALLEST_MAGNITUDE {
            scale.copy_from_slice(&0f32.to_le_bytes());
            quants.fill(0);
            continue;
        }
        scale.copy_from_slice(&(largest / 127.0).to_le_bytes());
        let factor = 127.0 / largest;
        for (quant, value) in quants.iter_mut().zip(block) {
            // The low bits of the shifted number are the rounded integer in two's complement.
            *quant = (value * factor + ROUNDER).to_bits() as u8;
        }
    }
    Ok(())
}
