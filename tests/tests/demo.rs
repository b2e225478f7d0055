//! The demo as a user runs it: all programs as processes, real TLS on loopback, the report read as JSON.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::process::{Command, Output};

use kvasir_tests::program;
use serde_json::Value;

fn demo(arguments: &[&str]) -> (Output, Value) {
    let output = Command::new(program("kvasir"))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .args(["--json", "demo"])
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error} in {text:?}: {}", String::from_utf8_lossy(&output.stderr)));
    (output, value)
}

#[test]
fn remote_experts_give_the_same_tokens_and_logits_and_are_credited_exactly() {
    let (output, report) = demo(&[]);
    assert!(output.status.success(), "{report}");
    assert_eq!(report["identical_tokens"], true, "{report}");
    assert_eq!(report["identical_logits"], true, "{report}");
    assert_eq!(report["cosine"], 1.0, "{report}");
    assert!(report["texts"]["local"].as_str().unwrap().starts_with(" Paris."), "{report}");
    assert_eq!(report["texts"]["local"], report["texts"]["remote"]);
    assert!(report["remote_calls"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["recomputed_calls"], 0, "{report}");
    let metered = report["metered_bytes"].as_u64().unwrap();
    assert!(metered > 0);
    assert_eq!(report["credited_nanokvr"].as_u64().unwrap(), 7 * metered, "{report}");
    let wallets = report["wallets"].as_array().unwrap();
    assert_eq!(wallets.len(), 2);
    for wallet in wallets {
        assert_eq!(wallet["nanokvr"].as_u64().unwrap(), 7 * wallet["bytes"].as_u64().unwrap(), "{report}");
        assert!(wallet["bytes"].as_u64().unwrap() > 0, "both workers served something: {report}");
    }
    assert_eq!(report["round_trips_per_token"], 4.0, "one a layer: {report}");
    let audit = &report["audit"];
    assert_eq!((&audit["drawn"], &audit["right"]), (&24.into(), &24.into()), "{report}");
    assert!(audit["records"].as_u64() == report["remote_calls"].as_u64(), "{report}");
}

#[test]
fn experts_dealt_one_by_one_give_the_same_bits_too() {
    let (output, report) =
        demo(&["--placement", "experts", "--remote-layers", "0,2-3", "--workers", "3", "--tokens", "4"]);
    assert!(output.status.success(), "{report}");
    assert_eq!(report["identical_logits"], true, "{report}");
    assert_eq!(report["round_trips_per_token"], 3.0, "{report}");
}

#[test]
fn one_flipped_bit_of_one_result_is_reported() {
    let (output, report) = demo(&["--flip-bit"]);
    assert!(output.status.success(), "the control succeeds where the difference is noticed: {report}");
    assert_eq!(report["identical_logits"], false, "{report}");
    assert!(report["cosine"].as_f64().unwrap() < 1.0, "{report}");
    assert!(report["first_difference"]["position"].is_u64(), "{report}");
    assert_eq!(report["control"], "flip-bit");
    // The audit finds that one call among all of them, and says which bits.
    let audit = &report["audit"];
    let [records, drawn, right, convicted] =
        ["records", "drawn", "right", "convicted"].map(|name| audit[name].as_u64().unwrap());
    assert_eq!((drawn, right, convicted), (records, records - 1, 1), "{report}");
    assert!(audit["first_finding"].as_str().unwrap().starts_with("1 values differ, first row "), "{report}");
}

#[test]
fn workers_on_the_gpu_give_the_same_tokens_in_sessions_of_class_tolerance() {
    if kvasir_tests::gpu::gpu().is_none() {
        return;
    }
    let (output, report) =
        demo(&["--device", "gpu", "--workers", "1", "--tokens", "8", "--prompt", "The capital of France is"]);
    assert!(output.status.success(), "{report}");
    assert_eq!((&report["equal_tokens"], &report["tokens_compared"]), (&8.into(), &8.into()), "{report}");
    assert_eq!(report["classes"], serde_json::json!(["tolerance"]), "{report}");
    let kernel = &report["kernels"][0];
    assert_eq!(kernel["class"], "tolerance");
    assert!(kernel["device"].as_str().is_some_and(|device| !device.is_empty()), "{report}");
    assert!(report["cosine"].as_f64().unwrap() >= 0.999, "{report}");
    assert!(report["remote_calls"].as_u64().unwrap() > 0, "{report}");
    let metered = report["metered_bytes"].as_u64().unwrap();
    assert_eq!(report["credited_nanokvr"].as_u64().unwrap(), 7 * metered, "{report}");
    println!("{} on {}: cosine {}", report["texts"]["remote"], kernel["device"], report["cosine"]);
}

#[test]
fn a_round_trip_costs_time_and_changes_nothing_else() {
    let (output, report) = demo(&["--rtt", "13ms", "--tokens", "3", "--prompt", "The capital of France is"]);
    assert!(output.status.success(), "{report}");
    assert_eq!(report["identical_logits"], true, "{report}");
    assert_eq!(report["round_trip_ms"], 13.0);
}

#[test]
fn a_port_in_use_is_an_error_that_names_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = Command::new(program("kvasir"))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .args(["demo", "--listen", &address])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains(&address) && said.contains("in use"), "{said}");
}
