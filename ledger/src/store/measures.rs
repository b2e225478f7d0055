//! Accepting penalties and appeals. They move no credit: they are kept so that no measure is taken in silence.

use kvasir_wire::account::{Appeal, Penalty};
use kvasir_wire::note::Note;

use super::{Writing, at, rows};
use crate::api::Accepted;
use crate::refusal::{LedgerError, Refusal};

impl Writing<'_> {
    pub(super) fn penalty(&mut self, note: Note) -> Result<Accepted, LedgerError> {
        let penalty = self.verified::<Penalty>(&note, &self.keys.treasury)?;
        let evidence = rows::entry_by_leaf(&self.transaction, &penalty.evidence).map_err(at(self.path))?;
        if evidence.is_none() {
            return Err(Refusal::new(
                422,
                "unknown_evidence",
                format!("the penalty rests on entry {}, which is not kept here", penalty.evidence),
                "post what shows the fault first, and name its leaf hash",
            )
            .into());
        }
        self.append("penalty", &note)
    }

    pub(super) fn appeal(&mut self, note: Note) -> Result<Accepted, LedgerError> {
        let appeal = self.verified_own::<Appeal>(&note, |appeal| appeal.worker)?;
        let found = rows::entry_by_leaf(&self.transaction, &appeal.penalty).map_err(at(self.path))?;
        let unknown = || {
            Refusal::new(
                422,
                "unknown_penalty",
                format!(
                    "no penalty {} against worker {} is kept here",
                    appeal.penalty,
                    appeal.worker.digest()
                ),
                "name the leaf hash of a penalty against the key that signs",
            )
        };
        let entry = found.filter(|entry| entry.kind == "penalty").ok_or_else(unknown)?;
        let penalty: Penalty = self.read(&entry)?;
        if penalty.worker != appeal.worker.digest() {
            return Err(unknown().into());
        }
        self.append("appeal", &note)
    }
}
