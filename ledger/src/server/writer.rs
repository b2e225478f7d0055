//! The one thread that writes.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::oneshot;
use tracing::{error, info};

use super::{Clock, MAX_WAITING_WRITES, SWEEP_EVERY};
use crate::refusal::LedgerError;
use crate::store::Store;

type Change = Box<dyn FnOnce(&mut Store, u64) + Send>;

enum Job {
    Change(Change),
    End,
}

/// Hands writes to the thread.
#[derive(Clone)]
pub(super) struct Writer {
    jobs: SyncSender<Job>,
}

impl Writer {
    pub(super) fn start(store: Store, clock: Clock) -> (Self, JoinHandle<()>) {
        let (jobs, queue) = sync_channel(MAX_WAITING_WRITES);
        let thread = std::thread::spawn(move || run(store, &queue, &clock));
        (Self { jobs }, thread)
    }

    pub(super) async fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Store, u64) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let (answer, waiting) = oneshot::channel();
        let job = Job::Change(Box::new(move |store, now| {
            // The caller may have hung up; the change is made all the same.
            let _ = answer.send(change(store, now));
        }));
        self.jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => LedgerError::Busy("too many notes are waiting to be written"),
            TrySendError::Disconnected(_) => LedgerError::Busy("the writer has ended"),
        })?;
        waiting.await.unwrap_or(Err(LedgerError::Busy("the writer has ended")))
    }

    /// Lets the thread finish what is queued, then end and close the file. May wait.
    pub(super) fn end(&self) {
        // It fails only where the thread has ended already.
        let _ = self.jobs.send(Job::End);
    }
}

fn run(mut store: Store, queue: &Receiver<Job>, clock: &Clock) {
    let mut next_sweep = Instant::now();
    loop {
        if Instant::now() >= next_sweep {
            sweep(&mut store, clock());
            next_sweep = Instant::now() + SWEEP_EVERY;
        }
        match queue.recv_timeout(next_sweep.saturating_duration_since(Instant::now())) {
            Ok(Job::Change(change)) => change(&mut store, clock()),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Job::End) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn sweep(store: &mut Store, now: u64) {
    match store.sweep(now) {
        Ok(0) => {}
        Ok(posted) => info!(posted, "settlements posted"),
        // Nothing is lost: they are posted by the next sweep that succeeds.
        Err(problem) => error!(%problem, "pending credit cannot be posted"),
    }
}
