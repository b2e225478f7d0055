//! From the hello to a backbone. The hub is believed once it has proved the key that the ticket names.

use std::time::Instant;

use kvasir_wire::assemble::{Assembler, Payload};
use kvasir_wire::frame::{FrameError, HUB_STREAM, Kind, Party};
use kvasir_wire::handshake::{Class, Features, Purpose, WorkerOffer};
use kvasir_wire::key::SecretKey;
use kvasir_wire::limits::{CLOCK_SKEW_SECONDS, PROTOCOL_VERSION};
use kvasir_wire::pairing::{EndPairing, Expectation};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::ticket::Ticket;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;

use super::text::difference;
use super::{Deadlines, HopName, Log, Stop, Subject, shown};
use crate::error::LinkError;
use crate::holder::{Connected, connect_over, greet};
use crate::opening::{Opening, within};
use crate::options::LinkOptions;
use crate::{SUBPROTOCOL, unix_now};

/// What the hub is greeted with.
pub(super) struct Greeting<'a> {
    pub(super) ticket: &'a Ticket,
    pub(super) key: &'a SecretKey,
    pub(super) subject: &'a Subject,
    pub(super) deadlines: &'a Deadlines,
}

impl Greeting<'_> {
    /// Is admitted and waits for a backbone; or, where a worker of the same key could lose its place, greets alone.
    pub(super) async fn run<S>(&self, socket: WebSocketStream<S>, log: &mut Log<'_>) -> Result<(), Stop>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let claims = self.ticket.claims();
        let Some(offer) = &self.subject.offer else {
            return self.greet_alone(socket, "there is no plugin to offer", None, log).await;
        };
        if claims.limits.sessions <= 1 && !self.subject.replace_worker {
            let advice = "stop the worker that uses this ticket and ask again with --danger-replace-worker, or ask the operator for a ticket of two sessions";
            let why = "the ticket allows one link: a worker that runs with it would be sent away for good";
            return self.greet_alone(socket, why, Some(advice), log).await;
        }
        let began = Instant::now();
        let options = self.options();
        let purpose = Purpose::Worker(offer.clone());
        let connected = connect_over(socket, self.ticket, self.key, purpose, Features::NONE, &options).await;
        let connected = connected.map_err(|error| self.not_admitted(&error, began, log))?;
        self.version(connected.admission.version, began, log);
        let round_trip = connected.sender.round_trip_to_hub(self.deadlines.hub).await;
        let round_trip = match round_trip {
            Ok(time) => format!(", round trip {:.1} ms", time.as_secs_f64() * 1e3),
            Err(_) => String::new(),
        };
        let ahead = difference(connected.hub_time, unix_now());
        let advice = ahead.and_then(|ahead| clock_advice(ahead, CLOCK_SKEW_SECONDS));
        log.pass(HopName::Hub, began, format!("{}, admitted{round_trip}", self.proved()), advice);
        self.backbone(connected, offer, log).await
    }

    /// Hello and challenge alone: the hub shows its key, and has admitted nobody.
    async fn greet_alone<S>(
        &self,
        socket: WebSocketStream<S>,
        why: &str,
        advice: Option<&str>,
        log: &mut Log<'_>,
    ) -> Result<(), Stop>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let began = Instant::now();
        let offer =
            WorkerOffer { plugins: Vec::new(), formats: Vec::new(), memory_bytes: 0, class: Class::Exact };
        let mut opening = Opening::new(socket, Assembler::through_hub(Party::Backbone));
        let steps = greet(&mut opening, self.ticket, self.key, Purpose::Worker(offer), Features::NONE);
        let result = within(self.deadlines.hub, "the hub's challenge", steps).await;
        match result {
            Ok((admission, _)) => {
                self.version(admission.version, began, log);
                let seen = format!("{}; it was not asked to admit", self.proved());
                log.pass(HopName::Hub, began, seen, advice.map(str::to_owned));
                opening.fail(LinkError::Ended, self.deadlines.close).await;
                Err(Stop(why.to_owned()))
            }
            Err(error) => {
                let error = opening.fail(error, self.deadlines.close).await;
                Err(self.not_admitted(&error, began, log))
            }
        }
    }

    fn options(&self) -> LinkOptions {
        let Deadlines { hub, close, .. } = *self.deadlines;
        LinkOptions { handshake: hub, close_drain: close, close_linger: close, ..LinkOptions::default() }
    }

    fn version(&self, version: u8, began: Instant, log: &mut Log<'_>) {
        let seen = format!("subprotocol {SUBPROTOCOL}, protocol version {version}");
        log.pass(HopName::Version, began, seen, None);
    }

    fn proved(&self) -> String {
        let claims = self.ticket.claims();
        format!("the hub proved its key {} for network {}", claims.hub.digest(), claims.network)
    }

    fn not_admitted(&self, error: &LinkError, began: Instant, log: &mut Log<'_>) -> Stop {
        let (seen, remedy) = told(error);
        if is_about_versions(error) {
            return log.fail(HopName::Version, began, seen, remedy);
        }
        let version =
            format!("subprotocol {SUBPROTOCOL}; this side speaks protocol version {PROTOCOL_VERSION}");
        log.pass(HopName::Version, began, version, None);
        // A hub that knows at once that nobody fits says so in place of the welcome.
        if let LinkError::Refused(refusal) = error
            && is_about_backbones(refusal.code)
        {
            log.pass(HopName::Hub, began, "it answered for its backbones, in place of a welcome", None);
            return log.fail(HopName::Backbone, began, seen, remedy);
        }
        log.fail(HopName::Hub, began, seen, remedy)
    }

    /// Waits until the hub has a backbone for this worker, and declines it.
    async fn backbone(
        &self,
        mut connected: Connected,
        offer: &WorkerOffer,
        log: &mut Log<'_>,
    ) -> Result<(), Stop> {
        let (name, began) = (HopName::Backbone, Instant::now());
        let found = timeout(self.deadlines.backbone, connected.receiver.recv()).await;
        let result = match found {
            Ok(Ok(payload)) => self.offered(&payload, &connected, offer),
            Ok(Err(error)) => Err(told(&error)),
            Err(_) => Err((
                format!("admitted, and no backbone was offered within {:?}", self.deadlines.backbone),
                "none that fits is connected, or each declined: start one (kvasir run --hub), or ask the network's operator; the hub's status names what this key waits for".to_owned(),
            )),
        };
        // In order: the last words go out before the connection is cut.
        connected.sender.close();
        let _ = timeout(self.deadlines.close, connected.sender.ended()).await;
        match result {
            Ok(seen) => {
                log.pass(name, began, seen, None);
                Ok(())
            }
            Err((seen, remedy)) => Err(log.fail(name, began, seen, remedy)),
        }
    }

    /// Takes what came after the welcome: a transcript to sign, if a backbone wants this worker.
    fn offered(
        &self,
        payload: &Payload,
        connected: &Connected,
        offer: &WorkerOffer,
    ) -> Result<String, (String, String)> {
        if payload.stream != HUB_STREAM || payload.kind != Kind::Transcript {
            let seen = format!("the hub sent {} where a transcript was due", payload.kind.name());
            let remedy = match payload.kind {
                Kind::Drain => "the hub restarts: try again in a minute",
                _ => "update the older of the two sides",
            };
            return Err((seen, remedy.to_owned()));
        }
        let expectation = Expectation {
            plugins: offer.plugins.clone(),
            class: Some(offer.class),
            ..Expectation::default()
        };
        let taken = EndPairing::transcript(&payload.bytes, &connected.admission, self.key, &expectation);
        let declined = match &taken {
            // The signature stays here.
            Ok((pairing, _)) => looked_only().about(pairing.signed().session),
            Err(refusal) => refusal.clone(),
        };
        // A link that ends right now declines too.
        let _ = connected.sender.try_send(Kind::Refuse, HUB_STREAM, declined.encode());
        let (pairing, _) = taken.map_err(|refusal| told(&LinkError::RefusedPeer(refusal)))?;
        let transcript = pairing.signed();
        Ok(format!(
            "one that fits was offered, and declined: key {}, model {}, plugin {}, class {}",
            transcript.backbone.key.digest(),
            transcript.model,
            transcript.plugin,
            transcript.class.name()
        ))
    }
}

/// Advice where two clocks differ by more than is allowed.
pub(super) fn clock_advice(ahead: i64, allowed: u64) -> Option<String> {
    let seconds = ahead.unsigned_abs();
    if seconds <= allowed {
        return None;
    }
    // The other side ahead: this clock is behind it.
    let (direction, when) = if ahead > 0 { ("behind", "late") } else { ("ahead of", "early") };
    Some(format!(
        "this machine's clock is {seconds} s {direction} the other side's: set it, or tickets and certificates end too {when} here"
    ))
}

/// What the hub and the backbone are told of a visit that was no worker's.
fn looked_only() -> Refusal {
    Refusal::new(
        RefusalCode::Declined,
        "the operator of this worker looked whether a backbone would take it (kvasir doctor)",
        "nothing: the worker itself comes when it is started",
    )
}

/// An error as what was seen and what to do.
fn told(error: &LinkError) -> (String, String) {
    let (sentence, remedy) = match error {
        LinkError::Refused(refusal) | LinkError::RefusedPeer(refusal) => {
            let wait = refusal.retry_after.map_or_else(String::new, |s| format!(" (again in {s} s)"));
            let sentence = format!("{}: {}", refusal.code.name(), refusal.sentence);
            (sentence, format!("{}{wait}", shown(&refusal.what_to_do)))
        }
        LinkError::TimedOut { .. } | LinkError::Silent(_) => {
            (error.to_string(), "the hub hangs, or something between holds its bytes back: ask the network's operator".to_owned())
        }
        LinkError::Lost(_) | LinkError::Closed { .. } | LinkError::Stalled(_) => (
            error.to_string(),
            "something between does not carry WebSockets, or the hub restarts: try again, then from another network".to_owned(),
        ),
        _ => (
            error.to_string(),
            "what answers is no hub of this version: update the older of the two sides".to_owned(),
        ),
    };
    (shown(&sentence), remedy)
}

/// Whether a refusal is about what a backbone wants.
pub(super) fn is_about_backbones(code: RefusalCode) -> bool {
    matches!(
        code,
        RefusalCode::NoBackbone
            | RefusalCode::PluginNotAllowed
            | RefusalCode::NothingInCommon
            | RefusalCode::ClassNotAccepted
            | RefusalCode::WrongResult
            | RefusalCode::Declined
    )
}

fn is_about_versions(error: &LinkError) -> bool {
    match error {
        LinkError::Refused(refusal) | LinkError::RefusedPeer(refusal) => {
            refusal.code == RefusalCode::UnsupportedVersion
        }
        LinkError::Protocol(FrameError::UnknownVersion { .. }) => true,
        _ => false,
    }
}
