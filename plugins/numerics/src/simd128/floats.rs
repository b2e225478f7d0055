//! How F32, F16 and BF16 weights are widened.

use super::instructions::*;
use super::lanes::{Sixteen, load_sixteen, widen_f16_weights};
use crate::float_walk::FloatFormat;

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

impl FloatFormat for F32 {
    const BYTES: usize = 4;

    #[inline]
    unsafe fn widen(bytes: *const u8) -> Sixteen {
        // SAFETY: the caller's promise.
        unsafe { load_sixteen(bytes) }
    }
}

impl FloatFormat for F16 {
    const BYTES: usize = 2;

    #[inline]
    unsafe fn widen(bytes: *const u8) -> Sixteen {
        // SAFETY: the caller's promise.
        let [a, b, c, d] = unsafe { halves(bytes) };
        [widen_f16_weights(a), widen_f16_weights(b), widen_f16_weights(c), widen_f16_weights(d)]
    }
}

impl FloatFormat for BF16 {
    const BYTES: usize = 2;

    #[inline]
    unsafe fn widen(bytes: *const u8) -> Sixteen {
        // SAFETY: the caller's promise.
        let [a, b, c, d] = unsafe { halves(bytes) };
        [u32x4_shl(a, 16), u32x4_shl(b, 16), u32x4_shl(c, 16), u32x4_shl(d, 16)]
    }
}

/// Sixteen 16-bit values, each in a lane of 32 bits.
///
/// # Safety
/// 32 readable bytes.
#[inline]
unsafe fn halves(bytes: *const u8) -> [v128; 4] {
    let vectors: *const v128 = bytes.cast();
    // SAFETY: the caller's promise; the loads need no alignment.
    let (low, high) = unsafe { (v128_load(vectors), v128_load(vectors.add(1))) };
    [
        u32x4_extend_low_u16x8(low),
        u32x4_extend_high_u16x8(low),
        u32x4_extend_low_u16x8(high),
        u32x4_extend_high_u16x8(high),
    ]
}
