//! What links keep of what they wrote, in order to write it again: each no more than its limit, and all of a process together no
//! more than its memory is for.
//!
//! Nothing makes the other side of a link acknowledge. So where the sum is reached, a link that keeps one message more gives its own
//! oldest up, and with them what a cut at that moment would have to go on with. A little it keeps in any case: then a link that has
//! no more than that under way can resume, however much others leave unacknowledged.

use std::sync::atomic::{AtomicUsize, Ordering};

use kvasir_wire::limits::MAX_MESSAGE_BYTES;
use kvasir_wire::replay::KEEPING_BYTES;
use tokio_tungstenite::tungstenite::Bytes;

/// Bytes that the links of a process keep together, but for what each keeps in any case.
const MAX_KEPT_BYTES: usize = 512 * 1024 * 1024;
/// Bytes that a link keeps in any case: two full messages, which is twice what is acknowledged at the latest.
pub(super) const KEPT_IN_ANY_CASE_BYTES: usize = 2 * (MAX_MESSAGE_BYTES + KEEPING_BYTES);

/// What the links of this process may keep.
pub(super) static BUDGET: Budget = Budget::of(MAX_KEPT_BYTES);

/// What some links may keep together.
#[derive(Debug)]
pub(super) struct Budget {
    most: usize,
    kept: AtomicUsize,
}

impl Budget {
    /// So many bytes, of which none are kept yet.
    pub(super) const fn of(most: usize) -> Self {
        Budget { most, kept: AtomicUsize::new(0) }
    }

    /// Bytes that are kept now.
    pub(super) fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }
}

/// One link's part of a budget; given back with the link.
#[derive(Debug)]
pub(super) struct Share {
    budget: &'static Budget,
    bytes: usize,
}

impl Share {
    /// Nothing yet.
    pub(super) fn of(budget: &'static Budget) -> Self {
        Share { budget, bytes: 0 }
    }

    /// The most bytes that this link may keep now. Links that ask at the same time may each be told the same room: then the sum is
    /// exceeded by a message each.
    pub(super) fn most(&self) -> usize {
        let others = self.budget.kept().saturating_sub(self.bytes);
        self.budget.most.saturating_sub(others).max(KEPT_IN_ANY_CASE_BYTES)
    }

    /// This link keeps so many bytes from now on.
    pub(super) fn set(&mut self, bytes: usize) {
        let kept = &self.budget.kept;
        if bytes >= self.bytes {
            kept.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            kept.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A message that was read is a part of the buffer that it was read into. What is kept of a small one must not keep all of that,
/// or what is kept would be many times what is counted.
pub(super) fn copied_if_small(message: &Bytes) -> Bytes {
    if message.len() < MAX_MESSAGE_BYTES / 2 { Bytes::copy_from_slice(message) } else { message.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_message_that_is_kept_lets_go_of_the_buffer_that_it_was_read_into() {
        let buffer = Bytes::from(vec![7; MAX_MESSAGE_BYTES]);
        let whole = buffer.as_ptr_range();
        let small = copied_if_small(&buffer.slice(100..124));
        assert_eq!(small, buffer.slice(100..124));
        assert!(!whole.contains(&small.as_ptr()));
        let large = copied_if_small(&buffer);
        assert!(whole.contains(&large.as_ptr()), "a large one is not copied");
    }

    #[test]
    fn shares_add_up_and_are_given_back() {
        static SMALL: Budget = Budget::of(1_000_000);
        let (mut one, mut other) = (Share::of(&SMALL), Share::of(&SMALL));
        assert_eq!(one.most(), 1_000_000);
        one.set(700_000);
        other.set(100_000);
        assert_eq!((one.most(), other.most(), SMALL.kept()), (900_000, 300_000, 800_000));
        one.set(950_000);
        assert_eq!(other.most(), KEPT_IN_ANY_CASE_BYTES, "however much others keep");
        one.set(10);
        assert_eq!((other.most(), SMALL.kept()), (999_990, 100_010));
        drop(other);
        drop(one);
        assert_eq!(SMALL.kept(), 0);
    }
}
