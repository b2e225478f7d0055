//! The hub between ends that speak the wire by hand: admission, pairing, relay, metering, receipts, ends of all kinds.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod raw_link;
mod scene;

use std::sync::Arc;

use kvasir_gateway::{accept::AcceptLimits, descriptors::DescriptorLimit, hub::HubSettings};
use kvasir_link::TlsTrust;
use kvasir_wire::{
    frame::{HUB_STREAM, Kind},
    handshake::{Class, Features, HolderHandshake, Purpose},
    id::{Nonce, PluginDigest, SessionId},
    limits::{MAX_BULK_PAYLOAD_BYTES, MAX_MESSAGE_BYTES},
    message::{Drain, DrainReason},
    pairing::{Expectation, PairRequest},
    receipt::{Receipt, SignedReceipt},
    refusal::{Refusal, RefusalCode},
    ticket::{EdgeKey, Role, Ticket},
};
use raw_link::{RawLink, raw_frame, walks};
use scene::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

#[tokio::test]
async fn a_session_is_relayed_unchanged_and_metered_exactly() {
    let ledger = Arc::new(MemoryLedger::default());
    let scene = Scene::start(ledger.clone()).await;
    let (worker_key, backbone_key) = (key(2), key(3));
    let (mut worker, mut backbone, _control) = scene.pair(&worker_key, &backbone_key).await;
    // Payloads of many frames in both directions, and small ones.
    let calls = [(200_001, 300_002), (1, 1), (70_000, 5), (3, 65_536)];
    let receipt = whole_session(&mut worker, &mut backbone, &calls).await;
    let (up, down) = calls.iter().fold((0, 0), |sum, call| (sum.0 + call.0 as u64, sum.1 + call.1 as u64));
    assert_eq!((receipt.counters.up.get(), receipt.counters.down.get()), (up, down));
    assert!(receipt.is_final);

    // The ledger has the grant and the note with all three signatures.
    let keys = kvasir_wire::receipt::ReceiptKeys {
        hub: scene.hub_key.public(),
        worker: worker_key.public(),
        backbone: backbone_key.public(),
    };
    let note = ledger.receipts.lock().unwrap().last().unwrap().clone();
    assert_eq!(*SignedReceipt::verify(note, &keys).unwrap().receipt(), receipt);
    assert_eq!(ledger.grants.lock().unwrap().len(), 1);

    let closed = scene.closed_sessions(1).await;
    assert_eq!(closed.len(), 1, "said once");
    assert_eq!((closed[0].bytes_up, closed[0].bytes_down, closed[0].calls), (up, down, 4));
    assert_eq!(closed[0].receipted_bytes, up + down);
    assert_eq!(closed[0].session, backbone.id().to_string());
    assert_eq!(closed[0].reason_code, "finished");
    assert_eq!((closed[0].to_worker.dispatch, closed[0].to_backbone.dispatch), (up, down));
    assert_eq!((closed[0].to_worker.bulk, closed[0].to_backbone.bulk), (0, 0));
    let metrics = scene.served.metrics();
    for line in [
        "kvasir_gateway_sessions_open 0",
        "kvasir_gateway_sessions_closed_total{reason=\"finished\"} 1",
        // The worker's link, the backbone's control link and its data link.
        "kvasir_gateway_handshakes_total{result=\"admitted\"} 3",
        &format!("kvasir_gateway_bytes_total{{direction=\"to_worker\",lane=\"dispatch\"}} {up}"),
        &format!("kvasir_gateway_bytes_total{{direction=\"to_backbone\",lane=\"dispatch\"}} {down}"),
        "kvasir_gateway_bytes_total{direction=\"to_worker\",lane=\"bulk\"} 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in:\n{metrics}");
    }
    // Both links are closed in order: no refusal.
    for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver] {
        let end = patiently(receiver.recv()).await.unwrap_err();
        assert!(!matches!(end, kvasir_link::LinkError::Refused(_)), "{end}");
    }
    scene.stop().await;
}

#[tokio::test]
async fn what_the_backbone_did_not_accept_is_not_paid_and_a_mebibyte_is_cut() {
    let ledger = Arc::new(MemoryLedger::default());
    let scene = Scene::start(ledger.clone()).await;
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    backbone.grant().await;
    for (call, size) in [(1, 600_000), (2, 500_000)] {
        let payload = pattern(size, call);
        backbone.call(call, payload.clone()).await;
        worker.answer(&payload, vec![7; 10]).await;
        backbone.take(call, size, &[7; 10]).await;
    }
    // Nobody asked: a mebibyte was reached.
    let cut = backbone.cut().await;
    assert_eq!((cut.seq, cut.results, cut.up, cut.down, cut.is_final), (1, 2, 1_100_000, 20, false));
    let receipt = backbone.countersign(cut, &[1], |_| {}).await;
    assert_eq!(worker.countersign().await, receipt);
    worker.complete().await;
    backbone.complete().await;
    assert_eq!(ledger.last_receipt().billed().get(), 500_010);
    assert_eq!(ledger.last_receipt().counters.calls, 1);
    // What was left out stays in the totals that the next cut names, and out of what is billed.
    backbone.ask_to_drain().await;
    let cut = backbone.cut().await;
    assert_eq!((cut.seq, cut.results, cut.up, cut.is_final), (2, 2, 1_100_000, true));
    let receipt = backbone.countersign(cut, &[], |_| {}).await;
    assert_eq!(receipt.billed().get(), 500_010);
    worker.countersign().await;
    worker.complete().await;
    scene.stop().await;
}

#[tokio::test]
async fn a_backbone_that_states_more_bytes_ends_the_session_and_both_hear_why() {
    let ledger = Arc::new(MemoryLedger::default());
    let scene = Scene::start(ledger.clone()).await;
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    one_call_stating(&mut worker, &mut backbone, 1001).await;
    for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver] {
        let refusal = refused(receiver).await;
        assert_eq!(refusal.code, RefusalCode::ReceiptDisputed);
        assert!(refusal.sentence.contains("1000"), "{refusal}");
    }
    assert!(ledger.receipts.lock().unwrap().is_empty());
    let closed = scene.closed_sessions(1).await;
    assert_eq!((closed[0].receipted_bytes, closed[0].bytes_up), (0, 1000));
}

#[tokio::test]
async fn of_two_meters_that_differ_the_smaller_is_signed() {
    let ledger = Arc::new(MemoryLedger::default());
    let scene = Scene::start(ledger.clone()).await;
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    one_call_stating(&mut worker, &mut backbone, 10).await;
    let signed = worker.countersign().await;
    assert_eq!((signed.counters.up.get(), signed.counters.down.get()), (10, 500));
    worker.complete().await;
    assert_eq!(ledger.receipts.lock().unwrap().len(), 1);
}

/// One call of 1,000 bytes up and 500 down, of which the backbone states `up`.
async fn one_call_stating(worker: &mut WorkerEnd, backbone: &mut BackboneEnd, up: u64) {
    backbone.grant().await;
    backbone.call(1, vec![1; 1000]).await;
    worker.answer(&[1; 1000], vec![2; 500]).await;
    backbone.take(1, 1000, &[2; 500]).await;
    backbone.ask_to_drain().await;
    let cut = backbone.cut().await;
    let state = |receipt: &mut Receipt| {
        receipt.counters.up = kvasir_wire::money::MeteredBytes::new(up).unwrap();
    };
    backbone.countersign(cut, &[], state).await;
}

#[tokio::test]
async fn a_ledger_that_refuses_ends_the_session_and_both_hear_why() {
    let scene = Scene::start(Arc::new(MemoryLedger { refuse: true, ..MemoryLedger::default() })).await;
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    backbone.grant().await;
    backbone.call(1, vec![1; 10]).await;
    worker.answer(&[1; 10], vec![2; 5]).await;
    backbone.take(1, 10, &[2; 5]).await;
    backbone.ask_to_drain().await;
    let cut = backbone.cut().await;
    backbone.countersign(cut, &[], |_| {}).await;
    worker.countersign().await;
    for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver] {
        let refusal = refused(receiver).await;
        assert!(refusal.sentence.contains("no funds"), "{refusal}");
    }
}

#[tokio::test]
async fn tickets_that_are_not_good_are_refused_with_a_reason() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let worker_key = key(2);
    let dial = |ticket: Ticket| {
        let (url, key) = (scene.url(), worker_key.clone());
        async move { worker_at(&url, &TlsTrust::PlainText, &ticket, &key, vec![PLUGIN]).await }
    };
    let good = scene.claims(Role::Worker, worker_key.public());

    let forged = Ticket::issue(&good, &scene.hub_key, &EdgeKey::from_bytes([99; 32])).unwrap();
    assert_eq!(refusal_code(dial(forged).await), RefusalCode::BadTicket);
    let other_hub = Ticket::issue(
        &kvasir_wire::ticket::TicketClaims { hub: key(77).public(), ..good.clone() },
        &key(77),
        &scene.edge_key,
    )
    .unwrap();
    assert_eq!(refusal_code(dial(other_hub).await), RefusalCode::BadTicket);
    let elsewhere =
        scene.issue(&kvasir_wire::ticket::TicketClaims { network: "other".into(), ..good.clone() });
    assert_eq!(refusal_code(dial(elsewhere).await), RefusalCode::UnknownNetwork);

    // A holder notices these itself; a raw request shows the hub's own answer.
    let expired = scene.issue(&kvasir_wire::ticket::TicketClaims {
        issued: now() - 1000,
        expires: now() - 500,
        ..good.clone()
    });
    let backbone = scene.ticket(Role::Backbone, &worker_key);
    for (ticket, status, code) in [(expired, "401", "ticket_expired"), (backbone, "403", "wrong_role")] {
        let mut stream = TcpStream::connect(scene.hub).await.unwrap();
        let head = format!(
            "GET /v1/worker HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             Sec-WebSocket-Protocol: kvasir.v1\r\nAuthorization: Bearer {}\r\n\r\n",
            ticket.to_text()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(code), "{answer}");
    }
    // The refusals are remembered for the operator, and the page has the words that were told.
    let status = get(scene.hub, "/v1/status").await;
    assert!(status.contains("wrong_role") && status.contains("ticket_expired"), "{status}");
    let page = scene.served.page();
    assert!(page.contains("ticket_expired") && page.contains("this door is for a"), "{page}");
    assert!(scene.served.metrics().contains("kvasir_gateway_refused_total{reason=\"wrong_role\"}"));
}

#[tokio::test]
async fn another_key_and_a_second_answer_to_one_challenge_are_refused() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let (owner, thief) = (key(2), key(66));
    let ticket = scene.ticket(Role::Worker, &owner);
    let start = || {
        HolderHandshake::start(&ticket, &owner, worker_purpose(), Features::NONE, Nonce([8; 32]), now())
            .unwrap()
    };

    // A stolen ticket without its key.
    let mut link = RawLink::dial(&scene, "/v1/worker", &ticket).await;
    let (handshake, hello) = start();
    link.send(Kind::Hello, &hello).await;
    let challenge = link.expect(Kind::Challenge).await;
    let (_, proof) = handshake.challenge(&challenge, &thief).unwrap();
    link.send(Kind::Proof, &proof).await;
    assert_eq!(link.refusal().await.code, RefusalCode::WrongKey);

    // A good answer, replayed on another connection: the challenge there is another.
    let mut link = RawLink::dial(&scene, "/v1/worker", &ticket).await;
    let (handshake, hello) = start();
    link.send(Kind::Hello, &hello).await;
    let challenge = link.expect(Kind::Challenge).await;
    let (_, proof) = handshake.challenge(&challenge, &owner).unwrap();
    let mut replay = RawLink::dial(&scene, "/v1/worker", &ticket).await;
    replay.send(Kind::Hello, &hello).await;
    replay.expect(Kind::Challenge).await;
    replay.send(Kind::Proof, &proof).await;
    assert_eq!(replay.refusal().await.code, RefusalCode::WrongKey);

    // Two answers to one challenge.
    let twice = [link.frame(Kind::Proof, &proof), link.frame(Kind::Proof, &proof)].concat();
    assert_eq!(walks(&twice), Ok(2));
    link.send_bytes(twice).await;
    assert_eq!(link.refusal().await.code, RefusalCode::ReplayedAnswer);

    // The operator reads the same codes.
    for line in [
        "kvasir_gateway_refused_total{reason=\"wrong_key\"} 2",
        "kvasir_gateway_refused_total{reason=\"replayed_answer\"} 1",
        "kvasir_gateway_handshakes_total{result=\"refused\"} 3",
    ] {
        patiently(async {
            while !scene.served.metrics().lines().any(|found| found == line) {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_worker_without_a_common_plugin_is_refused_and_the_backbone_is_told() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let mut control = scene.control(&key(3)).await;
    let worker_key = key(2);
    let ticket = scene.ticket(Role::Worker, &worker_key);
    let refusal = refused_at_once_or_soon(&scene, &ticket, &worker_key, PluginDigest([0xab; 32])).await;
    assert_eq!(refusal.code, RefusalCode::NothingInCommon);
    assert!(refusal.sentence.contains("abababab"), "{refusal}");
    let told = expect(&mut control.receiver, Kind::Refuse).await;
    let told = Refusal::decode(&told.bytes).unwrap();
    assert!(told.sentence.contains(&worker_key.public().to_string()), "{told}");

    // A plugin that both have, but that the worker's ticket does not allow.
    let claims = kvasir_wire::ticket::TicketClaims {
        plugins: vec![PluginDigest([1; 32])],
        ..scene.claims(Role::Worker, worker_key.public())
    };
    let ticket = scene.issue(&claims);
    let refusal = refused_at_once_or_soon(&scene, &ticket, &worker_key, PLUGIN).await;
    assert_eq!(refusal.code, RefusalCode::PluginNotAllowed);
}

#[tokio::test]
async fn a_worker_that_connects_again_and_again_is_held_up_and_no_other_one() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    // Two hundred of them a second apart each would be let in; nobody is that slow.
    let mut told = None;
    for _ in 0..200 {
        match patiently(scene.worker(&key(2))).await {
            Ok(link) => drop(link),
            Err(kvasir_link::LinkError::Refused(refusal)) => {
                told = Some(refusal);
                break;
            }
            Err(other) => panic!("failed without a refusal: {other}"),
        }
    }
    let told = told.expect("a refusal");
    assert_eq!(told.code, RefusalCode::LimitReached);
    assert!(told.retry_after.is_some());
    let page = scene.served.page();
    assert!(page.contains(&told.sentence), "{page}");
    assert!(scene.served.metrics().contains("kvasir_gateway_refused_total{reason=\"limit_reached\"} 1"));
    patiently(scene.worker(&key(4))).await.unwrap();

    // It has proved its key: while it is told why, it stands in nobody's way who has shown no ticket yet. There may be a place
    // for it by then, and another try.
    let ticket = scene.ticket(Role::Worker, &key(2));
    let mut is_refused = false;
    while !is_refused {
        let mut link = RawLink::dial(&scene, "/v1/worker", &ticket).await;
        let handshake = link.hello(&ticket, &key(2), Nonce([8; 32])).await;
        let challenge = link.expect(Kind::Challenge).await;
        let (_, proof) = handshake.challenge(&challenge, &key(2)).unwrap();
        link.send(Kind::Proof, &proof).await;
        is_refused = link.receive().await.is_some_and(|(kind, _)| kind == Kind::Refuse);
        let metrics = scene.served.metrics();
        let line = "kvasir_gateway_connections_without_ticket 0";
        assert!(metrics.lines().any(|found| found == line), "{metrics}");
    }
}

#[tokio::test]
async fn messages_beyond_the_limits_end_the_link_with_a_reason() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let messages: Vec<(&str, Vec<u8>)> = vec![
        ("a message of more than 64 KiB", vec![0; MAX_MESSAGE_BYTES + 1]),
        ("an empty message", Vec::new()),
        ("half a header", vec![11; 7]),
        ("a result without a call", raw_frame(Kind::Result, 2, 0, false, &[0; 8])),
        ("a backbone's kind", raw_frame(Kind::Call, 2, 0, false, &[0; 8])),
        (
            "a bulk frame that is too long",
            raw_frame(Kind::Chunk, 3, 0, false, &[0; MAX_BULK_PAYLOAD_BYTES + 1]),
        ),
        (
            "frames for the hub and for the pair in one message",
            [
                raw_frame(Kind::Ping, HUB_STREAM, 0, false, &[0; 8]),
                raw_frame(Kind::Have, 1, 0, false, &[0; 8]),
            ]
            .concat(),
        ),
    ];
    for (index, (what, message)) in messages.into_iter().enumerate() {
        let (worker_key, backbone_key) = (key(100 + index as u8), key(150 + index as u8));
        let mut control = scene.control(&backbone_key).await;
        let (mut worker, admission) = RawLink::worker(&scene, &worker_key).await;
        let (mut backbone, ()) =
            tokio::join!(scene.take_offer(&mut control, &backbone_key), worker.pair(&worker_key, &admission));
        worker.send_bytes(message).await;
        assert_eq!(worker.refusal().await.code, RefusalCode::ProtocolError, "{what}");
        let told = refused(&mut backbone.session.receiver).await;
        assert!(told.sentence.contains("worker"), "{what}: {told}");
        drop(control);
    }
    assert_eq!(scene.closed_sessions(7).await.len(), 7, "each session was closed once");
}

#[tokio::test]
async fn a_newer_connection_of_a_key_takes_the_older_ones_place() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let worker_key = key(2);
    let (mut old, mut backbone, _control) = scene.pair(&worker_key, &key(3)).await;
    let _new = scene.worker(&worker_key).await.unwrap();
    assert_eq!(refused(&mut old.session.receiver).await.code, RefusalCode::SessionReplaced);
    assert_eq!(refused(&mut backbone.session.receiver).await.code, RefusalCode::SessionReplaced);
    scene.closed_sessions(1).await;
}

#[tokio::test]
async fn a_lost_end_is_told_to_the_other() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let (worker, mut backbone, control) = scene.pair(&key(2), &key(3)).await;
    drop(worker);
    assert_eq!(refused(&mut backbone.session.receiver).await.code, RefusalCode::PeerLost);
    drop(control);

    let (mut worker, backbone, _control) = scene.pair(&key(4), &key(5)).await;
    backbone.session.sender.refuse(Refusal::new(RefusalCode::Declined, "had enough of it", "nothing"));
    let refusal = refused(&mut worker.session.receiver).await;
    assert_eq!(refusal.code, RefusalCode::Declined);
    assert_eq!(refusal.sentence, "had enough of it");
    let closed = scene.closed_sessions(2).await;
    assert!(closed[1].reason.contains("had enough of it"), "{}", closed[1].reason);
}

#[tokio::test]
async fn a_declined_worker_waits_and_is_offered_again() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let (worker_key, backbone_key) = (key(2), key(3));
    let mut control = scene.control(&backbone_key).await;
    let link = scene.worker(&worker_key).await.unwrap();
    let offer = expect(&mut control.receiver, Kind::Pair).await;
    let request = PairRequest::decode(&offer.bytes).unwrap();
    let no = Refusal::new(RefusalCode::Declined, "all places are taken", "wait").about(request.session);
    control.sender.send(Kind::Refuse, HUB_STREAM, no.encode()).await.unwrap();
    patiently(async {
        while !get(scene.hub, "/v1/status").await.contains("all places are taken") {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    // It is said where the worker stands, and is no refusal: of fifty workers too many the list would show nothing else.
    let status = get(scene.hub, "/v1/status").await;
    assert!(status.contains("\"refusals\":[]"), "{status}");
    assert!(scene.served.metrics().contains("kvasir_gateway_refused_total{reason=\"declined\"} 1"));
    // A data link for what was declined is not taken any more.
    let late = scene.backbone(&backbone_key, Purpose::Session(request.session)).await;
    assert_eq!(refusal_code(late), RefusalCode::UnknownSession);

    let pairing = tokio::spawn(async move { link.pair(&worker_key, &worker_expectation()).await });
    let _backbone = scene.take_offer(&mut control, &backbone_key).await;
    pairing.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_worker_of_class_tolerance_is_no_worker_for_who_accepts_exact_alone_and_both_hear_why() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let mut control = scene.control(&key(3)).await;
    let worker_key = key(2);
    let link = worker_of(&scene, &worker_key, Class::Tolerance).await;
    let refusal = match link {
        Ok(mut link) => refused(&mut link.receiver).await,
        Err(kvasir_link::LinkError::Refused(refusal)) => refusal,
        Err(other) => panic!("failed without a refusal: {other}"),
    };
    assert_eq!(refusal.code, RefusalCode::ClassNotAccepted);
    assert!(refusal.sentence.contains("class tolerance") && refusal.sentence.contains("class exact"));
    assert!(refusal.what_to_do.contains("--device cpu") && refusal.what_to_do.contains("--accept tolerance"));
    assert!(refusal.retry_after.is_some(), "another backbone may come");
    let told = Refusal::decode(&expect(&mut control.receiver, Kind::Refuse).await.bytes).unwrap();
    assert_eq!(told.code, RefusalCode::ClassNotAccepted);
    assert!(told.sentence.contains(&worker_key.public().to_string()), "{told}");
    assert_eq!(told.what_to_do, refusal.what_to_do);
    let status = get(scene.hub, "/v1/status").await;
    assert!(status.contains("class_not_accepted"), "{status}");
}

#[tokio::test]
async fn the_class_of_a_session_is_the_worker_s_and_its_receipts_say_it() {
    for class in [Class::Exact, Class::Tolerance] {
        let ledger = Arc::new(MemoryLedger::default());
        let scene = Scene::start(ledger.clone()).await;
        let (worker_key, backbone_key) = (key(2), key(3));
        let mut control = scene.backbone(&backbone_key, control_accepting(Class::Tolerance)).await.unwrap();
        let link = worker_of(&scene, &worker_key, class).await.unwrap();
        let expectation = Expectation { class: Some(class), ..worker_expectation() };
        let pairing_key = worker_key.clone();
        let pairing = tokio::spawn(async move { link.pair(&pairing_key, &expectation).await.unwrap() });
        let mut backbone = scene.take_offer(&mut control, &backbone_key).await;
        let session = pairing.await.unwrap();
        assert_eq!((session.transcript.class, backbone.session.transcript.class), (class, class));
        let mut worker = WorkerEnd { session, key: worker_key };
        let receipt = whole_session(&mut worker, &mut backbone, &[(10, 20)]).await;
        assert_eq!((receipt.terms.class, ledger.last_receipt().terms.class), (class, class));
        scene.stop().await;
    }
}

#[tokio::test]
async fn a_receipt_of_another_class_than_the_session_s_is_disputed() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    backbone.grant().await;
    backbone.call(1, vec![1; 10]).await;
    worker.answer(&[1; 10], vec![2; 5]).await;
    backbone.take(1, 10, &[2; 5]).await;
    backbone.ask_to_drain().await;
    let cut = backbone.cut().await;
    backbone.countersign(cut, &[], |receipt| receipt.terms.class = Class::Tolerance).await;
    let refusal = refused(&mut worker.session.receiver).await;
    assert_eq!(refusal.code, RefusalCode::ReceiptDisputed);
    assert!(refusal.sentence.contains("class"), "{refusal}");
}

async fn worker_of(
    scene: &Scene,
    key: &kvasir_wire::key::SecretKey,
    class: Class,
) -> Result<kvasir_link::Connected, kvasir_link::LinkError> {
    let ticket = scene.ticket(Role::Worker, key);
    worker_of_class(&scene.url(), &TlsTrust::PlainText, &ticket, key, vec![PLUGIN], class).await
}

#[tokio::test]
async fn a_data_link_that_nobody_offered_is_refused() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let result = scene.backbone(&key(3), Purpose::Session(SessionId([9; 32]))).await;
    assert_eq!(refusal_code(result), RefusalCode::UnknownSession);
}

#[tokio::test]
async fn a_stop_tells_both_ends_and_signs_the_last_receipt() {
    let ledger = Arc::new(MemoryLedger::default());
    let scene = Scene::start(ledger.clone()).await;
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    backbone.grant().await;
    backbone.call(1, vec![1; 10]).await;
    worker.answer(&[1; 10], vec![2; 5]).await;
    backbone.take(1, 10, &[2; 5]).await;
    scene.stopper.stop();
    for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver] {
        let drain = expect(receiver, Kind::Drain).await;
        assert_eq!(Drain::decode(&drain.bytes).unwrap().reason, DrainReason::Restarting);
    }
    let cut = backbone.cut().await;
    assert!(cut.is_final);
    backbone.countersign(cut, &[], |_| {}).await;
    worker.countersign().await;
    worker.complete().await;
    backbone.complete().await;
    drop((worker, backbone, _control));
    patiently(scene.run).await.unwrap();
    assert_eq!(ledger.last_receipt().billed().get(), 15);
    assert!(std::fs::read_dir(scene.spool.path()).unwrap().all(|entry| entry.unwrap().path().is_dir()));
}

#[tokio::test]
async fn a_session_ends_in_order_at_its_tickets_limit_of_bytes() {
    let ledger = Arc::new(MemoryLedger::default());
    let scene = Scene::start(ledger.clone()).await;
    let (worker_key, backbone_key) = (key(2), key(3));
    let mut claims = scene.claims(Role::Worker, worker_key.public());
    claims.limits.session_bytes = 100;
    let ticket = scene.issue(&claims);
    let mut control = scene.control(&backbone_key).await;
    let link =
        worker_at(&scene.url(), &TlsTrust::PlainText, &ticket, &worker_key, vec![PLUGIN]).await.unwrap();
    let pairing = {
        let worker_key = worker_key.clone();
        tokio::spawn(async move { link.pair(&worker_key, &worker_expectation()).await.unwrap() })
    };
    let mut backbone = scene.take_offer(&mut control, &backbone_key).await;
    let mut worker = WorkerEnd { session: pairing.await.unwrap(), key: worker_key };
    backbone.grant().await;
    backbone.call(1, vec![1; 90]).await;
    worker.answer(&[1; 90], vec![2; 20]).await;
    backbone.take(1, 90, &[2; 20]).await;
    for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver] {
        let drain = expect(receiver, Kind::Drain).await;
        assert_eq!(Drain::decode(&drain.bytes).unwrap().reason, DrainReason::LimitReached);
    }
    let cut = backbone.cut().await;
    assert!(cut.is_final);
    backbone.countersign(cut, &[], |_| {}).await;
    worker.countersign().await;
    worker.complete().await;
    assert_eq!(ledger.last_receipt().billed().get(), 110);
}

#[tokio::test]
async fn the_hub_says_how_it_is() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let ready = patiently(async {
        loop {
            let answer = get(scene.hub, "/ready").await;
            if answer.starts_with("HTTP/1.1 200") {
                return answer;
            }
        }
    })
    .await;
    assert!(ready.contains("\"ready\":true"), "{ready}");
    let worker_key = key(2);
    let _worker = scene.worker(&worker_key).await.unwrap();
    let status = patiently(async {
        loop {
            let status = get(scene.hub, "/v1/status").await;
            if status.contains("no backbone is connected") {
                return status;
            }
        }
    })
    .await;
    assert!(status.contains(&worker_key.public().to_string()), "{status}");
    assert!(get(scene.hub, "/elsewhere").await.starts_with("HTTP/1.1 404"));
}

/// The refusal of a worker that fits nobody: it may overtake the welcome.
async fn refused_at_once_or_soon(
    scene: &Scene,
    ticket: &Ticket,
    key: &kvasir_wire::key::SecretKey,
    plugin: PluginDigest,
) -> Refusal {
    match worker_at(&scene.url(), &TlsTrust::PlainText, ticket, key, vec![plugin]).await {
        Ok(mut link) => refused(&mut link.receiver).await,
        Err(kvasir_link::LinkError::Refused(refusal)) => refusal,
        Err(other) => panic!("failed without a refusal: {other}"),
    }
}

#[tokio::test]
async fn an_honest_question_is_answered_while_half_open_connections_take_every_place() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let mut silent = Vec::new();
    for number in 0..600 {
        let mut stream = TcpStream::connect(scene.hub).await.unwrap();
        if number % 2 == 0 {
            stream.write_all(b"GET /ready HTTP/1.1\r\n").await.unwrap();
        }
        silent.push(stream);
    }
    for path in ["/ready", "/v1/status"] {
        let mut stream = TcpStream::connect(scene.hub).await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: hub\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        patiently(stream.read_to_string(&mut answer)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 "), "{path}: {answer}");
    }
    // A worker and a backbone still find each other.
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    whole_session(&mut worker, &mut backbone, &[(10, 20)]).await;
    assert!(scene.served.metrics().contains("kvasir_gateway_handshakes_total{result=\"evicted\"}"));
    drop(silent);
    scene.stop().await;
}

#[tokio::test]
async fn without_descriptors_to_spare_who_comes_is_told_to_come_back() {
    let ledger = Arc::new(MemoryLedger::default());
    let scene = Scene::start_with(ledger, |options| {
        options.accept.descriptors = DescriptorLimit::new(Some(1));
    })
    .await;
    let mut stream = TcpStream::connect(scene.hub).await.unwrap();
    let mut answer = String::new();
    patiently(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("Retry-After: ") && answer.contains("descriptors"), "{answer}");
    assert!(scene.served.metrics().contains("kvasir_gateway_refused_total{reason=\"descriptors\"} 1"));
}

#[tokio::test]
async fn a_changed_cap_holds_for_newcomers_and_touches_no_session() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    let cap = |connections| HubSettings { accept: AcceptLimits::default(), connections };
    scene.control_of_hub.change(cap(1));
    let mut stream = TcpStream::connect(scene.hub).await.unwrap();
    // Let in, it would be answered.
    let _ = stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: h\r\n\r\n").await;
    let mut answer = Vec::new();
    // An end or a reset: closed either way.
    let _ = patiently(stream.read_to_end(&mut answer)).await;
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    whole_session(&mut worker, &mut backbone, &[(10, 20)]).await;
    scene.control_of_hub.change(cap(100));
    assert!(get(scene.hub, "/v1/status").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn page_and_report_show_who_is_there_and_a_hub_that_stops_is_not_ready() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let (worker_key, backbone_key, waiting_key) = (key(2), key(3), key(4));
    let waiting = scene.worker(&waiting_key).await.unwrap();
    let seen = |part: &'static str| {
        let served = scene.served.clone();
        patiently(async move {
            while !served.page().contains(part) {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        })
    };
    seen("no backbone is connected").await;
    drop(waiting);
    seen("Nobody waits.").await;
    let (worker, backbone, _control) = scene.pair(&worker_key, &backbone_key).await;
    let page = scene.served.page();
    for key in [&worker_key, &backbone_key] {
        assert!(page.contains(&key.public().to_string()), "{page}");
    }
    let report: serde_json::Value = serde_json::from_str(&scene.served.status()).unwrap();
    assert_eq!(report["sessions"][0]["session"], backbone.id().to_string());
    assert_eq!(report["sessions"][0]["to_worker"]["dispatch"], 0);
    let metrics = scene.served.metrics();
    assert!(metrics.contains("kvasir_gateway_sessions_open 1\n"), "{metrics}");
    assert!(metrics.contains("kvasir_gateway_backbones 1\n"), "{metrics}");
    for key in [&worker_key, &backbone_key] {
        assert!(!metrics.contains(&key.public().to_string()[8..24]), "a key is a label");
    }
    patiently(async {
        while scene.served.ready().is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    let served = scene.served.clone();
    scene.stopper.stop();
    assert!(served.ready().unwrap_err().contains("stopping"));
    drop((worker, backbone));
    patiently(scene.run).await.unwrap();
    assert!(served.ready().is_err());
    assert!(served.page().contains("No session."));
}
