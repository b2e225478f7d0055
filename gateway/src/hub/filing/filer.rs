//! The task behind the handles: takes notes out of the spool and into the ledger, one at a time.

use std::{
    collections::VecDeque,
    fs,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use kvasir_wire::account::{Grant, Statement as _};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use super::{
    Counts, FilingError, FilingTimes, Job, Ledger, LedgerError,
    spool::{self, REFUSED_FOLDER, SpoolError},
};
use crate::stop::Stop;

/// First pause after the ledger did not answer; doubled each time up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The task behind the handles.
pub struct Filer {
    ledger: Arc<dyn Ledger>,
    spool: Arc<Path>,
    counts: Arc<Counts>,
    queue: mpsc::UnboundedReceiver<Job>,
    /// What lay in the spool at the start.
    found: VecDeque<Job>,
    /// What the ledger takes only after a cure, the next to try in front.
    postponed: VecDeque<Postponed>,
    times: FilingTimes,
    /// Whether a handle is left.
    sessions_file: bool,
}

struct Postponed {
    job: Job,
    since: Instant,
    due: Instant,
}

/// What became of a note.
enum Outcome {
    Filed,
    Postponed(String),
    Refused(String),
    /// The filer is to stop before anything became of it.
    Stopped,
}

impl Filer {
    pub(super) fn new(
        ledger: Arc<dyn Ledger>,
        spool: Arc<Path>,
        counts: Arc<Counts>,
        queue: mpsc::UnboundedReceiver<Job>,
        found: VecDeque<Job>,
        times: FilingTimes,
    ) -> Self {
        Filer { ledger, spool, counts, queue, found, postponed: VecDeque::new(), times, sessions_file: true }
    }

    /// Files until every [`super::Filing`] is gone and nothing is left, or until it is stopped while something is left that the
    /// ledger does not take: that stays in the spool.
    pub async fn run(mut self, mut stop: Stop) {
        while let Some((job, since)) = self.next(&mut stop).await {
            match self.deliver(&job.path, &mut stop).await {
                Outcome::Filed => self.filed(job),
                Outcome::Postponed(reason) => self.postpone(job, since, reason),
                Outcome::Refused(reason) => self.refuse(job, reason),
                Outcome::Stopped => break,
            }
        }
        let left = self.counts.waiting.load(Ordering::Relaxed);
        if left > 0 {
            tracing::error!(notes = left, spool = %self.spool.display(), "stopping with notes in the spool");
        }
    }

    /// The next note, and since when it is postponed. New ones and postponed ones take turns.
    async fn next(&mut self, stop: &mut Stop) -> Option<(Job, Option<Instant>)> {
        if let Some(job) = self.found.pop_front() {
            return Some((job, None));
        }
        let due = self.postponed.front().map(|postponed| postponed.due);
        let retry = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(retry);
        loop {
            if !self.sessions_file && due.is_none() {
                return None;
            }
            tokio::select! {
                job = self.queue.recv(), if self.sessions_file => match job {
                    Some(job) => return Some((job, None)),
                    None => self.sessions_file = false,
                },
                () = &mut retry => break,
                // Before the last handle is gone a stop is not for the filer to heed: sessions still file.
                () = stop.stopped(), if !self.sessions_file => return None,
            }
        }
        self.postponed.pop_front().map(|Postponed { job, since, .. }| (job, Some(since)))
    }

    /// Sends a note until the ledger has said something about it.
    async fn deliver(&self, path: &Path, stop: &mut Stop) -> Outcome {
        let mut pause = FIRST_PAUSE;
        loop {
            let reason = match self.attempt(path).await {
                Ok(()) => return Outcome::Filed,
                Err(LedgerError::Refused(reason)) => return Outcome::Refused(reason),
                Err(LedgerError::Curable(reason)) => return Outcome::Postponed(reason),
                Err(LedgerError::Passing(reason)) => reason,
            };
            tracing::error!(
                waiting = self.counts.waiting.load(Ordering::Relaxed),
                spool = %self.spool.display(),
                "receipts are kept, not filed; next try in {pause:?}: {reason}"
            );
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.stopped() => return Outcome::Stopped,
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    async fn attempt(&self, path: &Path) -> Result<(), LedgerError> {
        let (path, ledger) = (path.to_owned(), self.ledger.clone());
        let posted = tokio::task::spawn_blocking(move || {
            let note = spool::read(&path).map_err(|error| match error {
                SpoolError::NoNote { .. } => LedgerError::Refused(error.to_string()),
                // One file that cannot be read must not hold up the others.
                SpoolError::Unreadable { .. } => LedgerError::Curable(error.to_string()),
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
    fn filed(&self, job: Job) {
        if let Err(error) = fs::remove_file(&job.path) {
            // It will be sent once more at the next start, which changes nothing.
            tracing::warn!(note = %job.path.display(), "leaving the spool: {error}");
        }
        self.answer(job, Ok(()));
    }

    fn refuse(&self, job: Job, reason: String) {
        tracing::error!(
            note = %job.path.display(),
            "refused for good: {reason}; it is kept in {REFUSED_FOLDER}/ and tried once more at the next start"
        );
        match spool::refuse(&self.spool, &job.path) {
            Ok(()) => drop(self.counts.refused.fetch_add(1, Ordering::Relaxed)),
            Err(error) => tracing::warn!(note = %job.path.display(), "leaving the spool: {error}"),
        }
        self.answer(job, Err(FilingError::Refused(reason)));
    }

    fn answer(&self, job: Job, outcome: Result<(), FilingError>) {
        self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
        self.counts.postponed.store(self.postponed.len(), Ordering::Relaxed);
        if let Some(reply) = job.reply {
            // The session may have ended meanwhile.
            let _ = reply.send(outcome);
        }
    }

    /// Keeps a note for a later try. Its session hears of it once it has gone on for long enough.
    fn postpone(&mut self, mut job: Job, since: Option<Instant>, reason: String) {
        let now = Instant::now();
        if since.is_none() {
            tracing::error!(
                note = %job.path.display(),
                "postponed, sent again every {:?} until the ledger takes it: {reason}",
                self.times.retry
            );
        }
        let since = since.unwrap_or(now);
        if now.duration_since(since) >= self.times.cure
            && let Some(reply) = job.reply.take()
        {
            let _ = reply.send(Err(FilingError::Postponed(reason.clone())));
        }
        *self.counts.reason() = Some(reason);
        self.postponed.push_back(Postponed { job, since, due: now + self.times.retry });
        self.counts.postponed.store(self.postponed.len(), Ordering::Relaxed);
    }
}
