//! Pieces of blocks in vectors: nibbles, tables, scales.

use core::arch::x86_64::*;

use super::lanes::{load_16, same_f16};
use crate::block_walk::TILE;

/// Sums of four products each: unsigned bytes below 128 times signed ones.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn dot_of_bytes(unsigned: __m256i, signed: __m256i) -> __m256i {
    _mm256_madd_epi16(_mm256_maddubs_epi16(unsigned, signed), _mm256_set1_epi16(1))
}

/// The low nibbles of 16 bytes, then their high nibbles.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn nibbles_of_16(bytes: &[u8]) -> __m256i {
    let bytes = load_16(bytes);
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(bytes), _mm_srli_epi16::<4>(bytes));
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// For each nibble the byte of the table.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn look_up(table: &[u8; 16], nibbles: __m256i) -> __m256i {
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_16(table)), nibbles)
}

/// The f16 at byte `at` of a block, widened, in every lane.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn f16_of_one<B: AsRef<[u8]>>(block: &B, at: usize) -> __m128 {
    same_f16(&block.as_ref()[at..])
}

/// The f16 at byte `at` of each of four blocks, widened.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn f16_of_four<B: AsRef<[u8]>>(blocks: [&B; TILE], at: usize) -> __m128 {
    let mut bits = 0;
    for (lane, block) in blocks.into_iter().enumerate() {
        let block = block.as_ref();
        bits |= u64::from(u16::from_le_bytes([block[at], block[at + 1]])) << (16 * lane);
    }
    _mm_cvtph_ps(_mm_cvtsi64_si128(bits as i64))
}

/// The eight 6-bit scales and the eight 6-bit minima of the K formats from their 12 bytes, each as eight i16.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn four_k_scales(packed: &[u8]) -> (__m128i, __m128i) {
    const SIX: u32 = 0x3f3f_3f3f;
    const FOUR: u32 = 0x0f0f_0f0f;
    const TWO: u32 = 0x0303_0303;
    let (low_scales, low_minima, rest) = (word(packed, 0), word(packed, 4), word(packed, 8));
    let scales =
        u64::from(low_scales & SIX) | u64::from((rest & FOUR) | (((low_scales >> 6) & TWO) << 4)) << 32;
    let minima = u64::from(low_minima & SIX)
        | u64::from(((rest >> 4) & FOUR) | (((low_minima >> 6) & TWO) << 4)) << 32;
    (_mm_cvtepu8_epi16(_mm_cvtsi64_si128(scales as i64)), _mm_cvtepu8_epi16(_mm_cvtsi64_si128(minima as i64)))
}

/// The little-endian word at byte `at`.
#[inline(always)]
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Byte shuffles that put the j-th i16 of a half everywhere in that half.
pub(crate) const SPREAD: [[u8; 32]; 8] = {
    let mut table = [[0; 32]; 8];
    let mut j = 0;
    while j < 8 {
        let mut i = 0;
        while i < 32 {
            table[j][i] = (2 * j + i % 2) as u8;
            i += 1;
        }
        j += 1;
    }
    table
};

/// A tile whose lanes from R on are zero.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn first_of_tile<const R: usize>(vectors: [__m256i; R]) -> [__m256i; TILE] {
    let mut tile = [_mm256_setzero_si256(); TILE];
    tile[..R].copy_from_slice(&vectors);
    tile
}
