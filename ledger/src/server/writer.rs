//! The one thread that writes. While it waits for the disk, notes gather; the next transaction takes them all.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::oneshot;
use tracing::{error, info};

use super::gate::Gate;
use super::{Clock, MAX_WAITING_WRITES, SWEEP_EVERY};
use crate::api::Accepted;
use crate::refusal::LedgerError;
use crate::store::{Incoming, MAX_GROUP, Store};

/// Name of the thread.
const WRITER: &str = "ledger-writer";

type Answer = oneshot::Sender<Result<Accepted, LedgerError>>;

enum Job {
    Note(Box<Incoming>, Answer),
    Ready(oneshot::Sender<Result<(), LedgerError>>),
    End,
}

/// Hands writes to the thread.
#[derive(Clone)]
pub(super) struct Writer {
    jobs: SyncSender<Job>,
}

impl Writer {
    pub(super) fn start(store: Store, clock: Clock, gate: Gate) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (jobs, queue) = sync_channel(MAX_WAITING_WRITES);
        // Its name is how the crash suite finds the thread that it injects faults into.
        let thread = std::thread::Builder::new().name(WRITER.to_owned());
        let thread = thread.spawn(move || run(store, gate, &queue, &clock))?;
        Ok((Self { jobs }, thread))
    }

    /// Stores a note, together with others that wait. The answer comes after the commit.
    pub(super) async fn accept(&self, note: Incoming) -> Result<Accepted, LedgerError> {
        let (answer, waiting) = oneshot::channel();
        self.send(Job::Note(Box::new(note), answer))?;
        waiting.await.unwrap_or(Err(LedgerError::Busy("the writer has ended")))
    }

    /// Whether a note would be taken now.
    pub(super) async fn ready(&self) -> Result<(), LedgerError> {
        let (answer, waiting) = oneshot::channel();
        self.send(Job::Ready(answer))?;
        waiting.await.unwrap_or(Err(LedgerError::Busy("the writer has ended")))
    }

    /// Lets the thread finish what is queued, then end and close the file. May wait.
    pub(super) fn end(&self) {
        // It fails only where the thread has ended already.
        let _ = self.jobs.send(Job::End);
    }

    fn send(&self, job: Job) -> Result<(), LedgerError> {
        self.jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => LedgerError::Busy("too many notes are waiting to be written"),
            TrySendError::Disconnected(_) => LedgerError::Busy("the writer has ended"),
        })
    }
}

fn run(mut store: Store, mut gate: Gate, queue: &Receiver<Job>, clock: &Clock) {
    let mut next_sweep = Instant::now();
    // What was taken from the queue and is no note, so that it ended a group.
    let mut held: Option<Job> = None;
    loop {
        if Instant::now() >= next_sweep {
            sweep(&mut store, &mut gate, clock());
            next_sweep = Instant::now() + SWEEP_EVERY;
        }
        let job = match held.take() {
            Some(job) => Ok(job),
            None => queue.recv_timeout(next_sweep.saturating_duration_since(Instant::now())),
        };
        match job {
            Ok(Job::Note(note, answer)) => {
                let (notes, answers, next) = gather(*note, answer, queue);
                held = next;
                // Asked before anything is written, also for notes that may be there already. What posts pending credit goes on:
                // that is what the space is kept for.
                let now = clock();
                let stored = match gate.check(&mut store, now) {
                    Ok(()) => store.accept_group(notes, now),
                    Err(closed) => notes.iter().map(|_| Err(closed.again())).collect(),
                };
                for (answer, stored) in answers.into_iter().zip(stored) {
                    // The caller may have hung up; the note is stored all the same.
                    let _ = answer.send(stored);
                }
            }
            Ok(Job::Ready(answer)) => {
                let _ = answer.send(store.check_writable().and_then(|()| gate.check(&mut store, clock())));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Job::End) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The notes that wait already: nobody is kept waiting for more.
fn gather(
    first: Incoming,
    answer: Answer,
    queue: &Receiver<Job>,
) -> (Vec<Incoming>, Vec<Answer>, Option<Job>) {
    let (mut notes, mut answers) = (vec![first], vec![answer]);
    while notes.len() < MAX_GROUP {
        match queue.try_recv() {
            Ok(Job::Note(note, answer)) => {
                notes.push(*note);
                answers.push(answer);
            }
            Ok(other) => return (notes, answers, Some(other)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
        }
    }
    (notes, answers, None)
}

fn sweep(store: &mut Store, gate: &mut Gate, now: u64) {
    match gate.check_clock(store, now).and_then(|()| store.sweep(now)) {
        Ok(0) => {}
        Ok(posted) => info!(posted, "settlements posted"),
        // Nothing is lost: they are posted by the next sweep that succeeds.
        Err(problem) => error!(%problem, "pending credit cannot be posted"),
    }
}
