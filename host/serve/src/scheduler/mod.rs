//! Many texts at once, on one thread that computes them in waves.
//!
//! [`Scheduler::submit`] puts a text into a bounded queue and returns at once; a [`Reader`] is told what becomes of it.
//! Each text has the tokens and the bits that it would have alone, whoever is computed beside it. A text that is not
//! wanted any more, or that cannot go on, ends by itself and frees what it held.

mod answers;
mod figures;
mod line;
mod memory;
mod options;
mod policy;
mod text;
mod waves;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvasir_backbone::{Backbone, BackboneError, Experts};
use thiserror::Error;

use memory::Memory;
use text::Text;
use waves::{LayerWaits, Turn, Waves};

pub(crate) use policy::as_good;

pub use figures::{Figures, WAIT_BUCKETS, Waits};
pub use options::{SchedulerOptions, WaveOptions};
pub use text::{End, Reader, Request};

/// How long the thread waits for experts before it looks who came and who left.
const WAIT: Duration = Duration::from_millis(2);

/// Bounds of what a client is told to wait before it comes again.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Why a text is not taken. Nothing of it is kept.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The caller's fault: an empty prompt, one that the context does not hold, options out of range.
    #[error(transparent)]
    Invalid(BackboneError),
    /// The text could never be held in memory, whatever else is computed.
    #[error("a text of up to {tokens} tokens takes {needed} bytes of memory, and there are {limit}")]
    NoMemory {
        /// Tokens of prompt and text.
        tokens: usize,
        /// Bytes that it takes at most, its part of a pass included.
        needed: u64,
        /// Bytes that there are for texts and passes.
        limit: u64,
    },
    /// As many texts wait as may.
    #[error("{waiting} texts wait already, and no more than {limit} may; come back in {retry_after:?}")]
    QueueFull {
        /// Texts that wait.
        waiting: usize,
        /// Texts that may wait.
        limit: usize,
        /// When a text is likely to be over.
        retry_after: Duration,
    },
    /// No text is taken any more.
    #[error("the scheduler is stopping")]
    Stopping,
    /// The thread that computes is gone.
    #[error("the scheduler has broken down")]
    Broken,
}

/// Writes texts on a thread of its own. Dropping it gives up the texts that are not over; [`Scheduler::finish`] does not.
pub struct Scheduler {
    shared: Arc<Shared>,
    backbone: Arc<Backbone>,
    /// With nothing taken: what a text needs, and what there is.
    memory: Memory,
    options: SchedulerOptions,
    layer_waits: Arc<LayerWaits>,
    thread: Option<JoinHandle<()>>,
}

/// What callers and the thread share.
#[derive(Default)]
struct Shared {
    intake: Mutex<Intake>,
    changed: Condvar,
}

#[derive(Default)]
struct Intake {
    waiting: VecDeque<Text>,
    state: State,
    /// As of the thread's latest turn.
    figures: Figures,
    /// Mean time between two ends of texts, of late.
    pace: Duration,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// No new texts; those that were taken are written.
    Stopping,
    /// Everything is given up.
    GivenUp,
    /// The thread is gone.
    Gone,
}

impl Scheduler {
    /// Starts the thread. `experts` are its alone.
    ///
    /// # Errors
    /// Where the operating system refuses a thread.
    pub fn start<E: Experts + 'static>(
        backbone: Arc<Backbone>,
        experts: E,
        options: SchedulerOptions,
    ) -> std::io::Result<Scheduler> {
        let options = options.bounded();
        let shared = Arc::new(Shared::default());
        let waves = Waves::new(Arc::clone(&backbone), experts, options.waves);
        let layer_waits = waves.layer_waits();
        let thread = {
            let shared = Arc::clone(&shared);
            let work = move || run(&shared, waves);
            std::thread::Builder::new().name("kvasir-waves".to_owned()).spawn(work)?
        };
        let memory = Memory::new(&backbone, options.waves.memory, options.waves.prefill_rows);
        Ok(Scheduler { shared, backbone, memory, options, layer_waits, thread: Some(thread) })
    }

    /// Takes a text into the queue; `reader` is told what becomes of it.
    ///
    /// # Errors
    /// Why it is not taken; the reader is dropped then.
    pub fn submit(&self, request: Request, reader: Box<dyn Reader>) -> Result<(), Refused> {
        let sampler = request.check(&self.backbone).map_err(Refused::Invalid)?;
        let text = Text::new(&self.backbone, request, sampler, reader);
        let needed = self.memory.needed(text.limit());
        if needed > self.memory.budget() {
            return Err(Refused::NoMemory { tokens: text.limit(), needed, limit: self.memory.budget() });
        }
        let mut intake = self.shared.intake();
        match intake.state {
            State::Open => {}
            State::Stopping | State::GivenUp => return Err(Refused::Stopping),
            State::Gone => return Err(Refused::Broken),
        }
        // Those that will be let in at the thread's next turn do not wait for anybody.
        let (waiting, limit) = (intake.waiting.len(), self.options.queue);
        let open = self.options.waves.texts.saturating_sub(intake.figures.running);
        if waiting >= open.saturating_add(limit) {
            let (least, most) = RETRY_AFTER;
            return Err(Refused::QueueFull { waiting, limit, retry_after: intake.pace.clamp(least, most) });
        }
        intake.waiting.push_back(text);
        drop(intake);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Its counters, and its state as of the latest turn.
    pub fn figures(&self) -> Figures {
        let intake = self.shared.intake();
        Figures { waiting: intake.waiting.len(), ..intake.figures }
    }

    /// How long the calls of each layer were waited for, by layer.
    pub fn layer_waits(&self) -> Vec<Waits> {
        self.layer_waits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tokens that prompt and text may have together.
    pub fn context_limit(&self) -> usize {
        self.backbone.context_limit()
    }

    /// Whether texts are taken.
    pub fn is_open(&self) -> bool {
        self.shared.intake().state == State::Open
    }

    /// Takes no new texts from now on; those that were taken are written to their end.
    pub fn stop(&self) {
        self.shared.change(|state| {
            if *state == State::Open {
                *state = State::Stopping
            }
        });
    }

    /// As [`Scheduler::stop`], and waits for the end of all. Gives the last figures.
    pub fn finish(mut self) -> Figures {
        self.stop();
        self.join();
        self.figures()
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // What it panicked with was printed; that it is gone is in the state.
            let _ = thread.join();
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.shared.change(|state| {
            if *state != State::Gone {
                *state = State::GivenUp
            }
        });
        self.join();
    }
}

impl Shared {
    fn intake(&self) -> MutexGuard<'_, Intake> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.intake().state);
        self.changed.notify_all();
    }

    /// Lets texts in while there is room, in the order in which they came, and tells what was done since. False when
    /// there is nothing more to do.
    fn exchange<E: Experts>(&self, waves: &mut Waves<E>, pace: &mut Pace) -> bool {
        let mut unwanted = Vec::new();
        let mut intake = self.intake();
        while let Some(at) = intake.waiting.iter().position(|text| !text.is_wanted())
            && let Some(text) = intake.waiting.remove(at)
        {
            unwanted.push(text);
        }
        while intake.waiting.front().is_some_and(|text| waves.has_room(text))
            && let Some(text) = intake.waiting.pop_front()
        {
            waves.join(text);
        }
        waves.count_cancelled(unwanted.len());
        intake.figures = waves.figures();
        intake.pace = pace.look(intake.figures.finished);
        let goes_on = match intake.state {
            State::Open => true,
            State::Stopping => waves.texts() > 0 || !intake.waiting.is_empty(),
            State::GivenUp | State::Gone => false,
        };
        drop(intake);
        // Readers are somebody else's code: not under the lock.
        unwanted.into_iter().for_each(Text::cancel);
        goes_on
    }

    /// Tells how things stand now that the last text is gone, and waits until one comes or there is an end.
    fn idle(&self, figures: Figures) {
        let mut intake = self.intake();
        intake.figures = figures;
        let nothing = |intake: &mut Intake| intake.waiting.is_empty() && intake.state == State::Open;
        drop(self.changed.wait_while(intake, nothing).unwrap_or_else(PoisonError::into_inner));
    }
}

/// How often texts end.
struct Pace {
    seen: u64,
    at: Instant,
    mean: Duration,
}

impl Pace {
    fn new() -> Pace {
        Pace { seen: 0, at: Instant::now(), mean: Duration::ZERO }
    }

    /// The mean time between two ends, `finished` texts having ended so far.
    fn look(&mut self, finished: u64) -> Duration {
        let ended = u32::try_from(finished - self.seen).unwrap_or(u32::MAX);
        if ended > 0 {
            let each = self.at.elapsed() / ended;
            self.mean = if self.seen == 0 { each } else { (self.mean * 7 + each) / 8 };
            (self.seen, self.at) = (finished, Instant::now());
        }
        self.mean
    }
}

/// Marks the thread as gone, however it goes, and gives up what is left.
struct Goes<'a>(&'a Shared);

impl Drop for Goes<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut intake = self.0.intake();
            intake.state = State::Gone;
            std::mem::take(&mut intake.waiting)
        };
        drop(waiting);
    }
}

fn run<E: Experts>(shared: &Shared, mut waves: Waves<E>) {
    let _goes = Goes(shared);
    let mut pace = Pace::new();
    while shared.exchange(&mut waves, &mut pace) {
        if waves.turn(Instant::now() + WAIT) == Turn::Idle {
            shared.idle(waves.figures());
        }
    }
}
