//! The exact integer sums behind a product, block by block: what another implementation of the products can be compared with where
//! its floats are not the definition's. Scalar; for proofs, not for speed.

use crate::block::{Q4K, SMALL, SUPER, q4_0_weights, q4_k_scales, q4_k_weights};
use crate::format::Format;
use crate::matrix::Matrix;

/// Integer sums of one block of a format; zero where this function knows none. Q4_K: `sum sc_j * isum_j`, then `sum mn_j * bsum_j`;
/// Q8_0 and Q4_0: `isum`.
pub const fn sums_per_block(format: Format) -> usize {
    match format {
        Format::Q4K => 2,
        Format::Q8_0 | Format::Q4_0 => 1,
        _ => 0,
    }
}

/// Writes the sums of matrix row `output` with `row` (of the matrix's row format) into `out`: block by block,
/// [`sums_per_block`] each. Nothing is written for a format without them.
///
/// # Panics
/// Where the matrix has no such row, `row` is not one row of its columns, or `out` has another length.
pub fn block_sums(matrix: Matrix<'_>, output: usize, row: &[u8], out: &mut [i32]) {
    let format = matrix.format();
    let blocks = matrix.columns() / format.block_len();
    let per_block = sums_per_block(format);
    assert_eq!(Some(row.len()), matrix.row_format().row_bytes(matrix.columns()), "block_sums: not one row");
    assert_eq!(out.len(), blocks * per_block, "block_sums: out must hold every sum of the matrix row");
    if per_block == 0 {
        return;
    }
    let weights = matrix.row(output).chunks_exact(format.block_bytes());
    let rows = row.chunks_exact(matrix.row_format().block_bytes());
    for ((weights, row), out) in weights.zip(rows).zip(out.chunks_exact_mut(per_block)) {
        let row = &row[4..];
        match format {
            Format::Q4K => {
                let block = Q4K(weights);
                let quants = q4_k_weights(block.quants());
                let (scales, minima) = q4_k_scales(block.packed_scales());
                debug_assert_eq!(row.len(), SUPER);
                for (j, row) in row.chunks_exact(SMALL).enumerate() {
                    let isum = dot(quants[j * SMALL..][..SMALL].iter().copied(), row);
                    let bsum: i32 = row.iter().map(|&x| i32::from(x as i8)).sum();
                    out[0] = if j == 0 { 0 } else { out[0] } + i32::from(scales[j]) * isum;
                    out[1] = if j == 0 { 0 } else { out[1] } + i32::from(minima[j]) * bsum;
                }
            }
            Format::Q4_0 => out[0] = dot(q4_0_weights(&weights[2..]).into_iter(), row),
            Format::Q8_0 => out[0] = dot(weights[2..].iter().map(|&w| w as i8), row),
            _ => {}
        }
    }
}

fn dot(weights: impl Iterator<Item = i8>, row: &[u8]) -> i32 {
    weights.zip(row).map(|(w, &x)| i32::from(w) * i32::from(x as i8)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::half::{read_f16, read_f32};
    use crate::{InstructionSet, product};

    /// The product, put together again from the sums.
    #[test]
    fn the_sums_are_those_of_the_product() {
        for format in [Format::Q4K, Format::Q8_0, Format::Q4_0] {
            let columns = 512;
            let mut state = 1u32;
            let mut byte = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            let mut bytes: Vec<u8> = (0..format.row_bytes(columns).unwrap()).map(|_| byte()).collect();
            for block in bytes.chunks_exact_mut(format.block_bytes()) {
                block[1] = 0x2c;
                if format == Format::Q4K {
                    block[3] = 0x28;
                }
            }
            let rows = format.row_format();
            let mut row: Vec<u8> = (0..rows.row_bytes(columns).unwrap()).map(|_| byte().max(0x81)).collect();
            row.chunks_exact_mut(rows.block_bytes())
                .for_each(|block| block[..4].copy_from_slice(&0.5f32.to_le_bytes()));
            let matrix = Matrix::new(format, 1, columns, &bytes).unwrap();
            let mut sums = vec![0; columns / format.block_len() * sums_per_block(format)];
            block_sums(matrix, 0, &row, &mut sums);
            let mut due = [0.0];
            product(InstructionSet::SCALAR, matrix, 0..1, &row, 1, &mut due);
            let mut acc = 0f32;
            for ((block, row), sums) in bytes
                .chunks_exact(format.block_bytes())
                .zip(row.chunks_exact(rows.block_bytes()))
                .zip(sums.chunks_exact(sums_per_block(format)))
            {
                let dx = read_f32(row);
                acc += match format {
                    Format::Q4K => {
                        (read_f16(block) * dx) * sums[0] as f32
                            - (read_f16(&block[2..]) * dx) * sums[1] as f32
                    }
                    _ => (read_f16(block) * dx) * sums[0] as f32,
                };
            }
            assert_eq!(acc.to_bits(), due[0].to_bits(), "{format}");
        }
    }
}
