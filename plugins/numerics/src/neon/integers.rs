//! Whole numbers: sums, products, comparisons, shifts, widening, and the integer dots.

use core::arch::aarch64::*;

use super::v128;

/// `name: instruction(cast, cast) -> cast back`.
macro_rules! two {
    ($($name:ident = $instruction:ident($cast:ident) $(-> $back:ident)?;)*) => {$(
        #[inline(always)]
        pub(crate) fn $name(a: v128, b: v128) -> v128 {
            neon!($($back)?($instruction($cast(a), $cast(b))))
        }
    )*};
}

/// As `two`, of one vector.
macro_rules! one {
    ($($name:ident = $instruction:ident($($cast:ident)?) $(-> $back:ident)?;)*) => {$(
        #[inline(always)]
        pub(crate) fn $name(a: v128) -> v128 {
            neon!($($back)?($instruction($($cast)?(a))))
        }
    )*};
}

#[inline(always)]
fn same(a: v128) -> v128 {
    a
}

two! {
    i8x16_add = vaddq_u8(same);
    u8x16_add = vaddq_u8(same);
    i16x8_add = vaddq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_s16;
    u16x8_add = vaddq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_s16;
    i32x4_add = vaddq_s32(vreinterpretq_s32_u8) -> vreinterpretq_u8_s32;
    u32x4_add = vaddq_s32(vreinterpretq_s32_u8) -> vreinterpretq_u8_s32;
    i64x2_add = vaddq_s64(vreinterpretq_s64_u8) -> vreinterpretq_u8_s64;

    i8x16_sub = vsubq_u8(same);
    u8x16_sub = vsubq_u8(same);
    i16x8_sub = vsubq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_s16;
    u16x8_sub = vsubq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_s16;
    i32x4_sub = vsubq_s32(vreinterpretq_s32_u8) -> vreinterpretq_u8_s32;
    u32x4_sub = vsubq_s32(vreinterpretq_s32_u8) -> vreinterpretq_u8_s32;
    i64x2_sub = vsubq_s64(vreinterpretq_s64_u8) -> vreinterpretq_u8_s64;

    i16x8_mul = vmulq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_s16;
    u16x8_mul = vmulq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_s16;
    i32x4_mul = vmulq_s32(vreinterpretq_s32_u8) -> vreinterpretq_u8_s32;
    u32x4_mul = vmulq_s32(vreinterpretq_s32_u8) -> vreinterpretq_u8_s32;

    i8x16_min = vminq_s8(vreinterpretq_s8_u8) -> vreinterpretq_u8_s8;
    u8x16_min = vminq_u8(same);
    i16x8_min = vminq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_s16;
    i32x4_min = vminq_s32(vreinterpretq_s32_u8) -> vreinterpretq_u8_s32;
    i8x16_max = vmaxq_s8(vreinterpretq_s8_u8) -> vreinterpretq_u8_s8;
    u8x16_max = vmaxq_u8(same);
    i16x8_max = vmaxq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_s16;
    i32x4_max = vmaxq_s32(vreinterpretq_s32_u8) -> vreinterpretq_u8_s32;

    i8x16_eq = vceqq_u8(same);
    i16x8_eq = vceqq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_u16;
    i32x4_eq = vceqq_s32(vreinterpretq_s32_u8) -> vreinterpretq_u8_u32;
    i8x16_lt = vcltq_s8(vreinterpretq_s8_u8);
    i16x8_lt = vcltq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_u16;
    i32x4_lt = vcltq_s32(vreinterpretq_s32_u8) -> vreinterpretq_u8_u32;
    i8x16_gt = vcgtq_s8(vreinterpretq_s8_u8);
    u8x16_gt = vcgtq_u8(same);
    i16x8_gt = vcgtq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_u16;
    i32x4_gt = vcgtq_s32(vreinterpretq_s32_u8) -> vreinterpretq_u8_u32;
}

one! {
    i8x16_abs = vabsq_s8(vreinterpretq_s8_u8) -> vreinterpretq_u8_s8;
    i16x8_abs = vabsq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_s16;
    i32x4_abs = vabsq_s32(vreinterpretq_s32_u8) -> vreinterpretq_u8_s32;
    i8x16_neg = vnegq_s8(vreinterpretq_s8_u8) -> vreinterpretq_u8_s8;
    i16x8_neg = vnegq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_s16;
    i32x4_neg = vnegq_s32(vreinterpretq_s32_u8) -> vreinterpretq_u8_s32;

    // Sums of neighbouring lanes, twice as wide.
    i16x8_extadd_pairwise_i8x16 = vpaddlq_s8(vreinterpretq_s8_u8) -> vreinterpretq_u8_s16;
    i16x8_extadd_pairwise_u8x16 = vpaddlq_u8() -> vreinterpretq_u8_u16;
    i32x4_extadd_pairwise_i16x8 = vpaddlq_s16(vreinterpretq_s16_u8) -> vreinterpretq_u8_s32;
    i32x4_extadd_pairwise_u16x8 = vpaddlq_u16(vreinterpretq_u16_u8) -> vreinterpretq_u8_u32;
}

/// Half of the lanes, made twice as wide.
macro_rules! extend {
    ($($low:ident, $high:ident = $cast:ident, $low_half:ident, $widen:ident, $widen_high:ident, $back:ident;)*) => {$(
        #[inline(always)]
        pub(crate) fn $low(a: v128) -> v128 {
            neon!($back($widen($low_half($cast(a)))))
        }

        #[inline(always)]
        pub(crate) fn $high(a: v128) -> v128 {
            neon!($back($widen_high($cast(a))))
        }
    )*};
}

extend! {
    i16x8_extend_low_i8x16, i16x8_extend_high_i8x16 =
        vreinterpretq_s8_u8, vget_low_s8, vmovl_s8, vmovl_high_s8, vreinterpretq_u8_s16;
    i16x8_extend_low_u8x16, i16x8_extend_high_u8x16 = same, vget_low_u8, vmovl_u8, vmovl_high_u8, vreinterpretq_u8_u16;
    u16x8_extend_low_u8x16, u16x8_extend_high_u8x16 = same, vget_low_u8, vmovl_u8, vmovl_high_u8, vreinterpretq_u8_u16;
    i32x4_extend_low_i16x8, i32x4_extend_high_i16x8 =
        vreinterpretq_s16_u8, vget_low_s16, vmovl_s16, vmovl_high_s16, vreinterpretq_u8_s32;
    i32x4_extend_low_u16x8, i32x4_extend_high_u16x8 =
        vreinterpretq_u16_u8, vget_low_u16, vmovl_u16, vmovl_high_u16, vreinterpretq_u8_u32;
    u32x4_extend_low_u16x8, u32x4_extend_high_u16x8 =
        vreinterpretq_u16_u8, vget_low_u16, vmovl_u16, vmovl_high_u16, vreinterpretq_u8_u32;
}

/// Products of half of the lanes, twice as wide.
macro_rules! extended_product {
    ($($low:ident, $high:ident = $cast:ident, $low_half:ident, $product:ident, $product_high:ident, $back:ident;)*) => {$(
        #[inline(always)]
        pub(crate) fn $low(a: v128, b: v128) -> v128 {
            neon!($back($product($low_half($cast(a)), $low_half($cast(b)))))
        }

        #[inline(always)]
        pub(crate) fn $high(a: v128, b: v128) -> v128 {
            neon!($back($product_high($cast(a), $cast(b))))
        }
    )*};
}

extended_product! {
    i16x8_extmul_low_i8x16, i16x8_extmul_high_i8x16 =
        vreinterpretq_s8_u8, vget_low_s8, vmull_s8, vmull_high_s8, vreinterpretq_u8_s16;
    i16x8_extmul_low_u8x16, i16x8_extmul_high_u8x16 =
        same, vget_low_u8, vmull_u8, vmull_high_u8, vreinterpretq_u8_u16;
    i32x4_extmul_low_i16x8, i32x4_extmul_high_i16x8 =
        vreinterpretq_s16_u8, vget_low_s16, vmull_s16, vmull_high_s16, vreinterpretq_u8_s32;
}

/// Shifts of every lane by the same number, which counts modulo the lane's width. A negative shift of `ushl` and `sshl` is one
/// to the right; where the number is a constant, as it is, the compiler makes it an immediate.
macro_rules! shifts {
    ($($left:ident, $left_too:ident, $arithmetic:ident, $logical:ident: $bits:literal, $cast_signed:ident, $cast:ident,
       $splat:ident, $shift_signed:ident, $shift:ident, $back_signed:ident, $back:ident, $amount:ty;)*) => {$(
        #[inline(always)]
        pub(crate) fn $left(a: v128, by: u32) -> v128 {
            neon!($back($shift($cast(a), $splat((by % $bits) as $amount))))
        }

        #[inline(always)]
        pub(crate) fn $left_too(a: v128, by: u32) -> v128 {
            $left(a, by)
        }

        #[inline(always)]
        pub(crate) fn $arithmetic(a: v128, by: u32) -> v128 {
            neon!($back_signed($shift_signed($cast_signed(a), $splat(-((by % $bits) as $amount)))))
        }

        #[inline(always)]
        pub(crate) fn $logical(a: v128, by: u32) -> v128 {
            neon!($back($shift($cast(a), $splat(-((by % $bits) as $amount)))))
        }
    )*};
}

shifts! {
    i8x16_shl, u8x16_shl, i8x16_shr, u8x16_shr: 8, vreinterpretq_s8_u8, same,
        vdupq_n_s8, vshlq_s8, vshlq_u8, vreinterpretq_u8_s8, same, i8;
    i16x8_shl, u16x8_shl, i16x8_shr, u16x8_shr: 16, vreinterpretq_s16_u8, vreinterpretq_u16_u8,
        vdupq_n_s16, vshlq_s16, vshlq_u16, vreinterpretq_u8_s16, vreinterpretq_u8_u16, i16;
    i32x4_shl, u32x4_shl, i32x4_shr, u32x4_shr: 32, vreinterpretq_s32_u8, vreinterpretq_u32_u8,
        vdupq_n_s32, vshlq_s32, vshlq_u32, vreinterpretq_u8_s32, vreinterpretq_u8_u32, i32;
    i64x2_shl, u64x2_shl, i64x2_shr, u64x2_shr: 64, vreinterpretq_s64_u8, vreinterpretq_u64_u8,
        vdupq_n_s64, vshlq_s64, vshlq_u64, vreinterpretq_u8_s64, vreinterpretq_u8_u64, i64;
}

/// Sums of two neighbouring products of i16.
#[inline(always)]
pub(crate) fn i32x4_dot_i16x8(a: v128, b: v128) -> v128 {
    neon!({
        let (a, b) = (vreinterpretq_s16_u8(a), vreinterpretq_s16_u8(b));
        let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
        vreinterpretq_u8_s32(vpaddq_s32(low, vmull_high_s16(a, b)))
    })
}

/// Sums of two neighbouring products of i8; exact as long as `b` lies in 0..=127.
#[inline(always)]
pub(crate) fn i16x8_relaxed_dot_i8x16_i7x16(a: v128, b: v128) -> v128 {
    neon!({
        let (a, b) = (vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
        let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
        vreinterpretq_u8_s16(vpaddq_s16(low, vmull_high_s8(a, b)))
    })
}

/// `c` and the sums of four neighbouring products of i8; exact as long as `b` lies in 0..=127.
#[inline(always)]
pub(crate) fn i32x4_relaxed_dot_i8x16_i7x16_add(a: v128, b: v128, c: v128) -> v128 {
    #[cfg(target_feature = "dotprod")]
    return sdot(a, b, c);
    #[cfg(not(target_feature = "dotprod"))]
    neon!({
        let pairs = vreinterpretq_s16_u8(i16x8_relaxed_dot_i8x16_i7x16(a, b));
        vreinterpretq_u8_s32(vpadalq_s16(vreinterpretq_s32_u8(c), pairs))
    })
}

/// `sdot`, for which core has no stable function yet.
#[cfg(target_feature = "dotprod")]
#[inline(always)]
fn sdot(a: v128, b: v128, mut c: v128) -> v128 {
    // SAFETY: the processor has the instruction, as the compiler was told; it reads and writes these registers alone.
    unsafe {
        core::arch::asm!(
            "sdot {c:v}.4s, {a:v}.16b, {b:v}.16b",
            c = inout(vreg) c, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    c
}
