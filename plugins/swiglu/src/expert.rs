//! One expert inside the guest: its weights, copied in once, and the two functions of the contract.

use core::cell::RefCell;

use kvasir_numerics::{Format, InstructionSet, Matrix, RowsError, Swiglu, check_rows, swiglu};

use crate::bindings::exports::kvasir::expert::kernel::{
    Expert, Fault, Format as WitFormat, GuestExpert, Matrix as WitMatrix, Shape,
};

/// Most rows of one call: what a wire message of 64 MiB can hold is far below.
const MAX_ROWS: u32 = 1 << 16;

/// The weights of an expert and the memory that `forward` works in, which grows to the largest batch seen.
pub struct LoadedExpert {
    gate: Weights,
    up: Weights,
    down: Weights,
}

struct Weights {
    format: Format,
    rows: usize,
    columns: usize,
    bytes: Vec<u8>,
    /// Whether the bytes are in the interleaved layout, which the products like better.
    interleaved: bool,
}

thread_local! {
    /// Scratch of every expert in this instance: calls never overlap, since an instance has one thread.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl GuestExpert for LoadedExpert {
    fn load(shape: Shape, gate: Vec<u8>, up: Vec<u8>, down: Vec<u8>) -> Result<Expert, Fault> {
        let mut expert = LoadedExpert {
            gate: Weights::new(&shape.gate, gate),
            up: Weights::new(&shape.up, up),
            down: Weights::new(&shape.down, down),
        };
        expert.swiglu()?;
        for weights in [&expert.gate, &expert.up, &expert.down] {
            weights.matrix()?.check_weights().map_err(|_| Fault::MalformedWeights)?;
        }
        for weights in [&mut expert.gate, &mut expert.up, &mut expert.down] {
            weights.interleave()?;
        }
        Ok(Expert::new(expert))
    }

    fn forward(&self, rows: Vec<u8>, count: u32) -> Result<Vec<f32>, Fault> {
        let expert = self.swiglu()?;
        if count > MAX_ROWS {
            return Err(Fault::MalformedRows);
        }
        let count = count as usize;
        let (format, hidden) = (expert.gate().row_format(), expert.hidden());
        check_rows(format, hidden, &rows, count).map_err(fault_of_rows)?;
        let out_len = hidden.checked_mul(count).ok_or(Fault::MalformedRows)?;
        let scratch_len = expert.scratch_len(count).ok_or(Fault::MalformedRows)?;
        SCRATCH.with_borrow_mut(|scratch| {
            if scratch.len() < scratch_len {
                scratch.resize(scratch_len, 0.0);
            }
            let mut out = vec![0.0; out_len];
            swiglu(InstructionSet::detect(), &expert, &rows, count, scratch, &mut out)
                .map_err(|_| Fault::NotFinite)?;
            Ok(out)
        })
    }
}

impl LoadedExpert {
    fn swiglu(&self) -> Result<Swiglu<'_>, Fault> {
        Swiglu::new(self.gate.matrix()?, self.up.matrix()?, self.down.matrix()?)
            .map_err(|error| Fault::Unsupported(error.to_string()))
    }
}

impl Weights {
    fn new(shape: &WitMatrix, bytes: Vec<u8>) -> Self {
        let format = format_of(shape.format);
        let (rows, columns) = (shape.rows as usize, shape.columns as usize);
        Weights { format, rows, columns, bytes, interleaved: false }
    }

    /// Lays the bytes out anew, where their format and shape allow it.
    fn interleave(&mut self) -> Result<(), Fault> {
        if let Some(len) = Matrix::interleaved_bytes(self.format, self.rows, self.columns) {
            let mut bytes = vec![0; len];
            self.matrix()?.interleave(&mut bytes);
            (self.bytes, self.interleaved) = (bytes, true);
        }
        Ok(())
    }

    fn matrix(&self) -> Result<Matrix<'_>, Fault> {
        use kvasir_numerics::MatrixError;
        let matrix = if self.interleaved { Matrix::interleaved } else { Matrix::new };
        matrix(self.format, self.rows, self.columns, &self.bytes).map_err(|error| match error {
            MatrixError::WrongLength { .. } => Fault::MalformedWeights,
            MatrixError::Dimension { .. } | MatrixError::BrokenBlocks { .. } => {
                Fault::Unsupported(error.to_string())
            }
        })
    }
}

/// Rows of a wrong length, with a value of -128 or with a bad scale are malformed; a NaN or infinity in f32 rows is what
/// the contract calls not finite.
fn fault_of_rows(error: RowsError) -> Fault {
    match error {
        RowsError::WrongLength { .. } | RowsError::Value { .. } | RowsError::Scale { .. } => {
            Fault::MalformedRows
        }
    }
}

/// The arithmetic has every format that the contract names.
fn format_of(format: WitFormat) -> Format {
    match format {
        WitFormat::Float32 => Format::F32,
        WitFormat::Float16 => Format::F16,
        WitFormat::Bfloat16 => Format::BF16,
        WitFormat::Q40 => Format::Q4_0,
        WitFormat::Q41 => Format::Q4_1,
        WitFormat::Q50 => Format::Q5_0,
        WitFormat::Q51 => Format::Q5_1,
        WitFormat::Q80 => Format::Q8_0,
        WitFormat::Q2K => Format::Q2K,
        WitFormat::Q3K => Format::Q3K,
        WitFormat::Q4K => Format::Q4K,
        WitFormat::Q5K => Format::Q5K,
        WitFormat::Q6K => Format::Q6K,
        WitFormat::Iq4Nl => Format::IQ4NL,
        WitFormat::Iq4Xs => Format::IQ4XS,
        WitFormat::Mxfp4 => Format::MXFP4,
    }
}
