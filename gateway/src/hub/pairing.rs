//! A worker's life at the hub: waiting for a backbone that fits, the offer, the data link, the transcript, the session.
//!
//! One task serves a worker's link from its admission to its end. A backbone that declines leaves the worker waiting; a
//! pairing that fails after the transcript was sent ends both links, since what an end has signed cannot be unsaid on the
//! same link. Whoever is sent away is told why, and so is the other side.

use std::{sync::Arc, time::Duration};

use kvasir_link::{HubLink, Incoming, LinkError};
use kvasir_wire::{
    frame::Kind,
    handshake::{Features, WorkerOffer},
    id::SessionId,
    message::{Drain, DrainReason},
    pairing::{HubPairing, PairRequest, Transcript},
    refusal::{Refusal, RefusalCode},
    ticket::Role,
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::{
    Hub,
    books::SessionFacts,
    meter::RoundTrip,
    registry::{Choice, LinkNumber, Match},
    session,
};
use crate::stop::Stop;

/// How long a backbone has from `pair` until its data link is admitted.
const DIAL_TIME: Duration = Duration::from_secs(10);
/// How long both ends have to sign the transcript.
const SIGN_TIME: Duration = Duration::from_secs(10);
/// How long a backbone that declined is left alone with the same worker.
const DECLINED_PAUSE: Duration = Duration::from_secs(3);

/// How a wait of a worker ended other than in a session; the worker has been told.
struct Gone(String);

/// Serves an admitted worker until its link ends.
pub(super) async fn serve_worker(hub: Arc<Hub>, link: HubLink, offer: WorkerOffer, stop: Stop) {
    let since = Instant::now();
    let round_trip = RoundTrip::watch(&link.sender, Role::Worker, &hub);
    let (number, end) = hub.registry.add_worker(&link.admission, round_trip.clone());
    let key = link.admission.holder;
    let mut waiter = Waiter { hub: &hub, number, link, offer, end, stop, passed: Vec::new() };
    match waiter.wait().await {
        Ok(pair) => {
            let Waiter { link, end, stop, .. } = waiter;
            session::run(&hub, number, link, *pair, (since, round_trip), end, stop).await;
        }
        Err(Gone(why)) => {
            tracing::info!(worker = %key, why, "worker left without a session");
            waiter.link.receiver.linger(session::LINGER).await;
        }
    }
    hub.registry.remove_worker(number);
}

/// What a session is made of, beside the worker's link.
pub(super) struct Pair {
    /// The backbone's data link.
    pub(super) backbone: HubLink,
    /// The backbone's control link in the registry.
    pub(super) control: LinkNumber,
    /// What both signed, and what the receipts must say.
    pub(super) facts: SessionFacts,
}

struct Waiter<'hub> {
    hub: &'hub Arc<Hub>,
    number: LinkNumber,
    link: HubLink,
    offer: WorkerOffer,
    end: oneshot::Receiver<Refusal>,
    stop: Stop,
    /// Backbones that declined, when, and what each said.
    passed: Vec<(LinkNumber, Instant, String)>,
}

impl Waiter<'_> {
    /// Waits for a backbone and pairs with it.
    async fn wait(&mut self) -> Result<Box<Pair>, Gone> {
        loop {
            self.passed.retain(|(_, at, _)| at.elapsed() < DECLINED_PAUSE);
            let mut changes = self.hub.registry.changes();
            changes.mark_unchanged();
            let passed: Vec<LinkNumber> = self.passed.iter().map(|(number, ..)| *number).collect();
            let (choice, price) = match self.hub.price() {
                Some(price) => (self.hub.registry.choose(&self.link.admission, &self.offer, &passed), price),
                None => (Choice::Wait { why: "the ledger has named no price yet".into() }, String::new()),
            };
            match choice {
                Choice::Refuse(refusal) => {
                    if let Ok(session) = fresh_session() {
                        self.hub.registry.tell_backbones(&about_worker(&refusal, &self.link).about(session));
                    }
                    return Err(self.send_away(refusal));
                }
                Choice::Offer(found) => {
                    // Where there is a pair, its session takes the offer's place once it begins.
                    let nothing = match self.offer_to(&found, price).await {
                        Ok(pair) => return Ok(pair),
                        Err(nothing) => nothing,
                    };
                    self.hub.registry.offer_is_over(found.control);
                    match nothing {
                        NotPaired::Declined(why) => {
                            self.not_taken(&found, &why);
                            self.passed.push((found.control, Instant::now(), why.sentence));
                        }
                        NotPaired::Gone(gone) => return Err(gone),
                    }
                }
                Choice::Wait { why } => {
                    // What a backbone said tells more than that there is none.
                    let said = self.passed.last().map(|(.., sentence)| sentence.clone());
                    self.hub.registry.waits(self.number, said.unwrap_or(why));
                    tokio::select! {
                        biased;
                        gone = self.leaves() => return Err(gone),
                        _ = changes.changed() => {}
                        // Whom nobody has declined waits for a change alone.
                        () = sleep(DECLINED_PAUSE), if !passed.is_empty() => {}
                    }
                }
            }
        }
    }

    /// Writes down that a backbone did not take the worker. One without a place says so of each worker every few seconds: that is no
    /// news, would leave the list of refusals with nothing else, and the report says of each worker what it waits for.
    fn not_taken(&self, found: &Match, why: &Refusal) {
        let worker = self.link.admission.holder;
        if why.code == RefusalCode::Declined {
            tracing::debug!(%worker, backbone = %found.backbone, "not taken: {why}");
            self.hub.metrics.door.refused.count(why.code.name());
        } else {
            tracing::info!(%worker, backbone = %found.backbone, "not taken: {why}");
            self.hub.note_refusal(worker.to_string(), why);
        }
    }

    /// Returns when the worker has to go or goes by itself. Cancelling loses nothing.
    async fn leaves(&mut self) -> Gone {
        tokio::select! {
            biased;
            refusal = told(&mut self.end) => self.send_away(refusal),
            () = self.stop.stopped() => {
                let _ = self.link.sender.send(Kind::Drain, restarting().encode());
                self.link.sender.close();
                Gone("the hub stops".into())
            }
            incoming = self.link.receiver.next() => match incoming {
                Err(error) => Gone(error.to_string()),
                Ok(Incoming::Own(payload)) if payload.kind == Kind::Drain => {
                    self.link.sender.close();
                    Gone("it asked to leave".into())
                }
                Ok(Incoming::Own(payload)) => self.send_away(unexpected(payload.kind.name())),
                Ok(Incoming::Relay(_)) => self.send_away(unexpected("a message for a backbone")),
            },
        }
    }

    fn send_away(&self, refusal: Refusal) -> Gone {
        self.hub.note_refusal(self.link.admission.holder.to_string(), &refusal);
        let why = refusal.to_string();
        self.link.sender.refuse(refusal);
        Gone(why)
    }

    /// Offers the worker to a backbone and goes through with the pairing.
    async fn offer_to(&mut self, found: &Match, price: String) -> Result<Box<Pair>, NotPaired> {
        let session = fresh_session().map_err(NotPaired::Declined)?;
        let claims = self.link.admission.ticket.claims();
        let (Some(payee), Ok(price_leaf)) = (claims.wallet, price.parse()) else {
            return Err(NotPaired::Gone(self.send_away(Refusal::new(
                RefusalCode::BadTicket,
                "the ticket names no wallet, or the ledger's price has no readable name",
                "ask the operator for a new ticket",
            ))));
        };
        let request = PairRequest {
            session,
            worker: self.link.admission.holder,
            plugin: found.plugin,
            class: self.offer.class,
            formats: self.offer.formats.clone(),
            memory_bytes: self.offer.memory_bytes,
            payee,
            price: price_leaf,
        };
        let mut awaited = self.hub.registry.await_data_link(session, found.backbone);
        let asked = found.link.send(Kind::Pair, request.encode());
        let answer = match asked {
            Err(error) => Ok(Err(peer_lost(format!("the backbone's control link: {error}")))),
            Ok(()) => tokio::select! {
                biased;
                gone = self.leaves() => Err(gone),
                answer = timeout(DIAL_TIME, &mut awaited) => Ok(match answer {
                    Ok(Ok(answer)) => answer,
                    Ok(Err(_)) => Err(peer_lost("the hub's table dropped the offer".into())),
                    Err(_) => Err(Refusal::new(
                        RefusalCode::TimedOut,
                        format!("the backbone dialled no data link within {} s", DIAL_TIME.as_secs()),
                        "see the backbone's log",
                    )),
                }),
            },
        };
        self.hub.registry.forget_data_link(session);
        let mut backbone = match answer {
            Ok(Ok(backbone)) => backbone,
            Ok(Err(refusal)) => {
                // A data link that arrived in the last moment is not left hanging.
                if let Ok(Ok(late)) = awaited.try_recv() {
                    late.sender.refuse(refusal.clone());
                }
                return Err(NotPaired::Declined(refusal));
            }
            Err(gone) => {
                if let Ok(Ok(late)) = awaited.try_recv() {
                    late.sender.refuse(peer_lost("the worker went away before the pairing".into()));
                }
                return Err(NotPaired::Gone(gone));
            }
        };
        let mut features = self.link.admission.features.common(backbone.admission.features);
        if !self.link.takes_bulk() {
            features = features.without(Features::BULK_CONNECTION);
        }
        let transcript = Transcript {
            version: self.link.admission.version,
            network: self.hub.identity.network.clone(),
            session,
            worker: (&self.link.admission).into(),
            backbone: (&backbone.admission).into(),
            plugin: found.plugin,
            model: found.offer.model,
            class: self.offer.class,
            features,
        };
        match self.sign_both(&mut backbone, transcript).await {
            Ok(transcript) => {
                let facts = SessionFacts { transcript, payee, price };
                Ok(Box::new(Pair { backbone, control: found.control, facts }))
            }
            Err(FailedAt { side, refusal }) => {
                // The side at fault hears what it did, the other that the pairing failed and whose doing it was.
                let other = Refusal::new(
                    refusal.code,
                    format!("the pairing failed at the {side}: {}", refusal.sentence),
                    "connect again; if it happens again with the same peer, report it to the operator",
                );
                self.hub.note_refusal(session.short(), &other);
                let (to_worker, to_backbone) = match side {
                    Role::Worker => (refusal, other),
                    Role::Backbone => (other.retry_after(1), refusal),
                };
                backbone.sender.refuse(to_backbone);
                let gone = Gone(to_worker.to_string());
                self.link.sender.refuse(to_worker);
                backbone.receiver.linger(session::LINGER).await;
                Err(NotPaired::Gone(gone))
            }
        }
    }

    /// Sends both ends the transcript, collects and verifies both signatures, and gives each end the other's.
    async fn sign_both(
        &mut self,
        backbone: &mut HubLink,
        transcript: Transcript,
    ) -> Result<Transcript, FailedAt> {
        let payload = transcript.encode();
        let mut pairing = HubPairing::new(transcript);
        let at = |side: Role| move |error: LinkError| FailedAt { side, refusal: of_link(&error) };
        self.link.sender.send(Kind::Transcript, payload.clone()).map_err(at(Role::Worker))?;
        backbone.sender.send(Kind::Transcript, payload).map_err(at(Role::Backbone))?;
        let deadline = Instant::now() + SIGN_TIME;
        let (mut worker_signed, mut backbone_signed) = (false, false);
        while !(worker_signed && backbone_signed) {
            let (side, incoming) = tokio::select! {
                incoming = self.link.receiver.next(), if !worker_signed => (Role::Worker, incoming),
                incoming = backbone.receiver.next(), if !backbone_signed => (Role::Backbone, incoming),
                () = tokio::time::sleep_until(deadline) => {
                    let side = if worker_signed { Role::Backbone } else { Role::Worker };
                    let sentence = format!("the {side} did not sign the transcript within {} s", SIGN_TIME.as_secs());
                    let refusal = Refusal::new(RefusalCode::TimedOut, sentence, "connect again");
                    return Err(FailedAt { side, refusal });
                }
            };
            let failed = |refusal: Refusal| FailedAt { side, refusal };
            match incoming {
                Err(error) => return Err(at(side)(error)),
                Ok(Incoming::Own(payload)) => match payload.kind {
                    Kind::Sign => pairing.signed(side, &payload.bytes).map_err(failed)?,
                    Kind::Refuse => return Err(failed(refusal_in(&payload.bytes))),
                    other => return Err(failed(unexpected(other.name()))),
                },
                Ok(Incoming::Relay(_)) => return Err(failed(unexpected("a message for the other end"))),
            }
            match side {
                Role::Worker => worker_signed = true,
                Role::Backbone => backbone_signed = true,
            }
        }
        let transcript = pairing.transcript().clone();
        if let Some((to_worker, to_backbone)) = pairing.welcomes() {
            self.link.sender.send(Kind::Welcome, to_worker).map_err(at(Role::Worker))?;
            backbone.sender.send(Kind::Welcome, to_backbone).map_err(at(Role::Backbone))?;
        }
        Ok(transcript)
    }
}

/// Why an offer came to nothing.
enum NotPaired {
    /// The backbone did not come; the worker may be offered to another.
    Declined(Refusal),
    /// The worker's link is over.
    Gone(Gone),
}

/// Which side made a pairing fail, and what it is told.
struct FailedAt {
    side: Role,
    refusal: Refusal,
}

/// Waits for the registry's order to end a link. It never comes from a registry that has forgotten the link.
pub(super) async fn told(end: &mut oneshot::Receiver<Refusal>) -> Refusal {
    match end.await {
        Ok(refusal) => refusal,
        Err(_) => std::future::pending().await,
    }
}

/// The `drain` of a hub that restarts: come back soon, not all at once.
pub(super) fn restarting() -> Drain {
    let spread = getrandom::u32().unwrap_or(0) % 4_000;
    Drain { reason: DrainReason::Restarting, reconnect_in_ms: 1_000 + spread, try_for_ms: 300_000 }
}

/// What the other end is told of a link that ended.
pub(super) fn of_link(error: &LinkError) -> Refusal {
    match error {
        LinkError::Refused(refusal) | LinkError::RefusedPeer(refusal) => {
            Refusal { session: None, ..refusal.clone() }
        }
        LinkError::Protocol(_) | LinkError::BadPayload { .. } | LinkError::Unexpected { .. } => {
            Refusal::new(RefusalCode::ProtocolError, error.to_string(), "update the older of the two sides")
        }
        LinkError::Silent(_) | LinkError::TimedOut { .. } | LinkError::Stalled(_) => {
            Refusal::new(RefusalCode::TimedOut, error.to_string(), "connect again")
        }
        _ => peer_lost(error.to_string()),
    }
}

/// A refusal that came as a payload of its own.
pub(super) fn refusal_in(payload: &[u8]) -> Refusal {
    match Refusal::decode(payload) {
        Ok(refusal) => Refusal { session: None, ..refusal },
        Err(error) => error.into(),
    }
}

/// The refusal for something that does not belong where it came.
pub(super) fn unexpected(found: &str) -> Refusal {
    Refusal::new(
        RefusalCode::ProtocolError,
        format!("{found} came where it has no place"),
        "update the older of the two sides; if both are current, report this sentence",
    )
}

/// A session number that nobody could know before.
fn fresh_session() -> Result<SessionId, Refusal> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!("the system gave no random bytes: {error}");
        Refusal::new(RefusalCode::Internal, "the hub has no randomness", "tell the operator of the hub")
            .retry_after(60)
    })?;
    Ok(SessionId(bytes))
}

fn peer_lost(sentence: String) -> Refusal {
    Refusal::new(RefusalCode::PeerLost, sentence, "connect again")
}

fn about_worker(refusal: &Refusal, worker: &HubLink) -> Refusal {
    let sentence = format!("worker {}: {}", worker.admission.holder, refusal.sentence);
    Refusal::new(refusal.code, sentence, refusal.what_to_do.clone())
}
