//! Golden vectors: one file holds an expert, rows, and what a kernel must answer. Reading only; the files are made by the
//! example `golden_vectors`.
//!
//! Layout, integers u32 little-endian: the 16 bytes `kvasir/vector/v1`; for gate, up and down each format number, rows,
//! columns; the number of rows; the outcome (0 output, 1 malformed-weights, 2 malformed-rows, 3 not-finite); then the bytes
//! of gate, of up, of down, of the rows in gate's row format, and, for outcome 0, the output as f32 little-endian, row by row.

use crate::format::Format;
use crate::matrix::{MAX_DIMENSION, Matrix};

/// The first bytes of a file.
pub const MAGIC: &[u8; 16] = b"kvasir/vector/v1";

/// Most rows in a vector.
pub const MAX_VECTOR_ROWS: usize = 4096;

/// What a kernel must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// `count x hidden` f32, little-endian, equal bit for bit.
    Output(&'a [u8]),
    /// Loading is refused: a weight that no quantiser writes.
    MalformedWeights,
    /// The rows are refused.
    MalformedRows,
    /// The arithmetic overflows.
    NotFinite,
}

/// One vector, borrowed from its file.
#[derive(Clone, Copy, Debug)]
pub struct GoldenVector<'a> {
    /// Gate, `width x hidden`.
    pub gate: Matrix<'a>,
    /// Up, `width x hidden`.
    pub up: Matrix<'a>,
    /// Down, `hidden x width`.
    pub down: Matrix<'a>,
    /// Rows in gate's row format, back to back.
    pub rows: &'a [u8],
    /// How many rows.
    pub count: usize,
    /// What must come out.
    pub outcome: Outcome<'a>,
}

/// The file is no golden vector of this version: too short, too long, unknown numbers or an impossible shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorError;

impl core::fmt::Display for VectorError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("not a golden vector file (kvasir/vector/v1): wrong start, length, number or shape")
    }
}

impl core::error::Error for VectorError {}

impl<'a> GoldenVector<'a> {
    /// Reads one file, which must be used up exactly.
    ///
    /// # Errors
    /// [`VectorError`] for anything that is no such file.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, VectorError> {
        let mut rest = bytes.strip_prefix(MAGIC).ok_or(VectorError)?;
        let mut shapes = [(Format::F32, 0, 0); 3];
        for shape in &mut shapes {
            let format = Format::from_number(number(&mut rest)?).ok_or(VectorError)?;
            *shape = (format, number(&mut rest)? as usize, number(&mut rest)? as usize);
        }
        let count = number(&mut rest)? as usize;
        let outcome = number(&mut rest)?;
        if count > MAX_VECTOR_ROWS {
            return Err(VectorError);
        }
        let mut matrix = |(format, rows, columns): (Format, usize, usize)| {
            if rows > MAX_DIMENSION || columns > MAX_DIMENSION {
                return Err(VectorError);
            }
            let len = format.row_bytes(columns).and_then(|len| len.checked_mul(rows)).ok_or(VectorError)?;
            Matrix::new(format, rows, columns, take(&mut rest, len)?).map_err(|_| VectorError)
        };
        let (gate, up, down) = (matrix(shapes[0])?, matrix(shapes[1])?, matrix(shapes[2])?);
        let row_bytes = gate.row_format().row_bytes(gate.columns()).ok_or(VectorError)?;
        let rows = take(&mut rest, row_bytes.checked_mul(count).ok_or(VectorError)?)?;
        let outcome = match outcome {
            0 => {
                let len = down.rows().checked_mul(4 * count).ok_or(VectorError)?;
                Outcome::Output(take(&mut rest, len)?)
            }
            1 => Outcome::MalformedWeights,
            2 => Outcome::MalformedRows,
            3 => Outcome::NotFinite,
            _ => return Err(VectorError),
        };
        if !rest.is_empty() {
            return Err(VectorError);
        }
        Ok(GoldenVector { gate, up, down, rows, count, outcome })
    }
}

fn number(rest: &mut &[u8]) -> Result<u32, VectorError> {
    let (bytes, after) = rest.split_first_chunk::<4>().ok_or(VectorError)?;
    *rest = after;
    Ok(u32::from_le_bytes(*bytes))
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], VectorError> {
    let (bytes, after) = rest.split_at_checked(len).ok_or(VectorError)?;
    *rest = after;
    Ok(bytes)
}
