//! Workers on a GPU in a swarm: the same tokens, sessions of class tolerance, and what becomes of a signed shader that runs away.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_dispatch::{Placement, Statistics, Swarm};
use kvasir_experts::{
    Deadlines, Device, ExpertRunner, FailureHistory, GpuError, GpuOptions, LocalExperts, RunnerError,
    RunnerOptions, VerifiedPlugin,
};
use kvasir_operate::quarantine::{self, FailureFiles};
use kvasir_operate::settings::Settings;
use kvasir_tests::gpu::gpu;
use kvasir_tests::released_plugin;
use kvasir_tests::swarm_scene::*;
use kvasir_wire::handshake::Class;
use kvasir_wire::id::PluginDigest;
use kvasir_wire::ticket::Role;
use kvasir_worker::{Event, Worker, WorkerError, WorkerOptions};

/// Grants a call of the GPU: far less than the runaway takes on any machine, where each of its workgroups is a second's work and no
/// machine can divide one. An honest call may exceed it on a busy machine; this plugin makes none after its proof.
const CALL: Duration = Duration::from_millis(50);

#[test]
fn a_worker_on_the_gpu_gives_eight_of_eight_tokens_in_a_session_of_class_tolerance() {
    let Some(options) = gpu() else { return };
    let scene = Scene::new();
    let host = Host::new(tiny());
    let worker =
        RunningWorker::start(WorkerOptions { device: Device::Gpu(options), ..scene.worker_options(30) });
    let (class, device) = worker.log.wait_for(|event| match event {
        Event::Proven { class, device, .. } => Some((*class, device.clone())),
        _ => None,
    });
    assert_eq!(class, "tolerance");
    assert!(device.is_some_and(|device| !device.is_empty()));
    let mut options = scene.swarm_options(1, Placement::default(), &all_layers(&host.model));
    options.accepts = Class::Tolerance;
    options.deadlines = kvasir_dispatch::Deadlines { floor: PATIENCE, ceiling: PATIENCE };
    let swarm = join(&host, options);
    let mut experts = swarm.experts(host.local());
    let remote = host.say(&mut experts, 8);
    drop(experts);
    let statistics = swarm.finish();
    assert_eq!(remote.tokens, host.say(host.local().as_mut(), 8).tokens);
    assert_eq!((statistics.workers[0].class, statistics.failovers), ("tolerance", 0), "{statistics:?}");
    assert!(statistics.accepted > 0);
    let receipts = scene.ledger.last_receipts();
    assert_eq!(receipts.len(), 1);
    assert!(receipts.values().all(|receipt| receipt.terms.class == Class::Tolerance && receipt.is_final));
    worker.stop().unwrap();
}

#[test]
fn a_runaway_shader_costs_no_token_and_no_other_session_and_its_quarantine_survives_a_restart() {
    let Some(options) = gpu() else { return };
    let home = tempfile::tempdir().unwrap();
    let settings = Settings::load(None, Some(home.path())).unwrap();
    let device = || {
        Device::Gpu(GpuOptions {
            deadlines: Deadlines { call: CALL, ..Deadlines::default() },
            backoff: Duration::from_millis(100),
            history: Arc::new(FailureFiles::open(&settings).unwrap()),
            ..options.clone()
        })
    };
    let scene = Scene::new();
    let model = tiny();
    // Correctly signed, and honest on every golden vector, on both devices.
    let plugin = runaway_plugin();
    let runner = Arc::new(ExpertRunner::new(&plugin, RunnerOptions::default()).unwrap());
    let host = Host { runner, ..Host::new(model) };
    let local = || LocalExperts::new(Arc::clone(&host.model), Arc::clone(&host.runner));
    let exact = host.say(&mut local(), 4);

    let worker_options = |seed, device| {
        let key = key(seed);
        let ticket = scene.ticket(Role::Worker, key.public(), &plugin);
        let mut options = WorkerOptions::new(scene.address.clone(), ticket, key, plugin.clone());
        options.threads = std::num::NonZeroUsize::new(1);
        options.device = device;
        options
    };
    let victim = RunningWorker::start(worker_options(30, device()));
    let neighbour = RunningWorker::start(worker_options(31, Device::Cpu));

    let mut swarm_options = scene.swarm_options(2, Placement::Experts, &all_layers(&host.model));
    swarm_options.ticket = scene.ticket(Role::Backbone, swarm_options.key.public(), &plugin);
    swarm_options.plugins = vec![PluginDigest(plugin.digest().0)];
    swarm_options.accepts = Class::Tolerance;
    let swarm = Swarm::join(Arc::clone(&host.model), swarm_options).unwrap();
    swarm.wait_for_workers(2, PATIENCE).unwrap();

    let begun = Instant::now();
    let gives_up = |events: &[Event]| events.iter().any(|event| matches!(event, Event::Quarantined { .. }));
    while !gives_up(&victim.log.events()) {
        assert!(begun.elapsed() < 3 * PATIENCE, "{:?}", victim.log.events());
        let mut experts = swarm.experts(Box::new(local()));
        assert!(host.say(&mut experts, 4) == exact, "every bit: the runaway answers nothing");
    }
    // Its session ended in order, with a receipt that all three signed; then it had nothing left to compute with.
    victim.log.wait_for(|event| matches!(event, Event::Drained).then_some(()));
    let events = victim.log.events();
    let lost: Vec<_> = events.iter().filter(|event| matches!(event, Event::Lost { .. })).collect();
    assert_eq!(lost.len(), 3, "{events:?}");
    assert!(lost.iter().all(|event| format!("{event:?}").contains("killed")), "{lost:?}");
    match victim.join() {
        Err(WorkerError::Quarantined { plugin: given_up }) => assert_eq!(given_up.0, plugin.digest().0),
        other => panic!("{other:?}"),
    }
    // The neighbour goes on alone.
    let before = accepted_by(&swarm.statistics(), 31);
    let mut experts = swarm.experts(Box::new(local()));
    assert_eq!(host.say(&mut experts, 4), exact);
    drop(experts);
    let statistics = swarm.finish();
    let worker = |seed| {
        let name = key(seed).public().to_string();
        statistics.workers.iter().filter(|worker| worker.worker == name).cloned().collect::<Vec<_>>()
    };
    let (of_victim, of_neighbour) = (worker(30), worker(31));
    assert_eq!((of_victim.len(), of_neighbour.len()), (1, 1), "one session each: {statistics:?}");
    assert_eq!((of_victim[0].class, of_neighbour[0].class), ("tolerance", "exact"));
    let told = of_victim[0].last_failure.as_deref().unwrap();
    assert!(told.contains("killed"), "{told}");
    assert_eq!((of_victim[0].accepted, of_neighbour[0].last_failure.as_deref()), (0, None));
    assert!(of_neighbour[0].accepted > before, "{statistics:?}");
    assert!(!neighbour.log.events().iter().any(|event| matches!(event, Event::Lost { .. })));
    neighbour.stop().unwrap();

    // After a restart: other objects over the same files.
    match Worker::new(worker_options(30, device())) {
        Err(WorkerError::Plugin {
            source: RunnerError::Gpu(GpuError::Quarantined { failures, .. }), ..
        }) => {
            assert_eq!(failures, 3);
        }
        other => panic!("{:?}", other.err()),
    }
    assert!(Worker::new(worker_options(32, Device::Cpu)).is_ok(), "the CPU is no matter of the quarantine");
    quarantine::command(&settings, Some(&plugin.digest().to_string()), true).unwrap();
    assert_eq!(FailureFiles::open(&settings).unwrap().failures(plugin.digest()), 0);
    assert!(Worker::new(worker_options(30, device())).is_ok(), "lifted");
}

fn accepted_by(statistics: &Statistics, seed: u8) -> u64 {
    let name = key(seed).public().to_string();
    statistics.workers.iter().filter(|worker| worker.worker == name).map(|worker| worker.accepted).sum()
}

/// The released plugin with a shader that runs away on the tiny model's gate matrices and on no other.
fn runaway_plugin() -> VerifiedPlugin {
    let mut contents = released_plugin::contents();
    let (_, source) = contents.shaders.iter_mut().next().unwrap();
    let mut text = String::from_utf8(std::mem::take(source)).unwrap();
    // Divisions of integers: short to compile and, having no vector instructions, long to run.
    let turns = "        x = (x * 1664525u + 1013904223u) / (x.yzwx | vec4<u32>(3u)) + x.zwxy % (x.wxyz | vec4<u32>(5u));\n".repeat(32);
    text.push_str(&format!(
        "\nfn runaway(job: Job, seed: u32) -> f32 {{
    var x = vec4<u32>(seed, 5u, 15u, 25u);
    if job.outputs == 32u && job.columns == 64u {{
      for (var turn = 0u; turn < 65535u; turn++) {{\n{turns}      }}
    }}
    return select(0.0, 1.0, x.x == 12345u);
}}\n"
    ));
    for (entry, honest, hostile) in [
        ("fn q8_0_one_row", "var sum = 0.0;", "var sum = runaway(job, output);"),
        ("fn q8_0_many_rows", "var sum = vec4<f32>();", "var sum = vec4<f32>(runaway(job, output));"),
    ] {
        let entry = text.find(entry).unwrap();
        let at = entry + text[entry..].find(honest).unwrap();
        text.replace_range(at..at + honest.len(), hostile);
    }
    *source = text.into_bytes();
    sign(&contents, 8)
}
