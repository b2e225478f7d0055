//! What a hub does where receipts cannot be paid: no grant, a grant that is used up, a disk that keeps nothing, a ledger that
//! waits for somebody.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod scene;

use std::{sync::Arc, time::Duration};

use kvasir_gateway::hub::filing::{Ledger, LedgerError};
use kvasir_wire::{
    frame::Kind,
    message::{Drain, DrainReason},
    note::Note,
    refusal::RefusalCode,
};
use scene::*;

#[tokio::test]
async fn a_backbone_without_a_grant_is_refused_and_nothing_of_it_reaches_the_worker() {
    let scene = Scene::start_with(Arc::new(MemoryLedger::default()), |options| {
        // The second one below must have called by then.
        options.grant_time = Duration::from_secs(2);
    })
    .await;
    // It sends nothing.
    let (mut worker, mut backbone, control) = scene.pair(&key(2), &key(3)).await;
    for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver] {
        let refusal = refused(receiver).await;
        assert_eq!(refusal.code, RefusalCode::TimedOut);
        assert!(refusal.sentence.contains("no grant"), "{refusal}");
    }
    drop(control);
    // It calls before it grants: the worker never sees the call.
    let (mut worker, mut backbone, _control) = scene.pair(&key(4), &key(5)).await;
    backbone.call(1, vec![1; 10]).await;
    let first = patiently(worker.session.receiver.recv()).await;
    assert!(matches!(&first, Err(kvasir_link::LinkError::Refused(_))), "{first:?}");
    let refusal = refused(&mut backbone.session.receiver).await;
    assert_eq!(refusal.code, RefusalCode::ProtocolError);
    assert!(refusal.sentence.contains("before it sent the session's grant"), "{refusal}");
}

#[tokio::test]
async fn a_session_ends_in_order_at_its_grants_cap_and_end() {
    let ledger = Arc::new(MemoryLedger::default());
    let scene = Scene::start(ledger.clone()).await;
    // 120 of 130 bytes, then a grant that ends in a moment.
    for (number, bytes, seconds) in [(1, 130, 3600), (2, 1 << 30, 12)] {
        let seed = 2 * number as u8;
        let (mut worker, mut backbone, _control) = scene.pair(&key(seed), &key(seed + 1)).await;
        backbone.regrant(bytes, seconds);
        backbone.grant().await;
        if seconds == 3600 {
            backbone.call(1, vec![1; 90]).await;
            worker.answer(&[1; 90], vec![2; 30]).await;
            backbone.take(1, 90, &[2; 30]).await;
        }
        for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver] {
            let drain = expect(receiver, Kind::Drain).await;
            assert_eq!(Drain::decode(&drain.bytes).unwrap().reason, DrainReason::LimitReached);
        }
        if seconds == 3600 {
            let cut = backbone.cut().await;
            assert!(cut.is_final);
            backbone.countersign(cut, &[], |_| {}).await;
            worker.countersign().await;
            worker.complete().await;
            assert_eq!(ledger.last_receipt().billed().get(), 120);
        }
        // The links are open until the hub has said its last word.
        scene.closed_sessions(number).await;
    }
    let closed = scene.closed_sessions(2).await;
    assert!(closed[0].reason.contains("grant's bytes"), "{}", closed[0].reason);
    assert!(closed[1].reason.contains("grant's time"), "{}", closed[1].reason);
}

#[tokio::test]
async fn a_hub_whose_disk_keeps_nothing_ends_the_session_and_keeps_its_paths_to_itself() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let (mut worker, mut backbone, _control) = scene.pair(&key(2), &key(3)).await;
    let spool = scene.spool.path().to_owned();
    std::fs::remove_dir_all(&spool).unwrap();
    backbone.grant().await;
    for receiver in [&mut worker.session.receiver, &mut backbone.session.receiver] {
        let refusal = refused(receiver).await;
        assert_eq!(refusal.code, RefusalCode::Internal);
        assert!(refusal.sentence.contains("disk") && refusal.retry_after.is_some(), "{refusal}");
        assert!(!refusal.to_string().contains(spool.to_str().unwrap()), "{refusal}");
    }
}

#[tokio::test]
async fn a_session_goes_on_while_a_cure_may_come_and_then_ends_with_what_to_do() {
    let ledger = Arc::new(MemoryLedger { uncured: true, ..MemoryLedger::default() });
    let scene = Scene::start_with(ledger, |options| {
        options.filing.retry = Duration::from_millis(20);
        options.filing.cure = Duration::from_millis(200);
    })
    .await;
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
        assert!(refusal.sentence.contains("no delegation"), "{refusal}");
        assert!(refusal.what_to_do.contains("sends them again"), "{refusal}");
    }
    let status = get(scene.hub, "/v1/status").await;
    assert!(status.contains("\"receipts_postponed\":1") && status.contains("no delegation"), "{status}");
    scene.stop().await;
}

/// A ledger that takes everything, and its time.
struct Slow;

impl Ledger for Slow {
    fn post_receipt(&self, _: &Note) -> Result<(), LedgerError> {
        std::thread::sleep(Duration::from_millis(50));
        Ok(())
    }

    fn post_grant(&self, note: &Note) -> Result<(), LedgerError> {
        self.post_receipt(note)
    }

    fn price(&self) -> Result<String, LedgerError> {
        Ok("77".repeat(32))
    }
}

#[tokio::test]
async fn a_hub_that_stops_leaves_in_the_spool_what_it_cannot_file_in_time() {
    // For all of them it would take longer than a test waits.
    let notes = 2 * PATIENCE.as_millis() / 50;
    let mut note = Note::unsigned("receipt\n").unwrap();
    note.sign("test/hub".parse().unwrap(), &key(1)).unwrap();
    let scene = Scene::start_with(Arc::new(Slow), |options| {
        options.file_time = Duration::from_millis(100);
        for number in 0..notes {
            std::fs::write(options.spool.join(format!("{number}.receipt")), note.to_string()).unwrap();
        }
    })
    .await;
    let spool = scene.stop_and_keep_spool().await;
    let left = std::fs::read_dir(spool.path()).unwrap().filter(|entry| {
        entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "receipt")
    });
    assert!(left.count() > 0);
}
