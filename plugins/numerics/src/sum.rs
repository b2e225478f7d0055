//! The sixteen-sum: the one order in which floats are added, and the vector operations made of it.

use crate::instruction_set::InstructionSet;

/// Partial sums of a sixteen-sum.
pub(crate) const LANES: usize = 16;

/// The sixteen-sum of `terms`: sixteen partial sums (`p_l += t_i` for i = l mod 16 in ascending i, from zero), then
/// halved: `p_l += p_{l+8}`, `p_l += p_{l+4}`, `p_l += p_{l+2}`, `p_0 += p_1`.
pub fn sixteen_sum(terms: impl IntoIterator<Item = f32>) -> f32 {
    let mut partial = [0f32; LANES];
    let mut lane = 0;
    for term in terms {
        partial[lane] += term;
        lane = (lane + 1) % LANES;
    }
    fold(partial)
}

/// The sixteen-sum of `a_i * b_i`.
///
/// # Panics
/// Where the lengths differ.
#[inline]
pub fn dot(isa: InstructionSet, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "dot: vectors of different lengths");
    crate::with_instructions!(isa, dot_lanes(a: &[f32], b: &[f32]) -> f32)
}

/// `acc_i += w * x_i`, the product rounded, then the sum.
///
/// # Panics
/// Where the lengths differ.
#[inline]
pub fn scale_add(isa: InstructionSet, acc: &mut [f32], w: f32, x: &[f32]) {
    assert_eq!(acc.len(), x.len(), "scale_add: vectors of different lengths");
    crate::with_instructions!(isa, scale_add_lanes(acc: &mut [f32], w: f32, x: &[f32]))
}

/// The end of a sixteen-sum.
#[inline(always)]
pub(crate) fn fold(mut partial: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            partial[lane] += partial[lane + half];
        }
    }
    partial[0]
}

#[inline(always)]
pub(crate) fn dot_lanes(a: &[f32], b: &[f32]) -> f32 {
    let mut partial = [0f32; LANES];
    let (a_whole, a_rest) = a.as_chunks::<LANES>();
    let (b_whole, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_whole.iter().zip(b_whole) {
        for lane in 0..LANES {
            partial[lane] += a[lane] * b[lane];
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        partial[lane] += a * b;
    }
    fold(partial)
}

/// The sixteen-sum of `x_i * x_i`.
#[inline(always)]
pub(crate) fn square_sum_lanes(x: &[f32]) -> f32 {
    dot_lanes(x, x)
}

/// The sixteen-sum of a slice.
#[inline(always)]
pub(crate) fn sum_lanes(x: &[f32]) -> f32 {
    let mut partial = [0f32; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for lane in 0..LANES {
            partial[lane] += x[lane];
        }
    }
    for (lane, x) in rest.iter().enumerate() {
        partial[lane] += x;
    }
    fold(partial)
}

#[inline(always)]
pub(crate) fn scale_add_lanes(acc: &mut [f32], w: f32, x: &[f32]) {
    for (acc, x) in acc.iter_mut().zip(x) {
        *acc += w * x;
    }
}
