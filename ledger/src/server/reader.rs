//! Connections that only read, so that questions never wait for a write.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kvasir_wire::note::NetworkName;
use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::refusal::LedgerError;
use crate::store::{Answers, open_for_reading};

/// Questions answered at one time.
const READERS: usize = 4;

pub(crate) struct Readers {
    connections: Vec<Mutex<Connection>>,
    next: AtomicUsize,
    turns: Arc<Semaphore>,
    path: PathBuf,
}

impl Readers {
    pub(super) fn open(path: &Path, network: &NetworkName) -> Result<Self, LedgerError> {
        let open = |_| open_for_reading(path, network).map(Mutex::new);
        let connections = (0..READERS).map(open).collect::<Result<_, _>>()?;
        Ok(Self {
            connections,
            next: AtomicUsize::new(0),
            turns: Arc::new(Semaphore::new(READERS)),
            path: path.to_owned(),
        })
    }

    /// Waits until fewer than [`READERS`] visitors are being answered: whoever hangs up meanwhile has cost nothing. Held until the
    /// answer is there.
    pub(crate) async fn turn(&self) -> Result<OwnedSemaphorePermit, LedgerError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        turn.map_err(|_| LedgerError::Busy("the readers have ended"))
    }

    pub(crate) fn ask<T>(
        &self,
        question: impl FnOnce(Answers<'_>) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % READERS;
        // A reader that panicked left no transaction behind: dropping it ended the snapshot.
        let connection = self.connections[turn].lock().unwrap_or_else(PoisonError::into_inner);
        question(Answers::new(&connection, &self.path))
    }
}
