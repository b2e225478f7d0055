//! Messages that the hub passes on: a short queue in which bulk lets everything else go first.

use std::collections::VecDeque;

use kvasir_wire::frame::{Header, Kind, Lane};
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

    /// Whether it holds bulk and nothing else.
    pub(crate) fn is_bulk_alone(&self) -> bool {
        self.lanes() == (true, false)
    }

    /// Whether it holds bulk and something else, which no end does that has
    /// [`Features::BULK_CONNECTION`](kvasir_wire::handshake::Features::BULK_CONNECTION).
    pub fn is_mixed(&self) -> bool {
        self.lanes() == (true, true)
    }

    /// What in it the end that it is for answers: frames of calls and bulk, and experts that are assigned.
    pub(crate) fn answerable(&self) -> u64 {
        let answers = |header: &Header| match (header.kind, header.lane()) {
            (Kind::Assign, _) => u64::from(header.length / ASSIGNED_BYTES),
            (_, Lane::Control) => 0,
            (_, Lane::Dispatch | Lane::Bulk) => 1,
        };
        self.headers.iter().map(answers).sum()
    }

    /// Whether there is a bulk frame in it, and whether there is another.
    fn lanes(&self) -> (bool, bool) {
        let bulk = self.headers.iter().filter(|header| header.lane() == Lane::Bulk).count();
        (bulk > 0, bulk < self.headers.len())
    }
}

/// Bytes of an expert in an `assign`: its name, its digest, its blob's length.
const ASSIGNED_BYTES: u32 = 44;

/// What waits to be written.
///
/// A stream has one lane, so messages without bulk may overtake messages of bulk alone and every stream stays in order. One
/// that holds both, which only older ends send, overtakes nothing and is overtaken by nothing.
#[derive(Debug, Default)]
pub(crate) struct RelayQueue {
    waiting: VecDeque<Waiting>,
    /// Of messages of bulk alone.
    bulk_bytes: usize,
    /// Of all others.
    bytes: usize,
}

/// Bytes that the hub queues of everything but bulk: two messages, so that a slow reader slows the writer and not the hub's memory.
const LIMIT_BYTES: usize = 2 * MAX_MESSAGE_BYTES;
/// And of bulk, which comes in messages of a quarter of that. A limit for each, since what may go first must not wait for room behind
/// bulk.
const LIMIT_BULK_BYTES: usize = MAX_MESSAGE_BYTES;

#[derive(Debug)]
struct Waiting {
    message: Bytes,
    only_bulk: bool,
}

impl RelayQueue {
    pub(crate) fn has_room(&self, relay: &Relay) -> bool {
        let (queued, limit) = match relay.is_bulk_alone() {
            true => (self.bulk_bytes, LIMIT_BULK_BYTES),
            false => (self.bytes, LIMIT_BYTES),
        };
        queued == 0 || queued + relay.len() <= limit
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn push(&mut self, relay: Relay) {
        let (bulk, others) = relay.lanes();
        let place = match bulk {
            true => self.waiting.len(),
            false => self.waiting.iter().rposition(|waiting| !waiting.only_bulk).map_or(0, |last| last + 1),
        };
        let only_bulk = bulk && !others;
        *self.counted(only_bulk) += relay.len();
        self.waiting.insert(place, Waiting { message: relay.bytes, only_bulk });
    }

    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let Waiting { message, only_bulk } = self.waiting.pop_front()?;
        *self.counted(only_bulk) -= message.len();
        Some(message)
    }

    /// Takes what holds bulk alone out, in its order: it goes another way.
    pub(crate) fn take_bulk(&mut self) -> Vec<Bytes> {
        let all = std::mem::take(&mut self.waiting);
        let (bulk, others): (Vec<Waiting>, Vec<Waiting>) = all.into_iter().partition(|one| one.only_bulk);
        self.waiting = others.into();
        self.bulk_bytes = 0;
        bulk.into_iter().map(|one| one.message).collect()
    }

    /// Takes bulk back that was to go another way, in its order; there is none here now. It may be more than there is room for.
    pub(crate) fn put_bulk(&mut self, bulk: Vec<Bytes>) {
        self.bulk_bytes += bulk.iter().map(Bytes::len).sum::<usize>();
        self.waiting.extend(bulk.into_iter().map(|message| Waiting { message, only_bulk: true }));
    }

    /// Bytes of bulk that wait.
    pub(crate) fn bulk_bytes(&self) -> usize {
        self.bulk_bytes
    }

    fn counted(&mut self, only_bulk: bool) -> &mut usize {
        if only_bulk { &mut self.bulk_bytes } else { &mut self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_wire::frame::PAIR_STREAM;

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
        assert_eq!((queue.bytes, queue.bulk_bytes), (0, 0));
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

    #[test]
    fn bulk_that_waits_takes_no_room_from_the_other_lanes() {
        let mut queue = RelayQueue::default();
        let mut bulk = 0;
        while queue.has_room(&relay(1, &[Kind::Chunk])) {
            queue.push(relay(1, &[Kind::Chunk]));
            bulk += 1;
        }
        assert_eq!(bulk, LIMIT_BULK_BYTES / 1000);
        assert!(queue.has_room(&relay(2, &[Kind::Call])));
        queue.push(relay(2, &[Kind::Call]));
        assert_eq!(queue.pop().unwrap()[0], 2);
    }

    #[test]
    fn calls_chunks_and_each_expert_that_is_assigned_are_answered() {
        use Kind::{Assign, Call, Chunk, Credit, Ping, Pong};
        assert_eq!(relay(1, &[Call, Chunk]).answerable(), 2);
        assert_eq!(relay(1, &[Ping, Pong, Credit]).answerable(), 0);
        let mut assigns = relay(1, &[Assign]);
        assigns.headers[0].length = 4 + 100 * ASSIGNED_BYTES;
        assert_eq!(assigns.answerable(), 100);
    }

    #[test]
    fn a_message_of_bulk_and_something_else_is_told_from_others() {
        use Kind::{Call, Chunk, Ping};
        let mixed =
            [&[Chunk][..], &[Chunk, Chunk], &[Call], &[Ping, Chunk]].map(|kinds| relay(1, kinds).is_mixed());
        assert_eq!(mixed, [false, false, false, true]);
    }

    #[test]
    fn bulk_goes_another_way_and_comes_back_in_its_order() {
        use Kind::{Call, Chunk};
        let mut queue = RelayQueue::default();
        for (number, kind) in [Chunk, Call, Chunk, Call].into_iter().enumerate() {
            queue.push(relay(number as u8, &[kind]));
        }
        let bulk = queue.take_bulk();
        assert_eq!(bulk.iter().map(|message| message[0]).collect::<Vec<_>>(), [0, 2]);
        assert_eq!((queue.bytes, queue.bulk_bytes), (2000, 0));
        queue.put_bulk(bulk);
        queue.push(relay(4, &[Chunk]));
        let order: Vec<u8> = std::iter::from_fn(|| queue.pop()).map(|message| message[0]).collect();
        assert_eq!(order, [1, 3, 0, 2, 4]);
        assert_eq!((queue.bytes, queue.bulk_bytes), (0, 0));
    }
}
