//! Why a link could not be made, or ended.

use std::sync::Arc;
use std::time::Duration;

use kvasir_wire::codec::DecodeError;
use kvasir_wire::frame::{FrameError, Kind};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::schedule::SendError;
use thiserror::Error;
use tokio_tungstenite::tungstenite;

/// Why a link could not be made, or ended.
#[derive(Debug, Clone, Error)]
pub enum LinkError {
    /// The other side refused, and said why.
    #[error("{0}")]
    Refused(Refusal),
    /// This side refused the other, and told it why.
    #[error("this side refused the other: {0}")]
    RefusedPeer(Refusal),
    /// The other side broke a rule of framing.
    #[error("the other side broke the protocol: {0}")]
    Protocol(#[from] FrameError),
    /// The other side sent a payload that breaks a rule of its kind.
    #[error("the other side sent a bad {}: {error}", kind.name())]
    BadPayload {
        /// The payload's kind.
        kind: Kind,
        /// What is wrong with it.
        error: DecodeError,
    },
    /// The other side sent something that has no place here.
    #[error("the other side sent {found} where {expected} was due")]
    Unexpected {
        /// What came.
        found: String,
        /// What was due.
        expected: &'static str,
    },
    /// The other side closed the link.
    #[error("the other side closed the link (code {code}{}{reason})", if reason.is_empty() { "" } else { ": " })]
    Closed {
        /// WebSocket close code.
        code: u16,
        /// Its reason, possibly empty.
        reason: String,
    },
    /// This side closed the link.
    #[error("the link was closed on this side")]
    Ended,
    /// The connection broke.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// Nothing was heard, not even the answer to a ping.
    #[error("nothing was heard for {0:?}, not even an answer to a ping: the link is dead")]
    Silent(Duration),
    /// The other side takes no bytes.
    #[error("the other side took no bytes for {0:?}")]
    Stalled(Duration),
    /// A step did not come in time.
    #[error("{what} did not happen within {within:?}")]
    TimedOut {
        /// The step.
        what: &'static str,
        /// The deadline.
        within: Duration,
    },
    /// A payload could not be queued.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The address cannot be used.
    #[error("cannot use the address {url}: {problem}")]
    Address {
        /// What was given.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No connection to the host.
    #[error("cannot connect to {address}: {error}")]
    Connect {
        /// Host and port.
        address: String,
        /// The system's error.
        error: Arc<std::io::Error>,
    },
    /// TLS did not come about.
    #[error(
        "TLS with {host} failed: {problem}; if the gateway uses a development certificate, name its CA file"
    )]
    Tls {
        /// The host.
        host: String,
        /// What failed.
        problem: String,
    },
    /// The answer to the upgrade request was no upgrade and no refusal of ours.
    #[error("{host} answered HTTP {status} to the upgrade request: {body}")]
    Http {
        /// The host.
        host: String,
        /// Its status.
        status: u16,
        /// The beginning of its body.
        body: String,
        /// Seconds of its `Retry-After`.
        retry_after: Option<u32>,
    },
    /// The operating system gave no random numbers.
    #[error("the operating system gave no random numbers: {0}")]
    Randomness(String),
}

impl LinkError {
    /// Whether another try with the same ticket, key and address is useless.
    pub fn is_permanent(&self) -> bool {
        match self {
            LinkError::Address { .. } | LinkError::Randomness(_) => true,
            LinkError::Refused(refusal) | LinkError::RefusedPeer(refusal) => matches!(
                refusal.code,
                RefusalCode::BadTicket
                    | RefusalCode::TicketExpired
                    | RefusalCode::WrongRole
                    | RefusalCode::WrongKey
                    | RefusalCode::UnknownNetwork
                    | RefusalCode::UnsupportedVersion
                    | RefusalCode::SessionReplaced
                    | RefusalCode::PluginNotAllowed
            ),
            _ => false,
        }
    }

    /// Seconds after which the other side asked to be tried again.
    pub fn retry_after(&self) -> Option<u32> {
        match self {
            LinkError::Refused(refusal) => refusal.retry_after,
            LinkError::Http { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// What to tell the other side when this ends the link, if it is the other side's to know.
    pub(crate) fn for_peer(&self) -> Option<Refusal> {
        let refusal = |code, what_to_do| Some(Refusal::new(code, self.to_string(), what_to_do));
        match self {
            LinkError::RefusedPeer(refusal) => Some(refusal.clone()),
            LinkError::Protocol(FrameError::UnknownVersion { .. }) => {
                refusal(RefusalCode::UnsupportedVersion, "update the older of the two sides")
            }
            LinkError::Protocol(_) | LinkError::BadPayload { .. } | LinkError::Unexpected { .. } => refusal(
                RefusalCode::ProtocolError,
                "update the older of the two sides; if both are current, report this sentence",
            ),
            LinkError::Silent(_) | LinkError::TimedOut { .. } => {
                refusal(RefusalCode::TimedOut, "check the network and connect again")
            }
            _ => None,
        }
    }
}

impl From<tungstenite::Error> for LinkError {
    fn from(error: tungstenite::Error) -> LinkError {
        match error {
            // The last is what a write meets behind the other side's close, which whoever reads is told.
            tungstenite::Error::ConnectionClosed
            | tungstenite::Error::AlreadyClosed
            | tungstenite::Error::Protocol(tungstenite::error::ProtocolError::SendAfterClosing) => {
                LinkError::Lost("the connection is closed".to_owned())
            }
            tungstenite::Error::Capacity(error) => {
                LinkError::Unexpected { found: error.to_string(), expected: "a message within the limit" }
            }
            tungstenite::Error::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake) => {
                LinkError::Lost("it ended without a close".to_owned())
            }
            tungstenite::Error::Protocol(error) => {
                LinkError::Unexpected { found: error.to_string(), expected: "WebSocket" }
            }
            // The peer's fault as well, and no cut.
            tungstenite::Error::Utf8(error) => LinkError::Unexpected { found: error, expected: "WebSocket" },
            error => LinkError::Lost(error.to_string()),
        }
    }
}
