//! How a log asks a witness: with a proof from the size that the witness had, and once more where it has another.

use std::time::{Duration, Instant};

use kvasir_wire::note::{Note, SignatureLine, canonical_number};
use thiserror::Error;

use super::{AddCheckpoint, SIZE_TYPE};
use crate::log::{CosignerKey, LogSource, MAX_CHECKPOINT_BYTES, Prover, ProverError, SignedCheckpoint};

/// Time for a witness to answer, to the second question too.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a witness did not cosign.
#[derive(Debug, Error)]
pub enum CosignError {
    /// No answer, or none over HTTP.
    #[error("the witness at {url} does not answer: {source}")]
    Unreachable {
        /// What was asked.
        url: String,
        /// Why it failed.
        source: Box<ureq::Error>,
    },
    /// The witness said no.
    #[error("the witness at {url} refused ({status}): {reason}")]
    Refused {
        /// What was asked.
        url: String,
        /// HTTP status.
        status: u16,
        /// Its words, shortened.
        reason: String,
    },
    /// The answer holds no good cosignature of the expected key.
    #[error("the answer of the witness at {url} holds no cosignature of {key}")]
    BadAnswer {
        /// What was asked.
        url: String,
        /// Whose cosignature was expected.
        key: Box<CosignerKey>,
    },
    /// The witness saw a longer log than this one.
    #[error(
        "the witness at {url} cosigned size {seen} of this log, which has {size} entries: it was rolled back or runs twice"
    )]
    AheadOfUs {
        /// What was asked.
        url: String,
        /// Size that the witness saw.
        seen: u64,
        /// Size of this head.
        size: u64,
    },
    /// No proof could be made.
    #[error(transparent)]
    Prover(#[from] ProverError),
}

impl CosignError {
    /// Whether the witness let its time pass, so that asking it again soon would cost that time again.
    pub fn is_timeout(&self) -> bool {
        matches!(self, CosignError::Unreachable { source, .. } if matches!(**source, ureq::Error::Timeout(_)))
    }
}

/// Asks the witness at `url` (its prefix) to cosign `head`, whose tiles are in `source`. `old` is the size that it
/// cosigned last as far as is known; gives its line.
pub fn ask(
    url: &str,
    witness: &CosignerKey,
    head: &SignedCheckpoint,
    source: &dyn LogSource,
    old: u64,
) -> Result<SignatureLine, CosignError> {
    let size = head.checkpoint().size;
    let prover = Prover::new(source, size);
    let place = format!("{}/add-checkpoint", url.trim_end_matches('/'));
    let config = ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).build();
    let agent = ureq::Agent::from(config);
    let until = Instant::now() + TIMEOUT;
    let mut old = old.min(size);
    for attempt in 0..2 {
        let proof = if old == 0 || old == size { Vec::new() } else { prover.consistency(old)?.hashes };
        let body = AddCheckpoint { old, proof, checkpoint: head.note().clone() }.to_string();
        let unreachable = |source| CosignError::Unreachable { url: place.clone(), source: Box::new(source) };
        let left = until.saturating_duration_since(Instant::now());
        let asked = agent.post(&place).config().timeout_global(Some(left)).build();
        let answer = asked.send(body).map_err(unreachable)?;
        let status = answer.status().as_u16();
        let names_size = answer.headers().get("content-type").is_some_and(|kind| kind == SIZE_TYPE);
        let text = answer.into_body().into_with_config().limit(MAX_CHECKPOINT_BYTES as u64).read_to_string();
        let text = text.map_err(unreachable)?;
        match status {
            200 => return line_of(&text, witness, head).ok_or_else(|| bad_answer(&place, witness)),
            409 if names_size && attempt == 0 => {
                let seen = text
                    .strip_suffix('\n')
                    .and_then(canonical_number)
                    .ok_or_else(|| bad_answer(&place, witness))?;
                if seen > size {
                    return Err(CosignError::AheadOfUs { url: place, seen, size });
                }
                old = seen;
            }
            _ => {
                let reason = text.chars().filter(|letter| !letter.is_control()).take(200).collect();
                return Err(CosignError::Refused { url: place, status, reason });
            }
        }
    }
    Err(bad_answer(&place, witness))
}

fn bad_answer(url: &str, key: &CosignerKey) -> CosignError {
    CosignError::BadAnswer { url: url.to_owned(), key: Box::new(key.clone()) }
}

/// The line of `witness` among the answer's lines, verified.
fn line_of(lines: &str, witness: &CosignerKey, head: &SignedCheckpoint) -> Option<SignatureLine> {
    let note = Note::parse(format!("{}\n{lines}", head.note().text()).as_bytes()).ok()?;
    witness.verify(&note).ok()??;
    note.signatures().iter().find(|line| line.name == *witness.name() && line.id == witness.id()).cloned()
}
