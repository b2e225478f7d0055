//! `kvasir plugin revoke`: what must not count any more.

use std::path::PathBuf;

use anyhow::{Context, Result};
use kvasir_plugin::{KeyId, PluginDigest, RoleName, Unverified, VerifiedRoot};
use kvasir_plugin_store::{Revocable, Store};
use kvasir_wire::key::SecretKey;
use serde_json::json;

use super::trust::{active_refused, key_id, present_root};
use super::{digest, keys};
use crate::settings::Settings;
use crate::{output, setup};

/// `kvasir plugin revoke`: `what` is a key (`ed25519:...`, a file, or its id) or a plugin's digest.
///
/// # Errors
/// Where it is neither, it is the root's own key, or the key that signs revocations is not there.
pub fn revoke(settings: &Settings, what: &str, root_keys: &[PathBuf], json: bool) -> Result<()> {
    let store = settings.store();
    let root = present_root(&store)?;
    let revocable = revocable(&store, &root, what)?;
    let signers = keys::signers(settings, &root, &RoleName::Revocation, root_keys)?;
    let signing: Vec<_> = signers.iter().map(SecretKey::signing_key).collect();
    let (revocations, new) = store.revoke(&revocable, &signing, setup::now())?;
    let active = store.active_digest()?;
    let broken = active_refused(&store);
    let both = revocable.len() > 1;
    let revoked: Vec<String> = revocable.iter().map(Revocable::to_string).collect();
    let revoked = revoked.join(" and ");
    if json {
        return output::object(&json!({
            "revoked": revoked, "new": new, "revocations_version": revocations.version(),
            "active": active.map(|digest| digest.to_string()), "active_is_refused": broken,
        }));
    }
    output::line(format!(
        "{revoked} {} revoked{}; revocations version {}{}{}",
        if both { "are" } else { "is" },
        if new { "" } else { " already" },
        revocations.version(),
        if both { "\n(neither is known here, so that it counts as either)" } else { "" },
        broken.map_or_else(String::new, |reason| format!("\nthe active plugin is refused now: {reason}"))
    ))
}

/// 64 digits are a key where the root holds one of that id, a package where one is installed under them, and otherwise both: a key
/// that is trusted no more, or not yet, looks like a package that is nowhere here, and what the package claims proves nothing.
fn revocable(store: &Store, root: &VerifiedRoot, what: &str) -> Result<Vec<Revocable>> {
    if let Some(id) = KeyId::from_hex(what) {
        let (key, plugin) = (Revocable::Key(id), PluginDigest(id.0));
        if root.root().keys.contains_key(&id) {
            return Ok(vec![key]);
        }
        let package = Revocable::Package(plugin);
        return Ok(if is_installed(store, plugin) { vec![package] } else { vec![key, package] });
    }
    match digest(store, what) {
        Ok(digest) => Ok(vec![Revocable::Package(digest)]),
        Err(_) => Ok(vec![Revocable::Key(
            key_id(what).with_context(|| format!("{what:?} is neither a plugin's digest nor a key"))?,
        )]),
    }
}

/// Whether the package of this digest is in the store; one that is only called so is not.
fn is_installed(store: &Store, plugin: PluginDigest) -> bool {
    let found = store.package(plugin).ok().and_then(|package| Unverified::read(&package).ok());
    found.and_then(|found| found.claims).is_some_and(|claims| claims.digest == plugin)
}
