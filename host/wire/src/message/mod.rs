//! The payloads of frames: one codec a kind, strict and bounded.
//!
//! [`Hello`](crate::handshake::Hello) and its kin live in `handshake`, [`Transcript`](crate::pairing::Transcript) and
//! [`PairRequest`](crate::pairing::PairRequest) in `pairing`, [`Refusal`](crate::refusal::Refusal) in `refusal`.

mod call;
mod control;
mod expert;
mod receipt;

pub use call::{
    Call, CallResult, ExpertRows, Failure, FailureCode, Mode, Outcome, RowFormat, call_of_stream,
    stream_of_call,
};
pub use control::{Ack, Cancel, Credit, Drain, DrainReason, Pause, Ping, Report, Reroute};
pub use expert::{Assign, Assigned, Chunk, ExpertName, Have, Held, NotHeld, NotHeldReason, Release, Want};
pub use receipt::{Countersign, CutRequest, ReceiptMessage};
