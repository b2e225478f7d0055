//! Answers that are computed again: a liar is found out, named and unpaid, and no bit of a text is its.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvasir_backbone::{Call, CallId, Experts, ExpertsError, Progress};
use kvasir_dispatch::{Deadlines, Evidence, EvidenceSink, Placement, SwarmOptions, Verify, WorkerState};
use kvasir_model::Model;
use kvasir_replay::{Limits, Replayer, Verdict, WorkFraud};
use kvasir_tests::root;
use kvasir_tests::swarm_scene::raw::wait_for_note;
use kvasir_tests::swarm_scene::*;
use kvasir_wire::receipt::Receipt;
use kvasir_worker::Fault;

const TOKENS: usize = 6;

#[test]
fn a_worker_that_lies_from_its_first_call_is_named_and_unpaid() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    for placement in [Placement::WholeLayers, Placement::Experts] {
        let scene = Scene::new();
        let liar = scene.worker_with_fault(30, Fault::FlipBit { result: 1 });
        let mut options = scene.swarm_options(1, placement, &all_layers(&host.model));
        options.verify = Verify::USUAL;
        options.deadlines = NO_HURRY;
        let swarm = join(&host, options);
        assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local, "{placement:?}");
        wait_for_note(&scene.address, "wrong_result", "computed again");
        let statistics = swarm.finish();
        assert_eq!((statistics.answers_wrong, statistics.answers_checked), (1, 1), "{statistics:#?}");
        let [worker] = &statistics.workers[..] else { panic!("one session: {statistics:#?}") };
        assert_eq!((worker.wrong, worker.accepted, worker.excluded), (1, 0, 1), "{statistics:#?}");
        assert_eq!((worker.receipted_bytes, worker.receipted_nano_kvr), (0, 0), "{statistics:#?}");
        assert_eq!(worker.state, WorkerState::Quarantined);
        assert!(worker.ended.as_deref().is_some_and(|why| why.contains("is wrong")), "{statistics:#?}");
        let billed = |receipt: &Receipt| receipt.billed().get();
        assert_eq!(scene.ledger.last_receipts().values().map(billed).sum::<u64>(), 0, "nothing is paid");
        drop(liar);
    }
}

/// Where a swarm's evidence goes in these tests.
fn collected(options: &mut SwarmOptions) -> Arc<Mutex<Vec<Evidence>>> {
    let all: Arc<Mutex<Vec<Evidence>>> = Arc::default();
    let theirs = Arc::clone(&all);
    options.keep.evidence = Some(EvidenceSink::new(move |evidence| {
        theirs.lock().unwrap().push(evidence.clone());
        Ok(())
    }));
    all
}

#[test]
fn a_lie_that_is_found_is_a_file_that_convicts_whoever_told_it() {
    let host = Host::new(tiny());
    for placement in [Placement::WholeLayers, Placement::Experts] {
        let scene = Scene::new();
        let _workers = [scene.worker_with_fault(30, Fault::FlipBit { result: 4 }), scene.worker(31)];
        let mut options = scene.swarm_options(2, placement, &all_layers(&host.model));
        options.verify = Verify::USUAL;
        options.deadlines = NO_HURRY;
        // Without its last receipt there is no evidence, and a busy machine may take its time for that.
        (options.last_receipt, options.finish_timeout) = (PATIENCE, PATIENCE);
        let collected = collected(&mut options);
        let swarm = join(&host, options);
        host.say(&mut swarm.experts(host.local()), TOKENS);
        let statistics = swarm.finish();
        assert_eq!((statistics.answers_wrong, statistics.records.failure), (1, None));
        // It is no record for replay.
        let records = (statistics.records.evidence, statistics.records.files, statistics.records.written);
        assert_eq!(records, (1, 0, 0), "{placement:?}");

        let evidence = std::mem::take(&mut *collected.lock().unwrap());
        let [Evidence { keys, receipt, record }] = &evidence[..] else {
            panic!("{placement:?}: {evidence:?}")
        };
        assert_eq!(keys.worker, key(30).public(), "{placement:?}");
        // The receipt is the ledger's; the file is the ledger's own form, and says by itself whose rows these are.
        let receipts = scene.ledger.receipts.lock().unwrap();
        assert!(receipts.iter().any(|logged| logged.text() == receipt.text()));
        let work = WorkFraud { keys: *keys, receipt: receipt.clone(), record: record.clone() };
        let file = kvasir_replay::Evidence::Work(work).to_string();
        let read = kvasir_replay::Evidence::parse(file.as_bytes()).unwrap();
        let proven = read.convict().unwrap();
        assert!(proven.culprits[0].ends_with(&key(30).public().to_string()), "{proven:?}");
        // Whoever has model and plugin comes to the same.
        let model = Model::open(&root().join("tests/data/tiny/tiny-q8_0.gguf")).unwrap();
        let find = |_| Ok(plugin().clone());
        let mut replayer = Replayer::new(vec![model], &find, Limits::default()).unwrap();
        let kvasir_replay::Evidence::Work(work) = read else { panic!("it is about work") };
        let judged = replayer.replay_evidence(&work).unwrap();
        let [(_, Verdict::Convicted(found))] = &judged[..] else { panic!("{placement:?}: {judged:?}") };
        assert_ne!(found.expected, found.got);
    }
}

#[test]
fn nobody_is_accused_where_every_answer_is_right() {
    let host = Host::new(tiny());
    let scene = Scene::new();
    let _worker = scene.worker(30);
    let mut options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    options.verify = Verify::ALL;
    options.deadlines = NO_HURRY;
    let collected = collected(&mut options);
    let swarm = join(&host, options);
    host.say(&mut swarm.experts(host.local()), TOKENS);
    assert!(swarm.finish().answers_checked > 0);
    assert!(collected.lock().unwrap().is_empty());
}

#[test]
fn nobody_is_accused_who_is_late_nor_who_answers_beside_it() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let short = Duration::from_secs(2);
    for copies in [0, 1] {
        let scene = Scene::new();
        let late = Fault::Late { result: 3, by: 2 * short };
        let _workers = [scene.worker_with_fault(30, late), scene.worker(31)];
        let mut options = scene.swarm_options(2, Placement::WholeLayers, &all_layers(&host.model));
        options.verify = Verify::ALL;
        options.deadlines = Deadlines { floor: short, ceiling: short };
        options.copies = copies;
        let collected = collected(&mut options);
        let swarm = join(&host, options);
        assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local, "{copies} copies");
        let statistics = swarm.finish();
        assert!(statistics.deadlines_missed > 0, "{copies} copies: {statistics:#?}");
        assert_eq!(statistics.answers_wrong, 0, "{copies} copies: {statistics:#?}");
        assert!(collected.lock().unwrap().is_empty(), "{copies} copies");
    }
}

#[test]
fn a_lie_after_the_first_calls_is_found_where_it_is_checked_and_only_there() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    for (first, found) in [(5, true), (4, false)] {
        let scene = Scene::new();
        let _liar = scene.worker_with_fault(30, Fault::FlipBit { result: 5 });
        let mut options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
        options.verify = Verify { first, one_in: 0 };
        options.deadlines = NO_HURRY;
        let swarm = join(&host, options);
        let said = host.say(&mut swarm.experts(host.local()), TOKENS);
        assert_eq!(said == local, found, "with {first} checks");
        let statistics = swarm.finish();
        assert_eq!(statistics.answers_wrong, u64::from(found), "{statistics:#?}");
    }
}

#[test]
fn honest_workers_pass_every_check_in_both_placements() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    for (placement, experts) in
        [(Placement::WholeLayers, None), (Placement::Experts, None), (Placement::Experts, Some(2..7))]
    {
        let scene = Scene::new();
        let _workers = [scene.worker(30), scene.worker(31)];
        let mut options = scene.swarm_options(2, placement, &all_layers(&host.model));
        options.remote_experts = experts;
        options.verify = Verify::ALL;
        options.deadlines = NO_HURRY;
        let swarm = join(&host, options);
        assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local, "{placement:?}");
        let statistics = swarm.finish();
        assert!(statistics.accepted > 0, "{statistics:#?}");
        assert_eq!(statistics.answers_checked, statistics.accepted, "{statistics:#?}");
        assert_eq!((statistics.answers_wrong, statistics.failovers), (0, 0), "{statistics:#?}");
        assert_eq!(receipted(&statistics), statistics.bytes(), "a check costs the worker nothing");
    }
}

/// Experts of this machine that must not be needed.
struct NotHere;

impl Experts for NotHere {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        panic!("layer {} is computed here", call.layer.0);
    }

    fn poll(&mut self, _: Option<Instant>) -> Result<Progress, ExpertsError> {
        Err(ExpertsError::NothingInFlight)
    }

    fn cancel(&mut self, _: CallId) {}
}

#[test]
fn two_workers_that_agree_need_nobody_else() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    for placement in [Placement::WholeLayers, Placement::Experts] {
        let scene = Scene::new();
        let _workers = [scene.worker(30), scene.worker(31)];
        let mut options = scene.swarm_options(2, placement, &all_layers(&host.model));
        options.verify = Verify::ALL;
        options.deadlines = NO_HURRY;
        options.copies = 1;
        let swarm = join(&host, options);
        assert_eq!(host.say(&mut swarm.experts(Box::new(NotHere)), TOKENS), local, "{placement:?}");
        let statistics = swarm.finish();
        assert_eq!(statistics.answers_checked, statistics.accepted, "{statistics:#?}");
        assert_eq!(statistics.workers[0].accepted, statistics.workers[1].accepted, "every call went to both");
        assert_eq!((statistics.hedges, statistics.failovers), (0, 0), "{statistics:#?}");
    }
}

#[test]
fn where_two_workers_differ_this_machine_says_who_lies() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    for result in [1, 6] {
        let scene = Scene::new();
        let _workers = [scene.worker_with_fault(30, Fault::FlipBit { result }), scene.worker(31)];
        let mut options = scene.swarm_options(2, Placement::WholeLayers, &all_layers(&host.model));
        options.verify = Verify::ALL;
        options.deadlines = NO_HURRY;
        options.copies = 1;
        let swarm = join(&host, options);
        assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local, "result {result}");
        let statistics = swarm.finish();
        assert_eq!(statistics.answers_wrong, 1, "{statistics:#?}");
        let liar = statistics.workers.iter().find(|worker| worker.wrong > 0).unwrap();
        assert_eq!(liar.worker, key(30).public().to_string());
        assert_eq!(liar.state, WorkerState::Quarantined);
    }
}

#[test]
fn a_worker_in_quarantine_is_declined_and_another_takes_its_place() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    // Each time it connects it is the same worker: it lies once and would be honest from then on.
    let _liar = scene.worker_with_fault(30, Fault::FlipBit { result: 1 });
    let mut options = scene.swarm_options(1, Placement::WholeLayers, &layers);
    options.verify = Verify { first: 1, one_in: 0 };
    options.deadlines = NO_HURRY;
    let swarm = join(&host, options);
    let mut experts = swarm.experts(host.local());
    assert_eq!(host.say(&mut experts, TOKENS), local);
    wait_for_note(&scene.address, "wrong_result", "asks the worker nothing more");
    let _honest = scene.worker(31);
    swarm.wait_for_workers(1, PATIENCE).unwrap();
    assert_eq!(host.say(&mut experts, TOKENS), local);
    drop(experts);
    let statistics = swarm.finish();
    assert_eq!(statistics.workers.len(), 2, "{statistics:#?}");
    assert_eq!(statistics.workers[1].accepted, (layers.len() * TOKENS) as u64, "{statistics:#?}");
}
