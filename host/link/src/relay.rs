//! Messages that the hub passes on: a short queue in which bulk lets everything else go first.

use std::collections::VecDeque;

use kvasir_wire::frame::{Header, Lane};
use kvasir_wire::limits::MAX_MESSAGE_BYTES;
use tokio_tungstenite::tungstenite::Bytes;

/// A whole message for the other end, with its headers.
#[derive(Debug)]
pub struct Relay {
    pub(crate) bytes: Bytes,
    /// The headers of its frames, for the meter.
    pub headers: Vec<Header>,
}

impl Relay {
    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Never: a message without a frame is an error.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether there is a bulk frame in it, and whether there is another.
    fn lanes(&self) -> (bool, bool) {
        let bulk = self.headers.iter().filter(|header| header.lane() == Lane::Bulk).count();
        (bulk > 0, bulk < self.headers.len())
    }
}

/// What waits to be written.
///
/// A stream has one lane, so messages without bulk may overtake messages of bulk alone and every stream stays in order. One
/// that holds both, which only older ends send, overtakes nothing and is overtaken by nothing.
#[derive(Debug, Default)]
pub(crate) struct RelayQueue {
    waiting: VecDeque<Waiting>,
    bytes: usize,
}

/// Bytes that the hub queues: two messages, so that a slow reader slows the writer and not the hub's memory.
const LIMIT_BYTES: usize = 2 * MAX_MESSAGE_BYTES;

#[derive(Debug)]
struct Waiting {
    message: Bytes,
    only_bulk: bool,
}

impl RelayQueue {
    pub(crate) fn has_room(&self, relay: &Relay) -> bool {
        self.waiting.is_empty() || self.bytes + relay.len() <= LIMIT_BYTES
    }

    pub(crate) fn push(&mut self, relay: Relay) {
        let (bulk, others) = relay.lanes();
        let place = match bulk {
            true => self.waiting.len(),
            false => self.waiting.iter().rposition(|waiting| !waiting.only_bulk).map_or(0, |last| last + 1),
        };
        self.bytes += relay.len();
        self.waiting.insert(place, Waiting { message: relay.bytes, only_bulk: bulk && !others });
    }

    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let message = self.waiting.pop_front()?.message;
        self.bytes -= message.len();
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_wire::frame::{Kind, PAIR_STREAM};

    /// A message of these kinds whose first byte is its number.
    fn relay(number: u8, kinds: &[Kind]) -> Relay {
        let stream = |kind: Kind| match kind.lane() {
            Lane::Control => PAIR_STREAM,
            Lane::Dispatch => 2,
            Lane::Bulk => 3,
        };
        let header = |kind| Header { kind, more: false, length: 0, stream: stream(kind), sequence: 0 };
        let headers = kinds.iter().map(|kind| header(*kind)).collect();
        Relay { bytes: vec![number; 1000].into(), headers }
    }

    fn order(messages: &[&[Kind]]) -> Vec<u8> {
        let mut queue = RelayQueue::default();
        for (number, kinds) in messages.iter().enumerate() {
            queue.push(relay(number as u8, kinds));
        }
        let order = std::iter::from_fn(|| queue.pop()).map(|message| message[0]).collect();
        assert_eq!(queue.bytes, 0);
        order
    }

    #[test]
    fn bulk_lets_the_other_lanes_go_first_and_nothing_else_changes_place() {
        use Kind::{Call, Cancel, Chunk, Ping};
        assert_eq!(order(&[&[Chunk], &[Call], &[Chunk], &[Ping, Cancel]]), [1, 3, 0, 2]);
        assert_eq!(order(&[&[Call], &[Chunk], &[Call]]), [0, 2, 1]);
        // Its ping must not fall behind a later one, nor its chunk come before an earlier one.
        assert_eq!(order(&[&[Chunk], &[Ping, Chunk], &[Ping], &[Chunk]]), [0, 1, 2, 3]);
    }

    #[test]
    fn two_full_messages_may_wait_and_an_empty_queue_takes_any() {
        let mut queue = RelayQueue::default();
        let full = || Relay { bytes: vec![0; MAX_MESSAGE_BYTES].into(), headers: Vec::new() };
        for _ in 0..2 {
            assert!(queue.has_room(&full()));
            queue.push(full());
        }
        assert!(!queue.has_room(&full()));
        queue.pop();
        assert!(queue.has_room(&full()));
    }
}
