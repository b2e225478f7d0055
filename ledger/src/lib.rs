//! The ledger: keeps receipts and the notes they rest on, moves credit, answers questions about it.
//!
//! Without the feature `server` this crate is the client, [`client::Client`] with the answers in [`api`], and the reader of the
//! public [`log`]. With it
//! come the store (SQLite), the HTTP service and the logic of the binary `kvasir-ledger`. Formats are `kvasir-wire`'s;
//! `docs/ledger.md` describes the whole.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))] // a test that unwraps fails, which is what it should do

pub mod api;
pub mod audit;
pub mod client;
pub mod evidence;
pub mod files;
pub mod log;
pub mod plain_text;
pub mod witness;

#[cfg(feature = "server")]
mod calendar;
#[cfg(feature = "server")]
pub mod clock_watch;
#[cfg(feature = "server")]
pub mod command;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
mod explorer;
#[cfg(feature = "server")]
pub mod head;
#[cfg(feature = "server")]
pub mod publish;
#[cfg(feature = "server")]
pub mod refusal;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod space;
#[cfg(feature = "server")]
pub mod store;
