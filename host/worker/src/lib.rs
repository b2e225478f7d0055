//! The worker's side of a swarm: one outbound link, experts held in the sandbox, calls answered.
//!
//! A worker dials out and listens on nothing. It believes what the hub's key signed, what stands in the transcript that
//! it signed itself, and what hashes to the digests in there; everything else a peer says is checked or refused. It
//! keeps its own books, so that it countersigns only receipts that are true. What it computes is the business of
//! `kvasir-experts`; bytes on the link are that of `kvasir-link` and `kvasir-wire`.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))] // a test that unwraps fails, which is what it should do

mod books;
mod canary;
mod changeover;
mod event;
mod failures;
mod fetch;
mod life;
mod options;
mod paystub;
mod serving;
mod session;
mod store;
mod switch;
mod version;
mod workbench;
mod worker;

pub use event::{Event, EventSink, Fault};
pub use options::{
    DEFAULT_STORE_BYTES, ShadowOptions, Summary, UNSIGNED_WINDOW_BYTES, UNSIGNED_WINDOW_TIME, UnsignedWindow,
    WorkerError, WorkerOptions,
};
pub use switch::PluginSwitch;
pub use version::offer;
pub use worker::{Stop, Worker, stop, tls_trust};
