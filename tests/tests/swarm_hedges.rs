//! Workers that are late, stall or die: another that holds the same experts is asked, the first answer counts, and who was late
//! is asked again once it has passed a trial. No bit of a text depends on any of it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_dispatch::{Deadlines, Pauses, Placement, Swarm, SwarmOptions, Verify, WorkerState};
use kvasir_tests::swarm_scene::*;
use kvasir_worker::Fault;

const TOKENS: usize = 6;

/// Two workers, each of which holds what the other was dealt too.
fn with_copies(scene: &Scene, host: &Host, placement: Placement) -> SwarmOptions {
    let mut options = scene.swarm_options(2, placement, &all_layers(&host.model));
    options.copies = 1;
    options.deadlines = NO_HURRY;
    options
}

/// Short for a test, and long for a machine that does something else meanwhile.
const SHORT: Duration = Duration::from_secs(3);

fn short_deadlines(options: &mut SwarmOptions) {
    options.deadlines = Deadlines { floor: SHORT, ceiling: SHORT };
    options.finish_timeout = Duration::from_millis(100);
}

#[test]
fn copies_change_no_bit_and_cost_no_call() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let local = host.say(host.local().as_mut(), TOKENS);
    for placement in [Placement::WholeLayers, Placement::Experts] {
        let scene = Scene::new();
        let _workers = [scene.worker(30), scene.worker(31)];
        let swarm = join(&host, with_copies(&scene, &host, placement));
        assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local, "{placement:?}");
        let statistics = swarm.finish();
        let all = layers.len() * host.model.config().experts as usize;
        assert!(statistics.workers.iter().all(|worker| worker.experts == all), "{statistics:#?}");
        assert!(statistics.workers.iter().all(|worker| worker.calls > 0), "{statistics:#?}");
        assert_eq!((statistics.hedges, statistics.failovers, statistics.local_calls), (0, 0, 0));
        assert_eq!(statistics.round_trips, (layers.len() * TOKENS) as u64);
    }
}

#[test]
fn what_a_stalled_worker_owes_is_asked_of_the_one_with_the_copies() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    for placement in [Placement::WholeLayers, Placement::Experts] {
        let scene = Scene::new();
        let _stalls = scene.worker_with_fault(30, Fault::StallAfter { results: 3 });
        let _stays = scene.worker(31);
        let mut options = with_copies(&scene, &host, placement);
        short_deadlines(&mut options);
        let swarm = join(&host, options);
        assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local, "{placement:?}");
        let statistics = swarm.finish();
        assert_eq!((statistics.hedges, statistics.deadlines_missed), (1, 1), "{statistics:#?}");
        assert_eq!((statistics.failovers, statistics.local_calls), (0, 0), "nothing is computed here");
        let stalled = statistics.workers.iter().find(|worker| worker.missed > 0).unwrap();
        assert_eq!((stalled.accepted, stalled.missed), (3, 1), "{statistics:#?}");
    }
}

#[test]
fn what_a_dead_worker_owed_is_asked_of_the_one_with_the_copies() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    for dies_after in [0, 3, 7] {
        let scene = Scene::new();
        let dying = scene.worker_with_fault(30, Fault::DieAfter { results: dies_after });
        let _stays = scene.worker(31);
        let mut options = with_copies(&scene, &host, Placement::WholeLayers);
        short_deadlines(&mut options);
        let swarm = join(&host, options);
        assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local, "killed after {dies_after}");
        assert!(dying.join().is_err());
        let statistics = swarm.finish();
        // Its link is missed or its answer, whichever is noticed first.
        let missed = statistics.links_lost + statistics.deadlines_missed;
        assert_eq!((statistics.hedges, missed), (1, 1), "the call in hand: {statistics:#?}");
        assert_eq!((statistics.failovers, statistics.local_calls), (0, 0), "{statistics:#?}");
    }
}

#[test]
fn nobody_waits_for_one_that_is_late_when_the_other_dies() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let mut options = with_copies(&scene, &host, Placement::WholeLayers);
    short_deadlines(&mut options);
    // A lost link is waited for less than an answer, so that the other fails before its own deadline.
    options.deadlines.floor = SHORT / 3;
    let swarm = Swarm::join(Arc::clone(&host.model), options).unwrap();
    // It has the first layer, and is asked first.
    let _stalls = scene.worker_with_fault(30, Fault::StallAfter { results: 0 });
    swarm.wait_for_workers(1, PATIENCE).unwrap();
    let dying = scene.worker_with_fault(31, Fault::DieAfter { results: 0 });
    swarm.wait_for_workers(2, PATIENCE).unwrap();
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local);
    assert!(dying.join().is_err());
    let statistics = swarm.finish();
    assert_eq!((statistics.hedges, statistics.failovers, statistics.accepted), (1, 1, 0), "{statistics:#?}");
}

#[test]
fn a_worker_that_was_late_is_asked_again_once_it_has_passed_a_trial() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let _worker = scene.worker_with_fault(30, Fault::Late { result: 3, by: 2 * SHORT });
    let mut options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    short_deadlines(&mut options);
    options.finish_timeout = PATIENCE;
    options.pauses = Pauses { first: Duration::from_millis(10), longest: Duration::from_millis(10) };
    // No answer is drawn, but trials are judged.
    options.verify = Verify { first: 0, one_in: u64::MAX };
    let swarm = join(&host, options);
    let mut experts = swarm.experts(host.local());
    assert_eq!(host.say(&mut experts, TOKENS), local);
    let late = swarm.statistics();
    assert!(late.deadlines_missed >= 1 && late.failovers >= 1, "{late:#?}");
    let begun = Instant::now();
    while swarm.statistics().workers[0].state != WorkerState::Serving {
        assert_eq!(host.say(&mut experts, TOKENS), local);
        assert!(begun.elapsed() < PATIENCE, "{:#?}", swarm.statistics());
    }
    let back = swarm.statistics();
    assert!(back.answers_checked >= 1 && back.answers_wrong == 0, "it was tried: {back:#?}");
    assert_eq!(host.say(&mut experts, TOKENS), local);
    assert!(swarm.statistics().accepted > back.accepted, "it is asked again");
}
