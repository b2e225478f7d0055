//! F32, F16 and BF16 weights: the sixteen partial sums of an element are two vectors of eight. Four elements at a time hide
//! the latency of the additions.

use core::arch::x86_64::*;
use core::ops::Range;

use super::lanes::lines;
use crate::matrix::Matrix;
use crate::sum::LANES;

/// How sixteen weights are widened.
pub(super) trait FloatFormat {
    /// Bytes of a weight.
    const BYTES: usize;

    /// Widens sixteen weights.
    ///
    /// # Safety
    /// Sixteen readable weights; AVX2 and F16C.
    unsafe fn widen(bytes: *const u8) -> (__m256, __m256);
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

impl FloatFormat for F32 {
    const BYTES: usize = 4;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn widen(bytes: *const u8) -> (__m256, __m256) {
        // SAFETY: the caller's promise.
        unsafe { load_16_f32(bytes) }
    }
}

impl FloatFormat for F16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn widen(bytes: *const u8) -> (__m256, __m256) {
        // SAFETY: the caller's promise; the loads need no alignment.
        let (low, high) = unsafe { (_mm_loadu_si128(bytes.cast()), _mm_loadu_si128(bytes.add(16).cast())) };
        (_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
    }
}

impl FloatFormat for BF16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn widen(bytes: *const u8) -> (__m256, __m256) {
        // SAFETY: the caller's promise; the loads need no alignment.
        let (low, high) = unsafe { (_mm_loadu_si128(bytes.cast()), _mm_loadu_si128(bytes.add(16).cast())) };
        (upper_halves(low), upper_halves(high))
    }
}

/// Eight bfloat16 as f32.
#[inline]
#[target_feature(enable = "avx2")]
fn upper_halves(bits: __m128i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
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
    let (row_bytes, weight_bytes) = (matrix.columns() * 4, matrix.columns() * F::BYTES);
    let weights = matrix.bytes();
    if count == 1 {
        for (output, out) in outputs.step_by(4).zip(out.chunks_mut(4)) {
            if out.len() == 4 {
                let sums = tile::<F, 4, 1>(lines(weights, weight_bytes, output), [rows]);
                out.copy_from_slice(sums.as_flattened());
            } else {
                for (at, out) in out.iter_mut().enumerate() {
                    [[*out]] = tile::<F, 1, 1>(lines(weights, weight_bytes, output + at), [rows]);
                }
            }
        }
        return;
    }
    for (output, out) in outputs.zip(out.chunks_exact_mut(count)) {
        let weights = lines(weights, weight_bytes, output);
        for (first, out) in (0..count).step_by(4).zip(out.chunks_mut(4)) {
            match out.len() {
                1 => out.copy_from_slice(&tile::<F, 1, 1>(weights, lines(rows, row_bytes, first))[0]),
                2 => out.copy_from_slice(&tile::<F, 1, 2>(weights, lines(rows, row_bytes, first))[0]),
                3 => out.copy_from_slice(&tile::<F, 1, 3>(weights, lines(rows, row_bytes, first))[0]),
                _ => out.copy_from_slice(&tile::<F, 1, 4>(weights, lines(rows, row_bytes, first))[0]),
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
    let whole = rows[0].len() / 4 / LANES;
    for row in rows {
        assert!(row.len() >= whole * LANES * 4);
    }
    for weights in weights {
        assert!(weights.len() >= whole * LANES * F::BYTES);
    }
    let mut acc = [[(_mm256_setzero_ps(), _mm256_setzero_ps()); R]; O];
    for step in 0..whole {
        // SAFETY: `whole` steps fit every slice, as asserted above; this function has the features.
        unsafe { add_step::<F, O, R>(weights, rows, step, &mut acc) };
    }
    if rows[0].len() > whole * LANES * 4 {
        // Zeros make up the last step: no partial sum is ever -0, so that adding +0 changes nothing.
        let weights = last_step(weights, whole * LANES * F::BYTES);
        let rows = last_step(rows, whole * LANES * 4);
        // SAFETY: the arrays hold one step; this function has the features.
        unsafe { add_step::<F, O, R>(whole_arrays(&weights), whole_arrays(&rows), 0, &mut acc) };
    }
    let mut sums = [[0f32; R]; O];
    for (sum, (low, high)) in sums.as_flattened_mut().iter_mut().zip(acc.as_flattened()) {
        *sum = fold(*low, *high);
    }
    sums
}

/// What is left of each slice from `start` on, with zeros behind it.
#[inline(always)]
fn last_step<const N: usize>(slices: [&[u8]; N], start: usize) -> [[u8; LANES * 4]; N] {
    let mut steps = [[0; LANES * 4]; N];
    for (step, slice) in steps.iter_mut().zip(slices) {
        let rest = &slice[start..];
        step[..rest.len()].copy_from_slice(rest);
    }
    steps
}

#[inline(always)]
fn whole_arrays<const N: usize, const LEN: usize>(arrays: &[[u8; LEN]; N]) -> [&[u8]; N] {
    let mut slices = [&[][..]; N];
    for (slice, array) in slices.iter_mut().zip(arrays) {
        *slice = array;
    }
    slices
}

/// # Safety
/// Every slice must hold `step + 1` steps of sixteen; AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn add_step<F: FloatFormat, const O: usize, const R: usize>(
    weights: [&[u8]; O],
    rows: [&[u8]; R],
    step: usize,
    acc: &mut [[(__m256, __m256); R]; O],
) {
    for o in 0..O {
        // SAFETY: the caller's promise.
        let (w_low, w_high) = unsafe { F::widen(weights[o].as_ptr().add(step * LANES * F::BYTES)) };
        for r in 0..R {
            // SAFETY: the caller's promise.
            let (x_low, x_high) = unsafe { load_16_f32(rows[r].as_ptr().add(step * LANES * 4)) };
            let (low, high) = acc[o][r];
            acc[o][r] = (
                _mm256_add_ps(low, _mm256_mul_ps(w_low, x_low)),
                _mm256_add_ps(high, _mm256_mul_ps(w_high, x_high)),
            );
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

/// # Safety
/// 64 readable bytes; AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_16_f32(bytes: *const u8) -> (__m256, __m256) {
    // SAFETY: the caller's promise; the loads need no alignment.
    unsafe { (_mm256_loadu_ps(bytes.cast()), _mm256_loadu_ps(bytes.add(32).cast())) }
}
