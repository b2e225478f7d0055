//! The receiving half of an end: a task that keeps the rules of frames, credit and liveness, and a queue of payloads.
//!
//! Pings are answered, credit is booked and refusals end the link here; all other payloads reach the application. The
//! queue needs no length of its own: dispatch and bulk are bounded by the credit that is granted only as payloads are
//! taken, control by its backlog limit.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::SplitStream;
use kvasir_wire::assemble::{Assembler, Payload};
use kvasir_wire::frame::{HUB_STREAM, Kind, frames};
use kvasir_wire::message::{Credit, Ping};
use kvasir_wire::refusal::Refusal;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::error::LinkError;
use crate::liveness::{Liveness, Tick};
use crate::options::LinkOptions;
use crate::shared::{Shared, normal_close};

/// The receiving half of a link. Dropping it closes the link in order.
#[derive(Debug)]
pub struct LinkReceiver {
    pub(crate) shared: Arc<Shared>,
    pub(crate) first: VecDeque<Payload>,
    pub(crate) queue: mpsc::UnboundedReceiver<Payload>,
}

impl LinkReceiver {
    /// The next payload, in the order in which payloads became complete. Taking it grants its bytes anew to the sender.
    /// After an error the link has ended, and every further call gives the same error. Safe to cancel.
    pub async fn recv(&mut self) -> Result<Payload, LinkError> {
        let payload = match self.first.pop_front() {
            Some(payload) => payload,
            None => match self.queue.recv().await {
                Some(payload) => payload,
                None => return Err(self.shared.ended().await),
            },
        };
        self.shared.consumed(&payload);
        Ok(payload)
    }
}

impl Drop for LinkReceiver {
    fn drop(&mut self) {
        self.shared.close(normal_close());
    }
}

/// Reads until the link ends, then lingers for the other side's close.
pub(crate) async fn read<S>(
    mut stream: SplitStream<WebSocketStream<S>>,
    mut assembler: Assembler,
    queue: mpsc::UnboundedSender<Payload>,
    shared: Arc<Shared>,
    options: LinkOptions,
    spread: u8,
    is_control: bool,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let now = Instant::now();
    let mut liveness = Liveness::new(options.ping_after, options.dead_after, spread, now);
    let error = loop {
        tokio::select! {
            message = stream.next() => {
                liveness.heard(Instant::now());
                if let Err(error) = take(message, &mut assembler, &queue, &shared, is_control) {
                    break error;
                }
            }
            () = sleep_until(liveness.due()) => {
                let now = Instant::now();
                match liveness.tick(now) {
                    Tick::Wait => {}
                    Tick::Ping => shared.ping(HUB_STREAM),
                    Tick::Dead => break LinkError::Silent(liveness.silence(now)),
                }
            }
            error = shared.ended() => break error,
        }
    };
    tracing::debug!(%error, "link ended");
    shared.fail(error);
    drop(queue);
    // Read on until the other side's close, so that our last words are not lost to a reset.
    let _ = timeout(options.close_linger, async { while let Some(Ok(_)) = stream.next().await {} }).await;
}

/// Books one WebSocket message.
fn take(
    message: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>,
    assembler: &mut Assembler,
    queue: &mpsc::UnboundedSender<Payload>,
    shared: &Shared,
    is_control: bool,
) -> Result<(), LinkError> {
    let bytes = match binary(message)? {
        Some(bytes) => bytes,
        None => return Ok(()),
    };
    for frame in frames(&bytes)? {
        let frame = frame?;
        shared.received(frame.header.lane(), frame.header.length)?;
        if let Some(payload) = assembler.accept(frame)? {
            handle(payload, queue, shared, is_control)?;
        }
    }
    Ok(())
}

/// The bytes of a binary message; `None` for WebSocket's own pings; an error for everything else.
pub(crate) fn binary(
    message: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>,
) -> Result<Option<tokio_tungstenite::tungstenite::Bytes>, LinkError> {
    match message {
        None => Err(LinkError::Lost("it ended without a close".to_owned())),
        Some(Err(error)) => Err(error.into()),
        Some(Ok(Message::Binary(bytes))) => Ok(Some(bytes)),
        Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(None),
        Some(Ok(Message::Close(frame))) => Err(LinkError::Closed {
            code: frame.as_ref().map_or(1005, |frame| frame.code.into()),
            reason: frame.map_or(String::new(), |frame| frame.reason.to_string()),
        }),
        Some(Ok(Message::Text(_) | Message::Frame(_))) => {
            Err(LinkError::Unexpected { found: "a text message".to_owned(), expected: "a binary message" })
        }
    }
}

/// Reads a payload with its kind's decoder.
pub(crate) fn decoded<T>(
    kind: Kind,
    result: Result<T, kvasir_wire::codec::DecodeError>,
) -> Result<T, LinkError> {
    result.map_err(|error| LinkError::BadPayload { kind, error })
}

fn handle(
    payload: Payload,
    queue: &mpsc::UnboundedSender<Payload>,
    shared: &Shared,
    is_control: bool,
) -> Result<(), LinkError> {
    let kind = payload.kind;
    match kind {
        Kind::Ping => shared.answer_ping(payload.stream, decoded(kind, Ping::decode(&payload.bytes))?),
        Kind::Pong => shared.pong(decoded(kind, Ping::decode(&payload.bytes))?),
        Kind::Credit => {
            let credit = decoded(kind, Credit::decode(&payload.bytes))?;
            shared.granted(credit.lane, credit.bytes)?;
        }
        Kind::Refuse if payload.stream == HUB_STREAM => {
            let refusal = decoded(kind, Refusal::decode(&payload.bytes))?;
            // On a control link, one that names a session is about that session only.
            if !is_control || refusal.session.is_none() {
                return Err(LinkError::Refused(refusal));
            }
            pass_on(payload, queue, shared)?;
        }
        _ => pass_on(payload, queue, shared)?,
    }
    Ok(())
}

fn pass_on(
    payload: Payload,
    queue: &mpsc::UnboundedSender<Payload>,
    shared: &Shared,
) -> Result<(), LinkError> {
    shared.arrived(&payload)?;
    // The receiver is gone only on a link that is closing.
    let _ = queue.send(payload);
    Ok(())
}
