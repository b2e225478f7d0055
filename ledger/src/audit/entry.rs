//! Entries as typed statements.

use kvasir_merkle::Hash;
use kvasir_wire::account::{
    AccountError, Appeal, Audit, Correction, Delegation, Fund, Grant, KeyBelief, OriginChange, Penalty,
    Price, Settlement, Statement,
};
use kvasir_wire::note::{Note, Verifier};
use kvasir_wire::receipt::Receipt;

/// First line of a receipt.
const RECEIPT: &str = "kvasir.example/receipt@v1";

/// What a note says.
pub(super) enum Said {
    Receipt(Box<Receipt>),
    Price(Price),
    Grant(Box<Grant>),
    Fund(Fund),
    Delegation(Box<Delegation>),
    Settlement(Box<Settlement>),
    Correction(Correction),
    Audit(Box<Audit>),
    Penalty(Penalty),
    Appeal(Box<Appeal>),
    Key(Box<KeyBelief>),
    Origin(OriginChange),
}

/// One entry: its note, and what the note says.
pub(super) struct Entry {
    pub leaf: Hash,
    pub note: Note,
    pub said: Said,
}

/// Who must have signed an entry: exactly these, in this order.
pub(super) type Signers = Vec<Verifier>;

impl Entry {
    /// Reads an entry's bytes, of which `leaf` is the leaf hash. Only the one spelling of a note is taken.
    pub(super) fn parse(bytes: &[u8], leaf: Hash) -> Result<Self, String> {
        let note = Note::parse(bytes).map_err(|error| error.to_string())?;
        let text = note.text();
        let said = match text.split('\n').next().unwrap_or_default() {
            RECEIPT => Said::Receipt(Box::new(Receipt::parse(text).map_err(|error| error.to_string())?)),
            Price::KIND => Said::Price(read(text)?),
            Grant::KIND => Said::Grant(Box::new(read(text)?)),
            Fund::KIND => Said::Fund(read(text)?),
            Delegation::KIND => Said::Delegation(Box::new(read(text)?)),
            Settlement::KIND => Said::Settlement(Box::new(read(text)?)),
            Correction::KIND => Said::Correction(read(text)?),
            Audit::KIND => Said::Audit(Box::new(read(text)?)),
            Penalty::KIND => Said::Penalty(read(text)?),
            Appeal::KIND => Said::Appeal(Box::new(read(text)?)),
            KeyBelief::KIND => Said::Key(Box::new(read(text)?)),
            OriginChange::KIND => Said::Origin(read(text)?),
            other => {
                let other: String = other.chars().filter(|letter| !letter.is_control()).take(80).collect();
                return Err(format!("`{other}` is no kind of entry"));
            }
        };
        Ok(Self { leaf, note, said })
    }
}

fn read<S: Statement>(text: &str) -> Result<S, String> {
    S::parse(text).map_err(|error: AccountError| error.to_string())
}
