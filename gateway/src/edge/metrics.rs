//! What the edge counts. It is blind behind the head, so it counts bytes by direction and knows no lanes.

use std::sync::Arc;

use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

use super::splice::SpliceMeter;
use crate::metrics::{DoorMetrics, Label, Register};

/// The edge's figures.
#[derive(Debug)]
pub(super) struct EdgeMetrics {
    register: Register,
    /// What every door counts.
    pub(super) door: DoorMetrics,
    /// What every splice adds to.
    pub(super) splice: SpliceMeter,
}

impl EdgeMetrics {
    pub(super) fn new() -> Arc<Self> {
        let mut register = Register::new();
        let door = DoorMetrics::new(&mut register);
        let bytes: Family<Label, Counter> =
            register.add("bytes", "Bytes moved, TLS taken off, by direction", Family::default());
        let toward = |direction| bytes.get_or_create_owned(&[("direction", direction)]);
        let splice = SpliceMeter {
            forward: toward("to_hub"),
            backward: toward("to_worker"),
            buffers: register.add(
                "splice_buffer_bytes",
                "Bytes of memory that buffers of sessions take now",
                Gauge::default(),
            ),
        };
        Arc::new(EdgeMetrics { register, door, splice })
    }

    pub(super) fn text(&self) -> String {
        self.register.text()
    }
}
