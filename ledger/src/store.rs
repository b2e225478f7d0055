//! The store: one SQLite file, written by one connection, append-only.
//!
//! Every accepted note is an entry with an index, and the tree over all entries has a root. A note is acknowledged only
//! after the transaction that holds it was committed with `synchronous = FULL`; what was not acknowledged can be sent
//! again. The store never reads a clock: times are passed in.

mod answers;
mod notes;
mod receipts;
mod rows;
mod settlements;
mod verify;

use std::path::{Path, PathBuf};
use std::time::Duration;

use kvasir_merkle::{Accumulator, Hash};
use kvasir_wire::id::{KeyDigest, WalletDigest};
use kvasir_wire::key::PublicKey;
use kvasir_wire::note::{NetworkName, Note};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params};

pub use answers::Answers;
pub use verify::{Balance, VerifyError, VerifyReport};

use crate::api::{Accepted, StoredNote};
use crate::refusal::{LedgerError, Refusal};

/// Oldest SQLite that is trusted: earlier ones can corrupt a write-ahead log when it is reset.
pub const OLDEST_SQLITE: i32 = 3_051_003;
/// Marks the file as a ledger: "Kvas".
const APPLICATION_ID: i32 = 0x4b76_6173;
/// Layout of the tables; a change raises it.
const LAYOUT: i32 = 1;
/// How long a write waits for another process that holds the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How far a settlement's `at`, or a receipt's `to` ahead, may be from the ledger's clock.
pub const CLOCK_SKEW_SECONDS: u64 = kvasir_wire::limits::CLOCK_SKEW_SECONDS;

const SCHEMA: &str = include_str!("store/schema.sql");
/// Tables that may only grow.
const APPEND_ONLY: [&str; 9] = [
    "about",
    "entries",
    "receipts",
    "delegations",
    "settlements",
    "settled_sessions",
    "accounts",
    "postings",
    "conflicts",
];

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
    tree: Accumulator,
}

/// One write transaction. Dropped without a commit it leaves no trace.
struct Writing<'a> {
    transaction: Transaction<'a>,
    path: &'a Path,
    network: &'a NetworkName,
    keys: &'a Keys,
    tree: Accumulator,
    /// Unix seconds, never below the latest entry's.
    now: u64,
    /// True where a refusal leaves evidence that must be kept.
    keep_evidence: bool,
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
        check_sqlite(path)?;
        if path.exists() {
            let reason =
                "exists already; `init` never touches an existing file, choose another path".to_owned();
            return Err(LedgerError::NotALedger { path: path.to_owned(), reason });
        }
        let failed = at(path);
        let connection = Connection::open(path).map_err(&failed)?;
        lay_out(&connection, network).map_err(&failed)?;
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

    /// Opens the ledger of `network`. Never creates one.
    pub fn open(path: &Path, network: &NetworkName, keys: Keys) -> Result<Self, LedgerError> {
        let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        check_network(&connection, path, network)?;
        let failed = at(path);
        prepare_for_writing(&connection).map_err(&failed)?;
        let damage: String =
            connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(&failed)?;
        if damage != "ok" {
            return Err(LedgerError::NotALedger {
                path: path.to_owned(),
                reason: format!(
                    "the file is damaged ({damage}); keep a copy and restore the last good backup"
                ),
            });
        }
        Self::with(connection, path, network, keys)
    }

    /// A ledger in memory: what `verify` replays into, and tests.
    pub fn in_memory(network: &NetworkName, keys: Keys) -> Result<Self, LedgerError> {
        let path = Path::new(":memory:");
        let connection = Connection::open_in_memory().map_err(at(path))?;
        lay_out(&connection, network).map_err(at(path))?;
        Self::with(connection, path, network, keys)
    }

    fn with(
        connection: Connection,
        path: &Path,
        network: &NetworkName,
        keys: Keys,
    ) -> Result<Self, LedgerError> {
        let tree = rows::tree(&connection).map_err(at(path))?;
        Ok(Self { connection, path: path.to_owned(), network: network.clone(), keys, tree })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bounds the file's size: what would make it larger is refused like a full disk, and nothing is damaged. A size
    /// below the present one stops all growth.
    pub fn limit_size(&mut self, bytes: u64) -> Result<(), LedgerError> {
        let failed = at(&self.path);
        let page: i64 =
            self.connection.query_row("PRAGMA page_size", [], |row| row.get(0)).map_err(&failed)?;
        let pages = (signed(bytes) / page.max(1)).clamp(1, i64::from(u32::MAX - 1));
        self.connection
            .query_row(&format!("PRAGMA max_page_count = {pages}"), [], |row| row.get::<_, i64>(0))
            .map(|_| ())
            .map_err(&failed)
    }

    /// Answers from this connection.
    pub fn answers(&self) -> Answers<'_> {
        Answers::new(&self.connection, &self.path)
    }

    /// Stores a receipt. `now` in Unix seconds by the ledger's clock.
    pub fn accept_receipt(&mut self, note: &[u8], now: u64) -> Result<Accepted, LedgerError> {
        self.write(now, |writing| writing.receipt(parse(note)?))
    }

    /// Stores a price, grant, fund, delegate or correct note.
    pub fn accept_note(&mut self, note: &[u8], now: u64) -> Result<Accepted, LedgerError> {
        self.write(now, |writing| writing.note(parse(note)?))
    }

    /// Stores a settlement and credits the wallet, pending.
    pub fn accept_settlement(&mut self, note: &[u8], now: u64) -> Result<Accepted, LedgerError> {
        self.write(now, |writing| {
            // Here a clock that ran backwards would shorten the time for objections; receipts lose nothing by it.
            if writing.now > now {
                return Err(Refusal::new(
                    503,
                    "clock_backwards",
                    format!(
                        "the ledger's clock says {now}, but its latest entry is of {} (Unix seconds)",
                        writing.now
                    ),
                    "have the ledger's operator set the clock; settlements wait until it has caught up",
                )
                .into());
            }
            writing.settlement(parse(note)?)
        })
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
        let Self { connection, path, network, keys, tree } = self;
        let failed = at(path);
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&failed)?;
        let next = rows::next_number(&transaction).map_err(&failed)?;
        // Another process may have appended (`fund` beside `serve`): never continue from an old head.
        let current =
            if tree.size() == next { tree.clone() } else { rows::tree(&transaction).map_err(&failed)? };
        let latest = rows::latest_time(&transaction).map_err(&failed)?;
        let now = now.max(latest);
        let mut writing =
            Writing { transaction, path, network, keys, tree: current, now, keep_evidence: false };
        let result = change(&mut writing);
        if result.is_ok() || writing.keep_evidence {
            let Writing { transaction, tree: grown, .. } = writing;
            transaction.commit().map_err(&failed)?;
            *tree = grown;
        }
        result
    }
}

impl Writing<'_> {
    /// Appends an accepted note. The caller has checked that its text is not there yet.
    fn append(&mut self, kind: &str, note: &Note) -> Result<Accepted, LedgerError> {
        let number = self.tree.size();
        let leaf = note.leaf_hash();
        self.tree.push(leaf);
        self.transaction
            .prepare_cached(
                "INSERT INTO entries (number, kind, id, leaf, root, received, note) VALUES (?, ?, ?, ?, ?, ?, ?)",
            )
            .and_then(|mut insert| {
                insert.execute(params![
                    signed(number),
                    kind,
                    note.text_digest(),
                    leaf.0,
                    self.tree.root().0,
                    signed(self.now),
                    note.to_string()
                ])
            })
            .map_err(at(self.path))?;
        Ok(Accepted {
            index: number,
            kind: kind.to_owned(),
            id: Hash(note.text_digest()).to_string(),
            leaf: leaf.to_string(),
            settlement: None,
        })
    }

    /// The entry with this text, if it is there: sending a note again gives the first answer.
    fn stored(&self, id: [u8; 32]) -> Result<Option<StoredNote>, LedgerError> {
        rows::entry_by_id(&self.transaction, id).map_err(at(self.path))
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
    let kept: String = connection.query_row(find, [], |row| row.get(0)).map_err(at(path))?;
    if kept == network.as_str() {
        return Ok(());
    }
    let reason = format!("keeps network {kept}, not {network}; check `network` and `store` in ledger.toml");
    Err(LedgerError::NotALedger { path: path.to_owned(), reason })
}

fn prepare_for_writing(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // Notes come from outside, SQL never does; still, nothing in the file may run on its own.
    connection.pragma_update(None, "trusted_schema", false)
}

fn lay_out(connection: &Connection, network: &NetworkName) -> rusqlite::Result<()> {
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

fn parse(bytes: &[u8]) -> Result<Note, LedgerError> {
    Note::parse(bytes).map_err(|error| Refusal::from(error).into())
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
        assert!(body.message.contains(":memory:") && body.what_to_do.contains("write access"), "{body:?}");
    }

    #[test]
    fn sqlite_is_new_enough() {
        assert!(rusqlite::version_number() >= OLDEST_SQLITE, "{}", sqlite_version());
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
