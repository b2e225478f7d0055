//! What `GET /v1/swarm` says: who computes, who holds what, how far away, how fast, and what it earned.

use serde::{Deserialize, Serialize};

/// The swarm as it is now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SwarmReport {
    /// The model that is served.
    pub model: String,
    /// Decoder layers of it.
    pub layers: u32,
    /// Routed experts of each layer.
    pub experts_per_layer: u32,
    /// Everybody who was met since the start, present ones first.
    pub workers: Vec<SwarmWorker>,
    /// Tokens a second.
    pub rates: Rates,
    /// What is being computed.
    pub load: Load,
}

/// One worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SwarmWorker {
    /// Its key, or the beginning of it.
    pub name: String,
    /// A word for its state: `joining`, `serving`, `late`, `away`, `draining`, `ejected`, `quarantined`, `gone`.
    pub state: String,
    /// Why, where it does not serve.
    pub why: Option<String>,
    /// What it holds, by layer.
    pub holds: Vec<Held>,
    /// Bytes of weights that it holds.
    pub held_bytes: u64,
    /// Half of its recent round trips took less, in milliseconds; unknown before the first.
    pub round_trip_ms: Option<f64>,
    /// 99 of 100 recent round trips took less, in milliseconds.
    pub round_trip_p99_ms: Option<f64>,
    /// Calls that it answered.
    pub calls: u64,
    /// Rows of those calls.
    pub rows: u64,
    /// Calls that it did not answer in time.
    pub missed: u64,
    /// Answers of it that were computed a second time.
    pub checked: u64,
    /// Answers of it that were found wrong.
    pub wrong: u64,
    /// Bytes in receipts that it countersigned.
    pub countersigned_bytes: u64,
    /// Credit that those bytes are worth, in nanoKVR.
    pub credit_nanokvr: u64,
}

/// What a worker holds of one layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The layer.
    pub layer: u32,
    /// Experts of it.
    pub experts: u32,
}

/// Tokens a second of all texts together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Measured lately; nothing where nothing was computed.
    pub now: Option<f64>,
    /// With every expert computed on this machine, measured or predicted.
    pub local: Option<f64>,
    /// With the swarm, measured or predicted.
    pub swarm: Option<f64>,
}

/// What is being computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Texts being written.
    pub running: usize,
    /// Texts that wait for their turn.
    pub waiting: usize,
    /// Groups of texts of which one computes while another waits for an answer.
    pub waves: usize,
}
