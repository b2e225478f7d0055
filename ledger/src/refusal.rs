//! Every way in which the ledger says no: what failed, with the values, and what to do.

use std::path::PathBuf;

use kvasir_wire::account::AccountError;
use kvasir_wire::money::MoneyError;
use kvasir_wire::note::NoteError;
use kvasir_wire::receipt::ReceiptError;
use rusqlite::ErrorCode;
use thiserror::Error;

use crate::api::{ErrorBody, StoredNote};
use crate::clock_watch::ClockAhead;
use crate::space::DiskLow;

/// A note that is not accepted, or a question that cannot be answered. The caller's to mend.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{code}: {message}; {what_to_do}")]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// A stable word for programs.
    pub code: &'static str,
    /// What failed, with the values.
    pub message: String,
    /// What the caller can do.
    pub what_to_do: &'static str,
    /// The note that stands against it.
    pub evidence: Option<Box<StoredNote>>,
}

/// Anything that keeps the ledger from answering.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// The caller's fault.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The database cannot be read or written. Nothing was acknowledged.
    #[error("{}: {source}", .path.display())]
    Database {
        /// The database file.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// The database exists, does not exist, or is another program's or network's.
    #[error("{}: {reason}", .path.display())]
    NotALedger {
        /// The database file.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// What is stored cannot be read back.
    #[error("{}: entry {index} is damaged: {reason}; stop the ledger, keep a copy of the file, run `kvasir-ledger verify`", .path.display())]
    Damaged {
        /// The database file.
        path: PathBuf,
        /// First entry that cannot be read.
        index: u64,
        /// Why.
        reason: String,
    },
    /// The public log cannot be written. The ledger itself goes on.
    #[error("{}: {reason}", .path.display())]
    Log {
        /// Which file or folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The disk has less free space than the operator keeps. Nothing was written.
    #[error(transparent)]
    DiskLow(#[from] DiskLow),
    /// The ledger's clock cannot be believed. Nothing was written.
    #[error(transparent)]
    ClockAhead(#[from] ClockAhead),
    /// The writer thread has ended or its queue is full.
    #[error("{0}")]
    Busy(&'static str),
}

impl Refusal {
    /// A refusal without evidence.
    pub fn new(
        status: u16,
        code: &'static str,
        message: impl Into<String>,
        what_to_do: &'static str,
    ) -> Self {
        Self { status, code, message: message.into(), what_to_do, evidence: None }
    }

    /// The same with the note that stands against it.
    pub fn against(self, evidence: StoredNote) -> Self {
        Self { evidence: Some(Box::new(evidence)), ..self }
    }
}

impl LedgerError {
    /// HTTP status and JSON of the answer.
    pub fn answer(&self) -> (u16, ErrorBody) {
        let body = |code: &str, what_to_do: &str| ErrorBody {
            code: code.to_owned(),
            message: self.to_string(),
            what_to_do: what_to_do.to_owned(),
            evidence: None,
        };
        match self {
            LedgerError::Refused(refusal) => {
                let body = ErrorBody {
                    code: refusal.code.to_owned(),
                    message: refusal.message.clone(),
                    what_to_do: refusal.what_to_do.to_owned(),
                    evidence: refusal.evidence.as_deref().cloned(),
                };
                (refusal.status, body)
            }
            LedgerError::Database { source, .. } => {
                let (status, code, what_to_do) = match source.sqlite_error_code() {
                    Some(ErrorCode::DiskFull) => (
                        507,
                        "disk_full",
                        "free space on the ledger's disk, then send the same note again: it was not stored",
                    ),
                    Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => (
                        503,
                        "store_read_only",
                        "give the ledger's user write access to the file and its folder, then send the same note again: \
                         it was not stored",
                    ),
                    Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                        (503, "store_busy", "send the same note again: it was not stored")
                    }
                    _ => (
                        500,
                        "store_failed",
                        "look at the ledger's log and run `kvasir-ledger verify`; the note was not stored",
                    ),
                };
                (status, body(code, what_to_do))
            }
            LedgerError::NotALedger { .. } => (500, body("not_a_ledger", "check the path in ledger.toml")),
            LedgerError::Log { .. } => {
                (500, body("log_failed", "have the ledger's operator look at its log folder"))
            }
            LedgerError::Damaged { .. } => {
                (500, body("damaged", "stop the ledger, keep a copy of the file, run `kvasir-ledger verify`"))
            }
            LedgerError::DiskLow(_) => (
                507,
                body(
                    "disk_low",
                    "free space on the ledger's disk, then send the same note again: it was not stored",
                ),
            ),
            LedgerError::ClockAhead(ahead) => {
                let what_to_do = match ahead {
                    ClockAhead::Jumped { .. } => {
                        "have the ledger's operator set the clock, or restart the ledger where the time is right now; then send \
                         the same note again: it was not stored"
                    }
                    ClockAhead::LongAfter { .. } => {
                        "have the ledger's operator set the clock, or start `serve` with --trust-clock where the time is right; \
                         then send the same note again: it was not stored"
                    }
                };
                (503, body("clock_jumped", what_to_do))
            }
            LedgerError::Busy(_) => {
                (503, body("busy", "send the same note again in a second: it was not stored"))
            }
        }
    }
}

const MALFORMED: &str = "send the exact bytes of a note as docs/ledger.md describes it";

impl From<NoteError> for Refusal {
    fn from(error: NoteError) -> Self {
        match error {
            NoteError::BadSignature { .. }
            | NoteError::Signers { .. }
            | NoteError::NotSigned
            | NoteError::SignedTwice { .. } => Refusal::new(
                403,
                "bad_signature",
                error.to_string(),
                "sign the text again with the keys that it names",
            ),
            _ => Refusal::new(400, "malformed_note", error.to_string(), MALFORMED),
        }
    }
}

impl From<ReceiptError> for Refusal {
    fn from(error: ReceiptError) -> Self {
        match error {
            ReceiptError::Note(error) => error.into(),
            ReceiptError::OtherKey(_) | ReceiptError::Key(_) => Refusal::new(
                403,
                "bad_signature",
                error.to_string(),
                "sign the text again with the keys that it names",
            ),
            _ => Refusal::new(400, "malformed_receipt", error.to_string(), MALFORMED),
        }
    }
}

impl From<AccountError> for Refusal {
    fn from(error: AccountError) -> Self {
        match error {
            AccountError::Note(error) => error.into(),
            AccountError::Signer(_) => Refusal::new(
                403,
                "unknown_signer",
                error.to_string(),
                "sign with a key that ledger.toml lists for this role, or have the operator add the key there",
            ),
            _ => Refusal::new(400, "malformed_note", error.to_string(), MALFORMED),
        }
    }
}

impl From<MoneyError> for Refusal {
    fn from(error: MoneyError) -> Self {
        Refusal::new(
            422,
            "amount_out_of_range",
            error.to_string(),
            "split the amount; 63 bits hold 9.2 billion KVR",
        )
    }
}
