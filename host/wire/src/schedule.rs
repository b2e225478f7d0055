//! Sending: payloads in, messages out, highest lane first, within the credit that the peer granted.
//!
//! A payload that has begun is sent to its end; one that has not can be withdrawn. Each call of
//! [`Scheduler::next_message`] looks at the lanes anew, so control waits for at most the message being written.

use std::collections::{HashMap, VecDeque};

use thiserror::Error;

use crate::frame::{FrameError, HUB_STREAM, Header, Kind, Lane, StreamClass};
use crate::limits::{
    BULK_WINDOW_BYTES, DISPATCH_WINDOW_BYTES, HEADER_BYTES, MAX_BULK_PAYLOAD_BYTES, MAX_BULK_QUEUE_BYTES,
    MAX_CONTROL_PAYLOAD_BYTES, MAX_CONTROL_QUEUE_BYTES, MAX_CREDIT_BYTES, MAX_DISPATCH_QUEUE_BYTES,
    MAX_FRAME_PAYLOAD_BYTES, MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES, PACK_TARGET_BYTES,
};

/// Why a payload was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SendError {
    /// The lane's queue holds as much as it may; wait until something was sent.
    #[error("the {lane:?} queue is full ({limit} bytes)")]
    QueueFull {
        /// The lane.
        lane: Lane,
        /// Its limit in bytes.
        limit: usize,
    },
    /// No receiver would take a payload of this size.
    #[error("{} payload of {length} bytes; the limit is {limit}", kind.name())]
    PayloadTooLong {
        /// What it is.
        kind: Kind,
        /// Its bytes.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// The kind does not belong on this stream, or `more` was said of a payload that is not streamed.
    #[error("{} cannot be sent on stream {stream} in this way", kind.name())]
    WrongStream {
        /// What it is.
        kind: Kind,
        /// The stream.
        stream: u32,
    },
    /// The stream ran out of sequence numbers.
    #[error("stream {stream} has used up its sequence numbers; start a new session")]
    SequenceExhausted {
        /// The stream.
        stream: u32,
    },
}

/// A payload to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// What it is.
    pub kind: Kind,
    /// Its stream.
    pub stream: u32,
    /// Only for chunks: the range goes on in another payload.
    pub more: bool,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Outgoing {
    /// A payload that is complete in itself.
    pub fn new(kind: Kind, stream: u32, bytes: Vec<u8>) -> Self {
        Outgoing { kind, stream, more: false, bytes }
    }
}

/// The sending side of one link, without the link.
#[derive(Debug)]
pub struct Scheduler {
    lanes: [Queue; 3],
    sequences: HashMap<u32, u32>,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new()
    }
}

impl Scheduler {
    /// Empty queues, fresh sequence numbers, the fixed first windows as credit.
    pub fn new() -> Self {
        Scheduler {
            lanes: [
                Queue::new(None, MAX_CONTROL_QUEUE_BYTES),
                Queue::new(Some(DISPATCH_WINDOW_BYTES), MAX_DISPATCH_QUEUE_BYTES),
                Queue::new(Some(BULK_WINDOW_BYTES), MAX_BULK_QUEUE_BYTES),
            ],
            sequences: HashMap::new(),
        }
    }

    /// Takes a payload into its lane's queue.
    pub fn push(&mut self, outgoing: Outgoing) -> Result<(), SendError> {
        let Outgoing { kind, stream, more, .. } = outgoing;
        let lane = kind.lane();
        if !kind.fits_stream(StreamClass::of(stream)) || (more && !kind.is_streamed()) {
            return Err(SendError::WrongStream { kind, stream });
        }
        let limit = match lane {
            Lane::Control => MAX_CONTROL_PAYLOAD_BYTES,
            Lane::Dispatch => MAX_PAYLOAD_BYTES,
            Lane::Bulk => MAX_BULK_PAYLOAD_BYTES,
        };
        let length = outgoing.bytes.len();
        if length > limit {
            return Err(SendError::PayloadTooLong { kind, length, limit });
        }
        // Room for every frame of this payload, so that it cannot get stuck half way.
        let used = self.sequences.get(&stream).copied().unwrap_or(0);
        let frames = length.div_ceil(lane.max_frame_payload()).max(1) as u64;
        if u64::from(used) + frames + self.queued_frames(stream) > u64::from(u32::MAX) {
            return Err(SendError::SequenceExhausted { stream });
        }
        // An empty queue takes any payload, else one of the largest size could never be sent.
        let room = self.has_room(kind, length);
        let queue = &mut self.lanes[lane.number() as usize];
        if !room {
            return Err(SendError::QueueFull { lane, limit: queue.limit });
        }
        queue.bytes += length;
        queue.waiting.push_back(Waiting { outgoing, sent: 0 });
        Ok(())
    }

    /// Whether [`Scheduler::push`] would find room for `length` bytes of `kind` now.
    pub fn has_room(&self, kind: Kind, length: usize) -> bool {
        let queue = &self.lanes[kind.lane().number() as usize];
        queue.waiting.is_empty() || queue.bytes + length <= queue.limit
    }

    /// Drops everything that waits, begun or not; for a link that ends, before its last words are pushed.
    pub fn discard(&mut self) {
        for queue in &mut self.lanes {
            queue.waiting.clear();
            queue.bytes = 0;
        }
    }

    /// The next message to write, or `None` when nothing may be sent now.
    ///
    /// Small frames are packed up to [`PACK_TARGET_BYTES`]; frames on stream 0 and each frame of the bulk lane get messages
    /// of their own, since a message is handed over when its last byte is there: a call must not wait for the chunk behind.
    pub fn next_message(&mut self) -> Option<Vec<u8>> {
        let mut message = Vec::new();
        let mut for_hub = None;
        while message.len() < PACK_TARGET_BYTES {
            let Some(lane) = self.next_lane() else { break };
            if lane == Lane::Bulk && !message.is_empty() {
                break;
            }
            let room = MAX_MESSAGE_BYTES - message.len();
            if !self.put_frame(lane, room, &mut for_hub, &mut message) || lane == Lane::Bulk {
                break;
            }
        }
        (!message.is_empty()).then_some(message)
    }

    /// Adds credit that the peer granted.
    pub fn grant(&mut self, lane: Lane, bytes: u32) -> Result<(), FrameError> {
        let Some(credit) = &mut self.lanes[lane.number() as usize].credit else { return Ok(()) };
        let granted = *credit + u64::from(bytes);
        if granted > MAX_CREDIT_BYTES {
            return Err(FrameError::CreditTooLarge { lane, granted, limit: MAX_CREDIT_BYTES });
        }
        *credit = granted;
        Ok(())
    }

    /// Takes back what waits on `stream` and has not begun. True if there was something: of a call or result the peer
    /// then never hears. A blob range that had begun still needs its last chunk, which may be empty.
    pub fn withdraw(&mut self, stream: u32) -> bool {
        let mut any = false;
        let begun = self.sequences.contains_key(&stream);
        for queue in &mut self.lanes {
            queue.waiting.retain(|w| {
                let whole = w.sent == 0 && (!begun || w.outgoing.kind.is_streamed());
                let take = w.outgoing.stream == stream && whole;
                if take {
                    queue.bytes -= w.outgoing.bytes.len();
                    any = true;
                }
                !take
            });
        }
        any
    }

    /// Payload bytes that wait on a lane.
    pub fn queued_bytes(&self, lane: Lane) -> usize {
        self.lanes[lane.number() as usize].bytes
    }

    /// Credit left on a lane; `None` for control, which needs none.
    pub fn credit(&self, lane: Lane) -> Option<u64> {
        self.lanes[lane.number() as usize].credit
    }

    /// True when nothing waits on any lane.
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|queue| queue.waiting.is_empty())
    }

    /// True when something waits that lacks only credit.
    pub fn is_stalled(&self) -> bool {
        !self.is_empty() && self.next_lane().is_none()
    }

    /// The highest lane that has a payload and credit for its next frame.
    fn next_lane(&self) -> Option<Lane> {
        Lane::ALL.into_iter().find(|lane| self.lanes[lane.number() as usize].ready(*lane))
    }

    /// Appends the next frame of `lane` if it fits and belongs into this message; false if not.
    fn put_frame(
        &mut self,
        lane: Lane,
        room: usize,
        for_hub: &mut Option<bool>,
        message: &mut Vec<u8>,
    ) -> bool {
        let queue = &mut self.lanes[lane.number() as usize];
        let Some(front) = queue.waiting.front_mut() else { return false };
        let Outgoing { kind, stream, more, ref bytes } = front.outgoing;
        let left = &bytes[front.sent..];
        let part = &left[..left.len().min(lane.max_frame_payload())];
        let own = stream == HUB_STREAM;
        if HEADER_BYTES + part.len() > room || *for_hub.get_or_insert(own) != own {
            return false;
        }
        let continues = part.len() < left.len();
        let sequence = self.sequences.entry(stream).or_insert(0);
        let header =
            Header { kind, more: continues || more, length: part.len() as u32, stream, sequence: *sequence };
        message.extend_from_slice(&header.encode());
        message.extend_from_slice(part);
        *sequence += 1;
        front.sent += part.len();
        queue.bytes -= part.len();
        if let Some(credit) = &mut queue.credit {
            *credit -= header.cost();
        }
        if !continues {
            queue.waiting.pop_front();
            if !header.more && !matches!(StreamClass::of(stream), StreamClass::Hub | StreamClass::Pair) {
                self.sequences.remove(&stream);
            }
        }
        true
    }

    /// Upper bound on the frames that payloads waiting on a lasting stream will take. Other streams end with their
    /// payload or, for blobs, long before their numbers do.
    fn queued_frames(&self, stream: u32) -> u64 {
        if !matches!(StreamClass::of(stream), StreamClass::Hub | StreamClass::Pair) {
            return 0;
        }
        let most = MAX_CONTROL_PAYLOAD_BYTES.div_ceil(MAX_FRAME_PAYLOAD_BYTES) as u64;
        let waiting = &self.lanes[Lane::Control.number() as usize].waiting;
        waiting.iter().filter(|w| w.outgoing.stream == stream).count() as u64 * most
    }
}

#[derive(Debug)]
struct Waiting {
    outgoing: Outgoing,
    sent: usize,
}

#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    limit: usize,
    credit: Option<u64>,
}

impl Queue {
    fn new(credit: Option<u64>, limit: usize) -> Self {
        Queue { waiting: VecDeque::new(), bytes: 0, limit, credit }
    }

    fn ready(&self, lane: Lane) -> bool {
        let Some(front) = self.waiting.front() else { return false };
        let left = front.outgoing.bytes.len() - front.sent;
        let cost = HEADER_BYTES + left.min(lane.max_frame_payload());
        self.credit.is_none_or(|credit| credit >= cost as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::PAIR_STREAM;

    #[test]
    fn a_stream_without_sequence_numbers_left_takes_nothing_more() {
        let mut scheduler = Scheduler::new();
        scheduler.sequences.insert(PAIR_STREAM, u32::MAX - 2);
        let release = || Outgoing::new(Kind::Release, PAIR_STREAM, vec![0; 4]);
        scheduler.push(release()).unwrap();
        scheduler.next_message().unwrap();
        scheduler.push(release()).unwrap();
        let error = scheduler.push(release()).unwrap_err();
        assert_eq!(error, SendError::SequenceExhausted { stream: PAIR_STREAM });
    }
}
