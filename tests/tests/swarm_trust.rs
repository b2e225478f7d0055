//! What the parties of a swarm refuse each other, and what they agree to sign.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use kvasir_dispatch::{Deadlines, Placement, Swarm, SwarmError};
use kvasir_link::LinkError;
use kvasir_model::LayerIndex;
use kvasir_tests::swarm_scene::hostile::{Lie, hand_over, pair};
use kvasir_tests::swarm_scene::hostile_worker::{self, Answers};
use kvasir_tests::swarm_scene::raw::{RawLink, wait_for_note};
use kvasir_tests::swarm_scene::*;
use kvasir_wire::account::{Grant, Statement as _};
use kvasir_wire::frame::Kind;
use kvasir_wire::handshake::{Class, Features, HolderHandshake, Purpose, WorkerOffer};
use kvasir_wire::id::{Nonce, PluginDigest};
use kvasir_wire::message::NotHeldReason;
use kvasir_wire::note::Note;
use kvasir_wire::receipt::{ReceiptKeys, SignedReceipt};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::ticket::Role;
use kvasir_worker::{Event, WorkerError};

const TOKENS: usize = 4;

fn refused(event: &Event) -> Option<(String, String)> {
    match event {
        Event::Refused { code, reason, .. } => Some((code.clone(), reason.clone())),
        _ => None,
    }
}

#[test]
fn a_worker_with_another_plugin_is_refused_and_both_are_told() {
    let host = Host::new(tiny());
    let scene = Scene::new();
    let swarm = Swarm::join(
        host.model.clone(),
        scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model)),
    )
    .unwrap();
    let other = plugin_by(8);
    let mut options = scene.worker_options(30);
    options.ticket = scene.ticket(Role::Worker, options.key.public(), &other);
    options.plugins = vec![other];
    let worker = RunningWorker::start(options);
    let (code, reason) = worker.log.wait_for(refused);
    assert!(["nothing_in_common", "plugin_not_allowed"].contains(&code.as_str()), "{code}: {reason}");
    let told = wait_for_trouble(&swarm);
    assert!(told.contains("plugin"), "the backbone is told: {told}");
}

/// The last thing that went wrong with a worker, once there is one.
fn wait_for_trouble(swarm: &Swarm) -> String {
    let begun = std::time::Instant::now();
    loop {
        match swarm.wait_for_workers(1, Duration::from_millis(100)) {
            Err(SwarmError::TooFewWorkers { last: Some(last), ready: 0, wanted: 1, .. }) => return last,
            Err(SwarmError::TooFewWorkers { .. }) if begun.elapsed() < PATIENCE => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn experts_that_are_not_the_models_are_refused_and_reported() {
    let model = tiny();
    for (lie, reason, words) in [
        (Lie::Chunk, NotHeldReason::DigestMismatch, Some("hashes to")),
        (Lie::Proof, NotHeldReason::ProofFailed, Some("does not lead from")),
        (Lie::Name, NotHeldReason::ProofFailed, Some("as expert 2 of layer 1")),
        (Lie::NoProof, NotHeldReason::ProofFailed, Some("no proof")),
        (Lie::Gap, NotHeldReason::NotReceived, None),
        (Lie::TooLarge, NotHeldReason::NoMemory, None),
    ] {
        let scene = Scene::new();
        let mut options = scene.worker_options(30);
        if lie == Lie::TooLarge {
            options.store_bytes = 1000;
        }
        let worker = RunningWorker::start(options);
        let runtime = runtime();
        let have = runtime.block_on(async {
            let mut session = pair(&scene, &model).await;
            let have = hand_over(&mut session, &model, lie).await;
            (have, session)
        });
        let (have, _session) = have;
        assert_eq!(have.held, [], "{lie:?}");
        assert_eq!(have.not_held.len(), 1, "{lie:?}");
        assert_eq!(have.not_held[0].reason, reason, "{lie:?}");
        worker.log.wait_for(|event| match event {
            Event::ExpertRefused { layer: 1, expert: 2, .. } => Some(()),
            _ => None,
        });
        if let Some(words) = words {
            wait_for_note(&scene.address, "protocol_error", words);
        }
    }
}

#[test]
fn answers_that_cannot_be_right_are_recomputed_and_not_paid() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), 8);
    for answers in [Answers::Short, Answers::NotFinite, Answers::Refusals, Answers::Padded] {
        let scene = Scene::new();
        let worker = hostile_worker::start(&scene, answers);
        let swarm = join(&host, scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model)));
        assert_eq!(host.say(&mut swarm.experts(host.local()), 8), local, "{answers:?}");
        let LinkError::Refused(refusal) = worker.join().unwrap() else { panic!("{answers:?}") };
        assert_eq!(refusal.code, RefusalCode::LimitReached, "{answers:?}: it is let go after a while");
        let statistics = swarm.finish();
        assert_eq!(statistics.accepted, 0, "{answers:?}");
        assert_eq!(statistics.answers_refused, 16, "{answers:?}");
        assert_eq!(receipted(&statistics), 0, "{answers:?}");
        if answers != Answers::Refusals {
            wait_for_note(&scene.address, "protocol_error", "rows");
        }
    }
}

#[test]
fn bytes_are_those_of_accepted_calls_whatever_else_is_sent() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let scene = Scene::new();
    let _flood = hostile_worker::start(&scene, Answers::Pings);
    let swarm = join(&host, scene.swarm_options(1, Placement::WholeLayers, &layers));
    host.say(&mut swarm.experts(host.local()), 4);
    let statistics = swarm.finish();
    assert_eq!(statistics.accepted, statistics.remote_calls, "{statistics:#?}");
    let hidden = u64::from(host.model.config().hidden);
    // What calls and answers of these shapes weigh: six rows of the prompt and three single ones in each layer.
    let answers = 4 * layers.len() as u64;
    let rows = 9 * layers.len() as u64;
    assert_eq!(statistics.bytes_down, answers * (12 + 32) + rows * hidden * 4);
    assert_eq!(receipted(&statistics), statistics.bytes_up + statistics.bytes_down);
}

#[test]
fn a_worker_serves_no_further_ahead_of_signatures_than_its_window() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let mut options = scene.worker_options(30);
    // Far less than what the hub lets pass before it cuts a receipt.
    options.unsigned_window.bytes = 4_000;
    options.attempts = Some(1);
    let worker = RunningWorker::start(options);
    let swarm = join(&host, scene.swarm_options(1, Placement::WholeLayers, &layers));
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local, "the backbone goes on by itself");
    let reason = worker.log.wait_for(|event| match event {
        Event::ReceiptDisputed { reason } => Some(reason.clone()),
        _ => None,
    });
    assert!(reason.contains("4000 bytes"), "{reason}");
    wait_for_note(&scene.address, "limit_reached", "no receipt states");
    let statistics = swarm.finish();
    assert!(statistics.accepted > 0 && statistics.failovers + statistics.local_calls > 0, "{statistics:#?}");
    drop(worker);

    // The same by time: what is served waits for the hub's ten seconds, this worker for less.
    let scene = Scene::new();
    let mut options = scene.worker_options(30);
    options.unsigned_window.time = Duration::from_millis(1);
    let worker = RunningWorker::start(options);
    let swarm = join(&host, scene.swarm_options(1, Placement::WholeLayers, &layers));
    host.say(&mut swarm.experts(host.local()), 2);
    let reason = worker.log.wait_for(|event| match event {
        Event::ReceiptDisputed { reason } => Some(reason.clone()),
        _ => None,
    });
    assert!(reason.contains("ahead of one"), "{reason}");
    drop(swarm);
}

#[test]
fn books_that_differ_and_second_answers_end_the_session_and_both_are_told() {
    let host = Host::new(tiny());
    for (answers, code, words) in [
        (Answers::WrongRoot, RefusalCode::ReceiptDisputed, "work root"),
        // A receipt is about the bytes that arrived, not about a copy of the worker's own.
        (Answers::OtherCopy, RefusalCode::ReceiptDisputed, "work root"),
        // The hub, which counts, notices before the backbone does.
        (Answers::Twice, RefusalCode::ProtocolError, "no complete call was relayed"),
    ] {
        let scene = Scene::new();
        let worker = hostile_worker::start(&scene, answers);
        let swarm = join(&host, scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model)));
        host.say(&mut swarm.experts(host.local()), TOKENS);
        let LinkError::Refused(refusal) = worker.join().unwrap() else { panic!("{answers:?}") };
        assert_eq!(refusal.code, code, "{answers:?}");
        assert!(refusal.sentence.contains(words), "{refusal}");
        let statistics = swarm.finish();
        assert!(statistics.workers[0].ended.as_ref().unwrap().contains(words), "{statistics:#?}");
    }
}

#[test]
fn a_ticket_in_the_wrong_hands_is_refused_and_both_are_told() {
    let scene = Scene::new();
    // An honest program does not even dial with it, and says why.
    let mut options = scene.worker_options(30);
    options.key = key(31);
    match RunningWorker::start(options).join() {
        Err(WorkerError::Refused(refusal)) => {
            assert_eq!(refusal.code, RefusalCode::WrongKey);
            assert!(!refusal.what_to_do.is_empty());
        }
        other => panic!("{other:?}"),
    }
    // A thief dials, and cannot answer the challenge.
    let (owner, thief) = (key(30), key(31));
    let ticket = scene.ticket(Role::Worker, owner.public(), plugin());
    let offer = WorkerOffer {
        plugins: vec![PluginDigest(plugin().digest().0)],
        formats: vec![8],
        memory_bytes: 1 << 30,
        class: Class::Exact,
    };
    let (handshake, hello) = HolderHandshake::start(
        &ticket,
        &owner,
        Purpose::Worker(offer),
        Features::NONE,
        Nonce([5; 32]),
        now(),
    )
    .unwrap();
    let mut link = RawLink::open(&scene.address, "/v1/worker", &ticket);
    link.send(Kind::Hello, &hello);
    let challenge = link.receive();
    assert_eq!(challenge.kind, Kind::Challenge);
    let (_, proof) = handshake.challenge(&challenge.bytes, &thief).unwrap();
    link.send(Kind::Proof, &proof);
    let answer = link.receive();
    assert_eq!(answer.kind, Kind::Refuse);
    assert_eq!(Refusal::decode(&answer.bytes).unwrap().code, RefusalCode::WrongKey);
    wait_for_note(&scene.address, "wrong_key", "the proof was not made");
}

#[test]
fn receipts_of_all_parties_agree() {
    let host = Host::new(tiny());
    let scene = Scene::new();
    let paystubs = tempfile::tempdir().unwrap();
    let mut options = scene.worker_options(30);
    options.paystubs = Some(paystubs.path().to_owned());
    options.once = true;
    let worker = RunningWorker::start(options);
    let swarm = join(&host, scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model)));
    host.say(&mut swarm.experts(host.local()), TOKENS);
    let statistics = swarm.finish();
    let [numbers] = &statistics.workers[..] else { panic!("{statistics:#?}") };
    assert_eq!(numbers.ended.as_deref(), Some("finished in order"));
    assert_eq!(numbers.receipted_bytes, statistics.bytes(), "everything was accepted: {statistics:#?}");
    assert_eq!(numbers.receipted_nano_kvr, 7 * numbers.receipted_bytes);
    assert!(
        numbers.receipted_bytes > 0 && numbers.expert_bytes > 0,
        "experts travelled, and nobody pays for that"
    );

    let summary = worker.join().unwrap();
    assert_eq!(summary.receipted_bytes, numbers.receipted_bytes);
    assert_eq!(summary.nano_kvr, 7 * numbers.receipted_bytes);
    assert_eq!(summary.results, numbers.accepted);

    let receipts = scene.ledger.last_receipts();
    let receipt = &receipts[&numbers.session];
    assert!(receipt.is_final);
    assert_eq!(receipt.billed().get(), numbers.receipted_bytes);
    assert_eq!(receipt.counters.calls, numbers.accepted);
    assert_eq!(receipt.counters.up.get(), numbers.bytes_up);
    assert_eq!(receipt.counters.down.get(), numbers.bytes_down);
    assert_eq!(receipt.terms.payee, key(9).public().wallet_digest());

    let grants = scene.ledger.grants.lock().unwrap();
    assert_eq!(receipt.terms.grant, grants[0].leaf_hash(), "the receipt rests on the grant that was filed");
    let (grant, payer) = Grant::verify(&grants[0], &[key(20).public()]).unwrap();
    assert_eq!((grant.payer(), payer), (receipt.terms.backbone, key(20).public()));

    let kept = std::fs::read(paystubs.path().join(format!("{}.receipt", numbers.session))).unwrap();
    let keys = ReceiptKeys { hub: key(1).public(), worker: key(30).public(), backbone: key(20).public() };
    let kept = SignedReceipt::verify(Note::parse(&kept).unwrap(), &keys).unwrap();
    assert_eq!(kept.receipt(), receipt);
}

#[test]
fn late_answers_are_listed_and_not_paid() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let mut options = scene.worker_options(30);
    options.once = true;
    let worker = RunningWorker::start(options);
    let mut options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    // No time at all: whatever the worker answers is late.
    options.deadlines = Deadlines { floor: Duration::ZERO, ceiling: Duration::from_secs(0) };
    options.pauses.first = PATIENCE;
    options.pauses.longest = PATIENCE;
    let swarm = join(&host, options);
    let mut experts = swarm.experts(host.local());
    while swarm.statistics().deadlines_missed == 0 {
        assert_eq!(host.say(&mut experts, TOKENS), local);
    }
    let statistics = swarm.finish();
    let [numbers] = &statistics.workers[..] else { panic!("{statistics:#?}") };
    assert_eq!(numbers.ended.as_deref(), Some("finished in order"), "{statistics:#?}");
    assert_eq!(numbers.excluded, statistics.deadlines_missed);
    let excluded = worker.log.wait_for(|event| match event {
        Event::Receipt { excluded, last: true, .. } => Some(*excluded),
        _ => None,
    });
    assert_eq!(excluded, numbers.excluded);
    let receipt = &scene.ledger.last_receipts()[&numbers.session];
    assert_eq!(receipt.counters.calls, numbers.accepted);
    assert!(receipt.billed().get() < numbers.bytes_up + numbers.bytes_down);
}

#[test]
fn a_worker_that_is_stopped_leaves_in_order() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let mut worker = Some(scene.worker(30));
    let mut options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    options.deadlines = NO_HURRY;
    let swarm = join(&host, options);
    let said = host.say_and(&mut swarm.experts(host.local()), TOKENS, |step| {
        if step == 2 {
            let summary = worker.take().unwrap().stop().unwrap();
            assert!(summary.receipted_bytes > 0, "its last receipt was signed");
        }
    });
    assert_eq!(said, local);
    let statistics = swarm.finish();
    assert_eq!(statistics.failovers, 0, "nothing was asked of it after it left: {statistics:#?}");
    assert_eq!(receipted(&statistics), statistics.bytes());
}

#[test]
fn a_small_worker_holds_what_fits() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let config = host.model.config();
    let blob = host.model.expert(LayerIndex(0), kvasir_model::ExpertIndex(0)).unwrap().blob_bytes() as u64;
    let scene = Scene::new();
    let mut options = scene.worker_options(30);
    options.store_bytes = blob * 5 + blob / 2;
    let _worker = RunningWorker::start(options);
    let mut options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    options.deadlines = NO_HURRY;
    let swarm = join(&host, options);
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local);
    let statistics = swarm.finish();
    assert_eq!(statistics.workers[0].experts, 5, "of {}", config.experts);
    assert_eq!(statistics.failovers, 0);
}

#[test]
fn what_cannot_work_is_said_at_once() {
    let host = Host::new(tiny());
    let scene = Scene::new();
    let layers = host.model.config().layers as u16;
    let join = |options| Swarm::join(host.model.clone(), options).map(|_| ()).unwrap_err();
    let beyond = scene.swarm_options(1, Placement::WholeLayers, &[layers]);
    assert!(matches!(join(beyond), SwarmError::Options(_)));
    let mut none = scene.swarm_options(1, Placement::WholeLayers, &[0]);
    none.remote_experts = Some(0..u16::MAX);
    assert!(matches!(join(none), SwarmError::Options(_)));
    for missing in [(layers, 0), (0, host.model.config().experts as u16)] {
        let mut chosen = scene.swarm_options(1, Placement::WholeLayers, &[]);
        chosen.chosen = Some([missing].into());
        assert!(matches!(join(chosen), SwarmError::Options(_)));
    }
    let mut nowhere = scene.swarm_options(1, Placement::WholeLayers, &[0]);
    nowhere.hub = "ws://127.0.0.1:1".to_owned();
    assert!(matches!(join(nowhere), SwarmError::Unreachable { .. }));
    let mut worker = scene.swarm_options(1, Placement::WholeLayers, &[0]);
    worker.ticket = scene.ticket(Role::Worker, worker.key.public(), plugin());
    let error = join(worker);
    assert!(
        matches!(&error, SwarmError::Refused { refusal, .. } if refusal.code == RefusalCode::WrongRole),
        "{error}"
    );
}
