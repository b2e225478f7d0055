//! The terms of the formats of 256 weights that have no code of their own: each says how its weights and the integers of its
//! sub-blocks are unpacked, the rest is shared. As in `formats`, one operand of `pmaddubsw` stays below 128.

use core::arch::x86_64::*;
use core::marker::PhantomData;

use super::lanes::{load_16, load_16_i16, load_32, sum_each};
use super::unpack::{
    SPREAD, f16_of_four, f16_of_one, first_of_tile, four_k_scales, look_up, nibbles_of_16, word,
};
use crate::block::IQ4_BYTES;
use crate::block_walk::{BlockFormat, TILE};
use crate::slices::each;

/// How the blocks of a format of 256 weights are unpacked. Sub-blocks are sixteen of sixteen weights; their integers are
/// sixteen i16, those of the even sub-blocks first.
pub(super) trait SuperFormat {
    /// A block: an array of bytes.
    type Block: AsRef<[u8]>;
    /// Where the f16 scale lies.
    const SCALE: usize;
    /// Where the f16 scale of the minima lies, if there are any.
    const MINIMUM: Option<usize> = None;
    /// What `quants` is above the weights' integers.
    const CENTRE: i32 = 0;
    /// Whether `quants` has signs; without, it lies in 0..=127.
    const SIGNED: bool = false;

    fn blocks(bytes: &[u8]) -> &[Self::Block];

    /// The integers of the sub-blocks' scales, and those of their minima.
    ///
    /// # Safety
    /// The instruction set's features.
    unsafe fn scales_and_minima(block: &Self::Block) -> (__m256i, __m256i);

    /// Integers 128 `half` to 128 `half` + 127 in column order.
    ///
    /// # Safety
    /// The instruction set's features.
    unsafe fn quants(block: &Self::Block, half: usize) -> [__m256i; 4];
}

/// The terms of a [`SuperFormat`].
pub(super) struct Super<F>(PhantomData<F>);

impl<F: SuperFormat> Super<F> {
    const NEEDS_SUMS: bool = F::CENTRE != 0 || F::MINIMUM.is_some();
}

impl<F: SuperFormat> BlockFormat for Super<F> {
    type Weights = F::Block;
    type Row = [u8; 260];
    /// The sums of the row's sixteen sub-blocks, the even ones first.
    type Sums = [i16; 16];
    const ROWS_TOGETHER: bool = true;
    const NO_SUMS: [i16; 16] = [0; 16];

    fn weights(bytes: &[u8]) -> &[F::Block] {
        F::blocks(bytes)
    }

    fn rows(bytes: &[u8]) -> &[[u8; 260]] {
        bytes.as_chunks().0
    }

    #[inline]
    fn sums(row: &[u8; 260]) -> [i16; 16] {
        let mut sums = [0; 16];
        if Self::NEEDS_SUMS {
            for (j, values) in row[4..].as_chunks::<16>().0.iter().enumerate() {
                sums[j / 2 + 8 * (j % 2)] = values.iter().map(|&value| i16::from(value as i8)).sum();
            }
        }
        sums
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn term_of_rows<const R: usize>(
        weights: &F::Block,
        rows: [&[u8; 260]; R],
        sums: &[[i16; 16]; TILE],
        scales: __m128,
    ) -> __m128 {
        let (scaled, lowered) = dots::<F, R>(weights, rows, each(sums));
        let scale = f16_of_one(weights, F::SCALE);
        let minimum = f16_of_one(weights, F::MINIMUM.unwrap_or(F::SCALE));
        term::<F>(first_of_tile(scaled), first_of_tile(lowered), scales, scale, minimum)
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn term_of_blocks(
        weights: [&F::Block; TILE],
        row: [&[u8; 260]; TILE],
        sums: &[[i16; 16]; TILE],
        scales: __m128,
    ) -> __m128 {
        let mut scaled = [_mm256_setzero_si256(); TILE];
        let mut lowered = [_mm256_setzero_si256(); TILE];
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
#[target_feature(enable = "avx2")]
fn dots<F: SuperFormat, const R: usize>(
    weights: &F::Block,
    rows: [&[u8; 260]; R],
    sums: [&[i16; 16]; R],
) -> ([__m256i; R], [__m256i; R]) {
    // SAFETY: this function has the features.
    let (sub_scales, minima) = unsafe { F::scales_and_minima(weights) };
    let mut scaled = [_mm256_setzero_si256(); R];
    let mut lowered = [_mm256_setzero_si256(); R];
    for ((scaled, lowered), sums) in scaled.iter_mut().zip(&mut lowered).zip(sums) {
        if F::CENTRE != 0 {
            let centre = _mm256_madd_epi16(sub_scales, load_16_i16(sums));
            *scaled = _mm256_mullo_epi32(centre, _mm256_set1_epi32(-F::CENTRE));
        }
        if F::MINIMUM.is_some() {
            *lowered = _mm256_madd_epi16(minima, load_16_i16(sums));
        }
    }
    for half in 0..2 {
        // SAFETY: this function has the features.
        let quants = unsafe { F::quants(weights, half) };
        for (quarter, quants) in quants.into_iter().enumerate() {
            let scale = _mm256_shuffle_epi8(sub_scales, load_32(&SPREAD[4 * half + quarter]));
            let magnitudes = if F::SIGNED { _mm256_abs_epi8(quants) } else { quants };
            for (scaled, row) in scaled.iter_mut().zip(rows) {
                let row = load_32(&row[4 + 128 * half + 32 * quarter..]);
                let row = if F::SIGNED { _mm256_sign_epi8(row, quants) } else { row };
                let dot = _mm256_maddubs_epi16(magnitudes, row);
                *scaled = _mm256_add_epi32(*scaled, _mm256_madd_epi16(dot, scale));
            }
        }
    }
    (scaled, lowered)
}

/// `(d * dx) * f(scaled)`, and `- (dmin * dx) * f(lowered)` where the format has minima.
#[inline]
#[target_feature(enable = "avx2")]
fn term<F: SuperFormat>(
    scaled: [__m256i; TILE],
    lowered: [__m256i; TILE],
    row_scales: __m128,
    scale: __m128,
    minimum: __m128,
) -> __m128 {
    let above = _mm_mul_ps(_mm_mul_ps(scale, row_scales), _mm_cvtepi32_ps(sum_each(scaled)));
    if F::MINIMUM.is_none() {
        return above;
    }
    let below = _mm_mul_ps(_mm_mul_ps(minimum, row_scales), _mm_cvtepi32_ps(sum_each(lowered)));
    _mm_sub_ps(above, below)
}

/// Q2_K.
pub(super) struct Q2K;

impl SuperFormat for Q2K {
    type Block = [u8; 84];
    const SCALE: usize = 80;
    const MINIMUM: Option<usize> = Some(82);

    fn blocks(bytes: &[u8]) -> &[[u8; 84]] {
        bytes.as_chunks().0
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn scales_and_minima(block: &[u8; 84]) -> (__m256i, __m256i) {
        let both = _mm256_cvtepu8_epi16(even_first(load_16(block)));
        (_mm256_and_si256(both, _mm256_set1_epi16(15)), _mm256_srli_epi16::<4>(both))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: &[u8; 84], half: usize) -> [__m256i; 4] {
        pairs(load_32(&block[16 + 32 * half..]))
    }
}

/// Q3_K: 0..=7, four above.
pub(super) struct Q3K;

impl SuperFormat for Q3K {
    type Block = [u8; 110];
    const SCALE: usize = 108;
    const CENTRE: i32 = 4;

    fn blocks(bytes: &[u8]) -> &[[u8; 110]] {
        bytes.as_chunks().0
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn scales_and_minima(block: &[u8; 110]) -> (__m256i, __m256i) {
        let (first, second, upper) = (word(block, 96), word(block, 100), word(block, 104));
        const FOUR: u32 = 0x0f0f_0f0f;
        const TWO: u32 = 0x3030_3030;
        let scales = _mm_setr_epi32(
            ((first & FOUR) | (upper << 4 & TWO)) as i32,
            ((second & FOUR) | (upper << 2 & TWO)) as i32,
            ((first >> 4 & FOUR) | (upper & TWO)) as i32,
            ((second >> 4 & FOUR) | (upper >> 2 & TWO)) as i32,
        );
        let scales = _mm256_cvtepi8_epi16(even_first(_mm_sub_epi8(scales, _mm_set1_epi8(32))));
        (scales, scales)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: &[u8; 110], half: usize) -> [__m256i; 4] {
        let bits = upper_bits(load_32(block), half);
        let third = _mm256_set1_epi8(4);
        let [a, b, c, d] = pairs(load_32(&block[32 + 32 * half..]));
        [
            _mm256_or_si256(a, _mm256_and_si256(_mm256_slli_epi16::<2>(bits), third)),
            _mm256_or_si256(b, _mm256_and_si256(_mm256_slli_epi16::<1>(bits), third)),
            _mm256_or_si256(c, _mm256_and_si256(bits, third)),
            _mm256_or_si256(d, _mm256_and_si256(_mm256_srli_epi16::<1>(bits), third)),
        ]
    }
}

/// Q5_K.
pub(super) struct Q5K;

impl SuperFormat for Q5K {
    type Block = [u8; 176];
    const SCALE: usize = 0;
    const MINIMUM: Option<usize> = Some(2);

    fn blocks(bytes: &[u8]) -> &[[u8; 176]] {
        bytes.as_chunks().0
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn scales_and_minima(block: &[u8; 176]) -> (__m256i, __m256i) {
        let (scales, minima) = four_k_scales(&block[4..16]);
        (_mm256_broadcastsi128_si256(scales), _mm256_broadcastsi128_si256(minima))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: &[u8; 176], half: usize) -> [__m256i; 4] {
        let bits = upper_bits(load_32(&block[16..]), half);
        let (first, second) = (load_32(&block[48 + 64 * half..]), load_32(&block[80 + 64 * half..]));
        let (four, fifth) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
        [
            _mm256_or_si256(
                _mm256_and_si256(first, four),
                _mm256_and_si256(_mm256_slli_epi16::<4>(bits), fifth),
            ),
            _mm256_or_si256(
                _mm256_and_si256(_mm256_srli_epi16::<4>(first), four),
                _mm256_and_si256(_mm256_slli_epi16::<3>(bits), fifth),
            ),
            _mm256_or_si256(
                _mm256_and_si256(second, four),
                _mm256_and_si256(_mm256_slli_epi16::<2>(bits), fifth),
            ),
            _mm256_or_si256(
                _mm256_and_si256(_mm256_srli_epi16::<4>(second), four),
                _mm256_and_si256(_mm256_slli_epi16::<1>(bits), fifth),
            ),
        ]
    }
}

/// IQ4_XS: the values of the table, whose range is too wide to be made unsigned below 128.
pub(super) struct IQ4XS;

impl SuperFormat for IQ4XS {
    type Block = [u8; 136];
    const SCALE: usize = 0;
    const SIGNED: bool = true;

    fn blocks(bytes: &[u8]) -> &[[u8; 136]] {
        bytes.as_chunks().0
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn scales_and_minima(block: &[u8; 136]) -> (__m256i, __m256i) {
        let half = |at: usize| i16::from_le_bytes([block[at], block[at + 1]]);
        // A product with a power of two moves each scale's bits to the top of its lane.
        let upper = _mm_mullo_epi16(
            _mm_set1_epi16(half(2)),
            _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1),
        );
        let lower = _mm_unpacklo_epi64(_mm_set1_epi16(half(4)), _mm_set1_epi16(half(6)));
        let lower =
            _mm_mullo_epi16(lower, _mm_setr_epi16(1 << 12, 1 << 8, 1 << 4, 1, 1 << 12, 1 << 8, 1 << 4, 1));
        let upper = _mm_slli_epi16::<4>(_mm_srli_epi16::<14>(upper));
        let scales = _mm_or_si128(upper, _mm_srli_epi16::<12>(lower));
        let scales = _mm256_broadcastsi128_si256(_mm_sub_epi16(scales, _mm_set1_epi16(32)));
        (scales, scales)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: &[u8; 136], half: usize) -> [__m256i; 4] {
        let bytes = &block[8 + 64 * half..];
        [
            look_up(&IQ4_BYTES, nibbles_of_16(bytes)),
            look_up(&IQ4_BYTES, nibbles_of_16(&bytes[16..])),
            look_up(&IQ4_BYTES, nibbles_of_16(&bytes[32..])),
            look_up(&IQ4_BYTES, nibbles_of_16(&bytes[48..])),
        ]
    }
}

/// Sixteen bytes, those of even numbers first.
#[inline]
#[target_feature(enable = "avx2")]
fn even_first(bytes: __m128i) -> __m128i {
    _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15))
}

/// The lowest pairs of bits of 32 bytes, the next, up to the highest.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs(bytes: __m256i) -> [__m256i; 4] {
    let two = _mm256_set1_epi8(3);
    [
        _mm256_and_si256(bytes, two),
        _mm256_and_si256(_mm256_srli_epi16::<2>(bytes), two),
        _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), two),
        _mm256_and_si256(_mm256_srli_epi16::<6>(bytes), two),
    ]
}

/// The bits of a half in the lower four of each byte; what stands above is of no meaning.
#[inline]
#[target_feature(enable = "avx2")]
fn upper_bits(bits: __m256i, half: usize) -> __m256i {
    if half == 0 { bits } else { _mm256_srli_epi16::<4>(bits) }
}
