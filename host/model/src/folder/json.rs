//! JSON files of a folder: read within a limit, asked for typed values, errors that name file and key.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::config::Stated;
use crate::error::{ModelError, Place};
use crate::mapping::{is_there, open_regular};

/// A parsed file.
pub(super) struct JsonFile {
    path: PathBuf,
    value: Value,
}

/// An object in a file; `prefix` is how its keys are called in errors.
#[derive(Clone, Copy)]
pub(super) struct Object<'a> {
    file: &'a JsonFile,
    prefix: &'static str,
    map: &'a Map<String, Value>,
}

/// Read a whole file of at most `limit` bytes.
pub(super) fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, ModelError> {
    let file = open_regular(path)?;
    let mut bytes = Vec::new();
    // One byte more than the limit tells a file that is too long, whatever its metadata says.
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|cause| ModelError::Unreadable { path: path.to_owned(), cause })?;
    if bytes.len() as u64 > limit {
        let at = Place { file: path.to_owned(), part: "file".to_owned(), offset: limit };
        return Err(ModelError::OverLimit { at, what: "length in bytes", value: bytes.len() as u64, limit });
    }
    Ok(bytes)
}

/// The same; `None` where there is nothing of that name. A link that leads nowhere is something.
pub(super) fn read_optional_file(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ModelError> {
    if is_there(path)? { read_file(path, limit).map(Some) } else { Ok(None) }
}

/// Damage at a byte of a file that has no parts.
pub(super) fn damaged(path: &Path, offset: u64, why: String) -> ModelError {
    ModelError::Damaged { at: Place { file: path.to_owned(), part: "text".to_owned(), offset }, why }
}

/// The byte at which the parser stopped, which it tells by line and column.
pub(super) fn stopped_at(text: &[u8], error: &serde_json::Error) -> u64 {
    let before: usize =
        text.split_inclusive(|&b| b == b'\n').take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    (before + error.column().saturating_sub(1)) as u64
}

impl JsonFile {
    pub(super) fn read(path: &Path, limit: u64) -> Result<JsonFile, ModelError> {
        let bytes = read_file(path, limit)?;
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| damaged(path, stopped_at(&bytes, &error), format!("not JSON: {error}")))?;
        Ok(JsonFile { path: path.to_owned(), value })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The object that the file is.
    pub(super) fn root(&self) -> Result<Object<'_>, ModelError> {
        match &self.value {
            Value::Object(map) => Ok(Object { file: self, prefix: "", map }),
            other => Err(damaged(&self.path, 0, format!("an object was expected, not {}", kind(other)))),
        }
    }

    pub(super) fn complaint(&self, key: &str, value: impl ToString, why: String) -> ModelError {
        ModelError::Configuration {
            file: self.path.clone(),
            key: key.to_owned(),
            value: value.to_string(),
            why,
        }
    }
}

impl<'a> Object<'a> {
    fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn place(&self, key: &str) -> Place {
        Place { file: self.file.path.clone(), part: format!("key {}", self.name(key)), offset: 0 }
    }

    fn wrong_type(&self, key: &str, expected: &'static str, value: &Value) -> ModelError {
        ModelError::WrongType { at: self.place(key), expected, found: kind(value).to_owned() }
    }

    pub(super) fn missing(&self, key: &str) -> ModelError {
        ModelError::MissingKey { file: self.file.path.clone(), key: self.name(key) }
    }

    pub(super) fn unsupported(&self, key: &str, what: String) -> ModelError {
        ModelError::Unsupported { at: self.place(key), what }
    }

    pub(super) fn complaint(&self, key: &str, value: impl ToString, why: String) -> ModelError {
        self.file.complaint(&self.name(key), value, why)
    }

    /// The value of a key; a null counts as absent.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// An object inside this one.
    pub(super) fn object(&self, key: &str, prefix: &'static str) -> Result<Option<Object<'a>>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Object { file: self.file, prefix, map })),
            Some(other) => Err(self.wrong_type(key, "an object", other)),
        }
    }

    pub(super) fn optional_integer(&self, key: &str) -> Result<Option<u64>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_u64().map(Some).ok_or_else(|| self.wrong_type(key, "an integer of at least 0", value))
    }

    pub(super) fn integer(&self, key: &str) -> Result<Stated<u64>, ModelError> {
        let value = self.optional_integer(key)?.ok_or_else(|| self.missing(key))?;
        Ok(Stated { key: self.name(key), value })
    }

    pub(super) fn optional_float(&self, key: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong_type(key, "a number", value))
    }

    pub(super) fn float(&self, key: &str) -> Result<Stated<f64>, ModelError> {
        let value = self.optional_float(key)?.ok_or_else(|| self.missing(key))?;
        Ok(Stated { key: self.name(key), value })
    }

    pub(super) fn optional_bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong_type(key, "true or false", value))
    }

    pub(super) fn optional_string(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong_type(key, "a string", value))
    }

    pub(super) fn optional_list(&self, key: &str) -> Result<Option<&'a [Value]>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(other) => Err(self.wrong_type(key, "a list", other)),
        }
    }

    /// An integer, a list of integers, or nothing.
    pub(super) fn integers(&self, key: &str) -> Result<Vec<u64>, ModelError> {
        let expected = "an integer of at least 0, or a list of them";
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        values
            .iter()
            .map(|value| value.as_u64().ok_or_else(|| self.wrong_type(key, expected, value)))
            .collect()
    }

    /// A special token: its text, or an object that holds it as `content`.
    pub(super) fn text_or_content(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let text = value.as_str().or_else(|| value.get("content")?.as_str());
        text.map(Some).ok_or_else(|| self.wrong_type(key, "a token's text", value))
    }

    /// `chat_template`: a text, or a list of named ones, of which the default counts.
    pub(super) fn chat_template(&self) -> Result<Option<&'a str>, ModelError> {
        let key = "chat_template";
        let Some(value) = self.get(key) else { return Ok(None) };
        let named = |value: &'a Value| -> Option<&'a str> {
            let default = |one: &&Value| one.get("name").and_then(Value::as_str) == Some("default");
            value.as_array()?.iter().find(default)?.get("template")?.as_str()
        };
        let text = value.as_str().or_else(|| named(value));
        text.map(Some)
            .ok_or_else(|| self.wrong_type(key, "a template, or a list with one named default", value))
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Number(number) if number.is_f64() => "a float",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
