//! An expert as bytes: what is digested, stored and sent.
//!
//! Each of gate, up, down in that order as: format number u32, rows u32, columns u32, byte count u32, bytes; all
//! integers little-endian. `ExpertDigest` = SHA-256("kvasir/expert/v1" followed by the blob).

use std::ops::Range;

use kvasir_numerics::{Format, Matrix, MatrixError, RowFormat, WeightsError};
use sha2::{Digest, Sha256};

use crate::identity::ExpertDigest;
use crate::limits::MAX_EXPERT_BLOB_BYTES;
use crate::tensor::{ExpertTensors, Tensor};

/// What is hashed before an expert's blob, so that no other digest of ours can be taken for an expert's.
pub const EXPERT_DOMAIN: &[u8] = b"kvasir/expert/v1";

/// Bytes before each matrix: format, rows, columns, byte count.
const MATRIX_HEADER_BYTES: usize = 16;

/// One matrix inside a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobMatrix {
    /// Storage format.
    pub format: Format,
    /// Rows (outputs).
    pub rows: u32,
    /// Columns (inputs).
    pub columns: u32,
    /// Where the bytes lie in the blob.
    pub range: Range<usize>,
}

/// The layout of a checked blob: shapes agree, lengths are exact, and the weights are ones that kernels accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertBlob {
    /// Gate matrix, width x hidden.
    pub gate: BlobMatrix,
    /// Up matrix, width x hidden.
    pub up: BlobMatrix,
    /// Down matrix, hidden x width.
    pub down: BlobMatrix,
}

/// Why bytes are not an expert. The sender's fault, always; offsets count from the blob's first byte.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// More bytes than an expert may have.
    #[error("an expert of {bytes} bytes; the limit is {limit}")]
    TooLarge {
        /// Bytes given.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The bytes end inside a matrix or its header.
    #[error("{matrix} matrix: the blob ends at byte {end}, {needed} more bytes were announced")]
    Short {
        /// gate, up or down.
        matrix: &'static str,
        /// Length of the blob.
        end: usize,
        /// Bytes missing.
        needed: u64,
    },
    /// Bytes follow the last matrix.
    #[error("{extra} bytes follow the down matrix at byte {offset}")]
    Trailing {
        /// Where they start.
        offset: usize,
        /// How many.
        extra: usize,
    },
    /// A format number that this version does not know.
    #[error("{matrix} matrix at byte {offset}: format {number} ({name}) is not supported yet")]
    Format {
        /// gate, up or down.
        matrix: &'static str,
        /// Offset of the number.
        offset: usize,
        /// The number.
        number: u32,
        /// Its name in GGUF, where it has one.
        name: &'static str,
    },
    /// A byte count that does not follow from format, rows and columns.
    #[error(
        "{matrix} matrix at byte {offset}: {stated} bytes stated, {rows} x {columns} {format:?} takes {expected}"
    )]
    Length {
        /// gate, up or down.
        matrix: &'static str,
        /// Offset of the byte count.
        offset: usize,
        /// Format.
        format: Format,
        /// Rows.
        rows: u32,
        /// Columns.
        columns: u32,
        /// The byte count stated.
        stated: u32,
        /// The byte count that follows, or `not a whole number of blocks`.
        expected: String,
    },
    /// The three shapes are not one expert's.
    #[error("shapes do not make an expert: gate {gate:?}, up {up:?}, down {down:?} (rows, columns)")]
    Shapes {
        /// Rows and columns of gate.
        gate: (u32, u32),
        /// Rows and columns of up.
        up: (u32, u32),
        /// Rows and columns of down.
        down: (u32, u32),
    },
    /// Gate and up read different row formats, but get the same row.
    #[error("gate reads {gate:?} rows and up {up:?} rows")]
    RowFormatsDiffer {
        /// Row format of gate.
        gate: RowFormat,
        /// Row format of up.
        up: RowFormat,
    },
    /// Weights that no quantiser writes.
    #[error("{matrix} matrix: {cause}")]
    Weights {
        /// gate, up or down.
        matrix: &'static str,
        /// What is wrong with them.
        cause: WeightsError,
    },
}

impl ExpertTensors {
    /// The expert's blob. Reads its three byte ranges.
    pub fn blob(&self) -> Vec<u8> {
        let mut blob = Vec::with_capacity(self.blob_bytes());
        for tensor in [&self.gate, &self.up, &self.down] {
            blob.extend_from_slice(&matrix_header(tensor));
            blob.extend_from_slice(tensor.bytes());
        }
        blob
    }

    /// Length of the expert's blob in bytes. Reads no weight.
    pub fn blob_bytes(&self) -> usize {
        self.stored_bytes() + 3 * MATRIX_HEADER_BYTES
    }

    /// The expert's digest. Reads its three byte ranges, copies none.
    pub fn digest(&self) -> ExpertDigest {
        let mut hash = Sha256::new_with_prefix(EXPERT_DOMAIN);
        for tensor in [&self.gate, &self.up, &self.down] {
            hash.update(matrix_header(tensor));
            hash.update(tensor.bytes());
        }
        ExpertDigest(hash.finalize().into())
    }
}

impl BlobMatrix {
    /// The same as a matrix for products. `blob` must be the one that was parsed: another of the same length gives
    /// other numbers, a shorter one an error.
    pub fn matrix<'a>(&self, blob: &'a [u8]) -> Result<Matrix<'a>, MatrixError> {
        let bytes = blob.get(self.range.clone()).unwrap_or_default();
        Matrix::new(self.format, self.rows as usize, self.columns as usize, bytes)
    }
}

impl ExpertBlob {
    /// Parse and check a blob from anywhere: exact lengths, known formats, shapes of one expert, sane weights.
    /// Allocates nothing.
    pub fn parse(blob: &[u8]) -> Result<ExpertBlob, BlobError> {
        if blob.len() as u64 > MAX_EXPERT_BLOB_BYTES {
            return Err(BlobError::TooLarge { bytes: blob.len() as u64, limit: MAX_EXPERT_BLOB_BYTES });
        }
        let gate = parse_matrix(blob, 0, "gate")?;
        let up = parse_matrix(blob, gate.range.end, "up")?;
        let down = parse_matrix(blob, up.range.end, "down")?;
        if down.range.end != blob.len() {
            let extra = blob.len() - down.range.end;
            return Err(BlobError::Trailing { offset: down.range.end, extra });
        }
        let shape = |matrix: &BlobMatrix| (matrix.rows, matrix.columns);
        if shape(&gate) != shape(&up) || shape(&down) != (gate.columns, gate.rows) {
            return Err(BlobError::Shapes { gate: shape(&gate), up: shape(&up), down: shape(&down) });
        }
        let (gate_rows, up_rows) = (gate.format.row_format(), up.format.row_format());
        if gate_rows != up_rows {
            return Err(BlobError::RowFormatsDiffer { gate: gate_rows, up: up_rows });
        }
        Ok(ExpertBlob { gate, up, down })
    }

    /// Width of the residual stream that this expert reads and writes.
    pub fn hidden(&self) -> u32 {
        self.gate.columns
    }

    /// Width between its matrices.
    pub fn width(&self) -> u32 {
        self.gate.rows
    }

    /// The row format in which calls bring rows to this expert.
    pub fn row_format(&self) -> RowFormat {
        self.gate.format.row_format()
    }

    /// Digest of a blob. It says nothing about whether the blob parses.
    pub fn digest(blob: &[u8]) -> ExpertDigest {
        ExpertDigest(Sha256::new_with_prefix(EXPERT_DOMAIN).chain_update(blob).finalize().into())
    }
}

fn matrix_header(tensor: &Tensor) -> [u8; MATRIX_HEADER_BYTES] {
    // Dimensions are at most MAX_DIMENSION and an expert's matrix at most MAX_EXPERT_BLOB_BYTES, both checked when the
    // model was opened, so the casts lose nothing.
    let mut header = [0; MATRIX_HEADER_BYTES];
    header[0..4].copy_from_slice(&tensor.format().number().to_le_bytes());
    header[4..8].copy_from_slice(&(tensor.rows() as u32).to_le_bytes());
    header[8..12].copy_from_slice(&(tensor.columns() as u32).to_le_bytes());
    header[12..16].copy_from_slice(&(tensor.bytes().len() as u32).to_le_bytes());
    header
}

fn parse_matrix(blob: &[u8], at: usize, matrix: &'static str) -> Result<BlobMatrix, BlobError> {
    let short = |wanted: usize| BlobError::Short {
        matrix,
        end: blob.len(),
        needed: (wanted as u64).saturating_sub((blob.len() - at) as u64),
    };
    let header = blob.get(at..at + MATRIX_HEADER_BYTES).ok_or_else(|| short(MATRIX_HEADER_BYTES))?;
    let word = |i: usize| u32::from_le_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]);
    let (number, rows, columns, stated) = (word(0), word(4), word(8), word(12));
    let format = Format::from_number(number).ok_or_else(|| BlobError::Format {
        matrix,
        offset: at,
        number,
        name: crate::gguf::format_name(number),
    })?;
    let expected = format.row_bytes(columns as usize).and_then(|bytes| bytes.checked_mul(rows as usize));
    if rows == 0 || columns == 0 || expected != Some(stated as usize) {
        let expected = match expected {
            Some(bytes) if rows != 0 && columns != 0 => bytes.to_string(),
            Some(_) => "at least one row and one column".to_owned(),
            None => "whole blocks".to_owned(),
        };
        return Err(BlobError::Length { matrix, offset: at + 12, format, rows, columns, stated, expected });
    }
    let start = at + MATRIX_HEADER_BYTES;
    let range = start..start + stated as usize;
    let bytes = blob.get(range.clone()).ok_or_else(|| short(MATRIX_HEADER_BYTES + stated as usize))?;
    if let Ok(checked) = Matrix::new(format, rows as usize, columns as usize, bytes) {
        checked.check_weights().map_err(|cause| BlobError::Weights { matrix, cause })?;
    }
    Ok(BlobMatrix { format, rows, columns, range })
}
