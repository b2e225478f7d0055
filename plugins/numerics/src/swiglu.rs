//! The expert: `g = G x; u = U x; h = silu(g) * u; hq = quantise(h); y = D hq`.

use crate::format::Format;
use crate::function::silu_multiply;
use crate::instruction_set::InstructionSet;
use crate::matrix::Matrix;
use crate::product::product;
use crate::row::{NotFinite, all_finite, quantise_row};

/// The three matrices of an expert, whose shapes fit each other.
#[derive(Clone, Copy, Debug)]
pub struct Swiglu<'a> {
    gate: Matrix<'a>,
    up: Matrix<'a>,
    down: Matrix<'a>,
}

/// Why three matrices are no expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwigluError {
    /// Gate and up have different shapes, or down is not their transpose's shape.
    Shapes {
        /// Gate's rows and columns.
        gate: (usize, usize),
        /// Up's rows and columns.
        up: (usize, usize),
        /// Down's rows and columns.
        down: (usize, usize),
    },
    /// Gate and up need rows of different formats.
    RowFormats {
        /// Gate's format.
        gate: Format,
        /// Up's format.
        up: Format,
    },
}

impl core::fmt::Display for SwigluError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SwigluError::Shapes { gate, up, down } => write!(
                f,
                "gate {} x {}, up {} x {} and down {} x {} do not fit each other: gate and up must be width x hidden, \
                 down hidden x width",
                gate.0, gate.1, up.0, up.1, down.0, down.1
            ),
            SwigluError::RowFormats { gate, up } => {
                write!(f, "gate is {gate} and up is {up}: they need rows of different formats")
            }
        }
    }
}

impl core::error::Error for SwigluError {}

impl<'a> Swiglu<'a> {
    /// Puts an expert together: gate and up `width x hidden`, down `hidden x width`.
    ///
    /// # Errors
    /// Shapes that do not fit, or gate and up of different row formats.
    pub fn new(gate: Matrix<'a>, up: Matrix<'a>, down: Matrix<'a>) -> Result<Self, SwigluError> {
        let shape = |matrix: &Matrix<'_>| (matrix.rows(), matrix.columns());
        let (rows, columns) = shape(&gate);
        if shape(&up) != (rows, columns) || shape(&down) != (columns, rows) {
            return Err(SwigluError::Shapes { gate: shape(&gate), up: shape(&up), down: shape(&down) });
        }
        if gate.row_format() != up.row_format() {
            return Err(SwigluError::RowFormats { gate: gate.format(), up: up.format() });
        }
        Ok(Swiglu { gate, up, down })
    }

    /// Gate, `width x hidden`.
    pub fn gate(&self) -> Matrix<'a> {
        self.gate
    }

    /// Up, `width x hidden`.
    pub fn up(&self) -> Matrix<'a> {
        self.up
    }

    /// Down, `hidden x width`.
    pub fn down(&self) -> Matrix<'a> {
        self.down
    }

    /// Values of a row in and out.
    pub fn hidden(&self) -> usize {
        self.down.rows()
    }

    /// Values between the matrices.
    pub fn width(&self) -> usize {
        self.gate.rows()
    }

    /// f32 slots that [`swiglu`] needs for `count` rows; `None` where the number overflows.
    pub fn scratch_len(&self, count: usize) -> Option<usize> {
        // Gate and up products, one row of h, the quantised rows of h, and the products of down before they are turned.
        let h_bytes = self.down.row_format().row_bytes(self.width())?;
        let per_row = (2 * self.width()).checked_add(h_bytes.div_ceil(4))?.checked_add(self.hidden())?;
        per_row.checked_mul(count)?.checked_add(self.width())
    }
}

/// The expert for `count` rows in gate's row format; `out` is `count x hidden`, row by row.
///
/// `scratch` holds at least [`Swiglu::scratch_len`] slots of any content. `rows` must be checked as for
/// [`crate::product()`].
///
/// # Errors
/// [`NotFinite`] where h or an output overflowed; `out` is then unspecified.
///
/// # Panics
/// Where a slice has another length, or `scratch` is too short.
pub fn swiglu(
    isa: InstructionSet,
    expert: &Swiglu<'_>,
    rows: &[u8],
    count: usize,
    scratch: &mut [f32],
    out: &mut [f32],
) -> Result<(), NotFinite> {
    let (hidden, width) = (expert.hidden(), expert.width());
    assert!(expert.scratch_len(count).is_some_and(|len| len <= scratch.len()), "swiglu: scratch too short");
    assert_eq!(out.len(), hidden * count, "swiglu: out must hold count x hidden");
    let (gate, scratch) = scratch.split_at_mut(width * count);
    let (up, scratch) = scratch.split_at_mut(width * count);
    let (h_row, scratch) = scratch.split_at_mut(width);
    product(isa, expert.gate, 0..width, rows, count, gate);
    product(isa, expert.up, 0..width, rows, count, up);
    silu_multiply(isa, gate, up);

    let format = expert.down.row_format();
    let row_bytes = format.row_bytes(width).unwrap_or_default();
    let (h_rows, turned) = scratch.split_at_mut((row_bytes * count).div_ceil(4));
    let h_rows = &mut as_bytes(h_rows)[..row_bytes * count];
    for (row, h_bytes) in h_rows.chunks_exact_mut(row_bytes).enumerate() {
        for (value, h) in h_row.iter_mut().zip(gate.iter().skip(row).step_by(count)) {
            *value = *h;
        }
        quantise_row(h_row, format, h_bytes)?;
    }
    if count == 1 {
        product(isa, expert.down, 0..hidden, h_rows, 1, out);
    } else {
        let turned = &mut turned[..hidden * count];
        product(isa, expert.down, 0..hidden, h_rows, count, turned);
        for (output, values) in turned.chunks_exact(count.max(1)).enumerate() {
            for (row, value) in values.iter().enumerate() {
                out[row * hidden + output] = *value;
            }
        }
    }
    if all_finite(out) { Ok(()) } else { Err(NotFinite) }
}

/// The same memory as bytes.
fn as_bytes(floats: &mut [f32]) -> &mut [u8] {
    // SAFETY: u8 has no alignment and no invalid values, every byte pattern is an f32, and the length is the same memory.
    unsafe { core::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), size_of_val(floats)) }
}
