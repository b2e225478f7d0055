//! Notes on their way in: read, hashed and, where their keys are at hand, verified before the writer sees them.
//!
//! What was found out here is a memo, never a permission: the writer works out by itself which keys a note must be signed
//! with, and takes the memo's verdict only where it was reached with exactly those keys. Otherwise it verifies again.

use kvasir_merkle::{Hash, leaf_hash};
use kvasir_wire::account::{
    AccountError, Audit, Correction, Delegation, Fund, Grant, Price, Settlement, Statement,
};
use kvasir_wire::key::PublicKey;
use kvasir_wire::note::{Note, Signer};
use kvasir_wire::receipt::{Receipt, ReceiptError, ReceiptKeys, SignedReceipt};

use super::{Answers, Keys, Writing, at, rows};
use crate::refusal::{LedgerError, Refusal};

/// A note that was read and hashed, and whose signatures may have been verified.
#[derive(Clone, Debug)]
pub struct Incoming {
    pub(super) note: Note,
    /// The note's bytes; parsing accepts one spelling, so they are those that came.
    pub(super) bytes: String,
    /// SHA-256 of the text.
    pub(super) id: [u8; 32],
    pub(super) leaf: Hash,
    pub(super) sort: Sort,
    verdict: Option<Verdict>,
}

/// How the note was sent.
#[derive(Clone, Debug)]
pub(super) enum Sort {
    /// With what it says.
    Receipt(Box<Receipt>),
    Settlement,
    Other,
}

/// What verifying with certain keys gave.
#[derive(Clone, Debug)]
enum Verdict {
    Receipt(Box<ReceiptKeys>, Result<(), ReceiptError>),
    Statement { signer: Signer, keys: Vec<PublicKey>, result: Result<(), AccountError> },
}

impl Incoming {
    /// Reads a receipt.
    pub fn receipt(bytes: &[u8]) -> Result<Self, LedgerError> {
        let note = Note::parse(bytes).map_err(Refusal::from)?;
        let receipt = Receipt::parse(note.text()).map_err(Refusal::from)?;
        Ok(Self { sort: Sort::Receipt(Box::new(receipt)), ..Self::of(note) })
    }

    /// Reads a settlement.
    pub fn settlement(bytes: &[u8]) -> Result<Self, LedgerError> {
        let note = Note::parse(bytes).map_err(Refusal::from)?;
        Ok(Self { sort: Sort::Settlement, ..Self::of(note) })
    }

    /// Reads a note of any other kind.
    pub fn note(bytes: &[u8]) -> Result<Self, LedgerError> {
        Ok(Self::of(Note::parse(bytes).map_err(Refusal::from)?))
    }

    pub(super) fn of(note: Note) -> Self {
        let bytes = note.to_string();
        let (id, leaf) = (note.text_digest(), leaf_hash(bytes.as_bytes()));
        Self { note, bytes, id, leaf, sort: Sort::Other, verdict: None }
    }

    /// Verifies the signatures with the keys that will count if nothing changes until the note is stored: `keys` are the
    /// ledger's own, `find` gives backbone and worker of a receipt. Where a key is not known nothing is done, and the
    /// writer finds out.
    pub fn check(&mut self, keys: &Keys, find: impl FnOnce(&Receipt) -> Option<(PublicKey, PublicKey)>) {
        self.verdict = match &self.sort {
            Sort::Receipt(receipt) => self.check_receipt(receipt, keys, find),
            Sort::Settlement => Some(Verdict::on::<Settlement>(&self.note, &keys.settlers)),
            Sort::Other => Verdict::on_its_kind(&self.note, keys),
        };
    }

    fn check_receipt(
        &self,
        receipt: &Receipt,
        keys: &Keys,
        find: impl FnOnce(&Receipt) -> Option<(PublicKey, PublicKey)>,
    ) -> Option<Verdict> {
        let hub = keys.hubs.iter().copied().find(|key| key.digest() == receipt.terms.hub)?;
        let (backbone, worker) = find(receipt)?;
        let keys = ReceiptKeys { hub, worker, backbone };
        let result = SignedReceipt::verify(self.note.clone(), &keys).map(|_| ());
        Some(Verdict::Receipt(Box::new(keys), result))
    }
}

impl Verdict {
    fn on<S: Statement>(note: &Note, keys: &[PublicKey]) -> Self {
        let result = S::verify(note, keys).map(|_| ());
        Verdict::Statement { signer: S::SIGNER, keys: keys.to_vec(), result }
    }

    fn on_own<S: Statement>(note: &Note, named: impl Fn(S) -> PublicKey) -> Option<Self> {
        Some(Self::on::<S>(note, &[named(S::parse(note.text()).ok()?)]))
    }

    /// `None` for a text that cannot be read, and for kinds that are too rare to be worth it.
    fn on_its_kind(note: &Note, keys: &Keys) -> Option<Self> {
        match note.text().lines().next().unwrap_or_default() {
            Price::KIND => Some(Self::on::<Price>(note, &keys.treasury)),
            Fund::KIND => Some(Self::on::<Fund>(note, &keys.treasury)),
            Correction::KIND => Some(Self::on::<Correction>(note, &keys.treasury)),
            // Anybody can send these three: nobody shall keep the writer busy with them.
            Grant::KIND => Self::on_own(note, |grant: Grant| grant.backbone),
            Delegation::KIND => Self::on_own(note, |delegation: Delegation| delegation.wallet),
            Audit::KIND => Self::on_own(note, |audit: Audit| audit.auditor),
            _ => None,
        }
    }
}

impl Writing<'_> {
    /// Verifies that one of `keys` signed this statement, unless that was done before with these very keys.
    pub(super) fn verify<S: Statement>(&self, note: &Note, keys: &[PublicKey]) -> Result<(), AccountError> {
        match self.verdict_on(note) {
            Some(Verdict::Statement { signer, keys: used, result })
                if *signer == S::SIGNER && used == keys =>
            {
                result.clone()
            }
            _ => S::verify(note, keys).map(|_| ()),
        }
    }

    /// Verifies a receipt's three signatures, unless that was done before with these very keys.
    pub(super) fn verify_receipt(&self, note: &Note, keys: &ReceiptKeys) -> Result<(), ReceiptError> {
        match self.verdict_on(note) {
            Some(Verdict::Receipt(used, result)) if **used == *keys => result.clone(),
            _ => SignedReceipt::verify(note.clone(), keys).map(|_| ()),
        }
    }

    /// The verdict on exactly this note.
    fn verdict_on(&self, note: &Note) -> Option<&Verdict> {
        self.incoming.as_ref().filter(|incoming| incoming.note == *note)?.verdict.as_ref()
    }
}

impl Answers<'_> {
    /// The keys of backbone and worker that a receipt names by their digests: from its grant, and from any delegation of
    /// its payee to that worker. `None` where one of these is not kept here. Says nothing about what they allow.
    pub fn receipt_keys(&self, receipt: &Receipt) -> Result<Option<(PublicKey, PublicKey)>, LedgerError> {
        let terms = &receipt.terms;
        let grant = rows::entry_by_leaf(self.connection, &terms.grant).map_err(at(self.path))?;
        let delegation =
            rows::latest_delegation(self.connection, terms.worker, terms.payee).map_err(at(self.path))?;
        let backbone = grant.and_then(|entry| statement::<Grant>(&entry.note)).map(|grant| grant.backbone);
        let worker = delegation.and_then(|entry| statement::<Delegation>(&entry.note));
        Ok(backbone.zip(worker.map(|delegation| delegation.worker)))
    }
}

fn statement<S: Statement>(note: &str) -> Option<S> {
    S::parse(Note::parse(note.as_bytes()).ok()?.text()).ok()
}
