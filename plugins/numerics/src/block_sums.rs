//! The exact integer sums behind a product, block by block: what another implementation of the products can be compared with where
//! its floats are not the definition's. Scalar; for proofs, not for speed.

use crate::block::{SMALL, SUB, small_block, super_block};
use crate::format::{Format, RowFormat};
use crate::matrix::Matrix;

/// Integer sums of one block of a format, in the order of the definition's steps: the one that the scale is multiplied with and,
/// where the format has minima, the one that those are multiplied with. None for float formats.
pub const fn sums_per_block(format: Format) -> usize {
    match format {
        Format::F32 | Format::F16 | Format::BF16 => 0,
        Format::Q4_1 | Format::Q5_1 | Format::Q2K | Format::Q4K | Format::Q5K => 2,
        _ => 1,
    }
}

/// Writes the sums of matrix row `output` with `row` (of the matrix's row format) into `out`: block by block,
/// [`sums_per_block`] each.
///
/// # Panics
/// Where the matrix has no such row, `row` is not one row of its columns, or `out` has another length.
pub fn block_sums(matrix: Matrix<'_>, output: usize, row: &[u8], out: &mut [i32]) {
    let format = matrix.format();
    let per_block = sums_per_block(format);
    assert_eq!(Some(row.len()), matrix.row_format().row_bytes(matrix.columns()), "block_sums: not one row");
    let blocks = matrix.columns() / format.block_len();
    assert_eq!(out.len(), blocks * per_block, "block_sums: out must hold every sum of the matrix row");
    if per_block == 0 {
        return;
    }
    let weights = matrix.row(output).chunks_exact(format.block_bytes());
    let rows = row.chunks_exact(matrix.row_format().block_bytes());
    for ((weights, row), out) in weights.zip(rows).zip(out.chunks_exact_mut(per_block)) {
        let row = &row[4..];
        if matrix.row_format() == RowFormat::Q8 {
            debug_assert_eq!(row.len(), SMALL);
            out[0] = dot(&small_block(format, weights).weights, row);
            if let [_, sum] = out {
                *sum = total(row);
            }
            continue;
        }
        let block = super_block(format, weights);
        let parts = || row.chunks_exact(SUB);
        out[0] = (block.scales.iter().zip(block.weights.chunks_exact(SUB)).zip(parts()))
            .map(|((&scale, weights), row)| i32::from(scale) * dot(weights, row))
            .sum();
        if let ([_, lowered], Some((_, minima))) = (out, block.minima) {
            *lowered =
                minima.into_iter().zip(parts()).map(|(minimum, row)| i32::from(minimum) * total(row)).sum();
        }
    }
}

fn dot(weights: &[i8], row: &[u8]) -> i32 {
    weights.iter().zip(row).map(|(&w, &x)| i32::from(w) * i32::from(x as i8)).sum()
}

fn total(row: &[u8]) -> i32 {
    row.iter().map(|&x| i32::from(x as i8)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::half::read_f32;
    use crate::{InstructionSet, product};

    /// The product, put together again from the sums.
    #[test]
    fn the_sums_are_those_of_the_product() {
        let columns = 512;
        let mut state = 1u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for format in Format::ALL.into_iter().filter(|&format| sums_per_block(format) > 0) {
            let mut bytes: Vec<u8> = (0..format.row_bytes(columns).unwrap()).map(|_| byte()).collect();
            for block in bytes.chunks_exact_mut(format.block_bytes()) {
                crate::block::f16_places(format).iter().for_each(|place| block[place + 1] = 0x2c);
                if format == Format::MXFP4 {
                    block[0] = 120;
                }
            }
            let rows = format.row_format();
            let mut row: Vec<u8> = (0..rows.row_bytes(columns).unwrap()).map(|_| byte().max(0x81)).collect();
            for block in row.chunks_exact_mut(rows.block_bytes()) {
                block[..4].copy_from_slice(&0.5f32.to_le_bytes());
            }
            let matrix = Matrix::new(format, 1, columns, &bytes).unwrap();
            let per_block = sums_per_block(format);
            let mut sums = vec![0; columns / format.block_len() * per_block];
            block_sums(matrix, 0, &row, &mut sums);
            let mut due = [0.0];
            product(InstructionSet::SCALAR, matrix, 0..1, &row, 1, &mut due);
            let blocks = bytes.chunks_exact(format.block_bytes()).zip(row.chunks_exact(rows.block_bytes()));
            let found = blocks.zip(sums.chunks_exact(per_block)).fold(0f32, |acc, ((block, row), sums)| {
                let dx = read_f32(row);
                acc + if rows == RowFormat::Q8 {
                    let block = small_block(format, block);
                    let term = (block.scale * dx) * sums[0] as f32;
                    block.minimum.map_or(term, |minimum| term + (minimum * dx) * sums[1] as f32)
                } else {
                    let block = super_block(format, block);
                    let term = (block.scale * dx) * sums[0] as f32;
                    block.minima.map_or(term, |(scale, _)| term - (scale * dx) * sums[1] as f32)
                }
            });
            assert_eq!(found.to_bits(), due[0].to_bits(), "{format}");
        }
    }
}
