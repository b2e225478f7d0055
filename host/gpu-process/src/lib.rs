//! What the program `kvasir-gpu` does: checks WGSL kernels before and with naga, and runs them through wgpu.
#![cfg_attr(test, allow(clippy::unwrap_used))] // A test that cannot set itself up has failed.

mod bandwidth;
mod budget;
pub mod check_command;
pub mod confine;
mod constants;
mod device;
mod error;
mod failure;
mod forward;
mod front_door;
mod layout;
mod leave;
mod limits;
mod module_rules;
pub mod serve;
mod shader;
mod text;
mod tokens;
mod uniform_flow;
mod weights;
mod work;

pub use error::{Count, Resource, ShaderError};
pub use front_door::{BufferFacts, BufferKind, CheckedShader, EntryPointFacts, check};
pub use limits::{STACK_BYTES, ShaderLimits};
