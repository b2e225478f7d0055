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
    component: Component,
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
        let version = negotiated(spoken, plugin)?;
        let facts = inspect(plugin.component())?;
        let component = compile_apart(engine, plugin.component())?;
        let contract = spoken.iter().filter(|contract| contract.version == version);
        let kernel = Self::link(engine, component, contract, facts)?;
        Ok(CompiledKernel { plugin: plugin.digest(), request: plugin.manifest().limits, ..kernel })
    }

    /// As [`CompiledKernel::compile`], for a process that is given nothing of a plugin but its component: the manifest's world and
    /// requests are whoever handed it over's to check, and the plugin's digest is zero here. Of the contracts that this host speaks
    /// it is the newest that the component has.
    ///
    /// # Errors
    /// As [`CompiledKernel::compile`].
    pub fn compile_component(engine: &Engine, component: &[u8]) -> Result<Self, SandboxError> {
        let facts = inspect(component)?;
        Self::link(engine, compile_apart(engine, component)?, SPOKEN.iter().rev(), facts)
    }

    /// The compiled code, for [`CompiledKernel::from_artefact`] of an engine of the same kind.
    ///
    /// # Errors
    /// No memory for it.
    pub fn artefact(&self) -> Result<Vec<u8>, SandboxError> {
        self.component.serialize().map_err(|error| SandboxError::Compile { reason: format!("{error:#}") })
    }

    /// A kernel of code that was compiled before; what it is no wall looks at again.
    ///
    /// # Errors
    /// Code of another engine, or none at all.
    ///
    /// # Safety
    /// `code` is what [`CompiledKernel::artefact`] gave, in this program or in one of the same build: machine code is run as it is.
    /// Never bytes from outside.
    pub unsafe fn from_artefact(engine: &Engine, code: &[u8]) -> Result<Self, SandboxError> {
        // SAFETY: the caller promises that these bytes are the engine's own.
        let component = unsafe { Component::deserialize(engine.inner(), code) };
        let component = component.map_err(|error| SandboxError::Compile { reason: format!("{error:#}") })?;
        Self::link(engine, component, SPOKEN.iter().rev(), KernelFacts::default())
    }

    /// Refuses a plugin whose manifest names a world that this host does not run.
    ///
    /// # Errors
    /// [`SandboxError::Contract`].
    pub fn check_world(plugin: &VerifiedPlugin) -> Result<(), SandboxError> {
        negotiated(SPOKEN, plugin).map(|_| ())
    }

    /// Links a component to nothing, by the first of `contracts` whose exports it has.
    fn link<'s>(
        engine: &Engine,
        component: Component,
        contracts: impl Iterator<Item = &'s Spoken>,
        facts: KernelFacts,
    ) -> Result<Self, SandboxError> {
        // An empty linker: there is nothing that a kernel could be given.
        let linker = Linker::<State>::new(engine.inner());
        let mut refused = None;
        for Spoken { version, prepare } in contracts {
            let wrong_world = |error: wasmtime::Error| SandboxError::WrongWorld {
                world: contract_world(*version),
                reason: format!("{error:#}"),
            };
            match linker.instantiate_pre(&component).and_then(prepare) {
                Ok(prepared) => {
                    let request =
                        Limits { memory_bytes: u64::MAX, fuel_per_call: u64::MAX, rows_per_call: u32::MAX };
                    let (engine, contract, plugin) = (engine.clone(), *version, PluginDigest([0; 32]));
                    return Ok(CompiledKernel {
                        engine,
                        component,
                        prepared,
                        contract,
                        plugin,
                        request,
                        facts,
                    });
                }
                Err(error) => {
                    refused.get_or_insert_with(|| wrong_world(error));
                }
            }
        }
        Err(refused.unwrap_or_else(|| SandboxError::WrongWorld {
            world: "any contract".to_owned(),
            reason: "this host has no bindings for it".to_owned(),
        }))
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

fn negotiated(spoken: &[Spoken], plugin: &VerifiedPlugin) -> Result<Version, SandboxError> {
    let versions: Vec<Version> = spoken.iter().map(|contract| contract.version).collect();
    Ok(negotiate(&plugin.manifest().world, &versions)?)
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
