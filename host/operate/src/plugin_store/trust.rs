//! `kvasir plugin trust`: whom this host trusts.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kvasir_plugin::{
    ANY_NAMESPACE, KeyId, MAX_MANIFEST_BYTES, Manifest, PublisherKey, Role, RoleName, TrustStore,
    VerifiedRoot,
};
use kvasir_plugin_store::{Store, StoreError};
use kvasir_wire::key::SecretKey;
use serde_json::{Value, json};

use super::keys;
use crate::settings::Settings;
use crate::{files, key_file, output, setup};

/// What `kvasir plugin trust add` and `remove` may be told.
#[derive(Debug, Clone, Default)]
pub struct KeyOptions {
    /// `ed25519:...` or a file; none means one's own publisher key.
    pub key: Option<String>,
    /// Namespace; none means that of the working folder's plugin.toml, or any (`add`), or every one (`remove`).
    pub namespace: Option<String>,
    /// Files of root keys; those in their usual places where these are not enough.
    pub root_keys: Vec<PathBuf>,
}

/// The root that there is, or a first one that trusts the user's own publisher key, and the keys of `trust/*.pub` as before there
/// were roots. Makes the keys that are missing. The flag says whether it is new.
///
/// # Errors
/// Where keys or files cannot be read or written.
pub fn ensure_root(settings: &Settings) -> Result<(VerifiedRoot, bool)> {
    let store = settings.store();
    let now = setup::now();
    let former = match store.trust() {
        Ok(trust) => match trust.root() {
            Some(root) => return Ok((root.clone(), false)),
            None => trust.publishers().keys().map(|(_, key)| key.clone()).collect(),
        },
        Err(StoreError::NoTrust { .. }) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let (publisher, _) = key_file::load_or_create(&keys::publisher_key(settings))?;
    let (root, _) = key_file::load_or_create(&keys::root_key(settings))?;
    let mut publishers: Vec<PublisherKey> = former;
    let own = keys::public(&publisher, "own");
    if publishers.iter().all(|key| key.key != own.key) {
        publishers.push(own);
    }
    let new = store.create_root(root.signing_key(), publishers, now)?;
    let trust = store.trust()?;
    Ok((trust.root().context("the root that was just made is gone")?.clone(), new))
}

/// `kvasir plugin trust add`.
///
/// # Errors
/// Where the key is none, or the root key is not there.
pub fn add(settings: &Settings, options: &KeyOptions, json: bool) -> Result<()> {
    let (root, _) = ensure_root(settings)?;
    let (key, default_namespace) = match &options.key {
        Some(text) => (keys::public_key(text)?, None),
        None => {
            let (own, _) = key_file::load_or_create(&keys::publisher_key(settings))?;
            (keys::public(&own, "own"), working_namespace()?)
        }
    };
    let namespace =
        options.namespace.clone().or(default_namespace).unwrap_or_else(|| ANY_NAMESPACE.to_owned());
    let role = role(&namespace)?;
    let id = KeyId::of(&key.key);
    let store = settings.store();
    let there = |role: &RoleName| root.root().roles.get(role).is_some_and(|role| role.keys.contains(&id));
    // A key that may publish any name needs no role for one, unless others have that name to themselves.
    let any = RoleName::Publisher(ANY_NAMESPACE.to_owned());
    let covered = there(&role) || (there(&any) && !root.root().roles.contains_key(&role));
    let revoked =
        store.trust()?.revocations().is_some_and(|revoked| revoked.revocations().keys.contains(&id));
    if revoked {
        bail!("key {id} is revoked, which is for good: its publisher needs another key");
    }
    // The first key that is named for a namespace takes it from those of any name.
    let shut_out: Vec<PublisherKey> = match root.root().roles.get(&any) {
        Some(others) if !covered && role != any && !root.root().roles.contains_key(&role) => {
            let others = others.keys.iter().filter(|other| **other != id);
            others.filter_map(|other| root.root().keys.get(other).cloned()).collect()
        }
        _ => Vec::new(),
    };
    let root = if covered {
        root
    } else {
        let signers = keys::signers(settings, &root, &RoleName::Root, &options.root_keys)?;
        let signing: Vec<_> = signers.iter().map(SecretKey::signing_key).collect();
        let what = format!("{id} may publish {namespace}");
        let edit = |root: &mut kvasir_plugin::Root| root.grant(role.clone(), key.clone());
        store.change_root(&signing, &what, setup::now(), edit)?.unwrap_or(root)
    };
    let broken = active_refused(&store);
    if json {
        return output::object(&json!({
            "key": id.to_string(), "public": key.line(), "namespace": namespace, "added": !covered,
            "root_version": root.version(), "active_is_refused": broken,
            "shut_out": shut_out.iter().map(PublisherKey::line).collect::<Vec<_>>(),
        }));
    }
    let mut lines = vec![format!(
        "{} may publish {}{}; root version {}",
        key.line(),
        spoken(&namespace),
        if covered { " already" } else { "" },
        root.version()
    )];
    if !shut_out.is_empty() {
        lines.push(format!(
            "now that a key is named for them, these keys for any name may publish {} no more (`kvasir plugin trust add KEY \
             --namespace {namespace}` lets one):",
            spoken(&namespace)
        ));
        lines.extend(shut_out.iter().map(|key| format!("  {}", key.line())));
    }
    lines.extend(broken.map(|reason| format!("the active plugin is refused now: {reason}")));
    output::line(lines.join("\n"))
}

/// Why the active plugin would not be loaded now; none where it would, or none is active.
pub(super) fn active_refused(store: &Store) -> Option<String> {
    store.active(setup::now()).err().map(|error| format!("{:#}", anyhow::Error::from(error)))
}

/// `kvasir plugin trust remove`: what the key signed is not loaded any more; nothing is revoked.
///
/// # Errors
/// Where the key is none or publishes nothing, or the root key is not there.
pub fn remove(settings: &Settings, options: &KeyOptions, json: bool) -> Result<()> {
    let store = settings.store();
    let root = present_root(&store)?;
    let text = options.key.as_deref().context("name the key to remove")?;
    let id = key_id(text)?;
    let meant = options.namespace.as_deref().map(role).transpose()?;
    let signers = keys::signers(settings, &root, &RoleName::Root, &options.root_keys)?;
    let signing: Vec<_> = signers.iter().map(SecretKey::signing_key).collect();
    let mut from = Vec::new();
    let edit = |root: &mut kvasir_plugin::Root| {
        let roles: Vec<RoleName> = root.roles.keys().cloned().collect();
        for role in roles.into_iter().filter(|role| matches!(role, RoleName::Publisher(_))) {
            if meant.as_ref().is_none_or(|meant| *meant == role) && root.withdraw(&role, &id) {
                from.push(role);
            }
        }
        !from.is_empty()
    };
    let what = format!("{id} may publish no more");
    let Some(next) = store.change_root(&signing, &what, setup::now(), edit)? else {
        bail!("key {id} is trusted with no plugin; `kvasir plugin trust show` lists the keys that are");
    };
    let broken = active_refused(&store);
    let opened: Vec<Opened> = from.iter().filter_map(|role| Opened::by(&next, role)).collect();
    let from: Vec<String> = from.iter().map(RoleName::to_string).collect();
    if json {
        return output::object(&json!({
            "key": id.to_string(), "removed_from": from, "root_version": next.version(), "active_is_refused": broken,
            "opened": opened.iter().map(Opened::object).collect::<Vec<_>>(),
        }));
    }
    let mut lines = vec![format!("key {id} is out of {}; root version {}", from.join(", "), next.version())];
    lines.extend(opened.iter().flat_map(Opened::lines));
    lines.extend(broken.map(|reason| format!("the active plugin is refused now: {reason}")));
    output::line(lines.join("\n"))
}

/// A namespace that nobody is named for any more, and who may publish in it instead: the keys for any name.
struct Opened {
    namespace: String,
    to: Vec<PublisherKey>,
}

impl Opened {
    /// What follows where a key was taken out of `role` and `root` is what is left; none where others hold the role.
    fn by(root: &VerifiedRoot, role: &RoleName) -> Option<Self> {
        let RoleName::Publisher(namespace) = role else { return None };
        if root.root().roles.contains_key(role) {
            return None;
        }
        let any = root.root().roles.get(&RoleName::Publisher(ANY_NAMESPACE.to_owned()));
        let ids = any.into_iter().flat_map(|any| &any.keys);
        let to = ids.filter_map(|id| root.root().keys.get(id).cloned()).collect();
        Some(Opened { namespace: namespace.clone(), to })
    }

    fn object(&self) -> Value {
        json!({
            "namespace": self.namespace, "to": self.to.iter().map(PublisherKey::line).collect::<Vec<_>>(),
        })
    }

    fn lines(&self) -> Vec<String> {
        if self.namespace == ANY_NAMESPACE {
            return vec!["nobody may publish plugins now for whose names no key is named".to_owned()];
        }
        let named = spoken(&self.namespace);
        if self.to.is_empty() {
            return vec![format!("now that no key is named for them, nobody may publish {named}")];
        }
        let head = format!("now that no key is named for them, these keys for any name may publish {named}:");
        [head].into_iter().chain(self.to.iter().map(|key| format!("  {}", key.line()))).collect()
    }
}

/// `kvasir plugin trust rotate`: a new root key in the place of the old one, which is kept beside it under another name. The old one is
/// the first of `root_keys`, or the one in its usual place; the others only sign, where the root demands more than one.
///
/// # Errors
/// Where the old key is not there, or files cannot be written. What was half done is taken up by the next try.
pub fn rotate(settings: &Settings, root_keys: &[PathBuf], json: bool) -> Result<()> {
    let store = settings.store();
    let root = present_root(&store)?;
    let (place, next_place) = (keys::root_key(settings), keys::next_root_key(settings));
    let holds = |root: &VerifiedRoot, key: &SecretKey| {
        let id = KeyId::of(&key.signing_key().verifying_key());
        root.root().roles.get(&RoleName::Root).is_some_and(|role| role.keys.contains(&id))
    };
    // An earlier try stopped after the root was written: only the files' names are left to change.
    if next_place.exists() && holds(&root, &key_file::load(&next_place)?) {
        settle(&place, &next_place, root.version())?;
    }
    let signers = keys::signers(settings, &root, &RoleName::Root, root_keys)?;
    let (old, others) = signers.split_first().context("there is no root key to replace")?;
    let others: Vec<_> = others.iter().map(SecretKey::signing_key).collect();
    let (new, _) = key_file::load_or_create(&next_place)?;
    let next = store.rotate_root(old.signing_key(), new.signing_key(), &others, setup::now())?;
    let kept = settle(&place, &next_place, next.version())?;
    if json {
        return output::object(&json!({
            "root_version": next.version(), "root_key": new.public().to_string(),
            "file": place.display().to_string(), "former": kept.as_ref().map(|path| path.display().to_string()),
        }));
    }
    output::line(format!(
        "root version {}: the root key is {} in {}{}",
        next.version(),
        new.public(),
        place.display(),
        kept.map_or_else(String::new, |path| format!("; the former one is {}", path.display()))
    ))
}

/// `kvasir plugin trust show`.
///
/// # Errors
/// Where the trust folder cannot be used.
pub fn show(settings: &Settings, json: bool) -> Result<()> {
    let store = settings.store();
    let trust = store.trust()?;
    let folder = store.places().trust();
    let Some(root) = trust.root() else {
        let keys: Vec<String> = trust.publishers().keys().map(|(_, key)| key.line()).collect();
        if json {
            return output::object(
                &json!({"root": null, "folder": folder.display().to_string(), "publishers": keys}),
            );
        }
        return output::line(format!(
            "there is no root yet (`kvasir setup` makes one); each of the keys in {} may publish any plugin:\n{}",
            folder.display(),
            keys.join("\n")
        ));
    };
    let aside = unread_keys(&store, root);
    let revoked = trust.revocations().map(|revoked| revoked.revocations());
    if json {
        let role = |(name, role): (&RoleName, &Role)| {
            let keys: Vec<Value> = role.keys.iter().map(|id| key_object(root, id)).collect();
            (name.to_string(), json!({"threshold": role.threshold, "keys": keys}))
        };
        let roles: serde_json::Map<String, Value> = root.root().roles.iter().map(role).collect();
        return output::object(&json!({
            "folder": folder.display().to_string(), "root": {
                "version": root.version(), "expires": root.expires().0, "roles": roles,
            },
            "revocations": revoked.map(|revoked| json!({
                "version": revoked.version, "expires": revoked.expires.0, "keys": revoked.keys, "packages": revoked.packages,
            })),
            "not_in_the_root": aside,
        }));
    }
    let mut lines = vec![format!(
        "root version {}, valid until {}, in {}",
        root.version(),
        root.expires(),
        folder.display()
    )];
    for (name, role) in &root.root().roles {
        lines.push(format!("{name}  ({} of {} keys must sign)", role.threshold, role.keys.len()));
        lines.extend(
            role.keys.iter().filter_map(|id| root.root().keys.get(id)).map(|key| format!("  {}", key.line())),
        );
    }
    match revoked {
        None => lines.push("nothing was ever revoked".to_owned()),
        Some(revoked) => {
            lines.push(format!("revocations version {}, valid until {}", revoked.version, revoked.expires));
            lines.extend(revoked.keys.iter().map(|key| format!("  key {key}")));
            lines.extend(revoked.packages.iter().map(|plugin| format!("  package {plugin}")));
        }
    }
    if !aside.is_empty() {
        lines.push(
            "keys in trust/*.pub that the root does not trust (`kvasir plugin trust add FILE`):".to_owned(),
        );
        lines.extend(aside.iter().map(|line| format!("  {line}")));
    }
    output::line(lines.join("\n"))
}

pub(super) fn present_root(store: &Store) -> Result<VerifiedRoot> {
    let path = store.places().trust();
    Ok(store.trust()?.root().cloned().ok_or(StoreError::NoRoot { path })?)
}

/// Gives the new root key its place, and the one that was there another name; says which.
fn settle(place: &Path, next_place: &Path, version: u64) -> Result<Option<PathBuf>> {
    let mut kept = None;
    if place.exists() {
        let aside = place.with_file_name(format!("root-before-{version}.key"));
        fs::rename(place, &aside)
            .with_context(|| format!("cannot rename {} to {}", place.display(), aside.display()))?;
        kept = Some(aside);
    }
    fs::rename(next_place, place)
        .with_context(|| format!("cannot rename {} to {}", next_place.display(), place.display()))?;
    Ok(kept)
}

/// Keys in `trust/*.pub`, which a root put out of use, that the root does not hold.
fn unread_keys(store: &Store, root: &VerifiedRoot) -> Vec<String> {
    let Ok(folder) = TrustStore::load_folder(&store.places().trust()) else { return Vec::new() };
    folder.keys().filter(|(id, _)| !root.root().keys.contains_key(id)).map(|(_, key)| key.line()).collect()
}

fn key_object(root: &VerifiedRoot, id: &KeyId) -> Value {
    let key = root.root().keys.get(id);
    json!({
        "key": id.to_string(), "name": key.and_then(|key| key.name.clone()),
        "public": key.map(|key| PublisherKey { name: None, ..key.clone() }.line()),
    })
}

fn role(namespace: &str) -> Result<RoleName> {
    format!("publisher/{namespace}").parse().with_context(|| format!("{namespace:?} is no namespace"))
}

fn spoken(namespace: &str) -> String {
    if namespace == ANY_NAMESPACE {
        "plugins of any name".to_owned()
    } else {
        format!("plugins named {namespace}:...")
    }
}

/// The namespace of the plugin whose folder this is, if it is one.
fn working_namespace() -> Result<Option<String>> {
    let path = Path::new("plugin.toml");
    if !path.exists() {
        return Ok(None);
    }
    let text = files::read_bounded(path, MAX_MANIFEST_BYTES as u64).context("cannot read plugin.toml")?;
    Ok(Manifest::parse(&text)?.namespace().map(str::to_owned))
}

pub(super) fn key_id(text: &str) -> Result<KeyId> {
    match KeyId::from_hex(text) {
        Some(id) => Ok(id),
        None => Ok(KeyId::of(&keys::public_key(text)?.key)),
    }
}
