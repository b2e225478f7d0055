//! The host's side of the GPU: starts the process that drives it, talks to it over two pipes, and ends it at a deadline. No GPU
//! library is linked here.
//!
//! A GPU cannot be interrupted through any library, and a shader can make compiler and driver fail in ways that take the process
//! with them. So plugin shaders run in the program `kvasir-gpu`, one process for each plugin, which may be killed at any time:
//! [`Gpu`] is the handle on it. What the two say to each other is in [`message`] and [`frame`], which both use.
#![cfg_attr(test, allow(clippy::unwrap_used))] // A test that cannot set itself up has failed.

mod error;
pub mod frame;
mod gpu;
pub mod message;
mod options;
mod pipe;
mod process;

pub use error::GpuError;
pub use gpu::{Gpu, Timing, bandwidth, describe};
pub use kvasir_kernel::{FailureHistory, FailureKind, MemoryHistory};
pub use options::{Adapter, AdapterChoice, AdapterKind, Deadlines, GpuOptions, PROGRAM_VARIABLE};
pub use process::{confined, find_program};
