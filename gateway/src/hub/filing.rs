//! Filing receipts: onto the disk first, then into the ledger, again and again until it answers.
//!
//! A receipt that all three parties signed is money. So it is written to the spool folder and synced before anything else
//! happens, it leaves the folder only when the ledger has it (or has refused it for good: then it goes to `refused/` for
//! a person to look at), and a hub that starts anew files what it finds there. The ledger takes the same receipt twice
//! without harm, so every doubt is settled by sending again.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kvasir_ledger::client::{Client, ClientError};
use kvasir_wire::{
    account::{Grant, Statement as _},
    id::SessionId,
    limits::MAX_NOTE_BYTES,
    note::Note,
};
use tokio::sync::{mpsc, oneshot};

use crate::stop::Stop;

/// Most receipts that may wait in the spool; beyond it the disk is saved and sessions end.
pub const MAX_SPOOLED: usize = 100_000;
/// First pause after the ledger did not answer; doubled each time up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(30);
const SUFFIX: &str = "receipt";
const REFUSED_FOLDER: &str = "refused";

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
    /// It may do it later: no connection, or a ledger in trouble.
    #[error("{0}")]
    Passing(String),
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

/// Only a ledger's own no is final. Silence, trouble, or an answer that is not a ledger's may pass: a proxy in the way or a
/// wrong address must not make receipts look refused.
fn ledger_error(error: ClientError) -> LedgerError {
    match &error {
        ClientError::Refused { .. } if !error.is_passing() => LedgerError::Refused(error.to_string()),
        _ => LedgerError::Passing(error.to_string()),
    }
}

/// Why a receipt was not filed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilingError {
    /// It cannot be kept on the disk: nothing was promised to anyone.
    #[error("the receipt cannot be kept: {0}")]
    Spool(String),
    /// The ledger refused it for good.
    #[error("the ledger refused the receipt: {0}")]
    Refused(String),
    /// The filer has stopped; the receipt is in the spool.
    #[error("the hub is stopping; the receipt is kept and will be filed at the next start")]
    Stopped,
}

/// The handle that sessions file with; cheap to clone.
#[derive(Clone, Debug)]
pub struct Filing {
    spool: Arc<Path>,
    waiting: Arc<AtomicUsize>,
    queue: mpsc::UnboundedSender<Job>,
}

/// The task behind the handles.
pub struct Filer {
    ledger: Arc<dyn Ledger>,
    spool: Arc<Path>,
    waiting: Arc<AtomicUsize>,
    queue: mpsc::UnboundedReceiver<Job>,
    found: VecDeque<Job>,
}

/// One receipt in the spool.
#[derive(Debug)]
struct Job {
    path: PathBuf,
    reply: Option<oneshot::Sender<Result<(), FilingError>>>,
}

/// Opens (or makes) a spool folder. What lies in it from before is filed first, in the order of sessions and numbers.
pub fn open(spool: &Path, ledger: Arc<dyn Ledger>) -> io::Result<(Filing, Filer)> {
    fs::create_dir_all(spool.join(REFUSED_FOLDER))?;
    let mut paths = Vec::new();
    for entry in fs::read_dir(spool)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == SUFFIX) {
            paths.push(path);
        }
    }
    paths.sort();
    if !paths.is_empty() {
        tracing::warn!(receipts = paths.len(), "receipts of an earlier run wait to be filed");
    }
    let found: VecDeque<Job> = paths.into_iter().map(|path| Job { path, reply: None }).collect();
    // Unbounded in form only: every entry is a file of the spool, and those are counted against MAX_SPOOLED.
    let (sender, queue) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(found.len()));
    let spool: Arc<Path> = spool.into();
    let filing = Filing { spool: spool.clone(), waiting: waiting.clone(), queue: sender };
    Ok((filing, Filer { ledger, spool, waiting, queue, found }))
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
        if self.waiting.load(Ordering::Relaxed) >= MAX_SPOOLED {
            return Err(FilingError::Spool(format!(
                "{MAX_SPOOLED} receipts wait already; bring the ledger back"
            )));
        }
        let path = self.spool.join(format!("{session}-{seq:020}.{SUFFIX}"));
        let (target, text) = (path.clone(), note.to_string());
        let kept = tokio::task::spawn_blocking(move || keep(&target, text.as_bytes())).await;
        match kept {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(FilingError::Spool(format!("{}: {error}", path.display()))),
            Err(error) => return Err(FilingError::Spool(error.to_string())),
        }
        let (reply, answer) = oneshot::channel();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.queue.send(Job { path, reply: Some(reply) }).map_err(|_| FilingError::Stopped)?;
        Ok(answer)
    }

    /// Receipts that the ledger does not have yet.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

impl Filer {
    /// Files until every [`Filing`] is gone and the queue is empty, or until it is stopped while the ledger does not answer:
    /// what waits then stays in the spool.
    pub async fn run(mut self, mut stop: Stop) {
        while let Some(job) = self.next().await {
            let mut pause = FIRST_PAUSE;
            let outcome = loop {
                match self.attempt(&job.path).await {
                    Ok(()) => break Ok(()),
                    Err(LedgerError::Refused(reason)) => break Err(FilingError::Refused(reason)),
                    Err(LedgerError::Passing(reason)) => {
                        tracing::error!(
                            waiting = self.waiting.load(Ordering::Relaxed),
                            spool = %self.spool.display(),
                            "receipts are kept, not filed; next try in {pause:?}: {reason}"
                        );
                        tokio::select! {
                            () = tokio::time::sleep(pause) => {}
                            () = stop.stopped() => {
                                tracing::error!(spool = %self.spool.display(), "stopping with receipts in the spool");
                                return;
                            }
                        }
                        pause = (pause * 2).min(MAX_PAUSE);
                    }
                }
            };
            self.settle(job, outcome).await;
        }
    }

    async fn next(&mut self) -> Option<Job> {
        match self.found.pop_front() {
            Some(job) => Some(job),
            None => self.queue.recv().await,
        }
    }

    async fn attempt(&self, path: &Path) -> Result<(), LedgerError> {
        let (path, ledger) = (path.to_owned(), self.ledger.clone());
        let posted = tokio::task::spawn_blocking(move || {
            let bytes = read_note(&path)
                .map_err(|error| LedgerError::Refused(format!("{}: {error}", path.display())))?;
            let note = Note::parse(&bytes).map_err(|error| {
                LedgerError::Refused(format!("{} is no receipt: {error}", path.display()))
            })?;
            if note.text().starts_with(Grant::KIND) {
                ledger.post_grant(&note)
            } else {
                ledger.post_receipt(&note)
            }
        });
        posted.await.unwrap_or_else(|error| Err(LedgerError::Passing(error.to_string())))
    }

    /// The file leaves the spool, then the session hears of it.
    async fn settle(&self, job: Job, outcome: Result<(), FilingError>) {
        let path = job.path;
        let moved = match &outcome {
            Ok(()) => fs::remove_file(&path),
            Err(reason) => {
                tracing::error!(receipt = %path.display(), "{reason}; it is kept in {REFUSED_FOLDER}/");
                let name = path.file_name().unwrap_or_default();
                fs::rename(&path, self.spool.join(REFUSED_FOLDER).join(name))
            }
        };
        if let Err(error) = moved {
            // It will be sent once more at the next start, which changes nothing.
            tracing::warn!(receipt = %path.display(), "leaving the spool: {error}");
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(reply) = job.reply {
            // The session may have ended meanwhile.
            let _ = reply.send(outcome);
        }
    }
}

/// Writes a file so that it is whole or absent after a crash.
fn keep(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

fn read_note(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > MAX_NOTE_BYTES as u64 {
        return Err(io::Error::other(format!("larger than {MAX_NOTE_BYTES} bytes")));
    }
    fs::read(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::switch;
    use kvasir_wire::key::SecretKey;
    use std::sync::Mutex;

    /// A ledger that does not answer `failures` times, then keeps what it is given.
    #[derive(Default)]
    struct Flaky {
        failures: AtomicUsize,
        refuse: bool,
        kept: Mutex<Vec<String>>,
    }

    impl Ledger for Flaky {
        fn post_receipt(&self, note: &Note) -> Result<(), LedgerError> {
            let left = self.failures.load(Ordering::SeqCst);
            if left > 0 {
                self.failures.store(left - 1, Ordering::SeqCst);
                return Err(LedgerError::Passing("nobody there".into()));
            }
            if self.refuse {
                return Err(LedgerError::Refused("conflict".into()));
            }
            self.kept.lock().unwrap().push(note.text().to_owned());
            Ok(())
        }

        fn post_grant(&self, note: &Note) -> Result<(), LedgerError> {
            self.post_receipt(note)
        }

        fn price(&self) -> Result<String, LedgerError> {
            Err(LedgerError::Passing("none".into()))
        }
    }

    fn note(text: &str) -> Note {
        let mut note = Note::unsigned(format!("{text}\n")).unwrap();
        note.sign("test/hub".parse().unwrap(), &SecretKey::from_seed([1; 32])).unwrap();
        note
    }

    fn spooled(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_file()).count()
    }

    #[tokio::test]
    async fn a_receipt_outlives_a_ledger_that_is_away_and_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let away = Arc::new(Flaky { failures: AtomicUsize::new(usize::MAX), ..Flaky::default() });
        let (filing, filer) = open(folder.path(), away).unwrap();
        let (stopper, stop) = switch();
        let running = tokio::spawn(filer.run(stop));
        let answer = filing.file(SessionId([1; 32]), 1, &note("one")).await.unwrap();
        let _second = filing.file(SessionId([1; 32]), 2, &note("two")).await.unwrap();
        assert_eq!(spooled(folder.path()), 2);
        stopper.stop();
        running.await.unwrap();
        assert!(answer.await.is_err(), "nobody says that it was filed");

        let back = Arc::new(Flaky { failures: AtomicUsize::new(2), ..Flaky::default() });
        let (filing, filer) = open(folder.path(), back.clone()).unwrap();
        assert_eq!(filing.waiting(), 2);
        let (_stopper, stop) = switch();
        let running = tokio::spawn(filer.run(stop));
        let third = filing.file(SessionId([0; 32]), 1, &note("three")).await.unwrap();
        assert_eq!(third.await.unwrap(), Ok(()));
        assert_eq!(*back.kept.lock().unwrap(), ["one\n", "two\n", "three\n"]);
        assert_eq!((spooled(folder.path()), filing.waiting()), (0, 0));
        drop(filing);
        running.await.unwrap();
    }

    #[tokio::test]
    async fn a_refused_receipt_is_set_aside_and_said() {
        let folder = tempfile::tempdir().unwrap();
        let (filing, filer) =
            open(folder.path(), Arc::new(Flaky { refuse: true, ..Flaky::default() })).unwrap();
        let (_stopper, stop) = switch();
        tokio::spawn(filer.run(stop));
        let answer = filing.file(SessionId([1; 32]), 1, &note("one")).await.unwrap();
        assert!(matches!(answer.await.unwrap(), Err(FilingError::Refused(_))));
        assert_eq!(spooled(folder.path()), 0);
        assert_eq!(spooled(&folder.path().join(REFUSED_FOLDER)), 1);
    }

    #[tokio::test]
    async fn what_is_no_receipt_in_the_spool_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("x.receipt"), b"half").unwrap();
        fs::write(folder.path().join("y.receipt"), vec![b'a'; MAX_NOTE_BYTES + 1]).unwrap();
        let (filing, filer) = open(folder.path(), Arc::new(Flaky::default())).unwrap();
        let (_stopper, stop) = switch();
        let running = tokio::spawn(filer.run(stop));
        drop(filing);
        running.await.unwrap();
        assert_eq!(spooled(&folder.path().join(REFUSED_FOLDER)), 2);
    }
}
