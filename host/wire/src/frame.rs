//! Frames: the 16-byte header, the kinds with their lanes, streams and senders, and the walk over one message.
//!
//! The decoder is strict: a header that breaks any rule ends the link. Putting payloads together is `assemble.rs`,
//! cutting them up `schedule.rs`.
//!
//! Header, little-endian: kind u8, flags u8, lane u8, version u8, length u32, stream u32, sequence u32.

use thiserror::Error;

use crate::limits::{
    FRAME_VERSION, HEADER_BYTES, MAX_BULK_PAYLOAD_BYTES, MAX_FRAME_PAYLOAD_BYTES, MAX_MESSAGE_BYTES,
};
use crate::replay::ReplayError;

/// Stream of frames between an end and the hub.
pub const HUB_STREAM: u32 = 0;
/// Stream of control frames between the two ends of a session.
pub const PAIR_STREAM: u32 = 1;

/// Lanes, served in this order at every write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Lane {
    /// Handshake, credit, liveness, receipts: never waits.
    Control = 0,
    /// Calls and results.
    Dispatch = 1,
    /// Expert blobs.
    Bulk = 2,
}

impl Lane {
    /// All lanes, highest rank first.
    pub const ALL: [Lane; 3] = [Lane::Control, Lane::Dispatch, Lane::Bulk];

    /// The lane of a number, if there is one.
    pub const fn from_number(number: u8) -> Option<Lane> {
        match number {
            0 => Some(Lane::Control),
            1 => Some(Lane::Dispatch),
            2 => Some(Lane::Bulk),
            _ => None,
        }
    }

    /// The number on the wire.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Most payload bytes that one frame of this lane carries.
    pub const fn max_frame_payload(self) -> usize {
        match self {
            Lane::Control | Lane::Dispatch => MAX_FRAME_PAYLOAD_BYTES,
            Lane::Bulk => MAX_BULK_PAYLOAD_BYTES,
        }
    }
}

/// Who sends: a bit each, so that a kind can name several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Party {
    /// The meeting point.
    Hub = 1,
    /// The end that holds experts.
    Worker = 2,
    /// The end that decides.
    Backbone = 4,
}

/// What a stream number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamClass {
    /// Stream 0: an end and the hub.
    Hub,
    /// Stream 1: the control of the pair.
    Pair,
    /// Even, from 2: one call, twice its number.
    Call,
    /// Odd, from 3: one blob range, chosen by the worker.
    Blob,
}

impl StreamClass {
    /// The class of a stream number.
    pub const fn of(stream: u32) -> StreamClass {
        match stream {
            HUB_STREAM => StreamClass::Hub,
            PAIR_STREAM => StreamClass::Pair,
            n if n % 2 == 0 => StreamClass::Call,
            _ => StreamClass::Blob,
        }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $lane:ident, [$($stream:ident)+], [$($party:ident)+];)+) => {
        /// What a frame carries. Numbers are only ever added.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $number,)+ }

        impl Kind {
            /// All kinds, by number.
            pub const ALL: &[Kind] = &[$(Kind::$name),+];

            /// The kind of a number, if there is one.
            pub const fn from_number(number: u8) -> Option<Kind> {
                match number { $($number => Some(Kind::$name),)+ _ => None }
            }

            /// The name in documents and logs.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$name => $text,)+ }
            }

            /// The one lane it travels on.
            pub const fn lane(self) -> Lane {
                match self { $(Kind::$name => Lane::$lane,)+ }
            }

            /// Whether it may appear on streams of this class.
            pub const fn fits_stream(self, class: StreamClass) -> bool {
                match self { $(Kind::$name => matches!(class, $(StreamClass::$stream)|+),)+ }
            }

            /// Whether this party may originate it.
            pub const fn may_come_from(self, party: Party) -> bool {
                match self { $(Kind::$name => matches!(party, $(Party::$party)|+),)+ }
            }
        }
    };
}

kinds! {
    /// A holder presents its ticket, a nonce and what it wants.
    Hello = 1, "hello", Control, [Hub], [Worker Backbone];
    /// The hub's nonce and its signature.
    Challenge = 2, "challenge", Control, [Hub], [Hub];
    /// The holder's signature: possession of the ticket's key.
    Proof = 3, "proof", Control, [Hub], [Worker Backbone];
    /// Admitted to the hub, or paired: then with the other end's signature.
    Welcome = 4, "welcome", Control, [Hub], [Hub];
    /// A code, a sentence, and what to do.
    Refuse = 5, "refuse", Control, [Hub Pair], [Hub Worker Backbone];
    /// Experts to fetch and hold.
    Assign = 6, "assign", Control, [Pair], [Backbone];
    /// Experts to drop.
    Release = 7, "release", Control, [Pair], [Backbone];
    /// Experts that are held, or could not be.
    Have = 8, "have", Control, [Pair], [Worker];
    /// A blob by digest and range.
    Want = 9, "want", Control, [Pair], [Worker];
    /// Bytes of a blob.
    Chunk = 10, "chunk", Bulk, [Blob], [Backbone];
    /// Rows for experts of one layer.
    Call = 11, "call", Dispatch, [Call], [Backbone];
    /// The answer to a call.
    Result = 12, "result", Dispatch, [Call], [Worker];
    /// Calls or blob ranges that are no longer wanted.
    Cancel = 13, "cancel", Control, [Pair], [Worker Backbone];
    /// Asks for a pong.
    Ping = 14, "ping", Control, [Hub Pair], [Hub Worker Backbone];
    /// Answers a ping.
    Pong = 15, "pong", Control, [Hub Pair], [Hub Worker Backbone];
    /// More bytes may be sent on a lane.
    Credit = 16, "credit", Control, [Pair], [Worker Backbone];
    /// Finish in order: no new calls, then close.
    Drain = 17, "drain", Control, [Hub Pair], [Hub Worker Backbone];
    /// A receipt on its way: cut, proposal, complete note.
    Receipt = 18, "receipt", Control, [Hub], [Hub];
    /// An end's signature under a receipt.
    Countersign = 19, "countersign", Control, [Hub], [Worker Backbone];
    /// Evidence against the other end, filed by the hub.
    Report = 20, "report", Control, [Hub], [Worker Backbone];
    /// The hub asks a backbone to dial a data link for a session.
    Pair = 21, "pair", Control, [Hub], [Hub];
    /// What both ends are about to sign.
    Transcript = 22, "transcript", Control, [Hub], [Hub];
    /// An end's signature over the transcript.
    Sign = 23, "sign", Control, [Hub], [Worker Backbone];
    /// On a data link after `welcome`, before the first call: the backbone's signed `grant@v1` note for the session, its
    /// text and signature line as they are. The hub files it with the ledger and cuts receipts under its leaf hash.
    Grant = 24, "grant", Control, [Hub], [Backbone];
    /// How many messages of this link have come: they need not be kept to be sent again.
    Ack = 25, "ack", Control, [Hub], [Hub Worker Backbone];
    /// The other end's connection is gone, and it may come back; or it is back.
    Pause = 26, "pause", Control, [Hub], [Hub];
    /// From the hub: bulk comes over this second connection from here on. From the worker: that one is over, and so much came.
    Reroute = 27, "reroute", Control, [Hub], [Hub Worker];
}

impl Kind {
    /// The number on the wire.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Whether its frames are handed over one by one (`more`: the range goes on) instead of being put together.
    pub const fn is_streamed(self) -> bool {
        matches!(self, Kind::Chunk)
    }
}

/// The flag `more`: the stream's payload (or, for chunks, range) continues in its next frame.
pub const FLAG_MORE: u8 = 1;
/// Reserved for sealed payloads; refused until a version defines it.
pub const FLAG_SEALED: u8 = 2;

/// A frame header that keeps every rule which can be checked on one frame alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the payload is.
    pub kind: Kind,
    /// The payload continues in the stream's next frame.
    pub more: bool,
    /// Payload bytes.
    pub length: u32,
    /// The stream.
    pub stream: u32,
    /// Counts from 0 per sender and stream.
    pub sequence: u32,
}

impl Header {
    /// The lane, which the kind decides.
    pub const fn lane(&self) -> Lane {
        self.kind.lane()
    }

    /// Header and payload bytes: what a frame costs in credit.
    pub const fn cost(&self) -> u64 {
        HEADER_BYTES as u64 + self.length as u64
    }

    /// The 16 bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind.number();
        bytes[1] = if self.more { FLAG_MORE } else { 0 };
        bytes[2] = self.lane().number();
        bytes[3] = FRAME_VERSION;
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.stream.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// Reads and checks 16 bytes.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let [kind, flags, lane, version, ..] = *bytes;
        if version != FRAME_VERSION {
            return Err(FrameError::UnknownVersion { version });
        }
        let kind = Kind::from_number(kind).ok_or(FrameError::UnknownKind { kind })?;
        if flags & FLAG_SEALED != 0 {
            return Err(FrameError::SealedUnsupported);
        }
        if flags & !FLAG_MORE != 0 {
            return Err(FrameError::ReservedFlags { flags });
        }
        let lane = Lane::from_number(lane).ok_or(FrameError::UnknownLane { lane })?;
        if lane != kind.lane() {
            return Err(FrameError::WrongLane { kind, lane });
        }
        let header = Header {
            kind,
            more: flags & FLAG_MORE != 0,
            length: word(4),
            stream: word(8),
            sequence: word(12),
        };
        if !kind.fits_stream(StreamClass::of(header.stream)) {
            return Err(FrameError::WrongStream { kind, stream: header.stream });
        }
        let limit = lane.max_frame_payload();
        if header.length as usize > limit {
            return Err(FrameError::FrameTooLong { lane, length: header.length, limit });
        }
        // An empty frame that promises more would let a sender keep a stream open for nothing.
        if header.more && header.length == 0 {
            return Err(FrameError::EmptyContinued { kind });
        }
        Ok(header)
    }
}

/// One frame inside a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its header.
    pub header: Header,
    /// Its payload, `header.length` bytes.
    pub payload: &'a [u8],
}

/// Walks the frames of one WebSocket message. After an error the walk is over.
pub fn frames(message: &[u8]) -> Result<Frames<'_>, FrameError> {
    if message.len() > MAX_MESSAGE_BYTES {
        return Err(FrameError::MessageTooLong { length: message.len() });
    }
    if message.is_empty() {
        return Err(FrameError::EmptyMessage);
    }
    Ok(Frames { rest: message })
}

/// Iterator over the frames of a message; see [`frames`].
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let step = split_frame(self.rest);
        self.rest = step.as_ref().map_or(&[], |(_, rest)| rest);
        Some(step.map(|(frame, _)| frame))
    }
}

/// Which side of the hub's pipe a whole message is for; see [`classify`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageClass {
    /// All its frames are on stream 0.
    Hub,
    /// None of its frames is on stream 0.
    Pair,
}

/// Walks a message for the hub: checks every header and that the sender may send it, calls `each`, and tells whether
/// the message is the hub's own or to be relayed. A mixture is an error, since the hub relays messages unchanged.
pub fn classify(
    message: &[u8],
    sender: Party,
    mut each: impl FnMut(&Header) -> Result<(), FrameError>,
) -> Result<MessageClass, FrameError> {
    let mut class = None;
    for frame in frames(message)? {
        let header = frame?.header;
        if !header.kind.may_come_from(sender) {
            return Err(FrameError::WrongSender { kind: header.kind, sender });
        }
        let this = if header.stream == HUB_STREAM { MessageClass::Hub } else { MessageClass::Pair };
        if *class.get_or_insert(this) != this {
            return Err(FrameError::MixedMessage);
        }
        each(&header)?;
    }
    class.ok_or(FrameError::EmptyMessage)
}

/// What a peer did wrong, or which limit it ran into. Every one of these ends the link.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the sentences say it, and the fields are their values
pub enum FrameError {
    #[error("message of {length} bytes; the limit is {MAX_MESSAGE_BYTES}")]
    MessageTooLong { length: usize },
    #[error("message without a frame")]
    EmptyMessage,
    #[error("message ends {have} bytes into a frame that needs {need}")]
    Truncated { need: usize, have: usize },
    #[error("frame version {version}; this side speaks {FRAME_VERSION}")]
    UnknownVersion { version: u8 },
    #[error("unknown frame kind {kind}")]
    UnknownKind { kind: u8 },
    #[error("reserved flag bits are set: {flags:#010b}")]
    ReservedFlags { flags: u8 },
    #[error("sealed payloads are not part of this version")]
    SealedUnsupported,
    #[error("unknown lane {lane}")]
    UnknownLane { lane: u8 },
    #[error("{} on lane {lane:?}; its lane is {:?}", kind.name(), kind.lane())]
    WrongLane { kind: Kind, lane: Lane },
    #[error("{} on stream {stream}, which is not for it", kind.name())]
    WrongStream { kind: Kind, stream: u32 },
    #[error("{} from the {sender:?}, which does not send it", kind.name())]
    WrongSender { kind: Kind, sender: Party },
    #[error("frame payload of {length} bytes on lane {lane:?}; the limit is {limit}")]
    FrameTooLong { lane: Lane, length: u32, limit: usize },
    #[error("empty {} frame that says more follows", kind.name())]
    EmptyContinued { kind: Kind },
    #[error("frames for the hub and for the other end in one message")]
    MixedMessage,
    #[error("stream {stream}: frame {found} came where {expected} was due")]
    SequenceGap { stream: u32, expected: u32, found: u32 },
    #[error("stream {stream} has used up its sequence numbers; start a new session")]
    SequenceExhausted { stream: u32 },
    #[error("stream {stream}: {} inside a payload of {}", found.name(), expected.name())]
    KindChanged { stream: u32, expected: Kind, found: Kind },
    #[error("call stream {stream} is not above the last one, {last}")]
    StreamReused { stream: u32, last: u32 },
    #[error("payload of more than {limit} bytes on lane {lane:?}")]
    PayloadTooLong { lane: Lane, limit: usize },
    #[error("more than {limit} payloads are incomplete at one time")]
    TooManyStreams { limit: usize },
    #[error("incomplete payloads take more than {limit} bytes")]
    AssemblyFull { limit: usize },
    #[error("{over} bytes more on lane {lane:?} than were granted")]
    CreditExceeded { lane: Lane, over: u64 },
    #[error("credit of {granted} bytes on lane {lane:?} is beyond the limit of {limit}")]
    CreditTooLarge { lane: Lane, granted: u64, limit: u64 },
    #[error("more than {limit} bytes of control payloads wait unread")]
    ControlBacklog { limit: usize },
    #[error("more than {limit} calls are open at the meter")]
    TooManyCalls { limit: usize },
    #[error("result on stream {stream}, on which no complete call was relayed")]
    ResultWithoutCall { stream: u32 },
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

fn split_frame(bytes: &[u8]) -> Result<(Frame<'_>, &[u8]), FrameError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(FrameError::Truncated { need: HEADER_BYTES, have: bytes.len() });
    };
    let header = Header::decode(head)?;
    let Some((payload, rest)) = rest.split_at_checked(header.length as usize) else {
        return Err(FrameError::Truncated { need: HEADER_BYTES + header.length as usize, have: bytes.len() });
    };
    Ok((Frame { header, payload }, rest))
}
