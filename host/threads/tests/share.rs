//! What is promised of shared work: every task once, on any number of threads, whatever else goes on.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kvasir_threads::{Threads, current_count, share};

fn threads(count: usize) -> Threads {
    Threads::new(NonZeroUsize::new(count).unwrap(), "test").unwrap()
}

fn work_for(microseconds: u64) {
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_micros(microseconds) {
        std::hint::spin_loop();
    }
}

#[test]
fn every_task_runs_exactly_once() {
    for count in 1..5 {
        let threads = threads(count);
        threads.within(|| {
            for length in [0, 1, 2, 3, 7, 100] {
                let mut tasks = vec![0usize; length];
                for _ in 0..200 {
                    share(&mut tasks, |task| *task += 1);
                }
                assert!(tasks.iter().all(|&task| task == 200), "{count} threads, {length} tasks");
            }
        });
    }
}

#[test]
fn helpers_that_slept_wake_again() {
    let threads = threads(3);
    threads.within(|| {
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(2));
            let mut tasks = vec![0usize; 6];
            share(&mut tasks, |task| {
                work_for(50);
                *task += 1;
            });
            assert_eq!(tasks, [1; 6]);
        }
    });
}

#[test]
fn a_leader_waits_for_the_last_task_however_long_it_takes() {
    let threads = threads(2);
    threads.within(|| {
        let mut tasks = [1, 10, 1];
        share(&mut tasks, |task| {
            std::thread::sleep(Duration::from_millis(*task));
            *task = 0;
        });
        assert_eq!(tasks, [0; 3]);
    });
}

#[test]
fn work_inside_work_runs_where_it_stands() {
    let threads = threads(3);
    threads.within(|| {
        let mut tasks = vec![vec![0usize; 9]; 12];
        share(&mut tasks, |inner| share(inner, |task| *task += 1));
        assert!(tasks.iter().flatten().all(|&task| task == 1));
    });
}

#[test]
fn several_threads_may_share_at_once() {
    let threads = threads(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                threads.within(|| {
                    for _ in 0..500 {
                        let mut tasks = [0usize; 5];
                        share(&mut tasks, |task| *task += 1);
                        assert_eq!(tasks, [1; 5]);
                    }
                });
            });
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_and_harms_nothing() {
    let threads = threads(3);
    threads.within(|| {
        for broken in 0..8 {
            let ran = AtomicUsize::new(0);
            let mut tasks: Vec<usize> = (0..8).collect();
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                share(&mut tasks, |task| {
                    assert_ne!(*task, broken, "task {broken} breaks");
                    ran.fetch_add(1, Ordering::Relaxed);
                });
            }));
            let text = *outcome.unwrap_err().downcast::<String>().unwrap();
            assert!(text.contains(&format!("task {broken} breaks")), "{text}");
            assert!(ran.into_inner() < 8);
            let mut tasks = [0usize; 8];
            share(&mut tasks, |task| *task += 1);
            assert_eq!(tasks, [1; 8]);
        }
    });
}

#[test]
fn the_threads_entered_are_known_and_left_again() {
    let (two, three) = (threads(2), threads(3));
    assert_eq!(current_count(), 1);
    two.within(|| {
        assert_eq!(current_count(), 2);
        three.within(|| assert_eq!(current_count(), 3));
        assert_eq!(current_count(), 2);
        let _ = catch_unwind(AssertUnwindSafe(|| three.within(|| panic!("on purpose"))));
        assert_eq!(current_count(), 2);
    });
    assert_eq!(current_count(), 1);
}
