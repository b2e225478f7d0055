//! The writer task of a connection: the highest lane with credit at every write, a flush when nothing is left, a deadline
//! on all of it.

use std::future::poll_fn;
use std::sync::Arc;

use futures_util::stream::SplitSink;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::desk::{Desk, Route, Written};
use crate::error::LinkError;
use crate::options::LinkOptions;
use crate::shared::Shared;

/// Writes until the link is closed or the connection fails. Then the link has ended, unless it can go on over another one.
pub(crate) async fn write<S>(
    sink: SplitSink<WebSocketStream<S>, Message>,
    shared: Arc<Shared>,
    options: LinkOptions,
    connection: u64,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let desk = Arc::new(Desk::new(sink, Route::First(connection), options.close_drain));
    shared.writes_at(&desk);
    let ended = match pump(&desk, &shared, &options).await {
        Ok(()) => Err(LinkError::Ended),
        Err(error) => shared.cut(connection, error),
    };
    if let Err(error) = ended {
        shared.finish(error);
    }
}

/// Writes bulk on a second connection until it carries none any more, or fails.
pub(crate) async fn write_bulk<S>(
    sink: SplitSink<WebSocketStream<S>, Message>,
    shared: &Shared,
    options: &LinkOptions,
    connection: u32,
) -> LinkError
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let desk = Desk::new(sink, Route::Bulk(connection), options.close_drain);
    match pump(&desk, shared, options).await {
        Ok(()) => LinkError::Ended,
        Err(error) => error,
    }
}

async fn pump<S>(desk: &Desk<S>, shared: &Shared, options: &LinkOptions) -> Result<(), LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let stalled = |_| LinkError::Stalled(options.write_stall);
    let work = match desk.route {
        Route::First(_) => &shared.work,
        Route::Bulk(_) => &shared.bulk_work,
    };
    loop {
        let written = poll_fn(|context| desk.poll_write(context, shared));
        match timeout(options.write_stall, written).await.map_err(stalled)?? {
            Written::Something => {}
            Written::Nothing { closing_since: None } => work.notified().await,
            Written::Nothing { closing_since: Some(since) } => tokio::select! {
                () = work.notified() => {}
                () = sleep_until(since + options.close_drain) => {}
            },
            Written::Close(frame) => {
                let mut frame = Some(frame);
                let closed = poll_fn(|context| desk.poll_close(context, &mut frame));
                timeout(options.close_linger, closed).await.map_err(stalled)??;
                return Ok(());
            }
            Written::Gone => return Err(LinkError::Ended),
        }
    }
}
