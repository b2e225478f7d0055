//! Bulk over a second connection: where the hub's link with a worker has it written, and where the worker looks for it.
//!
//! The hub turns with a `reroute` on the first connection, behind all the bulk that it wrote there. The worker takes nothing from
//! the second one before it has read that. Once the second one is over, the worker answers with how much came over it and takes
//! nothing more from there; the hub, which has kept the rest, writes it on the first one again, before any other bulk. Until that
//! answer bulk waits: nobody but the worker knows what came. So each message arrives once and in order, here as there by its count
//! alone, and each turn has one answer, whatever connection is cut where.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use kvasir_wire::frame::{FrameError, HUB_STREAM, Kind};
use kvasir_wire::limits::MAX_REPLAY_BYTES;
use kvasir_wire::message::{Ack, Reroute};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::replay::{KEEPING_BYTES, Replay, ReplayError};
use kvasir_wire::schedule::Outgoing;
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::tungstenite::Bytes;

use super::kept::{APART, Share, copied_if_small};
use super::{Next, Outbox, Shared};
use crate::error::LinkError;
use crate::relay::Relay;

/// Answers to pings that may stand in a second connection's queue: twice what a bulk window has open.
const MAX_PONGS: usize = 32;
/// Messages of a second connection that wait for the task that reads the first.
const MESSAGES_WAITING: usize = 16;

/// At the hub: a second connection, and the bulk that goes over it.
pub(super) struct BulkPath {
    connection: u32,
    /// False once it is gone: then nothing is written until the worker says what came.
    is_whole: bool,
    waiting: VecDeque<Waiting>,
    /// Of the chunks that wait, as they are counted when they are kept.
    waiting_bytes: usize,
    pongs: usize,
    /// What was written. Nothing is given up here: what cannot be kept is not taken.
    replay: Replay<Bytes>,
    /// What of all that is kept in this process is this connection's, what waits included.
    share: Share,
}

enum Waiting {
    Chunk(Bytes),
    /// An answer to a ping. It stands behind the bulk before it, so that its round trip tells of all of that.
    Pong(Bytes),
}

impl BulkPath {
    fn new(connection: u32) -> Self {
        BulkPath {
            connection,
            is_whole: true,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            pongs: 0,
            replay: Replay::new(0, usize::MAX),
            share: Share::of(&APART),
        }
    }

    fn has_room(&self, bytes: usize) -> bool {
        let held = self.held();
        held == 0 || held + bytes + KEEPING_BYTES <= self.share.most().min(MAX_REPLAY_BYTES)
    }

    fn push(&mut self, message: &Bytes) {
        self.waiting_bytes += message.len() + KEEPING_BYTES;
        self.waiting.push_back(Waiting::Chunk(copied_if_small(message)));
        self.share.set(self.held());
    }

    /// What is written next.
    fn pop(&mut self) -> Option<Bytes> {
        match self.waiting.pop_front()? {
            Waiting::Pong(message) => {
                self.pongs -= 1;
                Some(message)
            }
            Waiting::Chunk(message) => {
                self.waiting_bytes -= message.len() + KEEPING_BYTES;
                self.replay.push(message.clone());
                Some(message)
            }
        }
    }

    fn acknowledge(&mut self, received: u64) -> Result<(), ReplayError> {
        self.replay.acknowledge(received)?;
        self.share.set(self.held());
        Ok(())
    }

    /// What the worker lacks that has so much of it, in order, and what counts it.
    fn missing(mut self, received: u64) -> Result<(Vec<Bytes>, Share), ReplayError> {
        self.replay.resume(received)?;
        let mut missing: Vec<Bytes> = std::iter::from_fn(|| self.replay.again()).collect();
        missing.extend(self.waiting.into_iter().filter_map(|waiting| match waiting {
            Waiting::Chunk(message) => Some(message),
            Waiting::Pong(_) => None,
        }));
        Ok((missing, self.share))
    }

    fn held(&self) -> usize {
        self.replay.kept_bytes() + self.waiting_bytes
    }
}

impl fmt::Debug for BulkPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkPath").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl Outbox {
    /// Whether a message to pass on finds room on the way that it goes.
    pub(super) fn has_room(&self, relay: &Relay) -> bool {
        match &self.bulk {
            Some(path) if relay.is_bulk_alone() => path.has_room(relay.len()),
            _ => self.relays.has_room(relay),
        }
    }

    /// Queues a message to pass on.
    pub(super) fn pass_on(&mut self, relay: Relay) {
        match &mut self.bulk {
            Some(path) if relay.is_bulk_alone() => path.push(&relay.bytes),
            _ => self.relays.push(relay),
        }
    }

    /// Counts what came back from a second connection and still waits to be written: it may be much more than waits otherwise.
    pub(super) fn count_returned(&mut self) {
        if let Some(share) = &mut self.returned {
            let waiting = self.relays.bulk_bytes();
            share.set(waiting);
            if waiting == 0 {
                self.returned = None;
            }
        }
    }

    fn path(&mut self, connection: u32) -> Option<&mut BulkPath> {
        self.bulk.as_mut().filter(|path| path.connection == connection)
    }
}

/// The hub's part.
impl Shared {
    /// Turns bulk to a second connection of the holder, or says why not.
    pub(crate) fn turn_bulk(&self, connection: u32) -> Result<(), Refusal> {
        let mut outbox = self.outbox();
        if self.check_open(&outbox).is_err() {
            let sentence = "the session that this connection is for is ending";
            return Err(Refusal::new(RefusalCode::UnknownSession, sentence, "nothing: its bulk has no use"));
        }
        if let Some(path) = &outbox.bulk {
            let sentence = format!("bulk connection {} of this session is not over yet", path.connection);
            let refusal = Refusal::new(RefusalCode::LimitReached, sentence, "say what came over it first");
            return Err(refusal.retry_after(1));
        }
        if connection <= outbox.last_bulk {
            let sentence =
                format!("bulk connection {connection} is not above the last one, {}", outbox.last_bulk);
            return Err(Refusal::new(RefusalCode::ProtocolError, sentence, "count bulk connections up"));
        }
        // Before everything that is not written yet, and behind all that is.
        let turn = Reroute { connection, received: 0 };
        if outbox.scheduler.push(Outgoing::new(Kind::Reroute, HUB_STREAM, turn.encode())).is_err() {
            let sentence = "more waits for this worker than it reads";
            return Err(
                Refusal::new(RefusalCode::LimitReached, sentence, "read the first connection").retry_after(1)
            );
        }
        let mut path = BulkPath::new(connection);
        for message in outbox.relays.take_bulk() {
            path.push(&message);
        }
        outbox.returned = None;
        outbox.bulk = Some(path);
        outbox.last_bulk = connection;
        drop(outbox);
        self.work.notify_one();
        self.room.notify_waiters();
        Ok(())
    }

    /// What to write now on a second connection.
    pub(crate) fn next_bulk(&self, connection: u32) -> Next {
        let mut outbox = self.outbox();
        if self.check_open(&outbox).is_err() {
            return Next::Gone;
        }
        match outbox.path(connection) {
            Some(path) if path.is_whole => {
                path.pop().map_or(Next::Idle { closing_since: None }, Next::Message)
            }
            _ => Next::Gone,
        }
    }

    /// A second connection is gone. What it carried waits until the worker has said what came.
    pub(crate) fn lose_bulk(&self, connection: u32) {
        if let Some(path) = self.outbox().path(connection) {
            path.is_whole = false;
        }
    }

    /// Returns once the worker has said what came over a second connection that is gone, or the link has ended.
    pub(crate) async fn told_of_bulk(&self, connection: u32) {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.outbox().path(connection).is_none() {
                return;
            }
            room.await;
        }
    }

    /// Books what the worker says has come over a second connection, on that connection.
    pub(crate) fn acknowledged_bulk(&self, connection: u32, ack: Ack) -> Result<(), LinkError> {
        if let Some(path) = self.outbox().path(connection) {
            path.acknowledge(ack.received).map_err(FrameError::from)?;
        }
        self.room.notify_waiters();
        Ok(())
    }

    /// Queues the answer to a ping behind the bulk of a second connection, unless too many stand there: who asks so often has no
    /// use for it. `answer` makes its bytes.
    pub(crate) fn answer_on_bulk(
        &self,
        connection: u32,
        answer: impl FnOnce() -> Result<Bytes, LinkError>,
    ) -> Result<(), LinkError> {
        let mut outbox = self.outbox();
        if let Some(path) = outbox.path(connection).filter(|path| path.pongs < MAX_PONGS) {
            path.waiting.push_back(Waiting::Pong(answer()?));
            path.pongs += 1;
        }
        drop(outbox);
        self.bulk_work.notify_one();
        Ok(())
    }

    /// The worker says that a second connection is over, and what came: bulk takes the first one again.
    pub(crate) fn turned_back(&self, answer: Reroute) -> Result<(), LinkError> {
        let Reroute { connection, received } = answer;
        let mut outbox = self.outbox();
        let Some(path) = outbox.bulk.take_if(|path| path.connection == connection) else {
            return Err(LinkError::Unexpected {
                found: format!("reroute of bulk connection {connection}"),
                expected: "nothing about a connection that carries no bulk",
            });
        };
        let (missing, share) = path.missing(received).map_err(FrameError::from)?;
        tracing::debug!(
            connection,
            received,
            missing = missing.len(),
            "bulk takes the first connection again"
        );
        outbox.relays.put_bulk(missing);
        outbox.returned = Some(share);
        outbox.count_returned();
        drop(outbox);
        self.work.notify_one();
        self.bulk_work.notify_one();
        self.room.notify_waiters();
        Ok(())
    }
}

/// The second connections that a worker has dialled.
#[derive(Debug, Default)]
pub(super) struct Dialled {
    /// The number of the latest.
    last: u32,
    /// What comes over it, until the task that reads the first connection takes it.
    source: Option<BulkSource>,
}

/// At a worker: what comes over a second connection.
#[derive(Debug)]
pub(crate) struct BulkSource {
    connection: u32,
    messages: mpsc::Receiver<Bytes>,
    taken: u64,
    /// Goes with the source: then nothing is owed for this connection any more.
    _settled: oneshot::Sender<()>,
}

/// What the task of a second connection gives and waits for.
pub(crate) struct Expected {
    /// The connection's number.
    pub(crate) connection: u32,
    /// For the messages with chunks. Dropped once there are no more.
    pub(crate) messages: mpsc::Sender<Bytes>,
    /// Done once the hub was told what came.
    pub(crate) settled: oneshot::Receiver<()>,
}

impl BulkSource {
    /// The next message; nothing once the connection is over and all that came was taken. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        let message = self.messages.recv().await?;
        self.taken += 1;
        Some(message)
    }

    /// What the hub is told of it.
    pub(crate) fn over(&self) -> Reroute {
        Reroute { connection: self.connection, received: self.taken }
    }
}

/// The worker's part.
impl Shared {
    /// A second connection is about to be dialled.
    pub(crate) fn expect_bulk(&self) -> Expected {
        let (messages, source) = mpsc::channel(MESSAGES_WAITING);
        let (_settled, settled) = oneshot::channel();
        let mut dialled = self.dialled();
        // A number is never used twice; a link does not live for as many.
        let connection = dialled.last.saturating_add(1);
        dialled.last = connection;
        dialled.source = Some(BulkSource { connection, messages: source, taken: 0, _settled });
        Expected { connection, messages, settled }
    }

    /// The hub turns bulk to this connection: gives what comes there, or nothing where it is over already.
    pub(crate) fn bulk_source(&self, turn: Reroute) -> Result<Option<BulkSource>, LinkError> {
        let mut dialled = self.dialled();
        if turn.connection > dialled.last || turn.received != 0 {
            return Err(LinkError::Unexpected {
                found: format!("reroute to bulk connection {}", turn.connection),
                expected: "one of the connections that were dialled",
            });
        }
        Ok(dialled.source.take_if(|source| source.connection == turn.connection))
    }

    /// Bulk comes over a second connection from here on, or does no more.
    pub(crate) fn set_bulk_apart(&self, is_apart: bool) {
        self.is_bulk_apart.store(is_apart, Ordering::Relaxed);
    }

    /// The number of a ping to send with the bulk of a second connection, where the bulk window wants to know of it now.
    pub(crate) fn bulk_ping(&self) -> Option<u64> {
        let now = self.began.elapsed();
        let mut credit = self.credit();
        if !credit.bulk_window().ping_due(now) {
            return None;
        }
        let number = self.ping_number();
        credit.bulk_window().pinged(number, now);
        Some(number)
    }

    /// A number for a ping.
    pub(crate) fn ping_number(&self) -> u64 {
        self.next_ping.fetch_add(1, Ordering::Relaxed)
    }

    fn dialled(&self) -> MutexGuard<'_, Dialled> {
        // As with the outbox: what a panic leaves is a number and a channel.
        self.dialled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
