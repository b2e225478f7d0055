//! A tensor as a file's directory states it, before the architecture gives it a meaning.
//!
//! Both containers are read into a `Directory` of `Entry`s, whose ranges have been checked against their files. An
//! entry may have a format that nothing here computes with; only `Entry::stored` makes it a `StoredTensor`, which has
//! one that products know. A directory is consumed by taking tensors out; what is left is either recognised as left
//! aside or an error, so no tensor is ever ignored by accident.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvasir_numerics::{Format, dequantise_row};

use crate::error::{ModelError, Place};
use crate::limits;
use crate::mapping::MappedFile;
use crate::tensor::{Stack, Tensor};

/// What a directory says a tensor is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EntryFormat {
    /// A format with arithmetic.
    Known(Format),
    /// Any other, by name; its size is known, its weights are not used.
    Other(String),
}

/// One entry of a directory.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) file: Arc<MappedFile>,
    pub(crate) format: EntryFormat,
    /// Outermost dimension first; every one at least 1.
    pub(crate) shape: Vec<usize>,
    /// Bytes of the file, checked to lie inside it.
    pub(crate) range: Range<usize>,
}

/// A tensor whose format has arithmetic.
#[derive(Clone)]
pub(crate) struct StoredTensor {
    file: Arc<MappedFile>,
    name: Arc<str>,
    format: Format,
    shape: Vec<usize>,
    range: Range<usize>,
}

/// All tensors of a model by name, from one file or several.
pub(crate) struct Directory {
    path: PathBuf,
    entries: BTreeMap<String, Entry>,
}

impl Directory {
    /// An empty directory; `path` is the file or folder that errors name when a tensor is missing.
    pub(crate) fn new(path: &Path) -> Directory {
        Directory { path: path.to_owned(), entries: BTreeMap::new() }
    }

    /// Add an entry; false if there is one of that name already.
    pub(crate) fn insert(&mut self, name: &str, entry: Entry) -> bool {
        self.entries.insert(name.to_owned(), entry).is_none()
    }

    /// Whether a tensor of this name is left.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Whether the name of any tensor left starts so.
    pub(crate) fn any_starts_with(&self, prefix: &str) -> bool {
        self.entries.range(prefix.to_owned()..).next().is_some_and(|(name, _)| name.starts_with(prefix))
    }

    /// Take a tensor out.
    pub(crate) fn take(&mut self, name: &str) -> Result<StoredTensor, ModelError> {
        match self.entries.remove(name) {
            Some(entry) => entry.stored(name),
            None => Err(ModelError::MissingTensor { file: self.path.clone(), tensor: name.to_owned() }),
        }
    }

    /// Refuse what is left, except names that `left_aside` recognises. Returns how many those were.
    pub(crate) fn finish(self, left_aside: impl Fn(&str) -> bool) -> Result<usize, ModelError> {
        for (name, entry) in &self.entries {
            if !left_aside(name) {
                return Err(ModelError::UnknownTensor { at: entry.place(name) });
            }
        }
        Ok(self.entries.len())
    }
}

impl Entry {
    /// The same with a format that has arithmetic.
    fn stored(self, name: &str) -> Result<StoredTensor, ModelError> {
        if self.shape.len() > limits::MAX_RANK as usize {
            let (value, limit) = (self.shape.len() as u64, u64::from(limits::MAX_RANK));
            return Err(ModelError::OverLimit {
                at: self.place(name),
                what: "number of dimensions",
                value,
                limit,
            });
        }
        match &self.format {
            EntryFormat::Known(format) => Ok(StoredTensor {
                format: *format,
                name: Arc::from(name),
                file: self.file,
                shape: self.shape,
                range: self.range,
            }),
            EntryFormat::Other(other) => {
                Err(ModelError::Unsupported { at: self.place(name), what: format!("format {other}") })
            }
        }
    }

    fn place(&self, name: &str) -> Place {
        Place {
            file: self.file.path().to_owned(),
            part: format!("tensor {name}"),
            offset: self.range.start as u64,
        }
    }
}

impl StoredTensor {
    /// Name in the file.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Storage format.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Dimensions as in the file, outermost first.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Stored bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }

    /// Where it lies.
    pub(crate) fn place(&self) -> Place {
        Place {
            file: self.file.path().to_owned(),
            part: format!("tensor {}", self.name),
            offset: self.range.start as u64,
        }
    }

    /// As a matrix of exactly this shape.
    pub(crate) fn matrix(&self, rows: usize, columns: usize) -> Result<Tensor, ModelError> {
        self.expect_shape(&[rows, columns])?;
        Tensor::new(self.file.clone(), self.name.clone(), self.format, rows, columns, self.range.clone())
    }

    /// As `count` matrices of this shape, one after another.
    pub(crate) fn stack(&self, count: usize, rows: usize, columns: usize) -> Result<Stack, ModelError> {
        self.expect_shape(&[count, rows, columns])?;
        Stack::new(
            self.file.clone(),
            self.name.clone(),
            self.format,
            count,
            rows,
            columns,
            self.range.clone(),
        )
    }

    /// Its weights as f32, of exactly this shape; float formats only. They must be finite.
    pub(crate) fn floats(&self, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        self.expect_shape(shape)?;
        if !matches!(self.format, Format::F32 | Format::F16 | Format::BF16) {
            let what = format!("format {} for a vector", self.format.name());
            return Err(ModelError::Unsupported { at: self.place(), what });
        }
        let len = self.shape.iter().product();
        let tensor =
            Tensor::new(self.file.clone(), self.name.clone(), self.format, 1, len, self.range.clone())?;
        tensor.check_weights()?;
        let mut floats = vec![0.0; len];
        dequantise_row(tensor.matrix(), 0, &mut floats);
        Ok(floats)
    }

    /// Dimensions of 1 do not count: they change neither order nor place of a weight, and writers differ in them.
    fn expect_shape(&self, expected: &[usize]) -> Result<(), ModelError> {
        let significant = |shape: &[usize]| shape.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
        if significant(&self.shape) == significant(expected) {
            return Ok(());
        }
        Err(ModelError::WrongShape {
            at: self.place(),
            expected: shape_text(expected),
            found: shape_text(&self.shape),
        })
    }
}

/// `8 x 32 x 64`.
fn shape_text(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
}
