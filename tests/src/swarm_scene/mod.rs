//! A whole swarm in one process: a real hub on a real socket, a ledger that remembers, workers that can be killed.
//!
//! Every worker and the hub have a tokio runtime of their own, so that dropping one is the death of a process: sockets
//! close, nobody says goodbye.

pub mod hostile;
pub mod hostile_worker;
pub mod lying_hub;
pub mod lying_kernel;
pub mod raw;
pub mod repeating_hub;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ed25519_dalek::SigningKey;
use kvasir_backbone::{Backbone, Experts, Feed, Sequence, TokenId, Wanted};
use kvasir_dispatch::{Deadlines, Placement, Statistics, Swarm, SwarmOptions, Verify};
use kvasir_experts::{ExpertRunner, LocalExperts, RunnerOptions, VerifiedPlugin};
use kvasir_gateway::hub::filing::{Ledger, LedgerError};
use kvasir_gateway::hub::{HubOptions, HubServer, SessionClosed};
use kvasir_gateway::operations::Served;
use kvasir_gateway::stop::{Stopper, switch};
use kvasir_model::{LayerIndex, Model};
use kvasir_plugin::{PackageContents, PublisherKey, TrustStore, UnixSeconds, Validity, pack, verify};
use kvasir_wire::handshake::HubIdentity;
use kvasir_wire::id::PluginDigest;
use kvasir_wire::key::{PublicKey, SecretKey};
use kvasir_wire::note::Note;
use kvasir_wire::receipt::Receipt;
use kvasir_wire::ticket::{EdgeKey, Role, Ticket, TicketClaims, TicketLimits};
use kvasir_worker::{Event, Fault, PluginSwitch, Stop, Summary, Worker, WorkerError, WorkerOptions, stop};
use tokio::runtime::Runtime;

/// How long anything in these tests may take before it counts as hanging. No figure of it is asserted.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const NETWORK: &str = "test";

/// A hub and what is needed to join it.
pub struct Scene {
    pub address: String,
    pub hub_key: SecretKey,
    pub edge_key: EdgeKey,
    pub ledger: Arc<MemoryLedger>,
    /// Sessions that ended, as the hub's log has them.
    pub closed: Arc<Mutex<Vec<SessionClosed>>>,
    /// Of the hub that runs, with the address that it has.
    options: HubOptions,
    running: Option<RunningHub>,
    _spool: tempfile::TempDir,
}

/// The hub's process, so to speak.
struct RunningHub {
    served: Arc<dyn Served>,
    stopper: Stopper,
    run: tokio::task::JoinHandle<()>,
    runtime: Runtime,
}

/// A ledger that keeps everything it is given.
#[derive(Default)]
pub struct MemoryLedger {
    pub receipts: Mutex<Vec<Note>>,
    pub grants: Mutex<Vec<Note>>,
}

impl Ledger for MemoryLedger {
    fn post_receipt(&self, note: &Note) -> Result<(), LedgerError> {
        self.receipts.lock().unwrap().push(note.clone());
        Ok(())
    }

    fn post_grant(&self, note: &Note) -> Result<(), LedgerError> {
        self.grants.lock().unwrap().push(note.clone());
        Ok(())
    }

    fn price(&self) -> Result<String, LedgerError> {
        Ok("77".repeat(32))
    }
}

impl MemoryLedger {
    /// The last receipt of every session.
    pub fn last_receipts(&self) -> BTreeMap<String, Receipt> {
        let receipts = self.receipts.lock().unwrap();
        let parsed = receipts.iter().map(|note| Receipt::parse(note.text()).unwrap());
        parsed.map(|receipt| (receipt.terms.session.to_string(), receipt)).collect()
    }
}

/// Waits until something is so.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

impl Default for Scene {
    fn default() -> Self {
        Self::new()
    }
}

impl Scene {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// A hub with other options than the usual ones.
    pub fn with(change: impl FnOnce(&mut HubOptions)) -> Self {
        let hub_key = key(1);
        let edge_key = EdgeKey::from_bytes([2; 32]);
        let identity =
            HubIdentity { network: NETWORK.to_owned(), key: hub_key.clone(), edge: edge_key.clone() };
        let spool = tempfile::tempdir().unwrap();
        let mut options = HubOptions::new("127.0.0.1:0".parse().unwrap(), identity, spool.path().to_owned());
        options.link.bulk_connection = true;
        change(&mut options);
        let (ledger, closed) = (Arc::new(MemoryLedger::default()), Arc::default());
        let mut scene = Self {
            address: String::new(),
            hub_key,
            edge_key,
            ledger,
            closed,
            options,
            running: None,
            _spool: spool,
        };
        scene.again();
        scene
    }

    /// A hub takes the place of the one that ended: same keys, address, spool and ledger.
    pub fn again(&mut self) {
        let runtime = runtime();
        let (stopper, stop) = switch();
        let closed = Arc::clone(&self.closed);
        let log = Box::new(move |line: &SessionClosed| closed.lock().unwrap().push(line.clone()));
        let bind = HubServer::bind(self.options.clone(), self.ledger.clone(), log);
        let server = runtime.block_on(bind).unwrap();
        self.options.listen = server.address();
        self.address = format!("ws://{}", server.address());
        let served = server.served(stop.clone());
        let run = runtime.spawn(server.run(stop));
        self.running = Some(RunningHub { served, stopper, run, runtime });
    }

    /// Whether a worker has come with a second connection for bulk, to the hub that runs.
    pub fn has_bulk_connection(&self) -> bool {
        let served = &self.running.as_ref().unwrap().served;
        !served.metrics().lines().any(|line| line == "kvasir_gateway_bulk_connections_total 0")
    }

    /// The hub ends in order: it is told to stop, and says goodbye.
    pub fn stop(&mut self) {
        let RunningHub { served: _, stopper, run, runtime } = self.running.take().unwrap();
        stopper.stop();
        runtime.block_on(run).unwrap();
        runtime.shutdown_timeout(PATIENCE);
    }

    /// The hub's process dies: its sockets close and nobody says goodbye. When this returns they are closed.
    pub fn die(&mut self) {
        let RunningHub { served: _, stopper: _not_yet, run: _, runtime } = self.running.take().unwrap();
        runtime.shutdown_timeout(PATIENCE);
    }

    /// The same for good, without waiting for it.
    pub fn kill(mut self) {
        let RunningHub { served: _, stopper: _not_yet, run: _, runtime } = self.running.take().unwrap();
        runtime.shutdown_background();
    }

    /// The line of a session that ended, once the hub has written it.
    pub fn closed_session(&self, session: &str) -> SessionClosed {
        let find = || self.closed.lock().unwrap().iter().find(|line| line.session == session).cloned();
        eventually("the hub's line of a session that ended", || find().is_some());
        find().unwrap()
    }

    pub fn ticket(&self, role: Role, holder: PublicKey, plugin: &VerifiedPlugin) -> Ticket {
        self.ticket_with(role, holder, plugin, |_| {})
    }

    /// A ticket for one plugin, changed.
    pub fn ticket_with(
        &self,
        role: Role,
        holder: PublicKey,
        plugin: &VerifiedPlugin,
        change: impl FnOnce(&mut TicketClaims),
    ) -> Ticket {
        let mut claims = TicketClaims {
            network: NETWORK.to_owned(),
            role,
            holder,
            hub: self.hub_key.public(),
            wallet: (role == Role::Worker).then(|| key(9).public().wallet_digest()),
            plugins: vec![PluginDigest(plugin.digest().0)],
            publishers: Vec::new(),
            limits: TicketLimits { sessions: 8, session_bytes: 0 },
            issued: now() - 10,
            expires: now() + 3600,
        };
        change(&mut claims);
        Ticket::issue(&claims, &self.hub_key, &self.edge_key).unwrap()
    }

    pub fn swarm_options(&self, workers: usize, placement: Placement, layers: &[u16]) -> SwarmOptions {
        let key = key(20);
        let ticket = self.ticket(Role::Backbone, key.public(), plugin());
        let mut options =
            SwarmOptions::new(self.address.clone(), ticket, key, PluginDigest(plugin().digest().0));
        options.workers = NonZeroUsize::new(workers).unwrap();
        options.placement = placement;
        // What a test is about is seen without checks that compute everything a second time; those of checks ask for them.
        options.verify = Verify::NONE;
        options.remote_layers = layers.iter().map(|layer| LayerIndex(*layer)).collect();
        options
    }

    pub fn worker_options(&self, seed: u8) -> WorkerOptions {
        let key = key(seed);
        let ticket = self.ticket(Role::Worker, key.public(), plugin());
        let mut options = WorkerOptions::new(self.address.clone(), ticket, key, plugin().clone());
        options.threads = NonZeroUsize::new(1);
        options.isolation = crate::isolation::chosen();
        options
    }

    pub fn worker(&self, seed: u8) -> RunningWorker {
        RunningWorker::start(self.worker_options(seed))
    }

    pub fn worker_with_fault(&self, seed: u8, fault: Fault) -> RunningWorker {
        let mut options = self.worker_options(seed);
        options.danger_fault = Some(fault);
        RunningWorker::start(options)
    }
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A worker with a thread and a runtime of its own.
pub struct RunningWorker {
    pub log: Arc<EventLog>,
    stop: Option<Stop>,
    switch: mpsc::Receiver<PluginSwitch>,
    thread: Option<JoinHandle<Result<Summary, WorkerError>>>,
}

#[derive(Default)]
pub struct EventLog {
    events: Mutex<Vec<Event>>,
    changed: Condvar,
    ended: AtomicBool,
}

impl EventLog {
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// Waits for an event; panics if the worker ends or too much time passes without it.
    pub fn wait_for<T>(&self, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
        let mut events = self.events.lock().unwrap();
        loop {
            if let Some(found) = events.iter().find_map(&mut wanted) {
                return found;
            }
            assert!(!self.ended.load(Ordering::SeqCst), "the worker ended; it told {events:#?}");
            let (guard, timeout) = self.changed.wait_timeout(events, PATIENCE).unwrap();
            events = guard;
            assert!(!timeout.timed_out(), "waited in vain; the worker told {events:#?}");
        }
    }
}

impl RunningWorker {
    pub fn start(mut options: WorkerOptions) -> Self {
        let log = Arc::new(EventLog::default());
        let theirs = Arc::clone(&log);
        options.events = Arc::new(move |event| {
            theirs.events.lock().unwrap().push(event);
            theirs.changed.notify_all();
        });
        let (stop, listen) = stop();
        let (tell_switch, switch) = mpsc::channel();
        let theirs = Arc::clone(&log);
        let thread = std::thread::spawn(move || {
            let runtime = runtime();
            let outcome = Worker::new(options).and_then(|worker| {
                let _ = tell_switch.send(worker.switch());
                runtime.block_on(worker.run(listen))
            });
            // The runtime dies with its sockets: to the others it is as if the process had been killed.
            runtime.shutdown_background();
            theirs.ended.store(true, Ordering::SeqCst);
            theirs.changed.notify_all();
            outcome
        });
        Self { log, stop: Some(stop), switch, thread: Some(thread) }
    }

    /// What offers it other plugins, once it is ready; once.
    pub fn switch(&self) -> PluginSwitch {
        self.switch.recv().unwrap()
    }

    /// Waits for its end.
    pub fn join(mut self) -> Result<Summary, WorkerError> {
        self.thread.take().unwrap().join().unwrap()
    }

    /// Asks it to stop and waits for its end.
    pub fn stop(self) -> Result<Summary, WorkerError> {
        self.stop.as_ref().unwrap().stop();
        self.join()
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        if let (Some(stop), Some(thread)) = (self.stop.take(), self.thread.take()) {
            stop.stop();
            if !std::thread::panicking() {
                let _ = thread.join();
            }
        }
    }
}

/// The first plugin, as this checkout has it, signed by a key of the tests.
pub fn plugin() -> &'static VerifiedPlugin {
    static PLUGIN: OnceLock<VerifiedPlugin> = OnceLock::new();
    PLUGIN.get_or_init(|| plugin_by(7))
}

/// The same kernel signed by another publisher: another plugin.
pub fn plugin_by(publisher: u8) -> VerifiedPlugin {
    sign(&crate::released_plugin::contents(), publisher)
}

/// What is in a package, signed by a key of the tests and verified.
pub fn sign(contents: &PackageContents, publisher: u8) -> VerifiedPlugin {
    let signing_key = SigningKey::from_bytes(&[publisher; 32]);
    let validity = Validity { not_before: UnixSeconds(now() - 60), expires: UnixSeconds(now() + 3600) };
    let package = pack(contents, validity, &signing_key).unwrap();
    let trusted = PublisherKey { key: signing_key.verifying_key(), name: None };
    verify(&package, &TrustStore::from_keys([trusted]).unwrap(), UnixSeconds(now())).unwrap()
}

pub fn tiny() -> Arc<Model> {
    model("tests/data/tiny/tiny-q8_0.gguf")
}

pub fn atlas() -> Arc<Model> {
    model("models/atlas/atlas-q4_k_m.gguf")
}

pub fn model(path: &str) -> Arc<Model> {
    Arc::new(Model::open(&crate::root().join(path)).unwrap())
}

/// A backbone and local experts that share one runner, which compiles once for a whole test binary's model.
pub struct Host {
    pub model: Arc<Model>,
    pub backbone: Backbone,
    pub runner: Arc<ExpertRunner>,
}

impl Host {
    pub fn new(model: Arc<Model>) -> Self {
        let backbone = Backbone::new(Arc::clone(&model), NonZeroUsize::new(1)).unwrap();
        let runner = Arc::new(ExpertRunner::new(plugin(), RunnerOptions::default()).unwrap());
        Self { model, backbone, runner }
    }

    pub fn local(&self) -> Box<LocalExperts> {
        Box::new(LocalExperts::new(Arc::clone(&self.model), Arc::clone(&self.runner)))
    }

    /// Greedy tokens after a prompt, with the bits of every step's logits.
    pub fn say(&self, experts: &mut dyn Experts, tokens: usize) -> Said {
        self.say_and(experts, tokens, |_| {})
    }

    /// The same, calling `before` before every pass, the prompt's included.
    pub fn say_and(&self, experts: &mut dyn Experts, tokens: usize, mut before: impl FnMut(usize)) -> Said {
        self.say_while(experts, |step| {
            let goes_on = step < tokens;
            if goes_on {
                before(step);
            }
            goes_on
        })
    }

    /// The same for as long as `more` says before every pass.
    pub fn say_while(&self, experts: &mut dyn Experts, mut more: impl FnMut(usize) -> bool) -> Said {
        let vocabulary = self.model.config().vocabulary;
        let prompt: Vec<TokenId> =
            [11u32, 5, 93, 28, 60, 7].map(|token| TokenId(token % vocabulary)).to_vec();
        let mut sequence = self.backbone.start();
        let mut said = Said { tokens: Vec::new(), logits: Vec::new() };
        let mut feed = prompt;
        while more(said.tokens.len()) {
            let logits = self.pass(experts, &mut sequence, &feed);
            let next = kvasir_backbone::greedy(&logits);
            said.logits.push(logits.iter().map(|logit| logit.to_bits()).collect());
            said.tokens.push(next);
            feed = vec![next];
        }
        said
    }

    fn pass(&self, experts: &mut dyn Experts, sequence: &mut Sequence, tokens: &[TokenId]) -> Vec<f32> {
        let mut feeds = [Feed { sequence, tokens, logits: Wanted::Last }];
        let logits = self.backbone.forward(&mut feeds, experts).unwrap();
        logits[0].last().unwrap().to_vec()
    }
}

/// What a model said, to the bit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub tokens: Vec<TokenId>,
    pub logits: Vec<Vec<u32>>,
}

/// Joins with so many workers and waits until they hold their experts.
pub fn join(host: &Host, options: SwarmOptions) -> Swarm {
    let workers = options.workers.get();
    let swarm = Swarm::join(Arc::clone(&host.model), options).unwrap();
    swarm.wait_for_workers(workers, PATIENCE).unwrap();
    swarm
}

/// Deadlines that no machine misses, however busy: for tests that count who was asked what.
pub const NO_HURRY: Deadlines = Deadlines { floor: PATIENCE, ceiling: PATIENCE };

/// All layers of a model.
pub fn all_layers(model: &Model) -> Vec<u16> {
    (0..model.config().layers as u16).collect()
}

/// Metered bytes of a swarm's complete receipts.
pub fn receipted(statistics: &Statistics) -> u64 {
    statistics.workers.iter().map(|worker| worker.receipted_bytes).sum()
}
