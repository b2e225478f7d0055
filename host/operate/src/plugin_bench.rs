//! `kvasir plugin bench`: microseconds an expert-row of one's own kernel, beside the bundled one. Made-up experts of one model's
//! shape, one thread, in the sandbox as everywhere.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kvasir_experts::measure::{
    Bench, Evaluator, ExpertShape, MAX_ROWS, MadeUpExperts, made_up_rows, on_threads, time, window,
};
use kvasir_experts::{ExpertRunner, Format, RunnerOptions};
use serde_json::{Value, json};

use crate::bench::kernels::Shape;
use crate::progress::{LateLine, Spinner};
use crate::{bench, output, plugin_subject};

/// Rows an expert, where none are named.
const USUAL_ROWS: [usize; 2] = [1, 16];
/// Experts that take turns where the shape says nothing.
const EXPERTS: usize = 8;
/// Longest time that may be asked for one figure.
const SECONDS_MAX: f64 = 600.0;

/// What `kvasir plugin bench` may be told.
pub struct BenchOptions {
    /// A kernel's folder, or a package.
    pub target: PathBuf,
    /// Formats; nothing means all of the kernel's.
    pub formats: Vec<Format>,
    /// Rows an expert is given at once; nothing means 1 and 16.
    pub rows: Vec<usize>,
    /// The experts' sides.
    pub shape: Shape,
    /// Seconds for each figure.
    pub seconds: f64,
}

/// `kvasir plugin bench`.
///
/// # Errors
/// Where there is no kernel, the options cannot be, or a kernel fails.
pub fn command(options: &BenchOptions, json: bool) -> Result<()> {
    if !(0.0..=SECONDS_MAX).contains(&options.seconds) {
        bail!("--seconds {} is not between 0 and {SECONDS_MAX}", options.seconds);
    }
    let rows = if options.rows.is_empty() { USUAL_ROWS.to_vec() } else { options.rows.clone() };
    if let Some(wrong) = rows.iter().find(|rows| !(1..=MAX_ROWS).contains(*rows)) {
        bail!("--rows {wrong} is not between 1 and {MAX_ROWS}");
    }
    let plugin = plugin_subject::read(&options.target)?;
    let own: Vec<Format> =
        plugin.manifest().formats.iter().filter_map(|name| bench::kernels::parse_format(name).ok()).collect();
    let formats = if options.formats.is_empty() { own } else { options.formats.clone() };
    let (spinner, late) = (Spinner::new("compiling"), LateLine::new("measuring; about a second a figure"));
    let runner = |plugin| ExpertRunner::new(plugin, RunnerOptions::default());
    let kernels = [
        (
            plugin.name().to_owned(),
            runner(&plugin).context("the kernel does not run; `kvasir plugin test` says more")?,
        ),
        ("bundled".to_owned(), runner(&plugin_subject::bundled()?)?),
    ];
    let mut measured = Vec::new();
    let mut lines = vec![format!(
        "{}, one thread, experts of {} x {}; microseconds an expert-row (median of the calls)",
        bench::machine(),
        options.shape.hidden,
        options.shape.width
    )];
    lines
        .push(format!("{:8} {:>6} {:>12} {:>12} {:>8}", "format", "rows", "this kernel", "bundled", "ratio"));
    for &format in &formats {
        let most = rows.iter().copied().max().unwrap_or(1);
        let shape = ExpertShape { format, hidden: options.shape.hidden, width: options.shape.width };
        let experts = MadeUpExperts::new(shape, options.shape.experts.unwrap_or(EXPERTS), most)?;
        for &rows in &rows {
            let mut figures = Vec::new();
            for (name, runner) in &kernels {
                spinner.say(format!("{format}, {rows} rows: {name}"));
                let figure = microseconds(runner, &experts, rows, options.seconds);
                measured.push(json_figure(name, shape, rows, &figure));
                figures.push(figure);
            }
            lines.push(line(format, rows, &figures));
        }
    }
    drop((spinner, late));
    if json {
        return output::object(
            &json!({"machine": bench::machine(), "plugin": plugin.name(), "measured": measured}),
        );
    }
    output::line(lines.join("\n"))
}

fn microseconds(
    runner: &ExpertRunner,
    experts: &MadeUpExperts,
    rows: usize,
    seconds: f64,
) -> Result<f64, String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let loaded = experts.load(runner).map_err(|error| told(&error));
    let timing = loaded.and_then(|()| {
        let bytes = made_up_rows(experts).map_err(|error| told(&error))?;
        // Enough work in a call that its own costs do not count.
        let at_once = (32 / rows).max(1);
        let measure = || {
            let bench = Bench::new(Evaluator::Runner(runner), experts, &bytes);
            time(&bench, Duration::from_secs_f64(seconds), |turn| {
                window(turn, at_once, experts.count(), rows)
            })
        };
        on_threads(NonZeroUsize::MIN, measure).and_then(|timing| timing).map_err(|error| told(&error))
    });
    experts.unload(runner);
    timing.map(|timing| timing.median_seconds * 1e6)
}

fn line(format: Format, rows: usize, figures: &[Result<f64, String>]) -> String {
    let text = |figure: &Result<f64, String>| match figure {
        Ok(figure) => format!("{figure:.2}"),
        Err(_) => "-".to_owned(),
    };
    let ratio = match figures {
        [Ok(own), Ok(bundled)] if *bundled > 0.0 => format!("{:.2}", own / bundled),
        _ => "-".to_owned(),
    };
    let reasons: Vec<String> = figures
        .iter()
        .filter_map(|figure| figure.as_ref().err())
        .map(|reason| format!("  skipped: {}", output::name(reason)))
        .collect();
    let figures: Vec<String> = figures.iter().map(|figure| format!("{:>12}", text(figure))).collect();
    format!("{:8} {rows:>6} {} {ratio:>8}{}", format.name(), figures.join(" "), reasons.concat())
}

fn json_figure(kernel: &str, shape: ExpertShape, rows: usize, figure: &Result<f64, String>) -> Value {
    json!({
        "name": format!("{} {}x{} {rows} rows {kernel}", shape.format, shape.hidden, shape.width),
        "value": figure.as_ref().ok(), "unit": "us an expert-row", "aim": null, "better": "lower", "met": null,
        "note": figure.as_ref().err().map_or("median of the calls".to_owned(), |reason| format!("skipped: {reason}")),
        "format": shape.format.name(), "rows": rows, "kernel": kernel,
    })
}
