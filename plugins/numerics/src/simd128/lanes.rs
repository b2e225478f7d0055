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
