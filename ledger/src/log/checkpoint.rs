//! A checkpoint: the signed head of a log. Text: origin, size, base64 of the root, one line each, no extension lines.
//!
//! Extension lines are refused: nothing of ours needs them, and cosignatures of the newer kind do not cover them.

use std::str::FromStr as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kvasir_merkle::{EMPTY_ROOT, Hash};
use kvasir_wire::key::{PublicKey, SecretKey};
use kvasir_wire::note::{KeyName, Note, NoteError, Verifier, canonical_number};
use thiserror::Error;

/// Longest checkpoint that is read, signatures included: a note's.
pub const MAX_CHECKPOINT_BYTES: usize = kvasir_wire::limits::MAX_NOTE_BYTES;

/// What a log says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The log's name, which is the name of its key too.
    pub origin: KeyName,
    /// Number of leaves.
    pub size: u64,
    /// RFC 6962 root over them.
    pub root: Hash,
}

/// A checkpoint that the log's key signed; further lines are carried, not verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedCheckpoint {
    checkpoint: Checkpoint,
    note: Note,
}

/// Why bytes are no checkpoint of a log.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CheckpointError {
    /// Not a note, or not signed by the log.
    #[error("the checkpoint: {0}")]
    Note(#[from] NoteError),
    /// The text is not three lines of the right form.
    #[error("a checkpoint's text is three lines: origin, size in decimal, root in base64; {0}")]
    Text(&'static str),
    /// It is another log's.
    #[error("the checkpoint is of log `{found}`, not of `{expected}`")]
    OtherOrigin {
        /// The origin that the text names.
        found: KeyName,
        /// The origin that was expected.
        expected: KeyName,
    },
    /// A tree without leaves has one root.
    #[error("a checkpoint of size 0 has the root of the empty tree")]
    EmptyRoot,
}

/// The verifier key of the log `origin`.
pub fn log_verifier(origin: &KeyName, key: PublicKey) -> Verifier {
    Verifier::new(origin.clone(), key)
}

impl Checkpoint {
    /// The text that is signed.
    pub fn text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, STANDARD.encode(self.root.as_bytes()))
    }

    /// Reads a text; accepts exactly what [`Checkpoint::text`] writes.
    pub fn parse(text: &str) -> Result<Self, CheckpointError> {
        let body = text.strip_suffix('\n').ok_or(CheckpointError::Text("the last line feed is missing"))?;
        let mut lines = body.split('\n');
        let (Some(origin), Some(size), Some(root), None) =
            (lines.next(), lines.next(), lines.next(), lines.next())
        else {
            return Err(CheckpointError::Text("there are more or fewer lines"));
        };
        let origin = KeyName::from_str(origin)?;
        let size = canonical_number(size).ok_or(CheckpointError::Text("the size is no such number"))?;
        let root = hash_from_base64(root).ok_or(CheckpointError::Text("the root is no hash"))?;
        if size == 0 && root != EMPTY_ROOT {
            return Err(CheckpointError::EmptyRoot);
        }
        Ok(Self { origin, size, root })
    }

    /// Signs it with the log's key.
    pub fn sign(&self, key: &SecretKey) -> Result<SignedCheckpoint, CheckpointError> {
        // A text that could not be read back is never signed.
        Self::parse(&self.text())?;
        let mut note = Note::unsigned(self.text())?;
        note.sign(self.origin.clone(), key)?;
        Ok(SignedCheckpoint { checkpoint: self.clone(), note })
    }
}

impl SignedCheckpoint {
    /// Reads a checkpoint that `log` signed. Lines of other keys are kept and mean nothing yet.
    pub fn verify(bytes: &[u8], log: &Verifier) -> Result<Self, CheckpointError> {
        let note = Note::parse(bytes)?;
        let checkpoint = Checkpoint::parse(note.text())?;
        if checkpoint.origin != *log.name() {
            return Err(CheckpointError::OtherOrigin {
                found: checkpoint.origin,
                expected: log.name().clone(),
            });
        }
        note.verify(std::slice::from_ref(log))?;
        Ok(Self { checkpoint, note })
    }

    /// The same with the log's own line alone: what others signed is not everybody's to keep.
    pub fn of_log_alone(&self, log: &Verifier) -> Result<Self, CheckpointError> {
        let mut note = Note::unsigned(self.note.text())?;
        let own =
            self.note.signatures().iter().filter(|line| line.name == *log.name() && line.id == log.id());
        own.cloned().try_for_each(|line| note.append_unverified(line))?;
        Ok(Self { checkpoint: self.checkpoint.clone(), note })
    }

    /// What the log said.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The whole note: text, the log's signature, and what else was signed.
    pub fn note(&self) -> &Note {
        &self.note
    }

    /// The same with cosignature lines appended; lines that are there already are not repeated.
    pub fn with_lines(
        &self,
        lines: impl IntoIterator<Item = kvasir_wire::note::SignatureLine>,
    ) -> Result<Self, CheckpointError> {
        let mut grown = self.clone();
        for line in lines {
            if !grown.note.signatures().contains(&line) {
                grown.note.append_unverified(line)?;
            }
        }
        Ok(grown)
    }
}

/// A hash in canonical base64.
pub(crate) fn hash_from_base64(text: &str) -> Option<Hash> {
    STANDARD.decode(text).ok()?.try_into().ok().map(Hash)
}
