//! Receiving: frames in, whole payloads out, with every limit on the way.
//!
//! One [`Assembler`] per link and direction. It checks sender, sequence, kind and sizes, bounds the memory that
//! incomplete payloads take. Any error ends the link. What the sender may send at all is [`crate::credit`]'s.

use std::collections::HashMap;

use crate::frame::{Frame, FrameError, HUB_STREAM, Kind, Lane, Party, StreamClass};
use crate::limits::{
    MAX_ASSEMBLY_BYTES, MAX_CONTROL_PAYLOAD_BYTES, MAX_HELLO_BYTES, MAX_HUB_PAYLOAD_BYTES, MAX_NOTE_BYTES,
    MAX_OPEN_STREAMS, MAX_PAYLOAD_BYTES, MAX_RECEIPT_BYTES, MAX_REPORT_BYTES,
};

/// A complete payload, or one chunk of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// What it is.
    pub kind: Kind,
    /// The stream it came on.
    pub stream: u32,
    /// For streamed kinds: the range goes on in the stream's next frame. False for all others.
    pub more: bool,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What its frames cost in credit; give it to [`crate::credit::ReceiveCredit::consumed`] when the payload was taken.
    pub cost: u64,
}

impl Payload {
    /// The lane it came on.
    pub fn lane(&self) -> Lane {
        self.kind.lane()
    }
}

/// Puts the payloads of one sender together.
#[derive(Debug)]
pub struct Assembler {
    hub: Party,
    pair: Party,
    /// Next sequence number of the two streams that never end.
    next: [u32; 2],
    open: HashMap<u32, Open>,
    bytes: usize,
    last_call: u32,
    /// A `sign` has come: the sender is in a session, or about to be.
    signed: bool,
}

impl Assembler {
    /// For frames that come straight from `peer` (at the hub: an end; at an end before pairing: the hub).
    pub fn from_peer(peer: Party) -> Self {
        let open = HashMap::new();
        Assembler { hub: peer, pair: peer, next: [0; 2], open, bytes: 0, last_call: 0, signed: false }
    }

    /// For an end of a session: stream 0 comes from the hub, all others from `other` through it.
    pub fn through_hub(other: Party) -> Self {
        Assembler { pair: other, ..Assembler::from_peer(Party::Hub) }
    }

    /// Takes one frame; gives a payload when it is complete.
    pub fn accept(&mut self, frame: Frame<'_>) -> Result<Option<Payload>, FrameError> {
        let header = frame.header;
        let (kind, stream) = (header.kind, header.stream);
        let sender = if stream == HUB_STREAM { self.hub } else { self.pair };
        if !kind.may_come_from(sender) {
            return Err(FrameError::WrongSender { kind, sender });
        }
        let lasting = matches!(StreamClass::of(stream), StreamClass::Hub | StreamClass::Pair);
        let expected = match (lasting, self.open.get(&stream)) {
            (true, _) => self.next[stream as usize],
            (false, Some(open)) => open.next,
            (false, None) => 0,
        };
        if header.sequence != expected {
            return Err(FrameError::SequenceGap { stream, expected, found: header.sequence });
        }
        let next = expected.checked_add(1).ok_or(FrameError::SequenceExhausted { stream })?;
        if let Some(open) = self.open.get(&stream)
            && open.kind != kind
        {
            return Err(FrameError::KindChanged { stream, expected: open.kind, found: kind });
        }
        if kind == Kind::Call && !self.open.contains_key(&stream) {
            if stream <= self.last_call {
                return Err(FrameError::StreamReused { stream, last: self.last_call });
            }
            self.last_call = stream;
        }
        if header.more && !self.open.contains_key(&stream) && self.open.len() >= MAX_OPEN_STREAMS {
            return Err(FrameError::TooManyStreams { limit: MAX_OPEN_STREAMS });
        }
        if lasting {
            self.next[stream as usize] = next;
        }
        if kind.is_streamed() {
            if header.more {
                self.open.entry(stream).or_insert_with(|| Open::new(kind)).next = next;
            } else {
                self.open.remove(&stream);
            }
            let bytes = frame.payload.to_vec();
            return Ok(Some(Payload { kind, stream, more: header.more, bytes, cost: header.cost() }));
        }
        self.append(frame, next)
    }

    /// Forgets what has come of a stream, because its call or blob is no longer wanted; later frames of it are errors
    /// unless they begin anew.
    pub fn forget(&mut self, stream: u32) {
        if let Some(open) = self.open.remove(&stream) {
            self.bytes -= open.bytes.len();
        }
    }

    /// Streams with an incomplete payload.
    pub fn open_streams(&self) -> usize {
        self.open.len()
    }

    /// Bytes of incomplete payloads.
    pub fn held_bytes(&self) -> usize {
        self.bytes
    }

    fn append(&mut self, frame: Frame<'_>, next: u32) -> Result<Option<Payload>, FrameError> {
        let header = frame.header;
        let (kind, stream) = (header.kind, header.stream);
        let limit = match kind.lane() {
            Lane::Control if stream == HUB_STREAM => most_at_the_hub(kind, self.hub, self.signed),
            Lane::Control => MAX_CONTROL_PAYLOAD_BYTES,
            Lane::Dispatch | Lane::Bulk => MAX_PAYLOAD_BYTES,
        };
        let held = self.open.get(&stream).map_or(0, |open| open.bytes.len());
        if held + frame.payload.len() > limit {
            return Err(FrameError::PayloadTooLong { lane: kind.lane(), limit });
        }
        if !header.more {
            let mut open = self.open.remove(&stream).unwrap_or_else(|| Open::new(kind));
            self.bytes -= held;
            open.extend(frame.payload, limit);
            self.signed |= kind == Kind::Sign;
            let cost = open.cost + header.cost();
            return Ok(Some(Payload { kind, stream, more: false, bytes: open.bytes, cost }));
        }
        if self.bytes + frame.payload.len() > MAX_ASSEMBLY_BYTES {
            return Err(FrameError::AssemblyFull { limit: MAX_ASSEMBLY_BYTES });
        }
        self.bytes += frame.payload.len();
        let open = self.open.entry(stream).or_insert_with(|| Open::new(kind));
        open.extend(frame.payload, limit);
        open.cost += header.cost();
        open.next = next;
        Ok(None)
    }
}

#[derive(Debug)]
struct Open {
    kind: Kind,
    next: u32,
    bytes: Vec<u8>,
    cost: u64,
}

impl Open {
    fn new(kind: Kind) -> Self {
        Open { kind, next: 0, bytes: Vec::new(), cost: 0 }
    }

    /// Adds a part. The buffer doubles as any does, but takes no more memory than a whole payload may have bytes.
    fn extend(&mut self, part: &[u8], limit: usize) {
        let (room, needed) = (self.bytes.capacity(), self.bytes.len() + part.len());
        if room < needed {
            let wanted = (2 * room).min(limit).max(needed);
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        self.bytes.extend_from_slice(part);
    }
}

/// Most bytes of a payload of a kind between an end and the hub. Nobody has anything long to say before it has signed a
/// transcript, but a backbone, which may report on its control link.
const fn most_at_the_hub(kind: Kind, sender: Party, signed: bool) -> usize {
    match (kind, sender) {
        (Kind::Hello, _) => MAX_HELLO_BYTES,
        (Kind::Receipt, _) => MAX_RECEIPT_BYTES,
        (Kind::Countersign, Party::Backbone) if signed => MAX_RECEIPT_BYTES,
        (Kind::Grant, _) if signed => MAX_NOTE_BYTES,
        (Kind::Report, Party::Backbone) => MAX_REPORT_BYTES,
        (Kind::Report, _) if signed => MAX_REPORT_BYTES,
        _ => MAX_HUB_PAYLOAD_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Header, PAIR_STREAM};

    #[test]
    fn sequence_numbers_do_not_wrap() {
        let mut assembler = Assembler::through_hub(Party::Backbone);
        assembler.next[PAIR_STREAM as usize] = u32::MAX;
        let header =
            Header { kind: Kind::Release, more: false, length: 0, stream: PAIR_STREAM, sequence: u32::MAX };
        let error = assembler.accept(Frame { header, payload: &[] }).unwrap_err();
        assert_eq!(error, FrameError::SequenceExhausted { stream: PAIR_STREAM });
    }
}
