//! One section at a time: a leader publishes tasks in units, everybody claims units, the leader waits until all are done.
//!
//! The board is one word: the section's number, its units, and how many of them are claimed. A claim compares the whole
//! word, so it succeeds in the section that was read or not at all; and a section whose unit is claimed and not yet done
//! is still there, because its leader waits. So nobody follows a pointer into a section that is over.
//!
//! Between distant cores a cache line takes a quarter of a microsecond, which is what a small section costs: everything
//! that is read together stands in one line, and nothing is reset that can go on counting.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long whoever waits spins before it lets other programs have the processor between looks.
const SPIN: Duration = Duration::from_micros(50);
/// How long a helper without work stays awake in all. Waking one that sleeps takes tens of microseconds.
const AWAKE: Duration = Duration::from_micros(200);
/// How long the leader waits for a long task between looks, once it has waited for [`LONG`].
const NAP: Duration = Duration::from_micros(50);
/// From then on the leader naps between looks.
const LONG: Duration = Duration::from_millis(1);
/// Looks between two looks at the clock.
const LOOKS: u32 = 64;
/// Most units per thread: enough to even out tasks of unequal length.
const UNITS_PER_THREAD: usize = 16;
/// Most units of a section.
const MAX_UNITS: usize = u16::MAX as usize;

/// What one thread writes and others read, apart from everything else: a cache line and the one fetched with it.
#[repr(align(128))]
struct Apart<T>(T);

pub(crate) struct Shared {
    threads: usize,
    board: Apart<Board>,
    /// Units that helpers have done, in all sections.
    done: Apart<AtomicU64>,
    leader: Apart<Leader>,
    sleepers: Apart<AtomicUsize>,
    bed: Mutex<()>,
    wake: Condvar,
    /// How often helpers were roused.
    roused: AtomicU64,
    ended: AtomicBool,
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

struct Board {
    word: AtomicU64,
    /// Written by the leader before it publishes, read by those who hold a claim.
    section: UnsafeCell<Section>,
}

struct Leader {
    /// Whether a thread leads; it alone touches the rest.
    there: AtomicBool,
    number: UnsafeCell<u32>,
    done_before: UnsafeCell<u64>,
}

/// What is run: all numbers below `count`, in so many units.
#[derive(Clone, Copy)]
struct Section {
    count: usize,
    units: usize,
    /// Points to a closure of the leader's, who waits for every claimed unit.
    run: *const (dyn Fn(Range<usize>) + Sync),
}

// SAFETY: the cells are the only fields that are not `Sync` by themselves. `Leader`'s are used by the thread that has set
// `there`; `section` is written by that thread while no unit is claimed and not done, and read by holders of a claim, whose
// acquiring exchange of `word` follows the leader's releasing store. The closure it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is followed only while its closure lives, on whatever thread.
unsafe impl Send for Shared {}

/// A slice whose parts are handed out.
struct Tasks<T>(*mut T);
// SAFETY: `Shared::share` hands every element out once, so that it is used by one thread; `T: Send` allows that.
unsafe impl<T: Send> Sync for Tasks<T> {}

impl<T> Tasks<T> {
    /// # Safety
    /// The range lies in the slice, which is borrowed for as long, and nobody else has any of it.
    #[allow(clippy::mut_from_ref, reason = "every element is handed out once")]
    unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(range.start), range.len()) }
    }
}

impl Section {
    fn range(&self, unit: usize) -> Range<usize> {
        unit * self.count / self.units..(unit + 1) * self.count / self.units
    }
}

impl Shared {
    pub(crate) fn new(threads: usize) -> Shared {
        let section = Section { count: 0, units: 0, run: &|_| {} };
        Shared {
            threads,
            board: Apart(Board { word: AtomicU64::new(0), section: UnsafeCell::new(section) }),
            done: Apart(AtomicU64::new(0)),
            leader: Apart(Leader {
                there: AtomicBool::new(false),
                number: UnsafeCell::new(0),
                done_before: UnsafeCell::new(0),
            }),
            sleepers: Apart(AtomicUsize::new(0)),
            bed: Mutex::new(()),
            wake: Condvar::new(),
            roused: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work` on every task, with the helpers unless somebody has them.
    pub(crate) fn share<T: Send>(&self, tasks: &mut [T], work: &(impl Fn(&mut T) + Sync)) {
        if self.leader.0.there.swap(true, Ordering::Acquire) {
            return tasks.iter_mut().for_each(work);
        }
        let count = tasks.len();
        let tasks = Tasks(tasks.as_mut_ptr());
        // SAFETY: the ranges of the units are disjoint and lie in the slice, each unit is claimed once, and the borrow
        // of the slice lasts until `lead` has returned.
        let run = |range: Range<usize>| unsafe { tasks.part(range) }.iter_mut().for_each(work);
        let panic = self.lead(count, &run);
        self.leader.0.there.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Publishes a section, works in it, and waits for its end. Returns what a task panicked with.
    fn lead(&self, count: usize, run: &(dyn Fn(Range<usize>) + Sync)) -> Option<Box<dyn Any + Send>> {
        let units = count.min(UNITS_PER_THREAD.saturating_mul(self.threads)).clamp(1, MAX_UNITS);
        // SAFETY: only the lifetime is changed. The pointer is followed by holders of claims alone, and this function
        // returns when every unit is done.
        let run = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(Range<usize>) + Sync + '_),
                *const (dyn Fn(Range<usize>) + Sync + 'static),
            >(run)
        };
        let section = Section { count, units, run };
        // SAFETY: this thread has set `there`; in the section before, every unit was claimed and done.
        let (number, done_before) = unsafe {
            *self.board.0.section.get() = section;
            (&mut *self.leader.0.number.get(), &mut *self.leader.0.done_before.get())
        };
        *number = number.wrapping_add(1);
        // The first unit is the leader's own.
        self.board.0.word.store(word(*number, units, 1), Ordering::Release);
        // A helper that lies down at this moment is missed, and sleeps through the section: it will be done without.
        if self.sleepers.0.load(Ordering::Relaxed) > 0 {
            drop(self.lock_bed());
            self.wake.notify_all();
        }
        let mine = self.work(section, 0);
        *done_before = done_before.wrapping_add((units - mine) as u64);
        let mut wait = Wait::default();
        while self.done.0.load(Ordering::Acquire) != *done_before {
            if wait.look() > LONG {
                std::thread::sleep(NAP);
            }
        }
        if self.panicked.swap(false, Ordering::Relaxed) {
            return self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        None
    }

    /// Does the claimed unit and then whatever can be claimed; returns how many units it was.
    fn work(&self, section: Section, mut unit: usize) -> usize {
        // SAFETY: the caller holds a claim, and after it this loop does, so the leader waits and the closure lives.
        let run = unsafe { &*section.run };
        let mut units = 0;
        loop {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(section.range(unit)))) {
                let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                match &mut *first {
                    // Dropping what a task panicked with may panic again, and nothing may leave this loop before its units are done.
                    Some(_) => std::mem::forget(panic),
                    none => *none = Some(panic),
                }
                drop(first);
                self.panicked.store(true, Ordering::Relaxed);
            }
            units += 1;
            match self.claim() {
                // While a unit is claimed and not done there is no other section.
                Some(next) => unit = next,
                None => return units,
            }
        }
    }

    /// The number of a unit that nobody else has.
    fn claim(&self) -> Option<usize> {
        let mut found = self.board.0.word.load(Ordering::Acquire);
        while is_open(found) {
            match self.board.0.word.compare_exchange_weak(
                found,
                found + 1,
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(usize::from(found as u16)),
                Err(now) => found = now,
            }
        }
        None
    }

    /// A helper's life.
    pub(crate) fn help(&self) {
        let mut wait = Wait::default();
        let mut roused = self.roused.load(Ordering::Relaxed);
        while !self.ended.load(Ordering::Relaxed) {
            if let Some(unit) = self.claim() {
                // SAFETY: the claim was made after the section was published, and keeps it.
                let section = unsafe { *self.board.0.section.get() };
                let units = self.work(section, unit);
                self.done.0.fetch_add(units as u64, Ordering::Release);
                wait = Wait::default();
            } else if wait.look() > AWAKE {
                if self.roused.load(Ordering::Relaxed) == roused {
                    self.sleep(roused);
                }
                roused = self.roused.load(Ordering::Relaxed);
                wait = Wait::default();
            }
        }
    }

    /// Sleeps until somebody shares work, or rouses the helpers again after `roused` times, or the end. What woke this thread may
    /// be done by now, since to wake takes longer than a small section; but the next one is likely to come at once, so it does not
    /// sleep again before it has looked for that.
    fn sleep(&self, roused: u64) {
        let bed = self.lock_bed();
        // Before it looks: either it sees what is new, or whoever brings that sees it here and has to wait for the bed.
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        if !self.ended.load(Ordering::SeqCst)
            && !is_open(self.board.0.word.load(Ordering::SeqCst))
            && self.roused.load(Ordering::SeqCst) == roused
        {
            drop(self.wake.wait(bed).unwrap_or_else(PoisonError::into_inner));
        }
        self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes helpers that sleep; those that do not stay awake for as long again.
    pub(crate) fn rouse(&self) {
        self.roused.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.0.load(Ordering::SeqCst) > 0 {
            drop(self.lock_bed());
            self.wake.notify_all();
        }
    }

    /// Sends the helpers home.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        drop(self.lock_bed());
        self.wake.notify_all();
    }

    fn lock_bed(&self) -> MutexGuard<'_, ()> {
        self.bed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn word(number: u32, units: usize, claimed: usize) -> u64 {
    u64::from(number) << 32 | (units as u64) << 16 | claimed as u64
}

/// Whether a unit is left to claim.
fn is_open(word: u64) -> bool {
    (word as u16) < (word >> 16) as u16
}

/// Somebody who looks again and again.
#[derive(Default)]
struct Wait {
    looks: u32,
    since: Option<Instant>,
    waited: Duration,
}

impl Wait {
    /// A moment between two looks; returns for how long this has gone on, roughly.
    fn look(&mut self) -> Duration {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS) || self.waited > SPIN {
            self.waited = self.since.get_or_insert_with(Instant::now).elapsed();
        }
        if self.waited > SPIN {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing here takes nearly as long.
    const HANG: Duration = Duration::from_secs(60);

    fn comes(mut is_so: impl FnMut() -> bool) -> bool {
        let begun = Instant::now();
        while !is_so() {
            if begun.elapsed() > HANG {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    #[test]
    fn who_is_roused_is_awake_without_work_and_sleeps_again() {
        let shared = Shared::new(2);
        let sleepers = || shared.sleepers.0.load(Ordering::SeqCst);
        let seen = std::thread::scope(|scope| {
            scope.spawn(|| shared.help());
            let asleep = comes(|| sleepers() == 1);
            let awake = comes(|| {
                shared.rouse();
                sleepers() == 0
            });
            let again = comes(|| sleepers() == 1);
            shared.end();
            [asleep, awake, again]
        });
        assert_eq!(seen, [true; 3], "asleep, awake, asleep again");
    }
}
