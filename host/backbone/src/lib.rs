//! The process that decides: attention, delta net, router, shared expert, caches and sampler of Qwen3.5-MoE.
//!
//! Every number comes from `kvasir-numerics`, so logits are the same bits on every CPU, with any number of threads,
//! in any batch and with any cut of the prompt into chunks. Routed experts are computed by whoever implements
//! [`Experts`]; that trait is this crate's only door to the outside. There is no network, no sandbox and no
//! tokeniser here.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that fails to unwrap has failed"))]

mod attention;
mod backbone;
mod delta_net;
mod error;
mod experts;
mod faults;
mod footprint;
mod generate;
mod layer;
mod logits;
mod mixture;
mod observer;
mod output;
mod parallel;
mod part;
mod pass;
mod products;
mod router;
mod rows;
mod sampler;
mod scratch;
mod sequence;
mod stand_by;

pub use backbone::{Backbone, Feed, MAX_ROWS, Wanted};
pub use error::{BackboneError, Place};
pub use experts::{Call, CallId, Completed, Experts, ExpertsError, Pick, Progress, call_blocking};
pub use footprint::{SequenceCost, pass_row_bytes};
pub use generate::{
    DEFAULT_PREFILL_CHUNK, Event, Finish, GenerateOptions, Generation, generate, generate_between,
};
pub use kvasir_model::{ExpertIndex, LayerIndex, TokenId};
pub use kvasir_numerics::RowFormat;
pub use logits::Logits;
pub use observer::{Observer, Tap, Timing};
pub use pass::{Member, Outcome, Pass, Step};
pub use sampler::{MAX_TEMPERATURE, Sampler, SamplerOptions, greedy};
pub use sequence::Sequence;
