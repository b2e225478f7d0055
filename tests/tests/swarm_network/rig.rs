//! A swarm whose network can be made to fail: worker, relay, edge, hub, and a relay before the backbone. Edge, hub and worker
//! have a runtime each, so that one can die alone.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use kvasir_backbone::{Call, CallId, Experts, ExpertsError, Progress};
use kvasir_dispatch::{Deadlines, Placement, RemoteExperts, Statistics, Swarm, SwarmOptions};
use kvasir_gateway::certificate::{self, CertificatePaths, Names};
use kvasir_gateway::edge::{Certificates, Edge, EdgeOptions};
use kvasir_gateway::stop::{Stopper, switch};
use kvasir_link::LinkOptions;
use kvasir_tests::swarm_scene::*;
use kvasir_wire::ticket::EdgeKey;
use kvasir_worker::WorkerOptions;
use tokio::runtime::Runtime;

use super::relay::Relay;

/// The variable that asks for the product's own deadlines, for figures: `KVASIR_TEST_DEADLINES=product`.
const DEADLINES: &str = "KVASIR_TEST_DEADLINES";

/// Which deadlines links have here, in a word.
pub fn deadlines() -> &'static str {
    match std::env::var(DEADLINES).as_deref() {
        Ok("product") => "product",
        Ok("short") | Err(_) => "short",
        Ok(other) => panic!("{DEADLINES} is {other:?}; it may be product or short"),
    }
}

/// Deadlines of hub and worker: a silent connection is found in seconds. One that is found too soon, on a busy machine, costs
/// another reconnect and no more.
pub fn link_options() -> LinkOptions {
    if deadlines() == "product" {
        return LinkOptions::default();
    }
    LinkOptions {
        ping_after: Duration::from_millis(500),
        dead_after: Duration::from_secs(2),
        resume_within: PATIENCE,
        ..LinkOptions::default()
    }
}

/// A call waits for its worker as long as a test waits for anything: that it is answered there is not left to chance.
pub const PATIENT: Deadlines =
    Deadlines { floor: PATIENCE.saturating_mul(2), ceiling: PATIENCE.saturating_mul(2) };

/// Everything but workers and backbones.
pub struct Rig {
    pub scene: Scene,
    pub edge: RunningEdge,
    pub ways: Ways,
    link: LinkOptions,
    _runtime: Runtime,
}

/// Where the network is made to fail.
pub struct Ways {
    /// Between worker and edge.
    pub worker: Relay,
    /// Between backbone and hub.
    pub backbone: Relay,
}

impl Rig {
    pub fn start() -> Self {
        Self::start_with(Ipv4Addr::LOCALHOST.into(), link_options())
    }

    /// With an edge that listens at this address of the machine.
    pub fn start_with(edge: IpAddr, link: LinkOptions) -> Self {
        let scene = Scene::with(|hub| hub.link = link.clone());
        let edge = RunningEdge::start(&scene, edge);
        let runtime = runtime();
        let worker = runtime.block_on(Relay::start(edge.address));
        let backbone = runtime.block_on(Relay::start(hub_of(&scene)));
        let ways = Ways { worker, backbone };
        Self { scene, edge, ways, link, _runtime: runtime }
    }

    pub fn worker_options(&self, seed: u8) -> WorkerOptions {
        self.worker_options_at(seed, self.ways.worker.address)
    }

    /// Of a worker that dials this address, at which it finds the edge's certificate.
    pub fn worker_options_at(&self, seed: u8, address: SocketAddr) -> WorkerOptions {
        let mut options = self.scene.worker_options(seed);
        options.gateway = format!("wss://{address}");
        options.certificate_authority = Some(self.edge.files.authority.clone());
        options.link = self.link.clone();
        options
    }

    pub fn worker(&self, seed: u8) -> RunningWorker {
        RunningWorker::start(self.worker_options(seed))
    }

    /// Of a backbone that gives all experts away, and has all the time of a test.
    pub fn swarm_options(&self, host: &Host, workers: usize) -> SwarmOptions {
        let layers = all_layers(&host.model);
        let mut options = self.scene.swarm_options(workers, Placement::Experts, &layers);
        options.hub = format!("ws://{}", self.ways.backbone.address);
        options.deadlines = PATIENT;
        options.finish_timeout = PATIENCE;
        options
    }
}

fn hub_of(scene: &Scene) -> SocketAddr {
    scene.address.strip_prefix("ws://").unwrap().parse().unwrap()
}

/// An edge with a certificate of its own.
pub struct RunningEdge {
    pub address: SocketAddr,
    files: CertificatePaths,
    options: EdgeOptions,
    edge_key: EdgeKey,
    /// A stopper that is dropped stops the edge in order.
    running: Option<(Stopper, Runtime)>,
    _folder: tempfile::TempDir,
}

impl RunningEdge {
    fn start(scene: &Scene, at: IpAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let names = Names::parse(&[at.to_string()]).unwrap();
        let files = certificate::make(folder.path(), &names, false).unwrap();
        let address = SocketAddr::new(at, 0);
        let options = EdgeOptions::new(address, hub_of(scene).to_string(), NETWORK.to_owned());
        let edge_key = scene.edge_key.clone();
        let mut edge = Self { address, files, options, edge_key, running: None, _folder: folder };
        edge.again();
        edge
    }

    /// Its process dies: its sockets close and nobody says goodbye.
    pub fn die(&mut self) {
        let (_not_yet, runtime) = self.running.take().unwrap();
        runtime.shutdown_timeout(PATIENCE);
    }

    /// Another one takes its place, at the same address.
    pub fn again(&mut self) {
        let runtime = runtime();
        let certificates = Certificates::load(&self.files.certificate, &self.files.key).unwrap();
        let bind = Edge::bind(self.options.clone(), self.edge_key.clone(), certificates);
        let edge = runtime.block_on(bind).unwrap();
        self.address = edge.address();
        self.options.listen = self.address;
        let (stopper, stop) = switch();
        runtime.spawn(edge.run(stop));
        self.running = Some((stopper, runtime));
    }
}

/// Experts of a swarm that something happens to in the middle of a call, and how long it takes until a worker's answer is
/// accepted again.
pub struct Struck<'a> {
    inner: RemoteExperts,
    swarm: &'a Swarm,
    workers: usize,
    /// Calls submitted so far.
    calls: usize,
    /// Which call is struck, counted from 0.
    at: usize,
    before: Option<Box<dyn FnOnce() + Send + 'a>>,
    strike: Option<Box<dyn FnOnce() -> Instant + Send + 'a>>,
    /// When it happened, and how many answers had been accepted.
    struck: Option<(Instant, u64)>,
    recovered: Option<Duration>,
}

impl<'a> Struck<'a> {
    /// `before` happens before the call numbered `at` is submitted, `strike` right after; it gives the time from which the
    /// recovery counts.
    pub fn new(
        host: &Host,
        (swarm, workers): (&'a Swarm, usize),
        at: usize,
        before: impl FnOnce() + Send + 'a,
        strike: impl FnOnce() -> Instant + Send + 'a,
    ) -> Self {
        Self {
            inner: swarm.experts(host.local()),
            swarm,
            workers,
            calls: 0,
            at,
            before: Some(Box::new(before)),
            strike: Some(Box::new(strike)),
            struck: None,
            recovered: None,
        }
    }

    /// Experts of a swarm that took another one's place; it went at this time.
    pub fn already(host: &Host, swarm: &'a Swarm, since: Instant) -> Self {
        let mut experts = Self::new(host, (swarm, 1), 0, || {}, move || since);
        experts.struck = Some((since, 0));
        experts
    }

    /// Until the first answer that was accepted after it.
    pub fn recovered(&self) -> Duration {
        self.recovered.expect("no worker's answer was accepted after it")
    }

    /// Waits until every worker is there and owes nothing: else the model might have said all before anybody is back.
    fn wait_for_workers(&self) {
        self.swarm.wait_for_workers(self.workers, PATIENCE).unwrap();
        eventually("answers that are late", || {
            let statistics = self.swarm.statistics();
            let here = statistics.workers.iter().filter(|worker| worker.connected);
            here.map(|worker| worker.calls - worker.accepted - worker.excluded).sum::<u64>() == 0
        });
    }
}

impl Experts for Struck<'_> {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        if self.struck.is_some() && self.recovered.is_none() {
            self.wait_for_workers();
        }
        let is_it = self.struck.is_none() && self.calls == self.at;
        self.calls += 1;
        if is_it && let Some(before) = self.before.take() {
            before();
        }
        let id = self.inner.submit(call)?;
        if is_it && let Some(strike) = self.strike.take() {
            let since = strike();
            self.struck = Some((since, self.swarm.statistics().accepted));
        }
        Ok(id)
    }

    fn poll(&mut self, deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        let progress = self.inner.poll(deadline);
        if let (Some((since, accepted)), None) = (self.struck, self.recovered)
            && self.swarm.statistics().accepted > accepted
        {
            self.recovered = Some(since.elapsed());
        }
        progress
    }

    fn cancel(&mut self, call: CallId) {
        self.inner.cancel(call);
    }
}

/// What a fault cost: one line of JSON, for `scripts/bench-faults`.
pub fn tell(fault: &str, recovered: Duration, statistics: &Statistics, resumed: u64) {
    let line = serde_json::json!({
        "fault": fault,
        "deadlines": deadlines(),
        "recovered_ms": recovered.as_secs_f64() * 1e3,
        "sessions": statistics.workers.len(),
        "resumed": resumed,
        "failovers": statistics.failovers,
    });
    println!("{line}");
}
