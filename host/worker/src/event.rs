//! What a worker tells whoever runs it: events for a progress display, and the faults it can be asked to commit.

use std::sync::Arc;
use std::time::Duration;

/// Receives events, on any of the worker's threads; it must return quickly.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

/// Something worth telling the operator.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A plugin was proven on its golden vectors and can compute here; told once at the start for each.
    Proven {
        /// The plugin's digest, hexadecimal.
        plugin: String,
        /// The class of its results here: `exact` or `tolerance`.
        class: &'static str,
        /// The GPU, if one computes, as its driver describes it.
        device: Option<String>,
        /// Whether that device is the processor in disguise.
        software: bool,
        /// Golden vectors that the WASM kernel was held against, bit for bit.
        vectors: usize,
        /// Golden vectors that the GPU's kernel was held against, within its tolerance; those of formats that it takes.
        vectors_on_device: usize,
    },
    /// A plugin's kernel runs in a confined process, behind these walls.
    Confined {
        /// The plugin's digest, hexadecimal.
        plugin: String,
        /// The process's number.
        process: Option<u32>,
        /// No program that it could start would gain rights.
        no_new_privileges: bool,
        /// System calls are refused but for those that compute.
        seccomp: bool,
        /// Its private memory is bounded.
        memory_limit: bool,
        /// Landlock's version on this system, 0 where there is none.
        landlock: u8,
    },
    /// The connection stands and the hub knows this worker; a backbone may be paired at any time.
    Connected {
        /// Where to.
        gateway: String,
    },
    /// A backbone and this worker have signed one transcript.
    Paired {
        /// The session, hexadecimal.
        session: String,
        /// The model's digest, hexadecimal.
        model: String,
        /// The plugin's digest, hexadecimal.
        plugin: String,
        /// The class of the session: `exact` or `tolerance`.
        class: &'static str,
    },
    /// The hub or the backbone refused; when the refusal can heal, the worker tries again.
    Refused {
        /// A stable short word.
        code: String,
        /// A sentence: what, where, which limit, and what to do.
        reason: String,
        /// Whether trying again can help.
        can_heal: bool,
    },
    /// The connection ended; the next attempt comes after the wait.
    Reconnecting {
        /// Why it ended.
        reason: String,
        /// How long until the next attempt.
        wait: Duration,
    },
    /// The backbone asked for experts to be held.
    Assigned {
        /// How many are asked for, in all.
        experts: usize,
    },
    /// Progress of loading what was assigned.
    Holding {
        /// Experts ready to be called.
        experts: usize,
        /// Experts assigned.
        assigned: usize,
        /// Bytes of the experts held.
        bytes: u64,
    },
    /// An expert was refused: what arrived is not what the transcript's model holds, or it does not fit.
    ExpertRefused {
        /// Its layer.
        layer: u16,
        /// Its index in the layer.
        expert: u16,
        /// What was wrong with it.
        reason: String,
    },
    /// A call was answered.
    CallServed {
        /// Results sent in this session so far, this one included.
        results: u64,
        /// The layer called.
        layer: u16,
        /// Rows in the call.
        rows: u32,
        /// Payload bytes received in calls answered so far.
        bytes_up: u64,
        /// Payload bytes sent in results so far.
        bytes_down: u64,
    },
    /// A receipt was checked against this worker's books, countersigned, and kept by the ledger.
    Receipt {
        /// Its number in the session.
        sequence: u64,
        /// Cumulative metered bytes, up and down together.
        bytes: u64,
        /// Cumulative calls that count.
        calls: u64,
        /// Cumulative results that do not count.
        excluded: u64,
        /// What the bytes are worth, at seven nanoKVR each.
        nano_kvr: u64,
        /// Whether it closes the session.
        last: bool,
    },
    /// A receipt did not agree with this worker's books and was not countersigned.
    ReceiptDisputed {
        /// What differs.
        reason: String,
    },
    /// The kernel failed and took experts with it; they are loaded again after a while.
    Lost {
        /// How many.
        experts: usize,
        /// What the kernel's failure was.
        reason: String,
    },
    /// A plugin made the GPU's process fail too often and is not run on it any more. The session ends in order.
    Quarantined {
        /// The plugin's digest, hexadecimal.
        plugin: String,
        /// How often it failed; `u32::MAX` where the record of it cannot be read.
        failures: u32,
    },
    /// The session ended in order.
    Drained,
    /// A plugin was offered to take over and is compiled and proven on its golden vectors; [`Event::Proven`] follows, or
    /// [`Event::CandidateRejected`].
    CandidateOffered {
        /// Its digest, hexadecimal.
        plugin: String,
        /// Its name and version.
        name: String,
        /// The digest of the plugin in use.
        active: String,
    },
    /// The candidate does not take over; the plugin in use stays.
    CandidateRejected {
        /// Its digest, hexadecimal.
        plugin: String,
        /// Why.
        reason: String,
    },
    /// The candidate passed: it computed so many live calls beside the plugin in use, each equal to the last bit, and now
    /// takes over.
    CandidatePassed {
        /// Its digest, hexadecimal.
        plugin: String,
        /// Live calls compared; 0 if there was none in the time allowed.
        calls: u32,
        /// Whether the new session begins before the old one ends. If not, the backbone computes in between.
        side_by_side: bool,
        /// Why that way.
        reason: String,
    },
    /// New sessions are bound to this plugin from now on; the old one's last session is ending in order.
    Switched {
        /// The digest of the plugin before.
        from: String,
        /// The digest of the plugin in use now.
        to: String,
    },
    /// The plugin before has answered what it was asked, its last receipt is signed, and its kernels are gone.
    Unloaded {
        /// Its digest, hexadecimal.
        plugin: String,
    },
}

/// A fault to commit on purpose: a demonstration's negative control and failure tests. Never set otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Flips the highest mantissa bit of the first value of one result.
    FlipBit {
        /// Which result, counted from 1 in the worker's life.
        result: u64,
    },
    /// Answers so many results honestly, and flips that bit of every later one.
    TurnAfter {
        /// Honest results.
        results: u64,
    },
    /// Answers so many results and then none, while the connection stays alive.
    StallAfter {
        /// Results answered first.
        results: u64,
    },
    /// Answers one result late, and all others in time.
    Late {
        /// Which result, counted from 1 in the worker's life.
        result: u64,
        /// How much too late.
        by: Duration,
    },
    /// Answers so many results and then cuts the connection without a word, and ends.
    DieAfter {
        /// Results answered first.
        results: u64,
    },
}
