//! Who is at the hub: backbones with their control links, workers waiting or in session, and whom a data link is awaited
//! for. A table behind one lock, with a signal for whoever waits for a backbone.
//!
//! It decides who is paired with whom, and nothing else: no sockets are touched here, only their handles.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kvasir_link::{HubLink, HubSender, unix_now};
use kvasir_wire::{
    handshake::{Admission, BackboneOffer, WorkerOffer},
    id::{PluginDigest, SessionId},
    key::PublicKey,
    refusal::{Refusal, RefusalCode},
};
use tokio::sync::{oneshot, watch};

use super::{
    fitting::common_plugin,
    meter::{RoundTrip, SessionMeter},
    resume::Ends,
    status::{BackboneReport, RefusalReport, Status, WaitingReport},
};

/// Refusals that the status report remembers.
const REMEMBERED_REFUSALS: usize = 20;

/// Number of a link at this hub; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkNumber(u64);

/// The table.
#[derive(Debug)]
pub struct Registry {
    table: Mutex<Table>,
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    controls: HashMap<LinkNumber, Control>,
    workers: HashMap<LinkNumber, Worker>,
    awaited: HashMap<SessionId, Awaited>,
    /// Sessions whose ends may come back over another connection.
    resumable: HashMap<SessionId, Ends>,
    refusals: VecDeque<RefusalReport>,
    closed_sessions: u64,
}

#[derive(Debug)]
struct Control {
    key: PublicKey,
    admission: Admission,
    offer: BackboneOffer,
    link: HubSender,
    sessions: usize,
    /// Workers that it was offered and whose sessions have not begun.
    offered: usize,
    since: u64,
    round_trip: RoundTrip,
}

#[derive(Debug)]
struct Worker {
    key: PublicKey,
    /// Ends the link with this refusal.
    end: Option<oneshot::Sender<Refusal>>,
    since: u64,
    round_trip: RoundTrip,
    state: WorkerState,
}

#[derive(Clone, Debug)]
enum WorkerState {
    Waiting { why: String },
    Paired(Arc<SessionMeter>),
}

/// A session for which the backbone was asked to dial a data link.
#[derive(Debug)]
struct Awaited {
    backbone: PublicKey,
    answer: oneshot::Sender<Result<HubLink, Refusal>>,
}

/// A backbone that fits a worker.
#[derive(Clone, Debug)]
pub struct Match {
    /// Its control link.
    pub control: LinkNumber,
    /// The sending half of that link.
    pub link: HubSender,
    /// Its key.
    pub backbone: PublicKey,
    /// What it announced.
    pub offer: BackboneOffer,
    /// The plugin that both have and both tickets may allow.
    pub plugin: PluginDigest,
}

/// What a waiting worker can do now.
#[derive(Debug)]
pub enum Choice {
    /// Be offered to a backbone.
    Offer(Box<Match>),
    /// Wait until something changes.
    Wait {
        /// Why, for the status report.
        why: String,
    },
    /// Leave: no backbone here fits, and this says why.
    Refuse(Refusal),
}

impl Default for Registry {
    fn default() -> Self {
        Registry { table: Mutex::default(), changed: watch::Sender::new(0) }
    }
}

impl Registry {
    /// A signal that fires when what [`Registry::choose`] says may be another thing: when a backbone comes or goes. Workers that come
    /// and go, and sessions that end, change it for nobody who waits, and there may be thousands of both.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Enters a backbone's control link. An older one of the same key is ended.
    pub(super) fn add_control(
        &self,
        admission: &Admission,
        offer: BackboneOffer,
        link: HubSender,
        round_trip: RoundTrip,
    ) -> LinkNumber {
        let (key, since) = (admission.holder, unix_now());
        let mut table = self.lock();
        let mut sessions = 0;
        table.controls.retain(|_, control| {
            if control.key == key {
                sessions = control.sessions;
                control.link.refuse(replaced());
            }
            control.key != key
        });
        let number = table.number();
        let admission = admission.clone();
        let control = Control { key, admission, offer, link, sessions, offered: 0, since, round_trip };
        table.controls.insert(number, control);
        drop(table);
        self.notify();
        number
    }

    /// A control link ended.
    pub fn remove_control(&self, number: LinkNumber) {
        self.lock().controls.remove(&number);
        self.notify();
    }

    /// Enters a worker's link; the answer fires when it has to end. A key has as many links as its ticket allows: the
    /// oldest gives way.
    pub(super) fn add_worker(
        &self,
        admission: &Admission,
        round_trip: RoundTrip,
    ) -> (LinkNumber, oneshot::Receiver<Refusal>) {
        let (key, since) = (admission.holder, unix_now());
        let allowed = usize::from(admission.ticket.claims().limits.sessions.max(1));
        let (end, ended) = oneshot::channel();
        let mut table = self.lock();
        let mut own: Vec<LinkNumber> =
            table.workers.iter().filter(|(_, worker)| worker.key == key).map(|(number, _)| *number).collect();
        own.sort();
        let surplus = (own.len() + 1).saturating_sub(allowed);
        for number in &own[..surplus] {
            // It leaves the table when its task has ended; until then it is only told.
            if let Some(end) = table.workers.get_mut(number).and_then(|worker| worker.end.take()) {
                let _ = end.send(replaced());
            }
        }
        let number = table.number();
        let state = WorkerState::Waiting { why: "has just connected".into() };
        table.workers.insert(number, Worker { key, end: Some(end), since, round_trip, state });
        (number, ended)
    }

    /// A worker's link ended.
    pub fn remove_worker(&self, number: LinkNumber) {
        self.lock().workers.remove(&number);
    }

    /// What a waiting worker can do now. `passed` are the backbones that declined it a moment ago. An offer counts for its backbone as
    /// a session does, so that of workers that come at once not all are offered to the same one, until the session begins or
    /// [`Registry::offer_is_over`].
    pub fn choose(&self, admission: &Admission, offer: &WorkerOffer, passed: &[LinkNumber]) -> Choice {
        let mut table = self.lock();
        if table.controls.is_empty() {
            return Choice::Wait { why: "no backbone is connected".into() };
        }
        let mut best: Option<Match> = None;
        let mut fewest = usize::MAX;
        let (mut fits, mut last_misfit) = (false, None);
        for (number, control) in &table.controls {
            match common_plugin(admission, offer, &control.admission, &control.offer) {
                Ok(plugin) => {
                    fits = true;
                    let has = control.sessions + control.offered;
                    if !passed.contains(number) && has < fewest {
                        fewest = has;
                        best = Some(Match {
                            control: *number,
                            link: control.link.clone(),
                            backbone: control.key,
                            offer: control.offer.clone(),
                            plugin,
                        });
                    }
                }
                Err(misfit) => last_misfit = Some(misfit),
            }
        }
        match (best, last_misfit) {
            (Some(found), _) => {
                if let Some(control) = table.controls.get_mut(&found.control) {
                    control.offered += 1;
                }
                Choice::Offer(Box::new(found))
            }
            (None, Some(misfit)) if !fits => Choice::Refuse(misfit),
            _ => Choice::Wait { why: "the backbones that fit declined a moment ago".into() },
        }
    }

    /// An offer that [`Registry::choose`] made came to nothing.
    pub fn offer_is_over(&self, control: LinkNumber) {
        if let Some(control) = self.lock().controls.get_mut(&control) {
            control.offered = control.offered.saturating_sub(1);
        }
    }

    /// Tells every backbone that a worker was sent away since nothing fits, and why.
    pub fn tell_backbones(&self, refusal: &Refusal) {
        for control in self.lock().controls.values() {
            // A link that ends right now misses nothing that it could act on.
            let _ = control.link.send(kvasir_wire::frame::Kind::Refuse, refusal.encode());
        }
    }

    /// Says in the report what a worker waits for.
    pub fn waits(&self, number: LinkNumber, why: String) {
        if let Some(worker) = self.lock().workers.get_mut(&number) {
            worker.state = WorkerState::Waiting { why };
        }
    }

    /// Expects a data link for a session from the backbone with this key.
    pub fn await_data_link(
        &self,
        session: SessionId,
        backbone: PublicKey,
    ) -> oneshot::Receiver<Result<HubLink, Refusal>> {
        let (answer, awaited) = oneshot::channel();
        self.lock().awaited.insert(session, Awaited { backbone, answer });
        awaited
    }

    /// Nobody waits for this data link any more.
    pub fn forget_data_link(&self, session: SessionId) {
        self.lock().awaited.remove(&session);
    }

    /// Where to hand a data link for this session from this key: to the worker that waits for it, once.
    pub fn claim(
        &self,
        session: SessionId,
        backbone: &PublicKey,
    ) -> Result<oneshot::Sender<Result<HubLink, Refusal>>, Refusal> {
        let mut table = self.lock();
        match table.awaited.remove(&session) {
            Some(awaited) if awaited.backbone == *backbone => Ok(awaited.answer),
            other => {
                // Another key asked: the one that was asked to dial may still come.
                if let Some(awaited) = other {
                    table.awaited.insert(session, awaited);
                }
                Err(unknown_session(session))
            }
        }
    }

    /// A backbone does not want a session that it was offered. False if it was not its to decline.
    pub fn decline(&self, session: SessionId, backbone: &PublicKey, refusal: Refusal) -> bool {
        let mut table = self.lock();
        if table.awaited.get(&session).is_none_or(|awaited| awaited.backbone != *backbone) {
            return false;
        }
        if let Some(awaited) = table.awaited.remove(&session) {
            let _ = awaited.answer.send(Err(refusal));
        }
        true
    }

    /// The session of an offer begins.
    pub(super) fn session_begins(&self, worker: LinkNumber, control: LinkNumber, meter: Arc<SessionMeter>) {
        let mut table = self.lock();
        if let Some(worker) = table.workers.get_mut(&worker) {
            worker.state = WorkerState::Paired(meter);
        }
        if let Some(control) = table.controls.get_mut(&control) {
            control.sessions += 1;
            control.offered = control.offered.saturating_sub(1);
        }
    }

    /// The ends of a session may come back over other connections, until it ends.
    pub(super) fn may_resume(&self, session: SessionId, ends: Ends) {
        self.lock().resumable.insert(session, ends);
    }

    /// The ends of a session that may come back.
    pub(super) fn resumable(&self, session: SessionId) -> Option<Ends> {
        self.lock().resumable.get(&session).cloned()
    }

    /// A session with this backbone ended.
    pub fn session_ended(&self, session: SessionId, backbone: &PublicKey) {
        let mut table = self.lock();
        table.closed_sessions += 1;
        table.resumable.remove(&session);
        if let Some(control) = table.controls.values_mut().find(|control| control.key == *backbone) {
            control.sessions = control.sessions.saturating_sub(1);
        }
    }

    /// Remembers a refusal for the status report.
    pub fn note_refusal(&self, refusal: RefusalReport) {
        let mut table = self.lock();
        table.refusals.push_front(refusal);
        table.refusals.truncate(REMEMBERED_REFUSALS);
    }

    /// The status report, but for what is not in the table.
    pub fn status(&self) -> Status {
        let table = self.lock();
        let mut status = Status { closed_sessions: table.closed_sessions, ..Status::default() };
        for control in table.controls.values() {
            status.backbones.push(BackboneReport {
                key: control.key.to_string(),
                model: control.offer.model.to_string(),
                sessions: control.sessions,
                since: control.since,
                round_trip_us: control.round_trip.micros(),
            });
        }
        for worker in table.workers.values() {
            let (key, since) = (worker.key.to_string(), worker.since);
            match &worker.state {
                WorkerState::Waiting { why } => {
                    let round_trip_us = worker.round_trip.micros();
                    status.waiting.push(WaitingReport { key, why: why.clone(), since, round_trip_us });
                }
                WorkerState::Paired(meter) => status.sessions.push(meter.report(key)),
            }
        }
        status.refusals = table.refusals.iter().cloned().collect();
        drop(table);
        // Oldest first: who looks again finds everything where it was.
        status.backbones.sort_by(|a, b| (a.since, &a.key).cmp(&(b.since, &b.key)));
        status.waiting.sort_by(|a, b| (a.since, &a.key).cmp(&(b.since, &b.key)));
        status.sessions.sort_by(|a, b| (a.began, &a.session).cmp(&(b.began, &b.session)));
        status
    }

    /// Something outside the table changed that waiting workers look at.
    pub fn touch(&self) {
        self.notify();
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No statement under the lock leaves the table half changed, so a poisoned one is as good as another.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }
}

impl Table {
    fn number(&mut self) -> LinkNumber {
        self.next += 1;
        LinkNumber(self.next)
    }
}

fn replaced() -> Refusal {
    Refusal::new(
        RefusalCode::SessionReplaced,
        "a newer connection of the same key took this one's place",
        "if it was not yours, ask the operator for a ticket with a new key; else nothing",
    )
}

fn unknown_session(session: SessionId) -> Refusal {
    Refusal::new(
        RefusalCode::UnknownSession,
        format!("session {} was not offered to this key, or not any more", session.short()),
        "dial a data link only when the hub's `pair` asks for it, and within ten seconds",
    )
}

#[cfg(test)]
mod tests {
    use kvasir_wire::{
        handshake::{Class, Features, HolderHandshake, HubHandshake, HubIdentity, Purpose},
        id::Nonce,
        key::SecretKey,
        ticket::{EdgeKey, Role, Ticket, TicketClaims, TicketLimits},
    };

    use super::*;

    const NOW: u64 = 1_800_000_000;
    const PLUGIN: PluginDigest = PluginDigest([5; 32]);

    fn offer() -> WorkerOffer {
        WorkerOffer { plugins: vec![PLUGIN], formats: vec![12], memory_bytes: 1 << 30, class: Class::Exact }
    }

    /// What the hub knows of a worker once it has proved its key.
    fn worker(seed: u8) -> Admission {
        let key = SecretKey::from_seed([seed; 32]);
        let hub = HubIdentity {
            network: "atlas".into(),
            key: SecretKey::from_seed([1; 32]),
            edge: EdgeKey::from_bytes([4; 32]),
        };
        let claims = TicketClaims {
            network: hub.network.clone(),
            role: Role::Worker,
            holder: key.public(),
            hub: hub.key.public(),
            wallet: Some(key.public().wallet_digest()),
            plugins: vec![PLUGIN],
            publishers: Vec::new(),
            limits: TicketLimits::default(),
            issued: NOW,
            expires: NOW + 100,
        };
        let ticket = Ticket::issue(&claims, &hub.key, &hub.edge).unwrap();
        let (purpose, nonce) = (Purpose::Worker(offer()), Nonce([6; 32]));
        let (holder, hello) =
            HolderHandshake::start(&ticket, &key, purpose, Features::NONE, nonce, NOW).unwrap();
        let (mut state, challenge) =
            HubHandshake::hello(&hub, &hello, Role::Worker, Nonce([7; 32]), NOW).unwrap();
        let (_, proof) = holder.challenge(&challenge, &key).unwrap();
        state.proof(&proof).unwrap()
    }

    #[test]
    fn a_herd_of_workers_that_comes_and_goes_wakes_nobody_who_waits() {
        let registry = Registry::default();
        let mut changes = registry.changes();
        changes.mark_unchanged();
        for seed in 10..60 {
            let admission = worker(seed);
            let (number, _ended) = registry.add_worker(&admission, RoundTrip::default());
            assert!(matches!(registry.choose(&admission, &offer(), &[]), Choice::Wait { .. }));
            registry.session_ended(SessionId([seed; 32]), &admission.holder);
            registry.remove_worker(number);
        }
        assert!(!changes.has_changed().unwrap());
        // What all of them look at.
        registry.touch();
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        registry.remove_control(LinkNumber(99));
        assert!(changes.has_changed().unwrap());
    }
}
