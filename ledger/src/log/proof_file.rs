//! Proof files (C2SP tlog-proof): one entry's place in a log, with the head that vouches for it. Verifies offline.
//!
//! ```text
//! c2sp.org/tlog-proof@v1
//! extra <base64>            optional, authenticated by nobody
//! index <decimal>
//! <base64 hash>             the proof, the leaf's sibling first
//!
//! <checkpoint with its signatures>
//! ```

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kvasir_merkle::{Hash, MAX_PROOF_HASHES, ProofError, leaf_hash, verify_inclusion};
use kvasir_wire::note::{Note, NoteError, canonical_number};
use thiserror::Error;

use super::checkpoint::{Checkpoint, CheckpointError, SignedCheckpoint, hash_from_base64};
use super::policy::{Policy, PolicyError, Quorum};

/// Longest proof file: an entry in `extra`, the hashes, a checkpoint.
pub const MAX_PROOF_FILE_BYTES: usize = 160 * 1024;
const FIRST_LINE: &str = "c2sp.org/tlog-proof@v1";

/// A proof file. `Display` gives the exact bytes; parsing them gives the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofFile {
    /// Unauthenticated bytes beside the proof; Kvasir puts the entry itself here, which the proof then authenticates.
    pub extra: Option<Vec<u8>>,
    /// The entry's index.
    pub index: u64,
    /// The inclusion proof.
    pub hashes: Vec<Hash>,
    /// The head, with its signatures.
    pub checkpoint: Note,
}

/// Why a file proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProofFileError {
    /// More than [`MAX_PROOF_FILE_BYTES`].
    #[error("a proof file has at most {MAX_PROOF_FILE_BYTES} bytes, this one {0}")]
    TooLong(usize),
    /// A line of another form.
    #[error("line {line} of the proof file: {reason}")]
    Line {
        /// From 1.
        line: usize,
        /// What was expected.
        reason: &'static str,
    },
    /// The head.
    #[error("the checkpoint of the proof file: {0}")]
    Checkpoint(#[from] CheckpointError),
    /// The log or its witnesses did not sign the head as the policy wants.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The entry is not where the file says.
    #[error(transparent)]
    Proof(#[from] ProofError),
}

impl ProofFile {
    /// Reads a proof file; verifies nothing.
    pub fn parse(bytes: &[u8]) -> Result<Self, ProofFileError> {
        if bytes.len() > MAX_PROOF_FILE_BYTES {
            return Err(ProofFileError::TooLong(bytes.len()));
        }
        let wrong = |line, reason| ProofFileError::Line { line, reason };
        let text = std::str::from_utf8(bytes).map_err(|_| wrong(1, "the file is not UTF-8"))?;
        let (head, checkpoint) =
            text.split_once("\n\n").ok_or(wrong(1, "a blank line divides proof and checkpoint"))?;
        let mut lines = head.split('\n').enumerate().map(|(at, line)| (at + 1, line)).peekable();
        if lines.next() != Some((1, FIRST_LINE)) {
            return Err(wrong(1, "expected `c2sp.org/tlog-proof@v1`"));
        }
        let extra = lines.next_if(|(_, line)| line.starts_with("extra "));
        let extra = extra
            .map(|(line, text)| {
                STANDARD.decode(&text["extra ".len()..]).map_err(|_| wrong(line, "expected canonical base64"))
            })
            .transpose()?;
        let (line, index) = lines.next().ok_or(wrong(2, "expected `index` and a number"))?;
        let index = index.strip_prefix("index ").and_then(canonical_number);
        let index = index.ok_or(wrong(line, "expected `index` and a number"))?;
        let mut hashes = Vec::new();
        for (line, text) in lines {
            if hashes.len() == MAX_PROOF_HASHES {
                return Err(wrong(line, "more hashes than any tree needs"));
            }
            hashes.push(hash_from_base64(text).ok_or(wrong(line, "expected a hash in base64"))?);
        }
        let checkpoint = Note::parse(checkpoint.as_bytes()).map_err(CheckpointError::from)?;
        Checkpoint::parse(checkpoint.text())?;
        Ok(Self { extra, index, hashes, checkpoint })
    }

    /// Checks that `entry` is at this place in a log of the policy, under a head that its quorum cosigned.
    pub fn verify(
        &self,
        entry: &[u8],
        policy: &Policy,
    ) -> Result<(SignedCheckpoint, Quorum), ProofFileError> {
        let (signed, quorum) = policy.verify(self.checkpoint.to_string().as_bytes())?;
        let Checkpoint { size, root, .. } = signed.checkpoint();
        verify_inclusion(&leaf_hash(entry), self.index, *size, &self.hashes, root)?;
        Ok((signed, quorum))
    }
}

impl fmt::Display for ProofFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FIRST_LINE}")?;
        if let Some(extra) = &self.extra {
            writeln!(f, "extra {}", STANDARD.encode(extra))?;
        }
        writeln!(f, "index {}", self.index)?;
        self.hashes.iter().try_for_each(|hash| writeln!(f, "{}", STANDARD.encode(hash.as_bytes())))?;
        write!(f, "\n{}", self.checkpoint)
    }
}

impl From<NoteError> for ProofFileError {
    fn from(error: NoteError) -> Self {
        CheckpointError::from(error).into()
    }
}
