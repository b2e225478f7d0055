//! Memory of edge and hub under a crowd: idle workers, connections that show no ticket, floods that nobody reads or
//! acknowledges. Both run as processes of their own. `-- --nocapture` prints what was measured. The budgets are those of
//! the table in `docs/gateway.md`.
#![cfg(target_os = "linux")] // memory is read from /proc
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod process;
mod raw_link;
mod scene;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use front::worker_through;
use kvasir_gateway::{descriptors::DescriptorLimit, edge::SlotLimits};
use kvasir_link::{BACKBONE_PATH, Connected, LinkOptions, WORKER_PATH, connect_backbone};
use kvasir_wire::{
    frame::{HUB_STREAM, Kind, PAIR_STREAM},
    handshake::{Admission, Features, Purpose},
    id::Nonce,
    key::SecretKey,
    limits::{MAX_HELLO_BYTES, MAX_HUB_PAYLOAD_BYTES, MAX_MESSAGE_BYTES, MAX_REPLAY_BYTES, MAX_REPORT_BYTES},
    message::Ping,
    pairing::{EndPairing, PairRequest},
    refusal::RefusalCode,
    ticket::{Role, Ticket},
};
use process::{Gateway, Running};
use raw_link::{RawLink, raw_frame};
use scene::*;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpSocket, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

/// Budgets, KiB of resident memory. A session at the edge holds TLS and two splice buffers, at the hub a WebSocket.
const EDGE_PER_SESSION: u64 = 40;
const HUB_PER_SESSION: u64 = 45;
/// What connections that show no ticket may cost altogether: 512 of them at most, each in its TLS handshake.
const UNAUTHENTICATED: u64 = 32 * 1024;
/// A message; one that is read or written may stand in the hub whole.
const MESSAGE: u64 = 64;
/// Messages on the way to an end: two that wait at the hub to be passed on and one that is read, to a worker one of bulk too.
const TO_A_WORKER: u64 = 4 * MESSAGE;
const TO_A_BACKBONE: u64 = 3 * MESSAGE;
/// Answers to pings that are queued: 4,096, each 40 bytes of the queue and 32 for its 8 of payload, and a quarter of it for what lies
/// between.
const UNREAD_PONGS: u64 = 4_096 * (40 + 32) / 1024 * 5 / 4;
/// What a session may make the hub hold one of whose ends floods while the other acknowledges nothing: what a link may keep,
/// in buffers that are a part larger, and what is on the way.
const ONE_SESSION: u64 = MAX_REPLAY_BYTES as u64 / 1024 * 3 / 2 + 2 * 1024;
/// A payload to the hub that is left unfinished, and half as much again since it grew.
const UNFINISHED: u64 = MAX_REPORT_BYTES as u64 / 1024 * 3 / 2;
/// What a worker has told the hub while that waits for the disk: four payloads and one, of which evidence is no part.
const UNHEARD: u64 = 5 * MAX_HUB_PAYLOAD_BYTES as u64 / 1024;
/// Here it is memory that is looked at: nobody is turned away for coming fast.
const FAST: [&str; 2] = ["--max-accepts-per-second", "100000"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_workers_stay_within_the_budget() {
    idle_workers(1_000).await;
}

/// Nearly as many as one edge takes unless told otherwise, which is 4,000 connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes of two processors"]
async fn as_many_idle_workers_as_an_edge_takes_stay_within_the_budget() {
    idle_workers(3_900).await;
}

async fn idle_workers(count: usize) {
    DescriptorLimit::raise();
    let gateway = Arc::new(Gateway::start(&FAST, &[&FAST[..], &["--max-per-address", "5000"]].concat()));
    // The first one pays for what is made once.
    let first = admitted(&gateway, 0).await;
    let (edge, hub) = (gateway.edge.resident(), gateway.hub.resident());
    let dialling = Arc::new(Semaphore::new(32));
    let mut dials = JoinSet::new();
    for number in 1..=count {
        let (gateway, dialling) = (gateway.clone(), dialling.clone());
        dials.spawn(async move {
            let _permit = dialling.acquire().await.unwrap();
            admitted(&gateway, number as u64).await
        });
    }
    let mut workers = vec![first];
    while let Some(worker) = dials.join_next().await {
        workers.push(worker.unwrap());
    }
    let grown =
        |process: &Running, before: u64| process.resident().saturating_sub(before) as f64 / count as f64;
    let (edge, hub) = (grown(&gateway.edge, edge), grown(&gateway.hub, hub));
    println!("{count} idle workers: {edge:.1} KiB each at the edge, {hub:.1} KiB each at the hub");
    assert!(edge <= EDGE_PER_SESSION as f64, "the edge holds {edge:.1} KiB a session");
    assert!(hub <= HUB_PER_SESSION as f64, "the hub holds {hub:.1} KiB a session");
    // They are all there, and all gone afterwards.
    // The welcome goes out a moment before the hub lists the worker.
    patiently(async {
        while waiting(gateway.hub.address).await < count + 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(workers.iter().all(|worker| worker.sender.is_open()));
    drop(workers);
    patiently(async {
        while waiting(gateway.hub.address).await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_without_a_ticket_cost_little_and_shut_nobody_out() {
    silent_crowd(1_000).await;
}

/// 10,000 of them, from many addresses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs 10,000 descriptors"]
async fn ten_thousand_connections_without_a_ticket_cost_little_and_shut_nobody_out() {
    silent_crowd(10_000).await;
}

/// Connections that say nothing, half a TLS record, or half a request, at edge and hub.
async fn silent_crowd(count: usize) {
    DescriptorLimit::raise();
    let gateway = Gateway::start(&FAST, &FAST);
    admitted(&gateway, 0).await;
    let (edge, hub) = (gateway.edge.peak(), gateway.hub.peak());
    let mut crowd = Vec::new();
    for number in 0..count {
        // At the edge from as many addresses as it takes to meet the cap on all of them.
        let mut stream = match number % 4 {
            0 => TcpStream::connect(gateway.hub.address).await.unwrap(),
            _ => dial_from([127, 0, 1, (number % 200) as u8], gateway.edge.address).await,
        };
        let said: &[u8] = match number % 3 {
            0 => b"",
            1 => b"\x16\x03\x01\x40\x00\x01",
            _ => b"GET /v1/worker HTTP/1.1\r\nHost: ",
        };
        let _ = stream.write_all(said).await;
        crowd.push(stream);
        if number % 250 == 0 {
            admitted(&gateway, 1 + number as u64).await;
        }
    }
    let worker = admitted(&gateway, 1_000_000).await;
    assert!(worker.sender.is_open());
    let (edge, hub) = (gateway.edge.peak() - edge, gateway.hub.peak() - hub);
    println!("{count} connections without a ticket: {edge} KiB more at the edge, {hub} KiB more at the hub");
    assert!(edge <= UNAUTHENTICATED && hub <= UNAUTHENTICATED, "{edge} and {hub} KiB");
    assert!(gateway.edge.descriptors() < 1_200 && gateway.hub.descriptors() < 1_200, "they are not kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_whose_answers_nobody_reads_cost_the_hub_little() {
    const WORKERS: u64 = 32;
    let gateway = Gateway::start(&FAST, &[]);
    let mut links = Vec::new();
    for number in 0..=WORKERS {
        links.push(raw(&gateway, &numbered(number), worker_purpose(), Features::NONE).await.0);
    }
    // The first one pays for what is made once, and stays.
    let mut first = links.remove(0);
    flood_with_pings(&mut first).await;
    let before = gateway.hub.peak();
    let mut floods = JoinSet::new();
    for mut link in links {
        floods.spawn(async move {
            let mut sequence = flood_with_pings(&mut link).await;
            // And on, until the hub has had enough of it.
            patiently(async {
                while link.socket.get_mut().write_all(&masked(&ping(sequence))).await.is_ok() {
                    sequence += 1;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            })
            .await;
        });
    }
    while let Some(flood) = floods.join_next().await {
        flood.unwrap();
    }
    let grown = gateway.hub.peak() - before;
    println!("{WORKERS} workers that ping and do not read: {grown} KiB more at the hub");
    // Beside the answers, of each a message that is read and one that is written.
    assert!(grown <= WORKERS * (UNREAD_PONGS + 2 * MESSAGE), "{grown} KiB for {WORKERS} workers");
    admitted(&gateway, 9).await;
}

/// Messages full of pings, of whose answers not a byte is read: they fill the connection and then the hub's queue many times over, unless
/// the hub has had enough of it before. Gives the number of the frame that comes next.
async fn flood_with_pings(link: &mut RawLink) -> u32 {
    // Behind hello and proof.
    let mut sequence = 2;
    for _ in 0..32 {
        let mut message = Vec::new();
        while message.len() + 24 <= MAX_MESSAGE_BYTES {
            message.extend(ping(sequence));
            sequence += 1;
        }
        if patiently(link.socket.get_mut().write_all(&masked(&message))).await.is_err() {
            break;
        }
    }
    sequence
}

fn ping(sequence: u32) -> Vec<u8> {
    let ping = Ping { number: sequence.into() }.encode();
    raw_frame(Kind::Ping, HUB_STREAM, sequence, false, &ping)
}

#[tokio::test]
async fn handshakes_that_are_never_finished_cost_the_hub_little() {
    const WORKERS: u64 = 200;
    let gateway = Gateway::start(&FAST, &[]);
    drop(raw(&gateway, &key(2), worker_purpose(), Features::NONE).await);
    let before = gateway.hub.peak();
    let mut links = Vec::new();
    for number in 0..WORKERS {
        let (mut link, _) = raw(&gateway, &numbered(number), worker_purpose(), Features::NONE).await;
        // Behind hello and proof; a worker that waits has room for nothing longer.
        link.send_bytes(raw_frame(Kind::Hello, HUB_STREAM, 2, true, &[0; MAX_HELLO_BYTES])).await;
        links.push(link);
    }
    for link in &mut links {
        link.send_bytes(raw_frame(Kind::Hello, HUB_STREAM, 3, true, &[0; 1])).await;
        let refusal = link.refusal().await;
        assert_eq!(refusal.code, RefusalCode::ProtocolError);
        assert!(refusal.sentence.contains(&MAX_HELLO_BYTES.to_string()), "{refusal}");
    }
    let grown = gateway.hub.peak() - before;
    println!("{WORKERS} workers that leave a payload unfinished: {grown} KiB more at the hub");
    // What is unfinished may stand in a buffer that has doubled; half as much again for what the allocator keeps.
    assert!(grown <= WORKERS * (HUB_PER_SESSION + 3 * MAX_HELLO_BYTES as u64 / 1024), "{grown} KiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_hostile_ends_stay_within_the_budget() {
    const PAYLOAD: usize = 60_000;
    /// Twice what is kept of them.
    const MESSAGES: u32 = (2 * MAX_REPLAY_BYTES / PAYLOAD) as u32;
    const SESSIONS: u64 = 16;
    /// Of a session that cannot be resumed: two links, and half as much again as what is on the way and written to one of them.
    const NOTHING_KEPT: u64 = 2 * HUB_PER_SESSION + (TO_A_BACKBONE + MESSAGE) * 3 / 2;
    for (what, reads, features, most) in [
        ("whose backbone reads and acknowledges nothing", true, Features::RESUME, ONE_SESSION),
        ("whose backbone does not read", false, Features::RESUME, ONE_SESSION),
        ("that keep nothing and whose backbone does not read", false, Features::NONE, NOTHING_KEPT),
    ] {
        let gateway = Gateway::priced(&FAST, &[]);
        let (before, pairs) = sessions(&gateway, SESSIONS, features).await;
        let mut floods = JoinSet::new();
        for (mut worker, mut backbone) in pairs {
            floods.spawn(async move {
                let flood = async {
                    let stream = worker.socket.get_mut();
                    for sequence in 0..MESSAGES {
                        let frame = raw_frame(Kind::Have, PAIR_STREAM, sequence, false, &[0; PAYLOAD]);
                        // Who is not read stops here, and so does who is sent away.
                        match tokio::time::timeout(STILL, stream.write_all(&masked(&frame))).await {
                            Ok(Ok(())) => {}
                            Ok(Err(_)) | Err(_) => break,
                        }
                    }
                };
                let read = async {
                    if reads {
                        let _ = tokio::io::copy(backbone.socket.get_mut(), &mut tokio::io::sink()).await;
                    }
                    std::future::pending::<()>().await
                };
                tokio::select! {
                    () = flood => {}
                    () = read => {}
                }
            });
        }
        patiently(async { while floods.join_next().await.is_some() {} }).await;
        let grown = gateway.hub.peak() - before;
        println!("{SESSIONS} sessions {what}: {grown} KiB more at the hub");
        assert!(grown <= SESSIONS * most, "{what}: {grown} KiB");
    }

    let gateway = Gateway::priced(&FAST, &[]);
    let (before, mut pairs) = sessions(&gateway, SESSIONS, Features::RESUME).await;
    for (worker, _) in &mut pairs {
        for part in 0..4 {
            // Behind hello, proof and signature.
            let frame = raw_frame(Kind::Report, HUB_STREAM, 3 + part, true, &[0; PAYLOAD]);
            worker.send_bytes(frame).await;
        }
    }
    for (worker, _) in &mut pairs {
        worker.send_bytes(raw_frame(Kind::Report, HUB_STREAM, 7, true, &[0; 30_000])).await;
        let refusal = worker.refusal().await;
        assert!(refusal.sentence.contains(&MAX_REPORT_BYTES.to_string()), "{refusal}");
    }
    let grown = gateway.hub.peak() - before;
    println!("{SESSIONS} sessions with a report that is never finished: {grown} KiB more at the hub");
    // Two links, of which one reads a message.
    assert!(grown <= SESSIONS * (UNFINISHED + 2 * HUB_PER_SESSION + MESSAGE), "{grown} KiB");
}

/// What the table of budgets says that all may take together, against what the units in `packaging/` allow.
#[test]
fn the_budgets_of_all_together_fit_into_the_memory_of_the_services() {
    /// What is kept for resumption: 512 MiB, in buffers that are a third larger, and two messages for each in any case.
    const KEPT_TOGETHER: u64 = 512 * 1024 * 4 / 3;
    const KEPT_IN_ANY_CASE: u64 = 2 * 64;
    /// What second connections for bulk hold together, likewise.
    const APART_TOGETHER: u64 = 128 * 1024 * 4 / 3;
    /// At the edge: two splice buffers that have grown, and TLS's own, a record in and 64 KiB out.
    const BUSY: u64 = 2 * 64 + 16 + 64;
    let connections = SlotLimits::default().connections as u64;
    let of_sessions = |workers: u64| {
        UNAUTHENTICATED
            + connections * (HUB_PER_SESSION + KEPT_IN_ANY_CASE + MESSAGE)
            + KEPT_TOGETHER
            + workers * (TO_A_WORKER + TO_A_BACKBONE + UNREAD_PONGS + UNFINISHED + UNHEARD)
    };
    let hub = of_sessions(connections / 2);
    // Each worker with a second connection, on which one message is read.
    let hub_with_second = of_sessions(connections / 3) + connections / 3 * MESSAGE + APART_TOGETHER;
    let edge = UNAUTHENTICATED + connections * (EDGE_PER_SESSION + BUSY);
    println!("hub {} or {} MiB, edge {} MiB", hub / 1024, hub_with_second / 1024, edge / 1024);
    for (name, together) in [("hub", hub), ("hub", hub_with_second), ("edge", edge)] {
        let file = format!("{}/../packaging/systemd/kvasir-{name}.service", env!("CARGO_MANIFEST_DIR"));
        let unit = std::fs::read_to_string(file).unwrap();
        let most = unit.lines().find_map(|line| line.strip_prefix("MemoryMax=")?.strip_suffix('G')).unwrap();
        let most = most.parse::<u64>().unwrap() * 1024 * 1024;
        assert!(together <= most, "{name}: {together} KiB of {most}");
    }
}

/// A write that takes so long goes to somebody who does not read.
const STILL: Duration = Duration::from_secs(3);

/// A binary WebSocket frame whose mask is zeros.
fn masked(message: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x82, 0xff];
    frame.extend((message.len() as u64).to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(message);
    frame
}

fn numbered(number: u64) -> SecretKey {
    let mut seed = [99; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    SecretKey::from_seed(seed)
}

/// A link straight to the hub whose holder has proved its key.
async fn raw(
    gateway: &Gateway,
    key: &SecretKey,
    purpose: Purpose,
    features: Features,
) -> (RawLink, Admission) {
    let role = purpose.role();
    let path = if role == Role::Worker { WORKER_PATH } else { BACKBONE_PATH };
    let ticket: Ticket = gateway.ticket_of(role, key);
    let stream = TcpStream::connect(gateway.hub.address).await.unwrap();
    let mut link = RawLink::over(stream, path, &ticket).await;
    let handshake = link.hello_for(purpose, features, &ticket, key, Nonce([1; 32])).await;
    let challenge = link.awaited(Kind::Challenge).await;
    let (admission, proof) = handshake.challenge(&challenge, key).unwrap();
    link.send(Kind::Proof, &proof).await;
    link.awaited(Kind::Welcome).await;
    (link, admission)
}

/// So many sessions of ends with these features, both by hand, and the hub's peak of memory once the first was there.
async fn sessions(gateway: &Gateway, count: u64, features: Features) -> (u64, Vec<(RawLink, RawLink)>) {
    let backbone = key(3);
    let ticket = gateway.ticket_of(Role::Backbone, &backbone);
    let (url, options) = (format!("ws://{}", gateway.hub.address), LinkOptions::default());
    let dial = connect_backbone(&url, &ticket, &backbone, control_purpose(), Features::NONE, &options);
    let mut control = dial.await.unwrap();
    let (mut before, mut pairs) = (0, Vec::new());
    for number in 0..=count {
        let worker = numbered(number);
        let (mut up, admission) = raw(gateway, &worker, worker_purpose(), features).await;
        let offer = expect(&mut control.receiver, Kind::Pair).await;
        let request = PairRequest::decode(&offer.bytes).unwrap();
        let (mut down, of_backbone) =
            raw(gateway, &backbone, Purpose::Session(request.session), features).await;
        for (link, admission, key) in [(&mut up, &admission, &worker), (&mut down, &of_backbone, &backbone)] {
            let transcript = link.awaited(Kind::Transcript).await;
            let (_, signature) =
                EndPairing::transcript(&transcript, admission, key, &worker_expectation()).unwrap();
            link.send(Kind::Sign, &signature).await;
        }
        for link in [&mut up, &mut down] {
            link.awaited(Kind::Welcome).await;
        }
        // Without it the hub would end the session after a while.
        let grant = grant_for(&request, &backbone, &gateway.hub_key.public());
        down.send(Kind::Grant, grant.to_string().as_bytes()).await;
        // The first one pays for what is made once.
        match number {
            0 => before = gateway.hub.peak(),
            _ => pairs.push((up, down)),
        }
    }
    (before, pairs)
}

/// A connection from another of this machine's addresses.
async fn dial_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// An honest worker that has come through the edge and waits at the hub.
async fn admitted(gateway: &Gateway, number: u64) -> Connected {
    let mut seed = [88; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let key = SecretKey::from_seed(seed);
    let ticket = gateway.ticket(&key);
    let options = LinkOptions::default();
    patiently(worker_through(gateway.edge.address, &gateway.trust, &ticket, &key, &options)).await.unwrap()
}

/// How many workers the hub says are waiting.
async fn waiting(hub: SocketAddr) -> usize {
    let answer = get(hub, "/v1/status").await;
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    status["waiting"].as_array().unwrap().len()
}
