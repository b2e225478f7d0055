//! One session: messages passed on both ways, payload bytes counted, receipts cut, signed, filed and acknowledged.
//!
//! Three futures run side by side in one task: a pump for each direction, which hands messages on under back pressure and
//! tells the books of every header, and the clerk, who talks with both ends about receipts. Only the clerk ends a session:
//! a pump whose link is gone says so behind everything that came before, so that a last signature still counts. A link that
//! can be resumed outlives its connections below all this: here each message comes once. However it ends, one line of JSON
//! says so, once.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use kvasir_link::{HubLink, HubReceiver, HubSender, Incoming, LinkError, Relay, unix_now};
use kvasir_wire::{
    assemble::Payload,
    frame::{FrameError, Kind},
    handshake::Features,
    message::Report,
    receipt::CUT_BYTES,
    refusal::{Refusal, RefusalCode},
    ticket::Role,
};
use serde::Serialize;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};

use super::{
    Hub,
    books::{Books, SessionTotals},
    clerk::Clerk,
    filing::FilingError,
    meter::{LaneBytes, RoundTrip, SessionMeter},
    pairing::{Pair, of_link, told},
    registry::LinkNumber,
    resume::{self, Ends},
};
use crate::{metrics::OpenSession, stop::Stop};

/// How long a link is read on after its last words.
pub(super) const LINGER: Duration = Duration::from_secs(2);
/// What may wait for the clerk while it waits for the disk. The pumps wait then: what an end said is held by them and here.
const EVENTS: usize = 4;

/// The JSON line of a session that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionClosed {
    /// Always `session_closed`.
    pub event: &'static str,
    /// The session.
    pub session: String,
    /// The worker's key.
    pub worker: String,
    /// The backbone's key.
    pub backbone: String,
    /// Unix seconds at which it began.
    pub began: u64,
    /// How long it lasted.
    pub seconds: u64,
    /// How long the worker had waited for it, in whole seconds.
    pub waited_seconds: u64,
    /// Results passed on.
    pub calls: u64,
    /// Payload bytes of their calls.
    pub bytes_up: u64,
    /// Payload bytes of the results.
    pub bytes_down: u64,
    /// Bytes that receipts signed by all three cover.
    pub receipted_bytes: u64,
    /// Receipts signed by all three.
    pub receipts: u64,
    /// All payload bytes passed on to the worker.
    pub to_worker: LaneBytes,
    /// All payload bytes passed on to the backbone.
    pub to_backbone: LaneBytes,
    /// Messages that had to wait since the end that they were for took no more.
    pub stalls: u64,
    /// How long they waited in all.
    pub stalled_ms: u64,
    /// How often an end came back over another connection.
    pub resumed: u64,
    /// Second connections that its worker opened for bulk.
    pub bulk_connections: u64,
    /// Why it ended, a word for programs: `finished`, `dropped`, or the code of a refusal.
    pub reason_code: &'static str,
    /// Why it ended.
    pub reason: String,
}

/// Serves a pair until the session ends.
pub(super) async fn run(
    hub: &Arc<Hub>,
    number: LinkNumber,
    worker: HubLink,
    pair: Pair,
    (since, worker_round_trip): (Instant, RoundTrip),
    mut end: oneshot::Receiver<Refusal>,
    stop: Stop,
) {
    let Pair { backbone, control, facts } = pair;
    let session = facts.transcript.session;
    let limit = worker.admission.ticket.claims().limits.session_bytes;
    // Both ends or none: one that does not know of it would wait for the other in vain.
    let resumes = facts.transcript.features.contains(Features::RESUME);
    let resumers = resumes.then(|| worker.resumable(session).zip(backbone.resumable(session))).flatten();
    let takes_bulk = resumers.is_some() && facts.transcript.features.contains(Features::BULK_CONNECTION);
    let backbone_round_trip = RoundTrip::watch(&backbone.sender, Role::Backbone, hub);
    let meter = Arc::new(SessionMeter::new(
        session,
        backbone.admission.holder,
        unix_now(),
        since.elapsed(),
        (worker_round_trip, backbone_round_trip),
        hub.metrics.clone(),
    ));
    hub.registry.session_begins(number, control, meter.clone());
    tracing::info!(
        session = %session.short(), worker = %worker.admission.holder, backbone = %backbone.admission.holder, "session begins"
    );
    let books = Arc::new(Mutex::new(Books::new(facts, &hub.identity)));
    let mut record = Record {
        hub: hub.clone(),
        books: books.clone(),
        worker: worker.admission.holder.to_string(),
        meter: meter.clone(),
        open: hub.metrics.door.session(),
        reason_code: "dropped",
        reason: "the hub dropped it".into(),
    };
    if let Some((worker, backbone)) = resumers {
        hub.registry.may_resume(session, Ends { worker, backbone, meter: meter.clone(), takes_bulk });
    }
    let due = Notify::new();
    let (events, inbox) = mpsc::channel(EVENTS);
    let (mut from_worker, mut from_backbone) = (worker.receiver, backbone.receiver);
    let (to_worker, to_backbone) = (worker.sender, backbone.sender);
    let mut clerk = Clerk::new(hub, session, &books, (&to_worker, &to_backbone), &due, events.clone(), limit);
    let pump = |side, to, may_call| Pump {
        side,
        books: &books,
        meter: &meter,
        to,
        events: &events,
        due: &due,
        may_call,
        bulk_apart: takes_bulk,
    };
    let mut up = pump(Role::Backbone, &to_worker, false);
    let mut down = pump(Role::Worker, &to_backbone, true);
    let ended = tokio::select! {
        biased;
        refusal = told(&mut end) => Ended::Refused { by: None, refusal },
        ended = clerk.work(inbox, stop) => ended,
        never = down.run(&mut from_worker) => match never {},
        never = up.run(&mut from_backbone) => match never {},
        never = resume::tell_pauses(session, &to_worker, &to_backbone, hub.link.resume_within) => match never {},
    };
    record.reason = ended.to_string();
    record.reason_code = ended.code();
    record.open.ends_for(record.reason_code);
    tell(&ended, &to_worker, &to_backbone);
    if let Ended::Refused { refusal, .. } = &ended {
        hub.note_refusal(session.short(), refusal);
    }
    drop(record);
    // The ends may go on sending for a moment; reading it keeps their connection whole until they have read why.
    tokio::join!(from_worker.linger(LINGER), from_backbone.linger(LINGER));
}

/// How a session ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// In order; the reason in a word.
    Finished(&'static str),
    /// One end's link ended, or that end broke a rule; it has been told by its link.
    Link { side: Role, error: LinkError },
    /// Refused by an end, or by the hub (`None`).
    Refused { by: Option<Role>, refusal: Refusal },
}

impl Ended {
    /// A word for programs.
    fn code(&self) -> &'static str {
        match self {
            Ended::Finished(_) => "finished",
            Ended::Link { error, .. } => of_link(error).code.name(),
            Ended::Refused { refusal, .. } => refusal.code.name(),
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::Finished(word) => formatter.write_str(word),
            Ended::Link { side, error } => write!(formatter, "the {side}'s link ended: {error}"),
            Ended::Refused { by: Some(side), refusal } => write!(formatter, "the {side} {refusal}"),
            Ended::Refused { by: None, refusal } => write!(formatter, "the hub {refusal}"),
        }
    }
}

/// Tells each end what it does not know yet, and closes both links.
fn tell(ended: &Ended, to_worker: &HubSender, to_backbone: &HubSender) {
    let sender = |side: &Role| match side {
        Role::Worker => to_worker,
        Role::Backbone => to_backbone,
    };
    match ended {
        Ended::Finished(_) => {
            to_worker.close();
            to_backbone.close();
        }
        Ended::Link { side, error } => {
            let refusal = of_link(error);
            let code =
                if refusal.code == RefusalCode::ProtocolError { refusal.code } else { RefusalCode::PeerLost };
            let sentence = format!("the {side}'s link ended: {}", refusal.sentence);
            sender(&other(*side)).refuse(Refusal::new(
                code,
                sentence,
                "connect again; the session's receipts stay valid",
            ));
            sender(side).refuse(refusal);
        }
        Ended::Refused { by: Some(side), refusal } => {
            sender(&other(*side)).refuse(refusal.clone());
            sender(side).close();
        }
        Ended::Refused { by: None, refusal } => {
            to_worker.refuse(refusal.clone());
            to_backbone.refuse(refusal.clone());
        }
    }
}

/// What the clerk is told.
pub(super) enum Event {
    /// A payload for the hub, none of the kinds below.
    From(Role, Payload),
    /// A report, and how many bytes of evidence came with it. Those are not looked at here, so they do not wait here either.
    Reported(Role, Report, usize),
    /// What became of a note on its way to the ledger.
    Filed(Result<(), FilingError>),
    /// The note has waited long enough and is safe on the disk.
    Kept,
    /// A pump is over.
    Over(Ended),
}

/// Passes the messages of one end on.
struct Pump<'session> {
    /// The end that sends.
    side: Role,
    books: &'session Mutex<Books>,
    meter: &'session SessionMeter,
    to: &'session HubSender,
    events: &'session mpsc::Sender<Event>,
    due: &'session Notify,
    /// Whether calls may pass: a backbone's only behind its grant, so that no worker serves what cannot be billed.
    may_call: bool,
    /// Whether bulk may go over a connection of its own, so that nothing else may be in its messages.
    bulk_apart: bool,
}

impl Pump<'_> {
    async fn run(&mut self, from: &mut HubReceiver) -> Infallible {
        let over = loop {
            if let Err(ended) = self.pass_on(from).await {
                break ended;
            }
        };
        let _ = self.events.send(Event::Over(over)).await;
        std::future::pending().await
    }

    async fn pass_on(&mut self, from: &mut HubReceiver) -> Result<(), Ended> {
        let relay = match from.next().await.map_err(at(self.side))? {
            Incoming::Relay(relay) => relay,
            Incoming::Own(payload) => {
                self.may_call |= payload.kind == Kind::Grant;
                let event = event(self.side, payload)?;
                // Fails only when the clerk has gone, and the pumps with it.
                let _ = self.events.send(event).await;
                return Ok(());
            }
        };
        if !self.may_call && relay.headers.iter().any(|header| header.kind == Kind::Call) {
            return Err(Ended::Refused {
                by: None,
                refusal: Refusal::new(
                    RefusalCode::ProtocolError,
                    format!("the {} called before it sent the session's grant", self.side),
                    "have the backbone send its grant first; update the older of the two sides",
                ),
            });
        }
        if self.bulk_apart && relay.is_mixed() {
            return Err(Ended::Refused {
                by: None,
                refusal: Refusal::new(
                    RefusalCode::ProtocolError,
                    format!("the {} packed bulk and something else into one message", self.side),
                    "have its side leave the feature bit of bulk connections out, or update it",
                ),
            });
        }
        let now = unix_now();
        let mut answered = Vec::new();
        let observed = {
            let mut books = lock(self.books);
            relay.headers.iter().try_for_each(|header| {
                answered.extend(books.observe(header, now)?);
                Ok::<(), FrameError>(())
            })
        };
        observed.map_err(|error| Ended::Link { side: self.side, error: error.into() })?;
        self.relay(relay).await.map_err(at(other(self.side)))?;
        // Counted once it is on its way: a cut must not name a result that the backbone may never see.
        self.count(answered)
    }

    /// Hands a message on, and says so to the meter when it had to wait for the other end.
    async fn relay(&self, relay: Relay) -> Result<(), LinkError> {
        let (to, bytes) = (other(self.side), LaneBytes::of(&relay.headers));
        let mut handed_on = pin!(self.to.relay(relay));
        match poll_fn(|context| Poll::Ready(handed_on.as_mut().poll(context))).await {
            Poll::Ready(result) => result?,
            Poll::Pending => {
                let since = Instant::now();
                let result = handed_on.await;
                self.meter.stalled(to, since.elapsed());
                result?;
            }
        }
        self.meter.passed(to, bytes);
        Ok(())
    }

    fn count(&self, answered: Vec<kvasir_wire::meter::Answered>) -> Result<(), Ended> {
        let mut books = lock(self.books);
        for result in answered {
            books.relayed(result).map_err(|error| Ended::Refused {
                by: None,
                refusal: Refusal::new(
                    RefusalCode::ReceiptDisputed,
                    error.to_string(),
                    "sign the receipts that the hub cuts",
                ),
            })?;
        }
        if books.uncut_bytes() >= CUT_BYTES {
            self.due.notify_one();
        }
        Ok(())
    }
}

/// What the clerk is told of a payload.
fn event(side: Role, payload: Payload) -> Result<Event, Ended> {
    if payload.kind != Kind::Report {
        return Ok(Event::From(side, payload));
    }
    let mut report = Report::decode(&payload.bytes)
        .map_err(|error| Ended::Link { side, error: LinkError::BadPayload { kind: Kind::Report, error } })?;
    let evidence = std::mem::take(&mut report.evidence);
    Ok(Event::Reported(side, report, evidence.len()))
}

/// What the end of a link means for its session: an end that says why it leaves has its words passed on.
pub(super) fn at(side: Role) -> impl Fn(LinkError) -> Ended {
    move |error| match error {
        LinkError::Refused(refusal) => {
            Ended::Refused { by: Some(side), refusal: Refusal { session: None, ..refusal } }
        }
        error => Ended::Link { side, error },
    }
}

fn other(side: Role) -> Role {
    match side {
        Role::Worker => Role::Backbone,
        Role::Backbone => Role::Worker,
    }
}

pub(super) fn lock(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    // Books that a panic left half changed are never signed from: the panic ends the session's task.
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes the account exactly once, whatever ends the session: in order, by an error, by a panic, by being dropped.
struct Record {
    hub: Arc<Hub>,
    books: Arc<Mutex<Books>>,
    worker: String,
    meter: Arc<SessionMeter>,
    open: OpenSession,
    reason_code: &'static str,
    reason: String,
}

impl Drop for Record {
    fn drop(&mut self) {
        let SessionTotals { results, up, down, receipted, receipts } = lock(&self.books).totals();
        let meter = &self.meter;
        let (stalls, stalled_ms) = meter.stalls();
        self.hub.registry.session_ended(meter.session, &meter.backbone);
        self.hub.session_closed(&SessionClosed {
            event: "session_closed",
            session: meter.session.to_string(),
            worker: std::mem::take(&mut self.worker),
            backbone: meter.backbone.to_string(),
            began: meter.began,
            seconds: meter.seconds(),
            waited_seconds: meter.waited.as_secs(),
            calls: results,
            bytes_up: up,
            bytes_down: down,
            receipted_bytes: receipted,
            receipts,
            to_worker: meter.bytes(Role::Worker),
            to_backbone: meter.bytes(Role::Backbone),
            stalls,
            stalled_ms,
            resumed: meter.resumed(),
            bulk_connections: meter.bulk_connections(),
            reason_code: self.reason_code,
            reason: std::mem::take(&mut self.reason),
        });
    }
}

#[cfg(test)]
mod tests {
    use kvasir_wire::{frame::HUB_STREAM, id::SessionId, limits::MAX_EVIDENCE_BYTES};

    use super::*;

    #[test]
    fn the_evidence_of_a_report_does_not_wait_for_the_clerk() {
        let report = Report {
            session: SessionId([9; 32]),
            call: 3,
            code: RefusalCode::WrongResult,
            sentence: "other numbers".into(),
            evidence: vec![7; MAX_EVIDENCE_BYTES],
        };
        let payload = |bytes| Payload { kind: Kind::Report, stream: HUB_STREAM, more: false, bytes, cost: 0 };
        let Ok(Event::Reported(Role::Worker, kept, evidence)) = event(Role::Worker, payload(report.encode()))
        else {
            panic!("a report")
        };
        assert_eq!(evidence, MAX_EVIDENCE_BYTES);
        assert_eq!(kept, Report { evidence: Vec::new(), ..report });
        assert_eq!(kept.evidence.capacity(), 0);

        let Err(ended) = event(Role::Worker, payload(vec![0; 7])) else { panic!("no report") };
        assert_eq!(ended.code(), "protocol_error");
        // Everything else waits as it came.
        let drain = Payload { kind: Kind::Drain, ..payload(vec![1]) };
        assert!(matches!(event(Role::Worker, drain), Ok(Event::From(Role::Worker, _))));
    }
}
