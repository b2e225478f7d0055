//! The gateway of a Kvasir network: the edge that faces the internet, the hub where both ends meet, and the poller that
//! settles what the hub metered.
//!
//! - [`edge`]: TLS, one request head, the ticket's MAC, then raw bytes both ways. It holds no signing key.
//! - [`hub`]: ends the WebSocket, authenticates, pairs workers with backbones, relays their messages unchanged, counts
//!   payload bytes by frame header, and files receipts that all three parties signed.
//! - [`acme`]: the edge's certificate from an ACME server, proved on the edge's own port.
//! - [`operations`]: metrics, readiness and status of either, on an address of its own.
//! - [`settle`]: turns receipts into settlement notes, once each.
//!
//! It computes nothing of the model, and no payload of a pair is ever looked at.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))] // a test that unwraps fails, which is what it should do

pub mod accept;
pub mod acme;
pub mod certificate;
pub mod command;
pub mod config;
pub mod credentials;
pub mod descriptors;
pub mod edge;
pub mod http_head;
pub mod http_refusal;
pub mod hub;
pub mod listen;
pub mod metrics;
pub mod operations;
mod page;
pub mod secret_file;
mod served_certificate;
pub mod settle;
pub mod stop;
pub mod ticket_check;
