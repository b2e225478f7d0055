//! Pieces of blocks in vectors: signs, tables, scales, and what the sandbox's compiler needs to be told.

use super::instructions::*;
use super::lanes::{load_16, widen_f16};
use crate::block_walk::TILE;

pub(super) const ZERO: v128 = i32x4(0, 0, 0, 0);

/// `values`, negated where `signs` is negative.
#[inline]
pub(super) fn with_sign(values: v128, signs: v128, zero: v128) -> v128 {
    let negative = i8x16_lt(signs, zero);
    i8x16_sub(v128_xor(values, negative), negative)
}

/// Zero, hidden from the compiler, which would make a shift of a comparison with zero; x86-64 has no such shift of bytes.
#[inline]
pub(super) fn hidden_zero() -> v128 {
    // SAFETY: a reference is readable.
    unsafe { core::ptr::read_volatile(&ZERO) }
}

/// For each nibble the byte of the table.
#[inline]
pub(super) fn look_up(table: &[u8; 16], nibbles: v128) -> v128 {
    i8x16_swizzle(load_16(table, 0), nibbles)
}

/// The f16 at byte `at` of a block, widened, in every lane.
#[inline]
pub(super) fn f16_of_one<B: AsRef<[u8]>>(block: &B, at: usize) -> v128 {
    widen_f16(u32x4_splat(u32::from(half_word(block.as_ref(), at))))
}

/// The f16 at byte `at` of each of four blocks, widened.
#[inline]
pub(super) fn f16_of_four<B: AsRef<[u8]>>(blocks: [&B; TILE], at: usize) -> v128 {
    let mut halves = [0; TILE];
    for (half, block) in halves.iter_mut().zip(blocks) {
        *half = u32::from(half_word(block.as_ref(), at));
    }
    widen_f16(u32x4(halves[0], halves[1], halves[2], halves[3]))
}

/// The eight 6-bit scales and the eight 6-bit minima of the K formats from their 12 bytes, each as eight i16.
#[inline]
pub(super) fn four_k_scales(packed: &[u8]) -> (v128, v128) {
    const SIX: u32 = 0x3f3f_3f3f;
    const FOUR: u32 = 0x0f0f_0f0f;
    const TWO: u32 = 0x0303_0303;
    let (low_scales, low_minima, rest) = (word(packed, 0), word(packed, 4), word(packed, 8));
    let packed = u32x4(
        low_scales & SIX,
        (rest & FOUR) | (((low_scales >> 6) & TWO) << 4),
        low_minima & SIX,
        ((rest >> 4) & FOUR) | (((low_minima >> 6) & TWO) << 4),
    );
    (u16x8_extend_low_u8x16(packed), u16x8_extend_high_u8x16(packed))
}

/// The little-endian word of four bytes at byte `at`.
#[inline(always)]
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The little-endian word of two bytes at byte `at`.
#[inline(always)]
pub(super) fn half_word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Lane `LANE` everywhere. A swizzle, since the compiler may give a shuffle any second operand, which costs more.
macro_rules! spread {
    ($vector:expr, $lane:literal) => {
        i8x16_swizzle($vector, u16x8_splat($lane * 2 + ($lane * 2 + 1) * 256))
    };
}

/// Each of the eight lanes in a vector of its own.
#[inline]
pub(super) fn spread_each(values: v128) -> [v128; 8] {
    [
        spread!(values, 0),
        spread!(values, 1),
        spread!(values, 2),
        spread!(values, 3),
        spread!(values, 4),
        spread!(values, 5),
        spread!(values, 6),
        spread!(values, 7),
    ]
}

/// Makes the sandbox's compiler compute `value` here. Cranelift computes a value as late as it can, which is after all loads of
/// a straight piece of code; it then keeps most of what was loaded on the stack. A store is done where it stands.
#[inline(always)]
pub(super) fn compute_now(value: v128) {
    let mut place = core::mem::MaybeUninit::<v128>::uninit();
    // SAFETY: the place is there and aligned.
    unsafe { place.as_mut_ptr().write_volatile(value) };
}
