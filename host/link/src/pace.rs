//! How fast the hub reads a worker that says more small things than its work asks for.
//!
//! Calls, results and bulk are bounded by credit, and by the end that takes them. What else comes - pings, WebSocket's own, grants,
//! acknowledgements, frames of a few bytes - is bounded by the line alone, and a message of it costs the hub as much as one of calls does.
//! So it is counted, in steps. A worker has so many a second, and more for each frame of a call or of bulk that is passed on to it and for
//! each expert that is assigned to it, since that is what an honest one answers: a chunk with a grant, a `have`, the next `want` and a part
//! of an acknowledgement, a call with its result. Thousands of calls a second and a download as fast as the line use none of what time
//! brings.
//!
//! A worker that has used its steps up is not read until time has brought what it owes: [`LONGEST_REST`] at most for one message. Its
//! messages wait in the connection meanwhile, and then at the worker. Nothing else happens to it.

use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use kvasir_wire::frame::{Header, Lane};
use kvasir_wire::limits::{HEADER_BYTES, MAX_MESSAGE_BYTES};
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::tungstenite::{Error, Message};

/// Steps that a worker's link has each second, and at its beginning. As messages of their own they are about a hundredth of a processor's
/// time, of the hub as of the edge; an honest worker without work needs one message in 15 seconds.
pub const STEPS_PER_SECOND: u64 = 10_000;

/// Steps of a message that carries next to nothing: it wakes a task, and its answer is written by itself.
pub const STEPS_OF_A_MESSAGE: u64 = 10;

/// Steps that a frame of a call or of bulk earns which is passed on to the worker, and an expert that is assigned to it. A chunk is answered
/// by a grant, at the end of an expert by a `have` and another `want`, and by a quarter of an acknowledgement, which are 36 where each is a
/// message of its own.
pub const STEPS_EARNED_BY_A_FRAME: u64 = 64;

/// Steps that may be saved up of those. The answers to all calls that may be open, 4,096, are 45,056 as messages of their own; those to a
/// full window of bulk are 18,432.
pub const MOST_STEPS_SAVED: u64 = 131_072;

/// The longest time for which one message has its link not read: it is full of frames without a payload.
pub const LONGEST_REST: Duration =
    Duration::from_nanos(((MAX_MESSAGE_BYTES / HEADER_BYTES) as u64 + STEPS_OF_A_MESSAGE) * STEP_NANOS);

/// What a step is worth in time.
const STEP_NANOS: u64 = 1_000_000_000 / STEPS_PER_SECOND;
/// Payload bytes below which a frame of a call or of bulk counts as a small one, and what a message carries as next to nothing.
pub(crate) const LITTLE: u64 = 4 * 1024;
/// A frame of the control lane counts once more for each so many bytes of its payload: what is longer than that is rare there.
const CONTROL_BYTES_OF_A_STEP: u64 = 1024;
/// Less than this is not waited for.
const SHORTEST_REST: Duration = Duration::from_millis(1);
/// What time alone saves up.
const RESTED: i64 = nanos_of(STEPS_PER_SECOND);
/// What can be saved up at all.
const MOST: i64 = nanos_of(MOST_STEPS_SAVED);

/// The steps of a message with these frames.
pub(crate) fn steps_of(headers: &[Header]) -> u64 {
    let (mut steps, mut carried) = (0, 0);
    for header in headers {
        let bytes = u64::from(header.length);
        match header.lane() {
            Lane::Control => steps += 1 + bytes / CONTROL_BYTES_OF_A_STEP,
            Lane::Dispatch | Lane::Bulk => {
                steps += u64::from(bytes < LITTLE);
                carried += bytes;
            }
        }
    }
    if carried < LITTLE { steps + STEPS_OF_A_MESSAGE } else { steps }
}

/// The account of a link's steps, in nanoseconds of what time brings.
#[derive(Debug)]
pub(crate) struct Pace {
    /// What is left; below zero it is owed.
    left: i64,
    latest: Instant,
}

impl Pace {
    /// A second's steps are there.
    pub(crate) fn new(now: Instant) -> Self {
        Pace { left: RESTED, latest: now }
    }

    /// Books `steps`, and those that were earned since it was asked last. Until when nothing is to be read, where something is owed.
    pub(crate) fn spend(&mut self, steps: u64, earned: u64, now: Instant) -> Option<Instant> {
        let passed = now.saturating_duration_since(self.latest);
        self.latest = self.latest.max(now);
        if self.left < RESTED {
            let passed = i64::try_from(passed.as_nanos()).unwrap_or(i64::MAX);
            self.left = self.left.saturating_add(passed).min(RESTED);
        }
        self.left = self.left.saturating_add(nanos_of(earned)).min(MOST).saturating_sub(nanos_of(steps));
        let owed = Duration::from_nanos(self.left.min(0).unsigned_abs());
        (owed >= SHORTEST_REST).then(|| now + owed)
    }
}

/// Waits until then; for ever where nobody rests.
pub(crate) async fn rest(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// Reads on until the other side's close and drops what comes, so that last words are not lost to a reset. `spend` books the steps of
/// that, and says how long to rest: a flood does not become a faster one since it was refused. Nothing here is looked into, so all of it
/// counts as what is on the control lane does.
pub(crate) async fn read_out<T>(stream: &mut T, mut spend: impl FnMut(u64) -> Option<Instant>)
where
    T: Stream<Item = Result<Message, Error>> + Unpin,
{
    while let Some(Ok(message)) = stream.next().await {
        let steps = STEPS_OF_A_MESSAGE + message.len() as u64 / CONTROL_BYTES_OF_A_STEP;
        if let Some(until) = spend(steps) {
            sleep_until(until).await;
        }
    }
}

/// As much time as these steps are worth; saturates far above whatever is booked.
const fn nanos_of(steps: u64) -> i64 {
    let nanos = steps.saturating_mul(STEP_NANOS);
    if nanos > i64::MAX as u64 { i64::MAX } else { nanos as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_wire::frame::{HUB_STREAM, Kind, PAIR_STREAM};

    fn frame(kind: Kind, length: u32) -> Header {
        let stream = match kind.lane() {
            Lane::Control => HUB_STREAM,
            Lane::Dispatch => 2,
            Lane::Bulk => 3,
        };
        Header { kind, more: false, length, stream, sequence: 0 }
    }

    #[test]
    fn what_carries_something_costs_nothing_and_what_is_small_a_step() {
        let rows = frame(Kind::Result, 12 * 1024);
        let ping = Header { stream: PAIR_STREAM, ..frame(Kind::Ping, 8) };
        assert_eq!(steps_of(&[rows]), 0);
        assert_eq!(steps_of(&[ping]), 11);
        assert_eq!(steps_of(&[ping, ping, rows]), 2, "small ones behind rows are no message of their own");
        assert_eq!(steps_of(&[frame(Kind::Result, 100)]), 11);
        assert_eq!(steps_of(&[frame(Kind::Report, 60 * 1024)]), 71);
        let full = vec![frame(Kind::Ping, 8); 2_730];
        assert_eq!(steps_of(&full), 2_740);
    }

    #[test]
    fn who_keeps_to_the_rate_never_rests_and_who_does_not_rests_for_what_it_owes() {
        let began = Instant::now();
        let mut pace = Pace::new(began);
        for second in 0..100 {
            let now = began + Duration::from_secs(second);
            assert_eq!(pace.spend(STEPS_PER_SECOND, 0, now), None);
        }
        let now = began + Duration::from_secs(99);
        assert_eq!(pace.spend(5, 0, now), None, "half a millisecond is not worth it");
        assert_eq!(pace.spend(95, 0, now), Some(now + Duration::from_millis(10)));
        // What was waited for is not owed again.
        let now = now + Duration::from_millis(10);
        assert_eq!(pace.spend(10, 0, now), Some(now + Duration::from_millis(1)));
        // A long time saves up a second's steps and no more.
        let now = now + Duration::from_secs(3_600);
        let most = STEPS_PER_SECOND;
        assert_eq!(pace.spend(most + 1_000, 0, now), Some(now + Duration::from_millis(100)));
    }

    #[test]
    fn what_is_passed_on_earns_up_to_a_limit_and_time_takes_nothing_of_it() {
        let began = Instant::now();
        let mut pace = Pace::new(began);
        assert_eq!(pace.spend(0, 1 << 40, began), None);
        let later = began + Duration::from_secs(3_600);
        assert_eq!(pace.spend(MOST_STEPS_SAVED, 0, later), None, "all that may be saved up");
        assert_eq!(pace.spend(10, 0, later), Some(later + Duration::from_millis(1)));
        assert_eq!(pace.spend(u64::MAX, u64::MAX, later).map(|until| until > later), Some(true));
    }

    #[test]
    fn the_answers_to_all_that_may_be_open_have_been_earned() {
        use kvasir_wire::limits::{MAX_BULK_PAYLOAD_BYTES, MAX_BULK_WINDOW_BYTES, MAX_METERED_CALLS};
        let chunks = MAX_BULK_WINDOW_BYTES / MAX_BULK_PAYLOAD_BYTES as u64;
        let lone = STEPS_OF_A_MESSAGE + 1;
        assert!(MAX_METERED_CALLS as u64 * lone + chunks * STEPS_EARNED_BY_A_FRAME <= MOST_STEPS_SAVED);
        assert!(lone * 3 + lone.div_ceil(4) <= STEPS_EARNED_BY_A_FRAME);
        assert!(LONGEST_REST < Duration::from_millis(500));
    }
}
