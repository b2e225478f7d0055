//! The terms of the formats of 256 weights that have no code of their own: each says how its weights and the integers of its
//! sub-blocks are unpacked, the rest is shared. As in `formats`, the second operand of a relaxed dot, the weights, stays below
//! 128.

use core::marker::PhantomData;

use super::instructions::*;
use super::lanes::{load_8_i16, load_16, sum_each};
use super::unpack::{
    ZERO, compute_now, f16_of_four, f16_of_one, four_k_scales, half_word, hidden_zero, look_up, spread_each,
    with_sign, word,
};
use crate::block::IQ4_BYTES;
use crate::block_walk::{BlockFormat, TILE};
use crate::slices::each;

/// How the blocks of a format of 256 weights are unpacked.
pub(super) trait SuperFormat {
    /// A block: an array of bytes.
    type Block: AsRef<[u8]>;
    /// Whether sub-blocks are eight of 32 weights; else they are sixteen of sixteen.
    const SUB_32: bool;
    /// Where the f16 scale lies.
    const SCALE: usize;
    /// Where the f16 scale of the minima lies, if there are any.
    const MINIMUM: Option<usize> = None;
    /// What `quants` is above the weights' integers.
    const CENTRE: i32 = 0;
    /// Whether `quants` has signs; without, it lies in 0..=31.
    const SIGNED: bool = false;

    fn blocks(bytes: &[u8]) -> &[Self::Block];

    /// The integers of the sub-blocks' scales as i16: sixteen, or eight and the same eight again.
    fn scales(block: &Self::Block) -> [v128; 2];

    /// The integers of the sub-blocks' minima in the same way.
    fn minima(block: &Self::Block) -> [v128; 2] {
        Self::scales(block)
    }

    /// Of the four times 32 weights from weight 128 `half` on, in column order, the first (`part` 0) or last sixteen.
    fn quants(block: &Self::Block, half: usize, part: usize) -> [v128; 4];
}

/// The terms of a [`SuperFormat`].
pub(super) struct Super<F>(PhantomData<F>);

impl<F: SuperFormat> Super<F> {
    const NEEDS_SUMS: bool = F::CENTRE != 0 || F::MINIMUM.is_some();
}

impl<F: SuperFormat> BlockFormat for Super<F> {
    type Weights = F::Block;
    type Row = [u8; 260];
    /// The sums of the row's sub-blocks; eight sums of 32 stand in the first half.
    type Sums = [[i16; 8]; 2];
    const ROWS_TOGETHER: bool = true;
    const NO_SUMS: [[i16; 8]; 2] = [[0; 8]; 2];

    fn weights(bytes: &[u8]) -> &[F::Block] {
        F::blocks(bytes)
    }

    fn rows(bytes: &[u8]) -> &[[u8; 260]] {
        bytes.as_chunks().0
    }

    #[inline]
    fn sums(row: &[u8; 260]) -> [[i16; 8]; 2] {
        let mut sums = [[0; 8]; 2];
        if !Self::NEEDS_SUMS {
            return sums;
        }
        let places = sums.as_flattened_mut();
        if F::SUB_32 {
            for (sum, values) in places.iter_mut().zip(row[4..].as_chunks::<32>().0) {
                *sum = values.iter().map(|&value| i16::from(value as i8)).sum();
            }
        } else {
            for (sum, values) in places.iter_mut().zip(row[4..].as_chunks::<16>().0) {
                *sum = values.iter().map(|&value| i16::from(value as i8)).sum();
            }
        }
        sums
    }

    #[inline]
    unsafe fn term_of_rows<const R: usize>(
        weights: &F::Block,
        rows: [&[u8; 260]; R],
        sums: &[[[i16; 8]; 2]; TILE],
        scales: v128,
    ) -> v128 {
        let (mut scaled, mut lowered) = ([ZERO; TILE], [ZERO; TILE]);
        let (of_rows, minima) = dots::<F, R>(weights, rows, each(sums));
        scaled[..R].copy_from_slice(&of_rows);
        lowered[..R].copy_from_slice(&minima);
        let scale = f16_of_one(weights, F::SCALE);
        let minimum = f16_of_one(weights, F::MINIMUM.unwrap_or(F::SCALE));
        term::<F>(scaled, lowered, scales, scale, minimum)
    }

    #[inline]
    unsafe fn term_of_blocks(
        weights: [&F::Block; TILE],
        row: [&[u8; 260]; TILE],
        sums: &[[[i16; 8]; 2]; TILE],
        scales: v128,
    ) -> v128 {
        let (mut scaled, mut lowered) = ([ZERO; TILE], [ZERO; TILE]);
        for lane in 0..TILE {
            ([scaled[lane]], [lowered[lane]]) = dots::<F, 1>(weights[lane], [row[lane]], [&sums[lane]]);
        }
        let scale = f16_of_four(weights, F::SCALE);
        let minimum = f16_of_four(weights, F::MINIMUM.unwrap_or(F::SCALE));
        term::<F>(scaled, lowered, scales, scale, minimum)
    }
}

/// `sum sc_j * isum_j` and `sum mn_j * bsum_j` of each row, spread over the lanes.
#[inline]
fn dots<F: SuperFormat, const R: usize>(
    weights: &F::Block,
    rows: [&[u8; 260]; R],
    sums: [&[[i16; 8]; 2]; R],
) -> ([v128; R], [v128; R]) {
    let (sub_scales, minima) = (F::scales(weights), F::minima(weights));
    let (mut scaled, mut lowered) = ([ZERO; R], [ZERO; R]);
    for ((scaled, lowered), sums) in scaled.iter_mut().zip(&mut lowered).zip(sums) {
        if F::CENTRE != 0 {
            *scaled = i32x4_mul(i32x4_splat(-F::CENTRE), dot_of_sub_blocks::<F>(sub_scales, sums));
        }
        if F::MINIMUM.is_some() {
            *lowered = dot_of_sub_blocks::<F>(minima, sums);
        }
    }
    let zero = hidden_zero();
    for half in 0..2 {
        let scales = spread_each(sub_scales[half]);
        if F::SUB_32 {
            let (first, last) = (F::quants(weights, half, 0), F::quants(weights, half, 1));
            for quarter in 0..4 {
                let scale = scales[4 * half + quarter];
                for (scaled, row) in scaled.iter_mut().zip(rows) {
                    let at = 4 + 128 * half + 32 * quarter;
                    let first = dot_of_16::<F>(first[quarter], load_16(row, at), zero);
                    let last = dot_of_16::<F>(last[quarter], load_16(row, at + 16), zero);
                    let dot = if F::SIGNED {
                        // Pairs of 127 * 127 fill 16 bits: each half is widened by itself.
                        i32x4_add(i32x4_dot_i16x8(first, scale), i32x4_dot_i16x8(last, scale))
                    } else {
                        // Two pairs of at most 31 * 127 each fit 16 bits.
                        i32x4_dot_i16x8(i16x8_add(first, last), scale)
                    };
                    *scaled = i32x4_add(*scaled, dot);
                    compute_now(*scaled);
                }
            }
            continue;
        }
        for part in 0..2 {
            let quants = F::quants(weights, half, part);
            for (quarter, quants) in quants.into_iter().enumerate() {
                for (scaled, row) in scaled.iter_mut().zip(rows) {
                    let row = load_16(row, 4 + 128 * half + 32 * quarter + 16 * part);
                    let dot = dot_of_16::<F>(quants, row, zero);
                    *scaled = i32x4_add(*scaled, i32x4_dot_i16x8(dot, scales[2 * quarter + part]));
                }
            }
            for scaled in scaled {
                compute_now(scaled);
            }
        }
    }
    (scaled, lowered)
}

/// Integers of sub-blocks times sums of a row, spread over the lanes.
#[inline]
fn dot_of_sub_blocks<F: SuperFormat>(integers: [v128; 2], sums: &[[i16; 8]; 2]) -> v128 {
    let first = i32x4_dot_i16x8(integers[0], load_8_i16(&sums[0]));
    if F::SUB_32 {
        return first;
    }
    i32x4_add(first, i32x4_dot_i16x8(integers[1], load_8_i16(&sums[1])))
}

/// Sums of two products each.
#[inline]
fn dot_of_16<F: SuperFormat>(quants: v128, row: v128, zero: v128) -> v128 {
    if F::SIGNED {
        i16x8_relaxed_dot_i8x16_i7x16(with_sign(row, quants, zero), i8x16_abs(quants))
    } else {
        i16x8_relaxed_dot_i8x16_i7x16(row, quants)
    }
}

/// `(d * dx) * f(scaled)`, and `- (dmin * dx) * f(lowered)` where the format has minima.
#[inline]
fn term<F: SuperFormat>(
    scaled: [v128; TILE],
    lowered: [v128; TILE],
    row_scales: v128,
    scale: v128,
    minimum: v128,
) -> v128 {
    let above = f32x4_mul(f32x4_mul(scale, row_scales), f32x4_convert_i32x4(sum_each(scaled)));
    if F::MINIMUM.is_none() {
        return above;
    }
    let below = f32x4_mul(f32x4_mul(minimum, row_scales), f32x4_convert_i32x4(sum_each(lowered)));
    f32x4_sub(above, below)
}

/// Q2_K.
pub(super) struct Q2K;

impl SuperFormat for Q2K {
    type Block = [u8; 84];
    const SUB_32: bool = false;
    const SCALE: usize = 80;
    const MINIMUM: Option<usize> = Some(82);

    fn blocks(bytes: &[u8]) -> &[[u8; 84]] {
        bytes.as_chunks().0
    }

    #[inline]
    fn scales(block: &[u8; 84]) -> [v128; 2] {
        let scales = v128_and(load_16(block, 0), u8x16_splat(15));
        [u16x8_extend_low_u8x16(scales), u16x8_extend_high_u8x16(scales)]
    }

    #[inline]
    fn minima(block: &[u8; 84]) -> [v128; 2] {
        let minima = u8x16_shr(load_16(block, 0), 4);
        [u16x8_extend_low_u8x16(minima), u16x8_extend_high_u8x16(minima)]
    }

    #[inline]
    fn quants(block: &[u8; 84], half: usize, part: usize) -> [v128; 4] {
        pairs(load_16(block, 16 + 32 * half + 16 * part))
    }
}

/// Q3_K: 0..=7, four above.
pub(super) struct Q3K;

impl SuperFormat for Q3K {
    type Block = [u8; 110];
    const SUB_32: bool = false;
    const SCALE: usize = 108;
    const CENTRE: i32 = 4;

    fn blocks(bytes: &[u8]) -> &[[u8; 110]] {
        bytes.as_chunks().0
    }

    #[inline]
    fn scales(block: &[u8; 110]) -> [v128; 2] {
        const FOUR: u32 = 0x0f0f_0f0f;
        const TWO: u32 = 0x3030_3030;
        let (first, second, upper) = (word(block, 96), word(block, 100), word(block, 104));
        let scales = u32x4(
            (first & FOUR) | (upper << 4 & TWO),
            (second & FOUR) | (upper << 2 & TWO),
            (first >> 4 & FOUR) | (upper & TWO),
            (second >> 4 & FOUR) | (upper >> 2 & TWO),
        );
        let scales = i8x16_sub(scales, i8x16_splat(32));
        [i16x8_extend_low_i8x16(scales), i16x8_extend_high_i8x16(scales)]
    }

    #[inline]
    fn quants(block: &[u8; 110], half: usize, part: usize) -> [v128; 4] {
        let bits = upper_bits(load_16(block, 16 * part), half);
        let third = u8x16_splat(4);
        let [a, b, c, d] = pairs(load_16(block, 32 + 32 * half + 16 * part));
        [
            v128_or(a, v128_and(u16x8_shl(bits, 2), third)),
            v128_or(b, v128_and(u16x8_shl(bits, 1), third)),
            v128_or(c, v128_and(bits, third)),
            v128_or(d, v128_and(u16x8_shr(bits, 1), third)),
        ]
    }
}

/// Q5_K.
pub(super) struct Q5K;

impl SuperFormat for Q5K {
    type Block = [u8; 176];
    const SUB_32: bool = true;
    const SCALE: usize = 0;
    const MINIMUM: Option<usize> = Some(2);

    fn blocks(bytes: &[u8]) -> &[[u8; 176]] {
        bytes.as_chunks().0
    }

    #[inline]
    fn scales(block: &[u8; 176]) -> [v128; 2] {
        let (scales, _) = four_k_scales(&block[4..16]);
        [scales, scales]
    }

    #[inline]
    fn minima(block: &[u8; 176]) -> [v128; 2] {
        let (_, minima) = four_k_scales(&block[4..16]);
        [minima, minima]
    }

    #[inline]
    fn quants(block: &[u8; 176], half: usize, part: usize) -> [v128; 4] {
        let bits = upper_bits(load_16(block, 16 + 16 * part), half);
        let first = load_16(block, 48 + 64 * half + 16 * part);
        let second = load_16(block, 80 + 64 * half + 16 * part);
        let (four, fifth) = (u8x16_splat(15), u8x16_splat(16));
        [
            v128_or(v128_and(first, four), v128_and(u16x8_shl(bits, 4), fifth)),
            v128_or(u8x16_shr(first, 4), v128_and(u16x8_shl(bits, 3), fifth)),
            v128_or(v128_and(second, four), v128_and(u16x8_shl(bits, 2), fifth)),
            v128_or(u8x16_shr(second, 4), v128_and(u16x8_shl(bits, 1), fifth)),
        ]
    }
}

/// IQ4_XS: the values of the table, whose range is too wide to be made unsigned below 128.
pub(super) struct IQ4XS;

impl SuperFormat for IQ4XS {
    type Block = [u8; 136];
    const SUB_32: bool = true;
    const SCALE: usize = 0;
    const SIGNED: bool = true;

    fn blocks(bytes: &[u8]) -> &[[u8; 136]] {
        bytes.as_chunks().0
    }

    #[inline]
    fn scales(block: &[u8; 136]) -> [v128; 2] {
        let (first, last) = (half_word(block, 4), half_word(block, 6));
        // A product with a power of two moves each scale's bits to the top of its lane.
        let upper = i16x8_mul(
            u16x8_splat(half_word(block, 2)),
            u16x8(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1),
        );
        let lower = i16x8_mul(
            u16x8(first, first, first, first, last, last, last, last),
            u16x8(1 << 12, 1 << 8, 1 << 4, 1, 1 << 12, 1 << 8, 1 << 4, 1),
        );
        let scales = v128_or(u16x8_shl(u16x8_shr(upper, 14), 4), u16x8_shr(lower, 12));
        let scales = i16x8_sub(scales, i16x8_splat(32));
        [scales, scales]
    }

    #[inline]
    fn quants(block: &[u8; 136], half: usize, part: usize) -> [v128; 4] {
        let mut quants = [ZERO; 4];
        for (quarter, quants) in quants.iter_mut().enumerate() {
            let bytes = load_16(block, 8 + 64 * half + 16 * quarter);
            let nibbles = if part == 0 { v128_and(bytes, u8x16_splat(15)) } else { u8x16_shr(bytes, 4) };
            *quants = look_up(&IQ4_BYTES, nibbles);
        }
        quants
    }
}

/// The lowest pairs of bits of sixteen bytes, the next, up to the highest.
#[inline]
fn pairs(bytes: v128) -> [v128; 4] {
    let two = u8x16_splat(3);
    [
        v128_and(bytes, two),
        v128_and(u16x8_shr(bytes, 2), two),
        v128_and(u16x8_shr(bytes, 4), two),
        u8x16_shr(bytes, 6),
    ]
}

/// The bits of a half in the lower four of each byte; what stands above is of no meaning.
#[inline]
fn upper_bits(bits: v128, half: usize) -> v128 {
    if half == 0 { bits } else { u16x8_shr(bits, 4) }
}
