//! The clerk of a session: cuts receipts, gathers signatures, has notes filed and acknowledged, and finishes the session.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use kvasir_link::{HubSender, LinkError, unix_now};
use kvasir_wire::{
    assemble::Payload,
    frame::Kind,
    id::SessionId,
    message::{Drain, DrainReason, Report},
    note::Note,
    receipt::{CUT_BYTES, CUT_SECONDS, Receipt},
    refusal::{Refusal, RefusalCode},
    ticket::Role,
};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use super::{
    Hub,
    books::{Books, Repeated},
    filing::FilingError,
    pairing::{refusal_in, restarting, unexpected},
    session::{Ended, Event, at, lock},
};
use crate::stop::Stop;

/// How long an acknowledgement waits for the ledger. After it the note, which is on the hub's disk, is acknowledged all the
/// same, so that a ledger's pause stops no session; it is filed when the ledger is back.
const LEDGER_TIME: Duration = Duration::from_secs(5);
/// How long calls may still be answered once a session drains.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// How long calls may be on the way of which the hub has not heard when it tells a backbone to make no more.
const QUIET_TIME: Duration = Duration::from_millis(500);
/// Reports that are written down of one session, those of both ends together. A backbone lets a worker go long before it has so
/// many to make, and a worker leaves with its first.
const REPORTS: u32 = 64;
/// How often one end is told one complete note again. Who lost it asks once or twice; who asks without end and reads nothing would
/// have the hub queue it without end.
const RESENDS: u32 = 8;
/// How often the clerk looks at the clock.
const TICK: Duration = Duration::from_millis(500);

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
pub(super) struct Clerk<'session> {
    hub: &'session Arc<Hub>,
    session: SessionId,
    books: &'session Mutex<Books>,
    to_worker: &'session HubSender,
    to_backbone: &'session HubSender,
    due: &'session Notify,
    events: mpsc::Sender<Event>,
    began: Instant,
    last_cut: Instant,
    /// Since when an end owes a signature.
    asked: Option<Instant>,
    /// Whether an end had no connection at some time since.
    was_away: bool,
    /// Since when the session drains, and in a word why.
    draining: Option<Draining>,
    /// Payload bytes after which the ticket says that the session is to be drained; 0: no bound.
    limit: u64,
    /// The note that is on its way to the ledger.
    note: Option<Note>,
    /// How often worker and backbone were told the latest complete note again.
    resent: [u32; 2],
    /// Reports that came.
    reports: u32,
    /// The hub stops, and takes no connections any more.
    stopping: bool,
}

impl<'session> Clerk<'session> {
    /// A clerk for a session that begins. `ends` are the links to worker and backbone; `limit` is the ticket's bound on
    /// payload bytes, 0 for none.
    pub(super) fn new(
        hub: &'session Arc<Hub>,
        session: SessionId,
        books: &'session Mutex<Books>,
        ends: (&'session HubSender, &'session HubSender),
        due: &'session Notify,
        events: mpsc::Sender<Event>,
        limit: u64,
    ) -> Self {
        Clerk {
            hub,
            session,
            books,
            to_worker: ends.0,
            to_backbone: ends.1,
            due,
            events,
            began: Instant::now(),
            last_cut: Instant::now(),
            asked: None,
            was_away: false,
            draining: None,
            limit,
            note: None,
            resent: [0; 2],
            reports: 0,
            stopping: false,
        }
    }

    pub(super) async fn work(&mut self, mut inbox: mpsc::Receiver<Event>, mut stop: Stop) -> Ended {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.stopped(), if !self.stopping => {
                    self.stopping = true;
                    self.drain(restarting(), "the hub stops");
                }
                Some(event) = inbox.recv() => {
                    let taken = match event {
                        Event::From(side, payload) => self.take(side, payload).await,
                        Event::Reported(side, report, evidence) => self.report(side, &report, evidence),
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
        if payload.kind == Kind::Countersign {
            let repeated = lock(self.books).repeated(&payload.bytes);
            match repeated {
                None => {}
                // Told again, byte for byte; what is not filed yet is told once it is.
                Some(Repeated::Resend(first)) => {
                    let resent = &mut self.resent[usize::from(side == Role::Backbone)];
                    let Some(first) = first.filter(|_| *resent < RESENDS) else { return Ok(()) };
                    *resent += 1;
                    let to = if side == Role::Backbone { self.to_backbone } else { self.to_worker };
                    return to.send(Kind::Receipt, first).map_err(at(side));
                }
                Some(Repeated::Conflict) => return Err(self.conflict(side, &payload.bytes).await),
            }
        }
        match (payload.kind, side) {
            (Kind::Countersign, Role::Backbone) => {
                let proposal = lock(self.books).backbone_signed(&payload.bytes).map_err(disputed)?;
                self.asks();
                self.to_worker.send(Kind::Receipt, proposal).map_err(at(Role::Worker))
            }
            (Kind::Countersign, Role::Worker) => {
                let note = lock(self.books).worker_signed(&payload.bytes).map_err(disputed)?;
                self.asked = None;
                self.file(note).await
            }
            (Kind::Grant, Role::Backbone) => {
                let note = lock(self.books).granted(&payload.bytes, unix_now()).map_err(disputed)?;
                self.file_grant(note).await
            }
            // Whoever asks, the session is drained; the worker's wish is told the backbone, which makes the calls.
            (Kind::Drain, Role::Backbone) => {
                // It asks once it owes nothing and is owed nothing.
                self.begin_draining("the backbone finished", Duration::ZERO);
                Ok(())
            }
            // Once: who says it without end would have the hub queue it for the backbone without end.
            (Kind::Drain, Role::Worker) if self.draining.is_some() => Ok(()),
            (Kind::Drain, Role::Worker) => {
                let drain = Drain { reason: DrainReason::Finished, reconnect_in_ms: 0, try_for_ms: 0 };
                let _ = self.to_backbone.send(Kind::Drain, drain.encode());
                self.begin_draining("the worker finished", QUIET_TIME);
                Ok(())
            }
            (Kind::Refuse, side) => {
                Err(Ended::Refused { by: Some(side), refusal: refusal_in(&payload.bytes) })
            }
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
        self.resent = [0; 2];
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
        let away = self.away();
        if self.stopping
            && let Some(side) = away
        {
            let error = LinkError::Lost("its connection was gone when the hub stopped".to_owned());
            return Some(Ended::Link { side, error });
        }
        self.was_away |= away.is_some();
        if let Some(since) = self.asked
            && since.elapsed() >= self.sign_time()
        {
            let sentence = format!("a receipt was not signed within {:?}", self.sign_time());
            return Some(disputed(Refusal::new(RefusalCode::TimedOut, sentence, "connect again")));
        }
        let mut books = lock(self.books);
        if !books.has_grant() && self.began.elapsed() >= self.hub.grant_time {
            let sentence =
                format!("the backbone sent no grant within {:?} of the welcome", self.hub.grant_time);
            let remedy = "nothing is served without one: have the backbone send its grant first; update the older side";
            return Some(disputed(Refusal::new(RefusalCode::TimedOut, sentence, remedy)));
        }
        let totals = books.totals();
        let over_limit = self.limit > 0 && totals.up.saturating_add(totals.down) >= self.limit;
        let reached = match over_limit {
            true => Some("the ticket's limit of bytes was reached"),
            false => books.grant_is_spent(unix_now()),
        };
        if let (Some(word), None) = (reached, &self.draining) {
            drop(books);
            self.drain(Drain { reason: DrainReason::LimitReached, reconnect_in_ms: 0, try_for_ms: 0 }, word);
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
                self.asks();
                return self.to_backbone.send(Kind::Receipt, cut).err().map(at(Role::Backbone));
            }
            if drained && nothing_left {
                return Some(Ended::Finished(self.draining.map_or("drained", |draining| draining.word)));
            }
        }
        None
    }

    /// From now on an end owes a signature.
    fn asks(&mut self) {
        self.asked = Some(Instant::now());
        self.was_away = false;
    }

    /// How long it may take: who was away has once, however often it goes, the time for which the hub waits for it besides.
    fn sign_time(&self) -> Duration {
        let while_away = if self.was_away { self.hub.link.resume_within } else { Duration::ZERO };
        self.hub.sign_time + while_away
    }

    /// An end that has no connection now.
    fn away(&self) -> Option<Role> {
        match (self.to_worker.is_whole(), self.to_backbone.is_whole()) {
            (false, _) => Some(Role::Worker),
            (true, false) => Some(Role::Backbone),
            (true, true) => None,
        }
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

    fn report(&mut self, side: Role, report: &Report, evidence_bytes: usize) -> Result<(), Ended> {
        // Each is a line of the log and a row of the status report.
        self.reports += 1;
        if self.reports > REPORTS {
            let sentence = format!("more than {REPORTS} reports came in one session");
            let remedy = "connect again; an end that reports so much of the other one should rather leave it";
            return Err(disputed(Refusal::new(RefusalCode::LimitReached, sentence, remedy)));
        }
        tracing::warn!(
            session = %self.session.short(),
            by = %side,
            call = report.call,
            code = report.code.name(),
            evidence_bytes,
            "report: {}",
            report.sentence
        );
        self.hub.note_report(self.session, side, report);
        Ok(())
    }

    /// An end signed two texts under one number: the second is kept beside the spool, and the session is over.
    async fn conflict(&self, side: Role, payload: &[u8]) -> Ended {
        let sentence = format!("the {side} signed two different receipts under one number");
        tracing::warn!(session = %self.session.short(), "{sentence}");
        self.hub.filing.keep_conflict(self.session, payload).await;
        let report = Report {
            session: self.session,
            call: 0,
            code: RefusalCode::ReceiptDisputed,
            sentence: sentence.clone(),
            evidence: payload.to_vec(),
        };
        self.hub.note_report(self.session, side, &report);
        let remedy = "the session ends; its first receipt stands, the second is kept as evidence";
        disputed(Refusal::new(RefusalCode::ReceiptDisputed, sentence, remedy))
    }

    fn not_filed(&self, error: &FilingError) -> Ended {
        tracing::error!(session = %self.session.short(), "{error}");
        let (code, sentence, remedy) = match error {
            FilingError::Postponed(_) => (
                RefusalCode::ReceiptDisputed,
                error.to_string(),
                "have done what the ledger says, then connect again; the hub keeps the receipts and sends them again by itself",
            ),
            FilingError::Refused(_) => (
                RefusalCode::ReceiptDisputed,
                error.to_string(),
                "see what the ledger says; a backbone needs a grant that covers the session and a funded account",
            ),
            // Paths are the operator's to know; the ends cannot do anything about them.
            FilingError::Spool { .. } | FilingError::Full { .. } => (
                RefusalCode::Internal,
                "the hub cannot keep receipts on its disk".to_owned(),
                "connect again later; earlier receipts stay valid. The hub's operator finds the reason in its log",
            ),
            FilingError::Stopped => (RefusalCode::Draining, error.to_string(), "connect again"),
        };
        Ended::Refused { by: None, refusal: Refusal::new(code, sentence, remedy).retry_after(60) }
    }
}

fn disputed(refusal: Refusal) -> Ended {
    // The link itself is meant: both end with it.
    Ended::Refused { by: None, refusal: Refusal { session: None, ..refusal } }
}
