//! `init` and `serve`: on the ledger's own machine.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use kvasir_wire::key::{PublicKey, SecretKey};
use kvasir_wire::note::{KeyName, NetworkName, Verifier};
use serde_json::json;
use tracing_subscriber::EnvFilter;

use super::{report, unix_now};
use crate::clock_watch::{ClockWatch, steady_clock};
use crate::config::{
    ConfigFlags, DEFAULT_CONFIG, HEAD, LEDGER_KEY, LOG_KEY, LOG_VKEY, LedgerToml, check_roles, read_secret,
    write_secret,
};
use crate::files::{Existing, Readers, hold, sync_folder_of, write_whole};
use crate::head::HeadFile;
use crate::log::log_verifier;
use crate::plain_text::LineWriter;
use crate::publish::Publisher;
use crate::refusal::LedgerError;
use crate::server::{Beside, ServeLimits, listen, serve_beside, system_clock};
use crate::space::{SpaceMark, free_space};
use crate::store::{Keys, Store, name_origin, sqlite_version};

const STORE: &str = "ledger.db";
/// Ending of the file beside the database that its server holds.
const LOCK: &str = ".lock";
/// What is logged: error, warn, info, debug, or a filter such as kvasir_ledger=debug.
const LOG_VARIABLE: &str = "KVASIR_LOG";

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
                        kvasir-ledger serve --config ledger.toml --listen 127.0.0.1:0 --json\n\n\
                        KVASIR_LOG says what is logged on standard error: error, warn, info (the default), debug, or a filter\n\
                        such as kvasir_ledger=debug.")]
pub(super) struct Serve {
    #[command(flatten)]
    config: ConfigFlags,
    /// Address to listen on; port 0 takes a free one. For the LAN: the API has no TLS
    #[arg(long, env = "KVASIR_LEDGER_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Largest size of the database file in bytes; what would go beyond it is refused, nothing is damaged
    #[arg(long, env = "KVASIR_LEDGER_MAX_STORE_BYTES", value_name = "N")]
    max_store_bytes: Option<u64>,
    /// Bytes that stay free on the disk of the database [default: 256 MiB]; with fewer, notes are refused. 0: never
    #[arg(long, env = "KVASIR_LEDGER_MIN_FREE_BYTES", value_name = "N")]
    min_free_bytes: Option<u64>,
    /// Believe the clock at the start, although the latest entry is more than 30 days old
    #[arg(long)]
    trust_clock: bool,
    /// Folder of probe records to serve under /probes, as `kvasir run --probes` writes them; anybody may read them
    #[arg(long, env = "KVASIR_LEDGER_PROBES", value_name = "FOLDER")]
    probes: Option<PathBuf>,
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
        if store.exists() {
            check_is_empty(&store, &self.network)?;
        }
        check_roles(&Keys {
            hubs: self.hubs.clone(),
            treasury: self.treasury.clone(),
            settlers: self.settlers.clone(),
            retired: Vec::new(),
        })?;
        let text = |keys: &[PublicKey]| keys.iter().map(ToString::to_string).collect();
        let file = LedgerToml {
            network: Some(self.network.to_string()),
            store: Some(STORE.into()),
            listen: self.listen,
            hubs: text(&self.hubs),
            treasury: text(&self.treasury),
            settlers: text(&self.settlers),
            ..LedgerToml::default()
        };
        // The settings come first under another name, the database second, the settings' own name last: wherever this stops,
        // running `init` again finishes it.
        let unfinished = config.with_extension("toml.partial");
        write_synced(&unfinished, toml::to_string(&file)?.as_bytes())
            .with_context(|| format!("{}: cannot be written; nothing was made", unfinished.display()))?;
        if !store.exists() {
            Store::create(&store, &self.network)?;
        }
        let log = make_log(&self.folder, &self.network)?;
        name_origin(&store, &self.network, log.name())?;
        let named = fs::rename(&unfinished, &config).and_then(|()| {
            // A name that the next power failure may take back is none yet: the next `init` has to find its work unfinished.
            sync_folder_of(&config).inspect_err(|_| drop(fs::rename(&config, &unfinished)))
        });
        named
            .with_context(|| format!("{}: cannot be written; run the same `init` again", config.display()))?;
        let object = json!({
            "network": file.network,
            "config": config.display().to_string(),
            "store": store.display().to_string(),
            "log": log.name().to_string(),
            "vkey": log.to_string(),
        });
        let mut sentence = format!(
            "Ledger of network {} made in {}.\nAuditors verify its log with {log}\nServe it: kvasir-ledger serve --config {}",
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

/// Makes what the public log needs: two keys, a name drawn at random, a head that has vouched for nothing. What is there already
/// stays, so that an `init` that was cut off can be run again.
pub(super) fn make_log(folder: &Path, network: &NetworkName) -> Result<Verifier> {
    for name in [LEDGER_KEY, LOG_KEY] {
        let path = folder.join(name);
        if !path.exists() {
            write_secret(&path, &draw_key()?)?;
        }
    }
    let head = folder.join(HEAD);
    if !head.exists() {
        let origin: KeyName = format!("kvasir.example/{network}/{}", hex::encode(random::<4>()?)).parse()?;
        HeadFile::create(&head, &origin)?;
    }
    let origin = HeadFile::open(&head)?.read()?.origin;
    let log = log_verifier(&origin, read_secret(&folder.join(LOG_KEY))?.public());
    let path = folder.join(LOG_VKEY);
    write_whole(&path, format!("{log}\n").as_bytes(), Existing::Replace, Readers::Anyone)
        .with_context(|| format!("{}: cannot be written", path.display()))?;
    Ok(log)
}

/// A new secret key.
pub(super) fn draw_key() -> Result<SecretKey> {
    Ok(SecretKey::from_seed(random()?))
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).context("the system gives no randomness")?;
    Ok(bytes)
}

/// A database without settings beside it is what an `init` that was cut off leaves. It is taken up if nothing is in it.
fn check_is_empty(store: &Path, network: &NetworkName) -> Result<()> {
    let entries = Store::open(store, network, Keys::default())?.answers().head()?.0;
    if entries > 0 {
        bail!(
            "{}: exists already and holds {entries} notes, but no {DEFAULT_CONFIG} lies beside it; `init` never touches such a \
             ledger: restore the settings from a backup, or write them as docs/ledger.md says",
            store.display()
        );
    }
    Ok(())
}

fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

impl Serve {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let settings = self.config.settings()?;
        start_logging()?;
        for (keys, name, lost) in [
            (&settings.keys.hubs, "hubs", "every receipt will be refused"),
            (&settings.keys.treasury, "treasury", "no price and no funding can be accepted"),
            (&settings.keys.settlers, "settlers", "nothing can be credited"),
        ] {
            if keys.is_empty() {
                tracing::warn!("`{name}` is empty in the settings: {lost}");
            }
        }
        let (ledger_key, log_files) = (settings.ledger_key()?, settings.log_files()?);
        let mut store = Store::open(&settings.store, &settings.network, settings.keys)?;
        let _held = hold_store(&mut store)?;
        if let Some(bytes) = self.max_store_bytes.or(settings.max_store_bytes) {
            store.limit_size(bytes)?;
        }
        let mut watch = ClockWatch::new(steady_clock(), self.trust_clock);
        let ahead = watch.check(unix_now(), store.latest_time()?).err();
        if let Some(ahead) = &ahead {
            tracing::error!("not ready, only questions are answered: {ahead}");
        }
        let undeclared = match ledger_key {
            Some(key) if ahead.is_some() => Some(key),
            Some(key) => declare(&mut store, key)?,
            None => {
                tracing::warn!(
                    "no {LEDGER_KEY} beside the settings: auditors cannot tell whom this ledger believes"
                );
                None
            }
        };
        let log = log_files.map(Publisher::open).transpose()?;
        match &log {
            Some(log) => tracing::info!(vkey = %log.verifier(), "publishing"),
            None => tracing::warn!("no {LOG_KEY} beside the settings: nothing is published"),
        }
        if undeclared.is_none()
            && let Err(error) = store.check_writable()
        {
            tracing::error!("not ready, only questions are answered: {error}");
        }
        let least = self.min_free_bytes.unwrap_or(settings.min_free_bytes);
        let space = (least > 0).then(|| SpaceMark::new(&settings.store, least, free_space()));
        if let Some(Err(low)) = space.as_ref().map(SpaceMark::check) {
            tracing::error!("not ready, only questions are answered: {low}");
        }
        tracing::info!(store = %settings.store.display(), sqlite = sqlite_version(), "opened");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(async {
            // Before the line that says it listens: whoever reads that line may stop us at once.
            let stop = stop_signal()?;
            let wanted = self.listen.unwrap_or(settings.listen);
            let (listener, address) =
                listen(wanted).await.with_context(|| format!("cannot listen on {wanted}; is it taken?"))?;
            let (object, line) =
                (json!({ "listening": address.to_string() }), format!("listening on {address}"));
            // Serving is the work; whoever started it need not care to read the address.
            if let Err(error) = report(json, &object, &line) {
                tracing::warn!("{line}; {error:#}");
            }
            let beside = Beside { log, probes: self.probes, space, watch: Some(watch), undeclared };
            serve_beside(
                ServeLimits::default(),
                listener,
                store,
                settings.network,
                system_clock(),
                beside,
                stop,
            )
            .await?;
            Ok(())
        })
    }
}

/// Keeps a second server away, whose settings may be others: what one of them writes down as retired, the other would accept.
fn hold_store(store: &mut Store) -> Result<Option<fs::File>> {
    // One file that is reached by two names is one ledger.
    let mut path =
        fs::canonicalize(store.path()).unwrap_or_else(|_| store.path().to_owned()).into_os_string();
    path.push(LOCK);
    let path = PathBuf::from(path);
    match hold(&path) {
        Ok(held) => Ok(Some(held)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => bail!(
            "{}: is served already: {error} ({}); stop that one first, or choose another ledger",
            store.path().display(),
            path.display()
        ),
        // Questions can still be answered; where nothing can be written, nobody contradicts anybody.
        Err(error) if store.check_writable().is_err() => {
            tracing::error!("{}: cannot be held: {error}", path.display());
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("{}: cannot be held", path.display())),
    }
}

/// Writes down what the settings say about keys. Where the file takes nothing now the key is given back, to do it later: questions
/// can be answered meanwhile, and nothing is accepted that rests on a key that is not written down.
fn declare(store: &mut Store, key: SecretKey) -> Result<Option<SecretKey>> {
    match store.declare_keys(&key, unix_now()) {
        Ok(0) => Ok(None),
        Ok(new) => {
            tracing::info!(new, "keys written down");
            Ok(None)
        }
        Err(error @ LedgerError::Database { .. }) => {
            tracing::error!(
                "not ready, only questions are answered: the keys of the settings cannot be written down: {error}"
            );
            Ok(Some(key))
        }
        Err(error) => Err(error.into()),
    }
}

/// Logs to standard error what `KVASIR_LOG` asks for.
pub(super) fn start_logging() -> Result<()> {
    let filter = match std::env::var(LOG_VARIABLE) {
        Ok(text) => EnvFilter::try_new(&text).with_context(|| format!("{LOG_VARIABLE}={text}"))?,
        Err(_) => EnvFilter::new("info"),
    };
    // A second subscriber in one process (tests) is not worth failing for.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LineWriter(std::io::stderr()))
        .with_ansi(false)
        .log_internal_errors(false)
        .try_init();
    Ok(())
}

#[cfg(unix)]
pub(super) fn stop_signal() -> Result<impl Future<Output = ()> + Send + 'static> {
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
pub(super) fn stop_signal() -> Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async {
        // Without a handler the service runs until it is killed; nothing acknowledged is lost by that.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}
