//! Vectors of 128 bits, WASM simd128 with the two relaxed integer dots and NEON: products of every format. Bit-equal to the
//! scalar reference, since integer sums are exact in any order and float sums keep the definition's.
//!
//! A relaxed dot is the same on every processor as long as its second operand lies in 0..=127: that is where the weights go.
//! The code is written in simd128's instructions; [`crate::neon`] gives NEON's under the same names. Whatever a new file uses
//! comes from `instructions`, never from `core::arch`.

mod floats;
mod formats;
pub(crate) mod lanes;
mod small_blocks;
mod super_blocks;
mod unpack;

#[cfg(target_arch = "wasm32")]
use core::arch::wasm32 as instructions;
use core::ops::Range;

use small_blocks::Small;
use super_blocks::Super;

use crate::format::Format;
use crate::matrix::Matrix;
#[cfg(target_arch = "aarch64")]
use crate::neon as instructions;
use crate::{block_walk, float_walk, interleaved_terms, interleaved_walk};

/// As [`crate::product()`], whose checks have been made.
pub(crate) fn product(matrix: Matrix<'_>, outputs: Range<usize>, rows: &[u8], count: usize, out: &mut [f32]) {
    if matrix.is_interleaved() {
        return match matrix.format() {
            Format::Q4K => {
                interleaved_walk::product::<interleaved_terms::Q4K>(matrix, outputs, rows, count, out)
            }
            _ => interleaved_walk::product::<interleaved_terms::Q6K>(matrix, outputs, rows, count, out),
        };
    }
    match matrix.format() {
        Format::F32 => float_walk::product::<floats::F32>(matrix, outputs, rows, count, out),
        Format::F16 => float_walk::product::<floats::F16>(matrix, outputs, rows, count, out),
        Format::BF16 => float_walk::product::<floats::BF16>(matrix, outputs, rows, count, out),
        Format::Q4_0 => block_walk::product::<formats::Q4_0>(matrix, outputs, rows, count, out),
        Format::Q8_0 => block_walk::product::<formats::Q8_0>(matrix, outputs, rows, count, out),
        Format::Q4K => block_walk::product::<formats::Q4K>(matrix, outputs, rows, count, out),
        Format::Q6K => block_walk::product::<formats::Q6K>(matrix, outputs, rows, count, out),
        Format::Q4_1 => block_walk::product::<Small<small_blocks::Q4_1>>(matrix, outputs, rows, count, out),
        Format::Q5_0 => block_walk::product::<Small<small_blocks::Q5_0>>(matrix, outputs, rows, count, out),
        Format::Q5_1 => block_walk::product::<Small<small_blocks::Q5_1>>(matrix, outputs, rows, count, out),
        Format::IQ4NL => block_walk::product::<Small<small_blocks::IQ4NL>>(matrix, outputs, rows, count, out),
        Format::MXFP4 => block_walk::product::<Small<small_blocks::MXFP4>>(matrix, outputs, rows, count, out),
        Format::Q2K => block_walk::product::<Super<super_blocks::Q2K>>(matrix, outputs, rows, count, out),
        Format::Q3K => block_walk::product::<Super<super_blocks::Q3K>>(matrix, outputs, rows, count, out),
        Format::Q5K => block_walk::product::<Super<super_blocks::Q5K>>(matrix, outputs, rows, count, out),
        Format::IQ4XS => block_walk::product::<Super<super_blocks::IQ4XS>>(matrix, outputs, rows, count, out),
    }
}
