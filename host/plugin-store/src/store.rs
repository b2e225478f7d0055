//! The store as a whole: trust, policy, load, activate, go back.
//!
//! Loading is the full verification of the package each time, against the trust, the policy and the highest revision seen of that
//! moment; that a package was installed once proves nothing later. Whoever changes something holds the lock for all of it, and every
//! file is replaced whole, so that a process that ends between two steps leaves a store that works.
//!
//! A revision counts as seen before its plugin is used, and every use begins with a load, which writes it down. Choosing a plugin is
//! no use yet: the choice is written first and its revision after it, so that what was active goes on until the choice has changed.

use std::path::Path;

use ed25519_dalek::SigningKey;
use kvasir_plugin::{
    Grant, KeyId, MAX_POLICY_BYTES, PluginDigest, PluginError, Policy, Seen, UnixSeconds, VerifiedPlugin,
};

use crate::active::Active;
use crate::disk::{self, Lock};
use crate::downgrade::Override;
use crate::error::StoreError;
use crate::history::{self, Happened, History, Named};
use crate::places::Places;
use crate::seen_files;
use crate::trust::{Found, Trust};

/// Installed plugins and what the operator decided about them. Cheap to make; several, in one process or many, may be at work.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) places: Places,
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

    /// Whom this host trusts. What is new in it is written down as seen before this returns.
    pub fn trust(&self) -> Result<Trust, StoreError> {
        let found = Found::read(&self.places)?;
        if !found.is_new() {
            return Ok(found.trust);
        }
        Ok(self.trust_locked(&self.lock()?)?.trust)
    }

    pub(crate) fn trust_locked(&self, lock: &Lock) -> Result<Found, StoreError> {
        let mut found = Found::read(&self.places)?;
        found.keep(&self.places, lock)?;
        Ok(found)
    }

    /// The operator's policy; the default one where there is no `policy.toml`.
    pub fn policy(&self) -> Result<Policy, StoreError> {
        let path = self.places.policy();
        let Some(text) = disk::read_through_links(&path, MAX_POLICY_BYTES as u64)? else {
            return Ok(Policy::default());
        };
        Policy::parse(&text).map_err(|source| StoreError::PolicyFile { path, source })
    }

    /// What the policy grants `plugin`.
    pub fn grant(&self, plugin: &VerifiedPlugin) -> Result<Grant, StoreError> {
        let digest = plugin.digest();
        self.policy()?.grant(plugin).map_err(|source| StoreError::Policy { digest, source })
    }

    /// As [`Store::grant`], of a plugin that only says who signed it: whoever is named can narrow what it gets and not widen it.
    pub fn grant_claimed(&self, plugin: &VerifiedPlugin, claimed: &[KeyId]) -> Result<Grant, StoreError> {
        let digest = plugin.digest();
        self.policy()?.grant_claimed(plugin, claimed).map_err(|source| StoreError::Policy { digest, source })
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
        loop {
            let Some(digest) = self.active_digest()? else { return Ok(None) };
            match self.load(digest, now) {
                // Another process made a newer one active since.
                Err(StoreError::Downgrade { .. }) if self.active_digest()? != Some(digest) => {}
                loaded => return loaded.map(Some),
            }
        }
    }

    /// The installed plugin called `digest`, verified now: signatures, publisher, revocation, validity, revision, policy.
    pub fn load(&self, digest: PluginDigest, now: UnixSeconds) -> Result<VerifiedPlugin, StoreError> {
        let plugin = self.verified(digest, now, None)?;
        self.raise_revision(&plugin, None)?;
        Ok(plugin)
    }

    /// As [`Store::load`], but to look at and not to use: its revision is not written down as seen.
    pub fn examine(&self, digest: PluginDigest, now: UnixSeconds) -> Result<VerifiedPlugin, StoreError> {
        self.verified(digest, now, None)
    }

    /// A package that is not in the store, for use now: checked as one that is, and its revision is written down as seen.
    pub fn admit(&self, package: &[u8], now: UnixSeconds) -> Result<VerifiedPlugin, StoreError> {
        let trust = self.trust()?;
        let plugin = kvasir_plugin::verify(package, trust.publishers(), now).map_err(StoreError::Package)?;
        self.grant(&plugin)?;
        self.check_revision(&plugin, &trust, now)?;
        self.raise_revision(&plugin, None)?;
        Ok(plugin)
    }

    /// Makes the installed plugin `digest` the active one, after verifying it. It may be so already. Where its revision is below
    /// the highest one seen, `root_keys` sign a permission for it.
    pub fn activate(
        &self,
        digest: PluginDigest,
        root_keys: &[&SigningKey],
        now: UnixSeconds,
    ) -> Result<VerifiedPlugin, StoreError> {
        let lock = self.lock()?;
        let (plugin, overridden_revision) = self.permitted(digest, root_keys, now, &lock)?;
        let active = self.active_state()?;
        if active.digest == Some(digest) {
            self.raise_revision(&plugin, Some(&lock))?;
            return Ok(plugin);
        }
        let next = active.then(digest);
        let happened = Happened::Activated {
            plugin: Named::from(&plugin),
            change: next.change,
            former: active.digest.map(|digest| digest.to_string()),
            overridden_revision,
        };
        self.switch(&next, &plugin, (now, happened), &lock)?;
        Ok(plugin)
    }

    /// Makes the plugin active that was active before the present one, after verifying it. Where its revision is below the highest
    /// one seen, `root_keys` sign a permission for it; without them it is refused ([`StoreError::Downgrade`]).
    pub fn rollback(
        &self,
        root_keys: &[&SigningKey],
        now: UnixSeconds,
    ) -> Result<VerifiedPlugin, StoreError> {
        let lock = self.lock()?;
        let active = self.active_state()?;
        let next = active.back().ok_or(StoreError::NoFormer)?;
        let digest = next.digest.ok_or(StoreError::NoFormer)?;
        let (plugin, overridden_revision) = self.permitted(digest, root_keys, now, &lock)?;
        let happened = Happened::RolledBack {
            plugin: Named::from(&plugin),
            change: next.change,
            former: active.digest.map(|digest| digest.to_string()),
            overridden_revision,
        };
        self.switch(&next, &plugin, (now, happened), &lock)?;
        Ok(plugin)
    }

    /// What happened to the store, the oldest first.
    pub fn history(&self) -> Result<History, StoreError> {
        History::read(&self.places)
    }

    /// Keeps others from changing the store until it is dropped; and removes the drafts of those that were ended half way.
    pub(crate) fn lock(&self) -> Result<Lock, StoreError> {
        disk::make_folder(&self.places.plugins())?;
        let lock = Lock::take(&self.places.lock())?;
        for folder in
            [self.places.plugins(), self.places.packages(), self.places.overrides(), self.places.trust()]
        {
            disk::sweep(&folder, &lock);
        }
        Ok(lock)
    }

    /// Lets `next` be the store's state, of which `plugin` is the active one, then writes its revision down as seen. Everything is
    /// on the disk before the first file is put in its place, so that a full disk changes nothing.
    fn switch(
        &self,
        next: &Active,
        plugin: &VerifiedPlugin,
        (now, happened): (UnixSeconds, Happened),
        lock: &Lock,
    ) -> Result<(), StoreError> {
        seen_files::begin(&self.places, lock)?;
        let active = next.draft(&self.places)?;
        let seen = match self.raised(plugin)? {
            Some(seen) => Some(seen_files::Drafts::write(&self.places, &seen, lock)?),
            None => None,
        };
        history::record(&self.places, now, happened)?;
        active.put()?;
        seen.map_or(Ok(()), seen_files::Drafts::put)
    }

    /// The installed plugin `digest`, after every check of a load.
    fn verified(
        &self,
        digest: PluginDigest,
        now: UnixSeconds,
        lock: Option<&Lock>,
    ) -> Result<VerifiedPlugin, StoreError> {
        let package = self.package(digest)?;
        let trust = match lock {
            Some(lock) => self.trust_locked(lock)?.trust,
            None => self.trust()?,
        };
        let plugin = kvasir_plugin::verify(&package, trust.publishers(), now)
            .map_err(|source| StoreError::refused(digest, source))?;
        if plugin.digest() != digest {
            let path = self.places.package(digest);
            return Err(StoreError::WrongContent { path, found: plugin.digest() });
        }
        self.grant(&plugin)?;
        self.check_revision(&plugin, &trust, now)?;
        Ok(plugin)
    }

    /// As [`Store::verified`], where `root_keys` sign a permission if it needs one; with the revision that it goes below.
    fn permitted(
        &self,
        digest: PluginDigest,
        root_keys: &[&SigningKey],
        now: UnixSeconds,
        lock: &Lock,
    ) -> Result<(VerifiedPlugin, Option<u64>), StoreError> {
        let refused = match self.verified(digest, now, Some(lock)) {
            Err(error @ (StoreError::Downgrade { .. } | StoreError::Override { .. })) => error,
            verified => {
                let plugin = verified?;
                let seen = seen_files::read(&self.places)?.revision(&plugin);
                let below = seen.filter(|&seen| plugin.manifest().kernel_revision < seen);
                return Ok((plugin, below));
            }
        };
        if root_keys.is_empty() {
            return Err(refused);
        }
        let trust = self.trust_locked(lock)?.trust;
        let plugin = kvasir_plugin::verify(&self.package(digest)?, trust.publishers(), now)
            .map_err(|source| StoreError::refused(digest, source))?;
        let seen = self.permit(&plugin, &trust, root_keys, now)?;
        Ok((self.verified(digest, now, Some(lock))?, Some(seen)))
    }

    /// Signs a permission for `plugin`; returns the revision that it goes below.
    pub(crate) fn permit(
        &self,
        plugin: &VerifiedPlugin,
        trust: &Trust,
        root_keys: &[&SigningKey],
        now: UnixSeconds,
    ) -> Result<u64, StoreError> {
        let root = trust.root().ok_or_else(|| StoreError::NoRoot { path: self.places.trust() })?;
        let revision = plugin.manifest().kernel_revision;
        let seen = seen_files::read(&self.places)?.revision(plugin).unwrap_or(revision);
        Override::new(plugin.digest(), revision, seen, now).write(&self.places, root, root_keys)?;
        Ok(seen)
    }

    /// Refuses a revision below the highest one seen, unless a permission is there.
    pub(crate) fn check_revision(
        &self,
        plugin: &VerifiedPlugin,
        trust: &Trust,
        now: UnixSeconds,
    ) -> Result<(), StoreError> {
        let digest = plugin.digest();
        match seen_files::read(&self.places)?.check_and_raise(plugin) {
            Ok(()) => Ok(()),
            Err(PluginError::Rollback { name, revision, seen }) => {
                let permission = trust
                    .root()
                    .map(|root| Override::read(&self.places, digest, root))
                    .transpose()?
                    .flatten();
                let Some(permission) = permission else {
                    let version = plugin.version().to_string();
                    return Err(StoreError::Downgrade { digest, name, version, revision, seen });
                };
                let path = self.places.override_of(digest);
                permission.check(revision, seen, now).map_err(|reason| StoreError::Override { path, reason })
            }
            Err(source) => Err(StoreError::refused(digest, source)),
        }
    }

    /// Writes the revision of what is about to be used down, where it is the highest so far.
    fn raise_revision(&self, plugin: &VerifiedPlugin, lock: Option<&Lock>) -> Result<(), StoreError> {
        let Some(seen) = self.raised(plugin)? else { return Ok(()) };
        match lock {
            Some(lock) => seen_files::write(&self.places, &seen, lock),
            // Read again under the lock: another process may have raised it meanwhile.
            None => self.raise_revision(plugin, Some(&self.lock()?)),
        }
    }

    /// What was seen once `plugin` is used; none where that is what was seen already.
    fn raised(&self, plugin: &VerifiedPlugin) -> Result<Option<Seen>, StoreError> {
        let mut seen = seen_files::read(&self.places)?;
        let before = seen.clone();
        // Below the highest one it is used by permission, and lowers nothing.
        Ok((seen.check_and_raise(plugin).is_ok() && seen != before).then_some(seen))
    }
}
