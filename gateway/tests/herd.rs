//! Many workers whose connections are lost in the same moment, each in the middle of a session: they come from sixteen
//! addresses, through one edge with the caps that an edge has, and every session goes on and is billed once.
//!
//! Prints how long it took (`-- --nocapture`). No time is asserted: deadlines that a busy machine could miss are long here.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod scene;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use front::Front;
use kvasir_gateway::{descriptors::DescriptorLimit, hub::HubOptions};
use kvasir_link::{Backoff, Connected, LinkError, LinkOptions, Session, TlsTrust, connect_worker};
use kvasir_wire::{
    frame::{HUB_STREAM, Kind},
    handshake::{Features, Purpose},
    key::SecretKey,
    message::{Countersign, CutRequest, ReceiptMessage},
    receipt::Receipt,
    ticket::{Role, Ticket},
};
use scene::*;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

/// From so many addresses they come.
const ADDRESSES: usize = 16;
/// No step takes a tenth of it.
const LONG: Duration = Duration::from_secs(600);
/// Bytes of a call, and of its result.
const UP: usize = 100;
const DOWN: usize = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_workers_come_back_at_once_and_are_billed_once() {
    herd(200).await;
}

/// Nearly as many as sixteen addresses may have in their handshakes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute of two processors, and 12,000 descriptors"]
async fn a_thousand_workers_come_back_at_once_and_are_billed_once() {
    herd(1_000).await;
}

async fn herd(count: usize) {
    // Both ends of every connection are this process's.
    DescriptorLimit::raise();
    let patient = LinkOptions {
        connect: LONG,
        handshake: LONG,
        pairing: LONG,
        write_stall: LONG,
        resume_within: LONG,
        ..LinkOptions::default()
    };
    let ledger = Arc::new(MemoryLedger::default());
    let slow = |hub: &mut HubOptions| {
        (hub.door_time, hub.grant_time, hub.sign_time) = (LONG, LONG, LONG);
        hub.link = patient.clone();
    };
    let mut scene = Scene::start_with(ledger.clone(), slow).await;
    (scene.features, scene.options) = (Features::RESUME, patient.clone());
    let scene = Arc::new(scene);
    let front = Front::start_with(&scene, |edge| edge.upgrade_deadline = LONG).await;
    let mut paths = Vec::new();
    for number in 0..ADDRESSES {
        paths.push(Path::start([127, 0, 3, 1 + number as u8], front.address).await);
    }
    let (again, asked) = watch::channel(false);
    let (answered, dials) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let backbones = tokio::spawn(serve_offers(scene.clone(), count, asked, answered.clone()));
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for number in 0..count {
        let mut seed = [77; 32];
        seed[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let worker = Worker {
            key: SecretKey::from_seed(seed),
            url: format!("wss://{}", paths[number % ADDRESSES].address),
            dials: dials.clone(),
            options: patient.clone(),
        };
        let (ticket, trust) = (scene.ticket(Role::Worker, &worker.key), front.trust.clone());
        workers.spawn(async move {
            let session = worker.join(&ticket, &trust).await;
            serve_calls(session, &worker.key).await
        });
    }
    until(|| answered.load(Ordering::Relaxed) == count).await;
    let (seconds, dials) = (start.elapsed().as_secs_f32(), dials.load(Ordering::Relaxed));
    println!("{count} workers come and answer a call each: {seconds:.1} s, {dials} dials");

    // All in one moment, and calls are made while nobody is there.
    let start = Instant::now();
    paths.iter().for_each(Path::reset);
    again.send(true).unwrap();
    until(|| answered.load(Ordering::Relaxed) == 2 * count).await;
    let seconds = start.elapsed().as_secs_f32();
    println!("{count} workers come back and answer another: {seconds:.1} s");

    let receipts = long(backbones).await.unwrap();
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    let each = (UP + DOWN) as u64 * 2;
    assert_eq!(receipts.len(), count);
    assert!(receipts.iter().all(|receipt| receipt.is_final && receipt.billed().get() == each));
    // The hub's own words, and the ledger's last ones of each session.
    let closed = scene.closed_sessions(count).await;
    assert_eq!(closed.len(), count, "one session each, which the cut did not end");
    for session in &closed {
        assert_eq!(session.reason_code, "finished", "{session:?}");
        assert_eq!((session.bytes_up, session.bytes_down), (2 * UP as u64, 2 * DOWN as u64));
        assert_eq!(session.receipted_bytes, each, "no byte is billed twice");
        assert!(session.resumed >= 1, "{session:?}");
    }
    let filed = || -> Vec<u64> {
        let notes = ledger.receipts.lock().unwrap();
        let receipts = notes.iter().map(|note| Receipt::parse(note.text()).unwrap());
        receipts.filter(|receipt| receipt.is_final).map(|receipt| receipt.billed().get()).collect()
    };
    until(|| filed().len() >= count).await;
    assert_eq!(filed(), vec![each; count]);
}

/// What lies between the workers of one address and the edge: a NAT, which may forget all it knows.
struct Path {
    address: SocketAddr,
    resets: watch::Sender<u64>,
}

impl Path {
    async fn start(from: [u8; 4], to: SocketAddr) -> Path {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let resets = watch::Sender::new(0);
        let switch = resets.clone();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let reset = switch.subscribe();
                tokio::spawn(async move {
                    // Turned away there, the client is here too.
                    if let Ok(server) = dial_from(from, to).await {
                        pass_on(client, server, reset).await;
                    }
                });
            }
        });
        Path { address, resets }
    }

    /// Resets every open connection, both sides of it.
    fn reset(&self) {
        self.resets.send_modify(|count| *count += 1);
    }
}

async fn pass_on(mut client: TcpStream, mut server: TcpStream, mut reset: watch::Receiver<u64>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let was_reset = tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => false,
        changed = reset.changed() => changed.is_ok(),
    };
    if was_reset {
        client.set_zero_linger().unwrap();
        server.set_zero_linger().unwrap();
    }
}

/// A connection from another of this machine's addresses.
async fn dial_from(from: [u8; 4], to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

struct Worker {
    key: SecretKey,
    url: String,
    dials: Arc<AtomicUsize>,
    options: LinkOptions,
}

impl Worker {
    /// Dials as workers do, until it is in a session.
    async fn join(&self, ticket: &Ticket, trust: &TlsTrust) -> Session {
        let Purpose::Worker(offer) = worker_purpose() else { panic!("a worker's purpose") };
        let mut backoff = Backoff::new();
        loop {
            self.dials.fetch_add(1, Ordering::Relaxed);
            let (offer, features) = (offer.clone(), Features::RESUME);
            let dial = connect_worker(&self.url, trust, ticket, &self.key, offer, features, &self.options);
            let joined = match dial.await {
                Ok(link) => link.pair(&self.key, &worker_expectation()).await,
                Err(error) => Err(error),
            };
            let error = match joined {
                Ok(session) => return session,
                Err(error) => error,
            };
            assert!(!error.is_permanent(), "a worker gives up: {error}");
            let asked = error.retry_after().map(|seconds| Duration::from_secs(seconds.into()));
            sleep(backoff.next_wait(getrandom::u64().unwrap(), asked)).await;
        }
    }
}

/// Answers calls and signs what the hub proposes, until the session has ended in order.
async fn serve_calls(mut session: Session, key: &SecretKey) {
    loop {
        let payload = match session.receiver.recv().await {
            Ok(payload) => payload,
            Err(LinkError::Refused(refusal)) => panic!("a worker is sent away: {refusal}"),
            Err(_) => return,
        };
        match payload.kind {
            Kind::Call => {
                let result = pattern(DOWN, u64::from(payload.stream));
                session.sender.send(Kind::Result, payload.stream, result).await.unwrap();
            }
            Kind::Receipt => {
                if let ReceiptMessage::Proposal { text, .. } = ReceiptMessage::decode(&payload.bytes).unwrap()
                {
                    let receipt = Receipt::parse(&text).unwrap();
                    let answer = Countersign::Worker { seq: receipt.seq, signature: receipt.sign(key) };
                    session.sender.send(Kind::Countersign, HUB_STREAM, answer.encode()).await.unwrap();
                }
            }
            _ => {}
        }
    }
}

/// A backbone that takes every worker it is offered; the final receipts of so many sessions.
async fn serve_offers(
    scene: Arc<Scene>,
    count: usize,
    again: watch::Receiver<bool>,
    answered: Arc<AtomicUsize>,
) -> Vec<Receipt> {
    let key = key(3);
    let mut control: Connected = scene.control(&key).await;
    let mut sessions: JoinSet<Option<Receipt>> = JoinSet::new();
    let mut receipts = Vec::new();
    while receipts.len() < count {
        tokio::select! {
            offer = control.receiver.recv() => {
                let offer = offer.unwrap();
                if offer.kind == Kind::Pair {
                    let (scene, key) = (scene.clone(), key.clone());
                    let (again, answered) = (again.clone(), answered.clone());
                    sessions.spawn(async move {
                        // One that comes to nothing is offered again.
                        let backbone = scene.answer_offer(&offer, &key).await.ok()?;
                        Some(make_calls(backbone, again, &answered).await)
                    });
                }
            }
            Some(ended) = sessions.join_next() => receipts.extend(ended.unwrap()),
        }
    }
    receipts
}

/// A session of two calls, the second when it is asked for; its final receipt.
async fn make_calls(
    mut backbone: BackboneEnd,
    mut again: watch::Receiver<bool>,
    answered: &AtomicUsize,
) -> Receipt {
    backbone.grant().await;
    backbone.call(1, pattern(UP, 1)).await;
    let (mut calls, mut results) = (1, 0);
    let (mut cut, mut last): (Option<CutRequest>, Option<Receipt>) = (None, None);
    loop {
        // One may overtake the result that it counts.
        if let Some(cut) = cut.take_if(|cut| cut.results <= results) {
            last = Some(backbone.countersign(cut, &[], |_| {}).await);
        }
        let payload = tokio::select! {
            payload = backbone.session.receiver.recv() => payload.unwrap(),
            asked = async { again.wait_for(|again| *again).await.is_ok() }, if calls == 1 => {
                assert!(asked, "the test ends before it has asked");
                calls = 2;
                backbone.call(2, pattern(UP, 2)).await;
                continue;
            }
        };
        match payload.kind {
            Kind::Result => {
                assert!(
                    payload.bytes == pattern(DOWN, u64::from(payload.stream)),
                    "a result arrived changed"
                );
                backbone.book(u64::from(payload.stream / 2), UP, DOWN);
                results += 1;
                answered.fetch_add(1, Ordering::Relaxed);
                if results == 2 {
                    backbone.ask_to_drain().await;
                }
            }
            Kind::Receipt => match ReceiptMessage::decode(&payload.bytes).unwrap() {
                ReceiptMessage::Cut(due) => cut = Some(due),
                _ => {
                    if let Some(receipt) = last.take_if(|receipt| receipt.is_final) {
                        return receipt;
                    }
                }
            },
            _ => {}
        }
    }
}

/// Waits until it is so.
async fn until(is_so: impl Fn() -> bool) {
    let so = async {
        while !is_so() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, so).await.expect("it does not come to that");
}

async fn long<T>(task: JoinHandle<T>) -> Result<T, tokio::task::JoinError> {
    tokio::time::timeout(LONG, task).await.expect("it does not end")
}
