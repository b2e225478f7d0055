//! One session: messages passed on both ways, payload bytes counted, receipts cut, signed, filed and acknowledged.
//!
//! Three futures run side by side in one task: a pump for each direction, which hands messages on under back pressure and
//! tells the books of every header, and the clerk, who talks with both ends about receipts. Only the clerk ends a session:
//! a pump whose link is gone says so behind everything that came before, so that a last signature still counts. However it
//! ends, one line of JSON says so, once.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kvasir_link::{HubLink, HubReceiver, HubSender, Incoming, LinkError, unix_now};
use kvasir_wire::{
    assemble::Payload,
    frame::{FrameError, Kind},
    id::SessionId,
    message::{Drain, DrainReason, Report},
    note::Note,
    receipt::{CUT_BYTES, CUT_SECONDS, Receipt},
    refusal::{Refusal, RefusalCode},
    ticket::Role,
};
use serde::Serialize;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use super::{
    Hub,
    books::{Books, SessionTotals},
    filing::FilingError,
    pairing::{Pair, of_link, refusal_in, restarting, told, unexpected},
    registry::LinkNumber,
};
use crate::stop::Stop;

/// How long a link is read on after its last words.
pub(super) const LINGER: Duration = Duration::from_secs(2);
/// How long an end may take to sign a receipt.
const SIGN_TIME: Duration = Duration::from_secs(20);
/// How long an acknowledgement waits for the ledger. After it the note, which is on the hub's disk, is acknowledged all the
/// same, so that a ledger's pause stops no session; it is filed when the ledger is back.
const LEDGER_TIME: Duration = Duration::from_secs(5);
/// How long calls may still be answered once a session drains.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// How long calls may be on the way of which the hub has not heard when it tells a backbone to make no more.
const QUIET_TIME: Duration = Duration::from_millis(500);
/// How often the clerk looks at the clock.
const TICK: Duration = Duration::from_millis(500);
/// Payloads for the clerk that may wait.
const EVENTS: usize = 64;

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
    /// Why it ended.
    pub reason: String,
}

/// Serves a pair until the session ends.
pub(super) async fn run(
    hub: &Arc<Hub>,
    number: LinkNumber,
    worker: HubLink,
    pair: Pair,
    mut end: oneshot::Receiver<Refusal>,
    stop: Stop,
) {
    let Pair { backbone, control, facts } = pair;
    let session = facts.transcript.session;
    let limit = worker.admission.ticket.claims().limits.session_bytes;
    hub.registry.session_begins(number, control, session, backbone.admission.holder);
    tracing::info!(
        session = %session.short(), worker = %worker.admission.holder, backbone = %backbone.admission.holder, "session begins"
    );
    let books = Arc::new(Mutex::new(Books::new(facts, &hub.identity)));
    let mut record = Record {
        hub: hub.clone(),
        books: books.clone(),
        worker: worker.admission.holder.to_string(),
        backbone: backbone.admission.holder,
        began: unix_now(),
        start: Instant::now(),
        session,
        reason: "the hub dropped it".into(),
    };
    let due = Notify::new();
    let (events, inbox) = mpsc::channel(EVENTS);
    let (mut from_worker, mut from_backbone) = (worker.receiver, backbone.receiver);
    let (to_worker, to_backbone) = (worker.sender, backbone.sender);
    let mut clerk = Clerk {
        hub,
        session,
        books: &books,
        to_worker: &to_worker,
        to_backbone: &to_backbone,
        due: &due,
        events: events.clone(),
        last_cut: Instant::now(),
        asked: None,
        draining: None,
        limit,
        note: None,
    };
    let up = Pump { side: Role::Backbone, books: &books, to: &to_worker, events: &events, due: &due };
    let down = Pump { side: Role::Worker, books: &books, to: &to_backbone, events: &events, due: &due };
    let ended = tokio::select! {
        biased;
        refusal = told(&mut end) => Ended::Refused { by: None, refusal },
        ended = clerk.work(inbox, stop) => ended,
        never = down.run(&mut from_worker) => match never {},
        never = up.run(&mut from_backbone) => match never {},
    };
    record.reason = ended.to_string();
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
enum Ended {
    /// In order; the reason in a word.
    Finished(&'static str),
    /// One end's link ended, or that end broke a rule; it has been told by its link.
    Link { side: Role, error: LinkError },
    /// Refused by an end, or by the hub (`None`).
    Refused { by: Option<Role>, refusal: Refusal },
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
enum Event {
    /// A payload for the hub.
    From(Role, Payload),
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
    to: &'session HubSender,
    events: &'session mpsc::Sender<Event>,
    due: &'session Notify,
}

impl Pump<'_> {
    async fn run(&self, from: &mut HubReceiver) -> Infallible {
        let over = loop {
            if let Err(ended) = self.pass_on(from).await {
                break ended;
            }
        };
        let _ = self.events.send(Event::Over(over)).await;
        std::future::pending().await
    }

    async fn pass_on(&self, from: &mut HubReceiver) -> Result<(), Ended> {
        let relay = match from.next().await.map_err(at(self.side))? {
            Incoming::Relay(relay) => relay,
            Incoming::Own(payload) => {
                // Fails only when the clerk has gone, and the pumps with it.
                let _ = self.events.send(Event::From(self.side, payload)).await;
                return Ok(());
            }
        };
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
        self.to.relay(relay).await.map_err(at(other(self.side)))?;
        // Counted once it is on its way: a cut must not name a result that the backbone may never see.
        self.count(answered)
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

/// A session that is finishing.
#[derive(Clone, Copy)]
struct Draining {
    since: Instant,
    /// Why, in a word.
    word: &'static str,
    /// How long calls that are on the way may still arrive.
    quiet: Duration,
}

/// Talks with both ends about receipts and about the end.
struct Clerk<'session> {
    hub: &'session Arc<Hub>,
    session: SessionId,
    books: &'session Mutex<Books>,
    to_worker: &'session HubSender,
    to_backbone: &'session HubSender,
    due: &'session Notify,
    events: mpsc::Sender<Event>,
    last_cut: Instant,
    /// Since when an end owes a signature.
    asked: Option<Instant>,
    /// Since when the session drains, and in a word why.
    draining: Option<Draining>,
    /// Payload bytes after which the ticket says that the session is to be drained; 0: no bound.
    limit: u64,
    /// The note that is on its way to the ledger.
    note: Option<Note>,
}

impl Clerk<'_> {
    async fn work(&mut self, mut inbox: mpsc::Receiver<Event>, mut stop: Stop) -> Ended {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stopping = false;
        loop {
            tokio::select! {
                biased;
                () = stop.stopped(), if !stopping => {
                    stopping = true;
                    self.drain(restarting(), "the hub stops");
                }
                Some(event) = inbox.recv() => {
                    let taken = match event {
                        Event::From(side, payload) => self.take(side, payload).await,
                        Event::Kept => { self.acknowledge(); Ok(()) }
                        Event::Filed(Ok(())) => { self.acknowledge(); Ok(()) }
                        Event::Filed(Err(error)) => Err(self.not_filed(&error)),
                        Event::Over(ended) => Err(ended),
                    };
                    if let Err(ended) = taken {
                        return ended;
                    }
                }
                () = self.due.notified() => {}
                _ = tick.tick() => {}
            }
            if let Some(ended) = self.look() {
                return ended;
            }
        }
    }

    /// Takes what an end says to the hub.
    async fn take(&mut self, side: Role, payload: Payload) -> Result<(), Ended> {
        match (payload.kind, side) {
            (Kind::Countersign, Role::Backbone) => {
                let proposal = lock(self.books).backbone_signed(&payload.bytes).map_err(disputed)?;
                self.asked = Some(Instant::now());
                self.to_worker.send(Kind::Receipt, proposal).map_err(at(Role::Worker))
            }
            (Kind::Countersign, Role::Worker) => {
                let note = lock(self.books).worker_signed(&payload.bytes).map_err(disputed)?;
                self.asked = None;
                self.file(note).await
            }
            (Kind::Grant, Role::Backbone) => {
                let note = lock(self.books).granted(&payload.bytes).map_err(disputed)?;
                self.file_grant(note).await
            }
            // Whoever asks, the session is drained; the worker's wish is told the backbone, which makes the calls.
            (Kind::Drain, Role::Backbone) => {
                // It asks once it owes nothing and is owed nothing.
                self.begin_draining("the backbone finished", Duration::ZERO);
                Ok(())
            }
            (Kind::Drain, Role::Worker) => {
                let drain = Drain { reason: DrainReason::Finished, reconnect_in_ms: 0, try_for_ms: 0 };
                let _ = self.to_backbone.send(Kind::Drain, drain.encode());
                self.begin_draining("the worker finished", QUIET_TIME);
                Ok(())
            }
            (Kind::Refuse, side) => {
                Err(Ended::Refused { by: Some(side), refusal: refusal_in(&payload.bytes) })
            }
            (Kind::Report, side) => self.report(side, &payload.bytes),
            (kind, side) => {
                let refusal = unexpected(kind.name());
                Err(Ended::Link { side, error: LinkError::RefusedPeer(refusal) })
            }
        }
    }

    /// Keeps the grant on the disk in front of the session's receipts. A ledger that refuses it ends the session: it would
    /// refuse every receipt.
    async fn file_grant(&mut self, note: Note) -> Result<(), Ended> {
        let answer =
            self.hub.filing.file_grant(self.session, &note).await.map_err(|error| self.not_filed(&error))?;
        let events = self.events.clone();
        tokio::spawn(async move {
            if let Ok(Err(error)) = answer.await
                && error != FilingError::Stopped
            {
                let _ = events.send(Event::Filed(Err(error))).await;
            }
        });
        Ok(())
    }

    /// Keeps the note on the disk, and waits for the ledger in the background.
    async fn file(&mut self, note: Note) -> Result<(), Ended> {
        let seq = Receipt::parse(note.text()).map_or(0, |receipt| receipt.seq);
        let answer =
            self.hub.filing.file(self.session, seq, &note).await.map_err(|error| self.not_filed(&error))?;
        self.note = Some(note);
        let events = self.events.clone();
        tokio::spawn(async move {
            let mut answer = answer;
            if let Ok(outcome) = timeout(LEDGER_TIME, &mut answer).await {
                let outcome = outcome.unwrap_or(Err(FilingError::Stopped));
                // A hub that stops has the note on its disk: that is as good as later.
                let event =
                    if outcome == Err(FilingError::Stopped) { Event::Kept } else { Event::Filed(outcome) };
                let _ = events.send(event).await;
                return;
            }
            // The session may end meanwhile; then nobody hears the rest, and the filer's log says it.
            if events.send(Event::Kept).await.is_ok()
                && let Ok(Err(error)) = answer.await
                && error != FilingError::Stopped
            {
                let _ = events.send(Event::Filed(Err(error))).await;
            }
        });
        Ok(())
    }

    /// Gives both ends the complete note.
    fn acknowledge(&mut self) {
        let Some(note) = self.note.take() else { return };
        let complete = lock(self.books).filed(&note);
        // An end whose link is gone is found out by its pump.
        let _ = self.to_worker.send(Kind::Receipt, complete.clone());
        let _ = self.to_backbone.send(Kind::Receipt, complete);
    }

    /// Looks at clock and books: is a receipt due, is the session over?
    fn look(&mut self) -> Option<Ended> {
        if let Some(since) = self.asked
            && since.elapsed() >= SIGN_TIME
        {
            let sentence = format!("a receipt was not signed within {} s", SIGN_TIME.as_secs());
            return Some(disputed(Refusal::new(RefusalCode::TimedOut, sentence, "connect again")));
        }
        let mut books = lock(self.books);
        let totals = books.totals();
        let over_limit = self.limit > 0 && totals.up.saturating_add(totals.down) >= self.limit;
        if over_limit && self.draining.is_none() {
            drop(books);
            self.drain(
                Drain { reason: DrainReason::LimitReached, reconnect_in_ms: 0, try_for_ms: 0 },
                "the ticket's limit of bytes was reached",
            );
            books = lock(self.books);
        }
        let drained = self.draining.is_some_and(|draining| {
            let since = draining.since.elapsed();
            (books.open_calls() == 0 && since >= draining.quiet) || since >= DRAIN_TIME
        });
        let due = books.uncut_bytes() >= CUT_BYTES
            || (books.has_uncut() && self.last_cut.elapsed() >= Duration::from_secs(CUT_SECONDS));
        if due || drained {
            let cut = books.cut(unix_now(), drained);
            let nothing_left = cut.is_none() && !books.is_cutting();
            drop(books);
            if let Some(cut) = cut {
                self.last_cut = Instant::now();
                self.asked = Some(self.last_cut);
                return self.to_backbone.send(Kind::Receipt, cut).err().map(at(Role::Backbone));
            }
            if drained && nothing_left {
                return Some(Ended::Finished(self.draining.map_or("drained", |draining| draining.word)));
            }
        }
        None
    }

    /// Tells both ends to finish, and begins to.
    fn drain(&mut self, drain: Drain, word: &'static str) {
        let _ = self.to_backbone.send(Kind::Drain, drain.encode());
        let _ = self.to_worker.send(Kind::Drain, drain.encode());
        self.begin_draining(word, QUIET_TIME);
    }

    fn begin_draining(&mut self, word: &'static str, quiet: Duration) {
        self.draining.get_or_insert(Draining { since: Instant::now(), word, quiet });
    }

    fn report(&self, side: Role, payload: &[u8]) -> Result<(), Ended> {
        let report = Report::decode(payload).map_err(|error| Ended::Link {
            side,
            error: LinkError::BadPayload { kind: Kind::Report, error },
        })?;
        tracing::warn!(
            session = %self.session.short(),
            by = %side,
            call = report.call,
            code = report.code.name(),
            evidence_bytes = report.evidence.len(),
            "report: {}",
            report.sentence
        );
        self.hub.note_report(self.session, side, &report);
        Ok(())
    }

    fn not_filed(&self, error: &FilingError) -> Ended {
        tracing::error!(session = %self.session.short(), "{error}");
        let (code, remedy) = match error {
            FilingError::Refused(_) => (
                RefusalCode::ReceiptDisputed,
                "see what the ledger says; a backbone needs a grant that covers the session and a funded account",
            ),
            _ => (
                RefusalCode::Internal,
                "connect again; the operator of the hub finds this sentence in its log",
            ),
        };
        Ended::Refused { by: None, refusal: Refusal::new(code, error.to_string(), remedy).retry_after(60) }
    }
}

/// What the end of a link means for its session: an end that says why it leaves has its words passed on.
fn at(side: Role) -> impl Fn(LinkError) -> Ended {
    move |error| match error {
        LinkError::Refused(refusal) => {
            Ended::Refused { by: Some(side), refusal: Refusal { session: None, ..refusal } }
        }
        error => Ended::Link { side, error },
    }
}

fn disputed(refusal: Refusal) -> Ended {
    // The link itself is meant: both end with it.
    Ended::Refused { by: None, refusal: Refusal { session: None, ..refusal } }
}

fn other(side: Role) -> Role {
    match side {
        Role::Worker => Role::Backbone,
        Role::Backbone => Role::Worker,
    }
}

fn lock(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    // Books that a panic left half changed are never signed from: the panic ends the session's task.
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes the account exactly once, whatever ends the session: in order, by an error, by a panic, by being dropped.
struct Record {
    hub: Arc<Hub>,
    books: Arc<Mutex<Books>>,
    worker: String,
    backbone: kvasir_wire::key::PublicKey,
    session: SessionId,
    began: u64,
    start: Instant,
    reason: String,
}

impl Drop for Record {
    fn drop(&mut self) {
        let SessionTotals { results, up, down, receipted, receipts } = lock(&self.books).totals();
        self.hub.registry.session_ended(&self.backbone);
        self.hub.session_closed(&SessionClosed {
            event: "session_closed",
            session: self.session.to_string(),
            worker: std::mem::take(&mut self.worker),
            backbone: self.backbone.to_string(),
            began: self.began,
            seconds: self.start.elapsed().as_secs(),
            calls: results,
            bytes_up: up,
            bytes_down: down,
            receipted_bytes: receipted,
            receipts,
            reason: std::mem::take(&mut self.reason),
        });
    }
}
