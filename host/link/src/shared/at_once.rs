//! What the thread that sends it writes itself.
//!
//! A thread that computes, sends and then waits for the answer gains the time that the task that writes takes to wake: on a machine
//! that is idle meanwhile that is more than a small message takes to write. At the hub it is the way through that task.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use kvasir_wire::schedule::Outgoing;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Outbox, Shared};
use crate::desk::{Desk, WriteHere};
use crate::error::LinkError;
use crate::relay::Relay;

/// Bytes of a payload or message up to which it is written at once. A larger one takes longer to write than a task to wake, and who
/// sends it has better to do meanwhile.
const AT_ONCE_BYTES: usize = 16 * 1024;

impl Shared {
    /// Queues a payload, and writes it on this thread where nothing else waits and the connection takes it now; otherwise the task
    /// that writes does.
    pub(crate) fn push_at_once(&self, outgoing: Outgoing) -> Result<(), LinkError> {
        let is_small = outgoing.bytes.len() <= AT_ONCE_BYTES;
        let is_first = {
            let mut outbox = self.outbox();
            self.check_open(&outbox)?;
            let is_first = outbox.is_empty();
            outbox.scheduler.push(outgoing)?;
            is_first
        };
        if !(is_small && is_first && self.write_here()) {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Queues a message to pass on, waiting while the queue is full; writes it likewise, unless it is bulk, which waits for whatever is
    /// urgent.
    pub(crate) async fn relay(&self, relay: Relay) -> Result<(), LinkError> {
        let is_small = relay.len() <= AT_ONCE_BYTES && !relay.is_bulk_alone();
        let answerable = relay.answerable();
        let is_first = loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            {
                let mut outbox = self.outbox();
                self.check_open(&outbox)?;
                if outbox.has_room(&relay) {
                    let is_first = outbox.is_empty();
                    outbox.pass_on(relay);
                    break is_first;
                }
            }
            room.await;
        };
        self.passed_on.fetch_add(answerable, Ordering::Relaxed);
        if !(is_small && is_first && self.write_here()) {
            self.work.notify_one();
            self.bulk_work.notify_one();
        }
        Ok(())
    }

    /// The task that writes on a connection begins.
    pub(crate) fn writes_at<S>(&self, desk: &Arc<Desk<S>>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let desk = Arc::downgrade(desk);
        let desk: Weak<dyn WriteHere> = desk;
        *self.desk() = Some(desk);
    }

    /// Whether something is queued, or the link is closing.
    pub(crate) fn has_work(&self) -> bool {
        let outbox = self.outbox();
        outbox.closing.is_some() || !outbox.is_empty()
    }

    /// Writes a message on this thread; false where the task that writes has to be woken.
    fn write_here(&self) -> bool {
        let desk = self.desk().as_ref().and_then(Weak::upgrade);
        desk.is_some_and(|desk| desk.write_here(self))
    }

    fn desk(&self) -> MutexGuard<'_, Option<Weak<dyn WriteHere>>> {
        // One pointer, whole at any time.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outbox {
    /// Whether nothing is queued for the link's own connection.
    fn is_empty(&self) -> bool {
        self.scheduler.is_empty() && self.relays.is_empty()
    }
}
