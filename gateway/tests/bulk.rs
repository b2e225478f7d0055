//! A second connection for bulk: what goes over it, what happens when it, the first or both are cut in the middle of a blob, and
//! who is not let in.
//!
//! The worker comes through a relay that can be told to fail, then through the edge. The relay's part `first` is the worker's first
//! connection; what is set on the relay itself is for the second.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod raw_link;
mod relay;
mod scene;

use std::{sync::Arc, time::Duration};

use front::Front;
use kvasir_gateway::hub::{HubOptions, SessionClosed};
use kvasir_link::{Connected, LinkOptions, connect_worker};
use kvasir_wire::{
    frame::Kind,
    handshake::{BulkConnection, Features, Purpose},
    id::{Nonce, SessionId},
    key::SecretKey,
    message::Ping,
    pairing::{EndPairing, PairRequest},
    refusal::RefusalCode,
    ticket::Role,
};
use raw_link::{RawLink, raw_frame};
use relay::{Flow, Part, Relay};
use scene::*;
use tokio::{task::JoinHandle, time::sleep};

const CHUNK_BYTES: usize = 16_000;
const BOTH: Features = Features::RESUME.with(Features::BULK_CONNECTION);

/// A session whose worker comes through the relay.
struct Rig {
    ledger: Arc<MemoryLedger>,
    scene: Scene,
    _front: Front,
    relay: Relay,
    first: Part,
    worker: WorkerEnd,
    backbone: BackboneEnd,
    _control: Connected,
}

impl Rig {
    async fn start() -> Rig {
        Rig::start_with((BOTH, BOTH), LinkOptions::default(), |_| {}).await
    }

    /// With what worker and backbone ask for, the worker's options, and others for the hub.
    async fn start_with(
        (at_worker, at_backbone): (Features, Features),
        options: LinkOptions,
        change: impl FnOnce(&mut HubOptions),
    ) -> Rig {
        let ledger = Arc::new(MemoryLedger::default());
        let offering = |hub: &mut HubOptions| {
            hub.link.bulk_connection = true;
            change(hub);
        };
        let mut scene = Scene::start_with(ledger.clone(), offering).await;
        scene.features = at_backbone;
        let front = Front::start_with(&scene, |edge| edge.drain_time = Duration::from_millis(50)).await;
        let relay = Relay::start(front.address).await;
        let (worker_key, backbone_key) = (key(2), key(3));
        let mut control = scene.control(&backbone_key).await;
        let Purpose::Worker(offer) = worker_purpose() else { panic!("a worker's purpose") };
        let ticket = scene.ticket(Role::Worker, &worker_key);
        let url = format!("wss://{}", relay.address);
        let dial = connect_worker(&url, &front.trust, &ticket, &worker_key, offer, at_worker, &options);
        let link = patiently(dial).await.unwrap();
        // The second one is dialled once they are paired.
        let first = relay.part();
        let own = worker_key.clone();
        let pairing = tokio::spawn(async move { link.pair(&own, &worker_expectation()).await.unwrap() });
        let mut backbone = patiently(scene.take_offer(&mut control, &backbone_key)).await;
        let worker = WorkerEnd { session: patiently(pairing).await.unwrap(), key: worker_key };
        backbone.grant().await;
        Rig { ledger, scene, _front: front, relay, first, worker, backbone, _control: control }
    }

    /// Waits until the worker has come with a second connection so many times, or more.
    async fn has_second(&self, times: u64) {
        patiently(async {
            while self.second_connections() < times {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// How often the worker has come with a second connection.
    fn second_connections(&self) -> u64 {
        let metrics = self.scene.served.metrics();
        let count =
            metrics.lines().find_map(|line| line.strip_prefix("kvasir_gateway_bulk_connections_total "));
        count.unwrap().parse().unwrap()
    }

    /// Waits for the second connection and has a chunk go over it.
    async fn uses_second(&mut self) {
        self.has_second(1).await;
        patiently(self.sends_blob(99, 1)).await.unwrap();
        self.takes_blob(99, 1, |_, _| {}).await;
    }

    /// The backbone sends so many chunks.
    fn sends_blob(&self, stream: u32, chunks: usize) -> JoinHandle<()> {
        let sender = self.backbone.session.sender.clone();
        tokio::spawn(async move {
            for number in 0..chunks {
                sender.send_chunk(stream, chunk(number), number + 1 < chunks).await.unwrap();
            }
        })
    }

    /// The worker takes all of them, each once and in its place; `before` happens before each is taken.
    async fn takes_blob(&mut self, stream: u32, chunks: usize, before: impl Fn(usize, &Rig)) {
        for number in 0..chunks {
            before(number, self);
            let payload = expect(&mut self.worker.session.receiver, Kind::Chunk).await;
            assert!(payload.bytes == chunk(number), "chunk {number} comes once and in its place");
            assert_eq!((payload.stream, payload.more), (stream, number + 1 < chunks));
        }
    }

    /// One call that is answered and taken.
    async fn call(&mut self, number: u64, up: usize, down: usize) {
        let (rows, answer) = (pattern(up, number), pattern(down, number + 1000));
        self.backbone.call(number, rows.clone()).await;
        self.worker.answer(&rows, answer.clone()).await;
        self.backbone.take(number, up, &answer).await;
    }

    /// Ends the session in order: these bytes are billed for it. Gives the hub's line.
    async fn is_billed(&mut self, bytes: u64) -> SessionClosed {
        let receipt = finish(&mut self.worker, &mut self.backbone).await;
        assert_eq!(receipt.billed().get(), bytes);
        let mut closed = self.scene.closed_sessions(1).await;
        assert_eq!(closed.len(), 1);
        let line = closed.remove(0);
        assert_eq!((line.bytes_up + line.bytes_down, line.receipted_bytes), (bytes, bytes));
        assert_eq!(line.reason_code, "finished");
        assert_eq!(self.ledger.last_receipt().billed().get(), bytes);
        line
    }

    /// What the hub answers to a worker of this key that wants to open a second connection.
    async fn refuses_second(&self, key: &SecretKey, session: SessionId, connection: u32) -> RefusalCode {
        let ticket = self.scene.ticket(Role::Worker, key);
        let mut link = RawLink::dial(&self.scene, "/v1/worker", &ticket).await;
        let purpose = Purpose::Bulk(BulkConnection { session, connection });
        let handshake = link.hello_for(purpose, BOTH, &ticket, key, Nonce([7; 32])).await;
        let challenge = link.expect(Kind::Challenge).await;
        let (_, proof) = handshake.challenge(&challenge, key).unwrap();
        link.send(Kind::Proof, &proof).await;
        link.refusal().await.code
    }
}

fn chunk(number: usize) -> Vec<u8> {
    pattern(CHUNK_BYTES, number as u64)
}

#[tokio::test]
async fn bulk_goes_over_the_second_connection_and_calls_wait_for_none_of_it() {
    let mut rig = Rig::start().await;
    rig.uses_second().await;
    assert_eq!(rig.relay.opened(), 2);
    rig.relay.set(Flow::Pass, Flow::Hold);
    let sending = rig.sends_blob(3, 12);
    patiently(sending).await.unwrap();
    rig.call(1, 30_000, 20_000).await;
    // The chunks were written behind that call: over the first connection some would come before this one.
    rig.call(2, 30, 20).await;
    rig.relay.set(Flow::Pass, Flow::Pass);
    rig.takes_blob(3, 12, |_, _| {}).await;
    let line = rig.is_billed(50_050).await;
    assert_eq!((line.resumed, line.bulk_connections), (0, 1));
}

#[tokio::test]
async fn a_blob_goes_on_over_the_first_connection_when_the_second_is_cut() {
    const CHUNKS: usize = 120;
    let mut rig = Rig::start().await;
    rig.uses_second().await;
    let sending = rig.sends_blob(3, CHUNKS);
    let cut = |number: usize, rig: &Rig| {
        if number % 40 == 20 {
            rig.relay.reset();
        }
    };
    rig.takes_blob(3, CHUNKS, cut).await;
    patiently(sending).await.unwrap();
    // Sooner or later there is another one, and the next blob takes it.
    rig.has_second(2).await;
    rig.call(1, 10, 20).await;
    let sending = rig.sends_blob(5, 20);
    rig.takes_blob(5, 20, |_, _| {}).await;
    patiently(sending).await.unwrap();
    assert_eq!(rig.is_billed(30).await.resumed, 0);
}

#[tokio::test]
async fn a_blob_that_stands_on_a_second_connection_as_it_is_cut_is_written_again() {
    let mut rig = Rig::start().await;
    rig.uses_second().await;
    rig.relay.set(Flow::Pass, Flow::Hold);
    patiently(rig.sends_blob(3, 12)).await.unwrap();
    rig.call(1, 10, 20).await;
    rig.relay.reset();
    rig.takes_blob(3, 12, |_, _| {}).await;
    assert_eq!(rig.is_billed(30).await.resumed, 0);
}

#[tokio::test]
async fn a_cut_of_the_first_connection_loses_and_repeats_nothing() {
    const CHUNKS: usize = 120;
    let mut rig = Rig::start().await;
    rig.uses_second().await;
    let sending = rig.sends_blob(3, CHUNKS);
    let cut = |number: usize, rig: &Rig| {
        if number == 50 {
            rig.first.reset();
        }
    };
    rig.takes_blob(3, CHUNKS, cut).await;
    patiently(sending).await.unwrap();
    rig.call(1, 10, 20).await;
    assert_eq!(rig.is_billed(30).await.resumed, 1);
}

#[tokio::test]
async fn both_connections_may_be_cut_at_once() {
    const CHUNKS: usize = 120;
    let mut rig = Rig::start().await;
    rig.uses_second().await;
    let sending = rig.sends_blob(3, CHUNKS);
    let cut = |number: usize, rig: &Rig| {
        if number == 50 {
            rig.first.reset();
            rig.relay.reset();
        }
    };
    rig.takes_blob(3, CHUNKS, cut).await;
    patiently(sending).await.unwrap();
    rig.call(1, 10, 20).await;
    assert_eq!(rig.is_billed(30).await.resumed, 1);
}

#[tokio::test]
async fn a_second_connection_that_went_silent_is_given_up() {
    let quick = LinkOptions {
        ping_after: Duration::from_millis(300),
        dead_after: Duration::from_millis(700),
        ..LinkOptions::default()
    };
    let mut rig = Rig::start_with((BOTH, BOTH), quick, |_| {}).await;
    rig.uses_second().await;
    rig.relay.set(Flow::Vanish, Flow::Vanish);
    rig.relay.forget();
    patiently(rig.sends_blob(3, 12)).await.unwrap();
    rig.call(1, 10, 20).await;
    rig.takes_blob(3, 12, |_, _| {}).await;
    rig.has_second(2).await;
    // A busy machine may have found the first one silent as well.
    rig.is_billed(30).await;
}

#[tokio::test]
async fn where_one_of_the_three_does_not_know_of_it_there_is_one_connection() {
    for (worker, backbone, hub) in
        [(Features::RESUME, BOTH, true), (BOTH, Features::RESUME, true), (BOTH, BOTH, false)]
    {
        let change = |options: &mut HubOptions| options.link.bulk_connection = hub;
        let mut rig = Rig::start_with((worker, backbone), LinkOptions::default(), change).await;
        let features = rig.worker.session.transcript.features;
        assert!(!features.contains(Features::BULK_CONNECTION), "{worker:?} {backbone:?} {hub}");
        let code = rig.refuses_second(&key(2), rig.backbone.id(), 1).await;
        assert_eq!(code, RefusalCode::ProtocolError);
        let sending = rig.sends_blob(3, 40);
        rig.takes_blob(3, 40, |_, _| {}).await;
        patiently(sending).await.unwrap();
        rig.call(1, 10, 20).await;
        let line = rig.is_billed(30).await;
        assert_eq!((line.resumed, line.bulk_connections, rig.relay.opened()), (0, 0, 1));
    }
}

#[tokio::test]
async fn nobody_else_takes_a_session_s_bulk_and_nobody_takes_it_twice() {
    let mut rig = Rig::start().await;
    rig.uses_second().await;
    let session = rig.backbone.id();
    // A stranger's key, and the other end's.
    for other in [key(7), key(3)] {
        assert_eq!(rig.refuses_second(&other, session, 9).await, RefusalCode::UnknownSession);
    }
    let own = key(2);
    assert_eq!(rig.refuses_second(&own, SessionId([9; 32]), 9).await, RefusalCode::UnknownSession);
    for connection in [1, 2, u32::MAX] {
        assert_eq!(rig.refuses_second(&own, session, connection).await, RefusalCode::LimitReached);
    }
    let sending = rig.sends_blob(3, 40);
    rig.takes_blob(3, 40, |_, _| {}).await;
    patiently(sending).await.unwrap();
    rig.call(1, 10, 20).await;
    assert_eq!(rig.is_billed(30).await.resumed, 0);
    // The session is over.
    assert_eq!(rig.refuses_second(&own, session, 9).await, RefusalCode::UnknownSession);
}

#[tokio::test]
async fn a_backbone_that_promised_bulk_apart_and_packs_it_with_something_else_is_refused() {
    let offering = |hub: &mut HubOptions| hub.link.bulk_connection = true;
    let scene = Scene::start_with(Arc::new(MemoryLedger::default()), offering).await;
    let (worker, backbone) = (key(2), key(3));
    let mut control = scene.control(&backbone).await;
    let ticket = scene.ticket(Role::Worker, &worker);
    let Purpose::Worker(offer) = worker_purpose() else { panic!("a worker's purpose") };
    let trust = kvasir_link::TlsTrust::PlainText;
    let options = LinkOptions::default();
    let link = connect_worker(&scene.url(), &trust, &ticket, &worker, offer, BOTH, &options).await.unwrap();
    let pairing = tokio::spawn(async move { link.pair(&key(2), &worker_expectation()).await.unwrap() });
    let payload = expect(&mut control.receiver, Kind::Pair).await;
    let request = PairRequest::decode(&payload.bytes).unwrap();
    let ticket = scene.ticket(Role::Backbone, &backbone);
    let mut raw = RawLink::dial(&scene, "/v1/backbone", &ticket).await;
    let purpose = Purpose::Session(request.session);
    let handshake = raw.hello_for(purpose, BOTH, &ticket, &backbone, Nonce([8; 32])).await;
    let challenge = raw.expect(Kind::Challenge).await;
    let (admission, proof) = handshake.challenge(&challenge, &backbone).unwrap();
    raw.send(Kind::Proof, &proof).await;
    raw.expect(Kind::Welcome).await;
    let transcript = raw.expect(Kind::Transcript).await;
    let expectation = kvasir_wire::pairing::Expectation {
        model: Some(MODEL),
        session: Some(request.session),
        peer: Some(request.worker),
        class: Some(request.class),
        ..worker_expectation()
    };
    let (state, signature) =
        EndPairing::transcript(&transcript, &admission, &backbone, &expectation).unwrap();
    raw.send(Kind::Sign, &signature).await;
    let transcript = state.welcome(&raw.expect(Kind::Welcome).await).unwrap();
    assert!(transcript.features.contains(BOTH));
    let _worker = patiently(pairing).await.unwrap();
    let ping = raw_frame(Kind::Ping, 1, 0, false, &Ping { number: 1 }.encode());
    let chunk = raw_frame(Kind::Chunk, 3, 0, false, &[7; 100]);
    raw.send_bytes([ping, chunk].concat()).await;
    let refusal = raw.refusal().await;
    assert_eq!(refusal.code, RefusalCode::ProtocolError);
    assert!(refusal.sentence.contains("packed bulk"), "{refusal}");
}
