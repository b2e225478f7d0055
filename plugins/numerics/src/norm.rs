//! Normalisations over a vector: RMSNorm, its gated form, the L2 norm and softmax.

use crate::function::{exp, silu};
use crate::instruction_set::InstructionSet;
use crate::sum::{square_sum_lanes, sum_lanes};

/// The epsilon of [`l2_normalise`], whatever the model's RMS epsilon is.
pub const L2_EPSILON: f32 = 1e-6;

/// `out_i = (x_i * r) * weight_i` with `r = 1 / sqrt(mean of squares + epsilon)`; the squares' sixteen-sum is divided by
/// the length.
///
/// # Panics
/// Where the lengths differ or exceed [`crate::MAX_DIMENSION`].
pub fn rms_norm(isa: InstructionSet, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len(), "rms_norm: vectors of different lengths");
    assert!(x.len() <= crate::MAX_DIMENSION, "rms_norm: vector too long");
    crate::with_instructions!(isa, rms_norm_lanes(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]))
}

/// The gated norm of the delta rule: `out_i = ((x_i * r) * weight_i) * silu(z_i)`, r as in [`rms_norm`].
///
/// # Panics
/// As [`rms_norm`].
pub fn gated_rms_norm(
    isa: InstructionSet,
    x: &[f32],
    weight: &[f32],
    z: &[f32],
    epsilon: f32,
    out: &mut [f32],
) {
    assert!(
        x.len() == weight.len() && x.len() == out.len() && x.len() == z.len(),
        "gated_rms_norm: vectors of different lengths"
    );
    assert!(x.len() <= crate::MAX_DIMENSION, "gated_rms_norm: vector too long");
    crate::with_instructions!(isa, gated_rms_norm_lanes(x: &[f32], weight: &[f32], z: &[f32], epsilon: f32, out: &mut [f32]))
}

/// `x_i = x_i * r` with `r = 1 / sqrt(sixteen-sum of squares + 1e-6)`.
pub fn l2_normalise(isa: InstructionSet, x: &mut [f32]) {
    crate::with_instructions!(isa, l2_normalise_lanes(x: &mut [f32]))
}

/// Softmax in place: less the maximum, `exp`, divided by the sixteen-sum in index order. An empty slice stays empty.
pub fn softmax(isa: InstructionSet, x: &mut [f32]) {
    crate::with_instructions!(isa, softmax_lanes(x: &mut [f32]))
}

#[inline(always)]
fn root_mean_square_inverse(x: &[f32], epsilon: f32) -> f32 {
    let mean = square_sum_lanes(x) / x.len() as f32;
    1.0 / libm::sqrtf(mean + epsilon)
}

#[inline(always)]
fn rms_norm_lanes(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let r = root_mean_square_inverse(x, epsilon);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = (x * r) * weight;
    }
}

#[inline(always)]
fn gated_rms_norm_lanes(x: &[f32], weight: &[f32], z: &[f32], epsilon: f32, out: &mut [f32]) {
    let r = root_mean_square_inverse(x, epsilon);
    for (((out, x), weight), z) in out.iter_mut().zip(x).zip(weight).zip(z) {
        *out = ((x * r) * weight) * silu(*z);
    }
}

#[inline(always)]
fn l2_normalise_lanes(x: &mut [f32]) {
    let r = 1.0 / libm::sqrtf(square_sum_lanes(x) + L2_EPSILON);
    for x in x {
        *x *= r;
    }
}

#[inline(always)]
fn softmax_lanes(x: &mut [f32]) {
    let Some(maximum) = maximum(x) else { return };
    for x in &mut *x {
        *x = exp(*x - maximum);
    }
    let sum = sum_lanes(x);
    for x in x {
        *x /= sum;
    }
}

/// The largest value of no NaNs; of the two zeros the positive one, which gives the same result as the other.
#[inline(always)]
fn maximum(x: &[f32]) -> Option<f32> {
    // Floats as signed integers of the same order. Integers, because a comparison of floats would become a relaxed maximum
    // in WASM, which an exact kernel may not hold.
    let ordered = |bits: i32| bits ^ ((bits >> 31) as u32 >> 1) as i32;
    let largest = x.iter().map(|x| ordered(x.to_bits() as i32)).max()?;
    Some(f32::from_bits(ordered(largest) as u32))
}
