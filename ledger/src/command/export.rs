//! `export`: tables of the ledger's file for other programs.

use std::io::{BufWriter, Write};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use kvasir_wire::note::Note;
use rusqlite::Connection;
use rusqlite::types::Value;

use super::table::{Format, TableWriter};
use crate::config::ConfigFlags;
use crate::store::{balances, open_for_reading};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kvasir-ledger export receipts --format csv > receipts.csv\n  \
                        kvasir-ledger export balances --format json --store /backup/ledger.db\n\n\
                        `entries` holds the notes themselves: receipts and what they rest on are taken by any ledger of the network,\n\
                        however late and however often. Settlements are of their own time, and a ledger's words about its keys its own.\n\
                        Amounts are whole nanoKVR, also in JSON: read them as integers of 64 bits.")]
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
    /// One line for each session in a settlement
    SettledSessions,
    /// Every move of credit between two accounts
    Postings,
    /// What each account holds
    Balances,
    /// Prices of a byte
    Prices,
    /// What sessions may be billed to which account
    Grants,
    /// Credit that the treasury put into accounts
    Fundings,
    /// Which worker earns for which wallet
    Delegations,
    /// Settlements that were reversed, and why
    Corrections,
    /// What auditors found
    Audits,
    /// Measures against workers
    Penalties,
    /// What workers said to them
    Appeals,
    /// Keys that the ledger believes from an entry on, or no longer
    Keys,
    /// Logs that this one continues
    Origins,
    /// Receipts that contradict another one
    Conflicts,
    /// Every note
    Entries,
}

/// Where a table's rows come from.
enum Rows {
    /// A question: its columns.
    Question(&'static str),
    /// What every account holds.
    Balances,
    /// The notes of a kind, a column for each line of their text after the entry's number and identity.
    Notes(&'static str),
}

/// Columns whose values are whole numbers in notes. All others are text, also where they hold nothing but digits.
const NUMBERS: [&str; 15] = [
    "up",
    "down",
    "calls",
    "rows",
    "from",
    "to",
    "until",
    "final",
    "seq",
    "item",
    "bytes",
    "nanokvr",
    "nanokvr_per_byte",
    "at",
    "size",
];

impl Table {
    fn columns(self) -> &'static [&'static str] {
        match self {
            Table::Receipts => &[
                "index", "id", "network", "session", "grant", "seq", "prev", "hub", "worker", "backbone",
                "payee", "model", "plugin", "class", "up", "down", "calls", "rows", "work", "price", "from",
                "to", "final",
            ],
            Table::Settlements => {
                &["index", "id", "payer", "payee", "bytes", "nanokvr", "pending_until", "state"]
            }
            Table::SettledSessions => &["index", "settlement", "session", "from_seq", "to_seq", "bytes"],
            Table::Postings => {
                &["number", "cause", "step", "debit_kind", "debit", "credit_kind", "credit", "nanokvr", "at"]
            }
            Table::Balances => &["kind", "owner", "nanokvr"],
            Table::Prices => &["index", "id", "network", "nanokvr_per_byte", "from"],
            Table::Grants => &[
                "index", "id", "network", "session", "hub", "worker", "backbone", "price", "bytes", "from",
                "until",
            ],
            Table::Fundings => &["index", "id", "network", "account", "nanokvr", "nonce", "at"],
            Table::Delegations => &["index", "id", "network", "wallet", "worker", "from", "until"],
            Table::Corrections => &["index", "id", "network", "settlement", "reason", "at"],
            Table::Audits => &[
                "index",
                "id",
                "network",
                "auditor",
                "session",
                "seq",
                "item",
                "work",
                "verdict",
                "expected",
                "got",
                "model",
                "plugin",
                "checkpoint",
                "at",
            ],
            Table::Penalties => &["index", "id", "network", "worker", "measure", "reason", "evidence", "at"],
            Table::Appeals => &["index", "id", "network", "worker", "penalty", "reason", "at"],
            Table::Keys => &["index", "id", "network", "role", "key", "state", "at"],
            Table::Origins => &["index", "id", "network", "origin", "previous", "size", "root", "at"],
            Table::Conflicts => &["id", "against", "received", "note"],
            Table::Entries => &["index", "kind", "id", "leaf", "root", "received", "note"],
        }
    }

    fn rows(self) -> Rows {
        match self {
            Table::Receipts => Rows::Notes("receipt"),
            Table::Prices => Rows::Notes("price"),
            Table::Grants => Rows::Notes("grant"),
            Table::Fundings => Rows::Notes("fund"),
            Table::Delegations => Rows::Notes("delegate"),
            Table::Corrections => Rows::Notes("correct"),
            Table::Audits => Rows::Notes("audit"),
            Table::Penalties => Rows::Notes("penalty"),
            Table::Appeals => Rows::Notes("appeal"),
            Table::Keys => Rows::Notes("key"),
            Table::Origins => Rows::Notes("origin"),
            Table::Settlements => Rows::Question(
                "SELECT entry, id, payer, payee, bytes, nanokvr, pending_until,
                        COALESCE((SELECT CASE step WHEN 'post' THEN 'posted' ELSE 'reversed' END FROM postings
                                  WHERE cause = entry AND step IN ('post', 'reverse')), 'pending')
                 FROM settlements ORDER BY entry",
            ),
            Table::SettledSessions => Rows::Question(
                "SELECT p.entry, s.id, p.session, p.from_seq, p.to_seq, p.bytes FROM settled_sessions p
                 JOIN settlements s ON s.entry = p.entry ORDER BY p.entry, p.session",
            ),
            Table::Postings => Rows::Question(
                "SELECT p.number, p.cause, p.step, d.kind, d.owner, c.kind, c.owner, p.nanokvr, p.at FROM postings p
                 JOIN accounts d ON d.number = p.debit JOIN accounts c ON c.number = p.credit ORDER BY p.number",
            ),
            Table::Balances => Rows::Balances,
            Table::Conflicts => {
                Rows::Question("SELECT id, against, received, note FROM conflicts ORDER BY rowid")
            }
            Table::Entries => Rows::Question(
                "SELECT number, kind, id, leaf, root, received, note FROM entries ORDER BY number",
            ),
        }
    }
}

impl Export {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let settings = self.config.settings()?;
        let connection = open_for_reading(&settings.store, &settings.network)?;
        let snapshot = connection.unchecked_transaction()?;
        let format = if json { Format::Json } else { self.format };
        write(&snapshot, self.table, format, BufWriter::new(std::io::stdout().lock()))
    }
}

fn write(connection: &Connection, table: Table, format: Format, to: impl Write) -> Result<()> {
    let columns = table.columns();
    let mut out = TableWriter::begin(to, format, columns)?;
    match table.rows() {
        Rows::Question(find) => answer(connection, find, columns.len(), &mut out)?,
        Rows::Balances => answer(connection, &balances(), columns.len(), &mut out)?,
        Rows::Notes(kind) => {
            let find = "SELECT number, id, note FROM entries WHERE kind = ? ORDER BY number";
            let mut find = connection.prepare(find)?;
            let mut rows = find.query([kind])?;
            while let Some(row) = rows.next()? {
                let index: i64 = row.get(0)?;
                let mut values = vec![Value::Integer(index), row.get(1)?];
                let note: String = row.get(2)?;
                fields(&note, kind, &columns[2..], &mut values)
                    .with_context(|| format!("entry {index}: run `verify`"))?;
                out.row(values)?;
            }
        }
    }
    out.finish()
}

fn answer(
    connection: &Connection,
    find: &str,
    columns: usize,
    out: &mut TableWriter<'_, impl Write>,
) -> Result<()> {
    let mut find = connection.prepare(find)?;
    let mut rows = find.query([])?;
    while let Some(row) = rows.next()? {
        let values = (0..columns).map(|column| row.get(column));
        out.row(values.collect::<rusqlite::Result<_>>()?)?;
    }
    Ok(())
}

/// The values of a note's lines, which stand in one order and have fixed names.
fn fields(note: &str, kind: &str, columns: &[&str], values: &mut Vec<Value>) -> Result<()> {
    let note = Note::parse(note.as_bytes())?;
    let mut lines = note.text().lines();
    ensure!(lines.next() == Some(format!("kvasir.example/{kind}@v1").as_str()), "its text is no {kind}");
    for column in columns {
        let (name, value) =
            lines.next().and_then(|line| line.split_once(' ')).context("a line is missing")?;
        // `index` is the entry's own number in every table.
        let name = if name == "index" { "item".to_owned() } else { name.replace('-', "_") };
        ensure!(name == *column, "`{name}` stands where `{column}` belongs");
        values.push(if NUMBERS.contains(column) {
            Value::Integer(value.parse().with_context(|| format!("`{name}` is no number"))?)
        } else {
            Value::Text(value.to_owned())
        });
    }
    ensure!(lines.next().is_none(), "it has lines beyond those of a {kind}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_its_head_and_is_a_table_even_when_empty() {
        let network = "atlas".parse().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        crate::store::Store::create(&path, &network).unwrap();
        let connection = open_for_reading(&path, &network).unwrap();
        for table in Table::value_variants() {
            let mut bytes = Vec::new();
            write(&connection, *table, Format::Csv, &mut bytes).unwrap();
            assert_eq!(String::from_utf8(bytes).unwrap(), format!("{}\n", table.columns().join(",")));
        }
    }

    #[test]
    fn numbers_are_numbers_where_the_kind_says_so_and_nowhere_else() {
        let note = |text: &str| {
            let mut note = Note::unsigned(text).unwrap();
            note.sign("x".parse().unwrap(), &kvasir_wire::key::SecretKey::from_seed([1; 32])).unwrap();
            note.to_string()
        };
        let correct = |reason: &str, at: &str| {
            note(&format!(
                "kvasir.example/correct@v1\nnetwork 7\nsettlement {}\nreason {reason}\nat {at}\n",
                "1".repeat(64)
            ))
        };
        let columns = &Table::Corrections.columns()[2..];
        let mut values = Vec::new();
        fields(&correct("+5", "9223372036854775807"), "correct", columns, &mut values).unwrap();
        let texts = ["7", &"1".repeat(64), "+5"].map(|text| Value::Text(text.to_owned()));
        assert_eq!(values[..3], texts);
        assert_eq!(values[3], Value::Integer(i64::MAX));
        for damaged in [
            correct("x", "later"),
            note("kvasir.example/correct@v1\nnetwork 7\n"),
            note("kvasir.example/price@v1\nnetwork 7\n"),
        ] {
            assert!(fields(&damaged, "correct", columns, &mut Vec::new()).is_err(), "{damaged}");
        }
    }
}
