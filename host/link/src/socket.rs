//! What a TCP socket is told before it connects or listens, so that a small message finds short queues and a full rate.
//!
//! The kernel's defaults suit downloads. Four of them cost a dispatch frame time: Nagle's algorithm, megabytes of unsent
//! bytes below the choice of lanes, minutes until a dead path is given up, and a congestion control that paces. Sockets
//! that are accepted inherit what their listener was told.
//!
//! Only the first is necessary; what a system refuses or does not know is said once in the log and done without.

use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
#[cfg(target_os = "linux")]
use tokio::net::TcpListener;
use tokio::net::{TcpSocket, TcpStream, ToSocketAddrs, lookup_host};

/// The environment variable that names the congestion control of every program: an algorithm, or `system`.
pub const CONGESTION_VARIABLE: &str = "KVASIR_TCP_CONGESTION";

/// Bytes that the kernel may hold unsent. It wakes the writer at half of it; more would be out of the scheduler's hands.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NOT_SENT_LOW_WATER_BYTES: u32 = 32 * 1024;
/// Sent bytes that nobody acknowledges, or bytes that nobody takes, for so long end the connection, where the system has such a
/// limit: another try is cheap.
pub const USER_TIMEOUT: Duration = Duration::from_secs(15);
/// Silence after which the kernel asks whether the other side is there. Links ping by themselves and earlier; this is for
/// the time before a link and for connections that only carry one.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
/// Time between such questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The choice unless told otherwise. Both send what fits their window at once, where BBR paces a message of 12 KiB over half
/// a round trip; cubic fills a long path sooner after a loss, reno is permitted where cubic is not.
#[cfg(target_os = "linux")]
const PREFERRED: [&str; 2] = ["cubic", "reno"];

/// Which congestion control to ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Congestion {
    /// Cubic, or reno where cubic is not permitted, or else the system's.
    #[default]
    Preferred,
    /// This one, or else the system's.
    Named(String),
    /// Whatever the system has.
    System,
}

impl Congestion {
    /// What [`CONGESTION_VARIABLE`] says; [`Congestion::Preferred`] where it is not set.
    pub fn from_environment() -> Self {
        match std::env::var(CONGESTION_VARIABLE) {
            Ok(name) if name == "system" => Congestion::System,
            Ok(name) if !name.is_empty() => Congestion::Named(name),
            _ => Congestion::Preferred,
        }
    }

    #[cfg(target_os = "linux")]
    fn candidates(&self) -> Vec<&str> {
        match self {
            Congestion::Preferred => PREFERRED.to_vec(),
            Congestion::Named(name) => vec![name],
            Congestion::System => Vec::new(),
        }
    }
}

/// A socket for `address`, prepared, and neither connected nor listening.
pub fn socket_for(address: SocketAddr, congestion: &Congestion) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    prepare(&SockRef::from(&socket), congestion)?;
    Ok(socket)
}

/// Takes over a socket that another process made, with the same options for the connections that it accepts from here on.
/// `None` where it does not listen for TCP. Must be called within a tokio runtime.
#[cfg(target_os = "linux")]
pub fn adopt_listener(
    socket: std::os::fd::OwnedFd,
    congestion: &Congestion,
) -> io::Result<Option<TcpListener>> {
    {
        let options = SockRef::from(&socket);
        if !options.is_listener()? || options.local_addr()?.as_socket().is_none() {
            return Ok(None);
        }
        prepare(&options, congestion)?;
    }
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener).map(Some)
}

fn prepare(options: &SockRef<'_>, congestion: &Congestion) -> io::Result<()> {
    // A dispatch frame must not wait for the acknowledgement of the one before.
    options.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_INTERVAL);
    optional("keepalive", options.set_tcp_keepalive(&keepalive));
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        optional("TCP_NOTSENT_LOWAT", options.set_tcp_notsent_lowat(NOT_SENT_LOW_WATER_BYTES));
        optional("TCP_USER_TIMEOUT", options.set_tcp_user_timeout(Some(USER_TIMEOUT)));
    }
    choose_congestion(options, congestion);
    Ok(())
}

/// Connects to the first address of `target` that answers, with a prepared socket.
pub async fn connect(target: impl ToSocketAddrs, congestion: &Congestion) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let addresses: Vec<_> = lookup_host(target).await?.collect();
    for address in addresses {
        // A family of addresses that this system does not have is no reason to leave out the others.
        let attempt = async { socket_for(address, congestion)?.connect(address).await };
        match attempt.await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Must come before the connection: what BBR has set up for pacing stays when another takes its place.
#[cfg(target_os = "linux")]
fn choose_congestion(socket: &SockRef<'_>, congestion: &Congestion) {
    for name in congestion.candidates() {
        match socket.set_tcp_congestion(name.as_bytes()) {
            Ok(()) => return,
            Err(error) => say_once(&format!(
                "TCP congestion control {name} cannot be had here ({error}); is it listed in \
                 net.ipv4.tcp_allowed_congestion_control? Under BBR a round trip of dispatch takes up to twice as long"
            )),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn choose_congestion(_: &SockRef<'_>, congestion: &Congestion) {
    if matches!(congestion, Congestion::Named(_)) {
        say_once("on this system TCP congestion control is not a program's to choose: the system's is used");
    }
}

fn optional(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        say_once(&format!("the system refuses the socket option {what} ({error}): going on without"));
    }
}

/// Every connection would say the same; once is enough.
fn say_once(sentence: &str) {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut said = SAID.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !said.iter().any(|before| before == sentence) {
        tracing::warn!("{sentence}");
        said.push(sentence.to_owned());
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;

    use super::*;

    fn name(options: SockRef<'_>) -> String {
        let bytes = options.tcp_congestion().unwrap();
        String::from_utf8(bytes).unwrap().trim_end_matches('\0').to_owned()
    }

    fn check(stream: &TcpStream) {
        assert!(stream.nodelay().unwrap());
        let options = SockRef::from(stream);
        assert!(options.keepalive().unwrap());
        assert_eq!(options.tcp_notsent_lowat().unwrap(), NOT_SENT_LOW_WATER_BYTES);
        assert_eq!(options.tcp_user_timeout().unwrap(), Some(USER_TIMEOUT));
        // Reno is built into every kernel and permitted to everybody.
        assert_eq!(name(options), "reno");
    }

    #[tokio::test]
    async fn a_dialled_and_an_accepted_socket_have_the_options() {
        let reno = Congestion::Named("reno".to_owned());
        let address = ([127, 0, 0, 1], 0).into();
        let socket = socket_for(address, &reno).unwrap();
        socket.bind(address).unwrap();
        let listener = socket.listen(8).unwrap();
        let dialled = connect(listener.local_addr().unwrap(), &reno).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        check(&dialled);
        check(&accepted);
    }

    #[tokio::test]
    async fn a_listener_that_is_taken_over_gives_its_connections_the_options() {
        let reno = Congestion::Named("reno".to_owned());
        let made = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let listener = adopt_listener(made.into(), &reno).unwrap().unwrap();
        let _dialled = connect(listener.local_addr().unwrap(), &reno).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        check(&accepted);
        // Sockets that do not listen for TCP are none to take over.
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(adopt_listener(datagrams.into(), &reno).unwrap().is_none());
        let connected = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(adopt_listener(connected.into(), &reno).unwrap().is_none());
        let name = format!("kvasir-link-test-{}", std::process::id());
        let name = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let local = std::os::unix::net::UnixListener::bind_addr(&name).unwrap();
        assert!(adopt_listener(local.into(), &reno).unwrap().is_none());
    }

    #[tokio::test]
    async fn a_congestion_control_that_there_is_not_leaves_the_system_s() {
        let address = ([127, 0, 0, 1], 0).into();
        let system = name(SockRef::from(&socket_for(address, &Congestion::System).unwrap()));
        let socket = socket_for(address, &Congestion::Named("no-such-control".to_owned())).unwrap();
        assert_eq!(name(SockRef::from(&socket)), system);
        assert!(socket.nodelay().unwrap());
    }
}
