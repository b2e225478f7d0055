//! Runs one compiled kernel: a thread for each lane of the shared memory, which answers one request after the other.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, FromRawFd};
use std::sync::{Arc, Barrier};
use std::time::Duration;

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
    for number in 0..ring.lanes() {
        let (ring, kernel, started) = (Arc::clone(&ring), kernel.clone(), Arc::clone(&started));
        let serving = std::thread::Builder::new()
            .name(format!("lane {number}"))
            .stack_size(STACK_BYTES)
            .spawn(move || {
                started.wait();
                Serving::new(ring.lane(number), kernel).run()
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

/// One lane.
struct Serving<'a> {
    lane: Lane<'a>,
    kernel: CompiledKernel,
    instances: HashMap<u64, Held>,
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
    /// The kernel failed.
    Kernel { error: SandboxError, fatal: bool },
}

impl<'a> Serving<'a> {
    fn new(lane: Lane<'a>, kernel: CompiledKernel) -> Self {
        Serving { lane, kernel, instances: HashMap::new(), chunks: Vec::new() }
    }

    fn run(&mut self) -> ! {
        let mut number = 0u32;
        loop {
            number = number.wrapping_add(1);
            let answered =
                self.lane.request(number).ok_or(Failure::Protocol).and_then(|request| self.answer(&request));
            let answer = answered.unwrap_or_else(|failure| match failure {
                Failure::Protocol => Answer::Refused,
                Failure::Kernel { error, fatal } => {
                    let report = error.encode(MAX_REPORT_BYTES);
                    self.lane.write(0, &report);
                    Answer::Failed { fatal, length: report.len() as u64 }
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
                    Failure::Kernel { error, fatal }
                })?;
                self.instances.insert(instance, Held { instance: made, experts: HashMap::new() });
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
                let held = self.instances.get_mut(&instance).ok_or(Failure::Protocol)?;
                let loaded = held.instance.load(shape, gate, up, down);
                let handle = self.sorted(instance, loaded)?;
                let held = self.instances.get_mut(&instance).ok_or(Failure::Protocol)?;
                held.experts.insert(expert, handle);
            }
            Request::Forward { instance, expert, count, length } => {
                // SAFETY: as above.
                let rows = unsafe { self.lane.data(length) }.ok_or(Failure::Protocol)?;
                let held = self.instances.get_mut(&instance).ok_or(Failure::Protocol)?;
                let handle = held.experts.get(&expert).ok_or(Failure::Protocol)?;
                let values = held.instance.forward(handle, rows, count);
                let values = self.sorted(instance, values)?;
                self.lane.write_floats(&values);
                return Ok(Answer::Values { count: values.len() as u64 });
            }
            Request::Unload { instance, expert } => {
                let held = self.instances.get_mut(&instance).ok_or(Failure::Protocol)?;
                let handle = held.experts.remove(&expert).ok_or(Failure::Protocol)?;
                let unloaded = held.instance.unload(handle);
                self.sorted(instance, unloaded)?;
            }
            Request::Drop { instance } => {
                self.instances.remove(&instance);
            }
        }
        Ok(Answer::Done)
    }

    /// A failure's weight; an instance that is not used again is freed at once.
    fn sorted<T>(&mut self, instance: u64, result: Result<T, SandboxError>) -> Result<T, Failure> {
        result.map_err(|error| {
            let fatal = self.instances.get(&instance).is_some_and(|held| held.instance.is_poisoned());
            if fatal {
                self.instances.remove(&instance);
            }
            Failure::Kernel { error, fatal }
        })
    }
}

fn expert_shape(numbers: [u32; 9]) -> Option<ExpertShape> {
    let matrix = |[format, rows, columns]: [u32; 3]| {
        Some(MatrixShape { format: WeightFormat::from_gguf(format)?, rows, columns })
    };
    let [gate, up, down] = *numbers.as_chunks::<3>().0 else { return None };
    Some(ExpertShape { gate: matrix(gate)?, up: matrix(up)?, down: matrix(down)? })
}
