//! Classes of results in a swarm: who accepts exact ones alone is given no others, whatever a hub says.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use std::thread::JoinHandle;
use std::time::Duration;

use kvasir_dispatch::{Placement, Swarm, SwarmError};
use kvasir_link::{LinkError, LinkOptions, TlsTrust, connect_worker};
use kvasir_tests::swarm_scene::lying_hub::{LyingHub, Says};
use kvasir_tests::swarm_scene::*;
use kvasir_wire::handshake::{Class, Features, WorkerOffer};
use kvasir_wire::id::{ModelDigest, PluginDigest};
use kvasir_wire::pairing::Expectation;
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::ticket::Role;

#[test]
fn a_backbone_that_accepts_exact_alone_is_given_no_worker_of_class_tolerance_and_both_are_told() {
    let scene = Scene::new();
    let host = Host::new(tiny());
    let worker = announce(&scene, scene.address.clone(), Class::Tolerance);
    let options = scene.swarm_options(1, Placement::default(), &all_layers(&host.model));
    let swarm = Swarm::join(host.model.clone(), options).unwrap();

    let LinkError::Refused(refusal) = worker.join().unwrap() else { panic!("the worker was not told") };
    assert_eq!(refusal.code, RefusalCode::ClassNotAccepted);
    assert!(refusal.sentence.contains("class tolerance"), "{refusal}");
    assert!(refusal.what_to_do.contains("--device cpu"), "{refusal}");
    let Err(SwarmError::TooFewWorkers { last: Some(told), .. }) = swarm.wait_for_workers(1, SHORTLY) else {
        panic!("the backbone was not told")
    };
    assert!(told.contains("class_not_accepted") && told.contains("--accept tolerance"), "{told}");

    // An exact worker is welcome beside it.
    let _worker = scene.worker(41);
    swarm.wait_for_workers(1, PATIENCE).unwrap();
    let statistics = swarm.finish();
    assert_eq!(statistics.workers.len(), 1);
    assert_eq!(statistics.workers[0].class, "exact");
}

#[test]
fn who_accepts_tolerance_has_sessions_of_class_exact_with_exact_workers() {
    let scene = Scene::new();
    let host = Host::new(tiny());
    let _worker = scene.worker(41);
    let mut options = scene.swarm_options(1, Placement::default(), &all_layers(&host.model));
    options.accepts = Class::Tolerance;
    let swarm = join(&host, options);
    let mut experts = swarm.experts(host.local());
    let remote = host.say(&mut experts, 4);
    drop(experts);
    let statistics = swarm.finish();
    assert_eq!(statistics.workers[0].class, "exact");
    assert_eq!(remote, host.say(host.local().as_mut(), 4));
    for receipt in scene.ledger.last_receipts().values() {
        assert_eq!(receipt.terms.class, Class::Exact);
    }
}

#[test]
fn a_hub_that_offers_a_worker_of_the_wrong_class_is_declined() {
    let (lie, told) = lied_to(Class::Tolerance, Class::Tolerance, Class::Tolerance);
    assert_eq!(lie, [(Role::Backbone, RefusalCode::ClassNotAccepted)], "{told:?}");
}

#[test]
fn a_backbone_does_not_sign_a_class_that_it_does_not_accept_whatever_it_was_told_before() {
    let (lie, told) = lied_to(Class::Exact, Class::Tolerance, Class::Tolerance);
    assert_eq!(lie, [(Role::Backbone, RefusalCode::TranscriptMismatch)]);
    assert!(told[0].sentence.contains("class tolerance") && told[0].sentence.contains("class exact"));
}

#[test]
fn a_worker_does_not_sign_for_another_class_than_its_own() {
    let (lie, told) = lied_to(Class::Exact, Class::Exact, Class::Exact);
    assert_eq!(lie, [(Role::Worker, RefusalCode::TranscriptMismatch)]);
    assert!(told[0].sentence.contains("class tolerance"), "{}", told[0]);
}

#[test]
fn one_class_for_the_worker_and_another_for_the_backbone_are_two_transcripts_and_no_session() {
    let (lie, told) = lied_to(Class::Exact, Class::Exact, Class::Tolerance);
    let bad = |role| (role, RefusalCode::BadSignature);
    assert_eq!(lie, [bad(Role::Worker), bad(Role::Backbone)], "{told:?}");
}

/// What an exact-only backbone and a worker of class tolerance answer a hub that says these classes.
fn lied_to(in_pair: Class, to_backbone: Class, to_worker: Class) -> (Vec<(Role, RefusalCode)>, Vec<Refusal>) {
    let scene = Scene::new();
    let model = tiny();
    let digest = ModelDigest(model.digests().unwrap().model.0);
    let hub = LyingHub::start(Says { in_pair, to_backbone, to_worker, model: digest });
    let worker = announce(&scene, hub.address.clone(), Class::Tolerance);
    let mut options = scene.swarm_options(1, Placement::default(), &all_layers(&model));
    options.hub = hub.address.clone();
    let swarm = Swarm::join(model, options).unwrap();
    let first = hub.refusals.recv_timeout(PATIENCE).unwrap();
    let rest = std::iter::from_fn(|| hub.refusals.recv_timeout(SHORTLY).ok());
    let refusals: Vec<_> = std::iter::once(first).chain(rest).collect();
    assert!(swarm.statistics().workers.is_empty(), "no session came about");
    drop(swarm);
    drop(hub);
    worker.join().unwrap();
    (
        refusals.iter().map(|(role, refusal)| (*role, refusal.code)).collect(),
        refusals.into_iter().map(|(_, refusal)| refusal).collect(),
    )
}

/// Long enough for a message on loopback to arrive; nothing is asserted of it but that what did not come would not.
const SHORTLY: Duration = Duration::from_millis(1500);

/// A worker that says this class, up to the pairing; gives how its link ended.
fn announce(scene: &Scene, address: String, class: Class) -> JoinHandle<LinkError> {
    let key = key(40);
    let ticket = scene.ticket(Role::Worker, key.public(), plugin());
    std::thread::spawn(move || {
        let runtime = runtime();
        let end = runtime.block_on(async move {
            let plugin = PluginDigest(plugin().digest().0);
            let offer = WorkerOffer { plugins: vec![plugin], formats: vec![8], memory_bytes: 1 << 40, class };
            let (trust, options) = (TlsTrust::PlainText, LinkOptions::default());
            let expectation =
                Expectation { plugins: vec![plugin], class: Some(class), ..Expectation::default() };
            match connect_worker(&address, &trust, &ticket, &key, offer, Features::NONE, &options).await {
                Ok(link) => match link.pair(&key, &expectation).await {
                    Ok(mut session) => loop {
                        if let Err(error) = session.receiver.recv().await {
                            break error;
                        }
                    },
                    Err(error) => error,
                },
                Err(error) => error,
            }
        });
        // Its last words may still be on their way.
        std::mem::forget(runtime);
        end
    })
}
