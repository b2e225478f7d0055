//! A link that outlives its connections: the messages of both directions are numbered, and what the other side has not
//! said it has is kept, to be written again on the next connection.
//!
//! Why each message arrives once and in order, whatever connection is cut where:
//!
//! - A receiver counts the messages that it took, and takes none from a connection any more once it has told that count
//!   for the next one.
//! - The sender goes on with exactly that number, from what it keeps. Where it does not keep it any more it says so, and
//!   the session ends; it never goes on with a gap.
//!
//! So the count alone decides, and nothing has to be recognised as a repetition. A pure state machine: no sockets, no
//! clock.

use std::collections::VecDeque;

use thiserror::Error;

use crate::limits::ACK_AFTER_BYTES;

/// What a message takes in memory beside its bytes, about; counted so that many small ones cannot take more than they say.
pub const KEEPING_BYTES: usize = 128;

/// Why a link cannot go on over another connection, or what its other side cannot have received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReplayError {
    /// More than was ever sent, or less than was acknowledged before.
    #[error("the other side says it has {received} messages; it can have {least} to {most}")]
    Impossible {
        /// What it says.
        received: u64,
        /// What it had acknowledged.
        least: u64,
        /// What was sent to it.
        most: u64,
    },
    /// What has to be sent again was pushed out by what came after it.
    #[error("message {received} would have to be sent again, and only those from {kept} on are kept")]
    Forgotten {
        /// The first that is missing at the other side.
        received: u64,
        /// The first that is kept.
        kept: u64,
    },
}

/// One side's account of a link: what it sent and may have to send again, and how much it received. `M` is a message.
#[derive(Debug)]
pub struct Replay<M> {
    /// Messages from number `first` on.
    kept: VecDeque<M>,
    first: u64,
    bytes: usize,
    limit: usize,
    /// The next to be written on the present connection; the number of messages ever sent where nothing is repeated.
    next: u64,
    acknowledged: u64,
    received: u64,
    /// Bytes received since the other side was last told, counted as it counts what it keeps.
    untold_bytes: usize,
    told: u64,
}

impl<M: AsRef<[u8]> + Clone> Replay<M> {
    /// Nothing sent yet and `received` messages received, keeping at most `limit` bytes of what is sent.
    pub fn new(received: u64, limit: usize) -> Self {
        Replay {
            kept: VecDeque::new(),
            first: 0,
            bytes: 0,
            limit,
            next: 0,
            acknowledged: 0,
            received,
            untold_bytes: 0,
            told: received,
        }
    }

    /// What is to be written again on this connection, before anything new.
    pub fn again(&mut self) -> Option<M> {
        let place = usize::try_from(self.next.checked_sub(self.first)?).ok()?;
        let message = self.kept.get(place)?.clone();
        self.next += 1;
        Some(message)
    }

    /// Keeps a new message that is about to be written; to be called once [`Replay::again`] has nothing more. The oldest
    /// ones are given up where the limit asks for it: then a cut that comes before they are acknowledged ends the session.
    pub fn push(&mut self, message: M) {
        self.bytes += message.as_ref().len() + KEEPING_BYTES;
        self.kept.push_back(message);
        self.next = self.sent();
        self.keep_at_most(self.limit);
    }

    /// Gives the oldest up, as [`Replay::push`] does, until no more than so many bytes are kept. What has yet to be written
    /// again on this connection stays: a gap there would be one in what arrives.
    pub fn keep_at_most(&mut self, bytes: usize) {
        while self.bytes > bytes && self.first < self.next {
            self.pop();
        }
    }

    /// The other side says how many messages it has; what it has is kept no longer. Older news than before is let pass.
    pub fn acknowledge(&mut self, received: u64) -> Result<(), ReplayError> {
        if received > self.next {
            let (least, most) = (self.acknowledged, self.next);
            return Err(ReplayError::Impossible { received, least, most });
        }
        self.acknowledged = self.acknowledged.max(received);
        while self.first < received {
            self.pop();
        }
        Ok(())
    }

    /// Another connection begins, and the other side has received so many messages: what comes after them is written
    /// again. After an error nothing has changed.
    pub fn resume(&mut self, received: u64) -> Result<(), ReplayError> {
        let (least, most) = (self.acknowledged, self.sent());
        if received < least || received > most {
            return Err(ReplayError::Impossible { received, least, most });
        }
        if received < self.first {
            return Err(ReplayError::Forgotten { received, kept: self.first });
        }
        self.next = received;
        self.acknowledge(received)
    }

    /// The link ends: nothing is written again any more, and nothing of what was sent is kept.
    pub fn clear(&mut self) {
        self.first = self.sent();
        self.next = self.first;
        self.kept = VecDeque::new();
        self.bytes = 0;
    }

    /// Counts a message that came. True where so much has come that the other side should be told.
    pub fn receive(&mut self, bytes: usize) -> bool {
        self.received += 1;
        self.untold_bytes += bytes + KEEPING_BYTES;
        self.untold_bytes >= ACK_AFTER_BYTES
    }

    /// Whether something came of which the other side was not told.
    pub fn is_untold(&self) -> bool {
        self.told < self.received
    }

    /// How many messages came, which the other side is told now.
    pub fn tell(&mut self) -> u64 {
        self.told = self.received;
        self.untold_bytes = 0;
        self.received
    }

    /// Bytes of the messages that are kept, with [`KEEPING_BYTES`] for each.
    pub fn kept_bytes(&self) -> usize {
        self.bytes
    }

    /// Messages ever sent; each was written at least once.
    fn sent(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    fn pop(&mut self) {
        if let Some(message) = self.kept.pop_front() {
            self.bytes -= message.as_ref().len() + KEEPING_BYTES;
            self.first += 1;
        }
    }
}
