//! How a plan is told, to people and as JSON.

mod comparison;
mod objects;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use kvasir_model::Model;
use kvasir_serve::prediction::{Footprint, Held, Kind, LOSES, Needs, Plan, Planned, Prediction, Verdict};
use serde_json::json;

use self::objects::{memory_object, planned_object, workers_object};
use super::workers::Described;
use super::{Measurement, PlanOptions};
use crate::memory::MEBIBYTE;
use crate::output;
use crate::remote::ranges;

pub(super) use comparison::compared;

/// Everything that a report is made of.
pub(super) struct Told<'a> {
    pub(super) model: &'a Model,
    pub(super) path: &'a Path,
    pub(super) options: &'a PlanOptions,
    pub(super) context: usize,
    pub(super) footprint: &'a Footprint,
    pub(super) measured: &'a Measurement,
    pub(super) described: &'a Described,
    pub(super) memory: u64,
    pub(super) found: &'a Plan,
    /// Nothing where every placement is refused.
    pub(super) chosen: Option<&'a Planned>,
}

/// What is told where memory does not hold the texts, wherever experts are.
pub(super) struct Refused<'a> {
    pub(super) model: &'a Model,
    pub(super) footprint: &'a Footprint,
    pub(super) context: usize,
    pub(super) options: &'a PlanOptions,
    pub(super) refusal: (Needs, u64),
}

/// Tells a plan.
pub(super) fn plan(told: &Told<'_>, json: bool) -> Result<()> {
    let why = why(told);
    let verdict = match told.chosen {
        None => "refused",
        Some(chosen) if chosen.verdict.is_refusal() => "refused",
        Some(chosen) if chosen.kind == Kind::Here => "local",
        Some(_) => "accepted",
    };
    if json {
        let object = |planned: &Planned| planned_object(told, planned);
        return output::object(&json!({
            "model": told.model.name(), "path": told.path.display().to_string(), "verdict": verdict, "why": why,
            "streams": told.options.streams, "context": told.context,
            "local": object(&told.found.here), "plan": told.chosen.map(object),
            "candidates": told.found.others.iter().map(object).collect::<Vec<_>>(),
            "workers": workers_object(told), "command": command(told), "measured": told.measured,
        }));
    }
    let mut lines = vec![heading(told), measured_line(told.measured), memory_line(told)];
    let shown = told.chosen.unwrap_or(&told.found.here);
    if shown.kind != Kind::Here {
        lines.extend(shown.held.iter().enumerate().map(|(worker, held)| held_line(told, worker, held)));
    }
    for (here, there) in [(&told.found.here.one, &shown.one), (&told.found.here.many, &shown.many)] {
        lines.push(prediction_line(here, there, shown.kind == Kind::Here));
    }
    for who in &told.described.left_out {
        lines.push(format!("left out   {}", output::name(who)));
    }
    lines.extend(told.measured.skipped.iter().map(|what| format!("skipped: {}", output::name(what))));
    lines.push(format!("{:11}{why}", verdict_word(verdict)));
    lines.extend(command(told).map(|command| format!("then       {command}")));
    output::line(lines.join("\n"))
}

/// Tells that no placement makes room.
pub(super) fn refused(told: &Refused<'_>, json: bool) -> Result<()> {
    let (needs, there) = told.refusal;
    let why = no_memory(told.footprint, told.options.streams, told.context, &needs, there);
    if json {
        return output::object(&json!({
            "model": told.model.name(), "verdict": "refused", "why": why, "streams": told.options.streams,
            "context": told.context, "plan": null,
            "memory": memory_object(told.footprint, &needs, there),
        }));
    }
    output::line(format!("refused    {why}, even with every expert elsewhere"))
}

fn verdict_word(verdict: &str) -> &str {
    match verdict {
        "local" => "keep",
        other => other,
    }
}

fn heading(told: &Told<'_>) -> String {
    let experts = told.footprint.experts.first().map_or(0, Vec::len);
    format!(
        "{} ({}): {} layers of {experts} experts, {} of experts and {} beside them",
        output::name(told.model.name()),
        told.path.display(),
        told.footprint.experts.len(),
        size(told.footprint.all_experts()),
        size(told.footprint.dense)
    )
}

fn measured_line(measured: &Measurement) -> String {
    let passes = measured.passes.iter().map(|pass| {
        let experts = if pass.seconds > 0.0 { pass.expert_seconds / pass.seconds } else { 0.0 };
        let rows = if pass.rows == 1 { "row" } else { "rows" };
        format!("{} {rows} {:.3} ms ({:.0} % experts)", pass.rows, pass.seconds * 1e3, experts * 100.0)
    });
    format!("a pass     {}", passes.collect::<Vec<_>>().join(", "))
}

fn memory_line(told: &Told<'_>) -> String {
    let shown = told.chosen.unwrap_or(&told.found.here);
    let Needs { dense, experts, texts, passes } = shown.needs;
    format!(
        "memory     {} of {}: {} dense, {} experts, {} for {} of {} tokens (a text takes {} bytes and {} a token), {} passes",
        size(shown.needs.total()),
        size(told.memory),
        size(dense),
        size(experts),
        size(texts),
        count(told.options.streams, "text"),
        told.context,
        told.footprint.text.fixed,
        told.footprint.text.token,
        size(passes)
    )
}

fn held_line(told: &Told<'_>, worker: usize, held: &Held) -> String {
    let name = match told.described.names.get(worker) {
        Some(name) => output::name(name).into_owned(),
        None => format!("{}", worker + 1),
    };
    let way = told.described.workers.get(worker).map_or(0.0, |worker| worker.round_trip * 1e3);
    let sent = match held.to_send {
        0 => "nothing to send".to_owned(),
        bytes if held.seconds.is_finite() => format!("{} to send, {:.0} s", size(bytes), held.seconds.ceil()),
        bytes => format!("{} to send", size(bytes)),
    };
    format!(
        "worker {name:4}{}: {} in all, {:.1} ms away, {sent}",
        places(told.footprint, &held.experts),
        size(held.bytes),
        way
    )
}

/// Where experts are, in a few words: whole layers by number, of others how many.
fn places(footprint: &Footprint, experts: &[(u16, u16)]) -> String {
    let layers: BTreeSet<u16> = experts.iter().map(|expert| expert.0).collect();
    let (mut whole, mut parts, mut of_parts) = (Vec::new(), Vec::new(), 0);
    for layer in layers {
        let held = experts.iter().filter(|expert| expert.0 == layer).count();
        if footprint.experts.get(usize::from(layer)).is_some_and(|all| all.len() == held) {
            whole.push(layer);
        } else {
            parts.push(layer);
            of_parts += held;
        }
    }
    let mut words = Vec::new();
    if !whole.is_empty() {
        words.push(layers_named(&whole));
    }
    if !parts.is_empty() {
        words.push(format!("{} of {}", count(of_parts, "expert"), layers_named(&parts)));
    }
    if words.is_empty() { "nothing".to_owned() } else { words.join(" and ") }
}

/// `layer 3`, `layers 0,2-3`.
fn layers_named(layers: &[u16]) -> String {
    format!("layer{} {}", if layers.len() == 1 { "" } else { "s" }, ranges(layers))
}

fn prediction_line(here: &Prediction, there: &Prediction, is_local: bool) -> String {
    let texts = count(there.streams, "text");
    if is_local {
        return format!("{texts:11}{} tokens/s on this machine alone", rate(here.tokens_per_second));
    }
    format!(
        "{texts:11}{} tokens/s planned, {} alone ({:.1} %), {} ideal; {}, {:.1} rows a call, {:.0} % waiting; limited by {}",
        rate(there.tokens_per_second),
        rate(here.tokens_per_second),
        100.0 * there.tokens_per_second / here.tokens_per_second,
        rate(there.ideal_tokens_per_second),
        count(there.waves, "wave"),
        there.rows_per_call,
        there.waiting_share * 100.0,
        there.bound.words()
    )
}

/// Why it is so.
fn why(told: &Told<'_>) -> String {
    let (here, streams) = (&told.found.here, told.options.streams);
    let texts = count(streams, "text");
    let no_room = |needs: &Needs, there: u64| no_memory(told.footprint, streams, told.context, needs, there);
    let Some(chosen) = told.chosen else {
        return match here.verdict {
            Verdict::NoMemory { there, .. } => {
                let tried = if told.described.workers.is_empty() {
                    "say who could hold experts with --round-trip or --swarm"
                } else {
                    "no placement that was looked at makes room enough"
                };
                format!("{}; {tried}", no_room(&here.needs, there))
            }
            _ => "no placement can be had".to_owned(),
        };
    };
    match chosen.verdict {
        Verdict::NoMemory { there, .. } => no_room(&chosen.needs, there),
        Verdict::WorkerFull { worker, needed, there } => format!(
            "worker {} would hold {needed} bytes of experts and has {there}: give fewer layers away, or to more workers",
            worker + 1
        ),
        Verdict::Loses { planned, local } => format!(
            "{} tokens/s for {texts}, where this machine alone writes {}: {:.1} % of it; more texts (--streams) hide \
             more of the wait, fewer remote layers wait less, and --for capacity takes it all the same",
            rate(planned),
            rate(local),
            100.0 * planned / local
        ),
        Verdict::Slower => format!(
            "room is the point: {} of experts leave this machine, for {:.1} % of its rate",
            size(told.footprint.bytes_of(&chosen.experts)),
            100.0 * chosen.many.tokens_per_second / here.many.tokens_per_second
        ),
        Verdict::Fine if chosen.kind == Kind::Here => kept(told, &texts),
        Verdict::Fine if here.verdict.is_refusal() => format!(
            "this machine alone cannot hold the model: {}; {}",
            no_room(&here.needs, told.memory),
            chosen.kind.words()
        ),
        Verdict::Fine => format!(
            "{}: {:.1} % of this machine's rate alone for {texts}, limited by {}",
            chosen.kind.words(),
            100.0 * chosen.many.tokens_per_second / here.many.tokens_per_second,
            chosen.many.bound.words()
        ),
    }
}

/// Why everything stays here.
fn kept(told: &Told<'_>, texts: &str) -> String {
    let is_possible = |planned: &&Planned| {
        !matches!(planned.verdict, Verdict::NoMemory { .. } | Verdict::WorkerFull { .. })
    };
    let rate_of = |planned: &Planned| planned.many.tokens_per_second;
    let best = told.found.others.iter().filter(is_possible).max_by(|a, b| rate_of(a).total_cmp(&rate_of(b)));
    let here = told.found.here.many.tokens_per_second;
    match best {
        Some(best) => format!(
            "every expert here: {} tokens/s for {texts}; the best other placement, {}, {}, writes {} ({:.1} %){}",
            rate(here),
            best.kind.words(),
            places(told.footprint, &best.experts),
            rate(rate_of(best)),
            100.0 * rate_of(best) / here,
            if rate_of(best) < LOSES * here { ", which loses" } else { "" }
        ),
        None if told.described.workers.is_empty() => format!(
            "every expert here: {} tokens/s for {texts}; say who the workers are with --round-trip or --swarm",
            rate(here)
        ),
        None => format!("every expert here: {} tokens/s for {texts}; no worker has room", rate(here)),
    }
}

/// The sentence about memory that does not hold something, with the figures.
fn no_memory(footprint: &Footprint, streams: usize, context: usize, needs: &Needs, there: u64) -> String {
    format!(
        "memory does not hold it: {} bytes are needed and there are {there}; {} of up to {context} tokens take {} (a text \
         takes {} bytes and {} a token), experts {}, the rest of the model {}",
        needs.total(),
        count(streams, "text"),
        needs.texts,
        footprint.text.fixed,
        footprint.text.token,
        needs.experts,
        needs.dense
    )
}

/// The words with which `kvasir serve` would do it.
fn command(told: &Told<'_>) -> Option<String> {
    let chosen = told.chosen.filter(|chosen| !chosen.verdict.is_refusal() && chosen.kind != Kind::Here)?;
    let layers: BTreeSet<u16> = chosen.experts.iter().map(|expert| expert.0).collect();
    let bytes: u64 = layers.iter().map(|layer| told.footprint.layer(usize::from(*layer))).sum();
    let is_whole = bytes == told.footprint.bytes_of(&chosen.experts) && !chosen.copies_some;
    let what = if is_whole {
        format!("--remote-layers {}", ranges(&layers.into_iter().collect::<Vec<u16>>()))
    } else {
        let file = told.options.write.as_ref().map_or("FILE".to_owned(), |path| path.display().to_string());
        format!("--experts {file}")
    };
    let placement = if chosen.kind == Kind::Dealt { " --placement experts" } else { "" };
    let copies = match told.options.copies {
        0 => String::new(),
        copies => format!(" --copies {copies}"),
    };
    // What `kvasir serve` would not take by itself: half of what is free for experts, a quarter for texts and passes.
    let room = |flag: &str, bytes: u64, usual: u64| {
        if bytes > usual { format!(" {flag} {}", bytes.div_ceil(MEBIBYTE)) } else { String::new() }
    };
    let experts = room("--memory", chosen.needs.experts, told.memory / 2);
    let texts = chosen.needs.texts.saturating_add(chosen.needs.passes);
    let texts = room("--text-memory", texts, told.memory / 4);
    Some(format!(
        "kvasir serve --hub HUB --ticket TICKET --key KEY --workers {} {what}{placement}{copies}{experts}{texts}",
        told.described.workers.len()
    ))
}

/// A rate with as many digits as it deserves.
fn rate(tokens: f64) -> String {
    if tokens >= 100.0 { format!("{tokens:.0}") } else { format!("{tokens:.1}") }
}

/// `1 text`, `8 texts`.
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Bytes as people read them.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{bytes} bytes"),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use kvasir_backbone::SequenceCost;

    use super::*;

    fn footprint() -> Footprint {
        let text = SequenceCost { fixed: 156_303_360, token: 49_152 };
        Footprint { dense: 100, read: 100, shared: 25, experts: vec![vec![25; 3]; 4], text, row: 0 }
    }

    #[test]
    fn what_memory_does_not_hold_is_told_with_the_figures_of_a_text() {
        let footprint = footprint();
        let needs = footprint.needs(0, 2, 4096, (1, 128));
        let told = no_memory(&footprint, 2, 4096, &needs, 1_000_000);
        for figure in
            ["156303360 bytes and 49152 a token", "2 texts of up to 4096 tokens", "there are 1000000"]
        {
            assert!(told.contains(figure), "{told}");
        }
        assert!(told.contains(&needs.total().to_string()), "{told}");
    }

    #[test]
    fn places_are_layers_and_parts_of_layers() {
        let footprint = footprint();
        assert_eq!(places(&footprint, &[]), "nothing");
        let whole = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)];
        assert_eq!(places(&footprint, &whole), "layers 0-1");
        let mixed = [(0, 0), (0, 1), (0, 2), (3, 1)];
        assert_eq!(places(&footprint, &mixed), "layer 0 and 1 expert of layer 3");
    }

    #[test]
    fn figures_have_units_and_numbers() {
        assert_eq!([size(5), size(5_308_416), size(65_229_815_808)], ["5 bytes", "5.3 MB", "65.23 GB"]);
        assert_eq!([rate(4382.4), rate(17.26)], ["4382", "17.3"]);
        assert_eq!([count(1, "text"), count(8, "text")], ["1 text", "8 texts"]);
    }
}
