//! A worker's life: dial, serve, dial again.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvasir_experts::{
    Adapter, AdapterKind, ExpertRunner, Isolation, KernelClass, KernelOptions, RunnerOptions,
};
use kvasir_link::{Backoff, LinkError, TlsTrust, connect_worker};
use kvasir_model::Format;
use kvasir_wire::handshake::{Class, Features, WorkerOffer};
use kvasir_wire::id::{PluginDigest, WalletDigest};
use kvasir_wire::pairing::Expectation;
use tokio::sync::{Notify, mpsc, watch};

use crate::books::Books;
use crate::event::Event;
use crate::failures::FailureBounds;
use crate::fetch::Fetches;
use crate::options::{Summary, WorkerError, WorkerOptions};
use crate::serving::Serving;
use crate::session::{Again, End, Session};
use crate::store::Store;
use crate::workbench::Workbench;

/// A worker, ready to run.
pub struct Worker {
    options: Arc<WorkerOptions>,
    trust: TlsTrust,
    wallet: WalletDigest,
    runners: HashMap<PluginDigest, Arc<ExpertRunner>>,
    offer: WorkerOffer,
    store: Arc<Store>,
    bench: Arc<Workbench>,
    life: Arc<AtomicU64>,
}

/// Asks a running worker to end in order: it answers what it was asked, countersigns a last receipt and leaves.
#[derive(Debug, Clone)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Stop {
    /// Asks. More than once is the same as once.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// A [`Stop`] and what [`Worker::run`] listens to. The worker also ends when every `Stop` is gone without a word: hold
/// on to it.
pub fn stop() -> (Stop, watch::Receiver<bool>) {
    let (sender, receiver) = watch::channel(false);
    (Stop(Arc::new(sender)), receiver)
}

/// Most bytes of a file of certificates; a bundle of all public authorities has a quarter of it.
const MAX_CERTIFICATE_FILE_BYTES: u64 = 1 << 20;
/// Private memory of a kernel's process for each lane beside experts: what an instance keeps free for rows and results, and stacks.
const LANE_MEMORY_BYTES: u64 = 160 << 20;
/// Private memory of a kernel's process for itself.
const ENGINE_MEMORY_BYTES: u64 = 512 << 20;
/// Highest GGUF type number that is looked at when a plugin's formats are translated.
const HIGHEST_FORMAT: u32 = 255;

impl Worker {
    /// Checks the options, compiles and proves the plugins. Takes seconds, for the compiler.
    pub fn new(options: WorkerOptions) -> Result<Self, WorkerError> {
        if options.plugins.is_empty() {
            let what = "no plugin was given; without one there is nothing to compute with".to_owned();
            return Err(WorkerError::Options(what));
        }
        let wallet = options.ticket.claims().wallet.ok_or_else(|| {
            WorkerError::Options("the ticket names no wallet: it is not a worker's".to_owned())
        })?;
        let trust = trust(&options)?;
        let system = |what| move |error: io::Error| WorkerError::System { what, reason: error.to_string() };
        let bench = Arc::new(Workbench::new(options.threads).map_err(system("threads"))?);

        let mut runners = HashMap::new();
        let mut class = None;
        let mut offer = WorkerOffer {
            plugins: Vec::new(),
            formats: Vec::new(),
            memory_bytes: options.store_bytes,
            class: Class::Exact,
        };
        for plugin in &options.plugins {
            let device = options.device.clone();
            let runner_options = RunnerOptions { device, limits: options.limits, ..RunnerOptions::default() };
            let isolation = bounded(&options, runner_options.instances.get());
            let runner_options = RunnerOptions { isolation, ..runner_options };
            let runner = ExpertRunner::new(plugin, runner_options).map_err(|source| WorkerError::Plugin {
                plugin: format!("{} {}", plugin.name(), plugin.version()),
                source,
            })?;
            let own = wire_class(runner.class());
            if class.is_some_and(|class| class != own) {
                let what =
                    "the plugins' results are of two classes, and a worker has one: start a worker for each";
                return Err(WorkerError::Options(what.to_owned()));
            }
            class = Some(own);
            let digest = PluginDigest(plugin.digest().0);
            let adapter = runner.adapter();
            (options.events)(Event::Proven {
                plugin: digest.to_string(),
                class: own.name(),
                device: adapter.as_ref().map(Adapter::to_string),
                software: adapter.is_some_and(|adapter| adapter.kind == AdapterKind::Software),
                vectors: plugin.vectors().len(),
                vectors_on_device: runner.shader_report().map_or(0, |report| report.vectors),
            });
            if let Some(walls) = runner.walls() {
                (options.events)(Event::Confined {
                    plugin: digest.to_string(),
                    process: runner.process_id(),
                    no_new_privileges: walls.no_new_privileges,
                    seccomp: walls.seccomp,
                    memory_limit: walls.memory_limit,
                    landlock: walls.landlock,
                });
            }
            offer.plugins.push(digest);
            runners.insert(digest, Arc::new(runner));
            let known = (0..=HIGHEST_FORMAT).filter_map(Format::from_number);
            let takes = |format: &Format| plugin.manifest().formats.iter().any(|name| name == format.name());
            offer.formats.extend(known.filter(takes).map(Format::number));
        }
        offer.class = class.unwrap_or(offer.class);
        offer.formats.sort_unstable();
        offer.formats.dedup();
        let store = Arc::new(Store::new(options.store_bytes));
        let life = Arc::new(AtomicU64::new(0));
        Ok(Self { options: Arc::new(options), trust, wallet, runners, offer, store, bench, life })
    }

    /// Serves until stopped, refused for good, or out of attempts. Needs a tokio runtime with I/O and time. Dropping the
    /// future cuts the connection.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<Summary, WorkerError> {
        let mut summary = Summary::default();
        let mut backoff = Backoff::new();
        let mut failures = 0u32;
        loop {
            let begun = Instant::now();
            let mut paired = false;
            let end = tokio::select! {
                // First, or a worker that was stopped before it was paired would dial once more.
                biased;
                () = stopped(&mut stop), if !paired => return Ok(summary),
                session = self.connect() => match session {
                    Ok(session) => {
                        paired = true;
                        summary.sessions += 1;
                        let (end, receipt) = session.serve(stop.clone()).await;
                        if let Some(receipt) = receipt {
                            summary.add(&receipt);
                        }
                        end
                    }
                    Err(error) => End::Link(error),
                },
            };
            summary.results = self.life.load(Ordering::Relaxed);
            if paired {
                failures = 0;
            }
            if let Some(plugin) = self.give_up_quarantined()
                && self.offer.plugins.is_empty()
            {
                return Err(WorkerError::Quarantined { plugin });
            }
            let (reason, asked) = match end {
                End::Died => return Err(WorkerError::DiedOnPurpose { results: summary.results }),
                End::Drained { .. } if self.options.once || *stop.borrow() => return Ok(summary),
                End::Drained { reconnect_in } => ("the session ended in order".to_owned(), reconnect_in),
                End::Link(_) if *stop.borrow() => return Ok(summary),
                End::Link(error) => {
                    failures += u32::from(!paired);
                    self.tell(&error);
                    if let (true, LinkError::Refused(refusal) | LinkError::RefusedPeer(refusal)) =
                        (error.is_permanent(), &error)
                    {
                        return Err(WorkerError::Refused(refusal.clone()));
                    }
                    if error.is_permanent() || self.options.attempts.is_some_and(|limit| failures >= limit) {
                        return Err(WorkerError::GaveUp {
                            attempts: failures.max(1),
                            last: error.to_string(),
                        });
                    }
                    let asked = error.retry_after().map(|seconds| Duration::from_secs(seconds.into()));
                    (error.to_string(), asked)
                }
            };
            backoff.lasted(begun.elapsed());
            let wait = backoff.next_wait(getrandom::u64().unwrap_or(u64::MAX / 2), asked);
            (self.options.events)(Event::Reconnecting { reason, wait });
            tokio::select! {
                () = stopped(&mut stop) => return Ok(summary),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Dials, is admitted, and waits for a backbone.
    async fn connect(&self) -> Result<Session, LinkError> {
        let options = &self.options;
        let (ticket, key) = (&options.ticket, &options.key);
        let offer = self.offer.clone();
        let connected =
            connect_worker(&options.gateway, &self.trust, ticket, key, offer, Features::NONE, &options.link)
                .await?;
        (options.events)(Event::Connected { gateway: options.gateway.clone() });
        // The model is the backbone's to name; every expert is then held against it.
        let expectation = Expectation {
            plugins: self.offer.plugins.clone(),
            class: Some(self.offer.class),
            ..Expectation::default()
        };
        let link = connected.pair(key, &expectation).await?;

        let transcript = link.transcript;
        // In the expectation, so in the transcript.
        let runner = Arc::clone(&self.runners[&transcript.plugin]);
        (options.events)(Event::Paired {
            session: transcript.session.to_string(),
            model: transcript.model.to_string(),
            plugin: transcript.plugin.to_string(),
            class: transcript.class.name(),
        });
        self.store.begin(transcript.plugin, transcript.model, &runner);
        let (tell_lost, lost) = mpsc::unbounded_channel();
        let books = Books::new(transcript.clone(), ticket.claims().hub, self.wallet);
        let serving = Serving::new(
            link.sender,
            runner,
            Arc::clone(&self.store),
            Arc::clone(&options.events),
            options.danger_fault,
            Arc::clone(&self.life),
            Arc::new(Notify::new()),
            FailureBounds::new(&self.options.device, &self.options.isolation),
            tell_lost,
            books,
        );
        Ok(Session {
            id: transcript.session,
            receiver: link.receiver,
            serving: Arc::new(serving),
            store: Arc::clone(&self.store),
            bench: Arc::clone(&self.bench),
            fetches: Fetches::new(transcript.model),
            model: options.model.clone(),
            key: key.clone(),
            paystubs: options.paystubs.clone(),
            events: Arc::clone(&options.events),
            assigned: 0,
            lost,
            again: Again::default(),
            last: None,
        })
    }

    /// Takes plugins that failed too often out of the offer; gives one of them.
    fn give_up_quarantined(&mut self) -> Option<PluginDigest> {
        let bounds = FailureBounds::new(&self.options.device, &self.options.isolation);
        let quarantined = |plugin: &PluginDigest| bounds.exceeded(self.runners[plugin].plugin()).is_some();
        let given_up: Vec<PluginDigest> = self.offer.plugins.iter().copied().filter(quarantined).collect();
        self.offer.plugins.retain(|plugin| !given_up.contains(plugin));
        given_up.last().copied()
    }

    fn tell(&self, error: &LinkError) {
        if let LinkError::Refused(refusal) | LinkError::RefusedPeer(refusal) = error {
            (self.options.events)(Event::Refused {
                code: refusal.code.name().to_owned(),
                reason: refusal.to_string(),
                can_heal: !error.is_permanent(),
            });
        }
    }
}

impl Summary {
    fn add(&mut self, receipt: &kvasir_wire::receipt::Receipt) {
        let bytes = receipt.billed();
        self.receipted_bytes = self.receipted_bytes.saturating_add(bytes.get());
        let credit = kvasir_wire::money::PricePerByte::FOUNDING.credit(bytes);
        self.nano_kvr = self.nano_kvr.saturating_add(credit.map_or(0, |amount| amount.get().unsigned_abs()));
    }
}

/// The word on the wire for what a runner says of itself.
fn wire_class(class: KernelClass) -> Class {
    match class {
        KernelClass::Exact => Class::Exact,
        KernelClass::Tolerance => Class::Tolerance,
    }
}

/// The isolation, with a bound on the memory of each process where none is set: the experts of the store in a layout of the
/// kernel's own, room for calls in every lane, and what the engine needs.
fn bounded(options: &WorkerOptions, lanes: usize) -> Isolation {
    match &options.isolation {
        Isolation::Process(kernel) if kernel.memory_bytes.is_none() => {
            let experts = options.store_bytes.saturating_add(options.store_bytes / 8);
            let lanes = LANE_MEMORY_BYTES.saturating_mul(lanes as u64);
            let memory_bytes = Some(experts.saturating_add(lanes).saturating_add(ENGINE_MEMORY_BYTES));
            Isolation::Process(KernelOptions { memory_bytes, ..kernel.clone() })
        }
        isolation => isolation.clone(),
    }
}

/// Returns once stopping was asked for, or everybody who could ask is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

fn trust(options: &WorkerOptions) -> Result<TlsTrust, WorkerError> {
    if options.gateway.starts_with("ws://") {
        return Ok(TlsTrust::PlainText);
    }
    let Some(path) = &options.certificate_authority else { return Ok(TlsTrust::WebRoots) };
    let unusable = |problem: String| {
        WorkerError::Options(format!("the certificate file {} cannot be used: {problem}", path.display()))
    };
    let trust = TlsTrust::CaFile(read_certificates(path).map_err(|error| unusable(error.to_string()))?);
    // Now, and not at every attempt to connect.
    trust.check().map_err(unusable)?;
    Ok(trust)
}

/// A plain file of bounded size: a pipe could wait for ever, a device never end.
fn read_certificates(path: &Path) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file"));
    }
    let mut pem = Vec::new();
    File::open(path)?.take(MAX_CERTIFICATE_FILE_BYTES + 1).read_to_end(&mut pem)?;
    if pem.len() as u64 > MAX_CERTIFICATE_FILE_BYTES {
        let problem = format!("it has more than {MAX_CERTIFICATE_FILE_BYTES} bytes, the most that are read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(pem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_read_from_plain_files_of_bounded_size_alone() {
        let folder = std::env::temp_dir().join(format!("kvasir-certificates-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("ca.pem");
        std::fs::write(&file, vec![b'a'; MAX_CERTIFICATE_FILE_BYTES as usize]).unwrap();
        assert!(read_certificates(&file).is_ok());
        std::fs::write(&file, vec![b'a'; MAX_CERTIFICATE_FILE_BYTES as usize + 1]).unwrap();
        assert!(read_certificates(&file).unwrap_err().to_string().contains("1048576"));
        for no_file in [&folder, Path::new("/dev/zero")] {
            assert!(read_certificates(no_file).unwrap_err().to_string().contains("plain file"));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
