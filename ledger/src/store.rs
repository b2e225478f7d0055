//! The store: one SQLite file, written by one connection, append-only.
//!
//! Every accepted note is an entry with an index, and the tree over all entries has a root. A note is acknowledged only
//! after the transaction that holds it was committed with `synchronous = FULL`; what was not acknowledged can be sent
//! again. The store never reads a clock: times are passed in.

mod answers;
mod beliefs;
mod caps;
mod file;
mod findings;
mod group;
mod incoming;
mod known;
mod log_rows;
mod measures;
mod notes;
mod receipts;
mod rows;
mod settlements;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvasir_merkle::{Accumulator, Hash};
use kvasir_wire::id::{KeyDigest, WalletDigest};
use kvasir_wire::key::PublicKey;
use kvasir_wire::note::{NetworkName, Note};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

pub use answers::{Answers, Conflict, Entry, Following, Found, MOST_ROWS, Point, Posting, Stretch};
pub use beliefs::believed;
pub use file::{COPY_INTO, OLDEST_SQLITE, first_origin, name_origin, open_for_reading, sqlite_version};
pub use group::MAX_GROUP;
pub use incoming::Incoming;
pub use log_rows::{entries_between, head_of_entries, last_origin};
pub(crate) use rows::balances;
pub use verify::{Balance, VerifyError, VerifyReport};

use crate::api::{Accepted, StoredNote};
use crate::refusal::{LedgerError, Refusal};
use known::Known;

/// How far a settlement's `at`, or a receipt's `to` ahead, may be from the ledger's clock.
pub const CLOCK_SKEW_SECONDS: u64 = kvasir_wire::limits::CLOCK_SKEW_SECONDS;

/// The keys that this ledger believes, from its `ledger.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Hubs: their receipts are accepted.
    pub hubs: Vec<PublicKey>,
    /// The treasury: prices, fundings, corrections.
    pub treasury: Vec<PublicKey>,
    /// Settlement pollers.
    pub settlers: Vec<PublicKey>,
    /// Keys of any of these roles that were replaced: what they signed stays valid, nothing new is accepted.
    pub retired: Vec<PublicKey>,
}

/// The open store, for writing and reading.
pub struct Store {
    connection: Connection,
    path: PathBuf,
    network: NetworkName,
    keys: Keys,
    /// Those of `keys` that are believed now: fewer where another process has written down other settings.
    believed: Keys,
    tree: Accumulator,
    known: Known,
    /// The last attempt to write failed by no fault of the note.
    write_failed: bool,
}

/// One write transaction. Dropped without a commit it leaves no trace.
struct Writing<'a> {
    transaction: Transaction<'a>,
    path: &'a Path,
    network: &'a NetworkName,
    keys: &'a Keys,
    tree: Accumulator,
    known: Known,
    /// Unix seconds, never below the latest entry's.
    now: u64,
    /// The ledger's clock as it is, even where it ran backwards.
    clock: u64,
    /// True where a refusal leaves evidence that must be kept.
    keep_evidence: bool,
    /// The note at work, with what was found out about it before.
    incoming: Option<Arc<Incoming>>,
}

/// An account of the double entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Treasury,
    Payer(KeyDigest),
    Pending(WalletDigest),
    Posted(WalletDigest),
}

impl Store {
    /// Makes a new, empty ledger file for `network`. Refuses where the file exists.
    pub fn create(path: &Path, network: &NetworkName) -> Result<(), LedgerError> {
        file::create(path, network)
    }

    /// Opens the ledger of `network`. Never creates one.
    pub fn open(path: &Path, network: &NetworkName, keys: Keys) -> Result<Self, LedgerError> {
        Self::with(file::open_for_writing(path, network)?, path, network, keys)
    }

    /// A ledger in memory: what `verify` replays into, and tests.
    pub fn in_memory(network: &NetworkName, keys: Keys) -> Result<Self, LedgerError> {
        let path = Path::new(":memory:");
        let connection = Connection::open_in_memory().map_err(at(path))?;
        file::lay_out(&connection, network).map_err(at(path))?;
        Self::with(connection, path, network, keys)
    }

    fn with(
        connection: Connection,
        path: &Path,
        network: &NetworkName,
        keys: Keys,
    ) -> Result<Self, LedgerError> {
        let tree = rows::tree(&connection).map_err(at(path))?;
        Ok(Self {
            connection,
            path: path.to_owned(),
            network: network.clone(),
            believed: keys.clone(),
            keys,
            tree,
            known: Known::default(),
            write_failed: false,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The keys that it believes.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Bounds the file's size: what would make it larger is refused like a full disk, and nothing is damaged. A size
    /// below the present one stops all growth.
    pub fn limit_size(&mut self, bytes: u64) -> Result<(), LedgerError> {
        file::limit_size(&self.connection, signed(bytes)).map_err(at(&self.path))
    }

    /// Whether a note could be stored now. Nothing is changed; after a failed write one page is written anew, to see
    /// whether the disk takes it.
    pub fn check_writable(&mut self) -> Result<(), LedgerError> {
        let failed = at(&self.path);
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&failed)?;
        file::write_layout(&transaction).map_err(&failed)?;
        if !self.write_failed {
            return Ok(());
        }
        if file::is_at_its_limit(&transaction).map_err(&failed)? {
            let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
            return Err(failed(rusqlite::Error::SqliteFailure(
                full,
                Some("the largest size is reached".into()),
            )));
        }
        transaction.commit().map_err(&failed)?;
        self.write_failed = false;
        Ok(())
    }

    /// Time of the latest entry or posting in Unix seconds, 0 where there is none.
    pub fn latest_time(&self) -> Result<u64, LedgerError> {
        rows::latest_time(&self.connection).map_err(at(&self.path))
    }

    /// Answers from this connection.
    pub fn answers(&self) -> Answers<'_> {
        Answers::new(&self.connection, &self.path)
    }

    /// Stores a receipt. `now` in Unix seconds by the ledger's clock.
    pub fn accept_receipt(&mut self, note: &[u8], now: u64) -> Result<Accepted, LedgerError> {
        self.accept(Incoming::receipt(note)?, now)
    }

    /// Stores a price, grant, fund, delegate or correct note.
    pub fn accept_note(&mut self, note: &[u8], now: u64) -> Result<Accepted, LedgerError> {
        self.accept(Incoming::note(note)?, now)
    }

    /// Stores a settlement and credits the wallet, pending.
    pub fn accept_settlement(&mut self, note: &[u8], now: u64) -> Result<Accepted, LedgerError> {
        self.accept(Incoming::settlement(note)?, now)
    }

    /// Posts every settlement whose 24 hours are over. Returns how many.
    pub fn sweep(&mut self, now: u64) -> Result<u64, LedgerError> {
        self.write(now, |writing| writing.sweep())
    }

    fn write<T>(
        &mut self,
        now: u64,
        change: impl FnOnce(&mut Writing<'_>) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let result = self.try_write(now, change);
        match &result {
            Ok(_) | Err(LedgerError::Refused(_)) => {}
            Err(_) => self.write_failed = true,
        }
        result
    }

    fn try_write<T>(
        &mut self,
        now: u64,
        change: impl FnOnce(&mut Writing<'_>) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let Self { connection, path, network, keys, believed, tree, known, write_failed: _ } = self;
        let failed = at(path);
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&failed)?;
        let next = rows::next_number(&transaction).map_err(&failed)?;
        // Another process may have appended: never continue from an old head, nor believe whom the entries do not believe.
        let current = if tree.size() == next {
            tree.clone()
        } else {
            known.forget();
            *believed = keys.written_down(&beliefs::read(&transaction).map_err(&failed)?);
            rows::tree(&transaction).map_err(&failed)?
        };
        let latest = rows::latest_time(&transaction).map_err(&failed)?;
        let (clock, now) = (now, now.max(latest));
        let mut writing = Writing {
            transaction,
            path,
            network,
            keys: believed,
            tree: current,
            // Taken out: it comes back with a commit, and is read anew without one.
            known: std::mem::take(known),
            now,
            clock,
            keep_evidence: false,
            incoming: None,
        };
        let result = change(&mut writing);
        if result.is_ok() {
            let Writing { transaction, tree: grown, known: kept, .. } = writing;
            transaction.commit().map_err(&failed)?;
            (*tree, *known) = (grown, kept);
        }
        result
    }
}

impl Writing<'_> {
    /// Appends an accepted note. The caller has checked that its text is not there yet.
    fn append(&mut self, kind: &str, note: &Note) -> Result<Accepted, LedgerError> {
        let number = self.tree.size();
        // Hashed before, where this is the note that came in.
        let known = self.incoming.clone().filter(|incoming| incoming.note == *note);
        let known = known.unwrap_or_else(|| Arc::new(Incoming::of(note.clone())));
        let Incoming { bytes, id, leaf, .. } = &*known;
        self.tree.push(*leaf);
        self.transaction
            .prepare_cached(
                "INSERT INTO entries (number, kind, id, leaf, root, received, note) VALUES (?, ?, ?, ?, ?, ?, ?)",
            )
            .and_then(|mut insert| {
                insert.execute(params![
                    signed(number),
                    kind,
                    id,
                    leaf.0,
                    self.tree.root().0,
                    signed(self.now),
                    bytes
                ])
            })
            .map_err(at(self.path))?;
        Ok(Accepted {
            index: number,
            kind: kind.to_owned(),
            id: Hash(*id).to_string(),
            leaf: leaf.to_string(),
            settlement: None,
            repeated: false,
        })
    }

    /// The entry with this text, if it is there: sending a note again gives the first answer.
    /// A signature that differs from the stored one of the same key makes it another note, which is refused; lines of
    /// other keys mean nothing, as everywhere.
    fn stored(&self, note: &Note) -> Result<Option<StoredNote>, LedgerError> {
        let found = rows::entry_by_id(&self.transaction, note.text_digest()).map_err(at(self.path))?;
        match found {
            Some(entry) if !signed_alike(&entry, note) => Err(Refusal::new(
                403,
                "bad_signature",
                format!("this text is stored as entry {}, with other signatures than these", entry.index),
                "nothing needs to be sent again: the stored note stands",
            )
            .into()),
            found => Ok(found),
        }
    }

    /// One move of credit.
    fn post(
        &self,
        cause: u64,
        step: &str,
        debit: Owner,
        credit: Owner,
        nanokvr: i64,
    ) -> Result<(), LedgerError> {
        let failed = at(self.path);
        let debit = self.account(debit).map_err(&failed)?;
        let credit = self.account(credit).map_err(&failed)?;
        self.transaction
            .prepare_cached(
                "INSERT INTO postings (cause, step, debit, credit, nanokvr, at) VALUES (?, ?, ?, ?, ?, ?)",
            )
            .and_then(|mut insert| {
                insert.execute(params![signed(cause), step, debit, credit, nanokvr, signed(self.now)])
            })
            .map_err(&failed)?;
        Ok(())
    }

    fn account(&self, owner: Owner) -> rusqlite::Result<i64> {
        let (kind, digest) = (owner.kind(), owner.digest());
        let find = "SELECT number FROM accounts WHERE kind = ? AND owner = ?";
        let find = |connection: &Connection| {
            connection.prepare_cached(find)?.query_row(params![kind, digest], |row| row.get(0)).optional()
        };
        if let Some(number) = find(&self.transaction)? {
            return Ok(number);
        }
        self.transaction
            .execute("INSERT INTO accounts (kind, owner) VALUES (?, ?)", params![kind, digest])?;
        Ok(self.transaction.last_insert_rowid())
    }

    fn check_network(&self, network: &NetworkName) -> Result<(), LedgerError> {
        if network == self.network {
            return Ok(());
        }
        let message = format!("the note is for network {network}, this ledger keeps {}", self.network);
        Err(Refusal::new(403, "other_network", message, "send it to the ledger of its own network").into())
    }
}

impl Owner {
    fn kind(self) -> &'static str {
        match self {
            Owner::Treasury => "treasury",
            Owner::Payer(_) => "payer",
            Owner::Pending(_) => "pending",
            Owner::Posted(_) => "posted",
        }
    }

    fn digest(self) -> [u8; 32] {
        match self {
            Owner::Treasury => [0; 32],
            Owner::Payer(digest) => digest.0,
            Owner::Pending(digest) | Owner::Posted(digest) => digest.0,
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Note, LedgerError> {
    Note::parse(bytes).map_err(|error| Refusal::from(error).into())
}

/// Whether a note bears what was verified when its text was stored: at least one line in common, and none of the same key
/// with another signature.
fn signed_alike(entry: &StoredNote, note: &Note) -> bool {
    let Ok(stored) = Note::parse(entry.note.as_bytes()) else { return false };
    let mut common = false;
    for line in note.signatures() {
        for other in stored.signatures().iter().filter(|other| other.name == line.name && other.id == line.id)
        {
            if other != line {
                return false;
            }
            common = true;
        }
    }
    common
}

/// Puts the file's path to an SQLite error.
fn at(path: &Path) -> impl Fn(rusqlite::Error) -> LedgerError {
    move |source| LedgerError::Database { path: path.to_owned(), source }
}

/// Numbers in notes have at most 63 bits; indexes and times never reach more.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_says_so_and_takes_nothing() {
        let network: NetworkName = "atlas".parse().unwrap();
        let mut store = Store::in_memory(&network, Keys::default()).unwrap();
        store.connection.pragma_update(None, "query_only", true).unwrap();
        let error = store.sweep(1).and_then(|_| {
            store.write(1, |writing| {
                writing.post(0, "fund", Owner::Treasury, Owner::Payer(KeyDigest([1; 32])), 1)
            })
        });
        let (status, body) = error.unwrap_err().answer();
        assert_eq!((status, body.code.as_str()), (503, "store_read_only"));
        assert_eq!(store.check_writable().unwrap_err().answer().1.code, "store_read_only");
        store.connection.pragma_update(None, "query_only", false).unwrap();
        store.check_writable().unwrap();
        assert!(body.message.contains(":memory:") && body.what_to_do.contains("write access"), "{body:?}");
    }

    #[test]
    fn a_failed_change_leaves_no_trace() {
        let network: NetworkName = "atlas".parse().unwrap();
        let mut store = Store::in_memory(&network, Keys::default()).unwrap();
        let mut note = Note::unsigned("text\n").unwrap();
        note.sign("x".parse().unwrap(), &kvasir_wire::key::SecretKey::from_seed([1; 32])).unwrap();
        let refused: Result<(), _> = store.write(1, |writing| {
            writing.append("price", &note)?;
            Err(Refusal::new(400, "late", "after the entry was written", "").into())
        });
        assert!(refused.is_err());
        assert_eq!(store.answers().head().unwrap(), (0, kvasir_merkle::EMPTY_ROOT));
        store.write(1, |writing| writing.append("price", &note)).unwrap();
        assert_eq!(store.answers().head().unwrap(), (1, note.leaf_hash()));
    }
}
