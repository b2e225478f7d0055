//! Kernels in confined processes: the same bits, the walls, and what becomes of a process that is killed.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_dispatch::Placement;
use kvasir_experts::{
    ExpertRunner, Isolation, KernelError, KernelOptions, LocalExperts, RunnerError, RunnerOptions,
};
use kvasir_tests::swarm_scene::*;
use kvasir_tests::{isolation, program};
use kvasir_worker::Event;

/// More lanes than threads, and not a divisor of the model's experts.
const LANES: NonZeroUsize = NonZeroUsize::new(3).unwrap();
const TOKENS: usize = 4;

fn confined(options: KernelOptions) -> Result<ExpertRunner, RunnerError> {
    let isolation = Isolation::Process(options);
    ExpertRunner::new(plugin(), RunnerOptions { instances: LANES, isolation, ..RunnerOptions::default() })
}

fn signal(process: u32, signal: &str) {
    let status = Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
    assert!(status.success());
}

fn kill(process: u32) {
    signal(process, "-9");
}

/// A little call is computed on the thread that received it, here the runtime's only one, which another has to relieve.
#[test]
fn a_worker_whose_kernel_stands_still_answers_pings_meanwhile() {
    /// Longer than the hub waits for a sign of life, shorter than a call may take.
    const STILL: Duration = Duration::from_secs(6);
    let host = Host::new(tiny());
    let exact = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::with(|hub| {
        (hub.link.ping_after, hub.link.dead_after) = (Duration::from_millis(200), Duration::from_secs(2));
    });
    let mut options = scene.worker_options(30);
    options.isolation = Isolation::Process(isolation::process());
    let worker = RunningWorker::start(options);
    let process = worker.log.wait_for(|event| match event {
        Event::Confined { process, .. } => *process,
        _ => None,
    });
    let mut options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    options.deadlines = NO_HURRY;
    let swarm = join(&host, options);
    // Whatever is said for the first time may come while experts are being loaded.
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), exact);
    signal(process, "-STOP");
    let goes_on = std::thread::spawn(move || {
        std::thread::sleep(STILL);
        signal(process, "-CONT");
    });
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), exact);
    goes_on.join().unwrap();
    assert!(!worker.log.events().iter().any(|event| matches!(event, Event::Reconnecting { .. })));
    let statistics = swarm.finish();
    assert_eq!((statistics.links_lost, statistics.failovers), (0, 0), "{statistics:#?}");
    worker.stop().unwrap();
}

#[test]
fn a_confined_kernel_gives_the_same_tokens_and_logits() {
    let host = Host::new(tiny());
    let exact = host.say(host.local().as_mut(), TOKENS);
    let runner = Arc::new(confined(isolation::process()).unwrap());
    let walls = runner.walls().unwrap();
    assert!(walls.no_new_privileges && walls.seccomp, "{walls}");
    assert_ne!(runner.process_id(), Some(std::process::id()));
    let mut experts = LocalExperts::new(Arc::clone(&host.model), Arc::clone(&runner));
    assert_eq!(host.say(&mut experts, TOKENS), exact);
    assert!(runner.held_bytes() > 0);
}

#[test]
fn a_worker_whose_kernel_is_confined_gives_the_same_tokens_and_survives_its_process() {
    let host = Host::new(tiny());
    let exact = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let mut options = scene.worker_options(30);
    let backoff = Duration::from_millis(50);
    options.isolation = Isolation::Process(KernelOptions { backoff, ..isolation::process() });
    let worker = RunningWorker::start(options);
    let process = worker.log.wait_for(|event| match event {
        Event::Confined { process, seccomp: true, memory_limit: true, .. } => *process,
        _ => None,
    });
    let mut options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    options.deadlines = NO_HURRY;
    let swarm = join(&host, options);
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), exact);
    let before = swarm.statistics().accepted;
    assert!(before > 0);
    assert_eq!(swarm.statistics().failovers, 0);
    // Between two calls: the next one fails at once, is computed elsewhere, and the experts come back.
    kill(process);
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), exact);
    worker.log.wait_for(|event| matches!(event, Event::Lost { .. }).then_some(()));
    let begun = Instant::now();
    while swarm.statistics().accepted <= before {
        assert!(begun.elapsed() < PATIENCE, "{:#?}", worker.log.events());
        assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), exact);
    }
    assert_eq!(swarm.finish().links_lost, 0, "the worker lives");
    worker.stop().unwrap();
}

#[test]
fn a_process_that_is_killed_costs_its_experts_and_too_many_are_the_plugins_end() {
    let host = Host::new(tiny());
    let backoff = Duration::from_millis(20);
    let runner = Arc::new(confined(KernelOptions { backoff, ..isolation::process() }).unwrap());
    let mut experts = LocalExperts::new(Arc::clone(&host.model), Arc::clone(&runner));
    let exact = host.say(&mut experts, 1);
    for turn in 1..=3 {
        let first = runner.process_id().unwrap();
        kill(first);
        let layer = kvasir_experts::LayerIndex(0);
        let begun = Instant::now();
        while (0..8).any(|expert| runner.holds(layer, kvasir_experts::ExpertIndex(expert))) {
            assert!(begun.elapsed() < PATIENCE);
        }
        // Nobody asked it anything when it was killed, so nothing failed; a call that finds it dead does.
        if turn < 3 {
            assert_eq!(host.say(&mut experts, 1), exact);
            assert_ne!(runner.process_id().unwrap(), first);
        }
    }
}

#[test]
fn what_a_confined_process_must_not_do_it_cannot() {
    let output = Command::new(program("kvasir-kernel")).arg("probe").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let object: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(output.status.success(), "{text}");
    let refused = object["refused"].as_object().unwrap();
    assert!(refused.len() >= 20 && refused.values().all(|refused| refused == true), "{text}");
    assert_eq!((&object["seccomp"], &object["no_new_privileges"]), (&true.into(), &true.into()));
    if object["landlock"] == 0 {
        kvasir_tests::skipped("no landlock", "seccomp alone stands around a kernel's process");
    }
}

#[test]
fn without_the_program_there_is_a_sentence() {
    let options =
        KernelOptions { program: Some("/nowhere/kvasir-kernel".into()), ..KernelOptions::default() };
    match confined(options) {
        Err(RunnerError::Process(KernelError::Start { program, .. })) => {
            assert_eq!(program.to_str(), Some("/nowhere/kvasir-kernel"));
        }
        other => panic!("{:?}", other.err()),
    }
}
