//! From a report to the statement that goes into the log.

use kvasir_merkle::Hash;
use kvasir_wire::account::{AccountError, Audit, AuditVerdict, Statement};
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::Note;

use crate::replay::Report;
use crate::verdict::Verdict;

/// What an auditor with `key` states of a report, under the checkpoint of this digest; nothing where nothing was found.
///
/// # Errors
/// [`AccountError::Impossible`] where the key is a party of the session: its finding would be refused.
pub fn statement(
    report: &Report,
    key: &SecretKey,
    checkpoint: Hash,
    at: u64,
) -> Result<Option<Note>, AccountError> {
    let (verdict, expected, got) = match &report.verdict {
        Verdict::Convicted(found) => (AuditVerdict::Convicted, Hash(found.expected), Hash(found.got)),
        Verdict::Plugin { digests: [first, rest @ ..], .. } => {
            let Some(other) = rest.iter().find(|digest| *digest != first) else { return Ok(None) };
            (AuditVerdict::Plugin, Hash(*first), Hash(*other))
        }
        _ => return Ok(None),
    };
    let terms = &report.receipt.terms;
    let audit = Audit {
        network: terms.network.clone(),
        auditor: key.public(),
        session: terms.session,
        seq: report.receipt.seq,
        index: report.place.index,
        work: report.receipt.counters.work,
        verdict,
        expected,
        got,
        model: terms.model,
        plugin: terms.plugin,
        checkpoint,
        at,
    };
    if audit.party_of(terms).is_some() {
        return Err(AccountError::Impossible("the auditor is a party of the session; use another key"));
    }
    audit.sign(key).map(Some)
}
