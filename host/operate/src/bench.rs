//! `kvasir bench`: tokens per second of prefill and decode, through the sandboxed kernel as in `kvasir run`.
//!
//! The experts alone are measured by [`kernels`] and [`layer`].

pub mod contestant;
pub mod kernels;
pub mod layer;
pub mod memory_read;
mod table;

use std::time::Instant;

use anyhow::{Context, Result, bail};
use kvasir_backbone::{Feed, Wanted, greedy};
pub use kvasir_experts::Format;
use kvasir_model::TokenId;
use serde_json::{Value, json};

use crate::local::{ComputeOptions, Local};
use crate::output;
use crate::progress::Spinner;
use crate::settings::Settings;

/// Every format that experts may have.
pub const FORMATS: &[Format] = &Format::ALL;

/// What `kvasir bench` may be told.
pub struct BenchOptions {
    /// Model, kernel, threads.
    pub compute: ComputeOptions,
    /// Tokens of the prefill.
    pub prompt_tokens: usize,
    /// Tokens of the decode.
    pub tokens: usize,
    /// Runs after one that is thrown away.
    pub runs: usize,
}

/// `kvasir bench`.
///
/// # Errors
/// Where the model cannot be used, or the lengths do not fit its context.
pub fn command(settings: &Settings, options: &BenchOptions, json: bool) -> Result<()> {
    let local = Local::open(settings, &options.compute)?;
    let limit = local.backbone.context_limit();
    if options.prompt_tokens == 0 || options.tokens == 0 || options.runs == 0 {
        bail!("--prompt-tokens, --tokens and --runs are at least 1");
    }
    for (option, tokens) in [("--prompt-tokens", options.prompt_tokens), ("--tokens", options.tokens)] {
        if tokens > limit {
            bail!("{option} {tokens} is too many: the model's context holds {limit} tokens");
        }
    }
    let mut prefill = Vec::new();
    let mut decode = Vec::new();
    let spinner = Spinner::new("measuring");
    for run in 0..=options.runs {
        spinner.say(format!("run {run} of {}", options.runs));
        let figures = (prefill_rate(&local, options.prompt_tokens)?, decode_rate(&local, options.tokens)?);
        if run > 0 {
            prefill.push(figures.0);
            decode.push(figures.1);
        }
    }
    drop(spinner);
    let measured = [("prefill", &prefill), ("decode", &decode)].map(|(name, rates)| summary(name, rates));
    if json {
        output::object(&json!({
            "machine": machine(), "model": local.model.name(), "threads": local.backbone.threads(),
            "prompt_tokens": options.prompt_tokens, "tokens": options.tokens, "measured": measured,
        }))
    } else {
        let mut lines = vec![format!(
            "{} on {} ({} threads)",
            output::name(local.model.name()),
            machine(),
            local.backbone.threads()
        )];
        for figure in measured {
            let number = |name: &str| figure[name].as_f64().unwrap_or_default();
            let name = figure["name"].as_str().unwrap_or_default();
            lines.push(format!(
                "{name:8} {:8.0} tokens/s median, {:8.0} best",
                number("value"),
                number("best")
            ));
        }
        output::line(lines.join("\n"))
    }
}

/// Tokens per second of reading a text of `count` tokens in one go.
fn prefill_rate(local: &Local, count: usize) -> Result<f64> {
    let vocabulary = local.model.config().vocabulary;
    let tokens: Vec<TokenId> =
        (0..count).map(|i| TokenId((i as u32).wrapping_mul(2_654_435_761) % vocabulary)).collect();
    let mut experts = local.experts();
    let mut sequence = local.backbone.start();
    let begun = Instant::now();
    local.backbone.forward(
        &mut [Feed { sequence: &mut sequence, tokens: &tokens, logits: Wanted::Last }],
        &mut experts,
    )?;
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Tokens per second of writing `count` tokens, one after the other.
fn decode_rate(local: &Local, count: usize) -> Result<f64> {
    let mut experts = local.experts();
    let mut sequence = local.backbone.start();
    let mut token = TokenId(0);
    let begun = Instant::now();
    local.backbone.within(|| -> Result<()> {
        for _ in 0..count {
            let logits = local.backbone.forward(
                &mut [Feed { sequence: &mut sequence, tokens: &[token], logits: Wanted::Last }],
                &mut experts,
            )?;
            token = greedy(logits.first().and_then(|logits| logits.last()).context("a pass without logits")?);
        }
        Ok(())
    })?;
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

fn summary(name: &str, runs: &[f64]) -> Value {
    let mut rates = runs.to_vec();
    rates.sort_by(f64::total_cmp);
    json!({
        "name": name, "value": rates[rates.len() / 2], "best": rates[rates.len() - 1], "unit": "tokens/s",
        "aim": null, "better": "higher", "met": null, "note": "median of the runs", "runs": runs,
    })
}

/// The processor's name and the number of cores.
pub fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or(std::env::consts::ARCH, |rest| rest.trim_start_matches([' ', '\t', ':']));
    format!("{name}, {} cores", std::thread::available_parallelism().map_or(1, usize::from))
}
