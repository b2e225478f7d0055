//! A worker's process that dies or stands still in the middle of a text: time is lost, no token, no bit, no credit.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::process::Command;
use std::thread;
use std::time::Duration;

use kvasir_operate::choices::DeviceChoice;
use kvasir_operate::demo::generation::Generation;
use kvasir_operate::demo::network::{Network, NetworkOptions};
use kvasir_operate::demo::report::Steps;
use kvasir_operate::process::Server;
use kvasir_operate::remote::PlacementChoice;
use kvasir_tests::{build_programs, root};

const WORKERS: usize = 2;
/// Generated for every prompt: far more calls than the worker serves before it is lost.
const TOKENS: usize = 24;
/// So many calls the worker serves, with the prompt read and some tokens written.
const SERVED: usize = 20;
/// The price of a byte, in nanoKVR.
const NANOKVR_PER_BYTE: u64 = 7;
/// Between workers and edge, so that the text takes much longer than a signal to arrive.
const ROUND_TRIP: Duration = Duration::from_millis(8);
/// Many round trips, and less than any deadline: after this the next call is on its way.
const UNDER_WAY_WITHIN: Duration = Duration::from_millis(150);
/// How long the worker may take from one call to the next: the backbone joins, and two prompts are read.
const NEXT_CALL_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn a_worker_that_is_killed_costs_no_token_and_earns_no_more_than_its_receipts() {
    lose_a_worker(None, |victim| {
        // Stopped first, so that a call is under way to it when it dies, and not by chance between two.
        send("STOP", victim);
        thread::sleep(UNDER_WAY_WITHIN);
        send("KILL", victim);
    });
}

#[test]
fn a_worker_that_stands_still_costs_its_deadline_and_no_token() {
    lose_a_worker(Some(Duration::from_millis(400)), |victim| send("STOP", victim));
}

/// The same prompts by local experts and by two workers, one of which `strike` hits in the middle.
fn lose_a_worker(deadline: Option<Duration>, strike: fn(&Server)) {
    build_programs();
    let folder = tempfile::tempdir().unwrap();
    let mut network = Network::start(
        &NetworkOptions {
            folder: folder.path().to_path_buf(),
            model: root().join("models/atlas/atlas-q4_k_m.gguf"),
            workers: WORKERS,
            round_trip: Some(ROUND_TRIP),
            flip_bit: false,
            device: DeviceChoice::Cpu,
            listen: None,
        },
        &Steps::new(true),
    )
    .unwrap();
    if let Some(deadline) = deadline {
        network.set_deadline(deadline);
    }
    let prompts = ["The capital of France is", "Die Hauptstadt von Norwegen ist"].map(str::to_owned);
    let local = network.run_local(&prompts, TOKENS).unwrap();

    let mut victim = network.give_away_worker(1).unwrap();
    let hand = thread::spawn(move || {
        for _ in 0..SERVED {
            victim.event("call_served", NEXT_CALL_WITHIN).unwrap();
        }
        strike(&victim);
        // Kept: dropping the handle would kill a process that only stands still.
        victim
    });
    let remote = network.run_remote(&prompts, TOKENS, "all", PlacementChoice::Experts).unwrap();
    let victim = hand.join().unwrap();

    assert_eq!(bits(&remote), bits(&local), "logits");
    assert_eq!(tokens(&remote), tokens(&local), "tokens");
    assert!(local.logits.len() >= 2 * local.vocabulary, "both prompts were answered");
    assert!(remote.remote_calls > SERVED as u64, "{} calls were answered remotely", remote.remote_calls);
    assert!(remote.recomputed_calls > 0, "a call was under way to the lost worker");

    // Each wallet has what its receipts say. The lost worker has countersigned nothing since, so calls that it served
    // after its last receipt stay unpaid; the other's final receipt is there.
    let account = network.settled(&remote).unwrap();
    assert_eq!(account.wallets.len(), WORKERS);
    for wallet in &account.wallets {
        assert_eq!(wallet.nanokvr, NANOKVR_PER_BYTE * wallet.bytes, "{account:?}");
    }
    assert_eq!(account.credited_nanokvr, NANOKVR_PER_BYTE * account.metered_bytes, "{account:?}");
    assert!(account.wallets[0].bytes > account.wallets[1].bytes, "{account:?}");
    drop(victim);
    network.stop();
}

fn send(signal: &str, process: &Server) {
    let status = Command::new("kill").args(["-s", signal, &process.id().to_string()]).status().unwrap();
    assert!(status.success(), "kill -s {signal}");
}

fn bits(generation: &Generation) -> Vec<u32> {
    generation.logits.iter().map(|logit| logit.to_bits()).collect()
}

fn tokens(generation: &Generation) -> Vec<&[u64]> {
    generation.answers.iter().map(|answer| answer.tokens.as_slice()).collect()
}
