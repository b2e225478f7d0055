//! The two passes of attention over cached positions, in the order that exact-v1 gives each of their sums. They are
//! [`crate::dot`] and [`crate::scale_add`] for many positions in one call: what one position needs is too short to be worth
//! one, and sums that stay in registers are neither read nor written between two positions.

use crate::instruction_set::InstructionSet;
use crate::sum::{LANES, dot_lanes, scale_add_lanes};

/// Positions scored together: their partial sums fill half of the registers.
const POSITIONS: usize = 4;
/// Columns summed together: so many sums stay in registers.
const COLUMNS: usize = 64;

/// `out_p = (sixteen-sum of query_i * key_p,i) * scale` for every position p; `keys` holds them back to back.
///
/// # Panics
/// Where `keys` is not one key as long as the query for each value of `out`.
pub fn attention_scores(isa: InstructionSet, query: &[f32], keys: &[f32], scale: f32, out: &mut [f32]) {
    assert_eq!(
        Some(keys.len()),
        query.len().checked_mul(out.len()),
        "attention_scores: one key for each value of out"
    );
    crate::with_instructions!(isa, attention_scores_lanes(query: &[f32], keys: &[f32], scale: f32, out: &mut [f32]))
}

/// `out_j = sum over positions p, ascending, from zero, of weights_p * value_p,j`, each product rounded, then the sum;
/// `values` holds them back to back.
///
/// # Panics
/// Where `values` is not one value as long as `out` for each weight.
pub fn weighted_sum(isa: InstructionSet, weights: &[f32], values: &[f32], out: &mut [f32]) {
    assert_eq!(
        Some(values.len()),
        out.len().checked_mul(weights.len()),
        "weighted_sum: one value as long as out for each weight"
    );
    crate::with_instructions!(isa, weighted_sum_lanes(weights: &[f32], values: &[f32], out: &mut [f32]))
}

#[inline(always)]
fn attention_scores_lanes(query: &[f32], keys: &[f32], scale: f32, out: &mut [f32]) {
    let width = query.len();
    if width == 0 {
        return out.fill(0.0 * scale);
    }
    let whole = if width.is_multiple_of(LANES) { out.len() / POSITIONS * POSITIONS } else { 0 };
    let (tiles, rest) = out.split_at_mut(whole);
    let (tile_keys, rest_keys) = keys.split_at(whole * width);
    let query_lanes = query.as_chunks::<LANES>().0;
    for (out, keys) in tiles.chunks_exact_mut(POSITIONS).zip(tile_keys.chunks_exact(POSITIONS * width)) {
        let (a, keys) = keys.split_at(width);
        let (b, keys) = keys.split_at(width);
        let (c, d) = keys.split_at(width);
        let [a, b, c, d] = [a, b, c, d].map(|key| key.as_chunks::<LANES>().0);
        let mut partial = [[0f32; LANES]; POSITIONS];
        for ((((query, a), b), c), d) in query_lanes.iter().zip(a).zip(b).zip(c).zip(d) {
            for lane in 0..LANES {
                partial[0][lane] += query[lane] * a[lane];
                partial[1][lane] += query[lane] * b[lane];
                partial[2][lane] += query[lane] * c[lane];
                partial[3][lane] += query[lane] * d[lane];
            }
        }
        // The end of a sixteen-sum, for all positions at each step.
        for half in [8, 4, 2, 1] {
            for partial in &mut partial {
                for lane in 0..half {
                    partial[lane] += partial[lane + half];
                }
            }
        }
        for (out, partial) in out.iter_mut().zip(&partial) {
            *out = partial[0] * scale;
        }
    }
    for (out, key) in rest.iter_mut().zip(rest_keys.chunks_exact(width)) {
        *out = dot_lanes(query, key) * scale;
    }
}

#[inline(always)]
fn weighted_sum_lanes(weights: &[f32], values: &[f32], out: &mut [f32]) {
    let width = out.len();
    let (tiles, rest) = out.as_chunks_mut::<COLUMNS>();
    let whole = tiles.len() * COLUMNS;
    for (tile, out) in tiles.iter_mut().enumerate() {
        let start = tile * COLUMNS;
        let mut sums = [0f32; COLUMNS];
        for (weight, value) in weights.iter().zip(values.chunks_exact(width)) {
            let value = &value[start..].as_chunks::<COLUMNS>().0[0];
            for (sum, value) in sums.iter_mut().zip(value) {
                *sum += weight * value;
            }
        }
        *out = sums;
    }
    if !rest.is_empty() {
        rest.fill(0.0);
        for (weight, value) in weights.iter().zip(values.chunks_exact(width)) {
            scale_add_lanes(rest, *weight, &value[whole..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dot, scale_add};

    /// Values of mixed size and sign, so that every change of order would show.
    fn floats(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (f64::from(state) / 2f64.powi(31) - 1.0) as f32 * [1e-3, 1.0, 1e3][state as usize % 3]
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn both_passes_are_dots_and_sums_of_one_position_after_the_other() {
        for isa in InstructionSet::available() {
            for width in [1, 7, 16, 31, 64, 80, 128, 200, 256] {
                for positions in [0, 1, 3, 4, 5, 18] {
                    let (query, keys) = (floats(width, 1), floats(width * positions, 2));
                    let mut scores = vec![0.0; positions];
                    attention_scores(isa, &query, &keys, 0.125, &mut scores);
                    let mut sums = vec![f32::NAN; width];
                    weighted_sum(isa, &scores, &keys, &mut sums);
                    let mut expected = vec![0.0; width];
                    for (score, key) in scores.iter().zip(keys.chunks_exact(width)) {
                        let alone = dot(InstructionSet::SCALAR, &query, key) * 0.125;
                        assert_eq!(score.to_bits(), alone.to_bits(), "{isa}, {positions} keys of {width}");
                        scale_add(InstructionSet::SCALAR, &mut expected, *score, key);
                    }
                    let bits =
                        |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&sums), bits(&expected), "{isa}, {positions} values of {width}");
                }
            }
        }
    }
}
