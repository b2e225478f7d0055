//! [`Swarm`]: the door of this crate. Holds the runtime, the control link and the table of sessions.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvasir_backbone::Experts;
use kvasir_model::{ExpertIndex, LayerIndex, Model};
use tokio::runtime::Runtime;

use crate::control;
use crate::latency::{Deadlines, Percentiles};
use crate::options::{SwarmError, SwarmOptions};
use crate::placement::{ExpertAddress, deal};
use crate::remote::RemoteExperts;
use crate::session::Session;
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
    owner: HashMap<ExpertAddress, usize>,
    shares: Vec<Vec<ExpertAddress>>,
    table: Mutex<Table>,
    changed: Condvar,
    statistics: Mutex<Statistics>,
}

#[derive(Default)]
struct Table {
    /// Who sits in each slot.
    slots: Vec<Option<Seat>>,
    /// Every session that ever was, in the order they joined.
    sessions: Vec<Arc<Session>>,
    /// No new sessions.
    closing: bool,
    /// The last thing that went wrong.
    trouble: Option<String>,
    /// Set when the control link will not come back.
    control_over: bool,
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
            let ready = table.slots.iter().flatten().filter(|seat| seat.is_settled()).count();
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
            while !sessions.iter().all(|session| session.has_ended() || done(session)) {
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
        let mut remote = vec![false; layers];
        for layer in &options.remote_layers {
            let Some(flag) = remote.get_mut(usize::from(layer.0)) else {
                let what =
                    format!("layer {layer} is to be remote, the model's layers are 0 to {}", layers - 1);
                return Err(SwarmError::Options(what));
            };
            *flag = true;
        }
        let range = options.remote_experts.clone().unwrap_or(0..experts as u16);
        if usize::from(range.end) > experts || range.is_empty() {
            let what = format!("experts {range:?} are to be remote, a layer's experts are 0..{experts}");
            return Err(SwarmError::Options(what));
        }
        if options.plugins.is_empty() {
            return Err(SwarmError::Options("no plugin is allowed, so no worker could compute".to_owned()));
        }
        let numbers: Vec<u16> = (0..layers as u16).filter(|layer| remote[usize::from(*layer)]).collect();
        let shares = deal(options.placement, &numbers, range, options.workers.get());
        let owner = shares
            .iter()
            .enumerate()
            .flat_map(|(slot, share)| share.iter().map(move |&address| (address, slot)))
            .collect();
        // Once, and before anything waits for it: it reads every weight of the model.
        let model_digest = model.digests()?.model.0;
        let formats = formats(&model, shares.iter().flatten())?;
        let table = Table { slots: vec![None; shares.len()], ..Table::default() };
        Ok(Self {
            hidden,
            experts,
            deadlines: options.deadlines,
            model_digest,
            formats,
            remote,
            owner,
            shares,
            table: Mutex::new(table),
            changed: Condvar::new(),
            statistics: Mutex::default(),
            model,
            options,
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any expert of a layer is given away.
    pub(crate) fn is_remote(&self, layer: u16) -> bool {
        self.remote.get(usize::from(layer)).copied().unwrap_or(false)
    }

    /// The slot to which an expert is dealt.
    pub(crate) fn slot_of(&self, layer: u16, expert: u16) -> Option<usize> {
        self.owner.get(&(layer, expert)).copied()
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
        let usable = |seat: &Option<Seat>| match seat {
            Some(Seat::Taken(session)) if session.is_usable() => Some(Arc::clone(session)),
            _ => None,
        };
        self.table().slots.iter().map(usable).collect()
    }

    /// Changes the swarm's own counters.
    pub(crate) fn count(&self, change: impl FnOnce(&mut Statistics)) {
        change(&mut self.statistics.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Reserves a slot for a pairing: the one whose worker comes back, else the lowest free one. Gives the slot and the
    /// experts dealt to it.
    pub(crate) fn reserve(&self, session: [u8; 32], worker: &str) -> Option<(usize, Vec<ExpertAddress>)> {
        let mut table = self.table();
        if table.closing {
            return None;
        }
        let of_worker =
            |seat: &Option<Seat>| matches!(seat, Some(Seat::Taken(old)) if old.worker.to_string() == worker);
        let slot = table
            .slots
            .iter()
            .position(of_worker)
            .or_else(|| table.slots.iter().position(Option::is_none))?;
        if let Some(Seat::Taken(old)) = table.slots[slot].replace(Seat::Reserved(session)) {
            old.end("a newer session of the same worker took its place".to_owned());
        }
        Some((slot, self.shares[slot].clone()))
    }

    /// A pairing came to nothing.
    pub(crate) fn release(&self, slot: usize, session: [u8; 32], why: String) {
        let mut table = self.table();
        if matches!(table.slots.get(slot), Some(Some(Seat::Reserved(reserved))) if *reserved == session) {
            table.slots[slot] = None;
        }
        table.trouble = Some(why);
        drop(table);
        self.changed.notify_all();
    }

    /// A pairing came about. False when the swarm is closing or the slot went to another.
    pub(crate) fn take_seat(&self, session: &Arc<Session>) -> bool {
        let mut table = self.table();
        let reserved = matches!(
            table.slots.get(session.slot), Some(Some(Seat::Reserved(reserved))) if *reserved == session.id.0
        );
        if table.closing || !reserved {
            return false;
        }
        table.slots[session.slot] = Some(Seat::Taken(Arc::clone(session)));
        table.sessions.push(Arc::clone(session));
        true
    }

    /// A session is over; its slot is free.
    pub(crate) fn session_ended(&self, session: &Session) {
        let mut table = self.table();
        let why = session.state().ended.clone();
        if matches!(table.slots.get(session.slot), Some(Some(Seat::Taken(seated))) if seated.id == session.id)
        {
            table.slots[session.slot] = None;
        }
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
            let (numbers, latest) = session.statistics();
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

impl Seat {
    fn is_settled(&self) -> bool {
        matches!(self, Seat::Taken(session) if session.is_settled())
    }
}
