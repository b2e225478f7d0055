//! A session's number is the hub's to give. Who would take part in two sessions of one number could be made to sign two receipts of one
//! number, which convict whoever signed them.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use kvasir_dispatch::{Placement, Swarm};
use kvasir_tests::swarm_scene::repeating_hub::{RepeatingHub, SESSION};
use kvasir_tests::swarm_scene::*;
use kvasir_wire::refusal::RefusalCode;
use kvasir_worker::{Event, WorkerOptions};

/// A worker of the repeating hub.
fn options(scene: &Scene, hub: &RepeatingHub) -> WorkerOptions {
    let mut options = scene.worker_options(30);
    options.gateway.clone_from(&hub.address);
    options
}

fn refused(event: &Event) -> Option<(String, bool)> {
    match event {
        Event::Refused { code, can_heal, .. } => Some((code.clone(), *can_heal)),
        _ => None,
    }
}

#[test]
fn a_worker_signs_in_one_session_of_a_number() {
    let (scene, hub) = (Scene::new(), RepeatingHub::start());
    let worker = RunningWorker::start(options(&scene, &hub));
    hub.answers.recv_timeout(PATIENCE).unwrap().unwrap();
    let refusal = hub.answers.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!((refusal.code, refusal.session), (RefusalCode::TranscriptMismatch, Some(SESSION)));
    assert_eq!(worker.log.wait_for(refused), ("transcript_mismatch".to_owned(), true));
    let sessions = worker.log.events().iter().filter(|event| matches!(event, Event::Paired { .. })).count();
    assert_eq!(sessions, 1, "it tells of no session where it takes part in none");
}

#[test]
fn a_worker_that_was_started_again_knows_what_its_folder_knows() {
    let (scene, hub) = (Scene::new(), RepeatingHub::start());
    let paystubs = tempfile::tempdir().unwrap();
    let mut first = options(&scene, &hub);
    first.paystubs = Some(paystubs.path().to_owned());
    first.once = true;
    RunningWorker::start(first).join().unwrap();
    hub.answers.recv_timeout(PATIENCE).unwrap().unwrap();
    let receipt = paystubs.path().join(format!("{SESSION}.receipt"));
    let kept = std::fs::read(&receipt).unwrap();

    let mut second = options(&scene, &hub);
    second.paystubs = Some(paystubs.path().to_owned());
    let worker = RunningWorker::start(second);
    let refusal = hub.answers.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(refusal.code, RefusalCode::TranscriptMismatch);
    worker.log.wait_for(refused);
    drop(worker);
    assert_eq!(std::fs::read(&receipt).unwrap(), kept, "the earlier session's receipt stays");
    assert_eq!(std::fs::read_dir(paystubs.path()).unwrap().count(), 1);
}

#[test]
fn a_backbone_dials_for_a_number_once() {
    let (scene, hub) = (Scene::new(), RepeatingHub::start());
    let host = Host::new(tiny());
    // Room for both, if both were taken.
    let mut options = scene.swarm_options(2, Placement::default(), &all_layers(&host.model));
    options.hub.clone_from(&hub.address);
    let swarm = Swarm::join(host.model.clone(), options).unwrap();
    hub.answers.recv_timeout(PATIENCE).unwrap().unwrap();
    let refusal = hub.answers.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!((refusal.code, refusal.session), (RefusalCode::TranscriptMismatch, Some(SESSION)));
    assert!(swarm.statistics().workers.is_empty(), "no session came about");
}
