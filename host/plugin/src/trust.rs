//! Whose signatures count: the publishers' keys that this host's operator chose.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use ed25519_dalek::VerifyingKey;

use crate::error::{KeyTextError, TrustError};
use crate::identity::{KeyId, digest_from_hex};
use crate::limits::{MAX_KEY_FILE_BYTES, MAX_TRUSTED_KEYS};

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

/// The trusted publishers. One signature by one of them is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustStore {
    keys: BTreeMap<KeyId, PublisherKey>,
}

impl TrustStore {
    /// Trusts exactly `keys`; a weak key, a key given twice or too many keys are errors.
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
