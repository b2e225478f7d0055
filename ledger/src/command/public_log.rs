//! `publish`, `backup` and `restore`: on the ledger's own machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use kvasir_merkle::Hash;
use kvasir_wire::account::{OriginChange, Statement};
use kvasir_wire::note::KeyName;
use rusqlite::Connection;
use serde_json::json;

use super::{keep, report, unix_now};
use crate::config::{ConfigFlags, DEFAULT_CONFIG, LEDGER_KEY, read_secret};
use crate::files::{Existing, Readers, read_regular, write_whole};
use crate::publish::Publisher;
use crate::store::{Store, open_for_reading};

const STORE: &str = "ledger.db";
const MAX_KEY_FILE_BYTES: u64 = 4096;

/// Publish what is durable now, once
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvasir-ledger publish --config /var/lib/kvasir-ledger/ledger.toml\n\n\
                        `serve` does it once a second. This is for a web server that carries the folder `log` alone.")]
pub(super) struct Publish {
    #[command(flatten)]
    config: ConfigFlags,
}

/// Copy the database, also while it is served
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-ledger backup /backup/ledger-2026-11-30.db --config /var/lib/kvasir-ledger/ledger.toml\n\n\
                        The signed head is left out on purpose: a head that is older than what was published would be a second\n\
                        history. Keep ledger.toml and ledger.key elsewhere too."
)]
pub(super) struct Backup {
    /// File to write; never overwritten
    file: PathBuf,
    #[command(flatten)]
    config: ConfigFlags,
}

/// Make a ledger of a backup: it goes on under a new origin
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-ledger restore /backup/ledger-2026-11-30.db /var/lib/kvasir-ledger-2 \\\n    \
                        --config /var/lib/kvasir-ledger/ledger.toml --ledger-key /var/lib/kvasir-ledger/ledger.key\n\n\
                        What came after the backup is not in it. Readers of the old log must see that, so a restored ledger\n\
                        publishes a new log with a new key, whose first new entry names the old one, its size and root."
)]
pub(super) struct Restore {
    /// A file that `backup` wrote
    backup: PathBuf,
    /// Folder to make the ledger in
    folder: PathBuf,
    /// The ledger's own key, as `init` made it
    #[arg(long, value_name = "FILE")]
    ledger_key: PathBuf,
    #[command(flatten)]
    config: ConfigFlags,
}

impl Publish {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let settings = self.config.settings()?;
        let files =
            settings.log_files()?.context("there is no log.key beside the settings; `init` makes it")?;
        let mut publisher = Publisher::open(files)?;
        let log = publisher.verifier();
        let published = publisher.publish()?;
        let object = json!({
            "origin": published.origin.to_string(),
            "vkey": log.to_string(),
            "size": published.size,
            "root": published.root.to_string(),
            "witnesses": published.witnesses,
        });
        let witnesses = match published.witnesses.len() {
            0 => "nobody cosigned".to_owned(),
            _ => format!("cosigned by {}", published.witnesses.join(", ")),
        };
        let sentence =
            format!("{}: {} entries, root {}; {witnesses}", published.origin, published.size, published.root);
        report(json, &object, &sentence)
    }
}

impl Backup {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let settings = self.config.settings()?;
        let show = self.file.display().to_string();
        if self.file.symlink_metadata().is_ok() {
            bail!("{show}: exists already; a backup never overwrites one");
        }
        let connection = open_for_reading(&settings.store, &settings.network)?;
        copy(&connection, &self.file)?;
        let (entries, root) = head(&self.file, &settings.network)?;
        let object = json!({ "file": show, "entries": entries, "root": root.to_string() });
        report(json, &object, &format!("{show}: {entries} entries, root {root}"))
    }
}

impl Restore {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let settings = self.config.settings()?;
        let (config, store) = (self.folder.join(DEFAULT_CONFIG), self.folder.join(STORE));
        for path in [&config, &store] {
            if path.symlink_metadata().is_ok() {
                bail!("{}: exists already; `restore` never touches an existing ledger", path.display());
            }
        }
        let (size, root) = head(&self.backup, &settings.network)?;
        let ledger_key = read_secret(&self.ledger_key)?;
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("{}: cannot be made", self.folder.display()))?;
        let key = read_regular(&self.ledger_key, MAX_KEY_FILE_BYTES)
            .with_context(|| format!("{}: cannot be read", self.ledger_key.display()))?;
        write_whole(&self.folder.join(LEDGER_KEY), &key, Existing::Keep, Readers::Owner)
            .with_context(|| format!("{}: a key is there already", self.folder.display()))?;
        let previous = self.previous(&settings)?;
        let log = keep::make_log(&self.folder, &settings.network)?;
        copy(&open_for_reading(&self.backup, &settings.network)?, &store)?;
        let change = OriginChange {
            network: settings.network.clone(),
            origin: log.name().clone(),
            previous: previous.clone(),
            size,
            root,
            at: unix_now(),
        };
        let mut restored = Store::open(&store, &settings.network, settings.keys.clone())?;
        let note = change.sign(&ledger_key)?;
        let accepted = restored.accept_own(note.to_string().as_bytes(), unix_now())?;
        // The settings come last: a restore that was cut off is no ledger yet.
        let (mut file, _) = self.config.file()?;
        (file.store, file.log) = (Some(STORE.into()), None);
        write_whole(&config, toml::to_string(&file)?.as_bytes(), Existing::Keep, Readers::Anyone)
            .with_context(|| format!("{}: cannot be written", config.display()))?;
        let object = json!({
            "config": config.display().to_string(),
            "entries": size,
            "root": root.to_string(),
            "previous": previous.to_string(),
            "origin": log.name().to_string(),
            "vkey": log.to_string(),
            "index": accepted.index,
        });
        let sentence = format!(
            "{size} entries restored. This is a new log: {} continues {previous}, whose later entries are not in it.\n\
             Auditors verify it with {log}\nServe it: kvasir-ledger serve --config {}",
            log.name(),
            config.display()
        );
        report(json, &object, &sentence)
    }

    /// The log that the backup was of: what its last change of origin says, else the name beside the old settings.
    fn previous(&self, settings: &crate::config::Settings) -> Result<KeyName> {
        let connection = open_for_reading(&self.backup, &settings.network)?;
        if let Some(change) = crate::store::last_origin(&connection, &self.backup)? {
            return Ok(change);
        }
        let path = settings.log.folder.join(crate::config::LOG_VKEY);
        let text = crate::files::read_regular_text(&path, MAX_KEY_FILE_BYTES)
            .with_context(|| format!("{}: it names the old log", path.display()))?;
        let log: kvasir_wire::note::Verifier =
            text.trim().parse().with_context(|| path.display().to_string())?;
        Ok(log.name().clone())
    }
}

fn head(file: &Path, network: &kvasir_wire::note::NetworkName) -> Result<(u64, Hash)> {
    let connection = open_for_reading(file, network)?;
    Ok(crate::store::head_of_entries(&connection, file)?)
}

/// A consistent copy of a database that may be written to meanwhile.
fn copy(connection: &Connection, file: &Path) -> Result<()> {
    let name = file.to_str().with_context(|| format!("{}: the name is no UTF-8", file.display()))?;
    connection
        .execute("VACUUM INTO ?", [name])
        .with_context(|| format!("{}: the copy cannot be written", file.display()))?;
    let synced = fs::File::open(file).and_then(|file| file.sync_all());
    synced.with_context(|| format!("{}: the copy cannot be written to disk", file.display()))
}
