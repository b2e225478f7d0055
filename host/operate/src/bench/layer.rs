//! `kvasir bench layer`: how fast one layer's routed experts answer when a router spreads tokens over them at random.

use anyhow::{Result, bail};
use kvasir_experts::Format;
use kvasir_experts::measure::{ExpertShape, MAX_EXPERTS, MAX_ROWS, MadeUpExperts, Timing, spread};
use serde_json::{Value, json};

use super::contestant::{Contestant, Implementation, MeasureOptions};
use super::kernels::Shape;
use crate::output;
use crate::progress::{LateLine, Spinner};
use crate::settings::Settings;

/// Measured where nothing is named.
const USUAL: [Implementation; 3] = [Implementation::Native, Implementation::Wasm, Implementation::Product];
/// The picks stay the same for so many floating point operations (two a multiply-add), then are drawn anew. One draw would
/// measure its luck; a draw for each call would be unlike other benchmarks, which repeat a call as often.
const OPERATIONS_A_DRAW: u64 = 8_000_000_000;

/// What `kvasir bench layer` may be told.
pub struct LayerOptions {
    /// What both measurements of experts may be told.
    pub measure: MeasureOptions,
    /// Sides of the experts.
    pub shape: Shape,
    /// Experts of the layer.
    pub experts: usize,
    /// Experts that a token goes to.
    pub top: usize,
    /// Tokens in a call; each number is measured.
    pub tokens: Vec<usize>,
}

/// `kvasir bench layer`.
///
/// # Errors
/// Where the options cannot be, or a measurement fails.
pub fn command(settings: &Settings, options: &LayerOptions, json: bool) -> Result<()> {
    let (budget, threads) = (options.measure.budget()?, options.measure.threads(settings)?);
    let LayerOptions { experts, top, ref shape, .. } = *options;
    if !(1..=MAX_EXPERTS).contains(&experts) || !(1..=experts).contains(&top) {
        bail!(
            "--top {top} of --experts {experts} cannot be: at least 1, at most all, at most {MAX_EXPERTS} experts"
        );
    }
    if let Some(wrong) = options.tokens.iter().find(|tokens| !(1..=MAX_ROWS).contains(*tokens)) {
        bail!("--tokens {wrong} is not between 1 and {MAX_ROWS}");
    }
    let implementations = if options.measure.implementations.is_empty() {
        &USUAL[..]
    } else {
        &options.measure.implementations
    };
    let formats =
        if options.measure.formats.is_empty() { &[Format::Q4K][..] } else { &options.measure.formats };

    let spinner = Spinner::new("checking and compiling the kernel");
    let late = (!json).then(|| LateLine::new("measuring a layer"));
    let contestants = Contestant::all(settings, &options.measure, implementations, threads);
    let (mut measured, mut lines) = (Vec::new(), Vec::new());
    for &format in formats {
        let most = options.tokens.iter().copied().max().unwrap_or(1);
        let expert = ExpertShape { format, hidden: shape.hidden, width: shape.width };
        super::kernels::check_memory(expert, experts)?;
        let made = MadeUpExperts::new(expert, experts, most)?;
        for contestant in &contestants {
            let reason = match contestant.skipped() {
                Some(reason) => Some(reason.to_owned()),
                None => contestant.load(&made).err(),
            };
            for &tokens in &options.tokens {
                spinner.say(format!("{format}: {}, {tokens} tokens", contestant.name));
                let name = format!(
                    "{format} {}x{} top {top} of {experts}, {tokens} tokens, {}",
                    shape.hidden, shape.width, contestant.name
                );
                let (Some((multiply_adds, _)), None) = (contestant.work(expert), &reason) else {
                    let reason = reason.as_deref().unwrap_or("it cannot run");
                    lines.push(format!(
                        "{:18}{tokens:>6} tokens  skipped: {}",
                        contestant.name,
                        output::name(reason)
                    ));
                    measured.push(figure(&name, tokens, &contestant.name, Err(reason)));
                    continue;
                };
                let calls_a_draw = OPERATIONS_A_DRAW / (2 * multiply_adds * (tokens * top) as u64) + 1;
                let timing = contestant
                    .time(&made, threads, budget, |turn| spread(turn / calls_a_draw, tokens, experts, top))?;
                lines.push(format!(
                    "{:18}{tokens:>6} tokens {:>11.1} us {:>7.1} us an expert-row {:>7.1} G multiply-adds/s",
                    contestant.name,
                    timing.seconds / timing.calls as f64 * 1e6,
                    timing.mean_seconds() * 1e6,
                    multiply_adds as f64 / timing.mean_seconds() / 1e9
                ));
                measured.push(figure(&name, tokens, &contestant.name, Ok((&timing, multiply_adds))));
            }
            contestant.unload(&made);
        }
    }
    drop((spinner, late));
    if json {
        return output::object(&json!({
            "machine": super::machine(), "threads": threads, "hidden": shape.hidden, "width": shape.width,
            "experts": experts, "top": top, "measured": measured,
        }));
    }
    let head = format!(
        "{}; experts on {threads} thread{}: top {top} of {experts}, {} x {}",
        super::machine(),
        if threads.get() == 1 { "" } else { "s" },
        shape.hidden,
        shape.width
    );
    output::line(format!("{head}\n{}", lines.join("\n")))
}

fn figure(name: &str, tokens: usize, implementation: &str, outcome: Result<(&Timing, u64), &str>) -> Value {
    let mut object = json!({
        "name": name, "value": null, "unit": "G multiply-adds/s", "aim": null, "better": "higher", "met": null,
        "note": "", "tokens": tokens, "implementation": implementation,
    });
    match outcome {
        Ok((timing, multiply_adds)) => {
            let giga = |seconds: f64| multiply_adds as f64 / seconds / 1e9;
            object["value"] = json!(giga(timing.mean_seconds()));
            object["best"] = json!(giga(timing.best_seconds));
            object["microseconds_a_call"] = json!(timing.seconds / timing.calls as f64 * 1e6);
            object["rows_per_expert"] = json!(timing.rows_per_expert());
            object["calls"] = json!(timing.calls);
            object["note"] = json!("mean of the calls");
        }
        Err(reason) => object["note"] = json!(format!("skipped: {reason}")),
    }
    object
}
