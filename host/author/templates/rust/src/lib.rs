//! The kernel `{{name}}`: SwiGLU experts in exact-v1.
//!
//! A host loads an expert's three matrices once, then sends rows through it:
//! `g = G x; u = U x; h = silu(g) * u; y = D quantise(h)`. The arithmetic is in exact.rs, the calling convention of the
//! component in contract.rs. Change what you like: `kvasir plugin test` says whether the bits are still the right ones.

mod contract;
mod exact;

use contract::{Fault, MatrixShape};
use exact::Format;

/// Largest number of rows or columns of a matrix: f32 holds every count up to here exactly.
const MAX_DIMENSION: u32 = 1 << 24;

/// An expert's weights: gate and up are width x hidden, down is hidden x width.
pub struct Expert {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

struct Matrix {
    format: Format,
    rows: usize,
    columns: usize,
    bytes: Vec<u8>,
}

impl Expert {
    /// Takes an expert, or says why not: what is not supported here, or what no quantiser writes.
    pub fn load(shapes: [MatrixShape; 3], bytes: [Vec<u8>; 3]) -> Result<Expert, Fault> {
        let [s_gate, s_up, s_down] = shapes;
        let fits = (s_gate.rows, s_gate.columns) == (s_up.rows, s_up.columns)
            && (s_gate.rows, s_gate.columns) == (s_down.columns, s_down.rows);
        if !fits {
            return Err(Fault::Unsupported("gate and up must be width x hidden, down hidden x width"));
        }
        let [gate, up, down] = bytes;
        let expert =
            Expert { gate: Matrix::new(s_gate, gate)?, up: Matrix::new(s_up, up)?, down: Matrix::new(s_down, down)? };
        if expert.gate.format.rows() != expert.up.format.rows() {
            return Err(Fault::Unsupported("gate and up need rows of different formats"));
        }
        for matrix in [&expert.gate, &expert.up, &expert.down] {
            matrix.check()?;
        }
        Ok(expert)
    }

    /// `count` rows in gate's row format -> count x hidden values, row by row. A row's bits never depend on its neighbours.
    pub fn forward(&self, rows: &[u8], count: usize) -> Result<Vec<f32>, Fault> {
        let (hidden, width) = (self.down.rows, self.gate.rows);
        let format = self.gate.format.rows();
        let row_bytes = format.row_bytes(hidden).ok_or(Fault::MalformedRows)?;
        if row_bytes.checked_mul(count) != Some(rows.len()) {
            return Err(Fault::MalformedRows);
        }
        if !format.are_rows(rows) {
            return Err(Fault::MalformedRows);
        }
        let mut out = Vec::with_capacity(hidden * count);
        for row in rows.chunks_exact(row_bytes) {
            let h: Vec<f32> =
                (0..width).map(|o| exact::silu(self.gate.dot(o, row)) * self.up.dot(o, row)).collect();
            let h = exact::quantise(&h, self.down.format.rows()).ok_or(Fault::NotFinite)?;
            out.extend((0..hidden).map(|o| self.down.dot(o, &h)));
        }
        if out.iter().all(|value| value.is_finite()) { Ok(out) } else { Err(Fault::NotFinite) }
    }
}

impl Matrix {
    fn new(shape: MatrixShape, bytes: Vec<u8>) -> Result<Matrix, Fault> {
        let format = Format::from_contract(shape.format)
            .ok_or(Fault::Unsupported("this kernel has F32, F16, Q8_0, Q4_K and Q6_K"))?;
        if ![shape.rows, shape.columns].iter().all(|side| (1..=MAX_DIMENSION).contains(side)) {
            return Err(Fault::Unsupported("a matrix has 1 to 2^24 rows and columns"));
        }
        let (rows, columns) = (shape.rows as usize, shape.columns as usize);
        let row_bytes = format
            .row_bytes(columns)
            .ok_or(Fault::Unsupported("the columns are no whole number of the format's blocks"))?;
        if row_bytes.checked_mul(rows) != Some(bytes.len()) {
            return Err(Fault::MalformedWeights);
        }
        Ok(Matrix { format, rows, columns, bytes })
    }

    fn check(&self) -> Result<(), Fault> {
        if self.format.are_weights(&self.bytes) { Ok(()) } else { Err(Fault::MalformedWeights) }
    }

    /// Output `o` for one row.
    fn dot(&self, o: usize, row: &[u8]) -> f32 {
        let row_bytes = self.columns / self.format.block_len() * self.format.block_bytes();
        self.format.dot(&self.bytes[o * row_bytes..][..row_bytes], row)
    }
}
