//! The same tokens and logits, to the last bit, whoever computes the experts and whatever happens to them.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::{Duration, Instant};

use kvasir_dispatch::{Deadlines, Placement, SwarmOptions};
use kvasir_model::{ExpertIndex, LayerIndex};
use kvasir_tests::swarm_scene::*;
use kvasir_worker::{Fault, WorkerError};

const TOKENS: usize = 6;

/// Options of a swarm in which nobody is late by chance. Not for workers that die: a lost link is waited for as long.
fn unhurried(mut options: SwarmOptions) -> SwarmOptions {
    options.deadlines = NO_HURRY;
    options
}

#[test]
fn remote_equals_local_in_both_placements_with_one_and_two_workers() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let local = host.say(host.local().as_mut(), TOKENS);
    for placement in [Placement::WholeLayers, Placement::Experts] {
        for workers in [1, 2] {
            let scene = Scene::new();
            let running: Vec<_> = (0..workers).map(|seed| scene.worker(30 + seed as u8)).collect();
            let swarm = join(&host, unhurried(scene.swarm_options(workers, placement, &layers)));
            let said = host.say(&mut swarm.experts(host.local()), TOKENS);
            assert_eq!(said, local, "{placement:?} with {workers} workers");
            let statistics = swarm.finish();
            assert_eq!(statistics.failovers, 0, "{statistics:#?}");
            assert_eq!(statistics.local_calls, 0, "every layer is remote");
            assert_eq!(statistics.round_trips, (layers.len() * TOKENS) as u64);
            assert_eq!(statistics.workers.len(), workers);
            assert!(statistics.workers.iter().all(|worker| worker.calls > 0), "{statistics:#?}");
            drop(running);
        }
    }
}

#[test]
fn a_layer_shared_between_this_machine_and_a_worker_gives_the_same_bits() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let _worker = scene.worker(30);
    let mut options = scene.swarm_options(1, Placement::Experts, &all_layers(&host.model));
    options.remote_experts = Some(2..7);
    let swarm = join(&host, unhurried(options));
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local);
    let statistics = swarm.finish();
    assert!(statistics.remote_calls > 0);
    assert_eq!(statistics.failovers, 0);
}

#[test]
fn experts_chosen_one_by_one_leave_and_no_others_and_give_the_same_bits() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let _workers = [scene.worker(30), scene.worker(31)];
    let mut options = scene.swarm_options(2, Placement::WholeLayers, &[]);
    options.chosen = Some([(0, 1), (0, 5), (1, 0), (3, 7)].into());
    // Of one of them the other worker holds a copy.
    options.copies = 1;
    options.copied = Some([(0, 5)].into());
    let swarm = join(&host, unhurried(options));
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local);
    let statistics = swarm.finish();
    assert_eq!(statistics.failovers, 0, "{statistics:#?}");
    assert!(statistics.local_calls >= TOKENS as u64, "nothing of layer 2 leaves: {statistics:#?}");
    let mut held: Vec<usize> = statistics.workers.iter().map(|worker| worker.experts).collect();
    held.sort_unstable();
    // What is chosen of a layer is with one worker.
    assert_eq!(held, [2, 3], "{statistics:#?}");
}

#[test]
fn a_prompt_cut_into_many_messages_gives_the_same_bits() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let local = host.say(host.local().as_mut(), 2);
    for (placement, workers) in [(Placement::WholeLayers, 1), (Placement::Experts, 2)] {
        let scene = Scene::new();
        let _workers: Vec<_> = (0..workers).map(|seed| scene.worker(30 + seed as u8)).collect();
        let mut options = scene.swarm_options(workers, placement, &layers);
        // Two rows of answer in a message; the prompt has six rows and two picks for each.
        options.result_bytes = 2 * 4 * host.model.config().hidden as usize;
        let swarm = join(&host, unhurried(options));
        assert_eq!(host.say(&mut swarm.experts(host.local()), 2), local, "{placement:?}");
        let statistics = swarm.finish();
        assert!(statistics.remote_calls > 3 * statistics.round_trips / 2, "{statistics:#?}");
        assert_eq!(statistics.failovers, 0);
    }
}

/// They have one blob and a proof each: a worker takes neither under the other's name.
#[test]
fn experts_of_the_same_weights_go_out_under_each_of_their_names() {
    let file = kvasir_tests::root().join("tests/data/tiny/tiny-q8_0.gguf");
    let mut bytes = std::fs::read(&file).unwrap();
    let original = tiny();
    let [one, other] = [0, 1].map(|expert| original.expert(LayerIndex(0), ExpertIndex(expert)).unwrap());
    for (from, to) in [(one.gate, other.gate), (one.up, other.up), (one.down, other.down)] {
        let at = bytes.windows(to.bytes().len()).position(|window| window == to.bytes()).unwrap();
        bytes[at..at + to.bytes().len()].copy_from_slice(from.bytes());
    }
    let folder = tempfile::tempdir().unwrap();
    let twins = folder.path().join("twins.gguf");
    std::fs::write(&twins, bytes).unwrap();
    let model = std::sync::Arc::new(kvasir_model::Model::open(&twins).unwrap());
    let digest = |expert| model.expert_digest(LayerIndex(0), ExpertIndex(expert)).unwrap();
    assert_eq!(digest(0), digest(1));

    let host = Host::new(model);
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    // Each worker has one of the two, and asks for it by its name.
    let _workers = [scene.worker(30), scene.worker(31)];
    let swarm = join(&host, unhurried(scene.swarm_options(2, Placement::Experts, &all_layers(&host.model))));
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local);
    let statistics = swarm.finish();
    assert_eq!((statistics.failovers, statistics.local_calls), (0, 0), "{statistics:#?}");
}

#[test]
fn the_demo_model_gives_the_same_bits_on_two_workers() {
    let host = Host::new(atlas());
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let _workers = [scene.worker(30), scene.worker(31)];
    let options = scene.swarm_options(2, Placement::Experts, &all_layers(&host.model));
    let swarm = join(&host, unhurried(options));
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local);
    assert_eq!(swarm.finish().failovers, 0);
}

#[test]
fn weights_over_a_second_connection_change_no_bit() {
    let host = Host::new(atlas());
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let mut options = scene.worker_options(30);
    options.bulk_connection = true;
    let _worker = RunningWorker::start(options);
    let options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    let swarm = join(&host, unhurried(options));
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local);
    let began = Instant::now();
    while !scene.has_bulk_connection() {
        assert!(began.elapsed() < PATIENCE, "no second connection came");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local);
    assert_eq!(swarm.finish().failovers, 0);
}

#[test]
fn a_worker_with_the_model_file_fetches_nothing_but_proofs() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), 2);
    let scene = Scene::new();
    let mut options = scene.worker_options(30);
    options.model = Some(tiny());
    let _worker = RunningWorker::start(options);
    let options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    let swarm = join(&host, unhurried(options));
    assert_eq!(host.say(&mut swarm.experts(host.local()), 2), local);
    let statistics = swarm.finish();
    let config = host.model.config();
    assert_eq!(
        statistics.workers[0].expert_bytes,
        u64::from(config.layers * config.experts),
        "a byte a proof"
    );
    assert_eq!(statistics.failovers, 0);
}

#[test]
fn a_worker_killed_at_every_call_changes_nothing() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let local = host.say(host.local().as_mut(), TOKENS);
    let calls = layers.len() * TOKENS;
    for dies_after in 0..calls as u64 {
        let scene = Scene::new();
        let worker = scene.worker_with_fault(30, Fault::DieAfter { results: dies_after });
        let swarm = join(&host, scene.swarm_options(1, Placement::WholeLayers, &layers));
        let said = host.say(&mut swarm.experts(host.local()), TOKENS);
        assert_eq!(said, local, "killed at call {}", dies_after + 1);
        let statistics = swarm.statistics();
        assert_eq!(statistics.accepted, dies_after);
        assert_eq!(statistics.failovers, 1, "the call in hand: {statistics:#?}");
        assert_eq!(statistics.links_lost, 1);
        assert_eq!(statistics.local_calls, calls as u64 - dies_after - 1);
        match worker.join() {
            Err(WorkerError::DiedOnPurpose { results }) => assert_eq!(results, dies_after),
            other => panic!("{other:?}"),
        }
        drop(swarm);
    }
}

#[test]
fn one_of_two_workers_killed_changes_nothing() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let local = host.say(host.local().as_mut(), TOKENS);
    for placement in [Placement::WholeLayers, Placement::Experts] {
        for dies_after in [0, 3, 7] {
            let scene = Scene::new();
            let _dying = scene.worker_with_fault(30, Fault::DieAfter { results: dies_after });
            let _living = scene.worker(31);
            let swarm = join(&host, scene.swarm_options(2, placement, &layers));
            let said = host.say(&mut swarm.experts(host.local()), TOKENS);
            assert_eq!(said, local, "{placement:?}, killed after {dies_after}");
            let statistics = swarm.finish();
            assert!(statistics.failovers >= 1, "{statistics:#?}");
            assert_eq!(statistics.deadlines_missed, 0, "a lost link is noticed at once");
        }
    }
}

#[test]
fn a_stalled_worker_costs_one_deadline_and_no_bit() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let local = host.say(host.local().as_mut(), TOKENS);
    for stalls_after in [0, 5] {
        let scene = Scene::new();
        let worker = scene.worker_with_fault(30, Fault::StallAfter { results: stalls_after });
        let mut options = scene.swarm_options(1, Placement::WholeLayers, &layers);
        // Of all calls the stalled one alone may miss it.
        let short = Duration::from_secs(2);
        options.deadlines = Deadlines { floor: short, ceiling: short };
        options.finish_timeout = Duration::from_millis(100);
        let swarm = join(&host, options);
        let said = host.say(&mut swarm.experts(host.local()), TOKENS);
        assert_eq!(said, local);
        let statistics = swarm.finish();
        assert_eq!(
            statistics.deadlines_missed, 1,
            "it is left alone while it owes an answer: {statistics:#?}"
        );
        assert_eq!(statistics.accepted, stalls_after);
        drop(worker);
    }
}

#[test]
fn a_flipped_bit_shows_in_the_logits() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let _worker = scene.worker_with_fault(30, Fault::FlipBit { result: 1 });
    let options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    let swarm = join(&host, unhurried(options));
    let said = host.say(&mut swarm.experts(host.local()), TOKENS);
    assert_ne!(said.logits, local.logits, "the comparison can fail");
    assert_eq!(swarm.finish().failovers, 0, "well-formed wrong numbers are not noticed here");
}

#[test]
fn a_worker_that_comes_back_is_used_again() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let dying = scene.worker_with_fault(30, Fault::DieAfter { results: 4 });
    let swarm = join(&host, scene.swarm_options(1, Placement::WholeLayers, &layers));
    let mut experts = swarm.experts(host.local());
    assert_eq!(host.say(&mut experts, TOKENS), local);
    assert!(dying.join().is_err());
    let _back = scene.worker(30);
    swarm.wait_for_workers(1, PATIENCE).unwrap();
    assert_eq!(host.say(&mut experts, TOKENS), local);
    let statistics = swarm.finish();
    assert_eq!(statistics.workers.len(), 2);
    assert_eq!(statistics.workers[1].accepted, (layers.len() * TOKENS) as u64);
}

#[test]
fn a_worker_connects_again_by_itself_and_still_holds_its_experts() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let _worker = scene.worker(30);
    let options = unhurried(scene.swarm_options(1, Placement::WholeLayers, &layers));
    let first = join(&host, options.clone());
    assert_eq!(host.say(&mut first.experts(host.local()), TOKENS), local);
    assert!(first.finish().workers[0].expert_bytes > 0);
    let second = join(&host, options);
    assert_eq!(host.say(&mut second.experts(host.local()), TOKENS), local);
    let statistics = second.finish();
    assert_eq!(statistics.workers[0].expert_bytes, 0, "nothing travels twice");
    assert_eq!(statistics.accepted, (layers.len() * TOKENS) as u64);
}

#[test]
fn within_its_bytes_a_worker_gives_up_what_is_assigned_no_more_and_is_sent_what_it_lacks() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let experts = host.model.config().experts as usize;
    let blob = host.model.expert(LayerIndex(0), ExpertIndex(0)).unwrap().blob_bytes() as u64;
    let scene = Scene::new();
    let mut options = scene.worker_options(30);
    // Room for one layer.
    options.store_bytes = blob * experts as u64 + blob / 2;
    let _worker = RunningWorker::start(options);
    let sent = |layer: u16| {
        let options = scene.swarm_options(1, Placement::WholeLayers, &[layer]);
        let swarm = join(&host, unhurried(options));
        assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local, "layer {layer}");
        let statistics = swarm.finish();
        let worker = &statistics.workers[0];
        assert_eq!((worker.experts, statistics.failovers), (experts, 0), "layer {layer}: {statistics:#?}");
        worker.expert_bytes
    };
    let whole = sent(0);
    assert!(whole > 0);
    assert_eq!([sent(0), sent(1), sent(1), sent(0)], [0, whole, 0, whole]);
}

#[test]
fn a_lost_hub_changes_nothing() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let worker = scene.worker(30);
    let swarm = join(&host, scene.swarm_options(1, Placement::WholeLayers, &layers));
    let mut scene = Some(scene);
    let said = host.say_and(&mut swarm.experts(host.local()), TOKENS, |step| {
        if step == 2 {
            scene.take().unwrap().kill();
        }
    });
    assert_eq!(said, local);
    let statistics = swarm.statistics();
    assert!(statistics.accepted < (layers.len() * TOKENS) as u64);
    drop((worker, swarm));
}
