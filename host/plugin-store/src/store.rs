//! The store as a whole: install, load, activate, go back, list.
//!
//! Loading is the full verification of the package each time, against the trust of that moment; that a package was installed once
//! proves nothing later. Whoever changes something holds the lock for all of it, and every file is replaced whole, so that a process
//! that ends between two steps leaves a store that works.

use std::path::Path;

use kvasir_plugin::{MAX_PACKAGE_BYTES, PluginDigest, TrustStore, UnixSeconds, VerifiedPlugin};

use crate::active::Active;
use crate::disk::{self, Lock};
use crate::error::StoreError;
use crate::history::{self, Happened, History, Named};
use crate::limits::MAX_PACKAGES;
use crate::places::Places;

/// Installed plugins and what the operator decided about them. Cheap to make; several, in one process or many, may be at work.
#[derive(Clone, Debug)]
pub struct Store {
    places: Places,
}

/// A package that is in the store.
#[derive(Clone, Debug)]
pub struct Installed {
    /// What it holds.
    pub plugin: VerifiedPlugin,
    /// Whether a package of this digest was there before.
    pub already: bool,
}

impl Store {
    /// The store of these folders. Touches no file; folders are made when something is first written.
    pub fn open(data_folder: &Path, configuration_folder: &Path) -> Self {
        Store { places: Places::new(data_folder, configuration_folder) }
    }

    /// Where its files are.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Whose packages count.
    pub fn trust(&self, _now: UnixSeconds) -> Result<TrustStore, StoreError> {
        let path = self.places.trust();
        if !path.is_dir() {
            return Err(StoreError::NoTrust { path });
        }
        TrustStore::load_folder(&path).map_err(StoreError::Trust)
    }

    /// Which plugin is active, without verifying anything: one small file is read. A running worker may look every second; `change`
    /// grows with every change.
    pub fn active_state(&self) -> Result<Active, StoreError> {
        Active::read(&self.places)
    }

    /// Digest of the active plugin, as [`Store::active_state`] reads it.
    pub fn active_digest(&self) -> Result<Option<PluginDigest>, StoreError> {
        Ok(self.active_state()?.digest)
    }

    /// The active plugin, verified now; none where nothing is active.
    pub fn active(&self, now: UnixSeconds) -> Result<Option<VerifiedPlugin>, StoreError> {
        self.active_digest()?.map(|digest| self.load(digest, now)).transpose()
    }

    /// The installed plugin called `digest`, verified now.
    pub fn load(&self, digest: PluginDigest, now: UnixSeconds) -> Result<VerifiedPlugin, StoreError> {
        let path = self.places.package(digest);
        let limit = MAX_PACKAGE_BYTES as u64;
        let package = disk::read(&path, limit)?.ok_or(StoreError::NotInstalled { digest })?;
        let plugin = kvasir_plugin::verify(&package, &self.trust(now)?, now)
            .map_err(|source| StoreError::refused(digest, source))?;
        if plugin.digest() == digest {
            Ok(plugin)
        } else {
            Err(StoreError::WrongContent { path, found: plugin.digest() })
        }
    }

    /// Verifies `package` and puts it into the store; the active plugin stays what it is.
    pub fn install(&self, package: &[u8], now: UnixSeconds) -> Result<Installed, StoreError> {
        let _lock = self.lock()?;
        let plugin = kvasir_plugin::verify(package, &self.trust(now)?, now).map_err(StoreError::Package)?;
        let path = self.places.package(plugin.digest());
        disk::make_folder(&self.places.packages())?;
        let already = disk::read(&path, MAX_PACKAGE_BYTES as u64)?.is_some_and(|there| there == package);
        if !already {
            let publishers = vec![plugin.publisher().to_string()];
            let happened = Happened::Installed { plugin: Named::from(&plugin), publishers };
            history::record(&self.places, now, happened)?;
            disk::replace(&path, package)?;
        }
        Ok(Installed { plugin, already })
    }

    /// Makes the installed plugin `digest` the active one, after verifying it. It may be so already.
    pub fn activate(&self, digest: PluginDigest, now: UnixSeconds) -> Result<VerifiedPlugin, StoreError> {
        let _lock = self.lock()?;
        let plugin = self.load(digest, now)?;
        let active = self.active_state()?;
        if active.digest == Some(digest) {
            return Ok(plugin);
        }
        let next = active.then(digest);
        let happened = Happened::Activated {
            plugin: Named::from(&plugin),
            change: next.change,
            former: active.digest.map(|digest| digest.to_string()),
        };
        history::record(&self.places, now, happened)?;
        next.write(&self.places)?;
        Ok(plugin)
    }

    /// Makes the plugin active that was active before the present one, after verifying it.
    pub fn rollback(&self, now: UnixSeconds) -> Result<VerifiedPlugin, StoreError> {
        let _lock = self.lock()?;
        let active = self.active_state()?;
        let next = active.back().ok_or(StoreError::NoFormer)?;
        let plugin = self.load(next.digest.ok_or(StoreError::NoFormer)?, now)?;
        let happened = Happened::RolledBack {
            plugin: Named::from(&plugin),
            change: next.change,
            former: active.digest.map(|digest| digest.to_string()),
            overridden_revision: None,
        };
        history::record(&self.places, now, happened)?;
        next.write(&self.places)?;
        Ok(plugin)
    }

    /// The digest of every package in the store, ascending. Other files there are left alone and left out.
    pub fn digests(&self) -> Result<Vec<PluginDigest>, StoreError> {
        let files = disk::files_in(&self.places.packages(), "kvp", MAX_PACKAGES)?;
        let digest = |path: &std::path::PathBuf| PluginDigest::from_hex(path.file_stem()?.to_str()?);
        Ok(files.iter().filter_map(digest).collect())
    }

    /// What happened to the store, the oldest first.
    pub fn history(&self) -> Result<History, StoreError> {
        History::read(&self.places)
    }

    /// Keeps others from changing the store until it is dropped.
    fn lock(&self) -> Result<Lock, StoreError> {
        disk::make_folder(&self.places.plugins())?;
        Lock::take(&self.places.lock())
    }
}
