//! What a network does to a session: each fault ends it with an error that says what it was, a new link is served, and the
//! books hold every session once.
//!
//! The worker comes through a relay that can be told to fail, then through the edge; another such relay stands before the
//! hub.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod relay;
mod scene;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use front::{Front, worker_through};
use kvasir_link::{Backoff, Connected, LinkError, LinkOptions};
use kvasir_wire::{
    frame::Kind,
    key::SecretKey,
    message::{Drain, DrainReason},
    money::MeteredBytes,
    receipt::{CUT_BYTES, Receipt},
    refusal::RefusalCode,
    ticket::Role,
};
use relay::{Flow, Relay};
use scene::*;

/// Deadlines short enough for a test, long enough for a busy machine.
fn quick() -> LinkOptions {
    LinkOptions {
        ping_after: Duration::from_secs(1),
        dead_after: Duration::from_secs(3),
        write_stall: Duration::from_secs(2),
        close_linger: Duration::from_millis(500),
        ..LinkOptions::default()
    }
}

/// A worker's way to a backbone: relay, edge, relay, hub.
struct Rig {
    ledger: Arc<MemoryLedger>,
    scene: Scene,
    front: Front,
    relay: Relay,
    /// Before the hub, for the edge and for the backbone.
    hub_relay: Relay,
    control: Connected,
    worker: SecretKey,
    backbone: SecretKey,
    options: LinkOptions,
}

impl Rig {
    async fn start(options: LinkOptions) -> Rig {
        let ledger = Arc::new(MemoryLedger::default());
        let mut scene = Scene::start_with(ledger.clone(), |hub| hub.link = options.clone()).await;
        let hub_relay = Relay::start(scene.hub).await;
        scene.hub = hub_relay.address;
        let front = Front::start_with(&scene, |edge| edge.drain_time = Duration::from_millis(50)).await;
        let relay = Relay::start(front.address).await;
        let (worker, backbone) = (key(2), key(3));
        let control = scene.control(&backbone).await;
        Rig { ledger, scene, front, relay, hub_relay, control, worker, backbone, options }
    }

    /// Another hub takes the place of the one that is gone.
    async fn another_hub(&mut self, mut scene: Scene) -> Scene {
        self.hub_relay.retarget(scene.hub);
        scene.hub = self.hub_relay.address;
        let old = std::mem::replace(&mut self.scene, scene);
        self.control = self.scene.control(&self.backbone).await;
        old
    }

    async fn dial(&self) -> Result<Connected, LinkError> {
        let ticket = self.scene.ticket(Role::Worker, &self.worker);
        worker_through(self.relay.address, &self.front.trust, &ticket, &self.worker, &self.options).await
    }

    /// Dials as a worker does: again and again, with jitter, until it is served.
    async fn redial(&self) -> Connected {
        patiently(async {
            let mut backoff = Backoff::new();
            loop {
                let error = match self.dial().await {
                    Ok(link) => return link,
                    Err(error) => error,
                };
                assert!(!error.is_permanent(), "no worker would try again: {error}");
                let asked = error.retry_after().map(|seconds| Duration::from_secs(seconds.into()));
                tokio::time::sleep(backoff.next_wait(getrandom_u64(), asked)).await;
            }
        })
        .await
    }

    /// A session of the worker, dialled until it is served.
    async fn pair(&mut self) -> (WorkerEnd, BackboneEnd) {
        let link = self.redial().await;
        let key = self.worker.clone();
        let pairing = tokio::spawn(async move { link.pair(&key, &worker_expectation()).await.unwrap() });
        let backbone = patiently(self.scene.take_offer(&mut self.control, &self.backbone)).await;
        (WorkerEnd { session: patiently(pairing).await.unwrap(), key: self.worker.clone() }, backbone)
    }

    /// Another session, whole, after what happened.
    async fn one_more_session(&mut self) {
        let (mut worker, mut backbone) = self.pair().await;
        whole_session(&mut worker, &mut backbone, &[(70, 30)]).await;
    }

    /// Bytes that the ledger bills over so many ended sessions. Each receipt is filed once, and what the ledger holds of a
    /// session is what the hub says was signed.
    async fn billed(&self, sessions: usize) -> Vec<u64> {
        let closed = self.scene.closed_sessions(sessions).await;
        assert_eq!(closed.len(), sessions, "each session is closed once");
        billed(&self.ledger, closed)
    }
}

fn billed(ledger: &MemoryLedger, closed: Vec<kvasir_gateway::hub::SessionClosed>) -> Vec<u64> {
    let mut seen = HashSet::new();
    let mut last: HashMap<String, MeteredBytes> = HashMap::new();
    for note in ledger.receipts.lock().unwrap().iter() {
        let receipt = Receipt::parse(note.text()).unwrap();
        let session = receipt.terms.session.to_string();
        assert!(seen.insert((session.clone(), receipt.seq)), "one receipt is filed twice");
        last.insert(session, receipt.billed());
    }
    let bill = |line: kvasir_gateway::hub::SessionClosed| {
        let billed = last.remove(&line.session).map_or(0, MeteredBytes::get);
        assert_eq!(billed, line.receipted_bytes);
        assert!(billed <= line.bytes_up + line.bytes_down, "more is billed than went through");
        billed
    };
    let bytes = closed.into_iter().map(bill).collect();
    assert!(last.is_empty(), "a session is billed that never ended");
    bytes
}

fn getrandom_u64() -> u64 {
    getrandom::u64().unwrap()
}

/// How a link ends, behind anything that still comes.
async fn ended(receiver: &mut kvasir_link::LinkReceiver) -> LinkError {
    loop {
        if let Err(error) = patiently(receiver.recv()).await {
            return error;
        }
    }
}

/// A call that is answered and taken.
async fn one_call(worker: &mut WorkerEnd, backbone: &mut BackboneEnd, call: u64, up: usize, down: usize) {
    backbone.call(call, vec![1; up]).await;
    worker.answer(&vec![1; up], vec![2; down]).await;
    backbone.take(call, up, &vec![2; down]).await;
}

#[tokio::test]
async fn a_connection_that_a_middlebox_forgot_is_found_silent_at_both_sides() {
    let mut rig = Rig::start(quick()).await;
    let (mut worker, mut backbone) = rig.pair().await;
    backbone.grant().await;
    one_call(&mut worker, &mut backbone, 1, 100, 50).await;
    rig.relay.set(Flow::Vanish, Flow::Vanish);
    rig.relay.forget();
    let (at_worker, at_backbone) =
        tokio::join!(ended(&mut worker.session.receiver), refused(&mut backbone.session.receiver));
    assert!(matches!(at_worker, LinkError::Silent(_)), "{at_worker}");
    assert_eq!(at_backbone.code, RefusalCode::PeerLost);
    assert!(at_backbone.sentence.contains("the worker's link ended: nothing was heard"), "{at_backbone}");
    rig.one_more_session().await;
    assert_eq!(rig.billed(2).await, [0, 100], "what no receipt covers is not billed");
}

#[tokio::test]
async fn a_reset_in_the_middle_of_a_call_keeps_what_was_signed_and_bills_the_call_once() {
    let mut rig = Rig::start(quick()).await;
    let (mut worker, mut backbone) = rig.pair().await;
    backbone.grant().await;
    let signed = CUT_BYTES as usize;
    one_call(&mut worker, &mut backbone, 1, signed, 50).await;
    let cut = backbone.cut().await;
    backbone.countersign(cut, &[], |_| {}).await;
    worker.countersign().await;
    tokio::join!(worker.complete(), backbone.complete());
    // The worker has the second call and its answer is on the way.
    backbone.call(2, vec![3; 1000]).await;
    expect(&mut worker.session.receiver, Kind::Call).await;
    rig.relay.reset();
    let (at_worker, at_backbone) =
        tokio::join!(ended(&mut worker.session.receiver), refused(&mut backbone.session.receiver));
    assert!(matches!(at_worker, LinkError::Lost(_)), "{at_worker}");
    assert_eq!(at_backbone.code, RefusalCode::PeerLost);
    // The same call again, in another session.
    let (mut worker, mut backbone) = rig.pair().await;
    whole_session(&mut worker, &mut backbone, &[(1000, 10)]).await;
    assert_eq!(rig.billed(2).await, [signed as u64 + 50, 1010]);
}

#[tokio::test]
async fn a_direction_towards_the_hub_that_stalls_ends_the_session_for_both() {
    let mut rig = Rig::start(quick()).await;
    let (mut worker, mut backbone) = rig.pair().await;
    rig.relay.set(Flow::Hold, Flow::Pass);
    // The hub hears nothing more; what it says to the worker still arrives.
    let (at_worker, at_backbone) =
        tokio::join!(ended(&mut worker.session.receiver), refused(&mut backbone.session.receiver));
    match &at_worker {
        LinkError::Refused(refusal) => assert_eq!(refusal.code, RefusalCode::TimedOut, "{refusal}"),
        other => panic!("the worker is told by the hub, not {other}"),
    }
    assert_eq!(at_backbone.code, RefusalCode::PeerLost);
    rig.relay.forget();
    rig.one_more_session().await;
    assert_eq!(rig.billed(2).await, [0, 100]);
}

#[tokio::test]
async fn a_direction_towards_the_worker_that_stalls_ends_the_session_for_both() {
    let mut rig = Rig::start(quick()).await;
    let (mut worker, mut backbone) = rig.pair().await;
    rig.relay.set(Flow::Pass, Flow::Hold);
    let (at_worker, at_backbone) =
        tokio::join!(ended(&mut worker.session.receiver), refused(&mut backbone.session.receiver));
    assert!(matches!(at_worker, LinkError::Silent(_)), "{at_worker}");
    // The worker's last words reach the hub, and through it the backbone.
    assert_eq!(at_backbone.code, RefusalCode::TimedOut);
    rig.relay.forget();
    rig.one_more_session().await;
    assert_eq!(rig.billed(2).await, [0, 100]);
}

#[tokio::test]
async fn a_writer_whose_bytes_nobody_takes_stops_with_an_error_of_its_own() {
    let mut rig = Rig::start(quick()).await;
    let (mut worker, mut backbone) = rig.pair().await;
    backbone.grant().await;
    backbone.call(1, vec![1; 10]).await;
    let call = expect(&mut worker.session.receiver, Kind::Call).await;
    rig.relay.set(Flow::Hold, Flow::Pass);
    // More than the buffers of two sockets.
    worker.session.sender.send(Kind::Result, call.stream, vec![2; 48 << 20]).await.unwrap();
    let at_worker = ended(&mut worker.session.receiver).await;
    assert!(matches!(at_worker, LinkError::Stalled(_)), "{at_worker}");
    assert_eq!(refused(&mut backbone.session.receiver).await.code, RefusalCode::PeerLost);
    rig.relay.forget();
    rig.one_more_session().await;
    assert_eq!(rig.billed(2).await, [0, 100]);
}

#[tokio::test]
async fn a_slow_reader_gets_every_byte_and_slows_nobody_else() {
    let mut rig = Rig::start(LinkOptions::default()).await;
    let (mut worker, mut backbone) = rig.pair().await;
    backbone.grant().await;
    rig.relay.set(Flow::Pass, Flow::Hold);
    let call = pattern(20 << 20, 7);
    backbone.call(1, call.clone()).await;
    // A second worker, straight at the hub, is served while the first one's call stands still.
    let other = key(4);
    let link = rig.scene.worker(&other).await.unwrap();
    let pairing = {
        let other = other.clone();
        tokio::spawn(async move { link.pair(&other, &worker_expectation()).await.unwrap() })
    };
    let mut other_backbone = rig.scene.take_offer(&mut rig.control, &rig.backbone).await;
    let mut other_worker = WorkerEnd { session: patiently(pairing).await.unwrap(), key: other };
    whole_session(&mut other_worker, &mut other_backbone, &[(500_000, 10)]).await;
    rig.relay.set(Flow::Pass, Flow::Slow(64 * 1024));
    worker.answer(&call, vec![2; 5]).await;
    backbone.take(1, call.len(), &[2; 5]).await;
    for is_final in [false, true] {
        if is_final {
            backbone.ask_to_drain().await;
        }
        let cut = backbone.cut().await;
        backbone.countersign(cut, &[], |_| {}).await;
        worker.countersign().await;
        tokio::join!(worker.complete(), backbone.complete());
    }
    assert_eq!(rig.billed(2).await, [500_010, (20 << 20) + 5]);
}

#[tokio::test]
async fn an_edge_that_restarts_is_found_again() {
    let mut rig = Rig::start(quick()).await;
    let (mut worker, mut backbone) = rig.pair().await;
    rig.front.stop().await;
    let (at_worker, at_backbone) =
        tokio::join!(ended(&mut worker.session.receiver), refused(&mut backbone.session.receiver));
    assert!(matches!(at_worker, LinkError::Lost(_)), "{at_worker}");
    assert_eq!(at_backbone.code, RefusalCode::PeerLost);
    let error = rig.dial().await.map(|_| ()).unwrap_err();
    assert!(!error.is_permanent(), "{error}");
    rig.front.again().await;
    rig.one_more_session().await;
    assert_eq!(rig.billed(2).await, [0, 100]);
}

#[tokio::test]
async fn a_hub_that_restarts_signs_what_is_open_and_says_when_to_come_back() {
    let mut rig = Rig::start(quick()).await;
    let (mut worker, mut backbone) = rig.pair().await;
    backbone.grant().await;
    one_call(&mut worker, &mut backbone, 1, 100, 50).await;
    rig.scene.stopper.stop();
    for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver, &mut rig.control.receiver]
    {
        let drain = Drain::decode(&expect(receiver, Kind::Drain).await.bytes).unwrap();
        assert_eq!(drain.reason, DrainReason::Restarting);
        assert!((1_000..=5_000).contains(&drain.reconnect_in_ms), "spread over some seconds");
    }
    let cut = backbone.cut().await;
    assert!(cut.is_final);
    backbone.countersign(cut, &[], |_| {}).await;
    worker.countersign().await;
    tokio::join!(worker.complete(), backbone.complete());
    drop((worker, backbone));
    // In its place another, with the same spool.
    let closed = rig.scene.closed.clone();
    patiently(&mut rig.scene.run).await.unwrap();
    let spool = rig.scene.spool.path().to_owned();
    let again = Scene::start_with(rig.ledger.clone(), |hub| hub.spool = spool).await;
    let old = rig.another_hub(again).await;
    rig.one_more_session().await;
    let mut lines = closed.lock().unwrap().clone();
    lines.extend(rig.scene.closed_sessions(1).await);
    assert_eq!(billed(&rig.ledger, lines), [150, 100]);
    drop(old); // and with it the spool's folder
}

#[tokio::test]
async fn a_hub_that_vanishes_is_lost_to_both_and_found_again() {
    let mut rig = Rig::start(quick()).await;
    let (mut worker, mut backbone) = rig.pair().await;
    rig.hub_relay.retarget(([127, 0, 0, 1], 1).into());
    rig.hub_relay.reset();
    for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver, &mut rig.control.receiver]
    {
        let error = ended(receiver).await;
        assert!(matches!(error, LinkError::Lost(_)), "{error}");
    }
    // The edge has no hub for a while: whoever asks is told so, and when to come back.
    let error = rig.dial().await.map(|_| ()).unwrap_err();
    assert!(matches!(error, LinkError::Http { status: 503, .. }), "{error}");
    assert_eq!(error.retry_after(), Some(5));
    rig.another_hub(Scene::start(rig.ledger.clone()).await).await;
    rig.one_more_session().await;
    assert_eq!(rig.billed(1).await, [100]);
}

#[tokio::test]
async fn a_backbone_that_restarts_is_paired_again_with_the_worker_that_comes_back() {
    let mut rig = Rig::start(quick()).await;
    // Its way to the hub fails like a machine that is switched off.
    let way = Relay::start(rig.scene.hub).await;
    rig.scene.hub = way.address;
    rig.control = rig.scene.control(&rig.backbone).await;
    let (mut worker, mut backbone) = rig.pair().await;
    way.reset();
    assert_eq!(refused(&mut worker.session.receiver).await.code, RefusalCode::PeerLost);
    let at_backbone = ended(&mut backbone.session.receiver).await;
    assert!(matches!(at_backbone, LinkError::Lost(_)), "{at_backbone}");
    ended(&mut rig.control.receiver).await;
    rig.control = rig.scene.control(&rig.backbone).await;
    rig.one_more_session().await;
    assert_eq!(rig.billed(2).await, [0, 100]);
}

#[tokio::test]
async fn a_worker_that_comes_back_before_its_old_link_is_found_dead_takes_its_place_at_once() {
    // No deadline of the link's is near: only the newer link can end the older one.
    let mut rig = Rig::start(LinkOptions::default()).await;
    let (_worker, mut backbone) = rig.pair().await;
    rig.relay.set(Flow::Vanish, Flow::Vanish);
    rig.relay.forget();
    let (mut newer, mut newer_backbone) = rig.pair().await;
    assert_eq!(refused(&mut backbone.session.receiver).await.code, RefusalCode::SessionReplaced);
    whole_session(&mut newer, &mut newer_backbone, &[(70, 30)]).await;
    assert_eq!(rig.billed(2).await, [0, 100]);
}

#[tokio::test]
async fn of_two_workers_with_one_key_the_older_one_gives_up() {
    let mut rig = Rig::start(LinkOptions::default()).await;
    let (mut worker, _backbone) = rig.pair().await;
    let _second = rig.redial().await;
    let error = ended(&mut worker.session.receiver).await;
    assert!(matches!(&error, LinkError::Refused(refusal) if refusal.code == RefusalCode::SessionReplaced));
    assert!(error.is_permanent(), "else two machines with one key would push each other out for ever");
}
