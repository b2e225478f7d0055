//! The terms of the formats of 32 weights that have no code of their own: each says how its weights are unpacked, the rest is
//! shared. As in `formats`, one operand of `pmaddubsw` stays below 128.

use core::arch::x86_64::*;
use core::marker::PhantomData;

use super::lanes::{load_4_i32, load_32, sum_each};
use super::unpack::{dot_of_bytes, f16_of_four, f16_of_one, look_up, nibbles_of_16};
use crate::block::{E2M1_ABOVE_12, IQ4_BYTES};
use crate::block_walk::{BlockFormat, TILE};
use crate::half::power_of_two_halved;

/// How the blocks of a format of 32 weights are unpacked.
pub(super) trait SmallFormat {
    /// A block: an array of bytes.
    type Block: AsRef<[u8]>;
    /// What `quants` is above the weights' integers.
    const CENTRE: i32 = 0;
    /// Whether `quants` has signs; without, it lies in 0..=127.
    const SIGNED: bool = false;
    /// Whether an f16 minimum follows the scale.
    const MINIMUM: bool = false;

    fn blocks(bytes: &[u8]) -> &[Self::Block];

    /// The 32 integers in column order.
    ///
    /// # Safety
    /// The instruction set's features.
    unsafe fn quants(block: &Self::Block) -> __m256i;

    /// The block's scale in every lane.
    ///
    /// # Safety
    /// The instruction set's features.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn scale(block: &Self::Block) -> __m128 {
        f16_of_one(block, 0)
    }

    /// The scales of four blocks.
    ///
    /// # Safety
    /// The instruction set's features.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn scales(blocks: [&Self::Block; TILE]) -> __m128 {
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
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn term_of_rows<const R: usize>(
        weights: &F::Block,
        rows: [&[u8; 36]; R],
        sums: &[i32; TILE],
        scales: __m128,
    ) -> __m128 {
        // SAFETY: this function has the features.
        let (quants, scale) = unsafe { (F::quants(weights), F::scale(weights)) };
        let mut dots = [_mm256_setzero_si256(); TILE];
        for (dot, row) in dots.iter_mut().zip(rows) {
            *dot = dot_of_block::<F>(quants, row);
        }
        let minimum = if F::MINIMUM { f16_of_one(weights, 2) } else { scale };
        term::<F>(dots, sums, scales, scale, minimum)
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn term_of_blocks(
        weights: [&F::Block; TILE],
        row: [&[u8; 36]; TILE],
        sums: &[i32; TILE],
        scales: __m128,
    ) -> __m128 {
        let mut dots = [_mm256_setzero_si256(); TILE];
        for ((dot, weights), row) in dots.iter_mut().zip(weights).zip(row) {
            // SAFETY: this function has the features.
            *dot = dot_of_block::<F>(unsafe { F::quants(weights) }, row);
        }
        // SAFETY: this function has the features.
        let scale = unsafe { F::scales(weights) };
        let minimum = if F::MINIMUM { f16_of_four(weights, 2) } else { scale };
        term::<F>(dots, sums, scales, scale, minimum)
    }
}

/// The sum of the eight lanes is the sum of u x over a block.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_of_block<F: SmallFormat>(quants: __m256i, row: &[u8; 36]) -> __m256i {
    let row = load_32(&row[4..]);
    if F::SIGNED {
        dot_of_bytes(_mm256_abs_epi8(quants), _mm256_sign_epi8(row, quants))
    } else {
        dot_of_bytes(quants, row)
    }
}

/// `(d * dx) * f(isum)`, and `+ (m * dx) * f(bsum)` where the format has a minimum.
#[inline]
#[target_feature(enable = "avx2")]
fn term<F: SmallFormat>(
    dots: [__m256i; TILE],
    sums: &[i32; TILE],
    row_scales: __m128,
    scale: __m128,
    minimum: __m128,
) -> __m128 {
    let mut sum = sum_each(dots);
    if F::CENTRE != 0 {
        sum = _mm_sub_epi32(sum, load_4_i32(sums));
    }
    let scaled = _mm_mul_ps(_mm_mul_ps(scale, row_scales), _mm_cvtepi32_ps(sum));
    if !F::MINIMUM {
        return scaled;
    }
    let lowest = _mm_mul_ps(_mm_mul_ps(minimum, row_scales), _mm_cvtepi32_ps(load_4_i32(sums)));
    _mm_add_ps(scaled, lowest)
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
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn quants(block: &[u8; 20]) -> __m256i {
        nibbles_of_16(&block[4..])
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
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn quants(block: &[u8; 22]) -> __m256i {
        fives([block[2], block[3], block[4], block[5]], &block[6..])
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
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn quants(block: &[u8; 24]) -> __m256i {
        fives([block[4], block[5], block[6], block[7]], &block[8..])
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
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn quants(block: &[u8; 18]) -> __m256i {
        look_up(&IQ4_BYTES, nibbles_of_16(&block[2..]))
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
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn quants(block: &[u8; 17]) -> __m256i {
        look_up(&E2M1_ABOVE_12, nibbles_of_16(&block[1..]))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn scale(block: &[u8; 17]) -> __m128 {
        _mm_set1_ps(power_of_two_halved(block[0]))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn scales(blocks: [&[u8; 17]; TILE]) -> __m128 {
        let [a, b, c, d] = blocks;
        let exponents = _mm_setr_epi32(i32::from(a[0]), i32::from(b[0]), i32::from(c[0]), i32::from(d[0]));
        // Below 2 the power is subnormal: 1 or 2 times 2^-128.
        let one = _mm_set1_epi32(1);
        let normal = _mm_slli_epi32::<23>(_mm_sub_epi32(exponents, one));
        let subnormal = _mm_slli_epi32::<21>(_mm_add_epi32(exponents, one));
        _mm_castsi128_ps(_mm_blendv_epi8(subnormal, normal, _mm_cmpgt_epi32(exponents, one)))
    }
}

/// Nibbles with fifth bits, bit i for weight i.
#[inline]
#[target_feature(enable = "avx2")]
fn fives(fifth_bits: [u8; 4], nibbles: &[u8]) -> __m256i {
    let bits = _mm256_set1_epi32(i32::from_le_bytes(fifth_bits));
    let (byte, bit) = (load_32(&BYTE_OF_BIT), _mm256_set1_epi64x(BIT_IN_BYTE));
    let bits = _mm256_and_si256(_mm256_shuffle_epi8(bits, byte), bit);
    let fifth = _mm256_and_si256(_mm256_cmpeq_epi8(bits, bit), _mm256_set1_epi8(16));
    _mm256_or_si256(nibbles_of_16(nibbles), fifth)
}

/// Byte i is bit i's byte.
const BYTE_OF_BIT: [u8; 32] = {
    let mut bytes = [0; 32];
    let mut i = 0;
    while i < 32 {
        bytes[i] = (i / 8) as u8;
        i += 1;
    }
    bytes
};

/// The bits of a byte, each in a byte of its own.
const BIT_IN_BYTE: i64 = i64::from_le_bytes([1, 2, 4, 8, 16, 32, 64, 128]);
