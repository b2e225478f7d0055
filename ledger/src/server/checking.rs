//! Verifies signatures on other threads than the one that writes.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::reader::Readers;
use crate::refusal::LedgerError;
use crate::store::{Incoming, Keys};

pub(super) struct Checking {
    keys: Keys,
    /// One permit for each core: more at a time would only take turns.
    turns: Arc<Semaphore>,
}

impl Checking {
    pub(super) fn new(keys: Keys) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { keys, turns: Arc::new(Semaphore::new(cores)) }
    }

    /// Reads a note by `read` and verifies it as far as its keys are known.
    pub(super) async fn check(
        &self,
        readers: Arc<Readers>,
        read: impl FnOnce() -> Result<Incoming, LedgerError> + Send + 'static,
    ) -> Result<Incoming, LedgerError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let keys = self.keys.clone();
        let checked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut note = read()?;
            // A question that fails says nothing about the note: the writer asks again.
            note.check(&keys, |receipt| readers.ask(|answers| answers.receipt_keys(receipt)).ok().flatten());
            Ok(note)
        });
        checked.await.unwrap_or(Err(LedgerError::Busy("the note could not be checked")))
    }
}
