//! Statements: one account over a period, from the postings themselves.

use kvasir_wire::account::{Settlement, Statement as _};
use kvasir_wire::id::{KeyDigest, WalletDigest};
use kvasir_wire::note::Note;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::super::rows::{self, unsigned};
use super::super::{Owner, signed};
use super::Answers;
use super::pages::{POSTING, Posting, posting};
use crate::api::{
    AccountStatement, DEFAULT_PAGE, MAX_PAGE, Side, StatementLine, StatementQuery, StatementSettlement,
    StoredNote, UnsettledSession, exact_kvr,
};
use crate::refusal::{LedgerError, Refusal};

/// Stands for an account that nothing was ever posted to.
const NO_ACCOUNT: i64 = -1;
/// No posting has a number so low.
const NO_POSTING: i64 = -1;

/// The accounts that one statement is about.
struct Accounts {
    /// `pending` of a wallet; the account that pays.
    first: i64,
    /// `posted` of a wallet.
    second: i64,
}

/// A posting, and the settlement behind it: its row and its entry.
type Found = (Posting, Option<(SettledRow, Option<StoredNote>)>);

struct SettledRow {
    bytes: u64,
    pending_until: u64,
    state: String,
}

impl Answers<'_> {
    /// The account of `owner` over a period, a page of it. What it costs grows with the postings of this account.
    pub fn statement(
        &self,
        side: Side,
        owner: [u8; 32],
        asked: &StatementQuery,
    ) -> Result<AccountStatement, LedgerError> {
        if asked.from.zip(asked.to).is_some_and(|(from, to)| from > to) {
            let advice = "swap `from` and `to`; the period ends before `to`";
            return Err(Refusal::new(400, "bad_question", "the period ends before it begins", advice).into());
        }
        let limit = asked.limit.unwrap_or(DEFAULT_PAGE).clamp(1, MAX_PAGE);
        let as_of = asked.at.map_or(i64::MAX, signed);
        let end = asked.to.map_or(i64::MAX, signed).min(as_of.saturating_add(1));
        let begin = asked.from.map_or(0, signed).min(end);
        let after = asked.after.map_or(NO_POSTING, signed);
        let (opening, mut found, closing, pending) = self.read(|connection| {
            let accounts = Accounts::of(connection, side, owner)?;
            let opening = accounts.balance(connection, begin, after)?;
            // One more than is given, to know whether there is a next page.
            let found = accounts.postings(connection, begin..end, after, limit + 1)?;
            let found = found.into_iter().map(|posting| {
                let settled = settled(connection, posting.cause, as_of)?;
                let entry = |_: &SettledRow| rows::entry_by_number(connection, posting.cause);
                let entry = settled.as_ref().map(entry).transpose()?.flatten();
                Ok((posting, settled.map(|row| (row, entry))))
            });
            let found: Vec<Found> = found.collect::<rusqlite::Result<_>>()?;
            let closing = accounts.balance(connection, end, NO_POSTING)?;
            let pending = match side {
                Side::Payee => sum(connection, accounts.first, end, NO_POSTING)?,
                Side::Payer => 0,
            };
            Ok((opening, found, closing, pending))
        })?;
        let more = found.len() > limit as usize;
        found.truncate(limit as usize);
        let next = found.last().filter(|_| more).map(|(posting, _)| posting.number);
        let mut balance = opening;
        let lines = found.into_iter().map(|found| self.line(side, owner, found, &mut balance));
        Ok(AccountStatement {
            owner: kvasir_merkle::Hash(owner).to_string(),
            side,
            opening_nanokvr: opening,
            opening_kvr: exact_kvr(opening),
            postings: lines.collect::<Result<_, _>>()?,
            closing_nanokvr: closing,
            closing_kvr: exact_kvr(closing),
            closing_pending_nanokvr: pending,
            next,
        })
    }

    fn line(
        &self,
        side: Side,
        owner: [u8; 32],
        (posting, settled): Found,
        balance: &mut i64,
    ) -> Result<StatementLine, LedgerError> {
        let is_own = |(kind, of): &(String, [u8; 32])| {
            *of == owner
                && match side {
                    Side::Payee => kind == "pending" || kind == "posted",
                    Side::Payer => kind == "payer",
                }
        };
        let (gives, gets) = (is_own(&posting.debit), is_own(&posting.credit));
        let change = if gets { posting.nanokvr } else { 0 } - if gives { posting.nanokvr } else { 0 };
        let damaged = |reason: String| LedgerError::Damaged {
            path: self.path.to_owned(),
            index: posting.cause,
            reason,
        };
        *balance = balance
            .checked_add(change)
            .ok_or_else(|| damaged("the balance does not fit into 63 bits".to_owned()))?;
        let other = match (gives, gets) {
            (true, true) => None,
            (true, false) => Some(&posting.credit),
            _ => Some(&posting.debit),
        };
        let other = other.filter(|(kind, _)| kind != "treasury");
        let settlement = settled.map(|(row, entry)| {
            let note = entry.and_then(|entry| Note::parse(entry.note.as_bytes()).ok());
            let settlement = note.and_then(|note| Settlement::parse(note.text()).ok());
            let settlement = settlement.ok_or_else(|| damaged("the settlement cannot be read".to_owned()))?;
            Ok::<_, LedgerError>(StatementSettlement {
                id: settlement.id().to_string(),
                bytes: row.bytes,
                sessions: settlement.sessions.iter().map(UnsettledSession::from).collect(),
                pending_until: row.pending_until,
                state: row.state,
            })
        });
        Ok(StatementLine {
            number: posting.number,
            at: posting.at,
            entry: posting.cause,
            kind: posting.step.clone(),
            nanokvr: change,
            kvr: exact_kvr(change),
            balance_nanokvr: *balance,
            moved_nanokvr: posting.nanokvr,
            other: other.map(|(_, owner)| kvasir_merkle::Hash(*owner).to_string()),
            settlement: settlement.transpose()?,
        })
    }
}

impl Accounts {
    fn of(connection: &Connection, side: Side, owner: [u8; 32]) -> rusqlite::Result<Self> {
        let number = |owner: Owner| -> rusqlite::Result<i64> {
            let find = "SELECT number FROM accounts WHERE kind = ? AND owner = ?";
            let mut find = connection.prepare_cached(find)?;
            let number = find.query_row(params![owner.kind(), owner.digest()], |row| row.get(0));
            Ok(number.optional()?.unwrap_or(NO_ACCOUNT))
        };
        Ok(match side {
            Side::Payee => Self {
                first: number(Owner::Pending(WalletDigest(owner)))?,
                second: number(Owner::Posted(WalletDigest(owner)))?,
            },
            Side::Payer => Self { first: number(Owner::Payer(KeyDigest(owner)))?, second: NO_ACCOUNT },
        })
    }

    /// What they hold after all postings before a time, and after those up to a number.
    fn balance(&self, connection: &Connection, before: i64, up_to: i64) -> rusqlite::Result<i64> {
        let first = sum(connection, self.first, before, up_to)?;
        Ok(first.saturating_add(sum(connection, self.second, before, up_to)?))
    }

    fn postings(
        &self,
        connection: &Connection,
        period: std::ops::Range<i64>,
        after: i64,
        limit: u32,
    ) -> rusqlite::Result<Vec<Posting>> {
        let find = format!(
            "{POSTING} WHERE (p.debit IN (?1, ?2) OR p.credit IN (?1, ?2)) AND p.number > ?3 AND p.at >= ?4 AND p.at < ?5
             ORDER BY p.number LIMIT ?6"
        );
        let values = params![self.first, self.second, after, period.start, period.end, limit];
        connection.prepare_cached(&find)?.query_map(values, posting)?.collect()
    }
}

fn sum(connection: &Connection, account: i64, before: i64, up_to: i64) -> rusqlite::Result<i64> {
    let find = format!("SELECT {}", rows::net("?1", "(at < ?2 OR number <= ?3)"));
    connection.prepare_cached(&find)?.query_row(params![account, before, up_to], |row| row.get(0))
}

/// The settlement of an entry, as it stood at the end of a second. None where the entry is no settlement.
fn settled(connection: &Connection, entry: u64, as_of: i64) -> rusqlite::Result<Option<SettledRow>> {
    let find = "SELECT bytes, pending_until,
                       COALESCE((SELECT CASE step WHEN 'post' THEN 'posted' ELSE 'reversed' END FROM postings
                                 WHERE cause = entry AND step IN ('post', 'reverse') AND at <= ?2), 'pending')
                FROM settlements WHERE entry = ?1";
    let row = |row: &Row<'_>| {
        Ok(SettledRow {
            bytes: unsigned(row.get(0)?),
            pending_until: unsigned(row.get(1)?),
            state: row.get(2)?,
        })
    };
    connection.prepare_cached(find)?.query_row(params![signed(entry), as_of], row).optional()
}
