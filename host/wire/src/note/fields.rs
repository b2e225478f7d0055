//! The fixed line grammar inside our notes: a constant first line, then `name value` lines in a fixed order.
//!
//! One space, no optional lines, ASCII decimals without leading zeros up to 2^63 - 1, lower-case hexadecimal. So two
//! different texts never mean the same, and no canonicalisation step exists that could go wrong.

use std::fmt::{Display, Write as _};
use std::str::{FromStr, Split};

use thiserror::Error;

use crate::money::MAX_NUMBER;

/// A text that leaves the grammar; line numbers count from 1.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FieldError {
    /// The first line names another kind of note or another version.
    #[error("line 1 should be `{0}`")]
    Kind(&'static str),
    /// A line is missing or has another name.
    #[error("line {line} should be `{name} ...`")]
    Missing {
        /// Line number.
        line: usize,
        /// Field that was expected.
        name: &'static str,
    },
    /// A value has another form than its field demands.
    #[error("line {line}: `{name}` should be {expected}")]
    Value {
        /// Line number.
        line: usize,
        /// Field.
        name: &'static str,
        /// What is accepted.
        expected: &'static str,
    },
    /// Something follows the last field.
    #[error("line {0} should not exist")]
    Trailing(usize),
}

/// Reads the lines of a note's text in order.
pub struct FieldReader<'a> {
    lines: std::iter::Peekable<Split<'a, char>>,
    line: usize,
}

impl<'a> FieldReader<'a> {
    /// Checks the first line of `text` (which ends in a line feed).
    pub fn new(text: &'a str, kind: &'static str) -> Result<Self, FieldError> {
        let body = text.strip_suffix('\n').ok_or(FieldError::Kind(kind))?;
        let mut lines = body.split('\n').peekable();
        if lines.next() != Some(kind) {
            return Err(FieldError::Kind(kind));
        }
        Ok(Self { lines, line: 1 })
    }

    /// The raw value of the next line, which must be `name value`.
    pub fn text(&mut self, name: &'static str) -> Result<&'a str, FieldError> {
        self.line += 1;
        let missing = FieldError::Missing { line: self.line, name };
        let line = self.lines.next().ok_or(missing.clone())?;
        line.strip_prefix(name).and_then(|rest| rest.strip_prefix(' ')).ok_or(missing)
    }

    /// True where the next line carries `name`: for fields that may repeat.
    pub fn next_is(&mut self, name: &str) -> bool {
        let line = self.lines.peek().copied();
        line.and_then(|line| line.strip_prefix(name)).is_some_and(|rest| rest.starts_with(' '))
    }

    /// A value read by its `FromStr`, which must accept one spelling only.
    pub fn value<T: FromStr>(&mut self, name: &'static str, expected: &'static str) -> Result<T, FieldError> {
        let text = self.text(name)?;
        text.parse().map_err(|_| self.wrong(name, expected))
    }

    /// A canonical decimal.
    pub fn number(&mut self, name: &'static str) -> Result<u64, FieldError> {
        let text = self.text(name)?;
        canonical_number(text).ok_or_else(|| self.wrong(name, NUMBER))
    }

    /// The error for a value of the line just read.
    pub fn wrong(&self, name: &'static str, expected: &'static str) -> FieldError {
        FieldError::Value { line: self.line, name, expected }
    }

    /// Nothing may follow.
    pub fn end(mut self) -> Result<(), FieldError> {
        match self.lines.next() {
            None => Ok(()),
            Some(_) => Err(FieldError::Trailing(self.line + 1)),
        }
    }
}

/// Writes the lines of a note's text in order.
pub struct FieldWriter(String);

impl FieldWriter {
    /// Starts with the constant first line.
    pub fn new(kind: &str) -> Self {
        Self(format!("{kind}\n"))
    }

    /// Appends `name value`.
    pub fn line(mut self, name: &str, value: impl Display) -> Self {
        // Writing into a String cannot fail.
        let _ = writeln!(self.0, "{name} {value}");
        self
    }

    /// The finished text.
    pub fn finish(self) -> String {
        self.0
    }
}

/// What a number field accepts, for error messages.
const NUMBER: &str = "a decimal from 0 to 9223372036854775807 without leading zeros";

/// `0` or a decimal without leading zeros or sign, at most 2^63 - 1.
pub fn canonical_number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || text.is_empty() || (text.len() > 1 && text.starts_with('0')) {
        return None;
    }
    text.parse().ok().filter(|number| *number <= MAX_NUMBER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_spelling() {
        for (text, number) in [("0", 0), ("7", 7), ("9223372036854775807", MAX_NUMBER)] {
            assert_eq!(canonical_number(text), Some(number));
        }
        for text in ["", "00", "07", "+7", "-7", " 7", "7 ", "9223372036854775808", "1e3", "0x7", "٧"] {
            assert_eq!(canonical_number(text), None, "{text}");
        }
    }

    #[test]
    fn order_names_and_end_are_fixed() {
        let text = FieldWriter::new("kind@v1").line("a", 1).line("b", "two words").finish();
        assert_eq!(text, "kind@v1\na 1\nb two words\n");
        let mut reader = FieldReader::new(&text, "kind@v1").unwrap();
        assert!(!reader.next_is("b"));
        assert_eq!(reader.number("a"), Ok(1));
        assert_eq!(reader.text("b"), Ok("two words"));
        assert_eq!(reader.end(), Ok(()));

        let reader = FieldReader::new(&text, "kind@v2");
        assert!(matches!(reader.map(|_| ()), Err(FieldError::Kind("kind@v2"))));
        let mut reader = FieldReader::new(&text, "kind@v1").unwrap();
        assert_eq!(reader.text("b"), Err(FieldError::Missing { line: 2, name: "b" }));
        let mut reader = FieldReader::new(&text, "kind@v1").unwrap();
        reader.number("a").unwrap();
        assert_eq!(reader.end(), Err(FieldError::Trailing(3)));
        let mut reader = FieldReader::new("kind@v1\n", "kind@v1").unwrap();
        assert_eq!(reader.text("a"), Err(FieldError::Missing { line: 2, name: "a" }));
    }
}
