//! What a hostile peer does, with a ticket and without: it is cut off, nothing of it is billed, and an honest pair beside
//! it is served. Memory under a crowd is in `crowd.rs`.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod metric;
mod raw_link;
mod scene;

use std::{path::PathBuf, sync::Arc, time::Duration};

use front::{Front, worker_through};
use futures_util::SinkExt as _;
use kvasir_gateway::hub::HubOptions;
use kvasir_link::{LinkError, LinkOptions};
use kvasir_wire::{
    frame::{FrameError, HUB_STREAM, Kind, PAIR_STREAM, frames},
    handshake::Purpose,
    id::Nonce,
    limits::MAX_CONTROL_BACKLOG_BYTES,
    message::{Countersign, Drain, DrainReason, Ping, ReceiptMessage, Report},
    pairing::PairRequest,
    receipt::Receipt,
    refusal::{Refusal, RefusalCode},
    ticket::Role,
};
use raw_link::{RawLink, raw_frame};
use scene::*;
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};
use tokio_tungstenite::tungstenite::Message;

/// An honest worker and backbone find each other and finish a session.
async fn an_honest_pair_is_served(scene: &Scene) {
    let (mut worker, mut backbone, _control) = scene.pair(&key(250), &key(251)).await;
    whole_session(&mut worker, &mut backbone, &[(10, 20)]).await;
}

/// One WebSocket frame with a client's mask; `first` holds FIN, reserved bits and the opcode.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = head(first, 0x80, payload.len());
    frame.extend([0; 4]); // a mask of zeros changes nothing
    frame.extend(payload);
    frame
}

fn unmasked(first: u8, payload: &[u8]) -> Vec<u8> {
    [head(first, 0, payload.len()), payload.to_vec()].concat()
}

fn head(first: u8, mask: u8, length: usize) -> Vec<u8> {
    match length {
        0..=125 => vec![first, mask | length as u8],
        126..=65_535 => [vec![first, mask | 126], (length as u16).to_be_bytes().to_vec()].concat(),
        _ => [vec![first, mask | 127], (length as u64).to_be_bytes().to_vec()].concat(),
    }
}

const BINARY: u8 = 0x82;

fn broken_frames() -> Vec<(&'static str, Vec<u8>)> {
    let ping = raw_frame(Kind::Ping, HUB_STREAM, 0, false, &[0; 8]);
    vec![
        ("an unmasked message", unmasked(BINARY, &ping)),
        ("an unmasked ping", unmasked(0x89, b"")),
        ("reserved bit 1, where no extension was agreed", masked(0xc2, &ping)),
        ("all reserved bits", masked(0xf2, &ping)),
        ("opcode 3", masked(0x83, &ping)),
        ("control opcode 11", masked(0x8b, b"")),
        ("a ping in fragments", masked(0x09, b"part")),
        ("a ping of 126 bytes", masked(0x89, &[0; 126])),
        ("a continuation of nothing", masked(0x80, &ping)),
        ("a message inside another", [masked(0x02, &ping), masked(BINARY, &ping)].concat()),
        ("a text message", masked(0x81, b"hello")),
        ("text that is not UTF-8", masked(0x81, &[0xff, 0xfe])),
        ("a frame of 2^63 - 1 bytes", [vec![BINARY, 0xff, 0x7f], vec![0xff; 7], vec![0; 64]].concat()),
        ("a frame of 2^64 - 1 bytes", [vec![BINARY, 0xff], vec![0xff; 8], vec![0; 64]].concat()),
        ("a frame of 65,537 bytes", masked(BINARY, &[0; 65_537])),
        ("fragments of 80,000 bytes", [masked(0x02, &[0; 40_000]), masked(0x80, &[0; 40_000])].concat()),
        ("an empty message", masked(BINARY, b"")),
        ("a close with half a code", masked(0x88, &[3])),
        ("a close with a code that no one may send", masked(0x88, &1005u16.to_be_bytes())),
        ("a close with a reason that is not UTF-8", masked(0x88, &[3, 0xe8, 0xff])),
        ("an HTTP request", b"GET /v1/worker HTTP/1.1\r\nHost: hub\r\n\r\n".to_vec()),
    ]
}

/// What the hub said after the upgrade: the codes of its refusals, and of its close.
fn said(mut bytes: &[u8]) -> (Vec<RefusalCode>, Option<u16>) {
    let (mut refusals, mut close) = (Vec::new(), None);
    while let [first, second, rest @ ..] = bytes {
        let (length, rest) = match (*second, rest) {
            (126, [a, b, rest @ ..]) => (usize::from(u16::from_be_bytes([*a, *b])), rest),
            (length @ 0..=125, rest) => (usize::from(length), rest),
            _ => break,
        };
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        match (first & 15, payload) {
            (2, message) => {
                for frame in frames(message).unwrap() {
                    let frame = frame.unwrap();
                    if frame.header.kind == Kind::Refuse {
                        refusals.push(Refusal::decode(frame.payload).unwrap().code);
                    }
                }
            }
            (8, [a, b, ..]) => close = Some(u16::from_be_bytes([*a, *b])),
            _ => {}
        }
        bytes = rest;
    }
    (refusals, close)
}

#[tokio::test]
async fn broken_websocket_frames_are_refused_and_end_their_connection_and_no_other() {
    // Nothing but the frame itself ends a connection here: no deadline, no silence.
    let day = Duration::from_secs(86_400);
    let patient = |hub: &mut HubOptions| {
        (hub.door_time, hub.grant_time) = (day, day);
        (hub.link.handshake, hub.link.ping_after) = (day, day);
    };
    let scene = Arc::new(Scene::start_with(Arc::new(MemoryLedger::default()), patient).await);
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    let mut attackers = JoinSet::new();
    for (number, (what, bytes)) in broken_frames().into_iter().enumerate() {
        for admitted in [false, true] {
            let (scene, bytes) = (scene.clone(), bytes.clone());
            attackers.spawn(async move {
                let key = key(10 + number as u8);
                let mut link = match admitted {
                    true => RawLink::worker(&scene, &key).await.0,
                    false => RawLink::dial(&scene, "/v1/worker", &scene.ticket(Role::Worker, &key)).await,
                };
                let stream = link.socket.get_mut();
                // It may be cut off before it has said it all.
                let _ = stream.write_all(&bytes).await;
                let mut rest = Vec::new();
                // Whether it ends by a close or by a reset is the hub's business.
                let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
                assert!(ended.is_ok(), "{what}: the connection stays open");
                let (refusals, close) = said(&rest);
                // Who says goodbye, with whatever code, is let go.
                let told =
                    refusals == [RefusalCode::ProtocolError] || what.starts_with("a close with a code");
                assert!(told, "{what}, admitted {admitted}: {refusals:?}, close {close:?}");
            });
        }
    }
    while let Some(attacker) = attackers.join_next().await {
        attacker.unwrap();
    }
    whole_session(&mut worker, &mut backbone, &[(10, 20)]).await;
}

#[tokio::test]
async fn a_waiting_worker_that_sends_any_hostile_file_is_sent_away() {
    let scene = Arc::new(Scene::start(Arc::new(MemoryLedger::default())).await);
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/hostile-wire");
    let index = std::fs::read_to_string(folder.join("index.txt")).unwrap();
    let mut attackers = JoinSet::new();
    for (number, line) in index.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).enumerate()
    {
        let mut fields = line.split('|').map(str::trim);
        let (name, how) = (fields.next().unwrap().to_owned(), fields.next().unwrap());
        let bytes = std::fs::read(folder.join(&name)).unwrap();
        let messages = match how.split_once(' ') {
            Some(("messages", _)) => split(&bytes),
            Some(("payload", kind)) => {
                let kind = *Kind::ALL.iter().find(|known| known.name() == kind).unwrap();
                // On the hub's stream where it may be there, else where the ends talk.
                let stream =
                    if [Kind::Credit, Kind::Call, Kind::Result].contains(&kind) { 2 } else { HUB_STREAM };
                vec![raw_frame(kind, stream, 2, false, &bytes)]
            }
            _ => continue,
        };
        // A wish to leave is granted without a look at its reason, which is for the other end.
        let leaves = name.starts_with("drain-");
        let scene = scene.clone();
        attackers.spawn(async move {
            let (mut link, _) = RawLink::worker(&scene, &key(number as u8)).await;
            for message in messages {
                // It may be sent away before its last message.
                let _ = link.socket.send(Message::Binary(message.into())).await;
            }
            let mut refusals = 0;
            while let Some((kind, _)) = link.receive().await {
                assert_eq!(kind, Kind::Refuse, "{name}: the hub says why and nothing else");
                refusals += 1;
            }
            assert_eq!(refusals, usize::from(!leaves), "{name}: it is told why, once");
        });
    }
    assert!(attackers.len() >= 40, "the corpus is there");
    while let Some(attacker) = attackers.join_next().await {
        attacker.unwrap();
    }
    an_honest_pair_is_served(&scene).await;
}

/// The messages of a file, each with its length as u32 before it.
fn split(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (message, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        messages.push(message.to_vec());
        bytes = rest;
    }
    messages
}

#[tokio::test]
async fn pings_are_answered_and_never_billed() {
    /// As messages of their own several times what is read at once, and no more than a few seconds' worth.
    const PINGS: u64 = 2_000;
    let ledger = Arc::new(MemoryLedger::default());
    // However long so many pings take, the grant behind them is not too late.
    let patient = |hub: &mut HubOptions| hub.grant_time = Duration::from_secs(3_600);
    let scene = Scene::start_with(ledger.clone(), patient).await;
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    for number in 0..PINGS {
        for stream in [HUB_STREAM, PAIR_STREAM] {
            let ping = Ping { number }.encode();
            worker.session.sender.send(Kind::Ping, stream, ping.clone()).await.unwrap();
            backbone.session.sender.send(Kind::Ping, stream, ping).await.unwrap();
        }
    }
    let receipt = whole_session(&mut worker, &mut backbone, &[(100, 50)]).await;
    assert_eq!(receipt.billed().get(), 150);
    let closed = scene.closed_sessions(1).await;
    assert_eq!((closed[0].bytes_up, closed[0].bytes_down, closed[0].receipted_bytes), (100, 50, 150));

    // WebSocket's own pings neither.
    let (worker_key, backbone_key) = (key(4), key(5));
    let mut control = scene.control(&backbone_key).await;
    let (mut raw, admission) = RawLink::worker(&scene, &worker_key).await;
    let (_backbone, ()) =
        tokio::join!(scene.take_offer(&mut control, &backbone_key), raw.pair(&worker_key, &admission));
    for _ in 0..PINGS {
        raw.socket.feed(Message::Ping(vec![7; 100].into())).await.unwrap();
    }
    raw.socket.flush().await.unwrap();
    drop(raw);
    let closed = scene.closed_sessions(2).await;
    assert_eq!((closed[1].bytes_up, closed[1].bytes_down, closed[1].receipts), (0, 0, 0));
    assert_eq!(ledger.receipts.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_flood_of_messages_that_nobody_reads_ends_the_session_that_it_is_in() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let (mut worker, backbone, _control) = scene.pair(&key(2), &key(3)).await;
    let sender = worker.session.sender.clone();
    // The backbone's application takes nothing; its link takes so much and no more.
    let flood = tokio::spawn(async move {
        loop {
            if let Err(error) = sender.send(Kind::Have, PAIR_STREAM, vec![0; 60_000]).await {
                return error;
            }
        }
    });
    let at_backbone = patiently(backbone.session.sender.ended()).await;
    let LinkError::Protocol(FrameError::ControlBacklog { limit }) = at_backbone else {
        panic!("the flood is called one, not {at_backbone}");
    };
    assert_eq!(limit, MAX_CONTROL_BACKLOG_BYTES);
    assert!(matches!(patiently(flood).await.unwrap(), LinkError::Refused(_)));
    assert_eq!(refused(&mut worker.session.receiver).await.code, RefusalCode::ProtocolError);
    an_honest_pair_is_served(&scene).await;
}

#[tokio::test]
async fn a_flood_of_reports_ends_its_session_and_as_many_as_an_honest_end_makes_do_not() {
    /// What the hub writes down of one session.
    const REPORTS: u64 = 64;
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    for (count, seed) in [(REPORTS, 2), (REPORTS + 1, 4)] {
        let (mut worker, mut backbone, _control) = scene.pair(&key(seed), &key(seed + 1)).await;
        for call in 1..=count {
            let code = RefusalCode::WrongResult;
            let sentence = "it is not what I asked for".to_owned();
            let report = Report { session: backbone.id(), call, code, sentence, evidence: Vec::new() };
            worker.session.sender.send(Kind::Report, HUB_STREAM, report.encode()).await.unwrap();
        }
        if count == REPORTS {
            whole_session(&mut worker, &mut backbone, &[(10, 20)]).await;
            continue;
        }
        for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver] {
            let refusal = refused(receiver).await;
            assert_eq!(refusal.code, RefusalCode::LimitReached);
            assert!(refusal.sentence.contains("64 reports"), "{refusal}");
        }
    }
    an_honest_pair_is_served(&scene).await;
}

#[tokio::test]
async fn who_signs_the_same_without_end_is_told_the_note_a_few_times_and_no_more() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    backbone.grant().await;
    // So much that a receipt is due at once.
    let call = pattern(1_100_000, 1);
    backbone.call(1, call.clone()).await;
    worker.answer(&call, vec![2; 10]).await;
    backbone.take(1, call.len(), &[2; 10]).await;
    let cut = backbone.cut().await;
    backbone.countersign(cut, &[], |_| {}).await;
    let receipt = worker.countersign().await;
    let note = worker.complete().await.to_string();
    backbone.complete().await;

    let sign = |receipt: &Receipt| {
        Countersign::Worker { seq: receipt.seq, signature: receipt.sign(&worker.key) }.encode()
    };
    let sender = worker.session.sender.clone();
    for _ in 0..1_000 {
        sender.send(Kind::Countersign, HUB_STREAM, sign(&receipt)).await.unwrap();
    }
    backbone.ask_to_drain().await;
    let cut = backbone.cut().await;
    backbone.countersign(cut, &[], |_| {}).await;
    let mut told = 0;
    loop {
        let payload = expect(&mut worker.session.receiver, Kind::Receipt).await;
        match ReceiptMessage::decode(&payload.bytes).unwrap() {
            ReceiptMessage::Complete { note: again } if again == note => told += 1,
            // The hub has taken everything that was said before this one was signed.
            ReceiptMessage::Complete { .. } => break,
            ReceiptMessage::Proposal { text, .. } => {
                let next = sign(&Receipt::parse(&text).unwrap());
                sender.send(Kind::Countersign, HUB_STREAM, next).await.unwrap();
            }
            ReceiptMessage::Cut(_) => panic!("a worker is asked for no cut"),
        }
    }
    assert_eq!(told, 8);
    assert_eq!(scene.closed_sessions(1).await[0].receipts, 2);
}

#[tokio::test]
async fn a_worker_that_asks_to_leave_without_end_is_heard_once() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let (worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    backbone.grant().await;
    let drain = Drain { reason: DrainReason::Finished, reconnect_in_ms: 0, try_for_ms: 0 }.encode();
    for _ in 0..1_000 {
        // The session may be over before it has said it all.
        let _ = worker.session.sender.send(Kind::Drain, HUB_STREAM, drain.clone()).await;
    }
    let mut told = 0;
    while let Ok(payload) = patiently(backbone.session.receiver.recv()).await {
        told += usize::from(payload.kind == Kind::Drain);
    }
    assert_eq!(told, 1);
    assert_eq!(scene.closed_sessions(1).await[0].reason_code, "finished");
}

#[tokio::test]
async fn a_stolen_ticket_gets_past_the_edge_and_no_further_and_disturbs_nobody() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let front = Front::start(&scene).await;
    let (owner, thief) = (key(2), key(66));
    // The owner is in a session, and its ticket is for one.
    let (mut worker, mut backbone, _control) = scene.pair(&owner, &key(3)).await;
    let ticket = scene.ticket(Role::Worker, &owner);

    let mut link = RawLink::over(front.dial(front.client_config()).await, "/v1/worker", &ticket).await;
    let handshake = link.hello(&ticket, &owner, Nonce([8; 32])).await;
    let challenge = link.expect(Kind::Challenge).await;
    let (_, proof) = handshake.challenge(&challenge, &thief).unwrap();
    link.send(Kind::Proof, &proof).await;
    assert_eq!(link.refusal().await.code, RefusalCode::WrongKey);

    // What the owner once said on another connection, word for word.
    let mut overheard = RawLink::over(front.dial(front.client_config()).await, "/v1/worker", &ticket).await;
    let handshake = overheard.hello(&ticket, &owner, Nonce([8; 32])).await;
    let challenge = overheard.expect(Kind::Challenge).await;
    let (_, proof) = handshake.challenge(&challenge, &owner).unwrap();
    let mut replay = RawLink::over(front.dial(front.client_config()).await, "/v1/worker", &ticket).await;
    replay.hello(&ticket, &owner, Nonce([8; 32])).await;
    replay.expect(Kind::Challenge).await;
    replay.send(Kind::Proof, &proof).await;
    assert_eq!(replay.refusal().await.code, RefusalCode::WrongKey);

    whole_session(&mut worker, &mut backbone, &[(10, 20)]).await;
}

#[tokio::test]
async fn a_session_that_was_offered_to_one_backbone_is_no_other_s() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let (worker_key, backbone_key, other) = (key(2), key(3), key(4));
    let mut control = scene.control(&backbone_key).await;
    let link = scene.worker(&worker_key).await.unwrap();
    let pairing = tokio::spawn(async move { link.pair(&worker_key, &worker_expectation()).await });
    let offer = expect(&mut control.receiver, Kind::Pair).await;
    let session = PairRequest::decode(&offer.bytes).unwrap().session;
    let taken = scene.backbone(&other, Purpose::Session(session)).await;
    assert_eq!(refusal_code(taken), RefusalCode::UnknownSession);
    // The rightful one comes after it and is served; a second time nobody is.
    let link = scene.backbone(&backbone_key, Purpose::Session(session)).await.unwrap();
    let again = scene.backbone(&backbone_key, Purpose::Session(session)).await;
    assert_eq!(refusal_code(again), RefusalCode::UnknownSession);
    let expectation = kvasir_wire::pairing::Expectation {
        model: Some(MODEL),
        session: Some(session),
        ..worker_expectation()
    };
    let _session = link.pair(&backbone_key, &expectation).await.unwrap();
    patiently(pairing).await.unwrap().unwrap();
}

#[tokio::test]
async fn what_belongs_into_a_session_is_refused_outside_of_one() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    for kind in [Kind::Result, Kind::Have, Kind::Want, Kind::Ping] {
        let (mut link, _) = RawLink::worker(&scene, &key(2)).await;
        let stream = if kind == Kind::Result { 2 } else { PAIR_STREAM };
        link.send_bytes(raw_frame(kind, stream, 0, false, &[0; 8])).await;
        assert_eq!(link.refusal().await.code, RefusalCode::ProtocolError, "{}", kind.name());
    }
    let mut control = scene.control(&key(3)).await;
    control.sender.send(Kind::Call, 2, vec![0; 8]).await.unwrap();
    assert_eq!(refused(&mut control.receiver).await.code, RefusalCode::ProtocolError);

    // A call before the grant, in a session that is in order so far.
    let (mut worker, mut backbone, _control) = scene.pair(&key(4), &key(5)).await;
    backbone.call(1, vec![1; 10]).await;
    for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver] {
        let refusal = refused(receiver).await;
        assert!(refusal.sentence.contains("before it sent the session's grant"), "{refusal}");
    }
    assert_eq!(scene.closed_sessions(1).await[0].bytes_up, 0);
}

#[tokio::test]
async fn whoever_says_one_byte_at_a_time_is_cut_off_by_the_one_deadline() {
    let deadline = Duration::from_secs(5);
    let short = |hub: &mut HubOptions| (hub.link.handshake, hub.door_time) = (deadline, 3 * deadline);
    let scene = Scene::start_with(Arc::new(MemoryLedger::default()), short).await;
    let front = Front::start_with(&scene, |edge| edge.upgrade_deadline = deadline).await;
    let ticket = scene.ticket(Role::Worker, &key(2));
    let head = format!(
        "GET /v1/worker HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         Sec-WebSocket-Protocol: kvasir.v1\r\nAuthorization: Bearer {}\r\n",
        ticket.to_text()
    );
    // Each goes on for minutes without being whole, or wrong: a ClientHello of 16 KiB in one TLS record,
    let client_hello = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03";
    // a head whose last line does not end before its 8 KiB,
    let endless_head = format!("{head}X-Long: ");
    // and a message of 60,000 bytes.
    let message = [BINARY, 0x80 | 126, 0xea, 0x60, 0, 0, 0, 0];
    let at_tls = TcpStream::connect(front.address).await.unwrap();
    let at_head = front.dial(front.client_config()).await;
    let mut at_hello = front.dial(front.client_config()).await;
    at_hello.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
    // Straight at the hub too, where the door has a deadline of its own.
    let at_hub = TcpStream::connect(scene.hub).await.unwrap();
    let cut_off = async {
        tokio::join!(
            drip(at_tls, client_hello),
            drip(at_head, endless_head.as_bytes()),
            drip(at_hello, &message),
            drip(at_hub, endless_head.as_bytes()),
        )
    };
    let honest = async {
        let (key, options) = (key(8), LinkOptions::default());
        let ticket = scene.ticket(Role::Worker, &key);
        worker_through(front.address, &front.trust, &ticket, &key, &options).await.unwrap()
    };
    let (_, _worker) = tokio::join!(patiently(cut_off), honest);
    // It was the deadlines that ended them: nobody was refused, and no TLS or head was found wrong.
    for (served, lines) in [
        (&front.served, &["timed_out\"} 2", "spliced\"} 2"][..]),
        (&scene.served, &["timed_out\"} 1", "failed\"} 1", "admitted\"} 1"][..]),
    ] {
        for line in lines {
            metric::appears(&**served, &format!("kvasir_gateway_handshakes_total{{result=\"{line}")).await;
        }
        for result in ["refused", "tls_failed", "no_head", "client_gone"] {
            let counted = format!("kvasir_gateway_handshakes_total{{result=\"{result}\"}} ");
            let metrics = served.metrics();
            let wrong = metrics.lines().find(|line| line.starts_with(&counted) && !line.ends_with(" 0"));
            assert_eq!(wrong, None);
        }
    }
}

/// Sends these bytes and then letters, one every 20 ms, until the other side has had enough.
async fn drip<S: tokio::io::AsyncRead + AsyncWrite + Unpin>(stream: S, bytes: &[u8]) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let ended = async {
        let mut answer = Vec::new();
        let _ = reader.read_to_end(&mut answer).await;
    };
    let endless = async {
        for byte in bytes.iter().chain(std::iter::repeat(&b'a')) {
            if writer.write_all(&[*byte]).await.is_err() || writer.flush().await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = ended => {}
        () = endless => {}
    }
}
