//! The parties of the tests: keys, tickets, and a hub in a few lines.

use kvasir_link::{
    Accepted, Connected, HubLink, HubReceiver, HubSender, Incoming, LinkError, LinkOptions, accept,
    connect_over, fresh_nonce, unix_now, websocket_config,
};
use kvasir_wire::frame::Kind;
use kvasir_wire::handshake::{Class, Features, HubIdentity, Purpose, WorkerOffer};
use kvasir_wire::id::{ModelDigest, PluginDigest, SessionId};
use kvasir_wire::key::SecretKey;
use kvasir_wire::meter::{Meter, Totals};
use kvasir_wire::pairing::{Expectation, HubPairing, Transcript};
use kvasir_wire::ticket::{EdgeKey, Role, Ticket, TicketClaims, TicketLimits};
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::Role as SocketRole;

pub const NETWORK: &str = "test.example";
pub const PLUGIN: PluginDigest = PluginDigest([0x11; 32]);
pub const SESSION: SessionId = SessionId([0x33; 32]);

pub fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

pub fn identity() -> HubIdentity {
    HubIdentity { network: NETWORK.to_owned(), key: key(1), edge: EdgeKey::from_bytes([5; 32]) }
}

pub fn ticket(role: Role, holder: &SecretKey) -> Ticket {
    let now = unix_now();
    let claims = TicketClaims {
        network: NETWORK.to_owned(),
        role,
        holder: holder.public(),
        hub: key(1).public(),
        wallet: Some(key(4).public().wallet_digest()),
        plugins: vec![PLUGIN],
        publishers: vec![],
        limits: TicketLimits::default(),
        issued: now,
        expires: now + 3600,
    };
    Ticket::issue(&claims, &key(1), &EdgeKey::from_bytes([5; 32])).unwrap()
}

pub fn worker_purpose() -> Purpose {
    Purpose::Worker(worker_offer())
}

pub fn worker_offer() -> WorkerOffer {
    WorkerOffer { plugins: vec![PLUGIN], formats: vec![12], memory_bytes: 1 << 30, class: Class::Exact }
}

/// Two ends of a WebSocket over a pipe that holds `bytes` bytes a direction: client, server.
pub async fn sockets(bytes: usize) -> (WebSocketStream<DuplexStream>, WebSocketStream<DuplexStream>) {
    let (client, server) = tokio::io::duplex(bytes);
    let config = Some(websocket_config());
    (
        WebSocketStream::from_raw_socket(client, SocketRole::Client, config).await,
        WebSocketStream::from_raw_socket(server, SocketRole::Server, config).await,
    )
}

pub async fn accept_for_test(
    socket: WebSocketStream<DuplexStream>,
    role: Role,
    options: &LinkOptions,
) -> Result<Accepted<DuplexStream>, LinkError> {
    accept(socket, &identity(), role, None, fresh_nonce().unwrap(), options).await
}

/// An admitted link: the holder's end and the hub's.
pub async fn admitted(purpose: Purpose, key: &SecretKey, options: &LinkOptions) -> (Connected, HubLink) {
    let (client, server) = sockets(32 * 1024).await;
    let role = purpose.role();
    let ticket = ticket(role, key);
    let (connected, hub) =
        tokio::join!(connect_over(client, &ticket, key, purpose, Features::NONE, options), async {
            accept_for_test(server, role, options).await.unwrap().admit().unwrap()
        },);
    (connected.unwrap(), hub)
}

/// A session through a hub: the worker's end, the backbone's end, and what the hub has metered so far.
pub async fn session(
    options: &LinkOptions,
) -> (kvasir_link::Session, kvasir_link::Session, watch::Receiver<Totals>) {
    let (worker_key, backbone_key) = (key(2), key(3));
    let (worker, worker_at_hub) = admitted(worker_purpose(), &worker_key, options).await;
    let (backbone, backbone_at_hub) = admitted(Purpose::Session(SESSION), &backbone_key, options).await;
    let expectation = Expectation { plugins: vec![PLUGIN], ..Expectation::default() };
    let strict = Expectation { session: Some(SESSION), class: Some(Class::Exact), ..expectation.clone() };
    let (worker, backbone, totals) = tokio::join!(
        worker.pair(&worker_key, &expectation),
        backbone.pair(&backbone_key, &strict),
        join_at_hub(worker_at_hub, backbone_at_hub),
    );
    (worker.unwrap(), backbone.unwrap(), totals)
}

/// The hub's part: one transcript, two signatures, two welcomes, then a pipe with a meter.
async fn join_at_hub(mut worker: HubLink, mut backbone: HubLink) -> watch::Receiver<Totals> {
    let transcript = Transcript {
        version: worker.admission.version,
        network: NETWORK.to_owned(),
        session: SESSION,
        worker: (&worker.admission).into(),
        backbone: (&backbone.admission).into(),
        plugin: PLUGIN,
        model: ModelDigest([0x22; 32]),
        class: Class::Exact,
        features: worker.admission.features.common(backbone.admission.features),
    };
    let mut pairing = HubPairing::new(transcript);
    for (link, role) in [(&mut worker, Role::Worker), (&mut backbone, Role::Backbone)] {
        link.sender.send(Kind::Transcript, pairing.transcript().encode()).unwrap();
        let Incoming::Own(sign) = link.receiver.next().await.unwrap() else {
            panic!("a message for the pair")
        };
        assert_eq!(sign.kind, Kind::Sign);
        pairing.signed(role, &sign.bytes).unwrap();
    }
    let (to_worker, to_backbone) = pairing.welcomes().unwrap();
    worker.sender.send(Kind::Welcome, to_worker).unwrap();
    backbone.sender.send(Kind::Welcome, to_backbone).unwrap();
    let (totals, watcher) = watch::channel(Totals::default());
    let meter = std::sync::Arc::new(std::sync::Mutex::new((Meter::new(), totals)));
    let pipe = |mut from: HubReceiver, back: HubSender, to: HubSender| {
        let meter = std::sync::Arc::clone(&meter);
        tokio::spawn(async move {
            while let Ok(incoming) = from.next().await {
                if let Incoming::Relay(relay) = incoming {
                    {
                        let mut meter = meter.lock().unwrap();
                        for header in &relay.headers {
                            if meter.0.observe(header).unwrap().is_some() {
                                let totals = meter.0.totals();
                                meter.1.send_replace(totals);
                            }
                        }
                    }
                    if to.relay(relay).await.is_err() {
                        break;
                    }
                }
            }
            to.close();
            back.close();
        });
    };
    pipe(worker.receiver, worker.sender.clone(), backbone.sender.clone());
    pipe(backbone.receiver, backbone.sender, worker.sender);
    watcher
}
