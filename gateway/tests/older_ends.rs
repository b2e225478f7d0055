//! What a network does to a session whose ends cannot resume it: each fault ends it with an error that says what it was, a new
//! link is served, and the books hold every session once. `faults.rs` has what happens to ends that can.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod relay;
mod rig;
mod scene;

use kvasir_link::LinkError;
use kvasir_wire::{frame::Kind, handshake::Features, receipt::CUT_BYTES, refusal::RefusalCode};
use relay::{Flow, Relay};
use rig::*;
use scene::*;

#[tokio::test]
async fn a_connection_that_a_middlebox_forgot_is_found_silent_at_both_sides() {
    let mut rig = Rig::start(Features::NONE, quick()).await;
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
    let mut rig = Rig::start(Features::NONE, quick()).await;
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
    let mut rig = Rig::start(Features::NONE, quick()).await;
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
    let mut rig = Rig::start(Features::NONE, quick()).await;
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
    let mut rig = Rig::start(Features::NONE, quick()).await;
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
async fn an_edge_that_restarts_is_found_again() {
    let mut rig = Rig::start(Features::NONE, quick()).await;
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
async fn a_hub_that_vanishes_is_lost_to_both_and_found_again() {
    let mut rig = Rig::start(Features::NONE, quick()).await;
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
    let mut rig = Rig::start(Features::NONE, quick()).await;
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
