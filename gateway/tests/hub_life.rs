//! A hub's life with several backbones: whom it asks, how it stops under a call, what it tells of whom it refused, and what
//! it keeps to itself.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod scene;

use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use front::{Front, worker_through};
use kvasir_gateway::{hub::HubOptions, operations::Served};
use kvasir_link::{Connected, LinkError, LinkOptions, LinkReceiver, Payload, TlsTrust};
use kvasir_wire::{
    frame::{HUB_STREAM, Kind},
    id::PluginDigest,
    key::SecretKey,
    message::{Drain, DrainReason},
    pairing::PairRequest,
    refusal::{Refusal, RefusalCode},
    ticket::Role,
};
use scene::*;

/// Two backbones that could both have each worker.
struct Two {
    keys: [SecretKey; 2],
    controls: [Connected; 2],
}

impl Two {
    /// Which of them is asked next, and for what.
    async fn asked(&mut self) -> (usize, Payload) {
        let [first, second] = &mut self.controls;
        tokio::select! {
            offer = expect(&mut first.receiver, Kind::Pair) => (0, offer),
            offer = expect(&mut second.receiver, Kind::Pair) => (1, offer),
        }
    }
}

/// A worker that waits to be paired; its end of the session once it is.
async fn waits(scene: &Scene, key: SecretKey) -> tokio::task::JoinHandle<WorkerEnd> {
    let link = scene.worker(&key).await.unwrap();
    tokio::spawn(async move {
        let session = link.pair(&key, &worker_expectation()).await.unwrap();
        WorkerEnd { session, key }
    })
}

/// Waits until the hub counts so many sessions.
async fn sessions_are(scene: &Scene, count: usize) {
    patiently(async {
        loop {
            let status: serde_json::Value = serde_json::from_str(&scene.served.status()).unwrap();
            if status["sessions"].as_array().unwrap().len() == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn of_two_backbones_the_one_with_fewer_sessions_is_asked_and_where_it_declines_the_other() {
    // Sessions stand without a grant here.
    let patient = |hub: &mut HubOptions| hub.grant_time = Duration::from_secs(3_600);
    let scene = Scene::start_with(Arc::new(MemoryLedger::default()), patient).await;
    let keys = [key(3), key(4)];
    let controls = [scene.control(&keys[0]).await, scene.control(&keys[1]).await];
    let mut backbones = Two { keys, controls };

    // One each, whichever comes first.
    let mut ends = Vec::new();
    for number in 0..2 {
        let worker = waits(&scene, key(10 + number)).await;
        let (which, offer) = backbones.asked().await;
        let backbone = scene.answer_offer(&offer, &backbones.keys[which]).await.unwrap();
        ends.push((which, patiently(worker).await.unwrap(), backbone));
        sessions_are(&scene, ends.len()).await;
    }
    assert_ne!(ends[0].0, ends[1].0, "each backbone has one of the two workers");

    // Whose session ended gets the third.
    let (freed, mut worker, mut backbone) = ends.remove(1);
    whole_session(&mut worker, &mut backbone, &[(10, 20)]).await;
    scene.closed_sessions(1).await;
    drop((worker, backbone));
    let worker = waits(&scene, key(12)).await;
    let (which, offer) = backbones.asked().await;
    assert_eq!(which, freed);
    let backbone = scene.answer_offer(&offer, &backbones.keys[which]).await.unwrap();
    ends.push((which, patiently(worker).await.unwrap(), backbone));
    sessions_are(&scene, 2).await;

    // Both have one again; the one that is asked does not want another.
    let worker = waits(&scene, key(13)).await;
    let (which, offer) = backbones.asked().await;
    let session = PairRequest::decode(&offer.bytes).unwrap().session;
    let no = Refusal::new(RefusalCode::Declined, "all places are taken", "wait").about(session);
    backbones.controls[which].sender.send(Kind::Refuse, HUB_STREAM, no.encode()).await.unwrap();
    let (other, offer) = backbones.asked().await;
    assert_eq!(other, 1 - which, "the other backbone is asked");
    let backbone = scene.answer_offer(&offer, &backbones.keys[other]).await.unwrap();
    ends.push((other, patiently(worker).await.unwrap(), backbone));
    sessions_are(&scene, 3).await;
}

#[tokio::test]
async fn of_workers_that_come_at_once_each_backbone_is_offered_as_many() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let keys = [key(3), key(4)];
    let controls = [scene.control(&keys[0]).await, scene.control(&keys[1]).await];
    let mut backbones = Two { keys, controls };
    let mut workers = Vec::new();
    for number in 0..8 {
        workers.push(waits(&scene, key(10 + number)).await);
    }
    // Nobody answers, so no session begins meanwhile.
    let mut asked = [Vec::new(), Vec::new()];
    for _ in 0..8 {
        let (which, offer) = backbones.asked().await;
        asked[which].push(PairRequest::decode(&offer.bytes).unwrap().session);
    }
    assert_eq!((asked[0].len(), asked[1].len()), (4, 4));

    // What was declined counts no more: the first backbone is asked again, though it was offered as many as the other.
    for session in &asked[0] {
        let no = Refusal::new(RefusalCode::Declined, "all places are taken", "wait").about(*session);
        backbones.controls[0].sender.send(Kind::Refuse, HUB_STREAM, no.encode()).await.unwrap();
    }
    for _ in 0..4 {
        assert_eq!(backbones.asked().await.0, 1, "who was declined is offered to the other one");
    }
    let worker = waits(&scene, key(30)).await;
    assert_eq!(backbones.asked().await.0, 0);
    for worker in workers.into_iter().chain([worker]) {
        worker.abort();
    }
}

#[tokio::test]
async fn a_call_that_is_under_way_when_the_hub_stops_is_answered_and_billed() {
    let ledger = Arc::new(MemoryLedger::default());
    let scene = Scene::start(ledger.clone()).await;
    let (mut worker, mut backbone, control) = scene.pair(&key(2), &key(3)).await;
    backbone.grant().await;
    backbone.call(1, vec![1; 10]).await;
    let call = expect(&mut worker.session.receiver, Kind::Call).await;
    scene.stopper.stop();
    for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver] {
        assert_eq!(drain(receiver).await, DrainReason::Restarting);
    }
    // Both know of the stop, and only now there is an answer.
    worker.session.sender.send(Kind::Result, call.stream, vec![2; 5]).await.unwrap();
    backbone.take(1, 10, &[2; 5]).await;
    let cut = backbone.cut().await;
    assert!(cut.is_final);
    assert_eq!((cut.results, cut.up, cut.down), (1, 10, 5));
    backbone.countersign(cut, &[], |_| {}).await;
    worker.countersign().await;
    worker.complete().await;
    backbone.complete().await;
    let closed = scene.closed_sessions(1).await;
    assert_eq!((closed[0].reason_code, closed[0].receipted_bytes), ("finished", 15));
    drop((worker, backbone, control));
    patiently(scene.run).await.unwrap();
    assert_eq!(ledger.last_receipt().billed().get(), 15);
}

async fn drain(receiver: &mut LinkReceiver) -> DrainReason {
    Drain::decode(&expect(receiver, Kind::Drain).await.bytes).unwrap().reason
}

#[tokio::test]
async fn report_and_page_say_of_a_refused_worker_what_it_was_told_word_for_word() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let _control = scene.control(&key(3)).await;
    let worker = key(2);
    let ticket = scene.ticket(Role::Worker, &worker);
    let plugins = vec![PluginDigest([0xab; 32])];
    let told = match worker_at(&scene.url(), &TlsTrust::PlainText, &ticket, &worker, plugins).await {
        Ok(mut link) => refused(&mut link.receiver).await,
        // It may overtake the welcome.
        Err(LinkError::Refused(refusal)) => refusal,
        Err(other) => panic!("failed without a refusal: {other}"),
    };
    assert_eq!(told.code, RefusalCode::NothingInCommon);
    assert!(!told.sentence.is_empty() && !told.what_to_do.is_empty());
    let status: serde_json::Value = serde_json::from_str(&scene.served.status()).unwrap();
    let refusals = status["refusals"].as_array().unwrap();
    let listed = refusals.iter().find(|refusal| refusal["whom"] == worker.public().to_string()).unwrap();
    assert_eq!(listed["code"], told.code.name());
    assert_eq!(listed["message"], told.sentence);
    assert_eq!(listed["what_to_do"], told.what_to_do);
    page_says(&*scene.served, &told);
}

fn page_says(served: &dyn Served, told: &Refusal) {
    let escaped = |text: &str| {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        text.replace('"', "&quot;")
    };
    let page = served.page();
    for words in [&told.sentence, &told.what_to_do] {
        assert!(page.contains(&escaped(words)), "{words}\nin\n{page}");
    }
}

/// A log that a test can read.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn neither_hub_nor_ends_log_a_secret_at_any_level() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    // For all of this file: what a thread without a subscriber says first nobody would hear from another with one of its own.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let front = Front::start(&scene).await;
    let (worker_key, backbone_key, thief) = (key(2), key(3), key(66));
    let ticket = scene.ticket(Role::Worker, &worker_key);

    // A session in order, through the edge;
    let mut control = scene.control(&backbone_key).await;
    let options = LinkOptions::default();
    let link = worker_through(front.address, &front.trust, &ticket, &worker_key, &options).await.unwrap();
    let key_of_worker = worker_key.clone();
    let pairing =
        tokio::spawn(async move { link.pair(&key_of_worker, &worker_expectation()).await.unwrap() });
    let mut backbone = scene.take_offer(&mut control, &backbone_key).await;
    let mut worker = WorkerEnd { session: patiently(pairing).await.unwrap(), key: worker_key.clone() };
    whole_session(&mut worker, &mut backbone, &[(1_000, 2_000)]).await;
    scene.closed_sessions(1).await;
    // and a ticket that is refused, at an end and at the hub.
    let stolen = worker_at(&scene.url(), &TlsTrust::PlainText, &ticket, &thief, vec![PLUGIN]).await;
    assert!(stolen.is_err());
    let expired = scene.issue(&kvasir_wire::ticket::TicketClaims {
        issued: now() - 1000,
        expires: now() - 500,
        ..scene.claims(Role::Worker, worker_key.public())
    });
    let head = format!("GET /v1/worker HTTP/1.1\r\nAuthorization: Bearer {}", expired.to_text());
    assert!(head_is_refused(scene.hub, &head).await);

    let backbone_ticket = scene.ticket(Role::Backbone, &backbone_key);
    let secrets = [
        ticket.to_text(),
        expired.to_text(),
        backbone_ticket.to_text(),
        scene.edge_key.to_text().trim_end().to_owned(),
        scene.hub_key.to_text().trim_end().to_owned(),
        worker_key.to_text().trim_end().to_owned(),
        backbone_key.to_text().trim_end().to_owned(),
        thief.to_text().trim_end().to_owned(),
    ];
    scene.stop().await;
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("session begins") && log.contains("not admitted"), "{log}");
    for secret in secrets {
        // The end of it: how it begins is the same for all of a kind.
        let end = &secret[secret.len() - 24..];
        assert!(!log.contains(end), "a secret is in the log");
    }
}

/// Whether the hub answers a head that ends here with a refusal.
async fn head_is_refused(hub: std::net::SocketAddr, head: &str) -> bool {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(hub).await.unwrap();
    let rest = "Host: hub\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: kvasir.v1\r\n\r\n";
    stream.write_all(format!("{head}\r\n{rest}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    patiently(stream.read_to_string(&mut answer)).await.unwrap();
    answer.starts_with("HTTP/1.1 401") && answer.contains("ticket_expired")
}
