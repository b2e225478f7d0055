//! Names for things by digest: publishers, plugins; and the unit of time that a package speaks in.

use std::fmt;

use ed25519_dalek::VerifyingKey;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// A publisher: the SHA-256 of its 32-byte ed25519 public key. Shown as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; 32]);

impl KeyId {
    /// The id of `key`.
    pub fn of(key: &VerifyingKey) -> Self {
        KeyId(sha256(key.as_bytes()))
    }

    /// Reads 64 lower-case hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        digest_from_hex(text).map(KeyId)
    }
}

/// A plugin: the SHA-256 of the signed statement's payload bytes, which name every file's digest. Shown as 64
/// hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PluginDigest(pub [u8; 32]);

impl PluginDigest {
    /// Reads 64 lower-case hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        digest_from_hex(text).map(PluginDigest)
    }
}

/// A blob of an OCI layout: the SHA-256 of its bytes. Shown as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobDigest(pub [u8; 32]);

impl BlobDigest {
    /// The digest of `blob`.
    pub fn of(blob: &[u8]) -> Self {
        BlobDigest(sha256(blob))
    }

    /// Reads `sha256:` and 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        digest_from_hex(text.strip_prefix("sha256:")?).map(BlobDigest)
    }

    /// The digits alone, as the blob's file is called.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

/// Seconds since 1970-01-01T00:00:00Z, leap seconds not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixSeconds(pub u64);

impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (seconds since 1970)", self.0)
    }
}

macro_rules! shown_as_hexadecimal {
    ($name:ident, $prefix:literal, $read:path, $expected:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), hex::encode(self.0))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $read(&text).ok_or_else(|| D::Error::custom(concat!("expected ", $expected)))
            }
        }
    };
}
shown_as_hexadecimal!(KeyId, "", KeyId::from_hex, "64 lower-case hexadecimal digits");
shown_as_hexadecimal!(PluginDigest, "", PluginDigest::from_hex, "64 lower-case hexadecimal digits");
shown_as_hexadecimal!(
    BlobDigest,
    "sha256:",
    BlobDigest::parse,
    "`sha256:` and 64 lower-case hexadecimal digits"
);

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Exactly 64 lower-case hexadecimal digits: one digest, one text.
pub(crate) fn digest_from_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    let mut digest = [0; 32];
    hex::decode_to_slice(text, &mut digest).ok()?;
    Some(digest)
}
