//! A lie in service, from the answer to the ledger, with the programs that people run: the backbone's file, an auditor's statement,
//! the treasury's measure that rests on it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use kvasir_operate::choices::DeviceChoice;
use kvasir_operate::demo::network::{NETWORK, Network, NetworkOptions};
use kvasir_operate::demo::report::Steps;
use kvasir_operate::key_file;
use kvasir_operate::process::{answer, report};
use kvasir_operate::remote::PlacementChoice;
use kvasir_tests::swarm_scene::PATIENCE;
use kvasir_tests::{build_programs, program, root};
use serde_json::{Value, json};
use tempfile::TempDir;

const TOKENS: usize = 4;

fn model() -> PathBuf {
    root().join("models/atlas/atlas-q4_k_m.gguf")
}

/// A worker that is found lying has ten seconds to sign its last receipt; on a machine that is busier than that there is no evidence
/// against it, and the lie is told again in another network.
const TRIES: usize = 3;

/// The one file of a folder, if there is any.
fn only_file(folder: &Path) -> Option<PathBuf> {
    let mut files = fs::read_dir(folder).ok()?.map(|entry| entry.unwrap().path());
    let file = files.next()?;
    assert_eq!(files.next(), None, "and no other");
    Some(file)
}

/// A network in whose service a lie was found, and the backbone's file of evidence.
fn found_lying() -> Option<(TempDir, Network, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let mut network = Network::start(
        &NetworkOptions {
            folder: folder.path().to_path_buf(),
            model: model(),
            workers: 1,
            round_trip: None,
            flip_bit: true,
            device: DeviceChoice::Cpu,
            listen: None,
        },
        &Steps::new(true),
    )
    .unwrap();
    network.check_as_usual();
    let prompts = ["The capital of France is".to_owned()];
    let local = network.run_local(&prompts, TOKENS).unwrap();
    let remote = network.run_remote(&prompts, TOKENS, "all", PlacementChoice::Layers).unwrap();
    assert_eq!(remote.answers[0].text, local.answers[0].text, "the lie changed nothing");
    let evidence = only_file(&folder.path().join("data/evidence"));
    if evidence.is_none() {
        eprintln!("no last receipt in time");
    }
    Some((folder, network, evidence?))
}

#[test]
fn a_lie_that_is_found_in_service_becomes_an_entry_of_the_ledger() {
    build_programs();
    let found = (0..TRIES).find_map(|_| found_lying());
    let (folder, network, evidence) = found.expect("a last receipt in time, in one of several networks");
    let at = |name: &str| folder.path().join(name);

    // The backbone's file says by itself that all of it is signed.
    let ledger = network.ledger_url();
    let kvasir_ledger = || {
        let mut command = Command::new(program("kvasir-ledger"));
        command.arg("--json");
        command
    };
    let proven = kvasir_ledger().arg("convict").arg(&evidence).output().unwrap();
    let said = String::from_utf8_lossy(&proven.stderr);
    assert_eq!(proven.status.code(), Some(3), "{said}");
    assert!(said.contains("compute the call again"), "{said}");

    // An auditor computes it again and states it, once the receipt is published.
    key_file::create(&at("keys/auditor.key")).unwrap();
    let audit = || {
        let mut command = Command::new(program("kvasir"));
        command.args(["--json", "--home"]).arg(folder.path()).args(["audit", &ledger, "--log-key"]);
        command.arg(at("ledger/log.vkey")).arg("--evidence-file").arg(&evidence).arg("--model").arg(model());
        command.arg("--sign-key").arg(at("keys/auditor.key")).arg("--statements").arg(at("found"));
        answer(&mut command).unwrap()
    };
    let begun = Instant::now();
    let told: Value = loop {
        let (_, told) = audit();
        if !told["convicted"].is_null() {
            break told;
        }
        assert!(begun.elapsed() < PATIENCE, "no verdict: {told}");
        thread::sleep(Duration::from_millis(500));
    };
    assert_eq!(
        (&told["convicted"], &told["items"][0]["verdict"]),
        (&json!(true), &json!("convicted")),
        "{told}"
    );
    assert_eq!(
        told["items"][0]["statement"],
        only_file(&at("found")).unwrap().display().to_string(),
        "{told}"
    );

    // The ledger takes the statement, and a measure against the worker that rests on it.
    let entry = report(
        kvasir_ledger().arg("submit").arg(only_file(&at("found")).unwrap()).args(["--ledger", &ledger]),
    )
    .unwrap();
    assert_eq!((&entry["kind"], &entry["repeated"]), (&json!("audit"), &json!(false)), "{entry}");
    let measure = report(
        kvasir_ledger()
            .args(["penalty", "--network", NETWORK, "--ledger", &ledger, "--treasury-key"])
            .arg(at("keys/treasury.key"))
            .args(["--worker", told["worker"].as_str().unwrap(), "--measure", "excluded"])
            .args(["--evidence", entry["leaf"].as_str().unwrap(), "--reason", "a wrong answer in service"]),
    )
    .unwrap();
    assert_eq!(measure["kind"], "penalty", "{measure}");
    network.stop();
}
