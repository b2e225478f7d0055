//! Accepting what auditors find. A finding moves nothing: the treasury decides, with a correction that names it.

use kvasir_wire::account::{Audit, AuditVerdict};
use kvasir_wire::note::Note;
use kvasir_wire::receipt::Class;

use super::Writing;
use crate::api::Accepted;
use crate::refusal::{LedgerError, Refusal};

impl Writing<'_> {
    /// Anybody may audit but a party of the session. Whether the finding is true, the store cannot compute; whether it is about
    /// something that stands here, it can.
    pub(super) fn audit(&mut self, note: Note) -> Result<Accepted, LedgerError> {
        let audit = self.verified_own::<Audit>(&note, |audit| audit.auditor)?;
        let Some((_, receipt)) = self.receipt_of(audit.session, audit.seq)? else {
            return Err(Refusal::new(
                422,
                "unknown_receipt",
                format!("no receipt {} of session {} is kept here", audit.seq, audit.session),
                "audit receipts of this ledger's log",
            )
            .into());
        };
        let terms = &receipt.terms;
        if let Some(role) = audit.party_of(terms) {
            return Err(Refusal::new(
                403,
                "own_work",
                format!("the auditor is the {role} of session {}", audit.session),
                "have somebody else replay it; the same record convinces anybody",
            )
            .into());
        }
        let same = [
            ("work", audit.work == receipt.counters.work),
            ("model", audit.model == terms.model),
            ("plugin", audit.plugin == terms.plugin),
        ];
        if let Some((field, _)) = same.into_iter().find(|(_, same)| !same) {
            return Err(Refusal::new(
                422,
                "other_receipt",
                format!("`{field}` is not that of receipt {} of session {}", audit.seq, audit.session),
                "take session, number, work root, model and plugin from one receipt",
            )
            .into());
        }
        if audit.verdict == AuditVerdict::Convicted && terms.class == Class::Tolerance {
            return Err(Refusal::new(
                422,
                "class_tolerance",
                format!(
                    "session {} is of class tolerance; different bytes convict nobody there",
                    audit.session
                ),
                "convict by bytes in sessions of class exact only",
            )
            .into());
        }
        self.append("audit", &note)
    }
}
