//! Settings: flags win over the environment (`KVASIR_LEDGER_*`), which wins over `ledger.toml`.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use kvasir_wire::key::{PublicKey, SecretKey};
use kvasir_wire::note::{MAX_NOTE_SIGNATURES, NetworkName};
use serde::{Deserialize, Serialize};

use crate::files::{Existing, Readers, read_regular_text, write_whole};
use crate::publish::{KnownWitness, LogFiles};
use crate::space::DEFAULT_MIN_FREE_BYTES;
use crate::store::Keys;

/// Where the service listens unless told otherwise.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:9750";
/// Settings file looked for where none is named.
pub const DEFAULT_CONFIG: &str = "ledger.toml";
/// Signs what the ledger says about itself.
pub const LEDGER_KEY: &str = "ledger.key";
/// Signs checkpoints.
pub const LOG_KEY: &str = "log.key";
/// The log's verifier key, for auditors.
pub use crate::publish::LOG_VKEY;
/// The database of the signed head.
pub const HEAD: &str = "head.db";
/// Most witnesses: a head is a note, and one of its lines is the log's own.
pub const MAX_WITNESSES: usize = MAX_NOTE_SIGNATURES - 1;
/// Folder of the public log's files.
const PUBLISHED: &str = "log";
/// Largest settings or key file that is read.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// `ledger.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LedgerToml {
    /// Name of the network.
    pub network: Option<String>,
    /// The database file; relative to the folder of this file.
    pub store: Option<PathBuf>,
    /// Address to listen on.
    pub listen: Option<SocketAddr>,
    /// Largest size of the database file in bytes; what would go beyond it is refused.
    pub max_store_bytes: Option<u64>,
    /// Bytes that stay free on the disk of the database [default: 256 MiB]; with fewer, notes are refused. 0: never.
    pub min_free_bytes: Option<u64>,
    /// Public keys of hubs whose receipts are believed.
    pub hubs: Vec<String>,
    /// Public keys of the treasury: prices, fundings, corrections.
    pub treasury: Vec<String>,
    /// Public keys of settlement pollers.
    pub settlers: Vec<String>,
    /// Public keys that were replaced: what they signed stays valid, nothing new is accepted.
    pub retired: Vec<String>,
    /// Folder of the public log's files [default: `log`]; relative to the folder of this file.
    pub log: Option<PathBuf>,
    /// Cosignatures that a head needs before readers get it [default: 0].
    #[serde(skip_serializing_if = "is_zero")]
    pub quorum: usize,
    /// Witnesses that are asked to cosign the public log's heads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub witness: Vec<WitnessToml>,
}

// Written down, a setting that says nothing would only be in the way of the same setting further down.
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// One `[[witness]]` of `ledger.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WitnessToml {
    /// Its prefix, such as `https://witness.example`.
    pub url: String,
    /// Its key, as `kvasir-ledger witness show` prints it.
    pub vkey: String,
}

/// Flags that every command on the ledger's own machine takes.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigFlags {
    /// Settings file [default: ledger.toml, where there is one]
    #[arg(long, env = "KVASIR_LEDGER_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Database file
    #[arg(long, env = "KVASIR_LEDGER_STORE", value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Name of the network
    #[arg(long, env = "KVASIR_LEDGER_NETWORK", value_name = "NAME")]
    pub network: Option<String>,
    /// Public key of a hub to believe (replaces those of the settings file)
    #[arg(long = "hub", env = "KVASIR_LEDGER_HUBS", value_delimiter = ',', value_name = "KEY")]
    pub hubs: Vec<String>,
    /// Public key of the treasury
    #[arg(long, env = "KVASIR_LEDGER_TREASURY", value_delimiter = ',', value_name = "KEY")]
    pub treasury: Vec<String>,
    /// Public key of a settlement poller
    #[arg(long = "settler", env = "KVASIR_LEDGER_SETTLERS", value_delimiter = ',', value_name = "KEY")]
    pub settlers: Vec<String>,
}

/// The settings that hold.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the network.
    pub network: NetworkName,
    /// The database file.
    pub store: PathBuf,
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Largest size of the database file in bytes.
    pub max_store_bytes: Option<u64>,
    /// Bytes that stay free on the disk of the database; 0 where nothing is asked.
    pub min_free_bytes: u64,
    /// Keys that are believed.
    pub keys: Keys,
    /// What the public log is made of and with.
    pub log: LogSettings,
}

/// The public log's place. Its two keys and its head lie beside `ledger.toml`.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Folder of [`LEDGER_KEY`], [`LOG_KEY`] and [`HEAD`].
    pub folder: PathBuf,
    /// Folder of tiles, bundles and checkpoint.
    pub published: PathBuf,
    /// Asked for cosignatures.
    pub witnesses: Vec<KnownWitness>,
    /// Cosignatures that a head needs before readers get it.
    pub quorum: usize,
}

impl ConfigFlags {
    /// The settings file's content, and the file itself; empty where there is none and none was asked for.
    pub fn file(&self) -> Result<(LedgerToml, PathBuf)> {
        let path = self.config.clone().unwrap_or_else(|| DEFAULT_CONFIG.into());
        if self.config.is_none() && !path.exists() {
            return Ok((LedgerToml::default(), path));
        }
        let text = read_bounded(&path)?;
        let file = toml::from_str(&text).with_context(|| format!("{}: not a ledger.toml", path.display()))?;
        Ok((file, path))
    }

    /// All settings of a ledger.
    pub fn settings(&self) -> Result<Settings> {
        let (file, path) = self.file()?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let store = self.store.clone().or(file.store.as_ref().map(|store| folder.join(store)));
        let store = store.with_context(|| {
            format!(
                "no database is named: give --store, or `store` in {}; `kvasir-ledger init` makes both",
                path.display()
            )
        })?;
        let keys = Keys {
            hubs: keys("hubs", &self.hubs, &file.hubs)?,
            treasury: keys("treasury", &self.treasury, &file.treasury)?,
            settlers: keys("settlers", &self.settlers, &file.settlers)?,
            retired: keys("retired", &[], &file.retired)?,
        };
        check_roles(&keys).with_context(|| path.display().to_string())?;
        let default_listen = || DEFAULT_LISTEN.parse().context("the default address");
        let listen = file.listen.map_or_else(default_listen, Ok)?;
        let network = self.network_of(&file)?;
        let published = folder.join(file.log.as_deref().unwrap_or(Path::new(PUBLISHED)));
        let witnesses = file.witness.iter().map(known_witness).collect::<Result<Vec<_>>>()?;
        let quorum = quorum(file.quorum, &witnesses).with_context(|| path.display().to_string())?;
        let log = LogSettings { folder, published, witnesses, quorum };
        let min_free_bytes = file.min_free_bytes.unwrap_or(DEFAULT_MIN_FREE_BYTES);
        let max_store_bytes = file.max_store_bytes;
        Ok(Settings { network, store, listen, max_store_bytes, min_free_bytes, keys, log })
    }

    /// The network's name, from a flag, the environment or the settings file.
    pub fn network_of(&self, file: &LedgerToml) -> Result<NetworkName> {
        let name = self.network.as_deref().or(file.network.as_deref());
        let name = name.context("no network is named: give --network, or `network` in ledger.toml")?;
        name.parse().with_context(|| format!("network `{name}`"))
    }
}

impl Settings {
    /// The ledger's own key; nothing for a ledger that was made before there was a public log.
    pub fn ledger_key(&self) -> Result<Option<SecretKey>> {
        let path = self.log.folder.join(LEDGER_KEY);
        if path.exists() { read_secret(&path).map(Some) } else { Ok(None) }
    }

    /// What is needed to publish the log; nothing where there is no [`LOG_KEY`].
    pub fn log_files(&self) -> Result<Option<LogFiles>> {
        let key = self.log.folder.join(LOG_KEY);
        if !key.exists() {
            return Ok(None);
        }
        Ok(Some(LogFiles {
            store: self.store.clone(),
            network: self.network.clone(),
            head: self.log.folder.join(HEAD),
            folder: self.log.published.clone(),
            key: read_secret(&key)?,
            witnesses: self.log.witnesses.clone(),
            quorum: self.log.quorum,
        }))
    }
}

/// One key in two roles could sign both sides of the books.
pub fn check_roles(keys: &Keys) -> Result<()> {
    let roles = [("hub", &keys.hubs), ("treasury", &keys.treasury), ("settler", &keys.settlers)];
    for (at, (role, keys)) in roles.iter().enumerate() {
        for (other, others) in &roles[at + 1..] {
            if let Some(key) = keys.iter().find(|key| others.contains(key)) {
                bail!("{key} is given as {role} and as {other}: each role needs a key of its own");
            }
        }
    }
    Ok(())
}

/// Two lines of one key would count one witness twice, and a head that all had cosigned must be a note still.
fn quorum(quorum: usize, witnesses: &[KnownWitness]) -> Result<usize> {
    if witnesses.len() > MAX_WITNESSES {
        bail!(
            "{} witnesses are named; a head has room for the log's own signature and those of {MAX_WITNESSES}",
            witnesses.len()
        );
    }
    for (at, one) in witnesses.iter().enumerate() {
        if witnesses[..at].iter().any(|other| other.key.key() == one.key.key()) {
            bail!("witness {} has a key that another witness has too", one.key.name());
        }
    }
    if quorum > witnesses.len() {
        bail!("quorum = {quorum}, but only {} witnesses are named", witnesses.len());
    }
    Ok(quorum)
}

fn known_witness(witness: &WitnessToml) -> Result<KnownWitness> {
    let key = witness.vkey.trim().parse().with_context(|| format!("witness: vkey `{}`", witness.vkey))?;
    Ok(KnownWitness { url: witness.url.clone(), key })
}

/// Reads a secret key file; refuses one that others on the machine can read.
pub fn read_secret(path: &Path) -> Result<SecretKey> {
    let show = path.display();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let about = fs::metadata(path).with_context(|| format!("{show}: cannot be read"))?;
        if !about.is_file() {
            bail!("{show}: cannot be read: it is not a regular file");
        }
        let mode = about.permissions().mode();
        if mode & 0o077 != 0 {
            bail!(
                "{show}: other users can read this secret key (mode {:o}); run `chmod 600 {show}`",
                mode & 0o777
            );
        }
    }
    SecretKey::from_text(&read_bounded(path)?).with_context(|| format!("{show}"))
}

/// Makes a secret key file that only its owner can read; never overwrites one.
pub fn write_secret(path: &Path, key: &SecretKey) -> Result<()> {
    write_whole(path, key.to_text().as_bytes(), Existing::Keep, Readers::Owner)
        .with_context(|| format!("{}: the key file cannot be made", path.display()))
}

fn keys(what: &str, flags: &[String], file: &[String]) -> Result<Vec<PublicKey>> {
    let chosen = if flags.is_empty() { file } else { flags };
    chosen.iter().map(|key| key.trim().parse().with_context(|| format!("{what}: `{key}`"))).collect()
}

fn read_bounded(path: &Path) -> Result<String> {
    read_regular_text(path, MAX_FILE_BYTES).with_context(|| format!("{}: cannot be read", path.display()))
}
