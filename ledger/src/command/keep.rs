//! `init` and `serve`: on the ledger's own machine.

use std::fs;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use kvasir_wire::key::PublicKey;
use kvasir_wire::note::NetworkName;
use serde_json::json;
use tracing_subscriber::EnvFilter;

use super::report;
use crate::config::{ConfigFlags, DEFAULT_CONFIG, LedgerToml};
use crate::server::{listen, serve, system_clock};
use crate::store::{Store, sqlite_version};

const STORE: &str = "ledger.db";

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvasir-ledger init /var/lib/kvasir-ledger --network atlas \\\n    \
                        --hub ed25519:<64 hex> --treasury ed25519:<64 hex> --settler ed25519:<64 hex>")]
pub(super) struct Init {
    /// Folder to make the ledger in; made where it does not exist
    folder: PathBuf,
    /// Name of the network
    #[arg(long, env = "KVASIR_LEDGER_NETWORK", value_name = "NAME")]
    network: NetworkName,
    /// Public key of a hub whose receipts are believed; can be given several times
    #[arg(long = "hub", value_name = "KEY")]
    hubs: Vec<PublicKey>,
    /// Public key of the treasury
    #[arg(long, value_name = "KEY")]
    treasury: Vec<PublicKey>,
    /// Public key of a settlement poller
    #[arg(long = "settler", value_name = "KEY")]
    settlers: Vec<PublicKey>,
    /// Address that `serve` will listen on
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kvasir-ledger serve --config /var/lib/kvasir-ledger/ledger.toml\n  \
                        kvasir-ledger serve --config ledger.toml --listen 127.0.0.1:0 --json")]
pub(super) struct Serve {
    #[command(flatten)]
    config: ConfigFlags,
    /// Address to listen on; port 0 takes a free one. For the LAN: the API has no TLS
    #[arg(long, env = "KVASIR_LEDGER_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Largest size of the database file in bytes; what would go beyond it is refused, nothing is damaged
    #[arg(long, env = "KVASIR_LEDGER_MAX_STORE_BYTES", value_name = "N")]
    max_store_bytes: Option<u64>,
}

impl Init {
    pub(super) fn run(self, json: bool) -> Result<()> {
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("{}: the folder cannot be made", self.folder.display()))?;
        let config = self.folder.join(DEFAULT_CONFIG);
        if config.exists() {
            bail!("{}: exists already; `init` never touches an existing ledger", config.display());
        }
        let store = self.folder.join(STORE);
        Store::create(&store, &self.network)?;
        let text = |keys: &[PublicKey]| keys.iter().map(ToString::to_string).collect();
        let file = LedgerToml {
            network: Some(self.network.to_string()),
            store: Some(STORE.into()),
            listen: self.listen,
            max_store_bytes: None,
            hubs: text(&self.hubs),
            treasury: text(&self.treasury),
            settlers: text(&self.settlers),
            retired: Vec::new(),
        };
        fs::write(&config, toml::to_string(&file)?)
            .with_context(|| format!("{}: cannot be written", config.display()))?;
        let object = json!({ "network": file.network, "config": config, "store": store });
        let mut sentence = format!(
            "Ledger of network {} made in {}.\nServe it: kvasir-ledger serve --config {}",
            self.network,
            self.folder.display(),
            config.display()
        );
        if self.hubs.is_empty() || self.treasury.is_empty() || self.settlers.is_empty() {
            sentence.push_str(
                "\nBefore that, add the missing public keys (hubs, treasury, settlers) to ledger.toml.",
            );
        }
        report(json, &object, &sentence)
    }
}

impl Serve {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let settings = self.config.settings()?;
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
        // A second subscriber in one process (tests) is not worth failing for.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .try_init();
        for (keys, name, lost) in [
            (&settings.keys.hubs, "hubs", "every receipt will be refused"),
            (&settings.keys.treasury, "treasury", "no price and no funding can be accepted"),
            (&settings.keys.settlers, "settlers", "nothing can be credited"),
        ] {
            if keys.is_empty() {
                tracing::warn!("`{name}` is empty in the settings: {lost}");
            }
        }
        let mut store = Store::open(&settings.store, &settings.network, settings.keys)?;
        if let Some(bytes) = self.max_store_bytes.or(settings.max_store_bytes) {
            store.limit_size(bytes)?;
        }
        tracing::info!(store = %settings.store.display(), sqlite = sqlite_version(), "opened");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(async {
            // Before the line that says it listens: whoever reads that line may stop us at once.
            let stop = stop_signal()?;
            let wanted = self.listen.unwrap_or(settings.listen);
            let (listener, address) =
                listen(wanted).await.with_context(|| format!("cannot listen on {wanted}; is it taken?"))?;
            report(json, &json!({ "listening": address.to_string() }), &format!("listening on {address}"))?;
            serve(listener, store, settings.network, system_clock(), stop).await?;
            Ok(())
        })
    }
}

#[cfg(unix)]
fn stop_signal() -> Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[cfg(not(unix))]
fn stop_signal() -> Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async {
        // Without a handler the service runs until it is killed; nothing acknowledged is lost by that.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}
