//! Priority, credit, liveness and deadlines, seen from the other side of the socket.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use kvasir_link::{Connected, LinkError, LinkOptions, connect_over};
use kvasir_wire::frame::{FrameError, HUB_STREAM, Header, Kind, Lane, PAIR_STREAM, frames};
use kvasir_wire::handshake::{Features, HubHandshake, Purpose, Welcome};
use kvasir_wire::id::Nonce;
use kvasir_wire::limits::{
    BULK_WINDOW_BYTES, HEADER_BYTES, MAX_CONTROL_BACKLOG_BYTES, MAX_CONTROL_PAYLOAD_BYTES,
};
use kvasir_wire::message::{Credit, Ping};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::schedule::{Outgoing, Scheduler};
use kvasir_wire::ticket::Role;
use tokio::io::DuplexStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::parties::*;

/// The other side of an admitted link, without any pump: what it reads and writes is up to the test.
pub struct Bare {
    socket: WebSocketStream<DuplexStream>,
    scheduler: Scheduler,
}

impl Bare {
    async fn send(&mut self, kind: Kind, stream: u32, payload: Vec<u8>) {
        self.scheduler.push(Outgoing::new(kind, stream, payload)).unwrap();
        while let Some(message) = self.scheduler.next_message() {
            self.socket.send(Message::Binary(message.into())).await.unwrap();
        }
    }

    /// The headers of the next message; `None` at its close.
    pub async fn next(&mut self) -> Option<Vec<(Header, Vec<u8>)>> {
        match self.socket.next().await.unwrap().unwrap() {
            Message::Binary(bytes) => Some(
                frames(&bytes)
                    .unwrap()
                    .map(|frame| frame.map(|frame| (frame.header, frame.payload.to_vec())).unwrap())
                    .collect(),
            ),
            Message::Close(_) => None,
            other => panic!("{other:?}"),
        }
    }

    /// The refusal and the close code with which the link ends.
    async fn last_words(&mut self) -> (Option<Refusal>, u16) {
        let mut refusal = None;
        loop {
            match self.socket.next().await.unwrap().unwrap() {
                Message::Binary(bytes) => {
                    for frame in frames(&bytes).unwrap() {
                        let frame = frame.unwrap();
                        if frame.header.kind == Kind::Refuse {
                            refusal = Some(Refusal::decode(frame.payload).unwrap());
                        }
                    }
                }
                Message::Close(frame) => return (refusal, frame.unwrap().code.into()),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A backbone's data link whose hub and worker are the test.
pub async fn backbone(pipe_bytes: usize, options: &LinkOptions) -> (Connected, Bare) {
    link(Purpose::Session(SESSION), pipe_bytes, options).await
}

async fn link(purpose: Purpose, pipe_bytes: usize, options: &LinkOptions) -> (Connected, Bare) {
    let (client, socket) = sockets(pipe_bytes).await;
    let mut bare = Bare { socket, scheduler: Scheduler::new() };
    let role = purpose.role();
    let key = key(if role == Role::Worker { 2 } else { 3 });
    let ticket = ticket(role, &key);
    let hub = async {
        let hello = bare.next().await.unwrap().remove(0).1;
        let nonce = Nonce([6; 32]);
        let now = kvasir_link::unix_now();
        let (mut state, challenge) = HubHandshake::hello(&identity(), &hello, role, nonce, now).unwrap();
        bare.send(Kind::Challenge, HUB_STREAM, challenge).await;
        state.proof(&bare.next().await.unwrap().remove(0).1).unwrap();
        bare.send(Kind::Welcome, HUB_STREAM, Welcome::Admitted { hub_time: now }.encode()).await;
    };
    let connect = connect_over(client, &ticket, &key, purpose, Features::NONE, options);
    let (connected, ()) = tokio::join!(connect, hub);
    (connected.unwrap(), bare)
}

#[tokio::test]
async fn control_and_dispatch_overtake_bulk_that_waits() {
    // The pipe holds less than one bulk frame, so all but the first wait where the lanes are compared.
    let (link, mut bare) = backbone(4 * 1024, &LinkOptions::default()).await;
    for _ in 0..10 {
        link.sender.send_chunk(3, vec![0; 16_000], true).await.unwrap();
    }
    tokio::task::yield_now().await;
    link.sender.send(Kind::Call, 2, vec![0; 1000]).await.unwrap();
    link.sender.send(Kind::Cancel, PAIR_STREAM, vec![0; 2]).await.unwrap();
    let mut kinds = Vec::new();
    while kinds.len() < 12 {
        kinds.extend(bare.next().await.unwrap().into_iter().map(|(header, _)| header.kind));
    }
    let place = |kind| kinds.iter().position(|found| *found == kind).unwrap();
    // At most the chunk that was being written and the one that was chosen behind it come first.
    assert!(place(Kind::Cancel) <= 2, "{kinds:?}");
    assert_eq!(place(Kind::Call), place(Kind::Cancel) + 1, "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == Kind::Chunk).count(), 10);
}

#[tokio::test]
async fn bulk_waits_for_credit_and_dispatch_does_not() {
    let (link, mut bare) = backbone(1 << 20, &LinkOptions::default()).await;
    let cost = 16_000 + HEADER_BYTES as u64;
    let window = BULK_WINDOW_BYTES / cost;
    let sender = link.sender.clone();
    let sending = tokio::spawn(async move {
        for _ in 0..window + 4 {
            sender.send_chunk(3, vec![0; 16_000], true).await.unwrap();
        }
    });
    for _ in 0..window {
        assert_eq!(bare.next().await.unwrap()[0].0.kind, Kind::Chunk);
    }
    sending.await.unwrap();
    // No credit is left: the next thing that comes is the call, although four chunks were queued before it.
    link.sender.send(Kind::Call, 2, vec![0; 1000]).await.unwrap();
    let after = bare.next().await.unwrap();
    assert_eq!((after.len(), after[0].0.kind), (1, Kind::Call));
    assert_eq!(link.sender.queued_bytes(Lane::Bulk), 4 * 16_000);
    let credit = Credit { lane: Lane::Bulk, bytes: 4 * cost as u32 };
    bare.send(Kind::Credit, PAIR_STREAM, credit.encode()).await;
    for _ in 0..4 {
        assert_eq!(bare.next().await.unwrap()[0].0.kind, Kind::Chunk);
    }
    assert_eq!(link.sender.queued_bytes(Lane::Bulk), 0);
}

#[tokio::test]
async fn the_bulk_queue_is_bounded_and_a_withdrawn_call_is_never_heard_of() {
    let options = LinkOptions { close_drain: Duration::from_secs(1), ..LinkOptions::default() };
    let (link, mut bare) = backbone(4 * 1024, &options).await;
    let mut queued = 0;
    // Without a reader the pipe, the credit and then the queue fill up; then sending fails instead of growing.
    let error = loop {
        match link.sender.try_send(Kind::Chunk, 3, vec![0; 16_000]) {
            Ok(()) => queued += 1,
            Err(error) => break error,
        }
        tokio::task::yield_now().await;
    };
    assert!(matches!(error, LinkError::Send(_)), "{error}");
    assert!(queued <= 2 + 256 / 15, "{queued}");
    link.sender.send(Kind::Call, 2, vec![0; 200_000]).await.unwrap();
    link.sender.send(Kind::Call, 4, vec![0; 1000]).await.unwrap();
    assert!(link.sender.withdraw(4));
    assert!(!link.sender.withdraw(4));
    link.sender.close();
    let mut streams = Vec::new();
    while let Some(frames) = bare.next().await {
        streams.extend(frames.into_iter().map(|(header, _)| header.stream));
    }
    assert!(streams.contains(&2) && !streams.contains(&4), "{streams:?}");
}

#[tokio::test]
async fn a_sender_beyond_its_credit_is_told_and_cut_off() {
    let (link, mut bare) = link(worker_purpose(), 1 << 20, &LinkOptions::default()).await;
    let mut receiver = link.receiver;
    let cost = 16_000 + HEADER_BYTES as u64;
    bare.scheduler.grant(Lane::Bulk, u32::MAX / 8).unwrap();
    for _ in 0..BULK_WINDOW_BYTES / cost + 1 {
        bare.send(Kind::Chunk, 3, vec![0; 16_000]).await;
    }
    let (refusal, code) = bare.last_words().await;
    let refusal = refusal.unwrap();
    assert_eq!(refusal.code, RefusalCode::ProtocolError);
    assert!(refusal.sentence.contains("were granted"), "{refusal}");
    assert_eq!(code, 4000 + RefusalCode::ProtocolError as u16);
    // What came within the credit is still handed over; then the same reason on this side.
    let error = loop {
        match receiver.recv().await {
            Ok(chunk) => assert_eq!(chunk.kind, Kind::Chunk),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LinkError::Protocol(FrameError::CreditExceeded { .. })), "{error}");
}

#[tokio::test]
async fn unread_control_is_bounded() {
    let (link, mut bare) = backbone(1 << 20, &LinkOptions::default()).await;
    let count = MAX_CONTROL_BACKLOG_BYTES / MAX_CONTROL_PAYLOAD_BYTES + 1;
    let ended = tokio::spawn({
        let sender = link.sender.clone();
        async move { sender.ended().await }
    });
    for _ in 0..count {
        bare.send(Kind::Have, PAIR_STREAM, vec![0; MAX_CONTROL_PAYLOAD_BYTES]).await;
    }
    let error = ended.await.unwrap();
    assert!(matches!(error, LinkError::Protocol(FrameError::ControlBacklog { .. })), "{error}");
    drop(link);
}

#[tokio::test]
async fn frames_that_break_a_rule_end_the_link_with_a_reason() {
    let broken: [(&str, Message, &str); 4] = [
        ("a frame cut short", Message::Binary(vec![12, 0, 1].into()), "message ends 3 bytes into"),
        ("text", Message::Text("hello".into()), "a text message"),
        (
            "another version",
            Message::Binary(vec![12, 0, 1, 9, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0].into()),
            "frame version 9",
        ),
        ("an empty message", Message::Binary(vec![].into()), "message without a frame"),
    ];
    for (what, message, sentence) in broken {
        let (mut link, mut bare) = backbone(1 << 20, &LinkOptions::default()).await;
        bare.socket.send(message).await.unwrap();
        let (refusal, code) = bare.last_words().await;
        let refusal = refusal.unwrap();
        assert!(refusal.sentence.contains(sentence), "{what}: {refusal}");
        assert_eq!(code, 4000 + refusal.code as u16, "{what}");
        assert!(link.receiver.recv().await.is_err(), "{what}");
    }
}

#[tokio::test]
async fn a_message_beyond_64_kib_is_refused_by_the_websocket_already() {
    let (mut link, mut bare) = backbone(1 << 20, &LinkOptions::default()).await;
    bare.socket.send(Message::Binary(vec![0; 64 * 1024 + 1].into())).await.unwrap();
    let error = link.receiver.recv().await.unwrap_err();
    assert!(matches!(error, LinkError::Unexpected { .. }), "{error}");
}

#[tokio::test]
async fn pings_are_answered_on_their_stream() {
    let (_link, mut bare) = backbone(1 << 20, &LinkOptions::default()).await;
    for stream in [HUB_STREAM, PAIR_STREAM] {
        bare.send(Kind::Ping, stream, Ping { number: 77 }.encode()).await;
        let answer = bare.next().await.unwrap();
        assert_eq!((answer[0].0.kind, answer[0].0.stream), (Kind::Pong, stream));
        assert_eq!(Ping::decode(&answer[0].1).unwrap().number, 77);
    }
}

#[tokio::test(start_paused = true)]
async fn silence_is_answered_with_a_ping_and_then_with_the_end() {
    let (mut link, mut bare) = backbone(1 << 20, &LinkOptions::default()).await;
    let ping = bare.next().await.unwrap();
    assert_eq!((ping[0].0.kind, ping[0].0.stream), (Kind::Ping, HUB_STREAM));
    // An answer keeps it alive: another ping comes.
    bare.send(Kind::Pong, HUB_STREAM, ping[0].1.clone()).await;
    assert_eq!(bare.next().await.unwrap()[0].0.kind, Kind::Ping);
    let error = link.receiver.recv().await.unwrap_err();
    assert!(matches!(error, LinkError::Silent(_)), "{error}");
    let (refusal, _) = bare.last_words().await;
    assert_eq!(refusal.unwrap().code, RefusalCode::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn a_side_that_takes_no_bytes_is_given_up() {
    let options = LinkOptions { ping_after: Duration::from_secs(3600), ..LinkOptions::default() };
    let (mut link, bare) = backbone(4 * 1024, &options).await;
    link.sender.send(Kind::Call, 2, vec![0; 200_000]).await.unwrap();
    let error = link.receiver.recv().await.unwrap_err();
    assert!(matches!(error, LinkError::Stalled(_)), "{error}");
    drop(bare);
}

#[tokio::test(start_paused = true)]
async fn a_close_does_not_wait_for_credit_for_ever() {
    let (link, mut bare) = backbone(1 << 20, &LinkOptions::default()).await;
    let cost = 16_000 + HEADER_BYTES as u64;
    for _ in 0..BULK_WINDOW_BYTES / cost + 1 {
        link.sender.send_chunk(3, vec![0; 16_000], true).await.unwrap();
    }
    link.sender.close();
    let mut chunks = 0;
    while let Some(frames) = bare.next().await {
        chunks += frames.len() as u64;
    }
    assert_eq!(chunks, BULK_WINDOW_BYTES / cost);
}
