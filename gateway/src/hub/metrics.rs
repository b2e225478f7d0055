//! What the hub counts for Prometheus.

use std::sync::{Arc, atomic::AtomicU64};

use kvasir_wire::{frame::Lane, ticket::Role};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};

use super::status::Status;
use crate::metrics::{DoorMetrics, Label, Register, gauge};

/// Upper bounds of the round trip's buckets, in seconds: a LAN, a city, a continent, an ocean, a busy phone.
const ROUND_TRIPS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 1.0, 5.0];

/// A counter of seconds.
type Seconds = Counter<f64, AtomicU64>;

/// The hub's figures.
#[derive(Debug)]
pub(super) struct HubMetrics {
    register: Register,
    /// What every door counts.
    pub(super) door: DoorMetrics,
    /// Toward workers, toward backbones.
    ends: [EndMetrics; 2],
    /// Seconds that workers waited for the sessions that began.
    pub(super) waited: Seconds,
    /// Second connections that workers came with, for bulk.
    pub(super) bulk_connections: Counter,
    backbones: Gauge,
    waiting: Gauge,
    spooled: Gauge,
    postponed: Gauge,
    ledger_refused: Gauge,
}

/// What is counted for one kind of end.
#[derive(Clone, Debug)]
struct EndMetrics {
    /// Payload bytes passed on to such an end, by lane.
    bytes: [Counter; 3],
    /// Messages that had to wait since such an end took no more, and how long in all.
    stalls: Counter,
    stalled: Seconds,
    /// Times that such an end came back over another connection.
    resumed: Counter,
    round_trip: Histogram,
}

impl HubMetrics {
    pub(super) fn new() -> Arc<Self> {
        let mut register = Register::new();
        let door = DoorMetrics::new(&mut register);
        let bytes: Family<[(&'static str, &'static str); 2], Counter> = register.add(
            "bytes",
            "Payload bytes passed on, frame headers left out, by direction and lane",
            Family::default(),
        );
        let stalls: Family<Label, Counter> = register.add(
            "stalls",
            "Messages that waited since the end that they were for took no more",
            Family::default(),
        );
        let stalled: Family<Label, Seconds> = register.add(
            "stalled_seconds",
            "How long messages waited since the end that they were for took no more",
            Family::default(),
        );
        let resumed: Family<Label, Counter> = register.add(
            "sessions_resumed",
            "Times that an end of a session came back over another connection, by the end",
            Family::default(),
        );
        let round_trip: Family<Label, Histogram, fn() -> Histogram> = register.add(
            "round_trip_seconds",
            "Round trip of a ping from the hub to an end, by the end",
            Family::<Label, Histogram, fn() -> Histogram>::new_with_constructor(|| {
                Histogram::new(ROUND_TRIPS)
            }),
        );
        let ends =
            [("to_worker", "worker"), ("to_backbone", "backbone")].map(|(direction, peer)| EndMetrics {
                bytes: Lane::ALL.map(|lane| {
                    bytes.get_or_create_owned(&[("direction", direction), ("lane", lane_name(lane))])
                }),
                stalls: stalls.get_or_create_owned(&[("direction", direction)]),
                stalled: stalled.get_or_create_owned(&[("direction", direction)]),
                resumed: resumed.get_or_create_owned(&[("peer", peer)]),
                round_trip: round_trip.get_or_create_owned(&[("peer", peer)]),
            });
        let waited = register.add(
            "waited_seconds",
            "How long workers waited from their admission to the sessions that began",
            Seconds::default(),
        );
        let bulk_connections = register.add(
            "bulk_connections",
            "Second connections that workers came with, for the bulk of their sessions",
            Counter::default(),
        );
        let mut one = |name, help| register.add(name, help, Gauge::default());
        let backbones = one("backbones", "Backbones connected now");
        let waiting = one("workers_waiting", "Workers that wait for a backbone now");
        let spooled = one("receipts_spooled", "Receipts that the ledger does not have yet");
        let postponed = one("receipts_postponed", "Receipts that the ledger takes only once somebody acts");
        let ledger_refused =
            one("receipts_refused", "Receipts that the ledger refused for good since the start");
        Arc::new(HubMetrics {
            register,
            door,
            ends,
            waited,
            bulk_connections,
            backbones,
            waiting,
            spooled,
            postponed,
            ledger_refused,
        })
    }

    /// All figures as text; what is not counted as it happens is taken from the report.
    pub(super) fn text(&self, status: &Status) -> String {
        self.backbones.set(gauge(status.backbones.len() as u64));
        self.waiting.set(gauge(status.waiting.len() as u64));
        self.spooled.set(gauge(status.receipts_in_spool as u64));
        self.postponed.set(gauge(status.receipts_postponed as u64));
        self.ledger_refused.set(gauge(status.receipts_refused as u64));
        self.register.text()
    }

    /// Payload bytes were passed on to an end.
    pub(super) fn passed(&self, to: Role, lane: Lane, bytes: u64) {
        self.end(to).bytes[usize::from(lane.number())].inc_by(bytes);
    }

    /// A message waited this long for an end.
    pub(super) fn stalled(&self, to: Role, seconds: f64) {
        self.end(to).stalls.inc();
        self.end(to).stalled.inc_by(seconds);
    }

    /// An end of a session came back over another connection.
    pub(super) fn resumed(&self, end: Role) {
        self.end(end).resumed.inc();
    }

    /// A ping came back.
    pub(super) fn round_trip(&self, peer: Role, seconds: f64) {
        self.end(peer).round_trip.observe(seconds);
    }

    fn end(&self, role: Role) -> &EndMetrics {
        &self.ends[usize::from(role == Role::Backbone)]
    }
}

/// A lane's name in reports.
pub(super) const fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Control => "control",
        Lane::Dispatch => "dispatch",
        Lane::Bulk => "bulk",
    }
}
