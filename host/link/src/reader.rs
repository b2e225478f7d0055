//! The receiving half of an end: a task that keeps the rules of frames, credit and liveness, and a queue of payloads.
//!
//! Pings are answered, credit is booked, refusals end the link and lost connections are replaced here; all other payloads
//! reach the application. The queue needs no length of its own: dispatch and bulk are bounded by the credit that is
//! granted only as payloads are taken, control by its backlog limit.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _};
use kvasir_wire::assemble::{Assembler, Payload};
use kvasir_wire::frame::{HUB_STREAM, Kind, frames};
use kvasir_wire::message::{Ack, Credit, Ping, Reroute};
use kvasir_wire::refusal::Refusal;
use kvasir_wire::schedule::Outgoing;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::error::LinkError;
use crate::liveness::{Liveness, Tick};
use crate::options::LinkOptions;
use crate::redial::Redial;
use crate::shared::{BulkSource, Shared, normal_close};

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

    /// Whether a further payload is here already.
    pub fn has_more(&self) -> bool {
        !self.first.is_empty() || !self.queue.is_empty()
    }
}

impl Drop for LinkReceiver {
    fn drop(&mut self) {
        self.shared.close(normal_close());
    }
}

/// What comes on a connection, whatever lies below it.
pub(crate) type MessageStream =
    Pin<Box<dyn Stream<Item = Result<Message, tokio_tungstenite::tungstenite::Error>> + Send>>;

/// What comes where there is no connection.
pub(crate) fn nothing() -> MessageStream {
    Box::pin(futures_util::stream::pending::<Result<Message, tokio_tungstenite::tungstenite::Error>>())
}

/// The task that reads at an end.
pub(crate) struct Reader {
    pub(crate) assembler: Assembler,
    pub(crate) queue: mpsc::UnboundedSender<Payload>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: LinkOptions,
    /// Spreads the pings of many links.
    pub(crate) spread: u8,
    pub(crate) is_control: bool,
    /// How to get another connection, on a link that can go on over one.
    pub(crate) redial: Option<Arc<Redial>>,
    /// What comes over a second connection, while bulk does.
    pub(crate) bulk: Option<BulkSource>,
}

impl Reader {
    /// Reads until the link ends, over as many connections as it takes, then lingers for the other side's close.
    pub(crate) async fn run(mut self, mut stream: MessageStream) {
        let mut connection = 0;
        let error = loop {
            let error = self.converse(&mut stream, connection).await;
            if let Err(error) = self.shared.cut(connection, error) {
                break error;
            }
            // Closes the old connection, whatever is left of it.
            stream = nothing();
            let Some(redial) = self.redial.clone() else { break self.shared.why_cut() };
            match self.resume(&redial).await {
                Ok((next, number)) => (stream, connection) = (next, number),
                Err(error) => break error,
            }
        };
        tracing::debug!(%error, "link ended");
        self.shared.fail(error);
        drop(self.queue);
        // Read on until the other side's close, so that our last words are not lost to a reset.
        let rest = async { while let Some(Ok(_)) = stream.next().await {} };
        let _ = timeout(self.options.close_linger, rest).await;
    }

    /// Waits for another connection; bulk comes over the second one meanwhile.
    async fn resume(&mut self, redial: &Redial) -> Result<(MessageStream, u64), LinkError> {
        let shared = Arc::clone(&self.shared);
        let resumed = redial.resume(&shared);
        tokio::pin!(resumed);
        loop {
            tokio::select! {
                resumed = &mut resumed => return resumed,
                message = next_bulk(&mut self.bulk) => self.take_bulk(message)?,
            }
        }
    }

    /// Reads from one connection until that or the link ends.
    async fn converse(&mut self, stream: &mut MessageStream, connection: u64) -> LinkError {
        let shared = Arc::clone(&self.shared);
        let LinkOptions { ping_after, dead_after, .. } = self.options;
        let mut liveness = Liveness::new(ping_after, dead_after, self.spread, Instant::now());
        // Set anew when it has run out and not for every message: it runs out too early then, and whoever looks sees that.
        let look = sleep_until(liveness.due());
        let (ended, broken) = (shared.ended(), shared.broken(connection));
        tokio::pin!(look, ended, broken);
        loop {
            tokio::select! {
                message = stream.next() => {
                    liveness.heard(Instant::now());
                    if liveness.due() < look.deadline() {
                        look.as_mut().reset(liveness.due());
                    }
                    if let Err(error) = self.take(message, connection) {
                        return error;
                    }
                }
                message = next_bulk(&mut self.bulk) => {
                    if let Err(error) = self.take_bulk(message) {
                        return error;
                    }
                }
                () = &mut look => {
                    let now = Instant::now();
                    match liveness.tick(now) {
                        Tick::Wait => {}
                        Tick::Ping => shared.ping(HUB_STREAM),
                        Tick::Dead => return LinkError::Silent(liveness.silence(now)),
                    }
                    look.as_mut().reset(liveness.due());
                }
                error = &mut ended => return error,
                () = &mut broken => return shared.why_cut(),
            }
        }
    }

    /// Books one WebSocket message.
    fn take(
        &mut self,
        message: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>,
        connection: u64,
    ) -> Result<(), LinkError> {
        let Some(bytes) = binary(message)? else { return Ok(()) };
        if !self.shared.took(connection, bytes.len()) {
            return Ok(());
        }
        for frame in frames(&bytes)? {
            let frame = frame?;
            self.shared.received(frame.header.lane(), frame.header.length)?;
            match self.assembler.accept(frame)? {
                Some(payload) if payload.kind == Kind::Reroute => {
                    self.turn(decoded(payload.kind, Reroute::decode(&payload.bytes))?)?;
                }
                Some(payload) => handle(payload, &self.queue, &self.shared, self.is_control)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Bulk comes over a second connection from here on. Where that is over already, the hub is told so.
    fn turn(&mut self, turn: Reroute) -> Result<(), LinkError> {
        if self.bulk.is_some() {
            return Err(LinkError::Unexpected {
                found: format!("reroute to bulk connection {}", turn.connection),
                expected: "none while another carries bulk",
            });
        }
        self.bulk = self.shared.bulk_source(turn)?;
        match &self.bulk {
            Some(_) => self.shared.set_bulk_apart(true),
            None => self.turn_back(turn)?,
        }
        Ok(())
    }

    /// Books a message of the second connection, or its end.
    fn take_bulk(&mut self, message: Option<Bytes>) -> Result<(), LinkError> {
        let Some(bytes) = message else {
            self.shared.set_bulk_apart(false);
            // Dropped when the hub has been told, since another one may be dialled then.
            let over = self.bulk.take();
            return over.as_ref().map_or(Ok(()), |source| self.turn_back(source.over()));
        };
        for frame in frames(&bytes)? {
            let frame = frame?;
            if frame.header.kind != Kind::Chunk {
                let found = frame.header.kind.name().to_owned();
                return Err(LinkError::Unexpected { found, expected: "a chunk over the second connection" });
            }
            self.shared.received(frame.header.lane(), frame.header.length)?;
            if let Some(payload) = self.assembler.accept(frame)? {
                pass_on(payload, &self.queue, &self.shared)?;
            }
        }
        Ok(())
    }

    /// Tells the hub what came over a second connection, which it does not carry bulk over any more.
    fn turn_back(&self, answer: Reroute) -> Result<(), LinkError> {
        match self.shared.push(Outgoing::new(Kind::Reroute, HUB_STREAM, answer.encode())) {
            Err(error @ LinkError::Send(_)) => Err(error),
            // On a link that is closing nobody waits for bulk, and the close takes its course.
            _ => Ok(()),
        }
    }
}

/// What comes next over the second connection; nothing for ever where there is none.
async fn next_bulk(source: &mut Option<BulkSource>) -> Option<Bytes> {
    match source {
        Some(source) => source.next().await,
        None => std::future::pending().await,
    }
}

/// The bytes of a binary message; `None` for WebSocket's own pings; an error for everything else.
pub(crate) fn binary(
    message: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>,
) -> Result<Option<Bytes>, LinkError> {
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
        Kind::Ack => shared.acknowledged(decoded(kind, Ack::decode(&payload.bytes))?)?,
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
