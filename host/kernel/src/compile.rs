//! Compiles a component in a process of its own, which may use so much and no more.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::time::Instant;

use crate::error::KernelError;
use crate::options::{CompileLimits, KernelOptions};
use crate::process::{Watched, program, told};
use crate::ring::MAX_REPORT_BYTES;
use crate::shared_memory::{constant_file, empty_file};
use crate::system_limits::lowered;

/// The program ends so where its walls cannot be put up, or what was handed over is not what was announced.
pub const EXIT_SETUP: i32 = 3;
/// The program ends so where compiled code is of another engine.
pub const EXIT_FOREIGN_ARTEFACT: i32 = 5;
/// First byte of the compiler's output: compiled code follows.
pub const COMPILED: u8 = 1;
/// First byte of the compiler's output: the account of a failure follows.
pub const FAILED: u8 = 2;
/// Bytes of the limits that stand before a component: four numbers.
pub const COMPILE_HEADER_BYTES: usize = 32;

/// Compiled code: trusted by nobody but the confined process that runs it.
#[derive(Debug)]
pub struct Artefact {
    bytes: Vec<u8>,
}

impl Artefact {
    /// Of bytes that a compiler's process of ours has made, now or earlier.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Artefact { bytes }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As a memory file that can only be read.
    pub(crate) fn file(&self) -> std::io::Result<OwnedFd> {
        constant_file(&self.bytes)
    }
}

/// What the compiler is told before the component.
pub fn compile_header(limits: &CompileLimits) -> [u8; COMPILE_HEADER_BYTES] {
    let mut header = [0; COMPILE_HEADER_BYTES];
    let numbers =
        [limits.memory_bytes, limits.address_bytes, limits.processor_seconds, limits.artefact_bytes];
    for (part, number) in header.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
        *part = number.to_le_bytes();
    }
    header
}

/// Compiles `component` in a confined process.
pub(crate) fn compile(component: &[u8], options: &KernelOptions) -> Result<Artefact, KernelError> {
    let program = program(options)?;
    let failed =
        |error: std::io::Error| KernelError::Start { program: program.clone(), reason: error.to_string() };
    let limits = &options.compile;
    let input = constant_file(&[&compile_header(limits)[..], component].concat()).map_err(failed)?;
    let mut output = empty_file().map_err(failed)?;
    let handed = [input, output.as_fd().try_clone_to_owned().map_err(failed)?];
    let child = Watched::start(&program, "compile", handed, || {}, |_| true).map_err(failed)?;
    let until = Instant::now() + limits.wall_clock;
    let status = child.status(limits.wall_clock);
    if !child.has_ended() || Instant::now() > until {
        child.kill();
        return Err(KernelError::CompileLimit { limit: format!("wall clock of {:?}", limits.wall_clock) });
    }
    let end = status.map(|status| (status.code(), status.signal()));
    let limit = match end {
        Some((Some(0), _)) => return take(&mut output, limits, failed),
        Some((Some(EXIT_SETUP), _)) => return Err(KernelError::Setup { reason: child.last_words() }),
        Some((None, Some(libc::SIGXCPU | libc::SIGKILL))) => {
            format!("processor time of {} s", limits.processor_seconds)
        }
        Some((None, Some(libc::SIGXFSZ))) => format!("size of {} bytes", limits.artefact_bytes),
        _ if child.last_words().contains("memory allocation of") => {
            format!("memory of {} bytes", limits.memory_bytes)
        }
        _ => {
            return Err(KernelError::CompilerCrashed { status: told(status), stderr: child.last_words() });
        }
    };
    match lowered(limits) {
        // The compiler never had what a kernel may take to compile.
        Some(reason) => Err(KernelError::Setup { reason }),
        None => Err(KernelError::CompileLimit { limit }),
    }
}

/// Reads what the compiler left. The file is ours alone by now, and still nothing in it is believed.
fn take(
    output: &mut File,
    limits: &CompileLimits,
    failed: impl Fn(std::io::Error) -> KernelError,
) -> Result<Artefact, KernelError> {
    let broken =
        |reason: &str| KernelError::BrokenProtocol { request: "compiling", reason: reason.to_owned() };
    output.rewind().map_err(&failed)?;
    let mut bytes = Vec::new();
    output.take(limits.artefact_bytes.saturating_add(1)).read_to_end(&mut bytes).map_err(&failed)?;
    match bytes.first() {
        None => Err(broken("it left nothing")),
        Some(&COMPILED) if bytes.len() as u64 > limits.artefact_bytes => {
            Err(KernelError::CompileLimit { limit: format!("size of {} bytes", limits.artefact_bytes) })
        }
        Some(&COMPILED) => Ok(Artefact::new(bytes.split_off(1))),
        Some(&FAILED) if bytes.len() <= MAX_REPORT_BYTES + 1 => {
            Err(KernelError::Failed { report: bytes.split_off(1), fatal: true })
        }
        Some(_) => Err(broken("its output is of no known kind")),
    }
}
