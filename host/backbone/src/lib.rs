//! The process that decides: attention, delta net, router, shared expert, caches and sampler of Qwen3.5-MoE.
//!
//! Every number comes from `kvasir-numerics`, so logits are the same bits on every CPU, with any number of threads,
//! in any batch and with any cut of the prompt into chunks. Routed experts are computed by whoever implements
//! [`Experts`]; that trait is this crate's only door to the outside. There is no network, no sandbox and no
//! tokeniser here.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that fails to unwrap has failed"))]

mod experts;

pub use experts::{Call, CallId, Completed, Experts, ExpertsError, Pick, Progress, call_blocking};
pub use kvasir_model::{ExpertIndex, LayerIndex, TokenId};
pub use kvasir_numerics::RowFormat;
