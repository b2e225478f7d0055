//! What a host has seen: the highest versions of root and revocations, and the highest kernel revision of every package by
//! whose keys signed it. A value; whoever keeps it on disk writes it before what it saw is used.
//!
//! Revisions are counted per **key set**, the set of trusted keys that signed. A package is measured against every key set that has
//! as many of its signers as its role takes: those keys could have published alone, and have signed a newer one. So a signature that
//! is stripped off an old package, or that counts only since its key is trusted, does not bring it back; and a leaked key raises the
//! numbers for what it signs itself and cannot bar the packages that others sign without it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::{DocumentError, PluginError};
use crate::identity::KeyId;
use crate::limits::{MAX_SEEN_BYTES, MAX_SEEN_REVISIONS};
use crate::package::VerifiedPlugin;
use crate::revocations::VerifiedRevocations;
use crate::root::VerifiedRoot;

const FILE: &str = "seen.json";

/// The highest versions and revisions seen; the empty one has seen nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    root: u64,
    revocations: u64,
    kernels: BTreeMap<String, Vec<Revision>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Revision {
    keys: BTreeSet<KeyId>,
    revision: u64,
}

impl Seen {
    /// Reads what [`Seen::encode`] wrote.
    ///
    /// # Errors
    /// Where the text is too large or no such state.
    pub fn parse(text: &[u8]) -> Result<Self, DocumentError> {
        if text.len() > MAX_SEEN_BYTES {
            let limit = MAX_SEEN_BYTES;
            return Err(DocumentError::TooLarge { what: FILE, bytes: text.len(), limit });
        }
        let seen: Seen = serde_json::from_slice(text)
            .map_err(|error| DocumentError::Unreadable { what: FILE, reason: error.to_string() })?;
        if seen.count() > MAX_SEEN_REVISIONS {
            let (count, limit) = (seen.count(), MAX_SEEN_REVISIONS);
            return Err(DocumentError::TooMany { what: FILE, of: "revisions", count, limit });
        }
        Ok(seen)
    }

    /// JSON for [`Seen::parse`].
    pub fn encode(&self) -> Vec<u8> {
        // Integers, strings and maps with string keys: nothing that JSON cannot hold.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The highest root version.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// The highest version of the revocations; 0 where there never were any.
    pub fn revocations(&self) -> u64 {
        self.revocations
    }

    /// The highest revision that `plugin` is measured against: seen under key sets that share with its signers as many keys as its role
    /// takes.
    pub fn revision(&self, plugin: &VerifiedPlugin) -> Option<u64> {
        let enough = |seen: &&Revision| {
            seen.keys.intersection(plugin.publishers()).count() as u64 >= u64::from(plugin.threshold())
        };
        self.kernels.get(plugin.name())?.iter().filter(enough).map(|seen| seen.revision).max()
    }

    /// Checks that neither root nor revocations are older than seen, nor the revocations gone, and raises both.
    ///
    /// # Errors
    /// Which one went back. Nothing is raised then.
    pub fn check_and_raise_trust(
        &mut self,
        root: &VerifiedRoot,
        revocations: Option<&VerifiedRevocations>,
    ) -> Result<(), DocumentError> {
        let revoked = revocations.map_or(0, VerifiedRevocations::version);
        for (what, found, seen) in
            [("root.json", root.version(), self.root), ("revoked.json", revoked, self.revocations)]
        {
            if found < seen {
                return Err(DocumentError::Rollback { what, found, seen });
            }
        }
        (self.root, self.revocations) = (root.version(), revoked);
        Ok(())
    }

    /// Checks that `plugin` is no older than seen, and raises its revision.
    ///
    /// # Errors
    /// [`PluginError::Rollback`]; [`PluginError::SeenFull`]. Nothing is raised then.
    pub fn check_and_raise(&mut self, plugin: &VerifiedPlugin) -> Result<(), PluginError> {
        let revision = plugin.manifest().kernel_revision;
        if let Some(seen) = self.revision(plugin).filter(|&seen| revision < seen) {
            return Err(PluginError::Rollback { name: plugin.name().to_owned(), revision, seen });
        }
        let count = self.count();
        let kernel = self.kernels.entry(plugin.name().to_owned()).or_default();
        match kernel.iter_mut().find(|seen| seen.keys == *plugin.publishers()) {
            Some(seen) => seen.revision = revision,
            None if count >= MAX_SEEN_REVISIONS => {
                return Err(PluginError::SeenFull { limit: MAX_SEEN_REVISIONS });
            }
            None => kernel.push(Revision { keys: plugin.publishers().clone(), revision }),
        }
        Ok(())
    }

    /// Raises every number to that of `other`, where that is higher; for a state that is kept twice.
    pub fn raise_to(&mut self, other: &Seen) {
        self.root = self.root.max(other.root);
        self.revocations = self.revocations.max(other.revocations);
        for (name, revisions) in &other.kernels {
            let kernel = self.kernels.entry(name.clone()).or_default();
            for Revision { keys, revision } in revisions {
                match kernel.iter_mut().find(|seen| seen.keys == *keys) {
                    Some(seen) => seen.revision = seen.revision.max(*revision),
                    None => kernel.push(Revision { keys: keys.clone(), revision: *revision }),
                }
            }
        }
    }

    fn count(&self) -> usize {
        self.kernels.values().map(Vec::len).sum()
    }
}
