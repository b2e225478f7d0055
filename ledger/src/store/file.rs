//! The file: making it, opening it, and refusing what is not this network's ledger. No entry is read or written here.
//!
//! What the store asks of SQLite as a file, and not as tables, is asked here and nowhere else: pragmas, the copy, triggers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvasir_wire::note::{KeyName, NetworkName};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};

use super::at;
use crate::refusal::LedgerError;

/// Oldest SQLite that is trusted: earlier ones can corrupt a write-ahead log when it is reset.
pub const OLDEST_SQLITE: i32 = 3_051_003;
/// Marks the file as a ledger: "Kvas".
const APPLICATION_ID: i32 = 0x4b76_6173;
/// Layout of the tables; a change raises it.
const LAYOUT: i32 = 4;
/// How long a write waits for another process that holds the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Of a new file. Notes have more than a kilobyte: in pages of 4,096 bytes a third of each would stay empty.
const PAGE_BYTES: i32 = 16 * 1024;
/// Pages of the write-ahead log (64 MiB) after which they are written into the file: a page that changes with every group is then
/// written once for many.
const CHECKPOINT_PAGES: i32 = 4 * 1024;
/// Memory for pages: what indexes by digest touch lies anywhere in them.
const CACHE_KIB: i32 = 64 * 1024;

/// Copies the whole database, as one transaction sees it, into the file whose name is the parameter.
pub const COPY_INTO: &str = "VACUUM INTO ?";

const SCHEMA: &str = include_str!("schema.sql");
/// Tables that may only grow: all but `unsettled`.
const APPEND_ONLY: [&str; 11] = [
    "about",
    "entries",
    "sessions",
    "receipts",
    "grants",
    "delegations",
    "settlements",
    "settled_sessions",
    "accounts",
    "postings",
    "conflicts",
];

/// Makes a new, empty ledger file for `network`. Refuses where the file exists; where it fails nothing is left behind.
pub(super) fn create(path: &Path, network: &NetworkName) -> Result<(), LedgerError> {
    check_sqlite(path)?;
    if path.exists() {
        let reason = "exists already; `init` never touches an existing file, choose another path".to_owned();
        return Err(LedgerError::NotALedger { path: path.to_owned(), reason });
    }
    let failed = at(path);
    let connection = Connection::open(path).map_err(&failed)?;
    if let Err(error) = lay_out(&connection, network) {
        // Nothing was in it: what is left would only keep the next `init` from running.
        drop(connection);
        for name in [path.to_owned(), beside(path, "-wal"), beside(path, "-shm")] {
            let _ = std::fs::remove_file(name);
        }
        return Err(failed(error));
    }
    // The folder's entry must survive a power failure too, or a typo and an accident look alike.
    if let Some(folder) = path.parent() {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|error| LedgerError::NotALedger {
            path: path.to_owned(),
            reason: format!("its folder cannot be written to disk: {error}"),
        })?;
    }
    Ok(())
}

/// Opens the existing ledger of `network` for reading and writing.
pub(super) fn open_for_writing(path: &Path, network: &NetworkName) -> Result<Connection, LedgerError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    check_network(&connection, path, network)?;
    let failed = at(path);
    prepare_for_writing(&connection).map_err(&failed)?;
    let damage: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(&failed)?;
    if damage != "ok" {
        return Err(LedgerError::NotALedger {
            path: path.to_owned(),
            reason: format!("the file is damaged ({damage}); keep a copy and restore the last good backup"),
        });
    }
    // What is written, and what refuses to be written over, would be somebody else's.
    if let Some(difference) = difference(&connection, network).map_err(&failed)? {
        let reason =
            format!("{difference}; somebody changed the file: keep a copy and restore the last good backup");
        return Err(LedgerError::NotALedger { path: path.to_owned(), reason });
    }
    Ok(connection)
}

/// A second connection to an existing ledger that can only read.
pub fn open_for_reading(path: &Path, network: &NetworkName) -> Result<Connection, LedgerError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    check_network(&connection, path, network)?;
    Ok(connection)
}

/// The version of SQLite inside.
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}

fn open(path: &Path, access: OpenFlags) -> Result<Connection, LedgerError> {
    check_sqlite(path)?;
    let not_a_ledger =
        |reason: &str| LedgerError::NotALedger { path: path.to_owned(), reason: reason.to_owned() };
    if path.exists() && !path.is_file() {
        return Err(not_a_ledger("is no regular file, so no ledger's database; check the path"));
    }
    if !path.is_file() {
        return Err(not_a_ledger(
            "there is no such file; check the path, or make a ledger with `kvasir-ledger init`",
        ));
    }
    // No CREATE flag: a mistyped path must never become a second ledger.
    let connection =
        Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(at(path))?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(at(path))?;
    let pragma = |name| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    if pragma("application_id").map_err(at(path))? != APPLICATION_ID {
        return Err(not_a_ledger("is not a ledger's database; check the path"));
    }
    if pragma("user_version").map_err(at(path))? != LAYOUT {
        return Err(not_a_ledger("has another version's layout; use the kvasir-ledger that wrote it"));
    }
    Ok(connection)
}

fn check_sqlite(path: &Path) -> Result<(), LedgerError> {
    if rusqlite::version_number() >= OLDEST_SQLITE {
        return Ok(());
    }
    let reason = format!(
        "SQLite {} is linked, whose write-ahead log can corrupt the file; build with the bundled one (3.51.3 or newer)",
        rusqlite::version()
    );
    Err(LedgerError::NotALedger { path: path.to_owned(), reason })
}

fn check_network(connection: &Connection, path: &Path, network: &NetworkName) -> Result<(), LedgerError> {
    let find = "SELECT value FROM about WHERE key = 'network'";
    let kept: Option<String> =
        connection.query_row(find, [], |row| row.get(0)).optional().map_err(at(path))?;
    let kept = kept.ok_or_else(|| LedgerError::NotALedger {
        path: path.to_owned(),
        reason: "does not say which network it is of: it is damaged".to_owned(),
    })?;
    if kept == network.as_str() {
        return Ok(());
    }
    let reason = format!("keeps network {kept}, not {network}; check `network` and `store` in ledger.toml");
    Err(LedgerError::NotALedger { path: path.to_owned(), reason })
}

fn prepare_for_writing(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    // Below zero: KiB.
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // What a savepoint may have to undo stays in memory: no file beside the ledger's own.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // Notes come from outside, SQL never does; still, nothing in the file may run on its own.
    connection.pragma_update(None, "trusted_schema", false)
}

pub(super) fn lay_out(connection: &Connection, network: &NetworkName) -> rusqlite::Result<()> {
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    prepare_for_writing(connection)?;
    let mut script = format!("BEGIN IMMEDIATE;\n{SCHEMA}\n");
    for table in APPEND_ONLY {
        for change in ["UPDATE", "DELETE"] {
            script.push_str(&format!(
                "CREATE TRIGGER no_{change}_of_{table} BEFORE {change} ON {table} \
                 BEGIN SELECT RAISE(ABORT, '{table} only grows'); END;\n"
            ));
        }
    }
    // The name holds letters, digits, dots and hyphens only.
    script.push_str(&format!("INSERT INTO about VALUES ('network', '{network}');\n"));
    script.push_str(&format!(
        "PRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {LAYOUT};\nCOMMIT;"
    ));
    connection.execute_batch(&script)
}

/// Keeps the name of the log that these entries are published as from the start.
pub fn name_origin(path: &Path, network: &NetworkName, origin: &KeyName) -> Result<(), LedgerError> {
    let connection = open_for_writing(path, network)?;
    match first_origin(&connection, path)? {
        Some(kept) if kept == *origin => Ok(()),
        Some(kept) => {
            let reason = format!("is of log {kept}, not of {origin}; put that log's files back");
            Err(LedgerError::NotALedger { path: path.to_owned(), reason })
        }
        None => {
            let keep = "INSERT INTO about VALUES ('origin', ?)";
            connection.execute(keep, [origin.as_str()]).map(|_| ()).map_err(at(path))
        }
    }
}

/// What [`name_origin`] kept.
pub fn first_origin(connection: &Connection, path: &Path) -> Result<Option<KeyName>, LedgerError> {
    let find = "SELECT value FROM about WHERE key = 'origin'";
    let kept: Option<String> =
        connection.query_row(find, [], |row| row.get(0)).optional().map_err(at(path))?;
    kept.map(|kept| kept.parse()).transpose().map_err(|_| LedgerError::NotALedger {
        path: path.to_owned(),
        reason: "names no log as its own: it is damaged".to_owned(),
    })
}

/// Bounds the file's size in bytes. A size below the present one stops all growth.
pub(super) fn limit_size(connection: &Connection, bytes: i64) -> rusqlite::Result<()> {
    let pages = (bytes / number(connection, "page_size")?.max(1)).clamp(1, i64::from(u32::MAX - 1));
    number(connection, &format!("max_page_count = {pages}")).map(|_| ())
}

/// Whether the file can take no page more within its bound.
pub(super) fn is_at_its_limit(connection: &Connection) -> rusqlite::Result<bool> {
    let full = number(connection, "page_count")? >= number(connection, "max_page_count")?;
    Ok(full && number(connection, "freelist_count")? == 0)
}

/// Writes a page that is there already, unchanged: what a write costs, and nothing of what it does.
pub(super) fn write_layout(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "user_version", LAYOUT)
}

/// The first thing that is wrong with the whole file, as SQLite says it.
pub(super) fn damage(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let found: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    Ok(Some(found).filter(|found| found != "ok"))
}

/// The first table, index or trigger that is not as a new ledger's: what a file holds runs whenever it is written to.
pub(super) fn difference(connection: &Connection, network: &NetworkName) -> rusqlite::Result<Option<String>> {
    let new = Connection::open_in_memory()?;
    lay_out(&new, network)?;
    let (found, expected) = (objects(connection)?, objects(&new)?);
    let named =
        |(kind, name): &(String, String)| format!("{kind} `{}`", name.chars().take(80).collect::<String>());
    let foreign = found.iter().find(|(object, text)| expected.get(*object) != Some(*text));
    let missing = expected.keys().find(|object| !found.contains_key(*object));
    Ok(foreign
        .map(|(object, _)| format!("{} is not the ledger's", named(object)))
        .or_else(|| missing.map(|object| format!("{} is missing", named(object)))))
}

type Objects = BTreeMap<(String, String), (String, Option<String>)>;

/// Table and text of everything that the file defines, by kind and name.
fn objects(connection: &Connection) -> rusqlite::Result<Objects> {
    // Statistics, where somebody had some made, only say which index is the fastest.
    let find = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT GLOB 'sqlite_stat[1-4]'";
    let row = |row: &rusqlite::Row<'_>| Ok(((row.get(0)?, row.get(1)?), (row.get(2)?, row.get(3)?)));
    connection.prepare(find)?.query_map([], row)?.collect()
}

fn number(connection: &Connection, pragma: &str) -> rusqlite::Result<i64> {
    connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0))
}

/// The name of a file that SQLite keeps beside the database.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlite_is_new_enough() {
        assert!(rusqlite::version_number() >= OLDEST_SQLITE, "{}", sqlite_version());
    }
}
