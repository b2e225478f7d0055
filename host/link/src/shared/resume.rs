//! A link that outlives its connection: which one it has, what is written again on the next, and how long it waits for it.
//!
//! A link that was admitted with `resume` counts its messages from its admission on. Once it is armed, which is when a
//! session has begun on it, the loss of a connection does not end it: what is queued stays queued, and what was written
//! and not acknowledged is written again when [`Shared::attach`] names another connection. One connection is in use at a
//! time, the newest; whatever an older one still brings is dropped.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kvasir_wire::frame::{FrameError, HUB_STREAM, Kind, Lane};
use kvasir_wire::id::SessionId;
use kvasir_wire::limits::MAX_REPLAY_BYTES;
use kvasir_wire::message::Ack;
use kvasir_wire::replay::Replay;
use kvasir_wire::schedule::{Outgoing, Scheduler};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tokio_tungstenite::tungstenite::Bytes;

use super::kept::{BUDGET, Share, copied_if_small};
use super::{Outbox, PONG_QUEUE_BYTES, Shared};
use crate::error::LinkError;
use crate::reader::MessageStream;

/// Which connection a link has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Its number, from 0.
    pub connection: u64,
    /// False while it is gone and another one has not come.
    pub is_whole: bool,
}

impl Standing {
    pub(crate) const FIRST: Standing = Standing { connection: 0, is_whole: true };
}

/// What a link keeps in order to go on over another connection.
pub(crate) struct Resumable {
    replay: Replay<Bytes>,
    /// What of all that is kept in this process is this link's.
    share: Share,
    /// The session that began on it. Without one there is nothing to go on with.
    session: Option<SessionId>,
    /// At the hub: how long another connection is waited for. An end dials by itself, and knows when to stop.
    wait: Option<Duration>,
    /// Why the connection is gone.
    why: Option<LinkError>,
    /// The task that writes on the connection.
    writer: Option<AbortHandle>,
    /// At the hub: the new connection, until the reader takes it.
    fresh: Option<(u64, MessageStream)>,
}

impl Resumable {
    /// Nothing was sent yet, and `received` messages have come.
    pub(crate) fn new(received: u64, wait: Option<Duration>) -> Self {
        let replay = Replay::new(received, MAX_REPLAY_BYTES);
        let share = Share::of(&BUDGET);
        Resumable { replay, share, session: None, wait, why: None, writer: None, fresh: None }
    }

    /// Keeps a message that is about to be written.
    fn keep(&mut self, message: &Bytes) {
        self.replay.push(copied_if_small(message));
        self.fit();
    }

    /// Gives the oldest up where the others keep so much that less is left for this link.
    fn fit(&mut self) {
        self.replay.keep_at_most(self.share.most());
        self.share.set(self.replay.kept_bytes());
    }

    /// Keeps nothing any more: the link ends.
    fn let_go(&mut self) {
        self.replay.clear();
        self.share.set(0);
    }

    /// The other side says how many messages it has.
    fn acknowledge(&mut self, received: u64) -> Result<(), FrameError> {
        self.replay.acknowledge(received)?;
        self.share.set(self.replay.kept_bytes());
        Ok(())
    }

    /// Another connection begins, and the other side says how many messages it has.
    fn resume(&mut self, received: u64) -> Result<(), FrameError> {
        self.replay.resume(received)?;
        self.share.set(self.replay.kept_bytes());
        Ok(())
    }
}

impl fmt::Debug for Resumable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resumable").field("kept_bytes", &self.replay.kept_bytes()).finish_non_exhaustive()
    }
}

impl Outbox {
    /// What is written next: what is written again, then the lanes in their order, then what is passed on.
    pub(super) fn next_message(&mut self) -> Option<Bytes> {
        if let Some(again) = self.resumable.as_mut().and_then(|resumable| resumable.replay.again()) {
            return Some(again);
        }
        let message = self.scheduler.next_message().map(Bytes::from).or_else(|| self.relays.pop())?;
        self.count_returned();
        if let Some(resumable) = &mut self.resumable {
            resumable.keep(&message);
        }
        Some(message)
    }

    /// Nothing is written again, and nothing is kept for it: the link ends.
    pub(super) fn skip_what_was_written(&mut self) {
        if let Some(resumable) = &mut self.resumable {
            resumable.let_go();
        }
    }
}

impl Shared {
    /// Whether this is the connection to write on now.
    pub(crate) fn is_in_use(&self, connection: u64) -> bool {
        *self.standing.borrow() == Standing { connection, is_whole: true }
    }

    /// Whether there is a connection.
    pub(crate) fn is_whole(&self) -> bool {
        self.standing.borrow().is_whole
    }

    /// Follows which connection there is.
    pub(crate) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// Returns once this connection is not the one in use any more.
    pub(crate) async fn broken(&self, connection: u64) {
        let mut standing = self.standing.subscribe();
        let here = Standing { connection, is_whole: true };
        if standing.wait_for(|now| *now != here).await.is_err() {
            std::future::pending().await
        }
    }

    /// A session has begun: from now on the link outlives its connection. False where it was not admitted to.
    pub(crate) fn arm(&self, session: SessionId) -> bool {
        match &mut self.outbox().resumable {
            Some(resumable) => {
                resumable.session = Some(session);
                true
            }
            None => false,
        }
    }

    /// The session to go on with, and how many messages have come on this link, which the other side is told now.
    pub(crate) fn to_resume(&self) -> Option<(SessionId, u64)> {
        let mut outbox = self.outbox();
        let resumable = outbox.resumable.as_mut()?;
        Some((resumable.session?, resumable.replay.tell()))
    }

    /// Why the connection is gone.
    pub(crate) fn why_cut(&self) -> LinkError {
        let outbox = self.outbox();
        let why = outbox.resumable.as_ref().and_then(|resumable| resumable.why.clone());
        why.unwrap_or_else(|| LinkError::Lost("the connection was cut".to_owned()))
    }

    /// Remembers the task that writes on a connection. It ends with the connection.
    pub(crate) fn writes(&self, connection: u64, writer: AbortHandle) {
        let mut outbox = self.outbox();
        if !self.is_in_use(connection) {
            writer.abort();
        } else if let Some(resumable) = &mut outbox.resumable {
            resumable.writer = Some(writer);
        }
    }

    /// A connection is gone. Gives the error back where that ends the link; else the link waits for another connection.
    pub(crate) fn cut(self: &Arc<Self>, connection: u64, error: LinkError) -> Result<(), LinkError> {
        let wait = {
            let mut outbox = self.outbox();
            let closing = outbox.closing.is_some();
            let Some(resumable) = &mut outbox.resumable else { return Err(error) };
            if !self.is_in_use(connection) {
                // Known already, or an older one: nothing is lost with it. But whoever writes may find a connection closed before
                // whoever reads has said that the other side closed it for good.
                let gone = *self.standing.borrow() == Standing { connection, is_whole: false };
                let for_good = matches!(error, LinkError::Closed { .. }) && !is_cut(&error);
                return if gone && for_good { Err(error) } else { Ok(()) };
            }
            if closing || self.end().is_some() || resumable.session.is_none() || !is_cut(&error) {
                return Err(error);
            }
            if let Some(writer) = resumable.writer.take() {
                writer.abort();
            }
            resumable.why = Some(error.clone());
            self.standing.send_replace(Standing { connection, is_whole: false });
            resumable.wait
        };
        tracing::debug!(%error, "the connection is gone; the link waits for another");
        if let Some(wait) = wait {
            tokio::spawn(Arc::clone(self).wait_for_another(connection, wait, error));
        }
        Ok(())
    }

    /// Another connection takes the place of the one that there was, if the other side's count of messages allows it. Gives
    /// its number and how many messages have come; from now on none is taken from older connections.
    pub(crate) fn attach(&self, received: u64) -> Result<(u64, u64), LinkError> {
        let mut outbox = self.outbox();
        self.check_open(&outbox)?;
        let Some(resumable) = outbox.resumable.as_mut().filter(|resumable| resumable.session.is_some())
        else {
            return Err(LinkError::Ended);
        };
        resumable.resume(received)?;
        if let Some(writer) = resumable.writer.take() {
            writer.abort();
        }
        resumable.fresh = None;
        let here = resumable.replay.tell();
        let connection = self.standing.borrow().connection + 1;
        self.standing.send_replace(Standing { connection, is_whole: true });
        Ok((connection, here))
    }

    /// Leaves the reading half of a new connection to the task that reads.
    pub(crate) fn hand_over(&self, connection: u64, stream: MessageStream) {
        let mut outbox = self.outbox();
        if self.is_in_use(connection)
            && let Some(resumable) = &mut outbox.resumable
        {
            resumable.fresh = Some((connection, stream));
        }
        // As it was, but whoever follows it looks.
        self.standing.send_modify(|_| {});
    }

    /// The reading half of a new connection, if there is one.
    pub(crate) fn take_fresh(&self) -> Option<(u64, MessageStream)> {
        self.outbox().resumable.as_mut()?.fresh.take()
    }

    /// Books a message that came on a connection. False if another one has taken its place: then it comes again there, and
    /// must be dropped here.
    pub(crate) fn took(&self, connection: u64, bytes: usize) -> bool {
        if !self.counts {
            return true;
        }
        let mut outbox = self.outbox();
        let Outbox { resumable: Some(resumable), scheduler, .. } = &mut *outbox else { return true };
        if self.standing.borrow().connection != connection {
            return false;
        }
        resumable.fit();
        if resumable.replay.receive(bytes) {
            tell(resumable, scheduler);
            drop(outbox);
            self.work.notify_one();
        }
        true
    }

    /// Tells the other side what has come, however little: when a link is silent there is nothing else to tell it by.
    pub(super) fn report(&self) {
        let mut outbox = self.outbox();
        let Outbox { resumable: Some(resumable), scheduler, .. } = &mut *outbox else { return };
        resumable.fit();
        if resumable.replay.is_untold() {
            tell(resumable, scheduler);
        }
    }

    /// Books what the other side says has come.
    pub(crate) fn acknowledged(&self, ack: Ack) -> Result<(), LinkError> {
        match &mut self.outbox().resumable {
            Some(resumable) => Ok(resumable.acknowledge(ack.received)?),
            None => Err(LinkError::Unexpected {
                found: "ack".to_owned(),
                expected: "no count of messages, since the link was not admitted with one,",
            }),
        }
    }

    /// Gives the other side so much time to come back. Nobody waits for longer than there is something to wait for, since whoever
    /// waits keeps the link.
    async fn wait_for_another(self: Arc<Self>, connection: u64, wait: Duration, error: LinkError) {
        let gone = Standing { connection, is_whole: false };
        let mut standing = self.standing.subscribe();
        tokio::select! {
            () = sleep(wait) => self.give_up(connection, error),
            _ = standing.wait_for(|now| *now != gone) => {}
            _ = self.ended() => {}
        }
    }

    /// Ends a link whose other side did not come back.
    fn give_up(&self, connection: u64, error: LinkError) {
        {
            let mut outbox = self.outbox();
            if *self.standing.borrow() != (Standing { connection, is_whole: false }) {
                return;
            }
            outbox.last_words(&error);
        }
        self.finish(error);
    }
}

/// Whether an error is about the connection and not about what was said on it.
pub(crate) fn is_cut(error: &LinkError) -> bool {
    match error {
        LinkError::Lost(_) | LinkError::Silent(_) | LinkError::Stalled(_) | LinkError::TimedOut { .. } => {
            true
        }
        LinkError::Closed { code, .. } => closed_by_chance(*code),
        _ => false,
    }
}

/// Whether a close came from something in between that goes away or loses what is behind it: without a code, "going away", "internal
/// error", "service restart" and "try again later" (RFC 6455, section 7.4, and the codes registered since). The two sides of a link
/// close with 1000, or 4000 and the number of a refusal. The "bad gateway" of some, 1014, is none that the WebSocket below knows.
fn closed_by_chance(code: u16) -> bool {
    matches!(code, 1001 | 1005 | 1011..=1013)
}

/// Where the other side leaves much unread, it is told later.
fn tell(resumable: &mut Resumable, scheduler: &mut Scheduler) {
    if scheduler.queued_bytes(Lane::Control) < PONG_QUEUE_BYTES {
        let ack = Ack { received: resumable.replay.tell() };
        let _ = scheduler.push(Outgoing::new(Kind::Ack, HUB_STREAM, ack.encode()));
    }
}

#[cfg(test)]
mod tests {
    use kvasir_wire::limits::MAX_MESSAGE_BYTES;

    use super::super::kept::{Budget, KEPT_IN_ANY_CASE_BYTES};
    use super::*;

    const MEBIBYTE: usize = 1024 * 1024;

    /// Links without a socket that keep what they write within this budget.
    fn links(count: usize, budget: &'static Budget) -> Vec<Resumable> {
        let link = || Resumable { share: Share::of(budget), ..Resumable::new(0, None) };
        std::iter::repeat_with(link).take(count).collect()
    }

    #[test]
    fn what_links_keep_whose_peers_acknowledge_nothing_has_a_bound_for_all_of_them_together() {
        const BYTES: usize = 8 * MEBIBYTE;
        static SMALL: Budget = Budget::of(BYTES);
        let message = Bytes::from(vec![7; MAX_MESSAGE_BYTES]);
        let mut links = links(8, &SMALL);
        for _ in 0..64 {
            for link in &mut links {
                link.keep(&message);
            }
        }
        let kept: usize = links.iter().map(|link| link.replay.kept_bytes()).sum();
        assert_eq!(SMALL.kept(), kept);
        assert!(kept <= BYTES + links.len() * KEPT_IN_ANY_CASE_BYTES, "{kept}");
        for link in &mut links {
            assert!(link.resume(0).is_err(), "the oldest are given up");
            link.resume(63).unwrap();
            assert_eq!(link.replay.again(), Some(message.clone()), "and the latest is there");
        }
        let mut last = links.pop().unwrap();
        drop(links);
        for _ in 0..8 {
            last.keep(&message);
        }
        assert!(last.replay.kept_bytes() >= 8 * MAX_MESSAGE_BYTES, "what the others kept is free again");
        last.acknowledge(72).unwrap();
        assert_eq!(SMALL.kept(), 0);
    }

    #[test]
    fn links_whose_peers_acknowledge_nothing_leave_room_for_one_that_is_in_order() {
        static ALL: Budget = Budget::of(512 * MEBIBYTE);
        let message = Bytes::from(vec![7; MAX_MESSAGE_BYTES]);
        let mut hogs = links(128, &ALL);
        // One after the other, so that the first found all of it free.
        for hog in &mut hogs {
            for _ in 0..MAX_REPLAY_BYTES / MAX_MESSAGE_BYTES {
                hog.keep(&message);
            }
        }
        // The next ping, or whatever comes from there.
        hogs.iter_mut().for_each(Resumable::fit);
        let mut newcomer = links(1, &ALL);
        let count = 2 * MEBIBYTE / MAX_MESSAGE_BYTES;
        for _ in 0..count {
            newcomer[0].keep(&message);
        }
        newcomer[0].resume(0).unwrap();
        assert_eq!(std::iter::from_fn(|| newcomer[0].replay.again()).count(), count, "2 MiB, whole");
        assert!(ALL.kept() <= 512 * MEBIBYTE);
    }

    /// A link in a session, whose other side is waited for so long.
    fn in_session(resumable: Resumable) -> Arc<Shared> {
        let shared = Shared::new(Scheduler::new(), Some(resumable));
        assert!(shared.arm(SessionId([3; 32])));
        shared
    }

    #[tokio::test]
    async fn a_link_that_has_ended_keeps_nothing_and_nobody_waits_for_its_other_side() {
        static SMALL: Budget = Budget::of(8 * MEBIBYTE);
        let wait = Some(Duration::from_secs(3_600));
        let shared = in_session(Resumable { share: Share::of(&SMALL), ..Resumable::new(0, wait) });
        let message = Bytes::from(vec![7; MAX_MESSAGE_BYTES]);
        shared.outbox().resumable.as_mut().unwrap().keep(&message);
        assert!(SMALL.kept() > MAX_MESSAGE_BYTES);
        assert!(shared.cut(0, LinkError::Lost("a cut".to_owned())).is_ok());
        shared.fail(LinkError::Lost("the session is over".to_owned()));
        assert_eq!(SMALL.kept(), 0, "while a handle lives");
        let handle = Arc::downgrade(&shared);
        drop(shared);
        let gone = async {
            while handle.upgrade().is_some() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
    }

    #[tokio::test]
    async fn nobody_waits_any_more_for_an_other_side_that_is_back() {
        let shared = in_session(Resumable::new(0, Some(Duration::from_secs(3_600))));
        assert!(shared.cut(0, LinkError::Lost("a cut".to_owned())).is_ok());
        assert_eq!(shared.attach(0).unwrap(), (1, 0));
        let mut others = Arc::strong_count(&shared);
        let alone = async {
            while others > 1 {
                tokio::task::yield_now().await;
                others = Arc::strong_count(&shared);
            }
        };
        tokio::time::timeout(Duration::from_secs(60), alone).await.unwrap();
        assert!(shared.is_in_use(1));
    }

    #[tokio::test]
    async fn a_close_by_something_in_between_is_a_cut_and_one_by_the_other_side_is_not() {
        let closed = |code| LinkError::Closed { code, reason: String::new() };
        for code in [1001, 1005, 1011, 1012, 1013] {
            let shared = in_session(Resumable::new(0, None));
            assert!(shared.cut(0, closed(code)).is_ok(), "{code}");
        }
        for code in [1000, 1002, 1008, 4013, 4014] {
            let shared = in_session(Resumable::new(0, None));
            assert!(shared.cut(0, closed(code)).is_err(), "{code}");
            // Whoever writes was sooner.
            let shared = in_session(Resumable::new(0, None));
            assert!(shared.cut(0, LinkError::Lost("it is closed".to_owned())).is_ok());
            assert!(shared.cut(0, LinkError::Ended).is_ok(), "of whoever was sooner nothing more is heard");
            assert!(shared.cut(0, closed(code)).is_err(), "{code}");
            // Of a connection that is not the link's any more it is no news.
            shared.attach(0).unwrap();
            assert!(shared.cut(0, closed(code)).is_ok(), "{code}");
        }
    }
}
