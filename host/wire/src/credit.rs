//! The receiver's account of credit on one link: what the peer may still send, and what is due to it.

use std::time::Duration;

use crate::frame::{FrameError, Lane};
use crate::limits::{BULK_WINDOW_BYTES, DISPATCH_WINDOW_BYTES, HEADER_BYTES};
use crate::window::BulkWindow;

/// What the peer may still send on the lanes that need credit.
///
/// The window of the dispatch lane is fixed, that of the bulk lane follows the link ([`BulkWindow`]). A grant need not
/// equal what was taken: a window that shrank grants nothing until enough was taken, and so the first credit of the bulk
/// lane, which both sides know beforehand, is taken back to the window's size as it is used.
#[derive(Debug)]
pub struct ReceiveCredit {
    dispatch: Account,
    bulk: Account,
    window: BulkWindow,
}

impl Default for ReceiveCredit {
    fn default() -> Self {
        ReceiveCredit {
            dispatch: Account::new(DISPATCH_WINDOW_BYTES),
            bulk: Account::new(BULK_WINDOW_BYTES),
            window: BulkWindow::default(),
        }
    }
}

impl ReceiveCredit {
    /// Books a frame that arrived; an error if the peer sent more than it was granted.
    pub fn received(&mut self, lane: Lane, payload_bytes: u32) -> Result<(), FrameError> {
        let account = match lane {
            Lane::Control => return Ok(()),
            Lane::Dispatch => &mut self.dispatch,
            Lane::Bulk => &mut self.bulk,
        };
        let cost = HEADER_BYTES as u64 + u64::from(payload_bytes);
        if cost > account.open {
            return Err(FrameError::CreditExceeded { lane, over: cost - account.open });
        }
        account.open -= cost;
        account.held += cost;
        Ok(())
    }

    /// Books bytes that the application took; gives the grant to send, once it is worth a frame. `now` is the time since the
    /// link began.
    pub fn consumed(&mut self, lane: Lane, cost: u64, now: Duration) -> Option<u32> {
        match lane {
            Lane::Control => None,
            Lane::Dispatch => self.dispatch.taken(cost, DISPATCH_WINDOW_BYTES, DISPATCH_WINDOW_BYTES / 4),
            Lane::Bulk => {
                self.window.taken(cost, now);
                let window = self.window.bytes();
                // What is due and not granted is missing on the way, and what is granted in lumps comes in lumps, which are queue.
                let least = (window / 8).min(MAX_BULK_DUE_BYTES).min(self.window.brought_in(GRANT_TIME));
                self.bulk.taken(cost, window, least)
            }
        }
    }

    /// The bulk lane's window, which wants to know about round trips.
    pub fn bulk_window(&mut self) -> &mut BulkWindow {
        &mut self.window
    }
}

/// Bulk bytes that are granted at once when so many are due, however large the window: at 1 Gbit/s 2,000 grants a second.
const MAX_BULK_DUE_BYTES: u64 = 64 * 1024;
/// What the path brings in this time is granted at the latest.
const GRANT_TIME: Duration = Duration::from_micros(2_500);

#[derive(Debug)]
struct Account {
    /// Granted and not used yet.
    open: u64,
    /// Arrived and not taken yet.
    held: u64,
}

impl Account {
    fn new(open: u64) -> Self {
        Account { open, held: 0 }
    }

    /// Books bytes taken; grants what the window has room for, if that is at least `least`.
    fn taken(&mut self, cost: u64, window: u64, least: u64) -> Option<u32> {
        self.held = self.held.saturating_sub(cost);
        let room = window.saturating_sub(self.open + self.held);
        if room < least.max(1) {
            return None;
        }
        let grant = u32::try_from(room).unwrap_or(u32::MAX);
        self.open += u64::from(grant);
        Some(grant)
    }
}
