//! The host's side of the kernel process: compiles a component in one confined child, starts the program `kvasir-kernel` in
//! another to run it, talks to that over shared memory, and ends either at a deadline. It links no WebAssembly engine and parses
//! no component.
//!
//! [`Kernel`] is the handle on a plugin's process, [`Instance`] one instance in it, [`Together`] a request for experts of several.
//! What both sides see of the shared memory is in [`ring`] and [`jobs`]; the walls that the program puts around itself are in its own crate, and [`Walls`] says which of them this system has.
//! Needs Linux: sealed memory files, futexes and seccomp have no counterpart elsewhere.
#![cfg_attr(test, allow(clippy::unwrap_used))] // A test that cannot set itself up has failed.

mod aside;
mod cache;
pub mod compile;
mod error;
mod history;
mod instance;
pub mod jobs;
mod kernel;
mod options;
mod process;
mod program;
mod promptness;
pub mod ring;
pub mod shared_memory;
pub mod start;
mod system_limits;
mod together;
mod walls;

pub use aside::{Aside, waiting_aside};
pub use cache::CompileCache;
pub use error::KernelError;
pub use history::{FailureHistory, FailureKind, MemoryHistory, UNREADABLE_FAILURES, told_failures};
pub use instance::{Instance, InstanceLimits};
pub use kernel::Kernel;
pub use options::{CompileLimits, KernelOptions, PROGRAM_VARIABLE};
pub use program::find_program;
pub use together::{Asked, Stopped, Together};
pub use walls::Walls;
