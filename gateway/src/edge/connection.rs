//! One connection of the edge: what it becomes - a worker's session, a passage to a backend, or nothing - and its splice.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime},
};

use kvasir_link::{Paced, WORKER_PATH, connect_tcp};
use kvasir_wire::ticket::Role;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    OwnTls, Shared,
    pass_through::{self, NotPassed, Passed, Routed},
    proxy_header::{self, ProxyHeaderError},
    records::Records,
    replayed::Replayed,
    slots::{Cap, Slot},
    splice::{SpliceEnd, Spliced, splice_metered},
    trusted::TrustedPeers,
};
use crate::{
    acme::PROTOCOL,
    http_head::{HeadError, RequestHead},
    http_refusal::HttpRefusal,
    ticket_check,
};

/// How long, and for how many bytes, a refused peer is read on so that it can receive its answer.
const REFUSED_READ_TIME: Duration = Duration::from_secs(2);
const REFUSED_READ_BYTES: u64 = 256 * 1024;

/// One connection, from accept to its end.
pub(super) async fn serve(shared: Arc<Shared>, stream: TcpStream, peer: SocketAddr, mut slot: Slot) {
    let started = Instant::now();
    let deadline = started + shared.options.upgrade_deadline;
    let door = &shared.metrics.door;
    let mut from = peer.ip();
    let evicted = slot.evicted();
    let joined = tokio::select! {
        // On the heap, so that its space is free again while the session lasts.
        joined = timeout_at(deadline, Box::pin(join(&shared, stream, peer, &mut slot, &mut from))) => joined,
        () = evicted => {
            door.handshakes.count("evicted");
            tracing::debug!(%peer, client = %from, "closed for a newer connection: too many have shown no ticket");
            return;
        }
    };
    let joined = match joined {
        Ok(Ok(joined)) => joined,
        Ok(Err(failure)) => {
            door.handshakes.count(failure.name());
            if let NotJoined::Refused(refusal) = &failure {
                door.refused.count(refusal.code());
                shared.refusals.note(from, refusal);
            }
            match failure.is_for_people() {
                true => tracing::info!(%peer, client = %from, "not upgraded: {failure}"),
                false => tracing::debug!(%peer, client = %from, "not upgraded: {failure}"),
            }
            return;
        }
        Err(_) => {
            door.handshakes.count("timed_out");
            let limit = shared.options.upgrade_deadline.as_secs_f32();
            tracing::debug!(%peer, client = %from, "not upgraded: not done within {limit} s of the accept");
            return;
        }
    };
    let seconds = || started.elapsed().as_secs();
    match joined {
        Joined::Session(client, hub) => {
            let spliced = session(&shared, client, hub).await;
            let (to_hub, from_hub, seconds) = (spliced.forward, spliced.backward, seconds());
            let (end, error) = (spliced.end.name(), error_of(&spliced));
            tracing::info!(%peer, client = %from, end, error, to_hub, from_hub, seconds, "session ended");
        }
        Joined::Passed(passed) => {
            let route = passed.route();
            let spliced = passed.splice(&shared).await;
            let (forward, backward, seconds) = (spliced.forward, spliced.backward, seconds());
            let (end, error) = (spliced.end.name(), error_of(&spliced));
            let (server, to) = (route.name.as_str(), route.to.as_str());
            tracing::info!(%peer, client = %from, server, to, end, error, forward, backward, seconds, "passed through");
        }
        Joined::Challenge => {
            door.handshakes.count("acme_challenge");
            tracing::info!(%peer, client = %from, "a challenge of an ACME server was answered");
        }
    }
}

/// A connection whose TLS ends here.
type Client = Paced<Replayed<TcpStream>, Records>;

/// What a connection has become.
enum Joined {
    /// A worker's, whose TLS ends here, and the hub's.
    Session(Box<TlsStream<Client>>, TcpStream),
    /// One whose TLS ends at a backend.
    Passed(Passed),
    /// An ACME server's, which has seen what it came for.
    Challenge,
}

/// Bytes between a worker and the hub, to the end of it.
async fn session(shared: &Shared, mut client: Box<TlsStream<Client>>, mut hub: TcpStream) -> Spliced {
    shared.metrics.door.handshakes.count("spliced");
    let mut open = shared.metrics.door.session();
    let limits = shared.options.splice;
    let spliced = splice_metered(&mut *client, &mut hub, limits, &shared.metrics.splice).await;
    open.ends_for(spliced.end.name());
    spliced
}

fn error_of(spliced: &Spliced) -> String {
    match &spliced.end {
        SpliceEnd::Failed(error) => error.to_string(),
        _ => String::new(),
    }
}

/// Why a connection has become nothing.
#[derive(Debug, thiserror::Error)]
enum NotJoined {
    #[error("{0}")]
    Refused(HttpRefusal),
    #[error("{0}")]
    Proxy(#[from] ProxyHeaderError),
    #[error("a proxy looked whether anybody listens here")]
    Looked,
    #[error("{0}")]
    Passed(#[from] NotPassed),
    #[error("TLS handshake: {0}")]
    Tls(io::Error),
    #[error("{0}")]
    Head(#[from] HeadError),
    #[error("the client went away: {0}")]
    Client(io::Error),
}

impl NotJoined {
    /// One word for metrics.
    fn name(&self) -> &'static str {
        match self {
            NotJoined::Refused(_) => "refused",
            NotJoined::Proxy(_) => "bad_proxy_header",
            NotJoined::Passed(why) => why.name(),
            NotJoined::Tls(_) => "tls_failed",
            NotJoined::Head(_) => "no_head",
            NotJoined::Client(_) | NotJoined::Looked => "client_gone",
        }
    }

    /// Whether an operator wants to read it without asking for more. Everything else costs whoever connects next to nothing,
    /// comes as often as the accept rate allows, and is in the metrics.
    fn is_for_people(&self) -> bool {
        match self {
            NotJoined::Refused(_) => true,
            NotJoined::Passed(why) => matches!(why, NotPassed::Full(_) | NotPassed::Backend { .. }),
            NotJoined::Proxy(_)
            | NotJoined::Looked
            | NotJoined::Tls(_)
            | NotJoined::Head(_)
            | NotJoined::Client(_) => false,
        }
    }
}

/// PROXY header, ClientHello where names are passed through, TLS, head, ticket, hub: what the one deadline covers. A refusal
/// has been sent when this returns it. `from` becomes the client's address, as far as trust goes.
async fn join(
    shared: &Shared,
    mut stream: TcpStream,
    peer: SocketAddr,
    slot: &mut Slot,
    from: &mut IpAddr,
) -> Result<Joined, NotJoined> {
    stream.set_nodelay(true).map_err(NotJoined::Client)?;
    *from = behind_proxy(&shared.proxy_protocol_peers(), &mut stream, *from).await?;
    slot.belongs_to(*from);
    // Of a client behind a proxy only the address is known.
    let port = if *from == peer.ip() { peer.port() } else { 0 };
    let source = SocketAddr::new(*from, port);
    let (own, stream) = match pass_through::route(shared, stream, slot, source).await? {
        Routed::Own(own, stream) => (own, stream),
        Routed::Passed(passed) => return Ok(Joined::Passed(passed)),
    };
    let stream = Client::new(stream, b"");
    let mut client = TlsAcceptor::from(own.config.clone()).accept(stream).await.map_err(NotJoined::Tls)?;
    if client.get_ref().1.alpn_protocol() == Some(PROTOCOL) {
        // The handshake was the answer. Nothing is said inside, and nothing that comes is looked at.
        refuse(&mut client, b"").await;
        return Ok(Joined::Challenge);
    }
    let joined = match RequestHead::read(&mut client).await {
        Ok(head) => match forwarded(shared, &head, slot, from) {
            Ok(()) => join_hub(shared, own, &head, slot).await,
            Err(refusal) => Err(refusal),
        },
        Err(HeadError::Refused(refusal)) => Err(refusal),
        Err(error) => return Err(error.into()),
    };
    match joined {
        Ok((hub, first)) => {
            client.write_all(&first).await.map_err(NotJoined::Client)?;
            Ok(Joined::Session(Box::new(client), hub))
        }
        Err(refusal) => {
            refuse(&mut client, &refusal.to_response()).await;
            Err(NotJoined::Refused(refusal))
        }
    }
}

/// Reads the PROXY header of a peer that sends one; answers whose connection it is.
async fn behind_proxy(
    senders: &TrustedPeers,
    stream: &mut TcpStream,
    peer: IpAddr,
) -> Result<IpAddr, NotJoined> {
    let is_proxy = senders.contains(peer);
    let mut first = [0; 1];
    let begins = match stream.peek(&mut first).await {
        // Closed or reset without a byte: that is how a proxy that passes TCP on sees whether this edge is up.
        Ok(0) | Err(_) if is_proxy => return Err(NotJoined::Looked),
        Ok(count) => count > 0 && proxy_header::begins(first[0]),
        Err(error) => return Err(NotJoined::Client(error)),
    };
    match (is_proxy, begins) {
        (true, true) => Ok(proxy_header::read(stream).await?.unwrap_or(peer)),
        (true, false) => Err(ProxyHeaderError::Missing.into()),
        (false, true) => Err(ProxyHeaderError::NotTrusted.into()),
        (false, false) => Ok(peer),
    }
}

/// Takes the client's address from the head, where a trusted peer sent it.
fn forwarded(
    shared: &Shared,
    head: &RequestHead,
    slot: &mut Slot,
    from: &mut IpAddr,
) -> Result<(), HttpRefusal> {
    *from = shared.trusted_peers().client(*from, head)?;
    slot.belongs_to(*from);
    Ok(())
}

/// Checks the head and connects it to the hub. Answers the hub's connection and its first bytes, which are not looked at:
/// they are the hub's own answer, upgrade or refusal.
async fn join_hub(
    shared: &Shared,
    own: &OwnTls,
    head: &RequestHead,
    slot: &mut Slot,
) -> Result<(TcpStream, Vec<u8>), HttpRefusal> {
    head.check_route(&[WORKER_PATH])?;
    head.check_upgrade()?;
    check_ticket(shared, own, head.bearer()?)?;
    match slot.over() {
        Some(Cap::PerAddress) => {
            let limit = shared.gate.limits().per_address;
            return Err(HttpRefusal::too_many(format!("this address has {limit} connections already"), 60));
        }
        Some(_) => {
            let limit = shared.gate.limits().connections;
            return Err(HttpRefusal::unavailable(
                format!("this edge holds {limit} connections, its limit"),
                60,
            ));
        }
        None => slot.authenticated(),
    }
    let unreachable = |error: io::Error| {
        tracing::error!(hub = shared.options.hub, "the hub does not answer: {error}");
        HttpRefusal::unavailable("the hub behind this edge does not answer".into(), 5)
    };
    let mut hub = connect_tcp(&shared.options.hub, &shared.options.congestion).await.map_err(unreachable)?;
    hub.write_all(head.all()).await.map_err(unreachable)?;
    let mut first = Vec::with_capacity(1024);
    if hub.read_buf(&mut first).await.map_err(unreachable)? == 0 {
        return Err(unreachable(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok((hub, first))
}

/// The edge's part of the ticket check: MAC (in constant time), expiry, network, and that it is a worker's. Everything
/// else, possession of the key included, is the hub's to check.
fn check_ticket(shared: &Shared, own: &OwnTls, ticket: &str) -> Result<(), HttpRefusal> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    ticket_check::at_edge(ticket, &own.edge_key, &shared.options.network, now, Role::Worker).map(|_| ())
}

/// Sends a refusal and reads on for a moment: closing with unread bytes would reset the connection and take the answer
/// with it.
pub(super) async fn refuse<S>(client: &mut S, answer: &[u8])
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let told = async {
        client.write_all(answer).await?;
        client.shutdown().await?;
        let mut unread = (&mut *client).take(REFUSED_READ_BYTES);
        tokio::io::copy(&mut unread, &mut tokio::io::sink()).await
    };
    if let Ok(Err(error)) = timeout(REFUSED_READ_TIME, told).await {
        tracing::debug!("sending the refusal: {error}");
    }
}
