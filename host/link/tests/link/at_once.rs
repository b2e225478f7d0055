//! Payloads that whoever sends them writes, seen from the other side of the socket.

use futures_util::FutureExt as _;
use kvasir_link::{HubReceiver, Incoming, LinkOptions, LinkSender, Relay};
use kvasir_wire::frame::{Kind, Lane, PAIR_STREAM, frames};
use kvasir_wire::handshake::{Features, Purpose};

use crate::flow::{Bare, backbone};
use crate::parties::*;
use crate::raw_holder::RawHolder;

/// Lets the tasks of the link come to rest.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// Sends a call on a thread outside of the runtime, whose tasks stand still meanwhile.
fn send_elsewhere(sender: &LinkSender, stream: u32, bytes: usize) {
    let sender = sender.clone();
    let call = vec![stream as u8; bytes];
    std::thread::spawn(move || sender.send_at_once(Kind::Call, stream, call)).join().unwrap().unwrap();
}

/// Streams and payload bytes of what comes, until it is so many frames.
async fn frames_of(bare: &mut Bare, count: usize) -> Vec<(u32, usize)> {
    let mut found = Vec::new();
    while found.len() < count {
        let frames = bare.next().await.unwrap();
        found.extend(frames.into_iter().map(|(header, payload)| (header.stream, payload.len())));
    }
    found
}

#[tokio::test]
async fn what_is_sent_at_once_is_written_by_the_thread_that_sends_it() {
    let (link, mut bare) = backbone(1 << 20, &LinkOptions::default()).await;
    settle().await;
    for stream in [2, 4] {
        send_elsewhere(&link.sender, stream, 1000);
        // Nothing was awaited, so no task has run.
        let message = bare.next().now_or_never().unwrap().unwrap();
        assert_eq!((message[0].0.kind, message[0].0.stream), (Kind::Call, stream));
        assert_eq!(link.sender.queued_bytes(Lane::Dispatch), 0);
    }
    // What is queued is not, and neither is a large payload: the task that writes does.
    link.sender.try_send(Kind::Call, 6, vec![6; 1000]).unwrap();
    assert!(bare.next().now_or_never().is_none());
    assert_eq!(frames_of(&mut bare, 1).await, [(6, 1000)]);
    settle().await;
    send_elsewhere(&link.sender, 8, 20_000);
    assert!(bare.next().now_or_never().is_none());
    assert_eq!(frames_of(&mut bare, 1).await, [(8, 20_000)]);
}

#[tokio::test]
async fn what_the_socket_does_not_take_is_left_to_the_task_that_writes() {
    let (link, mut bare) = backbone(4 * 1024, &LinkOptions::default()).await;
    settle().await;
    // The first is begun here, what comes after it waits.
    for stream in [2, 4, 6] {
        send_elsewhere(&link.sender, stream, 10_000);
        settle().await;
    }
    assert_eq!(frames_of(&mut bare, 3).await, [(2, 10_000), (4, 10_000), (6, 10_000)]);
    // And then it goes on as before.
    settle().await;
    send_elsewhere(&link.sender, 8, 1000);
    let message = bare.next().now_or_never().unwrap().unwrap();
    assert_eq!(message[0].0.stream, 8);
}

#[tokio::test]
async fn what_is_sent_at_once_keeps_its_place_among_the_lanes() {
    // The pipe holds less than one bulk frame, so all but the first wait where the lanes are compared.
    let (link, mut bare) = backbone(4 * 1024, &LinkOptions::default()).await;
    for _ in 0..10 {
        link.sender.send_chunk(3, vec![0; 16_000], true).await.unwrap();
    }
    settle().await;
    link.sender.try_send(Kind::Cancel, PAIR_STREAM, vec![0; 2]).unwrap();
    send_elsewhere(&link.sender, 2, 1000);
    let streams: Vec<u32> = frames_of(&mut bare, 12).await.into_iter().map(|(stream, _)| stream).collect();
    let place = |stream| streams.iter().position(|found| *found == stream).unwrap();
    // At most the chunk that was being written and the one that was chosen behind it come first.
    assert!(place(PAIR_STREAM) <= 2, "{streams:?}");
    assert_eq!(place(2), place(PAIR_STREAM) + 1, "{streams:?}");
}

#[tokio::test]
async fn what_meets_a_connection_that_is_gone_ends_the_link_as_before() {
    let (mut link, bare) = backbone(1 << 20, &LinkOptions::default()).await;
    settle().await;
    drop(bare);
    // Whether it is taken or not: who waits for an answer is told.
    let _ = link.sender.send_at_once(Kind::Call, 2, vec![0; 1000]);
    link.receiver.recv().await.unwrap_err();
    assert!(link.sender.send_at_once(Kind::Call, 4, vec![0; 1000]).is_err());
}

/// What the hub is to pass on next.
async fn to_pass_on(from: &mut HubReceiver) -> Relay {
    match from.next().await.unwrap() {
        Incoming::Relay(relay) => relay,
        Incoming::Own(payload) => panic!("not for the other end: {payload:?}"),
    }
}

#[tokio::test]
async fn what_the_hub_passes_on_is_written_by_the_task_that_read_it_and_bulk_is_not() {
    let (mut worker, link, _welcome) = RawHolder::admitted(Features::NONE, &key(2)).await;
    let options = LinkOptions::default();
    let (backbone, mut hub) = admitted(Purpose::Session(SESSION), &key(3), &options).await;
    settle().await;
    backbone.sender.send(Kind::Call, 2, vec![7; 1000]).await.unwrap();
    let relay = to_pass_on(&mut hub.receiver).await;
    link.sender.relay(relay).await.unwrap();
    // There was room, so nothing was waited for and no task has run.
    let message = worker.message().now_or_never().unwrap();
    assert_eq!(frames(&message).unwrap().next().unwrap().unwrap().header.kind, Kind::Call);

    backbone.sender.send_chunk(3, vec![7; 1000], true).await.unwrap();
    let relay = to_pass_on(&mut hub.receiver).await;
    link.sender.relay(relay).await.unwrap();
    assert!(worker.message().now_or_never().is_none());
    let message = worker.message().await;
    assert_eq!(frames(&message).unwrap().next().unwrap().unwrap().header.kind, Kind::Chunk);
}
