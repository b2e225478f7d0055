//! The scalar reference of the products: the definition, spelled out one element at a time. Every other implementation is
//! tested against this one.

use core::ops::Range;

use crate::block::{SMALL, SUB, SUPER, small_block, super_block};
use crate::format::{Format, RowFormat};
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
fn element(format: Format, weights: &[u8], row: &[u8]) -> f32 {
    let blocks = weights.chunks_exact(format.block_bytes());
    match format.row_format() {
        RowFormat::Float32 => match format {
            Format::F32 => floats(blocks.map(read_f32), row),
            Format::F16 => floats(blocks.map(read_f16), row),
            _ => floats(blocks.map(read_bf16), row),
        },
        RowFormat::Q8 => blocks
            .zip(row.chunks_exact(4 + SMALL))
            .fold(0.0, |acc, (block, row)| acc + small_term(format, block, read_f32(row), &row[4..])),
        RowFormat::Q8K => blocks
            .zip(row.chunks_exact(4 + SUPER))
            .fold(0.0, |acc, (block, row)| acc + super_term(format, block, read_f32(row), &row[4..])),
    }
}

/// `(d * dx) * f(isum)`, and `+ (m * dx) * f(bsum)` where the format has a minimum.
fn small_term(format: Format, block: &[u8], row_scale: f32, row: &[u8]) -> f32 {
    let block = small_block(format, block);
    let term = (block.scale * row_scale) * integer_dot(&block.weights, row) as f32;
    match block.minimum {
        Some(minimum) => term + (minimum * row_scale) * integer_sum(row) as f32,
        None => term,
    }
}

/// `(d * dx) * f(sum sc_j * isum_j)`, and `- (dmin * dx) * f(sum mn_j * bsum_j)` where the format has minima.
fn super_term(format: Format, block: &[u8], row_scale: f32, row: &[u8]) -> f32 {
    let block = super_block(format, block);
    let mut scaled = 0i32;
    for (j, &scale) in block.scales.iter().enumerate() {
        let range = j * SUB..j * SUB + SUB;
        scaled += i32::from(scale) * integer_dot(&block.weights[range.clone()], &row[range]);
    }
    let term = (block.scale * row_scale) * scaled as f32;
    let Some((minimum_scale, minima)) = block.minima else { return term };
    let mut lowered = 0i32;
    for (row, minimum) in row.chunks_exact(SUB).zip(minima) {
        lowered += i32::from(minimum) * integer_sum(row);
    }
    term - (minimum_scale * row_scale) * lowered as f32
}

fn floats(weights: impl Iterator<Item = f32>, row: &[u8]) -> f32 {
    sixteen_sum(weights.zip(row.chunks_exact(4)).map(|(w, x)| w * read_f32(x)))
}

fn integer_dot(weights: &[i8], row: &[u8]) -> i32 {
    weights.iter().zip(row).map(|(&w, &x)| i32::from(w) * i32::from(x as i8)).sum()
}

fn integer_sum(row: &[u8]) -> i32 {
    row.iter().map(|&x| i32::from(x as i8)).sum()
}
