//! A worker that is honest for a thousand answers and lies in every one after them: how long it goes unnoticed at which rate of
//! checks, measured beside what is computed; and with every answer checked, not for one.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use kvasir_dispatch::{Placement, Statistics, Verify, WorkerState, WorkerStatistics};
use kvasir_tests::swarm_scene::*;
use kvasir_worker::Fault;

/// Answers before it turns.
const HONEST: u64 = 1000;
/// Tokens of a text.
const TOKENS: usize = 32;
/// Of so many answers one is checked.
const RATES: [u64; 4] = [4, 16, 64, 256];
/// Workers that turn, at each rate.
const TURNCOATS: usize = 25;

/// The one that lied.
fn liar(statistics: &Statistics) -> &WorkerStatistics {
    statistics.workers.iter().find(|worker| worker.wrong > 0).unwrap()
}

/// Answers from the first lie to the one that is found, both included, of a worker that turns after `honest`.
fn delay(host: &Host, honest: u64, verify: Verify) -> u64 {
    let scene = Scene::new();
    let _turncoat = scene.worker_with_fault(30, Fault::TurnAfter { results: honest });
    let mut options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    options.verify = verify;
    // An answer that comes too late would be one more of the worker's, and none of this side's.
    options.deadlines = NO_HURRY;
    let swarm = join(host, options);
    let mut experts = swarm.experts(host.local());
    while swarm.statistics().answers_wrong == 0 {
        host.say(&mut experts, TOKENS);
        let unnoticed = swarm.statistics().accepted.saturating_sub(honest);
        assert!(unnoticed < 100 * verify.one_in.max(1), "{unnoticed} lies went unnoticed");
    }
    drop(experts);
    let statistics = swarm.finish();
    let liar = liar(&statistics);
    assert_eq!((liar.wrong, liar.state), (1, WorkerState::Quarantined), "{statistics:#?}");
    // Those that were used, and the one that was not.
    liar.accepted - honest + 1
}

#[test]
fn a_worker_that_turns_lies_until_its_first_check() {
    let host = Host::new(tiny());
    assert_eq!(delay(&host, 7, Verify { first: 8, one_in: 0 }), 1);
    assert_eq!(delay(&host, 7, Verify { first: 0, one_in: 1 }), 1);
    assert!(delay(&host, 7, Verify { first: 0, one_in: 2 }) >= 1);
}

/// The table; takes minutes. `cargo test -p kvasir-tests --test swarm_turncoat -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes"]
fn how_long_a_turncoat_goes_unnoticed_at_which_rate_of_checks() {
    let host = Host::new(tiny());
    println!("| checked | measured: mean answers | median | most | computed: mean | 99 in 100 within |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for one_in in RATES {
        let verify = Verify { first: 256, one_in };
        let mut delays: Vec<u64> = (0..TURNCOATS).map(|_| delay(&host, HONEST, verify)).collect();
        delays.sort_unstable();
        let mean = delays.iter().sum::<u64>() as f64 / TURNCOATS as f64;
        // The first of independent draws that succeeds: geometric.
        let (expected, share) = (one_in as f64, 1.0 / one_in as f64);
        let nearly_all = (0.01f64.ln() / (1.0 - share).ln()).ceil();
        println!(
            "| 1 in {one_in} | {mean:.1} | {} | {} | {expected:.0} | {nearly_all:.0} |",
            delays[TURNCOATS / 2],
            delays[TURNCOATS - 1]
        );
        let spread = (1.0 - share).sqrt() / share / (TURNCOATS as f64).sqrt();
        assert!(
            (mean - expected).abs() < 5.0 * spread,
            "{mean} is not {expected} within {spread}: {delays:?}"
        );
    }
}

/// A hundred texts of the demo model over five workers, one of which lies from an answer on; every expert is held by two. All tokens
/// and logits are those of this machine alone, and the liar is named.
fn generations(honest: u64, verify: Verify) -> Statistics {
    let host = Host::new(atlas());
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let _turncoat = scene.worker_with_fault(30, Fault::TurnAfter { results: honest });
    let _honest: Vec<RunningWorker> = (31..35).map(|seed| scene.worker(seed)).collect();
    let mut options = scene.swarm_options(5, Placement::Experts, &all_layers(&host.model));
    options.copies = 1;
    options.verify = verify;
    let swarm = join(&host, options);
    let mut experts = swarm.experts(host.local());
    for generation in 0..100 {
        assert_eq!(host.say(&mut experts, TOKENS), local, "generation {generation}");
    }
    drop(experts);
    let statistics = swarm.finish();
    let liar = liar(&statistics);
    println!("3200 of 3200 tokens; {} answers of the worker that lies were used", liar.accepted);
    assert_eq!(liar.worker, key(30).public().to_string());
    assert_eq!(liar.state, WorkerState::Quarantined);
    assert!(liar.accepted <= honest, "{statistics:#?}");
    statistics
}

/// `cargo test -p kvasir-tests --test swarm_turncoat -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes"]
fn with_every_answer_checked_a_turncoat_changes_no_token() {
    generations(HONEST, Verify::ALL);
}

/// The same with the usual checks: the first answers of each worker are among them.
#[test]
#[ignore = "takes minutes"]
fn a_worker_that_lies_from_its_first_call_changes_no_token_and_is_not_paid() {
    let statistics = generations(0, Verify::USUAL);
    assert_eq!(liar(&statistics).receipted_nano_kvr, 0, "{statistics:#?}");
}
