//! Deadlines of a link, each with its reason, and the settings of the WebSocket below it.

use std::time::Duration;

use kvasir_wire::limits::MAX_MESSAGE_BYTES;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use crate::socket::Congestion;

/// Deadlines and sockets. The defaults suit a worker behind carrier NAT; tests shorten them.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// Congestion control of the TCP connection, as the environment says unless told otherwise.
    pub congestion: Congestion,
    /// Name resolution, TCP and TLS together.
    pub connect: Duration,
    /// From the upgrade request to the welcome.
    pub handshake: Duration,
    /// From signing the transcript to the other end's signature.
    pub pairing: Duration,
    /// Silence after which a ping is sent; up to a third is added so that many links do not ping at once. Below the
    /// shortest idle time of HTTP middleboxes seen, 30 s.
    pub ping_after: Duration,
    /// Silence after a ping that means the link is dead. Generous, since a worker's processors are busy by design.
    pub dead_after: Duration,
    /// A write without progress for so long ends the link.
    pub write_stall: Duration,
    /// What is queued when a link is closed in order must be written within this.
    pub close_drain: Duration,
    /// Time for the other side to answer a close.
    pub close_linger: Duration,
    /// How long a session goes on without a connection: the hub waits so long for an end that it lost ([`BACKBONE_RESUME`] at
    /// most for a backbone), an end dials so long (a backbone [`USER_TIMEOUT`](crate::USER_TIMEOUT) longer than it is waited for at
    /// most). Beyond what two sides differ by in finding a silent path dead, which is what
    /// the other deadlines here and [`USER_TIMEOUT`](crate::USER_TIMEOUT) make it. Zero: not at all.
    pub resume_within: Duration,
    /// At the hub: whether a worker that asks for it may open a second connection for the bulk of its session.
    pub bulk_connection: bool,
}

/// The same for a backbone: it is on the hub's LAN, where a lost connection is rather a lost process, and workers wait.
pub const BACKBONE_RESUME: Duration = Duration::from_secs(5);

impl Default for LinkOptions {
    fn default() -> Self {
        LinkOptions {
            congestion: Congestion::from_environment(),
            connect: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            pairing: Duration::from_secs(10),
            ping_after: Duration::from_secs(15),
            dead_after: Duration::from_secs(15),
            write_stall: Duration::from_secs(10),
            close_drain: Duration::from_secs(5),
            close_linger: Duration::from_secs(2),
            resume_within: Duration::from_secs(30),
            bulk_connection: false,
        }
    }
}

/// Settings for every WebSocket of Kvasir: nothing larger than one message, small buffers, no hoarding of writes.
pub fn websocket_config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(16 * 1024)
        // Each message goes to the socket at once: what waits, waits where the lanes are compared.
        .write_buffer_size(0)
        .max_write_buffer_size(4 * MAX_MESSAGE_BYTES)
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::USER_TIMEOUT;

    #[test]
    fn who_finds_a_silent_path_dead_first_waits_for_who_finds_it_last() {
        let LinkOptions { ping_after, dead_after, write_stall, resume_within, .. } = LinkOptions::default();
        // Who writes, and gets rid of nothing or has nothing acknowledged;
        let first = write_stall.min(USER_TIMEOUT);
        // who only listens, and pings as late as a link may.
        let last = ping_after + ping_after / 3 + dead_after;
        let to_dial = Duration::from_secs(5);
        assert!(resume_within >= last - first + to_dial);
    }
}
