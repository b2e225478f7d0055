//! The hub's side: admit a holder, then be a pipe that reads headers.
//!
//! [`accept`] runs the handshake up to the proof; the hub then makes its own checks and admits or refuses. A
//! [`HubLink`] sorts what comes: payloads on stream 0 are the hub's own, every other message is passed on unchanged,
//! with its headers for the meter. In a session it may outlive its connection ([`Accepted::resume`]); each message is then
//! still handed over once, so that whoever counts need not know.

mod bulk;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use kvasir_wire::assemble::{Assembler, Payload};
use kvasir_wire::frame::{FrameError, HUB_STREAM, Kind, MessageClass, Party, classify, frames};
use kvasir_wire::handshake::{Admission, Features, HubHandshake, HubIdentity, Purpose, Welcome};
use kvasir_wire::id::{Nonce, SessionId};
use kvasir_wire::key::PublicKey;
use kvasir_wire::message::{Ack, Ping, Reroute};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::replay::ReplayError;
use kvasir_wire::schedule::Outgoing;
use kvasir_wire::ticket::{Role, Ticket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Bytes;

use crate::error::LinkError;
use crate::liveness::{Liveness, Tick};
use crate::opening::{Opening, within};
use crate::options::{BACKBONE_RESUME, LinkOptions};
use crate::pace::{STEPS_OF_A_MESSAGE, read_out, rest, steps_of};
use crate::reader::{MessageStream, binary, decoded, nothing};
use crate::relay::Relay;
use crate::shared::{Resumable, Shared, Standing, normal_close};
use crate::unix_now;
use crate::writer::write;

/// A holder that proved its key and is not admitted yet.
pub struct Accepted<S> {
    /// What both sides know of each other.
    pub admission: Admission,
    opening: Opening<S>,
    options: LinkOptions,
}

/// Runs the hub's handshake on a door for `role`, up to the proof. `header` is the ticket of the `Authorization` header;
/// the hello must bring the same. What fails is refused here, and the holder is told why.
pub async fn accept<S>(
    socket: WebSocketStream<S>,
    hub: &HubIdentity,
    role: Role,
    header: Option<&Ticket>,
    nonce: Nonce,
    options: &LinkOptions,
) -> Result<Accepted<S>, LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut opening = Opening::new(socket, Assembler::from_peer(party(role)));
    let steps = handshake(&mut opening, hub, role, header, nonce);
    match within(options.handshake, "the holder's handshake", steps).await {
        Ok(admission) => Ok(Accepted { admission, opening, options: options.clone() }),
        Err(error) => Err(opening.fail(error, options.close_linger).await),
    }
}

impl<S> Accepted<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// Admits the holder: sends the welcome and starts the link.
    pub fn admit(self) -> Result<HubLink, LinkError> {
        let Accepted { admission, opening, options } = self;
        let role = admission.ticket.claims().role;
        let mut spread = [0];
        getrandom::fill(&mut spread).map_err(|error| LinkError::Randomness(error.to_string()))?;
        let wait = resume_within(&admission, &options);
        let shared = Shared::new(opening.scheduler, wait.map(|wait| Resumable::new(0, Some(wait))));
        let takes_bulk = wait.is_some() && takes_bulk(&admission, &options);
        let welcome = match wait {
            Some(_) if takes_bulk => Welcome::BulkOffered { hub_time: unix_now() },
            Some(_) => Welcome::Resumable { hub_time: unix_now() },
            None => Welcome::Admitted { hub_time: unix_now() },
        };
        shared.push(Outgoing::new(Kind::Welcome, HUB_STREAM, welcome.encode()))?;
        let (sink, stream) = opening.socket.split();
        let standing = shared.standing();
        let writer = tokio::spawn(write(sink, Arc::clone(&shared), options.clone(), 0));
        shared.writes(0, writer.abort_handle());
        let receiver = HubReceiver {
            stream: Box::pin(stream),
            connection: 0,
            standing,
            assembler: opening.assembler,
            waiting: opening.waiting.into_iter().map(Incoming::Own).collect(),
            sender: party(role),
            holder: admission.holder,
            is_control: matches!(admission.purpose, Purpose::Control(_)),
            liveness: Liveness::new(options.ping_after, options.dead_after, spread[0], Instant::now()),
            rests_until: None,
            has_rested: false,
            shared: Arc::clone(&shared),
        };
        Ok(HubLink { sender: HubSender { shared }, receiver, admission, takes_bulk })
    }

    /// Hands this connection to a link that goes on over it: the newest one wins, also over one that seems to be alive. The
    /// holder has `received` so many of the hub's messages on that link. Where what it lacks is not kept any more, or it
    /// cannot have so many, it is told so, and the link ends.
    pub async fn resume(mut self, link: &HubResumer, received: u64) -> Result<(), LinkError> {
        let shared = &link.shared;
        if !self.opening.waiting.is_empty() {
            return Err(self.refuse(before_the_welcome()).await);
        }
        let (connection, here) = match shared.attach(received) {
            Ok(attached) => attached,
            Err(error) => {
                let sentence = format!("the session cannot go on over another connection: {error}");
                if ends_the_link(&error) {
                    shared.fail(LinkError::Lost(sentence.clone()));
                }
                let refusal = Refusal::new(RefusalCode::UnknownSession, sentence, "connect again");
                return Err(self.refuse(refusal).await);
            }
        };
        let lost = |error: LinkError| {
            if let Err(error) = shared.cut(connection, error.clone()) {
                shared.fail(error);
            }
            error
        };
        let welcome = self.opening.send(Kind::Welcome, Welcome::Resumed { received: here }.encode());
        within(self.options.handshake, "the welcome", welcome).await.map_err(lost)?;
        let Accepted { opening, options, .. } = self;
        let (sink, stream) = opening.socket.split();
        let writer = tokio::spawn(write(sink, Arc::clone(shared), options, connection));
        shared.writes(connection, writer.abort_handle());
        shared.hand_over(connection, Box::pin(stream));
        Ok(())
    }

    /// Refuses the holder after all.
    pub async fn refuse(self, refusal: Refusal) -> LinkError {
        self.opening.fail(LinkError::RefusedPeer(refusal), self.options.close_linger).await
    }
}

/// The hub's link with an admitted holder.
#[derive(Debug)]
pub struct HubLink {
    /// Its sending half.
    pub sender: HubSender,
    /// Its receiving half.
    pub receiver: HubReceiver,
    /// What both sides know of each other.
    pub admission: Admission,
    takes_bulk: bool,
}

impl HubLink {
    /// Whether its holder was told that it may open a second connection for bulk ([`Accepted::carry_bulk`]).
    pub fn takes_bulk(&self) -> bool {
        self.takes_bulk
    }

    /// A session has begun on this link. Gives what another connection of its holder is handed to; nothing where the link ends
    /// with the connection that it has. Only to be called where both ends have [`Features::RESUME`]: then a lost connection
    /// does not end the link, and the other end has to be told otherwise.
    pub fn resumable(&self, session: SessionId) -> Option<HubResumer> {
        let shared = &self.sender.shared;
        shared.arm(session).then(|| HubResumer { holder: self.admission.holder, shared: Arc::clone(shared) })
    }
}

/// A link in a session whose holder may come back over another connection.
#[derive(Debug, Clone)]
pub struct HubResumer {
    /// Whose link it is.
    pub holder: PublicKey,
    shared: Arc<Shared>,
}

/// The sending half of a hub's link.
#[derive(Debug, Clone)]
pub struct HubSender {
    shared: Arc<Shared>,
}

impl HubSender {
    /// Queues a payload of the hub's own, on stream 0. It goes before everything that is passed on.
    pub fn send(&self, kind: Kind, payload: Vec<u8>) -> Result<(), LinkError> {
        self.shared.push(Outgoing::new(kind, HUB_STREAM, payload))
    }

    /// Passes a message of the other end on, unchanged; waits while two full messages are queued, or one of bulk. What holds no
    /// bulk goes before bulk that waits, otherwise the order stays.
    pub async fn relay(&self, relay: Relay) -> Result<(), LinkError> {
        self.shared.relay(relay).await
    }

    /// Measures the round trip to the holder; its receiver must be awaited meanwhile.
    pub async fn round_trip(&self, within: Duration) -> Result<Duration, LinkError> {
        self.shared.round_trip(HUB_STREAM, within).await
    }

    /// Whether the holder has a connection now.
    pub fn is_whole(&self) -> bool {
        self.shared.is_whole()
    }

    /// Follows which connection the holder has.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.shared.standing()
    }

    /// Closes in order: what is queued goes out first.
    pub fn close(&self) {
        self.shared.close(normal_close());
    }

    /// Tells the holder why, then closes; what is queued is dropped.
    pub fn refuse(&self, refusal: Refusal) {
        self.shared.fail(LinkError::RefusedPeer(refusal));
    }

    /// Waits until the link has ended; says how.
    pub async fn ended(&self) -> LinkError {
        self.shared.ended().await
    }
}

/// What came from a holder.
#[derive(Debug)]
pub enum Incoming {
    /// A payload for the hub.
    Own(Payload),
    /// A message for the other end.
    Relay(Relay),
}

/// The receiving half of a hub's link. It works while [`HubReceiver::next`] is awaited: keep one task at it.
pub struct HubReceiver {
    stream: MessageStream,
    /// The number of the connection that `stream` reads.
    connection: u64,
    standing: watch::Receiver<Standing>,
    assembler: Assembler,
    waiting: std::collections::VecDeque<Incoming>,
    sender: Party,
    holder: PublicKey,
    is_control: bool,
    liveness: Liveness,
    /// Nothing is read before then: the holder has said more small things than its work asks for.
    rests_until: Option<Instant>,
    /// Whether it ever came to that, which is said once.
    has_rested: bool,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for HubReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubReceiver").field("sender", &self.sender).finish_non_exhaustive()
    }
}

impl Drop for HubReceiver {
    /// Whatever ends the task that reads, the task that writes ends too, and with it the connection.
    fn drop(&mut self) {
        self.shared.close(normal_close());
    }
}

impl HubReceiver {
    /// What comes next. Pings on stream 0 are answered here, silence ends the link. Safe to cancel.
    pub async fn next(&mut self) -> Result<Incoming, LinkError> {
        loop {
            if let Some(incoming) = self.waiting.pop_front() {
                return Ok(incoming);
            }
            if let Err(error) = self.step().await {
                self.shared.fail(error);
                return Err(self.shared.ended().await);
            }
        }
    }

    /// After the link was closed or refused: reads on until the other side's close, at most so long, so that the last
    /// words are not lost to a reset. What still comes is dropped.
    pub async fn linger(mut self, within: Duration) {
        let (shared, is_paced) = (Arc::clone(&self.shared), self.is_paced());
        let spend = |steps| if is_paced { shared.spend(steps) } else { None };
        let _ = timeout(within, read_out(&mut self.stream, spend)).await;
    }

    async fn step(&mut self) -> Result<(), LinkError> {
        tokio::select! {
            message = self.stream.next(), if self.rests_until.is_none() => {
                self.liveness.heard(Instant::now());
                match binary(message) {
                    Ok(Some(bytes)) => self.take(bytes),
                    Ok(None) => {
                        self.spend(STEPS_OF_A_MESSAGE);
                        Ok(())
                    }
                    Err(error) => self.lose(error),
                }
            }
            () = rest(self.rests_until) => {
                self.rests_until = None;
                Ok(())
            }
            () = sleep_until(self.liveness.due()), if self.shared.is_in_use(self.connection) => {
                let now = Instant::now();
                match self.liveness.tick(now) {
                    Tick::Wait => Ok(()),
                    Tick::Ping => {
                        self.shared.ping(HUB_STREAM);
                        Ok(())
                    }
                    Tick::Dead => self.lose(LinkError::Silent(self.liveness.silence(now))),
                }
            }
            Ok(()) = self.standing.changed() => {
                self.look();
                Ok(())
            }
            error = self.shared.ended() => Err(error),
        }
    }

    /// Whether its holder is read with pauses where it says too much: a worker's, since a backbone is the operator's own.
    fn is_paced(&self) -> bool {
        self.sender == Party::Worker
    }

    /// Books steps of the holder's.
    fn spend(&mut self, steps: u64) {
        if !self.is_paced() {
            return;
        }
        self.rests_until = self.shared.spend(steps);
        if self.rests_until.is_some() && !self.has_rested {
            self.has_rested = true;
            tracing::info!(worker = %self.holder, "it says more small things than its work asks for: it is read with pauses");
        }
    }

    /// The connection is gone. An error where the link ends with it.
    fn lose(&mut self, error: LinkError) -> Result<(), LinkError> {
        self.shared.cut(self.connection, error)?;
        // Closes the old connection, whatever is left of it.
        self.stream = nothing();
        Ok(())
    }

    /// Leaves a connection that is not in use any more, for the newest one if that is ready.
    fn look(&mut self) {
        if let Some((connection, stream)) = self.shared.take_fresh() {
            (self.connection, self.stream) = (connection, stream);
            self.liveness.heard(Instant::now());
        } else if !self.shared.is_in_use(self.connection) {
            self.stream = nothing();
        }
    }

    fn take(&mut self, bytes: Bytes) -> Result<(), LinkError> {
        if !self.shared.took(self.connection, bytes.len()) {
            return Ok(());
        }
        let mut headers = Vec::new();
        let class = classify(&bytes, self.sender, |header| {
            headers.push(*header);
            Ok(())
        })?;
        self.spend(steps_of(&headers));
        if class == MessageClass::Pair {
            self.waiting.push_back(Incoming::Relay(Relay { bytes, headers }));
            return Ok(());
        }
        for frame in frames(&bytes)? {
            let Some(payload) = self.assembler.accept(frame?)? else { continue };
            match payload.kind {
                Kind::Ping => {
                    self.shared.answer_ping(HUB_STREAM, decoded(Kind::Ping, Ping::decode(&payload.bytes))?)
                }
                Kind::Pong => self.shared.pong(decoded(Kind::Pong, Ping::decode(&payload.bytes))?),
                Kind::Ack => self.shared.acknowledged(decoded(Kind::Ack, Ack::decode(&payload.bytes))?)?,
                Kind::Reroute => {
                    self.shared.turned_back(decoded(Kind::Reroute, Reroute::decode(&payload.bytes))?)?;
                }
                Kind::Refuse => {
                    let refusal = decoded(Kind::Refuse, Refusal::decode(&payload.bytes))?;
                    // On a control link, one that names a session is about that session only: a worker is declined.
                    if self.is_control && refusal.session.is_some() {
                        self.waiting.push_back(Incoming::Own(payload));
                    } else {
                        return Err(LinkError::Refused(refusal));
                    }
                }
                _ => self.waiting.push_back(Incoming::Own(payload)),
            }
        }
        Ok(())
    }
}

/// Whether a count that was not taken means that no connection of this holder could go on. Who lacks what was acknowledged before
/// is an attempt that a newer one has overtaken: that one goes on.
fn ends_the_link(error: &LinkError) -> bool {
    match error {
        LinkError::Protocol(FrameError::Replay(ReplayError::Forgotten { .. })) => true,
        LinkError::Protocol(FrameError::Replay(ReplayError::Impossible { received, most, .. })) => {
            received > most
        }
        _ => false,
    }
}

/// Whether a second connection for bulk is offered to the holder of a link that can be resumed.
fn takes_bulk(admission: &Admission, options: &LinkOptions) -> bool {
    let asks = admission.features.contains(Features::BULK_CONNECTION);
    options.bulk_connection && asks && matches!(admission.purpose, Purpose::Worker(_))
}

fn before_the_welcome() -> Refusal {
    let sentence = "something came behind the proof and before the welcome";
    Refusal::new(RefusalCode::ProtocolError, sentence, "update the holder's side")
}

/// How long the hub waits for the holder of a link to come back; nothing where a lost connection ends the link.
fn resume_within(admission: &Admission, options: &LinkOptions) -> Option<Duration> {
    let most = match admission.purpose {
        Purpose::Worker(_) => options.resume_within,
        Purpose::Session(_) => options.resume_within.min(BACKBONE_RESUME),
        Purpose::Control(_) | Purpose::Resume(_) | Purpose::Bulk(_) => return None,
    };
    (admission.features.contains(Features::RESUME) && !most.is_zero()).then_some(most)
}

fn party(role: Role) -> Party {
    match role {
        Role::Worker => Party::Worker,
        Role::Backbone => Party::Backbone,
    }
}

async fn handshake<S>(
    opening: &mut Opening<S>,
    hub: &HubIdentity,
    role: Role,
    header: Option<&Ticket>,
    nonce: Nonce,
) -> Result<Admission, LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let hello = opening.expect(Kind::Hello, "a hello").await?;
    let (mut state, challenge) =
        HubHandshake::hello(hub, &hello.bytes, role, nonce, unix_now()).map_err(LinkError::RefusedPeer)?;
    if header.is_some_and(|header| header != state.ticket()) {
        return Err(LinkError::RefusedPeer(Refusal::new(
            RefusalCode::BadTicket,
            "the hello brings another ticket than the Authorization header",
            "send one ticket in both places",
        )));
    }
    opening.send(Kind::Challenge, challenge).await?;
    let proof = opening.expect(Kind::Proof, "a proof").await?;
    let admission = state.proof(&proof.bytes).map_err(LinkError::RefusedPeer)?;
    // One challenge has one answer; a second that came along with the first is a replay.
    if opening.waiting.iter().any(|payload| payload.kind == Kind::Proof) {
        return Err(LinkError::RefusedPeer(state.proof(&[]).err().unwrap_or_else(|| {
            Refusal::new(RefusalCode::ReplayedAnswer, "a second answer came", "open a new connection")
        })));
    }
    Ok(admission)
}
