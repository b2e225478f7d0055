//! Two receipts of one session and one number. All three parties signed both, so all three are shown; who led the others on is
//! not in the file.

use kvasir_wire::note::{FieldReader, FieldWriter, Note};
use kvasir_wire::receipt::{Receipt, ReceiptKeys, SignedReceipt};

use super::{EvidenceError, Proven, base64, keys, note, write_keys};

/// Two receipts with one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptFraud {
    /// The parties' keys, which both receipts name.
    pub keys: ReceiptKeys,
    /// One receipt.
    pub first: Note,
    /// The other.
    pub second: Note,
}

impl ReceiptFraud {
    pub(super) fn read(fields: &mut FieldReader<'_>) -> Result<Self, EvidenceError> {
        Ok(Self { keys: keys(fields)?, first: note(fields, "first")?, second: note(fields, "second")? })
    }

    pub(super) fn write(&self, writer: FieldWriter) -> FieldWriter {
        write_keys(writer, &self.keys)
            .line("first", base64(self.first.to_string()))
            .line("second", base64(self.second.to_string()))
    }

    pub(super) fn convict(&self) -> Result<Proven, EvidenceError> {
        let first = SignedReceipt::verify(self.first.clone(), &self.keys)?;
        let second = SignedReceipt::verify(self.second.clone(), &self.keys)?;
        let (one, other) = (first.receipt(), second.receipt());
        let name = |receipt: &Receipt| (receipt.terms.network.clone(), receipt.terms.session, receipt.seq);
        if name(one) != name(other) {
            return Err(EvidenceError::NoContradiction(
                "they are of different networks, sessions or numbers",
            ));
        }
        // Signatures are deterministic, but another one of the same text says nothing else.
        if one == other {
            return Err(EvidenceError::NoContradiction("both say the same"));
        }
        let culprits =
            [("hub", self.keys.hub), ("worker", self.keys.worker), ("backbone", self.keys.backbone)];
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
