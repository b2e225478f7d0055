//! Threads that share out work of a few microseconds: a token of a small model is some dozens of such pieces, one after
//! the other, and a general pool's hand-over costs more than most of them.
//!
//! A thread enters with [`Threads::within`]; from then on [`share`] on that thread splits its tasks with the helpers.
//! Helpers look for work without sleeping for a fraction of a millisecond after the last piece, then sleep; [`rouse`] wakes them
//! before there is work. Nothing here decides what is computed: tasks are independent, and which thread runs one changes no result.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that fails to unwrap has failed"))]

mod section;

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::JoinHandle;

use section::Shared;

/// A thread that enters and `count - 1` helpers. Dropping it ends the helpers.
pub struct Threads {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

thread_local! {
    /// The threads that this thread has entered, if any.
    static ENTERED: Cell<Option<&'static Shared>> = const { Cell::new(None) };
}

impl Threads {
    /// Starts `count - 1` helpers, named `name-1`, `name-2` and so on.
    ///
    /// # Errors
    /// Where the operating system refuses a thread.
    pub fn new(count: NonZeroUsize, name: &str) -> std::io::Result<Threads> {
        let shared = Arc::new(Shared::new(count.get()));
        let mut threads = Threads { shared: Arc::clone(&shared), helpers: Vec::new() };
        for number in 1..count.get() {
            let shared = Arc::clone(&shared);
            let helper =
                std::thread::Builder::new().name(format!("{name}-{number}")).spawn(move || shared.help())?;
            threads.helpers.push(helper);
        }
        Ok(threads)
    }

    /// Threads that compute, the one that enters included.
    pub fn count(&self) -> usize {
        self.shared.threads()
    }

    /// Runs `work` on this thread; what it shares out goes to these threads. Costs nothing to speak of, and may be
    /// nested. Several threads may enter at once: while one shares work out, the others do theirs by themselves.
    pub fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        struct Restore(Option<&'static Shared>);
        impl Drop for Restore {
            fn drop(&mut self) {
                ENTERED.set(self.0);
            }
        }
        // SAFETY: the reference is in `ENTERED` only until `Restore` is dropped, before the borrow of `self` ends; no
        // function hands it out of this module.
        let shared = unsafe { &*Arc::as_ptr(&self.shared) };
        let _restore = Restore(ENTERED.replace(Some(shared)));
        work()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.end();
        for helper in self.helpers.drain(..) {
            // What a helper panicked with was handed to the thread that shared the work out.
            let _ = helper.join();
        }
    }
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Threads({})", self.count())
    }
}

/// How many threads [`share`] would use here: 1 on a thread that has entered none.
pub fn current_count() -> usize {
    ENTERED.get().map_or(1, Shared::threads)
}

/// Work is about to come: wakes the helpers of the threads that this thread has entered, and keeps those awake that are. They sleep again a
/// fraction of a millisecond later where none comes. Costs a microsecond.
pub fn rouse() {
    if let Some(shared) = ENTERED.get().filter(|shared| shared.threads() > 1) {
        shared.rouse();
    }
}

/// Runs `work` once on every task, in no particular order but beginning with the first ones, on the threads that this
/// thread has entered. On a thread that has entered none, inside another shared piece of work, or while another thread
/// has the helpers, it runs them all here, in order.
///
/// A panic of `work` reaches the caller once every task in hand has ended; later tasks may then not have run.
pub fn share<T: Send>(tasks: &mut [T], work: impl Fn(&mut T) + Sync) {
    match ENTERED.get() {
        Some(shared) if tasks.len() > 1 && shared.threads() > 1 => shared.share(tasks, &work),
        _ => tasks.iter_mut().for_each(work),
    }
}
