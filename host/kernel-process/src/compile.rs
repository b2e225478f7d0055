//! Compiles one component and ends: the component comes in one descriptor, what became of it goes out by the other.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;

use kvasir_kernel::compile::{COMPILE_HEADER_BYTES, COMPILED, FAILED};
use kvasir_kernel::ring::MAX_REPORT_BYTES;
use kvasir_kernel::start::{FIRST_DESCRIPTOR, SECOND_DESCRIPTOR};
use kvasir_sandbox::{CompiledKernel, Engine, SandboxError};

use crate::confine::{Limits, first};
use crate::leave::{EXIT_SETUP, end_on_panic, exit, fail};

/// Compiles and ends the process.
pub fn run() -> ! {
    end_on_panic();
    // SAFETY: the host hands these two over, and nothing else in this process owns them. Were they not open, every use would fail.
    let (mut input, mut output) =
        unsafe { (File::from_raw_fd(FIRST_DESCRIPTOR), File::from_raw_fd(SECOND_DESCRIPTOR)) };
    let mut header = [0; COMPILE_HEADER_BYTES];
    if let Err(error) = input.read_exact(&mut header) {
        fail(EXIT_SETUP, format!("no limits to compile within: {error}"));
    }
    let number = |index: usize| header.as_chunks().0.get(index).map(|bytes| u64::from_le_bytes(*bytes));
    let limits =
        Limits { data: number(0), address: number(1), processor: number(2), file: number(3).unwrap_or(0) };
    if let Err(reason) = first(&limits) {
        fail(EXIT_SETUP, reason);
    }
    let mut component = Vec::new();
    if let Err(error) = input.read_to_end(&mut component) {
        fail(EXIT_SETUP, format!("the component cannot be read: {error}"));
    }
    let (kind, bytes) = match compile(&component) {
        Ok(code) => (COMPILED, code),
        Err(error) => (FAILED, error.encode(MAX_REPORT_BYTES)),
    };
    match output.write_all(&[kind]).and_then(|()| output.write_all(&bytes)) {
        Ok(()) => exit(0),
        Err(error) => fail(EXIT_SETUP, format!("the result cannot be written: {error}")),
    }
}

fn compile(component: &[u8]) -> Result<Vec<u8>, SandboxError> {
    CompiledKernel::compile_component(&Engine::new()?, component)?.artefact()
}
