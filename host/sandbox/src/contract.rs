//! The versions of the contract that this host speaks, each behind the same two traits.
//!
//! What is above this file knows experts, rows and faults; what a version calls them stands in its own file. A call goes
//! through one table of functions, a nanosecond beside the hundreds of microseconds that an expert takes. To speak a new
//! version: release its folder in `wit/`, write a file beside `v0_1_0.rs`, and put it into [`SPOKEN`] and
//! `kvasir_plugin::CONTRACTS`, from both of which the oldest goes when there are three.

#[cfg(test)]
mod negotiation;
mod v0_1_0;
#[cfg(test)]
mod v0_2_0;

use std::sync::Arc;

use kvasir_plugin::Version;
use wasmtime::Store;
use wasmtime::component::{InstancePre, ResourceAny};

use crate::error::Fault;
use crate::instance::State;
use crate::shape::ExpertShape;

pub(crate) use v0_1_0::names_format;

/// A version of the contract and the way from a component to its kernels.
pub(crate) struct Spoken {
    /// The version.
    pub version: Version,
    /// Finds the contract's exports in a component; an error says which one is missing or of another type.
    pub prepare: fn(InstancePre<State>) -> wasmtime::Result<Arc<dyn Prepared>>,
}

/// What this host speaks, oldest first.
pub(crate) const SPOKEN: &[Spoken] = &[v0_1_0::SPOKEN];

/// A component whose exports were found.
pub(crate) trait Prepared: Send + Sync {
    /// A fresh instance.
    fn instantiate(&self, store: &mut Store<State>) -> wasmtime::Result<Box<dyn Bound>>;
}

/// What a call of a kernel gives: a trap or a broken convention outside, the kernel's own refusal inside.
pub(crate) type Answer<T> = wasmtime::Result<Result<T, Fault>>;

/// An instance, bound to its version of the contract.
pub(crate) trait Bound: Send {
    /// Copies the matrices gate, up and down in.
    fn load(
        &self,
        store: &mut Store<State>,
        shape: &ExpertShape,
        matrices: [&[u8]; 3],
    ) -> Answer<ResourceAny>;

    /// Evaluates `count` rows.
    fn forward(
        &self,
        store: &mut Store<State>,
        expert: ResourceAny,
        rows: &[u8],
        count: u32,
    ) -> Answer<Vec<f32>>;
}

/// The text of a fault as it is kept: it is the kernel's, so plain, and no longer than anyone reads.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}
