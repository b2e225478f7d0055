//! C2SP signed notes: a text, a blank line, signature lines; strict in both directions.
//!
//! Format: <https://c2sp.org/signed-note>, signature type 0x01 (ed25519). Receipts, grants, prices, fundings,
//! settlements and the checkpoints of logs are notes. Parsing accepts one spelling only: what is read and written again
//! is the same bytes. Stricter than C2SP in three points: the size is bounded, key names are printable ASCII, and a
//! signature that decodes to fewer than 5 bytes is refused.

mod fields;

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kvasir_merkle::{Hash, leaf_hash};
use thiserror::Error;

pub use fields::{FieldError, FieldReader, FieldWriter, canonical_number};

use crate::id::sha256;
use crate::key::{PublicKey, SecretKey, Signature};
use crate::limits::MAX_NETWORK_BYTES;
pub use crate::limits::MAX_NOTE_BYTES;

/// Most signature lines of one note.
pub const MAX_NOTE_SIGNATURES: usize = 16;
/// Longest key name, in bytes.
pub const MAX_KEY_NAME_BYTES: usize = 128;
/// Signature type of an ed25519 note signature; part of the key id.
const ED25519_NOTE: u8 = 0x01;
/// What a signature line starts with: an em dash and a space.
const LINE_START: &str = "\u{2014} ";

/// Why bytes are no note, or a note is not signed as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoteError {
    /// More than [`MAX_NOTE_BYTES`].
    #[error("a note has at most {MAX_NOTE_BYTES} bytes, this one {0}")]
    TooLong(usize),
    /// More than [`MAX_NOTE_SIGNATURES`] signature lines.
    #[error("a note has at most {MAX_NOTE_SIGNATURES} signature lines")]
    TooManySignatures,
    /// Not UTF-8, or a control character other than the line feed.
    #[error("a note is UTF-8 without control characters but the line feed (byte {0})")]
    Characters(usize),
    /// The text is empty or lacks its line feed, or no blank line divides it from the signatures.
    #[error("a note is text ending in a line feed, a blank line, then signature lines")]
    Layout,
    /// A signature line has another form than em dash, name, base64 of key id and signature.
    #[error("signature line {0} has not the form `\u{2014} name base64`, in canonical base64")]
    SignatureLine(usize),
    /// A key name that is empty, too long, or holds a space, a plus sign or anything but printable ASCII.
    #[error("a key name has 1 to {MAX_KEY_NAME_BYTES} printable ASCII characters, no space and no `+`")]
    KeyName,
    /// A network name that is empty, too long or holds other characters than `a-z 0-9 . -`.
    #[error("a network name has 1 to {MAX_NETWORK_BYTES} of the characters a-z 0-9 . -")]
    NetworkName,
    /// Text of a verifier key that has another form than `name+hash+base64`.
    #[error(
        "a verifier key is written `name+8 hexadecimal digits+base64`, and the digits must fit name and key"
    )]
    VerifierText,
    /// A known key signed, and its signature is wrong: the whole note is refused.
    #[error("the signature of {name} does not verify")]
    BadSignature {
        /// Name of the key.
        name: KeyName,
    },
    /// One key signed twice.
    #[error("{name} signed twice")]
    SignedTwice {
        /// Name of the key.
        name: KeyName,
    },
    /// No signature line belongs to a known key.
    #[error("no known key has signed")]
    NotSigned,
    /// The signature lines are not exactly the expected ones in the expected order.
    #[error("signature line {line} should be by {expected}, and there should be {count} of them")]
    Signers {
        /// Line, from 1.
        line: usize,
        /// Name that was expected there.
        expected: KeyName,
        /// Number of lines expected.
        count: usize,
    },
}

/// A name that keys go by in notes, such as `atlas/hub`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyName(String);

/// The name of a network, such as `atlas`: keeps tests and networks apart in everything that is signed.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkName(String);

/// Who signs: the last part of a key name, so that a signature made in one role cannot stand in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signer {
    /// The hub: receipts.
    Hub,
    /// A worker: receipts.
    Worker,
    /// A backbone: receipts and grants.
    Backbone,
    /// The network's treasury: prices, fundings, corrections.
    Treasury,
    /// The gateway's settlement poller: settlements.
    Settler,
    /// A wallet: delegations.
    Wallet,
    /// An auditor: findings.
    Auditor,
    /// A ledger: whom it believes.
    Ledger,
}

/// First four bytes of SHA-256(name, LF, type, key): finds a key quickly, proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NoteKeyId(pub [u8; 4]);

/// A public key under its name, to verify notes with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verifier {
    name: KeyName,
    key: PublicKey,
    id: NoteKeyId,
}

/// One signature line. The signature is unverified bytes: other key types than ed25519 have other lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureLine {
    /// Name of the signer.
    pub name: KeyName,
    /// Key id that the line claims.
    pub id: NoteKeyId,
    /// Signature bytes, at least one.
    pub signature: Vec<u8>,
}

/// A text with its signature lines. `Display` gives the exact bytes; parsing them gives the same note.
#[derive(Clone, PartialEq, Eq)]
pub struct Note {
    text: String,
    signatures: Vec<SignatureLine>,
}

impl Note {
    /// A note without signatures yet. `text` ends in a line feed.
    pub fn unsigned(text: impl Into<String>) -> Result<Self, NoteError> {
        let text = text.into();
        check_characters(text.as_bytes())?;
        if !text.ends_with('\n') {
            return Err(NoteError::Layout);
        }
        Ok(Self { text, signatures: Vec::new() })
    }

    /// Reads a note with at least one signature line; verifies nothing.
    pub fn parse(bytes: &[u8]) -> Result<Self, NoteError> {
        let whole = check_characters(bytes)?;
        // The last blank line divides: the text may hold blank lines, signature lines cannot.
        let divider = whole.rfind("\n\n").ok_or(NoteError::Layout)?;
        let (text, rest) = (&whole[..=divider], &whole[divider + 2..]);
        let lines = rest.strip_suffix('\n').ok_or(NoteError::Layout)?;
        let mut signatures = Vec::new();
        for (index, line) in lines.split('\n').enumerate() {
            if index == MAX_NOTE_SIGNATURES {
                return Err(NoteError::TooManySignatures);
            }
            signatures.push(SignatureLine::parse(line).ok_or(NoteError::SignatureLine(index + 1))?);
        }
        Ok(Self { text: text.to_owned(), signatures })
    }

    /// The signed text, with its final line feed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The signature lines, in order.
    pub fn signatures(&self) -> &[SignatureLine] {
        &self.signatures
    }

    /// SHA-256 of the text alone: what the note says, whatever its signatures look like.
    pub fn text_digest(&self) -> [u8; 32] {
        sha256(&[self.text.as_bytes()])
    }

    /// RFC 6962 leaf hash of the whole note: its name in a log, in grants and in receipts.
    pub fn leaf_hash(&self) -> Hash {
        leaf_hash(self.to_string().as_bytes())
    }

    /// Signs the text and appends the line.
    pub fn sign(&mut self, name: KeyName, key: &SecretKey) -> Result<(), NoteError> {
        let signature = key.sign(self.text.as_bytes());
        self.append(&Verifier::new(name, key.public()), &signature)
    }

    /// Appends the line for a signature that was made elsewhere; refuses it where it does not verify.
    pub fn append(&mut self, verifier: &Verifier, signature: &Signature) -> Result<(), NoteError> {
        let line =
            SignatureLine { name: verifier.name.clone(), id: verifier.id, signature: signature.0.to_vec() };
        verifier.verify_line(&self.text, &line)?;
        self.append_unverified(line)
    }

    /// Appends a line as it is, for keys of kinds that notes do not know, such as cosignatures.
    pub fn append_unverified(&mut self, line: SignatureLine) -> Result<(), NoteError> {
        if self.signatures.len() == MAX_NOTE_SIGNATURES {
            return Err(NoteError::TooManySignatures);
        }
        self.signatures.push(line);
        let length = self.to_string().len();
        if length > MAX_NOTE_BYTES {
            self.signatures.pop();
            return Err(NoteError::TooLong(length));
        }
        Ok(())
    }

    /// Verifies against known keys. Lines of unknown keys are ignored; one wrong line of a known key, or a key that
    /// signed twice, refuses the note. Returns the positions in `verifiers` of those that signed, in line order.
    pub fn verify(&self, verifiers: &[Verifier]) -> Result<Vec<usize>, NoteError> {
        let mut signed = Vec::new();
        for line in &self.signatures {
            let known = |verifier: &Verifier| verifier.name == line.name && verifier.id == line.id;
            // Key ids are four bytes: where two known keys share name and id, one of them must have signed.
            let mut candidates =
                verifiers.iter().enumerate().filter(|(_, verifier)| known(verifier)).peekable();
            if candidates.peek().is_none() {
                continue;
            }
            let signer = candidates.find(|(_, verifier)| verifier.verify_line(&self.text, line).is_ok());
            let (position, _) = signer.ok_or_else(|| NoteError::BadSignature { name: line.name.clone() })?;
            if signed.contains(&position) {
                return Err(NoteError::SignedTwice { name: line.name.clone() });
            }
            signed.push(position);
        }
        if signed.is_empty() { Err(NoteError::NotSigned) } else { Ok(signed) }
    }

    /// Verifies that exactly these keys signed, one line each, in this order, and nobody else.
    pub fn verify_exactly(&self, verifiers: &[Verifier]) -> Result<(), NoteError> {
        for (index, verifier) in verifiers.iter().enumerate() {
            let misplaced = || NoteError::Signers {
                line: index + 1,
                expected: verifier.name.clone(),
                count: verifiers.len(),
            };
            let line = self.signatures.get(index).ok_or_else(misplaced)?;
            if line.name != verifier.name || line.id != verifier.id {
                return Err(misplaced());
            }
            verifier.verify_line(&self.text, line)?;
        }
        match verifiers.last() {
            Some(last) if self.signatures.len() > verifiers.len() => Err(NoteError::Signers {
                line: verifiers.len() + 1,
                expected: last.name.clone(),
                count: verifiers.len(),
            }),
            Some(_) => Ok(()),
            None => Err(NoteError::NotSigned),
        }
    }
}

impl Verifier {
    /// `key` under `name`.
    pub fn new(name: KeyName, key: PublicKey) -> Self {
        let digest = sha256(&[name.0.as_bytes(), b"\n", &[ED25519_NOTE], key.as_bytes()]);
        let id = NoteKeyId([digest[0], digest[1], digest[2], digest[3]]);
        Self { name, key, id }
    }

    /// The name.
    pub fn name(&self) -> &KeyName {
        &self.name
    }

    /// The public key.
    pub fn key(&self) -> &PublicKey {
        &self.key
    }

    /// The key id that signature lines carry.
    pub fn id(&self) -> NoteKeyId {
        self.id
    }

    fn verify_line(&self, text: &str, line: &SignatureLine) -> Result<(), NoteError> {
        let bad = || NoteError::BadSignature { name: self.name.clone() };
        let signature = line.signature.as_slice().try_into().map(Signature).map_err(|_| bad())?;
        self.key.verify(text.as_bytes(), &signature).map_err(|_| bad())
    }
}

impl FromStr for Verifier {
    type Err = NoteError;

    /// Reads a C2SP verifier key, `name+hash+base64(type, key)`.
    fn from_str(text: &str) -> Result<Self, NoteError> {
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(NoteError::VerifierText);
        };
        let key = STANDARD.decode(key).map_err(|_| NoteError::VerifierText)?;
        let (&ED25519_NOTE, key) = key.split_first().ok_or(NoteError::VerifierText)? else {
            return Err(NoteError::VerifierText);
        };
        let key: &[u8; 32] = key.try_into().map_err(|_| NoteError::VerifierText)?;
        let key = PublicKey::from_bytes(key).map_err(|_| NoteError::VerifierText)?;
        let verifier = Verifier::new(name.parse()?, key);
        if hex::encode(verifier.id.0) != id {
            return Err(NoteError::VerifierText);
        }
        Ok(verifier)
    }
}

impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut key = vec![ED25519_NOTE];
        key.extend_from_slice(self.key.as_bytes());
        write!(f, "{}+{}+{}", self.name, hex::encode(self.id.0), STANDARD.encode(key))
    }
}

impl SignatureLine {
    fn parse(line: &str) -> Option<Self> {
        let (name, encoded) = line.strip_prefix(LINE_START)?.split_once(' ')?;
        let name = name.parse().ok()?;
        // The engine refuses missing padding and non-zero spare bits: one spelling for each signature.
        let decoded = STANDARD.decode(encoded).ok()?;
        let (id, signature) = decoded.split_first_chunk::<4>()?;
        (!signature.is_empty()).then(|| Self { name, id: NoteKeyId(*id), signature: signature.to_vec() })
    }
}

impl fmt::Display for NoteKeyId {
    /// Eight hexadecimal digits, as in verifier keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Display for SignatureLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.id.0.to_vec();
        bytes.extend_from_slice(&self.signature);
        writeln!(f, "{LINE_START}{} {}", self.name, STANDARD.encode(bytes))
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        self.signatures.iter().try_for_each(|line| line.fmt(f))
    }
}

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.text.lines().next().unwrap_or_default();
        write!(f, "Note({first}, {} signatures)", self.signatures.len())
    }
}

impl Signer {
    /// The word that ends the key name.
    pub const fn word(self) -> &'static str {
        match self {
            Signer::Hub => "hub",
            Signer::Worker => "worker",
            Signer::Backbone => "backbone",
            Signer::Treasury => "treasury",
            Signer::Settler => "settler",
            Signer::Wallet => "wallet",
            Signer::Auditor => "auditor",
            Signer::Ledger => "ledger",
        }
    }

    /// The key name of this role in `network`: `network/role`.
    pub fn key_name(self, network: &NetworkName) -> KeyName {
        KeyName(format!("{network}/{}", self.word()))
    }

    /// `key` in this role of `network`.
    pub fn verifier(self, network: &NetworkName, key: PublicKey) -> Verifier {
        Verifier::new(self.key_name(network), key)
    }
}

impl KeyName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for KeyName {
    type Err = NoteError;
    fn from_str(text: &str) -> Result<Self, NoteError> {
        let allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'+';
        if text.is_empty() || text.len() > MAX_KEY_NAME_BYTES || !text.bytes().all(allowed) {
            return Err(NoteError::KeyName);
        }
        Ok(Self(text.to_owned()))
    }
}

impl NetworkName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NetworkName {
    type Err = NoteError;
    fn from_str(text: &str) -> Result<Self, NoteError> {
        let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-');
        if text.is_empty() || text.len() > MAX_NETWORK_BYTES || !text.bytes().all(allowed) {
            return Err(NoteError::NetworkName);
        }
        Ok(Self(text.to_owned()))
    }
}

macro_rules! shown_as_its_text {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    )*};
}
shown_as_its_text!(KeyName, NetworkName);

/// UTF-8, bounded, no control characters but the line feed.
fn check_characters(bytes: &[u8]) -> Result<&str, NoteError> {
    if bytes.len() > MAX_NOTE_BYTES {
        return Err(NoteError::TooLong(bytes.len()));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| NoteError::Characters(error.valid_up_to()))?;
    let control = |byte: &u8| (*byte < 0x20 && *byte != b'\n') || *byte == 0x7f;
    match bytes.iter().position(control) {
        Some(place) => Err(NoteError::Characters(place)),
        None => Ok(text),
    }
}
