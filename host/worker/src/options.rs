//! What a worker is told by whoever starts it, and why it may end.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvasir_experts::{Device, Isolation, KernelLimits, RunnerError, VerifiedPlugin};
use kvasir_link::LinkOptions;
use kvasir_model::Model;
use kvasir_wire::id::PluginDigest;
use kvasir_wire::key::SecretKey;
use kvasir_wire::refusal::Refusal;
use kvasir_wire::ticket::Ticket;
use thiserror::Error;

use crate::event::{EventSink, Fault};

/// Default bound on the experts held, in bytes.
pub const DEFAULT_STORE_BYTES: u64 = 4 << 30;

/// How long a candidate computes beside the plugin in use before it takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowOptions {
    /// Calls that both must have answered alike, bit for bit. With 0 the golden vectors alone decide.
    pub calls: u32,
    /// After so long the candidate takes over with as many calls as there were: a worker that nobody calls would else never
    /// change over.
    pub within: Duration,
}

impl Default for ShadowOptions {
    fn default() -> Self {
        Self { calls: 64, within: Duration::from_secs(120) }
    }
}

/// How a worker serves.
#[derive(Clone)]
pub struct WorkerOptions {
    /// The gateway: `wss://host[:port]`, or `ws://host:port` on a trusted network. The path is always `/v1/worker`.
    pub gateway: String,
    /// A file of PEM certificates to believe instead of the public authorities.
    pub certificate_authority: Option<PathBuf>,
    /// The worker's ticket.
    pub ticket: Ticket,
    /// The key that the ticket was made for.
    pub key: SecretKey,
    /// Plugins that were verified on this machine, best first. The worker computes with these and no others.
    pub plugins: Vec<VerifiedPlugin>,
    /// Where experts are computed, for the whole of the worker's life: what it says of its class at the hub follows from
    /// this, and it never answers by another kernel in secret.
    pub device: Device,
    /// In which process kernels compute.
    pub isolation: Isolation,
    /// Bounds on every kernel instance.
    pub limits: KernelLimits,
    /// How long a candidate is watched that is to take over ([`crate::PluginSwitch`]).
    pub shadow: ShadowOptions,
    /// A model file on this machine: experts whose digests agree need not travel.
    pub model: Option<Arc<Model>>,
    /// Most bytes of experts to hold.
    pub store_bytes: u64,
    /// Threads for kernels; `None`: one for each processor.
    pub threads: Option<NonZeroUsize>,
    /// A folder in which the last complete receipt of every session is kept, and with it the numbers of sessions in which this worker
    /// signed: under none of them it signs again, also when it was started anew. Without a folder it knows those since its start.
    pub paystubs: Option<PathBuf>,
    /// How much is served ahead of signatures before the session is ended.
    pub unsigned_window: UnsignedWindow,
    /// Give up after so many failed attempts in a row; `None`: never.
    pub attempts: Option<u32>,
    /// Deadlines of the link.
    pub link: LinkOptions,
    /// Open a second outbound connection to the gateway for experts on their way, in sessions for which the hub offers it. Off
    /// unless told otherwise: one connection is what a worker's operator expects.
    pub bulk_connection: bool,
    /// End after the first session that was closed in order, instead of waiting for another.
    pub once: bool,
    /// Told what happens.
    pub events: EventSink,
    /// A fault to commit on purpose; for demonstrations and tests.
    pub danger_fault: Option<Fault>,
}

impl WorkerOptions {
    /// The usual options, with nobody told what happens.
    pub fn new(gateway: impl Into<String>, ticket: Ticket, key: SecretKey, plugin: VerifiedPlugin) -> Self {
        Self {
            gateway: gateway.into(),
            certificate_authority: None,
            ticket,
            key,
            plugins: vec![plugin],
            device: Device::Cpu,
            isolation: Isolation::InProcess,
            limits: KernelLimits::default(),
            shadow: ShadowOptions::default(),
            model: None,
            store_bytes: DEFAULT_STORE_BYTES,
            threads: None,
            paystubs: None,
            unsigned_window: UnsignedWindow::default(),
            attempts: None,
            link: LinkOptions::default(),
            bulk_connection: false,
            once: false,
            events: Arc::new(|_| {}),
            danger_fault: None,
        }
    }
}

impl Summary {
    /// Adds what another session, or another version of the plugin, did. Results are counted by the worker itself.
    pub(crate) fn merge(&mut self, other: &Summary) {
        self.sessions += other.sessions;
        self.receipted_bytes = self.receipted_bytes.saturating_add(other.receipted_bytes);
        self.nano_kvr = self.nano_kvr.saturating_add(other.nano_kvr);
    }
}

impl fmt::Debug for WorkerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerOptions")
            .field("gateway", &self.gateway)
            .field("key", &self.key.public())
            .field("plugins", &self.plugins)
            .field("store_bytes", &self.store_bytes)
            .finish_non_exhaustive()
    }
}

/// Most bytes that a worker serves ahead of signatures unless told otherwise: some seconds of the fastest session. At
/// the founding price of 7 nanoKVR a byte that is 7.5 KVR.
pub const UNSIGNED_WINDOW_BYTES: u64 = 1 << 30;
/// Longest that something served may wait for a signed receipt unless told otherwise: a cut is due after ten seconds, each
/// signature within twenty, and a ledger's pause holds nothing up.
pub const UNSIGNED_WINDOW_TIME: Duration = Duration::from_secs(60);

/// How much a worker serves that no signed receipt states, what receipts leave out included. Beyond it the session ends; what was not signed is lost, and
/// reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsignedWindow {
    /// Payload bytes, up and down.
    pub bytes: u64,
    /// Time since the first of them.
    pub time: Duration,
}

impl Default for UnsignedWindow {
    fn default() -> Self {
        Self { bytes: UNSIGNED_WINDOW_BYTES, time: UNSIGNED_WINDOW_TIME }
    }
}

/// What a worker did in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Sessions that began.
    pub sessions: u64,
    /// Results sent.
    pub results: u64,
    /// Metered bytes, up and down, of complete receipts.
    pub receipted_bytes: u64,
    /// What they are worth at seven nanoKVR a byte.
    pub nano_kvr: u64,
}

/// Why a worker ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The caller's fault: options that cannot work.
    #[error("worker options: {0}")]
    Options(String),
    /// A refusal that trying again cannot heal.
    #[error("{0}")]
    Refused(Refusal),
    /// The attempts are used up.
    #[error("gave up after {attempts} attempts; last: {last}")]
    GaveUp {
        /// Attempts in a row.
        attempts: u32,
        /// How the last one ended.
        last: String,
    },
    /// A plugin does not run on this machine.
    #[error("plugin {plugin}: {source}")]
    Plugin {
        /// Its name and version.
        plugin: String,
        /// What the runner says.
        source: RunnerError,
    },
    /// Every plugin that was given had to be given up: its kernel failed too often.
    #[error(
        "plugin {plugin} failed too often, and it is in quarantine on this machine; no plugin is left to compute with: use another \
         version of it, compute on the CPU if it failed on the GPU, or lift the quarantine"
    )]
    Quarantined {
        /// The last plugin given up.
        plugin: PluginDigest,
    },
    /// The system refused threads or random numbers.
    #[error("the system refused {what}: {reason}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        reason: String,
    },
    /// The fault that was asked for was committed.
    #[error("died on purpose after {results} results, as its options demanded")]
    DiedOnPurpose {
        /// Results sent before.
        results: u64,
    },
}
