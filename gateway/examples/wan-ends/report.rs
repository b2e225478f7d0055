//! The table, and the list of figures with their aims.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::measure::{Cell, Measured};

/// Samples from which on the slowest hundredth is more than a handful.
const ENOUGH: usize = 1000;
/// Bytes on the wire for each byte of a segment: IP and TCP headers with timestamps, at 1,500 bytes a packet.
const HEADERS: f64 = 1500.0 / 1448.0;

/// Reads what `measure` printed and prints the whole.
pub fn run(files: &[PathBuf], json: bool) -> anyhow::Result<()> {
    let mut links = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let link: Measured =
            serde_json::from_str(&text).with_context(|| format!("what {} says", file.display()))?;
        links.push(link);
    }
    let quick = links.iter().flat_map(|link| &link.cells).any(|cell| !cell.paused && cell.samples < ENOUGH);
    if json {
        let measured: Vec<_> = links.iter().flat_map(figures).collect();
        let whole = json!({"machine": machine(), "quick": quick, "links": links, "measured": measured});
        println!("{}", serde_json::to_string_pretty(&whole)?);
        return Ok(());
    }
    if quick {
        println!(
            "quick: fewer than {ENOUGH} samples a cell, so a p99 is the worst few; --full takes {ENOUGH}\n"
        );
    }
    links.iter().for_each(print_table);
    println!("aims:");
    for figure in links.iter().flat_map(figures) {
        let word = if figure["met"] == true { "met " } else { "MISS" };
        let (value, aim) = (figure["value"].as_f64().unwrap_or(0.0), figure["aim"].as_f64().unwrap_or(0.0));
        let name = figure["name"].as_str().unwrap_or("");
        let unit = figure["unit"].as_str().unwrap_or("");
        println!(
            "  {word} {name}: {value:.1} {unit}, aim {aim:.1}  {}",
            figure["note"].as_str().unwrap_or("")
        );
    }
    Ok(())
}

fn print_table(link: &Measured) {
    println!("{}; 64 bytes over plain TCP: {:.1} ms", name(link), link.floor_ms);
    if let Some(alone) = link.bulk_alone {
        println!("  bulk alone: {alone:.1} Mbit/s");
    }
    println!("  dispatch            p50 ms    p99 ms   bulk Mbit/s   both, of bulk alone");
    for cell in &link.cells {
        let p99 = if cell.paused { "-".to_owned() } else { format!("{:.1}", cell.p99_ms) };
        let bulk = cell.bulk.map_or("-".to_owned(), |bulk| format!("{bulk:.1}"));
        let share = share(link, cell).map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
        println!("  {:<18} {:>7.1} {p99:>9} {bulk:>13} {share:>21}", row(cell), cell.p50_ms);
    }
    println!();
}

fn name(link: &Measured) -> String {
    let loss = match link.loss_per_million {
        0 => String::new(),
        loss => format!(", {:.1} % loss", f64::from(loss) / 1e4),
    };
    let restart = if link.idle_restart { ", slow start after idle left on" } else { "" };
    let second = if link.bulk_connection { ", bulk on a second connection" } else { "" };
    format!("{} Mbit/s, {} ms{loss}{restart}{second}", link.megabits, link.round_trip_ms)
}

fn row(cell: &Cell) -> String {
    let what = match (cell.paused, cell.bulk.is_some()) {
        (true, _) => " after 400 ms",
        (_, true) => " beside bulk",
        _ => "",
    };
    format!("{} KiB{what}", cell.kib)
}

fn share(link: &Measured, cell: &Cell) -> Option<f64> {
    Some(cell.carried? / link.bulk_alone?)
}

/// The figures of a link that have an aim.
fn figures(link: &Measured) -> Vec<Value> {
    let mut all = Vec::new();
    let mut add = |what: String, value: f64, unit: &str, aim: f64, lower: bool, note: &str| {
        let met = if lower { value <= aim } else { value >= aim };
        all.push(json!({
            "name": format!("{}: {what}", name(link)), "value": value, "unit": unit, "aim": aim,
            "better": if lower { "lower" } else { "higher" }, "met": met, "note": note,
        }));
    };
    // A window that is too small would make the shares below easy.
    if let (Some(alone), 0) = (link.bulk_alone, link.loss_per_million) {
        let share = alone / link.megabits * 100.0;
        add("bulk alone".to_owned(), share, "% of the link", 90.0, false, "");
    }
    for cell in &link.cells {
        let few = if cell.samples < ENOUGH { "few samples" } else { "" };
        let Some(share) = share(link, cell) else {
            if link.loss_per_million == 0 {
                let wire = 2.0 * cell.kib as f64 * 1024.0 * 8.0 * HEADERS / (link.megabits * 1e3);
                let note = if link.idle_restart { "the kernel restarts slowly after a pause" } else { "" };
                add(format!("{} p50", row(cell)), cell.p50_ms, "ms", link.floor_ms + wire + 1.5, true, note);
            }
            continue;
        };
        if link.loss_per_million > 0 {
            add(format!("{} p99", row(cell)), cell.p99_ms, "ms", 50.0, true, few);
            continue;
        }
        let alone = link.cells.iter().find(|alone| alone.kib == cell.kib && !alone.paused);
        let aim = alone.map_or(f64::NAN, |alone| alone.p99_ms + 10.0);
        add(format!("{} p99", row(cell)), cell.p99_ms, "ms", aim, true, few);
        add(format!("{} carried", row(cell)), share * 100.0, "% of bulk alone", 93.0, false, "");
    }
    all
}

fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    json!({
        "cpu": cpu.map_or("", |(_, name)| name.trim()),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load": read("/proc/loadavg").trim(),
    })
}
