//! The JSON of the HTTP API, shared by server and client.
//!
//! Amounts are integers: nanoKVR and bytes. Digests are 64 lower-case hexadecimal digits. Fields ending in `kvr` or
//! `units` are for people and are never read back.

use kvasir_wire::account::SettledSession;
use kvasir_wire::money::NANOKVR_PER_KVR;
use serde::{Deserialize, Serialize};

/// Most receipts in one answer of `GET /v1/receipts`.
pub const MAX_PAGE: u32 = 500;
/// Receipts in one answer where the question names no number.
pub const DEFAULT_PAGE: u32 = 100;

/// Header of the answer to a stored note: [`STORED_NOW`] or [`STORED_BEFORE`].
pub const STORED_HEADER: &str = "kvasir-stored";
/// The note is new.
pub const STORED_NOW: &str = "now";
/// The note was there before; the body is the first answer again.
pub const STORED_BEFORE: &str = "before";

/// What the ledger says after it has stored a note; the same bytes each time the same note is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Position among all entries of the ledger, from 0.
    pub index: u64,
    /// What the note is: `receipt`, `price`, `grant`, `fund`, `delegate`, `settle` or `correct`.
    pub kind: String,
    /// SHA-256 of the note's text.
    pub id: String,
    /// RFC 6962 leaf hash of the stored note.
    pub leaf: String,
    /// The id of a settlement; absent for other notes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settlement: Option<String>,
    /// True where the note was there before. Not part of the JSON, which is the first answer again: it travels as
    /// [`STORED_HEADER`].
    #[serde(skip)]
    pub repeated: bool,
}

/// One stored receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredReceipt {
    /// Position among all entries.
    pub index: u64,
    /// SHA-256 of the text.
    pub id: String,
    /// The whole note.
    pub note: String,
}

/// A page of receipts, ascending by index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipts {
    /// The receipts after the index asked for.
    pub receipts: Vec<StoredReceipt>,
    /// What to send as `after` the next time: the last index given, or the one asked for.
    pub next: Option<u64>,
}

/// One stored note of any kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredNote {
    /// Position among all entries.
    pub index: u64,
    /// What the note is.
    pub kind: String,
    /// SHA-256 of the text.
    pub id: String,
    /// The leaf hash that was asked for.
    pub leaf: String,
    /// The whole note.
    pub note: String,
}

/// A wallet's credit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wallet {
    /// Digest of the wallet's key.
    pub payee: String,
    /// Settled less than 24 hours ago: can still be reversed.
    pub pending_nanokvr: i64,
    /// Final.
    pub posted_nanokvr: i64,
    /// Settled bytes that were not reversed.
    pub bytes: u64,
    /// Those bytes in units of 1,000,000.
    pub units: String,
    /// Pending and posted credit, rounded for people: `0.00895 KVR`.
    pub kvr: String,
    /// Bytes in receipts that are not settled yet.
    pub unsettled_bytes: u64,
    /// What they will earn.
    pub unsettled_nanokvr: i64,
    /// Unix seconds at which the oldest pending credit posts; absent where none is pending.
    pub next_posting: Option<u64>,
}

/// A paying account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Digest of the backbone's key.
    pub account: String,
    /// What can still be paid.
    pub available_nanokvr: i64,
    /// What the treasury has put in.
    pub funded_nanokvr: i64,
    /// What settlements took out, reversed ones aside.
    pub spent_nanokvr: i64,
    /// Receipts that wait to be settled.
    pub unsettled_nanokvr: i64,
    /// Available, rounded for people.
    pub kvr: String,
}

/// Which of a key's two accounts is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The wallet that earns; its balance is pending and posted credit together.
    Payee,
    /// The account that pays.
    Payer,
}

/// What a statement covers, and where its next page begins: the parameters of `GET /v1/wallets/<payee>/statement` and
/// `GET /v1/accounts/<key digest>/statement`. Times in Unix seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatementQuery {
    /// The period begins with this second [default: with the ledger].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// It ends before this second, so that periods that meet share no posting [default: it is open].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// As the books stood at the end of this second [default: as they stand].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// Only postings after this number: `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Postings of one page, at most [`MAX_PAGE`] [default: [`DEFAULT_PAGE`]].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// One account over a period, or a page of that. `opening_nanokvr` and the changes of all its pages are `closing_nanokvr` of
/// the last one, to the nanoKVR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountStatement {
    /// Digest of the account's key.
    pub owner: String,
    /// Which of its accounts.
    pub side: Side,
    /// Balance before this page's first posting; on the first page, before the period.
    pub opening_nanokvr: i64,
    /// The same as a decimal number of KVR, exact.
    pub opening_kvr: String,
    /// The postings, in the ledger's order.
    pub postings: Vec<StatementLine>,
    /// Balance at the end of the period, summed up from the ledger's books and not from the lines above.
    pub closing_nanokvr: i64,
    /// The same as a decimal number of KVR, exact.
    pub closing_kvr: String,
    /// The part of it that is pending, so that it can still be reversed; 0 for an account that pays.
    pub closing_pending_nanokvr: i64,
    /// What to send as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// One posting as one of its two accounts sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatementLine {
    /// Position among all postings of the ledger.
    pub number: u64,
    /// Unix seconds by the ledger's clock.
    pub at: u64,
    /// The entry behind it: the funding, or the settlement that was credited, posted or reversed.
    pub entry: u64,
    /// `fund`, `settle`, `post` or `reverse`.
    pub kind: String,
    /// What it adds to the balance: above zero, below, or 0 where pending credit becomes final.
    pub nanokvr: i64,
    /// The same as a decimal number of KVR, exact.
    pub kvr: String,
    /// The balance after it.
    pub balance_nanokvr: i64,
    /// What moved, always above zero.
    pub moved_nanokvr: i64,
    /// Digest of the key on the other side; absent for a funding, and where credit stays in the wallet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
    /// The settlement; absent for a funding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settlement: Option<StatementSettlement>,
}

/// The settlement behind a posting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatementSettlement {
    /// Its id.
    pub id: String,
    /// Bytes that it covers.
    pub bytes: u64,
    /// The stretches of sessions that it covers.
    pub sessions: Vec<UnsettledSession>,
    /// Unix seconds until which it can be reversed.
    pub pending_until: u64,
    /// `pending`, `posted` or `reversed`, as the books stood when the statement was asked for, or at its `at`.
    pub state: String,
}

/// The price that holds now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurrentPrice {
    /// Leaf hash of the price note: what grants and receipts name.
    pub leaf: String,
    /// nanoKVR for one metered byte.
    pub nanokvr_per_byte: u64,
    /// Unix seconds from which it holds.
    pub from: u64,
    /// The whole note.
    pub note: String,
}

/// Receipts that wait to be settled, one entry for each (payer, payee, price).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsettled {
    /// What to settle, each part fit for one settlement.
    pub parts: Vec<UnsettledPart>,
}

/// What one settlement would cover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsettledPart {
    /// The wallet that earns.
    pub payee: String,
    /// The account that pays.
    pub payer: String,
    /// Leaf hash of the price note.
    pub price: String,
    /// nanoKVR for one byte.
    pub nanokvr_per_byte: u64,
    /// The wallet's credit now, pending and posted.
    pub before_nanokvr: i64,
    /// What the payer can pay.
    pub available_nanokvr: i64,
    /// At most 64 sessions.
    pub sessions: Vec<UnsettledSession>,
}

/// A stretch of one session's receipts: since its last settlement, or in one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsettledSession {
    /// The session.
    pub session: String,
    /// First receipt of the stretch.
    pub from_seq: u64,
    /// Last receipt.
    pub to_seq: u64,
    /// Billed bytes that these receipts added.
    pub bytes: u64,
}

impl From<&SettledSession> for UnsettledSession {
    fn from(part: &SettledSession) -> Self {
        Self {
            session: part.session.to_string(),
            from_seq: part.from_seq,
            to_seq: part.to_seq,
            bytes: part.bytes.get(),
        }
    }
}

/// `GET /ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Always true; a ledger that is not ready answers with an error.
    pub ready: bool,
    /// The network it serves.
    pub network: String,
    /// Entries so far.
    pub entries: u64,
    /// RFC 6962 root over all entries.
    pub root: String,
    /// Version of SQLite inside.
    pub sqlite: String,
    /// The published head; absent where nothing is published yet, or no log is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<PublishedHead>,
    /// Bytes free on the disk of the database; absent where no mark is set, or the system cannot say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Bytes below which notes are refused; absent where no mark is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_free_bytes: Option<u64>,
}

/// The head of the public log that readers get now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedHead {
    /// Entries that it covers; those of the ledger beyond it are stored and not published yet.
    pub size: u64,
    /// Unix seconds when it was put before readers.
    pub at: u64,
    /// Seconds since then. It grows where nothing new is stored, too: it means something where `size` is less than `entries`.
    pub age_seconds: u64,
}

/// Every error answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// A stable word for programs.
    pub code: String,
    /// What failed, with the values.
    pub message: String,
    /// What the caller can do about it.
    pub what_to_do: String,
    /// At a conflict: the note that stands against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<StoredNote>,
}

/// An amount as a decimal number of KVR, exact to its last digit: `-0.008945664`.
pub fn exact_kvr(nanokvr: i64) -> String {
    let nano = NANOKVR_PER_KVR.unsigned_abs();
    let (whole, rest) = (nanokvr.unsigned_abs() / nano, nanokvr.unsigned_abs() % nano);
    format!("{}{whole}.{rest:09}", if nanokvr < 0 { "-" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_in_kvr_are_exact() {
        for (nanokvr, text) in [
            (0, "0.000000000"),
            (8_945_664, "0.008945664"),
            (-1, "-0.000000001"),
            (i64::MAX, "9223372036.854775807"),
            (i64::MIN, "-9223372036.854775808"),
        ] {
            assert_eq!(exact_kvr(nanokvr), text);
        }
    }
}
