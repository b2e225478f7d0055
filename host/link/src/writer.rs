//! The writer task of a connection: the highest lane with credit at every write, a flush when nothing is left, a deadline
//! on all of it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::stream::SplitSink;
use futures_util::{Sink as _, SinkExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::error::LinkError;
use crate::options::LinkOptions;
use crate::shared::{Next, Shared};

/// Which connection of a link is written on.
#[derive(Debug, Clone, Copy)]
enum Route {
    /// Its own, the one of this number.
    First(u64),
    /// A second one for bulk, the one of this number.
    Bulk(u32),
}

/// Writes until the link is closed or the connection fails. Then the link has ended, unless it can go on over another one.
pub(crate) async fn write<S>(
    mut sink: SplitSink<WebSocketStream<S>, Message>,
    shared: Arc<Shared>,
    options: LinkOptions,
    connection: u64,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let ended = match pump(&mut sink, &shared, &options, Route::First(connection)).await {
        Ok(()) => Err(LinkError::Ended),
        Err(error) => shared.cut(connection, error),
    };
    if let Err(error) = ended {
        shared.finish(error);
    }
}

/// Writes bulk on a second connection until it carries none any more, or fails.
pub(crate) async fn write_bulk<S>(
    mut sink: SplitSink<WebSocketStream<S>, Message>,
    shared: &Shared,
    options: &LinkOptions,
    connection: u32,
) -> LinkError
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match pump(&mut sink, shared, options, Route::Bulk(connection)).await {
        Ok(()) => LinkError::Ended,
        Err(error) => error,
    }
}

async fn pump<S>(
    sink: &mut SplitSink<WebSocketStream<S>, Message>,
    shared: &Shared,
    options: &LinkOptions,
    route: Route,
) -> Result<(), LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let stalled = |_| LinkError::Stalled(options.write_stall);
    let mut unflushed = false;
    loop {
        // First wait for the socket, then choose: whatever became urgent meanwhile goes first.
        let ready = std::future::poll_fn(|cx| Pin::new(&mut *sink).poll_ready(cx));
        timeout(options.write_stall, ready).await.map_err(stalled)??;
        let (next, work) = match route {
            Route::First(connection) => (shared.next(connection, options.close_drain), &shared.work),
            Route::Bulk(connection) => (shared.next_bulk(connection), &shared.bulk_work),
        };
        match next {
            Next::Message(bytes) => {
                Pin::new(&mut *sink).start_send(Message::Binary(bytes))?;
                unflushed = true;
                shared.room.notify_waiters();
            }
            Next::Idle { .. } if unflushed => {
                // Who flushes is remembered, and woken by whatever comes on the connection next: this task for nothing, and for it
                // another thread of the runtime, since two tasks could run then. Nearly always there is nothing to be woken for.
                let flushed = Pin::new(&mut *sink).poll_flush(&mut Context::from_waker(Waker::noop()));
                match flushed {
                    Poll::Ready(flushed) => flushed?,
                    Poll::Pending => timeout(options.write_stall, sink.flush()).await.map_err(stalled)??,
                }
                unflushed = false;
            }
            Next::Idle { closing_since: None } => work.notified().await,
            Next::Idle { closing_since: Some(since) } => tokio::select! {
                () = work.notified() => {}
                () = sleep_until(since + options.close_drain) => {}
            },
            Next::Close(frame) => {
                timeout(options.close_linger, sink.send(Message::Close(Some(frame))))
                    .await
                    .map_err(stalled)??;
                return Ok(());
            }
            Next::Gone => return Err(LinkError::Ended),
        }
    }
}
