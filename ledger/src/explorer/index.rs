//! The index behind the pages: who is named where, sums and days, read out of the ledger a bounded stretch at a time.
//!
//! The ledger's own database has the indexes that accepting notes needs and no others, so that pages cost writers
//! nothing. What pages need besides lies in a second file, `explorer.db`, which nothing else reads and which may be
//! deleted at any time: it is read out of the ledger again. No visitor can ask for work here that grows with the ledger:
//! each entry is read once, and every question is a search in an index with a limit.

mod lookups;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kvasir_wire::account::{Settlement, Statement};
use kvasir_wire::id::{parse_hex_32, sha256};
use kvasir_wire::key::PublicKey;
use kvasir_wire::note::{NetworkName, Note};
use kvasir_wire::receipt::Receipt;
use rusqlite::{Connection, OptionalExtension, params};
use tracing::{info, warn};

pub(super) use lookups::{AccountMove, Counted, MOST_RANKED, Mention, Named, SettlementRow};

use crate::refusal::LedgerError;
use crate::store::{Entry, Following, Point, Posting};

/// Name of the file, beside the ledger's database.
pub(super) const INDEX_FILE: &str = "explorer.db";
/// Marks the file: "Kvex".
const APPLICATION_ID: i32 = 0x4b76_6578;
/// Layout of the tables; a file of another layout is made anew.
const LAYOUT: i32 = 1;
/// Lines of one note that are looked at.
const MAX_LINES: usize = 256;
/// Names whose numbers are remembered; all are forgotten when so many are.
const MAX_REMEMBERED: usize = 8_192;
/// Seconds of a day.
pub(super) const DAY: u64 = 86_400;
/// The whole network among the owners of days.
pub(super) const EVERYBODY: i64 = 0;

const SCHEMA: &str = include_str!("index.sql");

/// The open index.
pub(super) struct Index {
    connection: Connection,
    path: PathBuf,
    numbers: HashMap<[u8; 32], i64>,
    point: Point,
    total: u64,
}

impl Index {
    /// Opens the index in `folder`, or makes it. Where it cannot be kept in a file, it is kept in memory.
    pub(super) fn open(folder: &Path, network: &NetworkName) -> Result<Self, LedgerError> {
        let path = folder.join(INDEX_FILE);
        let opened = open_file(&path, network).and_then(|opened| match opened {
            Found::Ours(connection) => Ok(connection),
            Found::Outdated => {
                info!(path = %path.display(), "the explorer's index is another version's or network's: it is made anew");
                remove(&path);
                match open_file(&path, network)? {
                    Found::Ours(connection) => Ok(connection),
                    Found::Outdated => Err(rusqlite::Error::InvalidQuery),
                }
            }
        });
        let connection = match opened {
            Ok(connection) => connection,
            Err(error) => {
                warn!(
                    path = %path.display(), %error,
                    "the explorer's index cannot be kept in its file and is kept in memory; the file may be deleted",
                );
                in_memory(network).map_err(at(&path))?
            }
        };
        Self::with(connection, path)
    }

    fn with(connection: Connection, path: PathBuf) -> Result<Self, LedgerError> {
        let point = read_point(&connection).map_err(at(&path))?;
        Ok(Self { connection, path, numbers: HashMap::new(), point, total: point.entries })
    }

    /// Where reading continues.
    pub(super) fn point(&self) -> Point {
        self.point
    }

    /// Entries that the ledger had when it was last looked at.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Takes in what follows [`Index::point`]. True where there may be more.
    pub(super) fn take(&mut self, following: &Following) -> Result<bool, LedgerError> {
        let path = self.path.clone();
        let failed = at(&path);
        self.total = following.total;
        let known: Option<Option<[u8; 32]>> = self
            .connection
            .query_row("SELECT leaf FROM progress", [], |row| row.get(0))
            .optional()
            .map_err(&failed)?;
        if following.leaf_before.map(|leaf| leaf.0) != known.flatten() {
            // Another ledger than the one that was read: a restored backup, or a file put in its place.
            warn!(path = %self.path.display(), "the ledger is not the one that the explorer has read: its index is made anew");
            self.forget().map_err(&failed)?;
            return Ok(true);
        }
        let result = self.try_take(following);
        if result.is_err() {
            // Numbers given out in a transaction that was not committed mean nothing.
            self.numbers.clear();
        }
        result.map_err(&failed)
    }

    fn try_take(&mut self, following: &Following) -> rusqlite::Result<bool> {
        let Self { connection, numbers, point, .. } = self;
        if numbers.len() > MAX_REMEMBERED {
            numbers.clear();
        }
        let transaction = connection.transaction()?;
        let mut next = *point;
        {
            let mut taking = Taking { connection: &transaction, numbers };
            for entry in &following.entries {
                taking.entry(entry)?;
                next.entries = entry.number + 1;
            }
            // Postings wait for the entry that caused them.
            for posting in following.postings.iter().take_while(|posting| posting.cause < next.entries) {
                taking.posting(posting)?;
                next.postings = posting.number;
            }
            for conflict in following.conflicts.iter().take_while(|conflict| conflict.against < next.entries)
            {
                let keep = "INSERT OR IGNORE INTO conflicts (against, id, received) VALUES (?, ?, ?)";
                transaction.prepare_cached(keep)?.execute(params![
                    signed(conflict.against),
                    conflict.id.0,
                    signed(conflict.received)
                ])?;
                next.conflicts = conflict.number;
            }
        }
        if next == *point {
            return Ok(false);
        }
        let leaf = following.entries.last().map(|entry| entry.leaf.0);
        transaction.execute(
            "UPDATE progress SET entries = ?, leaf = COALESCE(?, leaf), postings = ?, conflicts = ?",
            params![signed(next.entries), leaf, signed(next.postings), signed(next.conflicts)],
        )?;
        transaction.commit()?;
        *point = next;
        Ok(true)
    }

    fn forget(&mut self) -> rusqlite::Result<()> {
        let network: String =
            self.connection.query_row("SELECT network FROM progress", [], |row| row.get(0))?;
        let transaction = self.connection.transaction()?;
        for table in TABLES {
            transaction.execute_batch(&format!("DROP TABLE IF EXISTS {table};"))?;
        }
        lay_out(&transaction, &network)?;
        transaction.commit()?;
        self.numbers.clear();
        self.point = Point::default();
        Ok(())
    }
}

const TABLES: [&str; 12] = [
    "progress",
    "kinds",
    "names",
    "fields",
    "mentions",
    "sessions",
    "wallets",
    "payers",
    "settlements",
    "moves",
    "days",
    "conflicts",
];

/// One transaction that takes entries in.
struct Taking<'a> {
    connection: &'a Connection,
    numbers: &'a mut HashMap<[u8; 32], i64>,
}

impl Taking<'_> {
    fn entry(&mut self, entry: &Entry) -> rusqlite::Result<()> {
        let count = "INSERT INTO kinds (kind, entries) VALUES (?, 1)
                     ON CONFLICT (kind) DO UPDATE SET entries = entries + 1";
        self.connection.prepare_cached(count)?.execute([&entry.kind])?;
        // What the ledger has accepted can be read; should it not, the entry still has its page.
        let Ok(note) = Note::parse(entry.note.as_bytes()) else { return Ok(()) };
        for (field, digest, key) in named(note.text()) {
            let name = self.name(digest, key)?;
            let field = self.field(&entry.kind, field)?;
            let mention = "INSERT OR IGNORE INTO mentions (name, field, entry) VALUES (?, ?, ?)";
            self.connection.prepare_cached(mention)?.execute(params![name, field, signed(entry.number)])?;
        }
        if let Ok(receipt) = Receipt::parse(note.text()) {
            self.receipt(entry, &receipt)?;
        } else if let Ok(settlement) = Settlement::parse(note.text()) {
            self.settlement(entry, &settlement)?;
        }
        Ok(())
    }

    // Bytes of many receipts together may be more than a number holds: such a sum stays at the largest one. Credit never is.
    fn receipt(&mut self, entry: &Entry, receipt: &Receipt) -> rusqlite::Result<()> {
        let session = self.name(receipt.terms.session.0, None)?;
        let payee = self.name(receipt.terms.payee.0, None)?;
        let find = "SELECT billed FROM sessions WHERE name = ?";
        let before: Option<i64> =
            self.connection.prepare_cached(find)?.query_row([session], |row| row.get(0)).optional()?;
        // Counters are cumulative: a receipt that fills a gap later adds nothing.
        let added = (receipt.billed().signed() - before.unwrap_or(0)).max(0);
        let keep = "INSERT INTO sessions (name, payee, receipts, billed, settled) VALUES (?1, ?2, 1, ?3, 0)
                    ON CONFLICT (name) DO UPDATE SET receipts = receipts + 1, billed = billed + ?3";
        self.connection.prepare_cached(keep)?.execute(params![session, payee, added])?;
        self.wallet(payee)?;
        let sum = "UPDATE wallets SET receipts = receipts + 1, sessions = sessions + ?,
                   metered = MIN(metered + ?, 9223372036854775807) WHERE name = ?";
        for owner in [EVERYBODY, payee] {
            let values = params![i64::from(before.is_none()), added, owner];
            self.connection.prepare_cached(sum)?.execute(values)?;
            self.day(owner, entry.received, added, 0)?;
        }
        Ok(())
    }

    fn settlement(&mut self, entry: &Entry, settlement: &Settlement) -> rusqlite::Result<()> {
        let payee = self.name(settlement.payee.0, None)?;
        let payer = self.name(settlement.payer.0, None)?;
        let keep =
            "INSERT INTO settlements (entry, id, payee, payer, bytes, nanokvr, at, pending_until, state)
                    VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'pending')";
        self.connection.prepare_cached(keep)?.execute(params![
            signed(entry.number),
            settlement.id().0,
            payee,
            payer,
            settlement.bytes.signed(),
            settlement.amount.get(),
            signed(settlement.at),
            signed(settlement.pending_until())
        ])?;
        self.wallet(payee)?;
        let sum = "UPDATE wallets SET settlements = settlements + 1,
                   settled = MIN(settled + ?, 9223372036854775807) WHERE name = ?";
        for owner in [EVERYBODY, payee] {
            self.connection.prepare_cached(sum)?.execute(params![settlement.bytes.signed(), owner])?;
        }
        for part in &settlement.sessions {
            let session = self.name(part.session.0, None)?;
            let sum = "UPDATE sessions SET settled = settled + ? WHERE name = ?";
            self.connection.prepare_cached(sum)?.execute(params![part.bytes.signed(), session])?;
        }
        Ok(())
    }

    fn posting(&mut self, posting: &Posting) -> rusqlite::Result<()> {
        let state = match posting.step.as_str() {
            "post" => Some("posted"),
            "reverse" => Some("reversed"),
            _ => None,
        };
        if let Some(state) = state {
            let change = "UPDATE settlements SET state = ? WHERE entry = ?";
            self.connection.prepare_cached(change)?.execute(params![state, signed(posting.cause)])?;
        }
        let mut touched: Vec<(i64, bool, i64)> = Vec::with_capacity(2);
        for ((kind, owner), change) in
            [(&posting.debit, -posting.nanokvr), (&posting.credit, posting.nanokvr)]
        {
            let is_wallet = match kind.as_str() {
                "pending" | "posted" => true,
                "payer" => false,
                _ => continue,
            };
            let name = self.name(*owner, None)?;
            if is_wallet {
                self.wallet(name)?;
                // The kinds of account are the ledger's own words, matched above.
                let sum =
                    format!("UPDATE wallets SET {kind} = {kind} + ?1, credit = credit + ?1 WHERE name = ?2");
                for owner in [EVERYBODY, name] {
                    self.connection.prepare_cached(&sum)?.execute(params![change, owner])?;
                }
            } else {
                let sum = "INSERT INTO payers (name, available, funded) VALUES (?1, ?2, ?3)
                           ON CONFLICT (name) DO UPDATE SET available = available + ?2, funded = funded + ?3";
                let funded = if posting.step == "fund" { change } else { 0 };
                self.connection.prepare_cached(sum)?.execute(params![name, change, funded])?;
            }
            match touched.iter_mut().find(|(owner, wallet, _)| *owner == name && *wallet == is_wallet) {
                Some((_, _, sum)) => *sum += change,
                None => touched.push((name, is_wallet, change)),
            }
        }
        for (name, is_wallet, change) in touched {
            let after = if is_wallet {
                "SELECT credit FROM wallets WHERE name = ?"
            } else {
                "SELECT available FROM payers WHERE name = ?"
            };
            let after: i64 = self.connection.prepare_cached(after)?.query_row([name], |row| row.get(0))?;
            let keep = "INSERT INTO moves (owner, wallet, posting, cause, step, nanokvr, after, at)
                        VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
            self.connection.prepare_cached(keep)?.execute(params![
                name,
                is_wallet,
                signed(posting.number),
                signed(posting.cause),
                posting.step,
                change,
                after,
                signed(posting.at)
            ])?;
            if is_wallet && change != 0 {
                for owner in [EVERYBODY, name] {
                    self.day(owner, posting.at, 0, change)?;
                }
            }
            if is_wallet && posting.step == "reverse" {
                let sum = "UPDATE wallets SET reversed = MIN(9223372036854775807, reversed
                           + COALESCE((SELECT bytes FROM settlements WHERE entry = ?), 0)) WHERE name = ?";
                self.connection.prepare_cached(sum)?.execute(params![signed(posting.cause), name])?;
            }
        }
        Ok(())
    }

    fn wallet(&mut self, name: i64) -> rusqlite::Result<()> {
        let make = "INSERT OR IGNORE INTO wallets (name) VALUES (?)";
        let mut make = self.connection.prepare_cached(make)?;
        make.execute([EVERYBODY])?;
        if make.execute([name])? > 0 {
            self.connection.prepare_cached("UPDATE progress SET wallets = wallets + 1")?.execute([])?;
        }
        Ok(())
    }

    fn day(&mut self, owner: i64, at: u64, bytes: i64, credit: i64) -> rusqlite::Result<()> {
        let sum = "INSERT INTO days (owner, day, bytes, credit) VALUES (?1, ?2, ?3, ?4)
                   ON CONFLICT (owner, day) DO UPDATE SET bytes = MIN(bytes + ?3, 9223372036854775807), credit = credit + ?4";
        let day = signed(at / DAY);
        self.connection.prepare_cached(sum)?.execute(params![owner, day, bytes, credit]).map(|_| ())
    }

    /// The number of a name. A key that was given in full is kept with it.
    fn name(&mut self, digest: [u8; 32], key: Option<PublicKey>) -> rusqlite::Result<i64> {
        if key.is_none()
            && let Some(number) = self.numbers.get(&digest)
        {
            return Ok(*number);
        }
        let keep = "INSERT INTO names (digest, key) VALUES (?1, ?2)
                    ON CONFLICT (digest) DO UPDATE SET key = COALESCE(key, ?2) RETURNING number";
        let key = key.map(|key| *key.as_bytes());
        let number =
            self.connection.prepare_cached(keep)?.query_row(params![digest, key], |row| row.get(0))?;
        self.numbers.insert(digest, number);
        Ok(number)
    }

    fn field(&mut self, kind: &str, field: &str) -> rusqlite::Result<i64> {
        let find = "SELECT number FROM fields WHERE kind = ? AND field = ?";
        let found =
            self.connection.prepare_cached(find)?.query_row([kind, field], |row| row.get(0)).optional()?;
        if let Some(number) = found {
            return Ok(number);
        }
        let make = "INSERT INTO fields (kind, field) VALUES (?, ?)";
        self.connection.prepare_cached(make)?.execute([kind, field])?;
        Ok(self.connection.last_insert_rowid())
    }
}

/// Every name in a note's text: the field that holds it, its digest, and the key where it is given in full.
fn named(text: &str) -> Vec<(&str, [u8; 32], Option<PublicKey>)> {
    let mut found = Vec::new();
    for line in text.lines().skip(1).take(MAX_LINES) {
        let Some((field, value)) = line.split_once(' ') else { continue };
        // What comes before is found by its own identity, and would make up a tenth of all mentions.
        if field == "prev" {
            continue;
        }
        let word = value.split(' ').next().unwrap_or_default();
        if let Ok(digest) = parse_hex_32(word) {
            if digest != [0; 32] {
                found.push((field, digest, None));
            }
        } else if let Ok(key) = word.parse::<PublicKey>() {
            found.push((field, sha256(&[key.as_bytes()]), Some(key)));
        }
    }
    found
}

/// What lies at the index's path.
enum Found {
    /// The index of this network, or a new one.
    Ours(Connection),
    /// An index of another layout or network.
    Outdated,
}

/// Opens or makes the file. Fails where it is no explorer's index: such a file is nobody's to delete.
fn open_file(path: &Path, network: &NetworkName) -> rusqlite::Result<Found> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(2))?;
    let number = |name| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    let tables: i64 = connection.query_row("SELECT COUNT(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables > 0 && number("application_id")? != APPLICATION_ID {
        return Err(rusqlite::Error::InvalidQuery);
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // A power failure may take back the latest transactions, never damage the file; they are read again.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "trusted_schema", false)?;
    if tables == 0 {
        let transaction = connection.unchecked_transaction()?;
        lay_out(&transaction, network.as_str())?;
        transaction.commit()?;
    }
    if number("user_version")? != LAYOUT {
        return Ok(Found::Outdated);
    }
    let kept: String = connection.query_row("SELECT network FROM progress", [], |row| row.get(0))?;
    Ok(if kept == network.as_str() { Found::Ours(connection) } else { Found::Outdated })
}

fn in_memory(network: &NetworkName) -> rusqlite::Result<Connection> {
    let connection = Connection::open_in_memory()?;
    lay_out(&connection, network.as_str())?;
    Ok(connection)
}

fn lay_out(connection: &Connection, network: &str) -> rusqlite::Result<()> {
    connection.execute_batch(SCHEMA)?;
    connection.execute(
        "INSERT INTO progress (one, network, entries, postings, conflicts) VALUES (1, ?, 0, 0, 0)",
        [network],
    )?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", LAYOUT)
}

fn read_point(connection: &Connection) -> rusqlite::Result<Point> {
    connection.query_row("SELECT entries, postings, conflicts FROM progress", [], |row| {
        Ok(Point {
            entries: unsigned(row.get(0)?),
            postings: unsigned(row.get(1)?),
            conflicts: unsigned(row.get(2)?),
        })
    })
}

fn remove(path: &Path) {
    for ending in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        let _ = std::fs::remove_file(PathBuf::from(name));
    }
}

fn at(path: &Path) -> impl Fn(rusqlite::Error) -> LedgerError {
    move |source| LedgerError::Database { path: path.to_owned(), source }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
