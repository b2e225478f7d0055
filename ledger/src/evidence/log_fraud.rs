//! Two heads that one log signed and no single history has. A consistency proof that fails would show nothing, since anybody can
//! write one that fails; what shows it is one size with two roots, or one place with two leaves.

use kvasir_merkle::{Hash, verify_inclusion};
use kvasir_wire::note::{FieldReader, FieldWriter, Note, Verifier};

use super::{EvidenceError, Proven, base64, base64_of, hashes, note};
use crate::log::SignedCheckpoint;

/// Two histories of one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFraud {
    /// The log's verifier key.
    pub log: Verifier,
    /// One head.
    pub first: Note,
    /// The other.
    pub second: Note,
    /// Needed where the sizes differ.
    pub leaves: Option<TwoLeaves>,
}

/// Two leaves at one place, each under one of the heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwoLeaves {
    /// The place.
    pub index: u64,
    /// Leaf hash under the first head,
    pub first: Hash,
    /// and its inclusion proof.
    pub first_proof: Vec<Hash>,
    /// Leaf hash under the second head,
    pub second: Hash,
    /// and its inclusion proof.
    pub second_proof: Vec<Hash>,
}

impl LogFraud {
    pub(super) fn read(fields: &mut FieldReader<'_>) -> Result<Self, EvidenceError> {
        const DIGEST: &str = "64 lower-case hexadecimal digits";
        let log = fields.value("log", "a verifier key")?;
        let (first, second) = (note(fields, "first")?, note(fields, "second")?);
        let leaves = if fields.next_is("index") {
            Some(TwoLeaves {
                index: fields.number("index")?,
                first: fields.value("first-leaf", DIGEST)?,
                first_proof: hashes(fields, "first-proof")?,
                second: fields.value("second-leaf", DIGEST)?,
                second_proof: hashes(fields, "second-proof")?,
            })
        } else {
            None
        };
        Ok(Self { log, first, second, leaves })
    }

    pub(super) fn write(&self, writer: FieldWriter) -> FieldWriter {
        let writer = writer
            .line("log", &self.log)
            .line("first", base64(self.first.to_string()))
            .line("second", base64(self.second.to_string()));
        match &self.leaves {
            None => writer,
            Some(leaves) => writer
                .line("index", leaves.index)
                .line("first-leaf", leaves.first)
                .line("first-proof", base64_of(&leaves.first_proof))
                .line("second-leaf", leaves.second)
                .line("second-proof", base64_of(&leaves.second_proof)),
        }
    }

    pub(super) fn convict(&self) -> Result<Proven, EvidenceError> {
        let verified = |note: &Note| SignedCheckpoint::verify(note.to_string().as_bytes(), &self.log);
        let (first, second) = (verified(&self.first)?, verified(&self.second)?);
        let (one, other) = (first.checkpoint(), second.checkpoint());
        let sentence = match &self.leaves {
            None if one.size != other.size => {
                return Err(EvidenceError::NoContradiction("a log grows; show two leaves at one place"));
            }
            None if one.root == other.root => {
                return Err(EvidenceError::NoContradiction("both say the same"));
            }
            None => format!("two roots over {} entries: {} and {}", one.size, one.root, other.root),
            Some(leaves) => {
                verify_inclusion(&leaves.first, leaves.index, one.size, &leaves.first_proof, &one.root)?;
                verify_inclusion(
                    &leaves.second,
                    leaves.index,
                    other.size,
                    &leaves.second_proof,
                    &other.root,
                )?;
                if leaves.first == leaves.second {
                    return Err(EvidenceError::NoContradiction("both have the same leaf there"));
                }
                format!(
                    "entry {} is {} in the log of {} entries, and {} in that of {}",
                    leaves.index, leaves.first, one.size, leaves.second, other.size
                )
            }
        };
        Ok(Proven { culprits: vec![self.log.to_string()], sentence, is_complete: true })
    }
}
