//! What is measured of links and sessions while they last, for the status report and the line at the end. Nothing here is
//! money: what is paid for is counted by the books.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kvasir_link::HubSender;
use kvasir_wire::{
    frame::{Header, Lane},
    id::SessionId,
    key::PublicKey,
    ticket::Role,
};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{Hub, metrics::HubMetrics, status::SessionReport};

/// The first ping comes after this part of the time between two of them, which is the silence after which links ping.
const FIRST_PING: u32 = 5;
/// How long an answer is awaited: longer than a link that says nothing is kept, so that liveness has the say.
const PONG_TIME: Duration = Duration::from_secs(60);

/// The latest round trip to a link's holder. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundTrip(Arc<AtomicU64>);

impl RoundTrip {
    /// Pings the holder now and then, until its link ends.
    pub(super) fn watch(sender: &HubSender, peer: Role, hub: &Hub) -> Self {
        let round_trip = RoundTrip::default();
        let (latest, sender, metrics) = (round_trip.clone(), sender.clone(), hub.metrics.clone());
        let interval = hub.link.ping_after;
        tokio::spawn(async move {
            let standing = sender.standing();
            let mut pause = interval / FIRST_PING;
            loop {
                tokio::select! {
                    _ = sender.ended() => return,
                    () = sleep(pause) => {}
                }
                pause = interval;
                let before = *standing.borrow();
                if !before.is_whole {
                    continue;
                }
                let Ok(time) = sender.round_trip(PONG_TIME).await else { return };
                // A ping that another connection had to bring measures no path.
                if *standing.borrow() == before {
                    metrics.round_trip(peer, time.as_secs_f64());
                    latest.set(time);
                }
            }
        });
        round_trip
    }

    /// The latest, in microseconds; absent while none was measured.
    pub(super) fn micros(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|micros| *micros > 0)
    }

    fn set(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        self.0.store(micros, Ordering::Relaxed);
    }
}

/// Payload bytes by lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LaneBytes {
    /// Credit, liveness and the like.
    pub control: u64,
    /// Calls and results.
    pub dispatch: u64,
    /// Expert blobs.
    pub bulk: u64,
}

impl LaneBytes {
    /// What these headers announce.
    pub(super) fn of(headers: &[Header]) -> Self {
        let mut bytes = LaneBytes::default();
        for header in headers {
            let lane = match header.lane() {
                Lane::Control => &mut bytes.control,
                Lane::Dispatch => &mut bytes.dispatch,
                Lane::Bulk => &mut bytes.bulk,
            };
            *lane += u64::from(header.length);
        }
        bytes
    }

    /// All lanes together.
    pub fn sum(&self) -> u64 {
        self.control.saturating_add(self.dispatch).saturating_add(self.bulk)
    }

    fn lanes(&self) -> [(Lane, u64); 3] {
        [(Lane::Control, self.control), (Lane::Dispatch, self.dispatch), (Lane::Bulk, self.bulk)]
    }
}

/// What is measured of one session.
#[derive(Debug)]
pub(super) struct SessionMeter {
    pub(super) session: SessionId,
    pub(super) backbone: PublicKey,
    /// Unix seconds at which it began.
    pub(super) began: u64,
    /// How long its worker had waited for it.
    pub(super) waited: Duration,
    worker_round_trip: RoundTrip,
    backbone_round_trip: RoundTrip,
    metrics: Arc<HubMetrics>,
    start: Instant,
    /// Toward the worker, toward the backbone: bytes by lane.
    lanes: [[AtomicU64; 3]; 2],
    stalls: AtomicU64,
    stalled_micros: AtomicU64,
    resumed: AtomicU64,
    bulk_connections: AtomicU64,
}

impl SessionMeter {
    /// A meter for a session that begins at `began`, in unix seconds.
    pub(super) fn new(
        session: SessionId,
        backbone: PublicKey,
        began: u64,
        waited: Duration,
        round_trips: (RoundTrip, RoundTrip),
        metrics: Arc<HubMetrics>,
    ) -> Self {
        let (worker_round_trip, backbone_round_trip) = round_trips;
        metrics.waited.inc_by(waited.as_secs_f64());
        SessionMeter {
            session,
            backbone,
            began,
            waited,
            worker_round_trip,
            backbone_round_trip,
            metrics,
            start: Instant::now(),
            lanes: Default::default(),
            stalls: AtomicU64::new(0),
            stalled_micros: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            bulk_connections: AtomicU64::new(0),
        }
    }

    /// A message was passed on to an end.
    pub(super) fn passed(&self, to: Role, bytes: LaneBytes) {
        for (lane, bytes) in bytes.lanes().into_iter().filter(|(_, bytes)| *bytes > 0) {
            self.lanes[index(to)][usize::from(lane.number())].fetch_add(bytes, Ordering::Relaxed);
            self.metrics.passed(to, lane, bytes);
        }
    }

    /// A message had to wait this long since the end that it was for took no more.
    pub(super) fn stalled(&self, to: Role, time: Duration) {
        self.stalls.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.stalled_micros.fetch_add(micros, Ordering::Relaxed);
        self.metrics.stalled(to, time.as_secs_f64());
    }

    /// An end came back over another connection.
    pub(super) fn resumed_by(&self, end: Role) {
        self.resumed.fetch_add(1, Ordering::Relaxed);
        self.metrics.resumed(end);
    }

    /// How often an end has come back over another connection.
    pub(super) fn resumed(&self) -> u64 {
        self.resumed.load(Ordering::Relaxed)
    }

    /// The worker came with a second connection for bulk.
    pub(super) fn bulk_connection(&self) {
        self.bulk_connections.fetch_add(1, Ordering::Relaxed);
        self.metrics.bulk_connections.inc();
    }

    /// How many second connections the worker has opened for bulk.
    pub(super) fn bulk_connections(&self) -> u64 {
        self.bulk_connections.load(Ordering::Relaxed)
    }

    /// Payload bytes passed on to an end so far.
    pub(super) fn bytes(&self, to: Role) -> LaneBytes {
        let [control, dispatch, bulk] =
            std::array::from_fn(|lane| self.lanes[index(to)][lane].load(Ordering::Relaxed));
        LaneBytes { control, dispatch, bulk }
    }

    /// Messages that had to wait so far, and how long in all, in milliseconds.
    pub(super) fn stalls(&self) -> (u64, u64) {
        (self.stalls.load(Ordering::Relaxed), self.stalled_micros.load(Ordering::Relaxed) / 1_000)
    }

    /// Whole seconds since it began.
    pub(super) fn seconds(&self) -> u64 {
        self.start.elapsed().as_secs()
    }

    /// The session in the status report; `worker` is its worker's key.
    pub(super) fn report(&self, worker: String) -> SessionReport {
        let (stalls, stalled_ms) = self.stalls();
        SessionReport {
            session: self.session.to_string(),
            worker,
            backbone: self.backbone.to_string(),
            began: self.began,
            seconds: self.seconds(),
            worker_round_trip_us: self.worker_round_trip.micros(),
            backbone_round_trip_us: self.backbone_round_trip.micros(),
            to_worker: self.bytes(Role::Worker),
            to_backbone: self.bytes(Role::Backbone),
            stalls,
            stalled_ms,
            resumed: self.resumed(),
            bulk_connections: self.bulk_connections(),
        }
    }
}

fn index(to: Role) -> usize {
    usize::from(to == Role::Backbone)
}

#[cfg(test)]
mod tests {
    use kvasir_wire::{frame::Kind, key::SecretKey};

    use super::*;

    #[test]
    fn bytes_are_counted_by_direction_and_lane_and_stalls_by_direction() {
        let metrics = HubMetrics::new();
        let key = SecretKey::from_seed([1; 32]).public();
        let meter = SessionMeter::new(
            SessionId([7; 32]),
            key,
            1_800_000_000,
            Duration::from_millis(2_500),
            Default::default(),
            metrics.clone(),
        );
        let header = |kind, length| Header { kind, more: false, length, stream: 1, sequence: 0 };
        meter.passed(Role::Worker, LaneBytes::of(&[header(Kind::Call, 100), header(Kind::Call, 11)]));
        meter.passed(Role::Backbone, LaneBytes::of(&[header(Kind::Result, 7), header(Kind::Credit, 5)]));
        meter.passed(Role::Worker, LaneBytes::of(&[header(Kind::Chunk, 16_000)]));
        meter.stalled(Role::Worker, Duration::from_millis(30));
        assert_eq!(meter.bytes(Role::Worker), LaneBytes { control: 0, dispatch: 111, bulk: 16_000 });
        assert_eq!(meter.bytes(Role::Backbone), LaneBytes { control: 5, dispatch: 7, bulk: 0 });
        assert_eq!(meter.bytes(Role::Worker).sum(), 16_111);
        assert_eq!(meter.stalls(), (1, 30));
        meter.resumed_by(Role::Worker);
        assert_eq!(meter.resumed(), 1);
        meter.bulk_connection();
        assert_eq!(meter.bulk_connections(), 1);
        metrics.round_trip(Role::Worker, 0.013);
        let text = metrics.text(&Default::default());
        for line in [
            "kvasir_gateway_bytes_total{direction=\"to_worker\",lane=\"dispatch\"} 111",
            "kvasir_gateway_bytes_total{direction=\"to_backbone\",lane=\"control\"} 5",
            "kvasir_gateway_stalls_total{direction=\"to_worker\"} 1",
            "kvasir_gateway_stalls_total{direction=\"to_backbone\"} 0",
            "kvasir_gateway_sessions_resumed_total{peer=\"worker\"} 1",
            "kvasir_gateway_sessions_resumed_total{peer=\"backbone\"} 0",
            "kvasir_gateway_bulk_connections_total 1",
            "kvasir_gateway_waited_seconds_total 2.5",
            "kvasir_gateway_round_trip_seconds_bucket{peer=\"worker\",le=\"0.02\"} 1",
            "kvasir_gateway_round_trip_seconds_count{peer=\"worker\"} 1",
            "kvasir_gateway_workers_waiting 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
        assert!(!text.contains(&key.to_string()[8..]), "no key is a label");
    }
}
