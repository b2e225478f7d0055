//! The terms of the block formats. `i16x8_relaxed_dot_i8x16_i7x16` multiplies bytes and adds pairs into 16 bits; its second
//! operand, the weights, stays below 128.

use super::instructions::*;
use super::lanes::{compute_now, four_f16, load_4_i32, load_8_i16, load_16, same_f16, sum_each};
use super::unpack::{ZERO, four_k_scales, hidden_zero, spread_each, with_sign};
use crate::block_walk::{BlockFormat, TILE};
use crate::slices::each;

/// Q4_0: `isum = sum q x - 8 sum x`.
pub(super) struct Q4_0;

impl BlockFormat for Q4_0 {
    type Weights = [u8; 18];
    type Row = [u8; 36];
    /// Eight times the sum of the row's integers.
    type Sums = i32;
    const ROWS_TOGETHER: bool = true;
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
    unsafe fn term_of_rows<const R: usize>(
        weights: &[u8; 18],
        rows: [&[u8; 36]; R],
        sums: &[i32; TILE],
        scales: v128,
    ) -> v128 {
        let mut dots = [ZERO; TILE];
        for (dot, row) in dots.iter_mut().zip(rows) {
            *dot = q4_0_dot(weights, row);
        }
        let sum = i32x4_sub(sum_each(dots), load_4_i32(sums));
        f32x4_mul(f32x4_mul(same_f16(weights, 0), scales), f32x4_convert_i32x4(sum))
    }

    #[inline]
    unsafe fn term_of_blocks(
        weights: [&[u8; 18]; TILE],
        row: [&[u8; 36]; TILE],
        sums: &[i32; TILE],
        scales: v128,
    ) -> v128 {
        let mut dots = [ZERO; TILE];
        for ((dot, weights), row) in dots.iter_mut().zip(weights).zip(row) {
            *dot = q4_0_dot(weights, row);
        }
        let sum = i32x4_sub(sum_each(dots), load_4_i32(sums));
        f32x4_mul(f32x4_mul(four_f16(weights, 0), scales), f32x4_convert_i32x4(sum))
    }
}

/// Q8_0: magnitudes of the weights times rows with the weights' signs.
pub(super) struct Q8_0;

impl BlockFormat for Q8_0 {
    type Weights = [u8; 34];
    type Row = [u8; 36];
    type Sums = ();
    const ROWS_TOGETHER: bool = true;
    const NO_SUMS: () = ();

    fn weights(bytes: &[u8]) -> &[[u8; 34]] {
        bytes.as_chunks().0
    }

    fn rows(bytes: &[u8]) -> &[[u8; 36]] {
        bytes.as_chunks().0
    }

    fn sums(_: &[u8; 36]) {}

    #[inline]
    unsafe fn term_of_rows<const R: usize>(
        weights: &[u8; 34],
        rows: [&[u8; 36]; R],
        _: &[(); TILE],
        scales: v128,
    ) -> v128 {
        let mut dots = [ZERO; TILE];
        let zero = hidden_zero();
        for (dot, row) in dots.iter_mut().zip(rows) {
            *dot = q8_0_dot(weights, row, zero);
        }
        f32x4_mul(f32x4_mul(same_f16(weights, 0), scales), f32x4_convert_i32x4(sum_each(dots)))
    }

    #[inline]
    unsafe fn term_of_blocks(
        weights: [&[u8; 34]; TILE],
        row: [&[u8; 36]; TILE],
        _: &[(); TILE],
        scales: v128,
    ) -> v128 {
        let mut dots = [ZERO; TILE];
        let zero = hidden_zero();
        for ((dot, weights), row) in dots.iter_mut().zip(weights).zip(row) {
            *dot = q8_0_dot(weights, row, zero);
        }
        f32x4_mul(f32x4_mul(four_f16(weights, 0), scales), f32x4_convert_i32x4(sum_each(dots)))
    }
}

/// Q4_K.
pub(super) struct Q4K;

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
    unsafe fn term_of_rows<const R: usize>(
        weights: &[u8; 144],
        rows: [&[u8; 260]; R],
        sums: &[[i16; 8]; TILE],
        scales: v128,
    ) -> v128 {
        let (sub_scales, minima) = four_k_scales(&weights[4..16]);
        let (mut scaled, mut lowered) = ([ZERO; TILE], [ZERO; TILE]);
        scaled[..R].copy_from_slice(&q4_k_dots(weights, rows, sub_scales));
        for (lowered, sums) in lowered.iter_mut().zip(sums).take(R) {
            *lowered = i32x4_dot_i16x8(minima, load_8_i16(sums));
        }
        let (scale, minimum) = (same_f16(weights, 0), same_f16(weights, 2));
        q4_k_term(f32x4_mul(scale, scales), f32x4_mul(minimum, scales), scaled, lowered)
    }

    #[inline]
    unsafe fn term_of_blocks(
        weights: [&[u8; 144]; TILE],
        row: [&[u8; 260]; TILE],
        sums: &[[i16; 8]; TILE],
        scales: v128,
    ) -> v128 {
        let (mut scaled, mut lowered) = ([ZERO; TILE], [ZERO; TILE]);
        for lane in 0..TILE {
            let (sub_scales, minima) = four_k_scales(&weights[lane][4..16]);
            [scaled[lane]] = q4_k_dots(weights[lane], [row[lane]], sub_scales);
            lowered[lane] = i32x4_dot_i16x8(minima, load_8_i16(&sums[lane]));
        }
        let (scale, minimum) = (four_f16(weights, 0), four_f16(weights, 2));
        q4_k_term(f32x4_mul(scale, scales), f32x4_mul(minimum, scales), scaled, lowered)
    }
}

/// Q6_K: `sum sc_j (sum u x - 32 sum x)`, u = 0..=63 as stored.
pub(super) struct Q6K;

impl BlockFormat for Q6K {
    type Weights = [u8; 210];
    type Row = [u8; 260];
    /// The sums of the row's sixteen sub-blocks.
    type Sums = [[i16; 8]; 2];
    const ROWS_TOGETHER: bool = true;
    const NO_SUMS: [[i16; 8]; 2] = [[0; 8]; 2];

    fn weights(bytes: &[u8]) -> &[[u8; 210]] {
        bytes.as_chunks().0
    }

    fn rows(bytes: &[u8]) -> &[[u8; 260]] {
        bytes.as_chunks().0
    }

    fn sums(row: &[u8; 260]) -> [[i16; 8]; 2] {
        let mut sums = [[0; 8]; 2];
        for (sum, values) in sums.as_flattened_mut().iter_mut().zip(row[4..].as_chunks::<16>().0) {
            *sum = values.iter().map(|&value| i16::from(value as i8)).sum();
        }
        sums
    }

    #[inline]
    unsafe fn term_of_rows<const R: usize>(
        weights: &[u8; 210],
        rows: [&[u8; 260]; R],
        sums: &[[[i16; 8]; 2]; TILE],
        scales: v128,
    ) -> v128 {
        let mut scaled = [ZERO; TILE];
        scaled[..R].copy_from_slice(&q6_k_dots::<R>(weights, rows, each(sums)));
        let scales = f32x4_mul(same_f16(weights, 208), scales);
        f32x4_mul(scales, f32x4_convert_i32x4(sum_each(scaled)))
    }

    #[inline]
    unsafe fn term_of_blocks(
        weights: [&[u8; 210]; TILE],
        row: [&[u8; 260]; TILE],
        sums: &[[[i16; 8]; 2]; TILE],
        scales: v128,
    ) -> v128 {
        let mut scaled = [ZERO; TILE];
        for lane in 0..TILE {
            [scaled[lane]] = q6_k_dots(weights[lane], [row[lane]], [&sums[lane]]);
        }
        let scales = f32x4_mul(four_f16(weights, 208), scales);
        f32x4_mul(scales, f32x4_convert_i32x4(sum_each(scaled)))
    }
}

/// The sum of the four lanes is the sum of q x over a block.
#[inline]
fn q4_0_dot(weights: &[u8; 18], row: &[u8; 36]) -> v128 {
    let quants = load_16(weights, 2);
    let low = i16x8_relaxed_dot_i8x16_i7x16(load_16(row, 4), v128_and(quants, u8x16_splat(15)));
    let high = i16x8_relaxed_dot_i8x16_i7x16(load_16(row, 20), u8x16_shr(quants, 4));
    // Two pairs of at most 15 * 127 each fit 16 bits.
    let dot = i32x4_extadd_pairwise_i16x8(i16x8_add(low, high));
    compute_now(dot);
    dot
}

/// The sum of the four lanes is the sum of w x over a block.
#[inline]
fn q8_0_dot(weights: &[u8; 34], row: &[u8; 36], zero: v128) -> v128 {
    let (low, high) = (load_16(weights, 2), load_16(weights, 18));
    let dot = i16x8_relaxed_dot_i8x16_i7x16(with_sign(load_16(row, 4), low, zero), i8x16_abs(low));
    let dot = i32x4_extadd_pairwise_i16x8(dot);
    let dot =
        i32x4_relaxed_dot_i8x16_i7x16_add(with_sign(load_16(row, 20), high, zero), i8x16_abs(high), dot);
    compute_now(dot);
    dot
}

/// `sc_j * (sum of q x)` of each row over the eight sub-blocks, spread over the lanes.
#[inline]
fn q4_k_dots<const R: usize>(weights: &[u8; 144], rows: [&[u8; 260]; R], sub_scales: v128) -> [v128; R] {
    let mut scaled = [ZERO; R];
    let sub_scales = spread_each(sub_scales);
    for pair in 0..4 {
        let (first, second) = (load_16(weights, 16 + 32 * pair), load_16(weights, 32 + 32 * pair));
        let mask = u8x16_splat(15);
        let low = (v128_and(first, mask), v128_and(second, mask));
        let high = (u8x16_shr(first, 4), u8x16_shr(second, 4));
        for (scaled, row) in scaled.iter_mut().zip(rows) {
            // Two pairs of at most 15 * 127 each fit 16 bits.
            let low = i16x8_add(
                i16x8_relaxed_dot_i8x16_i7x16(load_16(row, 4 + 64 * pair), low.0),
                i16x8_relaxed_dot_i8x16_i7x16(load_16(row, 20 + 64 * pair), low.1),
            );
            let high = i16x8_add(
                i16x8_relaxed_dot_i8x16_i7x16(load_16(row, 36 + 64 * pair), high.0),
                i16x8_relaxed_dot_i8x16_i7x16(load_16(row, 52 + 64 * pair), high.1),
            );
            let both = i32x4_add(
                i32x4_dot_i16x8(low, sub_scales[2 * pair]),
                i32x4_dot_i16x8(high, sub_scales[2 * pair + 1]),
            );
            *scaled = i32x4_add(*scaled, both);
            compute_now(*scaled);
        }
    }
    scaled
}

/// `scale * f(scaled) - minimum * f(lowered)`.
#[inline]
fn q4_k_term(scale: v128, minimum: v128, scaled: [v128; TILE], lowered: [v128; TILE]) -> v128 {
    let above = f32x4_mul(scale, f32x4_convert_i32x4(sum_each(scaled)));
    let below = f32x4_mul(minimum, f32x4_convert_i32x4(sum_each(lowered)));
    f32x4_sub(above, below)
}

/// `sc_j * (sum u x - 32 sum x)` of each row over the sixteen sub-blocks, spread over the lanes.
#[inline]
fn q6_k_dots<const R: usize>(
    weights: &[u8; 210],
    rows: [&[u8; 260]; R],
    sums: [&[[i16; 8]; 2]; R],
) -> [v128; R] {
    let sub_scales = load_16(weights, 192);
    let sub_scales = [i16x8_extend_low_i8x16(sub_scales), i16x8_extend_high_i8x16(sub_scales)];
    let mut scaled = [ZERO; R];
    for (scaled, sums) in scaled.iter_mut().zip(sums) {
        let centre = i32x4_add(
            i32x4_dot_i16x8(sub_scales[0], load_8_i16(&sums[0])),
            i32x4_dot_i16x8(sub_scales[1], load_8_i16(&sums[1])),
        );
        *scaled = i32x4_sub(*scaled, i32x4_shl(centre, 5));
    }
    let (four, two) = (u8x16_splat(15), u8x16_splat(0x30));
    for half in 0..2 {
        let scales = spread_each(sub_scales[half]);
        for part in 0..2 {
            let first = load_16(weights, 64 * half + 16 * part);
            let second = load_16(weights, 64 * half + 32 + 16 * part);
            let high = load_16(weights, 128 + 32 * half + 16 * part);
            let quants = [
                v128_or(v128_and(first, four), v128_and(u16x8_shl(high, 4), two)),
                v128_or(v128_and(second, four), v128_and(u16x8_shl(high, 2), two)),
                v128_or(u8x16_shr(first, 4), v128_and(high, two)),
                v128_or(u8x16_shr(second, 4), v128_and(u16x8_shr(high, 2), two)),
            ];
            for (quarter, quants) in quants.into_iter().enumerate() {
                for (scaled, row) in scaled.iter_mut().zip(rows) {
                    let row = load_16(row, 4 + 128 * half + 32 * quarter + 16 * part);
                    let dot = i16x8_relaxed_dot_i8x16_i7x16(row, quants);
                    *scaled = i32x4_add(*scaled, i32x4_dot_i16x8(dot, scales[2 * quarter + part]));
                }
            }
            for scaled in scaled {
                compute_now(scaled);
            }
        }
    }
    scaled
}
