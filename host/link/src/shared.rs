//! What the handles and the two tasks of a link share: the outgoing queues, credit, and how the link ended.

mod at_once;
mod bulk;
mod kept;
mod resume;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use kvasir_wire::assemble::Payload;
use kvasir_wire::credit::ReceiveCredit;
use kvasir_wire::frame::{FrameError, HUB_STREAM, Kind, Lane, PAIR_STREAM};
use kvasir_wire::limits::MAX_CONTROL_BACKLOG_BYTES;
use kvasir_wire::message::{Credit, Ping};
use kvasir_wire::refusal::Refusal;
use kvasir_wire::schedule::{Outgoing, Scheduler};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Bytes;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::desk::WriteHere;
use crate::error::LinkError;
use crate::pace::{Pace, STEPS_EARNED_BY_A_FRAME};
use crate::relay::RelayQueue;

use bulk::{BulkPath, Dialled};
pub(crate) use bulk::{BulkSource, Expected};
use kept::Share;
pub use resume::Standing;
pub(crate) use resume::{Resumable, is_cut};

/// The sending half of a link. Clones share the link; the link outlives them all until its receiver goes.
#[derive(Debug, Clone)]
pub struct LinkSender {
    pub(crate) shared: Arc<Shared>,
}

impl LinkSender {
    /// Queues a payload, waiting while its lane's queue is full. It goes out by lane, then in this order.
    pub async fn send(&self, kind: Kind, stream: u32, payload: Vec<u8>) -> Result<(), LinkError> {
        self.shared.push_when_room(Outgoing::new(kind, stream, payload)).await
    }

    /// Queues one chunk of a blob range; `more`: the range goes on.
    pub async fn send_chunk(&self, stream: u32, payload: Vec<u8>, more: bool) -> Result<(), LinkError> {
        self.shared.push_when_room(Outgoing { kind: Kind::Chunk, stream, more, bytes: payload }).await
    }

    /// Queues a payload now or fails.
    pub fn try_send(&self, kind: Kind, stream: u32, payload: Vec<u8>) -> Result<(), LinkError> {
        self.shared.push(Outgoing::new(kind, stream, payload))
    }

    /// As [`LinkSender::try_send`], and writes the payload on this thread where it is small, nothing else waits and the connection takes
    /// it without waiting: for who waits for the answer next.
    pub fn send_at_once(&self, kind: Kind, stream: u32, payload: Vec<u8>) -> Result<(), LinkError> {
        self.shared.push_at_once(Outgoing::new(kind, stream, payload))
    }

    /// Takes back a payload on `stream` of which nothing was sent yet; true if there was one.
    pub fn withdraw(&self, stream: u32) -> bool {
        let any = self.shared.outbox().scheduler.withdraw(stream);
        self.shared.room.notify_waiters();
        any
    }

    /// Payload bytes that wait on a lane, for those who pace themselves.
    pub fn queued_bytes(&self, lane: Lane) -> usize {
        self.shared.outbox().scheduler.queued_bytes(lane)
    }

    /// Measures the round trip to the other end of the session, through the hub.
    pub async fn round_trip(&self, within: Duration) -> Result<Duration, LinkError> {
        self.shared.round_trip(PAIR_STREAM, within).await
    }

    /// Measures the round trip to the hub.
    pub async fn round_trip_to_hub(&self, within: Duration) -> Result<Duration, LinkError> {
        self.shared.round_trip(HUB_STREAM, within).await
    }

    /// Closes in order: what is queued goes out first, nothing new is taken.
    pub fn close(&self) {
        self.shared.close(normal_close());
    }

    /// Tells the other side why, then closes; what is queued is dropped.
    pub fn refuse(&self, refusal: Refusal) {
        self.shared.fail(LinkError::RefusedPeer(refusal));
    }

    /// Whether there is a connection now. A link that can be resumed takes payloads without one, and keeps them.
    pub fn is_whole(&self) -> bool {
        self.shared.is_whole()
    }

    /// Follows which connection the link has.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.shared.standing()
    }

    /// Whether the link still takes payloads.
    pub fn is_open(&self) -> bool {
        self.shared.outbox().closing.is_none() && self.shared.end.borrow().is_none()
    }

    /// Waits until the link has ended; says how.
    pub async fn ended(&self) -> LinkError {
        self.shared.ended().await
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    outbox: Mutex<Outbox>,
    /// When the link began: the account of credit counts its time from here.
    began: Instant,
    credit: Mutex<ReceiveCredit>,
    /// Wakes the writer.
    pub(crate) work: Notify,
    /// Wakes the writer of a second connection.
    pub(crate) bulk_work: Notify,
    /// Wakes senders that wait for room.
    pub(crate) room: Notify,
    /// What the task that writes writes with, for as long as it does.
    desk: Mutex<Option<Weak<dyn WriteHere>>>,
    end: watch::Sender<Option<LinkError>>,
    /// Changed under the lock of the outbox alone, so that who holds that sees one state.
    standing: watch::Sender<Standing>,
    /// Whether messages are counted.
    counts: bool,
    control_backlog: AtomicUsize,
    pings: Mutex<HashMap<u64, PingWaiter>>,
    next_ping: AtomicU64,
    /// At a worker: the second connection that it dials, until the hub turns to it.
    dialled: Mutex<Dialled>,
    /// At a worker: bulk comes over a second connection, and its round trips are measured there.
    is_bulk_apart: AtomicBool,
    /// At the hub: how fast the holder is read, over all of its connections.
    pace: Mutex<Pace>,
    /// What was passed on, since the pace was looked at, that the holder answers.
    passed_on: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) scheduler: Scheduler,
    /// At the hub: whole messages of the other end, passed on unchanged behind the hub's own.
    relays: RelayQueue,
    closing: Option<Closing>,
    /// On a link that can go on over another connection.
    resumable: Option<Resumable>,
    /// At the hub: where bulk goes instead, from the turn to a second connection to the holder's word of what came there.
    bulk: Option<BulkPath>,
    /// Its part of what is kept, for as long as bulk that came back from there waits.
    returned: Option<Share>,
    /// The number of the latest second connection.
    last_bulk: u32,
}

/// Who waits for the answer to a ping.
#[derive(Debug)]
struct PingWaiter {
    sent: Instant,
    answer: oneshot::Sender<Duration>,
}

#[derive(Debug)]
struct Closing {
    frame: CloseFrame,
    since: Instant,
}

/// What the writer does next.
#[derive(Debug)]
pub(crate) enum Next {
    Message(Bytes),
    Idle {
        closing_since: Option<Instant>,
    },
    Close(CloseFrame),
    /// The connection is not in use any more.
    Gone,
}

impl Shared {
    pub(crate) fn new(scheduler: Scheduler, resumable: Option<Resumable>) -> Arc<Shared> {
        let counts = resumable.is_some();
        let relays = RelayQueue::default();
        Arc::new(Shared {
            outbox: Mutex::new(Outbox {
                scheduler,
                relays,
                closing: None,
                resumable,
                bulk: None,
                returned: None,
                last_bulk: 0,
            }),
            began: Instant::now(),
            credit: Mutex::new(ReceiveCredit::default()),
            work: Notify::new(),
            bulk_work: Notify::new(),
            room: Notify::new(),
            desk: Mutex::default(),
            end: watch::Sender::new(None),
            standing: watch::Sender::new(Standing::FIRST),
            counts,
            control_backlog: AtomicUsize::new(0),
            pings: Mutex::new(HashMap::new()),
            next_ping: AtomicU64::new(1),
            dialled: Mutex::default(),
            is_bulk_apart: AtomicBool::new(false),
            pace: Mutex::new(Pace::new(Instant::now())),
            passed_on: AtomicU64::new(0),
        })
    }

    pub(crate) fn outbox(&self) -> MutexGuard<'_, Outbox> {
        // A panic while the lock is held leaves queues, not torn values; the link then ends by its own deadlines.
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, outgoing: Outgoing) -> Result<(), LinkError> {
        let mut outbox = self.outbox();
        self.check_open(&outbox)?;
        outbox.scheduler.push(outgoing)?;
        drop(outbox);
        self.work.notify_one();
        Ok(())
    }

    pub(crate) async fn push_when_room(&self, outgoing: Outgoing) -> Result<(), LinkError> {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            {
                let mut outbox = self.outbox();
                self.check_open(&outbox)?;
                if outbox.scheduler.has_room(outgoing.kind, outgoing.bytes.len()) {
                    outbox.scheduler.push(outgoing)?;
                    break;
                }
            }
            room.await;
        }
        self.work.notify_one();
        Ok(())
    }

    /// What to write now on a connection; called when the socket is ready, so that the choice is as late as it can be.
    pub(crate) fn next(&self, connection: u64, close_drain: Duration) -> Next {
        let mut outbox = self.outbox();
        if !self.is_in_use(connection) {
            return Next::Gone;
        }
        let overdue = outbox.closing.as_ref().is_some_and(|closing| closing.since.elapsed() >= close_drain);
        if !overdue && let Some(message) = outbox.next_message() {
            return Next::Message(message);
        }
        match &outbox.closing {
            Some(closing) if overdue || outbox.scheduler.is_empty() => Next::Close(closing.frame.clone()),
            closing => Next::Idle { closing_since: closing.as_ref().map(|closing| closing.since) },
        }
    }

    pub(crate) fn close(&self, frame: CloseFrame) {
        self.outbox().closing.get_or_insert_with(|| Closing { frame, since: Instant::now() });
        if !self.is_whole() {
            // Nobody writes what is queued any more.
            self.finish(LinkError::Ended);
        }
        self.work.notify_one();
        self.room.notify_waiters();
    }

    /// Ends the link for a reason: the queues are dropped, the other side is told if it is its to know.
    pub(crate) fn fail(&self, error: LinkError) {
        self.outbox().last_words(&error);
        self.finish(error);
        self.work.notify_one();
        self.room.notify_waiters();
    }

    /// Records how the link ended; the first one counts.
    pub(crate) fn finish(&self, error: LinkError) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(error);
            first
        });
        self.outbox().let_go();
        self.room.notify_waiters();
    }

    pub(crate) fn end(&self) -> Option<LinkError> {
        self.end.borrow().clone()
    }

    pub(crate) async fn ended(&self) -> LinkError {
        let mut end = self.end.subscribe();
        match end.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(LinkError::Ended),
            Err(_) => LinkError::Ended,
        }
    }

    /// Books an arrived frame against the credit that was granted.
    pub(crate) fn received(&self, lane: Lane, payload_bytes: u32) -> Result<(), FrameError> {
        self.credit().received(lane, payload_bytes)
    }

    /// Books a payload that waits for the application.
    pub(crate) fn arrived(&self, payload: &Payload) -> Result<(), FrameError> {
        if payload.lane() == Lane::Control {
            let waiting = self.control_backlog.fetch_add(payload.bytes.len(), Ordering::Relaxed);
            if waiting + payload.bytes.len() > MAX_CONTROL_BACKLOG_BYTES {
                return Err(FrameError::ControlBacklog { limit: MAX_CONTROL_BACKLOG_BYTES });
            }
        }
        Ok(())
    }

    /// Books a payload that the application took; grants credit when enough is due.
    pub(crate) fn consumed(&self, payload: &Payload) {
        let lane = payload.lane();
        if lane == Lane::Control {
            self.control_backlog.fetch_sub(payload.bytes.len(), Ordering::Relaxed);
            return;
        }
        let now = self.began.elapsed();
        // Before the grant, or the answer would always stand behind the bulk that the grant lets go.
        let measured_here = lane == Lane::Bulk && !self.is_bulk_apart.load(Ordering::Relaxed);
        if measured_here && self.credit().bulk_window().ping_due(now) {
            self.measure();
        }
        if lane == Lane::Dispatch && !self.is_bulk_apart.load(Ordering::Relaxed) {
            self.credit().bulk_window().passed(payload.cost);
        }
        let grant = self.credit().consumed(lane, payload.cost, now);
        if let Some(bytes) = grant {
            // Fails only on a link that is closing, which needs no credit.
            let _ = self.push(Outgoing::new(Kind::Credit, PAIR_STREAM, Credit { lane, bytes }.encode()));
        }
    }

    /// Sends a ping to the other end whose answer the bulk window learns from.
    pub(crate) fn measure(&self) {
        let number = self.next_ping.fetch_add(1, Ordering::Relaxed);
        // Booked before it is sent: the answer may come on another thread before this one goes on.
        self.credit().bulk_window().pinged(number, self.began.elapsed());
        let _ = self.push(Outgoing::new(Kind::Ping, PAIR_STREAM, Ping { number }.encode()));
    }

    fn credit(&self) -> MutexGuard<'_, ReceiveCredit> {
        // As with the outbox: a panic leaves counts, which the other side's own account then contradicts.
        self.credit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn granted(&self, lane: Lane, bytes: u32) -> Result<(), FrameError> {
        self.outbox().scheduler.grant(lane, bytes)?;
        self.work.notify_one();
        Ok(())
    }

    /// Books steps of the holder's. Until when it is not to be read, where it owes some.
    pub(crate) fn spend(&self, steps: u64) -> Option<Instant> {
        if steps == 0 {
            return None;
        }
        let earned = self.passed_on.swap(0, Ordering::Relaxed).saturating_mul(STEPS_EARNED_BY_A_FRAME);
        // As with the outbox: a panic leaves numbers.
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.spend(steps, earned, Instant::now())
    }

    /// Sends a ping that nobody waits for.
    pub(crate) fn ping(&self, stream: u32) {
        self.report();
        let number = self.next_ping.fetch_add(1, Ordering::Relaxed);
        let _ = self.push(Outgoing::new(Kind::Ping, stream, Ping { number }.encode()));
    }

    /// Answers a ping, unless the other side leaves so much unread that an answer tells it nothing.
    pub(crate) fn answer_ping(&self, stream: u32, ping: Ping) {
        if stream == HUB_STREAM {
            self.report();
        }
        if self.outbox().scheduler.queued_bytes(Lane::Control) < PONG_QUEUE_BYTES {
            let _ = self.push(Outgoing::new(Kind::Pong, stream, ping.encode()));
        }
    }

    pub(crate) fn pong(&self, ping: Ping) {
        if self.credit().bulk_window().answered(ping.number, self.began.elapsed()) {
            return;
        }
        // One that nobody waits for is only a sign of life.
        let waiter = self.pings.lock().unwrap_or_else(PoisonError::into_inner).remove(&ping.number);
        if let Some(waiter) = waiter {
            let _ = waiter.answer.send(waiter.sent.elapsed());
        }
    }

    pub(crate) async fn round_trip(&self, stream: u32, within: Duration) -> Result<Duration, LinkError> {
        let number = self.next_ping.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let pings = || self.pings.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut pings = pings();
            // Those whose caller went away.
            pings.retain(|_, waiter| !waiter.answer.is_closed());
            pings.insert(number, PingWaiter { sent: Instant::now(), answer });
        }
        let result = match self.push(Outgoing::new(Kind::Ping, stream, Ping { number }.encode())) {
            Err(error) => Err(error),
            Ok(()) => tokio::select! {
                answer = tokio::time::timeout(within, answered) => match answer {
                    Ok(Ok(time)) => Ok(time),
                    _ => Err(LinkError::TimedOut { what: "the answer to a ping", within }),
                },
                error = self.ended() => Err(error),
            },
        };
        pings().remove(&number);
        result
    }

    fn check_open(&self, outbox: &Outbox) -> Result<(), LinkError> {
        if let Some(end) = self.end() {
            return Err(end);
        }
        if outbox.closing.is_some() { Err(LinkError::Ended) } else { Ok(()) }
    }
}

impl Outbox {
    /// The link ends: nothing is kept for it, and nothing is passed on any more.
    fn let_go(&mut self) {
        self.relays = RelayQueue::default();
        self.bulk = None;
        self.returned = None;
        self.skip_what_was_written();
    }

    /// Drops what is queued and leaves what the other side is to know of the error, and a close.
    fn last_words(&mut self, error: &LinkError) {
        if self.closing.is_some() {
            return;
        }
        self.scheduler.discard();
        self.let_go();
        if let Some(refusal) = error.for_peer() {
            // The queue is empty, so this cannot fail for want of room.
            let _ = self.scheduler.push(Outgoing::new(Kind::Refuse, HUB_STREAM, refusal.encode()));
        }
        self.closing = Some(Closing { frame: close_frame(error), since: Instant::now() });
    }
}

/// Control payloads queued from which on pings are not answered: 4,096 pongs. Each is 8 bytes and takes nine times as much to keep, so
/// that the queue's own limit would let a peer that pings and never reads fill 40 MiB.
const PONG_QUEUE_BYTES: usize = 32 * 1024;

pub(crate) fn normal_close() -> CloseFrame {
    CloseFrame { code: CloseCode::Normal, reason: "".into() }
}

/// Close code and reason of a link that ends for `error`: 4000 and the number of the refusal, its name as reason.
pub(crate) fn close_frame(error: &LinkError) -> CloseFrame {
    match error.for_peer() {
        Some(refusal) => CloseFrame {
            code: CloseCode::from(4000 + refusal.code as u16),
            reason: refusal.code.name().into(),
        },
        None => normal_close(),
    }
}
