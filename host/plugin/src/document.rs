//! The shape that `root.json` and `revoked.json` share: what is signed, and signatures by key id (as in The Update Framework).
//!
//! A document has one canonical form: compact JSON, fields and map keys in a fixed order. What is signed is that form of `signed`.
//! The keys that a root is checked with stand in the root itself, so this reader must look at bytes that nobody has verified
//! yet. It is bounded (size first, counts after), knows every field by name, and accepts the canonical form alone, which also
//! excludes a JSON key that stands there twice. Nothing of a document is used before its signatures were checked.

use std::collections::{BTreeMap, BTreeSet};

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{DocumentError, one_line};
use crate::identity::{KeyId, UnixSeconds};
use crate::limits::{MAX_DOCUMENT_SIGNATURES, MAX_TRUST_DOCUMENT_BYTES};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<T> {
    signed: T,
    signatures: Vec<DocumentSignature>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DocumentSignature {
    keyid: KeyId,
    sig: String,
}

/// A document that was read and whose signatures were not checked.
pub struct Unchecked<T> {
    pub signed: T,
    what: &'static str,
    message: Vec<u8>,
    signatures: BTreeMap<KeyId, Signature>,
}

/// Reads a document; `what` is its file name, for messages.
pub fn read<T: Serialize + DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
) -> Result<Unchecked<T>, DocumentError> {
    if bytes.len() > MAX_TRUST_DOCUMENT_BYTES {
        let limit = MAX_TRUST_DOCUMENT_BYTES;
        return Err(DocumentError::TooLarge { what, bytes: bytes.len(), limit });
    }
    let document: Document<T> =
        serde_json::from_slice(bytes).map_err(|error| unreadable(what, one_line(error)))?;
    if encode(what, &document)? != bytes {
        return Err(DocumentError::NotCanonical { what });
    }
    if document.signatures.len() > MAX_DOCUMENT_SIGNATURES {
        let (count, limit) = (document.signatures.len(), MAX_DOCUMENT_SIGNATURES);
        return Err(DocumentError::TooMany { what, of: "signatures", count, limit });
    }
    let mut signatures = BTreeMap::new();
    for DocumentSignature { keyid, sig } in &document.signatures {
        let mut digits = [0; 64];
        hex::decode_to_slice(sig, &mut digits)
            .map_err(|_| unreadable(what, "a signature is not 128 hexadecimal digits".to_owned()))?;
        if signatures.insert(*keyid, Signature::from_bytes(&digits)).is_some() {
            return Err(DocumentError::DuplicateSignature { what, key: *keyid });
        }
    }
    let message = encode(what, &document.signed)?;
    Ok(Unchecked { signed: document.signed, what, message, signatures })
}

impl<T> Unchecked<T> {
    /// Demands `threshold` signatures by distinct keys of `role`, each of which must hold. Signatures by other keys are not
    /// looked at.
    pub fn require(
        &self,
        role: &str,
        keys: &BTreeMap<KeyId, &VerifyingKey>,
        threshold: u32,
    ) -> Result<(), DocumentError> {
        let mut valid = BTreeSet::new();
        for (id, key) in keys {
            if let Some(signature) = self.signatures.get(id) {
                key.verify_strict(&self.message, signature)
                    .map_err(|_| DocumentError::BadSignature { what: self.what, key: *id })?;
                // A set of the key bytes: two ids can never stand for one key, whoever made the map.
                valid.insert(key.as_bytes());
            }
        }
        if (valid.len() as u64) < u64::from(threshold) {
            let (what, role, valid) = (self.what, role.to_owned(), valid.len());
            return Err(DocumentError::NotEnoughSignatures { what, role, valid, threshold });
        }
        Ok(())
    }
}

/// The canonical document of `signed`, signed by `keys`.
pub fn sign<T: Serialize>(
    what: &'static str,
    signed: T,
    keys: &[&SigningKey],
) -> Result<Vec<u8>, DocumentError> {
    let message = encode(what, &signed)?;
    let mut signatures = BTreeMap::new();
    for key in keys {
        signatures.insert(KeyId::of(&key.verifying_key()), signed_by(&message, key)?);
    }
    finish(what, signed, signatures)
}

/// The document `bytes` with one more signature; one by the same key is replaced.
pub fn add_signature<T: Serialize + DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
    key: &SigningKey,
) -> Result<Vec<u8>, DocumentError> {
    let Unchecked { signed, message, signatures, .. } = read::<T>(what, bytes)?;
    let mut signatures: BTreeMap<KeyId, String> =
        signatures.into_iter().map(|(id, signature)| (id, hex::encode(signature.to_bytes()))).collect();
    signatures.insert(KeyId::of(&key.verifying_key()), signed_by(&message, key)?);
    finish(what, signed, signatures)
}

/// Refuses a document that is no longer valid at `now`.
pub fn check_expiry(what: &'static str, expires: UnixSeconds, now: UnixSeconds) -> Result<(), DocumentError> {
    if now >= expires { Err(DocumentError::Expired { what, expires, now }) } else { Ok(()) }
}

fn signed_by(message: &[u8], key: &SigningKey) -> Result<String, DocumentError> {
    let public = key.verifying_key();
    if public.is_weak() {
        return Err(DocumentError::WeakKey { key: KeyId::of(&public) });
    }
    Ok(hex::encode(key.sign(message).to_bytes()))
}

fn finish<T: Serialize>(
    what: &'static str,
    signed: T,
    signatures: BTreeMap<KeyId, String>,
) -> Result<Vec<u8>, DocumentError> {
    if signatures.len() > MAX_DOCUMENT_SIGNATURES {
        let (count, limit) = (signatures.len(), MAX_DOCUMENT_SIGNATURES);
        return Err(DocumentError::TooMany { what, of: "signatures", count, limit });
    }
    let signatures = signatures.into_iter().map(|(keyid, sig)| DocumentSignature { keyid, sig }).collect();
    let bytes = encode(what, &Document { signed, signatures })?;
    if bytes.len() > MAX_TRUST_DOCUMENT_BYTES {
        let limit = MAX_TRUST_DOCUMENT_BYTES;
        return Err(DocumentError::TooLarge { what, bytes: bytes.len(), limit });
    }
    Ok(bytes)
}

fn encode<T: Serialize>(what: &'static str, value: &T) -> Result<Vec<u8>, DocumentError> {
    serde_json::to_vec(value).map_err(|error| unreadable(what, error.to_string()))
}

fn unreadable(what: &'static str, reason: String) -> DocumentError {
    DocumentError::Unreadable { what, reason }
}
