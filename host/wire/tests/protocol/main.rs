//! The protocol: byte vectors of `docs/protocol.md`, round trips, limits, hostile bytes, tickets, handshake, pairing.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod document;
mod frames;
mod handshakes;
mod hostile;
mod hub_stream;
mod messages;
mod replay;
mod samples;
mod tickets;
mod window;
