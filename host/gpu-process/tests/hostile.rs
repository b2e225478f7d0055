//! Every hostile shader through the real program, each in a process of its own: the expected refusal, within a ceiling of memory and
//! of time, and the host goes on.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

#[path = "../../../tests/data/hostile-wgsl/corpus.rs"]
mod corpus;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use corpus::Case;
use serde_json::Value;

/// Most memory that a check may ever have had resident. The largest measured is 27 MB.
const MEMORY_CEILING_BYTES: u64 = 128 << 20;
/// Most memory of a check that ends at the text. The largest measured is 4 MB.
const TEXT_MEMORY_CEILING_BYTES: u64 = 16 << 20;
/// A hang guard, no promise: on two busy cores the slowest was measured to take 2 seconds, the others a tenth of one.
const TIME_CEILING: Duration = Duration::from_secs(30);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/hostile-wgsl")
}

/// What a process that checked a shader left behind.
struct Outcome {
    status: ExitStatus,
    report: Value,
    errors: String,
    wall: Duration,
}

/// Runs `kvasir-gpu check` on `source`; kills it at [`TIME_CEILING`].
fn check(source: &str) -> Outcome {
    let file = tempfile::Builder::new().suffix(".wgsl").tempfile().unwrap();
    std::fs::write(file.path(), source).unwrap();
    let began = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvasir-gpu"))
        .arg("check")
        .arg(file.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // What it prints is short, so its end does not wait for a reader.
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > TIME_CEILING {
            child.kill().unwrap();
            break child.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let wall = began.elapsed();
    let (mut printed, mut errors) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    Outcome { status, report: serde_json::from_str(&printed).unwrap_or(Value::Null), errors, wall }
}

/// What is wrong with how a case came out, if anything is.
fn fault(case: &Case, outcome: &Outcome) -> Option<String> {
    let found = outcome.report["error"].as_str();
    let expected_status = if case.refused.is_some() { 1 } else { 0 };
    if outcome.status.code() != Some(expected_status) || found != case.refused.as_deref() {
        return Some(format!(
            "expected {:?}, got {:?} with {}: {} {}",
            case.refused,
            found,
            outcome.status,
            outcome.report["message"].as_str().unwrap_or_default(),
            outcome.errors
        ));
    }
    if !outcome.errors.is_empty() {
        return Some(format!("it complains: {}", outcome.errors));
    }
    // A process that cannot tell (no /proc) reports null.
    let ceiling = match found {
        Some("too-long" | "character" | "depth" | "nesting" | "tokens" | "word") => TEXT_MEMORY_CEILING_BYTES,
        _ => MEMORY_CEILING_BYTES,
    };
    let peak = outcome.report["peak_memory_bytes"].as_u64().unwrap_or(0);
    (peak > ceiling).then(|| format!("it had {peak} bytes resident, the ceiling is {ceiling}"))
}

#[test]
fn every_hostile_shader_is_answered_and_the_host_goes_on() {
    let cases = corpus::cases(&folder());
    let mut faults = Vec::new();
    println!("| case | kind | result | peak MB | ms |\n| --- | --- | --- | --- | --- |");
    for case in &cases {
        let outcome = check(&case.source);
        println!(
            "| {} | {} | {} | {:.1} | {} |",
            case.name,
            case.kind,
            outcome.report["error"].as_str().unwrap_or("accepted"),
            outcome.report["peak_memory_bytes"].as_u64().unwrap_or(0) as f64 / 1e6,
            outcome.wall.as_millis()
        );
        if let Some(fault) = fault(case, &outcome) {
            faults.push(format!("{}: {fault}", case.name));
        }
    }
    assert!(faults.is_empty(), "{} of {} cases:\n{}", faults.len(), cases.len(), faults.join("\n"));
    for row in 23..=29 {
        let kind = format!("row {row}");
        assert!(cases.iter().any(|case| case.kind == kind), "no case of {kind}");
    }
    // After all of it, this process and a good shader are well.
    let good = check(&std::fs::read_to_string(folder().join("good.wgsl")).unwrap());
    assert_eq!(good.status.code(), Some(0), "{}", good.report);
    let entry_points = good.report["entry_points"].as_array().unwrap();
    assert_eq!(entry_points.len(), 2);
    assert_eq!(entry_points[0]["name"], "product");
    assert_eq!(entry_points[0]["workgroup_bytes"], 256);
    assert_eq!(entry_points[0]["barriers"], true);
    assert_eq!(entry_points[0]["bindings"], serde_json::json!([0, 1, 2, 3]));
}

#[test]
fn a_check_that_outgrows_its_limits_ends_that_process_alone() {
    // 512 MiB of private memory are not enough for a process that may have 1 MiB.
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -d 1024; exec \"$0\" check \"$1\"", env!("CARGO_BIN_EXE_kvasir-gpu")])
        .arg(folder().join("good.wgsl"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(check(&std::fs::read_to_string(folder().join("good.wgsl")).unwrap()).status.code(), Some(0));
}

#[test]
fn files_that_are_no_text_are_errors_of_the_caller() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"fn main() {} // \xff").unwrap();
    for path in [file.path(), Path::new("/nonexistent.wgsl"), &folder()] {
        let output = Command::new(env!("CARGO_BIN_EXE_kvasir-gpu")).arg("check").arg(path).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{path:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}
