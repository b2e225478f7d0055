//! `kvasir doctor`: at which hop a worker's way to a backbone ends, with the settings of `kvasir worker`.
//!
//! What lies on this machine is looked at here; the way through the network is `kvasir_link::doctor`'s. No kernel is run,
//! nothing is served, nothing is written.

pub mod machine;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use kvasir_experts::VerifiedPlugin;
use kvasir_link::TlsTrust;
use kvasir_link::doctor::{
    Deadlines, Hop, HopName, Outcome, Subject, check_address, check_keys, examine, shown,
};
use kvasir_link::unix_now;
use kvasir_wire::handshake::{Class, WorkerOffer};
use kvasir_wire::key::SecretKey;
use kvasir_wire::ticket::Ticket;
use serde_json::{Value, json};

use crate::choices::{DeviceChoice, IsolationChoice};
use crate::logging::sentence;
use crate::memory::expert_bytes;
use crate::remote::read_ticket;
use crate::serve_worker::refuse_plain_text;
use crate::settings::Settings;
use crate::{key_file, output, plugin_store, quarantine};

/// Variables by which programs are told to use an HTTP proxy for TLS, the likelier ones first.
const PROXY_VARIABLES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

/// What `kvasir doctor` may be told: what `kvasir worker` is, as far as it decides about the way.
pub struct DoctorOptions {
    /// `wss://HOST[:PORT]`.
    pub gateway: String,
    /// Ticket file.
    pub ticket: PathBuf,
    /// Secret key file that the ticket names.
    pub key: PathBuf,
    /// PEM certificates to believe instead of the public authorities.
    pub certificate_authority: Option<PathBuf>,
    /// Package of the expert kernel.
    pub plugin: Option<PathBuf>,
    /// Folder of trusted publishers' public keys.
    pub trust: Option<PathBuf>,
    /// What the worker would compute on.
    pub device: Option<DeviceChoice>,
    /// In which process the worker would compute.
    pub isolation: Option<IsolationChoice>,
    /// Most memory for experts, in MiB; none means half of what is free.
    pub memory_mebibytes: Option<u64>,
    /// Danger: accept a gateway without TLS that is not on this machine.
    pub plain_text: bool,
    /// Danger: be admitted although a worker with the same ticket would lose its place.
    pub replace_worker: bool,
}

/// `kvasir doctor`. Exit code 0 where no hop failed, else 1.
///
/// # Errors
/// Where there is nothing to run on, or standard output takes no more.
pub fn command(settings: &Settings, options: &DoctorOptions, json: bool) -> Result<ExitCode> {
    // The first that could not be written; the walk goes on to its orderly end.
    let mut written = Ok(());
    let mut tell = |hop: &Hop| {
        if !json && written.is_ok() {
            written = output::line(line_of(hop));
        }
    };
    let hops = walk(settings, options, &mut tell)?;
    written?;
    let failed = hops.iter().find(|hop| hop.outcome == Outcome::Failed).map(|hop| hop.name.name());
    let notes = machine::look();
    if json {
        let hops: Vec<Value> = hops.iter().map(object_of).collect();
        output::object(&json!({
            "passed": failed.is_none(), "failed": failed, "hops": hops,
            "machine": notes.iter().map(machine::Note::object).collect::<Vec<_>>(),
        }))?;
    } else {
        let mut lines: Vec<String> = notes.iter().map(ToString::to_string).collect();
        let unknown = hops.iter().any(|hop| hop.outcome == Outcome::NotReached && hop.name != HopName::Tls);
        lines.push(match failed {
            Some(name) => format!("the way ends at the hop {name}"),
            None if unknown => "no hop failed; not all were reached".to_owned(),
            None => "every hop passed: a worker with these settings would be paired".to_owned(),
        });
        output::line(lines.join("\n"))?;
    }
    Ok(if failed.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn walk(settings: &Settings, options: &DoctorOptions, tell: &mut dyn FnMut(&Hop)) -> Result<Vec<Hop>> {
    let (settings_hop, trust) = check_settings(options);
    tell(&settings_hop);
    let (keys_hop, ticket, key) = keys(options);
    tell(&keys_hop);
    let (plugin_hop, offer) = plugin(settings, options);
    tell(&plugin_hop);
    let mut hops = vec![settings_hop, keys_hop, plugin_hop];
    let Some(trust) = trust else {
        for name in HopName::NETWORK {
            let hop = Hop::not_reached(name, "the settings hop failed");
            tell(&hop);
            hops.push(hop);
        }
        return Ok(hops);
    };
    let subject = Subject {
        gateway: options.gateway.clone(),
        trust,
        ticket,
        key,
        offer,
        proxy_variable: proxy_variable(),
        replace_worker: options.replace_worker,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the operating system gives no event loop")?;
    hops.extend(runtime.block_on(examine(&subject, &Deadlines::default(), tell)));
    // A look-up that met its deadline may hang on; nobody waits for it.
    runtime.shutdown_background();
    Ok(hops)
}

/// Address and certificate authority, as a worker takes them.
fn check_settings(options: &DoctorOptions) -> (Hop, Option<TlsTrust>) {
    let began = Instant::now();
    let failed = |seen: String, remedy: &str| (Hop::failed(HopName::Settings, began, seen, remedy), None);
    let trust = match kvasir_worker::tls_trust(&options.gateway, options.certificate_authority.as_deref()) {
        Ok(trust) => trust,
        Err(error) => {
            let seen = shown(&sentence(&error.into()));
            return failed(
                seen,
                "name the file ca.pem that the gateway's operator gave you, or leave --ca out",
            );
        }
    };
    let hop = check_address(&options.gateway, &trust);
    if hop.outcome == Outcome::Failed {
        return (hop, None);
    }
    if refuse_plain_text(&options.gateway, options.plain_text).is_err() {
        return failed(
            "the ticket would travel unencrypted".to_owned(),
            "use wss://, or --danger-plain-text on a network you trust",
        );
    }
    (hop, Some(trust))
}

/// Ticket and key. One that can be read is given even where the other cannot: the way is then gone as far as it leads.
fn keys(options: &DoctorOptions) -> (Hop, Option<Ticket>, Option<SecretKey>) {
    let began = Instant::now();
    let unreadable = |error: &anyhow::Error, remedy: &str| {
        Hop::failed(HopName::Keys, began, shown(&sentence(error)), remedy)
    };
    let ticket = read_ticket(&options.ticket);
    let key = key_file::load(&options.key);
    let hop = match (&ticket, &key) {
        (Ok(ticket), Ok(key)) => check_keys(ticket, key, unix_now()),
        (Err(error), _) => {
            unreadable(error, "name the ticket file whole as the network's operator issued it")
        }
        (_, Err(error)) => unreadable(error, "name the key file for which the ticket was issued"),
    };
    let key = key.ok().filter(|key| {
        // With another key the hub would be asked for what this side refuses already.
        ticket.as_ref().is_ok_and(|ticket| ticket.claims().holder == key.public())
    });
    (hop, ticket.ok(), key)
}

/// The kernel that a worker would offer, verified and not run.
fn plugin(settings: &Settings, options: &DoctorOptions) -> (Hop, Option<WorkerOffer>) {
    let began = Instant::now();
    let failed = |seen: String, remedy: String| (Hop::failed(HopName::Plugin, began, seen, remedy), None);
    let granted = match granted(settings, options) {
        Ok(granted) => granted,
        Err(error) => {
            let remedy = "kvasir plugin policy explain names the check that fails".to_owned();
            return failed(shown(&sentence(&error)), remedy);
        }
    };
    let on_gpu = settings.device(options.device) == DeviceChoice::Gpu;
    let in_process = settings.isolation(options.isolation) == IsolationChoice::None;
    let (kernel, shader) = quarantine::quarantined(settings, granted.digest());
    if (kernel && !in_process) || (shader && on_gpu) {
        let seen = format!("{} is in quarantine", output::name(granted.name()));
        return failed(seen, quarantine::remedy(granted.digest()));
    }
    let class = if on_gpu { Class::Tolerance } else { Class::Exact };
    let offer = kvasir_worker::offer(&granted, class, expert_bytes(options.memory_mebibytes));
    let seen = format!(
        "{} {} is verified and granted, results of class {}",
        output::name(granted.name()),
        granted.version(),
        class.name()
    );
    (Hop::passed(HopName::Plugin, began, seen), Some(offer))
}

fn granted(settings: &Settings, options: &DoctorOptions) -> Result<VerifiedPlugin> {
    let plugin = plugin_store::verified(settings, options.plugin.as_deref(), options.trust.as_deref())?;
    settings.store().grant(&plugin)?;
    Ok(plugin)
}

/// The name of the variable that tells to use a proxy, if one is set; its value may hold a password.
fn proxy_variable() -> Option<String> {
    let is_set = |name: &&&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    PROXY_VARIABLES.iter().find(is_set).map(|name| (*name).to_owned())
}

fn line_of(hop: &Hop) -> String {
    let mark = match hop.outcome {
        Outcome::Passed => "ok    ",
        Outcome::Failed => "FAILED",
        Outcome::NotReached => "-     ",
    };
    let ms = hop.ms.map_or_else(|| " ".repeat(9), |ms| format!("{ms:>6} ms"));
    let mut line = format!("{mark} {:<8} {ms}  {}", hop.name.name(), hop.seen);
    if let Some(remedy) = &hop.remedy {
        let word = if hop.outcome == Outcome::Failed { "do" } else { "note" };
        line.push_str(&format!("\n       {word}: {remedy}"));
    }
    line
}

fn object_of(hop: &Hop) -> Value {
    json!({
        "name": hop.name, "outcome": hop.outcome, "ms": hop.ms, "seen": hop.seen, "what_to_do": hop.remedy,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn options(folder: &Path, gateway: &str) -> DoctorOptions {
        DoctorOptions {
            gateway: gateway.to_owned(),
            ticket: folder.join("no.ticket"),
            key: folder.join("no.key"),
            certificate_authority: None,
            plugin: Some(folder.join("no.kvp")),
            trust: None,
            device: None,
            isolation: None,
            memory_mebibytes: None,
            plain_text: false,
            replace_worker: false,
        }
    }

    #[test]
    fn what_is_missing_here_is_named_and_the_network_is_left_alone_where_the_address_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::load(None, Some(folder.path())).unwrap();
        for gateway in ["ws://gateway.example", "https://gateway.example", "wss://a:b@gateway.example"] {
            let mut told = 0;
            let hops = walk(&settings, &options(folder.path(), gateway), &mut |_| told += 1).unwrap();
            assert_eq!((hops.len(), told), (3 + HopName::NETWORK.len(), hops.len()));
            for (hop, name) in hops.iter().zip([HopName::Settings, HopName::Keys, HopName::Plugin]) {
                assert_eq!((hop.name, hop.outcome), (name, Outcome::Failed), "{gateway}");
                assert!(hop.remedy.is_some());
            }
            assert!(hops[3..].iter().all(|hop| hop.outcome == Outcome::NotReached));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
    }

    #[test]
    fn an_unreadable_certificate_authority_fails_the_settings() {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(folder.path(), "wss://gateway.example");
        options.certificate_authority = Some(folder.path().join("no.pem"));
        let (hop, trust) = check_settings(&options);
        assert!(hop.outcome == Outcome::Failed && hop.seen.contains("no.pem") && trust.is_none(), "{hop:?}");
    }

    #[test]
    fn a_line_names_the_hop_and_says_what_to_do() {
        let failed = Hop::failed(HopName::Tls, Instant::now(), "no TLS", "check the port");
        let line = line_of(&failed);
        assert!(line.starts_with("FAILED tls") && line.ends_with("do: check the port"), "{line}");
        assert_eq!(object_of(&failed)["outcome"], "failed");
        assert_eq!(object_of(&Hop::not_reached(HopName::Hub, "no"))["ms"], Value::Null);
    }
}
