//! Why a model cannot be opened or read, sorted by whose fault it is.
//!
//! Every error names the file, the tensor or key, and where a byte of the file is to blame, its offset. A message is
//! whole: a cause is part of it, and `source` does not tell it a second time. Control characters from a file are shown
//! escaped.

use std::fmt;
use std::path::PathBuf;

use kvasir_numerics::{RowFormat, WeightsError};

use crate::identity::{ExpertIndex, LayerIndex};
use crate::tokenizer::TokenizerError;
use crate::visible::Visible;

/// A place in a file: which file, which part of it, and the byte offset from the file's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The part, in words: `tensor blk.0.attn_q.weight`, `key general.alignment`, `header`.
    pub part: String,
    /// Byte offset from the start of the file.
    pub offset: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {} of {}", Visible(&self.part), self.offset, Visible(self.file.display()))
    }
}

/// Why a model cannot be opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The machine's or the operator's: a file is missing or cannot be read.
    #[error("cannot read {path}: {cause}", path = Visible(path.display()))]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// The operator's: the path is not a model of a kind known here.
    #[error("{path} is not a model that can be opened: {why}", why = Visible(why), path = Visible(path.display()))]
    NotAModel {
        /// The path given.
        path: PathBuf,
        /// What was looked for and what to give instead.
        why: String,
    },
    /// The file's: its bytes contradict its format.
    #[error("damaged file: {at}: {}", Visible(why))]
    Damaged {
        /// Where.
        at: Place,
        /// The value found and what the format asks for.
        why: String,
    },
    /// The file's: a size or count beyond a named limit of this program.
    #[error("{at}: {what} is {value}, the limit is {limit}")]
    OverLimit {
        /// Where.
        at: Place,
        /// What was counted.
        what: &'static str,
        /// The value declared.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// Ours: a valid file that needs something this version does not have.
    #[error("{at}: {} is not supported yet", Visible(what))]
    Unsupported {
        /// Where.
        at: Place,
        /// The feature, format or value, by name.
        what: String,
    },
    /// The file's: a key that the architecture needs is absent.
    #[error("key {key} is missing from {file}", key = Visible(key), file = Visible(file.display()))]
    MissingKey {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
    },
    /// The file's: a key holds another type than the format says.
    #[error("{at}: expected {expected}, found {}", Visible(found))]
    WrongType {
        /// Where.
        at: Place,
        /// The type asked for.
        expected: &'static str,
        /// The type found.
        found: String,
    },
    /// The file's: a configuration value is out of range or contradicts another.
    #[error("configuration of {file}: {key} = {value}: {why}", key = Visible(key), value = Visible(value), why = Visible(why), file = Visible(file.display()))]
    Configuration {
        /// The file.
        file: PathBuf,
        /// The key as the file spells it.
        key: String,
        /// Its value.
        value: String,
        /// What it must satisfy.
        why: String,
    },
    /// The file's: a tensor that the configuration calls for is absent.
    #[error("tensor {tensor} is missing from {file}", tensor = Visible(tensor), file = Visible(file.display()))]
    MissingTensor {
        /// The file or folder.
        file: PathBuf,
        /// The name as the file would spell it.
        tensor: String,
    },
    /// The file's: a tensor that belongs to no part of this architecture.
    #[error("{at}: the architecture has no such tensor")]
    UnknownTensor {
        /// Where.
        at: Place,
    },
    /// The file's: a tensor's shape contradicts the configuration.
    #[error("{at}: shape {found}, but the configuration asks for {expected} (outermost first)")]
    WrongShape {
        /// Where.
        at: Place,
        /// The shape that the configuration implies, outermost dimension first.
        expected: String,
        /// The shape in the file, outermost dimension first.
        found: String,
    },
    /// The file's: the gate and the up matrix of an expert read different row formats.
    #[error(
        "layer {layer}: gate matrices read {gate:?} rows and up matrices {up:?} rows; one row must serve both"
    )]
    RowFormatsDiffer {
        /// The layer.
        layer: LayerIndex,
        /// Row format of gate.
        gate: RowFormat,
        /// Row format of up.
        up: RowFormat,
    },
    /// The file's: weights that no quantiser writes (a Q8_0 value of -128, an infinite scale).
    #[error("{at}: {cause}")]
    Weights {
        /// The tensor.
        at: Place,
        /// What is wrong with them.
        cause: WeightsError,
    },
    /// The file's: its vocabulary or tokenizer.
    #[error("tokenizer of {file}: {cause}", file = Visible(file.display()))]
    Tokenizer {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        cause: TokenizerError,
    },
    /// The caller's: no such expert.
    #[error("no expert {expert} in layer {layer}: the model has {layers} layers of {experts} experts")]
    NoSuchExpert {
        /// The layer asked for.
        layer: LayerIndex,
        /// The expert asked for.
        expert: ExpertIndex,
        /// Layers of the model.
        layers: u32,
        /// Experts of a layer.
        experts: u32,
    },
    /// Ours: the digest of a model states lengths as u32.
    #[error(
        "tensor {} is {bytes} bytes; a model digest is defined up to 4294967295 bytes a tensor",
        Visible(tensor)
    )]
    TooLargeForDigest {
        /// The tensor.
        tensor: String,
        /// Its bytes.
        bytes: u64,
    },
}
