//! `kvasir serve`: a model for many clients over HTTP, with local experts or with workers behind a hub.

mod options;

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kvasir_backbone::{Event, GenerateOptions, TokenId, generate};
use kvasir_serve::api::{self, Limits, ModelLanguage, Service};
use kvasir_serve::batched::Batched;
use kvasir_serve::engine_figures;
use kvasir_serve::scheduler::{Figures, Scheduler};
use kvasir_serve::swarm_view::SwarmView;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::local::Local;
use crate::output;
use crate::remote::{Membership, RemoteReport};
use crate::settings::Settings;
use crate::signals::EndSignals;

pub use options::{DEFAULT_LISTEN, ServeOptions, ServeSettings};

/// Threads that move bytes; texts are computed on others.
const NETWORK_THREADS: usize = 2;
/// Exit code of a program that SIGINT ended, for whoever asks twice.
const EXIT_INTERRUPTED: i32 = 130;
/// Tokens, and time, after which measuring this machine's rate is over.
const RATE_TOKENS: usize = 32;
const RATE_TIME: Duration = Duration::from_secs(3);

/// `kvasir serve`: serve until SIGINT or SIGTERM, then write to the end what is being written.
///
/// # Errors
/// Where a file or the address cannot be used, memory holds no text, or too few workers come.
pub fn command(settings: &Settings, options: &ServeOptions, json: bool) -> Result<()> {
    let decided = options.decide(settings)?;
    // An address in use is found before a large model is opened.
    drop(std::net::TcpListener::bind(decided.listen).with_context(|| cannot_listen(decided.listen))?);
    let local = Local::open(settings, &options.compute)?;
    let scheduling = decided.scheduling(local.model.config())?;
    let local_rate = if options.measure_local { rate_of(&local)? } else { None };

    let membership =
        options.remote.as_ref().map(|remote| Membership::join(settings, remote, &local)).transpose()?;
    let watcher = membership.as_ref().map(Membership::watcher);
    let fingerprint = membership.as_ref().map(|_| options::fingerprint(&local)).transpose()?;
    let remote = membership.as_ref().map(|membership| membership.experts(&local));
    let experts = local.experts();
    let Local { model, backbone, .. } = local;
    let backbone = Arc::new(backbone.with_context_limit(scheduling.context));
    let scheduler = match remote {
        Some(remote) => Scheduler::start(backbone, remote, scheduling.options),
        None => Scheduler::start(backbone, experts, scheduling.options),
    };
    let scheduler = scheduler.context("the operating system gives no thread")?;

    let names = decided.names(&model);
    let name = names.first().cloned().unwrap_or_default();
    let view = SwarmView::new(name, &model, watcher.clone()).with_local_rate(local_rate);
    let end_of_text = model.config().end_of_text.clone();
    let engine = Arc::new(Batched::new(
        scheduler,
        end_of_text,
        Box::new(move |figures: &Figures| view.report(figures)),
    ));
    let service = Service {
        registry: engine_figures::registry(&engine, watcher),
        engine: Arc::clone(&engine) as Arc<dyn api::Engine>,
        language: Arc::new(ModelLanguage::new(model)),
        settings: api::Settings {
            names,
            fingerprint,
            keys: decided.keys,
            origins: decided.origins,
            limits: Limits { texts: scheduling.texts(), ..Limits::default() },
        },
    };
    let workers = options.remote.as_ref().map_or(0, |remote| remote.workers);
    let served = serve_until_told(decided.listen, service, workers, json);
    let latest = engine.scheduler().figures();
    // Ends the thread that computes, and with it the last call to a worker. Whoever read texts is gone with the service.
    let figures = Arc::into_inner(engine).map_or(latest, Batched::finish);
    // Also after a failure: the workers are owed a last receipt.
    let tokens = usize::try_from(figures.tokens).unwrap_or(usize::MAX);
    let report = membership.map(|membership| membership.finish(tokens, (0, Duration::ZERO)));
    served?;
    say_what_was_done(&figures, report.as_ref(), json)
}

/// Serves until a signal says that it is enough, and until what was being written then is written.
fn serve_until_told(listen: SocketAddr, service: Service, workers: usize, json: bool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(NETWORK_THREADS)
        .thread_name("kvasir-serve")
        .enable_all()
        .build()
        .context("the operating system gives no threads")?;
    runtime.block_on(async {
        let mut signals = EndSignals::listen().context("cannot listen for SIGINT and SIGTERM")?;
        let listener = TcpListener::bind(listen).await.with_context(|| cannot_listen(listen))?;
        let address = listener.local_addr().with_context(|| cannot_listen(listen))?;
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(async move {
            signals.next().await;
            let _ = stop.send(());
            // Whoever asks twice does not want to wait for texts.
            signals.next().await;
            std::process::exit(EXIT_INTERRUPTED);
        });
        announce(address, &service, workers, json)?;
        let stopped = async move {
            // The sender lives until it has sent.
            let _ = stopped.await;
        };
        api::serve(listener, service, stopped).await;
        Ok(())
    })
}

/// Says where it listens, once it does.
fn announce(address: SocketAddr, service: &Service, workers: usize, json: bool) -> Result<()> {
    let (names, context) = (&service.settings.names, service.engine.context_limit());
    if json {
        return output::object(&json!({
            "listening": address.to_string(), "url": format!("http://{address}/v1"), "models": names,
            "context_length": context, "workers": workers, "keys_needed": service.settings.keys.is_some(),
        }));
    }
    let names: Vec<_> = names.iter().map(|name| output::name(name)).collect();
    output::remark(format!(
        "serving {} at http://{address}/v1, {context} tokens of context; page: http://{address}/",
        names.join(", ")
    ));
    Ok(())
}

fn say_what_was_done(figures: &Figures, report: Option<&RemoteReport>, json: bool) -> Result<()> {
    if json {
        return output::object(&json!({
            "event": "ended", "texts": {
                "finished": figures.finished, "cancelled": figures.cancelled, "failed": figures.failed,
            },
            "tokens": figures.tokens, "prompt_tokens": figures.prompt_rows, "passes": figures.passes, "remote": report,
        }));
    }
    output::remark(format!(
        "{} texts finished, {} cancelled, {} failed; {} tokens written",
        figures.finished, figures.cancelled, figures.failed, figures.tokens
    ));
    if let Some(report) = report {
        output::remark(report.to_string());
    }
    Ok(())
}

fn cannot_listen(address: SocketAddr) -> String {
    format!("cannot listen on {address}; name another address with --listen")
}

/// Tokens a second of one text with every expert computed here; nothing where not even two tokens came in time.
fn rate_of(local: &Local) -> Result<Option<f64>> {
    let options =
        GenerateOptions { stop: Vec::new(), ..GenerateOptions::greedy(&local.backbone, RATE_TOKENS) };
    let (mut sequence, mut experts) = (local.backbone.start(), local.experts());
    let begun = Instant::now();
    let mut on_event = |_: Event<'_>| {
        if begun.elapsed() < RATE_TIME { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let generation =
        generate(&local.backbone, &mut sequence, &[TokenId(0)], &options, &mut experts, &mut on_event)
            .context("cannot measure how fast this machine writes")?;
    // The first token comes out of the prompt's pass.
    let written = generation.tokens.len().saturating_sub(1);
    let seconds = generation.decode.as_secs_f64();
    Ok((written > 0 && seconds > 0.0).then(|| written as f64 / seconds))
}
