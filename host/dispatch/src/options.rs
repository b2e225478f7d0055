//! What a swarm is told by whoever starts it, and what can go wrong with it.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use kvasir_model::{LayerIndex, ModelError};
use kvasir_wire::handshake::Class;
use kvasir_wire::id::PluginDigest;
use kvasir_wire::key::SecretKey;
use kvasir_wire::refusal::Refusal;
use kvasir_wire::ticket::Ticket;
use thiserror::Error;

use crate::check::Verify;
use crate::ejection::Pauses;
use crate::evidence::EvidenceSink;
use crate::latency::Deadlines;
use crate::placement::{ExpertAddress, Placement};

/// Default of [`SwarmOptions::result_bytes`]: far below the protocol's 64 MiB, so that a long prefill is not one message;
/// far above a decoded token's rows, which always go in one.
pub const DEFAULT_RESULT_BYTES: usize = 4 << 20;

/// Default of [`SwarmOptions::heirs_after`]: the hub has given the worker's link up by then, and a machine that was started again is
/// back mostly.
pub const DEFAULT_HEIRS_AFTER: Duration = Duration::from_secs(30);

/// Default of [`SwarmOptions::last_receipt`].
pub const DEFAULT_LAST_RECEIPT: Duration = Duration::from_secs(10);

/// How a backbone takes part in a swarm.
#[derive(Debug, Clone)]
pub struct SwarmOptions {
    /// The hub's address on the LAN: `ws://host:port`.
    pub hub: String,
    /// The backbone's ticket.
    pub ticket: Ticket,
    /// The key that the ticket was made for; it also signs receipts and grants.
    pub key: SecretKey,
    /// Plugins that workers may compute with, best first. All must return the same bits as what this machine computes with: it,
    /// and other exact versions of it that its operator trusts. A worker that changes over to another of them during a
    /// generation is asked on, without a pause.
    pub plugins: Vec<PluginDigest>,
    /// The loosest class of results that is accepted. Workers of class tolerance move bits; tokens may then differ where
    /// two logits are close.
    pub accepts: Class,
    /// How experts are dealt over workers.
    pub placement: Placement,
    /// Layers whose experts are given away.
    pub remote_layers: Vec<LayerIndex>,
    /// Experts given away in each of those layers; `None`: all of them.
    pub remote_experts: Option<Range<u16>>,
    /// The experts given away one by one, in place of `remote_layers` and `remote_experts`.
    pub chosen: Option<BTreeSet<ExpertAddress>>,
    /// How many workers the experts are dealt over. Further ones are declined until one leaves.
    pub workers: NonZeroUsize,
    /// Bounds of a call's deadline.
    pub deadlines: Deadlines,
    /// How long a worker that missed a deadline is left alone.
    pub pauses: Pauses,
    /// Further workers that hold each expert, beside the first: they are asked where that one fails or is late. Fewer than
    /// `workers`.
    pub copies: usize,
    /// Those that `copies` is meant for, such as the ones that rows go to most often; `None`: all.
    pub copied: Option<BTreeSet<ExpertAddress>>,
    /// How long nobody may hold the experts of a place that was left, before those who stay take them over.
    pub heirs_after: Duration,
    /// How long a worker whose answer was wrong may take to sign a last receipt without it. One that takes longer is turned away, and there
    /// is no evidence against it.
    pub last_receipt: Duration,
    /// Which answers are computed again here before they are used. Only right where this machine computes exactly.
    pub verify: Verify,
    /// Most bytes of result that one message asks for; larger calls are cut into several, which overlap on the way.
    pub result_bytes: usize,
    /// What each session may be billed.
    pub grant: GrantTerms,
    /// How long the first connection to the hub, each later one, and a pairing may take.
    pub connect_timeout: Duration,
    /// How long the orderly end of all sessions may take.
    pub finish_timeout: Duration,
    /// Which calls are written down for replay, and where; and where evidence against workers goes.
    pub keep: KeepOptions,
}

/// Folders for records of calls (`kvasir_wire::probe`), one file a receipt; none is written where none is named.
#[derive(Debug, Clone, Default)]
pub struct KeepOptions {
    /// For probes alone, which anybody may read.
    pub probes: Option<PathBuf>,
    /// For every accepted call, probes included. They are derived from prompts: only the files' owner may read them.
    pub rows: Option<PathBuf>,
    /// For calls that a worker answered wrong, each under a receipt that it signed. They are derived from prompts too.
    pub evidence: Option<EvidenceSink>,
}

impl SwarmOptions {
    /// The usual options; nothing is given away yet.
    pub fn new(hub: impl Into<String>, ticket: Ticket, key: SecretKey, plugin: PluginDigest) -> Self {
        Self {
            hub: hub.into(),
            ticket,
            key,
            plugins: vec![plugin],
            accepts: Class::Exact,
            placement: Placement::default(),
            remote_layers: Vec::new(),
            remote_experts: None,
            chosen: None,
            workers: NonZeroUsize::MIN,
            deadlines: Deadlines::default(),
            pauses: Pauses::default(),
            copies: 0,
            copied: None,
            heirs_after: DEFAULT_HEIRS_AFTER,
            last_receipt: DEFAULT_LAST_RECEIPT,
            verify: Verify::default(),
            result_bytes: DEFAULT_RESULT_BYTES,
            grant: GrantTerms::default(),
            connect_timeout: Duration::from_secs(10),
            finish_timeout: Duration::from_secs(15),
            keep: KeepOptions::default(),
        }
    }
}

impl SwarmOptions {
    /// The experts given away of a model with so many layers of so many experts, ascending.
    pub(crate) fn given_away(&self, layers: usize, experts: usize) -> Result<Vec<ExpertAddress>, SwarmError> {
        let wrong = |what: String| Err(SwarmError::Options(what));
        if let Some(chosen) = &self.chosen {
            let is_missing = |(layer, expert): &&ExpertAddress| {
                usize::from(*layer) >= layers || usize::from(*expert) >= experts
            };
            return match chosen.iter().find(is_missing) {
                Some((layer, expert)) => wrong(format!(
                    "expert {expert} of layer {layer} is to be remote, the model's layers are 0 to {}, their experts 0 to {}",
                    layers - 1,
                    experts - 1
                )),
                None => Ok(chosen.iter().copied().collect()),
            };
        }
        let numbers: BTreeSet<u16> = self.remote_layers.iter().map(|layer| layer.0).collect();
        if let Some(layer) = numbers.iter().find(|layer| usize::from(**layer) >= layers) {
            return wrong(format!(
                "layer {layer} is to be remote, the model's layers are 0 to {}",
                layers - 1
            ));
        }
        let range = self.remote_experts.clone().unwrap_or(0..experts as u16);
        if usize::from(range.end) > experts || range.is_empty() {
            return wrong(format!("experts {range:?} are to be remote, a layer's experts are 0..{experts}"));
        }
        Ok(numbers.iter().flat_map(|&layer| range.clone().map(move |expert| (layer, expert))).collect())
    }
}

/// What a backbone grants to every session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantTerms {
    /// Most metered bytes, up and down together.
    pub bytes: u64,
    /// For how long receipts may be cut.
    pub lasts: Duration,
}

impl Default for GrantTerms {
    fn default() -> Self {
        // 64 GiB is 0.48 KVR at the founding price, and more than a day of one busy session.
        Self { bytes: 64 << 30, lasts: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// Why a swarm could not be joined, filled or finished.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SwarmError {
    /// The caller's fault: options that contradict each other or the model.
    #[error("swarm options: {0}")]
    Options(String),
    /// The model could not be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The hub said no.
    #[error("the hub at {hub} {refusal}")]
    Refused {
        /// Its address.
        hub: String,
        /// What it said.
        refusal: Refusal,
    },
    /// The hub could not be reached.
    #[error("no connection to the hub at {hub}: {reason}; check that it runs and that the address is right")]
    Unreachable {
        /// Its address.
        hub: String,
        /// What happened.
        reason: String,
    },
    /// Too few workers joined in time.
    #[error("{ready} of {wanted} workers hold their experts after {waited:?}{}", last.as_ref().map(|last| format!("; last: {last}")).unwrap_or_default())]
    TooFewWorkers {
        /// Workers that hold all that they were assigned.
        ready: usize,
        /// Workers asked for.
        wanted: usize,
        /// How long.
        waited: Duration,
        /// The last thing that went wrong with a worker, if anything did.
        last: Option<String>,
    },
    /// The system refused threads or random numbers.
    #[error("the system refused {what}: {reason}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        reason: String,
    },
}
