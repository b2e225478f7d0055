//! How predictions beside measurements are told.

use anyhow::Result;
use serde_json::json;

use super::rate;
use crate::output;
use crate::plan::check::{Comparison, MEDIAN_AIM, Table, WITHIN, WITHIN_AIM};

/// Tells how predictions compare with what was measured.
pub(in crate::plan) fn compared(
    table: &Table,
    found: &Comparison,
    was_measured: bool,
    json: bool,
) -> Result<()> {
    let (median, within) = (found.median_error(), found.share_within());
    let basis = if was_measured { "measured" } else { "estimated from the bytes that a token reads" };
    let note = format!(
        "{} cells; experts' part of computing {basis}; {:.3} ms a call beyond round trip, bytes and computing",
        found.count(),
        found.overhead * 1e3
    );
    let figure = |name: &str, value: Option<f64>, aim: f64, better: &str| {
        let met = value.map(|value| if better == "lower" { value <= aim } else { value >= aim });
        json!({
            "name": name, "value": value, "unit": "share", "aim": aim, "better": better, "met": met, "note": note,
        })
    };
    let measured = [
        figure("median error of predictions", median, MEDIAN_AIM, "lower"),
        figure("cells within 15 % of their prediction", within, WITHIN_AIM, "higher"),
    ];
    if json {
        return output::object(&json!({
            "machine": table.machine, "measured": measured, "cells": found.cells, "other_cells": found.others,
        }));
    }
    let mut lines = vec![format!(
        "{:>6} {:>9} {:>7} {:>7} {:>5} {:>12} {:>12} {:>7}  limited by",
        "layers", "trip, ms", "texts", "workers", "waves", "measured/s", "predicted/s", "error"
    )];
    for cell in &found.cells {
        lines.push(format!(
            "{:>6} {:>9} {:>7} {:>7} {:>5} {:>12} {:>12} {:>6.1}%  {}{}",
            cell.remote_layers,
            cell.round_trip_ms,
            cell.streams,
            cell.workers,
            cell.waves,
            rate(cell.measured),
            rate(cell.predicted),
            cell.error * 100.0,
            cell.bound,
            if cell.calibrates { " (the overhead of a call is learnt from it)" } else { "" }
        ));
    }
    for (other, count) in &found.others {
        lines.push(format!("left out: {count} cells of {}", output::name(other)));
    }
    let percent =
        |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0));
    lines.push(format!(
        "median error {} (aim {:.0} %), {} of the cells within {:.0} % (aim {:.0} %)",
        percent(median),
        MEDIAN_AIM * 100.0,
        percent(within),
        WITHIN * 100.0,
        WITHIN_AIM * 100.0
    ));
    lines.push(note);
    output::line(lines.join("\n"))
}
