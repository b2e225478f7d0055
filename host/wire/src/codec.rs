//! The bounded reader and the writer that all payloads share.
//!
//! Integers are little-endian; strings and byte strings carry their length as u32 before them; lists carry their count,
//! in the width that the message says. The reader never allocates more than the bytes at hand justify: a count is
//! checked against what is left before anything is reserved.

use thiserror::Error;

/// Why a payload is not what its kind says. Every one is the sender's fault.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The payload ends inside a field.
    #[error("{field}: the payload ends {missing} bytes too early")]
    Truncated {
        /// The field.
        field: &'static str,
        /// Bytes that are missing.
        missing: usize,
    },
    /// Bytes are left after the last field.
    #[error("{count} bytes follow the last field")]
    TrailingBytes {
        /// How many.
        count: usize,
    },
    /// A number has a value that this version does not know.
    #[error("{field}: unknown value {value}")]
    UnknownValue {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
    /// A number, count or length is above its limit.
    #[error("{field}: {value} is above the limit of {limit}")]
    AboveLimit {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A field breaks a rule of its message.
    #[error("{field}: {rule}")]
    Broken {
        /// The field.
        field: &'static str,
        /// The rule.
        rule: &'static str,
    },
    /// A key that is no point or weak.
    #[error("{field}: {error}")]
    Key {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        error: crate::key::KeyError,
    },
}

/// Reads a payload field by field.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from their beginning.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, field: &'static str, count: usize) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(DecodeError::Truncated { field, missing: count - self.rest.len() });
        };
        self.rest = rest;
        Ok(taken)
    }

    /// The next N bytes as an array.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(field, N)?);
        Ok(array)
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// One byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(field)?[0])
    }

    /// A u16.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    /// A u32.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// A u64.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A byte that is 0 or 1.
    pub fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::UnknownValue { field, value: value.into() }),
        }
    }

    /// A public key; weak ones and other bytes are refused.
    pub fn key(&mut self, field: &'static str) -> Result<crate::key::PublicKey, DecodeError> {
        let bytes = self.array::<32>(field)?;
        crate::key::PublicKey::from_bytes(&bytes).map_err(|error| DecodeError::Key { field, error })
    }

    /// A byte string of at most `limit` bytes.
    pub fn byte_string(&mut self, field: &'static str, limit: usize) -> Result<&'a [u8], DecodeError> {
        let length = self.u32(field)?;
        let length = within(field, u64::from(length), limit as u64)? as usize;
        self.bytes(field, length)
    }

    /// A UTF-8 string of at most `limit` bytes without control characters other than line feed.
    pub fn string(&mut self, field: &'static str, limit: usize) -> Result<&'a str, DecodeError> {
        let bytes = self.byte_string(field, limit)?;
        let text = std::str::from_utf8(bytes)
            .map_err(|_| DecodeError::Broken { field, rule: "the text is not UTF-8" })?;
        if text.chars().any(|c| c.is_control() && c != '\n') {
            return Err(DecodeError::Broken { field, rule: "the text holds a control character" });
        }
        Ok(text)
    }

    /// Checks a count that was read: at most `limit`, and `item_bytes` each must still be there.
    pub fn check_count(
        &self,
        field: &'static str,
        count: u64,
        limit: usize,
        item_bytes: usize,
    ) -> Result<usize, DecodeError> {
        let count = within(field, count, limit as u64)? as usize;
        let need = count.saturating_mul(item_bytes);
        if need > self.rest.len() {
            return Err(DecodeError::Truncated { field, missing: need - self.rest.len() });
        }
        Ok(count)
    }

    /// Ends the reading; an error if bytes are left.
    pub fn end(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            count => Err(DecodeError::TrailingBytes { count }),
        }
    }
}

/// `value` if it is at most `limit`.
pub fn within(field: &'static str, value: u64, limit: u64) -> Result<u64, DecodeError> {
    if value > limit {
        return Err(DecodeError::AboveLimit { field, value, limit });
    }
    Ok(value)
}

/// Writes the counterpart of what [`Reader`] reads.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty payload.
    pub fn new() -> Self {
        Writer::default()
    }

    /// An empty payload with room for `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Writer { bytes: Vec::with_capacity(bytes) }
    }

    /// Appends bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    /// Appends a u16.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends a u32.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends a u64.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends a byte string with its length. Longer ones than u32 counts are cut by no one: the caller's limits are
    /// far below.
    pub fn byte_string(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len() as u32).bytes(bytes)
    }

    /// Appends a string with its length.
    pub fn string(&mut self, text: &str) -> &mut Self {
        self.byte_string(text.as_bytes())
    }

    /// The payload.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
