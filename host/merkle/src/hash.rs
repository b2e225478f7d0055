//! The 32-byte hash of a leaf, a node or a tree, and its text form.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// Prefix of a leaf's preimage (RFC 6962 2.1), so that a leaf can never be taken for a node.
const LEAF_PREFIX: u8 = 0x00;
const DIGITS: &[u8; 16] = b"0123456789abcdef";
/// Prefix of an inner node's preimage.
const NODE_PREFIX: u8 = 0x01;

/// The root of a tree without leaves: SHA-256 of the empty string.
pub const EMPTY_ROOT: Hash = Hash([
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27,
    0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
]);

/// A SHA-256 value: a leaf hash, a node hash or a root. `Display` and `FromStr` use 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub [u8; 32]);

/// Why bytes or text are no [`struct@Hash`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HashError {
    /// The byte slice is not 32 bytes long.
    #[error("a hash has 32 bytes, not {0}")]
    Length(usize),
    /// The text is not 64 lower-case hexadecimal digits.
    #[error("a hash is written as 64 lower-case hexadecimal digits")]
    Text,
}

impl Hash {
    /// A hash of these 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// SHA-256(0x00 || entry).
pub fn leaf_hash(entry: &[u8]) -> Hash {
    let mut hasher = LeafHasher::new();
    hasher.update(entry);
    hasher.finish()
}

/// SHA-256(0x01 || left || right).
pub fn node_hash(left: &Hash, right: &Hash) -> Hash {
    Hash(
        Sha256::new()
            .chain_update([NODE_PREFIX])
            .chain_update(left.0)
            .chain_update(right.0)
            .finalize()
            .into(),
    )
}

/// [`leaf_hash`] of an entry given in parts: an expert's matrices are hashed where they lie, without a copy.
#[derive(Clone)]
pub struct LeafHasher(Sha256);

impl LeafHasher {
    /// An empty entry so far.
    pub fn new() -> Self {
        Self(Sha256::new().chain_update([LEAF_PREFIX]))
    }

    /// Appends to the entry.
    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// The leaf hash of everything appended.
    pub fn finish(self) -> Hash {
        Hash(self.0.finalize().into())
    }
}

impl Default for LeafHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl From<[u8; 32]> for Hash {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl From<Hash> for [u8; 32] {
    fn from(hash: Hash) -> Self {
        hash.0
    }
}

impl AsRef<[u8]> for Hash {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&[u8]> for Hash {
    type Error = HashError;

    fn try_from(bytes: &[u8]) -> Result<Self, HashError> {
        bytes.try_into().map(Self).map_err(|_| HashError::Length(bytes.len()))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written often enough, in receipts, for a formatter call a byte to be felt.
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        formatter.write_str(std::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Hash({self})")
    }
}

impl FromStr for Hash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, HashError> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(HashError::Text);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

/// One hexadecimal digit; capital letters are refused, so that a hash has one spelling.
fn digit(character: u8) -> Result<u8, HashError> {
    match character {
        b'0'..=b'9' => Ok(character - b'0'),
        b'a'..=b'f' => Ok(character - b'a' + 10),
        _ => Err(HashError::Text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_rfc_6962() {
        assert_eq!(EMPTY_ROOT.0, <[u8; 32]>::from(Sha256::digest(b"")));
        let empty_leaf = "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d";
        assert_eq!(leaf_hash(b"").to_string(), empty_leaf);
        // transparency-dev/merkle, rfc6962_test.go: node of "N123" and "N456" (not hashes, so spelled out here).
        let node = Sha256::new().chain_update([1]).chain_update(b"N123").chain_update(b"N456").finalize();
        assert_eq!(
            Hash(node.into()).to_string(),
            "aa217fe888e47007fa15edab33c2b492a722cb106c64667fc2b044444de66bbb"
        );
    }

    #[test]
    fn a_leaf_in_parts_is_the_same_leaf() {
        let mut hasher = LeafHasher::default();
        hasher.update(b"L1");
        hasher.update(b"23456");
        assert_eq!(hasher.finish(), leaf_hash(b"L123456"));
        assert_eq!(
            leaf_hash(b"L123456").to_string(),
            "395aa064aa4c29f7010acfe3f25db9485bbd4b91897b6ad7ad547639252b4d56"
        );
    }

    #[test]
    fn text_has_one_spelling() {
        let hash = leaf_hash(b"x");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(hash.to_string().to_uppercase().parse::<Hash>(), Err(HashError::Text));
        assert_eq!("00".parse::<Hash>(), Err(HashError::Text));
        assert_eq!("é".repeat(32).parse::<Hash>(), Err(HashError::Text));
        assert_eq!(Hash::try_from(&[0u8; 31][..]), Err(HashError::Length(31)));
        assert_eq!(Hash::try_from(&[7u8; 32][..]), Ok(Hash([7; 32])));
    }
}
