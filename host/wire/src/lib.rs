//! What crosses a process boundary in Kvasir: keys, tickets, the handshake, frames, messages, receipts and notes.
//!
//! Nothing here opens a socket, reads a clock or draws randomness: keys, nonces and times are passed in, so every byte
//! that this crate produces can be reproduced by a test. `docs/protocol.md` is the written form; its byte vectors are
//! this crate's tests. Everything that is decoded comes from a stranger: a decoder either returns a value that keeps
//! every rule, or a typed error that names the rule, and every size has a named bound in [`limits`].

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))] // a test that unwraps fails, which is what it should do

pub mod account;
pub mod assemble;
pub mod codec;
pub mod credit;
pub mod frame;
pub mod handshake;
pub mod id;
pub mod key;
pub mod limits;
pub mod message;
pub mod meter;
pub mod money;
pub mod note;
pub mod pairing;
pub mod probe;
pub mod receipt;
pub mod refusal;
pub mod replay;
pub mod schedule;
pub mod ticket;
pub mod window;
pub mod work;
