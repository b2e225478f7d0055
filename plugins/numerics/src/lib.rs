//! The exact arithmetic "exact-v1": one definition, a scalar reference and vector implementations that return the same bits.
//!
//! No std and no allocation. The caller chooses the [`InstructionSet`]; every set gives equal bits, alone or in a batch.
//! Nothing here uses a fused multiply-add. What the definition leaves to the loader or the wire (which bytes are weights,
//! who may send rows) is not here, but the two checks that exactness rests on are: [`Matrix::check_weights`] and
//! [`check_rows`].

#![cfg_attr(not(test), no_std)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic"))]

mod attend;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block;
mod block_sums;
#[cfg(any(
    target_arch = "x86_64",
    all(target_arch = "aarch64", target_endian = "little"),
    all(target_arch = "wasm32", target_feature = "simd128", target_feature = "relaxed-simd")
))]
mod block_walk;
mod delta;
#[cfg(any(
    target_arch = "x86_64",
    all(target_arch = "aarch64", target_endian = "little"),
    all(target_arch = "wasm32", target_feature = "simd128", target_feature = "relaxed-simd")
))]
mod float_walk;
mod format;
mod function;
pub mod golden;
mod half;
mod instruction_set;
mod interleaved;
#[cfg(any(
    target_arch = "x86_64",
    all(target_arch = "aarch64", target_endian = "little"),
    all(target_arch = "wasm32", target_feature = "simd128", target_feature = "relaxed-simd")
))]
mod interleaved_terms;
#[cfg(any(
    target_arch = "x86_64",
    all(target_arch = "aarch64", target_endian = "little"),
    all(target_arch = "wasm32", target_feature = "simd128", target_feature = "relaxed-simd")
))]
mod interleaved_walk;
mod matrix;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;
mod norm;
mod product;
mod product_scalar;
mod rope;
mod row;
#[cfg(any(
    all(target_arch = "aarch64", target_endian = "little"),
    all(target_arch = "wasm32", target_feature = "simd128", target_feature = "relaxed-simd")
))]
mod simd128;
#[cfg(any(
    target_arch = "x86_64",
    all(target_arch = "aarch64", target_endian = "little"),
    all(target_arch = "wasm32", target_feature = "simd128", target_feature = "relaxed-simd")
))]
mod slices;
mod sum;
mod swiglu;

/// The vectors of the target, under one set of names.
#[cfg(target_arch = "x86_64")]
use avx2::lanes;
#[cfg(any(
    all(target_arch = "aarch64", target_endian = "little"),
    all(target_arch = "wasm32", target_feature = "simd128", target_feature = "relaxed-simd")
))]
use simd128::lanes;

pub use attend::{attention_scores, weighted_sum};
pub use block_sums::{block_sums, sums_per_block};
pub use delta::{convolve, delta_step};
pub use format::{Format, RowFormat};
pub use function::{
    decay, decay_rate_from_log, exp, inverse_square_root, sigmoid, sigmoid_multiply, silu, silu_in_place,
    silu_multiply, softplus,
};
pub use instruction_set::InstructionSet;
pub use matrix::{MAX_DIMENSION, Matrix, MatrixError, WeightsError, dequantise_row};
pub use norm::{L2_EPSILON, gated_rms_norm, l2_normalise, rms_norm, softmax};
pub use product::product;
pub use rope::{rope_table, rotate};
pub use row::{NotFinite, RowsError, check_rows, quantise_row, read_row};
pub use sum::{dot, scale_add, sixteen_sum};
pub use swiglu::{Swiglu, SwigluError, swiglu};

/// Calls an `#[inline(always)]` function, compiled for the instructions that `isa` proves. The code is the same for every
/// set and the compiler neither reorders nor fuses float operations, so the bits are the same too; with AVX2 it uses
/// vectors of eight, with AVX-512 of sixteen.
macro_rules! with_instructions {
    ($isa:expr, $function:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        match $isa.0 {
            $crate::instruction_set::Kind::Scalar => $function($($argument),*),
            #[cfg(target_arch = "x86_64")]
            $crate::instruction_set::Kind::Avx2 => {
                #[target_feature(enable = "avx2")]
                fn with_avx2($($argument: $type),*) $(-> $result)? {
                    $function($($argument),*)
                }
                // SAFETY: the instruction set is the proof that this machine has AVX2.
                unsafe { with_avx2($($argument),*) }
            }
            #[cfg(target_arch = "x86_64")]
            $crate::instruction_set::Kind::Avx512 => {
                #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
                fn with_avx512($($argument: $type),*) $(-> $result)? {
                    $function($($argument),*)
                }
                // SAFETY: the instruction set is the proof that this machine has these.
                unsafe { with_avx512($($argument),*) }
            }
            // Every aarch64 processor has NEON, and the compiler uses it everywhere.
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            $crate::instruction_set::Kind::Neon => $function($($argument),*),
            // The whole module is compiled with simd128.
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128", target_feature = "relaxed-simd"))]
            $crate::instruction_set::Kind::Simd128 => $function($($argument),*),
        }
    };
}
pub(crate) use with_instructions;
