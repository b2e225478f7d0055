//! A link before it is admitted: one payload at a time, no tasks yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use kvasir_wire::assemble::{Assembler, Payload};
use kvasir_wire::frame::{HUB_STREAM, Kind, frames};
use kvasir_wire::refusal::Refusal;
use kvasir_wire::schedule::{Outgoing, Scheduler};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::error::LinkError;
use crate::options::LinkOptions;
use crate::pace::{Pace, STEPS_OF_A_MESSAGE, read_out};
use crate::reader::{LinkReceiver, Reader, binary, decoded};
use crate::redial::Redial;
use crate::shared::{LinkSender, Resumable, Shared, close_frame};
use crate::writer::write;

/// A WebSocket with the frame state that the later link continues.
pub(crate) struct Opening<S> {
    pub(crate) socket: WebSocketStream<S>,
    pub(crate) scheduler: Scheduler,
    pub(crate) assembler: Assembler,
    pub(crate) waiting: VecDeque<Payload>,
    pace: Pace,
    rests_until: Option<Instant>,
}

impl<S> Opening<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    pub(crate) fn new(socket: WebSocketStream<S>, assembler: Assembler) -> Self {
        Opening {
            socket,
            scheduler: Scheduler::new(),
            assembler,
            waiting: VecDeque::new(),
            pace: Pace::new(Instant::now()),
            rests_until: None,
        }
    }

    pub(crate) async fn send(&mut self, kind: Kind, payload: Vec<u8>) -> Result<(), LinkError> {
        self.scheduler.push(Outgoing::new(kind, HUB_STREAM, payload))?;
        while let Some(message) = self.scheduler.next_message() {
            self.socket.send(Message::Binary(message.into())).await?;
        }
        Ok(())
    }

    /// The next payload, which must be of `kind`; a refusal instead ends the link.
    pub(crate) async fn expect(&mut self, kind: Kind, expected: &'static str) -> Result<Payload, LinkError> {
        loop {
            if let Some(payload) = self.waiting.pop_front() {
                return match payload.kind {
                    found if found == kind => Ok(payload),
                    Kind::Refuse => {
                        Err(LinkError::Refused(decoded(Kind::Refuse, Refusal::decode(&payload.bytes))?))
                    }
                    found => Err(LinkError::Unexpected { found: found.name().to_owned(), expected }),
                };
            }
            if let Some(until) = self.rests_until.take() {
                sleep_until(until).await;
            }
            let message = self.socket.next().await;
            // Everything here is small.
            self.rests_until = self.pace.spend(STEPS_OF_A_MESSAGE, 0, Instant::now());
            let Some(bytes) = binary(message)? else { continue };
            for frame in frames(&bytes)? {
                let frame = frame?;
                if frame.header.stream != HUB_STREAM {
                    let found = format!("{} on stream {}", frame.header.kind.name(), frame.header.stream);
                    return Err(LinkError::Unexpected { found, expected });
                }
                self.waiting.extend(self.assembler.accept(frame)?);
            }
        }
    }

    /// Ends a link that did not come about: tells the other side why if it is its to know, closes, and reads on until
    /// the other side's close, so that the words are not lost to a reset.
    pub(crate) async fn fail(mut self, error: LinkError, linger: Duration) -> LinkError {
        let last_words = async {
            if let Some(refusal) = error.for_peer() {
                self.send(Kind::Refuse, refusal.encode()).await?;
            }
            self.close(&error).await
        };
        let _ = timeout(linger, last_words).await;
        error
    }

    /// Leaves a connection that the other side has taken for its link already. Its close alone says why: the number of a frame from
    /// here would not be the next one of that link.
    pub(crate) async fn leave(mut self, refusal: Refusal, linger: Duration) {
        let _ = timeout(linger, self.close(&LinkError::RefusedPeer(refusal))).await;
    }

    /// Sends a close, and reads on until the other side's.
    async fn close(&mut self, error: &LinkError) -> Result<(), LinkError> {
        self.socket.send(Message::Close(Some(close_frame(error)))).await?;
        read_out(&mut self.socket, |steps| self.pace.spend(steps, 0, Instant::now())).await;
        Ok(())
    }
}

impl<S> Opening<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// Starts the two tasks of an end's link; `is_control`: a backbone's control link. With `redial` the link counts its
    /// messages, the one that brought the welcome being the first, and can go on over another connection.
    pub(crate) fn into_link(
        self,
        options: &LinkOptions,
        is_control: bool,
        redial: Option<Arc<Redial>>,
    ) -> Result<(LinkSender, LinkReceiver), LinkError> {
        let mut spread = [0];
        getrandom::fill(&mut spread).map_err(|error| LinkError::Randomness(error.to_string()))?;
        let shared = Shared::new(self.scheduler, redial.is_some().then(|| Resumable::new(1, None)));
        for payload in &self.waiting {
            shared.arrived(payload)?;
        }
        let (sink, stream) = self.socket.split();
        let (queue, receiver) = mpsc::unbounded_channel();
        let writer = tokio::spawn(write(sink, Arc::clone(&shared), options.clone(), 0));
        shared.writes(0, writer.abort_handle());
        let reader = Reader {
            assembler: self.assembler,
            queue,
            shared: Arc::clone(&shared),
            options: options.clone(),
            spread: spread[0],
            is_control,
            redial,
            bulk: None,
        };
        tokio::spawn(reader.run(Box::pin(stream)));
        let sender = LinkSender { shared: Arc::clone(&shared) };
        Ok((sender, LinkReceiver { shared, first: self.waiting, queue: receiver }))
    }
}

/// Runs a step under a deadline.
pub(crate) async fn within<T>(
    limit: Duration,
    what: &'static str,
    step: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    match timeout(limit, step).await {
        Ok(result) => result,
        Err(_) => Err(LinkError::TimedOut { what, within: limit }),
    }
}
