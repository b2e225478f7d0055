//! Evidence in one file: whoever signed two things that cannot both be is convicted by the file alone.
//!
//! ```text
//! kvasir.example/fraud@v1
//! kind receipts|log|work
//! <name> <value>            in the order of the kind, bytes in base64
//! ```
//!
//! `receipts`: two receipts of one session and number, each signed by the same three keys. `log`: two heads signed by one log that no
//! single history has: one size with two roots, or one place with two leaves. `work`: a receipt's signed root, a work item under it, the
//! call and the rows; that they belong together is verified here, that the rows are wrong only by computing the call again.

mod log_fraud;
mod receipt_fraud;
mod work_fraud;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kvasir_merkle::{Hash, ProofError};
use kvasir_wire::account::AccountError;
use kvasir_wire::note::{FieldError, FieldReader, FieldWriter, Note, NoteError};
use kvasir_wire::probe::{MAX_PROBE_FILE_BYTES, ProbeError};
use kvasir_wire::receipt::{ReceiptError, ReceiptKeys};
use thiserror::Error;

use crate::log::CheckpointError;
pub use log_fraud::{LogFraud, TwoLeaves};
pub use receipt_fraud::ReceiptFraud;
pub use work_fraud::WorkFraud;

/// Longest evidence file: a probe file in base64, and two notes.
pub const MAX_EVIDENCE_BYTES: usize = MAX_PROBE_FILE_BYTES / 3 * 4 + 128 * 1024;
const FIRST_LINE: &str = "kvasir.example/fraud@v1";

/// A piece of evidence. `Display` gives the exact text; parsing it gives the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Two receipts with one number.
    Receipts(ReceiptFraud),
    /// Two histories of one log.
    Log(LogFraud),
    /// A result that can be computed again.
    Work(WorkFraud),
}

/// Why a file convicts nobody.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EvidenceError {
    /// More than [`MAX_EVIDENCE_BYTES`].
    #[error("an evidence file has at most {MAX_EVIDENCE_BYTES} bytes, this one {0}")]
    TooLong(usize),
    /// Not text.
    #[error("an evidence file is UTF-8 text")]
    NotText,
    /// The text leaves the grammar.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// One of the notes.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// One of the receipts.
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
    /// One of the statements.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// One of the heads.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// One of the proofs.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// The record of the work.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// All is signed, and nothing contradicts.
    #[error("this convicts nobody: {0}")]
    NoContradiction(&'static str),
}

/// What a file proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    /// Who did it: key names with their public keys.
    pub culprits: Vec<String>,
    /// What was done, in a sentence.
    pub sentence: String,
    /// False where the call must be computed again before anybody is convicted.
    pub is_complete: bool,
}

impl Evidence {
    /// Reads an evidence file; verifies nothing.
    pub fn parse(bytes: &[u8]) -> Result<Self, EvidenceError> {
        if bytes.len() > MAX_EVIDENCE_BYTES {
            return Err(EvidenceError::TooLong(bytes.len()));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| EvidenceError::NotText)?;
        let mut fields = FieldReader::new(text, FIRST_LINE)?;
        let evidence = match fields.text("kind")? {
            "receipts" => Evidence::Receipts(ReceiptFraud::read(&mut fields)?),
            "log" => Evidence::Log(LogFraud::read(&mut fields)?),
            "work" => Evidence::Work(WorkFraud::read(&mut fields)?),
            _ => return Err(fields.wrong("kind", "receipts, log or work").into()),
        };
        fields.end()?;
        Ok(evidence)
    }

    /// Verifies everything from the file alone.
    pub fn convict(&self) -> Result<Proven, EvidenceError> {
        match self {
            Evidence::Receipts(fraud) => fraud.convict(),
            Evidence::Log(fraud) => fraud.convict(),
            Evidence::Work(fraud) => fraud.convict(),
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writer = FieldWriter::new(FIRST_LINE);
        let writer = match self {
            Evidence::Receipts(fraud) => fraud.write(writer.line("kind", "receipts")),
            Evidence::Log(fraud) => fraud.write(writer.line("kind", "log")),
            Evidence::Work(fraud) => fraud.write(writer.line("kind", "work")),
        };
        f.write_str(&writer.finish())
    }
}

/// The parties' keys in full: notes name them by their digests.
fn keys(fields: &mut FieldReader<'_>) -> Result<ReceiptKeys, EvidenceError> {
    const KEY: &str = "`ed25519:` and 64 lower-case hexadecimal digits, not a weak key";
    let mut key = |name| fields.value(name, KEY);
    Ok(ReceiptKeys { hub: key("hub")?, worker: key("worker")?, backbone: key("backbone")? })
}

fn write_keys(writer: FieldWriter, keys: &ReceiptKeys) -> FieldWriter {
    writer.line("hub", keys.hub).line("worker", keys.worker).line("backbone", keys.backbone)
}

const BASE64: &str = "canonical base64";

fn bytes(fields: &mut FieldReader<'_>, name: &'static str) -> Result<Vec<u8>, EvidenceError> {
    let text = fields.text(name)?;
    STANDARD.decode(text).map_err(|_| fields.wrong(name, BASE64).into())
}

fn note(fields: &mut FieldReader<'_>, name: &'static str) -> Result<Note, EvidenceError> {
    Ok(Note::parse(&bytes(fields, name)?)?)
}

fn hashes(fields: &mut FieldReader<'_>, name: &'static str) -> Result<Vec<Hash>, EvidenceError> {
    let bytes = bytes(fields, name)?;
    let (hashes, rest) = bytes.as_chunks::<32>();
    if !rest.is_empty() {
        return Err(fields.wrong(name, "hashes of 32 bytes").into());
    }
    Ok(hashes.iter().map(|hash| Hash(*hash)).collect())
}

fn base64(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

fn base64_of(hashes: &[Hash]) -> String {
    let bytes: Vec<u8> = hashes.iter().flat_map(|hash| *hash.as_bytes()).collect();
    STANDARD.encode(bytes)
}
