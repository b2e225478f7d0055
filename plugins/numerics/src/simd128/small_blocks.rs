//! The terms of the formats of 32 weights that have no code of their own: each says how its weights are unpacked, the rest is
//! shared. As in `formats`, the second operand of a relaxed dot, the weights, stays below 128.

use core::marker::PhantomData;

use super::instructions::*;
use super::lanes::{load_4_i32, load_16, sum_each};
use super::unpack::{ZERO, compute_now, f16_of_four, f16_of_one, hidden_zero, look_up, with_sign};
use crate::block::{E2M1_ABOVE_12, IQ4_BYTES};
use crate::block_walk::{BlockFormat, TILE};
use crate::half::power_of_two_halved;

/// How the blocks of a format of 32 weights are unpacked.
pub(super) trait SmallFormat {
    /// A block: an array of bytes.
    type Block: AsRef<[u8]>;
    /// What `quants` is above the weights' integers.
    const CENTRE: i32 = 0;
    /// Whether `quants` has signs; without, it lies in 0..=31.
    const SIGNED: bool = false;
    /// Whether an f16 minimum follows the scale.
    const MINIMUM: bool = false;

    fn blocks(bytes: &[u8]) -> &[Self::Block];

    /// The first and the last sixteen integers in column order.
    fn quants(block: &Self::Block) -> [v128; 2];

    /// The block's scale in every lane.
    #[inline]
    fn scale(block: &Self::Block) -> v128 {
        f16_of_one(block, 0)
    }

    /// The scales of four blocks.
    #[inline]
    fn scales(blocks: [&Self::Block; TILE]) -> v128 {
        f16_of_four(blocks, 0)
    }
}

/// The terms of a [`SmallFormat`].
pub(super) struct Small<F>(PhantomData<F>);

impl<F: SmallFormat> BlockFormat for Small<F> {
    type Weights = F::Block;
    type Row = [u8; 36];
    /// The sum of the row's integers, times the centre where there is one.
    type Sums = i32;
    const ROWS_TOGETHER: bool = true;
    const NO_SUMS: i32 = 0;

    fn weights(bytes: &[u8]) -> &[F::Block] {
        F::blocks(bytes)
    }

    fn rows(bytes: &[u8]) -> &[[u8; 36]] {
        bytes.as_chunks().0
    }

    #[inline]
    fn sums(row: &[u8; 36]) -> i32 {
        if F::CENTRE == 0 && !F::MINIMUM {
            return 0;
        }
        let sum = row[4..].iter().map(|&value| i32::from(value as i8)).sum::<i32>();
        if F::MINIMUM { sum } else { F::CENTRE * sum }
    }

    #[inline]
    unsafe fn term_of_rows<const R: usize>(
        weights: &F::Block,
        rows: [&[u8; 36]; R],
        sums: &[i32; TILE],
        scales: v128,
    ) -> v128 {
        let (quants, zero) = (F::quants(weights), hidden_zero());
        let mut dots = [ZERO; TILE];
        for (dot, row) in dots.iter_mut().zip(rows) {
            *dot = dot_of_block::<F>(quants, row, zero);
        }
        let scale = F::scale(weights);
        let minimum = if F::MINIMUM { f16_of_one(weights, 2) } else { scale };
        term::<F>(dots, sums, scales, scale, minimum)
    }

    #[inline]
    unsafe fn term_of_blocks(
        weights: [&F::Block; TILE],
        row: [&[u8; 36]; TILE],
        sums: &[i32; TILE],
        scales: v128,
    ) -> v128 {
        let zero = hidden_zero();
        let mut dots = [ZERO; TILE];
        for ((dot, weights), row) in dots.iter_mut().zip(weights).zip(row) {
            *dot = dot_of_block::<F>(F::quants(weights), row, zero);
        }
        let scale = F::scales(weights);
        let minimum = if F::MINIMUM { f16_of_four(weights, 2) } else { scale };
        term::<F>(dots, sums, scales, scale, minimum)
    }
}

/// The sum of the four lanes is the sum of the integers' products with a row's block.
#[inline]
fn dot_of_block<F: SmallFormat>(quants: [v128; 2], row: &[u8; 36], zero: v128) -> v128 {
    let (first, last) = (load_16(row, 4), load_16(row, 20));
    let dot = if F::SIGNED {
        // Pairs of 127 * 127 fill 16 bits: each half is widened by itself.
        let first = with_sign(first, quants[0], zero);
        let last = with_sign(last, quants[1], zero);
        let dot = i16x8_relaxed_dot_i8x16_i7x16(first, i8x16_abs(quants[0]));
        let dot = i32x4_extadd_pairwise_i16x8(dot);
        i32x4_relaxed_dot_i8x16_i7x16_add(last, i8x16_abs(quants[1]), dot)
    } else {
        // Two pairs of at most 31 * 127 each fit 16 bits.
        i32x4_extadd_pairwise_i16x8(i16x8_add(
            i16x8_relaxed_dot_i8x16_i7x16(first, quants[0]),
            i16x8_relaxed_dot_i8x16_i7x16(last, quants[1]),
        ))
    };
    compute_now(dot);
    dot
}

/// `(d * dx) * f(isum)`, and `+ (m * dx) * f(bsum)` where the format has a minimum.
#[inline]
fn term<F: SmallFormat>(
    dots: [v128; TILE],
    sums: &[i32; TILE],
    row_scales: v128,
    scale: v128,
    minimum: v128,
) -> v128 {
    let mut sum = sum_each(dots);
    if F::CENTRE != 0 {
        sum = i32x4_sub(sum, load_4_i32(sums));
    }
    let scaled = f32x4_mul(f32x4_mul(scale, row_scales), f32x4_convert_i32x4(sum));
    if !F::MINIMUM {
        return scaled;
    }
    let lowest = f32x4_mul(f32x4_mul(minimum, row_scales), f32x4_convert_i32x4(load_4_i32(sums)));
    f32x4_add(scaled, lowest)
}

/// Q4_1.
pub(super) struct Q4_1;

impl SmallFormat for Q4_1 {
    type Block = [u8; 20];
    const MINIMUM: bool = true;

    fn blocks(bytes: &[u8]) -> &[[u8; 20]] {
        bytes.as_chunks().0
    }

    #[inline]
    fn quants(block: &[u8; 20]) -> [v128; 2] {
        nibbles(load_16(block, 4))
    }
}

/// Q5_0: 0..=31, sixteen above.
pub(super) struct Q5_0;

impl SmallFormat for Q5_0 {
    type Block = [u8; 22];
    const CENTRE: i32 = 16;

    fn blocks(bytes: &[u8]) -> &[[u8; 22]] {
        bytes.as_chunks().0
    }

    #[inline]
    fn quants(block: &[u8; 22]) -> [v128; 2] {
        fives([block[2], block[3], block[4], block[5]], load_16(block, 6))
    }
}

/// Q5_1.
pub(super) struct Q5_1;

impl SmallFormat for Q5_1 {
    type Block = [u8; 24];
    const MINIMUM: bool = true;

    fn blocks(bytes: &[u8]) -> &[[u8; 24]] {
        bytes.as_chunks().0
    }

    #[inline]
    fn quants(block: &[u8; 24]) -> [v128; 2] {
        fives([block[4], block[5], block[6], block[7]], load_16(block, 8))
    }
}

/// IQ4_NL: the values of the table, whose range is too wide to be made unsigned below 128.
pub(super) struct IQ4NL;

impl SmallFormat for IQ4NL {
    type Block = [u8; 18];
    const SIGNED: bool = true;

    fn blocks(bytes: &[u8]) -> &[[u8; 18]] {
        bytes.as_chunks().0
    }

    #[inline]
    fn quants(block: &[u8; 18]) -> [v128; 2] {
        let [low, high] = nibbles(load_16(block, 2));
        [look_up(&IQ4_BYTES, low), look_up(&IQ4_BYTES, high)]
    }
}

/// MXFP4: the doubled four-bit floats, twelve above.
pub(super) struct MXFP4;

impl SmallFormat for MXFP4 {
    type Block = [u8; 17];
    const CENTRE: i32 = 12;

    fn blocks(bytes: &[u8]) -> &[[u8; 17]] {
        bytes.as_chunks().0
    }

    #[inline]
    fn quants(block: &[u8; 17]) -> [v128; 2] {
        let [low, high] = nibbles(load_16(block, 1));
        [look_up(&E2M1_ABOVE_12, low), look_up(&E2M1_ABOVE_12, high)]
    }

    #[inline]
    fn scale(block: &[u8; 17]) -> v128 {
        f32x4_splat(power_of_two_halved(block[0]))
    }

    #[inline]
    fn scales(blocks: [&[u8; 17]; TILE]) -> v128 {
        let [a, b, c, d] = blocks;
        let exponents = u32x4(u32::from(a[0]), u32::from(b[0]), u32::from(c[0]), u32::from(d[0]));
        // Below 2 the power is subnormal: 1 or 2 times 2^-128.
        let one = u32x4_splat(1);
        let normal = u32x4_shl(u32x4_sub(exponents, one), 23);
        let subnormal = u32x4_shl(u32x4_add(exponents, one), 21);
        v128_bitselect(normal, subnormal, i32x4_gt(exponents, one))
    }
}

/// The low nibbles of 16 bytes and their high nibbles.
#[inline]
fn nibbles(bytes: v128) -> [v128; 2] {
    [v128_and(bytes, u8x16_splat(15)), u8x16_shr(bytes, 4)]
}

/// Nibbles with fifth bits, bit i for weight i.
#[inline]
fn fives(fifth_bits: [u8; 4], bytes: v128) -> [v128; 2] {
    let bits = u32x4_splat(u32::from_le_bytes(fifth_bits));
    let [low, high] = nibbles(bytes);
    let first = i8x16_swizzle(bits, u8x16(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    let last = i8x16_swizzle(bits, u8x16(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
    [v128_or(low, fifth_bits_of(first)), v128_or(high, fifth_bits_of(last))]
}

/// Sixteen where bit i mod 8 of byte i is set.
#[inline]
fn fifth_bits_of(bytes: v128) -> v128 {
    let bit = u8x16(1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128);
    v128_and(i8x16_eq(v128_and(bytes, bit), bit), u8x16_splat(16))
}
