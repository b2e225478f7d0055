//! The walk over matrix and rows for F32, F16 and BF16: the sixteen partial sums of an element lie in the lanes of vectors.
//! Several elements at a time hide the latency of the additions.

use core::ops::Range;

use crate::lanes::{FLOAT_TILE, Sixteen, ZERO, add_product, fold, load_sixteen};
use crate::matrix::Matrix;
use crate::slices::lines;
use crate::sum::LANES;

/// How sixteen weights are widened.
pub(crate) trait FloatFormat {
    /// Bytes of a weight.
    const BYTES: usize;

    /// Widens sixteen weights.
    ///
    /// # Safety
    /// Sixteen readable weights; the instruction set's features.
    unsafe fn widen(bytes: *const u8) -> Sixteen;
}

/// As [`crate::product()`], whose checks have been made.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
pub(crate) fn product<F: FloatFormat>(
    matrix: Matrix<'_>,
    outputs: Range<usize>,
    rows: &[u8],
    count: usize,
    out: &mut [f32],
) {
    let (row_bytes, weight_bytes) = (matrix.columns() * 4, matrix.columns() * F::BYTES);
    let weights = matrix.bytes();
    if count == 1 {
        for (output, out) in outputs.step_by(FLOAT_TILE).zip(out.chunks_mut(FLOAT_TILE)) {
            if out.len() == FLOAT_TILE {
                let sums = tile::<F, FLOAT_TILE, 1>(lines(weights, weight_bytes, output), [rows]);
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
        for (first, out) in (0..count).step_by(FLOAT_TILE).zip(out.chunks_mut(FLOAT_TILE)) {
            if out.len() == FLOAT_TILE {
                out.copy_from_slice(&tile::<F, 1, FLOAT_TILE>(weights, lines(rows, row_bytes, first))[0]);
            } else {
                for (at, out) in out.iter_mut().enumerate() {
                    [[*out]] = tile::<F, 1, 1>(weights, lines(rows, row_bytes, first + at));
                }
            }
        }
    }
}

/// O outputs times R rows.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
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
    let mut acc = [[ZERO; R]; O];
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
    for (sum, acc) in sums.as_flattened_mut().iter_mut().zip(acc.as_flattened()) {
        *sum = fold(*acc);
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
/// Every slice must hold `step + 1` steps of sixteen; the instruction set's features.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
unsafe fn add_step<F: FloatFormat, const O: usize, const R: usize>(
    weights: [&[u8]; O],
    rows: [&[u8]; R],
    step: usize,
    acc: &mut [[Sixteen; R]; O],
) {
    for (acc, weights) in acc.iter_mut().zip(weights) {
        // SAFETY: the caller's promise.
        let weights = unsafe { F::widen(weights.as_ptr().add(step * LANES * F::BYTES)) };
        for (acc, row) in acc.iter_mut().zip(rows) {
            // SAFETY: the caller's promise.
            let row = unsafe { load_sixteen(row.as_ptr().add(step * LANES * 4)) };
            *acc = add_product(*acc, weights, row);
        }
    }
}
