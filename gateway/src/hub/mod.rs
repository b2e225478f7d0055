//! The hub: where workers and backbones meet. It listens on the LAN only; workers come through the edge.
//!
//! It ends the WebSocket, authenticates, pairs a worker with a backbone, passes their messages on unchanged, counts payload
//! bytes by frame headers and has receipts over them signed and filed. It never looks into a payload of a pair.

mod attempts;
pub mod books;
mod clerk;
mod control;
pub mod door;
pub mod filing;
mod fitting;
mod meter;
mod metrics;
mod pairing;
mod registry;
mod report;
mod resume;
mod session;
mod settings;
mod status;

use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kvasir_link::{LinkError, LinkOptions, unix_now};
use kvasir_wire::{
    handshake::{HubIdentity, Purpose},
    id::SessionId,
    message::Report,
    refusal::Refusal,
    ticket::Role,
};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};

pub use meter::LaneBytes;
pub use session::SessionClosed;
pub use settings::{HubControl, HubSettings};
pub use status::{BackboneReport, RefusalReport, SessionReport, Status, WaitingReport};

use crate::{
    accept::{AcceptLimits, Doorkeeper, SharedLimits, turn_away},
    edge::{Gate, Slot, SlotLimits},
    http_refusal::json_response,
    listen::{self, ListenError},
    operations::{Served, ready_response},
    stop::{Stop, switch},
};
use attempts::{Attempts, TooOften};
use door::{DoorError, Visit};
use filing::{Filer, Filing, FilingTimes, Ledger, SpoolHold};
use metrics::HubMetrics;
use registry::Registry;
use report::HubReport;

/// From accept to the admission.
pub const DOOR_TIME: Duration = Duration::from_secs(10);
/// How long sessions may take to finish once a stop was asked for.
pub const DRAIN_TIME: Duration = Duration::from_secs(30);
/// How long receipts are filed after that. What is left is on the disk, and the next hub of this spool files it.
pub const FILE_TIME: Duration = Duration::from_secs(10);
/// How long a hub that takes over waits for the spool of the one before it, which has the two times above to give it back.
pub const TAKE_OVER_TIME: Duration =
    DRAIN_TIME.saturating_add(FILE_TIME).saturating_add(Duration::from_secs(10));
/// How long a backbone may take from the welcome to the session's grant.
pub const GRANT_TIME: Duration = Duration::from_secs(10);
/// How long an end may take to sign a receipt. Longer than it takes the hub to find the path of an end silent, since who is away
/// has more time: by its pings alone, as late as a link may ping, where a proxy on the way goes on taking what nobody acknowledges.
pub const SIGN_TIME: Duration = Duration::from_secs(40);
/// How often the ledger is asked for its price once it has named one,
const PRICE_INTERVAL: Duration = Duration::from_secs(30);
/// and until then.
const NO_PRICE_INTERVAL: Duration = Duration::from_secs(1);

/// Where the lines about ended sessions go.
pub type SessionLog = Box<dyn Fn(&SessionClosed) + Send + Sync>;

/// What a hub needs to know.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// Where to listen; an address of the LAN.
    pub listen: SocketAddr,
    /// Network and keys.
    pub identity: HubIdentity,
    /// Folder for receipts that the ledger has not taken yet.
    pub spool: PathBuf,
    /// How fast connections are accepted, and for how many descriptors.
    pub accept: AcceptLimits,
    /// Most connections.
    pub connections: usize,
    /// From accept to the admission; [`DOOR_TIME`] but in tests.
    pub door_time: Duration,
    /// Deadlines and sockets of links.
    pub link: LinkOptions,
    /// How long sessions may take to finish once a stop was asked for; [`DRAIN_TIME`] but in tests.
    pub drain_time: Duration,
    /// How long receipts are filed after that; [`FILE_TIME`] but in tests.
    pub file_time: Duration,
    /// How long a backbone may take to send a session's grant; [`GRANT_TIME`] but in tests.
    pub grant_time: Duration,
    /// How long an end may take to sign a receipt; [`SIGN_TIME`] but in tests.
    pub sign_time: Duration,
    /// How long the filing of receipts waits for cures; the defaults but in tests.
    pub filing: FilingTimes,
}

impl HubOptions {
    /// Options with every limit at its default.
    pub fn new(listen: SocketAddr, identity: HubIdentity, spool: PathBuf) -> Self {
        HubOptions {
            listen,
            identity,
            spool,
            accept: AcceptLimits::default(),
            connections: SlotLimits::default().connections,
            door_time: DOOR_TIME,
            link: LinkOptions::default(),
            drain_time: DRAIN_TIME,
            file_time: FILE_TIME,
            grant_time: GRANT_TIME,
            sign_time: SIGN_TIME,
            filing: FilingTimes::default(),
        }
    }
}

/// Why a hub cannot start.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The spool folder cannot be used.
    #[error("the spool folder {path}: {source}; choose another with --spool")]
    Spool {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another hub has the spool folder: each would take the other's receipts away.
    #[error(
        "the spool folder {path} is in use by another hub: stop it, or choose another folder with --spool"
    )]
    SpoolInUse {
        /// The folder.
        path: PathBuf,
    },
}

/// A hub that is bound to its address.
pub struct HubServer {
    listener: TcpListener,
    address: SocketAddr,
    hub: Arc<Hub>,
    hold: SpoolHold,
    filer: Filer,
    ledger: Arc<dyn Ledger>,
    gate: Arc<Gate>,
    accept: SharedLimits,
    drain_time: Duration,
    file_time: Duration,
}

/// What every connection of a hub needs.
struct Hub {
    identity: HubIdentity,
    door_time: Duration,
    link: LinkOptions,
    grant_time: Duration,
    sign_time: Duration,
    registry: Registry,
    attempts: Attempts,
    metrics: Arc<HubMetrics>,
    filing: Filing,
    /// Leaf hash of the price note that holds, as the ledger last said.
    price: Mutex<Option<String>>,
    log: SessionLog,
}

impl HubServer {
    /// Binds the address and opens the spool; connections are served once [`HubServer::run`] is called.
    pub async fn bind(
        options: HubOptions,
        ledger: Arc<dyn Ledger>,
        log: SessionLog,
    ) -> Result<Self, HubError> {
        let listener = listen::bind(options.listen, &options.link.congestion)?;
        let hold = SpoolHold::take(&options.spool)?;
        HubServer::over(listener, hold, options, ledger, log)
    }

    /// A hub over a socket that listens already, whatever address the options name, and a spool that nobody else has.
    pub fn over(
        listener: TcpListener,
        hold: SpoolHold,
        options: HubOptions,
        ledger: Arc<dyn Ledger>,
        log: SessionLog,
    ) -> Result<Self, HubError> {
        let address = listen::local_address(&listener)?;
        let (filing, filer) = filing::open(&options.spool, ledger.clone(), options.filing)
            .map_err(|source| HubError::Spool { path: options.spool.clone(), source })?;
        let gate = Gate::new(settings::slots(options.connections));
        let hub = Arc::new(Hub {
            identity: options.identity,
            door_time: options.door_time,
            link: options.link,
            grant_time: options.grant_time,
            sign_time: options.sign_time,
            registry: Registry::default(),
            attempts: Attempts::new(),
            metrics: HubMetrics::new(),
            filing,
            price: Mutex::default(),
            log,
        });
        let HubOptions { accept, drain_time, file_time, .. } = options;
        let accept = SharedLimits::new(accept);
        Ok(HubServer { listener, address, hub, hold, filer, ledger, gate, accept, drain_time, file_time })
    }

    /// The address in use, with the port that the system chose if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What this hub tells an operator; not ready once `stop` is on. It keeps the hub from nothing.
    pub fn served(&self, stop: Stop) -> Arc<dyn Served> {
        Arc::new(HubReport::new(&self.hub, self.gate.clone(), self.accept.clone(), stop))
    }

    /// Changes this hub while it serves.
    pub fn control(&self) -> HubControl {
        HubControl::new(self.gate.clone(), self.accept.clone())
    }

    /// Serves until it is stopped. Then both ends of every session are told, final receipts are signed, and what the ledger
    /// does not take in time stays in the spool.
    pub async fn run(self, mut stop: Stop) {
        let HubServer { listener, address: _, hub, hold, filer, ledger, gate, accept, drain_time, file_time } =
            self;
        let (filer_stopper, filer_stop) = switch();
        let filer = tokio::spawn(filer.run(filer_stop));
        let prices = tokio::spawn(watch_price(hub.clone(), ledger));
        let mut connections = JoinSet::new();
        let mut doorkeeper = Doorkeeper::new(accept);
        loop {
            tokio::select! {
                biased;
                () = stop.stopped() => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        hub.metrics.door.accepts.inc();
                        // Every worker comes from an edge's address.
                        if let Err(turned) = doorkeeper.admit(&stream, None) {
                            hub.metrics.door.refused.count(turned.name());
                            doorkeeper.say(turned.name());
                            // Without TLS the answer costs one write.
                            turn_away(stream, &turned.refusal());
                            continue;
                        }
                        let slot = gate.enter(peer.ip());
                        connections.spawn(serve(hub.clone(), stream, peer, slot, stop.clone()));
                    }
                    Err(error) => listen::accept_failed(&error).await,
                },
            }
        }
        drop(listener);
        prices.abort();
        tracing::info!(
            open = connections.len(),
            seconds = drain_time.as_secs(),
            "stopping: sessions are finished"
        );
        let drained = timeout(drain_time, async { while connections.join_next().await.is_some() {} });
        if drained.await.is_err() {
            tracing::warn!(open = connections.len(), "links cut off: the time to finish is over");
            connections.shutdown().await;
        }
        // The filer ends when the last handle is gone and all is filed, or at once if the ledger is away.
        drop(hub);
        filer_stopper.stop();
        let mut filer = filer;
        match timeout(file_time, &mut filer).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!("filing receipts: {error}"),
            Err(_) => {
                filer.abort();
                tracing::warn!("receipts stay in the spool for the next start: the time to finish is over");
            }
        }
        drop(hold);
    }
}

impl Hub {
    fn price(&self) -> Option<String> {
        self.price.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_price(&self, price: String) {
        let mut current = self.price.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref() != Some(&price) {
            tracing::info!(price, "the ledger's price");
            *current = Some(price);
            drop(current);
            self.registry.touch();
        }
    }

    fn note_refusal(&self, whom: String, refusal: &Refusal) {
        self.metrics.door.refused.count(refusal.code.name());
        self.registry.note_refusal(RefusalReport {
            at: unix_now(),
            whom,
            code: refusal.code.name().into(),
            message: refusal.sentence.clone(),
            what_to_do: refusal.what_to_do.clone(),
        });
    }

    fn note_report(&self, session: SessionId, by: Role, report: &Report) {
        self.registry.note_refusal(RefusalReport {
            at: unix_now(),
            whom: session.short(),
            code: report.code.name().into(),
            message: format!("report by the {by}: {}", report.sentence),
            what_to_do: String::new(),
        });
    }

    fn session_closed(&self, closed: &SessionClosed) {
        (self.log)(closed);
    }

    /// Ready means: sessions can begin. Without a price they cannot.
    fn ready(&self, stop: &Stop) -> Result<(), String> {
        match self.price() {
            _ if stop.is_stopped() => {
                Err("it is stopping: sessions are finished, new ones do not begin".into())
            }
            Some(_) => Ok(()),
            None => Err("the ledger has named no price yet: is it running, and is a price set?".into()),
        }
    }

    fn status(&self) -> Status {
        Status {
            receipts_in_spool: self.filing.waiting(),
            receipts_postponed: self.filing.postponed(),
            postponed_because: self.filing.postponed_because(),
            receipts_refused: self.filing.refused(),
            price: self.price(),
            ..self.registry.status()
        }
    }
}

/// Asks the ledger which price note holds, again and again. New sessions name the answer in their receipts.
async fn watch_price(hub: Arc<Hub>, ledger: Arc<dyn Ledger>) {
    let mut last_error = String::new();
    loop {
        let ledger = ledger.clone();
        match tokio::task::spawn_blocking(move || ledger.price()).await {
            Ok(Ok(price)) => {
                last_error.clear();
                hub.set_price(price);
            }
            Ok(Err(error)) => {
                let text = error.to_string();
                if text != last_error {
                    tracing::error!("the ledger names no price: {text}");
                    last_error = text;
                }
            }
            Err(error) => tracing::error!("asking for the price: {error}"),
        }
        sleep(if hub.price().is_some() { PRICE_INTERVAL } else { NO_PRICE_INTERVAL }).await;
    }
}

/// One connection, from accept to its end.
async fn serve(hub: Arc<Hub>, stream: TcpStream, peer: SocketAddr, mut slot: Slot, stop: Stop) {
    let door = &hub.metrics.door;
    if slot.over().is_some() {
        door.refused.count("connections");
        tracing::warn!(%peer, "connection closed unread: the hub holds as many as it may");
        return;
    }
    let entered = tokio::select! {
        entered = timeout(hub.door_time, door::enter(stream, &hub.identity, &hub.link)) => entered,
        () = slot.evicted() => {
            door.handshakes.count("evicted");
            tracing::info!(%peer, "closed for a newer connection: too many have shown no ticket");
            return;
        }
    };
    let visit = match entered {
        Ok(Ok(visit)) => visit,
        Ok(Err(error)) => {
            tracing::info!(%peer, "not admitted: {error}");
            let refused = matches!(error, DoorError::Refused(_) | DoorError::Link(LinkError::RefusedPeer(_)));
            let result = if refused { "refused" } else { "failed" };
            door.handshakes.count(result);
            door.refused.count(error.code());
            let what_to_do = match &error {
                DoorError::Refused(refusal) => refusal.body().what_to_do.clone(),
                DoorError::Link(LinkError::RefusedPeer(refusal)) => refusal.what_to_do.clone(),
                _ => String::new(),
            };
            hub.registry.note_refusal(RefusalReport {
                at: unix_now(),
                whom: peer.to_string(),
                code: error.code().into(),
                message: error.to_string(),
                what_to_do,
            });
            return;
        }
        Err(_) => {
            door.handshakes.count("timed_out");
            tracing::info!(%peer, "not admitted within {:?} of the accept", hub.door_time);
            return;
        }
    };
    let accepted = match visit {
        Visit::Ready(stream) => return answer(stream, &ready_response(hub.ready(&stop))).await,
        Visit::Status(stream) => {
            let status = serde_json::to_string(&hub.status()).unwrap_or_default();
            return answer(stream, &json_response(200, "", &status)).await;
        }
        Visit::Link(accepted) => *accepted,
    };
    // Its key is proved: whatever it is told, it takes no place from those who have shown nothing yet.
    slot.authenticated();
    if let Err(TooOften { refusal, is_first }) = hub.attempts.count(&accepted.admission) {
        door.handshakes.count("refused");
        let key = accepted.admission.holder;
        // Who goes on with it fills neither the log nor the list of refusals.
        if is_first {
            tracing::info!(%peer, %key, "not admitted: {refusal}");
            hub.note_refusal(key.to_string(), &refusal);
        } else {
            door.refused.count(refusal.code.name());
        }
        accepted.refuse(refusal).await;
        return;
    }
    door.handshakes.count("admitted");
    let holder = accepted.admission.holder;
    match accepted.admission.purpose.clone() {
        Purpose::Worker(offer) => match accepted.admit() {
            Ok(link) => pairing::serve_worker(hub, link, offer, stop).await,
            Err(error) => tracing::info!(%peer, worker = %holder, "not admitted: {error}"),
        },
        Purpose::Control(offer) => match accepted.admit() {
            Ok(link) => control::serve_control(&hub, link, offer, stop).await,
            Err(error) => tracing::info!(%peer, backbone = %holder, "not admitted: {error}"),
        },
        Purpose::Session(session) => control::serve_data_link(&hub, accepted, session).await,
        Purpose::Resume(resumption) => resume::serve(&hub, accepted, resumption).await,
        Purpose::Bulk(bulk) => resume::carry_bulk(&hub, accepted, bulk).await,
    }
}

async fn answer(mut stream: TcpStream, response: &[u8]) {
    let write = async {
        stream.write_all(response).await?;
        stream.shutdown().await
    };
    match timeout(DOOR_TIME, write).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("answering: {error}"),
        Err(_) => tracing::debug!("answering: the asker reads nothing"),
    }
}
