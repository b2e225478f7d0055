//! Reading: what the API and the commands ask. Every answer comes from one snapshot.

mod pages;
mod statement;

use std::collections::BTreeMap;
use std::path::Path;

use kvasir_merkle::Hash;
use kvasir_wire::account::{MAX_SETTLED_SESSIONS, Price, Statement};
use kvasir_wire::id::{KeyDigest, SessionId, WalletDigest};
use kvasir_wire::money::{MeteredBytes, NanoKvr};
use kvasir_wire::note::Note;
use rusqlite::{Connection, OptionalExtension, params};

pub use pages::{Conflict, Entry, Following, Found, MOST_ROWS, Point, Posting, Stretch};

use super::rows::{self, unsigned};
use super::{Owner, at, signed};
use crate::api::{
    Account, CurrentPrice, MAX_PAGE, Receipts, StoredNote, StoredReceipt, Unsettled, UnsettledPart,
    UnsettledSession, Wallet,
};
use crate::refusal::{LedgerError, Refusal};

/// Most parts in one answer of `GET /v1/unsettled`; the next question gives the rest.
const MAX_PARTS: usize = 256;

/// The questions, over any connection to a ledger's file.
pub struct Answers<'a> {
    pub(super) connection: &'a Connection,
    pub(super) path: &'a Path,
}

/// A session's latest receipt and the end of its last settlement.
struct Open {
    session: SessionId,
    to_seq: u64,
    settled_seq: u64,
    billed: u64,
    settled: u64,
    payer: KeyDigest,
    payee: WalletDigest,
    price: Hash,
}

impl Open {
    fn unsettled(&self) -> UnsettledSession {
        UnsettledSession {
            session: self.session.to_string(),
            from_seq: self.settled_seq + 1,
            to_seq: self.to_seq,
            bytes: self.billed - self.settled,
        }
    }
}

impl<'a> Answers<'a> {
    /// Answers from `connection`, which belongs to the file at `path`.
    pub fn new(connection: &'a Connection, path: &'a Path) -> Self {
        Self { connection, path }
    }

    /// Receipts after an index, ascending, at most `limit`, which is 1 to [`MAX_PAGE`].
    pub fn receipts(&self, after: Option<u64>, limit: u32) -> Result<Receipts, LedgerError> {
        let find = "SELECT number, id, note FROM entries WHERE kind = 'receipt' AND number > ? ORDER BY number LIMIT ?";
        let row = |row: &rusqlite::Row<'_>| {
            Ok(StoredReceipt {
                index: unsigned(row.get(0)?),
                id: Hash(row.get(1)?).to_string(),
                note: row.get(2)?,
            })
        };
        let receipts: Vec<StoredReceipt> = self.read(|connection| {
            let mut find = connection.prepare_cached(find)?;
            let values = params![after.map_or(-1, signed), limit.clamp(1, MAX_PAGE)];
            find.query_map(values, row)?.collect()
        })?;
        let next = receipts.last().map(|receipt| receipt.index).or(after);
        Ok(Receipts { receipts, next })
    }

    /// The entry with this leaf hash.
    pub fn note(&self, leaf: &Hash) -> Result<StoredNote, LedgerError> {
        self.read(|connection| rows::entry_by_leaf(connection, leaf))?.ok_or_else(|| {
            let message = format!("no note with leaf hash {leaf} is kept here");
            Refusal::new(
                404,
                "unknown_note",
                message,
                "check the leaf hash; a receipt's `id` is not its leaf",
            )
            .into()
        })
    }

    /// A wallet's credit.
    pub fn wallet(&self, payee: WalletDigest) -> Result<Wallet, LedgerError> {
        let (pending, posted, bytes, next_posting, open) = self.read(|connection| {
            let settled = "SELECT COALESCE(SUM(bytes), 0),
                                  MIN(CASE WHEN NOT EXISTS (SELECT 1 FROM postings WHERE cause = s.entry AND step = 'post')
                                           THEN pending_until END)
                           FROM settlements s WHERE payee = ?
                           AND NOT EXISTS (SELECT 1 FROM postings WHERE cause = s.entry AND step = 'reverse')";
            let settled: (i64, Option<i64>) = connection
                .prepare_cached(settled)?
                .query_row([payee.0], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok((
                rows::balance(connection, Owner::Pending(payee))?,
                rows::balance(connection, Owner::Posted(payee))?,
                unsigned(settled.0),
                settled.1.map(unsigned),
                open_sessions(connection, "payee = ?1", Some(&payee.0))?,
            ))
        })?;
        let (unsettled_bytes, unsettled_nanokvr) = self.worth(&open)?;
        let credit = NanoKvr::new(pending).checked_add(NanoKvr::new(posted)).map_err(Refusal::from)?;
        Ok(Wallet {
            payee: payee.to_string(),
            pending_nanokvr: pending,
            posted_nanokvr: posted,
            bytes,
            units: MeteredBytes::new(bytes).map_err(Refusal::from)?.units().to_string(),
            kvr: credit.kvr().to_string(),
            unsettled_bytes,
            unsettled_nanokvr,
            next_posting,
        })
    }

    /// A paying account.
    pub fn account(&self, account: KeyDigest) -> Result<Account, LedgerError> {
        let (available, funded, open) = self.read(|connection| {
            let funded = "SELECT COALESCE(SUM(nanokvr), 0) FROM postings WHERE step = 'fund'
                          AND credit = (SELECT number FROM accounts WHERE kind = 'payer' AND owner = ?)";
            Ok((
                rows::balance(connection, Owner::Payer(account))?,
                connection.prepare_cached(funded)?.query_row([account.0], |row| row.get::<_, i64>(0))?,
                open_sessions(connection, "payer = ?1", Some(&account.0))?,
            ))
        })?;
        let (_, unsettled_nanokvr) = self.worth(&open)?;
        Ok(Account {
            account: account.to_string(),
            available_nanokvr: available,
            funded_nanokvr: funded,
            spent_nanokvr: funded - available,
            unsettled_nanokvr,
            kvr: NanoKvr::new(available).kvr().to_string(),
        })
    }

    /// The price that holds at `now`: the one with the latest `from` that has come; of equals the one stored last.
    pub fn price(&self, now: u64) -> Result<CurrentPrice, LedgerError> {
        // A price's grammar has one line `from N`. SQLite looks for it and hands out one note, however many there are.
        let find = "SELECT number, kind, id, leaf, note FROM (
                        SELECT *, CAST(substr(note, instr(note, char(10) || 'from ') + 6) AS INTEGER) AS begins
                        FROM entries WHERE kind = 'price')
                    WHERE begins <= ? ORDER BY begins DESC, number DESC LIMIT 1";
        let current = self.read(|connection| {
            connection.prepare_cached(find)?.query_row([signed(now)], rows::stored_note).optional()
        })?;
        let entry = current.ok_or_else(|| {
            let advice = "have the treasury set one with `kvasir-ledger price`";
            Refusal::new(404, "no_price", format!("no price holds at {now} (Unix seconds)"), advice)
        })?;
        let price = self.price_note(&entry)?;
        Ok(CurrentPrice {
            leaf: entry.leaf,
            nanokvr_per_byte: price.per_byte.get(),
            from: price.from,
            note: entry.note,
        })
    }

    /// Receipts that wait to be settled, grouped as settlements need them; what the payers can pay comes first.
    pub fn unsettled(&self) -> Result<Unsettled, LedgerError> {
        let (groups, balances) = self.read(|connection| {
            let mut groups: BTreeMap<(KeyDigest, WalletDigest, Hash), Vec<Open>> = BTreeMap::new();
            for open in open_sessions(connection, "?1 IS NULL", None)? {
                if open.billed > open.settled {
                    groups.entry((open.payer, open.payee, open.price)).or_default().push(open);
                }
            }
            let mut balances = BTreeMap::new();
            for (payer, payee, _) in groups.keys() {
                let wallet = rows::balance(connection, Owner::Pending(*payee))?
                    .saturating_add(rows::balance(connection, Owner::Posted(*payee))?);
                balances.insert((*payer, *payee), (wallet, rows::balance(connection, Owner::Payer(*payer))?));
            }
            Ok((groups, balances))
        })?;
        // First what can be paid, so that accounts without credit never keep others waiting.
        let (mut payable, mut short) = (Vec::new(), Vec::new());
        let mut left: BTreeMap<KeyDigest, i64> = BTreeMap::new();
        for ((payer, payee, price), sessions) in groups {
            let per_byte = self.price_note(&self.note(&price)?)?.per_byte;
            let (before, available) = balances.get(&(payer, payee)).copied().unwrap_or_default();
            let left = left.entry(payer).or_insert(available);
            let mut fits = |open: &Open| {
                let fresh =
                    MeteredBytes::new(open.billed - open.settled).and_then(|bytes| per_byte.credit(bytes));
                let rest = fresh.ok().and_then(|due| left.checked_sub(due.get())).filter(|rest| *rest >= 0);
                *left = rest.unwrap_or(*left);
                rest.is_some()
            };
            let (now, later): (Vec<Open>, Vec<Open>) = sessions.into_iter().partition(|open| fits(open));
            for (sessions, parts) in [(now, &mut payable), (later, &mut short)] {
                parts.extend(sessions.chunks(MAX_SETTLED_SESSIONS).map(|chunk| UnsettledPart {
                    payee: payee.to_string(),
                    payer: payer.to_string(),
                    price: price.to_string(),
                    nanokvr_per_byte: per_byte.get(),
                    before_nanokvr: before,
                    available_nanokvr: available,
                    sessions: chunk.iter().map(Open::unsettled).collect(),
                }));
            }
        }
        payable.append(&mut short);
        payable.truncate(MAX_PARTS);
        Ok(Unsettled { parts: payable })
    }

    /// Number of entries and the root over them.
    pub fn head(&self) -> Result<(u64, Hash), LedgerError> {
        self.read(|connection| {
            let find = "SELECT number, root FROM entries ORDER BY number DESC LIMIT 1";
            let last: Option<(i64, [u8; 32])> = connection
                .prepare_cached(find)?
                .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            Ok(last
                .map_or((0, kvasir_merkle::EMPTY_ROOT), |(number, root)| (unsigned(number) + 1, Hash(root))))
        })
    }

    /// Bytes and credit of receipts that are not settled.
    fn worth(&self, open: &[Open]) -> Result<(u64, i64), LedgerError> {
        let (mut bytes, mut credit) = (MeteredBytes::ZERO, NanoKvr::ZERO);
        let mut prices = BTreeMap::new();
        for session in open.iter().filter(|session| session.billed > session.settled) {
            let price = match prices.get(&session.price) {
                Some(price) => *price,
                None => self.price_note(&self.note(&session.price)?)?.per_byte,
            };
            prices.insert(session.price, price);
            let fresh = MeteredBytes::new(session.billed - session.settled).map_err(Refusal::from)?;
            bytes = bytes.checked_add(fresh).map_err(Refusal::from)?;
            credit =
                credit.checked_add(price.credit(fresh).map_err(Refusal::from)?).map_err(Refusal::from)?;
        }
        Ok((bytes.get(), credit.get()))
    }

    fn price_note(&self, entry: &StoredNote) -> Result<Price, LedgerError> {
        let note = Note::parse(entry.note.as_bytes()).map_err(|error| error.to_string());
        note.and_then(|note| Price::parse(note.text()).map_err(|error| error.to_string()))
            .map_err(|reason| LedgerError::Damaged { path: self.path.to_owned(), index: entry.index, reason })
    }

    /// Runs several reads in one snapshot.
    fn read<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, LedgerError> {
        let snapshot = self.connection.unchecked_transaction().map_err(at(self.path))?;
        read(&snapshot).map_err(at(self.path))
    }
}

/// Sessions whose latest receipt lies after their last settlement. `which` uses the parameter `?1`.
fn open_sessions(
    connection: &Connection,
    which: &str,
    key: Option<&[u8; 32]>,
) -> rusqlite::Result<Vec<Open>> {
    // The cost hangs on sessions that wait, not on receipts, nor on what was settled.
    let find = format!(
        "SELECT s.session, r.seq, r.billed, s.payer, s.payee, s.price_leaf,
                COALESCE((SELECT MAX(to_seq) FROM settled_sessions WHERE session = s.session), 0),
                COALESCE((SELECT SUM(bytes) FROM settled_sessions WHERE session = s.session), 0)
         FROM unsettled u CROSS JOIN sessions s ON s.entry = u.session CROSS JOIN receipts r
           ON r.session = s.entry AND r.seq = (SELECT MAX(seq) FROM receipts WHERE session = s.entry)
         WHERE {which} AND NOT EXISTS (SELECT 1 FROM settled_sessions WHERE session = s.session AND to_seq >= r.seq)
         ORDER BY r.entry"
    );
    let row = |row: &rusqlite::Row<'_>| {
        Ok(Open {
            session: SessionId(row.get(0)?),
            to_seq: unsigned(row.get(1)?),
            billed: unsigned(row.get(2)?),
            payer: KeyDigest(row.get(3)?),
            payee: WalletDigest(row.get(4)?),
            price: Hash(row.get(5)?),
            settled_seq: unsigned(row.get(6)?),
            settled: unsigned(row.get(7)?),
        })
    };
    connection.prepare_cached(&find)?.query_map([key], row)?.collect()
}
