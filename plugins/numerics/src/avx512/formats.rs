//! The sums over blocks with VNNI: `vpdpbusd` multiplies unsigned by signed bytes and adds four products into 32 bits, `vpdpwssd`
//! multiplies 16 bits and adds two, both without any rounding or saturation. In vectors of 256 bits, the length of a block of 32
//! and of what AVX2 unpacks.

use core::arch::x86_64::*;

use crate::avx2::formats as avx2;
use crate::avx2::lanes::{load_4_i32, load_16, load_16_i16, load_32, sum_each, to_array};
use crate::avx2::unpack::{SPREAD, f16_of_four, f16_of_one, first_of_tile, nibbles_of_16};
use crate::block_walk::{BlockFormat, GROUP, TILE, tile_at};
use crate::slices::{each, pick};

/// What a format of this set adds to AVX2's: sums over whole blocks.
macro_rules! block_format {
    ($(#[$doc:meta])* $name:ident, $row:literal, $terms:ident, $terms_of_rows:ident) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl BlockFormat for $name {
            type Weights = <avx2::$name as BlockFormat>::Weights;
            type Row = [u8; $row];
            type Sums = <avx2::$name as BlockFormat>::Sums;
            const ROWS_TOGETHER: bool = true;
            const ROWS_TOGETHER_FROM: usize = avx2::$name::ROWS_TOGETHER_FROM;
            const NO_SUMS: Self::Sums = avx2::$name::NO_SUMS;

            fn weights(bytes: &[u8]) -> &[Self::Weights] {
                avx2::$name::weights(bytes)
            }

            fn rows(bytes: &[u8]) -> &[Self::Row] {
                avx2::$name::rows(bytes)
            }

            fn sums(row: &Self::Row) -> Self::Sums {
                avx2::$name::sums(row)
            }

            #[inline]
            #[target_feature(enable = "avx2,f16c")]
            unsafe fn term_of_rows<const R: usize>(
                weights: &Self::Weights,
                rows: [&Self::Row; R],
                sums: &[Self::Sums; TILE],
                scales: __m128,
            ) -> __m128 {
                // SAFETY: the caller's promise.
                unsafe { avx2::$name::term_of_rows(weights, rows, sums, scales) }
            }

            #[inline]
            #[target_feature(enable = "avx2,f16c")]
            unsafe fn term_of_blocks(
                weights: [&Self::Weights; TILE],
                row: [&Self::Row; TILE],
                sums: &[Self::Sums; TILE],
                scales: __m128,
            ) -> __m128 {
                // SAFETY: the caller's promise.
                unsafe { avx2::$name::term_of_blocks(weights, row, sums, scales) }
            }

            #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
            unsafe fn add_rows<const R: usize>(
                mut acc: __m128,
                weights: &[Self::Weights],
                rows: [&[Self::Row]; R],
                (scales, sums): (&[[f32; GROUP]], &[[Self::Sums; GROUP]]),
                first: usize,
            ) -> __m128 {
                for (block, ((weights, scales), sums)) in weights.iter().zip(scales).zip(sums).enumerate() {
                    let (scales, sums) = (load_4(tile_at(scales, first)), tile_at(sums, first));
                    let term = $terms_of_rows::<R>(weights, pick(rows, block), sums, scales);
                    acc = _mm_add_ps(acc, term);
                }
                acc
            }

            #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
            unsafe fn add_blocks(
                mut acc: f32,
                weights: &[Self::Weights],
                row: &[Self::Row],
                (scales, sums): (&[f32], &[Self::Sums]),
            ) -> f32 {
                let (tiles, rest) = weights.as_chunks::<TILE>();
                let (row_tiles, row_rest) = row.as_chunks::<TILE>();
                let prepared = scales.as_chunks::<TILE>().0.iter().zip(sums.as_chunks::<TILE>().0);
                for ((weights, row), (scales, sums)) in tiles.iter().zip(row_tiles).zip(prepared) {
                    for term in to_array($terms(each(weights), each(row), sums, load_4(scales))) {
                        acc += term;
                    }
                }
                let done = tiles.len() * TILE;
                for (at, (weights, row)) in rest.iter().zip(row_rest).enumerate() {
                    let (scale, sums) = (_mm_set1_ps(scales[done + at]), [sums[done + at]; TILE]);
                    acc += to_array($terms_of_rows::<1>(weights, [row], &sums, scale))[0];
                }
                acc
            }
        }
    };
}

block_format!(
    /// Q6_K: `sum sc_j (sum u x - 32 sum x)`, u = 0..=63 as stored.
    Q6K, 260, q6_k_blocks, q6_k_rows
);

#[inline]
#[target_feature(enable = "avx512f")]
fn load_4(values: &[f32; 4]) -> __m128 {
    // SAFETY: sixteen bytes; the load needs no alignment.
    unsafe { _mm_loadu_ps(values.as_ptr()) }
}

/// The two sums of each row, added.
#[inline]
#[target_feature(enable = "avx2")]
fn both_sums<const R: usize>(scaled: [[__m256i; 2]; R]) -> [__m256i; R] {
    let mut sums = [_mm256_setzero_si256(); R];
    for (sum, [first, second]) in sums.iter_mut().zip(scaled) {
        *sum = _mm256_add_epi32(first, second);
    }
    sums
}

/// `sc_j * (sum u x - 32 sum x)` of each row over the sixteen sub-blocks, spread over the lanes.
#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn q6_k_dots<const R: usize>(
    weights: &[u8; 210],
    rows: [&[u8; 260]; R],
    sums: [&[i16; 16]; R],
) -> [__m256i; R] {
    let even_first = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    let sub_scales = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(load_16(&weights[192..]), even_first));
    // Two sums, so that an addition need not wait for the one before.
    let mut scaled = [[_mm256_setzero_si256(); 2]; R];
    for (scaled, sums) in scaled.iter_mut().zip(sums) {
        let centre = _mm256_slli_epi32::<5>(_mm256_madd_epi16(sub_scales, load_16_i16(sums)));
        scaled[0] = _mm256_sub_epi32(scaled[0], centre);
    }
    for half in 0..2 {
        for (quarter, quants) in avx2::q6_k_quants(weights, half).into_iter().enumerate() {
            let scale = _mm256_shuffle_epi8(sub_scales, load_32(&SPREAD[4 * half + quarter]));
            for (scaled, row) in scaled.iter_mut().zip(rows) {
                let dot = _mm256_maddubs_epi16(quants, load_32(&row[4 + 128 * half + 32 * quarter..]));
                scaled[quarter % 2] = _mm256_dpwssd_epi32(scaled[quarter % 2], dot, scale);
            }
        }
    }
    both_sums(scaled)
}

#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn q6_k_rows<const R: usize>(
    weights: &[u8; 210],
    rows: [&[u8; 260]; R],
    sums: &[[i16; 16]; TILE],
    scales: __m128,
) -> __m128 {
    let scaled = sum_each(first_of_tile(q6_k_dots::<R>(weights, rows, each(sums))));
    _mm_mul_ps(_mm_mul_ps(f16_of_one(weights, 208), scales), _mm_cvtepi32_ps(scaled))
}

#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn q6_k_blocks(
    weights: [&[u8; 210]; TILE],
    row: [&[u8; 260]; TILE],
    sums: &[[i16; 16]; TILE],
    scales: __m128,
) -> __m128 {
    let mut scaled = [_mm256_setzero_si256(); TILE];
    for lane in 0..TILE {
        [scaled[lane]] = q6_k_dots(weights[lane], [row[lane]], [&sums[lane]]);
    }
    _mm_mul_ps(_mm_mul_ps(f16_of_four(weights, 208), scales), _mm_cvtepi32_ps(sum_each(scaled)))
}

block_format!(
    /// Q8_0: magnitudes of the weights times rows with the weights' signs.
    Q8_0, 36, q8_0_blocks, q8_0_rows
);
block_format!(
    /// Q4_0: `isum = sum q x - 8 sum x`.
    Q4_0, 36, q4_0_blocks, q4_0_rows
);

#[inline]
#[target_feature(enable = "avx2,avx512f,avx512vl,avx512vnni")]
fn q8_0_dot(quants: __m256i, row: &[u8; 36]) -> __m256i {
    let row = _mm256_sign_epi8(load_32(&row[4..]), quants);
    _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_abs_epi8(quants), row)
}

#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn q8_0_rows<const R: usize>(
    weights: &[u8; 34],
    rows: [&[u8; 36]; R],
    _: &[(); TILE],
    scales: __m128,
) -> __m128 {
    let quants = load_32(&weights[2..]);
    let mut dots = [_mm256_setzero_si256(); TILE];
    for (dot, row) in dots.iter_mut().zip(rows) {
        *dot = q8_0_dot(quants, row);
    }
    _mm_mul_ps(_mm_mul_ps(f16_of_one(weights, 0), scales), _mm_cvtepi32_ps(sum_each(dots)))
}

#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn q8_0_blocks(weights: [&[u8; 34]; TILE], row: [&[u8; 36]; TILE], _: &[(); TILE], scales: __m128) -> __m128 {
    let mut dots = [_mm256_setzero_si256(); TILE];
    for ((dot, weights), row) in dots.iter_mut().zip(weights).zip(row) {
        *dot = q8_0_dot(load_32(&weights[2..]), row);
    }
    _mm_mul_ps(_mm_mul_ps(f16_of_four(weights, 0), scales), _mm_cvtepi32_ps(sum_each(dots)))
}

#[inline]
#[target_feature(enable = "avx2,avx512f,avx512vl,avx512vnni")]
fn q4_0_dot(quants: __m256i, row: &[u8; 36]) -> __m256i {
    _mm256_dpbusd_epi32(_mm256_setzero_si256(), quants, load_32(&row[4..]))
}

#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn q4_0_rows<const R: usize>(
    weights: &[u8; 18],
    rows: [&[u8; 36]; R],
    sums: &[i32; TILE],
    scales: __m128,
) -> __m128 {
    let quants = nibbles_of_16(&weights[2..]);
    let mut dots = [_mm256_setzero_si256(); TILE];
    for (dot, row) in dots.iter_mut().zip(rows) {
        *dot = q4_0_dot(quants, row);
    }
    let sum = _mm_sub_epi32(sum_each(dots), load_4_i32(sums));
    _mm_mul_ps(_mm_mul_ps(f16_of_one(weights, 0), scales), _mm_cvtepi32_ps(sum))
}

#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn q4_0_blocks(
    weights: [&[u8; 18]; TILE],
    row: [&[u8; 36]; TILE],
    sums: &[i32; TILE],
    scales: __m128,
) -> __m128 {
    let mut dots = [_mm256_setzero_si256(); TILE];
    for ((dot, weights), row) in dots.iter_mut().zip(weights).zip(row) {
        *dot = q4_0_dot(nibbles_of_16(&weights[2..]), row);
    }
    let sum = _mm_sub_epi32(sum_each(dots), load_4_i32(sums));
    _mm_mul_ps(_mm_mul_ps(f16_of_four(weights, 0), scales), _mm_cvtepi32_ps(sum))
}
