//! The public log as an auditor reads it: a folder or an address, the keys that are believed, the signed head, and every leaf.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use kvasir_ledger::audit::{AuditOptions, audit};
use kvasir_ledger::log::{
    CHECKPOINT_PATH, CheckpointError, Found, HttpSource, LogSource, MAX_CHECKPOINT_BYTES, Policy,
    PolicyError, SignedCheckpoint, SourceError, TileError, bundles_of, find_bundle, parse_bundle, source_at,
};
use kvasir_merkle::Hash;
use kvasir_wire::key::PublicKey;
use kvasir_wire::note::{NoteError, Verifier};
use kvasir_wire::probe::ProbeName;
use thiserror::Error;

use crate::draw::Lot;
use crate::error::ReplayError;
use crate::probes::{FolderProbes, ProbeSource, ServedProbes};
use crate::receipts::{LogReader, LoggedReceipts};

/// What an audit of the ledger recomputed.
pub use kvasir_ledger::audit::{AuditError, AuditReport};

/// Most leaves that are read: beyond it the log is not one of this software's making so far.
pub const MAX_LEAVES: u64 = 1 << 32;
/// Where a served log has its probe records.
const PROBES_PATH: &str = "probes";

/// A log whose head was verified.
pub struct PublicLog {
    place: String,
    source: Box<dyn LogSource>,
    policy: Policy,
    head: SignedCheckpoint,
    witnesses: Vec<String>,
}

/// Whom the auditor believes about the log.
#[derive(Clone, Debug)]
pub enum LogTrust {
    /// The log's key alone, in the form `name+hash+base64`.
    Key(String),
    /// The text of a policy file: logs, witnesses, quorum.
    Policy(String),
}

/// Why the log cannot be read, or is not believed.
#[derive(Debug, Error)]
pub enum LogError {
    // The caller's.
    /// The log's key has another form.
    #[error("`{text}` is no key of a log: {source}; give the line of the file log.vkey")]
    Key {
        /// What was given.
        text: String,
        /// What is wrong with it.
        source: NoteError,
    },
    /// The policy cannot be read.
    #[error("the policy cannot be used: {0}")]
    Policy(PolicyError),
    /// The checkpoint that was kept is not what the policy demands.
    #[error("the checkpoint that was kept is not believed: {0}")]
    Kept(PolicyError),

    // The log's.
    /// A file cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A file that the checkpoint promises is not there.
    #[error("the log has no {0}; it is not whole, or this is not its address")]
    Missing(String),
    /// What lies in the head's place is no head of a log that is asked about, whoever signed it.
    #[error("there is no head of this log: {0}")]
    NoHead(String),
    /// The head is not what the policy demands.
    #[error("the log's head is not believed: {0}")]
    Head(PolicyError),
    /// A bundle of entries is broken.
    #[error("{path}: {source}")]
    Bundle {
        /// Which.
        path: String,
        /// How.
        source: TileError,
    },
    /// More leaves than are read.
    #[error("the checkpoint covers {0} leaves, at most {MAX_LEAVES} are read")]
    TooLarge(u64),
    /// The leaves are not those of the head.
    #[error(transparent)]
    Leaves(#[from] ReplayError),
}

impl LogError {
    /// Whether this says something about the log; otherwise it could not be read, or not be judged, and nothing is known of it.
    /// A file that a verified head demands and that is not there is the log's own fault.
    pub fn is_fault(&self) -> bool {
        match self {
            LogError::Missing(path) => path != CHECKPOINT_PATH,
            LogError::Source(error) => matches!(error, SourceError::TooLong { .. }),
            LogError::Head(_) | LogError::Bundle { .. } => true,
            LogError::Leaves(error) => {
                matches!(error, ReplayError::Root { .. } | ReplayError::Size { .. })
            }
            LogError::Key { .. }
            | LogError::Policy(_)
            | LogError::Kept(_)
            | LogError::NoHead(_)
            | LogError::TooLarge(_) => false,
        }
    }
}

impl PublicLog {
    /// Reads and verifies the head of the log at `place`, a folder or an address. `kept` is a checkpoint that was kept from
    /// earlier, to draw by it; without one the log's own is read.
    ///
    /// # Errors
    /// As [`LogError`] says.
    pub fn open(place: &str, trust: &LogTrust, kept: Option<Vec<u8>>) -> Result<Self, LogError> {
        let policy = match trust {
            LogTrust::Key(text) => {
                let key = text.trim();
                let wrong = |source| LogError::Key { text: key.to_owned(), source };
                Policy::of_log(key.parse::<Verifier>().map_err(wrong)?)
            }
            LogTrust::Policy(text) => Policy::parse(text).map_err(LogError::Policy)?,
        };
        let source = source_at(place)?;
        let (head, quorum) = match kept {
            Some(bytes) => policy.verify(&bytes).map_err(LogError::Kept)?,
            None => {
                let read = source.read(CHECKPOINT_PATH, MAX_CHECKPOINT_BYTES);
                let bytes = read
                    .map_err(|error| match error {
                        SourceError::TooLong { .. } => LogError::NoHead(error.to_string()),
                        error => error.into(),
                    })?
                    .ok_or_else(|| LogError::Missing(CHECKPOINT_PATH.to_owned()))?;
                policy.verify(&bytes).map_err(|error| match policy.is_named_by(&bytes) {
                    true => LogError::Head(error),
                    false => LogError::NoHead(error.to_string()),
                })?
            }
        };
        let witnesses = quorum.cosigned.into_iter().map(|(name, _)| name).collect();
        if head.checkpoint().size > MAX_LEAVES {
            return Err(LogError::TooLarge(head.checkpoint().size));
        }
        Ok(PublicLog { place: place.to_owned(), source, policy, head, witnesses })
    }

    /// Audits the ledger from its files: every entry's grammar, signatures and place, every balance, as of `now` in Unix seconds.
    /// A head that was kept must be extended by what the log says today.
    ///
    /// # Errors
    /// The first thing that is not as it says, or a file that cannot be read.
    pub fn audit(
        &self,
        treasury: Option<PublicKey>,
        now: u64,
        threads: NonZeroUsize,
    ) -> Result<AuditReport, AuditError> {
        let remembered = Some(self.head.checkpoint().clone());
        let policy = self.policy.clone();
        let options = AuditOptions { policy, treasury, remembered, now, clock: now, threads };
        audit(self.source.as_ref(), &options, &mut |_, _| {})
    }

    /// The log's name.
    pub fn origin(&self) -> &str {
        self.head.checkpoint().origin.as_str()
    }

    /// Leaves under the head.
    pub fn size(&self) -> u64 {
        self.head.checkpoint().size
    }

    /// Root over them.
    pub fn root(&self) -> Hash {
        self.head.checkpoint().root
    }

    /// SHA-256 of the head's text: what a statement names it by.
    pub fn head_digest(&self) -> Hash {
        Hash(self.head.note().text_digest())
    }

    /// Witnesses of the policy that cosigned the head.
    pub fn witnesses(&self) -> &[String] {
        &self.witnesses
    }

    /// What the head decides of the draw: the lines of the policy's witnesses, or the log's own where there are none. Lines of
    /// others could be anybody's, and chosen.
    pub fn lot(&self) -> Lot {
        let note = self.head.note();
        let blobs = |is_meant: &dyn Fn(&kvasir_wire::note::SignatureLine) -> bool| -> Vec<Vec<u8>> {
            let lines = note.signatures().iter().filter(|line| is_meant(line));
            lines.map(|line| [&line.id.0[..], &line.signature].concat()).collect()
        };
        let mut signatures = blobs(&|line| {
            self.policy.witnesses().any(|(_, key, _)| *key.name() == line.name && key.id() == line.id)
        });
        if signatures.is_empty() {
            signatures = blobs(&|line| {
                self.policy.logs().any(|(log, _)| *log.name() == line.name && log.id() == line.id)
            });
        }
        Lot { origin: self.origin().to_owned(), size: self.size(), signatures }
    }

    /// Reads every leaf under the head and keeps the receipts that are wanted. `progress` is told how many leaves were read.
    ///
    /// # Errors
    /// A bundle that is missing or broken, or leaves that have another root than the head says.
    pub fn receipts(
        &self,
        wanted: impl IntoIterator<Item = ProbeName>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<LoggedReceipts, LogError> {
        let mut reader = LogReader::new(wanted);
        for bundle in bundles_of(0, self.size()) {
            let found = find_bundle(self.source.as_ref(), &bundle)?;
            let Found { bytes, width, path } = found.ok_or_else(|| LogError::Missing(bundle.path()))?;
            let broken = |source| LogError::Bundle { path, source };
            let entries = parse_bundle(&bytes, width).map_err(broken)?;
            // A full bundle may hold more than this head covers.
            entries.iter().take(usize::from(bundle.width)).for_each(|entry| reader.take(entry));
            progress(bundle.first_entry() + u64::from(bundle.width));
        }
        Ok(reader.finish(self.size(), &self.root())?)
    }

    /// The probe records at `place`, or where this log has them.
    ///
    /// # Errors
    /// An address of another form.
    pub fn probes(&self, place: Option<&str>) -> Result<Box<dyn ProbeSource>, LogError> {
        let own = || format!("{}/{PROBES_PATH}", self.place.trim_end_matches('/'));
        let place = place.map_or_else(own, str::to_owned);
        if !is_address(&place) {
            return Ok(Box::new(FolderProbes::new(&PathBuf::from(place))));
        }
        let source = HttpSource::new(&place)?;
        Ok(Box::new(ServedProbes::new(move |path: &str, limit: usize| {
            source.read(path, limit).map_err(|error| error.to_string())
        })))
    }
}

fn is_address(place: &str) -> bool {
    place.starts_with("http://") || place.starts_with("https://")
}

impl From<CheckpointError> for LogError {
    fn from(error: CheckpointError) -> Self {
        LogError::Head(error.into())
    }
}
