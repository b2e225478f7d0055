//! `root.json`: which keys may publish, revoke and change the root itself, and how many of them it takes.
//!
//! Shaped as in The Update Framework: `{"signed": {"_type": "root", "expires", "keys", "roles", "spec_version", "version"},
//! "signatures": [{"keyid", "sig"}]}`, with `expires` in seconds since 1970 and key ids that are the SHA-256 of the 32-byte
//! public key. The first root is its operator's own and is trusted as it is found; every later one must be signed by a threshold
//! of the one before and of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{SigningKey, VerifyingKey};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::document::{self, Unchecked};
use crate::error::DocumentError;
use crate::identity::{KeyId, UnixSeconds, digest_from_hex};
use crate::limits::{MAX_ROLES, MAX_ROOT_KEYS};
use crate::manifest::is_word;
use crate::trust::PublisherKey;

/// The namespace of a publisher who may sign any plugin for which no publisher is named.
pub const ANY_NAMESPACE: &str = "*";

const FILE: &str = "root.json";
const SPEC_VERSION: &str = "1.0.0";

/// What a key may be trusted with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RoleName {
    /// `publisher/<namespace>`: signs plugins named `<namespace>:...`. With [`ANY_NAMESPACE`] it signs the plugins, with or
    /// without a namespace, for which no other publisher role is there.
    Publisher(String),
    /// `revocation`: signs `revoked.json`.
    Revocation,
    /// `root`: signs the next root.
    Root,
}

/// The keys of a role, and how many of them must sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Role {
    /// Ids of keys in [`Root::keys`].
    #[serde(rename = "keyids")]
    pub keys: BTreeSet<KeyId>,
    /// How many distinct keys must sign; 1 to the number of keys.
    pub threshold: u32,
}

/// The contents of a root, to be made, changed and signed. Only a [`VerifiedRoot`] is ever trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Grows by one with every root.
    pub version: u64,
    /// The first second at which it is no longer valid.
    pub expires: UnixSeconds,
    /// Every key that a role names.
    pub keys: BTreeMap<KeyId, PublisherKey>,
    /// Roles; [`RoleName::Root`] and [`RoleName::Revocation`] must be there.
    pub roles: BTreeMap<RoleName, Role>,
}

/// A root whose signatures were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedRoot {
    root: Root,
}

impl Root {
    /// Version 1, in which `key` alone is trusted with the root and with revoking, and nobody publishes yet.
    pub fn new(expires: UnixSeconds, key: PublisherKey) -> Self {
        let mut root = Root { version: 1, expires, keys: BTreeMap::new(), roles: BTreeMap::new() };
        root.grant(RoleName::Root, key.clone());
        root.grant(RoleName::Revocation, key);
        root
    }

    /// Adds `key` to `role`, which begins with a threshold of 1 where it is new; says whether the key was new in it.
    pub fn grant(&mut self, role: RoleName, key: PublisherKey) -> bool {
        let id = KeyId::of(&key.key);
        self.keys.entry(id).or_insert(key);
        let role = self.roles.entry(role).or_insert(Role { keys: BTreeSet::new(), threshold: 1 });
        role.keys.insert(id)
    }

    /// Takes the key `id` out of `role`, then drops the role if it is empty and the key if no role names it; says whether it
    /// was there. A threshold that the rest cannot reach any more is found by [`Root::check`].
    pub fn withdraw(&mut self, role: &RoleName, id: &KeyId) -> bool {
        let Some(holders) = self.roles.get_mut(role) else { return false };
        let was_there = holders.keys.remove(id);
        if holders.keys.is_empty() {
            self.roles.remove(role);
        }
        if !self.roles.values().any(|role| role.keys.contains(id)) {
            self.keys.remove(id);
        }
        was_there
    }

    /// Whether it can be a root: counts within limits, no weak key, every role's keys there and its threshold within reach.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), DocumentError> {
        let what = FILE;
        for (of, count, limit) in
            [("keys", self.keys.len(), MAX_ROOT_KEYS), ("roles", self.roles.len(), MAX_ROLES)]
        {
            if count > limit {
                return Err(DocumentError::TooMany { what, of, count, limit });
            }
        }
        if self.version == 0 {
            return Err(DocumentError::Unreadable { what, reason: "versions count from 1".to_owned() });
        }
        for (id, key) in &self.keys {
            if KeyId::of(&key.key) != *id {
                return Err(DocumentError::WrongKeyId { key: *id, is: KeyId::of(&key.key) });
            }
            if key.key.is_weak() {
                return Err(DocumentError::WeakKey { key: *id });
            }
        }
        for needed in [RoleName::Root, RoleName::Revocation] {
            if !self.roles.contains_key(&needed) {
                return Err(DocumentError::Role { role: needed, reason: "it is missing".to_owned() });
            }
        }
        for (name, role) in &self.roles {
            let wrong = |reason: String| Err(DocumentError::Role { role: name.clone(), reason });
            if let Some(id) = role.keys.iter().find(|id| !self.keys.contains_key(id)) {
                return wrong(format!("it names key {id}, which the root does not hold"));
            }
            if role.threshold == 0 || role.threshold as usize > role.keys.len() {
                return wrong(format!(
                    "its threshold is {}, it has {} keys",
                    role.threshold,
                    role.keys.len()
                ));
            }
        }
        Ok(())
    }

    /// The document, signed by `keys`. Whether they are enough is found when it is verified.
    ///
    /// # Errors
    /// As [`Root::check`]; a weak or no key.
    pub fn sign(&self, keys: &[&SigningKey]) -> Result<Vec<u8>, DocumentError> {
        self.check()?;
        document::sign(FILE, SignedRoot::from(self), keys)
    }

    /// The document `bytes` with one more signature, for roles that several people hold.
    ///
    /// # Errors
    /// Where the bytes are no root, or the key is weak.
    pub fn add_signature(bytes: &[u8], key: &SigningKey) -> Result<Vec<u8>, DocumentError> {
        document::add_signature::<SignedRoot>(FILE, bytes, key)
    }

    fn role(&self, name: &RoleName) -> Option<(BTreeMap<KeyId, &VerifyingKey>, u32)> {
        let role = self.roles.get(name)?;
        let keys = role.keys.iter().filter_map(|id| Some((*id, &self.keys.get(id)?.key))).collect();
        Some((keys, role.threshold))
    }
}

impl VerifiedRoot {
    /// The root that a chain begins with: trusted because its operator put it where it was found, and signed by a threshold of
    /// its own root keys.
    ///
    /// # Errors
    /// Where the document is malformed, under-signed or expired.
    pub fn initial(bytes: &[u8], now: UnixSeconds) -> Result<Self, DocumentError> {
        let verified = Self::for_rotation(bytes)?;
        document::check_expiry(FILE, verified.root.expires, now)?;
        Ok(verified)
    }

    /// As [`VerifiedRoot::initial`], but an expired root is accepted, so that its successor can still be checked against it. A
    /// trust store made of it refuses everything.
    ///
    /// # Errors
    /// Where the document is malformed or under-signed.
    pub fn for_rotation(bytes: &[u8]) -> Result<Self, DocumentError> {
        let (root, document) = read(bytes)?;
        require(&document, &root, &root)?;
        Ok(VerifiedRoot { root })
    }

    /// The next root: version one higher, signed by a threshold of this root's root keys and of its own.
    ///
    /// # Errors
    /// Where the document is malformed, under-signed, expired or of another version.
    pub fn update(&self, bytes: &[u8], now: UnixSeconds) -> Result<Self, DocumentError> {
        let (root, document) = read(bytes)?;
        require(&document, &root, &self.root)?;
        require(&document, &root, &root)?;
        let expected = self.root.version.saturating_add(1);
        if root.version != expected {
            return Err(DocumentError::WrongVersion { what: FILE, found: root.version, expected });
        }
        document::check_expiry(FILE, root.expires, now)?;
        Ok(VerifiedRoot { root })
    }

    /// What it says.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Its version.
    pub fn version(&self) -> u64 {
        self.root.version
    }

    /// The first second at which it is no longer valid.
    pub fn expires(&self) -> UnixSeconds {
        self.root.expires
    }

    /// Demands of a document the threshold of `role`.
    pub(crate) fn require<T>(&self, document: &Unchecked<T>, role: &RoleName) -> Result<(), DocumentError> {
        require_role(document, &self.root, role, role.to_string())
    }
}

fn read(bytes: &[u8]) -> Result<(Root, Unchecked<SignedRoot>), DocumentError> {
    let document = document::read::<SignedRoot>(FILE, bytes)?;
    let root = Root::try_from(&document.signed)?;
    root.check()?;
    Ok((root, document))
}

/// The document of `root` must be signed by the root keys of `by`.
fn require(document: &Unchecked<SignedRoot>, root: &Root, by: &Root) -> Result<(), DocumentError> {
    let whose = if by.version == root.version { "its own root" } else { "the root before it" };
    require_role(document, by, &RoleName::Root, format!("{whose} (version {})", by.version))
}

fn require_role<T>(
    document: &Unchecked<T>,
    root: &Root,
    role: &RoleName,
    shown: String,
) -> Result<(), DocumentError> {
    let missing = || DocumentError::Role { role: role.clone(), reason: "it is missing".to_owned() };
    let (keys, threshold) = root.role(role).ok_or_else(missing)?;
    document.require(&shown, &keys, threshold)
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RoleName::Publisher(namespace) => write!(f, "publisher/{namespace}"),
            RoleName::Revocation => f.write_str("revocation"),
            RoleName::Root => f.write_str("root"),
        }
    }
}

/// A text that is not a [`RoleName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a role is `root`, `revocation` or `publisher/` and a namespace of lower-case letters, digits and `-`, or `*`"
)]
pub struct RoleNameError;

impl FromStr for RoleName {
    type Err = RoleNameError;

    fn from_str(text: &str) -> Result<Self, RoleNameError> {
        match (text, text.strip_prefix("publisher/")) {
            ("root", _) => Ok(RoleName::Root),
            ("revocation", _) => Ok(RoleName::Revocation),
            (_, Some(namespace)) if namespace == ANY_NAMESPACE || is_word(namespace) => {
                Ok(RoleName::Publisher(namespace.to_owned()))
            }
            _ => Err(RoleNameError),
        }
    }
}

impl Serialize for RoleName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RoleName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// The signed part as it is written, fields in the order of their names.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignedRoot {
    _type: String,
    expires: UnixSeconds,
    keys: BTreeMap<KeyId, SignedKey>,
    roles: BTreeMap<RoleName, Role>,
    spec_version: String,
    version: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignedKey {
    keytype: String,
    keyval: KeyValue,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    scheme: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyValue {
    public: String,
}

impl From<&Root> for SignedRoot {
    fn from(root: &Root) -> Self {
        let written = |key: &PublisherKey| SignedKey {
            keytype: "ed25519".to_owned(),
            keyval: KeyValue { public: hex::encode(key.key.as_bytes()) },
            name: key.name.clone(),
            scheme: "ed25519".to_owned(),
        };
        SignedRoot {
            _type: "root".to_owned(),
            expires: root.expires,
            keys: root.keys.iter().map(|(id, key)| (*id, written(key))).collect(),
            roles: root.roles.clone(),
            spec_version: SPEC_VERSION.to_owned(),
            version: root.version,
        }
    }
}

impl TryFrom<&SignedRoot> for Root {
    type Error = DocumentError;

    fn try_from(signed: &SignedRoot) -> Result<Self, DocumentError> {
        let unreadable = |reason: String| DocumentError::Unreadable { what: FILE, reason };
        document_kind(FILE, &signed._type, "root", &signed.spec_version)?;
        let mut keys = BTreeMap::new();
        for (id, SignedKey { keytype, keyval, name, scheme }) in &signed.keys {
            if (keytype.as_str(), scheme.as_str()) != ("ed25519", "ed25519") {
                let reason =
                    format!("key {id} is of type {keytype:?} and scheme {scheme:?}, only ed25519 is checked");
                return Err(unreadable(reason));
            }
            let key = digest_from_hex(&keyval.public)
                .and_then(|bytes| VerifyingKey::from_bytes(&bytes).ok())
                .ok_or_else(|| unreadable(format!("the public half of key {id} is no ed25519 key")))?;
            keys.insert(*id, PublisherKey { key, name: name.clone() });
        }
        Ok(Root { version: signed.version, expires: signed.expires, keys, roles: signed.roles.clone() })
    }
}

/// Type and version of the format, which every document states.
pub(crate) fn document_kind(
    what: &'static str,
    kind: &str,
    expected: &'static str,
    spec_version: &str,
) -> Result<(), DocumentError> {
    if kind != expected {
        return Err(DocumentError::WrongType { what, found: kind.to_owned(), expected });
    }
    if spec_version != SPEC_VERSION {
        let reason = format!("spec_version is {spec_version:?}, this host reads {SPEC_VERSION:?}");
        return Err(DocumentError::Unreadable { what, reason });
    }
    Ok(())
}

/// What a new document states as the version of its format.
pub(crate) const CURRENT_SPEC_VERSION: &str = SPEC_VERSION;
