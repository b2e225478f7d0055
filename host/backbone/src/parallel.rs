//! Sharing work over the threads of the pool that the forward pass runs in.
//!
//! Only outputs are shared out, never a sum, so the number of threads changes no bit. A fork costs microseconds when
//! the other thread sleeps, so small work stays on the thread that has it.

/// Work, in multiply-adds, below which nothing is shared: about 10 microseconds of one thread at one row (25 G
/// multiply-adds/s). Measured on two cores of a virtual machine, a fork costs 1 microsecond while the other thread
/// still looks for work and 10 to 15 once it sleeps, when the first thread mostly does all of it by itself.
pub(crate) const LEAST_SHARED: usize = 256 * 1024;

/// Pieces per thread: more than one, so that a thread that wakes late finds something left and one that is early is
/// not idle.
pub(crate) const PIECES_PER_THREAD: usize = 3;

/// Least work of one piece, in multiply-adds: below it, handing over costs more than doing.
pub(crate) const LEAST_PIECE: usize = 64 * 1024;

/// Something with a cost in multiply-adds.
pub(crate) trait Cost {
    /// Multiply-adds, roughly.
    fn cost(&self) -> usize;
}

/// Runs `work` once on every task, on several threads where that pays.
pub(crate) fn share<T: Send + Cost>(tasks: &mut [T], work: &(impl Fn(&mut T) + Sync)) {
    let total: usize = tasks.iter().map(Cost::cost).sum();
    if tasks.len() < 2 || total < LEAST_SHARED || rayon::current_num_threads() == 1 {
        tasks.iter_mut().for_each(work);
        return;
    }
    let least = (total / (rayon::current_num_threads() * PIECES_PER_THREAD)).max(LEAST_PIECE);
    divide(tasks, total, least, work);
}

/// Number of pieces into which work of `total` multiply-adds is worth cutting.
pub(crate) fn pieces(total: usize) -> usize {
    let threads = rayon::current_num_threads();
    if threads == 1 || total < LEAST_SHARED {
        return 1;
    }
    (total / LEAST_PIECE).clamp(1, threads * PIECES_PER_THREAD)
}

fn divide<T: Send + Cost>(tasks: &mut [T], total: usize, least: usize, work: &(impl Fn(&mut T) + Sync)) {
    if tasks.len() < 2 || total < 2 * least {
        tasks.iter_mut().for_each(work);
        return;
    }
    let mut left_cost = 0;
    let mut at = 0;
    while at < tasks.len() - 1 && (at == 0 || left_cost + tasks[at].cost() / 2 <= total / 2) {
        left_cost += tasks[at].cost();
        at += 1;
    }
    let (left, right) = tasks.split_at_mut(at);
    rayon::join(|| divide(left, left_cost, least, work), || divide(right, total - left_cost, least, work));
}

#[cfg(test)]
mod tests {
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
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for costs in [vec![], vec![1], vec![0, 0, 0], vec![1 << 20; 9], vec![1 << 30, 1, 1, 1 << 22]] {
            let mut tasks: Vec<Task> = costs.into_iter().map(|cost| Task { cost, done: 0 }).collect();
            pool.install(|| share(&mut tasks, &|task| task.done += 1));
            assert!(tasks.iter().all(|task| task.done == 1));
        }
    }
}
