//! Vectors as the walks use them, loads, f16 and lane sums.

use super::instructions::*;

/// Four f32.
pub(crate) type Four = v128;
/// The partial sums of a sixteen-sum, or sixteen terms.
pub(crate) type Sixteen = [v128; 4];
/// Sixteen zeros.
pub(crate) const ZERO: Sixteen = [f32x4(0.0, 0.0, 0.0, 0.0); 4];
/// Elements of a float product at a time: their partial sums fill half of the registers of x86-64.
pub(crate) const FLOAT_TILE: usize = 2;

/// Four f32.
#[inline]
pub(crate) fn load_4_f32(values: &[f32; 4]) -> Four {
    // SAFETY: sixteen bytes; the load needs no alignment.
    unsafe { v128_load(values.as_ptr().cast()) }
}

/// Four i32.
#[inline]
pub(super) fn load_4_i32(values: &[i32; 4]) -> v128 {
    // SAFETY: sixteen bytes; the load needs no alignment.
    unsafe { v128_load(values.as_ptr().cast()) }
}

/// Eight i16.
#[inline]
pub(super) fn load_8_i16(values: &[i16; 8]) -> v128 {
    // SAFETY: sixteen bytes; the load needs no alignment.
    unsafe { v128_load(values.as_ptr().cast()) }
}

/// Sixteen bytes from byte `at` on.
#[inline]
pub(super) fn load_16(bytes: &[u8], at: usize) -> v128 {
    let bytes = &bytes[at..at + 16];
    // SAFETY: sixteen bytes; the load needs no alignment.
    unsafe { v128_load(bytes.as_ptr().cast()) }
}

/// Sixteen f32.
///
/// # Safety
/// 64 readable bytes.
#[inline]
pub(crate) unsafe fn load_sixteen(bytes: *const u8) -> Sixteen {
    let vectors: *const v128 = bytes.cast();
    // SAFETY: the caller's promise; the loads need no alignment.
    unsafe {
        [v128_load(vectors), v128_load(vectors.add(1)), v128_load(vectors.add(2)), v128_load(vectors.add(3))]
    }
}

/// The four lanes as an array.
#[inline]
pub(crate) fn to_array(values: Four) -> [f32; 4] {
    [
        f32x4_extract_lane::<0>(values),
        f32x4_extract_lane::<1>(values),
        f32x4_extract_lane::<2>(values),
        f32x4_extract_lane::<3>(values),
    ]
}

/// The value in every lane.
#[inline]
pub(crate) fn same_4_f32(value: f32) -> Four {
    f32x4_splat(value)
}

/// Lane by lane.
#[inline]
pub(crate) fn add_4(a: Four, b: Four) -> Four {
    f32x4_add(a, b)
}

/// `acc + a * b`, the product rounded first.
#[inline]
pub(crate) fn add_product(acc: Sixteen, a: Sixteen, b: Sixteen) -> Sixteen {
    [
        f32x4_add(acc[0], f32x4_mul(a[0], b[0])),
        f32x4_add(acc[1], f32x4_mul(a[1], b[1])),
        f32x4_add(acc[2], f32x4_mul(a[2], b[2])),
        f32x4_add(acc[3], f32x4_mul(a[3], b[3])),
    ]
}

/// The end of a sixteen-sum.
#[inline]
pub(crate) fn fold(sums: Sixteen) -> f32 {
    let (low, high) = (f32x4_add(sums[0], sums[2]), f32x4_add(sums[1], sums[3]));
    let four = f32x4_add(low, high);
    let two = f32x4_add(four, i32x4_shuffle::<2, 3, 2, 3>(four, four));
    f32x4_extract_lane::<0>(two) + f32x4_extract_lane::<1>(two)
}

/// Lane i holds the sum of the four i32 lanes of vector i.
#[inline]
pub(super) fn sum_each(vectors: [v128; 4]) -> v128 {
    let [a, b, c, d] = vectors;
    let ab = i32x4_add(i32x4_shuffle::<0, 4, 1, 5>(a, b), i32x4_shuffle::<2, 6, 3, 7>(a, b));
    let cd = i32x4_add(i32x4_shuffle::<0, 4, 1, 5>(c, d), i32x4_shuffle::<2, 6, 3, 7>(c, d));
    i32x4_add(i32x4_shuffle::<0, 1, 4, 5>(ab, cd), i32x4_shuffle::<2, 3, 6, 7>(ab, cd))
}

/// Four finite f16, one in the lower half of each lane, widened exactly.
#[inline]
pub(super) fn widen_f16(bits: v128) -> v128 {
    let magnitude = v128_and(bits, u32x4_splat(0x7fff));
    let sign = u32x4_shl(v128_and(bits, u32x4_splat(0x8000)), 16);
    let normal = u32x4_add(u32x4_shl(magnitude, 13), u32x4_splat(112 << 23));
    let subnormal = f32x4_mul(f32x4_convert_i32x4(magnitude), f32x4_splat(f32::from_bits(0x3380_0000)));
    let is_normal = i32x4_gt(magnitude, i32x4_splat(0x3ff));
    v128_or(sign, v128_bitselect(normal, subnormal, is_normal))
}

/// As [`widen_f16`] in fewer steps, but slow on some processors where a value is subnormal: for weights, of which few are.
#[inline]
pub(super) fn widen_f16_weights(bits: v128) -> v128 {
    let shifted = u32x4_shl(v128_and(bits, u32x4_splat(0x7fff)), 13);
    // As an f32 the shifted bits are 2^112 times too small, whether normal or not.
    let magnitude = f32x4_mul(shifted, f32x4_splat(f32::from_bits((112 + 127) << 23)));
    v128_or(magnitude, u32x4_shl(v128_and(bits, u32x4_splat(0x8000)), 16))
}

/// The f16 at byte `at` of each of four blocks, widened.
#[inline]
pub(super) fn four_f16<const N: usize>(blocks: [&[u8; N]; 4], at: usize) -> Four {
    let [a, b, c, d] = blocks;
    widen_f16(u32x4(half_at(a, at), half_at(b, at), half_at(c, at), half_at(d, at)))
}

/// The f16 at byte `at`, widened, in every lane.
#[inline]
pub(super) fn same_f16<const N: usize>(block: &[u8; N], at: usize) -> Four {
    widen_f16(u32x4_splat(half_at(block, at)))
}

#[inline]
fn half_at<const N: usize>(block: &[u8; N], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Sixteen bytes, or eight i16, or four i32.
pub(crate) type Integers = v128;
/// Zeros.
pub(crate) const NO_INTEGERS: Integers = i32x4(0, 0, 0, 0);

/// Sixteen bytes.
#[inline]
pub(crate) fn load_integers(bytes: &[u8; 16]) -> Integers {
    // SAFETY: sixteen bytes; the load needs no alignment.
    unsafe { v128_load(bytes.as_ptr().cast()) }
}

/// Eight bytes as eight i16.
#[inline]
pub(crate) fn load_widened(bytes: &[u8; 8]) -> Integers {
    // SAFETY: eight bytes; the load needs no alignment.
    u16x8_extend_low_u8x16(unsafe { v128_load64_zero(bytes.as_ptr().cast()) })
}

/// Eight signed bytes as eight i16.
#[inline]
pub(crate) fn load_widened_signed(bytes: &[u8; 8]) -> Integers {
    // SAFETY: eight bytes; the load needs no alignment.
    i16x8_extend_low_i8x16(unsafe { v128_load64_zero(bytes.as_ptr().cast()) })
}

/// Two i16 in every pair of lanes.
#[inline]
pub(crate) fn same_pair(pair: &[i16; 2]) -> Integers {
    // SAFETY: four bytes; the load needs no alignment.
    unsafe { v128_load32_splat(pair.as_ptr().cast()) }
}

/// The low nibble of each byte.
#[inline]
pub(crate) fn low_nibbles(bytes: Integers) -> Integers {
    v128_and(bytes, u8x16_splat(15))
}

/// The high nibble of each byte.
#[inline]
pub(crate) fn high_nibbles(bytes: Integers) -> Integers {
    u8x16_shr(bytes, 4)
}

/// `values` turned by 0, 1, 2 and 3 of four lanes: lane i of vector t is lane (i + t) % 4.
#[inline]
pub(crate) fn turn_each(values: Integers) -> [Integers; 4] {
    [
        values,
        i32x4_shuffle::<1, 2, 3, 0>(values, values),
        i32x4_shuffle::<2, 3, 0, 1>(values, values),
        i32x4_shuffle::<3, 0, 1, 2>(values, values),
    ]
}

/// Bit by bit.
#[inline]
pub(crate) fn or(a: Integers, b: Integers) -> Integers {
    v128_or(a, b)
}

/// Bits 4 and 5 of each byte.
#[inline]
pub(crate) fn bits_4_and_5(bytes: Integers) -> Integers {
    v128_and(bytes, u8x16_splat(0x30))
}

/// By 16-bit lanes, so that bits cross from byte to byte.
#[inline]
pub(crate) fn shift_left_4(values: Integers) -> Integers {
    u16x8_shl(values, 4)
}

/// By 16-bit lanes, so that bits cross from byte to byte.
#[inline]
pub(crate) fn shift_left_2(values: Integers) -> Integers {
    u16x8_shl(values, 2)
}

/// By 16-bit lanes, so that bits cross from byte to byte.
#[inline]
pub(crate) fn shift_right_2(values: Integers) -> Integers {
    u16x8_shr(values, 2)
}

/// Each of four i32, times 32.
#[inline]
pub(crate) fn times_32(values: Integers) -> Integers {
    i32x4_shl(values, 5)
}

/// Lane by lane, of four i32.
#[inline]
pub(crate) fn sub_i32(a: Integers, b: Integers) -> Integers {
    i32x4_sub(a, b)
}

/// Products of bytes (weights 0..=127), pairs added: eight i16.
#[inline]
pub(crate) fn dot_bytes(weights: Integers, values: Integers) -> Integers {
    i16x8_relaxed_dot_i8x16_i7x16(values, weights)
}

/// Lane by lane, of eight i16.
#[inline]
pub(crate) fn add_i16(a: Integers, b: Integers) -> Integers {
    i16x8_add(a, b)
}

/// Lane by lane, of four i32.
#[inline]
pub(crate) fn add_i32(a: Integers, b: Integers) -> Integers {
    i32x4_add(a, b)
}

/// Products of eight i16, pairs added: four i32.
#[inline]
pub(crate) fn dot_i16(a: Integers, b: Integers) -> Integers {
    i32x4_dot_i16x8(a, b)
}

/// The lower four of eight i16, each twice.
#[inline]
pub(crate) fn lower_twice(values: Integers) -> Integers {
    i16x8_shuffle::<0, 0, 1, 1, 2, 2, 3, 3>(values, values)
}

/// The upper four of eight i16, each twice.
#[inline]
pub(crate) fn upper_twice(values: Integers) -> Integers {
    i16x8_shuffle::<4, 4, 5, 5, 6, 6, 7, 7>(values, values)
}

/// Lanes 0, 2, 4 and 6 of eight i16, each twice.
#[inline]
pub(crate) fn even_twice(values: Integers) -> Integers {
    i16x8_shuffle::<0, 0, 2, 2, 4, 4, 6, 6>(values, values)
}

/// Lanes 1, 3, 5 and 7 of eight i16, each twice.
#[inline]
pub(crate) fn odd_twice(values: Integers) -> Integers {
    i16x8_shuffle::<1, 1, 3, 3, 5, 5, 7, 7>(values, values)
}

/// Four i32 as f32.
#[inline]
pub(crate) fn to_floats(values: Integers) -> Four {
    f32x4_convert_i32x4(values)
}

/// Lane by lane.
#[inline]
pub(crate) fn mul_4(a: Four, b: Four) -> Four {
    f32x4_mul(a, b)
}

/// Lane by lane.
#[inline]
pub(crate) fn sub_4(a: Four, b: Four) -> Four {
    f32x4_sub(a, b)
}

/// Four zeros.
pub(crate) const NO_FLOATS: Four = f32x4(0.0, 0.0, 0.0, 0.0);

/// The same bits.
#[inline]
pub(crate) fn as_floats(values: Integers) -> Four {
    values
}

/// Makes the sandbox's compiler compute `value` here. Cranelift computes a value as late as it can, which is after all loads of
/// a straight piece of code; it then keeps most of what was loaded on the stack. A store is done where it stands.
#[inline(always)]
pub(crate) fn compute_now(value: v128) {
    if cfg!(not(target_arch = "wasm32")) {
        return;
    }
    let mut place = core::mem::MaybeUninit::<v128>::uninit();
    // SAFETY: the place is there and aligned.
    unsafe { place.as_mut_ptr().write_volatile(value) };
}
