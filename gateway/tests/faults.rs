//! What a network does to a session, byte by byte: worker and backbone ask for what the product's ask for, so a fault costs another
//! connection and the session goes on, or it ends for a reason that both are told. The books hold every session once.
//!
//! The worker comes through a relay that can be told to fail, then through the edge; another such relay stands before the hub.
//! `resume.rs` has the cuts, `older_ends.rs` what happens to ends that cannot resume, `tests/tests/swarm_network.rs` the same
//! faults under a real backbone and worker.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod relay;
mod rig;
mod scene;

use std::time::Duration;

use kvasir_link::{LinkError, LinkOptions};
use kvasir_wire::{
    frame::Kind,
    handshake::Features,
    message::{Drain, DrainReason, Pause},
    receipt::CUT_BYTES,
    refusal::RefusalCode,
};
use relay::{Flow, Relay};
use rig::*;
use scene::*;

/// Longer than any test waits.
const HOUR: Duration = Duration::from_secs(3600);

/// What the backbone hears of its worker's connection, which must come next.
async fn pause(backbone: &mut BackboneEnd) -> Pause {
    let payload = patiently(backbone.session.receiver.recv()).await.unwrap();
    assert_eq!(payload.kind, Kind::Pause);
    Pause::decode(&payload.bytes).unwrap()
}

/// A session whose first call was answered: 150 bytes.
async fn begun(rig: &mut Rig) -> (WorkerEnd, BackboneEnd) {
    let (mut worker, mut backbone) = rig.pair().await;
    backbone.grant().await;
    one_call(&mut worker, &mut backbone, 1, 100, 50).await;
    (worker, backbone)
}

/// The session ends in order, after another connection: it alone is billed, for so many bytes.
async fn is_billed(rig: &Rig, worker: &mut WorkerEnd, backbone: &mut BackboneEnd, bytes: u64) {
    assert_eq!(finish(worker, backbone).await.billed().get(), bytes);
    assert_eq!(rig.billed(1).await, [bytes]);
    let closed = rig.scene.closed_sessions(1).await.remove(0);
    assert_eq!(closed.reason_code, "finished");
    assert!(closed.resumed >= 1, "{closed:?}");
}

#[tokio::test]
async fn a_hub_that_finds_a_connection_silent_first_waits_for_its_worker() {
    // The worker would not look for an hour.
    let late = LinkOptions { ping_after: HOUR, ..quick() };
    let mut rig = Rig::start_with(Features::RESUME, late, |hub| hub.link = quick()).await;
    let (mut worker, mut backbone) = begun(&mut rig).await;
    rig.relay.set(Flow::Vanish, Flow::Vanish);
    rig.relay.forget();
    assert_ne!(pause(&mut backbone).await, Pause { for_ms: 0 });
    // A call that is made meanwhile waits.
    backbone.call(2, vec![3; 1000]).await;
    rig.relay.reset_forgotten();
    worker.answer(&[3; 1000], vec![4; 10]).await;
    backbone.take(2, 1000, &[4; 10]).await;
    is_billed(&rig, &mut worker, &mut backbone, 1160).await;
}

#[tokio::test]
async fn a_reset_in_the_middle_of_a_call_keeps_what_was_signed_and_bills_the_call_once() {
    let mut rig = Rig::start(Features::RESUME, quick()).await;
    let (mut worker, mut backbone) = rig.pair().await;
    backbone.grant().await;
    let signed = CUT_BYTES as usize;
    one_call(&mut worker, &mut backbone, 1, signed, 50).await;
    let cut = backbone.cut().await;
    backbone.countersign(cut, &[], |_| {}).await;
    worker.countersign().await;
    tokio::join!(worker.complete(), backbone.complete());
    // The worker has the second call when its connection is gone.
    backbone.call(2, vec![3; 1000]).await;
    let call = expect(&mut worker.session.receiver, Kind::Call).await;
    rig.relay.reset();
    worker.session.sender.send(Kind::Result, call.stream, vec![4; 10]).await.unwrap();
    backbone.take(2, 1000, &[4; 10]).await;
    is_billed(&rig, &mut worker, &mut backbone, signed as u64 + 1060).await;
}

#[tokio::test]
async fn a_direction_towards_the_hub_that_stalls_is_left_for_another_connection() {
    let mut rig = Rig::start(Features::RESUME, quick()).await;
    let (mut worker, mut backbone) = begun(&mut rig).await;
    rig.relay.set(Flow::Hold, Flow::Pass);
    rig.relay.forget();
    // The call still arrives. Its answer does not, until the hub has found that it hears nothing.
    one_call(&mut worker, &mut backbone, 2, 1000, 10).await;
    is_billed(&rig, &mut worker, &mut backbone, 1160).await;
}

#[tokio::test]
async fn a_direction_towards_the_worker_that_stalls_is_left_for_another_connection() {
    let mut rig = Rig::start(Features::RESUME, quick()).await;
    let (mut worker, mut backbone) = begun(&mut rig).await;
    rig.relay.set(Flow::Pass, Flow::Hold);
    rig.relay.forget();
    // The worker finds it, while the hub hears it well.
    one_call(&mut worker, &mut backbone, 2, 1000, 10).await;
    is_billed(&rig, &mut worker, &mut backbone, 1160).await;
}

#[tokio::test]
async fn a_writer_whose_bytes_nobody_takes_writes_them_on_another_connection() {
    // It is not the hub that finds it.
    let mut rig = Rig::start_with(Features::RESUME, quick(), |hub| hub.link = LinkOptions::default()).await;
    let (mut worker, mut backbone) = begun(&mut rig).await;
    backbone.call(2, vec![3; 10]).await;
    let call = expect(&mut worker.session.receiver, Kind::Call).await;
    rig.relay.set(Flow::Hold, Flow::Pass);
    rig.relay.forget();
    // More than the buffers of two sockets.
    let result = pattern(24 << 20, 5);
    worker.session.sender.send(Kind::Result, call.stream, result.clone()).await.unwrap();
    backbone.take(2, 10, &result).await;
    is_billed(&rig, &mut worker, &mut backbone, 160 + (24 << 20)).await;
}

#[tokio::test]
async fn a_slow_reader_gets_every_byte_and_slows_nobody_else() {
    let mut rig = Rig::start(Features::RESUME, LinkOptions::default()).await;
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
async fn a_hub_that_restarts_signs_what_is_open_and_says_when_to_come_back() {
    let mut rig = Rig::start(Features::RESUME, quick()).await;
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
async fn a_hub_that_vanishes_is_lost_to_both_once_another_one_knows_nothing_of_them() {
    let mut rig = Rig::start(Features::RESUME, quick()).await;
    let (mut worker, mut backbone) = rig.pair().await;
    rig.hub_relay.retarget(([127, 0, 0, 1], 1).into());
    rig.hub_relay.reset();
    // No session goes on over a control link.
    let at_control = ended(&mut rig.control.receiver).await;
    assert!(matches!(at_control, LinkError::Lost(_)), "{at_control}");
    // The edge has no hub for a while: whoever asks is told so, and when to come back.
    let error = rig.dial().await.map(|_| ()).unwrap_err();
    assert!(matches!(error, LinkError::Http { status: 503, .. }), "{error}");
    assert_eq!(error.retry_after(), Some(5));
    rig.another_hub(Scene::start(rig.ledger.clone()).await).await;
    for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver] {
        let error = ended(receiver).await;
        assert!(matches!(error, LinkError::Lost(_)), "{error}");
    }
    rig.one_more_session().await;
    assert_eq!(rig.billed(1).await, [100]);
}

#[tokio::test]
async fn a_backbone_that_dies_is_waited_for_and_paired_again_with_its_worker() {
    let short = Duration::from_millis(400);
    let mut rig = Rig::start_with(Features::RESUME, quick(), |hub| hub.link.resume_within = short).await;
    // Its way to the hub ends like that of a machine that is switched off.
    let way = Relay::start(rig.scene.hub).await;
    let hub = std::mem::replace(&mut rig.scene.hub, way.address);
    rig.control = rig.scene.control(&rig.backbone).await;
    let (mut worker, backbone) = rig.pair().await;
    way.retarget(([127, 0, 0, 1], 1).into());
    way.reset();
    ended(&mut rig.control.receiver).await;
    assert_eq!(refused(&mut worker.session.receiver).await.code, RefusalCode::PeerLost);
    // It is started anew, by another way.
    rig.scene.hub = hub;
    rig.control = rig.scene.control(&rig.backbone).await;
    rig.one_more_session().await;
    assert_eq!(rig.billed(2).await, [0, 100]);
    drop(backbone);
}

#[tokio::test]
async fn a_worker_that_comes_back_before_its_old_link_is_found_dead_takes_its_place_at_once() {
    // No deadline of the link's is near: only the newer link can end the older one.
    let mut rig = Rig::start(Features::RESUME, LinkOptions::default()).await;
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
    let mut rig = Rig::start(Features::RESUME, LinkOptions::default()).await;
    let (mut worker, _backbone) = rig.pair().await;
    let _second = rig.redial().await;
    let error = ended(&mut worker.session.receiver).await;
    assert!(matches!(&error, LinkError::Refused(refusal) if refusal.code == RefusalCode::SessionReplaced));
    assert!(error.is_permanent(), "else two machines with one key would push each other out for ever");
}
