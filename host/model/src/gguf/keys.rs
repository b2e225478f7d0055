//! Typed access to a GGUF file's keys; an absent key or a wrong type is an error that names the key.

use std::collections::BTreeMap;
use std::path::Path;

use super::value::{Array, Value, ValueType};
use crate::config::Stated;
use crate::error::{ModelError, Place};

/// The key-value pairs of one file.
pub(super) struct Keys<'a> {
    path: &'a Path,
    /// By name: where the value starts, and the value.
    entries: BTreeMap<&'a str, (u64, Value<'a>)>,
}

impl<'a> Keys<'a> {
    pub(super) fn new(path: &'a Path) -> Keys<'a> {
        Keys { path, entries: BTreeMap::new() }
    }

    /// The file that they stand in.
    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    /// Add a pair; false if there is one of that key already.
    pub(super) fn insert(&mut self, key: &'a str, offset: u64, value: Value<'a>) -> bool {
        self.entries.insert(key, (offset, value)).is_none()
    }

    /// Where a key's value stands; byte 0 for one that is absent.
    pub(super) fn place(&self, key: &str) -> Place {
        let offset = self.entries.get(key).map_or(0, |(offset, _)| *offset);
        Place { file: self.path.to_owned(), part: format!("key {key}"), offset }
    }

    pub(super) fn missing(&self, key: &str) -> ModelError {
        ModelError::MissingKey { file: self.path.to_owned(), key: key.to_owned() }
    }

    pub(super) fn unsupported(&self, key: &str, what: String) -> ModelError {
        ModelError::Unsupported { at: self.place(key), what }
    }

    pub(super) fn configuration(&self, key: &str, value: impl ToString, why: &str) -> ModelError {
        ModelError::Configuration {
            file: self.path.to_owned(),
            key: key.to_owned(),
            value: value.to_string(),
            why: why.to_owned(),
        }
    }

    fn wrong_type(&self, key: &str, expected: &'static str, value: &Value<'_>) -> ModelError {
        ModelError::WrongType { at: self.place(key), expected, found: value.type_name() }
    }

    /// A whole number of at least 0, of any integer type.
    pub(super) fn optional_integer(&self, key: &str) -> Result<Option<u64>, ModelError> {
        let Some((_, value)) = self.entries.get(key) else { return Ok(None) };
        let integer = match value {
            Value::Integer(integer) => u64::try_from(*integer).ok(),
            _ => None,
        };
        integer.map(Some).ok_or_else(|| self.wrong_type(key, "an integer of at least 0", value))
    }

    pub(super) fn integer(&self, key: &str) -> Result<Stated<u64>, ModelError> {
        let value = self.optional_integer(key)?.ok_or_else(|| self.missing(key))?;
        Ok(Stated { key: key.to_owned(), value })
    }

    pub(super) fn optional_float(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.entries.get(key) {
            None => Ok(None),
            Some((_, Value::Float(value))) => Ok(Some(*value)),
            Some((_, value)) => Err(self.wrong_type(key, "a float", value)),
        }
    }

    pub(super) fn float(&self, key: &str) -> Result<Stated<f64>, ModelError> {
        let value = self.optional_float(key)?.ok_or_else(|| self.missing(key))?;
        Ok(Stated { key: key.to_owned(), value })
    }

    pub(super) fn optional_bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        match self.entries.get(key) {
            None => Ok(None),
            Some((_, Value::Bool(value))) => Ok(Some(*value)),
            Some((_, value)) => Err(self.wrong_type(key, "a bool", value)),
        }
    }

    pub(super) fn optional_string(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        match self.entries.get(key) {
            None => Ok(None),
            Some((_, Value::String(value))) => Ok(Some(value)),
            Some((_, value)) => Err(self.wrong_type(key, "a string", value)),
        }
    }

    pub(super) fn string(&self, key: &str) -> Result<&'a str, ModelError> {
        self.optional_string(key)?.ok_or_else(|| self.missing(key))
    }

    fn optional_array(&self, key: &str, expected: &'static str) -> Result<Option<Array<'a>>, ModelError> {
        match self.entries.get(key) {
            None => Ok(None),
            Some((_, Value::Array(array))) => Ok(Some(*array)),
            Some((_, value)) => Err(self.wrong_type(key, expected, value)),
        }
    }

    pub(super) fn optional_bools(&self, key: &str) -> Result<Option<Vec<bool>>, ModelError> {
        let Some(array) = self.optional_array(key, "an array of bool")? else { return Ok(None) };
        let bools: Vec<bool> = (array.values())
            .filter_map(|value| match value {
                Value::Bool(value) => Some(value),
                _ => None,
            })
            .collect();
        if bools.len() != array.count {
            return Err(self.wrong_type(key, "an array of bool", &Value::Array(array)));
        }
        Ok(Some(bools))
    }

    /// An array of strings, borrowed from the file. Its length was limited when the header was read.
    pub(super) fn strings(&self, key: &str) -> Result<Vec<&'a str>, ModelError> {
        let expected = "an array of string";
        let array = self.optional_array(key, expected)?.ok_or_else(|| self.missing(key))?;
        if array.kind != ValueType::String {
            return Err(self.wrong_type(key, expected, &Value::Array(array)));
        }
        Ok((array.values())
            .filter_map(|value| match value {
                Value::String(text) => Some(text),
                _ => None,
            })
            .collect())
    }

    /// An array of integers.
    pub(super) fn optional_integers(&self, key: &str) -> Result<Option<Vec<i128>>, ModelError> {
        let expected = "an array of integers";
        let Some(array) = self.optional_array(key, expected)? else { return Ok(None) };
        let integers: Vec<i128> = (array.values())
            .filter_map(|value| match value {
                Value::Integer(integer) => Some(integer),
                _ => None,
            })
            .collect();
        if integers.len() != array.count {
            return Err(self.wrong_type(key, expected, &Value::Array(array)));
        }
        Ok(Some(integers))
    }
}
