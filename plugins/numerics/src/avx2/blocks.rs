//! The walk over matrix and rows for the block formats. A tile is four elements side by side in one vector: four outputs of
//! one row, or one output of up to four rows, so that unpacking is paid once for the tile. Each lane adds its blocks in
//! ascending order.

use core::arch::x86_64::*;
use core::ops::Range;

use super::lanes::{lines, load_4_f32, pick, to_array};
use crate::half::read_f32;
use crate::matrix::Matrix;

/// Elements in a tile.
pub(super) const TILE: usize = 4;
/// Rows whose sums are prepared together.
const GROUP: usize = 16;
/// Blocks whose sums are prepared together; between two such chunks the accumulators rest in the output, as f32 without
/// loss.
const CHUNK: usize = 32;

/// What a format contributes: the term that one block adds to the accumulators of a tile.
pub(super) trait BlockFormat {
    /// A block of weights: an array of bytes.
    type Weights;
    /// A block of a row: an array of bytes, the f32 scale first.
    type Row: AsRef<[u8]>;
    /// Sums of the row's integers that every output needs again.
    type Sums: Copy;
    /// A placeholder.
    const NO_SUMS: Self::Sums;

    fn weights(bytes: &[u8]) -> &[Self::Weights];
    fn rows(bytes: &[u8]) -> &[Self::Row];
    fn sums(row: &Self::Row) -> Self::Sums;

    /// The terms of one output for R rows; lanes from R on are of no meaning. `scales` are the rows' scales.
    ///
    /// # Safety
    /// AVX2 and F16C.
    unsafe fn term_of_rows<const R: usize>(
        weights: &Self::Weights,
        rows: [&Self::Row; R],
        sums: &[Self::Sums; TILE],
        scales: __m128,
    ) -> __m128;

    /// The terms of four outputs for one row.
    ///
    /// # Safety
    /// AVX2 and F16C.
    unsafe fn term_of_outputs(
        weights: [&Self::Weights; TILE],
        row: &Self::Row,
        sums: &Self::Sums,
        scale: __m128,
    ) -> __m128;
}

/// Scales and sums of up to `GROUP` rows and `CHUNK` blocks, a block's rows side by side.
struct Prepared<F: BlockFormat> {
    scales: [[f32; GROUP]; CHUNK],
    sums: [[F::Sums; GROUP]; CHUNK],
}

/// As [`crate::product()`], whose checks have been made.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn product<F: BlockFormat>(
    matrix: Matrix<'_>,
    outputs: Range<usize>,
    rows: &[u8],
    count: usize,
    out: &mut [f32],
) {
    let weights = F::weights(matrix.bytes());
    let rows = F::rows(rows);
    let per_row = weights.len() / matrix.rows();
    let weights = &weights[outputs.start * per_row..outputs.end * per_row];
    let mut prepared = Prepared::<F> { scales: [[0.0; GROUP]; CHUNK], sums: [[F::NO_SUMS; GROUP]; CHUNK] };
    out.fill(0.0);
    for first_row in (0..count).step_by(GROUP) {
        let group = GROUP.min(count - first_row);
        let rows = &rows[first_row * per_row..][..group * per_row];
        for first_block in (0..per_row).step_by(CHUNK) {
            let blocks = first_block..per_row.min(first_block + CHUNK);
            for (row, row_blocks) in rows.chunks_exact(per_row).enumerate() {
                for (block, row_block) in row_blocks[blocks.clone()].iter().enumerate() {
                    prepared.scales[block][row] = read_f32(row_block.as_ref());
                    prepared.sums[block][row] = F::sums(row_block);
                }
            }
            if group == 1 {
                one_row(&prepared, weights, per_row, blocks, rows, count, &mut out[first_row..]);
            } else {
                several_rows(&prepared, weights, per_row, blocks, rows, count, &mut out[first_row..]);
            }
        }
    }
}

/// All outputs of one row, four at a time; `out` holds one value every `count`.
#[target_feature(enable = "avx2,f16c")]
fn one_row<F: BlockFormat>(
    prepared: &Prepared<F>,
    weights: &[F::Weights],
    per_row: usize,
    blocks: Range<usize>,
    row: &[F::Row],
    count: usize,
    out: &mut [f32],
) {
    let row = &row[blocks.clone()];
    let mut outputs = weights.chunks_exact(per_row * TILE);
    let mut first = 0;
    for weights in &mut outputs {
        let lines: [_; TILE] = cut_blocks(lines(weights, per_row, 0), &blocks);
        let mut acc = [0f32; TILE];
        for (lane, acc) in acc.iter_mut().enumerate() {
            *acc = out[(first + lane) * count];
        }
        let mut acc = load_4_f32(&acc);
        for (block, row) in row.iter().enumerate() {
            let weights = pick(lines, block);
            let scale = _mm_set1_ps(prepared.scales[block][0]);
            // SAFETY: this function has the features.
            let term = unsafe { F::term_of_outputs(weights, row, &prepared.sums[block][0], scale) };
            acc = _mm_add_ps(acc, term);
        }
        for (lane, acc) in to_array(acc).into_iter().enumerate() {
            out[(first + lane) * count] = acc;
        }
        first += TILE;
    }
    for weights in outputs.remainder().chunks_exact(per_row) {
        tile_of_rows::<F, 1>(prepared, &weights[blocks.clone()], [row], 0, &mut out[first * count..]);
        first += 1;
    }
}

/// All outputs of a group of rows, one output and up to four rows at a time.
#[target_feature(enable = "avx2,f16c")]
fn several_rows<F: BlockFormat>(
    prepared: &Prepared<F>,
    weights: &[F::Weights],
    per_row: usize,
    blocks: Range<usize>,
    rows: &[F::Row],
    count: usize,
    out: &mut [f32],
) {
    let group = rows.len() / per_row;
    for (weights, out) in weights.chunks_exact(per_row).zip(out.chunks_mut(count)) {
        let weights = &weights[blocks.clone()];
        for first in (0..group).step_by(TILE) {
            let out = &mut out[first..];
            match group - first {
                1 => tile_of_rows::<F, 1>(
                    prepared,
                    weights,
                    cut_blocks(lines(rows, per_row, first), &blocks),
                    first,
                    out,
                ),
                2 => tile_of_rows::<F, 2>(
                    prepared,
                    weights,
                    cut_blocks(lines(rows, per_row, first), &blocks),
                    first,
                    out,
                ),
                3 => tile_of_rows::<F, 3>(
                    prepared,
                    weights,
                    cut_blocks(lines(rows, per_row, first), &blocks),
                    first,
                    out,
                ),
                _ => tile_of_rows::<F, 4>(
                    prepared,
                    weights,
                    cut_blocks(lines(rows, per_row, first), &blocks),
                    first,
                    out,
                ),
            }
        }
    }
}

/// One output of R rows, the first of which is row `first` of the group; adds to the first R values of `out`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn tile_of_rows<F: BlockFormat, const R: usize>(
    prepared: &Prepared<F>,
    weights: &[F::Weights],
    rows: [&[F::Row]; R],
    first: usize,
    out: &mut [f32],
) {
    let mut acc = [0f32; TILE];
    acc[..R].copy_from_slice(&out[..R]);
    let mut acc = load_4_f32(&acc);
    for (block, weights) in weights.iter().enumerate() {
        let rows = pick(rows, block);
        let scales = load_4_f32(tile_at(&prepared.scales[block], first));
        // SAFETY: this function has the features.
        let term =
            unsafe { F::term_of_rows::<R>(weights, rows, tile_at(&prepared.sums[block], first), scales) };
        acc = _mm_add_ps(acc, term);
    }
    out[..R].copy_from_slice(&to_array(acc)[..R]);
}

/// The blocks of this chunk in each line.
#[inline(always)]
fn cut_blocks<'a, T, const N: usize>(lines: [&'a [T]; N], blocks: &Range<usize>) -> [&'a [T]; N] {
    let mut cut = lines;
    for line in &mut cut {
        *line = &line[blocks.clone()];
    }
    cut
}

/// The tile that starts at row `first`, a multiple of `TILE` below `GROUP`.
#[inline(always)]
fn tile_at<T>(group: &[T; GROUP], first: usize) -> &[T; TILE] {
    &group.as_chunks::<TILE>().0[first / TILE]
}
