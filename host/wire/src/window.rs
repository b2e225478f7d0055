//! How much bulk may be on its way: a window that follows the link, so that a weight download fills it and a dispatch frame
//! finds it all but empty.
//!
//! A relay that does not parse cannot let a dispatch frame overtake, so whatever bulk stands in the buffers on the way is
//! waiting time for dispatch. The receiver therefore grants no more than the path holds: delivered rate times round trip,
//! and a few milliseconds of queue to keep it busy. Round trips come from pings on the control lane, which pass the same
//! buffers as bulk; the smallest one seen is the path, what is above it is queue.
//!
//! A pure state machine: times are passed in, as the time since the link began.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::{
    HEADER_BYTES, MAX_BULK_PAYLOAD_BYTES, MAX_BULK_WINDOW_BYTES, MIN_BULK_WINDOW_BYTES,
    START_BULK_WINDOW_BYTES,
};

/// Queue beyond which the window shrinks.
pub const QUEUE_LIMIT: Duration = Duration::from_millis(5);
/// Time between two pings while bulk arrives. A ping and its answer are some 200 bytes, so 80 kbit/s.
pub const PING_INTERVAL: Duration = Duration::from_millis(20);
/// Pings that may be unanswered at one time.
const MAX_PINGS: usize = 16;
/// A ping without an answer for so long never gets one: the other side drops answers that it cannot send.
const LOST_AFTER: Duration = Duration::from_secs(10);
/// The window is used in whole frames: one may always be missing.
const FRAME_BYTES: u64 = (HEADER_BYTES + MAX_BULK_PAYLOAD_BYTES) as u64;
/// Least time over which a rate is measured: 15 chunks at 20 Mbit/s.
const ROUND: Duration = Duration::from_millis(100);
/// Round trips older than this, and than one of them, say nothing about the queue now.
const SAMPLE_AGE: Duration = Duration::from_millis(100);
/// A shorter path counts as this long: below it the scheduling of processes decides, not the path.
const LEAST_PATH: Duration = Duration::from_millis(4);
/// A pause of bulk after which a rate is measured anew.
const PAUSE: Duration = Duration::from_secs(1);
/// After so long the window is made smaller for a moment: bulk that never pauses would hide for ever that the path has become
/// shorter.
const PROBE_AFTER: Duration = Duration::from_secs(10);
/// By so much, in time: so much shorter a path may be found at once, and so much is let go at once afterwards.
const PROBE_DEPTH: Duration = Duration::from_millis(10);
/// After a queue that the window cannot have made has stood for so long, the path has become longer.
const LONGER_AFTER: Duration = Duration::from_secs(2);

/// The window of one receiver, in bytes of credit.
#[derive(Debug, Clone)]
pub struct BulkWindow {
    /// What the path is thought to hold.
    bytes: u64,
    /// Rounds without a queue since the last one with; `None`: there was none yet.
    calm: Option<u32>,
    path: Option<Path>,
    samples: VecDeque<Sample>,
    pings: VecDeque<Ping>,
    last_ping: Option<Duration>,
    round: Option<Round>,
    /// The fastest round so far on this path, bytes/s.
    fastest: u64,
    crowded_since: Option<Duration>,
    probe: Option<Probe>,
}

impl Default for BulkWindow {
    fn default() -> Self {
        BulkWindow {
            bytes: START_BULK_WINDOW_BYTES,
            calm: None,
            path: None,
            samples: VecDeque::new(),
            pings: VecDeque::new(),
            last_ping: None,
            round: None,
            fastest: 0,
            crowded_since: None,
            probe: None,
        }
    }
}

impl BulkWindow {
    /// Bytes that may be on their way now.
    pub fn bytes(&self) -> u64 {
        match self.probe {
            Some(probe) => probe.bytes,
            None => self.bytes,
        }
    }

    /// The smallest round trip seen on this path.
    pub fn path(&self) -> Option<Duration> {
        self.path.map(|path| path.round_trip)
    }

    /// Whether a ping should be sent now; asked when bulk was taken.
    pub fn ping_due(&mut self, now: Duration) -> bool {
        while self.pings.front().is_some_and(|ping| now.saturating_sub(ping.sent) > LOST_AFTER) {
            self.pings.pop_front();
        }
        self.pings.len() < MAX_PINGS
            && self.last_ping.is_none_or(|last| now.saturating_sub(last) >= PING_INTERVAL)
    }

    /// A ping with this number was sent.
    pub fn pinged(&mut self, number: u64, now: Duration) {
        if self.pings.len() < MAX_PINGS {
            self.pings.push_back(Ping { number, sent: now });
            self.last_ping = Some(now);
        }
    }

    /// An answer came; false if the number is not one of this window's pings. Pings are answered in order, so older ones
    /// that are still open never will be.
    pub fn answered(&mut self, number: u64, now: Duration) -> bool {
        let Some(place) = self.pings.iter().position(|ping| ping.number == number) else { return false };
        let sent = self.pings[place].sent;
        self.pings.drain(..=place);
        let round_trip = now.saturating_sub(sent);
        if self.path().is_none_or(|known| round_trip < known) {
            let seen = self.path.map_or(now, |path| path.seen);
            self.path = Some(Path { round_trip, seen });
        }
        self.samples.push_back(Sample { at: now, round_trip });
        self.forget_old_samples(now);
        true
    }

    /// Bytes that the fastest round so far brought in a time; no bound before there was one.
    pub fn brought_in(&self, time: Duration) -> u64 {
        if self.fastest == 0 { u64::MAX } else { over(self.fastest, time) }
    }

    /// Bytes of another lane came the same way: the path brought them too.
    pub fn passed(&mut self, cost: u64) {
        if let Some(round) = &mut self.round {
            round.bytes += cost;
        }
    }

    /// The application took bulk that cost this many bytes of credit.
    pub fn taken(&mut self, cost: u64, now: Duration) {
        self.forget_old_samples(now);
        if self.probe.is_some_and(|probe| now >= probe.until) {
            self.probe = None;
            self.path = self.path.map(|path| Path { seen: now, ..path });
            self.round = None;
        }
        let length = self.path().map_or(ROUND, |path| path.max(ROUND));
        match &mut self.round {
            Some(round) if now.saturating_sub(round.last) < PAUSE => {
                round.bytes += cost;
                round.last = now;
                let lasted = now.saturating_sub(round.began);
                if lasted >= length {
                    let rate = per_second(round.bytes, lasted);
                    self.round = Some(Round { began: now, last: now, bytes: 0 });
                    self.adapt(rate, now);
                }
            }
            // The first bytes after a pause only start the clock.
            round => *round = Some(Round { began: now, last: now, bytes: 0 }),
        }
    }

    /// One round has ended, in which bulk was taken at `rate` bytes/s.
    fn adapt(&mut self, rate: u64, now: Duration) {
        let (Some(path), Some(current)) = (self.path, self.current(now)) else { return };
        // A sender that has less to send than it may says nothing about the path.
        if self.probe.is_some() || over(rate, current) < self.bytes / 2 {
            return;
        }
        self.fastest = self.fastest.max(rate);
        let queue = current.saturating_sub(path.round_trip);
        if queue > QUEUE_LIMIT {
            self.calm = Some(0);
            let fitting = over(rate, path.round_trip + QUEUE_LIMIT / 2) + FRAME_BYTES;
            // Where TCP mends a loss nothing is delivered for a round trip: that is no slower link, and a window that believed it would
            // take seconds to grow again. A link that is slower indeed has its window within a few rounds.
            self.resize(self.bytes.min(fitting.max(self.bytes / 4 * 3)));
            self.look_for_a_longer_path(current, path, rate, now);
            return;
        }
        self.crowded_since = None;
        if now.saturating_sub(path.seen) >= PROBE_AFTER {
            let less = self.bytes.saturating_sub(over(rate, PROBE_DEPTH)).max(self.bytes / 2);
            let until = now + 2 * current + 2 * PING_INTERVAL;
            self.probe = Some(Probe { until, bytes: less.max(MIN_BULK_WINDOW_BYTES) });
            return;
        }
        if queue > QUEUE_LIMIT / 2 {
            self.calm = Some(0);
            return;
        }
        self.calm = self.calm.map(|calm| calm + 1);
        // Once a queue was met the step that may meet it again is small, and grows as long as none comes. Round trips of a busy
        // machine tremble by milliseconds, so the least step is what 100 ms of path bear.
        let step = self.calm.map(|calm| over(rate, QUEUE_LIMIT / 8 * calm).max(self.bytes / 32));
        let more = step.unwrap_or(u64::MAX).min(self.bytes / 4);
        let most = over(rate, path.round_trip.max(LEAST_PATH)) * 5 / 4 + 2 * FRAME_BYTES;
        self.resize((self.bytes + more).min(most.max(self.bytes)));
    }

    /// The window at the fastest rate is a round trip that it may make by itself; more than that for a while is a longer path.
    /// Where it is a slower link instead, the mistake costs one [`QUEUE_LIMIT`] more.
    fn look_for_a_longer_path(&mut self, current: Duration, path: Path, rate: u64, now: Duration) {
        let own = Duration::from_micros(self.bytes * 1_000_000 / self.fastest.max(1));
        if current <= path.round_trip.max(own) + QUEUE_LIMIT {
            self.crowded_since = None;
            return;
        }
        let since = *self.crowded_since.get_or_insert(now);
        if now.saturating_sub(since) >= LONGER_AFTER {
            self.path = Some(Path { round_trip: current, seen: now });
            self.fastest = rate;
            self.crowded_since = None;
        }
    }

    /// The round trip now: the smallest of the last ones, since a queue that stands is in all of them and a burst is not;
    /// without any, what the oldest open ping has waited already.
    fn current(&self, now: Duration) -> Option<Duration> {
        if let Some(smallest) = self.samples.iter().map(|sample| sample.round_trip).min() {
            return Some(smallest);
        }
        let waited = now.saturating_sub(self.pings.front()?.sent);
        (waited > self.path()?).then_some(waited)
    }

    fn forget_old_samples(&mut self, now: Duration) {
        let most = self.path().map_or(SAMPLE_AGE, |path| path.max(SAMPLE_AGE));
        while self.samples.front().is_some_and(|sample| now.saturating_sub(sample.at) > most) {
            self.samples.pop_front();
        }
    }

    fn resize(&mut self, bytes: u64) {
        self.bytes = bytes.clamp(MIN_BULK_WINDOW_BYTES, MAX_BULK_WINDOW_BYTES);
    }
}

/// The path as it is without a queue.
#[derive(Debug, Clone, Copy)]
struct Path {
    round_trip: Duration,
    /// When it was last looked for without bulk before it.
    seen: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Duration,
    round_trip: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Ping {
    number: u64,
    sent: Duration,
}

/// A smaller window for a moment.
#[derive(Debug, Clone, Copy)]
struct Probe {
    until: Duration,
    bytes: u64,
}

/// What was taken since the last adaptation.
#[derive(Debug, Clone, Copy)]
struct Round {
    began: Duration,
    last: Duration,
    bytes: u64,
}

/// Bytes/s of so many bytes in a time.
fn per_second(bytes: u64, time: Duration) -> u64 {
    let micros = time.as_micros().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000 / micros).unwrap_or(u64::MAX)
}

/// Bytes that a rate of so many bytes/s moves in a time; saturates well above any window.
fn over(rate: u64, time: Duration) -> u64 {
    let bytes = u128::from(rate).saturating_mul(time.as_micros()) / 1_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX).min(1 << 40)
}
