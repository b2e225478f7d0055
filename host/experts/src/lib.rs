//! The one expert runner: expert weights into kernels, rows through them, sums in the one defined order.
//!
//! Backbone and worker compute experts through this crate alone, which is why moving an expert moves no bit:
//! [`ExpertRunner`] holds experts in kernel instances and evaluates requests, [`combine`] is the only definition of the
//! sum, [`LocalExperts`] answers a backbone's calls from a model on this machine, [`conformance()`] proves a plugin on its
//! own golden vectors, [`measure`] times it all. It has no network and knows no layers beside their numbers.
#![cfg_attr(test, allow(clippy::unwrap_used))] // A test that cannot set itself up has failed.

mod conformance;
mod error;
mod evaluator;
mod gpu_lane;
mod lane;
mod lane_work;
mod local;
pub mod measure;
mod request;
mod runner;
mod shader_proof;
mod together;

pub use conformance::{ConformanceError, PROOF_TIME, Report, conformance, conformance_within};
pub use error::RunnerError;
pub use evaluator::Isolation;
pub use kvasir_backbone::{Call, Completed};
pub use kvasir_gpu::{
    Adapter, AdapterChoice, AdapterKind, Deadlines, FailureHistory, FailureKind, GpuError, GpuOptions,
    MemoryHistory,
};
pub use kvasir_kernel::{
    Aside, KernelError, KernelOptions, UNREADABLE_FAILURES, Walls, told_failures, waiting_aside,
};
pub use kvasir_model::{ExpertIndex, LayerIndex};
pub use kvasir_numerics::{Format, InstructionSet, RowFormat, Swiglu};
pub use kvasir_plugin::VerifiedPlugin;
pub use kvasir_sandbox::{KernelLimits, SandboxError};
pub use local::LocalExperts;
pub use request::{ExpertRows, combine, group};
pub use runner::{Device, ExpertRunner, ExpertSource, KernelClass, RunnerOptions, SourceError};
pub use shader_proof::{FormatDeviation, ShaderReport, shader_conformance};
