//! The hub's end of a second connection: bulk out, acknowledgements and pings in.
//!
//! Only chunks are passed on over it, and they alone are counted. The worker's pings are answered behind the chunks that wait, so
//! that it learns of all that stands on the way. Whatever becomes of it ends no session, but for a worker that breaks a rule.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::SplitStream;
use kvasir_wire::assemble::Assembler;
use kvasir_wire::frame::{HUB_STREAM, Kind, frames};
use kvasir_wire::handshake::Welcome;
use kvasir_wire::limits::HEADER_BYTES;
use kvasir_wire::message::{Ack, Ping};
use kvasir_wire::refusal::Refusal;
use kvasir_wire::schedule::{Outgoing, Scheduler};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Bytes;

use super::{Accepted, HubResumer, before_the_welcome};
use crate::error::LinkError;
use crate::opening::{Opening, within};
use crate::options::LinkOptions;
use crate::pace::STEPS_OF_A_MESSAGE;
use crate::reader::{binary, decoded};
use crate::shared::{Shared, is_cut};
use crate::unix_now;
use crate::writer::write_bulk;

impl<S> Accepted<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// Has the bulk of a worker's session go over this connection, which is its second, until that or the session is over; calls
    /// `taken` first. An error where it is not taken: the holder was told why.
    pub async fn carry_bulk(
        mut self,
        link: &HubResumer,
        connection: u32,
        taken: impl FnOnce(),
    ) -> Result<(), LinkError> {
        let shared = &link.shared;
        if !self.opening.waiting.is_empty() {
            return Err(self.refuse(before_the_welcome()).await);
        }
        if let Err(refusal) = shared.turn_bulk(connection) {
            return Err(self.refuse(refusal).await);
        }
        taken();
        let welcome = Welcome::Admitted { hub_time: unix_now() }.encode();
        let welcome = self.opening.send(Kind::Welcome, welcome);
        if let Err(error) = within(self.options.handshake, "the welcome", welcome).await {
            lose(shared, connection, &self.options);
            return Err(error);
        }
        let Accepted { opening, options, .. } = self;
        let Opening { socket, scheduler, assembler, .. } = opening;
        let (sink, stream) = socket.split();
        let worker = Worker { shared, connection, scheduler, assembler };
        let error = tokio::select! {
            error = shared.ended() => error,
            error = write_bulk(sink, shared, &options, connection) => error,
            heard = worker.hear(stream, &options) => {
                let Err(error) = heard;
                error
            }
        };
        lose(shared, connection, &options);
        tracing::debug!(connection, %error, "a bulk connection is over");
        if shared.end().is_none() && error.for_peer().is_some() && !is_cut(&error) {
            shared.fail(error);
        }
        Ok(())
    }
}

/// The connection is gone. The worker finds that out itself, maybe while it looks for another first one.
fn lose(shared: &Arc<Shared>, connection: u32, options: &LinkOptions) {
    shared.lose_bulk(connection);
    let within = options.ping_after + options.dead_after + options.resume_within;
    tokio::spawn(demand_word(Arc::clone(shared), connection, within));
}

/// Ends the link of a worker that does not say in time what came over a second connection: its bulk would wait for ever.
async fn demand_word(shared: Arc<Shared>, connection: u32, within: Duration) {
    if timeout(within, shared.told_of_bulk(connection)).await.is_err() {
        shared.fail(LinkError::TimedOut { what: "the word of what came over a bulk connection", within });
    }
}

/// What a worker says on its second connection.
struct Worker<'link> {
    shared: &'link Arc<Shared>,
    connection: u32,
    /// Both go on where the handshake left them.
    scheduler: Scheduler,
    assembler: Assembler,
}

impl Worker<'_> {
    /// Hears it until there is nothing more to hear.
    async fn hear<S>(
        mut self,
        mut stream: SplitStream<WebSocketStream<S>>,
        options: &LinkOptions,
    ) -> Result<Infallible, LinkError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // It is the worker that pings here.
        let silence = options.ping_after + options.dead_after;
        let mut rests_until = None;
        loop {
            if let Some(until) = rests_until {
                sleep_until(until).await;
            }
            let message = timeout(silence, stream.next()).await.map_err(|_| LinkError::Silent(silence))?;
            let bytes = binary(message)?;
            // One account for both connections: what was passed on here is answered there, and the other way round.
            let count = bytes.as_ref().map_or(0, |bytes| bytes.len() / HEADER_BYTES);
            rests_until = self.shared.spend(STEPS_OF_A_MESSAGE + count as u64);
            let Some(bytes) = bytes else { continue };
            for frame in frames(&bytes)? {
                let Some(payload) = self.assembler.accept(frame?)? else { continue };
                match (payload.kind, payload.stream) {
                    (Kind::Ack, HUB_STREAM) => {
                        let ack = decoded(payload.kind, Ack::decode(&payload.bytes))?;
                        self.shared.acknowledged_bulk(self.connection, ack)?;
                    }
                    (Kind::Ping, HUB_STREAM) => {
                        let ping = decoded(payload.kind, Ping::decode(&payload.bytes))?;
                        let scheduler = &mut self.scheduler;
                        self.shared.answer_on_bulk(self.connection, || pong(scheduler, ping))?;
                    }
                    // A worker that waited too long for the welcome says so. It is about this connection.
                    (Kind::Refuse, HUB_STREAM) => {
                        let refusal = decoded(payload.kind, Refusal::decode(&payload.bytes))?;
                        return Err(LinkError::Refused(refusal));
                    }
                    (kind, stream) => {
                        return Err(LinkError::Unexpected {
                            found: format!("{} on stream {stream} of a bulk connection", kind.name()),
                            expected: "an ack or a ping",
                        });
                    }
                }
            }
        }
    }
}

/// The message of an answer.
fn pong(scheduler: &mut Scheduler, ping: Ping) -> Result<Bytes, LinkError> {
    scheduler.push(Outgoing::new(Kind::Pong, HUB_STREAM, ping.encode()))?;
    // Nothing else is ever queued there, and control needs no credit.
    scheduler.next_message().map(Bytes::from).ok_or(LinkError::Ended)
}
