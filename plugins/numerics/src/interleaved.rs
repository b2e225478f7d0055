//! A second layout of Q4_K and Q6_K matrices, in which the lanes of a vector are outputs, so that no lane is ever added to
//! another and four outputs share what is read of a row. Who keeps weights for long lays them out once.
//!
//! Eight matrix rows (a band) lie together, block by block. A block of a band is two halves of four outputs; each line below
//! holds first what belongs to the lower half, then the same for the upper:
//!
//! | Q4_K, bytes | what |
//! | --- | --- |
//! | 2 x 16 | the scale d of each output, widened to f32 |
//! | 2 x 16 | the scale of the minima of each output, widened to f32 |
//! | 2 x 32 | the scales of the eight sub-blocks: for each sub-block four bytes, one an output |
//! | 2 x 32 | the minima: for each pair of sub-blocks and each output two bytes |
//! | 16 x 2 x 32 | the quants: for each sixteen columns two vectors of sixteen bytes |
//!
//! | Q6_K, bytes | what |
//! | --- | --- |
//! | 2 x 16 | the scale d of each output, widened to f32 |
//! | 2 x 64 | the scales of the sixteen sub-blocks: for each pair of sub-blocks and each output two bytes |
//! | 16 x 2 x 48 | the quants: for each sixteen columns two vectors of low nibbles and one of high pairs |
//!
//! Sixteen columns are four quads. Lane o of a vector holds quants of output o. Nibbles: in the first vector the low ones are
//! those of quad o, the high ones those of quad (o + 1) % 4; in the second, of quads (o + 2) % 4 and (o + 3) % 4. Pairs of
//! bits, from the lowest: quads o, (o + 1) % 4, (o + 2) % 4, (o + 3) % 4. So sixteen row values, turned by 0 to 3 lanes, meet
//! all quads of all four outputs. One row reads a band in ascending order, which is what memory likes.

use core::ops::Range;

use crate::format::Format;
use crate::half::{f16_to_f32, read_f32};
use crate::matrix::{Matrix, MatrixError};

/// Outputs in a band.
pub(crate) const BAND: usize = 8;
/// Columns of a block.
pub(crate) const COLUMNS: usize = 256;

/// Where the parts of a Q4_K block of a band start, and its length.
pub(crate) mod q4_k {
    pub(crate) const MINIMUM_SCALES: usize = 32;
    pub(crate) const SCALES: usize = 64;
    pub(crate) const MINIMA: usize = 128;
    pub(crate) const QUANTS: usize = 192;
    pub(crate) const BYTES: usize = 1216;
    /// Bytes of a block in GGUF's layout.
    pub(super) const GGUF: usize = 144;
}

/// Where the parts of a Q6_K block of a band start, and its length.
pub(crate) mod q6_k {
    pub(crate) const SCALES: usize = 32;
    pub(crate) const QUANTS: usize = 160;
    pub(crate) const BYTES: usize = 1696;
    /// Bytes of a block in GGUF's layout.
    pub(super) const GGUF: usize = 210;
}

impl<'a> Matrix<'a> {
    /// Bytes of a `rows` x `columns` matrix of `format` in the interleaved layout, up to a twentieth more than in GGUF's; `None`
    /// where that layout does not exist: for a format other than Q4_K and Q6_K, for rows that are no multiple of eight, for
    /// columns that break a block, and where the number overflows.
    pub fn interleaved_bytes(format: Format, rows: usize, columns: usize) -> Option<usize> {
        let band_bytes = band_bytes(format)?;
        if !rows.is_multiple_of(BAND) || !columns.is_multiple_of(COLUMNS) {
            return None;
        }
        (rows / BAND).checked_mul(columns / COLUMNS)?.checked_mul(band_bytes)
    }

    /// A matrix over bytes that [`Matrix::interleave`] wrote. Products give the same bits as the matrix they were made from, in
    /// every instruction set; sets without code of their own for it are slow.
    ///
    /// # Errors
    /// As [`Matrix::new`]; a shape without an interleaved layout is [`MatrixError::BrokenBlocks`].
    pub fn interleaved(
        format: Format,
        rows: usize,
        columns: usize,
        bytes: &'a [u8],
    ) -> Result<Self, MatrixError> {
        let expected = Matrix::interleaved_bytes(format, rows, columns)
            .ok_or(MatrixError::BrokenBlocks { format, columns })?;
        Matrix::over_interleaved(format, rows, columns, bytes, expected)
    }

    /// Writes this matrix into `out` in the interleaved layout.
    ///
    /// # Panics
    /// Where the matrix is interleaved already, its shape has no interleaved layout, or `out` has another length than
    /// [`Matrix::interleaved_bytes`] says.
    pub fn interleave(&self, out: &mut [u8]) {
        let (format, columns) = (self.format(), self.columns());
        assert!(!self.is_interleaved(), "interleave: the matrix is interleaved");
        let expected = Matrix::interleaved_bytes(format, self.rows(), columns);
        assert_eq!(Some(out.len()), expected, "interleave: no such layout, or out has another length");
        match format {
            Format::Q4K => lay_out(self.bytes(), columns / COLUMNS, out, q4_k_in),
            _ => lay_out(self.bytes(), columns / COLUMNS, out, q6_k_in),
        }
    }
}

/// Puts every block of every matrix row into its band. Arrays, so that the compiler sees that all places are inside.
#[inline(always)]
fn lay_out<const GGUF: usize, const BYTES: usize>(
    weights: &[u8],
    blocks: usize,
    out: &mut [u8],
    put: impl Fn(&[u8; GGUF], usize, &mut [u8; BYTES]),
) {
    let rows = weights.as_chunks::<GGUF>().0.chunks_exact(blocks);
    let bands = out.as_chunks_mut::<BYTES>().0;
    for (index, row) in rows.enumerate() {
        for (block, band) in row.iter().zip(&mut bands[index / BAND * blocks..]) {
            put(block, index % BAND, band);
        }
    }
}

fn band_bytes(format: Format) -> Option<usize> {
    match format {
        Format::Q4K => Some(q4_k::BYTES),
        Format::Q6K => Some(q6_k::BYTES),
        _ => None,
    }
}

/// As [`crate::product()`], whose checks have been made: one element at a time, each block in GGUF's layout again.
pub(crate) fn product_scalar(
    matrix: Matrix<'_>,
    outputs: Range<usize>,
    rows: &[u8],
    count: usize,
    out: &mut [f32],
) {
    let (format, blocks) = (matrix.format(), matrix.columns() / COLUMNS);
    let Some(band_bytes) = band_bytes(format) else { return };
    let row_bytes = rows.len() / count;
    let mut gguf = [0u8; 210];
    let gguf = &mut gguf[..format.block_bytes()];
    for (output, out) in outputs.zip(out.chunks_exact_mut(count)) {
        let band = &matrix.bytes()[output / BAND * blocks * band_bytes..][..blocks * band_bytes];
        out.fill(0.0);
        for (block, band) in band.chunks_exact(band_bytes).enumerate() {
            if format == Format::Q4K {
                q4_k_out(band, output % BAND, gguf)
            } else {
                q6_k_out(band, output % BAND, gguf)
            }
            let Ok(one) = Matrix::new(format, 1, COLUMNS, gguf) else { return };
            for (row, acc) in rows.chunks_exact(row_bytes).zip(&mut *out) {
                let mut term = [0f32];
                let row_block = &row[block * (row_bytes / blocks)..][..row_bytes / blocks];
                crate::product_scalar::product(one, 0..1, row_block, 1, &mut term);
                *acc += term[0];
            }
        }
    }
}

/// Four quants at a time, a byte each.
type Quad = u32;
const NIBBLES: Quad = 0x0f0f_0f0f;
const PAIRS: Quad = 0x0303_0303;

fn quad(bytes: &[u8], at: usize) -> Quad {
    Quad::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put_quad(bytes: &mut [u8], at: usize, quad: Quad) {
    bytes[at..at + 4].copy_from_slice(&quad.to_le_bytes());
}

/// Where a Q4_K block has the quad of columns `16 * at + 4 * quad` on, and by how many bits it is shifted there.
fn q4_k_place(at: usize, quad: usize) -> (usize, usize) {
    (16 + at / 4 * 32 + at % 2 * 16 + quad * 4, at / 2 % 2 * 4)
}

#[inline(always)]
fn q4_k_in(block: &[u8; q4_k::GGUF], output: usize, band: &mut [u8; q4_k::BYTES]) {
    let (half, lane) = (output / 4 % 2, output % 4);
    put_quad(band, half * 16 + lane * 4, half_at(block, 0).to_bits());
    put_quad(band, q4_k::MINIMUM_SCALES + half * 16 + lane * 4, half_at(block, 2).to_bits());
    let packed = &block[4..16];
    for j in 0..8 {
        let (scale, minimum) = if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            ((packed[j + 4] & 15) | packed[j - 4] >> 6 << 4, (packed[j + 4] >> 4) | packed[j] >> 6 << 4)
        };
        band[q4_k::SCALES + half * 32 + j * 4 + lane] = scale;
        band[q4_k::MINIMA + half * 32 + j / 2 * 8 + lane * 2 + j % 2] = minimum;
    }
    for at in 0..16 {
        let quants = |turn: usize| {
            let (byte, shift) = q4_k_place(at, (lane + turn) % 4);
            quad(block, byte) >> shift & NIBBLES
        };
        let first = q4_k::QUANTS + at * 64 + half * 32 + lane * 4;
        put_quad(band, first, quants(0) | quants(1) << 4);
        put_quad(band, first + 16, quants(2) | quants(3) << 4);
    }
}

fn q4_k_out(band: &[u8], output: usize, block: &mut [u8]) {
    let (half, lane) = (output / 4, output % 4);
    block.fill(0);
    block[..2].copy_from_slice(&narrow(read_f32(&band[output * 4..])).to_le_bytes());
    block[2..4].copy_from_slice(&narrow(read_f32(&band[q4_k::MINIMUM_SCALES + output * 4..])).to_le_bytes());
    for j in 0..8 {
        let scale = band[q4_k::SCALES + half * 32 + j * 4 + lane];
        let minimum = band[q4_k::MINIMA + half * 32 + j / 2 * 8 + lane * 2 + j % 2];
        let packed = &mut block[4..16];
        if j < 4 {
            packed[j] |= scale;
            packed[j + 4] |= minimum;
        } else {
            packed[j + 4] |= (scale & 15) | minimum << 4;
            packed[j - 4] |= scale >> 4 << 6;
            packed[j] |= minimum >> 4 << 6;
        }
    }
    for at in 0..16 {
        let first = q4_k::QUANTS + at * 64 + half * 32 + lane * 4;
        for turn in 0..4 {
            let quants = quad(band, first + turn / 2 * 16) >> (turn % 2 * 4) & NIBBLES;
            let (byte, shift) = q4_k_place(at, (lane + turn) % 4);
            let both = quad(block, byte) | quants << shift;
            put_quad(block, byte, both);
        }
    }
}

/// Where a Q6_K block has the low nibbles and the high pairs of columns `16 * at + 4 * quad` on: byte and shift of each.
fn q6_k_place(at: usize, quad: usize) -> ((usize, usize), (usize, usize)) {
    let (half, quarter, part) = (at / 8, at / 2 % 4, at % 2 * 16 + quad * 4);
    ((half * 64 + quarter % 2 * 32 + part, quarter / 2 * 4), (128 + half * 32 + part, quarter * 2))
}

#[inline(always)]
fn q6_k_in(block: &[u8; q6_k::GGUF], output: usize, band: &mut [u8; q6_k::BYTES]) {
    let (half, lane) = (output / 4 % 2, output % 4);
    put_quad(band, half * 16 + lane * 4, half_at(block, 208).to_bits());
    for j in 0..16 {
        band[q6_k::SCALES + half * 64 + j / 2 * 8 + lane * 2 + j % 2] = block[192 + j];
    }
    for at in 0..16 {
        let quants = |turn: usize| {
            let ((low, low_shift), (high, high_shift)) = q6_k_place(at, (lane + turn) % 4);
            (quad(block, low) >> low_shift & NIBBLES, quad(block, high) >> high_shift & PAIRS)
        };
        let [a, b, c, d] = [quants(0), quants(1), quants(2), quants(3)];
        let first = q6_k::QUANTS + at * 96 + half * 48 + lane * 4;
        put_quad(band, first, a.0 | b.0 << 4);
        put_quad(band, first + 16, c.0 | d.0 << 4);
        put_quad(band, first + 32, a.1 | b.1 << 2 | c.1 << 4 | d.1 << 6);
    }
}

fn q6_k_out(band: &[u8], output: usize, block: &mut [u8]) {
    let (half, lane) = (output / 4, output % 4);
    block.fill(0);
    block[208..].copy_from_slice(&narrow(read_f32(&band[output * 4..])).to_le_bytes());
    for j in 0..16 {
        block[192 + j] = band[q6_k::SCALES + half * 64 + j / 2 * 8 + lane * 2 + j % 2];
    }
    for at in 0..16 {
        let first = q6_k::QUANTS + at * 96 + half * 48 + lane * 4;
        for turn in 0..4 {
            let ((low, low_shift), (high, high_shift)) = q6_k_place(at, (lane + turn) % 4);
            let nibbles = quad(band, first + turn / 2 * 16) >> (turn % 2 * 4) & NIBBLES;
            let pairs = quad(band, first + 32) >> (turn * 2) & PAIRS;
            let (nibbles, pairs) =
                (quad(block, low) | nibbles << low_shift, quad(block, high) | pairs << high_shift);
            put_quad(block, low, nibbles);
            put_quad(block, high, pairs);
        }
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// The f16 of the same value; there is one, since the value was widened from it.
fn narrow(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    // 2^-14 is the smallest normal f16; below it the bits count units of 2^-24.
    let low = if magnitude < f32::from_bits(0x3880_0000) {
        (magnitude * 16_777_216.0) as u16
    } else {
        (((bits & 0x7fff_ffff) - (112 << 23)) >> 13) as u16
    };
    sign | low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_f16_is_narrowed_to_itself() {
        for bits in (0..=u16::MAX).filter(|bits| bits & 0x7c00 != 0x7c00) {
            assert_eq!(narrow(f16_to_f32(bits)), bits);
        }
    }

    #[test]
    fn a_matrix_laid_out_and_back_is_itself() {
        for format in [Format::Q4K, Format::Q6K] {
            let block_bytes = format.block_bytes();
            let mut bytes: Vec<u8> = (0..8 * 2 * block_bytes as u32)
                .map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8)
                .collect();
            for block in bytes.chunks_exact_mut(block_bytes) {
                for at in [0, 2, 208].into_iter().filter(|at| at + 2 <= block_bytes) {
                    block[at + 1] &= 0xbf;
                }
            }
            let matrix = Matrix::new(format, 8, 512, &bytes).unwrap();
            let mut out = vec![0; Matrix::interleaved_bytes(format, 8, 512).unwrap()];
            matrix.interleave(&mut out);
            let (mut block, band_bytes) = (vec![0; block_bytes], out.len() / 2);
            for (index, expected) in bytes.chunks_exact(block_bytes).enumerate() {
                let band = &out[index % 2 * band_bytes..][..band_bytes];
                match format {
                    Format::Q4K => q4_k_out(band, index / 2, &mut block),
                    _ => q6_k_out(band, index / 2, &mut block),
                }
                assert_eq!(block, expected, "{format} block {index}");
            }
        }
    }

    #[test]
    fn shapes_without_the_layout_are_refused() {
        assert_eq!(Matrix::interleaved_bytes(Format::Q8_0, 8, 256), None);
        assert_eq!(Matrix::interleaved_bytes(Format::Q4K, 12, 256), None);
        assert_eq!(Matrix::interleaved_bytes(Format::Q4K, 8, 128), None);
        assert_eq!(Matrix::interleaved_bytes(Format::Q6K, usize::MAX - 7, 1 << 20), None);
        assert!(matches!(
            Matrix::interleaved(Format::Q4K, 4, 256, &[]),
            Err(MatrixError::BrokenBlocks { format: Format::Q4K, columns: 256 })
        ));
        assert!(matches!(
            Matrix::interleaved(Format::Q4K, 8, 256, &[0; 3]),
            Err(MatrixError::WrongLength { expected: 1216, found: 3 })
        ));
    }
}
