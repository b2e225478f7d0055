//! A result under a signed root, with all that it takes to compute it again but the model and the plugin, which are named by digest.

use kvasir_wire::note::{FieldReader, FieldWriter, Note};
use kvasir_wire::probe::ProbeFile;
use kvasir_wire::receipt::{Receipt, ReceiptKeys, SignedReceipt};

use super::{EvidenceError, Proven, base64, bytes, keys, note, write_keys};

/// A result that can be computed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkFraud {
    /// The parties' keys, which the receipt names.
    pub keys: ReceiptKeys,
    /// The receipt whose work root covers the item.
    pub receipt: Note,
    /// The record: item, proof, call and rows.
    pub record: ProbeFile,
}

impl WorkFraud {
    pub(super) fn read(fields: &mut FieldReader<'_>) -> Result<Self, EvidenceError> {
        Ok(Self {
            keys: keys(fields)?,
            receipt: note(fields, "receipt")?,
            record: ProbeFile::parse(&bytes(fields, "record")?)?,
        })
    }

    pub(super) fn write(&self, writer: FieldWriter) -> FieldWriter {
        write_keys(writer, &self.keys)
            .line("receipt", base64(self.receipt.to_string()))
            .line("record", base64(self.record.encode()))
    }

    /// The receipt, once its signatures and the record under it are verified.
    pub fn verified(&self) -> Result<Receipt, EvidenceError> {
        let receipt = SignedReceipt::verify(self.receipt.clone(), &self.keys)?.receipt().clone();
        if self.record.records.is_empty() {
            return Err(EvidenceError::NoContradiction("the record holds no call"));
        }
        self.record.check(&receipt)?;
        Ok(receipt)
    }

    pub(super) fn convict(&self) -> Result<Proven, EvidenceError> {
        let receipt = self.verified()?;
        let terms = &receipt.terms;
        let items: Vec<String> = self.record.records.iter().map(|record| record.index.to_string()).collect();
        Ok(Proven {
            culprits: vec![format!("{}/worker {}", terms.network, self.keys.worker)],
            sentence: format!(
                "the worker signed these rows as its result of work item {} of session {}; compute the call again with model {} and plugin {} \
                 (`kvasir audit --evidence-file FILE` does)",
                items.join(", "),
                terms.session,
                terms.model,
                terms.plugin
            ),
            is_complete: false,
        })
    }
}
