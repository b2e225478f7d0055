//! A worker that says more small things than its work asks for: it is read with pauses and ends nothing, and others are served
//! meanwhile. How long it is not read is shown where a clock can stand still (`host/link/tests/link/pace.rs`).

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod raw_link;
mod scene;

use std::sync::Arc;

use front::Front;
use futures_util::{SinkExt as _, StreamExt as _};
use kvasir_link::{
    LONGEST_REST, MOST_STEPS_SAVED, STEPS_EARNED_BY_A_FRAME, STEPS_OF_A_MESSAGE, STEPS_PER_SECOND,
};
use kvasir_wire::{
    frame::{Kind, frames},
    id::Nonce,
    limits::MAX_MESSAGE_BYTES,
    message::Ping,
    ticket::Role,
};
use raw_link::RawLink;
use scene::*;
use tokio::io::AsyncWriteExt as _;
use tokio_tungstenite::tungstenite::Message;

/// A WebSocket frame of less than 126 bytes whose mask is zeros; `first` holds FIN and the opcode.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    assert!(length < 126);
    [&[first, 0x80 | length, 0, 0, 0, 0][..], payload].concat()
}

#[tokio::test]
async fn a_flood_of_pings_is_slowed_and_ends_nothing_and_others_are_served_meanwhile() {
    /// Messages full of pings: the steps of four seconds.
    const MESSAGES: u64 = 15;
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    let (link, _) = RawLink::worker(&scene, &key(4)).await;
    let flood = tokio::spawn(pings_and_the_answer_to_the_last(link, MESSAGES));
    // Fragments without payload, of which nothing above the connection sees any before the last.
    let (mut link, _) = RawLink::worker(&scene, &key(5)).await;
    let fragments = tokio::spawn(async move {
        let nothing = masked(0x00, b"").repeat(40_000);
        let ping = link.frame(Kind::Ping, &Ping { number: 9 }.encode());
        let message = [masked(0x02, b""), nothing, masked(0x80, &ping)].concat();
        patiently(link.socket.get_mut().write_all(&message)).await.unwrap();
        assert_eq!(Ping::decode(&link.awaited(Kind::Pong).await).unwrap().number, 9);
    });
    let receipt = whole_session(&mut worker, &mut backbone, &[(10, 20), (30, 40)]).await;
    assert_eq!(receipt.billed().get(), 100);
    patiently(flood).await.unwrap();
    patiently(fragments).await.unwrap();
}

#[tokio::test]
async fn a_byte_a_record_of_tls_is_slowed_at_the_edge_and_ends_nothing() {
    /// Of 30 bytes each, which are as many records: the steps of three seconds.
    const PINGS: u64 = 1_000;
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let front = Front::start(&scene).await;
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    let flooder = key(4);
    let ticket = scene.ticket(Role::Worker, &flooder);
    let mut link = RawLink::over(front.dial(front.client_config()).await, "/v1/worker", &ticket).await;
    let handshake = link.hello(&ticket, &flooder, Nonce([1; 32])).await;
    let challenge = link.expect(Kind::Challenge).await;
    let (_, proof) = handshake.challenge(&challenge, &flooder).unwrap();
    link.send(Kind::Proof, &proof).await;
    link.expect(Kind::Welcome).await;
    let flood = tokio::spawn(async move {
        for number in 0..PINGS {
            let ping = masked(0x82, &link.frame(Kind::Ping, &Ping { number }.encode()));
            let stream = link.socket.get_mut();
            for byte in ping {
                stream.write_all(&[byte]).await.unwrap();
                stream.flush().await.unwrap();
            }
        }
        loop {
            let pong = Ping::decode(&link.awaited(Kind::Pong).await).unwrap();
            if pong.number == PINGS - 1 {
                return;
            }
        }
    });
    let receipt = whole_session(&mut worker, &mut backbone, &[(10, 20), (30, 40)]).await;
    assert_eq!(receipt.billed().get(), 100);
    patiently(flood).await.unwrap();
}

#[test]
fn the_page_states_how_fast_a_worker_is_read() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/gateway.md")).unwrap();
    let longest = LONGEST_REST.as_millis().to_string();
    for (name, value) in [
        ("STEPS_PER_SECOND", STEPS_PER_SECOND.to_string()),
        ("STEPS_OF_A_MESSAGE", STEPS_OF_A_MESSAGE.to_string()),
        ("STEPS_EARNED_BY_A_FRAME", STEPS_EARNED_BY_A_FRAME.to_string()),
        ("MOST_STEPS_SAVED", MOST_STEPS_SAVED.to_string()),
        ("LONGEST_REST", format!("{longest} ms")),
    ] {
        let row = page.lines().find(|line| line.contains(&format!("| `{name}` |"))).unwrap();
        assert!(row.replace(',', "").contains(&format!("| {value} |")), "{row}");
    }
}

/// Sends messages full of pings while it reads, and then one ping, whose answer it waits for: its link is what it was.
async fn pings_and_the_answer_to_the_last(mut link: RawLink, messages: u64) {
    let mut all = Vec::new();
    for _ in 0..messages {
        let mut message = Vec::new();
        while message.len() + 24 <= MAX_MESSAGE_BYTES {
            message.extend(link.frame(Kind::Ping, &Ping { number: 0 }.encode()));
        }
        all.push(message);
    }
    let last = link.frame(Kind::Ping, &Ping { number: 1 }.encode());
    let (mut writer, mut reader) = link.socket.split();
    let write = async {
        for message in all {
            writer.send(Message::Binary(message.into())).await.unwrap();
        }
        writer.send(Message::Binary(last.into())).await.unwrap();
    };
    let read = async {
        loop {
            let Message::Binary(bytes) = reader.next().await.unwrap().unwrap() else { continue };
            let pongs = frames(&bytes).unwrap().map(Result::unwrap);
            let mut pongs = pongs.filter(|frame| frame.header.kind == Kind::Pong);
            if pongs.any(|frame| Ping::decode(frame.payload).unwrap().number == 1) {
                return;
            }
        }
    };
    tokio::join!(write, read);
}
