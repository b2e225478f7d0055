//! Filing receipts: onto the disk first, then into the ledger, again and again until it takes them.
//!
//! A receipt that all three parties signed is money. So it is written to the spool folder and synced before anything else
//! happens, and it leaves the folder only when the ledger has it. What the ledger takes only once somebody has set a clock
//! or signed a missing note is postponed: it stays in the folder, is sent again every few seconds, and holds up nothing
//! else. What it refuses for good goes to `refused/` for a person to look at, and is tried once more at the hub's next start.
//! The ledger takes the same receipt twice without harm, so every doubt is settled by sending again.

mod filer;
mod hold;
mod spool;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kvasir_ledger::client::{Client, ClientError};
use kvasir_wire::{id::SessionId, note::Note};
use tokio::sync::{mpsc, oneshot};

pub use filer::Filer;
pub use hold::SpoolHold;

/// Most notes that may lie in the spool, those in `refused/` included; beyond it the disk is saved and sessions end.
pub const MAX_SPOOLED: usize = 100_000;
/// Time between two tries of a postponed note.
pub const RETRY_TIME: Duration = Duration::from_secs(10);
/// How long a session may go on while the ledger postpones its receipts.
pub const CURE_TIME: Duration = Duration::from_secs(30);

/// What the hub asks of a ledger; blocking, called from a thread that may wait.
pub trait Ledger: Send + Sync + 'static {
    /// Stores a receipt.
    fn post_receipt(&self, note: &Note) -> Result<(), LedgerError>;
    /// Stores a grant, on which receipts rest.
    fn post_grant(&self, note: &Note) -> Result<(), LedgerError>;
    /// Leaf hash, in hexadecimal, of the price note that holds now.
    fn price(&self) -> Result<String, LedgerError>;
}

/// Why a ledger did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// It may do it later: no connection, or a ledger in trouble. Holds for every note alike.
    #[error("{0}")]
    Passing(String),
    /// It takes this note once somebody has done what it says.
    #[error("{0}")]
    Curable(String),
    /// It will not do it.
    #[error("{0}")]
    Refused(String),
}

impl Ledger for Client {
    fn post_receipt(&self, note: &Note) -> Result<(), LedgerError> {
        Client::post_receipt(self, note).map(|_| ()).map_err(ledger_error)
    }

    fn post_grant(&self, note: &Note) -> Result<(), LedgerError> {
        Client::post_note(self, note).map(|_| ()).map_err(ledger_error)
    }

    fn price(&self) -> Result<String, LedgerError> {
        Client::price(self).map(|price| price.leaf).map_err(ledger_error)
    }
}

/// Only a ledger's own no is final, and only one that nobody can cure. Silence, trouble, or an answer that is not a ledger's
/// may pass: a proxy in the way or a wrong address must not make receipts look refused.
fn ledger_error(error: ClientError) -> LedgerError {
    match &error {
        _ if error.is_curable() => LedgerError::Curable(error.to_string()),
        ClientError::Refused { .. } if !error.is_passing() => LedgerError::Refused(error.to_string()),
        _ => LedgerError::Passing(error.to_string()),
    }
}

/// Why a receipt was not filed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilingError {
    /// It cannot be kept on the disk: nothing was promised to anyone.
    #[error(
        "{path}: the note cannot be kept: {reason}; free space on that disk, or start the hub with --spool on another one. The \
         session ends; what this note covers is not paid, the session's earlier receipts stay valid"
    )]
    Spool {
        /// The file that was to be written.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The spool is full.
    #[error(
        "{path}: {MAX_SPOOLED} notes lie here and in refused/, the most that may: bring the ledger back, and look at refused/ \
         (see docs/gateway.md). The session ends; the session's earlier receipts stay valid"
    )]
    Full {
        /// The spool folder.
        path: PathBuf,
    },
    /// The ledger has not taken it for as long as a session may go on. It is kept, and sent again.
    #[error("the ledger does not take the receipt yet: {0}")]
    Postponed(String),
    /// The ledger refused it for good.
    #[error("the ledger refused the receipt: {0}")]
    Refused(String),
    /// The filer has stopped; the receipt is in the spool.
    #[error("the hub is stopping; the receipt is kept and will be filed at the next start")]
    Stopped,
}

/// How long the filer waits for cures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilingTimes {
    /// Between two tries of a postponed note; [`RETRY_TIME`] but in tests.
    pub retry: Duration,
    /// How long a session may go on while its notes are postponed; [`CURE_TIME`] but in tests.
    pub cure: Duration,
}

impl Default for FilingTimes {
    fn default() -> Self {
        FilingTimes { retry: RETRY_TIME, cure: CURE_TIME }
    }
}

/// The handle that sessions file with; cheap to clone.
#[derive(Clone, Debug)]
pub struct Filing {
    spool: Arc<Path>,
    counts: Arc<Counts>,
    queue: mpsc::UnboundedSender<Job>,
}

/// What lies in the spool, for bounds and reports.
#[derive(Debug, Default)]
struct Counts {
    /// Notes that the ledger does not have yet, the postponed ones included.
    waiting: AtomicUsize,
    postponed: AtomicUsize,
    refused: AtomicUsize,
    /// Why the latest note was postponed.
    reason: Mutex<Option<String>>,
}

/// One note in the spool.
#[derive(Debug)]
struct Job {
    path: PathBuf,
    reply: Option<oneshot::Sender<Result<(), FilingError>>>,
}

/// Opens (or makes) a spool folder. What lies in it from before, `refused/` included, is filed first, in the order of sessions
/// and numbers.
pub fn open(spool: &Path, ledger: Arc<dyn Ledger>, times: FilingTimes) -> io::Result<(Filing, Filer)> {
    let paths = spool::take_up(spool)?;
    if !paths.is_empty() {
        tracing::warn!(notes = paths.len(), spool = %spool.display(), "notes of an earlier run wait to be filed");
    }
    let counts = Arc::new(Counts { waiting: paths.len().into(), ..Counts::default() });
    let found = paths.into_iter().map(|path| Job { path, reply: None }).collect();
    // Unbounded in form only: every entry is a file of the spool, and those are counted against MAX_SPOOLED.
    let (sender, queue) = mpsc::unbounded_channel();
    let spool: Arc<Path> = spool.into();
    let filing = Filing { spool: spool.clone(), counts: counts.clone(), queue: sender };
    Ok((filing, Filer::new(ledger, spool, counts, queue, found, times)))
}

impl Filing {
    /// Keeps a session's grant in front of its receipts, as number 0: see [`Filing::file`].
    pub async fn file_grant(
        &self,
        session: SessionId,
        note: &Note,
    ) -> Result<oneshot::Receiver<Result<(), FilingError>>, FilingError> {
        self.file(session, 0, note).await
    }

    /// Keeps a receipt on the disk and queues it for the ledger. Once this returns a receiver, nothing can lose the receipt;
    /// the receiver says what became of it, however long that takes.
    pub async fn file(
        &self,
        session: SessionId,
        seq: u64,
        note: &Note,
    ) -> Result<oneshot::Receiver<Result<(), FilingError>>, FilingError> {
        let kept = self.waiting() + self.refused();
        if kept >= MAX_SPOOLED {
            return Err(FilingError::Full { path: self.spool.to_path_buf() });
        }
        let path = spool::path_of(&self.spool, session, seq);
        let (target, text) = (path.clone(), note.to_string());
        let kept = tokio::task::spawn_blocking(move || spool::keep(&target, text.as_bytes())).await;
        let failed = |reason: String| FilingError::Spool { path: path.clone(), reason };
        match kept {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(error) => return Err(failed(error.to_string())),
        }
        let (reply, answer) = oneshot::channel();
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        self.queue.send(Job { path, reply: Some(reply) }).map_err(|_| FilingError::Stopped)?;
        Ok(answer)
    }

    /// Keeps a countersignature that contradicts an earlier one in the folder `conflicts`, as it was sent. Evidence, not money:
    /// where it cannot be kept the log says so.
    pub async fn keep_conflict(&self, session: SessionId, payload: &[u8]) {
        let (spool, payload) = (self.spool.clone(), payload.to_vec());
        let kept = tokio::task::spawn_blocking(move || spool::keep_conflict(&spool, session, &payload)).await;
        match kept {
            Ok(Ok(path)) => {
                tracing::warn!(path = %path.display(), "the conflicting countersignature is kept")
            }
            Ok(Err(error)) => tracing::error!(%error, "the conflicting countersignature cannot be kept"),
            Err(error) => tracing::error!(%error, "the conflicting countersignature cannot be kept"),
        }
    }

    /// Notes that the ledger does not have yet.
    pub fn waiting(&self) -> usize {
        self.counts.waiting.load(Ordering::Relaxed)
    }

    /// Those among them that the ledger takes only once somebody has done what it says.
    pub fn postponed(&self) -> usize {
        self.counts.postponed.load(Ordering::Relaxed)
    }

    /// Why the latest of those was postponed; absent where none is.
    pub fn postponed_because(&self) -> Option<String> {
        if self.postponed() == 0 { None } else { self.counts.reason().clone() }
    }

    /// Notes that the ledger refused for good since the start.
    pub fn refused(&self) -> usize {
        self.counts.refused.load(Ordering::Relaxed)
    }
}

impl Counts {
    fn reason(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        // A string that is replaced as a whole is as good after a panic.
        self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
