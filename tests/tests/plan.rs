//! `kvasir plan` as a user runs it, on atlas: what is far away loses, what memory cannot hold is refused with the figures, a
//! measurement is read again, a plan is written down, and predictions stand beside what was measured.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use kvasir_tests::{program, root};
use serde_json::{Value, json};

/// Exit codes of a judge.
const FINE: Option<i32> = Some(0);
const REFUSED: Option<i32> = Some(1);
const NOT_UNDERSTOOD: Option<i32> = Some(2);

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        let home = Home(tempfile::tempdir().unwrap());
        let (code, _, said) = home.kvasir(&["setup"]);
        assert_eq!(code, FINE, "{said}");
        home
    }

    fn kvasir(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output = Command::new(program("kvasir"))
            .current_dir(root())
            .env("KVASIR_HOME", self.0.path())
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = text(&output.stderr);
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        (output.status.code(), text(&output.stdout), said)
    }

    /// Exit code and report of `kvasir --json plan`.
    fn plan(&self, arguments: &[&str]) -> (Option<i32>, Value) {
        let (code, out, said) = self.kvasir(&[&["--json", "plan"], arguments].concat());
        (code, serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{said}")))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }
}

/// A measurement of a machine that computes a pass of one row in 1 ms and 64 rows in 10 ms, half of it experts of which the
/// first two of a layer are picked nearly always.
fn measured(home: &Home) -> String {
    let pass = |rows: usize, seconds: f64| json!({ "rows": rows, "seconds": seconds, "expert_seconds": seconds / 2.0, "shared_seconds": seconds / 10.0 });
    let mut counts = vec![1; 16];
    counts[..2].fill(100_000);
    let report = json!({
        "verdict": "local", "measured": {
            "model": "atlas", "layers": 4, "machine": "a test", "threads": 2,
            "passes": [pass(1, 1e-3), pass(8, 2e-3), pass(64, 10e-3)], "picks": vec![counts; 4],
        },
    });
    home.file("measured.json", &report.to_string())
}

#[test]
fn what_is_measured_here_is_predicted_for_one_text_and_for_many_and_read_again() {
    let home = Home::new();
    // Over a second, one text loses whatever machine this is.
    let far = ["--round-trip", "1s", "--remote-layers", "all", "--streams", "1"];
    let (code, report) = home.plan(&[&["--measure"], &far[..]].concat());
    assert_eq!((code, &report["verdict"]), (REFUSED, &json!("refused")), "{report}");
    assert!(report["why"].as_str().unwrap().contains("--for capacity"), "{report}");
    let passes = report["measured"]["passes"].as_array().unwrap();
    let rows: Vec<u64> = passes.iter().map(|pass| pass["rows"].as_u64().unwrap()).collect();
    assert_eq!(rows, [1, 8, 64]);
    for pass in passes {
        let [whole, experts] = ["seconds", "expert_seconds"].map(|name| pass[name].as_f64().unwrap());
        assert!(experts > 0.0 && experts < whole, "{report}");
    }
    let picks = report["measured"]["picks"].as_array().unwrap();
    assert_eq!((picks.len(), picks[0].as_array().unwrap().len()), (4, 16));
    assert!(
        picks.iter().all(|layer| layer.as_array().unwrap().iter().any(|count| count.as_u64().unwrap() > 0))
    );
    let one = &report["plan"]["predictions"][0];
    assert_eq!((&one["streams"], &one["round_trips_per_token"]), (&json!(1), &json!(4.0)));
    assert!(one["tokens_per_second"].as_f64().unwrap() < 0.25, "{report}");

    // The same from the file, taken since room is the point.
    let file = home.file("m.json", &report.to_string());
    let again = [&["--measured", &file, "--for", "capacity"], &far[..]].concat();
    let (code, report) = home.plan(&again);
    assert_eq!(
        (code, &report["verdict"], &report["plan"]["verdict"]),
        (FINE, &json!("accepted"), &json!("slower"))
    );
    assert!(report["command"].as_str().unwrap().contains("--remote-layers 0-3"), "{report}");
    let (code, out, said) = home.kvasir(&[&["plan"], &again[..]].concat());
    assert_eq!(code, FINE, "{said}");
    assert!(out.contains("room is the point") && out.contains("worker 1"), "{out}");
}

#[test]
fn far_workers_are_left_alone_and_near_ones_that_help_are_not() {
    let home = Home::new();
    let file = measured(&home);
    let (code, report) = home.plan(&["--measured", &file, "--round-trip", "1s", "--streams", "8"]);
    assert_eq!((code, &report["verdict"]), (FINE, &json!("local")), "{report}");
    assert!(report["candidates"].as_array().unwrap().len() >= 4, "{report}");
    assert!(report["why"].as_str().unwrap().contains("which loses"), "{report}");
    let near = ["--round-trip", "50us", "--call-overhead", "50us", "--workers", "2", "--streams", "64"];
    let (code, report) = home.plan(&[&["--measured", &file], &near[..]].concat());
    assert_eq!((code, &report["verdict"]), (FINE, &json!("accepted")), "{report}");
    let many = &report["plan"]["predictions"][1];
    assert!(many["share_of_local"].as_f64().unwrap() > 1.0, "{report}");
    // Without a word on workers there is nothing to place.
    let (code, report) = home.plan(&["--measured", &file]);
    assert_eq!((code, &report["verdict"]), (FINE, &json!("local")), "{report}");
}

#[test]
fn what_memory_cannot_hold_is_refused_with_the_figures_before_anything_is_measured() {
    let home = Home::new();
    let (code, report) =
        home.plan(&["--measure", "--streams", "512", "--context", "4096", "--machine-memory", "64"]);
    assert_eq!((code, &report["verdict"]), (REFUSED, &json!("refused")), "{report}");
    let memory = &report["memory"];
    let [needed, there, texts, fixed, token] = ["needed", "there", "texts", "text_bytes", "token_bytes"]
        .map(|name| memory[name].as_u64().unwrap_or_else(|| panic!("{name} in {report}")));
    assert_eq!(there, 64 << 20);
    assert!(needed > there);
    assert_eq!(texts, 512 * (fixed + 4096 * token));
    let why = report["why"].as_str().unwrap();
    assert!(why.contains(&format!("{fixed} bytes and {token} a token")), "{why}");
    assert!(report.get("measured").is_none(), "{report}");
}

#[test]
fn a_model_that_memory_cannot_hold_is_spread_and_the_spread_is_written_down() {
    let home = Home::new();
    let file = measured(&home);
    let (_, report) = home.plan(&["--measured", &file, "--streams", "1", "--context", "16"]);
    let needed = report["local"]["memory"]["needed"].as_u64().unwrap();
    let experts = report["local"]["memory"]["experts"].as_u64().unwrap();
    // Room for everything but a quarter of the experts.
    let room = ((needed - experts / 4) >> 20).to_string();
    let small = ["--measured", &file, "--streams", "1", "--context", "16", "--machine-memory", &room];
    let (code, report) = home.plan(&small);
    assert_eq!((code, &report["verdict"]), (REFUSED, &json!("refused")), "{report}");
    assert!(report["why"].as_str().unwrap().contains("--round-trip or --swarm"), "{report}");

    let list = home.path("experts.list");
    let list = list.to_str().unwrap();
    let with_workers = [&small[..], &["--round-trip", "50ms", "--write", list]].concat();
    let (code, report) = home.plan(&with_workers);
    assert_eq!((code, &report["verdict"]), (FINE, &json!("accepted")), "{report}");
    assert_eq!(
        report["plan"]["kind"], "tail",
        "what is hardly ever picked makes room at the least wait: {report}"
    );
    assert!(report["plan"]["memory"]["needed"].as_u64() <= report["plan"]["memory"]["there"].as_u64());
    let command = report["command"].as_str().unwrap();
    assert!(command.contains(&format!("--experts {list}")), "{report}");
    // More than half of the memory is for experts, so the service has to be told.
    assert!(command.contains(" --memory ") && !command.contains(" --text-memory "), "{report}");
    let text = fs::read_to_string(list).unwrap();
    assert!(text.starts_with("# layer, experts\n0 "), "{text}");
    // The list is judged as the plan was.
    let (code, listed) = home.plan(&[&small[..], &["--round-trip", "50ms", "--experts", list]].concat());
    assert_eq!(code, FINE, "{listed}");
    assert_eq!(listed["plan"]["remote_experts"], report["plan"]["remote_experts"]);
    assert_eq!(
        listed["plan"]["predictions"][0]["tokens_per_second"],
        report["plan"]["predictions"][0]["tokens_per_second"]
    );
    let (code, report) = home.plan(&[&with_workers[..], &["--worker-memory", "0"]].concat());
    assert_eq!((code, &report["verdict"]), (REFUSED, &json!("refused")), "{report}");
}

#[test]
fn a_running_swarm_tells_who_its_workers_are() {
    let home = Home::new();
    let file = measured(&home);
    let worker = |name: &str, state: &str, round_trip_ms: Value| {
        json!({
            "name": name, "state": state, "why": null, "holds": [{ "layer": 0, "experts": 16 }], "held_bytes": 1,
            "round_trip_ms": round_trip_ms, "round_trip_p99_ms": null, "calls": 10, "rows": 10, "missed": 0, "checked": 0,
            "wrong": 0, "countersigned_bytes": 0, "credit_nanokvr": 0,
        })
    };
    let swarm = json!({
        "model": "atlas", "layers": 4, "experts_per_layer": 16,
        "workers": [worker("here", "serving", json!(20.0)), worker("gone", "gone", json!(1.0))],
        "rates": { "now": null, "local": null, "swarm": null },
        "load": { "running": 0, "waiting": 0, "waves": 1 },
    });
    let swarm = home.file("swarm.json", &swarm.to_string());
    let words = ["--measured", &file, "--swarm", &swarm, "--remote-layers", "0", "--for", "capacity"];
    let (code, report) = home.plan(&words);
    assert_eq!(code, FINE, "{report}");
    let workers = report["workers"].as_array().unwrap();
    assert_eq!((workers.len(), &workers[0]["name"]), (1, &json!("here")));
    // A layer's experts compute for an eighth of a millisecond in what was measured.
    assert!((workers[0]["round_trip_ms"].as_f64().unwrap() - 19.875).abs() < 1e-6, "{report}");
    assert_eq!(report["plan"]["workers"][0]["to_send"], 0, "it holds the layer already: {report}");
}

#[test]
fn predictions_stand_beside_what_was_measured() {
    let home = Home::new();
    let file = measured(&home);
    let cell = |model: &str, streams: u64, rate: f64| {
        json!({
            "model": model, "remote_layers": 4, "layers": 4, "round_trip_ms": 13.0, "streams": streams, "workers": 1,
            "tokens_per_second": rate, "local_tokens_per_second": 1000.0 * streams as f64, "waiting_share": 0.1,
            "rows_per_round_trip": 6.2,
        })
    };
    let cells = [cell("atlas", 1, 18.0), cell("atlas", 8, 1.0), cell("other", 1, 1.0)];
    let table = home.file("t.json", &json!({ "machine": "a test", "cells": cells }).to_string());
    let (code, report) = home.plan(&["--measured", &file, "--check", &table]);
    assert_eq!(code, FINE, "{report}");
    assert_eq!(
        (report["cells"].as_array().unwrap().len(), &report["other_cells"]["other with 4 layers"]),
        (2, &json!(1))
    );
    let [median, within] = [0, 1].map(|at: usize| &report["measured"][at]);
    assert_eq!(
        (&median["aim"], &median["met"], &median["better"]),
        (&json!(0.1), &json!(false), &json!("lower"))
    );
    assert_eq!((&within["aim"], &within["value"]), (&json!(0.9), &json!(0.5)), "{report}");
    // Without a measurement the parts of computing come from the file; for people it is a table.
    let (code, out, said) = home.kvasir(&["plan", "--check", &table]);
    assert_eq!(code, FINE, "{said}");
    assert!(out.contains("median error") && out.contains("estimated") && out.contains("limited by"), "{out}");
}

#[test]
fn what_is_missing_or_contradicts_is_said() {
    let home = Home::new();
    let file = measured(&home);
    let refuses = |arguments: &[&str], code: Option<i32>, fragment: &str| {
        let (found, _, said) = home.kvasir(&[&["plan"], arguments].concat());
        assert_eq!(found, code, "{arguments:?}: {said}");
        assert!(said.contains(fragment), "{arguments:?} does not say {fragment:?}: {said}");
    };
    refuses(&["--round-trip", "13ms"], REFUSED, "--measure");
    refuses(&["--measured", &file, "--remote-layers", "1"], REFUSED, "--round-trip");
    refuses(&["--measured", &file, "--remote-layers", "9", "--round-trip", "1ms"], REFUSED, "layers 0 to 3");
    refuses(&["--measured", &file, "--round-trip", "1ms", "--copies", "1"], REFUSED, "--copies is 1");
    refuses(&["--measured", &file, "--streams", "0"], REFUSED, "--streams is 0");
    refuses(&["--measured", &file, "--context", "9999999"], REFUSED, "--context is 9999999");
    refuses(&["--measured", "/not/there"], REFUSED, "/not/there");
    refuses(&["--check", "/not/there"], REFUSED, "/not/there");
    refuses(&["--measured", &file, "--experts", "/not/there", "--round-trip", "1ms"], REFUSED, "/not/there");
    refuses(&["--measured", &file, "--bandwidth", "100"], NOT_UNDERSTOOD, "name a unit");
    refuses(
        &["--measured", &file, "--swarm", "-", "--round-trip", "1ms"],
        NOT_UNDERSTOOD,
        "cannot be used with",
    );
}

#[test]
fn help_has_examples_and_completions_know_the_command() {
    let home = Home::new();
    let (code, help, _) = home.kvasir(&["plan", "--help"]);
    assert_eq!(code, FINE);
    assert!(help.contains("Examples:") && help.contains("kvasir plan --measure"), "{help}");
    let (code, script, _) = home.kvasir(&["completions", "bash"]);
    assert_eq!(code, FINE);
    assert!(
        script.contains("--round-trip") && script.contains("--machine-memory"),
        "no words of kvasir plan"
    );
}
