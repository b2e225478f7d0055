//! The body of `add-checkpoint`: `old <size>`, the consistency proof a hash a line, a blank line, the checkpoint.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kvasir_merkle::{Hash, MAX_PROOF_HASHES};
use kvasir_wire::note::{Note, NoteError, canonical_number};
use thiserror::Error;

use crate::log::{CheckpointError, MAX_CHECKPOINT_BYTES, hash_from_base64};

/// Longest body: the proof and a checkpoint.
pub const MAX_REQUEST_BYTES: usize = MAX_CHECKPOINT_BYTES + 4096;

/// A request to cosign. `Display` gives the exact bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddCheckpoint {
    /// Size of the head that the witness cosigned last; 0 for none.
    pub old: u64,
    /// That the new head extends it.
    pub proof: Vec<Hash>,
    /// The new head, signed by its log.
    pub checkpoint: Note,
}

/// Why bytes are no such request.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// More than [`MAX_REQUEST_BYTES`].
    #[error("a request has at most {MAX_REQUEST_BYTES} bytes, this one {0}")]
    TooLong(usize),
    /// A line of another form.
    #[error("line {line} of the request: {reason}")]
    Line {
        /// From 1.
        line: usize,
        /// What was expected.
        reason: &'static str,
    },
    /// The checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl AddCheckpoint {
    /// Reads a body; verifies no signature.
    pub fn parse(body: &[u8]) -> Result<Self, RequestError> {
        if body.len() > MAX_REQUEST_BYTES {
            return Err(RequestError::TooLong(body.len()));
        }
        let wrong = |line, reason| RequestError::Line { line, reason };
        let text = std::str::from_utf8(body).map_err(|_| wrong(1, "the body is not UTF-8"))?;
        let (head, checkpoint) =
            text.split_once("\n\n").ok_or(wrong(1, "a blank line divides proof and checkpoint"))?;
        let mut lines = head.split('\n');
        let old = lines.next().and_then(|line| line.strip_prefix("old ")).and_then(canonical_number);
        let old = old.ok_or(wrong(1, "expected `old` and a size in decimal"))?;
        let mut proof = Vec::new();
        for (at, text) in lines.enumerate() {
            if proof.len() == MAX_PROOF_HASHES {
                return Err(wrong(at + 2, "more hashes than any tree needs"));
            }
            proof.push(hash_from_base64(text).ok_or(wrong(at + 2, "expected a hash in base64"))?);
        }
        let checkpoint = Note::parse(checkpoint.as_bytes()).map_err(CheckpointError::from)?;
        Ok(Self { old, proof, checkpoint })
    }
}

impl fmt::Display for AddCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "old {}", self.old)?;
        self.proof.iter().try_for_each(|hash| writeln!(f, "{}", STANDARD.encode(hash.as_bytes())))?;
        write!(f, "\n{}", self.checkpoint)
    }
}

impl From<NoteError> for RequestError {
    fn from(error: NoteError) -> Self {
        CheckpointError::from(error).into()
    }
}
