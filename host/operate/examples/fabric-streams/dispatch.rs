//! Calls of one layer's experts alone, one after the other: what a row costs in small calls and in large ones.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use kvasir_backbone::{
    Call, CallId, Experts, ExpertsError, Feed, LayerIndex, Progress, TokenId, Wanted, call_blocking,
};
use kvasir_experts::LocalExperts;
use kvasir_operate::local::Local;
use kvasir_operate::remote::Membership;
use serde_json::{Value, json};

/// Calls of a size before those that count: their deadline is learnt from the first ones.
const WARM_UP: usize = 5;

/// Calls of each size to the workers and to this machine's experts, for so long each. The rows are those of a text.
///
/// # Errors
/// Where a call fails, or the model's context does not hold the rows.
pub fn measure(
    local: &Local,
    membership: &Membership,
    layer: u16,
    sizes: &[usize],
    seconds: f64,
) -> Result<Vec<Value>> {
    let most = sizes.iter().copied().max().unwrap_or(1);
    let call = record(local, LayerIndex(layer), most)?;
    let (mut here, mut there) = (local.experts(), membership.experts(local));
    let mut measured = Vec::new();
    for &rows in sizes {
        let rate = |experts: &mut dyn Experts| {
            local.backbone.within(|| rows_per_second(experts, &call, rows, seconds))
        };
        measured.push(json!({
            "rows": rows, "rows_per_second": rate(&mut there)?, "local_rows_per_second": rate(&mut here)?,
        }));
    }
    Ok(measured)
}

fn rows_per_second(experts: &mut dyn Experts, call: &Call, rows: usize, seconds: f64) -> Result<f64> {
    let places = call.count() - rows + 1;
    let mut calls = 0;
    let mut ask = || {
        calls += 1;
        call_blocking(experts, part(call, calls % places, rows)).map(drop)
    };
    for _ in 0..WARM_UP {
        ask()?;
    }
    let (begun, mut counted) = (Instant::now(), 0);
    while counted < WARM_UP || begun.elapsed().as_secs_f64() < seconds {
        ask()?;
        counted += 1;
    }
    Ok((counted * rows) as f64 / begun.elapsed().as_secs_f64())
}

/// Rows of a call, from one on.
fn part(call: &Call, from: usize, rows: usize) -> Call {
    let bytes = call.rows.len() / call.count();
    Call {
        layer: call.layer,
        row_format: call.row_format,
        rows: Arc::from(&call.rows[from * bytes..(from + rows) * bytes]),
        picks: call.picks[from..from + rows].to_vec(),
    }
}

/// The call to a layer's experts that a text of so many tokens makes.
fn record(local: &Local, layer: LayerIndex, rows: usize) -> Result<Call> {
    let vocabulary = local.model.config().vocabulary;
    let tokens: Vec<TokenId> =
        (0..rows as u32).map(|at| TokenId(at.wrapping_mul(2_654_435_761) % vocabulary)).collect();
    let mut recorder = Recorder { experts: local.experts(), layer, kept: None };
    let mut sequence = local.backbone.start();
    let mut feeds = [Feed { sequence: &mut sequence, tokens: &tokens, logits: Wanted::None }];
    local.backbone.forward(&mut feeds, &mut recorder).context("no text of so many tokens")?;
    let call = recorder.kept.with_context(|| format!("layer {} asks no experts", layer.0))?;
    if call.count() != rows {
        bail!("a text of {rows} tokens asked for {} rows of layer {}", call.count(), layer.0);
    }
    Ok(call)
}

/// Keeps the latest call to one layer.
struct Recorder {
    experts: LocalExperts,
    layer: LayerIndex,
    kept: Option<Call>,
}

impl Experts for Recorder {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        if call.layer == self.layer {
            self.kept = Some(call.clone());
        }
        self.experts.submit(call)
    }

    fn poll(&mut self, deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        self.experts.poll(deadline)
    }

    fn cancel(&mut self, call: CallId) {
        self.experts.cancel(call);
    }
}
