//! `cancel`, `ping`, `pong`, `credit`, `drain`, `report`, `ack`, `pause`, `reroute`.

use crate::codec::{DecodeError, Reader, Writer, within};
use crate::frame::{Lane, StreamClass};
use crate::handshake::read_bulk_connection;
use crate::id::SessionId;
use crate::limits::{MAX_CANCELS, MAX_EVIDENCE_BYTES, MAX_SENTENCE_BYTES};
use crate::refusal::{RefusalCode, sentence_within_limit};

/// The payload of a `cancel` frame. A call that was cancelled is still answered, with status `cancelled` or, if it was
/// too late, with rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancel {
    /// Streams of calls (from the backbone) or blob ranges (from the worker).
    pub streams: Vec<u32>,
}

impl Cancel {
    /// The payload. At most [`MAX_CANCELS`] streams.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u16(self.streams.len() as u16);
        for stream in &self.streams {
            w.u32(*stream);
        }
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Cancel, DecodeError> {
        let mut r = Reader::new(payload);
        let count = r.u16("streams")?;
        let count = r.check_count("streams", count.into(), MAX_CANCELS, 4)?;
        let streams = (0..count).map(|_| r.u32("stream")).collect::<Result<Vec<_>, _>>()?;
        r.end()?;
        if streams.iter().any(|s| matches!(StreamClass::of(*s), StreamClass::Hub | StreamClass::Pair)) {
            return Err(DecodeError::Broken {
                field: "stream",
                rule: "only calls and blobs can be cancelled",
            });
        }
        Ok(Cancel { streams })
    }
}

/// The payload of `ping` and `pong`: a pong repeats its ping's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ping {
    /// Chosen by the sender of the ping.
    pub number: u64,
}

impl Ping {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        self.number.to_le_bytes().to_vec()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Ping, DecodeError> {
        let mut r = Reader::new(payload);
        let number = r.u64("number")?;
        r.end()?;
        Ok(Ping { number })
    }
}

/// The payload of a `credit` frame: so many more bytes, headers included, may be sent on a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credit {
    /// Dispatch or bulk; control needs no credit.
    pub lane: Lane,
    /// Bytes, at least one.
    pub bytes: u32,
}

impl Credit {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u8(self.lane.number()).bytes(&[0; 3]).u32(self.bytes);
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Credit, DecodeError> {
        let mut r = Reader::new(payload);
        let lane = r.u8("lane")?;
        let lane = Lane::from_number(lane)
            .filter(|lane| *lane != Lane::Control)
            .ok_or(DecodeError::UnknownValue { field: "lane", value: lane.into() })?;
        if r.array::<3>("reserved")? != [0; 3] {
            return Err(DecodeError::Broken { field: "reserved", rule: "must be zero" });
        }
        let bytes = r.u32("bytes")?;
        r.end()?;
        if bytes == 0 {
            return Err(DecodeError::Broken { field: "bytes", rule: "at least one" });
        }
        Ok(Credit { lane, bytes })
    }
}

/// The payload of an `ack` frame, on a link that can be resumed: so many of its messages have come, over all of its
/// connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// Messages, the one with the hub's welcome included.
    pub received: u64,
}

impl Ack {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        self.received.to_le_bytes().to_vec()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Ack, DecodeError> {
        let mut r = Reader::new(payload);
        let received = r.u64("received")?;
        r.end()?;
        Ok(Ack { received })
    }
}

/// The payload of a `pause` frame: the other end's connection is gone, or there is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// Milliseconds for which the hub waits for it to come back; 0: it is back.
    pub for_ms: u32,
}

impl Pause {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        self.for_ms.to_le_bytes().to_vec()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Pause, DecodeError> {
        let mut r = Reader::new(payload);
        let for_ms = r.u32("milliseconds")?;
        r.end()?;
        Ok(Pause { for_ms })
    }
}

/// The payload of a `reroute` frame, on the first connection of a worker's link. The hub's: what it sends of bulk from here on
/// comes over the second connection of this number. The worker's answer, once that connection is over: so many of its messages
/// have come, and none is taken from it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reroute {
    /// Number of the second connection, from 1.
    pub connection: u32,
    /// Messages with chunks that came over it; 0 from the hub.
    pub received: u64,
}

impl Reroute {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u32(self.connection).u64(self.received);
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Reroute, DecodeError> {
        let mut r = Reader::new(payload);
        let connection = read_bulk_connection(&mut r)?;
        let received = r.u64("received")?;
        r.end()?;
        Ok(Reroute { connection, received })
    }
}

/// Why a link is to be finished in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DrainReason {
    /// The sender has no more work, or its user ended it.
    Finished = 1,
    /// The sender restarts.
    Restarting = 2,
    /// A newer session of the same key takes over.
    Replaced = 3,
    /// A limit of the ticket was reached.
    LimitReached = 4,
    /// The other end went away.
    PeerLost = 5,
}

impl DrainReason {
    /// The reason of a number, if there is one.
    pub const fn from_number(number: u8) -> Option<DrainReason> {
        match number {
            1 => Some(DrainReason::Finished),
            2 => Some(DrainReason::Restarting),
            3 => Some(DrainReason::Replaced),
            4 => Some(DrainReason::LimitReached),
            5 => Some(DrainReason::PeerLost),
            _ => None,
        }
    }
}

/// The payload of a `drain` frame: no new calls; answer what is open; a final receipt is cut; then close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drain {
    /// Why.
    pub reason: DrainReason,
    /// Milliseconds after which to connect again; 0: at once, if at all.
    pub reconnect_in_ms: u32,
    /// Milliseconds for which connecting again makes sense; 0: do not.
    pub try_for_ms: u32,
}

impl Drain {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u8(self.reason as u8).bytes(&[0; 3]).u32(self.reconnect_in_ms).u32(self.try_for_ms);
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Drain, DecodeError> {
        let mut r = Reader::new(payload);
        let reason = r.u8("reason")?;
        let reason = DrainReason::from_number(reason)
            .ok_or(DecodeError::UnknownValue { field: "reason", value: reason.into() })?;
        if r.array::<3>("reserved")? != [0; 3] {
            return Err(DecodeError::Broken { field: "reserved", rule: "must be zero" });
        }
        let (reconnect_in_ms, try_for_ms) = (r.u32("reconnect in")?, r.u32("try for")?);
        r.end()?;
        Ok(Drain { reason, reconnect_in_ms, try_for_ms })
    }
}

/// The payload of a `report` frame: evidence against the other end, which the hub files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The session.
    pub session: SessionId,
    /// The call that it is about; 0: none.
    pub call: u64,
    /// What the other end did.
    pub code: RefusalCode,
    /// The same for people.
    pub sentence: String,
    /// Bytes that show it: a payload, a signed transcript, a receipt.
    pub evidence: Vec<u8>,
}

impl Report {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.bytes(self.session.as_bytes()).u64(self.call).u16(self.code as u16);
        w.string(&sentence_within_limit(&self.sentence)).byte_string(&self.evidence);
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Report, DecodeError> {
        let mut r = Reader::new(payload);
        let session = SessionId(r.array("session")?);
        let call = within("call", r.u64("call")?, crate::limits::MAX_CALL_ID)?;
        let code = r.u16("code")?;
        let code = RefusalCode::from_number(code)
            .ok_or(DecodeError::UnknownValue { field: "code", value: code.into() })?;
        let sentence = r.string("sentence", MAX_SENTENCE_BYTES)?.to_owned();
        let evidence = r.byte_string("evidence", MAX_EVIDENCE_BYTES)?.to_vec();
        r.end()?;
        Ok(Report { session, call, code, sentence, evidence })
    }
}
