//! Experts of workers that leave: who stays takes them over, within its room, and no bit changes.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use kvasir_dispatch::{Placement, Swarm, SwarmOptions, WorkerStatistics};
use kvasir_model::{ExpertIndex, LayerIndex};
use kvasir_tests::swarm_scene::*;

const TOKENS: usize = 6;

/// All layers are remote, nobody is late by chance, and a place is empty for a moment only before it is taken over.
fn options_of(scene: &Scene, host: &Host, workers: usize, placement: Placement) -> SwarmOptions {
    let mut options = scene.swarm_options(workers, placement, &all_layers(&host.model));
    options.deadlines = NO_HURRY;
    options.heirs_after = Duration::from_millis(50);
    options
}

/// What the session of a worker says that stands, if one does.
fn standing(swarm: &Swarm, seed: u8) -> Option<WorkerStatistics> {
    let name = key(seed).public().to_string();
    swarm.statistics().workers.into_iter().find(|worker| worker.worker == name && worker.connected)
}

fn experts_of(swarm: &Swarm, seed: u8) -> usize {
    standing(swarm, seed).map_or(0, |worker| worker.experts)
}

#[test]
fn who_stays_takes_over_what_nobody_holds_and_who_comes_back_is_asked_first() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    for placement in [Placement::WholeLayers, Placement::Experts] {
        let scene = Scene::new();
        let leaving = scene.worker(30);
        let _staying = scene.worker(31);
        let swarm = join(&host, options_of(&scene, &host, 2, placement));
        assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local);
        let (left, own) = (standing(&swarm, 30).unwrap(), standing(&swarm, 31).unwrap());
        let (experts, bytes) = (left.experts + own.experts, left.expert_bytes + own.expert_bytes);
        leaving.stop().unwrap();
        eventually("the one that stays holds everything", || {
            standing(&swarm, 31).is_some_and(|now| now.experts == experts && now.expert_bytes >= bytes)
        });
        assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local, "{placement:?}");

        let _back = scene.worker(30);
        eventually("it holds its own again", || experts_of(&swarm, 30) == left.experts);
        let before = standing(&swarm, 31).unwrap();
        assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local, "{placement:?}");
        let (back, now) = (standing(&swarm, 30).unwrap(), standing(&swarm, 31).unwrap());
        assert!(back.accepted > 0, "{placement:?}");
        if placement == Placement::WholeLayers {
            assert_eq!(back.accepted, now.accepted - before.accepted, "each computes its own layers");
        }
        assert_eq!((now.experts, now.expert_bytes), (experts, bytes), "{placement:?}: nothing is sent twice");
        let statistics = swarm.finish();
        assert_eq!((statistics.failovers, statistics.local_calls), (0, 0), "{placement:?}: {statistics:#?}");
    }
}

#[test]
fn what_an_heir_had_taken_over_is_taken_over_from_it() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let all = host.model.config().layers as usize * host.model.config().experts as usize;
    let scene = Scene::new();
    let (first, second, _staying) = (scene.worker(30), scene.worker(31), scene.worker(32));
    let swarm = join(&host, options_of(&scene, &host, 3, Placement::Experts));
    first.stop().unwrap();
    eventually("two hold everything", || experts_of(&swarm, 31) + experts_of(&swarm, 32) == all);
    second.stop().unwrap();
    eventually("one holds everything", || experts_of(&swarm, 32) == all);
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local);
    let statistics = swarm.finish();
    assert_eq!((statistics.failovers, statistics.local_calls), (0, 0), "{statistics:#?}");
}

#[test]
fn who_stays_takes_over_whole_layers_and_no_more_than_it_has_room_for() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let experts = host.model.config().experts as usize;
    let blob = host.model.expert(LayerIndex(0), ExpertIndex(0)).unwrap().blob_bytes() as u64;
    let scene = Scene::new();
    let leaving = scene.worker(30);
    let mut options = scene.worker_options(31);
    // Of four layers it has two, and room for one more and a half.
    options.store_bytes = blob * experts as u64 * 7 / 2;
    let _staying = RunningWorker::start(options);
    let swarm = join(&host, options_of(&scene, &host, 2, Placement::WholeLayers));
    assert_eq!(experts_of(&swarm, 31), 2 * experts);
    leaving.stop().unwrap();
    eventually("it holds one layer more", || experts_of(&swarm, 31) == 3 * experts);
    let before = swarm.statistics();
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local);
    let after = swarm.finish();
    assert_eq!(after.local_calls - before.local_calls, TOKENS as u64, "one layer stays here");
    let worker = after.workers.iter().find(|worker| worker.worker == key(31).public().to_string()).unwrap();
    assert_eq!((worker.experts, after.failovers), (3 * experts, 0), "{after:#?}");
}
