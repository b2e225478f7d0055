//! Memory of edge and hub under a crowd: idle workers, connections that show no ticket, floods that nobody reads. Both run
//! as processes of their own. `-- --nocapture` prints what was measured.
#![cfg(target_os = "linux")] // memory is read from /proc
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod process;
mod raw_link;
mod scene;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use front::worker_through;
use kvasir_link::{Connected, LinkOptions};
use kvasir_wire::{
    frame::{HUB_STREAM, Kind},
    handshake::Welcome,
    id::Nonce,
    key::SecretKey,
    limits::MAX_MESSAGE_BYTES,
    message::Ping,
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
const EDGE_PER_SESSION: u64 = 64;
const HUB_PER_SESSION: u64 = 64;
/// What connections that show no ticket may cost altogether: 512 of them at most, each in its TLS handshake.
const UNAUTHENTICATED: u64 = 32 * 1024;
/// What one admitted worker may make the hub hold, whatever it does.
const ONE_WORKER: u64 = 4 * 1024;
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

#[tokio::test]
async fn pings_whose_answers_nobody_reads_cost_the_hub_little() {
    let gateway = Gateway::start(&[], &[]);
    let key = key(2);
    let ticket = gateway.ticket(&key);
    let stream = TcpStream::connect(gateway.hub.address).await.unwrap();
    let mut link = RawLink::over(stream, "/v1/worker", &ticket).await;
    let handshake = link.hello(&ticket, &key, Nonce([1; 32])).await;
    let challenge = link.expect(Kind::Challenge).await;
    let (_, proof) = handshake.challenge(&challenge, &key).unwrap();
    link.send(Kind::Proof, &proof).await;
    let welcome = link.expect(Kind::Welcome).await;
    assert!(matches!(Welcome::decode(&welcome).unwrap(), Welcome::Admitted { .. }));
    let before = gateway.hub.peak();
    // Messages full of pings, and not a byte is read, until the hub has had enough of it.
    let stream = link.socket.get_mut();
    let mut sequence = 2;
    let mut sent = 0u64;
    patiently(async {
        loop {
            let mut message = Vec::new();
            while message.len() + 24 <= MAX_MESSAGE_BYTES {
                let ping = Ping { number: sent }.encode();
                message.extend(raw_frame(Kind::Ping, HUB_STREAM, sequence, false, &ping));
                (sequence, sent) = (sequence + 1, sent + 1);
            }
            let mut frame = vec![0x82, 0xff];
            frame.extend((message.len() as u64).to_be_bytes());
            frame.extend([0; 4]);
            frame.extend(message);
            if stream.write_all(&frame).await.is_err() {
                break;
            }
        }
    })
    .await;
    let grown = gateway.hub.peak() - before;
    println!("{sent} pings without reading: {grown} KiB more at the hub");
    assert!(grown <= ONE_WORKER, "{grown} KiB for one worker");
    admitted(&gateway, 9).await;
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
