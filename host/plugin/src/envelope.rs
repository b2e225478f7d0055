//! The DSSE envelope: what is signed is a type and a body together, so that a signature for one kind of document never
//! counts for another. (Dead Simple Signing Envelope v1: `PAE = "DSSEv1" SP len(type) SP type SP len(body) SP body`.)

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer as _, SigningKey};
use serde::{Deserialize, Serialize};

use crate::error::{PluginError, one_line};
use crate::identity::KeyId;
use crate::limits::MAX_SIGNATURES;
use crate::trust::TrustStore;

/// The type of every payload signed here.
pub const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
const SCHEME: &str = "ed25519";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    #[serde(rename = "payloadType")]
    payload_type: String,
    payload: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvelopeSignature {
    scheme: String,
    keyid: String,
    sig: String,
}

/// A payload whose signatures were checked, and the trusted keys that signed it: at least one.
pub struct Signed {
    pub payload: Vec<u8>,
    pub signers: BTreeSet<KeyId>,
}

/// Signs `payload` and returns the envelope's bytes. ed25519 is deterministic, so they are always the same.
pub fn seal(payload: &[u8], key: &SigningKey) -> Result<Vec<u8>, PluginError> {
    encode(&Envelope {
        payload_type: PAYLOAD_TYPE.to_owned(),
        payload: STANDARD.encode(payload),
        signatures: vec![signature(payload, key)?],
    })
}

/// The envelope with one more signature; the payload stays as it is. Signatures stand in the order of their key ids.
pub fn add_signature(envelope: &[u8], key: &SigningKey) -> Result<Vec<u8>, PluginError> {
    let (mut parsed, payload) = read(envelope)?;
    let signed = read_signatures(&parsed.signatures)?;
    let id = KeyId::of(&key.verifying_key());
    if signed.iter().any(|(key, _)| *key == id) {
        return Err(PluginError::DuplicateKey { key: id });
    }
    if signed.len() == MAX_SIGNATURES {
        return Err(PluginError::TooManySignatures { count: signed.len() + 1, limit: MAX_SIGNATURES });
    }
    parsed.signatures.push(signature(&payload, key)?);
    parsed.signatures.sort_by(|a, b| a.keyid.cmp(&b.keyid));
    encode(&parsed)
}

/// Payload and signing key ids, **none of them checked**: for people who look into a package, and for who signs it next.
pub fn unchecked(envelope: &[u8]) -> Result<(Vec<u8>, Vec<KeyId>), PluginError> {
    let (parsed, payload) = read(envelope)?;
    let signatures = read_signatures(&parsed.signatures)?;
    Ok((payload, signatures.into_iter().map(|(key, _)| key).collect()))
}

/// Opens an envelope: at least one trusted key must have signed, and every signature by a trusted key must hold.
/// Signatures by keys that this host does not know, or that are revoked, are neither trusted nor held against the package, since a publisher
/// may sign with an old and a new key while it changes them.
pub fn open(envelope: &[u8], trust: &TrustStore) -> Result<Signed, PluginError> {
    let (parsed, payload) = read(envelope)?;
    let signatures = read_signatures(&parsed.signatures)?;
    let message = pre_authentication(PAYLOAD_TYPE, &payload);
    let mut signers = BTreeSet::new();
    let mut revoked = None;
    for (id, signature) in &signatures {
        if trust.is_revoked(id) {
            revoked = Some(*id);
        } else if let Some(trusted) = trust.get(id) {
            trusted
                .key
                .verify_strict(&message, signature)
                .map_err(|_| PluginError::BadSignature { key: *id })?;
            signers.insert(*id);
        }
    }
    match revoked {
        _ if !signers.is_empty() => Ok(Signed { payload, signers }),
        Some(key) => Err(PluginError::RevokedKey { key }),
        None => {
            let found: Vec<String> = signatures.iter().map(|(id, _)| id.to_string()).collect();
            Err(PluginError::UnknownPublisher { found: found.join(", "), trusted: trust.len() })
        }
    }
}

/// Reads the envelope's own JSON, which nobody has verified: its size was bounded, every field is known, and only the canonical
/// form is accepted.
fn read(envelope: &[u8]) -> Result<(Envelope, Vec<u8>), PluginError> {
    let parsed: Envelope = serde_json::from_slice(envelope).map_err(|error| unreadable(&one_line(error)))?;
    if parsed.payload_type != PAYLOAD_TYPE {
        return Err(PluginError::PayloadType { found: parsed.payload_type, expected: PAYLOAD_TYPE });
    }
    if encode(&parsed)? != envelope {
        return Err(unreadable("it is not in canonical form (compact JSON, fields in order)"));
    }
    let payload = STANDARD.decode(&parsed.payload).map_err(|_| unreadable("its payload is not base64"))?;
    Ok((parsed, payload))
}

fn signature(payload: &[u8], key: &SigningKey) -> Result<EnvelopeSignature, PluginError> {
    let public = key.verifying_key();
    if public.is_weak() {
        return Err(PluginError::WeakKey);
    }
    Ok(EnvelopeSignature {
        scheme: SCHEME.to_owned(),
        keyid: KeyId::of(&public).to_string(),
        sig: STANDARD.encode(key.sign(&pre_authentication(PAYLOAD_TYPE, payload)).to_bytes()),
    })
}

fn read_signatures(signatures: &[EnvelopeSignature]) -> Result<Vec<(KeyId, Signature)>, PluginError> {
    if signatures.is_empty() {
        return Err(PluginError::NotSigned);
    }
    if signatures.len() > MAX_SIGNATURES {
        return Err(PluginError::TooManySignatures { count: signatures.len(), limit: MAX_SIGNATURES });
    }
    let mut read: Vec<(KeyId, Signature)> = Vec::new();
    for signature in signatures {
        if signature.scheme != SCHEME {
            return Err(PluginError::UnknownScheme { scheme: signature.scheme.clone() });
        }
        let key = KeyId::from_hex(&signature.keyid)
            .ok_or_else(|| unreadable("a keyid is not 64 lower-case hexadecimal digits"))?;
        if read.iter().any(|(seen, _)| *seen == key) {
            return Err(PluginError::DuplicateKey { key });
        }
        let bytes = STANDARD.decode(&signature.sig).ok().and_then(|bytes| <[u8; 64]>::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| unreadable("a signature is not 64 bytes of base64"))?;
        read.push((key, Signature::from_bytes(&bytes)));
    }
    Ok(read)
}

fn encode(envelope: &Envelope) -> Result<Vec<u8>, PluginError> {
    serde_json::to_vec(envelope).map_err(|error| unreadable(&error.to_string()))
}

/// What a DSSE signature signs: the payload with its type before it, so that no signature for one kind counts for another (DSSE v1,
/// "PAE").
pub fn pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut message = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    message.extend_from_slice(payload);
    message
}

fn unreadable(reason: &str) -> PluginError {
    PluginError::Envelope { reason: reason.to_owned() }
}
