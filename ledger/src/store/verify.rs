//! Verifying a ledger's file: every entry is replayed into an empty ledger by the rules that accepted it, and whatever
//! the file says otherwise (hashes, roots, tables, postings) is compared. Names the first index that is wrong.
//!
//! What it cannot find: entries cut off at the end, and a file rewritten as a whole by someone who holds the keys. For
//! that, keep the number of entries and the root that `GET /ready` gave earlier, elsewhere.

use std::collections::BTreeSet;
use std::path::Path;

use kvasir_merkle::{Accumulator, Hash, leaf_hash};
use kvasir_wire::note::{NetworkName, Note};
use kvasir_wire::receipt::Receipt;
use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode};
use serde::Serialize;
use thiserror::Error;

use super::rows::unsigned;
use super::{Keys, Store, at};
use crate::refusal::LedgerError;

/// What was verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Entries replayed.
    pub entries: u64,
    /// Receipts among them.
    pub receipts: u64,
    /// Settlements among them.
    pub settlements: u64,
    /// Conflicting receipts kept as evidence.
    pub conflicts: u64,
    /// RFC 6962 root over all entries.
    pub root: String,
    /// Every account's balance, recomputed from the postings.
    pub balances: Vec<Balance>,
}

/// One account's balance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Balance {
    /// `treasury`, `payer`, `pending` or `posted`.
    pub kind: String,
    /// Digest of the key; zeros for the treasury.
    pub owner: String,
    /// Credits minus debits. The treasury's is negative: what it has put into circulation.
    pub nanokvr: i64,
}

/// Why a ledger is not in order.
#[derive(Debug, Error)]
pub enum VerifyError {
    /// The file cannot be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The first entry that is wrong, or whose postings are.
    #[error("entry {index} is wrong: {reason}")]
    Entry {
        /// Its index.
        index: u64,
        /// What is wrong.
        reason: String,
    },
    /// Wrong beyond any single entry.
    #[error("the file is wrong: {0}")]
    File(String),
}

impl VerifyError {
    /// Whether this says something about the ledger. Otherwise nothing is known of it: verifying itself failed.
    pub fn is_fault(&self) -> bool {
        let VerifyError::Ledger(error) = self else { return true };
        match error {
            LedgerError::Database { source, .. } => match source.sqlite_error_code() {
                Some(code) => matches!(code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase),
                // A row that holds something else than such rows do.
                None => true,
            },
            LedgerError::Damaged { .. } => true,
            _ => false,
        }
    }
}

/// One row of `entries` with everything that is claimed of it.
struct Claimed {
    number: i64,
    kind: String,
    id: Vec<u8>,
    leaf: Vec<u8>,
    root: Vec<u8>,
    received: i64,
    note: String,
}

/// Tables that are read out of notes, by entry.
const DERIVED: [&str; 6] =
    ["sessions", "receipts", "grants", "delegations", "settlements", "settled_sessions"];

const POSTINGS: &str = "SELECT p.step, d.kind, d.owner, c.kind, c.owner, p.nanokvr, p.at FROM postings p
     JOIN accounts d ON d.number = p.debit JOIN accounts c ON c.number = p.credit";

impl Store {
    /// Verifies the ledger behind `connection` with `keys`, retired ones included. `progress` is told after each
    /// entry how many of how many are done.
    pub fn verify(
        connection: &Connection,
        path: &Path,
        network: &NetworkName,
        keys: &Keys,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<VerifyReport, VerifyError> {
        match Self::verified(connection, path, network, keys, progress) {
            // A question that fails since a table is not the ledger's says something about the file.
            Err(VerifyError::Ledger(error)) => Err(match super::file::difference(connection, network) {
                Ok(Some(difference)) => VerifyError::File(difference),
                _ => VerifyError::Ledger(error),
            }),
            verdict => verdict,
        }
    }

    fn verified(
        connection: &Connection,
        path: &Path,
        network: &NetworkName,
        keys: &Keys,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<VerifyReport, VerifyError> {
        let failed = at(path);
        let file = connection.unchecked_transaction().map_err(&failed)?;
        check_file(&file).map_err(&failed)??;
        let mut replay = Store::in_memory(network, keys.with_retired())?;
        let total: i64 =
            file.query_row("SELECT COUNT(*) FROM entries", [], |row| row.get(0)).map_err(&failed)?;
        let (mut tree, mut latest) = (Accumulator::new(), 0);
        let (mut receipts, mut settlements) = (0, 0);
        let mut find = file
            .prepare("SELECT number, kind, id, leaf, root, received, note FROM entries ORDER BY number")
            .map_err(&failed)?;
        let mut rows = find.query([]).map_err(&failed)?;
        while let Some(row) = rows.next().map_err(&failed)? {
            let index = tree.size();
            let wrong = |reason: String| VerifyError::Entry { index, reason };
            let claimed = claimed(row).map_err(|error| match error.sqlite_error_code() {
                Some(_) => VerifyError::from(failed(error)),
                // Bytes that are no text, or a number where a text belongs.
                None => wrong(format!("its row cannot be read: {error}")),
            })?;
            if unsigned(claimed.number) != index || claimed.number < 0 {
                return Err(wrong(format!("it is missing, the next one is {}", claimed.number)));
            }
            if claimed.received < latest {
                return Err(wrong(format!(
                    "received at {}, the one before at {latest}: time ran backwards",
                    claimed.received
                )));
            }
            latest = claimed.received;
            tree.push(leaf_hash(claimed.note.as_bytes()));
            claimed.check_hashes(&tree).map_err(wrong)?;
            claimed.replay_into(&mut replay, index)?.map_err(wrong)?;
            for table in DERIVED {
                let rows = |connection: &Connection| derived(connection, table, claimed.number);
                let (kept, expected) =
                    (rows(&file).map_err(&failed)?, rows(&replay.connection).map_err(&failed)?);
                if kept != expected {
                    return Err(wrong(format!("table {table} says something else than the note")));
                }
            }
            let moves = |connection: &Connection| postings(connection, claimed.number);
            if moves(&file).map_err(&failed)? != moves(&replay.connection).map_err(&failed)? {
                return Err(wrong("its postings are not what the note moves".to_owned()));
            }
            receipts += u64::from(claimed.kind == "receipt");
            settlements += u64::from(claimed.kind == "settle");
            progress(index + 1, unsigned(total));
        }
        check_late_postings(&file, &replay.connection).map_err(&failed)??;
        check_nothing_else(&file, &replay.connection).map_err(&failed)??;
        check_unsettled(&file, &replay.connection).map_err(&failed)??;
        let conflicts = check_conflicts(&file).map_err(&failed)??;
        // At the end: it names no entry.
        if let Some(difference) = super::file::difference(&file, network).map_err(&failed)? {
            return Err(VerifyError::File(difference));
        }
        let balances = balances(&file).map_err(&failed)?;
        if let Some(overdrawn) = balances.iter().find(|b| b.kind != "treasury" && b.nanokvr < 0) {
            let Balance { kind, owner, nanokvr } = overdrawn;
            return Err(VerifyError::File(format!("{kind} account {owner} is overdrawn: {nanokvr} nanoKVR")));
        }
        let (entries, root) = (tree.size(), tree.root().to_string());
        Ok(VerifyReport { entries, receipts, settlements, conflicts, root, balances })
    }
}

impl Keys {
    /// Every retired key counted in each role: enough to verify what is stored, never to accept more.
    fn with_retired(&self) -> Keys {
        let with = |keys: &[_]| keys.iter().chain(&self.retired).copied().collect();
        Keys {
            hubs: with(&self.hubs),
            treasury: with(&self.treasury),
            settlers: with(&self.settlers),
            retired: Vec::new(),
        }
    }
}

impl Claimed {
    fn check_hashes(&self, tree: &Accumulator) -> Result<(), String> {
        let note = Note::parse(self.note.as_bytes()).map_err(|error| error.to_string())?;
        for (what, kept, expected) in [
            ("leaf", &self.leaf, note.leaf_hash().0),
            ("id", &self.id, note.text_digest()),
            ("root", &self.root, tree.root().0),
        ] {
            if *kept != expected {
                return Err(format!("its {what} should be {}", Hash(expected)));
            }
        }
        Ok(())
    }

    /// The inner error is the entry's, the outer one the replay's own.
    fn replay_into(&self, replay: &mut Store, index: u64) -> Result<Result<(), String>, LedgerError> {
        let (note, now) = (self.note.as_bytes(), unsigned(self.received));
        let accepted = match self.kind.as_str() {
            "receipt" => replay.accept_receipt(note, now),
            "settle" => replay.accept_settlement(note, now),
            "key" | "origin" => replay.accept_own(note, now),
            _ => replay.accept_note(note, now),
        };
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(LedgerError::Database { source, .. })
                if source.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) =>
            {
                return Ok(Err(source.to_string()));
            }
            Err(error @ LedgerError::Database { .. }) => return Err(error),
            Err(error) => return Ok(Err(error.to_string())),
        };
        Ok(if accepted.index != index {
            Err(format!("it repeats entry {}", accepted.index))
        } else if accepted.kind != self.kind {
            Err(format!("it is kept as `{}`, but is a {} note", self.kind, accepted.kind))
        } else {
            Ok(())
        })
    }
}

fn claimed(row: &rusqlite::Row<'_>) -> rusqlite::Result<Claimed> {
    Ok(Claimed {
        number: row.get(0)?,
        kind: row.get(1)?,
        id: row.get(2)?,
        leaf: row.get(3)?,
        root: row.get(4)?,
        received: row.get(5)?,
        note: row.get(6)?,
    })
}

fn check_file(file: &Connection) -> rusqlite::Result<Result<(), VerifyError>> {
    Ok(super::file::damage(file)?.map_or(Ok(()), |damage| Err(VerifyError::File(damage))))
}

/// All rows that a table derives from one entry.
fn derived(connection: &Connection, table: &str, entry: i64) -> rusqlite::Result<Vec<Vec<Value>>> {
    let mut find =
        connection.prepare_cached(&format!("SELECT * FROM {table} WHERE entry = ? ORDER BY 1, 2"))?;
    let columns = find.column_count();
    let row = |row: &rusqlite::Row<'_>| (0..columns).map(|column| row.get(column)).collect();
    find.query_map([entry], row)?.collect()
}

/// What a note moves at once: fundings and settlements. Their `post` and `reverse` come later.
fn postings(connection: &Connection, cause: i64) -> rusqlite::Result<Vec<Vec<Value>>> {
    let which = "WHERE p.cause = ? AND p.step IN ('fund', 'settle')";
    let mut find = connection.prepare_cached(&format!("{POSTINGS} {which} ORDER BY p.step"))?;
    let row = |row: &rusqlite::Row<'_>| (0..7).map(|column| row.get(column)).collect();
    find.query_map([cause], row)?.collect()
}

/// Reversals are those of the replay; postings came when their 24 hours were over, and move pending to posted.
fn check_late_postings(file: &Connection, replay: &Connection) -> rusqlite::Result<Result<(), VerifyError>> {
    let reversals = |connection: &Connection| -> rusqlite::Result<Vec<(i64, Vec<Value>)>> {
        let which = "WHERE p.step = 'reverse' ORDER BY p.cause";
        let mut find =
            connection.prepare(&format!("{} {which}", POSTINGS.replacen("SELECT", "SELECT p.cause,", 1)))?;
        let row = |row: &rusqlite::Row<'_>| {
            Ok((row.get(0)?, (1..8).map(|column| row.get(column)).collect::<rusqlite::Result<_>>()?))
        };
        find.query_map([], row)?.collect()
    };
    let (kept, expected) = (reversals(file)?, reversals(replay)?);
    if let Some(index) = first_difference(&kept, &expected) {
        let reason = "its reversal is not what a correction moves".to_owned();
        return Ok(Err(VerifyError::Entry { index, reason }));
    }
    let wrong = "SELECT MIN(p.cause) FROM postings p
         JOIN accounts d ON d.number = p.debit JOIN accounts c ON c.number = p.credit
         LEFT JOIN settlements s ON s.entry = p.cause
         WHERE p.step = 'post' AND (s.entry IS NULL OR p.at < s.pending_until OR p.nanokvr <> s.nanokvr
            OR d.kind <> 'pending' OR d.owner <> s.payee OR c.kind <> 'posted' OR c.owner <> s.payee
            OR EXISTS (SELECT 1 FROM postings r WHERE r.cause = p.cause AND r.step = 'reverse'))";
    let wrong: Option<i64> = file.query_row(wrong, [], |row| row.get(0))?;
    Ok(wrong.map_or(Ok(()), |index| {
        let reason = "it was posted too early, twice, to another account or in another amount".to_owned();
        Err(VerifyError::Entry { index: unsigned(index), reason })
    }))
}

fn first_difference(kept: &[(i64, Vec<Value>)], expected: &[(i64, Vec<Value>)]) -> Option<u64> {
    let place = (0..kept.len().max(expected.len())).find(|place| kept.get(*place) != expected.get(*place))?;
    [kept.get(place), expected.get(place)].into_iter().flatten().map(|(cause, _)| unsigned(*cause)).min()
}

/// No row that no entry accounts for.
fn check_nothing_else(file: &Connection, replay: &Connection) -> rusqlite::Result<Result<(), VerifyError>> {
    let count = |connection: &Connection, what: &str| -> rusqlite::Result<i64> {
        connection.query_row(&format!("SELECT COUNT(*) FROM {what}"), [], |row| row.get(0))
    };
    for what in DERIVED.into_iter().chain(["postings WHERE step IN ('fund', 'settle', 'reverse')"]) {
        let (kept, expected) = (count(file, what)?, count(replay, what)?);
        if kept != expected {
            let reason = format!("{what}: {kept} rows, the entries account for {expected}");
            return Ok(Err(VerifyError::File(reason)));
        }
    }
    Ok(Ok(()))
}

/// The list of what waits is what receipts and settlements give.
fn check_unsettled(file: &Connection, replay: &Connection) -> rusqlite::Result<Result<(), VerifyError>> {
    let listed = |connection: &Connection| -> rusqlite::Result<BTreeSet<i64>> {
        connection.prepare("SELECT session FROM unsettled")?.query_map([], |row| row.get(0))?.collect()
    };
    let (kept, expected) = (listed(file)?, listed(replay)?);
    Ok(kept.symmetric_difference(&expected).next().map_or(Ok(()), |index| {
        let waits = if expected.contains(index) {
            "waits to be settled, and is not"
        } else {
            "does not wait, and is"
        };
        let reason = format!("its session {waits} in the list of what is not settled");
        Err(VerifyError::Entry { index: unsigned(*index), reason })
    }))
}

/// Kept conflicts are receipts for a (session, seq) that another receipt has.
fn check_conflicts(file: &Connection) -> rusqlite::Result<Result<u64, VerifyError>> {
    let mut find = file.prepare(
        "SELECT c.id, c.note, e.note, c.against FROM conflicts c LEFT JOIN entries e ON e.number = c.against",
    )?;
    let mut rows = find.query([])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        let (id, note, against): (Vec<u8>, String, Option<String>) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let read = |note: &str| {
            let note = Note::parse(note.as_bytes()).ok()?;
            Some((note.text_digest(), Receipt::parse(note.text()).ok()?))
        };
        let convicts = read(&note).zip(against.as_deref().and_then(read)).is_some_and(
            |((digest, receipt), (other_digest, other))| {
                id == digest
                    && digest != other_digest
                    && receipt.terms.session == other.terms.session
                    && receipt.seq == other.seq
            },
        );
        if !convicts {
            let index = unsigned(row.get(3)?);
            let reason = "the conflict kept against it is none".to_owned();
            return Ok(Err(VerifyError::Entry { index, reason }));
        }
        count += 1;
    }
    Ok(Ok(count))
}

fn balances(file: &Connection) -> rusqlite::Result<Vec<Balance>> {
    let mut find = file.prepare(&super::rows::balances())?;
    let row = |row: &rusqlite::Row<'_>| {
        Ok(Balance { kind: row.get(0)?, owner: Hash(row.get(1)?).to_string(), nanokvr: row.get(2)? })
    };
    find.query_map([], row)?.collect()
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn only_what_is_wrong_with_the_file_accuses() {
        let is_fault = |code| {
            let source = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            VerifyError::from(LedgerError::Database { path: "x".into(), source }).is_fault()
        };
        for code in [ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB] {
            assert!(is_fault(code), "{code}");
        }
        for code in
            [ffi::SQLITE_ERROR, ffi::SQLITE_NOMEM, ffi::SQLITE_FULL, ffi::SQLITE_IOERR, ffi::SQLITE_BUSY]
        {
            assert!(!is_fault(code), "{code}");
        }
    }
}
