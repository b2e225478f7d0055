//! What the operator decides: the first root, its successors, revocations. Each step is signed, checked as every reader will check
//! it, recorded, and only then written.

use std::collections::BTreeSet;

use ed25519_dalek::SigningKey;
use kvasir_plugin::{
    DocumentError, KeyId, PluginDigest, PublisherKey, Revocations, Role, RoleName, Root, UnixSeconds,
    VerifiedRevocations, VerifiedRoot,
};

use crate::disk::{self, Lock};
use crate::downgrade::Override;
use crate::error::StoreError;
use crate::history::{self, Happened};
use crate::limits::{MAX_PACKAGES, ROOT_DAYS};
use crate::store::Store;

/// What can be revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocable {
    /// A publisher's key: none of its signatures counts any more.
    Key(KeyId),
    /// A package, whoever signed it.
    Package(PluginDigest),
}

impl std::fmt::Display for Revocable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Revocable::Key(key) => write!(f, "key {key}"),
            Revocable::Package(plugin) => write!(f, "package {plugin}"),
        }
    }
}

impl Store {
    /// Makes the first root, in which `key` is trusted with the root and with revoking, and `publishers` with plugins of any name
    /// for which no other publisher is named. Where a root is there already, nothing is done.
    pub fn create_root(
        &self,
        key: &SigningKey,
        publishers: Vec<PublisherKey>,
        now: UnixSeconds,
    ) -> Result<bool, StoreError> {
        let lock = self.lock()?;
        disk::make_folder(&self.places.trust())?;
        if self.trust_locked(&lock)?.trust.root().is_some() {
            return Ok(false);
        }
        let own = PublisherKey { key: key.verifying_key(), name: Some("own root".to_owned()) };
        let mut root = Root::new(expiry(now), own);
        for publisher in publishers {
            root.grant(RoleName::Publisher(kvasir_plugin::ANY_NAMESPACE.to_owned()), publisher);
        }
        let bytes = root.sign(&[key]).map_err(|source| self.refused(source))?;
        VerifiedRoot::initial(&bytes, now).map_err(|source| self.refused(source))?;
        self.write_root(&bytes, 1, "created", now, &lock)?;
        Ok(true)
    }

    /// Makes the next root: `edit` changes the present one, `keys` sign it; with its validity anew. The word `what` goes into the
    /// history. Where `edit` says that there is nothing to change, nothing is done.
    pub fn change_root(
        &self,
        keys: &[&SigningKey],
        what: &str,
        now: UnixSeconds,
        edit: impl FnOnce(&mut Root) -> bool,
    ) -> Result<Option<VerifiedRoot>, StoreError> {
        let lock = self.lock()?;
        let present = self.present_root(&lock)?;
        self.write_next(&present, keys, what, now, &lock, edit)
    }

    /// Puts `new` in the place of `old` wherever the root trusts it with the root or with revoking: the next root, signed by both, and
    /// by `others` where the root demands more. Revocations and permissions are signed anew by all of them first, so that they hold
    /// before and after.
    pub fn rotate_root(
        &self,
        old: &SigningKey,
        new: &SigningKey,
        others: &[&SigningKey],
        now: UnixSeconds,
    ) -> Result<VerifiedRoot, StoreError> {
        let lock = self.lock()?;
        let present = self.present_root(&lock)?;
        let keys: Vec<&SigningKey> = [old, new].into_iter().chain(others.iter().copied()).collect();
        let (old_id, new_key) = (
            KeyId::of(&old.verifying_key()),
            PublisherKey { key: new.verifying_key(), name: Some("own root".to_owned()) },
        );
        let edit = |root: &mut Root| {
            let holds =
                |role: &RoleName| root.roles.get(role).is_some_and(|role| role.keys.contains(&old_id));
            let roles: Vec<_> = [RoleName::Root, RoleName::Revocation].into_iter().filter(holds).collect();
            for role in &roles {
                root.grant(role.clone(), new_key.clone());
                root.withdraw(role, &old_id);
            }
            !roles.is_empty()
        };
        // Whether it can be done is known before anything is written.
        let mut trial = present.root().clone();
        if !edit(&mut trial) {
            return Err(StoreError::NotARootKey { key: old_id });
        }
        if let Some(bytes) =
            disk::read(&self.places.revoked(), kvasir_plugin::MAX_TRUST_DOCUMENT_BYTES as u64)?
        {
            let verified =
                VerifiedRevocations::for_renewal(&bytes, &present).map_err(|source| self.refused(source))?;
            let mut revocations = verified.revocations().clone();
            revocations.version = revocations.version.saturating_add(1);
            revocations.expires = expiry(now);
            let bytes = revocations.sign(&keys).map_err(|source| self.refused(source))?;
            VerifiedRevocations::verify(&bytes, &present, now).map_err(|source| self.refused(source))?;
            disk::replace(&self.places.revoked(), &bytes)?;
        }
        for path in disk::files_in(&self.places.overrides(), "json", MAX_PACKAGES)? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let plugin = name.strip_suffix(".dsse.json").and_then(PluginDigest::from_hex);
            // One that does not hold now need not hold later.
            if let Some(Ok(Some(permission))) =
                plugin.map(|plugin| Override::read(&self.places, plugin, &present))
            {
                permission.write(&self.places, &present, &keys)?;
            }
        }
        let next = self.write_next(&present, &keys, "rotated", now, &lock, edit)?;
        next.ok_or(StoreError::NotARootKey { key: old_id })
    }

    /// Adds `what` to the revocations: the next `revoked.json`, signed by `keys`. The flag says whether it was not there yet. A key that
    /// the root trusts with itself or with revoking is refused ([`StoreError::RevokesRootKey`]).
    pub fn revoke(
        &self,
        what: &[Revocable],
        keys: &[&SigningKey],
        now: UnixSeconds,
    ) -> Result<(VerifiedRevocations, bool), StoreError> {
        let lock = self.lock()?;
        let trust = self.trust_locked(&lock)?.trust;
        let root = trust.root().ok_or_else(|| StoreError::NoRoot { path: self.places.trust() })?;
        refuse_root_keys(root, what)?;
        let mut revocations = match trust.revocations() {
            Some(present) => {
                let mut next = present.revocations().clone();
                next.version = next.version.saturating_add(1);
                next.expires = expiry(now);
                next
            }
            None => Revocations::new(expiry(now)),
        };
        let mut new = BTreeSet::new();
        for item in what {
            let added = match item {
                Revocable::Key(key) => revocations.keys.insert(*key),
                Revocable::Package(plugin) => revocations.packages.insert(*plugin),
            };
            if added {
                new.insert(item.to_string());
            }
        }
        if let (true, false, Some(present)) = (new.is_empty(), what.is_empty(), trust.revocations()) {
            return Ok((present.clone(), false));
        }
        let bytes = revocations.sign(keys).map_err(|source| self.refused(source))?;
        let verified =
            VerifiedRevocations::verify(&bytes, root, now).map_err(|source| self.refused(source))?;
        for revoked in &new {
            let happened = Happened::Revoked { revoked: revoked.clone(), version: verified.version() };
            history::record(&self.places, now, happened)?;
        }
        disk::replace(&self.places.revoked(), &bytes)?;
        self.trust_locked(&lock)?;
        Ok((verified, !new.is_empty()))
    }

    fn present_root(&self, lock: &Lock) -> Result<VerifiedRoot, StoreError> {
        let trust = self.trust_locked(lock)?.trust;
        trust.root().cloned().ok_or_else(|| StoreError::NoRoot { path: self.places.trust() })
    }

    fn write_next(
        &self,
        present: &VerifiedRoot,
        keys: &[&SigningKey],
        what: &str,
        now: UnixSeconds,
        lock: &Lock,
        edit: impl FnOnce(&mut Root) -> bool,
    ) -> Result<Option<VerifiedRoot>, StoreError> {
        let mut root = present.root().clone();
        if !edit(&mut root) {
            return Ok(None);
        }
        root.version = root.version.saturating_add(1);
        root.expires = expiry(now);
        let bytes = root.sign(keys).map_err(|source| self.refused(source))?;
        let next = present.update(&bytes, now).map_err(|source| self.refused(source))?;
        self.write_root(&bytes, next.version(), what, now, lock)?;
        Ok(Some(next))
    }

    /// Records the root, writes it as a step and as the present one, and accepts it.
    fn write_root(
        &self,
        bytes: &[u8],
        version: u64,
        change: &str,
        now: UnixSeconds,
        lock: &Lock,
    ) -> Result<(), StoreError> {
        let happened = Happened::RootAccepted { version, change: change.to_owned() };
        history::record(&self.places, now, happened)?;
        disk::replace(&self.places.root_version(version), bytes)?;
        disk::replace(&self.places.root(), bytes)?;
        self.trust_locked(lock)?;
        Ok(())
    }

    fn refused(&self, source: DocumentError) -> StoreError {
        StoreError::Document { folder: self.places.trust(), source }
    }
}

/// A revocation bounds publishers alone, so that of a key which changes the root would promise what it does not do.
fn refuse_root_keys(root: &VerifiedRoot, what: &[Revocable]) -> Result<(), StoreError> {
    for item in what {
        let Revocable::Key(key) = item else { continue };
        let holds = |(name, role): (&RoleName, &Role)| {
            (!matches!(name, RoleName::Publisher(_)) && role.keys.contains(key)).then(|| name.clone())
        };
        if let Some(role) = root.root().roles.iter().find_map(holds) {
            return Err(StoreError::RevokesRootKey { key: *key, role });
        }
    }
    Ok(())
}

fn expiry(now: UnixSeconds) -> UnixSeconds {
    UnixSeconds(now.0.saturating_add(ROOT_DAYS * 86_400))
}
