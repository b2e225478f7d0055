//! `export`: tables of the ledger's file for other programs.

use std::io::{BufWriter, Write};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use kvasir_wire::note::Note;
use kvasir_wire::receipt::Receipt;
use rusqlite::Connection;
use rusqlite::types::Value;
use serde_json::json;

use crate::config::ConfigFlags;
use crate::store::open_for_reading;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kvasir-ledger export receipts --format csv > receipts.csv\n  \
                        kvasir-ledger export entries --format json > entries.json\n\n\
                        `entries` holds the notes themselves: sent again, in order, to another ledger, they make the same one.")]
pub(super) struct Export {
    /// What to write
    table: Table,
    /// How to write it
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    format: Format,
    #[command(flatten)]
    config: ConfigFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Table {
    /// One line a receipt, all its fields
    Receipts,
    /// One line a settlement
    Settlements,
    /// Every move of credit between two accounts
    Postings,
    /// Every note
    Entries,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Csv,
    Json,
}

impl Export {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let settings = self.config.settings()?;
        let connection = open_for_reading(&settings.store, &settings.network)?;
        let snapshot = connection.unchecked_transaction()?;
        let format = if json { Format::Json } else { self.format };
        let mut out = Out { to: BufWriter::new(std::io::stdout().lock()), format, rows: 0 };
        match self.table {
            Table::Receipts => receipts(&snapshot, &mut out)?,
            Table::Settlements => rows(
                &snapshot,
                &mut out,
                &["index", "id", "payer", "payee", "bytes", "nanokvr", "pending_until", "state"],
                "SELECT entry, id, payer, payee, bytes, nanokvr, pending_until,
                        COALESCE((SELECT CASE step WHEN 'post' THEN 'posted' ELSE 'reversed' END FROM postings
                                  WHERE cause = entry AND step IN ('post', 'reverse')), 'pending')
                 FROM settlements ORDER BY entry",
            )?,
            Table::Postings => rows(
                &snapshot,
                &mut out,
                &["number", "cause", "step", "debit_kind", "debit", "credit_kind", "credit", "nanokvr", "at"],
                "SELECT p.number, p.cause, p.step, d.kind, d.owner, c.kind, c.owner, p.nanokvr, p.at FROM postings p
                 JOIN accounts d ON d.number = p.debit JOIN accounts c ON c.number = p.credit ORDER BY p.number",
            )?,
            Table::Entries => rows(
                &snapshot,
                &mut out,
                &["index", "kind", "id", "leaf", "root", "received", "note"],
                "SELECT number, kind, id, leaf, root, received, note FROM entries ORDER BY number",
            )?,
        }
        out.finish()
    }
}

fn receipts<W: Write>(connection: &Connection, out: &mut Out<W>) -> Result<()> {
    let mut find =
        connection.prepare("SELECT number, id, note FROM entries WHERE kind = 'receipt' ORDER BY number")?;
    let mut rows = find.query([])?;
    let mut columns: Vec<String> = ["index", "id"].map(str::to_owned).into();
    while let Some(row) = rows.next()? {
        let index: i64 = row.get(0)?;
        let mut values = vec![Value::Integer(index), row.get(1)?];
        let text: String = row.get(2)?;
        let note = Note::parse(text.as_bytes()).with_context(|| format!("entry {index}: run `verify`"))?;
        // Only a text that is a receipt is split into its lines, which then have fixed names.
        Receipt::parse(note.text()).with_context(|| format!("entry {index}: run `verify`"))?;
        let fields = note.text().lines().skip(1).filter_map(|line| line.split_once(' '));
        for (name, value) in fields {
            if columns.len() <= values.len() {
                columns.push(name.to_owned());
            }
            // Counters stay numbers in JSON; digests of digits alone must not become some.
            let number = value.parse().ok().filter(|_| value.len() < 20);
            values.push(number.map_or_else(|| Value::Text(value.to_owned()), Value::Integer));
        }
        let names: Vec<&str> = columns.iter().map(String::as_str).collect();
        out.row(&names, values)?;
    }
    Ok(())
}

fn rows<W: Write>(connection: &Connection, out: &mut Out<W>, columns: &[&str], find: &str) -> Result<()> {
    let mut find = connection.prepare(find)?;
    let mut rows = find.query([])?;
    while let Some(row) = rows.next()? {
        let values = (0..columns.len()).map(|column| row.get(column)).collect::<rusqlite::Result<_>>()?;
        out.row(columns, values)?;
    }
    if out.rows == 0 && out.format == Format::Csv {
        writeln!(out.to, "{}", columns.join(","))?;
    }
    Ok(())
}

/// Writes rows as they come: CSV with a head line, or one JSON object `{"rows": [...]}`.
struct Out<W: Write> {
    to: W,
    format: Format,
    rows: u64,
}

impl<W: Write> Out<W> {
    fn row(&mut self, columns: &[&str], values: Vec<Value>) -> Result<()> {
        match self.format {
            Format::Csv => {
                if self.rows == 0 {
                    writeln!(self.to, "{}", columns.join(","))?;
                }
                let fields: Vec<String> = values.into_iter().map(csv).collect();
                writeln!(self.to, "{}", fields.join(","))?;
            }
            Format::Json => {
                let lead = if self.rows == 0 { "{\"rows\":[\n" } else { ",\n" };
                let object: serde_json::Map<String, serde_json::Value> = columns
                    .iter()
                    .map(|name| (*name).to_owned())
                    .zip(values.into_iter().map(plain))
                    .collect();
                write!(self.to, "{lead}{}", serde_json::Value::Object(object))?;
            }
        }
        self.rows += 1;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        if self.format == Format::Json {
            let lead = if self.rows == 0 { "{\"rows\":[" } else { "" };
            writeln!(self.to, "{lead}]}}")?;
        }
        self.to.flush()?;
        Ok(())
    }
}

fn plain(value: Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Integer(number) => json!(number),
        Value::Real(number) => json!(number),
        Value::Text(text) => json!(text),
        Value::Blob(bytes) => json!(hex::encode(bytes)),
    }
}

fn csv(value: Value) -> String {
    match plain(value) {
        serde_json::Value::String(text) if text.contains([',', '"', '\n']) => {
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

    #[test]
    fn csv_fields_are_quoted_where_needed() {
        assert_eq!(csv(Value::Text("a,\"b\"\nc".into())), "\"a,\"\"b\"\"\nc\"");
        assert_eq!(csv(Value::Text("plain".into())), "plain");
        assert_eq!(csv(Value::Blob(vec![0, 255])), "00ff");
        assert_eq!(csv(Value::Integer(-7)), "-7");
    }

    #[test]
    fn json_is_one_object_even_when_empty() {
        for count in 0..3 {
            let mut bytes = Vec::new();
            let mut out = Out { to: &mut bytes, format: Format::Json, rows: 0 };
            for number in 0..count {
                out.row(&["a"], vec![Value::Integer(number)]).unwrap();
            }
            out.finish().unwrap();
            let object: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(object["rows"].as_array().unwrap().len() as i64, count);
        }
    }
}
