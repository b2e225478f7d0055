//! What a thread does when it has to sleep until a kernel's process answers.
//!
//! Most answers to a little work come while the thread still watches for them, and then nothing is done. A thread that others depend
//! on, one of a network for instance, lets itself be replaced for a longer wait.

use std::cell::Cell;

/// Runs the wait that it is given, once.
pub type Aside = fn(&mut dyn FnMut());

thread_local! {
    static ASIDE: Cell<Option<Aside>> = const { Cell::new(None) };
}

/// Runs `work`. Where this thread has to sleep in it until a kernel's process answers, `aside` runs the wait.
pub fn waiting_aside<R>(aside: Aside, work: impl FnOnce() -> R) -> R {
    struct Restore(Option<Aside>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ASIDE.set(self.0);
        }
    }
    let _restore = Restore(ASIDE.replace(Some(aside)));
    work()
}

/// Runs a wait in which this thread sleeps.
pub(crate) fn wait_aside(wait: &mut dyn FnMut()) {
    match ASIDE.get() {
        Some(aside) => aside(wait),
        None => wait(),
    }
}
