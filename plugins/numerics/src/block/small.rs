//! Blocks of 32 weights.

use crate::format::Format;
use crate::half::{power_of_two_halved, read_f16};

/// Weights of a small block.
pub(crate) const SMALL: usize = 32;

/// What the nibbles of IQ4_NL and IQ4_XS stand for.
pub(super) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the four-bit floats (sign, two bits of exponent, one of mantissa) that the nibbles of MXFP4 are.
const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The IQ4 table as bytes, for shuffles.
pub(crate) const IQ4_BYTES: [u8; 16] = bytes_above(IQ4_VALUES, 0);

/// The MXFP4 table plus 12, which makes it unsigned and below 128.
pub(crate) const E2M1_ABOVE_12: [u8; 16] = bytes_above(E2M1_DOUBLED, 12);

const fn bytes_above(values: [i8; 16], offset: i8) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        bytes[i] = (values[i] + offset) as u8;
        i += 1;
    }
    bytes
}

/// A block of 32 weights: weight = scale * integer, plus the minimum where there is one.
pub(crate) struct SmallBlock {
    /// d; of MXFP4 2^(e-128).
    pub(crate) scale: f32,
    /// m of Q4_1 and Q5_1.
    pub(crate) minimum: Option<f32>,
    pub(crate) weights: [i8; SMALL],
}

/// Takes a block of one of the formats of 32 weights apart.
#[inline]
pub(crate) fn small_block(format: Format, block: &[u8]) -> SmallBlock {
    let scale = if format == Format::MXFP4 { power_of_two_halved(block[0]) } else { read_f16(block) };
    let weights = match format {
        Format::Q4_0 => nibbles(&block[2..]).map(|q| q as i8 - 8),
        Format::Q4_1 => nibbles(&block[4..]).map(|q| q as i8),
        Format::Q5_0 => fives(&block[2..6], &block[6..]).map(|q| q as i8 - 16),
        Format::Q5_1 => fives(&block[4..8], &block[8..]).map(|q| q as i8),
        Format::IQ4NL => nibbles(&block[2..]).map(|q| IQ4_VALUES[usize::from(q)]),
        Format::MXFP4 => nibbles(&block[1..]).map(|q| E2M1_DOUBLED[usize::from(q)]),
        _ => {
            debug_assert_eq!(format, Format::Q8_0);
            let mut weights = [0; SMALL];
            for (weight, &byte) in weights.iter_mut().zip(&block[2..]) {
                *weight = byte as i8;
            }
            weights
        }
    };
    let minimum = matches!(format, Format::Q4_1 | Format::Q5_1).then(|| read_f16(&block[2..]));
    SmallBlock { scale, minimum, weights }
}

/// The low nibbles of 16 bytes, then their high nibbles.
#[inline]
fn nibbles(bytes: &[u8]) -> [u8; SMALL] {
    let mut nibbles = [0; SMALL];
    for (i, &byte) in bytes[..16].iter().enumerate() {
        nibbles[i] = byte & 15;
        nibbles[i + 16] = byte >> 4;
    }
    nibbles
}

/// Nibbles with fifth bits, bit i of the four bytes for weight i.
#[inline]
fn fives(fifth_bits: &[u8], bytes: &[u8]) -> [u8; SMALL] {
    let mut quants = nibbles(bytes);
    for (i, quant) in quants.iter_mut().enumerate() {
        *quant |= (fifth_bits[i / 8] >> (i % 8) & 1) << 4;
    }
    quants
}
