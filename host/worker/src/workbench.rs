//! The thread on which a worker computes, apart from the network's.
//!
//! Kernels keep every processor busy for as long as they run. On the network's threads they would starve pings and
//! credits, and a healthy worker would look dead. So one thread takes jobs in order and shares each with helpers of its own.
//! Calls go before loading: an expert that arrives may wait, a token may not.
//!
//! To wake that thread, and to be woken by it for the answer, takes longer than a little call. So where the bench is free a thread of
//! the network may have a [`Turn`]: the bench is its own for one job that mostly waits for another process, and where that wait is
//! long the network gets another thread.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use kvasir_experts::waiting_aside;
use kvasir_threads::Threads;

type Job = Box<dyn FnOnce() + Send>;

/// Whose jobs are whose: a session's are forgotten with it, another's stay.
pub(crate) type Owner = [u8; 32];

/// Takes jobs; the last one dropped ends the thread, after the job in hand.
pub(crate) struct Workbench {
    queues: Arc<Queues>,
    thread: Option<JoinHandle<()>>,
}

struct Queues {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    threads: Threads,
}

#[derive(Default)]
struct Waiting {
    calls: VecDeque<(Owner, Job)>,
    loads: VecDeque<(Owner, Job)>,
    /// A job is in hand, or somebody has a turn.
    busy: bool,
    closed: bool,
}

/// The bench for one job on the thread that has it.
pub(crate) struct Turn<'a>(&'a Queues);

impl Workbench {
    /// Starts the thread and its helpers, `threads` in all (`None`: as many as processors).
    pub(crate) fn new(threads: Option<NonZeroUsize>) -> std::io::Result<Self> {
        let count = threads.or_else(|| std::thread::available_parallelism().ok());
        let threads = Threads::new(count.unwrap_or(NonZeroUsize::MIN), "kvasir-kernel")?;
        let queues = Arc::new(Queues { waiting: Mutex::default(), changed: Condvar::new(), threads });
        let theirs = Arc::clone(&queues);
        let thread = std::thread::Builder::new().name("kvasir-workbench".into()).spawn(move || {
            while let Some(job) = theirs.next() {
                theirs.threads.within(job);
                theirs.lock().busy = false;
            }
        })?;
        Ok(Self { queues, thread: Some(thread) })
    }

    /// Queues a call; calls are run in the order given.
    pub(crate) fn call(&self, owner: Owner, job: impl FnOnce() + Send + 'static) {
        self.queues.queue(|waiting| waiting.calls.push_back((owner, Box::new(job))));
    }

    /// Queues work that may wait until no call does.
    pub(crate) fn load(&self, owner: Owner, job: impl FnOnce() + Send + 'static) {
        self.queues.queue(|waiting| waiting.loads.push_back((owner, Box::new(job))));
    }

    /// The bench for a call on this thread; none where a job is in hand or another call waits.
    pub(crate) fn turn(&self) -> Option<Turn<'_>> {
        let mut waiting = self.queues.lock();
        // Where a load waits, the bench's thread is on its way, and takes the call first.
        if waiting.busy || waiting.closed || !waiting.calls.is_empty() || !waiting.loads.is_empty() {
            return None;
        }
        waiting.busy = true;
        Some(Turn(&self.queues))
    }

    /// Forgets what has not begun of a session that is over.
    pub(crate) fn clear(&self, owner: Owner) {
        let mut waiting = self.queues.lock();
        waiting.calls.retain(|(of, _)| *of != owner);
        waiting.loads.retain(|(of, _)| *of != owner);
    }
}

impl Drop for Workbench {
    fn drop(&mut self) {
        {
            let mut waiting = self.queues.lock();
            waiting.closed = true;
            waiting.calls.clear();
            waiting.loads.clear();
        }
        self.queues.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A job may hold the last reference to the bench, and a thread cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Turn<'_> {
    /// Runs a job on this thread, which is one of a tokio runtime with several, or of none.
    pub(crate) fn run<R>(self, job: impl FnOnce() -> R) -> R {
        waiting_aside(off_the_network, || self.0.threads.within(job))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.busy = false;
        if !waiting.calls.is_empty() || !waiting.loads.is_empty() {
            self.0.changed.notify_one();
        }
    }
}

/// Runs a wait; the runtime goes on with another thread meanwhile.
fn off_the_network(wait: &mut dyn FnMut()) {
    tokio::task::block_in_place(wait);
}

impl Queues {
    /// Whoever has the bench looks for what waits when it is done, and is not to be woken.
    fn queue(&self, push: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.lock();
        push(&mut waiting);
        let busy = waiting.busy;
        drop(waiting);
        if !busy {
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Job> {
        let mut waiting = self.lock();
        loop {
            if !waiting.busy {
                let Waiting { calls, loads, .. } = &mut *waiting;
                if let Some((_, job)) = calls.pop_front().or_else(|| loads.pop_front()) {
                    waiting.busy = true;
                    return Some(job);
                }
                if waiting.closed {
                    return None;
                }
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const ONE: Owner = [1; 32];

    #[test]
    fn calls_run_in_order_and_before_loads() {
        let bench = Workbench::new(NonZeroUsize::new(1)).unwrap();
        let (gate, wait) = mpsc::channel::<()>();
        let (done, log) = mpsc::channel();
        bench.call(ONE, move || wait.recv().unwrap());
        for name in ["load 1", "load 2"] {
            let done = done.clone();
            bench.load(ONE, move || done.send(name).unwrap());
        }
        for name in ["call 1", "call 2"] {
            let done = done.clone();
            bench.call(ONE, move || done.send(name).unwrap());
        }
        gate.send(()).unwrap();
        let order: Vec<_> = log.iter().take(4).collect();
        assert_eq!(order, ["call 1", "call 2", "load 1", "load 2"]);
    }

    #[test]
    fn a_turn_is_had_where_nothing_waits_and_what_comes_meanwhile_comes_after_it() {
        let bench = Workbench::new(NonZeroUsize::new(1)).unwrap();
        let (done, log) = mpsc::channel();
        let turn = bench.turn().unwrap();
        assert!(bench.turn().is_none(), "another one has it");
        let (queued, loaded) = (done.clone(), done.clone());
        bench.load(ONE, move || loaded.send("load").unwrap());
        bench.call(ONE, move || queued.send("call").unwrap());
        assert_eq!(turn.run(|| done.send("turn")), Ok(()));
        let order = [(); 3].map(|()| log.recv_timeout(Duration::from_secs(60)).unwrap());
        assert_eq!(order, ["turn", "call", "load"]);

        let (started, running) = mpsc::channel();
        let (gate, wait) = mpsc::channel::<()>();
        bench.call(ONE, move || {
            started.send(()).unwrap();
            let _ = wait.recv();
        });
        assert!(bench.turn().is_none(), "a call waits or is in hand");
        running.recv().unwrap();
        assert!(bench.turn().is_none(), "a job is in hand");
        drop(gate);
    }

    #[test]
    fn a_panic_in_a_turn_leaves_the_bench_free() {
        let bench = Workbench::new(NonZeroUsize::new(1)).unwrap();
        let turn = bench.turn().unwrap();
        let job = std::panic::AssertUnwindSafe(|| turn.run(|| "no number".parse::<u32>().unwrap()));
        assert!(std::panic::catch_unwind(job).is_err());
        assert!(bench.turn().is_some());
    }

    #[test]
    fn dropping_ends_the_thread_and_forgets_the_rest() {
        let bench = Workbench::new(NonZeroUsize::new(1)).unwrap();
        let (started, running) = mpsc::channel();
        let (gate, wait) = mpsc::channel::<()>();
        bench.call(ONE, move || {
            started.send(()).unwrap();
            let _ = wait.recv();
        });
        let (never, ran) = mpsc::channel::<()>();
        bench.call(ONE, move || never.send(()).unwrap());
        running.recv().unwrap();
        bench.clear(ONE);
        drop(gate);
        drop(bench);
        assert!(ran.recv().is_err());
    }

    #[test]
    fn one_session_over_leaves_the_jobs_of_another() {
        let bench = Workbench::new(NonZeroUsize::new(1)).unwrap();
        let (gate, wait) = mpsc::channel::<()>();
        let (done, log) = mpsc::channel();
        bench.call([3; 32], move || wait.recv().unwrap());
        for owner in [ONE, [2; 32]] {
            let done = done.clone();
            bench.call(owner, move || done.send(owner).unwrap());
        }
        bench.clear(ONE);
        gate.send(()).unwrap();
        drop(done);
        assert_eq!(log.iter().collect::<Vec<_>>(), [[2; 32]]);
    }
}
