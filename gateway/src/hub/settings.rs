//! What may change while a hub serves. It holds for connections that come after the change; nothing that is open is touched.

use std::sync::Arc;

use super::HubOptions;
use crate::{
    accept::{AcceptLimits, SharedLimits},
    edge::{Gate, SlotLimits},
};

/// What may change.
#[derive(Clone, Copy, Debug)]
pub struct HubSettings {
    /// How fast connections are accepted, and for how many descriptors.
    pub accept: AcceptLimits,
    /// Most connections.
    pub connections: usize,
}

impl HubOptions {
    /// These options with other settings.
    pub fn with(self, settings: HubSettings) -> Self {
        let HubSettings { accept, connections } = settings;
        HubOptions { accept, connections, ..self }
    }
}

/// Changes a hub that serves.
#[derive(Clone, Debug)]
pub struct HubControl {
    gate: Arc<Gate>,
    accept: SharedLimits,
}

impl HubControl {
    pub(super) fn new(gate: Arc<Gate>, accept: SharedLimits) -> Self {
        HubControl { gate, accept }
    }

    /// From now on these hold, for newcomers.
    pub fn change(&self, settings: HubSettings) {
        self.accept.set(settings.accept);
        self.gate.change(slots(settings.connections));
    }
}

/// The caps of a hub. Every worker comes from an edge's address, so the caps for one address are the caps for all, and nobody is
/// turned away for them: the oldest connection that has shown no ticket makes room.
pub(super) fn slots(connections: usize) -> SlotLimits {
    let limits = SlotLimits::default();
    SlotLimits {
        connections,
        per_address: connections,
        unauthenticated_per_address: limits.unauthenticated,
        ..limits
    }
}
