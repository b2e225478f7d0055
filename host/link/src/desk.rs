//! What is written with on a connection: its half of the WebSocket, and what was begun there.
//!
//! The task that writes has it nearly always to itself. Another thread may take it for a moment ([`WriteHere`]), but only while that
//! task waits for nothing but work: of those who wait for one socket the last alone is woken, so that there may be one.

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures_util::Sink as _;
use futures_util::stream::SplitSink;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use crate::error::LinkError;
use crate::shared::{Next, Shared};

/// Which connection of a link is written on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Route {
    /// Its own, the one of this number.
    First(u64),
    /// A second one for bulk, the one of this number.
    Bulk(u32),
}

/// What came of a look at what there is to write.
pub(crate) enum Written {
    /// A message was written, or all that were are flushed: look again.
    Something,
    /// There is nothing to write, and nothing that is not flushed.
    Nothing { closing_since: Option<Instant> },
    /// A close is next.
    Close(CloseFrame),
    /// The connection is not in use any more.
    Gone,
}

/// The writing half of a connection, for the task that writes and for who writes in its stead.
pub(crate) struct Desk<S> {
    pub(crate) route: Route,
    /// What is queued when a link is closed in order must be written within this.
    close_drain: Duration,
    pen: Mutex<Pen<S>>,
}

struct Pen<S> {
    sink: SplitSink<WebSocketStream<S>, Message>,
    /// Something was written since the last flush.
    is_unflushed: bool,
    /// A flush was begun and is not done: nothing more is chosen before it is.
    is_flushing: bool,
    /// The task that writes waits for the socket.
    is_awaited: bool,
    /// What another thread met when it wrote; the task that writes ends with it.
    failed: Option<LinkError>,
}

impl<S> Desk<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    pub(crate) fn new(
        sink: SplitSink<WebSocketStream<S>, Message>,
        route: Route,
        close_drain: Duration,
    ) -> Self {
        let pen = Pen { sink, is_unflushed: false, is_flushing: false, is_awaited: false, failed: None };
        Desk { route, close_drain, pen: Mutex::new(pen) }
    }

    /// For the task that writes: writes a message, or flushes, or says why there is neither to do.
    pub(crate) fn poll_write(
        &self,
        context: &mut Context<'_>,
        shared: &Shared,
    ) -> Poll<Result<Written, LinkError>> {
        let mut pen = self.pen();
        let written = pen.poll_write(context, || self.next(shared));
        pen.is_awaited = written.is_pending();
        written
    }

    /// For the task that writes: writes a close, which is the last that it writes.
    pub(crate) fn poll_close(
        &self,
        context: &mut Context<'_>,
        frame: &mut Option<CloseFrame>,
    ) -> Poll<Result<(), LinkError>> {
        let mut pen = self.pen();
        pen.is_awaited = true;
        pen.poll_close(context, frame)
    }

    fn next(&self, shared: &Shared) -> Next {
        let next = match self.route {
            Route::First(connection) => shared.next(connection, self.close_drain),
            Route::Bulk(connection) => shared.next_bulk(connection),
        };
        if matches!(next, Next::Message(_)) {
            shared.room.notify_waiters();
        }
        next
    }

    fn pen(&self) -> MutexGuard<'_, Pen<S>> {
        // A panic of whoever wrote leaves a WebSocket that is as whole as after an error.
        self.pen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writing on another thread than that of the task that writes.
pub(crate) trait WriteHere: Send + Sync {
    /// Writes one message and flushes it, if that can be done without waiting. True where nothing is left to the task that writes; it
    /// has to be woken otherwise.
    fn write_here(&self, shared: &Shared) -> bool;
}

impl<S> WriteHere for Desk<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn write_here(&self, shared: &Shared) -> bool {
        let mut pen = match self.pen.try_lock() {
            Ok(pen) => pen,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The task that writes is at it, and looks again once it is woken.
            Err(TryLockError::WouldBlock) => return false,
        };
        if pen.is_awaited || pen.failed.is_some() {
            return false;
        }
        // What cannot be done at once is that task's to wait for.
        let mut nobody = Context::from_waker(Waker::noop());
        let written = match pen.poll_write(&mut nobody, || self.next(shared)) {
            Poll::Ready(Ok(_)) => pen.poll_flush(&mut nobody),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        };
        match written {
            Poll::Ready(Ok(())) => !shared.has_work(),
            Poll::Ready(Err(error)) => {
                pen.failed = Some(error);
                false
            }
            Poll::Pending => false,
        }
    }
}

impl<S> Pen<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        next: impl FnOnce() -> Next,
    ) -> Poll<Result<Written, LinkError>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        if self.is_flushing {
            ready!(self.poll_flush(context))?;
        }
        // First wait for the socket, then choose: whatever became urgent meanwhile goes first.
        ready!(Pin::new(&mut self.sink).poll_ready(context))?;
        Poll::Ready(Ok(match next() {
            Next::Message(bytes) => {
                Pin::new(&mut self.sink).start_send(Message::Binary(bytes))?;
                self.is_unflushed = true;
                Written::Something
            }
            Next::Idle { .. } if self.is_unflushed => {
                // What is not flushed at once is waited for at the next look, which has a deadline of its own.
                if let Poll::Ready(flushed) = self.poll_flush(context) {
                    flushed?;
                }
                Written::Something
            }
            Next::Idle { closing_since } => Written::Nothing { closing_since },
            Next::Close(frame) => Written::Close(frame),
            Next::Gone => Written::Gone,
        }))
    }

    fn poll_close(
        &mut self,
        context: &mut Context<'_>,
        frame: &mut Option<CloseFrame>,
    ) -> Poll<Result<(), LinkError>> {
        if frame.is_some() {
            ready!(Pin::new(&mut self.sink).poll_ready(context))?;
            Pin::new(&mut self.sink).start_send(Message::Close(frame.take()))?;
        }
        self.poll_flush(context)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        // Who flushes is remembered, and woken by whatever comes on the connection next: the task that writes for nothing, and for it
        // another thread of the runtime, since two tasks could run then. Nearly always there is nothing to be woken for.
        let mut nobody = Context::from_waker(Waker::noop());
        let mut flushed = Pin::new(&mut self.sink).poll_flush(&mut nobody);
        if flushed.is_pending() {
            flushed = Pin::new(&mut self.sink).poll_flush(context);
        }
        self.is_flushing = flushed.is_pending();
        self.is_unflushed = self.is_flushing;
        flushed.map_err(LinkError::from)
    }
}
