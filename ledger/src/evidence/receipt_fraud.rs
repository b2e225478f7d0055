//! Two receipts of one session and one number. All three parties signed both, so all three are shown; who led the others on is
//! not in the file.

use kvasir_wire::key::PublicKey;
use kvasir_wire::note::{FieldReader, FieldWriter, Note};
use kvasir_wire::receipt::{ReceiptKeys, SignedReceipt};

use super::{EvidenceError, Proven, base64, note};

/// Two receipts with one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptFraud {
    /// The hub's key,
    pub hub: PublicKey,
    /// the worker's,
    pub worker: PublicKey,
    /// and the backbone's, which both receipts name.
    pub backbone: PublicKey,
    /// One receipt.
    pub first: Note,
    /// The other.
    pub second: Note,
}

impl ReceiptFraud {
    pub(super) fn read(fields: &mut FieldReader<'_>) -> Result<Self, EvidenceError> {
        const KEY: &str = "`ed25519:` and 64 lower-case hexadecimal digits, not a weak key";
        Ok(Self {
            hub: fields.value("hub", KEY)?,
            worker: fields.value("worker", KEY)?,
            backbone: fields.value("backbone", KEY)?,
            first: note(fields, "first")?,
            second: note(fields, "second")?,
        })
    }

    pub(super) fn write(&self, writer: FieldWriter) -> FieldWriter {
        writer
            .line("hub", self.hub)
            .line("worker", self.worker)
            .line("backbone", self.backbone)
            .line("first", base64(self.first.to_string()))
            .line("second", base64(self.second.to_string()))
    }

    pub(super) fn convict(&self) -> Result<Proven, EvidenceError> {
        let keys = ReceiptKeys { hub: self.hub, worker: self.worker, backbone: self.backbone };
        let first = SignedReceipt::verify(self.first.clone(), &keys)?;
        let second = SignedReceipt::verify(self.second.clone(), &keys)?;
        let (one, other) = (first.receipt(), second.receipt());
        if (one.terms.session, one.seq) != (other.terms.session, other.seq) {
            return Err(EvidenceError::NoContradiction("they are of different sessions or numbers"));
        }
        // Signatures are deterministic, but another one of the same text says nothing else.
        if one == other {
            return Err(EvidenceError::NoContradiction("both say the same"));
        }
        let culprits = [("hub", self.hub), ("worker", self.worker), ("backbone", self.backbone)];
        Ok(Proven {
            culprits: culprits.map(|(role, key)| format!("{}/{role} {key}", one.terms.network)).into(),
            sentence: format!(
                "two receipts {} of session {}: one bills {} bytes, the other {}",
                one.seq,
                one.terms.session,
                one.billed(),
                other.billed()
            ),
            is_complete: true,
        })
    }
}
