//! One authenticated WebSocket link: dialling, the handshake, and the two pumps that move frames.
//!
//! Used by both ends of a session ([`connect_worker`], [`connect_backbone`], then [`Connected::pair`]) and by the hub
//! ([`accept`], then [`HubLink`] as a pipe). What the bytes mean is `kvasir-wire`'s; this crate adds sockets, clocks,
//! deadlines and tasks. It places no experts, runs no kernels and keeps no books.
//!
//! Every wait has a deadline, every queue a bound. At each write the highest lane that has credit goes first; the
//! socket is flushed when the queue is empty.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))] // a test that unwraps fails, which is what it should do

mod backoff;
mod bulk;
mod desk;
mod dial;
pub mod doctor;
mod error;
mod fragments;
mod holder;
mod hub;
mod liveness;
mod numbers;
mod opening;
mod options;
mod pace;
mod paced;
mod reader;
mod redial;
mod relay;
mod shared;
mod socket;
mod upgrade;
mod writer;

pub use backoff::Backoff;
pub use dial::{TlsTrust, connect_backbone, connect_worker};
pub use error::LinkError;
pub use fragments::Fragments;
pub use holder::{Connected, Session, connect_over};
pub use hub::{Accepted, HubLink, HubReceiver, HubResumer, HubSender, Incoming, accept};
pub use kvasir_wire::assemble::Payload;
pub use numbers::{MAX_SESSION_NUMBERS, SessionNumbers};
pub use options::{BACKBONE_RESUME, LinkOptions, websocket_config};
pub use pace::{
    LONGEST_REST, MOST_STEPS_SAVED, STEPS_EARNED_BY_A_FRAME, STEPS_OF_A_MESSAGE, STEPS_PER_SECOND,
};
pub use paced::{Paced, Small};
pub use reader::LinkReceiver;
pub use relay::Relay;
pub use shared::{LinkSender, Standing};
#[cfg(target_os = "linux")]
pub use socket::adopt_listener;
pub use socket::{CONGESTION_VARIABLE, Congestion, USER_TIMEOUT, connect as connect_tcp, socket_for};

/// The WebSocket subprotocol of this version.
pub const SUBPROTOCOL: &str = "kvasir.v1";
/// Path of the worker's door, at the edge.
pub const WORKER_PATH: &str = "/v1/worker";
/// Path of the backbone's door, at the hub.
pub const BACKBONE_PATH: &str = "/v1/backbone";

/// Unix seconds by this machine's clock.
pub fn unix_now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A fresh nonce from the operating system's random numbers.
pub fn fresh_nonce() -> Result<kvasir_wire::id::Nonce, LinkError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| LinkError::Randomness(error.to_string()))?;
    Ok(kvasir_wire::id::Nonce(bytes))
}
