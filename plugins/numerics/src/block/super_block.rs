//! Super-blocks of 256 weights. All are seen as sixteen sub-blocks of sixteen weights: where a format has eight of thirty-two,
//! two neighbours share their integers, which changes no sum of whole numbers.

use super::small::IQ4_VALUES;
use crate::format::Format;
use crate::half::read_f16;

/// Weights of a super-block.
pub(crate) const SUPER: usize = 256;
/// Weights of a sub-block, and sub-blocks of a super-block.
pub(crate) const SUB: usize = 16;

/// A block of 256 weights: weight = (scale * scales[j]) * integer, less minimum * minima[j] where there are minima.
pub(crate) struct SuperBlock {
    /// d.
    pub(crate) scale: f32,
    /// The integers that the sub-blocks' scales are, less 32 where the format says so.
    pub(crate) scales: [i8; SUB],
    /// dmin and the integers of the sub-blocks' minima.
    pub(crate) minima: Option<(f32, [u8; SUB])>,
    pub(crate) weights: [i8; SUPER],
}

/// Takes a block of one of the formats of 256 weights apart.
#[inline]
pub(crate) fn super_block(format: Format, block: &[u8]) -> SuperBlock {
    match format {
        Format::Q2K => SuperBlock {
            scale: read_f16(&block[80..]),
            scales: first_16(block).map(|byte| (byte & 15) as i8),
            minima: Some((read_f16(&block[82..]), first_16(block).map(|byte| byte >> 4))),
            weights: pairs(&block[16..80]).map(|q| q as i8),
        },
        Format::Q3K => {
            let mut weights = pairs(&block[32..96]).map(|q| q as i8 - 4);
            add_bits(&mut weights, &block[..32], 4);
            let scales = three_k_scales(&block[96..108]);
            SuperBlock { scale: read_f16(&block[108..]), scales, minima: None, weights }
        }
        Format::Q6K => SuperBlock {
            scale: read_f16(&block[208..]),
            scales: first_16(&block[192..]).map(|byte| byte as i8),
            minima: None,
            weights: six_k_weights(&block[..128], &block[128..192]),
        },
        Format::IQ4XS => SuperBlock {
            scale: read_f16(block),
            scales: twice(four_xs_scales(block)),
            minima: None,
            weights: nibbles::<16>(&block[8..]).map(|q| IQ4_VALUES[usize::from(q)]),
        },
        _ => {
            debug_assert!(matches!(format, Format::Q4K | Format::Q5K));
            let (scales, minima) = four_k_scales(&block[4..16]);
            let mut weights = nibbles::<32>(&block[block.len() - 128..]).map(|q| q as i8);
            if format == Format::Q5K {
                add_bits(&mut weights, &block[16..48], 16);
            }
            let minima = Some((read_f16(&block[2..]), twice(minima)));
            SuperBlock {
                scale: read_f16(block),
                scales: twice(scales.map(|scale| scale as i8)),
                minima,
                weights,
            }
        }
    }
}

#[inline]
fn first_16(bytes: &[u8]) -> [u8; SUB] {
    let mut first = [0; SUB];
    first.copy_from_slice(&bytes[..SUB]);
    first
}

/// Each integer for two neighbours.
#[inline]
fn twice<T: Copy + Default>(of_32: [T; 8]) -> [T; SUB] {
    let mut of_16 = [T::default(); SUB];
    for (j, value) in of_16.iter_mut().enumerate() {
        *value = of_32[j / 2];
    }
    of_16
}

/// Of every LEN bytes the low nibbles, then the high ones: 256 from 128 bytes.
#[inline]
fn nibbles<const LEN: usize>(bytes: &[u8]) -> [u8; SUPER] {
    let mut nibbles = [0; SUPER];
    for (part, bytes) in bytes[..128].chunks_exact(LEN).enumerate() {
        for (i, &byte) in bytes.iter().enumerate() {
            nibbles[part * 2 * LEN + i] = byte & 15;
            nibbles[part * 2 * LEN + LEN + i] = byte >> 4;
        }
    }
    nibbles
}

/// Of every 32 bytes the lowest pairs of bits, then the next, up to the highest: 256 from 64 bytes.
#[inline]
fn pairs(bytes: &[u8]) -> [u8; SUPER] {
    let mut pairs = [0; SUPER];
    for (i, pair) in pairs.iter_mut().enumerate() {
        *pair = bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    }
    pairs
}

/// Adds `value` where a weight's bit is set: bit b of byte i belongs to weight 32 b + i.
#[inline]
fn add_bits(weights: &mut [i8; SUPER], bits: &[u8], value: i8) {
    for (i, weight) in weights.iter_mut().enumerate() {
        *weight += (bits[i % 32] >> (i / 32) & 1) as i8 * value;
    }
}

/// The sixteen 6-bit scales of Q3_K, less 32: eight bytes hold the low nibbles of two each, four bytes the upper pairs of four
/// each.
#[inline]
fn three_k_scales(packed: &[u8]) -> [i8; SUB] {
    let mut scales = [0; SUB];
    for (j, scale) in scales.iter_mut().enumerate() {
        let low = packed[j % 8] >> (j / 8 * 4) & 15;
        let high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
        *scale = (low | high << 4) as i8 - 32;
    }
    scales
}

/// The eight 6-bit scales and eight 6-bit minima of Q4_K and Q5_K from their 12 bytes.
#[inline]
fn four_k_scales(packed: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0u8; 8], [0u8; 8]);
    for j in 0..4 {
        scales[j] = packed[j] & 63;
        minima[j] = packed[j + 4] & 63;
        scales[j + 4] = (packed[j + 8] & 15) | ((packed[j] >> 6) << 4);
        minima[j + 4] = (packed[j + 8] >> 4) | ((packed[j + 4] >> 6) << 4);
    }
    (scales, minima)
}

/// The eight 6-bit scales of IQ4_XS, less 32.
#[inline]
fn four_xs_scales(block: &[u8]) -> [i8; 8] {
    let upper = u16::from_le_bytes([block[2], block[3]]);
    let mut scales = [0; 8];
    for (j, scale) in scales.iter_mut().enumerate() {
        let low = block[4 + j / 2] >> (j % 2 * 4) & 15;
        let high = (upper >> (2 * j) & 3) as u8;
        *scale = (low | high << 4) as i8 - 32;
    }
    scales
}

/// The 256 weights of a Q6_K block (-32..=31), in column order, from its low nibbles and its high pairs.
#[inline]
fn six_k_weights(low: &[u8], high: &[u8]) -> [i8; SUPER] {
    let mut weights = [0i8; SUPER];
    for half in 0..2 {
        let (low, high) = (&low[half * 64..][..64], &high[half * 32..][..32]);
        for i in 0..32 {
            let at = half * 128 + i;
            weights[at] = ((low[i] & 15) | ((high[i] & 3) << 4)) as i8 - 32;
            weights[at + 32] = ((low[i + 32] & 15) | (((high[i] >> 2) & 3) << 4)) as i8 - 32;
            weights[at + 64] = ((low[i] >> 4) | (((high[i] >> 4) & 3) << 4)) as i8 - 32;
            weights[at + 96] = ((low[i + 32] >> 4) | ((high[i] >> 6) << 4)) as i8 - 32;
        }
    }
    weights
}
