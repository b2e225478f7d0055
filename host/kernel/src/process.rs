//! A running process: started, watched, killed, reaped. Nothing here outlives it.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::compile::{EXIT_FOREIGN_ARTEFACT, EXIT_SETUP};
use crate::error::KernelError;
use crate::options::{KernelOptions, PROGRAM_VARIABLE};
use crate::program::find_program;
use crate::promptness::Promptness;
use crate::ring::{Answer, Lane, Request, Ring, SPIN};
use crate::shared_memory::memory_file;
use crate::start::start;
use crate::walls::Walls;

/// The program's file name.
const PROGRAM: &str = "kvasir-kernel";
/// What a process is asked for before it can answer.
const STARTING: &str = "starting";
/// Bytes of a process's standard error that are kept.
const KEPT_BYTES: usize = 2 << 10;
/// How long a process that closed its standard error may take to be gone before it is killed.
const END_GRACE: Duration = Duration::from_millis(500);
/// How often a process's use of the processor is looked at.
const WATCH: Duration = Duration::from_secs(1);
/// Processor time that a process may use beyond the calls it was asked for, and one part in ten of its life on top.
const IDLE_ALLOWANCE: Duration = Duration::from_secs(20);
/// Clock ticks in a second, as /proc counts them.
const TICKS_PER_SECOND: u64 = 100;

/// The program to start.
pub(crate) fn program(options: &KernelOptions) -> Result<PathBuf, KernelError> {
    options.program.clone().map_or_else(
        || find_program(PROGRAM, PROGRAM_VARIABLE).map_err(|beside| KernelError::NoProgram { beside }),
        Ok,
    )
}

/// A child, watched by a thread of its own that also started it, since it ends with that thread.
#[derive(Debug)]
pub(crate) struct Watched {
    child: Mutex<Child>,
    id: u32,
    stderr: Mutex<Vec<u8>>,
    status: OnceLock<Option<ExitStatus>>,
    ended: AtomicBool,
}

impl Watched {
    /// Starts `program word` with two descriptors. `on_end` runs once it is gone.
    pub fn start(
        program: &Path,
        word: &'static str,
        handed: [OwnedFd; 2],
        on_end: impl FnOnce() + Send + 'static,
        idle: impl Fn(u32) -> bool + Send + 'static,
    ) -> io::Result<Arc<Watched>> {
        let (tell, told) = mpsc::sync_channel(1);
        let program = program.to_owned();
        std::thread::Builder::new().name("watch a kernel".to_owned()).spawn(move || {
            let started = start(&program, word, [handed[0].as_fd(), handed[1].as_fd()]);
            drop(handed);
            match started {
                Ok(mut child) => {
                    let errors = child.stderr.take();
                    let watched = Arc::new(Watched {
                        id: child.id(),
                        child: Mutex::new(child),
                        stderr: Mutex::default(),
                        status: OnceLock::new(),
                        ended: AtomicBool::new(false),
                    });
                    if tell.send(Ok(Arc::clone(&watched))).is_err() {
                        watched.kill();
                    }
                    watched.watch(errors, idle);
                    on_end();
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        })?;
        told.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether it is gone.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// SIGKILL.
    pub fn kill(&self) {
        // Fails only where it is gone already; the thread that watches reaps it.
        let _ = lock(&self.child).kill();
    }

    /// How it ended; waits for the end no longer than `patience`.
    pub fn status(&self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        while !self.has_ended() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.status.get().copied().flatten()
    }

    /// The last of its standard error, on one line.
    pub fn last_words(&self) -> String {
        let text = lock(&self.stderr);
        let text = String::from_utf8_lossy(&text).trim().replace('\n', " | ");
        text.chars().filter(|c| !c.is_control()).collect()
    }

    fn watch(&self, errors: Option<ChildStderr>, idle: impl Fn(u32) -> bool) {
        if let Some(mut errors) = errors {
            let mut piece = [0; 512];
            let mut looked = Instant::now();
            loop {
                if readable(&errors, WATCH) {
                    match errors.read(&mut piece) {
                        Ok(0) | Err(_) => break,
                        Ok(length) => self.keep(&piece[..length]),
                    }
                }
                if looked.elapsed() >= WATCH {
                    looked = Instant::now();
                    if !idle(self.id) {
                        tracing::warn!(
                            process = self.id,
                            "a kernel's process computes unasked and is killed"
                        );
                        self.kill();
                    }
                }
            }
        }
        // It closes its standard error when it ends, or it is about to be ended.
        let until = Instant::now() + END_GRACE;
        let status = loop {
            match lock(&self.child).try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) => {}
                Err(_) => break None,
            }
            if Instant::now() > until {
                self.kill();
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let _ = self.status.set(status);
        self.ended.store(true, Ordering::Release);
    }

    fn keep(&self, piece: &[u8]) {
        tracing::debug!(process = self.id, text = %String::from_utf8_lossy(piece), "from a kernel's process");
        let mut kept = lock(&self.stderr);
        kept.extend_from_slice(piece);
        let beyond = kept.len().saturating_sub(KEPT_BYTES);
        kept.drain(..beyond);
    }
}

/// Words for an exit status.
pub(crate) fn told(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => format!("exit status {code}"),
        Some((None, Some(signal))) => format!("signal {signal}"),
        _ => "no status".to_owned(),
    }
}

/// Whether there is something to read, or the other end has closed, within `limit`.
fn readable(errors: &ChildStderr, limit: Duration) -> bool {
    crate::start::readable(errors.as_fd(), limit)
}

/// A process that runs a kernel.
#[derive(Debug)]
pub(crate) struct Process {
    watched: Arc<Watched>,
    ring: Arc<Ring>,
    file: OwnedFd,
    walls: Walls,
    /// Requests that each lane was given so far.
    lanes: Vec<Mutex<u32>>,
    /// Nanoseconds in which requests were under way, all lanes together.
    busy: Arc<AtomicU64>,
    failed: Mutex<Option<KernelError>>,
    counted: AtomicBool,
    /// Whether another processor computes while one watches.
    has_company: bool,
    /// How soon requests of few rows are answered.
    promptness: Promptness,
}

impl Process {
    /// Starts the program on `artefact` and waits until it is ready.
    pub fn start(
        options: &KernelOptions,
        artefact: OwnedFd,
        lanes: usize,
        memory_bytes: u64,
    ) -> Result<Process, KernelError> {
        let program = program(options)?;
        let failed =
            |error: io::Error| KernelError::Start { program: program.clone(), reason: error.to_string() };
        let lane_bytes = Ring::lane_bytes_for(lanes);
        let file = memory_file(Ring::length(lanes, lane_bytes)).map_err(failed)?;
        let ring = Arc::new(Ring::create(file.as_fd(), lanes, lane_bytes, memory_bytes).map_err(failed)?);
        let handed = [file.try_clone().map_err(failed)?, artefact];
        let busy = Arc::new(AtomicU64::new(0));
        let (theirs, used, begun) = (Arc::clone(&ring), Arc::clone(&busy), Instant::now());
        let watched = Watched::start(
            &program,
            "serve",
            handed,
            move || theirs.wake_host(),
            move |process| {
                let granted = Duration::from_nanos(used.load(Ordering::Relaxed));
                processor_time(process)
                    .is_none_or(|spent| spent <= granted + IDLE_ALLOWANCE + begun.elapsed() / 10)
            },
        )
        .map_err(failed)?;
        let mut process = Process {
            watched,
            ring,
            file,
            walls: Walls::default(),
            lanes: (0..lanes).map(|_| Mutex::new(0)).collect(),
            busy,
            failed: Mutex::new(None),
            counted: AtomicBool::new(false),
            has_company: std::thread::available_parallelism().is_ok_and(|count| count.get() > 1),
            promptness: Promptness::default(),
        };
        // From here on dropping the process kills it.
        let until = Instant::now() + options.start;
        process.walls = loop {
            if let Some(walls) = process.ring.ready() {
                break walls;
            }
            if process.watched.has_ended() {
                return Err(process.crashed(STARTING));
            }
            if Instant::now() > until {
                return Err(process.end(KernelError::Killed { request: STARTING, deadline: options.start }));
            }
            process.ring.wait_ready(Duration::from_millis(20));
        };
        Ok(process)
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.watched.id()
    }

    /// The walls around it.
    pub fn walls(&self) -> Walls {
        self.walls
    }

    /// Whether it can still answer.
    pub fn is_alive(&self) -> bool {
        !self.watched.has_ended() && lock(&self.failed).is_none()
    }

    /// Whether its end has not been counted as a failure yet; it has from now on.
    pub fn first_to_count_its_end(&self) -> bool {
        !self.is_alive() && !self.counted.swap(true, Ordering::Relaxed)
    }

    /// Bytes of data in a lane.
    pub fn lane_bytes(&self) -> usize {
        self.ring.lane_bytes()
    }

    /// How long the answer to few rows is watched for.
    pub fn spin(&self) -> Duration {
        if self.has_company { self.promptness.spin() } else { SPIN }
    }

    /// So long it took until few rows were answered.
    pub fn took(&self, time: Duration) {
        self.promptness.took(time);
    }

    /// Gives one lane to the caller alone.
    pub fn lane(&self, number: usize) -> Result<LaneGuard<'_>, KernelError> {
        let Some(asked) = self.lanes.get(number) else {
            let reason = format!("there are {} lanes", self.lanes.len());
            return Err(KernelError::Refused { request: "lane", reason });
        };
        Ok(LaneGuard { process: self, lane: self.ring.lane(number), asked: lock(asked), under_way: false })
    }

    fn crashed(&self, request: &'static str) -> KernelError {
        let status = self.watched.status(2 * END_GRACE);
        let error = match status.and_then(|status| status.code()) {
            Some(EXIT_FOREIGN_ARTEFACT) => KernelError::ForeignArtefact,
            // Afterwards code of the kernel runs in it, whose exit codes mean nothing.
            Some(EXIT_SETUP) if request == STARTING => {
                KernelError::Setup { reason: self.watched.last_words() }
            }
            _ => KernelError::Crashed { request, status: told(status), stderr: self.watched.last_words() },
        };
        self.end(error)
    }

    /// Kills what may still run, and remembers why.
    fn end(&self, error: KernelError) -> KernelError {
        self.watched.kill();
        let mut failed = lock(&self.failed);
        let first = failed.get_or_insert_with(|| {
            tracing::warn!(process = self.watched.id(), %error, "a kernel's process ended");
            error
        });
        first.clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.watched.kill();
    }
}

/// A lane, for one request after the other.
pub(crate) struct LaneGuard<'a> {
    process: &'a Process,
    lane: Lane<'a>,
    asked: MutexGuard<'a, u32>,
    /// Whether the answer to a request has not come yet.
    under_way: bool,
}

impl<'a> LaneGuard<'a> {
    /// The lane's memory.
    pub fn memory(&self) -> Lane<'a> {
        self.lane
    }

    /// Gives pages that a load has touched back to the system.
    pub fn give_back(&self, used: usize) {
        self.lane.give_back(self.process.file.as_fd(), used);
    }

    /// Asks and waits for the answer; at the deadline the process is killed.
    pub fn ask(
        &mut self,
        name: &'static str,
        request: &Request,
        limit: Duration,
    ) -> Result<Answer, KernelError> {
        let begun = self.begin(request)?;
        self.finish(name, begun, limit, 0, SPIN)
    }

    /// Asks, and says when. Nothing else is done with the lane before [`LaneGuard::finish`]; a guard that is dropped before it ends the
    /// process.
    pub fn begin(&mut self, request: &Request) -> Result<Instant, KernelError> {
        if let Some(error) = lock(&self.process.failed).clone() {
            return Err(error);
        }
        let begun = Instant::now();
        *self.asked = self.asked.wrapping_add(1);
        self.lane.ask(request, *self.asked);
        self.under_way = true;
        Ok(begun)
    }

    /// Waits for the answer to what was asked when it had `begun`; at the deadline the process is killed. Each of `jobs` has
    /// `limit` for itself: as many times at the most the deadline moves on, when the process says that one is done. For the time `spin`
    /// this thread does not sleep.
    pub fn finish(
        &mut self,
        name: &'static str,
        begun: Instant,
        limit: Duration,
        jobs: u32,
        spin: Duration,
    ) -> Result<Answer, KernelError> {
        let (process, lane) = (self.process, self.lane);
        let (mut done, mut since) = (0, begun);
        let goes_on = || {
            let told = lane.progress().min(jobs);
            if told > done {
                (done, since) = (told, Instant::now());
            }
            !process.watched.has_ended() && since.elapsed() < limit
        };
        let answer = lane.answer(*self.asked, spin, goes_on);
        self.under_way = false;
        process.busy.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        match answer {
            Some(Some(Answer::Refused)) => Err(self.broken(name, "it refuses a request of this program")),
            Some(Some(answer)) => Ok(answer),
            Some(None) => Err(self.broken(name, "an answer of an unknown kind")),
            None if process.watched.has_ended() => Err(process.crashed(name)),
            None => Err(process.end(KernelError::Killed { request: name, deadline: limit })),
        }
    }

    /// Ends the process, which does not keep to the protocol.
    pub fn broken(&self, request: &'static str, reason: &str) -> KernelError {
        self.process.end(KernelError::BrokenProtocol { request, reason: reason.to_owned() })
    }
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        // Whoever had the lane next would write where the process still reads, and could take what it still writes for an answer.
        if self.under_way {
            let reason = "nobody waited for the answer to the one before".to_owned();
            self.process.end(KernelError::Refused { request: "a request", reason });
        }
    }
}

/// Processor time that a process has used, all threads together; `None` where the system does not say.
fn processor_time(process: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name stands in brackets and may hold anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_time_of_a_process_is_known() {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        let spent = processor_time(std::process::id()).unwrap();
        assert!(spent > Duration::ZERO && spent < Duration::from_secs(3600), "{spent:?}");
        assert_eq!(processor_time(u32::MAX), None);
    }
}
