//! The edge: ends TLS, reads one request head, checks the ticket's MAC, and splices the connection to the hub.
//!
//! Nothing that has not shown a good ticket reaches the hub, and after the head not a byte is looked at. The edge holds no
//! signing key and keeps no books; what it knows about a session is how many bytes went by.

mod certificates;
mod metrics;
pub mod proxy_header;
mod report;
mod settings;
mod slots;
mod splice;
pub mod trusted;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use kvasir_link::{Congestion, WORKER_PATH, connect_tcp};
use kvasir_wire::ticket::{EdgeKey, Role};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

pub use certificates::{CertificateError, Certificates, RELOAD_INTERVAL};
pub use report::EdgeStatus;
pub use settings::{EdgeControl, EdgeSettings, HAND_OVER_TIME};
pub use slots::{Cap, Gate, Slot, SlotLimits};
pub use splice::{SpliceEnd, SpliceLimits, SpliceMeter, Spliced, splice, splice_metered};

use crate::{
    accept::{AcceptLimits, Doorkeeper, SharedLimits, Turned},
    http_head::{HeadError, RequestHead},
    http_refusal::HttpRefusal,
    listen::{self, ListenError},
    operations::Served,
    stop::Stop,
    ticket_check,
};
use metrics::EdgeMetrics;
use proxy_header::ProxyHeaderError;
use trusted::TrustedPeers;

/// From accept to the hub's first answer.
pub const UPGRADE_DEADLINE: Duration = Duration::from_secs(10);
/// How long sessions may go on after a stop was asked for.
pub const DRAIN_TIME: Duration = Duration::from_secs(30);
/// How long, and for how many bytes, a refused peer is read on so that it can receive its answer.
const REFUSED_READ_TIME: Duration = Duration::from_secs(2);
const REFUSED_READ_BYTES: u64 = 256 * 1024;

/// What an edge needs to know.
#[derive(Clone, Debug)]
pub struct EdgeOptions {
    /// Where to listen for TLS.
    pub listen: SocketAddr,
    /// The hub, as `host:port`.
    pub hub: String,
    /// The network that tickets must be for.
    pub network: String,
    /// How fast connections are accepted, and for how many descriptors.
    pub accept: AcceptLimits,
    /// Proxies that may say whom they speak for.
    pub trusted_peers: TrustedPeers,
    /// Caps on connections.
    pub slots: SlotLimits,
    /// How long a splice may stand still.
    pub splice: SpliceLimits,
    /// Congestion control of connections on both sides, as the environment says unless told otherwise.
    pub congestion: Congestion,
    /// From accept to the hub's first answer; [`UPGRADE_DEADLINE`] but in tests.
    pub upgrade_deadline: Duration,
    /// How long sessions may go on after a stop was asked for; [`DRAIN_TIME`] but in tests.
    pub drain_time: Duration,
}

impl EdgeOptions {
    /// Options with every limit at its default.
    pub fn new(listen: SocketAddr, hub: String, network: String) -> Self {
        EdgeOptions {
            listen,
            hub,
            network,
            accept: AcceptLimits::default(),
            trusted_peers: TrustedPeers::default(),
            slots: SlotLimits::default(),
            splice: SpliceLimits::default(),
            congestion: Congestion::from_environment(),
            upgrade_deadline: UPGRADE_DEADLINE,
            drain_time: DRAIN_TIME,
        }
    }
}

/// An edge that is bound to its address.
#[derive(Debug)]
pub struct Edge {
    listener: TcpListener,
    address: SocketAddr,
    certificates: Arc<Certificates>,
    shared: Arc<Shared>,
}

/// What every connection needs.
struct Shared {
    /// As they were at the start; what may have changed since is in the fields that have its name, and in `gate`.
    options: EdgeOptions,
    edge_key: EdgeKey,
    tls: Arc<ServerConfig>,
    accept: SharedLimits,
    trusted_peers: RwLock<Arc<TrustedPeers>>,
    gate: Arc<Gate>,
    drain_time: Mutex<Duration>,
    metrics: Arc<EdgeMetrics>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Why an edge cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    /// The address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

impl Edge {
    /// Binds the address; connections are served once [`Edge::run`] is called.
    pub async fn bind(
        options: EdgeOptions,
        edge_key: EdgeKey,
        certificates: Arc<Certificates>,
    ) -> Result<Self, EdgeError> {
        let listener = listen::bind(options.listen, &options.congestion)?;
        Edge::over(listener, options, edge_key, certificates)
    }

    /// An edge over a socket that listens already, whatever address the options name.
    pub fn over(
        listener: TcpListener,
        options: EdgeOptions,
        edge_key: EdgeKey,
        certificates: Arc<Certificates>,
    ) -> Result<Self, EdgeError> {
        let tls = certificates.server_config()?;
        let address = listen::local_address(&listener)?;
        let shared = Shared {
            edge_key,
            tls,
            accept: SharedLimits::new(options.accept),
            trusted_peers: RwLock::new(Arc::new(options.trusted_peers.clone())),
            gate: Gate::new(options.slots),
            drain_time: Mutex::new(options.drain_time),
            metrics: EdgeMetrics::new(),
            options,
        };
        Ok(Edge { listener, address, certificates, shared: Arc::new(shared) })
    }

    /// The address in use, with the port that the system chose if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes this edge while it serves.
    pub fn control(&self) -> EdgeControl {
        EdgeControl::new(self.shared.clone())
    }

    /// What this edge tells an operator; not ready once `stop` is on.
    pub fn served(&self, stop: Stop) -> Arc<dyn Served> {
        Arc::new(report::EdgeReport::new(self.shared.clone(), stop))
    }

    /// Serves until it is stopped, then lets sessions go on for the drain time and ends them.
    pub async fn run(self, mut stop: Stop) {
        let Edge { listener, address: _, certificates, shared } = self;
        let mut connections = JoinSet::new();
        let watcher = tokio::spawn(certificates.watch());
        let mut doorkeeper = Doorkeeper::new(shared.accept.clone());
        loop {
            tokio::select! {
                biased;
                () = stop.stopped() => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    // Answering who is closed here would cost a TLS handshake, which is what the limits are to spare.
                    Ok((stream, peer)) => match shared.let_in(&mut doorkeeper, &stream, peer) {
                        Ok(slot) => {
                            connections.spawn(serve(shared.clone(), stream, peer, slot));
                        }
                        Err(turned) => {
                            shared.metrics.door.refused.count(turned.name());
                            doorkeeper.say(turned.name());
                        }
                    },
                    Err(error) => listen::accept_failed(&error).await,
                },
            }
        }
        drop(listener);
        watcher.abort();
        let (open, _) = shared.gate.counts();
        let drain_time = *shared.drain_time.lock().unwrap_or_else(PoisonError::into_inner);
        tracing::info!(open, seconds = drain_time.as_secs(), "stopping: no new connections");
        let drained = timeout(drain_time, async { while connections.join_next().await.is_some() {} });
        if drained.await.is_err() {
            tracing::warn!(open = connections.len(), "sessions ended: the drain time is over");
        }
    }
}

impl Shared {
    /// A place for a connection that was just accepted, or the limit that it met.
    fn let_in(
        &self,
        doorkeeper: &mut Doorkeeper,
        stream: &TcpStream,
        peer: SocketAddr,
    ) -> Result<Slot, Turned> {
        self.metrics.door.accepts.inc();
        doorkeeper.admit(stream)?;
        Ok(match self.trusted_peers().contains(peer.ip()) {
            true => self.gate.enter_behind(peer.ip()),
            false => self.gate.enter(peer.ip()),
        })
    }

    fn trusted_peers(&self) -> Arc<TrustedPeers> {
        // Replaced as a whole, so a poisoned lock is as good as another.
        self.trusted_peers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One connection, from accept to its end.
async fn serve(shared: Arc<Shared>, stream: TcpStream, peer: SocketAddr, mut slot: Slot) {
    let started = Instant::now();
    let deadline = started + shared.options.upgrade_deadline;
    let door = &shared.metrics.door;
    let mut from = peer.ip();
    let evicted = slot.evicted();
    let upgraded = tokio::select! {
        upgraded = timeout_at(deadline, upgrade(&shared, stream, &mut slot, &mut from)) => upgraded,
        () = evicted => {
            door.handshakes.count("evicted");
            tracing::info!(%peer, client = %from, "closed for a newer connection: too many have shown no ticket");
            return;
        }
    };
    let (mut client, mut hub) = match upgraded {
        Ok(Ok(joined)) => joined,
        Ok(Err(failure)) => {
            door.handshakes.count(failure.name());
            if let NotUpgraded::Refused(refusal) = &failure {
                door.refused.count(refusal.code());
            }
            tracing::info!(%peer, client = %from, "not upgraded: {failure}");
            return;
        }
        Err(_) => {
            door.handshakes.count("timed_out");
            let limit = shared.options.upgrade_deadline.as_secs_f32();
            tracing::info!(%peer, client = %from, "not upgraded: not done within {limit} s of the accept");
            return;
        }
    };
    door.handshakes.count("spliced");
    let mut open = door.session();
    let limits = shared.options.splice;
    let spliced = splice_metered(&mut client, &mut hub, limits, &shared.metrics.splice).await;
    open.ends_for(spliced.end.name());
    let error = match &spliced.end {
        SpliceEnd::Failed(error) => error.to_string(),
        _ => String::new(),
    };
    tracing::info!(
        %peer,
        client = %from,
        end = spliced.end.name(),
        error,
        to_hub = spliced.forward,
        from_hub = spliced.backward,
        seconds = started.elapsed().as_secs(),
        "session ended"
    );
}

/// Why a connection was not upgraded.
#[derive(Debug, thiserror::Error)]
enum NotUpgraded {
    #[error("{0}")]
    Refused(HttpRefusal),
    #[error("{0}")]
    Proxy(#[from] ProxyHeaderError),
    #[error("TLS handshake: {0}")]
    Tls(io::Error),
    #[error("{0}")]
    Head(#[from] HeadError),
    #[error("the client went away: {0}")]
    Client(io::Error),
}

impl NotUpgraded {
    /// One word for metrics.
    fn name(&self) -> &'static str {
        match self {
            NotUpgraded::Refused(_) => "refused",
            NotUpgraded::Proxy(_) => "bad_proxy_header",
            NotUpgraded::Tls(_) => "tls_failed",
            NotUpgraded::Head(_) => "no_head",
            NotUpgraded::Client(_) => "client_gone",
        }
    }
}

/// PROXY header, TLS, head, ticket, hub: what the one deadline covers. A refusal has been sent when this returns it. `from`
/// becomes the client's address, as far as trust goes.
async fn upgrade(
    shared: &Shared,
    mut stream: TcpStream,
    slot: &mut Slot,
    from: &mut IpAddr,
) -> Result<(TlsStream<TcpStream>, TcpStream), NotUpgraded> {
    stream.set_nodelay(true).map_err(NotUpgraded::Client)?;
    *from = behind_proxy(&shared.trusted_peers(), &mut stream, *from).await?;
    slot.belongs_to(*from);
    let mut client = TlsAcceptor::from(shared.tls.clone()).accept(stream).await.map_err(NotUpgraded::Tls)?;
    let joined = match RequestHead::read(&mut client).await {
        Ok(head) => match forwarded(shared, &head, slot, from) {
            Ok(()) => join_hub(shared, &head, slot).await,
            Err(refusal) => Err(refusal),
        },
        Err(HeadError::Refused(refusal)) => Err(refusal),
        Err(error) => return Err(error.into()),
    };
    match joined {
        Ok((hub, first)) => {
            client.write_all(&first).await.map_err(NotUpgraded::Client)?;
            Ok((client, hub))
        }
        Err(refusal) => {
            refuse(&mut client, &refusal).await;
            Err(NotUpgraded::Refused(refusal))
        }
    }
}

/// Reads the PROXY header of a trusted peer, if one comes; answers whose connection it is.
async fn behind_proxy(
    trusted: &TrustedPeers,
    stream: &mut TcpStream,
    peer: IpAddr,
) -> Result<IpAddr, ProxyHeaderError> {
    let mut first = [0; 1];
    if stream.peek(&mut first).await? == 0 || !proxy_header::begins(first[0]) {
        return Ok(peer);
    }
    if !trusted.contains(peer) {
        return Err(ProxyHeaderError::NotTrusted);
    }
    Ok(proxy_header::read(stream).await?.unwrap_or(peer))
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
    head: &RequestHead,
    slot: &mut Slot,
) -> Result<(TcpStream, Vec<u8>), HttpRefusal> {
    head.check_route(&[WORKER_PATH])?;
    head.check_upgrade()?;
    check_ticket(shared, head.bearer()?)?;
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
fn check_ticket(shared: &Shared, ticket: &str) -> Result<(), HttpRefusal> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    ticket_check::at_edge(ticket, &shared.edge_key, &shared.options.network, now, Role::Worker).map(|_| ())
}

/// Sends a refusal and reads on for a moment: closing with unread bytes would reset the connection and take the answer
/// with it.
async fn refuse(client: &mut TlsStream<TcpStream>, refusal: &HttpRefusal) {
    let answer = async {
        client.write_all(&refusal.to_response()).await?;
        client.shutdown().await?;
        let mut unread = (&mut *client).take(REFUSED_READ_BYTES);
        tokio::io::copy(&mut unread, &mut tokio::io::sink()).await
    };
    if let Ok(Err(error)) = timeout(REFUSED_READ_TIME, answer).await {
        tracing::debug!("sending the refusal: {error}");
    }
}
