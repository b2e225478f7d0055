//! What pages ask the index: each answer is a search in an index with a limit.

use kvasir_merkle::Hash;
use kvasir_wire::key::PublicKey;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{EVERYBODY, Index, at, signed, unsigned};
use crate::refusal::LedgerError;
use crate::store::Stretch;

/// Counting stops here: a page says "more than".
pub(in crate::explorer) const MOST_COUNTED: u64 = 1_000;
/// Wallets that can be paged through, richest first; all others are found by search.
pub(in crate::explorer) const MOST_RANKED: u32 = 5_000;

/// Sums over the whole ledger, as far as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::explorer) struct Totals {
    /// Entries of each kind, the most frequent first.
    pub kinds: Vec<(String, u64)>,
    /// Wallets that were ever named.
    pub wallets: u64,
    /// Bytes in receipts.
    pub metered: u64,
    /// Credit of all wallets in nanoKVR: what can still be reversed,
    pub pending: i64,
    /// and what is final.
    pub posted: i64,
}

/// A name and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::explorer) struct Named {
    /// The digest.
    pub digest: Hash,
    /// Kinds and fields that hold it.
    pub fields: Vec<(String, String)>,
}

/// How often a name stands in a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::explorer) struct Mention {
    /// The kind of note.
    pub kind: String,
    /// The field.
    pub field: String,
    /// How often.
    pub count: Counted,
}

/// A count that stops at [`MOST_COUNTED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::explorer) enum Counted {
    /// So many.
    Exactly(u64),
    /// More than so many.
    MoreThan(u64),
}

/// A session's sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::explorer) struct SessionSums {
    /// The wallet that earns.
    pub payee: Hash,
    /// Receipts kept.
    pub receipts: u64,
    /// Bytes billed by the highest receipt.
    pub billed: u64,
    /// Bytes settled.
    pub settled: u64,
}

/// A wallet's sums; amounts in nanoKVR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::explorer) struct Wallet {
    /// Digest of its key.
    pub digest: Hash,
    /// Receipts that name it.
    pub receipts: u64,
    /// Sessions.
    pub sessions: u64,
    /// Settlements, reversed ones too.
    pub settlements: u64,
    /// Bytes in receipts.
    pub metered: u64,
    /// Bytes in settlements, reversed ones too.
    pub settled: u64,
    /// Bytes of reversed settlements.
    pub reversed: u64,
    /// Credit that can still be reversed.
    pub pending: i64,
    /// Final credit.
    pub posted: i64,
}

/// A paying account; amounts in nanoKVR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::explorer) struct Payer {
    /// What the treasury put in.
    pub funded: i64,
    /// What is left.
    pub available: i64,
}

/// A settlement's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::explorer) struct SettlementRow {
    /// Its entry.
    pub entry: u64,
    /// The wallet.
    pub payee: Hash,
    /// The paying account.
    pub payer: Hash,
    /// Bytes.
    pub bytes: u64,
    /// The amount.
    pub nanokvr: i64,
    /// Unix seconds when it was made.
    pub at: u64,
    /// Unix seconds until which it can be reversed.
    pub pending_until: u64,
    /// `pending`, `posted` or `reversed`.
    pub state: String,
}

/// A move of one owner's credit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::explorer) struct AccountMove {
    /// Position among all postings.
    pub posting: u64,
    /// The entry behind it.
    pub cause: u64,
    /// What happened.
    pub step: String,
    /// What it did to the owner's credit.
    pub nanokvr: i64,
    /// The credit after it.
    pub after: i64,
    /// Unix seconds.
    pub at: u64,
}

/// One day of a wallet or of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::explorer) struct Day {
    /// Unix seconds over 86,400.
    pub day: u64,
    /// Metered bytes.
    pub bytes: u64,
    /// Change of credit in nanoKVR.
    pub credit: i64,
}

impl Index {
    /// Sums over everything.
    pub fn totals(&self) -> Result<Totals, LedgerError> {
        self.ask(|connection| {
            let find = "SELECT kind, entries FROM kinds ORDER BY entries DESC, kind LIMIT 100";
            let row = |row: &Row<'_>| Ok((row.get(0)?, unsigned(row.get(1)?)));
            let kinds = connection.prepare_cached(find)?.query_map([], row)?.collect::<Result<_, _>>()?;
            let wallets = "SELECT wallets FROM progress";
            let wallets =
                connection.prepare_cached(wallets)?.query_row([], |row| row.get(0).map(unsigned))?;
            let sums = "SELECT metered, pending, posted FROM wallets WHERE name = ?";
            let sums: Option<(i64, i64, i64)> = connection
                .prepare_cached(sums)?
                .query_row([EVERYBODY], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                .optional()?;
            let (metered, pending, posted) = sums.unwrap_or_default();
            Ok(Totals { kinds, wallets, metered: unsigned(metered), pending, posted })
        })
    }

    /// Names between two digests, at most `limit`.
    pub fn names_between(&self, from: [u8; 32], to: [u8; 32], limit: u32) -> Result<Vec<Named>, LedgerError> {
        self.ask(|connection| {
            let find =
                "SELECT number, digest FROM names WHERE digest BETWEEN ? AND ? ORDER BY digest LIMIT ?";
            let found: Vec<(i64, [u8; 32])> = connection
                .prepare_cached(find)?
                .query_map(params![from, to, limit], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<Result<_, _>>()?;
            let mut named = Vec::new();
            for (number, digest) in found {
                named.push(Named { digest: Hash(digest), fields: fields_of(connection, number)? });
            }
            Ok(named)
        })
    }

    /// Where a name stands, each with its count.
    pub fn mentions(&self, digest: Hash) -> Result<Vec<Mention>, LedgerError> {
        self.ask(|connection| {
            let Some(name) = number(connection, digest)? else { return Ok(Vec::new()) };
            let mut mentions = Vec::new();
            for (kind, field) in fields_of(connection, name)? {
                let count = "SELECT COUNT(*) FROM (SELECT 1 FROM mentions WHERE name = ?
                             AND field = (SELECT number FROM fields WHERE kind = ? AND field = ?) LIMIT ?)";
                let values = params![name, kind, field, signed(MOST_COUNTED + 1)];
                let count =
                    connection.prepare_cached(count)?.query_row(values, |row| row.get(0)).map(unsigned)?;
                let count = match count {
                    count if count > MOST_COUNTED => Counted::MoreThan(MOST_COUNTED),
                    count => Counted::Exactly(count),
                };
                mentions.push(Mention { kind, field, count });
            }
            Ok(mentions)
        })
    }

    /// Entries that name a digest in a field, highest first.
    pub fn entries_naming(
        &self,
        digest: Hash,
        (kind, field): (&str, &str),
        stretch: Stretch,
        limit: u32,
    ) -> Result<Vec<u64>, LedgerError> {
        self.ask(|connection| {
            let Some(name) = number(connection, digest)? else { return Ok(Vec::new()) };
            let (which, bound, order) = condition(stretch, "entry", 4);
            let find = format!(
                "SELECT entry FROM mentions WHERE name = ?1
                 AND field = (SELECT number FROM fields WHERE kind = ?2 AND field = ?3) AND {which}
                 ORDER BY entry {order} LIMIT ?5"
            );
            let mut entries: Vec<u64> = connection
                .prepare_cached(&find)?
                .query_map(params![name, kind, field, bound, limit], |row| row.get(0).map(unsigned))?
                .collect::<Result<_, _>>()?;
            highest_first(stretch, &mut entries);
            Ok(entries)
        })
    }

    /// The public key with this digest, where some entry gives it in full.
    pub fn key(&self, digest: Hash) -> Result<Option<PublicKey>, LedgerError> {
        self.ask(|connection| {
            let find = "SELECT key FROM names WHERE digest = ?";
            let key: Option<Option<[u8; 32]>> =
                connection.prepare_cached(find)?.query_row([digest.0], |row| row.get(0)).optional()?;
            Ok(key.flatten().and_then(|key| PublicKey::from_bytes(&key).ok()))
        })
    }

    /// A session's sums.
    pub fn session(&self, session: Hash) -> Result<Option<SessionSums>, LedgerError> {
        self.ask(|connection| {
            let find = "SELECT p.digest, s.receipts, s.billed, s.settled FROM names n
                        JOIN sessions s ON s.name = n.number JOIN names p ON p.number = s.payee WHERE n.digest = ?";
            let row = |row: &Row<'_>| {
                Ok(SessionSums {
                    payee: Hash(row.get(0)?),
                    receipts: unsigned(row.get(1)?),
                    billed: unsigned(row.get(2)?),
                    settled: unsigned(row.get(3)?),
                })
            };
            connection.prepare_cached(find)?.query_row([session.0], row).optional()
        })
    }

    /// A wallet's sums.
    pub fn wallet(&self, digest: Hash) -> Result<Option<Wallet>, LedgerError> {
        self.ask(|connection| {
            let find = format!("{WALLET} WHERE n.digest = ?");
            connection.prepare_cached(&find)?.query_row([digest.0], wallet).optional()
        })
    }

    /// Wallets, richest first: `limit` from place `skip` (at most [`MOST_RANKED`]) on.
    pub fn wallets(&self, skip: u32, limit: u32) -> Result<Vec<Wallet>, LedgerError> {
        self.ask(|connection| {
            let find = format!("{WALLET} ORDER BY w.credit DESC, w.name LIMIT ? OFFSET ?");
            let values = params![limit, skip.min(MOST_RANKED)];
            connection.prepare_cached(&find)?.query_map(values, wallet)?.collect()
        })
    }

    /// A paying account's sums.
    pub fn payer(&self, digest: Hash) -> Result<Option<Payer>, LedgerError> {
        self.ask(|connection| {
            let find = "SELECT p.funded, p.available FROM names n JOIN payers p ON p.name = n.number
                        WHERE n.digest = ?";
            let row = |row: &Row<'_>| Ok(Payer { funded: row.get(0)?, available: row.get(1)? });
            connection.prepare_cached(find)?.query_row([digest.0], row).optional()
        })
    }

    /// Settlements by their entries, in this order.
    pub fn settlements(&self, entries: &[u64]) -> Result<Vec<SettlementRow>, LedgerError> {
        self.ask(|connection| {
            let find = format!("{SETTLEMENT} WHERE s.entry = ?");
            let mut find = connection.prepare_cached(&find)?;
            let mut found = Vec::new();
            for entry in entries {
                found.extend(find.query_row([signed(*entry)], settlement).optional()?);
            }
            Ok(found)
        })
    }

    /// All settlements, highest entry first.
    pub fn settlements_page(&self, stretch: Stretch, limit: u32) -> Result<Vec<SettlementRow>, LedgerError> {
        self.ask(|connection| {
            let (which, bound, order) = condition(stretch, "s.entry", 1);
            let find = format!("{SETTLEMENT} WHERE {which} ORDER BY s.entry {order} LIMIT ?2");
            let mut rows: Vec<SettlementRow> = connection
                .prepare_cached(&find)?
                .query_map(params![bound, limit], settlement)?
                .collect::<Result<_, _>>()?;
            highest_first(stretch, &mut rows);
            Ok(rows)
        })
    }

    /// Moves of an owner's credit, latest first: of its wallet, or of its paying account.
    pub fn moves(
        &self,
        owner: Hash,
        wallet: bool,
        stretch: Stretch,
        limit: u32,
    ) -> Result<Vec<AccountMove>, LedgerError> {
        self.ask(|connection| {
            let Some(owner) = number(connection, owner)? else { return Ok(Vec::new()) };
            let (which, bound, order) = condition(stretch, "posting", 3);
            let find = format!(
                "SELECT posting, cause, step, nanokvr, after, at FROM moves
                 WHERE owner = ?1 AND wallet = ?2 AND {which} ORDER BY posting {order} LIMIT ?4"
            );
            let row = |row: &Row<'_>| {
                Ok(AccountMove {
                    posting: unsigned(row.get(0)?),
                    cause: unsigned(row.get(1)?),
                    step: row.get(2)?,
                    nanokvr: row.get(3)?,
                    after: row.get(4)?,
                    at: unsigned(row.get(5)?),
                })
            };
            let mut rows: Vec<AccountMove> = connection
                .prepare_cached(&find)?
                .query_map(params![owner, wallet, bound, limit], row)?
                .collect::<Result<_, _>>()?;
            highest_first(stretch, &mut rows);
            Ok(rows)
        })
    }

    /// Days from `first` on that have something, ascending, at most `limit`; of a wallet, or of all.
    pub fn days(&self, owner: Option<Hash>, first: u64, limit: u32) -> Result<Vec<Day>, LedgerError> {
        self.ask(|connection| {
            let owner = match owner {
                Some(owner) => number(connection, owner)?,
                None => Some(EVERYBODY),
            };
            let Some(owner) = owner else { return Ok(Vec::new()) };
            let find =
                "SELECT day, bytes, credit FROM days WHERE owner = ? AND day >= ? ORDER BY day LIMIT ?";
            let row = |row: &Row<'_>| {
                Ok(Day { day: unsigned(row.get(0)?), bytes: unsigned(row.get(1)?), credit: row.get(2)? })
            };
            connection.prepare_cached(find)?.query_map(params![owner, signed(first), limit], row)?.collect()
        })
    }

    /// Receipts that were refused because this entry stands, at most `limit`: identity and time.
    pub fn conflicts(&self, against: u64, limit: u32) -> Result<Vec<(Hash, u64)>, LedgerError> {
        self.ask(|connection| {
            let find = "SELECT id, received FROM conflicts WHERE against = ? LIMIT ?";
            let row = |row: &Row<'_>| Ok((Hash(row.get(0)?), unsigned(row.get(1)?)));
            connection.prepare_cached(find)?.query_map(params![signed(against), limit], row)?.collect()
        })
    }

    fn ask<T>(&self, question: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, LedgerError> {
        question(&self.connection).map_err(at(&self.path))
    }
}

const WALLET: &str =
    "SELECT n.digest, w.receipts, w.sessions, w.settlements, w.metered, w.settled, w.reversed,
                             w.pending, w.posted
                      FROM wallets w JOIN names n ON n.number = w.name";

const SETTLEMENT: &str = "SELECT s.entry, e.digest, r.digest, s.bytes, s.nanokvr, s.at, s.pending_until, s.state
                          FROM settlements s JOIN names e ON e.number = s.payee JOIN names r ON r.number = s.payer";

fn wallet(row: &Row<'_>) -> rusqlite::Result<Wallet> {
    Ok(Wallet {
        digest: Hash(row.get(0)?),
        receipts: unsigned(row.get(1)?),
        sessions: unsigned(row.get(2)?),
        settlements: unsigned(row.get(3)?),
        metered: unsigned(row.get(4)?),
        settled: unsigned(row.get(5)?),
        reversed: unsigned(row.get(6)?),
        pending: row.get(7)?,
        posted: row.get(8)?,
    })
}

fn settlement(row: &Row<'_>) -> rusqlite::Result<SettlementRow> {
    Ok(SettlementRow {
        entry: unsigned(row.get(0)?),
        payee: Hash(row.get(1)?),
        payer: Hash(row.get(2)?),
        bytes: unsigned(row.get(3)?),
        nanokvr: row.get(4)?,
        at: unsigned(row.get(5)?),
        pending_until: unsigned(row.get(6)?),
        state: row.get(7)?,
    })
}

fn number(connection: &Connection, digest: Hash) -> rusqlite::Result<Option<i64>> {
    let find = "SELECT number FROM names WHERE digest = ?";
    connection.prepare_cached(find)?.query_row([digest.0], |row| row.get(0)).optional()
}

/// Fields that hold a name: one search for each field there is, which are a few dozen.
fn fields_of(connection: &Connection, name: i64) -> rusqlite::Result<Vec<(String, String)>> {
    let find = "SELECT kind, field FROM fields f
                WHERE EXISTS (SELECT 1 FROM mentions WHERE name = ? AND field = f.number)
                ORDER BY f.number LIMIT 100";
    connection.prepare_cached(find)?.query_map([name], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// A condition on `column` with its bound as the numbered parameter, the bound, and the order to read in.
fn condition(stretch: Stretch, column: &str, parameter: u8) -> (String, i64, &'static str) {
    match stretch {
        Stretch::Latest => (format!("{column} <= ?{parameter}"), i64::MAX, "DESC"),
        Stretch::Before(number) => (format!("{column} < ?{parameter}"), signed(number), "DESC"),
        Stretch::After(number) => (format!("{column} > ?{parameter}"), signed(number), "ASC"),
    }
}

fn highest_first<T>(stretch: Stretch, rows: &mut [T]) {
    if matches!(stretch, Stretch::After(_)) {
        rows.reverse();
    }
}
