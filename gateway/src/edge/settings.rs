//! What may change while an edge serves. It holds for connections that come after the change; nothing that is open is touched.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use super::{EdgeOptions, Shared, SlotLimits, pass_through::Routes, trusted::TrustedPeers};
use crate::accept::AcceptLimits;

/// How long sessions may go on once another process has taken the socket over: a worker's session is cut only for good reason,
/// and an old release must not stay for ever.
pub const HAND_OVER_TIME: Duration = Duration::from_secs(60 * 60);

/// What may change.
#[derive(Clone, Debug)]
pub struct EdgeSettings {
    /// How fast connections are accepted, and for how many descriptors.
    pub accept: AcceptLimits,
    /// Caps on connections.
    pub slots: SlotLimits,
    /// Proxies that speak HTTP and whose `X-Forwarded-For` is believed.
    pub trusted_peers: TrustedPeers,
    /// Proxies that pass TCP on and send a PROXY header in front of every connection.
    pub proxy_protocol_peers: TrustedPeers,
    /// Names whose connections go to backends, their TLS as it is.
    pub pass_through: Routes,
}

impl EdgeOptions {
    /// These options with other settings.
    pub fn with(self, settings: EdgeSettings) -> Self {
        let EdgeSettings { accept, slots, trusted_peers, proxy_protocol_peers, pass_through } = settings;
        EdgeOptions { accept, slots, trusted_peers, proxy_protocol_peers, pass_through, ..self }
    }
}

/// Changes an edge that serves.
#[derive(Clone, Debug)]
pub struct EdgeControl(Arc<Shared>);

impl EdgeControl {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        EdgeControl(shared)
    }

    /// From now on these hold, for newcomers.
    pub fn change(&self, settings: EdgeSettings) {
        let EdgeSettings { accept, slots, trusted_peers, proxy_protocol_peers, pass_through } = settings;
        self.0.accept.set(accept);
        self.0.gate.change(slots);
        *self.0.trusted_peers.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(trusted_peers);
        *self.0.proxy_protocol_peers.write().unwrap_or_else(PoisonError::into_inner) =
            Arc::new(proxy_protocol_peers);
        *self.0.pass_through.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(pass_through);
    }

    /// How long sessions may go on once it is stopped; for a stop that has not come yet.
    pub fn set_drain_time(&self, drain_time: Duration) {
        *self.0.drain_time.lock().unwrap_or_else(PoisonError::into_inner) = drain_time;
    }
}
