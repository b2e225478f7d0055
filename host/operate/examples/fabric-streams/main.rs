//! Many streams through the scheduler of `kvasir serve`, with experts here and with experts on workers in turn, for
//! `scripts/bench-fabric`. Not part of the product.
//!
//! ```text
//! fabric-streams --home FOLDER --model FILE [--threads N] [--memory MIB] [--streams 1,8] [--prompt 16] [--tokens 32]
//!                [--seconds 1] [--rounds 1] [--max-waves 16]
//!                [--hub ws://HOST:PORT --ticket FILE --key FILE [--workers 1] [--remote-layers all] [--placement layers]
//!                 [--copies 0] [--verify 0,64] [--dispatch 1,512]]
//! ```
//!
//! Prints a JSON object a line: one for each number of streams, one for `--dispatch`, and at the end what the workers did.
//! Without `--hub` there is this machine alone.

mod arguments;
mod dispatch;
mod streams;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use kvasir_backbone::Backbone;
use kvasir_operate::local::Local;
use kvasir_operate::remote::Membership;
use kvasir_operate::settings::Settings;
use kvasir_operate::{logging, output};
use serde_json::json;

use crate::arguments::Arguments;
use crate::streams::{Rounds, load_experts};

fn main() -> Result<()> {
    logging::start(0, false)?;
    let arguments = Arguments::read(std::env::args().skip(1))?;
    let settings = Settings::load(None, Some(&arguments.home))?;
    let local = Local::open(&settings, &arguments.compute)?;
    load_experts(&local)?;
    let membership =
        arguments.remote.as_ref().map(|remote| Membership::join(&settings, remote, &local)).transpose()?;

    let layers = local.model.config().layers;
    let remote_layers = match &arguments.remote {
        Some(remote) => remote.layers.of(layers)?,
        None => Vec::new(),
    };
    let plan = &arguments.plan;
    // One that the schedulers share; `local` keeps its own.
    let backbone = Backbone::new(Arc::clone(&local.model), NonZeroUsize::new(local.backbone.threads()))?;
    let backbone = Arc::new(backbone.with_context_limit(plan.context()));
    let mut tokens = 0;
    for &streams in &arguments.streams {
        let (mut here, mut there) = (Rounds::default(), Rounds::default());
        for _ in 0..arguments.rounds {
            here.add(plan.measure(&backbone, local.experts(), streams, None)?);
            if let Some(membership) = &membership {
                let watcher = membership.watcher();
                there.add(plan.measure(&backbone, membership.experts(&local), streams, Some(&watcher))?);
            }
        }
        tokens += there.tokens();
        output::object(&json!({
            "event": "streams", "model": local.model.name(), "layers": layers, "remote_layers": remote_layers.len(),
            "workers": arguments.remote.as_ref().map_or(0, |remote| remote.workers), "streams": streams,
            "threads": local.backbone.threads(), "local": here.report(), "remote": there.report(),
        }))?;
    }
    if let Some(membership) = &membership
        && !arguments.dispatch.is_empty()
    {
        let layer = remote_layers.first().copied().context("no layer is remote")?;
        let measured = dispatch::measure(&local, membership, layer, &arguments.dispatch, plan.seconds)?;
        output::object(&json!({
            "event": "dispatch", "model": local.model.name(), "layer": layer, "batches": measured,
        }))?;
    }
    // The workers are owed a last receipt.
    if let Some(membership) = membership {
        let report = membership.finish(tokens, (0, Duration::ZERO));
        output::object(&json!({"event": "ended", "remote": report}))?;
    }
    Ok(())
}
