//! A worker's second connection, for bulk: dialled once the session has begun, and again when it is gone.
//!
//! What comes over it is handed to the task that reads the first connection, which alone knows when the hub has turned to this one
//! and keeps the rules of frames and credit for both. Here messages are acknowledged, the path is kept alive, and its round trips
//! are measured for the bulk window: what stands on this way stands here alone.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::SplitSink;
use futures_util::{SinkExt as _, StreamExt as _};
use kvasir_wire::assemble::Assembler;
use kvasir_wire::frame::{FrameError, HUB_STREAM, Kind, Party, frames};
use kvasir_wire::handshake::BulkConnection;
use kvasir_wire::id::SessionId;
use kvasir_wire::message::{Ack, Ping};
use kvasir_wire::replay::Replay;
use kvasir_wire::schedule::{Outgoing, Scheduler};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::backoff::Backoff;
use crate::dial::{Connection, open};
use crate::error::LinkError;
use crate::holder::greet_for_bulk;
use crate::liveness::{Liveness, Tick};
use crate::opening::{Opening, within};
use crate::options::LinkOptions;
use crate::reader::{binary, decoded};
use crate::redial::{Redial, may_pass};
use crate::shared::{Expected, Shared, is_cut};

/// Silence after which this end pings. Sooner than on a first connection: while this one is dead and nobody knows, bulk waits.
const PING_AFTER: Duration = Duration::from_secs(5);
/// Silence after a ping that means it is dead.
const DEAD_AFTER: Duration = Duration::from_secs(10);

/// Connections that may go silent, one after the other, before no further one is dialled: on a path that lets them go silent each
/// costs bulk the time above.
const MOST_SILENT: u32 = 3;
/// One that lasted for so long before is not on such a path.
const LASTED: Duration = Duration::from_secs(600);

/// Keeps a second connection for the bulk of a session, as long as that lasts and the hub takes one.
pub(crate) async fn keep(redial: Arc<Redial>, shared: Arc<Shared>, session: SessionId) {
    tokio::select! {
        _ = shared.ended() => {}
        () = dial_again(&redial, &shared, session) => {}
    }
}

/// Dials until no further try makes sense.
async fn dial_again(redial: &Redial, shared: &Shared, session: SessionId) {
    let mut backoff = Backoff::new();
    let mut silent = 0;
    let mut asked = None;
    loop {
        sleep(backoff.next_wait(getrandom::u64().unwrap_or(u64::MAX / 2), asked)).await;
        // The first connection is needed for everything else, so it goes first.
        if shared.standing().wait_for(|standing| standing.is_whole).await.is_err() {
            return;
        }
        let began = Instant::now();
        let error = once(redial, shared, session).await;
        backoff.lasted(began.elapsed());
        silent = silences(silent, &error, began.elapsed());
        if silent >= MOST_SILENT || (!may_pass(&error) && !is_cut(&error)) {
            tracing::info!(%error, "bulk stays on the first connection");
            return;
        }
        tracing::debug!(%error, "no second connection for bulk now");
        asked = error.retry_after().map(|seconds| Duration::from_secs(seconds.into()));
    }
}

/// How many in a row have gone silent with this one, which lasted for so long.
fn silences(before: u32, error: &LinkError, lasted: Duration) -> u32 {
    let before = if lasted >= LASTED { 0 } else { before };
    before + u32::from(matches!(error, LinkError::Silent(_)))
}

/// One second connection, to its end.
async fn once(redial: &Redial, shared: &Shared, session: SessionId) -> LinkError {
    let Expected { connection, messages, settled } = shared.expect_bulk();
    let opening = match dial(redial, BulkConnection { session, connection }).await {
        Ok(opening) => opening,
        Err(error) => return error,
    };
    tracing::info!(connection, "bulk has a connection of its own");
    let Err(error) = listen(opening, &messages, shared, &redial.options).await;
    // Behind what came, the reader finds the end.
    drop(messages);
    if error.for_peer().is_some() && !is_cut(&error) {
        shared.fail(error.clone());
    }
    // The hub has turned to it, so it will be told what came; before that it takes no other.
    let _ = settled.await;
    error
}

async fn dial(redial: &Redial, bulk: BulkConnection) -> Result<Opening<Box<dyn Connection>>, LinkError> {
    let Redial { url, path, trust, ticket, key, options, .. } = redial;
    let socket = open(url, path, trust, ticket, options).await?;
    let mut opening = Opening::new(socket, Assembler::from_peer(Party::Hub));
    let steps = greet_for_bulk(&mut opening, ticket, key, bulk);
    match within(options.handshake, "the handshake with the hub", steps).await {
        Ok(()) => Ok(opening),
        Err(error) => Err(opening.fail(error, options.close_linger).await),
    }
}

/// Hands on what comes until the connection is gone.
async fn listen(
    opening: Opening<Box<dyn Connection>>,
    messages: &mpsc::Sender<Bytes>,
    shared: &Shared,
    options: &LinkOptions,
) -> Result<Infallible, LinkError> {
    let Opening { socket, scheduler, mut assembler, .. } = opening;
    let (sink, mut stream) = socket.split();
    let mut speaker = Speaker { sink, scheduler, count: Replay::new(0, 0), stall: options.write_stall };
    let (ping_after, dead_after) = (PING_AFTER.min(options.ping_after), DEAD_AFTER.min(options.dead_after));
    let mut liveness = Liveness::new(ping_after, dead_after, 0, Instant::now());
    loop {
        let message = tokio::select! {
            message = stream.next() => message,
            () = sleep_until(liveness.due()) => {
                let now = Instant::now();
                match liveness.tick(now) {
                    Tick::Wait => {}
                    Tick::Ping => speaker.ping(shared.ping_number()).await?,
                    Tick::Dead => return Err(LinkError::Silent(liveness.silence(now))),
                }
                continue;
            }
        };
        liveness.heard(Instant::now());
        let Some(bytes) = binary(message)? else { continue };
        if is_own(&bytes)? {
            for frame in frames(&bytes)? {
                let Some(payload) = assembler.accept(frame?)? else { continue };
                if payload.kind != Kind::Pong {
                    let found = format!("{} on a bulk connection", payload.kind.name());
                    return Err(LinkError::Unexpected { found, expected: "a chunk or a pong" });
                }
                shared.pong(decoded(payload.kind, Ping::decode(&payload.bytes))?);
            }
            continue;
        }
        let length = bytes.len();
        if messages.send(bytes).await.is_err() {
            return Err(LinkError::Ended);
        }
        // Only what the reader will find is acknowledged.
        speaker.received(length).await?;
        if let Some(number) = shared.bulk_ping() {
            speaker.ping(number).await?;
        }
    }
}

/// Whether a message is the hub's own and not the other end's.
fn is_own(message: &[u8]) -> Result<bool, FrameError> {
    let first = frames(message)?.next().ok_or(FrameError::EmptyMessage)??;
    Ok(first.header.stream == HUB_STREAM)
}

/// What this end says on a second connection.
struct Speaker {
    sink: SplitSink<WebSocketStream<Box<dyn Connection>>, Message>,
    scheduler: Scheduler,
    /// Counts what came; nothing is kept here.
    count: Replay<Bytes>,
    stall: Duration,
}

impl Speaker {
    /// A message came: the hub is told when enough did.
    async fn received(&mut self, bytes: usize) -> Result<(), LinkError> {
        if self.count.receive(bytes) { self.acknowledge().await } else { Ok(()) }
    }

    /// Pings, and tells what came however little.
    async fn ping(&mut self, number: u64) -> Result<(), LinkError> {
        if self.count.is_untold() {
            self.acknowledge().await?;
        }
        self.say(Kind::Ping, Ping { number }.encode()).await
    }

    async fn acknowledge(&mut self) -> Result<(), LinkError> {
        let ack = Ack { received: self.count.tell() };
        self.say(Kind::Ack, ack.encode()).await
    }

    async fn say(&mut self, kind: Kind, payload: Vec<u8>) -> Result<(), LinkError> {
        self.scheduler.push(Outgoing::new(kind, HUB_STREAM, payload))?;
        while let Some(message) = self.scheduler.next_message() {
            let sent = self.sink.send(Message::Binary(message.into()));
            timeout(self.stall, sent).await.map_err(|_| LinkError::Stalled(self.stall))??;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_on_which_second_connections_go_silent_is_tried_a_few_times_and_a_good_one_again_and_again() {
        let (soon, silent) = (Duration::from_secs(20), LinkError::Silent(DEAD_AFTER));
        let cut = LinkError::Lost("it was reset".to_owned());
        let mut count = 0;
        for error in [&silent, &cut, &silent, &cut] {
            count = silences(count, error, soon);
            assert!(count < MOST_SILENT);
        }
        assert_eq!(silences(count, &silent, soon), MOST_SILENT);
        assert_eq!(silences(count, &silent, LASTED), 1);
        assert_eq!(silences(count, &cut, LASTED), 0);
    }
}
