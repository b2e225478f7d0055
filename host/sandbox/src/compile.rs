//! From a verified plugin to compiled code: check, then compile, then match against the contract.

use std::sync::Arc;
use std::thread;

use kvasir_plugin::{Limits, PluginDigest, VerifiedPlugin, Version, contract_world, negotiate};
use wasmtime::component::{Component, Linker};

use crate::contract::{Prepared, SPOKEN, Spoken};
use crate::engine::Engine;
use crate::error::SandboxError;
use crate::instance::{KernelInstance, State};
use crate::limits::{COMPILE_STACK_BYTES, KernelLimits};
use crate::scan::{KernelFacts, inspect};

/// A kernel, checked and compiled. Instances of it share the code. Cheap to clone.
#[derive(Clone)]
pub struct CompiledKernel {
    engine: Engine,
    prepared: Arc<dyn Prepared>,
    contract: Version,
    plugin: PluginDigest,
    request: Limits,
    facts: KernelFacts,
}

impl CompiledKernel {
    /// Checks and compiles the plugin's component; nothing of it runs. Compiling takes from milliseconds to seconds, on
    /// a thread of its own with a large stack; a panic of the compiler is an error here, a compile bomb within the size
    /// limits is for the process around this one to stop.
    pub fn compile(engine: &Engine, plugin: &VerifiedPlugin) -> Result<Self, SandboxError> {
        Self::compile_speaking(SPOKEN, engine, plugin)
    }

    /// As [`Self::compile`], for a host that speaks other versions of the contract than this one does.
    pub(crate) fn compile_speaking(
        spoken: &[Spoken],
        engine: &Engine,
        plugin: &VerifiedPlugin,
    ) -> Result<Self, SandboxError> {
        let versions: Vec<Version> = spoken.iter().map(|contract| contract.version).collect();
        let version = negotiate(&plugin.manifest().world, &versions)?;
        let facts = inspect(plugin.component())?;
        let component = compile_apart(engine, plugin.component())?;
        // An empty linker: there is nothing that a kernel could be given.
        let linker = Linker::<State>::new(engine.inner());
        let wrong_world = |error: wasmtime::Error| SandboxError::WrongWorld {
            world: contract_world(version),
            reason: format!("{error:#}"),
        };
        let prepared = linker.instantiate_pre(&component).map_err(wrong_world)?;
        // One of `spoken` has the version, since it was negotiated from them.
        let prepare = spoken.iter().find(|contract| contract.version == version).map(|found| found.prepare);
        let prepare = prepare.ok_or_else(|| SandboxError::WrongWorld {
            world: contract_world(version),
            reason: "this host has no bindings for it".to_owned(),
        })?;
        let prepared = prepare(prepared).map_err(wrong_world)?;
        let request = plugin.manifest().limits;
        let engine = engine.clone();
        Ok(CompiledKernel { engine, prepared, contract: version, plugin: plugin.digest(), request, facts })
    }

    /// A fresh instance that holds no experts. It gets the lesser of `limits` and what the plugin requests.
    pub fn instantiate(&self, limits: KernelLimits) -> Result<KernelInstance, SandboxError> {
        KernelInstance::new(&self.engine, &*self.prepared, limits.grant(&self.request))
    }

    /// The plugin it came from.
    pub fn plugin(&self) -> PluginDigest {
        self.plugin
    }

    /// The version of the contract that it speaks with this host.
    pub fn contract(&self) -> Version {
        self.contract
    }

    /// What the plugin requests; no instance is granted more.
    pub fn request(&self) -> Limits {
        self.request
    }

    /// What the scan found in the component.
    pub fn facts(&self) -> &KernelFacts {
        &self.facts
    }
}

fn compile_apart(engine: &Engine, bytes: &[u8]) -> Result<Component, SandboxError> {
    let failed = |reason: String| SandboxError::Compile { reason };
    thread::scope(|scope| {
        thread::Builder::new()
            .name("kernel compiler".to_owned())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn_scoped(scope, || Component::from_binary(engine.inner(), bytes))
            .map_err(|error| failed(format!("no thread for the compiler: {error}")))?
            .join()
            .map_err(|_| failed("the compiler panicked".to_owned()))?
            .map_err(|error| failed(format!("{error:#}")))
    })
}
