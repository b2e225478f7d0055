//! Connections that only read, so that questions never wait for a write.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use kvasir_wire::note::NetworkName;
use rusqlite::Connection;

use crate::refusal::LedgerError;
use crate::store::{Answers, open_for_reading};

/// Questions answered at one time.
const READERS: usize = 4;

pub(crate) struct Readers {
    connections: Vec<Mutex<Connection>>,
    next: AtomicUsize,
    path: PathBuf,
}

impl Readers {
    pub(super) fn open(path: &Path, network: &NetworkName) -> Result<Self, LedgerError> {
        let open = |_| open_for_reading(path, network).map(Mutex::new);
        let connections = (0..READERS).map(open).collect::<Result<_, _>>()?;
        Ok(Self { connections, next: AtomicUsize::new(0), path: path.to_owned() })
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
