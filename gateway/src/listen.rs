//! Listening sockets: binding with an error that says what to do, and surviving failed accepts.

use std::{io, net::SocketAddr, time::Duration};

use kvasir_link::{Congestion, socket_for};
use tokio::net::TcpListener;

/// Connections that the system may hold ready before they are accepted.
const BACKLOG: u32 = 1024;
/// Pause after a failed accept, for example when no descriptor is left: without it the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process has it.
    #[error("{address} is in use by another process: stop it, or choose another address with --listen")]
    InUse {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The user may not.
    #[error(
        "{address} may not be listened on by this user: choose a port above 1023, or grant CAP_NET_BIND_SERVICE"
    )]
    Forbidden {
        /// The address asked for.
        address: SocketAddr,
    },
    /// Anything else.
    #[error("listening on {address}: {source}")]
    Other {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// Binds and listens with a prepared socket. Must be called within a tokio runtime.
pub fn bind(address: SocketAddr, congestion: &Congestion) -> Result<TcpListener, ListenError> {
    let listen = || {
        // Accepted connections inherit its options.
        let socket = socket_for(address, congestion)?;
        // A restart must not wait for the old connections' TIME_WAIT; a second listener still fails.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { address },
        io::ErrorKind::PermissionDenied => ListenError::Forbidden { address },
        _ => ListenError::Other { address, source },
    })
}

/// The address that a listener has.
pub fn local_address(listener: &TcpListener) -> Result<SocketAddr, ListenError> {
    listener.local_addr().map_err(|source| ListenError::Other { address: ([0, 0, 0, 0], 0).into(), source })
}

/// Says that an accept failed and waits a moment.
pub async fn accept_failed(error: &io::Error) {
    tracing::error!(
        "accepting a connection: {error}; if descriptors ran out, raise LimitNOFILE or lower the caps"
    );
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_in_use_is_said_to_be() {
        let first = bind(([127, 0, 0, 1], 0).into(), &Congestion::System).unwrap();
        let address = local_address(&first).unwrap();
        let error = bind(address, &Congestion::System).unwrap_err();
        assert!(matches!(error, ListenError::InUse { .. }));
        assert!(error.to_string().contains("--listen"));
    }
}
