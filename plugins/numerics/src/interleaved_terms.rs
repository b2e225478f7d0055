//! The terms of the interleaved formats. Weights are below 128, so that products of bytes, added in pairs, fit 16 bits. One
//! source for every set of 128-bit vectors.

use crate::interleaved::{q4_k, q6_k};
use crate::interleaved_walk::{BandFormat, Prepared, Row};
use crate::lanes::*;

/// Q4_K: `(d dx) f(sum sc_j isum_j) - (dmin dx) f(sum mn_j bsum_j)`.
pub(crate) struct Q4K;

impl BandFormat for Q4K {
    type Weights = [u8; q4_k::BYTES];
    /// The sums of the eight sub-blocks.
    type Sums = [[i16; 2]; 4];
    const NO_SUMS: Self::Sums = [[0; 2]; 4];

    fn weights(bytes: &[u8]) -> &[Self::Weights] {
        bytes.as_chunks().0
    }

    #[inline(always)]
    fn sums(row: &Row) -> Self::Sums {
        let mut sums = [[0; 2]; 4];
        for (sum, values) in sums.as_flattened_mut().iter_mut().zip(row[4..].as_chunks::<32>().0) {
            *sum = values.iter().map(|&value| i16::from(value as i8)).sum();
        }
        sums
    }

    #[inline]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
    unsafe fn add_terms<const O: usize, const R: usize>(
        weights: &Self::Weights,
        half: usize,
        rows: [&Row; R],
        prepared: [&Prepared<Self::Sums>; R],
        acc: &mut [[Four; R]; O],
    ) {
        let eights = |start: usize, pair: usize| &weights[start..].as_chunks::<8>().0[half * 4 + pair];
        let mut scaled = [[NO_INTEGERS; R]; O];
        for pair in 0..4 {
            let sums = q4_k_sums::<O, R>(weights, half, rows, 2 * pair);
            for (o, (scaled, sums)) in scaled.iter_mut().zip(&sums).enumerate() {
                let scales = lower_twice(load_widened(eights(q4_k::SCALES, o * 4 + pair)));
                for (scaled, sums) in scaled.iter_mut().zip(sums) {
                    *scaled = add_i32(*scaled, dot_i16(*sums, scales));
                }
            }
            let sums = q4_k_sums::<O, R>(weights, half, rows, 2 * pair + 1);
            for (o, (scaled, sums)) in scaled.iter_mut().zip(&sums).enumerate() {
                let scales = upper_twice(load_widened(eights(q4_k::SCALES, o * 4 + pair)));
                for (scaled, sums) in scaled.iter_mut().zip(sums) {
                    *scaled = add_i32(*scaled, dot_i16(*sums, scales));
                }
            }
        }
        for (o, (acc, scaled)) in acc.iter_mut().zip(&scaled).enumerate() {
            let mut lowered = [NO_INTEGERS; R];
            for pair in 0..4 {
                let minima = load_widened(eights(q4_k::MINIMA, o * 4 + pair));
                for (lowered, prepared) in lowered.iter_mut().zip(prepared) {
                    *lowered = add_i32(*lowered, dot_i16(minima, same_pair(&prepared.sums[pair])));
                }
            }
            let floats = weights.as_chunks::<16>().0;
            let scale = as_floats(load_integers(&floats[half + o]));
            let minimum = as_floats(load_integers(&floats[q4_k::MINIMUM_SCALES / 16 + half + o]));
            for r in 0..R {
                let row_scale = same_4_f32(prepared[r].scale);
                let above = mul_4(mul_4(scale, row_scale), to_floats(scaled[r]));
                let below = mul_4(mul_4(minimum, row_scale), to_floats(lowered[r]));
                acc[r] = add_4(acc[r], sub_4(above, below));
            }
        }
    }
}

/// `sum q x` over sub-block `j` for four outputs: two i16 each, of at most eight pairs of 15 * 127 * 2.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
fn q4_k_sums<const O: usize, const R: usize>(
    weights: &[u8; q4_k::BYTES],
    half: usize,
    rows: [&Row; R],
    j: usize,
) -> [[Integers; R]; O] {
    let mut sums = [[NO_INTEGERS; R]; O];
    for at in 2 * j..2 * j + 2 {
        let mut quants = [[NO_INTEGERS; 4]; O];
        for (o, quants) in quants.iter_mut().enumerate() {
            let vectors = &weights[q4_k::QUANTS..].as_chunks::<16>().0[at * 4 + (half + o) * 2..];
            let (first, second) = (load_integers(&vectors[0]), load_integers(&vectors[1]));
            *quants = [low_nibbles(first), high_nibbles(first), low_nibbles(second), high_nibbles(second)];
        }
        for r in 0..R {
            let turned = turn_each(load_integers(&rows[r][4..].as_chunks::<16>().0[at]));
            for (sums, quants) in sums.iter_mut().zip(&quants) {
                for (quants, turned) in quants.iter().zip(turned) {
                    sums[r] = add_i16(sums[r], dot_bytes(*quants, turned));
                }
            }
        }
        for sums in sums.as_flattened() {
            compute_now(*sums);
        }
    }
    sums
}

/// Q6_K: `(d dx) f(sum sc_j (sum u x - 32 bsum_j))`, u = 0..=63 as stored.
pub(crate) struct Q6K;

impl BandFormat for Q6K {
    type Weights = [u8; q6_k::BYTES];
    /// The sums of the sixteen sub-blocks.
    type Sums = [[i16; 2]; 8];
    const NO_SUMS: Self::Sums = [[0; 2]; 8];

    fn weights(bytes: &[u8]) -> &[Self::Weights] {
        bytes.as_chunks().0
    }

    #[inline(always)]
    fn sums(row: &Row) -> Self::Sums {
        let mut sums = [[0; 2]; 8];
        for (sum, values) in sums.as_flattened_mut().iter_mut().zip(row[4..].as_chunks::<16>().0) {
            *sum = values.iter().map(|&value| i16::from(value as i8)).sum();
        }
        sums
    }

    #[inline]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
    unsafe fn add_terms<const O: usize, const R: usize>(
        weights: &Self::Weights,
        half: usize,
        rows: [&Row; R],
        prepared: [&Prepared<Self::Sums>; R],
        acc: &mut [[Four; R]; O],
    ) {
        let (mut scaled, mut centre) = ([[NO_INTEGERS; R]; O], [[NO_INTEGERS; R]; O]);
        for pair in 0..8 {
            let scales = |o: usize| {
                load_widened_signed(&weights[q6_k::SCALES..].as_chunks::<8>().0[(half + o) * 8 + pair])
            };
            for (o, (scaled, centre)) in scaled.iter_mut().zip(&mut centre).enumerate() {
                for r in 0..R {
                    centre[r] = add_i32(centre[r], dot_i16(scales(o), same_pair(&prepared[r].sums[pair])));
                }
                add_q6_k::<R>(weights, half + o, rows, 2 * pair, even_twice(scales(o)), scaled);
                add_q6_k::<R>(weights, half + o, rows, 2 * pair + 1, odd_twice(scales(o)), scaled);
            }
        }
        for (o, (acc, scaled)) in acc.iter_mut().zip(&scaled).enumerate() {
            let scale = as_floats(load_integers(&weights.as_chunks::<16>().0[half + o]));
            for r in 0..R {
                let sum = sub_i32(scaled[r], times_32(centre[o][r]));
                acc[r] = add_4(acc[r], mul_4(mul_4(scale, same_4_f32(prepared[r].scale)), to_floats(sum)));
            }
        }
    }
}

/// Adds `sc_j * sum u x` over sub-block `j`. Two pairs of at most 63 * 127 * 2 each fit 16 bits, four do not.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
fn add_q6_k<const R: usize>(
    weights: &[u8; q6_k::BYTES],
    half: usize,
    rows: [&Row; R],
    j: usize,
    scales: Integers,
    scaled: &mut [Integers; R],
) {
    let vectors = &weights[q6_k::QUANTS..].as_chunks::<16>().0[j * 6 + half * 3..];
    let (first, second, high) =
        (load_integers(&vectors[0]), load_integers(&vectors[1]), load_integers(&vectors[2]));
    let quants = [
        or(low_nibbles(first), bits_4_and_5(shift_left_4(high))),
        or(high_nibbles(first), bits_4_and_5(shift_left_2(high))),
        or(low_nibbles(second), bits_4_and_5(high)),
        or(high_nibbles(second), bits_4_and_5(shift_right_2(high))),
    ];
    for (row, scaled) in rows.into_iter().zip(&mut *scaled) {
        let turned = turn_each(load_integers(&row[4..].as_chunks::<16>().0[j]));
        let first = add_i16(dot_bytes(quants[0], turned[0]), dot_bytes(quants[1], turned[1]));
        let second = add_i16(dot_bytes(quants[2], turned[2]), dot_bytes(quants[3], turned[3]));
        *scaled = add_i32(*scaled, add_i32(dot_i16(first, scales), dot_i16(second, scales)));
    }
    for scaled in scaled {
        compute_now(*scaled);
    }
}
