//! [`Swarm`]: the door of this crate. Holds the runtime, the control link and the table of sessions.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvasir_backbone::Experts;
use kvasir_link::SessionNumbers;
use kvasir_model::{ExpertIndex, LayerIndex, Model};
use kvasir_wire::id::PluginDigest;
use kvasir_wire::key::PublicKey;
use tokio::runtime::Runtime;

use crate::check::Known;
use crate::control;
use crate::evidence::WrongCalls;
use crate::heirs;
use crate::latency::{Deadlines, Percentiles};
use crate::options::{SwarmError, SwarmOptions};
use crate::placement::{ExpertAddress, Owners, deal, with_copies};
use crate::remote::RemoteExperts;
use crate::seating::{SeatPlace, slot_for};
use crate::session::Session;
use crate::split::Part;
use crate::statistics::Statistics;

/// A backbone's membership in a swarm. Its methods block and are meant for threads outside any tokio runtime.
pub struct Swarm {
    shared: Arc<Shared>,
    /// Taken when the swarm ends.
    runtime: Option<Runtime>,
}

/// Most bytes of result that one message may ask for whatever the options say: a payload with its head must stay within
/// the protocol's limit.
const MOST_RESULT_BYTES: usize = kvasir_wire::limits::MAX_PAYLOAD_BYTES / 2;

/// Threads of the swarm's runtime: they move bytes and check signatures, nothing more.
const RUNTIME_THREADS: usize = 2;

/// What callers, sessions and the control link share.
pub(crate) struct Shared {
    pub(crate) model: Arc<Model>,
    pub(crate) options: SwarmOptions,
    pub(crate) hidden: usize,
    pub(crate) experts: usize,
    pub(crate) deadlines: Deadlines,
    pub(crate) model_digest: [u8; 32],
    /// GGUF numbers of the tensor formats that the experts given away hold.
    pub(crate) formats: Vec<u32>,
    remote: Vec<bool>,
    /// Who is asked for each expert.
    owners: Owners,
    /// What is dealt to each slot.
    pub(crate) shares: Vec<Vec<ExpertAddress>>,
    table: Mutex<Table>,
    changed: Condvar,
    statistics: Mutex<Statistics>,
    pub(crate) known: Mutex<Known>,
    /// Calls that were found wrong, for the sessions' books.
    pub(crate) wrong: Arc<WrongCalls>,
    /// Of the sessions that a place was given to.
    pub(crate) numbers: SessionNumbers,
}

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) slots: Vec<Slot>,
    /// The memory that each session's worker has for experts, until the session ends.
    pub(crate) offered: HashMap<[u8; 32], u64>,
    /// Every session that ever was, in the order they joined.
    sessions: Vec<Arc<Session>>,
    /// No new sessions.
    closing: bool,
    /// The last thing that went wrong.
    trouble: Option<String>,
    /// Set when the control link will not come back.
    control_over: bool,
}

/// One share of the experts, and who computes it.
#[derive(Clone, Default)]
pub(crate) struct Slot {
    /// Who is asked.
    pub(crate) seat: Option<Seat>,
    /// A session of the same worker with another plugin, which takes the seat once it holds what it was assigned.
    next: Option<Seat>,
    /// Who sat here last: it holds these experts still, if it is there still.
    last: Option<PublicKey>,
}

/// A slot's holder: a pairing under way, or a session.
#[derive(Clone)]
pub(crate) enum Seat {
    /// Reserved for this session number.
    Reserved([u8; 32]),
    /// Taken.
    Taken(Arc<Session>),
}

impl Swarm {
    /// Joins: reads the model's digests, connects to the hub and is admitted. Workers come later.
    pub fn join(model: Arc<Model>, options: SwarmOptions) -> Result<Self, SwarmError> {
        let shared = Arc::new(Shared::new(model, options)?);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .thread_name("kvasir-swarm")
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| SwarmError::System { what: "threads", reason: error.to_string() })?;
        let link = runtime.block_on(control::connect(&shared))?;
        runtime.spawn(control::run(Arc::clone(&shared), link));
        runtime.spawn(heirs::run(Arc::clone(&shared), shared.options.heirs_after));
        Ok(Self { shared, runtime: Some(runtime) })
    }

    /// Routed experts for a backbone. `local` computes what no worker does; it must compute with the same plugin.
    pub fn experts(&self, local: Box<dyn Experts>) -> RemoteExperts {
        RemoteExperts::new(Arc::clone(&self.shared), local)
    }

    /// Waits until `wanted` workers hold all that they were assigned (or have said why not).
    pub fn wait_for_workers(&self, wanted: usize, timeout: Duration) -> Result<(), SwarmError> {
        let begun = Instant::now();
        let mut table = self.shared.table();
        loop {
            let seats = table.slots.iter().filter_map(|slot| slot.seat.as_ref());
            let ready = seats.filter(|seat| seat.is_settled()).count();
            if ready >= wanted {
                return Ok(());
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() || table.control_over {
                let last = table.trouble.clone();
                return Err(SwarmError::TooFewWorkers { ready, wanted, waited: begun.elapsed(), last });
            }
            table = self.shared.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The counters so far.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    /// Looks at the counters from elsewhere, also when the swarm has ended.
    pub fn watcher(&self) -> Watcher {
        Watcher(Arc::clone(&self.shared))
    }

    /// Ends in order: no new calls, answers of open ones are awaited, every session gets its final receipt. What does not
    /// end within the options' `finish_timeout` is cut off. Gives the final counters.
    pub fn finish(mut self) -> Statistics {
        let deadline = Instant::now() + self.shared.options.finish_timeout;
        let sessions = {
            let mut table = self.shared.table();
            table.closing = true;
            table.sessions.clone()
        };
        for session in &sessions {
            session.begin_draining();
        }
        let all = |done: &dyn Fn(&Session) -> bool| {
            let mut table = self.shared.table();
            // A worker that is away may come back, but nobody waits for that at the end.
            let over = |session: &Arc<Session>| session.has_ended() || session.is_lost() || done(session);
            while !sessions.iter().all(over) {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return;
                }
                table =
                    self.shared.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        };
        all(&|session| session.state().calls.owed() == 0);
        for session in sessions.iter().filter(|session| !session.has_ended()) {
            session.ask_to_drain();
        }
        all(&|_| false);
        for session in sessions.iter().filter(|session| !session.has_ended()) {
            tracing::warn!(session = %session.id.short(), "the session did not end in order in time");
            session.end("cut off at the end: no final receipt came in time".to_owned());
        }
        let statistics = self.shared.statistics();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(RUNTIME_GRACE);
        }
        statistics
    }
}

/// Looks at a swarm's counters; cheap to clone.
#[derive(Clone)]
pub struct Watcher(Arc<Shared>);

impl Watcher {
    /// The counters so far.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }
}

/// How long links may take to say goodbye.
const RUNTIME_GRACE: Duration = Duration::from_millis(500);

impl Drop for Swarm {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        for session in &self.shared.table().sessions {
            session.end("the backbone left".to_owned());
        }
    }
}

impl Shared {
    fn new(model: Arc<Model>, options: SwarmOptions) -> Result<Self, SwarmError> {
        let config = model.config();
        let layers = config.layers as usize;
        let (hidden, experts) = (config.hidden as usize, config.experts as usize);
        let given = options.given_away(layers, experts)?;
        let mut remote = vec![false; layers];
        given.iter().for_each(|(layer, _)| remote[usize::from(*layer)] = true);
        if options.plugins.is_empty() {
            return Err(SwarmError::Options("no plugin is allowed, so no worker could compute".to_owned()));
        }
        let shares = deal(options.placement, &given, options.workers.get());
        let slots = shares.len();
        let copies = options.copies.min(slots.saturating_sub(1));
        let is_copied =
            |address: ExpertAddress| options.copied.as_ref().is_none_or(|copied| copied.contains(&address));
        let owners = Owners::of(&shares);
        let shares = with_copies(&shares, copies, is_copied);
        // Once, and before anything waits for it: it reads every weight of the model.
        let model_digest = model.digests()?.model.0;
        let formats = formats(&model, shares.iter().flatten())?;
        let table = Table { slots: vec![Slot::default(); shares.len()], ..Table::default() };
        Ok(Self {
            hidden,
            experts,
            deadlines: options.deadlines,
            model_digest,
            formats,
            remote,
            owners,
            shares,
            table: Mutex::new(table),
            changed: Condvar::new(),
            statistics: Mutex::default(),
            known: Mutex::default(),
            wrong: Arc::default(),
            numbers: SessionNumbers::default(),
            model,
            options,
        })
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any expert of a layer is given away.
    pub(crate) fn is_remote(&self, layer: u16) -> bool {
        self.remote.get(usize::from(layer)).copied().unwrap_or(false)
    }

    /// The slots that may hold an expert, the one that it was dealt to first.
    pub(crate) fn slots_of(&self, layer: u16, expert: u16) -> impl Iterator<Item = usize> + use<> {
        self.owners.slots_of((layer, expert))
    }

    /// Who may be asked now for a part of a call: who holds all of its experts, the slot that it was planned for first.
    pub(crate) fn holders(&self, layer: u16, part: &Part) -> impl Iterator<Item = Arc<Session>> {
        let first = part.requests.first();
        let slots = first.map(|request| self.slots_of(layer, request.expert.0));
        let others = slots.into_iter().flatten().filter(move |slot| *slot != part.slot);
        let slots = std::iter::once(part.slot).chain(others);
        slots
            .filter_map(move |slot| self.usable_session(slot))
            .filter(move |session| session.holds_all(layer, part))
    }

    /// Sessions that missed deadlines and may be tried now.
    pub(crate) fn sessions_to_try(&self, now: Instant) -> Vec<Arc<Session>> {
        let table = self.table();
        let seated = table.slots.iter().filter_map(|slot| match &slot.seat {
            Some(Seat::Taken(session)) => Some(session),
            _ => None,
        });
        seated.filter(|session| session.wants_trial(now)).cloned().collect()
    }

    /// Length of an expert's blob.
    pub(crate) fn blob_bytes(&self, (layer, expert): ExpertAddress) -> u64 {
        let tensors = self.model.expert(LayerIndex(layer), ExpertIndex(expert));
        tensors.map_or(u64::MAX, |tensors| tensors.blob_bytes() as u64)
    }

    /// Most rows of answer in one message.
    pub(crate) fn most_rows(&self) -> usize {
        let rows = self.options.result_bytes.min(MOST_RESULT_BYTES) / (self.hidden * 4);
        rows.clamp(1, kvasir_wire::limits::MAX_CALL_ROWS as usize)
    }

    /// For each slot its session, if that may be asked now.
    pub(crate) fn usable_sessions(&self) -> Vec<Option<Arc<Session>>> {
        self.table().slots.iter().map(Slot::usable).collect()
    }

    /// The session of one slot, if that may be asked now.
    pub(crate) fn usable_session(&self, slot: usize) -> Option<Arc<Session>> {
        self.table().slots.get(slot).and_then(Slot::usable)
    }

    /// Changes the swarm's own counters.
    pub(crate) fn count(&self, change: impl FnOnce(&mut Statistics)) {
        change(&mut self.statistics.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Reserves a slot for a pairing: the one whose worker comes back, else a free one that nobody comes back to, if there is
    /// one. Gives the slot and the experts dealt to it. A worker that comes with the plugin that it had was cut off, and its
    /// old session ends now; one that comes with another plugin changes over: its old session is asked until the new one holds
    /// its experts. `memory_bytes` is what the worker has for experts.
    pub(crate) fn reserve(
        &self,
        session: [u8; 32],
        worker: &PublicKey,
        plugin: PluginDigest,
        memory_bytes: u64,
    ) -> Option<(usize, Vec<ExpertAddress>)> {
        let mut table = self.table();
        if table.closing {
            return None;
        }
        let number = slot_for(worker, table.slots.iter().map(Slot::place))?;
        let slot = &mut table.slots[number];
        let changes_over = matches!(
            &slot.seat, Some(Seat::Taken(old)) if old.plugin != plugin && !old.has_ended()
        );
        let place = if changes_over { &mut slot.next } else { &mut slot.seat };
        if let Some(Seat::Taken(old)) = place.replace(Seat::Reserved(session)) {
            old.end("a newer session of the same worker took its place".to_owned());
        }
        table.offered.insert(session, memory_bytes);
        Some((number, self.shares[number].clone()))
    }

    /// A pairing came to nothing.
    pub(crate) fn release(&self, slot: usize, session: [u8; 32], why: String) {
        let mut table = self.table();
        if let Some(slot) = table.slots.get_mut(slot) {
            for place in [&mut slot.seat, &mut slot.next] {
                if matches!(place, Some(Seat::Reserved(reserved)) if *reserved == session) {
                    *place = None;
                }
            }
        }
        table.offered.remove(&session);
        table.trouble = Some(why);
        drop(table);
        self.changed.notify_all();
    }

    /// A pairing came about. False when the swarm is closing or the slot went to another.
    pub(crate) fn take_seat(&self, session: &Arc<Session>) -> bool {
        let mut table = self.table();
        if table.closing {
            return false;
        }
        let Some(slot) = table.slots.get_mut(session.slot) else { return false };
        let reserved = |place: &&mut Option<Seat>| matches!(place, Some(Seat::Reserved(reserved)) if *reserved == session.id.0);
        let Some(place) = [&mut slot.seat, &mut slot.next].into_iter().find(reserved) else { return false };
        *place = Some(Seat::Taken(Arc::clone(session)));
        slot.last = Some(session.worker);
        slot.change_over();
        table.sessions.push(Arc::clone(session));
        true
    }

    /// A session's worker said what it holds: if it was to take over a slot and holds all that it will, it does.
    pub(crate) fn session_holds(&self, session: &Session) {
        if let Some(slot) = self.table().slots.get_mut(session.slot) {
            slot.change_over();
        }
        self.changed.notify_all();
    }

    /// A session is over; its slot is free, or the next one's.
    pub(crate) fn session_ended(&self, session: &Session) {
        self.wrong.forget(session.id);
        let mut table = self.table();
        let why = session.state().ended.clone();
        let is_it =
            |place: &Option<Seat>| matches!(place, Some(Seat::Taken(seated)) if seated.id == session.id);
        if let Some(slot) = table.slots.get_mut(session.slot) {
            if is_it(&slot.next) {
                slot.next = None;
            }
            if is_it(&slot.seat) {
                slot.seat = slot.next.take();
            }
        }
        table.offered.remove(&session.id.0);
        if let Some(why) = why {
            table.trouble = Some(format!("session with {}: {why}", session.worker));
        }
        drop(table);
        self.changed.notify_all();
    }

    /// Something changed that somebody may wait for.
    pub(crate) fn progressed(&self) {
        // Under the table's lock, so that a waiter that has just looked cannot miss it.
        drop(self.table());
        self.changed.notify_all();
    }

    /// The control link had trouble; `for_good` when it will not be tried again.
    pub(crate) fn control_trouble(&self, why: String, for_good: bool) {
        let mut table = self.table();
        table.trouble = Some(why);
        table.control_over |= for_good;
        drop(table);
        self.changed.notify_all();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.table().closing
    }

    fn statistics(&self) -> Statistics {
        let sessions = self.table().sessions.clone();
        let mut statistics = self.statistics.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut micros = Vec::new();
        for session in &sessions {
            let (numbers, latest) = session.statistics(|address| self.blob_bytes(address));
            statistics.remote_calls += numbers.calls;
            statistics.accepted += numbers.accepted;
            statistics.bytes_up += numbers.bytes_up;
            statistics.bytes_down += numbers.bytes_down;
            statistics.workers.push(numbers);
            micros.extend(latest);
        }
        statistics.latency = Percentiles::of(micros);
        statistics
    }
}

/// The tensor formats of some experts, ascending.
fn formats<'a>(
    model: &Model,
    experts: impl Iterator<Item = &'a ExpertAddress>,
) -> Result<Vec<u32>, SwarmError> {
    let mut formats = BTreeSet::new();
    for &(layer, expert) in experts {
        let tensors = model.expert(LayerIndex(layer), ExpertIndex(expert))?;
        formats.extend([&tensors.gate, &tensors.up, &tensors.down].map(|tensor| tensor.format().number()));
    }
    Ok(formats.into_iter().collect())
}

impl Slot {
    /// What it is to those who join.
    fn place(&self) -> SeatPlace<'_> {
        SeatPlace {
            is_free: self.seat.is_none(),
            worker: match &self.seat {
                Some(Seat::Taken(session)) => Some(&session.worker),
                _ => None,
            },
            last: self.last.as_ref(),
        }
    }

    /// Whether somebody sat here who is gone, and nobody has sat down since; a pairing may be under way.
    pub(crate) fn is_left(&self) -> bool {
        self.last.is_some() && !matches!(self.seat, Some(Seat::Taken(_)))
    }

    /// Whom to ask now: who sits here, or, while that one finishes, the next one with what it holds by then.
    fn usable(&self) -> Option<Arc<Session>> {
        [&self.seat, &self.next].into_iter().find_map(|place| match place {
            Some(Seat::Taken(session)) if session.is_usable() => Some(Arc::clone(session)),
            _ => None,
        })
    }

    /// Seats the next session if it holds all that it will. The old one is asked nothing more: it answers what it owes and
    /// ends in order.
    fn change_over(&mut self) {
        if !self.next.as_ref().is_some_and(Seat::is_settled) {
            return;
        }
        if let Some(Seat::Taken(old)) = std::mem::replace(&mut self.seat, self.next.take()) {
            old.begin_leaving();
        }
    }
}

impl Seat {
    fn is_settled(&self) -> bool {
        matches!(self, Seat::Taken(session) if session.is_settled())
    }
}
