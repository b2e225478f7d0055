//! Install, upgrade, activate, go back, list, and what happened.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kvasir_experts::VerifiedPlugin;
use kvasir_plugin::{Claims, KeyId, PluginDigest, RoleName, Unverified};
use kvasir_plugin_store::{Explanation, Happened, Named, Store, StoreError, Subject};
use kvasir_wire::key::SecretKey;
use serde_json::{Value, json};

use super::{digest, keys, package_file, read_package};
use crate::settings::Settings;
use crate::{output, plugin_check, setup};

/// Whether, and with which key, a version below the highest seen may be used.
#[derive(Debug, Clone, Default)]
pub struct Downgrade {
    /// Sign a permission where one is needed.
    pub allow: bool,
    /// Files of root keys; those in their usual places where these are not enough.
    pub root_keys: Vec<PathBuf>,
}

impl Downgrade {
    /// The keys that sign; none where it is not allowed.
    fn keys(&self, settings: &Settings, store: &Store) -> Result<Vec<SecretKey>> {
        if !self.allow {
            return Ok(Vec::new());
        }
        let trust = store.trust()?;
        let root =
            trust.root().context("there is no root to sign with: run `kvasir setup`, which makes one")?;
        keys::signers(settings, root, &RoleName::Root, &self.root_keys)
    }
}

/// `kvasir plugin install`.
///
/// # Errors
/// Where the package is refused; nothing was installed then.
pub fn install(
    settings: &Settings,
    package: Option<&Path>,
    activate: bool,
    downgrade: &Downgrade,
    json: bool,
) -> Result<()> {
    let path = package_file(package)?;
    let bytes = read_package(&path)?;
    let store = settings.store();
    let now = setup::now();
    let keys = downgrade.keys(settings, &store)?;
    let signers: Vec<_> = keys.iter().map(SecretKey::signing_key).collect();
    let refused = || format!("{} was not installed", path.display());
    let installed = store.install_permitted(&bytes, &signers, now).with_context(refused)?;
    let former = store.active_digest()?;
    if activate {
        store.activate(installed.plugin.digest(), &signers, now)?;
    }
    let how = if installed.already { "there already" } else { "installed" };
    report(&store, &installed.plugin, (how, former), json)
}

/// `kvasir plugin upgrade`: as [`install`], but of a newer version of the active plugin, which must pass its golden vectors before
/// it takes over.
///
/// # Errors
/// Where the package is refused, is not newer, or fails; the active plugin stays then.
pub fn upgrade(settings: &Settings, package: Option<&Path>, json: bool) -> Result<()> {
    let path = package_file(package)?;
    let bytes = read_package(&path)?;
    let store = settings.store();
    let now = setup::now();
    let refused = || format!("{} does not take over", path.display());
    let state = store.active_state()?;
    let former = state.digest.context(
        "no kernel is active, so that there is nothing to upgrade: `kvasir plugin install` installs one",
    )?;
    let active =
        named(&store, former)?.context("nothing is known of the active plugin: `kvasir plugin install`")?;
    // What is no upgrade is not kept either.
    let candidate = kvasir_plugin::verify(&bytes, store.trust()?.publishers(), now)
        .map_err(StoreError::Package)
        .with_context(refused)?;
    newer(&candidate, &active).with_context(refused)?;
    let plugin = store.install(&bytes, now).with_context(refused)?.plugin;
    let vectors = plugin_check::prove_foreign(settings, &plugin)
        .with_context(|| format!("{} stays installed but inactive", path.display()))?;
    store.activate(plugin.digest(), &[], now).with_context(refused)?;
    report(&store, &plugin, (&format!("{} golden vectors passed", vectors.vectors), Some(former)), json)
}

/// `kvasir plugin activate`.
///
/// # Errors
/// Where the plugin is not installed or is refused.
pub fn activate(settings: &Settings, text: &str, downgrade: &Downgrade, json: bool) -> Result<()> {
    let store = settings.store();
    let wanted = digest(&store, text)?;
    let keys = downgrade.keys(settings, &store)?;
    let signers: Vec<_> = keys.iter().map(SecretKey::signing_key).collect();
    let former = store.active_digest()?;
    let plugin = store.activate(wanted, &signers, setup::now())?;
    report(&store, &plugin, ("activated", former), json)
}

/// `kvasir plugin rollback`.
///
/// # Errors
/// Where there is no former version, or it is refused; the active plugin stays then.
pub fn rollback(settings: &Settings, downgrade: &Downgrade, json: bool) -> Result<()> {
    let store = settings.store();
    let keys = downgrade.keys(settings, &store)?;
    let signers: Vec<_> = keys.iter().map(SecretKey::signing_key).collect();
    let former = store.active_digest()?;
    let plugin = store.rollback(&signers, setup::now())?;
    report(&store, &plugin, ("went back", former), json)
}

/// `kvasir plugin remove`.
///
/// # Errors
/// Where the plugin is not installed, or is the active one or the one before it.
pub fn remove(settings: &Settings, text: &str, json: bool) -> Result<()> {
    let store = settings.store();
    let plugin = digest(&store, text)?;
    store.remove(plugin, setup::now())?;
    if json {
        return output::object(&json!({"removed": plugin.to_string()}));
    }
    output::line(format!("plugin {plugin} is out of the store; what was seen of it stays seen"))
}

/// `kvasir plugin list`.
///
/// # Errors
/// Where the store cannot be read.
pub fn list(settings: &Settings, json: bool) -> Result<()> {
    let store = settings.store();
    let active = store.active_digest()?;
    let mut plugins = Vec::new();
    for plugin in store.digests()? {
        let told = store.explain(Subject::Installed(plugin), setup::now())?;
        let claims = claims(&store, plugin);
        // Whose signatures hold is known of what was verified; of the rest only what it says itself.
        let said = claims.as_ref().filter(|_| told.plugin.is_none());
        let early = claims.as_ref().is_some_and(|claims| setup::now() < claims.validity.not_before);
        let known = told.plugin.clone().or_else(|| Some(claimed(plugin, said?)));
        plugins.push(json!({
            "plugin": plugin.to_string(),
            "name": known.as_ref().map(|known| &known.name),
            "version": known.as_ref().map(|known| &known.version),
            "revision": known.as_ref().map(|known| known.revision),
            "publishers": ids(&told.publishers),
            "says_signed_by": said.map(|claims| ids(&claims.signed_by)).unwrap_or_default(),
            "active": active == Some(plugin), "state": state(&told, active == Some(plugin), early),
            "reason": told.failed().map(|check| &check.said),
        }));
    }
    if json {
        return output::object(&json!({
            "active": active.map(|digest| digest.to_string()), "plugins": plugins,
            "folder": store.places().packages().display().to_string(),
        }));
    }
    if plugins.is_empty() {
        return output::line(
            "no plugin is installed; `kvasir setup` installs the one that comes with the program",
        );
    }
    let mut lines = Vec::new();
    for plugin in &plugins {
        let text = |field: &str| plugin[field].as_str().unwrap_or("?").to_owned();
        let listed = |field: &str| {
            let keys = plugin[field].as_array().into_iter().flatten().filter_map(Value::as_str);
            keys.collect::<Vec<_>>().join(", ")
        };
        let signers = match (listed("publishers"), listed("says_signed_by")) {
            (verified, _) if !verified.is_empty() => format!("signed by {verified}"),
            (_, said) if !said.is_empty() => format!("says it is signed by {said}"),
            _ => "does not say who signed it".to_owned(),
        };
        lines.push(format!(
            "{:<10} {} {} (revision {})\n           plugin {}\n           {signers}",
            text("state"),
            text("name"),
            text("version"),
            plugin["revision"],
            text("plugin"),
        ));
        if let Some(reason) = plugin["reason"].as_str() {
            lines.push(format!("           {reason}"));
        }
    }
    output::line(lines.join("\n"))
}

/// `kvasir plugin history`.
///
/// # Errors
/// Where it cannot be read.
pub fn history(settings: &Settings, json: bool) -> Result<()> {
    let store = settings.store();
    let history = store.history()?;
    if json {
        return output::object(&json!({
            "entries": history.entries, "unreadable": history.unreadable, "cut": history.cut,
            "file": store.places().history().display().to_string(),
        }));
    }
    let mut lines: Vec<String> =
        history.entries.iter().map(|entry| format!("{}  {}", entry.at, told(&entry.happened))).collect();
    if history.unreadable > 0 {
        lines.push(format!("({} lines cannot be read)", history.unreadable));
    }
    if lines.is_empty() {
        lines.push("nothing has happened yet".to_owned());
    }
    output::line(lines.join("\n"))
}

/// A plugin's state in one word.
fn state(told: &Explanation, active: bool, early: bool) -> &'static str {
    match told.failed().map(|check| check.name) {
        None if active => "active",
        None => "installed",
        Some("key-revocation" | "package-revocation") => "revoked",
        Some("validity") if early => "not-yet-valid",
        Some("validity") => "expired",
        Some("revision") => "superseded",
        Some(_) => "refused",
    }
}

/// What is known of an installed plugin, also where it is refused now.
fn named(store: &Store, plugin: PluginDigest) -> Result<Option<Named>> {
    let told = store.explain(Subject::Installed(plugin), setup::now())?;
    Ok(told.plugin.or_else(|| Some(claimed(plugin, &claims(store, plugin)?))))
}

/// What an installed package says of itself, which nobody verified.
fn claims(store: &Store, plugin: PluginDigest) -> Option<Claims> {
    Unverified::read(&store.package(plugin).ok()?).ok()?.claims
}

/// The same as a name, for lists, where it is refused now.
fn claimed(plugin: PluginDigest, claims: &Claims) -> Named {
    Named {
        plugin: plugin.to_string(),
        name: claims.name.clone(),
        version: claims.version.to_string(),
        revision: claims.kernel_revision,
    }
}

fn ids<'a>(keys: impl IntoIterator<Item = &'a KeyId>) -> Vec<String> {
    keys.into_iter().map(KeyId::to_string).collect()
}

/// Refuses what is no newer version of the active plugin.
fn newer(plugin: &VerifiedPlugin, active: &Named) -> Result<(), StoreError> {
    let (name, version) = (plugin.name().to_owned(), plugin.version());
    let revision = plugin.manifest().kernel_revision;
    if name != active.name {
        return Err(StoreError::OtherPlugin { name, active: active.name.clone() });
    }
    let higher_version = active.version.parse().is_ok_and(|active| version > active);
    if revision > active.revision || (revision == active.revision && higher_version) {
        return Ok(());
    }
    Err(StoreError::NotNewer {
        name,
        version: version.to_string(),
        revision,
        active: active.version.clone(),
        active_revision: active.revision,
    })
}

fn report(
    store: &Store,
    plugin: &VerifiedPlugin,
    (how, former): (&str, Option<PluginDigest>),
    json: bool,
) -> Result<()> {
    let state = store.active_state()?;
    let active = state.digest == Some(plugin.digest());
    if json {
        return output::object(&json!({
            "plugin": plugin.digest().to_string(), "name": plugin.name(), "version": plugin.version().to_string(),
            "revision": plugin.manifest().kernel_revision, "how": how, "active": active, "change": state.change,
            "former": former.map(|digest| digest.to_string()),
            "publishers": plugin.publishers().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "package": store.places().package(plugin.digest()).display().to_string(),
        }));
    }
    output::line(format!(
        "{} {} (revision {}): {how}, {}\nplugin     {}",
        plugin.name(),
        plugin.version(),
        plugin.manifest().kernel_revision,
        if active { "active" } else { "not active (`kvasir plugin activate`)" },
        plugin.digest()
    ))
}

fn told(happened: &Happened) -> String {
    let of = |plugin: &Named| {
        format!("{} {} (revision {}) {}", plugin.name, plugin.version, plugin.revision, plugin.plugin)
    };
    let below = |seen: Option<&u64>| {
        seen.map_or_else(String::new, |seen| format!(", below revision {seen} by signed permission"))
    };
    match happened {
        Happened::Installed { plugin, publishers } => {
            format!("installed {}, signed by {}", of(plugin), publishers.join(", "))
        }
        Happened::Activated { plugin, change, overridden_revision, .. } => {
            format!("activated {}, change {change}{}", of(plugin), below(overridden_revision.as_ref()))
        }
        Happened::RolledBack { plugin, change, overridden_revision, .. } => {
            format!("went back to {}, change {change}{}", of(plugin), below(overridden_revision.as_ref()))
        }
        Happened::Removed { plugin } => format!("removed {plugin}"),
        Happened::RootAccepted { version, change } => format!("root version {version}: {change}"),
        Happened::Revoked { revoked, version } => format!("revoked {revoked}, revocations version {version}"),
    }
}
