//! The hub's meter: payload bytes of calls and results, by frame headers alone.
//!
//! A call's bytes count up, its result's down. Both move to the session's totals when the result's last frame passed,
//! so what is never answered is never counted. The ends keep the same account by the same rule, and receipts compare
//! the three.

use std::collections::HashMap;

use crate::frame::{FrameError, Header, Kind};
use crate::limits::MAX_METERED_CALLS;

/// A call that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// The call's number.
    pub call: u64,
    /// Payload bytes of the call.
    pub up: u64,
    /// Payload bytes of the result.
    pub down: u64,
}

/// Sums over answered calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Results that passed.
    pub results: u64,
    /// Payload bytes of their calls.
    pub up: u64,
    /// Payload bytes of the results.
    pub down: u64,
}

/// Counts one session.
#[derive(Debug, Default)]
pub struct Meter {
    open: HashMap<u32, OpenCall>,
    totals: Totals,
}

impl Meter {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Meter::default()
    }

    /// Books a header that is relayed, from either end; gives the call when its result's last frame passed.
    pub fn observe(&mut self, header: &Header) -> Result<Option<Answered>, FrameError> {
        match header.kind {
            Kind::Call => {
                if !self.open.contains_key(&header.stream) && self.open.len() >= MAX_METERED_CALLS {
                    return Err(FrameError::TooManyCalls { limit: MAX_METERED_CALLS });
                }
                let call = self.open.entry(header.stream).or_default();
                call.up += u64::from(header.length);
                call.complete = !header.more;
                Ok(None)
            }
            Kind::Result => {
                let stream = header.stream;
                let Some(call) = self.open.get_mut(&stream).filter(|call| call.complete) else {
                    return Err(FrameError::ResultWithoutCall { stream });
                };
                call.down += u64::from(header.length);
                if header.more {
                    return Ok(None);
                }
                let (up, down) = (call.up, call.down);
                self.open.remove(&stream);
                self.totals.results += 1;
                self.totals.up += up;
                self.totals.down += down;
                Ok(Some(Answered { call: u64::from(stream / 2), up, down }))
            }
            _ => Ok(None),
        }
    }

    /// What was answered so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Calls that are not answered yet.
    pub fn open_calls(&self) -> usize {
        self.open.len()
    }
}

#[derive(Debug, Default)]
struct OpenCall {
    up: u64,
    down: u64,
    complete: bool,
}
