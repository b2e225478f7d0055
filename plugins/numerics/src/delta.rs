//! The recurrent delta rule of one value head, one token at a time, and the causal convolution before it.

use crate::instruction_set::InstructionSet;

/// One token of the gated delta rule for one head.
///
/// `state` is S, key-major: `S[i][j]` at `i * v.len() + j`, i the key channel, j the value channel. In this order:
/// `S = S * decay`; `m_j = sum_i S[i][j] * k_i`; `d_j = beta * (v_j - m_j)`; `S[i][j] += k_i * d_j`;
/// `out_j = sum_i S[i][j] * q_i`. Sums run over ascending i from zero, one accumulator per value channel. q must have been
/// normalised and scaled already, k normalised.
///
/// # Panics
/// Where the lengths do not fit: q and k as long as each other, v as out, `state` their product.
#[allow(clippy::too_many_arguments, reason = "the names of the recurrence's own formula")]
pub fn delta_step(
    isa: InstructionSet,
    state: &mut [f32],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    beta: f32,
    decay: f32,
    out: &mut [f32],
) {
    assert!(q.len() == k.len() && v.len() == out.len(), "delta_step: vectors of different lengths");
    assert_eq!(Some(state.len()), k.len().checked_mul(v.len()), "delta_step: the state is not keys x values");
    crate::with_instructions!(isa, delta_step_lanes(state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], beta: f32, decay: f32, out: &mut [f32]))
}

/// One output of the causal depthwise convolution for every channel: `out_c = sum over taps, oldest first, from zero, of
/// weights[c * taps + t] * x_t[c]`, where `history` holds the `taps - 1` inputs before `current`, oldest first, each one
/// value per channel. No activation.
///
/// # Panics
/// Where the lengths do not fit.
pub fn convolve(isa: InstructionSet, weights: &[f32], history: &[f32], current: &[f32], out: &mut [f32]) {
    let channels = current.len();
    assert_eq!(out.len(), channels, "convolve: one output per channel");
    if channels == 0 {
        return;
    }
    let taps = weights.len() / channels;
    assert!(
        taps > 0 && weights.len() == taps * channels && history.len() == (taps - 1) * channels,
        "convolve: weights must be channels x taps, history channels x (taps - 1)"
    );
    crate::with_instructions!(isa, convolve_lanes(weights: &[f32], history: &[f32], current: &[f32], out: &mut [f32]))
}

/// Value channels handled together: their accumulators stay in registers, and their columns of S in the first cache.
const CHANNELS: usize = 32;

#[inline(always)]
fn delta_step_lanes(
    state: &mut [f32],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    beta: f32,
    decay: f32,
    out: &mut [f32],
) {
    let width = v.len();
    let (v_whole, v_rest) = v.as_chunks::<CHANNELS>();
    let (out_whole, out_rest) = out.as_chunks_mut::<CHANNELS>();
    for (tile, (v, out)) in v_whole.iter().zip(out_whole).enumerate() {
        let start = tile * CHANNELS;
        let mut sums = [0f32; CHANNELS];
        for (row, k) in state.chunks_exact_mut(width).zip(k) {
            let (row, _) = row[start..].as_chunks_mut::<CHANNELS>();
            for (sum, s) in sums.iter_mut().zip(&mut row[0]) {
                *s *= decay;
                *sum += *s * k;
            }
        }
        let mut change = [0f32; CHANNELS];
        for ((change, v), sum) in change.iter_mut().zip(v).zip(&sums) {
            *change = beta * (v - sum);
        }
        let mut sums = [0f32; CHANNELS];
        for ((row, k), q) in state.chunks_exact_mut(width).zip(k).zip(q) {
            let (row, _) = row[start..].as_chunks_mut::<CHANNELS>();
            for ((sum, s), change) in sums.iter_mut().zip(&mut row[0]).zip(&change) {
                *s += k * change;
                *sum += *s * q;
            }
        }
        *out = sums;
    }
    let start = v_whole.len() * CHANNELS;
    for (j, (v, out)) in v_rest.iter().zip(out_rest).enumerate() {
        let at = |i: usize| i * width + start + j;
        let mut sum = 0f32;
        for (i, k) in k.iter().enumerate() {
            state[at(i)] *= decay;
            sum += state[at(i)] * k;
        }
        let change = beta * (v - sum);
        let mut sum = 0f32;
        for (i, (k, q)) in k.iter().zip(q).enumerate() {
            state[at(i)] += k * change;
            sum += state[at(i)] * q;
        }
        *out = sum;
    }
}

#[inline(always)]
fn convolve_lanes(weights: &[f32], history: &[f32], current: &[f32], out: &mut [f32]) {
    let channels = current.len();
    let taps = weights.len() / channels;
    for (channel, ((out, current), weights)) in
        out.iter_mut().zip(current).zip(weights.chunks_exact(taps)).enumerate()
    {
        let mut sum = 0f32;
        for (tap, weight) in weights[..taps - 1].iter().enumerate() {
            sum += weight * history[tap * channels + channel];
        }
        *out = sum + weights[taps - 1] * current;
    }
}
