//! Who signed a note: each signature line is verified again with the keys that the ledger's own entries give.
//!
//! A line whose key no entry gives in full cannot be verified here; the ledger did so when it took the note in.

use kvasir_merkle::Hash;
use kvasir_wire::id::parse_hex_32;
use kvasir_wire::key::PublicKey;
use kvasir_wire::note::{Note, SignatureLine, Verifier};

use super::View;
use crate::refusal::LedgerError;
use crate::store::Stretch;

/// Keys that one note's lines are compared with at most.
const MAX_KEYS: usize = 128;
/// Entries about keys that are looked at, latest first.
const KEY_ENTRIES: u32 = 64;

/// A signature line and what became of it.
pub(super) struct Signer {
    /// Name in the line.
    pub(super) name: String,
    /// Key id in the line.
    pub(super) id: String,
    /// Whether it holds.
    pub(super) verdict: Verdict,
}

/// What this page can say about a signature.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It verifies with the key of this digest.
    Holds(Hash),
    /// It does not verify with the only key that it could be of.
    Fails,
    /// No entry gives the key.
    KeyUnknown,
}

/// Every signature line of `note`, in order.
pub(super) fn signers(view: &View<'_>, note: &Note) -> Result<Vec<Signer>, LedgerError> {
    let keys = keys(view, note)?;
    let signer = |line: &SignatureLine| Signer {
        name: line.name.to_string(),
        id: line.id.0.iter().map(|byte| format!("{byte:02x}")).collect(),
        verdict: verdict(note, line, &keys),
    };
    Ok(note.signatures().iter().map(signer).collect())
}

fn verdict(note: &Note, line: &SignatureLine, keys: &[PublicKey]) -> Verdict {
    let mut found = Verdict::KeyUnknown;
    for key in keys {
        let verifier = Verifier::new(line.name.clone(), *key);
        if verifier.id() != line.id {
            continue;
        }
        if note.verify(std::slice::from_ref(&verifier)).is_ok() {
            return Verdict::Holds(Hash(key.digest().0));
        }
        found = Verdict::Fails;
    }
    found
}

/// Keys that the note names, itself or by digest, and those that the ledger has said it believes.
fn keys(view: &View<'_>, note: &Note) -> Result<Vec<PublicKey>, LedgerError> {
    let mut keys = Vec::new();
    named(view, note.text(), &mut keys)?;
    let mut about_keys =
        view.ask(|answers| answers.entries_page(Some("key"), Stretch::Latest, KEY_ENTRIES))?;
    // The first entry gives the ledger's own key, however many keys came later.
    about_keys.extend(view.ask(|answers| answers.entry(0))?);
    for entry in about_keys {
        if let Ok(note) = Note::parse(entry.note.as_bytes()) {
            named(view, note.text(), &mut keys)?;
        }
    }
    Ok(keys)
}

fn named(view: &View<'_>, text: &str, keys: &mut Vec<PublicKey>) -> Result<(), LedgerError> {
    for line in text.lines().skip(1) {
        if keys.len() >= MAX_KEYS {
            break;
        }
        let value = line.split(' ').nth(1).unwrap_or_default();
        let key = match (parse_hex_32(value), value.parse()) {
            (Ok(digest), _) => view.index.key(Hash(digest))?,
            (_, Ok(key)) => Some(key),
            _ => None,
        };
        keys.extend(key.filter(|key| !keys.contains(key)));
    }
    Ok(())
}
