//! What is worth sharing out over the threads that a forward pass runs on.
//!
//! Only outputs are shared out, never a sum, so the number of threads changes no bit.

use kvasir_threads::current_count;

/// Work, in multiply-adds, below which nothing is shared: about two microseconds of one thread at one row. Handing work
/// over to a helper that is awake, and learning that it is done, takes a few hundred nanoseconds.
pub(crate) const LEAST_SHARED: usize = 64 * 1024;

/// Pieces per thread where there is much to do: more than one, so that a thread that wakes late finds something left and
/// one that is early is not idle.
pub(crate) const PIECES_PER_THREAD: usize = 3;

/// Work of one piece, in multiply-adds, from which on there are more pieces than threads.
pub(crate) const GOOD_PIECE: usize = 256 * 1024;

/// Something with a cost in multiply-adds.
pub(crate) trait Cost {
    /// Multiply-adds, roughly.
    fn cost(&self) -> usize;
}

/// Runs `work` once on every task, on several threads where that pays.
pub(crate) fn share<T: Send + Cost>(tasks: &mut [T], work: &(impl Fn(&mut T) + Sync)) {
    let total: usize = tasks.iter().map(Cost::cost).sum();
    if total < LEAST_SHARED {
        tasks.iter_mut().for_each(work);
    } else {
        kvasir_threads::share(tasks, work);
    }
}

/// Rows of one piece, where `rows` rows that cost `row_cost` each are shared out; at least 1.
pub(crate) fn stretch(rows: usize, row_cost: usize) -> usize {
    rows.div_ceil(pieces(rows * row_cost)).max(1)
}

/// Number of pieces into which work of `total` multiply-adds is worth cutting.
pub(crate) fn pieces(total: usize) -> usize {
    let threads = current_count();
    if threads == 1 || total < LEAST_SHARED {
        return 1;
    }
    (total / GOOD_PIECE).clamp(threads, threads * PIECES_PER_THREAD)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use kvasir_threads::Threads;

    use super::*;

    struct Task {
        cost: usize,
        done: usize,
    }

    impl Cost for Task {
        fn cost(&self) -> usize {
            self.cost
        }
    }

    #[test]
    fn every_task_runs_exactly_once() {
        let threads = Threads::new(NonZeroUsize::new(3).unwrap(), "test").unwrap();
        for costs in [vec![], vec![1], vec![0, 0, 0], vec![1 << 20; 9], vec![1 << 30, 1, 1, 1 << 22]] {
            let mut tasks: Vec<Task> = costs.into_iter().map(|cost| Task { cost, done: 0 }).collect();
            threads.within(|| share(&mut tasks, &|task| task.done += 1));
            assert!(tasks.iter().all(|task| task.done == 1));
        }
    }
}
