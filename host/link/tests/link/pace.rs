//! How fast the hub reads a worker that says more small things than its work asks for. The clock stands still but for what is waited
//! for, so it shows rests and nothing else.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use kvasir_link::{LinkOptions, STEPS_OF_A_MESSAGE, STEPS_PER_SECOND};
use kvasir_wire::frame::{Kind, PAIR_STREAM};
use kvasir_wire::handshake::Features;
use kvasir_wire::message::Ping;
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::ticket::Role;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::parties::*;
use crate::raw_holder::RawHolder;

/// What three seconds bring, of which one was there at the beginning.
const STEPS: u64 = 3 * STEPS_PER_SECOND;

/// A worker's link, and the hub's task that reads it for as long as it goes on.
async fn read_by_the_hub() -> (RawHolder, JoinHandle<()>) {
    let (holder, link, _) = RawHolder::admitted(Features::NONE, &key(2)).await;
    let mut receiver = link.receiver;
    (holder, tokio::spawn(async move { while receiver.next().await.is_ok() {} }))
}

fn is_what_was_owed(took: Duration) {
    assert!(took >= Duration::from_millis(1_900) && took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn pings_beyond_the_rate_are_answered_later_and_the_link_goes_on() {
    let (mut holder, hub) = read_by_the_hub().await;
    let began = Instant::now();
    for number in 0..STEPS / (STEPS_OF_A_MESSAGE + 1) {
        holder.send(Kind::Ping, &Ping { number }.encode()).await;
        let answer = holder.receive(Kind::Pong).await;
        assert_eq!(Ping::decode(&answer).unwrap().number, number);
    }
    is_what_was_owed(began.elapsed());
    assert!(!hub.is_finished());
}

#[tokio::test(start_paused = true)]
async fn many_in_one_message_count_as_many() {
    const PINGS: usize = 90;
    let (mut holder, hub) = read_by_the_hub().await;
    let began = Instant::now();
    for number in 0..STEPS / (STEPS_OF_A_MESSAGE + PINGS as u64) {
        holder.send_together(PINGS, Kind::Ping, &Ping { number }.encode()).await;
        assert_eq!(Ping::decode(&holder.receive(Kind::Pong).await).unwrap().number, number);
    }
    is_what_was_owed(began.elapsed());
    assert!(!hub.is_finished());
}

#[tokio::test(start_paused = true)]
async fn pings_of_the_websocket_count_as_messages() {
    let (mut holder, hub) = read_by_the_hub().await;
    let began = Instant::now();
    for _ in 0..STEPS / STEPS_OF_A_MESSAGE {
        holder.websocket_ping().await;
    }
    holder.send(Kind::Ping, &Ping { number: 7 }.encode()).await;
    assert_eq!(Ping::decode(&holder.receive(Kind::Pong).await).unwrap().number, 7);
    is_what_was_owed(began.elapsed());
    assert!(!hub.is_finished());
}

#[tokio::test(start_paused = true)]
async fn who_has_not_proved_its_key_is_read_as_slowly() {
    let (mut client, server) = sockets(32 * 1024).await;
    let options = LinkOptions::default();
    let hub = tokio::spawn(async move { accept_for_test(server, Role::Worker, &options).await.map(|_| ()) });
    let began = Instant::now();
    for _ in 0..=STEPS / STEPS_OF_A_MESSAGE {
        client.send(Message::Ping(Bytes::new())).await.unwrap();
        let answer = client.next().await.unwrap().unwrap();
        assert!(matches!(answer, Message::Pong(_)), "{answer:?}");
    }
    is_what_was_owed(began.elapsed());
    assert!(!hub.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_flood_that_was_refused_becomes_no_faster_one() {
    const PINGS: usize = 1_000;
    let (mut holder, mut link, _) = RawHolder::admitted(Features::NONE, &key(2)).await;
    let refusal = Refusal::new(RefusalCode::LimitReached, "enough", "nothing");
    link.sender.refuse(refusal);
    link.receiver.next().await.unwrap_err();
    let lingering = tokio::spawn(link.receiver.linger(Duration::from_secs(3_600)));
    let began = Instant::now();
    // Each is dropped, and counts by its bytes; the last ones wait in the connection.
    for _ in 0..STEPS / (STEPS_OF_A_MESSAGE + PINGS as u64 * 24 / 1024) {
        holder.send_together(PINGS, Kind::Ping, &Ping { number: 1 }.encode()).await;
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(1_800) && took < Duration::from_secs(3), "{took:?}");
    assert!(!lingering.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_answers_what_it_is_sent_is_never_held_up() {
    let (mut worker, mut backbone, _totals) = session(&LinkOptions::default()).await;
    let began = Instant::now();
    // Of one row, each answered by a message of its own;
    for call in 1..=5_000 {
        backbone.sender.send(Kind::Call, 2 * call, vec![1; 100]).await.unwrap();
        let asked = worker.receiver.recv().await.unwrap();
        worker.sender.send(Kind::Result, asked.stream, vec![2; 100]).await.unwrap();
        assert_eq!(backbone.receiver.recv().await.unwrap().kind, Kind::Result);
    }
    // and chunks, for each a wish and, by the link itself, a grant.
    for _ in 0..3_000 {
        worker.sender.send(Kind::Want, PAIR_STREAM, vec![3; 64]).await.unwrap();
        assert_eq!(backbone.receiver.recv().await.unwrap().kind, Kind::Want);
        backbone.sender.send_chunk(3, vec![4; 16_000], true).await.unwrap();
        assert_eq!(worker.receiver.recv().await.unwrap().kind, Kind::Chunk);
    }
    let took = began.elapsed();
    assert!(took < Duration::from_millis(100), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_has_all_that_it_is_assigned_says_so_of_each_at_once() {
    const EXPERTS: usize = 3_000;
    let (mut worker, mut backbone, _totals) = session(&LinkOptions::default()).await;
    let began = Instant::now();
    // Nobody reads it here: name, digest and length of each.
    backbone.sender.send(Kind::Assign, PAIR_STREAM, vec![5; 4 + 44 * EXPERTS]).await.unwrap();
    assert_eq!(worker.receiver.recv().await.unwrap().kind, Kind::Assign);
    for _ in 0..EXPERTS {
        worker.sender.send(Kind::Have, PAIR_STREAM, vec![6; 50]).await.unwrap();
        assert_eq!(backbone.receiver.recv().await.unwrap().kind, Kind::Have);
    }
    let took = began.elapsed();
    assert!(took < Duration::from_millis(100), "{took:?}");
}
