//! The scalar functions of exact-v1. `exp` is plain f32 arithmetic without branches, so that the compiler vectorises loops
//! over it under any instruction set without changing a bit; what goes through f64 uses the crate `libm`, pinned to one
//! exact version in the workspace manifest.

use crate::instruction_set::InstructionSet;
use crate::row::ROUNDER;

/// e^x within one unit in the last place; x is clamped to -87.3..=88; NaN stays a NaN.
#[allow(clippy::excessive_precision, clippy::approx_constant, reason = "the digits of the definition")]
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // The clamp in integers: non-negative floats order as signed integers do, negative ones as unsigned integers in
    // reverse. A comparison of floats would become a relaxed minimum in WASM, which an exact kernel may not hold.
    let bits = (x.to_bits() as i32).min(88f32.to_bits() as i32) as u32;
    let clamped = f32::from_bits(bits.min((-87.3f32).to_bits()));
    let shifted = clamped * 1.442_695_04 + ROUNDER;
    let n = shifted - ROUNDER;
    let r = (clamped - n * 0.693_359_375) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_15e-4;
    p = p * r + 1.398_199_950_7e-3;
    p = p * r + 8.333_451_907_3e-3;
    p = p * r + 4.166_579_589_4e-2;
    p = p * r + 1.666_666_545_9e-1;
    p = p * r + 5.000_000_120_1e-1;
    // The low bits of `shifted` are n; n + 127 lies in 1..=254, so this is 2^n.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    let result = (((p * (r * r)) + r) + 1.0) * power;
    if x.is_nan() { x } else { result }
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x / (1 + exp(-x))`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `x` above 20, else `log1p(exp(x))` in f64, rounded once.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { libm::log1p(libm::exp(f64::from(x))) as f32 }
}

/// The factor that a delta-rule state is multiplied with: `exp(a * softplus(alpha + dt_bias))`, a as a GGUF stores it
/// (negative).
pub fn decay(a: f32, alpha: f32, dt_bias: f32) -> f32 {
    exp(a * softplus(alpha + dt_bias))
}

/// `f32(-exp(f64 A_log))`: the `a` of [`decay`] from the logarithm that Hugging Face files store.
pub fn decay_rate_from_log(a_log: f32) -> f32 {
    -libm::exp(f64::from(a_log)) as f32
}

/// `f32(1 / sqrt(n))` through f64: the factor of a normalised q, and an attention scale.
pub fn inverse_square_root(n: usize) -> f32 {
    (1.0 / libm::sqrt(n as f64)) as f32
}

/// `gate_i = silu(gate_i) * up_i`.
///
/// # Panics
/// Where the lengths differ.
pub fn silu_multiply(isa: InstructionSet, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "silu_multiply: vectors of different lengths");
    crate::with_instructions!(isa, silu_multiply_lanes(gate: &mut [f32], up: &[f32]))
}

/// `x_i = silu(x_i)`.
pub fn silu_in_place(isa: InstructionSet, x: &mut [f32]) {
    crate::with_instructions!(isa, silu_lanes(x: &mut [f32]))
}

/// `x_i = x_i * sigmoid(gate_i)`.
///
/// # Panics
/// Where the lengths differ.
pub fn sigmoid_multiply(isa: InstructionSet, x: &mut [f32], gate: &[f32]) {
    assert_eq!(x.len(), gate.len(), "sigmoid_multiply: vectors of different lengths");
    crate::with_instructions!(isa, sigmoid_multiply_lanes(x: &mut [f32], gate: &[f32]))
}

#[inline(always)]
fn silu_multiply_lanes(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = silu(*gate) * up;
    }
}

#[inline(always)]
fn silu_lanes(x: &mut [f32]) {
    for x in x {
        *x = silu(*x);
    }
}

#[inline(always)]
fn sigmoid_multiply_lanes(x: &mut [f32], gate: &[f32]) {
    for (x, gate) in x.iter_mut().zip(gate) {
        *x *= sigmoid(*gate);
    }
}
