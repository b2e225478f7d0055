//! The host's side of the GPU: starts the process that drives it, talks to it over two pipes, and ends it at a deadline. No GPU
//! library is linked here.
//!
//! A GPU cannot be interrupted through any library, and a shader can make compiler and driver fail in ways that take the process
//! with them. So plugin shaders run in the program `kvasir-gpu`, one process for each plugin, which may be killed at any time.
#![cfg_attr(test, allow(clippy::unwrap_used))] // A test that cannot set itself up has failed.

mod error;
mod history;
mod options;

pub use error::GpuError;
pub use history::{FailureHistory, FailureKind, MemoryHistory};
pub use options::{Adapter, AdapterChoice, AdapterKind, Deadlines, GpuOptions, PROGRAM_VARIABLE};

/// Starts the program for a moment and asks it which device it would use.
///
/// # Errors
/// No program, no device, or a process that fails.
pub fn describe(_: &GpuOptions) -> Result<Adapter, GpuError> {
    Err(GpuError::NoDevice { reason: "this version cannot use one yet".to_owned() })
}
