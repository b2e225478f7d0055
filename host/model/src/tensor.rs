//! Tensors in mapped files: a name, a format, a shape and a byte range, cheap to clone.
//!
//! A tensor exists only with a range that lies inside its file and has exactly the bytes of its shape, so `bytes` and
//! `matrix` cannot fail. No weight is read when one is made.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use kvasir_numerics::{Format, Matrix, RowFormat};

use crate::error::{ModelError, Place};
use crate::mapping::MappedFile;

/// A matrix in a mapped file (a vector is a matrix of one row). Clones share the mapping.
#[derive(Clone)]
pub struct Tensor {
    file: Arc<MappedFile>,
    name: Arc<str>,
    format: Format,
    rows: usize,
    columns: usize,
    /// Bytes of the file.
    range: Range<usize>,
}

/// The three matrices of one expert: `gate` and `up` are width x hidden, `down` hidden x width.
#[derive(Clone, Debug)]
pub struct ExpertTensors {
    /// Gate matrix, width x hidden.
    pub gate: Tensor,
    /// Up matrix, width x hidden.
    pub up: Tensor,
    /// Down matrix, hidden x width.
    pub down: Tensor,
}

/// What one decoder layer holds beside its routed experts.
#[derive(Clone, Debug)]
pub struct LayerTensors {
    /// Weight of the norm before the mixer, hidden long, ready to multiply (1 already added where the file leaves it out).
    pub input_norm: Arc<[f32]>,
    /// Weight of the norm before router and experts, hidden long.
    pub post_attention_norm: Arc<[f32]>,
    /// Gated delta net or gated attention.
    pub mixer: Mixer,
    /// Router, experts x hidden.
    pub router: Tensor,
    /// The expert that every row passes through; shared width instead of expert width.
    pub shared_expert: ExpertTensors,
    /// Its gate, 1 x hidden.
    pub shared_expert_gate: Tensor,
}

/// The part of a layer that mixes positions. K = key heads, V = value heads, dk and dv their dimensions.
#[derive(Clone, Debug)]
pub enum Mixer {
    /// Gated delta net (linear attention). Value heads stand in the file's order: `Config::value_head_order`.
    DeltaNet {
        /// Query, key and value rows in that order: (2 K dk + V dv) x hidden.
        qkv: Tensor,
        /// Output gate, V dv x hidden.
        z: Tensor,
        /// Write strength, V x hidden.
        beta: Tensor,
        /// Decay input, V x hidden.
        alpha: Tensor,
        /// Convolution weights, channel by channel, each `conv_kernel` taps, oldest first.
        conv: Arc<[f32]>,
        /// V decay rates, negative: -exp(A_log).
        a: Arc<[f32]>,
        /// V biases of the decay input.
        dt_bias: Arc<[f32]>,
        /// Gated norm's weight, dv long, plain (no 1 added in either layout).
        norm: Arc<[f32]>,
        /// Output projection, hidden x V dv.
        out: Tensor,
    },
    /// Gated full attention.
    Attention {
        /// Per head: head_dimension query rows, then head_dimension gate rows. (heads * 2 * head_dimension) x hidden.
        q: Tensor,
        /// (kv_heads * head_dimension) x hidden.
        k: Tensor,
        /// (kv_heads * head_dimension) x hidden.
        v: Tensor,
        /// hidden x (heads * head_dimension).
        output: Tensor,
        /// Norm weight of a query head, head_dimension long.
        q_norm: Arc<[f32]>,
        /// Norm weight of a key head, head_dimension long.
        k_norm: Arc<[f32]>,
    },
}

impl Tensor {
    /// A tensor over `range` of `file`. The range must lie in the file and be exactly `rows` rows long: what callers
    /// computed from a checked directory; anything else is reported as damage.
    pub(crate) fn new(
        file: Arc<MappedFile>,
        name: Arc<str>,
        format: Format,
        rows: usize,
        columns: usize,
        range: Range<usize>,
    ) -> Result<Tensor, ModelError> {
        let bytes = file.bytes().get(range.clone());
        let fits = bytes.is_some_and(|bytes| Matrix::new(format, rows, columns, bytes).is_ok());
        if !fits {
            return Err(ModelError::Damaged {
                at: Place {
                    file: file.path().to_owned(),
                    part: format!("tensor {name}"),
                    offset: range.start as u64,
                },
                why: format!(
                    "{rows} x {columns} {} do not fill bytes {} to {}",
                    format.name(),
                    range.start,
                    range.end
                ),
            });
        }
        Ok(Tensor { file, name, format, rows, columns, range })
    }

    /// Name in the file. The expert of a stacked tensor bears the stack's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Storage format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The row format that products with this matrix read.
    pub fn row_format(&self) -> RowFormat {
        self.format.row_format()
    }

    /// Rows (outputs of a product).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns (inputs of a product).
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The stored bytes, row by row. Reading them loads pages of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }

    /// The same as a matrix for products.
    pub fn matrix(&self) -> Matrix<'_> {
        match Matrix::new(self.format, self.rows, self.columns, self.bytes()) {
            Ok(matrix) => matrix,
            Err(_) => unreachable!("shape and length were checked when the tensor was made"),
        }
    }

    /// Where the tensor's bytes lie.
    pub fn place(&self) -> Place {
        Place {
            file: self.file.path().to_owned(),
            part: format!("tensor {}", self.name),
            offset: self.range.start as u64,
        }
    }

    /// Read all weights and refuse what no quantiser writes.
    pub fn check_weights(&self) -> Result<(), ModelError> {
        self.matrix().check_weights().map_err(|cause| ModelError::Weights { at: self.place(), cause })
    }

    /// Rows `rows` of this tensor as a tensor of their own (the parts of a fused matrix).
    pub(crate) fn slice_rows(&self, rows: Range<usize>) -> Result<Tensor, ModelError> {
        let row_bytes = self.range.len() / self.rows;
        let start = self.range.start + rows.start * row_bytes;
        let range = start..start + rows.len() * row_bytes;
        Tensor::new(self.file.clone(), self.name.clone(), self.format, rows.len(), self.columns, range)
    }
}

/// Matrices of one shape at equal distances in a tensor: the gate, up or down matrices of a layer's experts.
#[derive(Clone)]
pub(crate) struct Stack {
    file: Arc<MappedFile>,
    name: Arc<str>,
    format: Format,
    rows: usize,
    columns: usize,
    /// Start of the first matrix.
    start: usize,
    /// From the start of one matrix to that of the next; at least a matrix long.
    stride: usize,
    count: usize,
}

impl Stack {
    /// `count` matrices that fill `range`.
    pub(crate) fn new(
        file: Arc<MappedFile>,
        name: Arc<str>,
        format: Format,
        count: usize,
        rows: usize,
        columns: usize,
        range: Range<usize>,
    ) -> Result<Stack, ModelError> {
        let stride = range.len() / count.max(1);
        let stack = Stack { file, name, format, rows, columns, start: range.start, stride, count };
        // The first and the last matrix fit: so do all between them.
        let first = stack.matrix(0)?;
        let last = stack.matrix(count.saturating_sub(1))?;
        if count == 0 || first.range.start != range.start || last.range.end != range.end {
            let why = format!("{count} matrices of {rows} x {columns} {} do not fill it", format.name());
            return Err(ModelError::Damaged { at: first.place(), why });
        }
        Ok(stack)
    }

    /// The same stack with only rows `rows` of each matrix (the gate or the up half of a fused one).
    pub(crate) fn rows(&self, rows: Range<usize>) -> Stack {
        let matrix_bytes = self.stride / self.rows * rows.len();
        debug_assert!(rows.end <= self.rows && matrix_bytes <= self.stride);
        Stack { start: self.start + self.stride / self.rows * rows.start, rows: rows.len(), ..self.clone() }
    }

    /// Matrix number `index`, counted from 0 and below the count.
    pub(crate) fn matrix(&self, index: usize) -> Result<Tensor, ModelError> {
        let start = self.start + self.stride * index;
        let bytes =
            self.format.row_bytes(self.columns).and_then(|row| row.checked_mul(self.rows)).unwrap_or(0);
        let range = start..start + bytes;
        Tensor::new(self.file.clone(), self.name.clone(), self.format, self.rows, self.columns, range)
    }

    /// Number of matrices.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {} {}x{})", self.name, self.format.name(), self.rows, self.columns)
    }
}

impl ExpertTensors {
    /// Read all weights of the expert and refuse what no quantiser writes. Opening a model does not do this for routed
    /// experts, since that would read the whole file; whoever loads one into a kernel or sends it does.
    pub fn check_weights(&self) -> Result<(), ModelError> {
        self.gate.check_weights()?;
        self.up.check_weights()?;
        self.down.check_weights()
    }

    /// Bytes of the three matrices together.
    pub fn stored_bytes(&self) -> usize {
        self.gate.bytes().len() + self.up.bytes().len() + self.down.bytes().len()
    }
}
