//! The packages in the store: put one there, list them, remove one.

use std::path::PathBuf;

use ed25519_dalek::SigningKey;
use kvasir_plugin::{MAX_PACKAGE_BYTES, PluginDigest, UnixSeconds, VerifiedPlugin};

use crate::disk;
use crate::error::StoreError;
use crate::history::{self, Happened, Named};
use crate::limits::MAX_PACKAGES;
use crate::store::Store;

/// Why the active plugin is not removed.
const ACTIVE: &str =
    "is active: let another one take over first, with `kvasir plugin upgrade` or `kvasir plugin activate`";
/// Why the one before it is not.
const FORMER: &str = "is the one that `kvasir plugin rollback` goes back to, and workers may still be changing over from it: remove it \
                      once another one has taken over";

/// A package that is in the store.
#[derive(Clone, Debug)]
pub struct Installed {
    /// What it holds.
    pub plugin: VerifiedPlugin,
    /// Whether it was there before, with these signatures or with more that count.
    pub already: bool,
}

impl Store {
    /// Verifies `package` and puts it into the store. The active plugin stays what it is, and nothing counts as seen yet.
    pub fn install(&self, package: &[u8], now: UnixSeconds) -> Result<Installed, StoreError> {
        self.install_permitted(package, &[], now)
    }

    /// As [`Store::install`]; where its revision is below the highest one seen, `root_keys` sign a permission for it.
    pub fn install_permitted(
        &self,
        package: &[u8],
        root_keys: &[&SigningKey],
        now: UnixSeconds,
    ) -> Result<Installed, StoreError> {
        let lock = self.lock()?;
        let trust = self.trust_locked(&lock)?.trust;
        let plugin = kvasir_plugin::verify(package, trust.publishers(), now).map_err(StoreError::Package)?;
        self.grant(&plugin)?;
        // Not written down yet: what is only kept here must not shut out what is in use.
        match self.check_revision(&plugin, &trust, now) {
            Err(StoreError::Downgrade { .. } | StoreError::Override { .. }) if !root_keys.is_empty() => {
                self.permit(&plugin, &trust, root_keys, now)?;
                self.check_revision(&plugin, &trust, now)?;
            }
            checked => checked?,
        }
        let path = self.places.package(plugin.digest());
        disk::make_folder(&self.places.packages())?;
        match disk::read(&path, MAX_PACKAGE_BYTES as u64)? {
            None if self.digests()?.len() >= MAX_PACKAGES => {
                return Err(StoreError::Full { path: self.places.packages(), limit: MAX_PACKAGES });
            }
            None => {}
            // Whoever signed is no part of the digest: the same plugin with fewer signatures that count takes nobody's place, and
            // one with as many of other keys does.
            Some(there) => match kvasir_plugin::verify(&there, trust.publishers(), now) {
                Ok(kept)
                    if kept.digest() == plugin.digest()
                        && (kept.publishers().len() > plugin.publishers().len()
                            || kept.publishers() == plugin.publishers()) =>
                {
                    return Ok(Installed { plugin: kept, already: true });
                }
                _ => {}
            },
        }
        let publishers = plugin.publishers().iter().map(ToString::to_string).collect();
        let happened = Happened::Installed { plugin: Named::from(&plugin), publishers };
        history::record(&self.places, now, happened)?;
        disk::replace(&path, package)?;
        Ok(Installed { plugin, already: false })
    }

    /// Removes the package `digest` from the store; it need not be one that could be loaded. Refused are the active plugin and the one
    /// before it, from which workers may still be changing over ([`StoreError::Needed`]). What was seen of it stays seen; a permission
    /// to go back to it goes with it.
    pub fn remove(&self, digest: PluginDigest, now: UnixSeconds) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        let active = self.active_state()?;
        if active.digest == Some(digest) {
            return Err(StoreError::Needed { digest, needed: ACTIVE });
        }
        if active.former.last() == Some(&digest) {
            return Err(StoreError::Needed { digest, needed: FORMER });
        }
        if !self.holds(digest)? {
            return Err(StoreError::NotInstalled { digest });
        }
        history::record(&self.places, now, Happened::Removed { plugin: digest.to_string() })?;
        if let Some(next) = active.without(digest) {
            next.draft(&self.places)?.put()?;
        }
        let permission = self.places.override_of(digest);
        if disk::exists(&permission)? {
            disk::remove(&permission)?;
        }
        disk::remove(&self.places.package(digest))
    }

    /// The digest of every package in the store, ascending. Other files there are left alone and left out.
    pub fn digests(&self) -> Result<Vec<PluginDigest>, StoreError> {
        let files = disk::files_in(&self.places.packages(), "kvp", MAX_PACKAGES)?;
        let digest = |path: &PathBuf| PluginDigest::from_hex(path.file_stem()?.to_str()?);
        Ok(files.iter().filter_map(digest).collect())
    }

    /// Whether a package called `digest` is in the store; nothing of it is looked at.
    pub fn holds(&self, digest: PluginDigest) -> Result<bool, StoreError> {
        disk::exists(&self.places.package(digest))
    }

    /// The bytes of the installed package `digest`, of which nothing was verified.
    pub fn package(&self, digest: PluginDigest) -> Result<Vec<u8>, StoreError> {
        disk::read(&self.places.package(digest), MAX_PACKAGE_BYTES as u64)?
            .ok_or(StoreError::NotInstalled { digest })
    }
}
