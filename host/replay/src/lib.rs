//! Replay: published calls computed again and compared, byte for byte, with what a worker signed.
//!
//! A receipt in the log binds a session's results by one root. A probe record shows one of them: the work item under that root,
//! the call's payload, the rows. With the model and the plugin that the receipt names, anybody computes the call again
//! ([`Engines`]: three ways to run the kernel that share none of its bytes) and judges ([`Verdict`]). Which records are replayed is
//! drawn by a rule that the worker could not foresee ([`Lot`]).
//!
//! Everything that is read here comes from strangers - the log, the records, the plugin - and is bounded by named constants. It
//! decides nothing about money: a conviction becomes a statement in the log and a correction by the treasury.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))] // A test that cannot set itself up has failed.

mod draw;
mod engines;
mod error;
mod log;
mod probes;
mod receipts;
mod replay;
mod statement;
mod survey;
mod verdict;

pub use draw::{DRAW_DOMAIN, Drawn, Lot, MAX_DRAWN, Rank, Seed};
pub use engines::{
    Answer, DEFAULT_DEADLINE, DEFAULT_HELD_BYTES, DEFAULT_MAX_MULTIPLICATIONS, EngineKind, Engines, Limits,
    MAX_EACH_BYTES,
};
pub use error::ReplayError;
pub use kvasir_ledger::evidence::{Evidence, MAX_EVIDENCE_BYTES, WorkFraud};
pub use log::{AuditError, AuditReport, LogError, LogTrust, MAX_LEAVES, PublicLog};
pub use probes::{FolderProbes, MAX_PROBE_FILES, ProbeSource, ServedProbes};
pub use receipts::{LogReader, LoggedReceipt, LoggedReceipts};
pub use replay::{FindPlugin, MAX_PLUGINS, Replayer, Report, convictable};
pub use statement::statement;
pub use survey::{Fault, MAX_FAULTS, MAX_RECORDS, Place, Survey, survey};
pub use verdict::{Conviction, Verdict, claims_rows, judge};
