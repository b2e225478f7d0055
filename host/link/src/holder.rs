//! The holder's side: hello, challenge, proof, welcome; then, for a session, transcript, sign, welcome.
//!
//! A link that is lost in a session is greeted again under the session's number.

use std::sync::Arc;

use kvasir_wire::assemble::Assembler;
use kvasir_wire::frame::{HUB_STREAM, Kind, Party};
use kvasir_wire::handshake::{
    Admission, BulkConnection, Features, HolderHandshake, Purpose, Resumption, Welcome,
};
use kvasir_wire::key::SecretKey;
use kvasir_wire::pairing::{EndPairing, Expectation, Transcript};
use kvasir_wire::ticket::Ticket;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;

use crate::bulk;
use crate::error::LinkError;
use crate::opening::{Opening, within};
use crate::options::LinkOptions;
use crate::reader::{LinkReceiver, decoded};
use crate::redial::Redial;
use crate::shared::LinkSender;
use crate::{fresh_nonce, unix_now};

/// A link that the hub admitted.
#[derive(Debug)]
pub struct Connected {
    /// Its sending half.
    pub sender: LinkSender,
    /// Its receiving half.
    pub receiver: LinkReceiver,
    /// What both sides know of each other.
    pub admission: Admission,
    /// The hub's clock at the welcome, unix seconds.
    pub hub_time: u64,
    options: LinkOptions,
    /// How to dial a second connection for bulk, where the hub takes one.
    bulk: Option<Arc<Redial>>,
}

/// A link on which a session has begun.
#[derive(Debug)]
pub struct Session {
    /// Its sending half.
    pub sender: LinkSender,
    /// Its receiving half.
    pub receiver: LinkReceiver,
    /// What both ends signed.
    pub transcript: Transcript,
    /// What this end and the hub know of each other.
    pub admission: Admission,
}

/// Runs the holder's handshake over a WebSocket that is open already, however it came about. Since nobody here knows how to
/// open another, the link ends with this one.
pub async fn connect_over<S>(
    socket: WebSocketStream<S>,
    ticket: &Ticket,
    key: &SecretKey,
    purpose: Purpose,
    features: Features,
    options: &LinkOptions,
) -> Result<Connected, LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    connect_with(socket, ticket, key, purpose, features, options, None).await
}

/// The same, with a way to open another one.
pub(crate) async fn connect_with<S>(
    socket: WebSocketStream<S>,
    ticket: &Ticket,
    key: &SecretKey,
    purpose: Purpose,
    features: Features,
    options: &LinkOptions,
    redial: Option<Redial>,
) -> Result<Connected, LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let assembler = match purpose {
        Purpose::Worker(_) => Assembler::through_hub(Party::Backbone),
        Purpose::Session(_) => Assembler::through_hub(Party::Worker),
        Purpose::Control(_) | Purpose::Resume(_) | Purpose::Bulk(_) => Assembler::from_peer(Party::Hub),
    };
    let is_control = matches!(purpose, Purpose::Control(_));
    // A control link carries no session: another one is as good.
    let redial = redial.filter(|_| matches!(purpose, Purpose::Worker(_) | Purpose::Session(_)));
    let features = if redial.is_some() { features } else { features.without(NEED_ANOTHER_CONNECTION) };
    let mut opening = Opening::new(socket, assembler);
    let steps = handshake(&mut opening, ticket, key, purpose, features);
    match within(options.handshake, "the handshake with the hub", steps).await {
        Ok(Admitted { admission, hub_time, resumes, takes_bulk }) => {
            let redial = redial.filter(|_| resumes).map(Arc::new);
            let bulk = redial.clone().filter(|_| takes_bulk);
            let (sender, receiver) = opening.into_link(options, is_control, redial)?;
            Ok(Connected { sender, receiver, admission, hub_time, options: options.clone(), bulk })
        }
        Err(error) => Err(opening.fail(error, options.close_linger).await),
    }
}

/// What is not to be had where nobody knows how to open another connection.
const NEED_ANOTHER_CONNECTION: Features = Features::RESUME.with(Features::BULK_CONNECTION);

impl Connected {
    /// Waits for the transcript (a worker may wait long: until a backbone wants it), checks and signs it, and verifies
    /// the other end's signature. Whatever is not in order is refused, the hub is told why, and the link ends.
    pub async fn pair(mut self, key: &SecretKey, expectation: &Expectation) -> Result<Session, LinkError> {
        match self.pair_steps(key, expectation).await {
            Ok(transcript) => Ok(Session {
                sender: self.sender,
                receiver: self.receiver,
                transcript,
                admission: self.admission,
            }),
            Err(error) => {
                self.sender.shared.fail(error.clone());
                Err(error)
            }
        }
    }

    async fn pair_steps(
        &mut self,
        key: &SecretKey,
        expectation: &Expectation,
    ) -> Result<Transcript, LinkError> {
        let payload = self.receiver.recv().await?;
        let payload = on_hub_stream(payload, Kind::Transcript, "a transcript")?;
        let (pairing, signature) = EndPairing::transcript(&payload, &self.admission, key, expectation)
            .map_err(LinkError::RefusedPeer)?;
        self.sender.send(Kind::Sign, HUB_STREAM, signature).await?;
        let welcome = within(self.options.pairing, "the other end's signature", self.receiver.recv()).await?;
        let welcome = on_hub_stream(welcome, Kind::Welcome, "the welcome of the pair")?;
        let transcript = pairing.welcome(&welcome).map_err(LinkError::RefusedPeer)?;
        if transcript.features.contains(Features::RESUME) {
            self.sender.shared.arm(transcript.session);
        }
        if transcript.features.contains(NEED_ANOTHER_CONNECTION)
            && let Some(redial) = self.bulk.take()
        {
            tokio::spawn(bulk::keep(redial, Arc::clone(&self.sender.shared), transcript.session));
        }
        if matches!(self.admission.purpose, Purpose::Worker(_)) {
            // The path while it is empty, before the first bulk: what the window compares later round trips with.
            self.sender.shared.measure();
        }
        Ok(transcript)
    }
}

struct Admitted {
    admission: Admission,
    hub_time: u64,
    /// Whether the hub counts the link's messages.
    resumes: bool,
    /// Whether it takes a second connection for bulk.
    takes_bulk: bool,
}

async fn handshake<S>(
    opening: &mut Opening<S>,
    ticket: &Ticket,
    key: &SecretKey,
    purpose: Purpose,
    features: Features,
) -> Result<Admitted, LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (admission, proof) = greet(opening, ticket, key, purpose, features).await?;
    opening.send(Kind::Proof, proof).await?;
    let welcome = opening.expect(Kind::Welcome, "a welcome").await?;
    match decoded(Kind::Welcome, Welcome::decode(&welcome.bytes))? {
        Welcome::Admitted { hub_time } => {
            Ok(Admitted { admission, hub_time, resumes: false, takes_bulk: false })
        }
        Welcome::Resumable { hub_time } if admission.features.contains(Features::RESUME) => {
            Ok(Admitted { admission, hub_time, resumes: true, takes_bulk: false })
        }
        Welcome::BulkOffered { hub_time } if admission.features.contains(NEED_ANOTHER_CONNECTION) => {
            Ok(Admitted { admission, hub_time, resumes: true, takes_bulk: true })
        }
        Welcome::Resumable { .. }
        | Welcome::BulkOffered { .. }
        | Welcome::Paired { .. }
        | Welcome::Resumed { .. } => Err(unfit_welcome()),
    }
}

/// Another connection for a link that there was: gives how many of its messages the hub has received.
pub(crate) async fn greet_again<S>(
    opening: &mut Opening<S>,
    ticket: &Ticket,
    key: &SecretKey,
    resumption: Resumption,
) -> Result<u64, LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let purpose = Purpose::Resume(resumption);
    let (_, proof) = greet(opening, ticket, key, purpose, Features::RESUME).await?;
    opening.send(Kind::Proof, proof).await?;
    let welcome = opening.expect(Kind::Welcome, "a welcome").await?;
    match decoded(Kind::Welcome, Welcome::decode(&welcome.bytes))? {
        // What comes after it belongs to the link.
        Welcome::Resumed { received } if opening.waiting.is_empty() => Ok(received),
        _ => Err(unfit_welcome()),
    }
}

/// A second connection for the bulk of a worker's session.
pub(crate) async fn greet_for_bulk<S>(
    opening: &mut Opening<S>,
    ticket: &Ticket,
    key: &SecretKey,
    bulk: BulkConnection,
) -> Result<(), LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (_, proof) = greet(opening, ticket, key, Purpose::Bulk(bulk), NEED_ANOTHER_CONNECTION).await?;
    opening.send(Kind::Proof, proof).await?;
    let welcome = opening.expect(Kind::Welcome, "a welcome").await?;
    match decoded(Kind::Welcome, Welcome::decode(&welcome.bytes))? {
        Welcome::Admitted { .. } if opening.waiting.is_empty() => Ok(()),
        _ => Err(unfit_welcome()),
    }
}

fn unfit_welcome() -> LinkError {
    LinkError::Unexpected {
        found: "a welcome of another kind".to_owned(),
        expected: "a welcome to what was asked for",
    }
}

/// Hello and challenge: the hub has proved its key, and has no proof of this side's yet, so it admitted nobody.
pub(crate) async fn greet<S>(
    opening: &mut Opening<S>,
    ticket: &Ticket,
    key: &SecretKey,
    purpose: Purpose,
    features: Features,
) -> Result<(Admission, Vec<u8>), LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (state, hello) = HolderHandshake::start(ticket, key, purpose, features, fresh_nonce()?, unix_now())
        .map_err(LinkError::RefusedPeer)?;
    opening.send(Kind::Hello, hello).await?;
    let challenge = opening.expect(Kind::Challenge, "a challenge").await?;
    state.challenge(&challenge.bytes, key).map_err(LinkError::RefusedPeer)
}

fn on_hub_stream(
    payload: kvasir_wire::assemble::Payload,
    kind: Kind,
    expected: &'static str,
) -> Result<Vec<u8>, LinkError> {
    if payload.kind == kind && payload.stream == HUB_STREAM {
        return Ok(payload.bytes);
    }
    if payload.kind == Kind::Refuse {
        let refusal = kvasir_wire::refusal::Refusal::decode(&payload.bytes);
        return Err(LinkError::Refused(decoded(Kind::Refuse, refusal)?));
    }
    Err(LinkError::Unexpected { found: payload.kind.name().to_owned(), expected })
}
