//! Reading for the pages: single entries, bounded stretches of entries, and what follows a point that was read before.
//!
//! Every question here goes through an index and gives a bounded number of rows, however large the ledger is.

use kvasir_merkle::Hash;
use kvasir_wire::id::SessionId;
use rusqlite::{OptionalExtension, Row, params};

use super::super::rows::unsigned;
use super::super::signed;
use super::Answers;
use crate::refusal::LedgerError;

/// Most rows that one question gives, whatever it asks for.
pub const MOST_ROWS: u32 = 1_000;

const ENTRY: &str = "SELECT number, kind, id, leaf, root, received, note FROM entries";

/// One entry with all that is stored about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Position among all entries, from 0.
    pub number: u64,
    /// What the note is.
    pub kind: String,
    /// SHA-256 of the note's text.
    pub id: Hash,
    /// Leaf hash of the whole note.
    pub leaf: Hash,
    /// RFC 6962 root over the entries up to and including this one.
    pub root: Hash,
    /// Unix seconds by the ledger's clock.
    pub received: u64,
    /// The whole note.
    pub note: String,
}

/// Which stretch of a list that is ordered by a number is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stretch {
    /// The highest numbers.
    #[default]
    Latest,
    /// The highest ones below this.
    Before(u64),
    /// The lowest ones above this.
    After(u64),
}

/// One move of credit, with the accounts on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posting {
    /// Position among all postings.
    pub number: u64,
    /// The entry behind it.
    pub cause: u64,
    /// `fund`, `settle`, `post` or `reverse`.
    pub step: String,
    /// The account that gives: its kind and owner.
    pub debit: (String, [u8; 32]),
    /// The account that gets.
    pub credit: (String, [u8; 32]),
    /// The amount.
    pub nanokvr: i64,
    /// Unix seconds.
    pub at: u64,
}

/// A receipt that says something else than the one that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Position among all conflicts.
    pub number: u64,
    /// SHA-256 of its text.
    pub id: Hash,
    /// The entry that stands.
    pub against: u64,
    /// Unix seconds.
    pub received: u64,
}

/// What came after a point: all of it from one snapshot.
#[derive(Clone, Debug, Default)]
pub struct Following {
    /// Leaf hash of the entry right before the first one asked for, to see that it is the same ledger still.
    pub leaf_before: Option<Hash>,
    /// Number of all entries.
    pub total: u64,
    /// The next entries, ascending, without a gap.
    pub entries: Vec<Entry>,
    /// The next postings, ascending; some may be caused by entries that are not among those given.
    pub postings: Vec<Posting>,
    /// The next conflicts, ascending.
    pub conflicts: Vec<Conflict>,
}

/// An entry that was found: its number and kind.
pub type Found = (u64, String);

/// Where [`Answers::following`] continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Entries read so far, which is the next one's number.
    pub entries: u64,
    /// Number of the last posting read.
    pub postings: u64,
    /// Number of the last conflict read.
    pub conflicts: u64,
}

impl Answers<'_> {
    /// The entry with this number.
    pub fn entry(&self, number: u64) -> Result<Option<Entry>, LedgerError> {
        let find = format!("{ENTRY} WHERE number = ?");
        self.read(|connection| {
            connection.prepare_cached(&find)?.query_row([signed(number)], entry).optional()
        })
    }

    /// The entries with these numbers, in this order, at most [`MOST_ROWS`]; unknown ones are left out.
    pub fn entries_numbered(&self, numbers: &[u64]) -> Result<Vec<Entry>, LedgerError> {
        let find = format!("{ENTRY} WHERE number = ?");
        self.read(|connection| {
            let mut find = connection.prepare_cached(&find)?;
            let mut found = Vec::new();
            for number in numbers.iter().take(MOST_ROWS as usize) {
                found.extend(find.query_row([signed(*number)], entry).optional()?);
            }
            Ok(found)
        })
    }

    /// Entries of one kind or of all, highest number first.
    pub fn entries_page(
        &self,
        kind: Option<&str>,
        stretch: Stretch,
        limit: u32,
    ) -> Result<Vec<Entry>, LedgerError> {
        let (which, bound, order) = stretch.sql("number");
        let kind_is = if kind.is_some() { "kind = ?1" } else { "?1 IS NULL" };
        let find = format!("{ENTRY} WHERE {kind_is} AND {which} ORDER BY number {order} LIMIT ?3");
        let mut entries: Vec<Entry> = self.read(|connection| {
            let values = params![kind, bound, limit.min(MOST_ROWS)];
            connection.prepare_cached(&find)?.query_map(values, entry)?.collect()
        })?;
        stretch.highest_first(&mut entries);
        Ok(entries)
    }

    /// Receipts of a session, highest `seq` first; the stretch counts in `seq`.
    pub fn session_page(
        &self,
        session: SessionId,
        stretch: Stretch,
        limit: u32,
    ) -> Result<Vec<Entry>, LedgerError> {
        let (which, bound, order) = stretch.sql("r.seq");
        let find = format!(
            "SELECT e.number, e.kind, e.id, e.leaf, e.root, e.received, e.note
             FROM sessions s JOIN receipts r ON r.session = s.entry JOIN entries e ON e.number = r.entry
             WHERE s.session = ?1 AND {which} ORDER BY r.seq {order} LIMIT ?3"
        );
        let mut entries: Vec<Entry> = self.read(|connection| {
            let values = params![session.0, bound, limit.min(MOST_ROWS)];
            connection.prepare_cached(&find)?.query_map(values, entry)?.collect()
        })?;
        stretch.highest_first(&mut entries);
        Ok(entries)
    }

    /// Entries of the receipts before and after one of a session.
    pub fn neighbours(
        &self,
        session: SessionId,
        seq: u64,
    ) -> Result<(Option<u64>, Option<u64>), LedgerError> {
        let before = "SELECT r.entry FROM sessions s JOIN receipts r ON r.session = s.entry
                      WHERE s.session = ? AND r.seq < ? ORDER BY r.seq DESC LIMIT 1";
        let after = "SELECT r.entry FROM sessions s JOIN receipts r ON r.session = s.entry
                     WHERE s.session = ? AND r.seq > ? ORDER BY r.seq LIMIT 1";
        self.read(|connection| {
            let one = |find: &str| {
                connection
                    .prepare_cached(find)?
                    .query_row(params![session.0, signed(seq)], |row| row.get(0).map(unsigned))
                    .optional()
            };
            Ok((one(before)?, one(after)?))
        })
    }

    /// Entry of the settlement that covers a receipt.
    pub fn settled_by(&self, session: SessionId, seq: u64) -> Result<Option<u64>, LedgerError> {
        let find = "SELECT entry, from_seq FROM settled_sessions WHERE session = ? AND to_seq >= ?
                    ORDER BY to_seq LIMIT 1";
        self.read(|connection| {
            let found = connection
                .prepare_cached(find)?
                .query_row(params![session.0, signed(seq)], |row| {
                    Ok((unsigned(row.get(0)?), unsigned(row.get(1)?)))
                })
                .optional()?;
            Ok(found.and_then(|(entry, from_seq)| (from_seq <= seq).then_some(entry)))
        })
    }

    /// Entries whose text digest, or whose leaf hash, lies between two values, at most `limit` of each.
    pub fn entries_between(
        &self,
        from: [u8; 32],
        to: [u8; 32],
        limit: u32,
    ) -> Result<(Vec<Found>, Vec<Found>), LedgerError> {
        self.read(|connection| {
            let list = |column: &str| -> rusqlite::Result<Vec<Found>> {
                let find = format!(
                    "SELECT number, kind FROM entries WHERE {column} BETWEEN ? AND ? ORDER BY {column} LIMIT ?"
                );
                connection
                    .prepare_cached(&find)?
                    .query_map(params![from, to, limit.min(MOST_ROWS)], |row| {
                        Ok((unsigned(row.get(0)?), row.get(1)?))
                    })?
                    .collect()
            };
            Ok((list("id")?, list("leaf")?))
        })
    }

    /// The whole note of a conflict.
    pub fn conflict(&self, id: Hash) -> Result<Option<String>, LedgerError> {
        let find = "SELECT note FROM conflicts WHERE id = ?";
        self.read(|connection| {
            connection.prepare_cached(find)?.query_row([id.0], |row| row.get(0)).optional()
        })
    }

    /// What came after `point`, at most `limit` rows of each sort.
    pub fn following(&self, point: Point, limit: u32) -> Result<Following, LedgerError> {
        let limit = limit.min(MOST_ROWS);
        let before = "SELECT leaf FROM entries WHERE number = ?";
        let total = "SELECT COALESCE(MAX(number) + 1, 0) FROM entries";
        let entries = format!("{ENTRY} WHERE number >= ? ORDER BY number LIMIT ?");
        let postings = format!("{POSTING} WHERE p.number > ? ORDER BY p.number LIMIT ?");
        let conflicts =
            "SELECT rowid, id, against, received FROM conflicts WHERE rowid > ? ORDER BY rowid LIMIT ?";
        let conflict = |row: &Row<'_>| {
            Ok(Conflict {
                number: unsigned(row.get(0)?),
                id: Hash(row.get(1)?),
                against: unsigned(row.get(2)?),
                received: unsigned(row.get(3)?),
            })
        };
        self.read(|connection| {
            Ok(Following {
                leaf_before: connection
                    .prepare_cached(before)?
                    .query_row([signed(point.entries) - 1], |row| row.get(0).map(Hash))
                    .optional()?,
                total: connection.prepare_cached(total)?.query_row([], |row| row.get(0).map(unsigned))?,
                entries: connection
                    .prepare_cached(&entries)?
                    .query_map(params![signed(point.entries), limit], entry)?
                    .collect::<Result<_, _>>()?,
                postings: connection
                    .prepare_cached(&postings)?
                    .query_map(params![signed(point.postings), limit], posting)?
                    .collect::<Result<_, _>>()?,
                conflicts: connection
                    .prepare_cached(conflicts)?
                    .query_map(params![signed(point.conflicts), limit], conflict)?
                    .collect::<Result<_, _>>()?,
            })
        })
    }
}

impl Stretch {
    /// A condition on `column` with its bound as `?2`, the bound, and the order to read in.
    fn sql(self, column: &str) -> (String, i64, &'static str) {
        match self {
            Stretch::Latest => (format!("{column} <= ?2"), i64::MAX, "DESC"),
            Stretch::Before(number) => (format!("{column} < ?2"), signed(number), "DESC"),
            Stretch::After(number) => (format!("{column} > ?2"), signed(number), "ASC"),
        }
    }

    fn highest_first<T>(self, rows: &mut [T]) {
        if matches!(self, Stretch::After(_)) {
            rows.reverse();
        }
    }
}

pub(super) const POSTING: &str = "SELECT p.number, p.cause, p.step, d.kind, d.owner, c.kind, c.owner, p.nanokvr, p.at
                       FROM postings p JOIN accounts d ON d.number = p.debit JOIN accounts c ON c.number = p.credit";

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    Ok(Entry {
        number: unsigned(row.get(0)?),
        kind: row.get(1)?,
        id: Hash(row.get(2)?),
        leaf: Hash(row.get(3)?),
        root: Hash(row.get(4)?),
        received: unsigned(row.get(5)?),
        note: row.get(6)?,
    })
}

pub(super) fn posting(row: &Row<'_>) -> rusqlite::Result<Posting> {
    Ok(Posting {
        number: unsigned(row.get(0)?),
        cause: unsigned(row.get(1)?),
        step: row.get(2)?,
        debit: (row.get(3)?, row.get(4)?),
        credit: (row.get(5)?, row.get(6)?),
        nanokvr: row.get(7)?,
        at: unsigned(row.get(8)?),
    })
}
