//! Loads and lane sums.
//!
//! A closure inherits the features of the function around it, so that `map` and its like, which have none, cannot inline it:
//! the code here uses loops instead, and plain functions such as [`pick`].

use core::arch::x86_64::*;

/// The first 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_32(bytes: &[u8]) -> __m256i {
    assert!(bytes.len() >= 32);
    // SAFETY: 32 bytes are there; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// The first 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_16(bytes: &[u8]) -> __m128i {
    assert!(bytes.len() >= 16);
    // SAFETY: 16 bytes are there; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Eight i16.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_8_i16(values: &[i16; 8]) -> __m128i {
    // SAFETY: sixteen bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(values.as_ptr().cast()) }
}

/// Sixteen i16.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_16_i16(values: &[i16; 16]) -> __m256i {
    // SAFETY: 32 bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
}

/// Four f32.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_4_f32(values: &[f32; 4]) -> __m128 {
    // SAFETY: sixteen bytes; the load needs no alignment.
    unsafe { _mm_loadu_ps(values.as_ptr()) }
}

/// Four i32.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_4_i32(values: &[i32; 4]) -> __m128i {
    // SAFETY: sixteen bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(values.as_ptr().cast()) }
}

/// The four lanes as an array.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn to_array(values: __m128) -> [f32; 4] {
    let mut array = [0f32; 4];
    // SAFETY: sixteen bytes; the store needs no alignment.
    unsafe { _mm_storeu_ps(array.as_mut_ptr(), values) };
    array
}

/// Lane i holds the sum of the eight lanes of vector i.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum_each(vectors: [__m256i; 4]) -> __m128i {
    let [a, b, c, d] = vectors;
    let pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs))
}

/// Lane i holds the sum of the four lanes of vector i.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum_each_128(vectors: [__m128i; 4]) -> __m128i {
    let [a, b, c, d] = vectors;
    _mm_hadd_epi32(_mm_hadd_epi32(a, b), _mm_hadd_epi32(c, d))
}

/// The f16 at byte `at` of each of four blocks, widened.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn four_f16<const N: usize>(blocks: [&[u8; N]; 4], at: usize) -> __m128 {
    let mut bits = 0;
    for (lane, block) in blocks.into_iter().enumerate() {
        bits |= u64::from(u16::from_le_bytes([block[at], block[at + 1]])) << (16 * lane);
    }
    _mm_cvtph_ps(_mm_cvtsi64_si128(bits as i64))
}

/// The f16 at the start of `bytes`, widened, in every lane.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn same_f16(bytes: &[u8]) -> __m128 {
    _mm_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes([bytes[0], bytes[1]])))
}

/// Item `at` of each slice.
#[inline(always)]
pub(super) fn pick<'a, T, const N: usize>(slices: [&'a [T]; N], at: usize) -> [&'a T; N] {
    let mut items = [&slices[0][at]; N];
    for (item, slice) in items.iter_mut().zip(slices) {
        *item = &slice[at];
    }
    items
}

/// References to the items.
#[inline(always)]
pub(super) fn each<T, const N: usize, const TILE: usize>(tile: &[T; TILE]) -> [&T; N] {
    let mut items = [&tile[0]; N];
    for (item, tile) in items.iter_mut().zip(tile) {
        *item = tile;
    }
    items
}

/// `N` consecutive slices of `len` items, the first starting at item `first * len`.
#[inline(always)]
pub(super) fn lines<T, const N: usize>(items: &[T], len: usize, first: usize) -> [&[T]; N] {
    let mut lines = [&items[..0]; N];
    for (at, line) in lines.iter_mut().enumerate() {
        *line = &items[(first + at) * len..][..len];
    }
    lines
}
