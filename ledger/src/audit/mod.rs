//! The audit: from the published files alone, without an account and without a database, is everything as it says?
//!
//! It verifies the head and its cosignatures, every tile against the entries, every entry's grammar, signatures and place,
//! and recomputes every balance to the nanoKVR. The rules are those of `docs/ledger.md`, written a second time: nothing here
//! calls the store, so that a mistake of one is found by the other. What it cannot see: whether the work was done
//! (`kvasir audit --replay`), and the ledger's clock, which is no part of an entry.

mod books;
mod entry;
mod reading;
mod session;

use std::num::NonZeroUsize;

use kvasir_merkle::Hash;
use kvasir_wire::key::PublicKey;
use kvasir_wire::limits::CLOCK_SKEW_SECONDS;
use kvasir_wire::note::KeyName;
use serde::Serialize;
use thiserror::Error;

use crate::log::{
    CHECKPOINT_PATH, Checkpoint, LogSource, MAX_CHECKPOINT_BYTES, Policy, PolicyError, Quorum,
    SignedCheckpoint, SourceError,
};
use books::Books;

/// What to believe, and how to work.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// The log's key, and the witnesses that must have cosigned its head.
    pub policy: Policy,
    /// The only treasury key that the log may believe; any where it is absent.
    pub treasury: Option<PublicKey>,
    /// The head that was found in order before; the log must extend it.
    pub remembered: Option<Checkpoint>,
    /// Unix seconds; pending credit of before that is posted.
    pub now: u64,
    /// The auditor's clock, Unix seconds. With the latest cosignature, whichever is later, it bounds what receipts and settlements say.
    pub clock: u64,
    /// Threads that verify signatures.
    pub threads: NonZeroUsize,
}

/// Everything is as it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditReport {
    /// The log's name.
    pub origin: String,
    /// Entries.
    pub entries: u64,
    /// RFC 6962 root over them.
    pub root: String,
    /// The head as it was published, to remember.
    #[serde(skip)]
    pub checkpoint: String,
    /// Witnesses that cosigned the head, by their names in the policy.
    pub witnesses: Vec<String>,
    /// The latest cosignature's time: the only clock here that is not a party's. Unix seconds.
    pub cosigned_at: Option<u64>,
    /// Receipts.
    pub receipts: u64,
    /// Settlements.
    pub settlements: u64,
    /// Settlements that were reversed.
    pub reversed: u64,
    /// Signatures that were verified.
    pub signatures: u64,
    /// Keys that the ledger believes at the end.
    pub keys: Vec<BelievedKey>,
    /// All accounts, by kind and owner.
    pub balances: Vec<AuditedBalance>,
    /// Sessions whose receipts have a gap that may still be filled, at most [`MAX_NAMED_GAPS`]: session, first missing number.
    pub gaps: Vec<(String, u64)>,
}

/// Most gaps that a report names.
pub const MAX_NAMED_GAPS: usize = 100;

/// A key that a log believes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BelievedKey {
    /// What it may sign.
    pub role: String,
    /// The full key.
    pub key: String,
    /// The entry that says so.
    pub since: u64,
}

/// What an account holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditedBalance {
    /// `treasury`, `payer`, `pending` or `posted`.
    pub kind: &'static str,
    /// Digest of the owner's key; zeros for the treasury.
    pub owner: String,
    /// The amount; the treasury's is what it put in, below zero.
    pub nanokvr: i64,
}

/// What is not as it says. The first thing, by its place in the log.
#[derive(Debug, Error)]
pub enum AuditError {
    /// A file cannot be read: says nothing about the log.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Nothing is published there.
    #[error("there is no log here: no file `checkpoint`")]
    NoLog,
    /// What lies there is nobody's head: no note, or in no name of a log that is asked about.
    #[error("there is no head of this log: {0}")]
    NoHead(PolicyError),
    /// The head is not signed or not cosigned as the policy wants.
    #[error("the head: {0}")]
    Head(#[from] PolicyError),
    /// The log is shorter than it was.
    #[error("the log was rolled back: it has {size} entries, and had {remembered}")]
    RolledBack {
        /// Entries now.
        size: u64,
        /// Entries before.
        remembered: u64,
    },
    /// The log's past is another one.
    #[error("a split view: the first {size} entries have root {found}, and had {remembered}")]
    SplitView {
        /// Entries of the remembered head.
        size: u64,
        /// Root over them now.
        found: Hash,
        /// Root over them before.
        remembered: Hash,
    },
    /// The remembered head is of another log.
    #[error("the log is `{found}`, the remembered head is of `{remembered}`")]
    OtherLog {
        /// This log.
        found: KeyName,
        /// The log of the remembered head.
        remembered: KeyName,
    },
    /// The entries and the signed root disagree, though every tile is right.
    #[error("the {size} entries have root {found}, the head says {signed}")]
    Root {
        /// Entries.
        size: u64,
        /// What they give.
        found: Hash,
        /// What was signed.
        signed: Hash,
    },
    /// An entry, or a file that holds it, is wrong.
    #[error("entry {index}: {reason}")]
    Entry {
        /// The first wrong entry.
        index: u64,
        /// What is wrong with it.
        reason: String,
    },
}

impl AuditError {
    /// The first wrong entry, where the fault is in one.
    pub fn index(&self) -> Option<u64> {
        match self {
            AuditError::Entry { index, .. } => Some(*index),
            _ => None,
        }
    }

    /// Whether this says something about the log. Otherwise nothing is known of it: it could not be read, and no head in its name
    /// was there that it would fall short of; or what is remembered is of another log. A file that a signed head demands and that
    /// a source which answers has not is the log's own fault, and so is one that is longer than any such file can be.
    pub fn is_fault(&self) -> bool {
        !matches!(
            self,
            AuditError::NoLog
                | AuditError::NoHead(_)
                | AuditError::OtherLog { .. }
                // A tile or bundle that is too long is an entry's fault; here it is what lies in the head's place.
                | AuditError::Source(_)
        )
    }
}

/// Audits the log in `source`. `progress` is told how many entries of how many are done.
pub fn audit(
    source: &dyn LogSource,
    options: &AuditOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<AuditReport, AuditError> {
    let head = source.read(CHECKPOINT_PATH, MAX_CHECKPOINT_BYTES)?.ok_or(AuditError::NoLog)?;
    let (signed, quorum) = verified(&options.policy, &head)?;
    let head = signed.checkpoint();
    if let Some(before) = &options.remembered {
        if before.origin != head.origin {
            let (found, remembered) = (head.origin.clone(), before.origin.clone());
            return Err(AuditError::OtherLog { found, remembered });
        }
        if before.size > head.size {
            return Err(AuditError::RolledBack { size: head.size, remembered: before.size });
        }
    }
    let cosigned_at = quorum.cosigned.iter().map(|(_, cosignature)| cosignature.time).max();
    // A receipt may end one skew ahead of the ledger's clock, and that one be as far ahead of the clock here.
    let latest = options.clock.max(cosigned_at.unwrap_or_default()).saturating_add(2 * CLOCK_SKEW_SECONDS);
    let mut books = Books::new(options.treasury, latest);
    let signatures = reading::read_all(source, head, options, &mut books, progress)?;
    let report = books.close(options.now).map_err(|(index, reason)| AuditError::Entry { index, reason })?;
    Ok(AuditReport {
        origin: head.origin.to_string(),
        entries: head.size,
        root: head.root.to_string(),
        checkpoint: signed.note().to_string(),
        cosigned_at,
        witnesses: quorum.cosigned.into_iter().map(|(name, _)| name).collect(),
        signatures,
        ..report
    })
}

/// Reads and hashes everything that [`audit`] reads, without looking into entries: what a benchmark compares it with.
pub fn hash_only(source: &dyn LogSource, options: &AuditOptions) -> Result<u64, AuditError> {
    let head = source.read(CHECKPOINT_PATH, MAX_CHECKPOINT_BYTES)?.ok_or(AuditError::NoLog)?;
    let (signed, _) = verified(&options.policy, &head)?;
    reading::hash_all(source, signed.checkpoint(), options.remembered.as_ref(), options.threads)?;
    Ok(signed.checkpoint().size)
}

/// A page for people, or another log's head, in the place of a head says nothing about this log.
fn verified(policy: &Policy, head: &[u8]) -> Result<(SignedCheckpoint, Quorum), AuditError> {
    policy.verify(head).map_err(|error| {
        if policy.is_named_by(head) { AuditError::Head(error) } else { AuditError::NoHead(error) }
    })
}
