//! Tables on their way to other programs: CSV with a head line, or one JSON object.

use std::io::Write;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use rusqlite::types::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Csv,
    Json,
}

/// Writes rows as they come: CSV with a head line, or one JSON object `{"rows": [...]}`. Numbers are whole numbers in both;
/// one with a fraction is an error, as amounts never have one. Bytes are lower-case hexadecimal.
pub(super) struct TableWriter<'a, W: Write> {
    to: W,
    format: Format,
    columns: &'a [&'a str],
    rows: u64,
}

impl<'a, W: Write> TableWriter<'a, W> {
    /// A table with these columns.
    pub(super) fn begin(mut to: W, format: Format, columns: &'a [&'a str]) -> Result<Self> {
        match format {
            Format::Csv => writeln!(to, "{}", columns.join(","))?,
            Format::Json => write!(to, "{{\"rows\":[")?,
        }
        Ok(Self { to, format, columns, rows: 0 })
    }

    /// The next row: one value for each column.
    pub(super) fn row(&mut self, values: Vec<Value>) -> Result<()> {
        ensure!(values.len() == self.columns.len(), "a row does not have a value for each column");
        let values = values.into_iter().map(plain).collect::<Result<Vec<_>>>()?;
        match self.format {
            Format::Csv => {
                let fields: Vec<String> = values.into_iter().map(csv).collect();
                writeln!(self.to, "{}", fields.join(","))?;
            }
            Format::Json => {
                let lead = if self.rows == 0 { "\n" } else { ",\n" };
                let object: serde_json::Map<String, serde_json::Value> =
                    self.columns.iter().map(|name| (*name).to_owned()).zip(values).collect();
                write!(self.to, "{lead}{}", serde_json::Value::Object(object))?;
            }
        }
        self.rows += 1;
        Ok(())
    }

    /// Ends the table.
    pub(super) fn finish(mut self) -> Result<()> {
        if self.format == Format::Json {
            writeln!(self.to, "]}}")?;
        }
        self.to.flush()?;
        Ok(())
    }
}

fn plain(value: Value) -> Result<serde_json::Value> {
    Ok(match value {
        Value::Null => serde_json::Value::Null,
        Value::Integer(number) => number.into(),
        Value::Real(number) => bail!("{number} is no whole number; run `verify`"),
        Value::Text(text) => text.into(),
        Value::Blob(bytes) => hex::encode(bytes).into(),
    })
}

fn csv(value: serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) if text.contains([',', '"', '\n', '\r']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        serde_json::Value::String(text) => text,
        serde_json::Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: Format, rows: Vec<Vec<Value>>) -> Result<String> {
        let mut bytes = Vec::new();
        let mut table = TableWriter::begin(&mut bytes, format, &["a", "b"])?;
        for row in rows {
            table.row(row)?;
        }
        table.finish()?;
        Ok(String::from_utf8(bytes)?)
    }

    #[test]
    fn csv_fields_are_quoted_where_needed() {
        let rows = vec![
            vec![Value::Text("a,\"b\"\nc".into()), Value::Text("plain".into())],
            vec![Value::Blob(vec![0, 255]), Value::Integer(-7)],
            vec![Value::Null, Value::Text("a\rb".into())],
        ];
        let text = "a,b\n\"a,\"\"b\"\"\nc\",plain\n00ff,-7\n,\"a\rb\"\n";
        assert_eq!(written(Format::Csv, rows).unwrap(), text);
        assert_eq!(written(Format::Csv, vec![]).unwrap(), "a,b\n");
    }

    #[test]
    fn json_is_one_object_even_when_empty() {
        for count in 0..3 {
            let rows = (0..count).map(|number| vec![Value::Integer(number), Value::Null]).collect();
            let text = written(Format::Json, rows).unwrap();
            let object: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(object["rows"].as_array().unwrap().len() as i64, count);
        }
    }

    #[test]
    fn no_number_is_rounded_and_no_row_is_short() {
        let large = vec![Value::Integer(i64::MAX), Value::Integer(i64::MIN)];
        for format in [Format::Csv, Format::Json] {
            let text = written(format, vec![large.clone()]).unwrap();
            assert!(text.contains("9223372036854775807") && text.contains("-9223372036854775808"), "{text}");
            assert!(written(format, vec![vec![Value::Real(0.5), Value::Null]]).is_err());
            assert!(written(format, vec![vec![Value::Null]]).is_err());
        }
    }
}
