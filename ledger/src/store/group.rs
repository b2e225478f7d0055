//! Group commit: many notes in one transaction, so that one wait for the disk carries them all.
//!
//! Each note stands or falls alone, in a savepoint of its own; the disk decides over all of them. Where the transaction
//! cannot be committed, every note of it fails, those that were refused too: what refused them may not be there.

use std::sync::Arc;

use rusqlite::ErrorCode;

use super::incoming::Sort;
use super::{Incoming, Store, Writing, at};
use crate::api::Accepted;
use crate::refusal::LedgerError;

/// Most notes in one transaction.
pub const MAX_GROUP: usize = 256;

impl Store {
    /// Stores one note.
    pub fn accept(&mut self, note: Incoming, now: u64) -> Result<Accepted, LedgerError> {
        let only = self.accept_group(vec![note], now).pop();
        only.unwrap_or(Err(LedgerError::Busy("the note was not looked at")))
    }

    /// Stores notes, in order, in one transaction. One answer for each, in their order; when they are given, everything
    /// that they acknowledge is on the disk. `now` in Unix seconds by the ledger's clock.
    pub fn accept_group(&mut self, notes: Vec<Incoming>, now: u64) -> Vec<Result<Accepted, LedgerError>> {
        let count = notes.len();
        let stored = self
            .write(now, |writing| notes.into_iter().map(|note| writing.one(note)).collect::<Result<_, _>>());
        match stored {
            Ok(answers) => answers,
            Err(error) => (0..count).map(|_| Err(error.again())).collect(),
        }
    }
}

impl Writing<'_> {
    /// One note of a group. The outer error is the group's: the transaction is of no use any more.
    fn one(&mut self, note: Incoming) -> Result<Result<Accepted, LedgerError>, LedgerError> {
        let before = self.tree.clone();
        self.keep_evidence = false;
        self.run("SAVEPOINT note")?;
        let note = Arc::new(note);
        self.incoming = Some(Arc::clone(&note));
        let answer = match note.sort {
            Sort::Receipt => self.receipt(note.note.clone()),
            Sort::Settlement => self.settlement(note.note.clone()),
            Sort::Other => self.note(note.note.clone()),
        };
        self.incoming = None;
        match &answer {
            Ok(_) => {}
            Err(_) if self.keep_evidence => {}
            Err(LedgerError::Database { source, .. })
                if source.sqlite_error_code() != Some(ErrorCode::ConstraintViolation) =>
            {
                // The file or the disk, not the note: SQLite may have rolled everything back by itself.
                return answer.map(Ok);
            }
            Err(_) => {
                self.run("ROLLBACK TO note")?;
                // Refusals come before anything is written; other errors may come after.
                if !matches!(answer, Err(LedgerError::Refused(_))) {
                    self.caps.forget();
                }
                self.tree = before;
            }
        }
        // The evidence stands or falls with the group.
        self.keep_evidence = false;
        self.run("RELEASE note")?;
        Ok(answer)
    }

    fn run(&self, statement: &str) -> Result<(), LedgerError> {
        let run = self.transaction.prepare_cached(statement).and_then(|mut statement| statement.execute([]));
        run.map(|_| ()).map_err(at(self.path))
    }
}

impl LedgerError {
    /// The same error for another note of the group.
    fn again(&self) -> LedgerError {
        match self {
            LedgerError::Database { path, source: rusqlite::Error::SqliteFailure(error, message) } => {
                let source = rusqlite::Error::SqliteFailure(*error, message.clone());
                LedgerError::Database { path: path.clone(), source }
            }
            LedgerError::Refused(refusal) => LedgerError::Refused(refusal.clone()),
            _ => LedgerError::Busy("the notes of this moment could not be stored"),
        }
    }
}
