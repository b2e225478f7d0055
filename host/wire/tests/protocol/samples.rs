//! One fixed value of everything, from fixed keys, nonces and times: what the vectors in the document are made of.

use kvasir_merkle::{Hash, InclusionProof};
use kvasir_wire::account::{Grant, Statement as _};
use kvasir_wire::frame::{HUB_STREAM, Kind, Lane, PAIR_STREAM};
use kvasir_wire::handshake::{
    BackboneOffer, BulkConnection, Class, Features, Hello, HolderHandshake, HubHandshake, HubIdentity,
    Purpose, Resumption, Welcome, WorkerOffer,
};
use kvasir_wire::id::{ExpertDigest, KeyDigest, ModelDigest, Nonce, PluginDigest, SessionId};
use kvasir_wire::key::{SecretKey, Signature};
use kvasir_wire::message::{
    Ack, Assign, Assigned, Call, CallResult, Cancel, Chunk, Countersign, Credit, CutRequest, Drain,
    DrainReason, ExpertName, ExpertRows, Failure, FailureCode, Have, Held, Mode, NotHeld, NotHeldReason,
    Outcome, Pause, Ping, ReceiptMessage, Release, Report, Reroute, RowFormat, Want,
};
use kvasir_wire::money::MeteredBytes;
use kvasir_wire::note::Note;
use kvasir_wire::pairing::{PairRequest, Transcript, TranscriptEnd};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::schedule::{Outgoing, Scheduler};
use kvasir_wire::ticket::{EdgeKey, Role, Ticket, TicketClaims, TicketLimits};

pub const NETWORK: &str = "atlas.example";
/// 1 January 2026.
pub const ISSUED: u64 = 1_767_225_600;
/// 31 January 2026.
pub const EXPIRES: u64 = 1_769_817_600;
/// 2 January 2026.
pub const NOW: u64 = 1_767_312_000;
pub const WORKER_NONCE: Nonce = Nonce([0x44; 32]);
pub const BACKBONE_NONCE: Nonce = Nonce([0x55; 32]);
pub const HUB_NONCE: Nonce = Nonce([0x66; 32]);
pub const PLUGIN: PluginDigest = PluginDigest([0x11; 32]);
pub const MODEL: ModelDigest = ModelDigest([0x22; 32]);
pub const SESSION: SessionId = SessionId([0x33; 32]);

pub fn hub() -> SecretKey {
    SecretKey::from_seed([1; 32])
}
pub fn worker() -> SecretKey {
    SecretKey::from_seed([2; 32])
}
pub fn backbone() -> SecretKey {
    SecretKey::from_seed([3; 32])
}
pub fn wallet() -> SecretKey {
    SecretKey::from_seed([4; 32])
}
pub fn edge() -> EdgeKey {
    EdgeKey::from_bytes([5; 32])
}
pub fn identity() -> HubIdentity {
    HubIdentity { network: NETWORK.to_owned(), key: hub(), edge: edge() }
}

pub fn worker_claims() -> TicketClaims {
    TicketClaims {
        network: NETWORK.to_owned(),
        role: Role::Worker,
        holder: worker().public(),
        hub: hub().public(),
        wallet: Some(wallet().public().wallet_digest()),
        plugins: vec![PLUGIN],
        publishers: vec![KeyDigest([0x77; 32])],
        limits: TicketLimits { sessions: 2, session_bytes: 1 << 40 },
        issued: ISSUED,
        expires: EXPIRES,
    }
}

pub fn backbone_claims() -> TicketClaims {
    TicketClaims {
        role: Role::Backbone,
        holder: backbone().public(),
        wallet: None,
        publishers: vec![],
        limits: TicketLimits { sessions: 8, session_bytes: 0 },
        ..worker_claims()
    }
}

pub fn worker_ticket() -> Ticket {
    Ticket::issue(&worker_claims(), &hub(), &edge()).unwrap()
}
pub fn backbone_ticket() -> Ticket {
    Ticket::issue(&backbone_claims(), &hub(), &edge()).unwrap()
}

pub fn worker_purpose() -> Purpose {
    Purpose::Worker(WorkerOffer {
        plugins: vec![PLUGIN],
        formats: vec![8, 12, 14],
        memory_bytes: 8 << 30,
        class: Class::Exact,
    })
}

pub fn control_hello() -> Hello {
    let offer =
        BackboneOffer { model: MODEL, plugins: vec![PLUGIN], formats: vec![12, 14], accepts: Class::Exact };
    Hello {
        min_version: 3,
        max_version: 3,
        features: Features::NONE,
        nonce: BACKBONE_NONCE,
        ticket: backbone_ticket(),
        purpose: Purpose::Control(offer),
    }
}

/// Hello, challenge and proof of the worker.
pub fn worker_handshake() -> [Vec<u8>; 3] {
    let (holder, hello) = HolderHandshake::start(
        &worker_ticket(),
        &worker(),
        worker_purpose(),
        Features::NONE,
        WORKER_NONCE,
        NOW,
    )
    .unwrap();
    let (_, challenge) = HubHandshake::hello(&identity(), &hello, Role::Worker, HUB_NONCE, NOW).unwrap();
    let (_, proof) = holder.challenge(&challenge, &worker()).unwrap();
    [hello, challenge, proof]
}

pub fn transcript() -> Transcript {
    Transcript {
        version: 3,
        network: NETWORK.to_owned(),
        session: SESSION,
        worker: TranscriptEnd {
            key: worker().public(),
            nonce: WORKER_NONCE,
            ticket: worker_ticket().digest(),
        },
        backbone: TranscriptEnd {
            key: backbone().public(),
            nonce: BACKBONE_NONCE,
            ticket: backbone_ticket().digest(),
        },
        plugin: PLUGIN,
        model: MODEL,
        class: Class::Exact,
        features: Features::NONE,
    }
}

pub fn call_each(data: &[u8]) -> Call<'_> {
    Call {
        call: 1,
        layer: 3,
        mode: Mode::Each,
        row_format: RowFormat::Float32,
        rows: 2,
        experts: vec![
            ExpertRows { expert: 5, rows: vec![0, 1], weights: vec![] },
            ExpertRows { expert: 9, rows: vec![1], weights: vec![] },
        ],
        data,
    }
}

pub fn call_sum(data: &[u8]) -> Call<'_> {
    Call {
        call: 2,
        mode: Mode::Sum,
        row_format: RowFormat::Q8,
        rows: 1,
        experts: vec![
            ExpertRows { expert: 5, rows: vec![0], weights: vec![0.75] },
            ExpertRows { expert: 9, rows: vec![0], weights: vec![0.25] },
        ],
        ..call_each(data)
    }
}

/// The backbone's grant for the session, as the hub files it.
pub fn grant_note() -> Note {
    let grant = Grant {
        network: NETWORK.parse().unwrap(),
        session: Some(SESSION),
        hub: hub().public().digest(),
        worker: Some(worker().public().digest()),
        backbone: backbone().public(),
        price: Hash([0xbb; 32]),
        bytes: MeteredBytes::new(1 << 30).unwrap(),
        from: ISSUED,
        until: EXPIRES,
    };
    grant.sign(&backbone()).unwrap()
}

pub fn proof() -> InclusionProof {
    InclusionProof { index: 2, size: 3, hashes: vec![Hash([0x88; 32])] }
}

/// The payload, kind and stream of every vector that is one frame, by name.
pub fn payloads() -> Vec<(&'static str, Kind, u32, Vec<u8>)> {
    let [hello, challenge, proof_payload] = worker_handshake();
    let first = ExpertName { layer: 3, expert: 5 };
    let second = ExpertName { layer: 3, expert: 9 };
    let digest = ExpertDigest([0x99; 32]);
    let rows: Vec<u8> = CallResult::row_bytes(&[1.0, 2.0, -1.0, 0.5]);
    let q8_row = [0.5f32.to_le_bytes().to_vec(), (0u8..32).collect()].concat();
    let signature = |key: &SecretKey| key.sign(b"kvasir/test/v1\0receipt text");
    let text = "receipt text\n".to_owned();
    let result = |call, outcome| CallResult { call, outcome, work_root: [0xaa; 32] }.encode();
    let refusal =
        Refusal::new(RefusalCode::NoBackbone, "no backbone here", "try again later").retry_after(30);
    let cut = CutRequest {
        seq: 1,
        prev: [0; 32],
        results: 2,
        up: 81,
        down: 120,
        from: NOW,
        to: NOW + 10,
        is_final: false,
    };
    vec![
        ("hello-worker", Kind::Hello, HUB_STREAM, hello),
        ("hello-control", Kind::Hello, HUB_STREAM, control_hello().encode()),
        (
            "hello-session",
            Kind::Hello,
            HUB_STREAM,
            Hello { purpose: Purpose::Session(SESSION), ..control_hello() }.encode(),
        ),
        ("hello-resume", Kind::Hello, HUB_STREAM, {
            let resumption = Resumption { role: Role::Backbone, session: SESSION, received: 5 };
            let purpose = Purpose::Resume(resumption);
            Hello { purpose, features: Features::RESUME, ..control_hello() }.encode()
        }),
        ("hello-bulk", Kind::Hello, HUB_STREAM, {
            let purpose = Purpose::Bulk(BulkConnection { session: SESSION, connection: 1 });
            let features = Features::RESUME.with(Features::BULK_CONNECTION);
            let (nonce, ticket) = (WORKER_NONCE, worker_ticket());
            Hello { purpose, features, nonce, ticket, ..control_hello() }.encode()
        }),
        ("challenge", Kind::Challenge, HUB_STREAM, challenge),
        ("proof", Kind::Proof, HUB_STREAM, proof_payload),
        ("welcome-admitted", Kind::Welcome, HUB_STREAM, Welcome::Admitted { hub_time: NOW }.encode()),
        ("welcome-paired", Kind::Welcome, HUB_STREAM, {
            let peer = backbone().sign(&transcript().signed_bytes(Role::Backbone));
            Welcome::Paired { peer }.encode()
        }),
        ("welcome-resumable", Kind::Welcome, HUB_STREAM, Welcome::Resumable { hub_time: NOW }.encode()),
        ("welcome-resumed", Kind::Welcome, HUB_STREAM, Welcome::Resumed { received: 7 }.encode()),
        ("welcome-bulk-offered", Kind::Welcome, HUB_STREAM, Welcome::BulkOffered { hub_time: NOW }.encode()),
        ("refuse", Kind::Refuse, HUB_STREAM, refusal.encode()),
        (
            "pair",
            Kind::Pair,
            HUB_STREAM,
            PairRequest {
                session: SESSION,
                worker: worker().public(),
                plugin: PLUGIN,
                class: Class::Exact,
                formats: vec![8, 12, 14],
                memory_bytes: 8 << 30,
                payee: wallet().public().wallet_digest(),
                price: Hash([0xbb; 32]),
            }
            .encode(),
        ),
        ("grant", Kind::Grant, HUB_STREAM, grant_note().to_string().into_bytes()),
        ("transcript", Kind::Transcript, HUB_STREAM, transcript().encode()),
        ("sign", Kind::Sign, HUB_STREAM, worker().sign(&transcript().signed_bytes(Role::Worker)).0.to_vec()),
        (
            "assign",
            Kind::Assign,
            PAIR_STREAM,
            Assign { experts: vec![Assigned { name: first, digest, blob_bytes: 5_308_416 }] }.encode(),
        ),
        ("release", Kind::Release, PAIR_STREAM, Release { experts: vec![first, second] }.encode()),
        (
            "have",
            Kind::Have,
            PAIR_STREAM,
            Have {
                free_bytes: 1 << 30,
                held: vec![Held { name: first, digest }],
                not_held: vec![NotHeld { name: second, reason: NotHeldReason::NoMemory }],
            }
            .encode(),
        ),
        (
            "want",
            Kind::Want,
            PAIR_STREAM,
            Want { stream: 3, name: first, digest, offset: 0, length: 5_308_416 }.encode(),
        ),
        (
            "chunk-first",
            Kind::Chunk,
            3,
            Chunk { offset: 0, proof: Some(proof()), data: b"expert bytes" }.encode(),
        ),
        ("chunk", Kind::Chunk, 3, Chunk { offset: 12, proof: None, data: b"more of them" }.encode()),
        ("call-each", Kind::Call, 2, call_each(&rows).encode().unwrap()),
        ("call-sum", Kind::Call, 4, call_sum(&q8_row).encode().unwrap()),
        ("result-rows", Kind::Result, 2, result(1, Outcome::Rows(&rows))),
        (
            "result-failed",
            Kind::Result,
            4,
            result(
                2,
                Outcome::Failed(Failure {
                    code: FailureCode::NotHeld,
                    sentence: "expert 9 of layer 3 is not held".to_owned(),
                }),
            ),
        ),
        ("cancel", Kind::Cancel, PAIR_STREAM, Cancel { streams: vec![4, 3] }.encode()),
        ("ping", Kind::Ping, HUB_STREAM, Ping { number: 7 }.encode()),
        ("pong", Kind::Pong, PAIR_STREAM, Ping { number: 7 }.encode()),
        ("ack", Kind::Ack, HUB_STREAM, Ack { received: 7 }.encode()),
        ("pause", Kind::Pause, HUB_STREAM, Pause { for_ms: 15_000 }.encode()),
        ("reroute", Kind::Reroute, HUB_STREAM, Reroute { connection: 1, received: 7 }.encode()),
        ("credit", Kind::Credit, PAIR_STREAM, Credit { lane: Lane::Bulk, bytes: 65_536 }.encode()),
        (
            "drain",
            Kind::Drain,
            HUB_STREAM,
            Drain { reason: DrainReason::Restarting, reconnect_in_ms: 500, try_for_ms: 30_000 }.encode(),
        ),
        ("receipt-cut", Kind::Receipt, HUB_STREAM, ReceiptMessage::Cut(cut).encode()),
        (
            "receipt-proposal",
            Kind::Receipt,
            HUB_STREAM,
            ReceiptMessage::Proposal {
                text: text.clone(),
                excluded: vec![2],
                hub: signature(&hub()),
                backbone: signature(&backbone()),
            }
            .encode(),
        ),
        (
            "receipt-complete",
            Kind::Receipt,
            HUB_STREAM,
            ReceiptMessage::Complete { note: "receipt text\n\n(signature lines)\n".to_owned() }.encode(),
        ),
        (
            "countersign-backbone",
            Kind::Countersign,
            HUB_STREAM,
            Countersign::Backbone { text, excluded: vec![2], signature: signature(&backbone()) }.encode(),
        ),
        (
            "countersign-worker",
            Kind::Countersign,
            HUB_STREAM,
            Countersign::Worker { seq: 1, signature: signature(&worker()) }.encode(),
        ),
        (
            "report",
            Kind::Report,
            HUB_STREAM,
            Report {
                session: SESSION,
                call: 2,
                code: RefusalCode::ProtocolError,
                sentence: "two results for one call".to_owned(),
                evidence: b"payload".to_vec(),
            }
            .encode(),
        ),
    ]
}

/// One payload as the first message of its stream.
pub fn message(kind: Kind, stream: u32, payload: Vec<u8>) -> Vec<u8> {
    let mut scheduler = Scheduler::new();
    scheduler.push(Outgoing::new(kind, stream, payload)).unwrap();
    let message = scheduler.next_message().unwrap();
    assert_eq!(scheduler.next_message(), None, "one frame");
    message
}

/// Decodes a payload of `kind` and encodes it again.
pub fn recode(kind: Kind, payload: &[u8]) -> Result<Vec<u8>, String> {
    let text = |error: kvasir_wire::codec::DecodeError| error.to_string();
    let raw_64 = |payload: &[u8]| match payload.len() {
        64 => Ok(Signature(payload.try_into().unwrap()).0.to_vec()),
        _ => Err("a signature has 64 bytes".to_owned()),
    };
    Ok(match kind {
        Kind::Hello => Hello::decode(payload).map_err(|refusal| refusal.sentence)?.encode(),
        Kind::Challenge => kvasir_wire::handshake::Challenge::decode(payload).map_err(text)?.encode(),
        Kind::Proof | Kind::Sign => raw_64(payload)?,
        Kind::Welcome => Welcome::decode(payload).map_err(text)?.encode(),
        Kind::Refuse => Refusal::decode(payload).map_err(text)?.encode(),
        Kind::Assign => Assign::decode(payload).map_err(text)?.encode(),
        Kind::Release => Release::decode(payload).map_err(text)?.encode(),
        Kind::Have => Have::decode(payload).map_err(text)?.encode(),
        Kind::Want => Want::decode(payload).map_err(text)?.encode(),
        Kind::Chunk => Chunk::decode(payload).map_err(text)?.encode(),
        Kind::Call => Call::decode(payload).map_err(text)?.encode().map_err(text)?,
        Kind::Result => CallResult::decode(payload).map_err(text)?.encode(),
        Kind::Cancel => Cancel::decode(payload).map_err(text)?.encode(),
        Kind::Ping | Kind::Pong => Ping::decode(payload).map_err(text)?.encode(),
        Kind::Credit => Credit::decode(payload).map_err(text)?.encode(),
        Kind::Ack => Ack::decode(payload).map_err(text)?.encode(),
        Kind::Pause => Pause::decode(payload).map_err(text)?.encode(),
        Kind::Reroute => Reroute::decode(payload).map_err(text)?.encode(),
        Kind::Drain => Drain::decode(payload).map_err(text)?.encode(),
        Kind::Receipt => ReceiptMessage::decode(payload).map_err(text)?.encode(),
        Kind::Countersign => Countersign::decode(payload).map_err(text)?.encode(),
        Kind::Report => Report::decode(payload).map_err(text)?.encode(),
        Kind::Pair => PairRequest::decode(payload).map_err(text)?.encode(),
        Kind::Grant => Note::parse(payload).map_err(|error| error.to_string())?.to_string().into_bytes(),
        Kind::Transcript => Transcript::decode(payload).map_err(text)?.encode(),
    })
}
