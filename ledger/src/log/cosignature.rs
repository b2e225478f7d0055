//! Cosignatures (C2SP tlog-cosignature v1, ed25519, type 0x04): a witness saw this head at this time, and it extends all
//! that the witness saw before.
//!
//! The signature does not cover the cosigner's name, so a cosigner has one key under one name.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kvasir_wire::id::sha256;
use kvasir_wire::key::{PublicKey, SecretKey, Signature};
use kvasir_wire::note::{KeyName, Note, NoteKeyId, SignatureLine};
use thiserror::Error;

/// Signature type of a cosignature; part of the key id.
const COSIGNATURE_V1: u8 = 0x04;

/// A witness's public key under its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CosignerKey {
    name: KeyName,
    key: PublicKey,
    id: NoteKeyId,
}

/// A verified cosignature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cosignature {
    /// Unix seconds by the witness's clock.
    pub time: u64,
    /// Timestamp and signature, as in the line: 72 bytes.
    pub blob: [u8; 72],
}

/// Why a key or a line is no cosignature.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CosignatureError {
    /// Text of another form than `name+hash+base64`.
    #[error(
        "a witness's key is written `name+8 hexadecimal digits+base64` with signature type 4, and the digits must fit"
    )]
    KeyText,
    /// A line of this key that does not verify: the whole checkpoint is refused.
    #[error("the cosignature of {0} does not verify")]
    Bad(KeyName),
    /// One key signed twice.
    #[error("{0} cosigned twice")]
    Twice(KeyName),
}

/// The line by which the witness `name` cosigns the text of a checkpoint at `time` (Unix seconds).
pub fn cosign(text: &str, name: &KeyName, key: &SecretKey, time: u64) -> SignatureLine {
    let signature = key.sign(message(text, time).as_bytes());
    let mut blob = time.to_be_bytes().to_vec();
    blob.extend_from_slice(&signature.0);
    SignatureLine { name: name.clone(), id: CosignerKey::new(name.clone(), key.public()).id, signature: blob }
}

impl CosignerKey {
    /// `key` under `name`.
    pub fn new(name: KeyName, key: PublicKey) -> Self {
        let digest = sha256(&[name.as_str().as_bytes(), b"\n", &[COSIGNATURE_V1], key.as_bytes()]);
        Self { name, key, id: NoteKeyId([digest[0], digest[1], digest[2], digest[3]]) }
    }

    /// The witness's name.
    pub fn name(&self) -> &KeyName {
        &self.name
    }

    /// The public key.
    pub fn key(&self) -> &PublicKey {
        &self.key
    }

    /// The key id that its lines carry.
    pub fn id(&self) -> NoteKeyId {
        self.id
    }

    /// The cosignature of this key on a checkpoint, where there is one.
    pub fn verify(&self, note: &Note) -> Result<Option<Cosignature>, CosignatureError> {
        let mut own = note.signatures().iter().filter(|line| line.name == self.name && line.id == self.id);
        let Some(line) = own.next() else { return Ok(None) };
        if own.next().is_some() {
            return Err(CosignatureError::Twice(self.name.clone()));
        }
        self.verify_line(note.text(), line).map(Some)
    }

    /// One line of this key over `text`.
    pub fn verify_line(&self, text: &str, line: &SignatureLine) -> Result<Cosignature, CosignatureError> {
        let bad = || CosignatureError::Bad(self.name.clone());
        if line.name != self.name || line.id != self.id {
            return Err(bad());
        }
        let blob: [u8; 72] = line.signature.as_slice().try_into().map_err(|_| bad())?;
        let (time, signature) = blob.split_first_chunk::<8>().ok_or_else(bad)?;
        let time = u64::from_be_bytes(*time);
        let signature = signature.try_into().map(Signature).map_err(|_| bad())?;
        self.key.verify(message(text, time).as_bytes(), &signature).map_err(|_| bad())?;
        Ok(Cosignature { time, blob })
    }
}

impl FromStr for CosignerKey {
    type Err = CosignatureError;

    fn from_str(text: &str) -> Result<Self, CosignatureError> {
        let wrong = || CosignatureError::KeyText;
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong());
        };
        let name: KeyName = name.parse().map_err(|_| wrong())?;
        let bytes = STANDARD.decode(key).map_err(|_| wrong())?;
        let (&COSIGNATURE_V1, key) = bytes.split_first().ok_or_else(wrong)? else { return Err(wrong()) };
        let key: &[u8; 32] = key.try_into().map_err(|_| wrong())?;
        let key = Self::new(name, PublicKey::from_bytes(key).map_err(|_| wrong())?);
        if key.id.to_string() == id { Ok(key) } else { Err(wrong()) }
    }
}

impl fmt::Display for CosignerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![COSIGNATURE_V1];
        bytes.extend_from_slice(self.key.as_bytes());
        write!(f, "{}+{}+{}", self.name, self.id, STANDARD.encode(bytes))
    }
}

fn message(text: &str, time: u64) -> String {
    format!("cosignature/v1\ntime {time}\n{text}")
}
