//! The JSON of the HTTP API, shared by server and client.
//!
//! Amounts are integers: nanoKVR and bytes. Digests are 64 lower-case hexadecimal digits. Fields ending in `kvr` or
//! `units` are for people and are never read back.

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

/// One session's receipts since its last settlement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsettledSession {
    /// The session.
    pub session: String,
    /// First receipt that is not settled.
    pub from_seq: u64,
    /// Last receipt.
    pub to_seq: u64,
    /// Billed bytes that they added.
    pub bytes: u64,
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
