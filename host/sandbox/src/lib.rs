//! The sandbox: a [`kvasir_plugin::VerifiedPlugin`] -> a running kernel -> checked results.
//!
//! A kernel is a WebAssembly component without imports. Before anything of it runs, its bytes are checked against size
//! limits, validated in full, and scanned for instructions whose results differ between CPUs ([`CompiledKernel`]).
//! While it runs, memory, fuel, wall clock, stack and the size of its answer are bounded on every call, and what it
//! returns is checked for length and for finite values ([`KernelInstance`]).
//!
//! It does not know models, networks or the arithmetic. It is one wall, and engines have had escapes; on a worker the
//! program `kvasir-kernel` puts a process with fewer rights around it.
#![cfg_attr(test, allow(clippy::unwrap_used))] // A test that cannot set itself up has failed.

mod compile;
mod contract;
mod engine;
mod error;
mod error_codec;
mod instance;
mod limits;
mod scan;
mod shape;

pub use compile::CompiledKernel;
pub use engine::Engine;
pub use error::{Fault, SandboxError};
pub use instance::{ExpertHandle, KernelInstance};
pub use limits::*;
pub use scan::{KernelFacts, inspect};
pub use shape::{ExpertShape, MatrixShape, WeightFormat};
