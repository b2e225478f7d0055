//! ed25519 keys: text forms, signing, and the strict verification that every signature in Kvasir goes through.
//!
//! A weak key (small order) can make one signature fit two messages, so such keys are refused when they are read, and
//! [`PublicKey::verify`] is `verify_strict`, never `verify`. Secret keys have no `Debug` that shows them and are wiped.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::id::{KeyDigest, WalletDigest, parse_hex_32, sha256};

/// A key or a signature that is not acceptable.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Not 32 bytes that encode a point.
    #[error("not an ed25519 public key: the bytes encode no point of the curve")]
    NotAPoint,
    /// A point of small order: signatures under it prove nothing.
    #[error("weak ed25519 public key (small order): signatures under it prove nothing; make a new key")]
    Weak,
    /// The signature does not verify.
    #[error("the signature does not verify under key {key}")]
    BadSignature {
        /// Digest of the key that was used.
        key: KeyDigest,
    },
    /// Text of a secret key that has another form than `kvasir-secret-v1 <base64>`.
    #[error("not a secret key file: expected one line `kvasir-secret-v1 <base64 of 32 bytes>`")]
    SecretText,
    /// Text of a public key that has another form than `ed25519:<64 hex>`.
    #[error("not a public key: expected `ed25519:` and 64 lower-case hexadecimal digits")]
    PublicText,
}

/// A secret ed25519 key.
#[derive(Clone)]
pub struct SecretKey(SigningKey);

impl SecretKey {
    /// A key from 32 bytes of randomness (or, in tests, of anything).
    pub fn from_seed(seed: [u8; 32]) -> Self {
        let seed = Zeroizing::new(seed);
        SecretKey(SigningKey::from_bytes(&seed))
    }

    /// Its public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs `message`, which must begin with a domain string of its own.
    pub fn sign(&self, message: &[u8]) -> Signature {
        Signature(self.0.sign(message).to_bytes())
    }

    /// The one line of a secret key file, with its line feed.
    pub fn to_text(&self) -> Zeroizing<String> {
        let seed = Zeroizing::new(self.0.to_bytes());
        Zeroizing::new(format!("{SECRET_PREFIX}{}\n", STANDARD.encode(*seed)))
    }

    /// Reads a secret key file's text: one line, with or without a final line feed.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let line = text.strip_suffix('\n').unwrap_or(text);
        let encoded = line.strip_prefix(SECRET_PREFIX).ok_or(KeyError::SecretText)?;
        let bytes = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| KeyError::SecretText)?);
        let seed: [u8; 32] = bytes.as_slice().try_into().map_err(|_| KeyError::SecretText)?;
        Ok(SecretKey::from_seed(seed))
    }

    /// The dalek key, for crates that sign with that library's types.
    pub fn signing_key(&self) -> &SigningKey {
        &self.0
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(of {})", self.public())
    }
}

/// A public ed25519 key that is a point of the curve and not weak.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// Reads 32 bytes; refuses what is no point and what is weak.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, KeyError> {
        let key = VerifyingKey::from_bytes(bytes).map_err(|_| KeyError::NotAPoint)?;
        if key.is_weak() {
            return Err(KeyError::Weak);
        }
        // `from_bytes` also takes encodings with the coordinate above the field's modulus; one key, one spelling.
        if key.to_edwards().compress().as_bytes() != bytes {
            return Err(KeyError::NotAPoint);
        }
        Ok(PublicKey(key))
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// SHA-256 of the 32 bytes.
    pub fn digest(&self) -> KeyDigest {
        KeyDigest(sha256(&[self.as_bytes()]))
    }

    /// The account name of a wallet key; the same digest under the type for accounts.
    pub fn wallet_digest(&self) -> WalletDigest {
        WalletDigest(self.digest().0)
    }

    /// Strict verification: canonical encodings only, cofactorless.
    pub fn verify(&self, message: &[u8], signature: &Signature) -> Result<(), KeyError> {
        self.0
            .verify_strict(message, &ed25519_dalek::Signature::from_bytes(&signature.0))
            .map_err(|_| KeyError::BadSignature { key: self.digest() })
    }
}

impl std::hash::Hash for PublicKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC_PREFIX}{}", hex::encode(self.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let digits = text.strip_prefix(PUBLIC_PREFIX).ok_or(KeyError::PublicText)?;
        PublicKey::from_bytes(&parse_hex_32(digits).map_err(|_| KeyError::PublicText)?)
    }
}

/// A detached ed25519 signature: 64 bytes, not yet verified.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature(pub [u8; 64]);

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature({}..)", hex::encode(&self.0[..8]))
    }
}

const SECRET_PREFIX: &str = "kvasir-secret-v1 ";
const PUBLIC_PREFIX: &str = "ed25519:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_round_trip_and_reject_other_forms() {
        let secret = SecretKey::from_seed([7; 32]);
        let text = secret.to_text();
        assert_eq!(SecretKey::from_text(&text).unwrap().public(), secret.public());
        assert!(SecretKey::from_text("kvasir-secret-v1 AAAA").is_err());
        assert!(SecretKey::from_text(&format!("{}\n", text.as_str())).is_err());
        let public = secret.public();
        assert_eq!(public.to_string().parse::<PublicKey>(), Ok(public));
        assert!(hex::encode(public.as_bytes()).parse::<PublicKey>().is_err());
        assert!(!format!("{secret:?}").contains(text.trim()));
    }

    #[test]
    fn weak_and_non_canonical_keys_are_refused() {
        let mut identity = [0u8; 32];
        identity[0] = 1;
        assert_eq!(PublicKey::from_bytes(&identity), Err(KeyError::Weak));
        assert_eq!(PublicKey::from_bytes(&[0; 32]), Err(KeyError::Weak));
        // y = p + 1, the identity spelt a second way.
        let mut above = [0xff; 32];
        above[0] = 0xee;
        above[31] = 0x7f;
        assert!(PublicKey::from_bytes(&above).is_err());
        assert_eq!(PublicKey::from_bytes(&[2; 32]).map(|_| ()), Err(KeyError::NotAPoint));
    }

    #[test]
    fn a_changed_message_or_signature_does_not_verify() {
        let secret = SecretKey::from_seed([9; 32]);
        let signature = secret.sign(b"kvasir/test/v1\0message");
        assert_eq!(secret.public().verify(b"kvasir/test/v1\0message", &signature), Ok(()));
        assert!(secret.public().verify(b"kvasir/test/v1\0massage", &signature).is_err());
        let mut bent = signature;
        bent.0[40] ^= 1;
        assert!(secret.public().verify(b"kvasir/test/v1\0message", &bent).is_err());
    }
}
