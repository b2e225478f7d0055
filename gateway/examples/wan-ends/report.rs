//! The table, and the list of figures with their aims.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::abuse::Did;
use crate::measure::{Cell, Measured, Under};

/// Samples from which on the slowest hundredth is more than a handful.
const ENOUGH: usize = 1000;
/// Bytes on the wire for each byte of a segment: IP and TCP headers with timestamps, at 1,500 bytes a packet.
const HEADERS: f64 = 1500.0 / 1448.0;
/// The queue before the slowest hop unless a link says otherwise, KiB.
const USUAL_QUEUE_KIB: u32 = 256;
/// Packets of a million whose loss has an aim; more is shown without one.
const LOSS_WITH_AIM: u32 = 1_000;
/// Milliseconds that a round trip of dispatch may take beyond the plain one and its bytes.
const BEYOND_MS: f64 = 1.5;
/// Milliseconds by which bulk may raise the p99 of dispatch.
const RAISED_MS: f64 = 10.0;
/// Most milliseconds of p99 beside bulk at the loss that has an aim.
const LOSSY_P99_MS: f64 = 50.0;
/// What bulk and dispatch must carry together, percent of bulk alone.
const CARRIED_PERCENT: f64 = 93.0;
/// Least percent of the link that bulk alone carries: a window that is too small would make the rest easy.
const ALONE_PERCENT: f64 = 90.0;
/// By how much hostile peers may raise the p99 of dispatch.
const UNDER_ABUSE: f64 = 2.0;

/// Reads what `measure` printed and prints the whole.
pub fn run(files: &[PathBuf], json: bool) -> anyhow::Result<()> {
    let mut links = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let link: Measured =
            serde_json::from_str(&text).with_context(|| format!("what {} says", file.display()))?;
        links.push(link);
    }
    let with_aims = links.iter().filter(|link| link.loss_per_million <= LOSS_WITH_AIM);
    let quick = with_aims.flat_map(|link| &link.cells).any(|cell| !cell.paused && cell.samples < ENOUGH);
    if json {
        let measured: Vec<_> = links.iter().flat_map(figures).collect();
        let whole = json!({"machine": machine(), "quick": quick, "links": links, "measured": measured});
        println!("{}", serde_json::to_string_pretty(&whole)?);
        return Ok(());
    }
    if quick {
        println!("quick: fewer than {ENOUGH} samples a cell, so a p99 is the worst few\n");
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
    println!("  dispatch                          p50 ms    p99 ms   bulk Mbit/s   both, of bulk alone");
    for cell in &link.cells {
        let p99 = if cell.paused { "-".to_owned() } else { format!("{:.1}", cell.p99_ms) };
        let bulk = cell.bulk.map_or("-".to_owned(), |bulk| format!("{bulk:.1}"));
        let share = share(link, cell).map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
        println!("  {:<32} {:>7.1} {p99:>9} {bulk:>13} {share:>21}", cell.name(), cell.p50_ms);
    }
    println!();
}

fn name(link: &Measured) -> String {
    let mut name = format!("{} Mbit/s, {} ms", link.megabits, link.round_trip_ms);
    if link.loss_per_million > 0 {
        name += &format!(", {:.1} % loss", f64::from(link.loss_per_million) / 1e4);
    }
    if link.queue_kib != USUAL_QUEUE_KIB {
        name += &format!(", a queue of {} KiB", link.queue_kib);
    }
    if link.idle_restart {
        name += ", slow start after idle left on";
    }
    if !link.resume {
        name += ", sessions end with their connection";
    }
    if link.bulk_connection {
        name += ", bulk on a second connection";
    }
    if link.apart {
        name += ", edge and hub on threads of their own";
    }
    name
}

fn share(link: &Measured, cell: &Cell) -> Option<f64> {
    Some(cell.carried? / link.bulk_alone?)
}

/// The cell of the same payload with nothing beside it.
fn alone<'link>(link: &'link Measured, cell: &Cell) -> Option<&'link Cell> {
    let plain = |other: &&Cell| !other.paused && other.bulk.is_none() && other.under.is_none();
    link.cells.iter().filter(plain).find(|other| other.kib == cell.kib)
}

/// A figure with its aim.
struct Figure {
    what: String,
    value: f64,
    unit: &'static str,
    aim: f64,
    lower: bool,
    /// What limits it, where the aim is missed; else what else there is to say.
    note: String,
}

/// The figures of a link that have an aim.
fn figures(link: &Measured) -> Vec<Value> {
    let mut all = Vec::new();
    if let (Some(alone), 0) = (link.bulk_alone, link.loss_per_million) {
        all.push(bulk_alone(link, alone));
    }
    for cell in &link.cells {
        if let Some(under) = &cell.under {
            all.extend(alone(link, cell).map(|alone| under_abuse(cell, alone, under)));
        } else if let Some(share) = share(link, cell) {
            all.extend(beside_bulk(link, cell, share));
        } else if link.loss_per_million == 0 {
            all.push(nothing_beside(link, cell));
        }
    }
    let json = |figure: Figure| {
        let Figure { what, value, unit, aim, lower, note } = figure;
        let met = if lower { value <= aim } else { value >= aim };
        json!({
            "name": format!("{}: {what}", name(link)), "value": value, "unit": unit, "aim": aim,
            "better": if lower { "lower" } else { "higher" }, "met": met, "note": note,
        })
    };
    all.into_iter().map(json).collect()
}

fn bulk_alone(link: &Measured, alone: f64) -> Figure {
    let value = alone / link.megabits * 100.0;
    let note = format!("{alone:.1} Mbit/s of payload; headers of IP, TCP, TLS and frames are beside it");
    Figure {
        what: "bulk alone".to_owned(),
        value,
        unit: "% of the link",
        aim: ALONE_PERCENT,
        lower: false,
        note,
    }
}

/// A round trip with nothing beside it: the plain one, the bytes both ways, and little else.
fn nothing_beside(link: &Measured, cell: &Cell) -> Figure {
    let wire = 2.0 * cell.kib as f64 * 1024.0 * 8.0 * HEADERS / (link.megabits * 1e3);
    let (value, aim) = (cell.p50_ms, link.floor_ms + wire + BEYOND_MS);
    let beyond = value - link.floor_ms - wire;
    let note = match (value <= aim, link.idle_restart && cell.paused) {
        (true, _) => String::new(),
        (false, true) => {
            "the kernel restarts slowly after a pause: net.ipv4.tcp_slow_start_after_idle is 1".to_owned()
        }
        (false, false) => format!(
            "{beyond:.1} ms beyond {:.1} ms of the plain round trip and {wire:.1} ms of bytes: edge, hub, both ends, the link and \
             the kernel share this machine's processors",
            link.floor_ms
        ),
    };
    Figure { what: format!("{} p50", cell.name()), value, unit: "ms", aim, lower: true, note }
}

/// What bulk costs dispatch, and dispatch bulk.
fn beside_bulk(link: &Measured, cell: &Cell, share: f64) -> Vec<Figure> {
    let few = if cell.samples < ENOUGH { "few samples" } else { "" };
    let what = format!("{} p99", cell.name());
    let value = cell.p99_ms;
    if link.loss_per_million > 0 {
        if link.loss_per_million != LOSS_WITH_AIM {
            return Vec::new();
        }
        let note = match value <= LOSSY_P99_MS {
            true => few.to_owned(),
            false => "behind a lost packet all of its connection waits until it is sent again".to_owned(),
        };
        return vec![Figure { what, value, unit: "ms", aim: LOSSY_P99_MS, lower: true, note }];
    }
    let Some(plain) = alone(link, cell) else { return Vec::new() };
    let aim = plain.p99_ms + RAISED_MS;
    let note = match value <= aim {
        true => few.to_owned(),
        false => format!(
            "{:.1} ms with nothing beside it; half of the calls took {:.1} ms: bulk of one window stands before them in the \
             queue of the slowest hop",
            plain.p99_ms, cell.p50_ms
        ),
    };
    let latency = Figure { what, value, unit: "ms", aim, lower: true, note };
    let (what, value) = (format!("{} carried", cell.name()), share * 100.0);
    let (bulk, carried) = (cell.bulk.unwrap_or(f64::NAN), cell.carried.unwrap_or(f64::NAN));
    let mut note = format!("bulk {bulk:.1} Mbit/s, dispatch {:.1} towards the worker", carried - bulk);
    if value < CARRIED_PERCENT {
        note += "; the window of bulk yields to the queue that the calls themselves make";
    }
    let unit = "% of bulk alone";
    vec![latency, Figure { what, value, unit, aim: CARRIED_PERCENT, lower: false, note }]
}

fn under_abuse(cell: &Cell, alone: &Cell, under: &Under) -> Figure {
    let value = cell.p99_ms / alone.p99_ms;
    let few = if cell.samples < ENOUGH { "few samples; " } else { "" };
    let Did { connections, admitted, bytes } = under.did;
    let note = format!(
        "{few}{:.1} ms, {:.1} alone; {connections} connections, {} accepted while it was measured, {admitted} admitted, {:.0} MB sent \
         then; attackers and gateway share this machine's processors",
        cell.p99_ms,
        alone.p99_ms,
        under.accepted,
        bytes as f64 / 1e6
    );
    Figure {
        what: format!("{} p99", cell.name()),
        value,
        unit: "of that without",
        aim: UNDER_ABUSE,
        lower: true,
        note,
    }
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is what it should do")]
mod tests {
    use super::*;

    fn link(apart: bool, carried: f64) -> Measured {
        let cell = |bulk: Option<f64>, carried| Cell {
            kib: 12,
            paused: false,
            samples: ENOUGH,
            p50_ms: 15.0,
            p99_ms: 16.0,
            bulk,
            carried,
            under: None,
        };
        Measured {
            megabits: 100.0,
            round_trip_ms: 13.0,
            loss_per_million: 0,
            queue_kib: USUAL_QUEUE_KIB,
            idle_restart: false,
            resume: true,
            bulk_connection: false,
            apart,
            floor_ms: 13.0,
            bulk_alone: Some(96.0),
            cells: vec![cell(None, None), cell(Some(carried - 4.0), Some(carried))],
        }
    }

    #[test]
    fn figures_of_links_that_differ_in_their_threads_alone_have_names_of_their_own() {
        let both = [link(false, 95.0), link(true, 95.0)];
        let mut names: Vec<_> =
            both.iter().flat_map(figures).map(|figure| figure["name"].to_string()).collect();
        assert_eq!(names.len(), 8);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 8, "{names:#?}");
    }

    #[test]
    fn a_figure_that_missed_what_is_carried_says_what_limits_it() {
        let note = |carried| {
            let figures = figures(&link(false, carried));
            let figure =
                figures.iter().find(|figure| figure["name"].to_string().contains("carried")).unwrap();
            (figure["met"] == true, figure["note"].to_string().contains("the window of bulk yields"))
        };
        assert_eq!(note(95.0), (true, false));
        assert_eq!(note(50.0), (false, true));
    }
}
