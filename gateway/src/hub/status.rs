//! The status report of a hub, `GET /v1/status`, as JSON.

use serde::Serialize;

use super::meter::LaneBytes;

/// The status report, `GET /v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Backbones with a control link.
    pub backbones: Vec<BackboneReport>,
    /// Workers that wait for a backbone.
    pub waiting: Vec<WaitingReport>,
    /// Sessions.
    pub sessions: Vec<SessionReport>,
    /// Sessions that ended since the start.
    pub closed_sessions: u64,
    /// Receipts that the ledger does not have yet.
    pub receipts_in_spool: usize,
    /// Those among them that the ledger takes only once somebody has done what it says.
    pub receipts_postponed: usize,
    /// What the ledger said about the latest of those.
    pub postponed_because: Option<String>,
    /// Receipts that the ledger refused for good since the start; they lie in `refused/` in the spool.
    pub receipts_refused: usize,
    /// Leaf hash of the price note in use; absent while the ledger has named none.
    pub price: Option<String>,
    /// The latest refusals, the newest first.
    pub refusals: Vec<RefusalReport>,
}

/// A backbone in the status report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackboneReport {
    /// Its key.
    pub key: String,
    /// Digest of its model.
    pub model: String,
    /// Its sessions.
    pub sessions: usize,
    /// Unix seconds at which it connected.
    pub since: u64,
    /// The latest round trip from the hub, in microseconds.
    pub round_trip_us: Option<u64>,
}

/// A waiting worker in the status report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitingReport {
    /// Its key.
    pub key: String,
    /// What it waits for.
    pub why: String,
    /// Unix seconds at which it connected.
    pub since: u64,
    /// The latest round trip from the hub, in microseconds.
    pub round_trip_us: Option<u64>,
}

/// A session in the status report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionReport {
    /// Its number.
    pub session: String,
    /// The worker's key.
    pub worker: String,
    /// The backbone's key.
    pub backbone: String,
    /// Unix seconds at which it began.
    pub began: u64,
    /// How long it has lasted.
    pub seconds: u64,
    /// The latest round trip from the hub to the worker, in microseconds.
    pub worker_round_trip_us: Option<u64>,
    /// The latest round trip from the hub to the backbone, in microseconds.
    pub backbone_round_trip_us: Option<u64>,
    /// Payload bytes passed on to the worker.
    pub to_worker: LaneBytes,
    /// Payload bytes passed on to the backbone.
    pub to_backbone: LaneBytes,
    /// Messages that had to wait since the end that they were for took no more.
    pub stalls: u64,
    /// How long they waited in all.
    pub stalled_ms: u64,
    /// How often an end came back over another connection.
    pub resumed: u64,
    /// Second connections that the worker opened for bulk.
    pub bulk_connections: u64,
}

/// A refusal in the status report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusalReport {
    /// Unix seconds.
    pub at: u64,
    /// Whom: an address or a key.
    pub whom: String,
    /// The word for programs.
    pub code: String,
    /// Why, in the words that it was told.
    pub message: String,
    /// What it was told to do about it; may be empty.
    pub what_to_do: String,
}
