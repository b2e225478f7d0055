//! Entries as the public log reads them: whole notes in order, and the head over them.

use std::path::Path;

use kvasir_merkle::{EMPTY_ROOT, Hash};
use kvasir_wire::account::{OriginChange, Statement as _};
use kvasir_wire::note::{KeyName, Note};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::rows::unsigned;
use super::{at, signed};
use crate::refusal::LedgerError;

/// Number of entries and the root that was kept with the last one.
pub fn head_of_entries(connection: &Connection, path: &Path) -> Result<(u64, Hash), LedgerError> {
    let find = "SELECT number, root FROM entries ORDER BY number DESC LIMIT 1";
    let last = connection
        .prepare_cached(find)
        .and_then(|mut find| find.query_row([], |row| Ok((row.get(0)?, row.get(1)?))).optional())
        .map_err(at(path))?;
    Ok(last.map_or((0, EMPTY_ROOT), |(number, root)| (unsigned(number) + 1, Hash(root))))
}

/// The log that the entries say they continue under, after a restore.
pub fn last_origin(connection: &Connection, path: &Path) -> Result<Option<KeyName>, LedgerError> {
    let entries = super::rows::entries_of_kind(connection, "origin").map_err(at(path))?;
    let read = |note: &str| {
        let note = Note::parse(note.as_bytes()).ok()?;
        OriginChange::parse(note.text()).ok()
    };
    let Some(entry) = entries.last() else { return Ok(None) };
    let change = read(&entry.note).ok_or_else(|| LedgerError::Damaged {
        path: path.to_owned(),
        index: entry.index,
        reason: "the change of origin cannot be read".to_owned(),
    })?;
    Ok(Some(change.origin))
}

/// Index, whole note and kept leaf hash of the entries `from .. to`, in order.
pub fn entries_between(
    connection: &Connection,
    path: &Path,
    from: u64,
    to: u64,
) -> Result<Vec<(u64, Vec<u8>, Hash)>, LedgerError> {
    let find = "SELECT number, note, leaf FROM entries WHERE number >= ? AND number < ? ORDER BY number";
    let read = || -> rusqlite::Result<Vec<_>> {
        let mut find = connection.prepare_cached(find)?;
        let row = |row: &rusqlite::Row<'_>| {
            let note: String = row.get(1)?;
            Ok((unsigned(row.get(0)?), note.into_bytes(), Hash(row.get(2)?)))
        };
        find.query_map(params![signed(from), signed(to)], row)?.collect()
    };
    read().map_err(at(path))
}
