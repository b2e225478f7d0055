//! The edge: ends TLS, reads one request head, checks the ticket's MAC, and splices the connection to the hub. A connection
//! whose ClientHello asks for a name that the operator listed goes to a backend instead, its TLS as it is.
//!
//! Nothing that has not shown a good ticket reaches the hub, and after the head not a byte is looked at. The edge holds no
//! signing key and keeps no books; what it knows about a session is how many bytes went by.

mod certificates;
pub mod client_hello;
mod connection;
mod metrics;
pub mod pass_through;
pub mod proxy_header;
mod records;
mod refusals;
mod replayed;
mod report;
mod settings;
mod slots;
mod source;
mod splice;
pub mod trusted;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use kvasir_link::Congestion;
use kvasir_wire::ticket::EdgeKey;
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

pub use certificates::{CertificateError, Certificates, Changed, RELOAD_INTERVAL};
pub use report::EdgeStatus;
pub use settings::{EdgeControl, EdgeSettings, HAND_OVER_TIME};
pub(crate) use slots::counted_address;
pub use slots::{Cap, Gate, Slot, SlotLimits};
pub use source::CertificateSource;
pub use splice::{SpliceEnd, SpliceLimits, SpliceMeter, Spliced, splice, splice_metered};

use crate::{
    accept::{AcceptLimits, Doorkeeper, SharedLimits, Turned},
    listen::{self, ListenError},
    operations::Served,
    stop::Stop,
};
use metrics::EdgeMetrics;
use pass_through::{CLIENT_HELLO_TIME, Places, Routes};
use refusals::Refusals;
use trusted::TrustedPeers;

/// From accept to the hub's first answer.
pub const UPGRADE_DEADLINE: Duration = Duration::from_secs(10);
/// How long sessions may go on after a stop was asked for.
pub const DRAIN_TIME: Duration = Duration::from_secs(30);

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
    /// Proxies that speak HTTP and whose `X-Forwarded-For` is believed.
    pub trusted_peers: TrustedPeers,
    /// Proxies that pass TCP on and send a PROXY header in front of every connection.
    pub proxy_protocol_peers: TrustedPeers,
    /// Names whose connections go to backends, their TLS as it is.
    pub pass_through: Routes,
    /// Where there are such names: how long a ClientHello may take; [`CLIENT_HELLO_TIME`] but in tests.
    pub client_hello_time: Duration,
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
            proxy_protocol_peers: TrustedPeers::default(),
            pass_through: Routes::default(),
            client_hello_time: CLIENT_HELLO_TIME,
            slots: SlotLimits::default(),
            splice: SpliceLimits::default(),
            congestion: Congestion::from_environment(),
            upgrade_deadline: UPGRADE_DEADLINE,
            drain_time: DRAIN_TIME,
        }
    }

    /// For an edge that only passes connections through: it has no hub and no network.
    pub fn pass_through_only(listen: SocketAddr, routes: Routes) -> Self {
        EdgeOptions { pass_through: routes, ..EdgeOptions::new(listen, String::new(), String::new()) }
    }
}

/// An edge that is bound to its address.
#[derive(Debug)]
pub struct Edge {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// What every connection needs.
struct Shared {
    /// As they were at the start; what may have changed since is in the fields that have its name, and in `gate`.
    options: EdgeOptions,
    /// Nothing where connections are only passed through.
    own: Option<OwnTls>,
    accept: SharedLimits,
    trusted_peers: RwLock<Arc<TrustedPeers>>,
    proxy_protocol_peers: RwLock<Arc<TrustedPeers>>,
    pass_through: RwLock<Arc<Routes>>,
    gate: Arc<Gate>,
    /// Places of connections that are passed through.
    passing: Arc<Places>,
    drain_time: Mutex<Duration>,
    refusals: Refusals,
    metrics: Arc<EdgeMetrics>,
}

/// What it takes to be the end of TLS, and to let workers to the hub.
struct OwnTls {
    config: Arc<ServerConfig>,
    certificates: CertificateSource,
    edge_key: EdgeKey,
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
        certificates: impl Into<CertificateSource>,
    ) -> Result<Self, EdgeError> {
        let listener = listen::bind(options.listen, &options.congestion)?;
        Edge::over(listener, options, edge_key, certificates)
    }

    /// An edge over a socket that listens already, whatever address the options name.
    pub fn over(
        listener: TcpListener,
        options: EdgeOptions,
        edge_key: EdgeKey,
        certificates: impl Into<CertificateSource>,
    ) -> Result<Self, EdgeError> {
        let certificates = certificates.into();
        let own = OwnTls { config: certificates.server_config()?, certificates, edge_key };
        Edge::assemble(listener, options, Some(own))
    }

    /// As [`Edge::bind`], for an edge that ends no TLS: what asks for none of the options' names is refused with an alert.
    pub async fn bind_pass_through(options: EdgeOptions) -> Result<Self, EdgeError> {
        let listener = listen::bind(options.listen, &options.congestion)?;
        Edge::pass_through_over(listener, options)
    }

    /// As [`Edge::bind_pass_through`], over a socket that listens already.
    pub fn pass_through_over(listener: TcpListener, options: EdgeOptions) -> Result<Self, EdgeError> {
        Edge::assemble(listener, options, None)
    }

    fn assemble(listener: TcpListener, options: EdgeOptions, own: Option<OwnTls>) -> Result<Self, EdgeError> {
        let address = listen::local_address(&listener)?;
        let metrics = EdgeMetrics::new(own.as_ref().map(|own| &own.certificates));
        let shared = Shared {
            own,
            accept: SharedLimits::new(options.accept),
            trusted_peers: RwLock::new(Arc::new(options.trusted_peers.clone())),
            proxy_protocol_peers: RwLock::new(Arc::new(options.proxy_protocol_peers.clone())),
            pass_through: RwLock::new(Arc::new(options.pass_through.clone())),
            gate: Gate::new(options.slots),
            passing: Arc::default(),
            drain_time: Mutex::new(options.drain_time),
            refusals: Refusals::default(),
            metrics,
            options,
        };
        Ok(Edge { listener, address, shared: Arc::new(shared) })
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
        let Edge { listener, address: _, shared } = self;
        let mut connections = JoinSet::new();
        let watcher = shared.own.as_ref().map(|own| tokio::spawn(own.certificates.clone().keep()));
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
                            connections.spawn(connection::serve(shared.clone(), stream, peer, slot));
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
        if let Some(watcher) = watcher {
            watcher.abort();
        }
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
        let of_many =
            self.trusted_peers().contains(peer.ip()) || self.proxy_protocol_peers().contains(peer.ip());
        let of = (!of_many).then(|| (peer.ip(), self.gate.limits().per_address));
        doorkeeper.admit(stream, of)?;
        Ok(match of_many {
            true => self.gate.enter_behind(peer.ip()),
            false => self.gate.enter(peer.ip()),
        })
    }

    fn trusted_peers(&self) -> Arc<TrustedPeers> {
        // Replaced as a whole, so a poisoned lock is as good as another.
        self.trusted_peers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn proxy_protocol_peers(&self) -> Arc<TrustedPeers> {
        self.proxy_protocol_peers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn routes(&self) -> Arc<Routes> {
        self.pass_through.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
