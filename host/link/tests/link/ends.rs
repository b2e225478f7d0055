//! A session of two ends through a hub.

use std::time::Duration;

use kvasir_link::{LinkError, LinkOptions};
use kvasir_wire::frame::{Kind, PAIR_STREAM};
use kvasir_wire::handshake::{BackboneOffer, Class, Purpose};
use kvasir_wire::id::ModelDigest;
use kvasir_wire::limits::BULK_WINDOW_BYTES;
use kvasir_wire::refusal::{Refusal, RefusalCode};

use crate::parties::*;

#[tokio::test]
async fn calls_and_results_pass_and_are_metered_by_their_payloads() {
    let (mut worker, mut backbone, mut totals) = session(&LinkOptions::default()).await;
    assert_eq!(worker.transcript, backbone.transcript);
    assert_eq!(worker.transcript.session, SESSION);
    // Larger than a message, so it travels in many.
    let rows = vec![7u8; 300_000];
    backbone.sender.send(Kind::Call, 2, rows.clone()).await.unwrap();
    let call = worker.receiver.recv().await.unwrap();
    assert_eq!((call.kind, call.stream, call.bytes == rows), (Kind::Call, 2, true));
    worker.sender.send(Kind::Result, 2, vec![9; 70_000]).await.unwrap();
    let result = backbone.receiver.recv().await.unwrap();
    assert_eq!((result.kind, result.stream, result.bytes.len()), (Kind::Result, 2, 70_000));
    let totals = *totals.wait_for(|totals| totals.results == 1).await.unwrap();
    assert_eq!((totals.up, totals.down), (300_000, 70_000));
}

#[tokio::test]
async fn who_receives_is_told_whether_more_is_here() {
    let (mut worker, backbone, _totals) = session(&LinkOptions::default()).await;
    // Small, and queued before anything is written: they travel in one message.
    for stream in [2, 4] {
        backbone.sender.send(Kind::Call, stream, vec![1]).await.unwrap();
    }
    assert_eq!(worker.receiver.recv().await.unwrap().stream, 2);
    assert!(worker.receiver.has_more());
    assert_eq!(worker.receiver.recv().await.unwrap().stream, 4);
    assert!(!worker.receiver.has_more());
}

#[tokio::test]
async fn a_blob_of_many_windows_passes_as_credit_comes_back() {
    let (mut worker, backbone, _totals) = session(&LinkOptions::default()).await;
    let count = 5 * BULK_WINDOW_BYTES as usize / 16_000;
    let sender = backbone.sender.clone();
    let sending = tokio::spawn(async move {
        for number in 0..count {
            sender.send_chunk(3, vec![number as u8; 16_000], number + 1 < count).await.unwrap();
        }
    });
    for number in 0..count {
        let chunk = worker.receiver.recv().await.unwrap();
        assert_eq!((chunk.kind, chunk.stream, chunk.more), (Kind::Chunk, 3, number + 1 < count));
        assert!(chunk.bytes.iter().all(|byte| *byte == number as u8));
    }
    sending.await.unwrap();
}

#[tokio::test]
async fn round_trips_are_measured_to_the_other_end_and_to_the_hub() {
    let (worker, backbone, _totals) = session(&LinkOptions::default()).await;
    let limit = Duration::from_secs(5);
    backbone.sender.round_trip(limit).await.unwrap();
    worker.sender.round_trip(limit).await.unwrap();
    worker.sender.round_trip_to_hub(limit).await.unwrap();
}

#[tokio::test]
async fn closing_sends_what_is_queued_and_then_ends_both() {
    let (worker, mut backbone, _totals) = session(&LinkOptions::default()).await;
    worker.sender.send(Kind::Have, PAIR_STREAM, vec![1; 500_000]).await.unwrap();
    worker.sender.close();
    assert!(!worker.sender.is_open());
    assert!(matches!(worker.sender.try_send(Kind::Have, PAIR_STREAM, vec![]), Err(LinkError::Ended)));
    let have = backbone.receiver.recv().await.unwrap();
    assert_eq!(have.bytes.len(), 500_000);
    assert!(matches!(backbone.receiver.recv().await, Err(LinkError::Closed { code: 1000, .. })));
    // It stays that way.
    assert!(matches!(backbone.receiver.recv().await, Err(LinkError::Closed { code: 1000, .. })));
    assert!(backbone.sender.send(Kind::Call, 2, vec![1]).await.is_err());
}

#[tokio::test]
async fn dropping_the_receiver_closes_the_link_in_order() {
    let (worker, mut backbone, _totals) = session(&LinkOptions::default()).await;
    drop(worker.receiver);
    assert!(matches!(backbone.receiver.recv().await, Err(LinkError::Closed { code: 1000, .. })));
}

#[tokio::test]
async fn a_backbone_declines_one_session_and_keeps_its_control_link() {
    let offer = BackboneOffer {
        model: ModelDigest([0x22; 32]),
        plugins: vec![PLUGIN],
        formats: vec![12],
        accepts: Class::Exact,
    };
    let options = LinkOptions::default();
    let (mut backbone, mut hub) = admitted(Purpose::Control(offer), &key(3), &options).await;
    let declined =
        Refusal::new(RefusalCode::Declined, "enough workers", "try another network").about(SESSION);
    backbone.sender.send(Kind::Refuse, 0, declined.encode()).await.unwrap();
    let kvasir_link::Incoming::Own(payload) = hub.receiver.next().await.unwrap() else {
        panic!("not its own")
    };
    assert_eq!(Refusal::decode(&payload.bytes).unwrap(), declined);
    // The other way round too; and one that names no session ends the link.
    hub.sender.send(Kind::Refuse, declined.encode()).unwrap();
    assert_eq!(backbone.receiver.recv().await.unwrap().kind, Kind::Refuse);
    hub.sender.refuse(Refusal::new(RefusalCode::Draining, "the hub restarts", "come back").retry_after(1));
    match backbone.receiver.recv().await {
        Err(LinkError::Refused(refusal)) => assert_eq!(refusal.retry_after, Some(1)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_came_with_the_welcome_is_not_lost() {
    // The hub may send the transcript before the holder has read the welcome.
    let options = LinkOptions::default();
    let (client, server) = sockets(32 * 1024).await;
    let key = key(2);
    let ticket = ticket(kvasir_wire::ticket::Role::Worker, &key);
    let hub = tokio::spawn({
        let options = options.clone();
        async move {
            let accepted =
                accept_for_test(server, kvasir_wire::ticket::Role::Worker, &options).await.unwrap();
            let hub = accepted.admit().unwrap();
            hub.sender.send(Kind::Drain, vec![0; 12]).unwrap();
            hub
        }
    });
    let features = kvasir_wire::handshake::Features::NONE;
    let connected = kvasir_link::connect_over(client, &ticket, &key, worker_purpose(), features, &options);
    let mut connected = connected.await.unwrap();
    let _hub = hub.await.unwrap();
    assert_eq!(connected.receiver.recv().await.unwrap().kind, Kind::Drain);
}
