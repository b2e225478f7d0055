//! `witness`: cosigns the heads of logs that it is told of.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::{KeyName, Verifier};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::keep::{start_logging, stop_signal};
use super::report;
use crate::config::{read_secret, write_secret};
use crate::files::{Existing, Readers, read_regular_text, write_whole};
use crate::log::CosignerKey;
use crate::server::{listen, system_clock};
use crate::witness::{Witness, service};

const SETTINGS: &str = "witness.toml";
const KEY: &str = "witness.key";
const SEEN: &str = "seen";
const DEFAULT_LISTEN: &str = "127.0.0.1:9751";
const MAX_SETTINGS_BYTES: u64 = 1024 * 1024;

/// Cosign the heads of logs, each only if it extends what was cosigned before
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-ledger witness init w --name witness.example --log 'kvasir.example/atlas/...+...+...'\n  \
                        kvasir-ledger witness serve w --listen 0.0.0.0:9751"
)]
pub(super) struct WitnessCommand {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a witness: a folder with a key, settings, and room for what it sees
    #[command(
        after_help = "Example:\n  kvasir-ledger witness init w --name witness.example --log \"$(cat log.vkey)\"\n\n\
                            The line that it prints goes into auditors' policies. Never restore `seen` from a backup: a \
                            witness that forgot\nwhat it saw can vouch for two histories; make a new one with a new key."
    )]
    Init {
        /// Folder to make it in
        folder: PathBuf,
        /// Its name, such as a host name
        #[arg(long, value_name = "NAME")]
        name: KeyName,
        /// Verifier key of a log to watch; can be given several times, also in witness.toml later
        #[arg(long = "log", value_name = "VKEY")]
        logs: Vec<String>,
    },
    /// Serve until SIGTERM or Ctrl-C
    #[command(after_help = "Example:\n  kvasir-ledger witness serve w --listen 127.0.0.1:0 --json\n\n\
                            One process serves a folder at a time; a second one is refused.")]
    Serve {
        /// The witness's folder
        folder: PathBuf,
        /// Address to listen on; put a web server with TLS before it on the internet
        #[arg(long, env = "KVASIR_WITNESS_LISTEN", value_name = "ADDRESS")]
        listen: Option<SocketAddr>,
    },
    /// Print its name and public key, as policies write them
    #[command(after_help = "Example:\n  kvasir-ledger witness show w")]
    Show {
        /// The witness's folder
        folder: PathBuf,
    },
}

/// `witness.toml`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The witness's name.
    name: String,
    /// Address to listen on.
    listen: Option<SocketAddr>,
    /// Verifier keys of the logs that it watches.
    logs: Vec<String>,
}

impl WitnessCommand {
    pub(super) fn run(self, json: bool) -> Result<()> {
        match self.command {
            Verb::Init { folder, name, logs } => init(&folder, &name, logs, json),
            Verb::Show { folder } => show(&read(&folder)?, json),
            Verb::Serve { folder, listen } => serve_until_told(&folder, listen, json),
        }
    }
}

fn init(folder: &Path, name: &KeyName, logs: Vec<String>, json: bool) -> Result<()> {
    verifiers(&logs)?;
    let settings = folder.join(SETTINGS);
    if settings.exists() {
        bail!("{}: exists already; `witness init` never touches an existing witness", settings.display());
    }
    let seen = folder.join(SEEN);
    fs::create_dir_all(&seen).with_context(|| format!("{}: cannot be made", seen.display()))?;
    let key = folder.join(KEY);
    if !key.exists() {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).context("the system gives no randomness")?;
        write_secret(&key, &SecretKey::from_seed(seed))?;
    }
    let text = toml::to_string(&Settings { name: name.to_string(), listen: None, logs })?;
    // The settings come last: where this stops before them, running it again finishes it.
    write_whole(&settings, text.as_bytes(), Existing::Keep, Readers::Anyone)
        .with_context(|| format!("{}: cannot be written", settings.display()))?;
    show(&read(folder)?, json)
}

fn show(Parts { name, key, .. }: &Parts, json: bool) -> Result<()> {
    let key = CosignerKey::new(name.clone(), key.public());
    let object = json!({ "name": key.name().to_string(), "vkey": key.to_string() });
    report(json, &object, &format!("witness {} {key}", key.name()))
}

fn serve_until_told(folder: &Path, address: Option<SocketAddr>, json: bool) -> Result<()> {
    start_logging()?;
    let Parts { name, key, logs, listen: listed, seen } = read(folder)?;
    if logs.is_empty() {
        tracing::warn!("no logs in {SETTINGS}: every head will be refused");
    }
    let witness = Witness::open(name, key, logs, seen)?;
    let default: SocketAddr = DEFAULT_LISTEN.parse().context("the default address")?;
    let wanted = address.or(listed).unwrap_or(default);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let stop = stop_signal()?;
        let (listener, address) =
            listen(wanted).await.with_context(|| format!("cannot listen on {wanted}; is it taken?"))?;
        let (object, line) = (json!({ "listening": address.to_string() }), format!("listening on {address}"));
        // Serving is the work; whoever started it need not care to read the address.
        if let Err(error) = report(json, &object, &line) {
            tracing::warn!("{line}; {error:#}");
        }
        service::serve(listener, witness, system_clock(), stop).await;
        Ok(())
    })
}

/// What a witness's folder holds.
struct Parts {
    name: KeyName,
    key: SecretKey,
    logs: Vec<Verifier>,
    listen: Option<SocketAddr>,
    /// Where it keeps what it saw.
    seen: PathBuf,
}

fn read(folder: &Path) -> Result<Parts> {
    let path = folder.join(SETTINGS);
    let text = read_regular_text(&path, MAX_SETTINGS_BYTES).with_context(|| {
        format!("{}: cannot be read; `kvasir-ledger witness init` makes one", path.display())
    })?;
    let settings: Settings =
        toml::from_str(&text).with_context(|| format!("{}: no {SETTINGS}", path.display()))?;
    let name =
        settings.name.parse().with_context(|| format!("{}: name `{}`", path.display(), settings.name))?;
    let seen = folder.join(SEEN);
    // A witness whose memory is gone must not start as if it had seen nothing.
    if !seen.is_dir() {
        bail!(
            "{}: is missing, so what this witness saw is lost; make a new witness with a new key",
            seen.display()
        );
    }
    let key = read_secret(&folder.join(KEY))?;
    Ok(Parts { name, key, logs: verifiers(&settings.logs)?, listen: settings.listen, seen })
}

fn verifiers(logs: &[String]) -> Result<Vec<Verifier>> {
    logs.iter().map(|log| log.trim().parse().with_context(|| format!("verifier key `{log}`"))).collect()
}
