//! Vectors as the walks use them, loads and lane sums.

use core::arch::x86_64::*;

/// Four f32.
pub(crate) type Four = __m128;
/// The partial sums of a sixteen-sum, or sixteen terms.
pub(crate) type Sixteen = [__m256; 2];
/// Sixteen zeros.
pub(crate) const ZERO: Sixteen = [
    // SAFETY: the same size, and every bit pattern is valid in both.
    unsafe { core::mem::transmute::<[f32; 8], __m256>([0.0; 8]) },
    // SAFETY: as above.
    unsafe { core::mem::transmute::<[f32; 8], __m256>([0.0; 8]) },
];
/// Elements of a float product at a time: their partial sums fill half of the registers.
pub(crate) const FLOAT_TILE: usize = 4;

/// The first 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_32(bytes: &[u8]) -> __m256i {
    assert!(bytes.len() >= 32);
    // SAFETY: 32 bytes are there; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// The first 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_16(bytes: &[u8]) -> __m128i {
    assert!(bytes.len() >= 16);
    // SAFETY: 16 bytes are there; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Eight i16.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_8_i16(values: &[i16; 8]) -> __m128i {
    // SAFETY: sixteen bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(values.as_ptr().cast()) }
}

/// Sixteen i16.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_16_i16(values: &[i16; 16]) -> __m256i {
    // SAFETY: 32 bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
}

/// Four f32.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_4_f32(values: &[f32; 4]) -> __m128 {
    // SAFETY: sixteen bytes; the load needs no alignment.
    unsafe { _mm_loadu_ps(values.as_ptr()) }
}

/// Four i32.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_4_i32(values: &[i32; 4]) -> __m128i {
    // SAFETY: sixteen bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(values.as_ptr().cast()) }
}

/// The four lanes as an array.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn to_array(values: __m128) -> [f32; 4] {
    let mut array = [0f32; 4];
    // SAFETY: sixteen bytes; the store needs no alignment.
    unsafe { _mm_storeu_ps(array.as_mut_ptr(), values) };
    array
}

/// Lane i holds the sum of the eight lanes of vector i.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn sum_each(vectors: [__m256i; 4]) -> __m128i {
    let [a, b, c, d] = vectors;
    let pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs))
}

/// Lane i holds the sum of the four lanes of vector i.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn sum_each_128(vectors: [__m128i; 4]) -> __m128i {
    let [a, b, c, d] = vectors;
    _mm_hadd_epi32(_mm_hadd_epi32(a, b), _mm_hadd_epi32(c, d))
}

/// The f16 at byte `at` of each of four blocks, widened.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn four_f16<const N: usize>(blocks: [&[u8; N]; 4], at: usize) -> __m128 {
    let mut bits = 0;
    for (lane, block) in blocks.into_iter().enumerate() {
        bits |= u64::from(u16::from_le_bytes([block[at], block[at + 1]])) << (16 * lane);
    }
    _mm_cvtph_ps(_mm_cvtsi64_si128(bits as i64))
}

/// The f16 at the start of `bytes`, widened, in every lane.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn same_f16(bytes: &[u8]) -> __m128 {
    _mm_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes([bytes[0], bytes[1]])))
}

/// The value in every lane.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn same_4_f32(value: f32) -> Four {
    _mm_set1_ps(value)
}

/// Lane by lane.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn add_4(a: Four, b: Four) -> Four {
    _mm_add_ps(a, b)
}

/// Sixteen f32.
///
/// # Safety
/// 64 readable bytes; AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn load_sixteen(bytes: *const u8) -> Sixteen {
    // SAFETY: the caller's promise; the loads need no alignment.
    unsafe { [_mm256_loadu_ps(bytes.cast()), _mm256_loadu_ps(bytes.add(32).cast())] }
}

/// `acc + a * b`, the product rounded first.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn add_product(acc: Sixteen, a: Sixteen, b: Sixteen) -> Sixteen {
    [_mm256_add_ps(acc[0], _mm256_mul_ps(a[0], b[0])), _mm256_add_ps(acc[1], _mm256_mul_ps(a[1], b[1]))]
}

/// The end of a sixteen-sum.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn fold(sums: Sixteen) -> f32 {
    let eight = _mm256_add_ps(sums[0], sums[1]);
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// Sixteen bytes, or eight i16, or four i32.
pub(crate) type Integers = __m128i;
/// Zeros.
// SAFETY: the same size, and every bit pattern is valid in both.
pub(crate) const NO_INTEGERS: Integers = unsafe { core::mem::transmute::<[i32; 4], __m128i>([0; 4]) };
/// Four zeros.
// SAFETY: the same size, and every bit pattern is valid in both.
pub(crate) const NO_FLOATS: Four = unsafe { core::mem::transmute::<[f32; 4], __m128>([0.0; 4]) };

/// Sixteen bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_integers(bytes: &[u8; 16]) -> Integers {
    // SAFETY: sixteen bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Eight bytes as eight i16.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_widened(bytes: &[u8; 8]) -> Integers {
    // SAFETY: eight bytes; the load needs no alignment.
    unsafe { _mm_cvtepu8_epi16(_mm_loadl_epi64(bytes.as_ptr().cast())) }
}

/// Eight signed bytes as eight i16.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_widened_signed(bytes: &[u8; 8]) -> Integers {
    // SAFETY: eight bytes; the load needs no alignment.
    unsafe { _mm_cvtepi8_epi16(_mm_loadl_epi64(bytes.as_ptr().cast())) }
}

/// Two i16 in every pair of lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn same_pair(pair: &[i16; 2]) -> Integers {
    _mm_set1_epi32(i32::from(pair[0] as u16) | i32::from(pair[1]) << 16)
}

/// The low nibble of each byte.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn low_nibbles(bytes: Integers) -> Integers {
    _mm_and_si128(bytes, _mm_set1_epi8(15))
}

/// The high nibble of each byte.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn high_nibbles(bytes: Integers) -> Integers {
    _mm_and_si128(_mm_srli_epi16::<4>(bytes), _mm_set1_epi8(15))
}

/// `values` turned by 0, 1, 2 and 3 of four lanes: lane i of vector t is lane (i + t) % 4.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn turn_each(values: Integers) -> [Integers; 4] {
    [
        values,
        _mm_shuffle_epi32::<0x39>(values),
        _mm_shuffle_epi32::<0x4e>(values),
        _mm_shuffle_epi32::<0x93>(values),
    ]
}

/// Bit by bit.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn or(a: Integers, b: Integers) -> Integers {
    _mm_or_si128(a, b)
}

/// Bits 4 and 5 of each byte.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn bits_4_and_5(bytes: Integers) -> Integers {
    _mm_and_si128(bytes, _mm_set1_epi8(0x30))
}

/// By 16-bit lanes, so that bits cross from byte to byte.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn shift_left_4(values: Integers) -> Integers {
    _mm_slli_epi16::<4>(values)
}

/// By 16-bit lanes, so that bits cross from byte to byte.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn shift_left_2(values: Integers) -> Integers {
    _mm_slli_epi16::<2>(values)
}

/// By 16-bit lanes, so that bits cross from byte to byte.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn shift_right_2(values: Integers) -> Integers {
    _mm_srli_epi16::<2>(values)
}

/// Each of four i32, times 32.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn times_32(values: Integers) -> Integers {
    _mm_slli_epi32::<5>(values)
}

/// Products of bytes (weights 0..=127), pairs added: eight i16.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn dot_bytes(weights: Integers, values: Integers) -> Integers {
    _mm_maddubs_epi16(weights, values)
}

/// Lane by lane, of eight i16.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn add_i16(a: Integers, b: Integers) -> Integers {
    _mm_add_epi16(a, b)
}

/// Lane by lane, of four i32.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn add_i32(a: Integers, b: Integers) -> Integers {
    _mm_add_epi32(a, b)
}

/// Lane by lane, of four i32.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn sub_i32(a: Integers, b: Integers) -> Integers {
    _mm_sub_epi32(a, b)
}

/// Products of eight i16, pairs added: four i32.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn dot_i16(a: Integers, b: Integers) -> Integers {
    _mm_madd_epi16(a, b)
}

/// The lower four of eight i16, each twice.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn lower_twice(values: Integers) -> Integers {
    _mm_unpacklo_epi16(values, values)
}

/// The upper four of eight i16, each twice.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn upper_twice(values: Integers) -> Integers {
    _mm_unpackhi_epi16(values, values)
}

/// Lanes 0, 2, 4 and 6 of eight i16, each twice.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn even_twice(values: Integers) -> Integers {
    _mm_shufflehi_epi16::<0xa0>(_mm_shufflelo_epi16::<0xa0>(values))
}

/// Lanes 1, 3, 5 and 7 of eight i16, each twice.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn odd_twice(values: Integers) -> Integers {
    _mm_shufflehi_epi16::<0xf5>(_mm_shufflelo_epi16::<0xf5>(values))
}

/// Four i32 as f32.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn to_floats(values: Integers) -> Four {
    _mm_cvtepi32_ps(values)
}

/// The same bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn as_floats(values: Integers) -> Four {
    _mm_castsi128_ps(values)
}

/// Lane by lane.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn mul_4(a: Four, b: Four) -> Four {
    _mm_mul_ps(a, b)
}

/// Lane by lane.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn sub_4(a: Four, b: Four) -> Four {
    _mm_sub_ps(a, b)
}

/// For the sandbox's compiler; this one needs no help.
#[inline(always)]
pub(crate) fn compute_now(_: Integers) {}
