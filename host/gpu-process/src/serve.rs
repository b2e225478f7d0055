//! The process's loop: one request after the other, each with its reply.

use std::io::{Write, stdin, stdout};

use kvasir_gpu::frame::read_frame;
use kvasir_gpu::message::{Reply, Request};

use crate::bandwidth;
use crate::device::Device;
use crate::failure::Failure;
use crate::forward::{Answer, Scratch, accumulators, forward};
use crate::leave::{EXIT_PANIC, EXIT_PROTOCOL, exit, exit_with_the_host};
use crate::shader::Shader;
use crate::weights::{Loading, Weights};

/// Stack of the thread that serves: wgpu parses the source once more on it.
const STACK_BYTES: usize = crate::STACK_BYTES;
/// Private memory beside the weights: driver, compiler, the messages, what is being loaded.
const BASE_MEMORY_BYTES: u64 = 6 << 30;

/// Everything that a process holds.
#[derive(Default)]
struct State {
    device: Option<Device>,
    shader: Option<Shader>,
    weights: Option<Weights>,
    scratch: Scratch,
    loading: Option<Incoming>,
}

/// An expert on its way, or what is left to skip of one that was refused.
enum Incoming {
    Expert(Box<Loading>),
    Refused { left: u64, failure: Failure },
}

/// What is sent back.
enum Sent {
    Nothing,
    Reply(Reply<'static>),
    Answer(Answer),
}

/// Serves the host on standard input and output until it is gone. Never returns.
pub fn run() -> ! {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        exit(EXIT_PANIC);
    }));
    let started = exit_with_the_host().and_then(|()| {
        std::thread::Builder::new().name("serve".to_owned()).stack_size(STACK_BYTES).spawn(serve)
    });
    match started {
        // It ends only with the process.
        Ok(serving) => drop(serving.join()),
        Err(error) => eprintln!("cannot start a thread: {error}"),
    }
    exit(EXIT_PANIC)
}

fn serve() {
    let mut input = stdin().lock();
    let mut state = State::default();
    let mut body = Vec::new();
    loop {
        let kind = match read_frame(&mut input, &mut body) {
            Ok(Some(kind)) => kind,
            Ok(None) => exit(0),
            Err(error) => protocol(&error.to_string()),
        };
        let request = match Request::decode(kind, &body) {
            Ok(request) => request,
            Err(error) => protocol(&error.to_string()),
        };
        let sent = state.answer(request).unwrap_or_else(|failure| Sent::Reply(failure.reply()));
        match sent {
            Sent::Nothing => {}
            Sent::Reply(reply) => send(&reply),
            Sent::Answer(Answer { bytes, nanoseconds, submissions }) => {
                send(&Reply::Values { nanoseconds, submissions, bytes: &bytes });
            }
        }
    }
}

fn protocol(what: &str) -> ! {
    eprintln!("the host broke the protocol: {what}");
    exit(EXIT_PROTOCOL)
}

fn send(reply: &Reply<'_>) {
    let frame = match reply.encode() {
        Ok(frame) => frame,
        Err(error) => protocol(&error.to_string()),
    };
    let mut output = stdout().lock();
    if output.write_all(&frame).and_then(|()| output.flush()).is_err() {
        // The host is gone.
        exit(0);
    }
}

impl State {
    fn answer(&mut self, request: Request<'_>) -> Result<Sent, Failure> {
        let done = Ok(Sent::Reply(Reply::Done));
        match request {
            Request::Open { adapter, memory_bytes, binding_bytes } => {
                if self.device.is_some() {
                    return Err(Failure::request("the device is open already"));
                }
                // A device in software keeps its buffers in this process's own memory.
                let limit = memory_bytes.saturating_add(BASE_MEMORY_BYTES);
                crate::confine::memory(limit)
                    .map_err(|error| Failure::device(format!("the memory limit cannot be set: {error}")))?;
                let device = Device::open(adapter, binding_bytes)?;
                let reply = Reply::Opened(device.adapter.clone());
                self.device = Some(device);
                self.weights = Some(Weights::new(memory_bytes));
                Ok(Sent::Reply(reply))
            }
            Request::Shader { source, formats } => {
                if self.shader.is_some() {
                    return Err(Failure::request("a shader is loaded already"));
                }
                self.shader = Some(Shader::compile(device(&self.device)?, source, &formats)?);
                done
            }
            Request::Load { expert, shape } => {
                if self.loading.is_some() {
                    protocol("an expert in the middle of another");
                }
                let left =
                    shape.iter().map(|matrix| u64::from(matrix.outputs) * u64::from(matrix.row_bytes)).sum();
                let known = shape
                    .iter()
                    .try_for_each(|matrix| shader(&self.shader)?.products(&matrix.format).map(|_| ()));
                let begun = known
                    .and_then(|()| Ok((device(&self.device)?, weights(&mut self.weights)?)))
                    .and_then(|(device, weights)| weights.begin(device, expert, shape));
                self.loading = Some(match begun {
                    Ok(loading) => Incoming::Expert(Box::new(loading)),
                    Err(failure) => Incoming::Refused { left, failure },
                });
                Ok(Sent::Nothing)
            }
            Request::Weights(bytes) => self.take(bytes),
            Request::Unload { expert } => {
                weights(&mut self.weights)?.remove(expert);
                done
            }
            Request::Forward { format, parts, rows } => {
                let (device, shader) = (device(&self.device)?, shader(&self.shader)?);
                let weights = weights(&mut self.weights)?;
                forward(device, shader, weights, &mut self.scratch, format, &parts, rows).map(Sent::Answer)
            }
            Request::Accumulators { expert, matrix, sums, rows } => {
                let (device, shader) = (device(&self.device)?, shader(&self.shader)?);
                let weights = weights(&mut self.weights)?;
                accumulators(device, shader, weights, &mut self.scratch, expert, matrix, sums, rows)
                    .map(Sent::Answer)
            }
            Request::Bandwidth { bytes } => {
                let (bytes, nanoseconds) = bandwidth::measure(device(&self.device)?, bytes)?;
                Ok(Sent::Reply(Reply::Bandwidth { bytes, nanoseconds }))
            }
        }
    }

    /// The next weights; the reply comes after the last of them, also where the expert was refused.
    fn take(&mut self, bytes: &[u8]) -> Result<Sent, Failure> {
        match self.loading.take() {
            None => protocol("weights without an expert"),
            Some(Incoming::Refused { left, failure }) => match left.checked_sub(bytes.len() as u64) {
                None => protocol("more weights than the expert has"),
                Some(0) => Err(failure),
                Some(left) => {
                    self.loading = Some(Incoming::Refused { left, failure });
                    Ok(Sent::Nothing)
                }
            },
            Some(Incoming::Expert(mut loading)) => {
                let left = loading.left();
                let weights = weights(&mut self.weights)?;
                match weights.take(device(&self.device)?, &mut loading, bytes) {
                    Ok(true) => {
                        weights.keep(*loading);
                        Ok(Sent::Reply(Reply::Done))
                    }
                    Ok(false) => {
                        self.loading = Some(Incoming::Expert(loading));
                        Ok(Sent::Nothing)
                    }
                    Err(failure) => {
                        weights.abandon(*loading);
                        match left.checked_sub(bytes.len() as u64) {
                            None => protocol(&failure.reason),
                            Some(0) => Err(failure),
                            Some(left) => {
                                self.loading = Some(Incoming::Refused { left, failure });
                                Ok(Sent::Nothing)
                            }
                        }
                    }
                }
            }
        }
    }
}

fn device(device: &Option<Device>) -> Result<&Device, Failure> {
    device.as_ref().ok_or_else(|| Failure::request("no device is open"))
}

fn shader(shader: &Option<Shader>) -> Result<&Shader, Failure> {
    shader.as_ref().ok_or_else(|| Failure::request("no shader is loaded"))
}

fn weights(weights: &mut Option<Weights>) -> Result<&mut Weights, Failure> {
    weights.as_mut().ok_or_else(|| Failure::request("no device is open"))
}
