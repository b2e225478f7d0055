//! Listening sockets: binding with an error that says what to do, taking over one that another process made, and surviving
//! failed accepts.

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
    /// The one at standard input cannot be used.
    #[error("the listening socket at standard input: {0}")]
    Inherited(io::Error),
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

/// A socket that listens, and whether this process was started to take one over.
#[derive(Debug)]
pub struct Listening {
    /// The socket.
    pub listener: TcpListener,
    /// Whether a listening socket was at standard input, be it this one or not: then another process may still have what this one
    /// needs.
    pub takes_over: bool,
}

/// The listening socket at standard input if it has this address, or if none is asked for; else a new one. `None` where there is
/// neither a socket nor an address.
///
/// A process that hands over its work gives its successor the socket so, and so does a service manager that made it. Nobody has
/// one there by chance. Number 3 and up, as `LISTEN_FDS` has it, could be taken over by `unsafe` code alone.
pub fn inherit_or_bind(
    address: Option<SocketAddr>,
    congestion: &Congestion,
) -> Result<Option<Listening>, ListenError> {
    let inherited = inherited(congestion).map_err(ListenError::Inherited)?;
    let takes_over = inherited.is_some();
    if let Some(listener) = inherited {
        let found = local_address(&listener)?;
        if address.is_none_or(|wanted| is_at(found, wanted)) {
            return Ok(Some(Listening { listener, takes_over }));
        }
        tracing::warn!(%found, ?address, "the socket at standard input is left: another address is asked for");
    }
    let listener = address.map(|address| bind(address, congestion)).transpose()?;
    Ok(listener.map(|listener| Listening { listener, takes_over }))
}

#[cfg(target_os = "linux")]
fn inherited(congestion: &Congestion) -> io::Result<Option<TcpListener>> {
    use std::os::fd::AsFd as _;

    use rustix::fs::FileType;

    let input = io::stdin();
    let is_socket = rustix::fs::fstat(&input)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket);
    match is_socket {
        true => kvasir_link::adopt_listener(input.as_fd().try_clone_to_owned()?, congestion),
        false => Ok(None),
    }
}

#[cfg(not(target_os = "linux"))]
fn inherited(_: &Congestion) -> io::Result<Option<TcpListener>> {
    Ok(None)
}

/// Whether a socket's address is the one that is asked for; port 0 asks for any.
fn is_at(found: SocketAddr, wanted: SocketAddr) -> bool {
    found.ip() == wanted.ip() && (wanted.port() == 0 || wanted.port() == found.port())
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

    #[test]
    fn a_socket_is_taken_over_only_at_the_address_that_is_asked_for() {
        let at = |found: &str, wanted: &str| is_at(found.parse().unwrap(), wanted.parse().unwrap());
        assert!(at("127.0.0.1:443", "127.0.0.1:443") && at("[::]:443", "[::]:443"));
        assert!(at("127.0.0.1:443", "127.0.0.1:0"), "any port");
        assert!(!at("127.0.0.1:443", "127.0.0.1:444") && !at("127.0.0.1:443", "0.0.0.0:443"));
    }

    #[tokio::test]
    async fn without_a_socket_at_standard_input_an_address_is_needed() {
        assert!(inherit_or_bind(None, &Congestion::System).unwrap().is_none());
        let bound = inherit_or_bind(Some(([127, 0, 0, 1], 0).into()), &Congestion::System).unwrap().unwrap();
        assert!(!bound.takes_over);
    }
}
