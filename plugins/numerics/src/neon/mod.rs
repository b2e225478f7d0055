//! The instructions of WASM's simd128 in NEON, under simd128's names and with its meaning. What is written in those names, the
//! folder `simd128`, is thereby the code of both sets; NEON needs no copy of it. Loads, bits, lanes and shuffles are here.
//!
//! NEON is part of every aarch64 processor: nothing is detected. The integer dots use `smull` and `sadalp`, which all have;
//! where the compiler is told that the processor has `sdot` (Apple's targets, `-C target-cpu=native`), they use it. There is
//! no `sdot` chosen at run time: on Linux a program without std cannot ask for it.

#![allow(dead_code, reason = "the formats use the names they need")]

/// An expression of NEON's functions on values, which the language holds for unsafe wherever a processor could lack them.
macro_rules! neon {
    ($expression:expr) => {
        // SAFETY: every aarch64 processor that this is compiled for has NEON, and values have no preconditions.
        unsafe { $expression }
    };
}

mod floats;
mod integers;
#[cfg(test)]
mod tests;

use core::arch::aarch64::*;
use core::mem::transmute;

pub(crate) use floats::*;
pub(crate) use integers::*;

/// Sixteen bytes, read as lanes of any width.
#[allow(non_camel_case_types, reason = "simd128's name")]
pub(crate) type v128 = uint8x16_t;

/// Constructors, splats and lanes of one shape.
macro_rules! lanes {
    ($name:ident, $splat:ident, $extract:ident, $replace:ident: [$type:ty; $count:literal], $($value:ident)*) => {
        /// A vector of these lanes, the first in the lowest bytes.
        #[inline(always)]
        #[allow(clippy::too_many_arguments, reason = "one for each lane")]
        pub(crate) const fn $name($($value: $type),*) -> v128 {
            from_lanes([$($value),*])
        }

        /// The value in every lane.
        #[inline(always)]
        pub(crate) const fn $splat(value: $type) -> v128 {
            from_lanes([value; $count])
        }

        /// Lane `N`.
        #[inline(always)]
        pub(crate) fn $extract<const N: usize>(vector: v128) -> $type {
            to_lanes::<$type, $count>(vector)[N]
        }

        /// The vector with another lane `N`.
        #[inline(always)]
        pub(crate) fn $replace<const N: usize>(vector: v128, value: $type) -> v128 {
            let mut lanes = to_lanes::<$type, $count>(vector);
            lanes[N] = value;
            from_lanes(lanes)
        }
    };
}

lanes!(i8x16, i8x16_splat, i8x16_extract_lane, i8x16_replace_lane: [i8; 16], a b c d e f g h i j k l m n o p);
lanes!(u8x16, u8x16_splat, u8x16_extract_lane, u8x16_replace_lane: [u8; 16], a b c d e f g h i j k l m n o p);
lanes!(i16x8, i16x8_splat, i16x8_extract_lane, i16x8_replace_lane: [i16; 8], a b c d e f g h);
lanes!(u16x8, u16x8_splat, u16x8_extract_lane, u16x8_replace_lane: [u16; 8], a b c d e f g h);
lanes!(i32x4, i32x4_splat, i32x4_extract_lane, i32x4_replace_lane: [i32; 4], a b c d);
lanes!(u32x4, u32x4_splat, u32x4_extract_lane, u32x4_replace_lane: [u32; 4], a b c d);
lanes!(i64x2, i64x2_splat, i64x2_extract_lane, i64x2_replace_lane: [i64; 2], a b);
lanes!(u64x2, u64x2_splat, u64x2_extract_lane, u64x2_replace_lane: [u64; 2], a b);
lanes!(f32x4, f32x4_splat, f32x4_extract_lane, f32x4_replace_lane: [f32; 4], a b c d);

/// Types of which every bit pattern is a value.
trait Lane: Copy {}
impl Lane for i8 {}
impl Lane for u8 {}
impl Lane for i16 {}
impl Lane for u16 {}
impl Lane for i32 {}
impl Lane for u32 {}
impl Lane for i64 {}
impl Lane for u64 {}
impl Lane for f32 {}

#[inline(always)]
const fn from_lanes<T: Lane, const N: usize>(lanes: [T; N]) -> v128 {
    assert!(size_of::<[T; N]>() == 16);
    // SAFETY: sixteen bytes, as asserted, and every bit pattern is a vector; the read needs no alignment.
    unsafe { (&raw const lanes).cast::<v128>().read_unaligned() }
}

#[inline(always)]
fn to_lanes<T: Lane, const N: usize>(vector: v128) -> [T; N] {
    assert!(size_of::<[T; N]>() == 16);
    // SAFETY: sixteen bytes, as asserted, and every bit pattern is a lane; the read needs no alignment.
    unsafe { (&raw const vector).cast::<[T; N]>().read_unaligned() }
}

/// Sixteen bytes of memory; no alignment is needed.
///
/// # Safety
/// Sixteen readable bytes.
#[inline(always)]
pub(crate) unsafe fn v128_load(memory: *const v128) -> v128 {
    // SAFETY: the caller's promise.
    unsafe { vld1q_u8(memory.cast()) }
}

/// Writes sixteen bytes; no alignment is needed.
///
/// # Safety
/// Sixteen writable bytes.
#[inline(always)]
pub(crate) unsafe fn v128_store(memory: *mut v128, vector: v128) {
    // SAFETY: the caller's promise.
    unsafe { vst1q_u8(memory.cast(), vector) };
}

/// One value of memory in every lane, or in the first with zeros behind it; no alignment is needed.
macro_rules! load_one {
    ($($splat:ident, $zero:ident: $type:ty;)*) => {$(
        /// # Safety
        /// One readable value.
        #[inline(always)]
        pub(crate) unsafe fn $splat(memory: *const $type) -> v128 {
            // SAFETY: the caller's promise.
            from_lanes([unsafe { memory.read_unaligned() }; 16 / size_of::<$type>()])
        }

        /// # Safety
        /// One readable value.
        #[inline(always)]
        pub(crate) unsafe fn $zero(memory: *const $type) -> v128 {
            let mut lanes = [0; 16 / size_of::<$type>()];
            // SAFETY: the caller's promise.
            lanes[0] = unsafe { memory.read_unaligned() };
            from_lanes(lanes)
        }
    )*};
}

load_one! {
    v128_load8_splat, v128_load8_zero: u8;
    v128_load16_splat, v128_load16_zero: u16;
    v128_load32_splat, v128_load32_zero: u32;
    v128_load64_splat, v128_load64_zero: u64;
}

#[inline(always)]
pub(crate) fn v128_and(a: v128, b: v128) -> v128 {
    neon!(vandq_u8(a, b))
}

#[inline(always)]
pub(crate) fn v128_or(a: v128, b: v128) -> v128 {
    neon!(vorrq_u8(a, b))
}

#[inline(always)]
pub(crate) fn v128_xor(a: v128, b: v128) -> v128 {
    neon!(veorq_u8(a, b))
}

#[inline(always)]
pub(crate) fn v128_not(a: v128) -> v128 {
    neon!(vmvnq_u8(a))
}

/// The bits of `a` that are not set in `b`.
#[inline(always)]
pub(crate) fn v128_andnot(a: v128, b: v128) -> v128 {
    neon!(vbicq_u8(a, b))
}

/// The bits of `a` where `mask` is set, of `b` elsewhere.
#[inline(always)]
pub(crate) fn v128_bitselect(a: v128, b: v128, mask: v128) -> v128 {
    neon!(vbslq_u8(mask, a, b))
}

/// Byte `at[i]` of `table` in byte i; zero where that is 16 or more.
#[inline(always)]
pub(crate) fn i8x16_swizzle(table: v128, at: v128) -> v128 {
    neon!(vqtbl1q_u8(table, at))
}

/// As [`i8x16_swizzle`].
#[inline(always)]
pub(crate) fn u8x16_swizzle(table: v128, at: v128) -> v128 {
    i8x16_swizzle(table, at)
}

/// Lanes of two vectors by constant numbers, those of the second after those of the first.
macro_rules! shuffle {
    ($name:ident, [$type:ty; $count:literal], $($lane:ident)*) => {
        #[inline(always)]
        pub(crate) fn $name<$(const $lane: usize),*>(a: v128, b: v128) -> v128 {
            // SAFETY: arrays of the same size; every bit pattern is a lane.
            let lanes: [$type; 2 * $count] = unsafe { transmute([a, b]) };
            from_lanes([$(lanes[$lane]),*])
        }
    };
}

shuffle!(i8x16_shuffle, [u8; 16], A B C D E F G H I J K L M N O P);
shuffle!(u8x16_shuffle, [u8; 16], A B C D E F G H I J K L M N O P);
shuffle!(i16x8_shuffle, [u16; 8], A B C D E F G H);
shuffle!(u16x8_shuffle, [u16; 8], A B C D E F G H);
shuffle!(i32x4_shuffle, [u32; 4], A B C D);
shuffle!(u32x4_shuffle, [u32; 4], A B C D);
shuffle!(i64x2_shuffle, [u64; 2], A B);
shuffle!(u64x2_shuffle, [u64; 2], A B);
