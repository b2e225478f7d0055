//! f32: each operation rounded to nearest even, subnormals kept, which is how a process starts. Nothing is fused.

use core::arch::aarch64::*;

use super::v128;

/// `name: instruction`, lane by lane.
macro_rules! two {
    ($($name:ident = $instruction:ident;)*) => {$(
        #[inline(always)]
        pub(crate) fn $name(a: v128, b: v128) -> v128 {
            neon!(vreinterpretq_u8_f32($instruction(vreinterpretq_f32_u8(a), vreinterpretq_f32_u8(b))))
        }
    )*};
}

two! {
    f32x4_add = vaddq_f32;
    f32x4_sub = vsubq_f32;
    f32x4_mul = vmulq_f32;
    f32x4_div = vdivq_f32;
}

/// The nearest f32 of each i32.
#[inline(always)]
pub(crate) fn f32x4_convert_i32x4(a: v128) -> v128 {
    neon!(vreinterpretq_u8_f32(vcvtq_f32_s32(vreinterpretq_s32_u8(a))))
}

#[inline(always)]
pub(crate) fn f32x4_abs(a: v128) -> v128 {
    neon!(vreinterpretq_u8_f32(vabsq_f32(vreinterpretq_f32_u8(a))))
}

#[inline(always)]
pub(crate) fn f32x4_neg(a: v128) -> v128 {
    neon!(vreinterpretq_u8_f32(vnegq_f32(vreinterpretq_f32_u8(a))))
}
