//! The shape of an expert as the kernel contract speaks of it.

use crate::contract::names_format;
use crate::error::SandboxError;

/// Weight formats that the contract can name. More than any kernel need support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightFormat {
    number: u32,
}

impl WeightFormat {
    /// The format with a GGUF type number, if the contract has a name for it.
    pub fn from_gguf(number: u32) -> Option<Self> {
        names_format(number).then_some(WeightFormat { number })
    }

    /// The GGUF type number.
    pub fn number(self) -> u32 {
        self.number
    }
}

/// One matrix: `rows` outputs of `columns` inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixShape {
    /// How its weights are stored.
    pub format: WeightFormat,
    /// Outputs.
    pub rows: u32,
    /// Inputs.
    pub columns: u32,
}

/// The three matrices of an expert: `gate` and `up` are width x hidden, `down` is hidden x width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertShape {
    /// The gate matrix.
    pub gate: MatrixShape,
    /// The up matrix.
    pub up: MatrixShape,
    /// The down matrix.
    pub down: MatrixShape,
}

impl ExpertShape {
    /// Length of a row in and of a row out.
    pub fn hidden(&self) -> u32 {
        self.down.rows
    }

    /// Refuses matrices that do not fit together.
    pub(crate) fn check(&self) -> Result<(), SandboxError> {
        let ExpertShape { gate, up, down } = self;
        let fits = gate.rows == up.rows
            && gate.columns == up.columns
            && down.rows == gate.columns
            && down.columns == gate.rows
            && gate.rows > 0
            && gate.columns > 0;
        if fits { Ok(()) } else { Err(SandboxError::Shape { shape: *self }) }
    }
}
