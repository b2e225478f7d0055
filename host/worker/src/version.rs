//! One version of what a worker computes with: proven runners, what they are announced as, and the experts they hold.

use std::collections::HashMap;
use std::sync::Arc;

use kvasir_experts::{
    Adapter, AdapterKind, ExpertRunner, Isolation, KernelClass, KernelLimits, KernelOptions, RunnerOptions,
    VerifiedPlugin,
};
use kvasir_model::Format;
use kvasir_wire::handshake::{Class, WorkerOffer};
use kvasir_wire::id::PluginDigest;

use crate::event::Event;
use crate::options::{WorkerError, WorkerOptions};
use crate::store::{Budget, Store};

/// Private memory of a kernel's process for each lane beside experts: what an instance keeps free for rows and results, and stacks.
const LANE_MEMORY_BYTES: u64 = 160 << 20;
/// Private memory of a kernel's process for itself.
const ENGINE_MEMORY_BYTES: u64 = 512 << 20;
/// Highest GGUF type number that is looked at when a plugin's formats are translated.
const HIGHEST_FORMAT: u32 = 255;

/// Plugins that were proven here, with experts of their own.
pub(crate) struct Version {
    pub(crate) runners: HashMap<PluginDigest, Arc<ExpertRunner>>,
    /// As announced to the hub, but for the memory, which is that of the moment.
    pub(crate) offer: WorkerOffer,
    pub(crate) store: Arc<Store>,
}

impl Version {
    /// Compiles plugins and proves them on their golden vectors. Takes seconds, for the compiler.
    pub(crate) fn prove(
        options: &WorkerOptions,
        plugins: &[VerifiedPlugin],
        limits: KernelLimits,
        budget: &Arc<Budget>,
    ) -> Result<Self, WorkerError> {
        let mut runners = HashMap::new();
        let mut class = None;
        let mut offer = WorkerOffer {
            plugins: Vec::new(),
            formats: Vec::new(),
            memory_bytes: options.store_bytes,
            class: Class::Exact,
        };
        for plugin in plugins {
            let device = options.device.clone();
            let runner_options = RunnerOptions { device, limits, ..RunnerOptions::default() };
            let isolation = bounded(options, runner_options.instances.get());
            let runner_options = RunnerOptions { isolation, ..runner_options };
            let runner = ExpertRunner::new(plugin, runner_options)
                .map_err(|source| WorkerError::Plugin { plugin: named(plugin), source })?;
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
            offer.formats.extend(formats(plugin));
        }
        offer.class = class.unwrap_or(offer.class);
        offer.formats.sort_unstable();
        offer.formats.dedup();
        Ok(Self { runners, offer, store: Arc::new(Store::new(Arc::clone(budget))) })
    }

    /// The best of its plugins. There is at least one.
    pub(crate) fn plugin(&self) -> PluginDigest {
        self.offer.plugins.first().copied().unwrap_or(PluginDigest([0; 32]))
    }
}

/// What a worker with this one plugin announces; nothing of it is proven here.
pub fn offer(plugin: &VerifiedPlugin, class: Class, memory_bytes: u64) -> WorkerOffer {
    let plugins = vec![PluginDigest(plugin.digest().0)];
    WorkerOffer { plugins, formats: formats(plugin).collect(), memory_bytes, class }
}

/// GGUF type numbers of the formats that a plugin's manifest names, ascending.
fn formats(plugin: &VerifiedPlugin) -> impl Iterator<Item = u32> {
    let known = (0..=HIGHEST_FORMAT).filter_map(Format::from_number);
    let takes = |format: &Format| plugin.manifest().formats.iter().any(|name| name == format.name());
    known.filter(takes).map(Format::number)
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

/// A plugin's name and version.
pub(crate) fn named(plugin: &VerifiedPlugin) -> String {
    format!("{} {}", plugin.name(), plugin.version())
}

/// The word on the wire for what a runner says of itself.
fn wire_class(class: KernelClass) -> Class {
    match class {
        KernelClass::Exact => Class::Exact,
        KernelClass::Tolerance => Class::Tolerance,
    }
}
