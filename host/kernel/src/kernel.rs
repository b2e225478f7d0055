//! The handle on a plugin's kernel: compiled once, run in one process that is started when needed, ended at a deadline, started
//! again after a while, and given up when the plugin fails too often.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvasir_plugin::PluginDigest;

use crate::cache::CompileCache;
use crate::compile::{Artefact, compile};
use crate::error::KernelError;
use crate::history::FailureKind;
use crate::instance::{Instance, InstanceLimits};
use crate::options::KernelOptions;
use crate::process::{Process, lock};
use crate::ring::{Answer, MAX_LANES, Request};
use crate::walls::Walls;

/// Longest wait before a new instance.
const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// A plugin's kernel in a process of its own. Cheap to clone; used from many threads, each in a lane of its own.
#[derive(Clone)]
pub struct Kernel {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    options: KernelOptions,
    plugin: PluginDigest,
    component: Vec<u8>,
    engine: u64,
    lanes: usize,
    running: Mutex<Running>,
    starts: AtomicU64,
}

#[derive(Default)]
struct Running {
    artefact: Option<Arc<Artefact>>,
    process: Option<Arc<Process>>,
    walls: Walls,
    /// No new instance before this.
    rest_until: Option<Instant>,
}

impl Kernel {
    /// Compiles `component`, unless the cache holds it for `engine`, and starts its process with so many lanes.
    ///
    /// # Errors
    /// No program, a component that is refused ([`KernelError::Failed`]), a compiler that exceeds its limits, a process that does
    /// not start, a plugin in quarantine.
    pub fn start(
        plugin: PluginDigest,
        component: &[u8],
        engine: u64,
        lanes: usize,
        options: KernelOptions,
    ) -> Result<Kernel, KernelError> {
        if lanes == 0 || lanes > MAX_LANES {
            let reason = format!("{lanes} lanes; a process has 1 to {MAX_LANES}");
            return Err(KernelError::Refused { request: "starting", reason });
        }
        let inner = Inner {
            options,
            plugin,
            component: component.to_owned(),
            engine,
            lanes,
            running: Mutex::default(),
            starts: AtomicU64::new(0),
        };
        inner.process()?;
        Ok(Kernel { inner: Arc::new(inner) })
    }

    /// The plugin that runs.
    pub fn plugin(&self) -> PluginDigest {
        self.inner.plugin
    }

    /// The walls around the process, as of its latest start.
    pub fn walls(&self) -> Walls {
        lock(&self.inner.running).walls
    }

    /// How often the process was started.
    pub fn starts(&self) -> u64 {
        self.inner.starts.load(Ordering::Relaxed)
    }

    /// The process's number, for tests and for people; `None` where none runs.
    pub fn process_id(&self) -> Option<u32> {
        let running = lock(&self.inner.running);
        running.process.as_ref().filter(|process| process.is_alive()).map(|process| process.id())
    }

    /// A fresh instance that holds no experts, used through `lane`, or through another one together with instances of that.
    ///
    /// # Errors
    /// A process that fails or may not be started, or a kernel that does not come to be.
    pub fn instantiate(&self, lane: usize, limits: InstanceLimits) -> Result<Instance, KernelError> {
        let process = self.inner.process()?;
        Instance::new(&self.inner, process, lane, limits)
    }

    /// The time to the process and back, with nothing computed there.
    ///
    /// # Errors
    /// As [`Kernel::instantiate`].
    pub fn ping(&self, lane: usize) -> Result<Duration, KernelError> {
        let process = self.inner.process()?;
        let begun = Instant::now();
        let mut lane = process.lane(lane)?;
        match lane.ask("a ping", &Request::Ping, self.inner.options.grace)? {
            Answer::Done => Ok(begun.elapsed()),
            _ => Err(lane.broken("a ping", "the answer is not the one that is due")),
        }
    }
}

impl Inner {
    pub fn options(&self) -> &KernelOptions {
        &self.options
    }

    /// The process, started if need be and allowed.
    fn process(&self) -> Result<Arc<Process>, KernelError> {
        let failures = self.options.history.failures(self.plugin);
        if failures >= self.options.quarantine_after {
            return Err(KernelError::Quarantined { plugin: self.plugin, failures });
        }
        let mut running = lock(&self.running);
        let rest = running.rest_until.map(|until| until.saturating_duration_since(Instant::now()));
        if let Some(wait) = rest.filter(|wait| !wait.is_zero()) {
            return Err(KernelError::BackingOff { wait });
        }
        if let Some(process) = running.process.as_ref().filter(|process| process.is_alive()) {
            return Ok(Arc::clone(process));
        }
        running.process = None;
        let cached = running.artefact.is_some();
        let artefact = match &running.artefact {
            Some(artefact) => Arc::clone(artefact),
            None => Arc::new(self.compiled(&mut running, true)?),
        };
        let process = match self.start(&artefact) {
            Err(KernelError::ForeignArtefact) if !cached => {
                // From the cache, by a program of another version.
                let artefact = Arc::new(self.compiled(&mut running, false)?);
                let process = self.start(&artefact);
                running.artefact = Some(artefact);
                process
            }
            process => {
                running.artefact = Some(artefact);
                process
            }
        };
        let process = Arc::new(process.inspect_err(|error| self.note(&mut running, error))?);
        self.starts.fetch_add(1, Ordering::Relaxed);
        running.walls = process.walls();
        tracing::info!(process = process.id(), walls = %process.walls(), "a kernel's process runs");
        running.process = Some(Arc::clone(&process));
        Ok(process)
    }

    fn start(&self, artefact: &Artefact) -> Result<Process, KernelError> {
        let file = artefact.file().map_err(|error| KernelError::Start {
            program: self.options.program.clone().unwrap_or_default(),
            reason: error.to_string(),
        })?;
        Process::start(&self.options, file, self.lanes, self.options.memory_bytes.unwrap_or(0))
    }

    fn compiled(&self, running: &mut Running, look: bool) -> Result<Artefact, KernelError> {
        let cache = self.options.cache.as_deref().map(CompileCache::open).transpose()?;
        let largest = self.options.compile.artefact_bytes;
        let found =
            cache.as_ref().filter(|_| look).and_then(|cache| cache.find(self.plugin, self.engine, largest));
        if let Some(found) = found {
            return Ok(found);
        }
        let artefact =
            compile(&self.component, &self.options).inspect_err(|error| self.note(running, error))?;
        if let Some(cache) = cache {
            cache.keep(self.plugin, self.engine, &artefact)?;
        }
        Ok(artefact)
    }

    /// Counts a failure that is the plugin's, and sets when a fresh instance may be made.
    pub fn failed(&self, process: &Process, error: &KernelError) {
        // Every lane tells of the same death; it is one failure.
        let death = !matches!(error, KernelError::Failed { .. });
        if !death || process.first_to_count_its_end() {
            self.note(&mut lock(&self.running), error);
        }
    }

    fn note(&self, running: &mut Running, error: &KernelError) {
        let kind = match error {
            KernelError::Killed { .. } | KernelError::CompileLimit { .. } => FailureKind::Deadline,
            KernelError::Crashed { .. }
            | KernelError::CompilerCrashed { .. }
            | KernelError::BrokenProtocol { .. } => FailureKind::Crash,
            // Without a process it was refused by the scan: nothing of it ran, and it is refused again at no cost.
            KernelError::Failed { fatal: true, .. } if running.process.is_some() => FailureKind::Trap,
            _ => return,
        };
        let failures = self.options.history.record(self.plugin, kind);
        let doubled = self.options.backoff.saturating_mul(1 << failures.saturating_sub(1).min(16));
        running.rest_until = Some(Instant::now() + doubled.min(MAX_BACKOFF));
        tracing::warn!(plugin = %self.plugin, failures, %error, "a kernel failed");
    }
}
