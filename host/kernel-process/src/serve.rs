//! Runs one compiled kernel: a thread for each lane of the shared memory, which answers one request after the other.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, FromRawFd};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvasir_kernel::jobs::jobs_of;
use kvasir_kernel::ring::{Answer, Lane, MAX_EXPERT_BYTES, MAX_REPORT_BYTES, Request, Ring};
use kvasir_kernel::start::{FIRST_DESCRIPTOR, SECOND_DESCRIPTOR};
use kvasir_sandbox::{
    CompiledKernel, Engine, ExpertHandle, ExpertShape, KernelInstance, KernelLimits, MAX_STACK_BYTES,
    MatrixShape, SandboxError, WeightFormat,
};

use crate::confine::{Limits, first, second};
use crate::leave::{EXIT_FOREIGN_ARTEFACT, EXIT_SETUP, end_on_panic, fail};

/// Stack of a lane's thread: what a kernel may use, and as much for the engine.
const STACK_BYTES: usize = 2 * MAX_STACK_BYTES + (1 << 20);

/// Serves until the host ends this process.
pub fn run() -> ! {
    end_on_panic();
    let setup = |reason: String| -> ! { fail(EXIT_SETUP, reason) };
    // SAFETY: the host hands these two over, and nothing else in this process owns them. Were they not open, every use would fail.
    let (shared, mut artefact) =
        unsafe { (File::from_raw_fd(FIRST_DESCRIPTOR), File::from_raw_fd(SECOND_DESCRIPTOR)) };
    let length = shared.metadata().map_or(0, |metadata| metadata.len() as usize);
    let ring = match Ring::open(shared.as_fd(), length) {
        Ok(ring) => Arc::new(ring),
        Err(error) => setup(format!("the shared memory: {error}")),
    };
    drop(shared);
    let data = Some(ring.data_limit()).filter(|limit| *limit > 0);
    let walls = first(&Limits { data, ..Limits::default() }).unwrap_or_else(|reason| setup(reason));
    let mut code = Vec::new();
    if let Err(error) = artefact.read_to_end(&mut code) {
        setup(format!("the compiled kernel cannot be read: {error}"));
    }
    drop(artefact);
    let engine = Engine::new().unwrap_or_else(|error| setup(error.to_string()));
    // SAFETY: the host hands over what its own compiler made, and authenticates what it kept. Were it not so, it would run in this
    // process, behind the walls that stand already.
    let kernel = unsafe { CompiledKernel::from_artefact(&engine, &code) };
    let kernel = match kernel {
        Ok(kernel) => kernel,
        Err(error) => fail(EXIT_FOREIGN_ARTEFACT, error),
    };
    drop(code);
    let started = Arc::new(Barrier::new(ring.lanes() + 1));
    let instances = Arc::new(Instances::default());
    for number in 0..ring.lanes() {
        let (ring, kernel, started) = (Arc::clone(&ring), kernel.clone(), Arc::clone(&started));
        let instances = Arc::clone(&instances);
        let serving = std::thread::Builder::new()
            .name(format!("lane {number}"))
            .stack_size(STACK_BYTES)
            .spawn(move || {
                started.wait();
                Serving::new(ring.lane(number), kernel, instances).run()
            });
        if let Err(error) = serving {
            setup(format!("no thread for lane {number}: {error}"));
        }
    }
    // A thread on its way would meet the second walls with its first calls, which they refuse.
    started.wait();
    if let Err(reason) = second() {
        setup(reason);
    }
    ring.set_ready(walls);
    loop {
        std::thread::park();
    }
}

/// All instances, whatever the lane that made them: a request for several experts may name any. The host asks for nothing of one
/// in two lanes at a time.
type Instances = Mutex<HashMap<u64, Arc<Mutex<Held>>>>;

/// One lane.
struct Serving<'a> {
    lane: Lane<'a>,
    kernel: CompiledKernel,
    instances: Arc<Instances>,
    /// An expert on its way in pieces.
    chunks: Vec<u8>,
}

struct Held {
    instance: KernelInstance,
    experts: HashMap<u64, ExpertHandle>,
}

/// Why there is no answer.
enum Failure {
    /// The host does not keep to the protocol.
    Protocol,
    /// The kernel failed; at which of several jobs.
    Kernel { error: SandboxError, fatal: bool, job: u64 },
}

impl Failure {
    /// At this one of several jobs.
    fn at(self, at: u64) -> Failure {
        match self {
            Failure::Protocol => Failure::Protocol,
            Failure::Kernel { error, fatal, .. } => Failure::Kernel { error, fatal, job: at },
        }
    }
}

impl<'a> Serving<'a> {
    fn new(lane: Lane<'a>, kernel: CompiledKernel, instances: Arc<Instances>) -> Self {
        Serving { lane, kernel, instances, chunks: Vec::new() }
    }

    fn run(&mut self) -> ! {
        let mut number = 0u32;
        loop {
            number = number.wrapping_add(1);
            let answered =
                self.lane.request(number).ok_or(Failure::Protocol).and_then(|request| self.answer(&request));
            let answer = answered.unwrap_or_else(|failure| match failure {
                Failure::Protocol => Answer::Refused,
                Failure::Kernel { error, fatal, job } => {
                    let report = error.encode(MAX_REPORT_BYTES);
                    self.lane.write(0, &report);
                    Answer::Failed { fatal, length: report.len() as u64, job }
                }
            });
            self.lane.reply(answer, number);
        }
    }

    fn answer(&mut self, request: &Request) -> Result<Answer, Failure> {
        match *request {
            Request::Ping => {}
            Request::Instantiate { instance, memory_bytes, fuel_per_call, deadline_nanoseconds } => {
                let deadline = Duration::from_nanos(deadline_nanoseconds);
                // The host cuts its calls to the rows that the kernel may be given.
                let limits = KernelLimits { memory_bytes, fuel_per_call, rows_per_call: u32::MAX, deadline };
                let made = self.kernel.instantiate(limits);
                // An engine that finds no room for an instance says nothing about the kernel.
                let made = made.map_err(|error| {
                    let fatal = !matches!(error, SandboxError::Engine { .. });
                    Failure::Kernel { error, fatal, job: 0 }
                })?;
                let held = Held { instance: made, experts: HashMap::new() };
                lock(&self.instances).insert(instance, Arc::new(Mutex::new(held)));
            }
            Request::Chunk { length } => {
                // SAFETY: the request is under way, so the host waits for its answer and writes nothing.
                let bytes = unsafe { self.lane.data(length) }.ok_or(Failure::Protocol)?;
                if self.chunks.len() as u64 + length > MAX_EXPERT_BYTES {
                    return Err(Failure::Protocol);
                }
                self.chunks.extend_from_slice(bytes);
            }
            Request::Load { instance, expert, shape, lengths, chunked } => {
                let chunks = std::mem::take(&mut self.chunks);
                let total = lengths.iter().try_fold(0u64, |sum, length| sum.checked_add(*length));
                let total = total.ok_or(Failure::Protocol)?;
                let bytes = match chunked {
                    true => chunks.as_slice(),
                    // SAFETY: as above.
                    false => unsafe { self.lane.data(total) }.ok_or(Failure::Protocol)?,
                };
                if bytes.len() as u64 != total {
                    return Err(Failure::Protocol);
                }
                let (gate, rest) = bytes.split_at(lengths[0] as usize);
                let (up, down) = rest.split_at(lengths[1] as usize);
                let shape = expert_shape(shape).ok_or(Failure::Protocol)?;
                let shared = self.held(instance)?;
                let mut held = lock(&shared);
                let loaded = held.instance.load(shape, gate, up, down);
                let handle = self.sorted(instance, &held, loaded)?;
                held.experts.insert(expert, handle);
            }
            Request::Forward { instance, expert, count, length } => {
                // SAFETY: as above.
                let rows = unsafe { self.lane.data(length) }.ok_or(Failure::Protocol)?;
                let values = self.forward(instance, expert, rows, count)?;
                self.lane.write_floats(0, &values);
                return Ok(Answer::Values { count: values.len() as u64 });
            }
            Request::Together { jobs, length } => {
                // SAFETY: as above; what is written here lies behind these bytes.
                let data = unsafe { self.lane.data(length) }.ok_or(Failure::Protocol)?;
                let jobs = jobs_of(data, jobs).ok_or(Failure::Protocol)?;
                let (mut end, mut count) = (data.len(), 0);
                for (at, (job, rows)) in (0u32..).zip(jobs) {
                    let values = self
                        .forward(job.instance, job.expert, rows, job.count)
                        .map_err(|failure| failure.at(u64::from(at)))?;
                    if size_of_val(values.as_slice()) > self.lane.bytes() - end {
                        return Err(Failure::Protocol);
                    }
                    self.lane.write_floats(end, &values);
                    end += size_of_val(values.as_slice());
                    count += values.len() as u64;
                    self.lane.set_progress(at + 1);
                }
                return Ok(Answer::Values { count });
            }
            Request::Unload { instance, expert } => {
                let shared = self.held(instance)?;
                let mut held = lock(&shared);
                let handle = held.experts.remove(&expert).ok_or(Failure::Protocol)?;
                let unloaded = held.instance.unload(handle);
                self.sorted(instance, &held, unloaded)?;
            }
            Request::Drop { instance } => {
                // Freed when others may look for theirs again.
                let gone = lock(&self.instances).remove(&instance);
                drop(gone);
            }
        }
        Ok(Answer::Done)
    }

    fn forward(&self, instance: u64, expert: u64, rows: &[u8], count: u32) -> Result<Vec<f32>, Failure> {
        let shared = self.held(instance)?;
        let mut held = lock(&shared);
        let Held { instance: kernel, experts } = &mut *held;
        let handle = experts.get(&expert).ok_or(Failure::Protocol)?;
        let values = kernel.forward(handle, rows, count);
        self.sorted(instance, &held, values)
    }

    fn held(&self, instance: u64) -> Result<Arc<Mutex<Held>>, Failure> {
        lock(&self.instances).get(&instance).cloned().ok_or(Failure::Protocol)
    }

    /// A failure's weight; an instance that is not used again is freed as soon as whoever holds it lets go.
    fn sorted<T>(&self, instance: u64, held: &Held, result: Result<T, SandboxError>) -> Result<T, Failure> {
        result.map_err(|error| {
            let fatal = held.instance.is_poisoned();
            if fatal {
                lock(&self.instances).remove(&instance);
            }
            Failure::Kernel { error, fatal, job: 0 }
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn expert_shape(numbers: [u32; 9]) -> Option<ExpertShape> {
    let matrix = |[format, rows, columns]: [u32; 3]| {
        Some(MatrixShape { format: WeightFormat::from_gguf(format)?, rows, columns })
    };
    let [gate, up, down] = *numbers.as_chunks::<3>().0 else { return None };
    Some(ExpertShape { gate: matrix(gate)?, up: matrix(up)?, down: matrix(down)? })
}
