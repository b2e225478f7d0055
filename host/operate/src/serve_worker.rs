//! `kvasir worker`: lend this machine, and say what happens.

use std::io::IsTerminal;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use kvasir_experts::{Device, GpuError, KernelError, RunnerError, UNREADABLE_FAILURES, told_failures};
use kvasir_worker::{Event, EventSink, Fault, Worker, WorkerError, WorkerOptions};
use serde_json::{Value, json};

use crate::choices::{DeviceChoice, IsolationChoice};
use crate::local::{open_model, threads};
use crate::memory::expert_bytes;
use crate::remote::read_ticket;
use crate::settings::Settings;
use crate::{files, key_file, output, plugin_store, quarantine, watch_store};

/// Threads that move bytes; kernels have their own.
const NETWORK_THREADS: usize = 2;

/// What `kvasir worker` may be told.
pub struct WorkerSettings {
    /// `wss://HOST[:PORT]`.
    pub gateway: String,
    /// Ticket file.
    pub ticket: PathBuf,
    /// Secret key file that the ticket names.
    pub key: PathBuf,
    /// PEM certificates to believe instead of the public authorities.
    pub certificate_authority: Option<PathBuf>,
    /// Local copy of the model.
    pub model: Option<PathBuf>,
    /// Package of the expert kernel.
    pub plugin: Option<PathBuf>,
    /// Folder of trusted publishers' public keys.
    pub trust: Option<PathBuf>,
    /// What computes experts; none means the settings file's, or the processor.
    pub device: Option<DeviceChoice>,
    /// In which process kernels compute; none means the settings file's, or one of their own.
    pub isolation: Option<IsolationChoice>,
    /// Threads that compute.
    pub threads: Option<usize>,
    /// Most memory for experts, in MiB; none means half of what is free.
    pub memory_mebibytes: Option<u64>,
    /// Folder to keep signed receipts in; none means `receipts` in the data folder.
    pub receipts: Option<PathBuf>,
    /// Whether to open a second connection for weights where the gateway offers it.
    pub bulk_connection: bool,
    /// Danger: accept a gateway without TLS that is not on this machine.
    pub plain_text: bool,
    /// Danger, for demonstrations: flip one bit of this result, counted from 1.
    pub flip_bit_of_result: Option<u64>,
}

/// `kvasir worker`: serve until SIGINT or SIGTERM, or until refused for good.
///
/// # Errors
/// Where a file cannot be used, or the network refuses in a way that trying again cannot heal.
pub fn command(settings: &Settings, options: &WorkerSettings, json: bool) -> Result<()> {
    refuse_plain_text(&options.gateway, options.plain_text)?;
    let granted = plugin_store::granted(settings, options.plugin.as_deref(), options.trust.as_deref())?;
    let model = options.model.as_deref().map(open_model).transpose()?;
    let receipts = options.receipts.clone().unwrap_or_else(|| settings.data_folder.join("receipts"));
    files::writable_folder(&receipts).context("receipts could not be kept")?;
    let device = granted.device(settings.device(options.device), settings)?;
    let isolation = settings.isolation(options.isolation).open(settings)?;
    let (limits, plugin) = (granted.limits(), granted.plugin);
    let events: EventSink = if json {
        // Whoever read the lines may go: calls are answered all the same.
        Arc::new(|event| drop(output::object(&as_json(&event))))
    } else {
        for_people()
    };
    let events = watch_store::recorded(settings, events);
    let (on_gpu, in_use) = (matches!(device, Device::Gpu(_)), plugin.digest());
    let worker = Worker::new(WorkerOptions {
        device,
        isolation,
        limits,
        certificate_authority: options.certificate_authority.clone(),
        model: model.map(Arc::new),
        store_bytes: expert_bytes(options.memory_mebibytes),
        threads: Some(threads(settings, options.threads)?),
        paystubs: Some(receipts),
        bulk_connection: options.bulk_connection,
        events: Arc::clone(&events),
        danger_fault: options.flip_bit_of_result.map(|result| Fault::FlipBit { result }),
        ..WorkerOptions::new(
            options.gateway.as_str(),
            read_ticket(&options.ticket)?,
            key_file::load(&options.key)?,
            plugin,
        )
    })
    .map_err(with_remedy)?;
    // A package named on the command line is what it is; the active one of the store is what the operator makes it.
    let named = settings.plugin(options.plugin.as_deref()).is_some()
        || settings.trust_folder(options.trust.as_deref()).is_some();
    let watching = (!named)
        .then(|| watch_store::offer_active(settings, in_use, worker.switch(), on_gpu, Arc::clone(&events)));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(NETWORK_THREADS)
        .enable_all()
        .build()
        .context("the operating system gives no threads")?;
    let summary = runtime.block_on(async {
        let (stop, stopped) = kvasir_worker::stop();
        tokio::spawn(async move {
            asked_to_end().await;
            stop.stop();
            // Whoever asks twice does not want to wait for the last receipt.
            asked_to_end().await;
            std::process::exit(130);
        });
        worker.run(stopped).await
    });
    drop(watching);
    let summary = summary.map_err(with_remedy)?;
    if json {
        drop(output::object(&json!({
            "event": "ended", "sessions": summary.sessions, "results": summary.results,
            "receipted_bytes": summary.receipted_bytes, "nanokvr": summary.nano_kvr,
        })));
        Ok(())
    } else {
        output::line(format!(
            "{} sessions, {} results, {} bytes receipted, {} nanoKVR",
            summary.sessions, summary.results, summary.receipted_bytes, summary.nano_kvr
        ))
    }
}

/// Where a plugin is in quarantine, how to go on.
fn with_remedy(error: WorkerError) -> anyhow::Error {
    let plugin = match &error {
        WorkerError::Quarantined { plugin } => plugin.to_string(),
        WorkerError::Plugin {
            source:
                RunnerError::Gpu(GpuError::Quarantined { plugin, .. })
                | RunnerError::Process(KernelError::Quarantined { plugin, .. }),
            ..
        } => plugin.to_string(),
        _ => return error.into(),
    };
    anyhow::Error::from(error).context(quarantine::remedy(plugin))
}

/// A ticket sent in clear could be read on the way, so `ws://` is for this machine alone unless danger is asked for.
pub(crate) fn refuse_plain_text(gateway: &str, allowed: bool) -> Result<()> {
    let Some(rest) = gateway.strip_prefix("ws://") else { return Ok(()) };
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host).trim_matches(['[', ']']);
    let loopback = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    if !loopback && !allowed {
        bail!(
            "{gateway} would carry the ticket unencrypted: use wss://, or --danger-plain-text on a network you trust"
        );
    }
    Ok(())
}

/// Until SIGINT or SIGTERM.
async fn asked_to_end() {
    let terminate = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(error) => {
                tracing::warn!(%error, "SIGTERM is not heard; use SIGINT");
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminate => {}
    }
}

/// One JSON object a line, each with the field `event`.
fn as_json(event: &Event) -> Value {
    match event {
        Event::Connected { gateway } => json!({"event": "connected", "gateway": gateway}),
        Event::Proven { plugin, class, device, software, vectors, vectors_on_device } => json!({
            "event": "proven", "plugin": plugin, "class": class, "device": device, "software": software,
            "vectors": vectors, "vectors_on_device": vectors_on_device,
        }),
        Event::Confined { plugin, process, no_new_privileges, seccomp, memory_limit, landlock } => json!({
            "event": "confined", "plugin": plugin, "process": process, "no_new_privileges": no_new_privileges,
            "seccomp": seccomp, "memory_limit": memory_limit, "landlock": landlock,
        }),
        Event::Lost { experts, reason } => json!({"event": "lost", "experts": experts, "reason": reason}),
        Event::Quarantined { plugin, failures } => json!({
            "event": "quarantined", "plugin": plugin,
            "failures": (*failures != UNREADABLE_FAILURES).then_some(failures),
            "what_to_do": quarantine::remedy(plugin),
        }),
        Event::Paired { session, model, plugin, class } => json!({
            "event": "paired", "session": session, "model": model, "plugin": plugin, "class": class,
        }),
        Event::Refused { code, reason, can_heal } => {
            json!({"event": "refused", "code": code, "reason": reason, "can_heal": can_heal})
        }
        Event::Reconnecting { reason, wait } => {
            json!({"event": "reconnecting", "reason": reason, "wait_ms": wait.as_millis() as u64})
        }
        Event::Assigned { experts } => json!({"event": "assigned", "experts": experts}),
        Event::Holding { experts, assigned, bytes } => {
            json!({"event": "holding", "experts": experts, "assigned": assigned, "bytes": bytes})
        }
        Event::ExpertRefused { layer, expert, reason } => {
            json!({"event": "expert_refused", "layer": layer, "expert": expert, "reason": reason})
        }
        Event::CallServed { results, layer, rows, bytes_up, bytes_down } => json!({
            "event": "call_served", "results": results, "layer": layer, "rows": rows, "bytes_up": bytes_up,
            "bytes_down": bytes_down,
        }),
        Event::Receipt { sequence, bytes, calls, excluded, nano_kvr, last } => json!({
            "event": "receipt", "sequence": sequence, "bytes": bytes, "calls": calls, "excluded": excluded,
            "nanokvr": nano_kvr, "last": last,
        }),
        Event::ReceiptDisputed { reason } => json!({"event": "receipt_disputed", "reason": reason}),
        Event::Drained => json!({"event": "drained"}),
        other => watch_store::as_json(other)
            .unwrap_or_else(|| json!({"event": "other", "text": format!("{other:?}")})),
    }
}

/// A line for what happens once, and on a terminal a moving one for what happens all the time.
fn for_people() -> EventSink {
    let bar =
        if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    Arc::new(move |event| {
        let line = match event {
            Event::CallServed { results, bytes_up, bytes_down, .. } => {
                bar.set_message(format!("{results} calls served, {} bytes", bytes_up + bytes_down));
                return;
            }
            Event::Holding { experts, assigned, bytes } if experts < assigned => {
                bar.set_message(format!("{experts} of {assigned} experts, {bytes} bytes"));
                return;
            }
            Event::Holding { experts, bytes, .. } => format!("holding {experts} experts, {bytes} bytes"),
            Event::Connected { gateway } => format!("connected to {gateway}, waiting for a backbone"),
            Event::Proven { class, device, software, vectors, vectors_on_device, .. } => {
                let on_device = device.map_or_else(String::new, |device| {
                    let software = if software { ", which is no GPU but software" } else { "" };
                    format!(
                        ", {vectors_on_device} within their tolerance on {}{software}",
                        output::name(&device)
                    )
                });
                format!("{vectors} golden vectors passed on the CPU{on_device}; results are of class {class}")
            }
            Event::Confined { landlock, .. } => {
                let landlock = match landlock {
                    0 => "landlock is absent from this system".to_owned(),
                    version => format!("landlock version {version}"),
                };
                format!("the kernel computes in a process without network and files (seccomp, {landlock})")
            }
            Event::Lost { experts, reason } => {
                format!("{experts} experts lost, to be loaded again: {reason}")
            }
            Event::Quarantined { plugin, failures } => format!(
                "plugin {plugin} {} and is not run any more; {}",
                told_failures(failures, "on this machine"),
                quarantine::remedy(&plugin)
            ),
            Event::Paired { session, class, .. } => {
                format!("session {} begins, class {class}", session.get(..8).unwrap_or(&session))
            }
            Event::Refused { reason, can_heal, .. } => {
                format!("refused: {reason}{}", if can_heal { " (trying again)" } else { "" })
            }
            Event::Reconnecting { reason, wait } => {
                format!("{reason}; next attempt in {:.1} s", wait.as_secs_f64())
            }
            Event::Assigned { experts } => format!("asked to hold {experts} experts"),
            Event::ExpertRefused { layer, expert, reason } => {
                format!("expert {expert} of layer {layer}: {reason}")
            }
            Event::Receipt { bytes, nano_kvr, .. } => {
                format!("receipt: {bytes} bytes = {nano_kvr} nanoKVR at the founding price so far")
            }
            Event::ReceiptDisputed { reason } => format!("receipt not countersigned: {reason}"),
            Event::Drained => "session ended in order".to_owned(),
            Event::CandidateOffered { name, plugin, .. } => {
                format!("{name} ({}) is to take over: proving it", short(&plugin))
            }
            Event::CandidateRejected { plugin, reason } => {
                format!("plugin {} does not take over: {reason}", short(&plugin))
            }
            Event::CandidatePassed { plugin, calls, side_by_side, reason } => format!(
                "plugin {} answered {calls} live calls as the one in use does; {}: {reason}",
                short(&plugin),
                if side_by_side {
                    "its session begins before the old one ends"
                } else {
                    "the old session ends first"
                }
            ),
            Event::Switched { to, .. } => format!("plugin {} is in use now", short(&to)),
            Event::Unloaded { plugin } => format!("plugin {} is unloaded", short(&plugin)),
            other => format!("{other:?}"),
        };
        bar.suspend(|| output::remark(&line));
    })
}

/// The beginning of a digest.
fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_does_not_travel_in_clear_beyond_this_machine() {
        for fine in
            ["wss://gateway.example", "ws://127.0.0.1:80", "ws://localhost/", "ws://[::1]:7300/v1/worker"]
        {
            assert!(refuse_plain_text(fine, false).is_ok(), "{fine}");
        }
        for clear in ["ws://gateway.example", "ws://10.0.0.1:80", "ws://127.0.0.1.example:80"] {
            assert!(refuse_plain_text(clear, false).unwrap_err().to_string().contains("wss://"), "{clear}");
            assert!(refuse_plain_text(clear, true).is_ok());
        }
    }
}
