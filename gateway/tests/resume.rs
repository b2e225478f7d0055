//! Sessions that go on over another connection: cut in the middle of calls, blobs and handshakes, the same session answers,
//! and no byte is billed twice. Each prints the time to recover (`-- --nocapture`).
//!
//! The worker comes through a relay that can be told to fail, then through the edge; another relay stands between the
//! backbone and the hub.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod raw_link;
mod relay;
mod scene;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use front::Front;
use futures_util::SinkExt as _;
use kvasir_gateway::hub::{HubOptions, SIGN_TIME};
use kvasir_link::{Connected, LinkError, LinkOptions, USER_TIMEOUT, connect_backbone, connect_worker};
use kvasir_wire::{
    frame::Kind,
    handshake::{Features, Purpose, Resumption},
    id::Nonce,
    key::SecretKey,
    message::Pause,
    refusal::RefusalCode,
    ticket::Role,
};
use raw_link::RawLink;
use relay::{Flow, Relay};
use scene::*;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::sleep,
};
use tokio_tungstenite::tungstenite::{Message, protocol::CloseFrame};

/// Long enough for bytes to be where a relay holds them; nothing depends on it but what a test cuts.
const ON_THE_WAY: Duration = Duration::from_millis(100);

struct Rig {
    ledger: Arc<MemoryLedger>,
    scene: Scene,
    /// The hub itself; the scene's is where the backbone dials, before `lan`.
    hub: SocketAddr,
    front: Front,
    /// Before the edge, for the worker.
    relay: Relay,
    /// Before the hub, for the backbone.
    lan: Relay,
    control: Connected,
    worker: SecretKey,
    backbone: SecretKey,
    options: LinkOptions,
}

impl Rig {
    async fn start() -> Rig {
        Rig::start_with(Features::RESUME, LinkOptions::default(), |_| {}).await
    }

    /// With what the backbone asks for, the worker's options, and others for the hub.
    async fn start_with(
        features: Features,
        options: LinkOptions,
        change: impl FnOnce(&mut HubOptions),
    ) -> Rig {
        let ledger = Arc::new(MemoryLedger::default());
        let mut scene = Scene::start_with(ledger.clone(), change).await;
        scene.features = features;
        let front = Front::start_with(&scene, |edge| edge.drain_time = Duration::from_millis(50)).await;
        let relay = Relay::start(front.address).await;
        let lan = Relay::start(scene.hub).await;
        let hub = std::mem::replace(&mut scene.hub, lan.address);
        let (worker, backbone) = (key(2), key(3));
        let control = scene.control(&backbone).await;
        Rig { ledger, scene, hub, front, relay, lan, control, worker, backbone, options }
    }

    async fn pair(&mut self) -> (WorkerEnd, BackboneEnd) {
        let Purpose::Worker(offer) = worker_purpose() else { panic!("a worker's purpose") };
        let ticket = self.scene.ticket(Role::Worker, &self.worker);
        let url = format!("wss://{}", self.relay.address);
        let trust = &self.front.trust;
        let features = Features::RESUME;
        let dial = connect_worker(&url, trust, &ticket, &self.worker, offer, features, &self.options);
        let link = patiently(dial).await.unwrap();
        let key = self.worker.clone();
        let pairing = tokio::spawn(async move { link.pair(&key, &worker_expectation()).await.unwrap() });
        let backbone = patiently(self.scene.take_offer(&mut self.control, &self.backbone)).await;
        (WorkerEnd { session: patiently(pairing).await.unwrap(), key: self.worker.clone() }, backbone)
    }

    /// A session whose grant is there and whose first call was answered: 150 bytes.
    async fn begun(&mut self) -> (WorkerEnd, BackboneEnd) {
        let (mut worker, mut backbone) = self.pair().await;
        backbone.grant().await;
        call(&mut worker, &mut backbone, 1, 100, 50, async || {}).await;
        (worker, backbone)
    }

    /// Ends the session in order: the ledger bills these bytes for it, in one session.
    async fn is_billed(&self, worker: &mut WorkerEnd, backbone: &mut BackboneEnd, bytes: u64) {
        let receipt = finish(worker, backbone).await;
        assert_eq!(receipt.billed().get(), bytes);
        let closed = self.scene.closed_sessions(1).await;
        assert_eq!(closed.len(), 1);
        let line = &closed[0];
        assert_eq!(line.session, backbone.id().to_string());
        assert_eq!((line.bytes_up + line.bytes_down, line.receipted_bytes), (bytes, bytes));
        assert_eq!(self.ledger.last_receipt().billed().get(), bytes);
    }
}

/// One call that is answered and taken; `meanwhile` happens once it has been sent.
async fn call(
    worker: &mut WorkerEnd,
    backbone: &mut BackboneEnd,
    number: u64,
    up: usize,
    down: usize,
    meanwhile: impl AsyncFnOnce(),
) {
    let (rows, answer) = (pattern(up, number), pattern(down, number + 1000));
    backbone.call(number, rows.clone()).await;
    meanwhile().await;
    worker.answer(&rows, answer.clone()).await;
    backbone.take(number, up, &answer).await;
}

/// How a link ends, behind anything that still comes.
async fn ended(receiver: &mut kvasir_link::LinkReceiver) -> LinkError {
    loop {
        if let Err(error) = patiently(receiver.recv()).await {
            return error;
        }
    }
}

/// What the backbone hears of its worker's connection, which must come next.
async fn pause(backbone: &mut BackboneEnd) -> Pause {
    let payload = patiently(backbone.session.receiver.recv()).await.unwrap();
    assert_eq!(payload.kind, Kind::Pause);
    Pause::decode(&payload.bytes).unwrap()
}

fn recovered(what: &str, began: Instant) {
    println!("{what}: recovered after {:.0} ms", began.elapsed().as_secs_f64() * 1e3);
}

#[tokio::test]
async fn a_call_that_was_lost_on_its_way_to_the_worker_is_written_again() {
    let mut rig = Rig::start().await;
    let (mut worker, mut backbone) = rig.begun().await;
    // The hub has written it, the relay holds it.
    rig.relay.set(Flow::Pass, Flow::Hold);
    let (rows, answer) = (pattern(300_000, 2), pattern(200_000, 3));
    backbone.call(2, rows.clone()).await;
    sleep(ON_THE_WAY).await;
    let began = Instant::now();
    rig.relay.reset();
    worker.answer(&rows, answer.clone()).await;
    backbone.take(2, rows.len(), &answer).await;
    recovered("a call lost on its way", began);
    assert_eq!(rig.relay.opened(), 2);
    rig.is_billed(&mut worker, &mut backbone, 500_150).await;
    assert_eq!(rig.scene.closed_sessions(1).await[0].resumed, 1);
    let metrics = rig.scene.served.metrics();
    for line in [
        "kvasir_gateway_sessions_resumed_total{peer=\"worker\"} 1",
        "kvasir_gateway_sessions_resumed_total{peer=\"backbone\"} 0",
        "kvasir_gateway_sessions_closed_total{reason=\"finished\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in:\n{metrics}");
    }
}

#[tokio::test]
async fn a_result_that_was_lost_on_its_way_to_the_hub_is_written_again() {
    let mut rig = Rig::start().await;
    let (mut worker, mut backbone) = rig.begun().await;
    let (rows, answer) = (pattern(1000, 2), pattern(400_000, 3));
    backbone.call(2, rows.clone()).await;
    let arrived = expect(&mut worker.session.receiver, Kind::Call).await;
    assert!(arrived.bytes == rows);
    rig.relay.set(Flow::Hold, Flow::Pass);
    worker.session.sender.send(Kind::Result, arrived.stream, answer.clone()).await.unwrap();
    sleep(ON_THE_WAY).await;
    let began = Instant::now();
    rig.relay.reset();
    backbone.take(2, rows.len(), &answer).await;
    recovered("a result lost on its way", began);
    rig.is_billed(&mut worker, &mut backbone, 401_150).await;
}

#[tokio::test]
async fn either_end_and_both_may_be_cut_again_and_again() {
    let mut rig = Rig::start().await;
    let (mut worker, mut backbone) = rig.begun().await;
    let mut bytes = 150;
    for number in 2..=7 {
        let began = Instant::now();
        let (relay, lan) = (&rig.relay, &rig.lan);
        let cut = async || {
            // Sooner and later in the call's way.
            sleep(Duration::from_millis(3 * number)).await;
            if number % 2 == 0 || number % 3 == 0 {
                relay.reset();
            }
            if number % 2 == 1 {
                lan.reset();
            }
        };
        call(&mut worker, &mut backbone, number, 60_000, 40_000, cut).await;
        recovered("a cut in a call", began);
        bytes += 100_000;
    }
    rig.is_billed(&mut worker, &mut backbone, bytes).await;
}

#[tokio::test]
async fn a_blob_that_is_half_way_goes_on_where_it_was() {
    const CHUNKS: usize = 120;
    let mut rig = Rig::start().await;
    let (mut worker, mut backbone) = rig.begun().await;
    let chunk = |number: usize| pattern(16_000, number as u64);
    let sender = backbone.session.sender.clone();
    let sending = tokio::spawn(async move {
        for number in 0..CHUNKS {
            sender.send_chunk(3, chunk(number), number + 1 < CHUNKS).await.unwrap();
        }
    });
    let began = Instant::now();
    for number in 0..CHUNKS {
        if number % 40 == 20 {
            rig.relay.reset();
        }
        let payload = expect(&mut worker.session.receiver, Kind::Chunk).await;
        assert!(payload.bytes == chunk(number), "chunk {number} comes once and in its place");
        assert_eq!(payload.more, number + 1 < CHUNKS);
    }
    recovered("a blob with three cuts", began);
    patiently(sending).await.unwrap();
    assert!(rig.relay.opened() >= 2);
    rig.is_billed(&mut worker, &mut backbone, 150).await;
}

#[tokio::test]
async fn an_edge_that_restarts_in_the_middle_of_a_call_ends_no_session() {
    let mut rig = Rig::start().await;
    let (mut worker, mut backbone) = rig.begun().await;
    let began = Instant::now();
    let front = &mut rig.front;
    let restart = async || {
        front.stop().await;
        front.again().await;
    };
    call(&mut worker, &mut backbone, 2, 1000, 1000, restart).await;
    recovered("an edge restarted", began);
    rig.is_billed(&mut worker, &mut backbone, 2150).await;
}

#[tokio::test]
async fn a_worker_that_finds_its_connection_dead_first_displaces_it_at_the_hub() {
    // The hub would not look for half a minute.
    let quick = LinkOptions {
        ping_after: Duration::from_millis(500),
        dead_after: Duration::from_secs(1),
        ..LinkOptions::default()
    };
    let mut rig = Rig::start_with(Features::RESUME, quick, |_| {}).await;
    let (mut worker, mut backbone) = rig.begun().await;
    rig.relay.set(Flow::Vanish, Flow::Vanish);
    rig.relay.forget();
    let began = Instant::now();
    call(&mut worker, &mut backbone, 2, 3000, 2000, async || {}).await;
    recovered("a connection that a middlebox forgot", began);
    rig.is_billed(&mut worker, &mut backbone, 5150).await;
}

#[tokio::test]
async fn who_asks_for_a_minute_is_asked_again_while_the_hub_still_waits() {
    let mut rig = Rig::start().await;
    let (mut worker, mut backbone) = rig.begun().await;
    let busy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    rig.lan.retarget(busy.local_addr().unwrap());
    rig.lan.reset();
    let (mut asker, _) = patiently(busy.accept()).await.unwrap();
    rig.lan.retarget(rig.hub);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(patiently(asker.read_u8()).await.unwrap());
    }
    let answer = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n";
    asker.write_all(answer).await.unwrap();
    asker.shutdown().await.unwrap();
    call(&mut worker, &mut backbone, 2, 10, 10, async || {}).await;
    rig.is_billed(&mut worker, &mut backbone, 170).await;
    assert_eq!(rig.scene.closed_sessions(1).await[0].resumed, 1);
}

#[tokio::test]
async fn the_backbone_hears_that_its_worker_is_away_and_back() {
    let mut rig = Rig::start().await;
    let (mut worker, mut backbone) = rig.begun().await;
    rig.relay.retarget(([127, 0, 0, 1], 1).into());
    rig.relay.reset();
    assert_eq!(pause(&mut backbone).await, Pause { for_ms: 30_000 });
    rig.relay.retarget(rig.front.address);
    assert_eq!(pause(&mut backbone).await, Pause { for_ms: 0 });
    call(&mut worker, &mut backbone, 2, 10, 10, async || {}).await;
    rig.is_billed(&mut worker, &mut backbone, 170).await;
}

#[tokio::test]
async fn a_worker_that_is_away_when_it_should_sign_signs_once_it_is_back() {
    // For the backbone, which is there, it must be long enough on a busy machine too.
    let sign_time = Duration::from_secs(2);
    let change = |hub: &mut HubOptions| hub.sign_time = sign_time;
    let mut rig = Rig::start_with(Features::RESUME, LinkOptions::default(), change).await;
    let (mut worker, mut backbone) = rig.begun().await;
    rig.relay.retarget(([127, 0, 0, 1], 1).into());
    rig.relay.reset();
    assert_ne!(pause(&mut backbone).await, Pause { for_ms: 0 });
    backbone.ask_to_drain().await;
    let cut = backbone.cut().await;
    let receipt = backbone.countersign(cut, &[], |_| {}).await;
    // Whoever is there would be given up by now.
    sleep(2 * sign_time).await;
    rig.relay.retarget(rig.front.address);
    assert_eq!(worker.countersign().await, receipt);
    tokio::join!(worker.complete(), backbone.complete());
    let closed = rig.scene.closed_sessions(1).await;
    assert_eq!((closed[0].reason_code, closed[0].receipted_bytes, closed[0].resumed), ("finished", 150, 1));
}

#[test]
fn the_hub_finds_a_path_silent_before_a_signature_that_it_asked_for_there_is_overdue() {
    let LinkOptions { ping_after, dead_after, .. } = LinkOptions::default();
    // Behind a proxy that takes whatever is written; elsewhere it is sooner.
    assert!(SIGN_TIME > ping_after + ping_after / 3 + dead_after);
    assert!(SIGN_TIME > USER_TIMEOUT);
}

#[tokio::test]
async fn a_worker_that_does_not_come_back_ends_the_session_as_before() {
    let short = Duration::from_millis(400);
    let options = LinkOptions { resume_within: short, ..LinkOptions::default() };
    let mut rig = Rig::start_with(Features::RESUME, options, |hub| hub.link.resume_within = short).await;
    let (mut worker, mut backbone) = rig.begun().await;
    rig.relay.retarget(([127, 0, 0, 1], 1).into());
    rig.relay.reset();
    let (at_worker, at_backbone) =
        tokio::join!(ended(&mut worker.session.receiver), refused(&mut backbone.session.receiver));
    assert!(matches!(at_worker, LinkError::Lost(_)), "{at_worker}");
    assert_eq!(at_backbone.code, RefusalCode::PeerLost);
    let closed = rig.scene.closed_sessions(1).await;
    assert_eq!((closed[0].calls, closed[0].receipted_bytes), (1, 0), "what no receipt covers is not billed");
    // The session is over: its own backbone cannot go on with it either.
    let error = rig.resume_as_backbone(&rig.backbone, &backbone, 0).await;
    assert_eq!(error, RefusalCode::UnknownSession);
}

impl Rig {
    /// What the hub answers to a backbone of this key that wants to go on with a session.
    async fn resume_as_backbone(&self, key: &SecretKey, of: &BackboneEnd, received: u64) -> RefusalCode {
        let resumption = Resumption { role: Role::Backbone, session: of.id(), received };
        let ticket = self.scene.ticket(Role::Backbone, key);
        let (url, purpose) = (self.scene.url(), Purpose::Resume(resumption));
        let options = LinkOptions::default();
        refusal_code(
            patiently(connect_backbone(&url, &ticket, key, purpose, Features::RESUME, &options)).await,
        )
    }

    /// What it answers to a worker of this key.
    async fn resume_as_worker(&self, key: &SecretKey, of: &BackboneEnd) -> RefusalCode {
        let resumption = Resumption { role: Role::Worker, session: of.id(), received: 0 };
        let ticket = self.scene.ticket(Role::Worker, key);
        let mut link = RawLink::dial(&self.scene, "/v1/worker", &ticket).await;
        let (purpose, nonce) = (Purpose::Resume(resumption), Nonce([7; 32]));
        let handshake = link.hello_for(purpose, Features::RESUME, &ticket, key, nonce).await;
        let challenge = link.expect(Kind::Challenge).await;
        let (_, proof) = handshake.challenge(&challenge, key).unwrap();
        link.send(Kind::Proof, &proof).await;
        link.refusal().await.code
    }
}

#[tokio::test]
async fn another_key_takes_nobody_s_session() {
    let mut rig = Rig::start().await;
    let (mut worker, mut backbone) = rig.begun().await;
    // A stranger's, and each end's own for the other one.
    for key in [&key(7), &rig.worker] {
        assert_eq!(rig.resume_as_backbone(key, &backbone, 0).await, RefusalCode::UnknownSession);
    }
    for key in [&key(7), &rig.backbone] {
        assert_eq!(rig.resume_as_worker(key, &backbone).await, RefusalCode::UnknownSession);
    }
    call(&mut worker, &mut backbone, 2, 10, 10, async || {}).await;
    rig.is_billed(&mut worker, &mut backbone, 170).await;
}

#[tokio::test]
async fn an_older_attempt_that_comes_late_ends_nothing() {
    let mut rig = Rig::start().await;
    let (mut worker, mut backbone) = rig.begun().await;
    // Of so much the backbone has acknowledged something, and the hub has heard it once it passes the next call on.
    call(&mut worker, &mut backbone, 2, 10, 200_000, async || {}).await;
    call(&mut worker, &mut backbone, 3, 10, 10, async || {}).await;
    assert_eq!(rig.resume_as_backbone(&rig.backbone, &backbone, 0).await, RefusalCode::UnknownSession);
    call(&mut worker, &mut backbone, 4, 10, 10, async || {}).await;
    rig.is_billed(&mut worker, &mut backbone, 200_200).await;
    assert_eq!(rig.scene.closed_sessions(1).await[0].resumed, 0);
}

#[tokio::test]
async fn a_count_that_cannot_be_ends_the_session() {
    let mut rig = Rig::start().await;
    let (mut worker, backbone) = rig.begun().await;
    let code = rig.resume_as_backbone(&rig.backbone, &backbone, u64::MAX).await;
    assert_eq!(code, RefusalCode::UnknownSession);
    assert_eq!(refused(&mut worker.session.receiver).await.code, RefusalCode::PeerLost);
    assert_eq!(rig.scene.closed_sessions(1).await[0].receipted_bytes, 0);
}

#[tokio::test]
async fn with_a_backbone_that_does_not_know_of_it_a_cut_ends_the_session_at_once() {
    let mut rig = Rig::start_with(Features::NONE, LinkOptions::default(), |_| {}).await;
    let (mut worker, mut backbone) = rig.begun().await;
    rig.relay.reset();
    let (at_worker, at_backbone) =
        tokio::join!(ended(&mut worker.session.receiver), refused(&mut backbone.session.receiver));
    assert!(matches!(at_worker, LinkError::Lost(_)), "{at_worker}");
    assert_eq!(at_backbone.code, RefusalCode::PeerLost);
    assert_eq!(rig.relay.opened(), 1, "it dials nobody for a session that is over");
}

#[tokio::test]
async fn a_hub_that_stops_does_not_wait_for_who_is_away() {
    let mut rig = Rig::start().await;
    let (_worker, mut backbone) = rig.begun().await;
    rig.relay.retarget(([127, 0, 0, 1], 1).into());
    rig.relay.reset();
    let payload = patiently(backbone.session.receiver.recv()).await.unwrap();
    assert_eq!(payload.kind, Kind::Pause);
    rig.scene.stopper.stop();
    let closed = rig.scene.closed_sessions(1).await;
    assert!(closed[0].reason.contains("when the hub stopped"), "{}", closed[0].reason);
}

/// A proxy of WebSockets that passes one connection on until it goes away, which it tells both sides with a close of its own.
struct GoingProxy {
    address: SocketAddr,
    goes: Arc<Notify>,
}

impl GoingProxy {
    async fn before(server: SocketAddr) -> GoingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let goes = Arc::new(Notify::new());
        let asked = goes.clone();
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(server).await.unwrap();
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
                () = asked.notified() => {}
            }
            // Code 1012, "service restart"; what a client sends is masked, here with zeros.
            client.write_all(&[0x88, 2, 0x03, 0xf4]).await.unwrap();
            server.write_all(&[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xf4]).await.unwrap();
            for side in [&mut client, &mut server] {
                let _ = side.shutdown().await;
                let _ = tokio::io::copy(side, &mut tokio::io::sink()).await;
            }
        });
        GoingProxy { address, goes }
    }
}

#[tokio::test]
async fn a_close_by_a_proxy_on_the_way_is_a_cut_at_both_ends() {
    let mut rig = Rig::start().await;
    let proxy = GoingProxy::before(rig.hub).await;
    rig.lan.retarget(proxy.address);
    let (mut worker, mut backbone) = rig.begun().await;
    rig.lan.retarget(rig.hub);
    let mut standing = backbone.session.sender.standing();
    let began = Instant::now();
    // Nothing is on its way: the close comes between two frames.
    proxy.goes.notify_one();
    assert!(patiently(standing.wait_for(|now| now.connection == 1 && now.is_whole)).await.is_ok());
    recovered("a close by a proxy on the way", began);
    call(&mut worker, &mut backbone, 2, 10, 10, async || {}).await;
    rig.is_billed(&mut worker, &mut backbone, 170).await;
    assert_eq!(rig.scene.closed_sessions(1).await[0].resumed, 1);
}

#[tokio::test]
async fn a_worker_that_says_that_it_cannot_go_on_ends_its_session_at_once() {
    let change = |hub: &mut HubOptions| {
        // Whoever waited for it would wait longer than this test.
        hub.link.resume_within = Duration::from_secs(3_600);
    };
    let mut scene = Scene::start_with(Arc::new(MemoryLedger::default()), change).await;
    scene.features = Features::RESUME;
    let (worker, backbone) = (key(2), key(3));
    let mut control = scene.control(&backbone).await;
    let ticket = scene.ticket(Role::Worker, &worker);
    let mut link = RawLink::dial(&scene, "/v1/worker", &ticket).await;
    let nonce = Nonce([7; 32]);
    let handshake = link.hello_for(worker_purpose(), Features::RESUME, &ticket, &worker, nonce).await;
    let challenge = link.expect(Kind::Challenge).await;
    let (admission, proof) = handshake.challenge(&challenge, &worker).unwrap();
    link.send(Kind::Proof, &proof).await;
    link.expect(Kind::Welcome).await;
    let (mut backbone, ()) =
        tokio::join!(scene.take_offer(&mut control, &backbone), link.pair(&worker, &admission));
    backbone.grant().await;
    backbone.call(1, vec![1; 10]).await;
    link.expect(Kind::Call).await;

    let code = 4000 + RefusalCode::UnknownSession as u16;
    let close = CloseFrame { code: code.into(), reason: "unknown_session".into() };
    link.socket.send(Message::Close(Some(close))).await.unwrap();
    assert_eq!(refused(&mut backbone.session.receiver).await.code, RefusalCode::PeerLost);
    let closed = scene.closed_sessions(1).await;
    assert!(closed[0].reason.contains("4014"), "{}", closed[0].reason);
}
