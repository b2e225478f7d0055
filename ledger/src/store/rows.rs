//! Small reads that writing and answering share.

use kvasir_merkle::{Accumulator, Hash};
use kvasir_wire::id::{KeyDigest, WalletDigest};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{Owner, signed};
use crate::api::StoredNote;

const ENTRY: &str = "SELECT number, kind, id, leaf, note FROM entries";

/// The tree over all entries.
pub fn tree(connection: &Connection) -> rusqlite::Result<Accumulator> {
    let mut leaves = connection.prepare("SELECT leaf FROM entries ORDER BY number")?;
    leaves.query_map([], |row| row.get(0).map(Hash))?.collect()
}

/// The number that the next entry gets.
pub fn next_number(connection: &Connection) -> rusqlite::Result<u64> {
    let find = "SELECT COALESCE(MAX(number) + 1, 0) FROM entries";
    connection.prepare_cached(find)?.query_row([], |row| row.get(0)).map(unsigned)
}

/// Time of the latest entry or posting, 0 where there is none.
pub fn latest_time(connection: &Connection) -> rusqlite::Result<u64> {
    let entry = "SELECT received FROM entries ORDER BY number DESC LIMIT 1";
    let posting = "SELECT at FROM postings ORDER BY number DESC LIMIT 1";
    let mut latest = 0;
    for find in [entry, posting] {
        let time: Option<i64> =
            connection.prepare_cached(find)?.query_row([], |row| row.get(0)).optional()?;
        latest = latest.max(time.map_or(0, unsigned));
    }
    Ok(latest)
}

/// The entry whose text has this digest.
pub fn entry_by_id(connection: &Connection, id: [u8; 32]) -> rusqlite::Result<Option<StoredNote>> {
    one(connection, &format!("{ENTRY} WHERE id = ?"), id)
}

/// The entry whose whole note has this leaf hash.
pub fn entry_by_leaf(connection: &Connection, leaf: &Hash) -> rusqlite::Result<Option<StoredNote>> {
    one(connection, &format!("{ENTRY} WHERE leaf = ?"), leaf.0)
}

/// The entry with this number.
pub fn entry_by_number(connection: &Connection, number: u64) -> rusqlite::Result<Option<StoredNote>> {
    one(connection, &format!("{ENTRY} WHERE number = ?"), signed(number))
}

/// All entries of a kind, in order.
pub fn entries_of_kind(connection: &Connection, kind: &str) -> rusqlite::Result<Vec<StoredNote>> {
    let mut find = connection.prepare_cached(&format!("{ENTRY} WHERE kind = ? ORDER BY number"))?;
    find.query_map([kind], stored_note)?.collect()
}

/// The latest delegation of a wallet to a worker.
pub fn latest_delegation(
    connection: &Connection,
    worker: KeyDigest,
    payee: WalletDigest,
) -> rusqlite::Result<Option<StoredNote>> {
    let which = "WHERE number = (SELECT MAX(entry) FROM delegations WHERE worker = ? AND payee = ?)";
    let mut find = connection.prepare_cached(&format!("{ENTRY} {which}"))?;
    find.query_row(params![worker.0, payee.0], stored_note).optional()
}

/// A delegation of a wallet to a worker that begins at `begins` at the latest and ends at `ends` at the earliest.
pub fn delegation_over(
    connection: &Connection,
    (worker, payee): (KeyDigest, WalletDigest),
    begins: u64,
    ends: u64,
) -> rusqlite::Result<Option<StoredNote>> {
    let which = "WHERE number = (SELECT entry FROM delegations
                 WHERE worker = ? AND payee = ? AND ends >= ? AND begins <= ? LIMIT 1)";
    let mut find = connection.prepare_cached(&format!("{ENTRY} {which}"))?;
    find.query_row(params![worker.0, payee.0, signed(ends), signed(begins)], stored_note).optional()
}

/// Delegations of a wallet to a worker.
pub fn count_delegations(
    connection: &Connection,
    worker: KeyDigest,
    payee: WalletDigest,
) -> rusqlite::Result<u64> {
    let count = "SELECT COUNT(*) FROM delegations WHERE worker = ? AND payee = ?";
    connection.prepare_cached(count)?.query_row(params![worker.0, payee.0], |row| row.get(0)).map(unsigned)
}

/// Grants of an account into which nothing was ever put; none where something was.
pub fn count_grants_unfunded(connection: &Connection, payer: KeyDigest) -> rusqlite::Result<u64> {
    let count = "SELECT COUNT(*) FROM grants WHERE payer = ?1 AND NOT EXISTS (
                     SELECT 1 FROM postings WHERE credit = (SELECT number FROM accounts WHERE kind = 'payer' AND owner = ?1))";
    connection.prepare_cached(count)?.query_row([payer.0], |row| row.get(0)).map(unsigned)
}

/// SQL for what an account holds: all credits minus all debits of the postings for which `which` holds. What went through an account
/// may be more than 63 bits, and what it holds is not: high and low halves are summed apart, each far from any overflow.
pub fn net(account: &str, which: &str) -> String {
    format!(
        "(SELECT ((high + (low >> 32)) << 32) | (low & 4294967295) FROM (
            SELECT COALESCE(SUM(change >> 32), 0) AS high, COALESCE(SUM(change & 4294967295), 0) AS low FROM (
                SELECT nanokvr AS change FROM postings WHERE credit = {account} AND {which}
                UNION ALL SELECT -nanokvr FROM postings WHERE debit = {account} AND {which})))"
    )
}

/// Kind, owner and balance of every account.
pub fn balances() -> String {
    format!("SELECT kind, owner, {} FROM accounts a ORDER BY kind, owner", net("a.number", "TRUE"))
}

/// What an account holds.
pub fn balance(connection: &Connection, owner: Owner) -> rusqlite::Result<i64> {
    let find = format!("SELECT {} FROM accounts a WHERE kind = ? AND owner = ?", net("a.number", "TRUE"));
    let sum = connection
        .prepare_cached(&find)?
        .query_row(params![owner.kind(), owner.digest()], |row| row.get(0))
        .optional()?;
    Ok(sum.unwrap_or(0))
}

/// A row of [`ENTRY`].
pub fn stored_note(row: &Row<'_>) -> rusqlite::Result<StoredNote> {
    Ok(StoredNote {
        index: unsigned(row.get(0)?),
        kind: row.get(1)?,
        id: Hash(row.get(2)?).to_string(),
        leaf: Hash(row.get(3)?).to_string(),
        note: row.get(4)?,
    })
}

/// Numbers are stored from 63-bit unsigned ones; a tampered negative one becomes 0 and is found by `verify`.
pub fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn one(
    connection: &Connection,
    find: &str,
    key: impl rusqlite::ToSql,
) -> rusqlite::Result<Option<StoredNote>> {
    connection.prepare_cached(find)?.query_row([key], stored_note).optional()
}
