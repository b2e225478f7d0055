//! `publish`, `backup` and `restore`: on the ledger's own machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use kvasir_merkle::Hash;
use kvasir_wire::account::{KeyBelief, KeyRole, KeyState, OriginChange, Statement};
use kvasir_wire::key::{PublicKey, SecretKey};
use kvasir_wire::note::{KeyName, NetworkName, Note, Verifier};
use rusqlite::Connection;
use serde_json::json;

use super::check::Progress;
use super::{keep, report, unix_now};
use crate::config::{
    ConfigFlags, DEFAULT_CONFIG, HEAD, LEDGER_KEY, LOG_KEY, LOG_VKEY, Settings, read_secret, write_secret,
};
use crate::files::{Existing, Readers, make_whole, remove_drafts, write_whole};
use crate::head::HeadFile;
use crate::publish::Publisher;
use crate::store::{COPY_INTO, Keys, Store, believed, first_origin, last_origin, open_for_reading};

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
                        publishes a new log with a new key, whose first new entry names the old one, its size and root.\n\
                        One that was cut off is finished by the same command."
)]
pub(super) struct Restore {
    /// A file that `backup` wrote
    backup: PathBuf,
    /// Folder to make the ledger in
    folder: PathBuf,
    /// The ledger's own key, as `init` made it
    #[arg(long, value_name = "FILE")]
    ledger_key: PathBuf,
    /// Draw a new own key, which the old one introduces: where others may have read the old one
    #[arg(long)]
    replace_ledger_key: bool,
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
            bail!("{show}: exists already; a backup never overwrites anything");
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
        if config.symlink_metadata().is_ok() {
            bail!("{}: exists already; `restore` never touches an existing ledger", config.display());
        }
        let (size, root) = head(&self.backup, &settings.network)?;
        let old_key = read_secret(&self.ledger_key)?;
        // All that can be wrong with what is given is found before anything is made.
        self.check_key(&settings, &old_key)?;
        let previous = self.previous(&settings)?;
        verify(&self.backup, &settings)?;
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("{}: cannot be made", self.folder.display()))?;
        // Every step leaves a whole file or none, and takes up what an earlier try left. The settings come last: without them
        // it is no ledger yet.
        for name in [DEFAULT_CONFIG, LEDGER_KEY, LOG_KEY, LOG_VKEY, HEAD, STORE] {
            let path = self.folder.join(name);
            remove_drafts(&path).with_context(|| format!("{}: drafts of it", path.display()))?;
        }
        let own_key = self.own_key(&old_key)?;
        let log = keep::make_log(&self.folder, &settings.network)?;
        let vouched = HeadFile::open(&self.folder.join(HEAD))?.read()?.size;
        if vouched > 0 {
            bail!(
                "{}: its log has vouched for {vouched} entries already, so this is no restore that was cut off; choose another \
                 folder",
                self.folder.display()
            );
        }
        if store.symlink_metadata().is_err() {
            copy(&open_for_reading(&self.backup, &settings.network)?, &store)?;
        } else {
            // Verifying only reads, and what a try cut off within a transaction must be rolled back first.
            drop(Store::open(&store, &settings.network, settings.keys.clone())?);
            verify(&store, &settings)?;
        }
        let mut restored = Store::open(&store, &settings.network, settings.keys.clone())?;
        let index = match continued(&restored, (size, root), log.name())? {
            Some(index) => index,
            None => {
                let change = OriginChange {
                    network: settings.network.clone(),
                    origin: log.name().clone(),
                    previous: previous.clone(),
                    size,
                    root,
                    at: unix_now(),
                };
                restored.accept_own(change.sign(&old_key)?.to_string().as_bytes(), unix_now())?.index
            }
        };
        let own = (KeyRole::Ledger, own_key.public());
        if own_key.public() != old_key.public() && !restored.beliefs()?.contains(&own) {
            let (network, at) = (settings.network.clone(), unix_now());
            let (role, key) = own;
            let belief = KeyBelief { network, role, key, state: KeyState::Believed, at };
            restored.accept_own(belief.sign(&old_key)?.to_string().as_bytes(), at)?;
        }
        drop(restored);
        let (mut file, _) = self.config.file()?;
        (file.store, file.log) = (Some(STORE.into()), None);
        // What came by flags and environment too: `serve` reads this file alone, and would write what is missing down as retired.
        file.network = Some(settings.network.to_string());
        let text = |keys: &[PublicKey]| keys.iter().map(ToString::to_string).collect();
        let Keys { hubs, treasury, settlers, retired } = &settings.keys;
        (file.hubs, file.treasury) = (text(hubs), text(treasury));
        (file.settlers, file.retired) = (text(settlers), text(retired));
        write_whole(&config, toml::to_string(&file)?.as_bytes(), Existing::Keep, Readers::Anyone)
            .with_context(|| format!("{}: cannot be written", config.display()))?;
        let object = json!({
            "config": config.display().to_string(),
            "entries": size,
            "root": root.to_string(),
            "previous": previous.to_string(),
            "origin": log.name().to_string(),
            "vkey": log.to_string(),
            "ledger_key": own_key.public().to_string(),
            "index": index,
        });
        let sentence = format!(
            "{size} entries restored. This is a new log: {} continues {previous}, whose later entries are not in it.\n\
             Auditors verify it with {log}\nServe it: kvasir-ledger serve --config {}",
            log.name(),
            config.display()
        );
        report(json, &object, &sentence)
    }

    /// The key that the restored ledger signs with, in its folder: the old one, or one that is drawn now or was before.
    fn own_key(&self, old: &SecretKey) -> Result<SecretKey> {
        let path = self.folder.join(LEDGER_KEY);
        if path.symlink_metadata().is_err() {
            let key = if self.replace_ledger_key { keep::draw_key()? } else { old.clone() };
            write_secret(&path, &key)?;
        }
        let key = read_secret(&path)?;
        let show = path.display();
        match (key.public() == old.public(), self.replace_ledger_key) {
            (true, true) => bail!(
                "{show}: is the old key, from a restore without --replace-ledger-key that was cut off; remove it and restore again"
            ),
            (false, false) => bail!(
                "{show}: is another key than --ledger-key; give --replace-ledger-key if it is of a restore with it that was cut \
                 off, or choose another folder"
            ),
            _ => {}
        }
        Ok(key)
    }

    /// Only the key that signed the backup's own statements can say who goes on.
    fn check_key(&self, settings: &Settings, old: &SecretKey) -> Result<()> {
        let connection = open_for_reading(&self.backup, &settings.network)?;
        let believed = believed(&connection, &self.backup)?;
        let mut own =
            believed.iter().filter(|(role, _)| *role == KeyRole::Ledger).map(|(_, key)| *key).peekable();
        if own.peek().is_none() || own.clone().any(|key| key == old.public()) {
            return Ok(());
        }
        let own: Vec<String> = own.map(|key| key.to_string()).collect();
        bail!(
            "{}: is not the key of the ledger that was backed up, which is {}; give that one's ledger.key",
            self.ledger_key.display(),
            own.join(" or ")
        )
    }

    /// The log that the backup was of: what its last change of origin says, else what it has kept from the start, else the name
    /// beside the old settings, which must not be another ledger's.
    fn previous(&self, settings: &Settings) -> Result<KeyName> {
        let connection = open_for_reading(&self.backup, &settings.network)?;
        let kept = match last_origin(&connection, &self.backup)? {
            Some(last) => Some(last),
            None => first_origin(&connection, &self.backup)?,
        };
        let path = settings.log.folder.join(LOG_VKEY);
        let text = match crate::files::read_regular_text(&path, MAX_KEY_FILE_BYTES) {
            Ok(text) => text,
            Err(error) => {
                return kept
                    .ok_or(error)
                    .with_context(|| format!("{}: it names the old log", path.display()));
            }
        };
        let beside: Verifier = text.trim().parse().with_context(|| path.display().to_string())?;
        match kept {
            Some(kept) if kept != *beside.name() => bail!(
                "{}: is of log {}, the backup of {kept}; give the settings of the ledger that was backed up",
                path.display(),
                beside.name()
            ),
            Some(kept) => Ok(kept),
            None => Ok(beside.name().clone()),
        }
    }
}

/// A file that is to be a ledger is in order, by the rules that accepted its notes.
fn verify(file: &Path, settings: &Settings) -> Result<()> {
    let connection = open_for_reading(file, &settings.network)?;
    let mut progress = Progress::new();
    let (network, keys) = (&settings.network, &settings.keys);
    let verdict = Store::verify(&connection, file, network, keys, &mut |done, all| progress.show(done, all));
    progress.clear();
    verdict.with_context(|| {
        format!("{}: is not in order by these settings, and nothing is served that is not", file.display())
    })?;
    Ok(())
}

fn head(file: &Path, network: &NetworkName) -> Result<(u64, Hash)> {
    let connection = open_for_reading(file, network)?;
    Ok(crate::store::head_of_entries(&connection, file)?)
}

/// The entry in which the copy of a backup says already that the log `origin` continues it. An error where it is not a copy
/// of this backup, or something else was added to it.
fn continued(store: &Store, (size, root): (u64, Hash), origin: &KeyName) -> Result<Option<u64>> {
    let show = store.path().display();
    let answers = store.answers();
    let last = size.checked_sub(1).map(|last| answers.entry(last)).transpose()?;
    let is_copy = last.is_none_or(|entry| entry.is_some_and(|entry| entry.root == root));
    let Some(entry) = answers.entry(size)?.filter(|_| is_copy) else {
        if !is_copy {
            bail!("{show}: is no copy of this backup; remove it if it is of a restore that was cut off");
        }
        return Ok(None);
    };
    let note = Note::parse(entry.note.as_bytes())?;
    match OriginChange::parse(note.text()) {
        Ok(change) if change.origin == *origin => Ok(Some(size)),
        _ => bail!("{show}: holds entries that are not in the backup; choose another folder"),
    }
}

/// A consistent copy of a database that may be written to meanwhile; whole, or not there.
fn copy(connection: &Connection, file: &Path) -> Result<()> {
    make_whole(file, Existing::Keep, |draft| {
        let name = draft.to_str().with_context(|| format!("{}: the name is no UTF-8", draft.display()))?;
        connection.execute(COPY_INTO, [name])?;
        Ok::<_, anyhow::Error>(fs::File::open(draft)?.sync_all()?)
    })
    .with_context(|| format!("{}: the copy cannot be written", file.display()))
}
