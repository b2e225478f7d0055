//! The terms of the block formats. `pmaddubsw` multiplies unsigned by signed bytes and adds pairs into 16 bits, which is
//! exact as long as one operand stays below 128: weights do.

use core::arch::x86_64::*;

use super::lanes::{
    four_f16, load_4_i32, load_8_i16, load_16, load_16_i16, load_32, same_f16, sum_each, sum_each_128,
};
use super::unpack::{SPREAD, dot_of_bytes, first_of_tile, four_k_scales, nibbles_of_16};
use crate::block_walk::{BlockFormat, TILE};
use crate::slices::each;

/// Q4_0: `isum = sum q x - 8 sum x`.
pub(crate) struct Q4_0;

impl BlockFormat for Q4_0 {
    type Weights = [u8; 18];
    type Row = [u8; 36];
    /// Eight times the sum of the row's integers.
    type Sums = i32;
    const ROWS_TOGETHER: bool = true;
    const ROWS_TOGETHER_FROM: usize = 8;
    const NO_SUMS: i32 = 0;

    fn weights(bytes: &[u8]) -> &[[u8; 18]] {
        bytes.as_chunks().0
    }

    fn rows(bytes: &[u8]) -> &[[u8; 36]] {
        bytes.as_chunks().0
    }

    fn sums(row: &[u8; 36]) -> i32 {
        8 * row[4..].iter().map(|&value| i32::from(value as i8)).sum::<i32>()
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn term_of_rows<const R: usize>(
        weights: &[u8; 18],
        rows: [&[u8; 36]; R],
        sums: &[i32; TILE],
        scales: __m128,
    ) -> __m128 {
        let quants = nibbles_of_16(&weights[2..]);
        let mut dots = [_mm256_setzero_si256(); TILE];
        for (dot, row) in dots.iter_mut().zip(rows) {
            *dot = dot_of_bytes(quants, load_32(&row[4..]));
        }
        let sum = _mm_sub_epi32(sum_each(dots), load_4_i32(sums));
        _mm_mul_ps(_mm_mul_ps(same_f16(weights), scales), _mm_cvtepi32_ps(sum))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn term_of_blocks(
        weights: [&[u8; 18]; TILE],
        row: [&[u8; 36]; TILE],
        sums: &[i32; TILE],
        scales: __m128,
    ) -> __m128 {
        let mut dots = [_mm256_setzero_si256(); TILE];
        for ((dot, weights), row) in dots.iter_mut().zip(weights).zip(row) {
            *dot = dot_of_bytes(nibbles_of_16(&weights[2..]), load_32(&row[4..]));
        }
        let sum = _mm_sub_epi32(sum_each(dots), load_4_i32(sums));
        _mm_mul_ps(_mm_mul_ps(four_f16(weights, 0), scales), _mm_cvtepi32_ps(sum))
    }
}

/// Q8_0: magnitudes of the weights times rows with the weights' signs.
pub(crate) struct Q8_0;

impl BlockFormat for Q8_0 {
    type Weights = [u8; 34];
    type Row = [u8; 36];
    type Sums = ();
    const ROWS_TOGETHER: bool = true;
    const ROWS_TOGETHER_FROM: usize = 8;
    const NO_SUMS: () = ();

    fn weights(bytes: &[u8]) -> &[[u8; 34]] {
        bytes.as_chunks().0
    }

    fn rows(bytes: &[u8]) -> &[[u8; 36]] {
        bytes.as_chunks().0
    }

    fn sums(_: &[u8; 36]) {}

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn term_of_rows<const R: usize>(
        weights: &[u8; 34],
        rows: [&[u8; 36]; R],
        _: &[(); TILE],
        scales: __m128,
    ) -> __m128 {
        let quants = load_32(&weights[2..]);
        let magnitudes = _mm256_abs_epi8(quants);
        let mut dots = [_mm256_setzero_si256(); TILE];
        for (dot, row) in dots.iter_mut().zip(rows) {
            *dot = dot_of_bytes(magnitudes, _mm256_sign_epi8(load_32(&row[4..]), quants));
        }
        _mm_mul_ps(_mm_mul_ps(same_f16(weights), scales), _mm_cvtepi32_ps(sum_each(dots)))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn term_of_blocks(
        weights: [&[u8; 34]; TILE],
        row: [&[u8; 36]; TILE],
        _: &[(); TILE],
        scales: __m128,
    ) -> __m128 {
        let mut dots = [_mm256_setzero_si256(); TILE];
        for ((dot, weights), row) in dots.iter_mut().zip(weights).zip(row) {
            let quants = load_32(&weights[2..]);
            *dot = dot_of_bytes(_mm256_abs_epi8(quants), _mm256_sign_epi8(load_32(&row[4..]), quants));
        }
        _mm_mul_ps(_mm_mul_ps(four_f16(weights, 0), scales), _mm_cvtepi32_ps(sum_each(dots)))
    }
}

/// Q4_K.
pub(crate) struct Q4K;

impl BlockFormat for Q4K {
    type Weights = [u8; 144];
    type Row = [u8; 260];
    /// The sums of the row's eight sub-blocks.
    type Sums = [i16; 8];
    const ROWS_TOGETHER: bool = true;
    const NO_SUMS: [i16; 8] = [0; 8];

    fn weights(bytes: &[u8]) -> &[[u8; 144]] {
        bytes.as_chunks().0
    }

    fn rows(bytes: &[u8]) -> &[[u8; 260]] {
        bytes.as_chunks().0
    }

    fn sums(row: &[u8; 260]) -> [i16; 8] {
        let mut sums = [0; 8];
        for (sum, values) in sums.iter_mut().zip(row[4..].as_chunks::<32>().0) {
            *sum = values.iter().map(|&value| i16::from(value as i8)).sum();
        }
        sums
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn term_of_rows<const R: usize>(
        weights: &[u8; 144],
        rows: [&[u8; 260]; R],
        sums: &[[i16; 8]; TILE],
        scales: __m128,
    ) -> __m128 {
        let (sub_scales, minima) = four_k_scales(&weights[4..16]);
        let scaled = first_of_tile(q4_k_dots(weights, rows, sub_scales));
        let mut lowered = [_mm_setzero_si128(); TILE];
        for (lowered, sums) in lowered.iter_mut().zip(sums).take(R) {
            *lowered = _mm_madd_epi16(minima, load_8_i16(sums));
        }
        let (scale, minimum) = (same_f16(weights), same_f16(&weights[2..]));
        q4_k_term(_mm_mul_ps(scale, scales), _mm_mul_ps(minimum, scales), scaled, lowered)
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn term_of_blocks(
        weights: [&[u8; 144]; TILE],
        row: [&[u8; 260]; TILE],
        sums: &[[i16; 8]; TILE],
        scales: __m128,
    ) -> __m128 {
        let mut scaled = [_mm256_setzero_si256(); TILE];
        let mut lowered = [_mm_setzero_si128(); TILE];
        for lane in 0..TILE {
            let (sub_scales, minima) = four_k_scales(&weights[lane][4..16]);
            [scaled[lane]] = q4_k_dots(weights[lane], [row[lane]], sub_scales);
            lowered[lane] = _mm_madd_epi16(minima, load_8_i16(&sums[lane]));
        }
        let (scale, minimum) = (four_f16(weights, 0), four_f16(weights, 2));
        q4_k_term(_mm_mul_ps(scale, scales), _mm_mul_ps(minimum, scales), scaled, lowered)
    }
}

/// Q6_K: `sum sc_j (sum u x - 32 sum x)`, u = 0..=63 as stored.
pub(crate) struct Q6K;

impl BlockFormat for Q6K {
    type Weights = [u8; 210];
    type Row = [u8; 260];
    /// The sums of the row's sixteen sub-blocks, the even ones first.
    type Sums = [i16; 16];
    const ROWS_TOGETHER: bool = true;
    const NO_SUMS: [i16; 16] = [0; 16];

    fn weights(bytes: &[u8]) -> &[[u8; 210]] {
        bytes.as_chunks().0
    }

    fn rows(bytes: &[u8]) -> &[[u8; 260]] {
        bytes.as_chunks().0
    }

    fn sums(row: &[u8; 260]) -> [i16; 16] {
        let mut sums = [0; 16];
        for (j, values) in row[4..].as_chunks::<16>().0.iter().enumerate() {
            sums[j / 2 + 8 * (j % 2)] = values.iter().map(|&value| i16::from(value as i8)).sum();
        }
        sums
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn term_of_rows<const R: usize>(
        weights: &[u8; 210],
        rows: [&[u8; 260]; R],
        sums: &[[i16; 16]; TILE],
        scales: __m128,
    ) -> __m128 {
        let scaled = first_of_tile(q6_k_dots(weights, rows, each(sums)));
        let scales = _mm_mul_ps(same_f16(&weights[208..]), scales);
        _mm_mul_ps(scales, _mm_cvtepi32_ps(sum_each(scaled)))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn term_of_blocks(
        weights: [&[u8; 210]; TILE],
        row: [&[u8; 260]; TILE],
        sums: &[[i16; 16]; TILE],
        scales: __m128,
    ) -> __m128 {
        let mut scaled = [_mm256_setzero_si256(); TILE];
        for lane in 0..TILE {
            [scaled[lane]] = q6_k_dots(weights[lane], [row[lane]], [&sums[lane]]);
        }
        let scales = _mm_mul_ps(four_f16(weights, 208), scales);
        _mm_mul_ps(scales, _mm_cvtepi32_ps(sum_each(scaled)))
    }
}

/// `sc_j * (sum of q x)` of each row over the eight sub-blocks, spread over the lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn q4_k_dots<const R: usize>(
    weights: &[u8; 144],
    rows: [&[u8; 260]; R],
    sub_scales: __m128i,
) -> [__m256i; R] {
    let mut scaled = [_mm256_setzero_si256(); R];
    let sub_scales = _mm256_broadcastsi128_si256(sub_scales);
    let mask = _mm256_set1_epi8(15);
    for pair in 0..4 {
        let quants = load_32(&weights[16 + 32 * pair..]);
        let low = _mm256_and_si256(quants, mask);
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(quants), mask);
        let low_scale = _mm256_shuffle_epi8(sub_scales, load_32(&SPREAD[2 * pair]));
        let high_scale = _mm256_shuffle_epi8(sub_scales, load_32(&SPREAD[2 * pair + 1]));
        for (scaled, row) in scaled.iter_mut().zip(rows) {
            let low = _mm256_maddubs_epi16(low, load_32(&row[4 + 64 * pair..]));
            let high = _mm256_maddubs_epi16(high, load_32(&row[36 + 64 * pair..]));
            let both =
                _mm256_add_epi32(_mm256_madd_epi16(low, low_scale), _mm256_madd_epi16(high, high_scale));
            *scaled = _mm256_add_epi32(*scaled, both);
        }
    }
    scaled
}

/// `scale * f(scaled) - minimum * f(lowered)`.
#[inline]
#[target_feature(enable = "avx2")]
fn q4_k_term(scale: __m128, minimum: __m128, scaled: [__m256i; TILE], lowered: [__m128i; TILE]) -> __m128 {
    let above = _mm_mul_ps(scale, _mm_cvtepi32_ps(sum_each(scaled)));
    let below = _mm_mul_ps(minimum, _mm_cvtepi32_ps(sum_each_128(lowered)));
    _mm_sub_ps(above, below)
}

/// `sc_j * (sum u x - 32 sum x)` of each row over the sixteen sub-blocks, spread over the lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn q6_k_dots<const R: usize>(
    weights: &[u8; 210],
    rows: [&[u8; 260]; R],
    sums: [&[i16; 16]; R],
) -> [__m256i; R] {
    let even_first = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    let sub_scales = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(load_16(&weights[192..]), even_first));
    let mut scaled = [_mm256_setzero_si256(); R];
    for (scaled, sums) in scaled.iter_mut().zip(sums) {
        let centre = _mm256_slli_epi32::<5>(_mm256_madd_epi16(sub_scales, load_16_i16(sums)));
        *scaled = _mm256_sub_epi32(*scaled, centre);
    }
    for half in 0..2 {
        for (quarter, quants) in q6_k_quants(weights, half).into_iter().enumerate() {
            let scale = _mm256_shuffle_epi8(sub_scales, load_32(&SPREAD[4 * half + quarter]));
            for (scaled, row) in scaled.iter_mut().zip(rows) {
                let dot = _mm256_maddubs_epi16(quants, load_32(&row[4 + 128 * half + 32 * quarter..]));
                *scaled = _mm256_add_epi32(*scaled, _mm256_madd_epi16(dot, scale));
            }
        }
    }
    scaled
}

/// Quants 128 `half` to 128 `half` + 127 in column order, 0..=63.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn q6_k_quants(weights: &[u8; 210], half: usize) -> [__m256i; 4] {
    let (four, two) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
    let first = load_32(&weights[64 * half..]);
    let second = load_32(&weights[64 * half + 32..]);
    let high = load_32(&weights[128 + 32 * half..]);
    [
        _mm256_or_si256(_mm256_and_si256(first, four), _mm256_and_si256(_mm256_slli_epi16::<4>(high), two)),
        _mm256_or_si256(_mm256_and_si256(second, four), _mm256_and_si256(_mm256_slli_epi16::<2>(high), two)),
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16::<4>(first), four), _mm256_and_si256(high, two)),
        _mm256_or_si256(
            _mm256_and_si256(_mm256_srli_epi16::<4>(second), four),
            _mm256_and_si256(_mm256_srli_epi16::<2>(high), two),
        ),
    ]
}
