//! The signed head, in a tiny database of its own: what this log has vouched for, and can never take back.
//!
//! It changes by compare-and-swap only, so two publishers of one log cannot both go on. It is made with the log and is
//! never restored from a backup: a head that is older than what was published would be a second history.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use kvasir_merkle::{EMPTY_ROOT, Hash};
use kvasir_wire::note::KeyName;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, TransactionBehavior, params};

use crate::files::{Existing, make_whole};
use crate::refusal::LedgerError;

const APPLICATION_ID: i32 = 0x4b76_6864;
const LAYOUT: &str = "CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    origin TEXT NOT NULL,
    size INTEGER NOT NULL CHECK (size >= 0),
    root BLOB NOT NULL CHECK (length(root) = 32),
    checkpoint BLOB NOT NULL
) STRICT;";

/// The database of the head.
pub struct HeadFile {
    connection: Connection,
    path: PathBuf,
}

enum CreateError {
    Database(rusqlite::Error),
    File(std::io::Error),
}

impl From<std::io::Error> for CreateError {
    fn from(error: std::io::Error) -> Self {
        Self::File(error)
    }
}

/// What a log has vouched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The log's name.
    pub origin: KeyName,
    /// Entries.
    pub size: u64,
    /// Root over them.
    pub root: Hash,
    /// The checkpoint as it was signed; empty before the first.
    pub checkpoint: Vec<u8>,
}

impl HeadFile {
    /// Makes the head of a log that has vouched for nothing yet. Refuses where the file exists. It is whole or not there,
    /// whenever this is ended.
    pub fn create(path: &Path, origin: &KeyName) -> Result<(), LedgerError> {
        let made = make_whole(path, Existing::Keep, |draft| {
            let make = || -> rusqlite::Result<()> {
                let connection = Connection::open(draft)?;
                connection.pragma_update(None, "synchronous", "EXTRA")?;
                connection.execute_batch(&format!(
                    "BEGIN IMMEDIATE; {LAYOUT} PRAGMA application_id = {APPLICATION_ID}; COMMIT;"
                ))?;
                connection.execute(
                    "INSERT INTO head VALUES (1, ?, 0, ?, x'')",
                    params![origin.as_str(), EMPTY_ROOT.0],
                )?;
                connection.close().map_err(|(_, error)| error)
            };
            make().map_err(CreateError::Database)
        });
        made.map_err(|error| match error {
            CreateError::Database(source) => failed(path, source),
            CreateError::File(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                other(path, "exists already; a head is made once and never replaced")
            }
            CreateError::File(error) => other(path, &format!("cannot be made: {error}")),
        })
    }

    /// Opens an existing head.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        if !path.is_file() {
            return Err(other(
                path,
                "is missing, so what this log has published is unknown; `kvasir-ledger restore` goes on under a new origin",
            ));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || -> rusqlite::Result<(Connection, i32)> {
            let connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(std::time::Duration::from_secs(5))?;
            // A rollback journal, and its folder synced too: this file must survive any power failure, and is written rarely.
            connection.pragma_update(None, "synchronous", "EXTRA")?;
            let id = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
            Ok((connection, id))
        };
        let (connection, id) = open().map_err(|source| failed(path, source))?;
        if id != APPLICATION_ID {
            return Err(other(path, "is not the head of a log; check the path"));
        }
        Ok(Self { connection, path: path.to_owned() })
    }

    /// What was vouched for last.
    pub fn read(&self) -> Result<Head, LedgerError> {
        read(&self.connection, &self.path)
    }

    /// Replaces `old` by `new`. False where the head is another one by now: somebody else publishes this log.
    pub fn swap(&mut self, old: &Head, new: &Head) -> Result<bool, LedgerError> {
        let path = &self.path;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|source| failed(path, source))?;
        if read(&transaction, path)? != *old || new.size < old.size || new.origin != old.origin {
            return Ok(false);
        }
        let size = i64::try_from(new.size).unwrap_or(i64::MAX);
        transaction
            .execute(
                "UPDATE head SET size = ?, root = ?, checkpoint = ? WHERE one = 1",
                params![size, new.root.0, new.checkpoint],
            )
            .and_then(|_| transaction.commit())
            .map_err(|source| failed(path, source))?;
        Ok(true)
    }
}

fn read(connection: &Connection, path: &Path) -> Result<Head, LedgerError> {
    let row = connection
        .query_row("SELECT origin, size, root, checkpoint FROM head", [], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get(2)?, row.get(3)?))
        })
        .optional()
        .map_err(|source| failed(path, source))?;
    let (origin, size, root, checkpoint) = row.ok_or_else(|| other(path, "holds no head; it is damaged"))?;
    let origin = KeyName::from_str(&origin).map_err(|_| other(path, "names no log; it is damaged"))?;
    Ok(Head { origin, size: u64::try_from(size).unwrap_or(0), root: Hash(root), checkpoint })
}

fn failed(path: &Path, source: rusqlite::Error) -> LedgerError {
    LedgerError::Database { path: path.to_owned(), source }
}

fn other(path: &Path, reason: &str) -> LedgerError {
    LedgerError::NotALedger { path: path.to_owned(), reason: reason.to_owned() }
}
