//! How F32, F16 and BF16 weights are widened.

use core::arch::x86_64::*;

use super::lanes::{Sixteen, load_sixteen};
use crate::float_walk::FloatFormat;

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

impl FloatFormat for F32 {
    const BYTES: usize = 4;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn widen(bytes: *const u8) -> Sixteen {
        // SAFETY: the caller's promise.
        unsafe { load_sixteen(bytes) }
    }
}

impl FloatFormat for F16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn widen(bytes: *const u8) -> Sixteen {
        // SAFETY: the caller's promise; the loads need no alignment.
        let (low, high) = unsafe { (_mm_loadu_si128(bytes.cast()), _mm_loadu_si128(bytes.add(16).cast())) };
        [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
    }
}

impl FloatFormat for BF16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn widen(bytes: *const u8) -> Sixteen {
        // SAFETY: the caller's promise; the loads need no alignment.
        let (low, high) = unsafe { (_mm_loadu_si128(bytes.cast()), _mm_loadu_si128(bytes.add(16).cast())) };
        [upper_halves(low), upper_halves(high)]
    }
}

/// Eight bfloat16 as f32.
#[inline]
#[target_feature(enable = "avx2")]
fn upper_halves(bits: __m128i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
}
