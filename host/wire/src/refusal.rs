//! Refusals: a code for programs, a sentence and a remedy for people. Both ends of whatever failed get one.
//!
//! Before the upgrade a refusal travels as HTTP status and JSON `{code, message, what_to_do}`; after it as a `refuse`
//! frame with which the link closes.

use std::fmt;

use crate::codec::{DecodeError, Reader, Writer};
use crate::id::SessionId;
use crate::limits::MAX_SENTENCE_BYTES;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $status:literal;)+) => {
        /// Why something was refused. Numbers and names are only ever added.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum RefusalCode { $($(#[$doc])* $name = $number,)+ }

        impl RefusalCode {
            /// All codes.
            pub const ALL: &[RefusalCode] = &[$(RefusalCode::$name),+];

            /// The code of a number, if there is one.
            pub const fn from_number(number: u16) -> Option<RefusalCode> {
                match number { $($number => Some(RefusalCode::$name),)+ _ => None }
            }

            /// The code of a name, if there is one.
            pub fn from_name(name: &str) -> Option<RefusalCode> {
                match name { $($text => Some(RefusalCode::$name),)+ _ => None }
            }

            /// The name, as in JSON and documents.
            pub const fn name(self) -> &'static str {
                match self { $(RefusalCode::$name => $text,)+ }
            }

            /// The HTTP status that carries it before the upgrade.
            pub const fn http_status(self) -> u16 {
                match self { $(RefusalCode::$name => $status,)+ }
            }
        }
    };
}

codes! {
    /// The ticket cannot be read, or its seal or signature is not this network's.
    BadTicket = 1, "bad_ticket", 401;
    /// The ticket's time is over.
    TicketExpired = 2, "ticket_expired", 401;
    /// The ticket's time has not come, or a clock is wrong.
    TicketNotYetValid = 3, "ticket_not_yet_valid", 401;
    /// The ticket is for another role.
    WrongRole = 4, "wrong_role", 403;
    /// The holder did not prove the ticket's key.
    WrongKey = 5, "wrong_key", 403;
    /// The ticket is for another network.
    UnknownNetwork = 6, "unknown_network", 403;
    /// No protocol version in common.
    UnsupportedVersion = 7, "unsupported_version", 426;
    /// A second answer to one challenge.
    ReplayedAnswer = 8, "replayed_answer", 403;
    /// No backbone wants a worker of this kind now.
    NoBackbone = 9, "no_backbone", 503;
    /// The plugin is not allowed by a ticket or not trusted by an end.
    PluginNotAllowed = 10, "plugin_not_allowed", 403;
    /// No plugin or tensor format in common.
    NothingInCommon = 11, "nothing_in_common", 409;
    /// The key has as many sessions as its ticket allows.
    TooManySessions = 12, "too_many_sessions", 429;
    /// A newer session of the same key took this one's place.
    SessionReplaced = 13, "session_replaced", 409;
    /// The session number is not one that was offered to this key.
    UnknownSession = 14, "unknown_session", 404;
    /// The transcript holds something that an end did not say or does not want.
    TranscriptMismatch = 15, "transcript_mismatch", 409;
    /// The other end's signature over the transcript does not verify.
    BadSignature = 16, "bad_signature", 403;
    /// A frame or message broke a rule.
    ProtocolError = 17, "protocol_error", 400;
    /// Something did not come in time.
    TimedOut = 18, "timed_out", 408;
    /// This side is stopping; try again later.
    Draining = 19, "draining", 503;
    /// A limit was reached.
    LimitReached = 20, "limit_reached", 429;
    /// The meters of hub and ends differ.
    ReceiptDisputed = 21, "receipt_disputed", 409;
    /// The other end went away.
    PeerLost = 22, "peer_lost", 502;
    /// This side has a fault of its own.
    Internal = 23, "internal", 500;
    /// The other end does not want this session.
    Declined = 24, "declined", 409;
    /// A party's balance does not cover the session.
    NoFunds = 25, "no_funds", 402;
    /// The backbone does not accept the class of the worker's kernels.
    ClassNotAccepted = 26, "class_not_accepted", 409;
    /// A result was computed again and found wrong.
    WrongResult = 27, "wrong_result", 409;
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// What failed, where, with the value and the limit.
    pub sentence: String,
    /// What the reader can do about it.
    pub what_to_do: String,
    /// Seconds after which another try makes sense; `None` where it does not.
    pub retry_after: Option<u32>,
    /// The session that it is about, on a link that serves several; `None`: the link itself.
    pub session: Option<SessionId>,
}

impl Refusal {
    /// A refusal of the link itself. Texts beyond 1,024 bytes are cut.
    pub fn new(code: RefusalCode, sentence: impl Into<String>, what_to_do: impl Into<String>) -> Self {
        Refusal {
            code,
            sentence: sentence_within_limit(&sentence.into()),
            what_to_do: sentence_within_limit(&what_to_do.into()),
            retry_after: None,
            session: None,
        }
    }

    /// With the time after which to try again.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// About one session.
    pub fn about(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }

    /// The payload of a `refuse` frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u16(self.code as u16).u32(self.retry_after.map_or(0, |s| s.max(1)));
        w.bytes(&self.session.map_or([0; 32], |s| s.0));
        w.string(&self.sentence).string(&self.what_to_do);
        w.finish()
    }

    /// Reads a `refuse` frame's payload.
    pub fn decode(payload: &[u8]) -> Result<Refusal, DecodeError> {
        let mut r = Reader::new(payload);
        let code = r.u16("refusal code")?;
        let retry = r.u32("retry after")?;
        let session = r.array::<32>("session")?;
        let sentence = r.string("sentence", MAX_SENTENCE_BYTES)?.to_owned();
        let what_to_do = r.string("what to do", MAX_SENTENCE_BYTES)?.to_owned();
        r.end()?;
        let code = RefusalCode::from_number(code)
            .ok_or(DecodeError::UnknownValue { field: "refusal code", value: code.into() })?;
        Ok(Refusal {
            code,
            sentence,
            what_to_do,
            retry_after: (retry != 0).then_some(retry),
            session: (session != [0; 32]).then_some(SessionId(session)),
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused ({}): {}; {}", self.code, self.sentence, self.what_to_do)?;
        if let Some(seconds) = self.retry_after {
            write!(f, " (try again in {seconds} s)")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

impl From<DecodeError> for Refusal {
    fn from(error: DecodeError) -> Refusal {
        Refusal::new(
            RefusalCode::ProtocolError,
            error.to_string(),
            "update the older of the two sides; if both are current, report this sentence",
        )
    }
}

/// Cuts at a character boundary and turns control characters into spaces, so that what is sent can be read.
pub(crate) fn sentence_within_limit(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_SENTENCE_BYTES));
    for c in text.chars() {
        let c = if c.is_control() { ' ' } else { c };
        if out.len() + c.len_utf8() > MAX_SENTENCE_BYTES {
            break;
        }
        out.push(c);
    }
    out
}
