//! The scalar reference of the products: the definition, spelled out one element at a time. Every other implementation is
//! tested against this one.

use core::ops::Range;

use crate::block::{Q4K, Q6K, SMALL, SUPER, q4_0_weights, q4_k_scales, q4_k_weights, q6_k_weights};
use crate::format::Format;
use crate::half::{read_bf16, read_f16, read_f32};
use crate::matrix::Matrix;
use crate::sum::sixteen_sum;

/// As [`crate::product()`], whose checks have been made.
pub(crate) fn product(matrix: Matrix<'_>, outputs: Range<usize>, rows: &[u8], count: usize, out: &mut [f32]) {
    let row_bytes = rows.len() / count;
    for (output, out) in outputs.zip(out.chunks_exact_mut(count)) {
        let weights = matrix.row(output);
        for (row, out) in rows.chunks_exact(row_bytes).zip(out) {
            *out = element(matrix.format(), weights, row);
        }
    }
}

/// One matrix row times one row.
pub(crate) fn element(format: Format, weights: &[u8], row: &[u8]) -> f32 {
    let blocks = weights.chunks_exact(format.block_bytes());
    match format {
        Format::F32 => floats(weights.chunks_exact(4).map(read_f32), row),
        Format::F16 => floats(weights.chunks_exact(2).map(read_f16), row),
        Format::BF16 => floats(weights.chunks_exact(2).map(read_bf16), row),
        Format::Q4_0 => blocks.zip(row.chunks_exact(4 + SMALL)).fold(0.0, |acc, (block, row)| {
            let sum = integer_dot(&q4_0_weights(&block[2..]), &row[4..]);
            acc + (read_f16(block) * read_f32(row)) * sum as f32
        }),
        Format::Q8_0 => blocks.zip(row.chunks_exact(4 + SMALL)).fold(0.0, |acc, (block, row)| {
            let weights = block[2..].iter().map(|&quant| i32::from(quant as i8));
            let sum: i32 = weights.zip(&row[4..]).map(|(w, &x)| w * i32::from(x as i8)).sum();
            acc + (read_f16(block) * read_f32(row)) * sum as f32
        }),
        Format::Q4K => blocks
            .zip(row.chunks_exact(4 + SUPER))
            .fold(0.0, |acc, (block, row)| acc + q4_k_term(&Q4K(block), read_f32(row), &row[4..])),
        Format::Q6K => blocks
            .zip(row.chunks_exact(4 + SUPER))
            .fold(0.0, |acc, (block, row)| acc + q6_k_term(&Q6K(block), read_f32(row), &row[4..])),
    }
}

fn q4_k_term(block: &Q4K<'_>, row_scale: f32, row: &[u8]) -> f32 {
    let weights = q4_k_weights(block.quants());
    let (scales, minima) = q4_k_scales(block.packed_scales());
    let (mut scaled, mut lowered) = (0i32, 0i32);
    for j in 0..8 {
        let row = &row[j * 32..j * 32 + 32];
        scaled += i32::from(scales[j]) * integer_dot(&weights[j * 32..j * 32 + 32], row);
        lowered += i32::from(minima[j]) * row.iter().map(|&x| i32::from(x as i8)).sum::<i32>();
    }
    (block.scale() * row_scale) * scaled as f32 - (block.minimum_scale() * row_scale) * lowered as f32
}

fn q6_k_term(block: &Q6K<'_>, row_scale: f32, row: &[u8]) -> f32 {
    let weights = q6_k_weights(block.low(), block.high());
    let mut scaled = 0i32;
    for (j, &scale) in block.scales().iter().enumerate() {
        let range = j * 16..j * 16 + 16;
        scaled += i32::from(scale as i8) * integer_dot(&weights[range.clone()], &row[range]);
    }
    (block.scale() * row_scale) * scaled as f32
}

fn floats(weights: impl Iterator<Item = f32>, row: &[u8]) -> f32 {
    sixteen_sum(weights.zip(row.chunks_exact(4)).map(|(w, x)| w * read_f32(x)))
}

fn integer_dot(weights: &[i8], row: &[u8]) -> i32 {
    weights.iter().zip(row).map(|(&w, &x)| i32::from(w) * i32::from(x as i8)).sum()
}
