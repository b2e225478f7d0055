//! What the swarm did, in numbers: for the report at the end and for whoever asks in between.

use crate::latency::Percentiles;

/// Counters of a swarm since it began.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Statistics {
    /// Messages that asked a worker for something.
    pub remote_calls: u64,
    /// Answers that were accepted.
    pub accepted: u64,
    /// Payload bytes of calls sent to workers.
    pub bytes_up: u64,
    /// Payload bytes of results received from workers, accepted or not.
    pub bytes_down: u64,
    /// Calls of the backbone that waited for at least one worker: each costs a round trip that nothing hides.
    pub round_trips: u64,
    /// Calls of the backbone that asked no worker.
    pub local_calls: u64,
    /// Parts of calls that were computed here after workers were asked, whatever the cause.
    pub failovers: u64,
    /// Parts of calls that another worker was asked for, because one was late, lost or refused.
    pub hedges: u64,
    /// Why one of the two was done: a deadline passed.
    pub deadlines_missed: u64,
    /// ... a worker or its link was lost.
    pub links_lost: u64,
    /// ... a worker answered with a refusal, a wrong length or a value that is not finite.
    pub answers_refused: u64,
    /// ... a check found the answer wrong.
    pub answers_wrong: u64,
    /// Answers that were computed again here.
    pub answers_checked: u64,
    /// Time from sending a call to its answer.
    pub latency: Percentiles,
    /// Probes, and what was written down for replay.
    pub records: RecordStatistics,
    /// One entry for every session, in the order they joined.
    pub workers: Vec<WorkerStatistics>,
}

/// Counters of what is kept for replay, and as evidence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordStatistics {
    /// Messages to workers that were probes; part of `remote_calls`.
    pub probe_calls: u64,
    /// Records written, a probe's in each of its files.
    pub written: u64,
    /// Files written.
    pub files: u64,
    /// Files of evidence written, each against one worker.
    pub evidence: u64,
    /// Accepted calls without a record, because too many bytes waited for a receipt.
    pub dropped: u64,
    /// What went wrong when a file was last not written.
    pub failure: Option<String>,
}

impl Statistics {
    /// Round trips for each of `tokens` tokens; zero for none.
    pub fn round_trips_per_token(&self, tokens: u64) -> f64 {
        if tokens == 0 { 0.0 } else { self.round_trips as f64 / tokens as f64 }
    }

    /// Payload bytes in both directions.
    pub fn bytes(&self) -> u64 {
        self.bytes_up.saturating_add(self.bytes_down)
    }
}

/// Where a session with a worker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WorkerState {
    /// It does not hold yet what it was assigned.
    #[default]
    Joining,
    /// It is asked.
    Serving,
    /// It owes an answer that nobody waits for any more, and is asked nothing until it has given it.
    Late,
    /// It missed deadlines, and is asked nothing but trials until it passes one.
    Ejected,
    /// Its connection or this side's is gone, and may come back.
    Away,
    /// It is asked nothing more, and ends in order.
    Draining,
    /// An answer of it was wrong: the session is over, and there is no other one with this worker.
    Quarantined,
    /// The session is over.
    Ended,
}

impl WorkerState {
    /// A word for it.
    pub const fn name(self) -> &'static str {
        match self {
            WorkerState::Joining => "joining",
            WorkerState::Serving => "serving",
            WorkerState::Late => "late",
            WorkerState::Ejected => "ejected",
            WorkerState::Away => "away",
            WorkerState::Draining => "draining",
            WorkerState::Quarantined => "quarantined",
            WorkerState::Ended => "ended",
        }
    }
}

/// Counters of one session with one worker.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WorkerStatistics {
    /// The session, hexadecimal.
    pub session: String,
    /// The worker's key, as text.
    pub worker: String,
    /// The digest of the plugin that it computes with, by the transcript; hexadecimal.
    pub plugin: String,
    /// The class of its results by the transcript: `exact` or `tolerance`.
    pub class: &'static str,
    /// Whether the session stands.
    pub connected: bool,
    /// Where it stands now.
    pub state: WorkerState,
    /// Experts it holds for this backbone; of a session that is over, those that it held.
    pub experts: usize,
    /// The same by layer, ascending: the layer, and how many of its experts.
    pub holds: Vec<(u16, u32)>,
    /// Bytes of the weights that it holds; none once the session is over.
    pub held_bytes: u64,
    /// Calls sent to it.
    pub calls: u64,
    /// Results of it that were accepted.
    pub accepted: u64,
    /// Rows of those: the hidden vectors that were sent for them.
    pub rows: u64,
    /// Calls that it did not answer by their deadline.
    pub missed: u64,
    /// Results of it that do not count: late, refused, wrong.
    pub excluded: u64,
    /// Answers of it that were computed again here.
    pub checked: u64,
    /// Of these: wrong ones.
    pub wrong: u64,
    /// What it said when it last refused a call.
    pub last_failure: Option<String>,
    /// Payload bytes of calls.
    pub bytes_up: u64,
    /// Payload bytes of results.
    pub bytes_down: u64,
    /// Bytes of experts that were sent to it; not metered.
    pub expert_bytes: u64,
    /// Metered bytes, up and down, of its last complete receipt.
    pub receipted_bytes: u64,
    /// What those are worth, at seven nanoKVR each.
    pub receipted_nano_kvr: u64,
    /// Number of its last complete receipt; zero when there is none.
    pub receipts: u64,
    /// Time from sending a call to its answer.
    pub latency: Percentiles,
    /// Why the session ended, if it has.
    pub ended: Option<String>,
}
