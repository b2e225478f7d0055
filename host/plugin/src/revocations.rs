//! `revoked.json`: keys and packages that must not count any more, signed by the root's role `revocation`.
//!
//! `{"signed": {"_type": "revocations", "expires", "keyids", "packages", "spec_version", "version"}, "signatures": [...]}`.

use std::collections::BTreeSet;

use ed25519_dalek::SigningKey;
use serde::{Deserialize, Serialize};

use crate::document;
use crate::error::DocumentError;
use crate::identity::{KeyId, PluginDigest, UnixSeconds};
use crate::limits::MAX_REVOKED;
use crate::root::{CURRENT_SPEC_VERSION, RoleName, VerifiedRoot, document_kind};

const FILE: &str = "revoked.json";

/// A list of what is revoked, to be made, changed and signed. Only [`VerifiedRevocations`] are ever believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocations {
    /// Grows with every list.
    pub version: u64,
    /// The first second at which it is no longer valid.
    pub expires: UnixSeconds,
    /// Publishers' keys whose signatures do not count.
    pub keys: BTreeSet<KeyId>,
    /// Packages that are refused whoever signed them.
    pub packages: BTreeSet<PluginDigest>,
}

/// Revocations whose signatures were checked against a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedRevocations {
    revocations: Revocations,
}

impl Revocations {
    /// Version 1, in which nothing is revoked.
    pub fn new(expires: UnixSeconds) -> Self {
        Revocations { version: 1, expires, keys: BTreeSet::new(), packages: BTreeSet::new() }
    }

    /// The document, signed by `keys`. Whether they are enough is found when it is verified.
    ///
    /// # Errors
    /// More than [`MAX_REVOKED`] keys or packages; a weak key.
    pub fn sign(&self, keys: &[&SigningKey]) -> Result<Vec<u8>, DocumentError> {
        self.check()?;
        let signed = SignedRevocations {
            _type: "revocations".to_owned(),
            expires: self.expires,
            keyids: self.keys.clone(),
            packages: self.packages.clone(),
            spec_version: CURRENT_SPEC_VERSION.to_owned(),
            version: self.version,
        };
        document::sign(FILE, signed, keys)
    }

    /// The document `bytes` with one more signature, for a role that several people hold.
    ///
    /// # Errors
    /// Where the bytes are no list of revocations, or the key is weak.
    pub fn add_signature(bytes: &[u8], key: &SigningKey) -> Result<Vec<u8>, DocumentError> {
        document::add_signature::<SignedRevocations>(FILE, bytes, key)
    }

    fn check(&self) -> Result<(), DocumentError> {
        let limit = MAX_REVOKED;
        for (of, count) in [("keys", self.keys.len()), ("packages", self.packages.len())] {
            if count > limit {
                return Err(DocumentError::TooMany { what: FILE, of, count, limit });
            }
        }
        if self.version == 0 {
            let reason = "versions count from 1".to_owned();
            return Err(DocumentError::Unreadable { what: FILE, reason });
        }
        Ok(())
    }
}

impl VerifiedRevocations {
    /// Reads `revoked.json` and checks it against the root's role `revocation`.
    ///
    /// # Errors
    /// Where the document is malformed, under-signed or expired.
    pub fn verify(bytes: &[u8], root: &VerifiedRoot, now: UnixSeconds) -> Result<Self, DocumentError> {
        let verified = Self::for_renewal(bytes, root)?;
        document::check_expiry(FILE, verified.revocations.expires, now)?;
        Ok(verified)
    }

    /// As [`VerifiedRevocations::verify`], but an expired list is accepted, so that its successor can repeat what it revokes. A
    /// trust store made of it refuses everything.
    ///
    /// # Errors
    /// Where the document is malformed or under-signed.
    pub fn for_renewal(bytes: &[u8], root: &VerifiedRoot) -> Result<Self, DocumentError> {
        let document = document::read::<SignedRevocations>(FILE, bytes)?;
        root.require(&document, &RoleName::Revocation)?;
        let SignedRevocations { _type, expires, keyids, packages, spec_version, version } = document.signed;
        document_kind(FILE, &_type, "revocations", &spec_version)?;
        let revocations = Revocations { version, expires, keys: keyids, packages };
        revocations.check()?;
        Ok(VerifiedRevocations { revocations })
    }

    /// What is revoked.
    pub fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// Its version.
    pub fn version(&self) -> u64 {
        self.revocations.version
    }

    /// The first second at which it is no longer valid.
    pub fn expires(&self) -> UnixSeconds {
        self.revocations.expires
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignedRevocations {
    _type: String,
    expires: UnixSeconds,
    keyids: BTreeSet<KeyId>,
    packages: BTreeSet<PluginDigest>,
    spec_version: String,
    version: u64,
}
