//! A weight matrix over borrowed bytes, its load check, and the dequantised row (the embedding).

use crate::block::{SUB, f16_places, small_block, super_block};
use crate::format::{Format, RowFormat};
use crate::half::{read_bf16, read_f16, read_f32};

/// The largest number of rows or of columns of a matrix: f32 holds every count up to here exactly, and byte counts
/// stay far from overflow on 64-bit machines.
pub const MAX_DIMENSION: usize = 1 << 24;

/// The largest exponent byte of an MXFP4 block: 255 means NaN, and with 253 or 254 the largest of the sixteen values (12 in
/// units of 2^(e-128)) is beyond f32.
const LARGEST_EXPONENT: u8 = 252;

/// A matrix of `rows` x `columns` weights in GGUF blocks, row-major; row o is what output o is made with.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    format: Format,
    rows: usize,
    columns: usize,
    row_bytes: usize,
    bytes: &'a [u8],
    interleaved: bool,
}

/// Why bytes are not a matrix of the stated shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixError {
    /// `rows` or `columns` is zero or above [`MAX_DIMENSION`].
    Dimension {
        /// Rows stated.
        rows: usize,
        /// Columns stated.
        columns: usize,
    },
    /// `columns` is no multiple of the format's block.
    BrokenBlocks {
        /// The format.
        format: Format,
        /// Columns stated.
        columns: usize,
    },
    /// Another number of bytes than the shape needs.
    WrongLength {
        /// Bytes the shape needs.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
}

impl core::fmt::Display for MatrixError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            MatrixError::Dimension { rows, columns } => {
                write!(f, "a matrix of {rows} x {columns} weights: each must be 1 to {MAX_DIMENSION}")
            }
            MatrixError::BrokenBlocks { format, columns } => {
                write!(
                    f,
                    "{columns} columns are no whole number of {format} blocks of {} weights",
                    format.block_len()
                )
            }
            MatrixError::WrongLength { expected, found } => {
                write!(f, "the matrix needs {expected} bytes, {found} were given")
            }
        }
    }
}

impl core::error::Error for MatrixError {}

/// Why the weights of a matrix are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsError {
    /// A scale, or a weight of a float format, is NaN or infinite; or an MXFP4 exponent is above 252, which means NaN or makes
    /// weights infinite.
    NotFinite {
        /// The matrix row it stands in.
        row: usize,
    },
    /// A Q8_0 weight of -128, which no quantiser writes and the seven-bit rule cannot hold.
    OutOfRange {
        /// The matrix row it stands in.
        row: usize,
    },
}

impl core::fmt::Display for WeightsError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            WeightsError::NotFinite { row } => write!(f, "a NaN or an infinity in matrix row {row}"),
            WeightsError::OutOfRange { row } => write!(f, "a Q8_0 weight of -128 in matrix row {row}"),
        }
    }
}

impl core::error::Error for WeightsError {}

impl<'a> Matrix<'a> {
    /// A matrix over `bytes`. The weights themselves are not looked at: see [`Matrix::check_weights`].
    ///
    /// # Errors
    /// A dimension out of range, columns that break a block, or another number of bytes than the shape needs.
    pub fn new(format: Format, rows: usize, columns: usize, bytes: &'a [u8]) -> Result<Self, MatrixError> {
        let range = 1..=MAX_DIMENSION;
        if !range.contains(&rows) || !range.contains(&columns) {
            return Err(MatrixError::Dimension { rows, columns });
        }
        let row_bytes = format.row_bytes(columns).ok_or(MatrixError::BrokenBlocks { format, columns })?;
        let expected = row_bytes.checked_mul(rows).ok_or(MatrixError::Dimension { rows, columns })?;
        if bytes.len() != expected {
            return Err(MatrixError::WrongLength { expected, found: bytes.len() });
        }
        Ok(Matrix { format, rows, columns, row_bytes, bytes, interleaved: false })
    }

    /// As [`Matrix::new`], over `expected` interleaved bytes.
    pub(crate) fn over_interleaved(
        format: Format,
        rows: usize,
        columns: usize,
        bytes: &'a [u8],
        expected: usize,
    ) -> Result<Self, MatrixError> {
        let range = 1..=MAX_DIMENSION;
        if !range.contains(&rows) || !range.contains(&columns) {
            return Err(MatrixError::Dimension { rows, columns });
        }
        if bytes.len() != expected {
            return Err(MatrixError::WrongLength { expected, found: bytes.len() });
        }
        Ok(Matrix { format, rows, columns, row_bytes: expected / rows, bytes, interleaved: true })
    }

    /// Whether the bytes are in the interleaved layout, see [`Matrix::interleave`].
    pub fn is_interleaved(&self) -> bool {
        self.interleaved
    }

    /// The storage format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows: the number of outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: the number of inputs.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The bytes, as given.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The format of the rows that this matrix is multiplied with.
    pub fn row_format(&self) -> RowFormat {
        self.format.row_format()
    }

    /// The bytes of matrix row `row`. Panics where there is none, and where the matrix is interleaved.
    pub(crate) fn row(&self, row: usize) -> &'a [u8] {
        assert!(!self.interleaved, "an interleaved matrix has no rows of bytes");
        &self.bytes[row * self.row_bytes..][..self.row_bytes]
    }

    /// The check that a loader and a kernel make once: no NaN or infinity among scales and float weights, no Q8_0 weight of
    /// -128, and no MXFP4 exponent above 252. After it every weight is a finite f32, a product of finite rows is finite or
    /// overflows, and every instruction set agrees.
    ///
    /// # Errors
    /// The first fault, with its matrix row.
    ///
    /// # Panics
    /// Where the matrix is interleaved: the check comes before.
    pub fn check_weights(&self) -> Result<(), WeightsError> {
        for row in 0..self.rows {
            let bytes = self.row(row);
            let mut blocks = bytes.chunks_exact(self.format.block_bytes());
            let finite = match self.format {
                Format::F32 => {
                    bytes.as_chunks().0.iter().fold(true, |ok, b| ok & f32::from_le_bytes(*b).is_finite())
                }
                Format::F16 => bytes.as_chunks().0.iter().fold(true, |ok, b| ok & f16_is_finite(b)),
                Format::BF16 => bytes
                    .as_chunks()
                    .0
                    .iter()
                    .fold(true, |ok, b| ok & (u16::from_le_bytes(*b) & 0x7f80 != 0x7f80)),
                Format::MXFP4 => blocks.clone().all(|block| block[0] <= LARGEST_EXPONENT),
                format => {
                    let places = f16_places(format);
                    blocks
                        .clone()
                        .all(|block| places.iter().all(|&at| f16_is_finite(&[block[at], block[at + 1]])))
                }
            };
            if !finite {
                return Err(WeightsError::NotFinite { row });
            }
            let out_of_range =
                |block: &[u8]| block[2..].iter().fold(false, |found, &quant| found | (quant == 0x80));
            if self.format == Format::Q8_0 && blocks.any(out_of_range) {
                return Err(WeightsError::OutOfRange { row });
            }
        }
        Ok(())
    }
}

impl core::fmt::Debug for Matrix<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Matrix({} {} x {})", self.format, self.rows, self.columns)
    }
}

/// Writes the weights of matrix row `row` as f32 into `out` (`columns` values), the values that ggml gives: per block of 32
/// `d * q`, and `+ m` where the format has a minimum; per block of 256 `(d * sc) * q`, and `- dmin * mn` where it has minima;
/// each operation rounded. q and sc are the format's integers, less its offset or through its table.
///
/// # Panics
/// Where the matrix has no such row or is interleaved, or `out` is not `columns` long.
pub fn dequantise_row(matrix: Matrix<'_>, row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), matrix.columns, "dequantise_row: out must hold one value per column");
    let format = matrix.format;
    let blocks = matrix.row(row).chunks_exact(format.block_bytes());
    for (block, out) in blocks.zip(out.chunks_exact_mut(format.block_len())) {
        match format.row_format() {
            RowFormat::Float32 => {
                out[0] = match format {
                    Format::F32 => read_f32(block),
                    Format::F16 => read_f16(block),
                    _ => read_bf16(block),
                }
            }
            RowFormat::Q8 => {
                let block = small_block(format, block);
                for (value, weight) in out.iter_mut().zip(block.weights) {
                    let scaled = block.scale * f32::from(weight);
                    *value = block.minimum.map_or(scaled, |minimum| scaled + minimum);
                }
            }
            RowFormat::Q8K => {
                let block = super_block(format, block);
                let sub_blocks = out.chunks_exact_mut(SUB).zip(block.weights.chunks_exact(SUB));
                for (j, (out, weights)) in sub_blocks.enumerate() {
                    let scale = block.scale * f32::from(block.scales[j]);
                    let minimum = block.minima.map(|(scale, minima)| scale * f32::from(minima[j]));
                    for (value, &weight) in out.iter_mut().zip(weights) {
                        let scaled = scale * f32::from(weight);
                        *value = minimum.map_or(scaled, |minimum| scaled - minimum);
                    }
                }
            }
        }
    }
}

fn f16_is_finite(bytes: &[u8; 2]) -> bool {
    u16::from_le_bytes(*bytes) & 0x7c00 != 0x7c00
}
