//! The walk over interleaved matrices: a tile is eight outputs times up to four rows. The lanes of a vector are outputs, and
//! every element adds its blocks in ascending order.

use core::ops::Range;

use crate::half::read_f32;
use crate::interleaved::BAND;
use crate::lanes::{Four, NO_FLOATS, load_4_f32, to_array};
use crate::matrix::Matrix;

/// Rows in a tile.
const TILE: usize = 4;
/// Most rows that are prepared together.
const GROUP: usize = 16;
/// Most blocks of a row that are walked in one go; between two goes the accumulators rest in the output, as f32 without loss.
const CHUNK: usize = 64;

/// A block of a row: the f32 scale, 256 integers.
pub(crate) type Row = [u8; 260];

/// What a format contributes.
pub(crate) trait BandFormat {
    /// A block of a band: an array of bytes.
    type Weights;
    /// Sums of the row's integers that every output needs again.
    type Sums: Copy;
    /// A placeholder.
    const NO_SUMS: Self::Sums;

    fn weights(bytes: &[u8]) -> &[Self::Weights];
    fn sums(row: &Row) -> Self::Sums;

    /// Adds the terms of a block: to `acc[o][r]` those of the four outputs of half `half + o` times row r.
    ///
    /// # Safety
    /// The instruction set's features.
    unsafe fn add_terms<const O: usize, const R: usize>(
        weights: &Self::Weights,
        half: usize,
        rows: [&Row; R],
        prepared: [&Prepared<Self::Sums>; R],
        acc: &mut [[Four; R]; O],
    );
}

/// What every output needs again of a block of a row.
#[derive(Clone, Copy)]
pub(crate) struct Prepared<S> {
    pub(crate) scale: f32,
    pub(crate) sums: S,
}

/// As [`crate::product()`], whose checks have been made, for an interleaved matrix.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
pub(crate) fn product<F: BandFormat>(
    matrix: Matrix<'_>,
    outputs: Range<usize>,
    rows: &[u8],
    count: usize,
    out: &mut [f32],
) {
    let (weights, rows) = (F::weights(matrix.bytes()), rows.as_chunks().0);
    let per_row = rows.len() / count;
    let mut prepared = [[Prepared { scale: 0.0, sums: F::NO_SUMS }; CHUNK]; GROUP];
    out.fill(0.0);
    let mut elements = Elements { outputs: outputs.clone(), count, values: out };
    for (group, rows) in rows.chunks(GROUP * per_row).enumerate() {
        for first_block in (0..per_row).step_by(CHUNK) {
            let blocks = first_block..per_row.min(first_block + CHUNK);
            for (prepared, row) in prepared.iter_mut().zip(rows.chunks_exact(per_row)) {
                for (prepared, block) in prepared.iter_mut().zip(&row[blocks.clone()]) {
                    *prepared = Prepared { scale: read_f32(block), sums: F::sums(block) };
                }
            }
            for band in outputs.start / BAND..outputs.end.div_ceil(BAND) {
                let weights = &weights[band * per_row..][..per_row][blocks.clone()];
                let tiles = rows.chunks(TILE * per_row).zip(prepared.chunks(TILE));
                for (tile, (rows, prepared)) in tiles.enumerate() {
                    let rows = Rows { rows, per_row, blocks: blocks.clone(), prepared };
                    let place = (band * BAND, group * GROUP + tile * TILE);
                    match rows.rows.len() / per_row {
                        1 => few_rows::<F, 1>(weights, &rows, place, &mut elements),
                        2 => few_rows::<F, 2>(weights, &rows, place, &mut elements),
                        3 => more_rows::<F, 3>(weights, &rows, place, &mut elements),
                        _ => more_rows::<F, 4>(weights, &rows, place, &mut elements),
                    }
                }
            }
        }
    }
}

/// Up to four rows, a chunk of their blocks, and what was prepared of these.
struct Rows<'a, S> {
    rows: &'a [Row],
    per_row: usize,
    blocks: Range<usize>,
    prepared: &'a [[Prepared<S>; CHUNK]],
}

impl<S> Rows<'_, S> {
    /// Block `block` of the chunk in each of the first R rows.
    #[inline(always)]
    fn at<const R: usize>(&self, block: usize) -> ([&Row; R], [&Prepared<S>; R]) {
        let (mut rows, mut prepared) = ([&self.rows[0]; R], [&self.prepared[0][0]; R]);
        for row in 0..R {
            rows[row] = &self.rows[row * self.per_row + self.blocks.start + block];
            prepared[row] = &self.prepared[row][block];
        }
        (rows, prepared)
    }
}

/// The output of the product, and which matrix rows it is of.
struct Elements<'a> {
    outputs: Range<usize>,
    count: usize,
    values: &'a mut [f32],
}

impl Elements<'_> {
    /// Four outputs of one row; zeros where an output is not asked for.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
    fn get(&mut self, output: usize, row: usize) -> Four {
        let mut values = [0f32; 4];
        for (value, output) in values.iter_mut().zip(output..) {
            if self.outputs.contains(&output) {
                *value = self.values[(output - self.outputs.start) * self.count + row];
            }
        }
        load_4_f32(&values)
    }

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
    fn put(&mut self, output: usize, row: usize, values: Four) {
        for (value, output) in to_array(values).into_iter().zip(output..) {
            if self.outputs.contains(&output) {
                self.values[(output - self.outputs.start) * self.count + row] = value;
            }
        }
    }

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
    fn get_tile<const R: usize>(&mut self, (output, row): (usize, usize)) -> [[Four; R]; 2] {
        let mut tile = [[NO_FLOATS; R]; 2];
        for (half, tile) in tile.iter_mut().enumerate() {
            for (at, values) in tile.iter_mut().enumerate() {
                *values = self.get(output + half * 4, row + at);
            }
        }
        tile
    }

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
    fn put_tile<const R: usize>(&mut self, (output, row): (usize, usize), tile: [[Four; R]; 2]) {
        for (half, tile) in tile.into_iter().enumerate() {
            for (at, values) in tile.into_iter().enumerate() {
                self.put(output + half * 4, row + at, values);
            }
        }
    }
}

// Functions of their own leave the sandbox's simple register allocator fewer values to keep. Which loop is where was found by
// measurement: with few rows both halves share what is turned of a row, with more the registers are too few for that.

/// One or two rows.
#[inline(never)]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
fn few_rows<F: BandFormat, const R: usize>(
    weights: &[F::Weights],
    rows: &Rows<'_, F::Sums>,
    place: (usize, usize),
    elements: &mut Elements<'_>,
) {
    let mut acc = elements.get_tile::<R>(place);
    for (block, weights) in weights.iter().enumerate() {
        let (rows, prepared) = rows.at::<R>(block);
        // SAFETY: this function has the features.
        unsafe { F::add_terms(weights, 0, rows, prepared, &mut acc) };
    }
    elements.put_tile(place, acc);
}

/// Three or four rows.
#[inline(never)]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
fn more_rows<F: BandFormat, const R: usize>(
    weights: &[F::Weights],
    rows: &Rows<'_, F::Sums>,
    place: (usize, usize),
    elements: &mut Elements<'_>,
) {
    let mut acc = elements.get_tile::<R>(place);
    for (block, weights) in weights.iter().enumerate() {
        let (rows, prepared) = rows.at::<R>(block);
        for (half, acc) in acc.iter_mut().enumerate() {
            // SAFETY: this function has the features.
            unsafe { F::add_terms(weights, half, rows, prepared, core::array::from_mut(acc)) };
        }
    }
    elements.put_tile(place, acc);
}
