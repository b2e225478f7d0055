//! Group commit: many notes in one transaction, so that one wait for the disk carries them all.
//!
//! Each note stands or falls alone, and the disk decides over all of them. A refusal comes before anything of its note is
//! written, so the others stay as they are. Where a note breaks off after that, the transaction is given up and every note
//! gets one of its own: savepoints would do it too, and cost every good note a copy of each page that it touches.

use std::sync::Arc;

use rusqlite::ErrorCode;

use super::incoming::Sort;
use super::{Incoming, Store, Writing};
use crate::api::Accepted;
use crate::refusal::LedgerError;

/// Most notes in one transaction.
pub const MAX_GROUP: usize = 256;

/// What one note was answered.
type Answer = Result<Accepted, LedgerError>;

impl Store {
    /// Stores one note.
    pub fn accept(&mut self, note: Incoming, now: u64) -> Result<Accepted, LedgerError> {
        self.alone(&Arc::new(note), now)
    }

    /// Stores notes, in order, in one transaction. One answer for each, in their order; when they are given, everything
    /// that they acknowledge is on the disk. `now` in Unix seconds by the ledger's clock.
    pub fn accept_group(&mut self, notes: Vec<Incoming>, now: u64) -> Vec<Result<Accepted, LedgerError>> {
        let notes: Vec<Arc<Incoming>> = notes.into_iter().map(Arc::new).collect();
        let stored = self.write(now, |writing| notes.iter().map(|note| writing.one(note)).collect());
        match stored {
            Ok(answers) => answers,
            Err(error) if error.is_of_the_file() => notes.iter().map(|_| Err(error.again())).collect(),
            Err(_) => notes.iter().map(|note| self.alone(note, now)).collect(),
        }
    }

    fn alone(&mut self, note: &Arc<Incoming>, now: u64) -> Answer {
        self.write(now, |writing| writing.one(note))?
    }
}

impl Writing<'_> {
    /// One note. The outer error leaves the transaction in a state that must not be committed.
    fn one(&mut self, note: &Arc<Incoming>) -> Result<Answer, LedgerError> {
        let before = self.transaction.total_changes();
        self.keep_evidence = false;
        self.incoming = Some(Arc::clone(note));
        let answer = match &note.sort {
            Sort::Receipt(receipt) => self.receipt(&note.note, receipt),
            Sort::Settlement => self.settlement(note.note.clone()),
            Sort::Other => self.note(note.note.clone()),
        };
        self.incoming = None;
        let is_clean = self.keep_evidence || self.transaction.total_changes() == before;
        match answer {
            Err(LedgerError::Refused(refusal)) if is_clean => Ok(Err(LedgerError::Refused(refusal))),
            answer => answer.map(Ok),
        }
    }
}

impl LedgerError {
    /// Whether the file or the disk failed, rather than the note.
    fn is_of_the_file(&self) -> bool {
        matches!(self, LedgerError::Database { source, .. }
            if source.sqlite_error_code() != Some(ErrorCode::ConstraintViolation))
    }

    /// The same error for another note of the group.
    pub(crate) fn again(&self) -> LedgerError {
        match self {
            LedgerError::Database { path, source: rusqlite::Error::SqliteFailure(error, message) } => {
                let source = rusqlite::Error::SqliteFailure(*error, message.clone());
                LedgerError::Database { path: path.clone(), source }
            }
            LedgerError::Refused(refusal) => LedgerError::Refused(refusal.clone()),
            LedgerError::DiskLow(low) => low.clone().into(),
            LedgerError::ClockAhead(ahead) => ahead.clone().into(),
            _ => LedgerError::Busy("the notes of this moment could not be stored"),
        }
    }
}
