//! F32, F16 and BF16 weights: the sixteen partial sums of an element are two vectors of eight. Four elements at a time hide
//! the latency of the additions.

use core::arch::x86_64::*;
use core::ops::Range;

use super::lanes::load_16;
use crate::matrix::Matrix;
use crate::sum::LANES;

/// How sixteen weights are widened.
pub(super) trait FloatFormat {
    /// Bytes of a weight.
    const BYTES: usize;

    /// Widens the first sixteen weights.
    ///
    /// # Safety
    /// AVX2 and F16C.
    unsafe fn widen(bytes: &[u8]) -> (__m256, __m256);
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

impl FloatFormat for F32 {
    const BYTES: usize = 4;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn widen(bytes: &[u8]) -> (__m256, __m256) {
        load_16_f32(bytes)
    }
}

impl FloatFormat for F16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn widen(bytes: &[u8]) -> (__m256, __m256) {
        (_mm256_cvtph_ps(load_16(bytes)), _mm256_cvtph_ps(load_16(&bytes[16..])))
    }
}

impl FloatFormat for BF16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn widen(bytes: &[u8]) -> (__m256, __m256) {
        let upper = |bits| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)));
        (upper(load_16(bytes)), upper(load_16(&bytes[16..])))
    }
}

/// As [`crate::product()`], whose checks have been made.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn product<F: FloatFormat>(
    matrix: Matrix<'_>,
    outputs: Range<usize>,
    rows: &[u8],
    count: usize,
    out: &mut [f32],
) {
    let columns = matrix.columns();
    let weights = |output: usize| matrix.row(output);
    let row = |row: usize| &rows[row * columns * 4..][..columns * 4];
    if count == 1 {
        let mut output = outputs.start;
        for out in out.chunks_mut(4) {
            match out {
                [_, _, _, _] => {
                    let weights =
                        [weights(output), weights(output + 1), weights(output + 2), weights(output + 3)];
                    out.copy_from_slice(&tile::<F, 4, 1>(weights, [row(0)]).map(|[value]| value));
                }
                _ => {
                    for (at, out) in out.iter_mut().enumerate() {
                        [[*out]] = tile::<F, 1, 1>([weights(output + at)], [row(0)]);
                    }
                }
            }
            output += 4;
        }
        return;
    }
    for (output, out) in outputs.zip(out.chunks_exact_mut(count)) {
        let weights = [weights(output)];
        for (first, out) in (0..count).step_by(4).zip(out.chunks_mut(4)) {
            match out {
                [_, _, _, _] => {
                    let rows = [row(first), row(first + 1), row(first + 2), row(first + 3)];
                    out.copy_from_slice(&tile::<F, 1, 4>(weights, rows)[0]);
                }
                _ => {
                    for (at, out) in out.iter_mut().enumerate() {
                        [[*out]] = tile::<F, 1, 1>(weights, [row(first + at)]);
                    }
                }
            }
        }
    }
}

/// O outputs times R rows.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn tile<F: FloatFormat, const O: usize, const R: usize>(
    weights: [&[u8]; O],
    rows: [&[u8]; R],
) -> [[f32; R]; O] {
    let columns = rows[0].len() / 4;
    let whole = columns / LANES;
    let mut acc = [[(_mm256_setzero_ps(), _mm256_setzero_ps()); R]; O];
    for step in 0..whole {
        let rows = rows.map(|row| &row[step * LANES * 4..][..LANES * 4]);
        let weights = weights.map(|weights| &weights[step * LANES * F::BYTES..][..LANES * F::BYTES]);
        add_step::<F, O, R>(weights, rows, &mut acc);
    }
    if columns % LANES != 0 {
        // Zeros make up the last step: no partial sum is ever -0, so that adding +0 changes nothing.
        let mut last_weights = [[0u8; LANES * 4]; O];
        let mut last_rows = [[0u8; LANES * 4]; R];
        for (last, weights) in last_weights.iter_mut().zip(weights) {
            let rest = &weights[whole * LANES * F::BYTES..];
            last[..rest.len()].copy_from_slice(rest);
        }
        for (last, row) in last_rows.iter_mut().zip(rows) {
            let rest = &row[whole * LANES * 4..];
            last[..rest.len()].copy_from_slice(rest);
        }
        add_step::<F, O, R>(
            last_weights.each_ref().map(|last| &last[..]),
            last_rows.each_ref().map(|last| &last[..]),
            &mut acc,
        );
    }
    acc.map(|acc| acc.map(|(low, high)| fold(low, high)))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn add_step<F: FloatFormat, const O: usize, const R: usize>(
    weights: [&[u8]; O],
    rows: [&[u8]; R],
    acc: &mut [[(__m256, __m256); R]; O],
) {
    for (acc, weights) in acc.iter_mut().zip(weights) {
        // SAFETY: this function has the features.
        let (w_low, w_high) = unsafe { F::widen(weights) };
        for ((low, high), row) in acc.iter_mut().zip(rows) {
            let (x_low, x_high) = load_16_f32(row);
            *low = _mm256_add_ps(*low, _mm256_mul_ps(w_low, x_low));
            *high = _mm256_add_ps(*high, _mm256_mul_ps(w_high, x_high));
        }
    }
}

/// The end of a sixteen-sum.
#[inline]
#[target_feature(enable = "avx2")]
fn fold(low: __m256, high: __m256) -> f32 {
    let eight = _mm256_add_ps(low, high);
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_16_f32(bytes: &[u8]) -> (__m256, __m256) {
    assert!(bytes.len() >= 64);
    // SAFETY: 64 bytes are there; the loads need no alignment.
    unsafe { (_mm256_loadu_ps(bytes.as_ptr().cast()), _mm256_loadu_ps(bytes.as_ptr().add(32).cast())) }
}
