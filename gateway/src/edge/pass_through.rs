//! Passing connections through by the server's name in their ClientHello: the edge reads the hello, sends it on as it came,
//! and splices. TLS ends at the backend; the edge has neither its key nor its certificate, and sees ciphertext.
//!
//! What asks for no listed name is the edge's own, as if there were no list. An edge that ends no TLS at all refuses it with
//! the alert that RFC 6066 or RFC 8446 has for it. No backend is dialled for a connection without a listed name, but whoever
//! knows one gets that far without a ticket: such connections have half of the places at most, so that workers have the rest.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kvasir_link::connect_tcp;
use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{
    OwnTls, Shared,
    client_hello::{self, ClientHello, HelloError, MAX_CLIENT_HELLO_BYTES, is_host_name},
    connection::refuse,
    proxy_header,
    replayed::Replayed,
    slots::{Cap, Slot},
    splice::{Spliced, splice_metered},
};

/// How long a ClientHello may take, where there are names to look for.
pub const CLIENT_HELLO_TIME: Duration = Duration::from_secs(5);
/// Most names.
pub const MAX_ROUTES: usize = 64;

/// Alerts of TLS (RFC 8446, section 6), all fatal here.
const DECODE_ERROR: u8 = 50;
const INTERNAL_ERROR: u8 = 80;
const MISSING_EXTENSION: u8 = 109;
const UNRECOGNIZED_NAME: u8 = 112;

/// Where connections that ask for a name go: `[[edge.pass_through]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The name; letter case does not matter.
    pub name: String,
    /// The backend, as `host:port`.
    pub to: String,
    /// Whether a PROXY header of version 2 tells the backend who the client is. One that does not expect it takes it for a
    /// broken handshake.
    #[serde(default)]
    pub proxy_protocol: bool,
}

/// All names that are passed through.
#[derive(Clone, Debug, Default)]
pub struct Routes(HashMap<String, Arc<Route>>);

/// Why a list of names cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// There are too many.
    #[error("edge.pass_through lists {0} names, at most {MAX_ROUTES} are looked for")]
    TooMany(usize),
    /// A name could never stand in a ClientHello.
    #[error(
        "edge.pass_through: {0:?} is no server name: write it as clients ask for it, without a dot at the end and no address"
    )]
    Name(String),
    /// A name is listed more than once.
    #[error("edge.pass_through lists {0} twice")]
    Twice(String),
    /// A backend is no `host:port`.
    #[error("edge.pass_through: {0:?} is no backend: write host:port, such as 10.0.0.2:7443")]
    Backend(String),
}

impl Routes {
    /// Checks a list. It may be empty.
    pub fn new(routes: Vec<Route>) -> Result<Self, RouteError> {
        if routes.len() > MAX_ROUTES {
            return Err(RouteError::TooMany(routes.len()));
        }
        let mut by_name = HashMap::new();
        for mut route in routes {
            route.name.make_ascii_lowercase();
            if !is_host_name(route.name.as_bytes()) || route.name.parse::<IpAddr>().is_ok() {
                return Err(RouteError::Name(route.name));
            }
            let port = route.to.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
            if !port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0)) {
                return Err(RouteError::Backend(route.to));
            }
            if let Some(before) = by_name.insert(route.name.clone(), Arc::new(route)) {
                return Err(RouteError::Twice(before.name.clone()));
            }
        }
        Ok(Routes(by_name))
    }

    /// Whether nothing is passed through.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a name is passed through; it is in lower case.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Where a name goes; it is in lower case.
    fn find(&self, name: &str) -> Option<&Arc<Route>> {
        self.0.get(name)
    }
}

/// Most connections that are passed through, of so many connections.
fn most_passed(connections: usize, ends_tls: bool) -> usize {
    if ends_tls { connections / 2 } else { connections }
}

/// How many connections are passed through.
#[derive(Debug, Default)]
pub(super) struct Places(AtomicUsize);

/// One of them. Dropping it gives its place back.
struct Place(Arc<Places>);

impl Places {
    /// A place, unless so many are taken.
    fn take(self: &Arc<Self>, most: usize) -> Option<Place> {
        let more = |taken: usize| (taken < most).then_some(taken.saturating_add(1));
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Place(self.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whose connection it is.
pub(super) enum Routed<'a> {
    /// The edge's own.
    Own(&'a OwnTls, Replayed<TcpStream>),
    /// A backend's, which has the ClientHello.
    Passed(Passed),
}

/// A connection and its backend.
pub(super) struct Passed {
    client: TcpStream,
    backend: TcpStream,
    route: Arc<Route>,
    _place: Place,
}

impl Passed {
    /// The name that was asked for, and the backend.
    pub(super) fn route(&self) -> Arc<Route> {
        self.route.clone()
    }

    /// Moves bytes until one of them has enough.
    pub(super) async fn splice(mut self, shared: &Shared) -> Spliced {
        let metrics = &shared.metrics;
        metrics.door.handshakes.count("passed_through");
        let _open = metrics.passage();
        splice_metered(&mut self.client, &mut self.backend, shared.options.splice, &metrics.passed).await
    }
}

/// Why a connection is neither passed through nor the edge's own.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotPassed {
    #[error("reading the ClientHello: {0}")]
    Stream(#[from] io::Error),
    #[error("no whole ClientHello within {} s", .0.as_secs_f32())]
    Late(Duration),
    #[error("{0}")]
    Hello(#[from] HelloError),
    #[error("nothing is served under the name {0}")]
    UnknownName(String),
    #[error("the ClientHello names no server, and without a name nothing is served")]
    NoName,
    #[error("too many connections: {0}")]
    Full(&'static str),
    #[error("the backend {to} does not answer: {source}")]
    Backend { to: String, source: io::Error },
}

impl NotPassed {
    /// One word for metrics.
    pub(super) fn name(&self) -> &'static str {
        match self {
            NotPassed::Stream(_) | NotPassed::Late(_) | NotPassed::Hello(_) => "no_client_hello",
            NotPassed::UnknownName(_) | NotPassed::NoName => "unknown_name",
            NotPassed::Full(_) => "pass_through_full",
            NotPassed::Backend { .. } => "backend_unreachable",
        }
    }

    /// What the client is told in TLS; nothing where it does not speak it, or says nothing.
    fn alert(&self) -> Option<u8> {
        match self {
            NotPassed::Stream(_) | NotPassed::Late(_) | NotPassed::Hello(HelloError::NotHello) => None,
            NotPassed::Hello(_) => Some(DECODE_ERROR),
            NotPassed::UnknownName(_) => Some(UNRECOGNIZED_NAME),
            NotPassed::NoName => Some(MISSING_EXTENSION),
            // There is no alert for either; this one says that it is not the client's fault.
            NotPassed::Full(_) | NotPassed::Backend { .. } => Some(INTERNAL_ERROR),
        }
    }
}

/// Looks at the ClientHello, where there are names to look for, and connects what asks for one of them. `source` is the
/// client's address as far as it is known. The alert has been sent when this returns an error that has one.
pub(super) async fn route<'a>(
    shared: &'a Shared,
    mut client: TcpStream,
    slot: &mut Slot,
    source: SocketAddr,
) -> Result<Routed<'a>, NotPassed> {
    let routes = shared.routes();
    if let Some(own) = &shared.own
        && routes.is_empty()
    {
        return Ok(Routed::Own(own, Replayed::new(Vec::new(), client)));
    }
    match choose(shared, &routes, &mut client, slot, source).await {
        Ok(Choice::Own(own, first)) => Ok(Routed::Own(own, Replayed::new(first, client))),
        Ok(Choice::Backend(backend, route, place)) => {
            Ok(Routed::Passed(Passed { client, backend, route, _place: place }))
        }
        Err(why) => {
            if let Some(alert) = why.alert() {
                refuse(&mut client, &alert_record(alert)).await;
            }
            Err(why)
        }
    }
}

enum Choice<'a> {
    Own(&'a OwnTls, Vec<u8>),
    Backend(TcpStream, Arc<Route>, Place),
}

async fn choose<'a>(
    shared: &'a Shared,
    routes: &Routes,
    client: &mut TcpStream,
    slot: &mut Slot,
    source: SocketAddr,
) -> Result<Choice<'a>, NotPassed> {
    let time = shared.options.client_hello_time;
    let (first, hello) = timeout(time, read_hello(client)).await.map_err(|_| NotPassed::Late(time))??;
    let name = hello.as_ref().ok().and_then(|hello| hello.server_name.as_deref());
    if let Some(route) = name.and_then(|name| routes.find(name)) {
        let (backend, place) = connect(shared, client, slot, source, route, &first).await?;
        return Ok(Choice::Backend(backend, route.clone(), place));
    }
    match (&shared.own, hello) {
        (Some(own), _) => Ok(Choice::Own(own, first)),
        (None, Err(error)) => Err(error.into()),
        (None, Ok(ClientHello { server_name: Some(name) })) => Err(NotPassed::UnknownName(name)),
        (None, Ok(ClientHello { server_name: None })) => Err(NotPassed::NoName),
    }
}

/// Reads until there is a ClientHello, or it is clear that there is none: all bytes that came, and which of the two.
async fn read_hello<S: AsyncRead + Unpin>(
    stream: &mut S,
) -> io::Result<(Vec<u8>, Result<ClientHello, HelloError>)> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        // Never zero: at the limit there is an answer.
        let room = MAX_CLIENT_HELLO_BYTES - bytes.len();
        if (&mut *stream).take(room as u64).read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match client_hello::read(&bytes) {
            Ok(None) => {}
            Ok(Some(hello)) => return Ok((bytes, Ok(hello))),
            Err(error) => return Ok((bytes, Err(error))),
        }
    }
}

/// Connects to the backend and hands over what the client has said.
async fn connect(
    shared: &Shared,
    client: &TcpStream,
    slot: &mut Slot,
    source: SocketAddr,
    route: &Route,
    first: &[u8],
) -> Result<(TcpStream, Place), NotPassed> {
    match slot.over() {
        Some(Cap::PerAddress) => return Err(NotPassed::Full("this address has as many as it may")),
        Some(Cap::Connections) => return Err(NotPassed::Full("this edge has as many as it may")),
        None => {}
    }
    let most = most_passed(shared.gate.limits().connections, shared.own.is_some());
    let place = shared.passing.take(most).ok_or(NotPassed::Full("as many are passed through as may be"))?;
    let connected = async {
        let mut backend = connect_tcp(&route.to, &shared.options.congestion).await?;
        let mut beginning = Vec::new();
        if route.proxy_protocol {
            beginning = proxy_header::encode(source, client.local_addr()?);
        }
        beginning.extend_from_slice(first);
        backend.write_all(&beginning).await?;
        io::Result::Ok(backend)
    };
    // Not an error in the log: anybody who knows the name could fill it.
    let backend = connected.await.map_err(|source| NotPassed::Backend { to: route.to.clone(), source })?;
    // It will never show a ticket, and has its place among those that need none.
    slot.authenticated();
    Ok((backend, place))
}

/// A fatal alert in a record of its own, as it stands before any keys.
fn alert_record(description: u8) -> [u8; 7] {
    [21, 3, 3, 0, 2, 2, description]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(name: &str, to: &str) -> Route {
        Route { name: name.into(), to: to.into(), proxy_protocol: false }
    }

    #[test]
    fn names_are_found_whatever_their_case_and_a_bad_list_is_said() {
        let routes = Routes::new(vec![route("Hub.Example", "10.0.0.2:7443"), route("b.example", "[::1]:1")]);
        let routes = routes.unwrap();
        assert_eq!(routes.find("hub.example").unwrap().to, "10.0.0.2:7443");
        assert!(routes.has("hub.example") && !routes.has("example"));
        assert!(routes.find("example").is_none() && routes.find("a.hub.example").is_none());
        assert!(Routes::new(Vec::new()).unwrap().is_empty());
        let twice = Routes::new(vec![route("a.b", "c:1"), route("A.B", "d:1")]).unwrap_err();
        assert_eq!(twice, RouteError::Twice("a.b".into()));
        for name in ["", "a.b.", "*.example", "10.0.0.1", "h\u{fc}b.example", "a b"] {
            assert!(matches!(Routes::new(vec![route(name, "c:1")]), Err(RouteError::Name(_))), "{name}");
        }
        for to in ["", "host", ":1", "host:", "host:0", "host:65536", "host:https"] {
            assert!(matches!(Routes::new(vec![route("a.b", to)]), Err(RouteError::Backend(_))), "{to}");
        }
        let many = |count: usize| -> Vec<Route> {
            (0..count).map(|number| route(&format!("n{number}.example"), "c:1")).collect()
        };
        assert!(Routes::new(many(MAX_ROUTES)).is_ok());
        assert_eq!(Routes::new(many(MAX_ROUTES + 1)).unwrap_err(), RouteError::TooMany(MAX_ROUTES + 1));
    }

    #[tokio::test]
    async fn a_hello_is_read_to_its_limit_and_no_further() {
        let mut endless = vec![22_u8, 3, 1, 0, 1, 1];
        while endless.len() < 4 * MAX_CLIENT_HELLO_BYTES {
            endless.extend_from_slice(&[22, 3, 1, 0, 1, 0]);
        }
        // A message of 8,192 bytes, one in each record.
        endless[11] = 0;
        endless[17] = 0x20;
        let mut stream = endless.as_slice();
        let (bytes, hello) = read_hello(&mut stream).await.unwrap();
        assert_eq!(hello, Err(HelloError::TooLong));
        assert_eq!(bytes.len(), MAX_CLIENT_HELLO_BYTES);
        assert_eq!(stream.len(), endless.len() - bytes.len());
        let mut cut_off = &endless[..100];
        let error = read_hello(&mut cut_off).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn those_that_are_passed_through_have_half_of_the_places_beside_own_sessions() {
        assert_eq!((most_passed(4_000, true), most_passed(4_000, false)), (2_000, 4_000));
        let places = Arc::new(Places::default());
        let (first, second) = (places.take(2), places.take(2));
        assert!(first.is_some() && second.is_some() && places.take(2).is_none());
        drop(first);
        assert!(places.take(1).is_none(), "a cap that became smaller holds");
        let third = places.take(2);
        assert!(third.is_some() && places.take(2).is_none(), "what is given back is given again");
        drop((second, third));
        assert!(places.take(usize::MAX).is_some());
    }
}
