//! The walk over matrix and rows for the block formats. A vector holds four terms: those of one block for up to four rows, so
//! that unpacking is paid once for them, or those of four blocks in sequence for one row, so that the weights are read in one
//! ascending stream. Every element adds its blocks in ascending order.

use core::ops::Range;

use crate::half::read_f32;
use crate::lanes::{Four, add_4, load_4_f32, same_4_f32, to_array};
use crate::matrix::Matrix;
use crate::slices::{each, lines, pick};

/// Elements in a tile.
pub(crate) const TILE: usize = 4;
/// Most rows that are prepared together.
pub(crate) const GROUP: usize = 16;
/// Blocks of rows that are prepared together. A matrix row is walked whole where it fits, since the memory likes one ascending
/// stream; where it does not, the accumulators rest in the output between two chunks, as f32 without loss.
const PLACES: usize = 1024;

/// What a format contributes: the term that one block adds to the accumulators of a tile.
pub(crate) trait BlockFormat {
    /// A block of weights: an array of bytes.
    type Weights;
    /// A block of a row: an array of bytes, the f32 scale first.
    type Row: AsRef<[u8]>;
    /// Sums of the row's integers that every output needs again.
    type Sums: Copy;
    /// Whether unpacking weights costs so much that several rows should share it.
    const ROWS_TOGETHER: bool;
    /// From how many rows on they do. Rows together walk a long matrix row in pieces, which memory likes less.
    const ROWS_TOGETHER_FROM: usize = 2;
    /// A placeholder.
    const NO_SUMS: Self::Sums;

    fn weights(bytes: &[u8]) -> &[Self::Weights];
    fn rows(bytes: &[u8]) -> &[Self::Row];
    fn sums(row: &Self::Row) -> Self::Sums;

    /// The terms of one output for R rows; lanes from R on are of no meaning. `scales` are the rows' scales.
    ///
    /// # Safety
    /// The instruction set's features.
    unsafe fn term_of_rows<const R: usize>(
        weights: &Self::Weights,
        rows: [&Self::Row; R],
        sums: &[Self::Sums; TILE],
        scales: Four,
    ) -> Four;

    /// The terms of four blocks, each with its block of one row and that block's sums.
    ///
    /// # Safety
    /// The instruction set's features.
    unsafe fn term_of_blocks(
        weights: [&Self::Weights; TILE],
        row: [&Self::Row; TILE],
        sums: &[Self::Sums; TILE],
        scales: Four,
    ) -> Four;

    /// `acc` and the terms of one output's blocks for R rows, added block by block. Scales and sums are those of a group of
    /// rows, of which the first here is `first`. A set with more features than the walk is compiled for has its own loop.
    ///
    /// # Safety
    /// The instruction set's features.
    #[inline]
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(unused_unsafe, reason = "the loop asks for no features there")
    )]
    unsafe fn add_rows<const R: usize>(
        acc: Four,
        weights: &[Self::Weights],
        rows: [&[Self::Row]; R],
        prepared: (&[[f32; GROUP]], &[[Self::Sums; GROUP]]),
        first: usize,
    ) -> Four
    where
        Self: Sized,
    {
        // SAFETY: the caller's promise.
        unsafe { add_rows::<Self, R>(acc, weights, rows, prepared, first) }
    }

    /// `acc` and the terms of one output's blocks for one row, added block by block; with the blocks' scales and sums.
    ///
    /// # Safety
    /// The instruction set's features.
    #[inline]
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(unused_unsafe, reason = "the loop asks for no features there")
    )]
    unsafe fn add_blocks(
        acc: f32,
        weights: &[Self::Weights],
        row: &[Self::Row],
        prepared: (&[f32], &[Self::Sums]),
    ) -> f32
    where
        Self: Sized,
    {
        // SAFETY: the caller's promise.
        unsafe { add_blocks::<Self>(acc, weights, row, prepared) }
    }
}

/// Scales and sums of the blocks of a group of rows: at `block * GROUP + row` for formats whose rows go together, else at
/// `row * chunk + block`.
struct Prepared<F: BlockFormat> {
    scales: [f32; PLACES],
    sums: [F::Sums; PLACES],
}

/// As [`crate::product()`], whose checks have been made.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
pub(crate) fn product<F: BlockFormat>(
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
    let mut prepared = Prepared::<F> { scales: [0.0; PLACES], sums: [F::NO_SUMS; PLACES] };
    out.fill(0.0);
    let together = F::ROWS_TOGETHER && count >= F::ROWS_TOGETHER_FROM;
    let chunk = per_row.min(if together { PLACES / GROUP } else { PLACES });
    let group = if together { GROUP } else { GROUP.min(PLACES / chunk) };
    for first_row in (0..count).step_by(group) {
        let rows = &rows[first_row * per_row..][..group.min(count - first_row) * per_row];
        for first_block in (0..per_row).step_by(chunk) {
            let blocks = first_block..per_row.min(first_block + chunk);
            for (row, row_blocks) in rows.chunks_exact(per_row).enumerate() {
                let (start, step) = if together { (row, GROUP) } else { (row * chunk, 1) };
                prepared.fill(&row_blocks[blocks.clone()], start, step);
            }
            let walk = Walk { prepared: &prepared, per_row, chunk, blocks, count };
            if together {
                walk.rows_together(weights, rows, &mut out[first_row..]);
            } else {
                walk.rows_apart(weights, rows, &mut out[first_row..]);
            }
        }
    }
}

impl<F: BlockFormat> Prepared<F> {
    /// Puts the blocks of a row at every `step`-th place from `start` on.
    #[inline(always)]
    fn fill(&mut self, row: &[F::Row], start: usize, step: usize) {
        let scales = self.scales[start..].iter_mut().step_by(step);
        let sums = self.sums[start..].iter_mut().step_by(step);
        for ((scale, sum), block) in scales.zip(sums).zip(row) {
            *scale = read_f32(block.as_ref());
            *sum = F::sums(block);
        }
    }
}

/// One chunk of blocks of one group of rows.
struct Walk<'a, F: BlockFormat> {
    prepared: &'a Prepared<F>,
    per_row: usize,
    chunk: usize,
    blocks: Range<usize>,
    /// Distance of two outputs in `out`.
    count: usize,
}

impl<F: BlockFormat> Walk<'_, F> {
    /// All outputs, one row at a time.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
    fn rows_apart(&self, weights: &[F::Weights], rows: &[F::Row], out: &mut [f32]) {
        for (weights, out) in weights.chunks_exact(self.per_row).zip(out.chunks_mut(self.count)) {
            let weights = &weights[self.blocks.clone()];
            for (row, (row_blocks, out)) in rows.chunks_exact(self.per_row).zip(out).enumerate() {
                let scales = &self.prepared.scales[row * self.chunk..];
                let sums = &self.prepared.sums[row * self.chunk..];
                let row_blocks = &row_blocks[self.blocks.clone()];
                // SAFETY: whoever chose the format's instruction set has its features.
                *out = unsafe { F::add_blocks(*out, weights, row_blocks, (scales, sums)) };
            }
        }
    }

    /// All outputs, up to four rows at a time.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
    fn rows_together(&self, weights: &[F::Weights], rows: &[F::Row], out: &mut [f32]) {
        let group = rows.len() / self.per_row;
        for (weights, out) in weights.chunks_exact(self.per_row).zip(out.chunks_mut(self.count)) {
            let weights = &weights[self.blocks.clone()];
            for first in (0..group).step_by(TILE) {
                let out = &mut out[first..];
                match group - first {
                    1 => self.tile_of_rows::<1>(weights, rows, first, out),
                    2 => self.tile_of_rows::<2>(weights, rows, first, out),
                    3 => self.tile_of_rows::<3>(weights, rows, first, out),
                    _ => self.tile_of_rows::<4>(weights, rows, first, out),
                }
            }
        }
    }

    /// One output of R rows from row `first` of the group on; adds to the first R values of `out`.
    // In WASM a function of its own leaves the sandbox's simple register allocator fewer values to keep.
    #[cfg_attr(target_arch = "x86_64", inline)]
    #[cfg_attr(not(target_arch = "x86_64"), inline(never))]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
    fn tile_of_rows<const R: usize>(
        &self,
        weights: &[F::Weights],
        rows: &[F::Row],
        first: usize,
        out: &mut [f32],
    ) {
        let mut rows: [_; R] = lines(rows, self.per_row, first);
        for row in &mut rows {
            *row = &row[self.blocks.clone()];
        }
        let (scales, sums) =
            (self.prepared.scales.as_chunks::<GROUP>().0, self.prepared.sums.as_chunks::<GROUP>().0);
        let mut acc = [0f32; TILE];
        acc[..R].copy_from_slice(&out[..R]);
        // SAFETY: whoever chose the format's instruction set has its features.
        let acc = unsafe { F::add_rows::<R>(load_4_f32(&acc), weights, rows, (scales, sums), first) };
        out[..R].copy_from_slice(&to_array(acc)[..R]);
    }
}

/// As [`BlockFormat::add_rows`].
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
fn add_rows<F: BlockFormat, const R: usize>(
    mut acc: Four,
    weights: &[F::Weights],
    rows: [&[F::Row]; R],
    (scales, sums): (&[[f32; GROUP]], &[[F::Sums; GROUP]]),
    first: usize,
) -> Four {
    for (block, ((weights, scales), sums)) in weights.iter().zip(scales).zip(sums).enumerate() {
        let scales = load_4_f32(tile_at(scales, first));
        // SAFETY: this function has the features.
        let terms = unsafe { F::term_of_rows::<R>(weights, pick(rows, block), tile_at(sums, first), scales) };
        acc = add_4(acc, terms);
    }
    acc
}

/// As [`BlockFormat::add_blocks`]: the terms of four blocks are made at a time and added one by one.
#[cfg_attr(target_arch = "x86_64", inline)]
#[cfg_attr(not(target_arch = "x86_64"), inline(never))]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,f16c"))]
fn add_blocks<F: BlockFormat>(
    mut acc: f32,
    weights: &[F::Weights],
    row: &[F::Row],
    (scales, sums): (&[f32], &[F::Sums]),
) -> f32 {
    let (tiles, rest) = weights.as_chunks::<TILE>();
    let (row_tiles, row_rest) = row.as_chunks::<TILE>();
    let (scale_tiles, sum_tiles) = (scales.as_chunks::<TILE>().0, sums.as_chunks::<TILE>().0);
    for (((weights, row), sums), scales) in tiles.iter().zip(row_tiles).zip(sum_tiles).zip(scale_tiles) {
        // SAFETY: this function has the features.
        let terms = unsafe { F::term_of_blocks(each(weights), each(row), sums, load_4_f32(scales)) };
        for term in to_array(terms) {
            acc += term;
        }
    }
    let done = tiles.len() * TILE;
    for (at, (weights, row)) in rest.iter().zip(row_rest).enumerate() {
        let (scale, sums) = (same_4_f32(scales[done + at]), [sums[done + at]; TILE]);
        // SAFETY: this function has the features.
        acc += to_array(unsafe { F::term_of_rows::<1>(weights, [row], &sums, scale) })[0];
    }
    acc
}

/// The tile that starts at row `first`, a multiple of `TILE` below `GROUP`.
#[inline(always)]
pub(crate) fn tile_at<T>(group: &[T; GROUP], first: usize) -> &[T; TILE] {
    &group.as_chunks::<TILE>().0[first / TILE]
}
