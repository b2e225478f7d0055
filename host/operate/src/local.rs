//! What every command that computes needs: the model, the verified kernel, the runner, and the layers on top.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use kvasir_backbone::Backbone;
use kvasir_experts::{ExpertRunner, GpuError, LocalExperts, RunnerError, RunnerOptions, VerifiedPlugin};
use kvasir_model::Model;

use crate::choices::DeviceChoice;
use crate::memory::expert_bytes;
use crate::progress::Spinner;
use crate::settings::Settings;
use crate::{plugin_store, quarantine};

/// A package may not be larger: it is read whole.
pub const PACKAGE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// More threads than this are a typing error.
const THREADS_MAX: usize = 1024;

/// What is named on the command line; the settings fill in the rest.
#[derive(Debug, Clone, Default)]
pub struct ComputeOptions {
    /// GGUF file or Hugging Face folder.
    pub model: Option<PathBuf>,
    /// Package of the expert kernel.
    pub plugin: Option<PathBuf>,
    /// Folder of trusted publishers' public keys.
    pub trust: Option<PathBuf>,
    /// Threads that compute; none means one a core.
    pub threads: Option<usize>,
    /// What computes experts; none means the settings file's, or the processor.
    pub device: Option<DeviceChoice>,
    /// Most memory for experts in the sandbox, in MiB; none means half of what is free.
    pub memory_mebibytes: Option<u64>,
}

/// A model that answers on this machine.
pub struct Local {
    /// The opened model.
    pub model: Arc<Model>,
    /// The kernel whose experts answer.
    pub plugin: VerifiedPlugin,
    /// Experts loaded into the sandbox.
    pub runner: Arc<ExpertRunner>,
    /// Layers, router and sampler.
    pub backbone: Backbone,
}

impl Local {
    /// Open the model, verify the kernel and start the threads.
    ///
    /// # Errors
    /// The first of these that fails, with the file that it concerns.
    pub fn open(settings: &Settings, options: &ComputeOptions) -> Result<Local> {
        let threads = threads(settings, options.threads)?;
        let path = settings.model(options.model.as_deref())?;
        let spinner = Spinner::new(format!("opening {}", path.display()));
        let model = Arc::new(open_model(&path)?);
        spinner.say("checking and compiling the kernel");
        let granted = plugin_store::granted(settings, options.plugin.as_deref(), options.trust.as_deref())?;
        let device = granted.device(settings.device(options.device), settings)?;
        let (limits, plugin) = (granted.limits(), granted.plugin);
        let runner = Arc::new(start_runner(
            &plugin,
            RunnerOptions {
                device,
                limits,
                held_bytes: Some(expert_bytes(options.memory_mebibytes)),
                ..RunnerOptions::default()
            },
        )?);
        let backbone = Backbone::new(Arc::clone(&model), Some(threads))?;
        Ok(Local { model, plugin, runner, backbone })
    }

    /// Routed experts, computed here.
    pub fn experts(&self) -> LocalExperts {
        LocalExperts::new(Arc::clone(&self.model), Arc::clone(&self.runner))
    }
}

/// Compile the kernel and prove it on its golden vectors; on the GPU both of the plugin's kernels. Says so where a GPU is used.
///
/// # Errors
/// As [`ExpertRunner::new`], with what to do where the plugin is in quarantine.
pub fn start_runner(plugin: &VerifiedPlugin, options: RunnerOptions) -> Result<ExpertRunner> {
    let runner = ExpertRunner::new(plugin, options).map_err(|error| match error {
        RunnerError::Gpu(GpuError::Quarantined { plugin, .. }) => {
            anyhow::Error::from(error).context(quarantine::remedy(plugin))
        }
        other => other.into(),
    })?;
    if let Some(adapter) = runner.adapter() {
        tracing::info!(device = %adapter, "the plugin's kernels passed its golden vectors on the CPU and on the GPU");
    }
    Ok(runner)
}

/// Open the model at `path`.
///
/// # Errors
/// Where it is neither a plain file nor a folder (a pipe could wait for ever), or no model.
pub fn open_model(path: &Path) -> Result<Model> {
    let unusable = || format!("cannot use the model {}", path.display());
    let metadata = fs::metadata(path).with_context(unusable)?;
    if !metadata.is_file() && !metadata.is_dir() {
        bail!("{}: it is neither a plain file nor a folder", unusable());
    }
    Model::open(path).with_context(unusable)
}

/// The number of threads: named, in the settings, or one a core.
///
/// # Errors
/// Where zero or an absurd number is named.
pub fn threads(settings: &Settings, named: Option<usize>) -> Result<NonZeroUsize> {
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    match settings.threads(named) {
        None => Ok(cores),
        Some(count) if count > THREADS_MAX => bail!("{count} threads are too many; at most {THREADS_MAX}"),
        Some(count) => NonZeroUsize::new(count).context("0 threads cannot compute; name at least 1"),
    }
}

/// The kernel to use, verified but not admitted: to look at it, not to run it ([`plugin_store::verified`]).
///
/// # Errors
/// Where there is none, or it is refused; the message says what to do.
pub fn verified_plugin(
    settings: &Settings,
    plugin: Option<&Path>,
    trust: Option<&Path>,
) -> Result<VerifiedPlugin> {
    plugin_store::verified(settings, plugin, trust)
}
