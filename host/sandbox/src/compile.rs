//! From a verified plugin to compiled code: check, then compile, then match against the contract.

use std::thread;

use kvasir_plugin::{Limits, PluginDigest, VerifiedPlugin};
use wasmtime::component::{Component, Linker};

use crate::engine::Engine;
use crate::error::SandboxError;
use crate::instance::{KernelInstance, State};
use crate::limits::{COMPILE_STACK_BYTES, KernelLimits};
use crate::scan::{KernelFacts, inspect};
use crate::world::ExpertKernelPre;

/// The world that this host runs.
const WORLD: &str = "kvasir:expert/expert-kernel@0.1.0";

/// A kernel, checked and compiled. Instances of it share the code. Cheap to clone.
#[derive(Clone)]
pub struct CompiledKernel {
    engine: Engine,
    prepared: ExpertKernelPre<State>,
    plugin: PluginDigest,
    request: Limits,
    facts: KernelFacts,
}

impl CompiledKernel {
    /// Checks and compiles the plugin's component; nothing of it runs. Compiling takes from milliseconds to seconds, on
    /// a thread of its own with a large stack; a panic of the compiler is an error here, a compile bomb within the size
    /// limits is for the process around this one to stop.
    pub fn compile(engine: &Engine, plugin: &VerifiedPlugin) -> Result<Self, SandboxError> {
        let found = &plugin.manifest().world;
        if found != WORLD {
            return Err(SandboxError::UnknownWorld { found: found.clone(), expected: WORLD });
        }
        let facts = inspect(plugin.component())?;
        let component = compile_apart(engine, plugin.component())?;
        // An empty linker: there is nothing that a kernel could be given.
        let linker = Linker::<State>::new(engine.inner());
        let wrong_world =
            |error: wasmtime::Error| SandboxError::WrongWorld { world: WORLD, reason: format!("{error:#}") };
        let prepared = linker.instantiate_pre(&component).map_err(wrong_world)?;
        let prepared = ExpertKernelPre::new(prepared).map_err(wrong_world)?;
        let request = plugin.manifest().limits;
        Ok(CompiledKernel { engine: engine.clone(), prepared, plugin: plugin.digest(), request, facts })
    }

    /// A fresh instance that holds no experts. It gets the lesser of `limits` and what the plugin requests.
    pub fn instantiate(&self, limits: KernelLimits) -> Result<KernelInstance, SandboxError> {
        KernelInstance::new(&self.engine, &self.prepared, limits.grant(&self.request))
    }

    /// The plugin it came from.
    pub fn plugin(&self) -> PluginDigest {
        self.plugin
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
