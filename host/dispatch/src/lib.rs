//! The backbone's side of a swarm: sessions with workers, placement, deadlines, failover, checks, books.
//!
//! [`Swarm`] keeps a control link to the hub and a data link for every worker; [`RemoteExperts`] answers a backbone's
//! calls through them and computes here whatever workers miss, so that tokens never change. The layers are not in here
//! (`kvasir-backbone`), nor is the arithmetic (`kvasir-experts`), nor bytes on a link (`kvasir-link`, `kvasir-wire`).
//!
//! The callers' side is synchronous and blocks its thread; the links run on a small tokio runtime that the swarm
//! owns. Between the two stand a mutex and a channel: a hop is a wake-up, and nothing spins.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))] // a test that unwraps fails, which is what it should do

mod asking;
mod assigning;
mod books;
mod check;
mod control;
mod ejection;
mod evidence;
mod heirs;
mod latency;
mod open;
mod options;
mod outstanding;
mod pairing;
mod payload;
mod placement;
mod records;
mod remote;
mod seating;
mod serve_blobs;
mod session;
mod session_task;
mod split;
mod statistics;
mod swarm;
mod trial;

pub use check::{Verify, VerifyTextError};
pub use ejection::Pauses;
pub use evidence::{Evidence, EvidenceSink};
pub use latency::{Deadlines, Percentiles};
pub use options::{
    DEFAULT_HEIRS_AFTER, DEFAULT_LAST_RECEIPT, DEFAULT_RESULT_BYTES, GrantTerms, KeepOptions, SwarmError,
    SwarmOptions,
};
pub use placement::{ExpertAddress, Placement, deal, with_copies};
pub use remote::{ProbeSwitch, RemoteExperts};
pub use statistics::{RecordStatistics, Statistics, WorkerState, WorkerStatistics};
pub use swarm::{Swarm, Watcher};
