//! Tables that agree with what is predicted, tables that do not, and what is no table.

use kvasir_backbone::SequenceCost;
use serde_json::json;

use super::*;

const SHAPE: Shape = Shape { layers: 4, hidden: 256, experts: 16, picks: 4, row_bytes: 260 };

fn footprint() -> Footprint {
    let text = SequenceCost { fixed: 0, token: 0 };
    Footprint { dense: 100, read: 100, shared: 25, experts: vec![vec![25; 16]; 4], text, row: 0 }
}

fn cell(remote_layers: usize, round_trip_ms: f64, streams: usize, rate: f64) -> Value {
    let local = streams as f64 / (1e-3 + 1e-4 * streams as f64);
    json!({
        "model": "atlas", "remote_layers": remote_layers, "layers": 4, "round_trip_ms": round_trip_ms,
        "streams": streams, "workers": 1, "tokens_per_second": rate, "local_tokens_per_second": local,
        "waiting_share": 0.1, "rows_per_round_trip": 6.2,
    })
}

fn table(cells: Vec<Value>) -> Result<Table> {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("t.json");
    std::fs::write(&path, json!({ "machine": "a test", "cells": cells }).to_string()).unwrap();
    read(&path)
}

fn compared(cells: Vec<Value>, calibrate: bool) -> Result<Comparison> {
    let footprint = footprint();
    let subject = Subject {
        names: vec!["atlas".to_owned(), "atlas-q4_k_m".to_owned()],
        shape: SHAPE,
        footprint: &footprint,
        measured: None,
        cores: 2,
        most_waves: 16,
    };
    let options = CheckOptions { file: PathBuf::new(), cells: None, calibrate };
    compare(&table(cells)?, &subject, &WorkerFigures::default(), &options)
}

#[test]
fn cells_are_predicted_from_their_own_local_rates() {
    // One text, four round trips of 13 ms and little else.
    let found =
        compared(vec![cell(4, 13.0, 1, 17.0), cell(4, 13.0, 64, 900.0), cell(0, 0.0, 1, 900.0)], false);
    let found = found.unwrap();
    assert_eq!(found.count(), 2, "what has no remote layer is not predicted: {found:?}");
    let one = &found.cells[0];
    assert!((16.0..19.3).contains(&one.predicted), "{one:?}");
    assert!((one.error - (one.predicted / 17.0 - 1.0)).abs() < 1e-12);
    // What was measured of the link goes before what it was meant to be.
    let mut slower = cell(4, 13.0, 1, 17.0);
    slower["link_round_trip_ms"] = json!(26.0);
    let slower = compared(vec![slower], false).unwrap().cells.remove(0);
    assert!(slower.predicted < 0.6 * one.predicted, "{slower:?}");
    assert!(found.median_error().is_some() && found.share_within().is_some());
}

#[test]
fn a_table_of_what_was_predicted_has_no_error_and_one_of_halves_is_wrong() {
    let asked = [(1, 13.0, 1), (4, 50.0, 8), (2, 0.0, 64)];
    let made_up = |rates: [f64; 3]| {
        let cells =
            asked.iter().zip(rates).map(|(&(layers, trip, streams), rate)| cell(layers, trip, streams, rate));
        compared(cells.collect(), false).unwrap()
    };
    let first = made_up([1.0; 3]);
    let rates = [0, 1, 2].map(|at: usize| first.cells[at].predicted);
    let right = made_up(rates);
    assert!(right.median_error().unwrap() < 1e-9, "{right:?}");
    assert_eq!(right.share_within(), Some(1.0));
    let wrong = made_up(rates.map(|rate| rate / 2.0));
    assert!((wrong.median_error().unwrap() - 1.0).abs() < 1e-9, "{wrong:?}");
    assert_eq!(wrong.share_within(), Some(0.0));
}

#[test]
fn what_a_call_takes_is_learnt_from_one_text_which_then_counts_for_nothing() {
    let rate = |overhead: f64| {
        let cells = vec![cell(4, 13.0, 1, 10.0)];
        let without = compared(cells, false).unwrap();
        1.0 / (1.0 / without.cells[0].predicted + 4.0 * overhead)
    };
    // Two milliseconds a call more than the usual.
    let slow = vec![cell(4, 13.0, 1, rate(2e-3)), cell(4, 13.0, 8, 90.0)];
    let found = compared(slow, true).unwrap();
    let usual = kvasir_serve::prediction::Worker::OVERHEAD;
    assert!((found.overhead - usual - 2e-3).abs() < 1e-4, "{found:?}");
    assert!(found.cells[0].calibrates && !found.cells[1].calibrates && found.count() == 1);
    // Each round trip has its own.
    let near = |others: Vec<Value>| {
        let cells = [others, vec![cell(4, 0.0, 1, 300.0), cell(4, 0.0, 8, 900.0)]].concat();
        compared(cells, true).unwrap().cells.pop().unwrap().predicted
    };
    assert_eq!(near(Vec::new()), near(vec![cell(4, 13.0, 1, rate(2e-3))]));
    let none = compared(vec![cell(4, 13.0, 8, 90.0)], true).unwrap_err();
    assert!(none.to_string().contains("--calibrate"), "{none}");
}

#[test]
fn cells_of_another_model_or_another_file_of_it_are_told_and_left_out() {
    let other = |name: &str, layers: usize| {
        let mut cell = cell(1, 13.0, 1, 50.0);
        cell["model"] = json!(name);
        cell["layers"] = json!(layers);
        cell
    };
    let found = compared(vec![cell(1, 13.0, 1, 50.0), other("122b", 4), other("atlas", 48)], false).unwrap();
    assert_eq!(found.cells.len(), 1);
    let told: Vec<&String> = found.others.keys().collect();
    assert_eq!(told, ["122b with 4 layers", "atlas with 48 layers"]);
    let error = compared(vec![other("122b", 4)], false).unwrap_err();
    assert!(format!("{error:#}").contains("no cell"), "{error:#}");
}

#[test]
fn what_cannot_have_been_measured_is_refused_by_cell() {
    type Change = fn(&mut Value);
    let refused = |change: Change| {
        let mut wrong = cell(1, 13.0, 1, 50.0);
        change(&mut wrong);
        format!("{:#}", table(vec![cell(1, 13.0, 1, 50.0), wrong]).unwrap_err())
    };
    let cases: [(Change, &str); 8] = [
        (|cell| cell["link_round_trip_ms"] = json!(-1.0), "link_round_trip_ms is -1"),
        (|cell| cell["tokens_per_second"] = json!(0.0), "more than 0"),
        (|cell| cell["local_tokens_per_second"] = json!(-1.0), "more than 0"),
        (|cell| cell["round_trip_ms"] = json!(-1.0), "round_trip_ms"),
        (|cell| cell["streams"] = json!(0), "streams"),
        (|cell| cell["remote_layers"] = json!(5), "5 of 4 layers"),
        (|cell| cell["workers"] = json!(0), "workers"),
        (|cell| cell["workers"] = json!(1000), "workers"),
    ];
    for (change, said) in cases {
        let error = refused(change);
        assert!(error.contains("cell 2") && error.contains(said), "{error}");
    }
    let error = format!("{:#}", table(vec![cell(1, 13.0, 1, 50.0); CELLS_MAX + 1]).unwrap_err());
    assert!(error.contains("10001 cells"), "{error}");
    assert!(format!("{:#}", table(vec![json!({})]).unwrap_err()).contains("bench-fabric"));
}
