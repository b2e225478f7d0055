//! Whose signatures count: the publishers' keys that this host's operator chose.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

use ed25519_dalek::VerifyingKey;

use crate::error::{KeyTextError, PluginError, TrustError};
use crate::identity::{KeyId, PluginDigest, UnixSeconds, digest_from_hex};
use crate::limits::{MAX_KEY_FILE_BYTES, MAX_TRUSTED_KEYS};
use crate::manifest::namespace;
use crate::revocations::VerifiedRevocations;
use crate::root::{ANY_NAMESPACE, Role, RoleName, VerifiedRoot};

/// A publisher's public key and what the operator calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublisherKey {
    /// The ed25519 public key.
    pub key: VerifyingKey,
    /// A name for people; never compared.
    pub name: Option<String>,
}

impl PublisherKey {
    /// Reads `ed25519:<64 hexadecimal digits>`, then optionally white space and a name. Weak keys are refused.
    pub fn parse(line: &str) -> Result<Self, KeyTextError> {
        let line = line.trim();
        let (key, name) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let digits = key.strip_prefix("ed25519:").ok_or(KeyTextError::Scheme)?;
        let bytes = digest_from_hex(digits).ok_or(KeyTextError::Digits)?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| KeyTextError::Point)?;
        if key.is_weak() {
            return Err(KeyTextError::Weak);
        }
        let name = name.trim();
        Ok(PublisherKey { key, name: (!name.is_empty()).then(|| name.to_owned()) })
    }

    /// The line that [`PublisherKey::parse`] reads.
    pub fn line(&self) -> String {
        let mut line = format!("ed25519:{}", hex::encode(self.key.as_bytes()));
        if let Some(name) = &self.name {
            line.push(' ');
            line.push_str(name);
        }
        line
    }
}

/// The trusted publishers, and what they are trusted with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustStore {
    keys: BTreeMap<KeyId, PublisherKey>,
    authority: Authority,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Authority {
    /// One signature by any key is enough for any plugin, for ever.
    #[default]
    AnyKey,
    /// What a root says.
    Roles {
        publishers: BTreeMap<String, Role>,
        revoked_keys: BTreeSet<KeyId>,
        revoked_packages: BTreeSet<PluginDigest>,
        expires: UnixSeconds,
    },
}

impl TrustStore {
    /// Trusts the publishers of `root` with the namespaces and thresholds that it gives them, less what is revoked, until root or
    /// revocations expire.
    pub fn from_root(root: &VerifiedRoot, revocations: Option<&VerifiedRevocations>) -> Self {
        let mut publishers = BTreeMap::new();
        let mut keys = BTreeMap::new();
        for (name, role) in &root.root().roles {
            if let RoleName::Publisher(namespace) = name {
                publishers.insert(namespace.clone(), role.clone());
                let held = role.keys.iter().filter_map(|id| Some((*id, root.root().keys.get(id)?.clone())));
                keys.extend(held);
            }
        }
        let revoked = revocations.map(VerifiedRevocations::revocations);
        let authority = Authority::Roles {
            publishers,
            revoked_keys: revoked.map(|revoked| revoked.keys.clone()).unwrap_or_default(),
            revoked_packages: revoked.map(|revoked| revoked.packages.clone()).unwrap_or_default(),
            expires: revoked.map_or(root.expires(), |revoked| revoked.expires.min(root.expires())),
        };
        TrustStore { keys, authority }
    }

    /// Trusts exactly `keys`, one signature by any of which is enough for any plugin; a weak key, a key given twice or too many keys are errors.
    pub fn from_keys(keys: impl IntoIterator<Item = PublisherKey>) -> Result<Self, TrustError> {
        let mut store = TrustStore::default();
        for key in keys {
            store.add(key)?;
        }
        Ok(store)
    }

    /// Trusts the keys in every `*.pub` file directly in the folder `path`. A file holds one key a line; empty lines
    /// and lines that begin with `#` say nothing. A key without a name is called after its file. Any unreadable file or
    /// bad line is an error: a store that silently trusts fewer keys than were written is a riddle.
    pub fn load_folder(path: &Path) -> Result<Self, TrustError> {
        let read = |path: &Path, source| TrustError::Read { path: path.to_owned(), source };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path).map_err(|source| read(path, source))? {
            let file = entry.map_err(|source| read(path, source))?.path();
            if file.extension().is_some_and(|extension| extension == "pub") {
                files.push(file);
            }
        }
        files.sort();
        let mut store = TrustStore::default();
        for file in files {
            let mut text = String::new();
            let length = open_plain(&file)
                .map_err(|source| read(&file, source))?
                .take(MAX_KEY_FILE_BYTES as u64 + 1)
                .read_to_string(&mut text)
                .map_err(|source| read(&file, source))?;
            if length > MAX_KEY_FILE_BYTES {
                return Err(TrustError::FileTooLarge { path: file, limit: MAX_KEY_FILE_BYTES });
            }
            for (index, line) in text.lines().enumerate() {
                if line.trim().is_empty() || line.trim_start().starts_with('#') {
                    continue;
                }
                let mut key = PublisherKey::parse(line).map_err(|reason| TrustError::Line {
                    path: file.clone(),
                    line: index + 1,
                    reason,
                })?;
                key.name = key.name.or_else(|| Some(file.file_stem()?.to_string_lossy().into_owned()));
                store.add(key)?;
            }
        }
        Ok(store)
    }

    /// The key called `id`, if trusted.
    pub fn get(&self, id: &KeyId) -> Option<&PublisherKey> {
        self.keys.get(id)
    }

    /// Every trusted key, ascending by id.
    pub fn keys(&self) -> impl Iterator<Item = (&KeyId, &PublisherKey)> {
        self.keys.iter()
    }

    /// How many keys are trusted.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether nothing is trusted.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Refuses where the time of root or revocations is over.
    pub(crate) fn check_time(&self, now: UnixSeconds) -> Result<(), PluginError> {
        match &self.authority {
            Authority::Roles { expires, .. } if now >= *expires => {
                Err(PluginError::TrustExpired { expires: *expires, now })
            }
            _ => Ok(()),
        }
    }

    /// Whether signatures by `key` do not count any more.
    pub(crate) fn is_revoked(&self, key: &KeyId) -> bool {
        matches!(&self.authority, Authority::Roles { revoked_keys, .. } if revoked_keys.contains(key))
    }

    /// Of the keys that signed, those that may publish the plugin called `name`, and how many of them it takes; an error if they are too
    /// few, or it is revoked.
    pub(crate) fn authorise(
        &self,
        name: &str,
        plugin: PluginDigest,
        signers: &BTreeSet<KeyId>,
    ) -> Result<(BTreeSet<KeyId>, u32), PluginError> {
        let Authority::Roles { publishers, revoked_packages, .. } = &self.authority else {
            return Ok((signers.clone(), 1));
        };
        if revoked_packages.contains(&plugin) {
            return Err(PluginError::RevokedPackage { plugin });
        }
        let namespace = namespace(name).unwrap_or(ANY_NAMESPACE);
        let (namespace, role) = publishers
            .get_key_value(namespace)
            .or_else(|| publishers.get_key_value(ANY_NAMESPACE))
            .ok_or_else(|| PluginError::NoPublisher {
                name: name.to_owned(),
                namespace: namespace.to_owned(),
            })?;
        let signed: BTreeSet<KeyId> = signers.intersection(&role.keys).copied().collect();
        if (signed.len() as u64) < u64::from(role.threshold) {
            return Err(PluginError::TooFewPublishers {
                name: name.to_owned(),
                role: RoleName::Publisher(namespace.clone()),
                valid: signed.len(),
                threshold: role.threshold,
            });
        }
        Ok((signed, role.threshold))
    }

    fn add(&mut self, key: PublisherKey) -> Result<(), TrustError> {
        let id = KeyId::of(&key.key);
        if key.key.is_weak() {
            return Err(TrustError::Weak { key: id });
        }
        if self.keys.len() >= MAX_TRUSTED_KEYS {
            return Err(TrustError::TooManyKeys { limit: MAX_TRUSTED_KEYS });
        }
        if self.keys.insert(id, key).is_some() {
            return Err(TrustError::Duplicate { key: id });
        }
        Ok(())
    }
}

/// Opens a plain file; a pipe, whose opening could wait for ever, and a device are refused unopened.
fn open_plain(path: &Path) -> std::io::Result<std::fs::File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a plain file"));
    }
    std::fs::File::open(path)
}
