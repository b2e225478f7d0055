//! Reads GGUF's little-endian numbers and strings one after another, and knows where it is when one does not fit.

use std::path::Path;

use crate::error::{ModelError, Place};

/// A position in a file's bytes, with the name of the part being read for errors.
pub(super) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    part: String,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(path: &'a Path, bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { path, bytes, at: 0, part: "header".to_owned() }
    }

    /// A second cursor at the same place.
    pub(super) fn fork(&self) -> Cursor<'a> {
        Cursor { path: self.path, bytes: self.bytes, at: self.at, part: self.part.clone() }
    }

    /// Name what is read from here on.
    pub(super) fn enter(&mut self, part: String) {
        self.part = part;
    }

    /// Bytes read so far.
    pub(super) fn offset(&self) -> usize {
        self.at
    }

    /// Bytes left.
    pub(super) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The place of the byte at `offset`.
    pub(super) fn place(&self, offset: usize) -> Place {
        Place { file: self.path.to_owned(), part: self.part.clone(), offset: offset as u64 }
    }

    pub(super) fn damaged(&self, offset: usize, why: impl Into<String>) -> ModelError {
        ModelError::Damaged { at: self.place(offset), why: why.into() }
    }

    pub(super) fn over_limit(&self, offset: usize, what: &'static str, value: u64, limit: u64) -> ModelError {
        ModelError::OverLimit { at: self.place(offset), what, value, limit }
    }

    pub(super) fn take(&mut self, count: usize, what: &str) -> Result<&'a [u8], ModelError> {
        match self.at.checked_add(count).and_then(|end| self.bytes.get(self.at..end)) {
            Some(bytes) => {
                self.at += count;
                Ok(bytes)
            }
            None => {
                let why = format!("{what} takes {count} bytes, the file ends after {}", self.left());
                Err(self.damaged(self.at, why))
            }
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], ModelError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A string: u64 length, UTF-8 bytes. Borrowed from the file.
    pub(super) fn string(&mut self, what: &'static str, limit: u64) -> Result<&'a str, ModelError> {
        let start = self.at;
        let length = self.u64(what)?;
        if length > limit {
            return Err(self.over_limit(start, what, length, limit));
        }
        // `length` is at most a limit that fits usize.
        let bytes = self.take(length as usize, what)?;
        std::str::from_utf8(bytes)
            .map_err(|error| self.damaged(start + 8 + error.valid_up_to(), format!("{what} is not UTF-8")))
    }
}
