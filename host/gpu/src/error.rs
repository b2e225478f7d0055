//! What can go wrong between the host and the GPU's process, by whose fault it is.

use std::path::PathBuf;
use std::time::Duration;

use kvasir_kernel::told_failures;
use kvasir_plugin::PluginDigest;

/// Why the GPU gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    // The machine.
    /// The program that drives the GPU is not there.
    #[error(
        "the program kvasir-gpu is neither in {} nor in the folder above; install it beside this program, or name it in KVASIR_GPU_PROGRAM",
        beside.display()
    )]
    NoProgram {
        /// The folder of this program.
        beside: PathBuf,
    },
    /// The program could not be started.
    #[error("cannot start {}: {reason}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// There is no GPU that can be used.
    #[error(
        "there is no usable GPU: {reason}; install a Vulkan driver (Debian's mesa-vulkan-drivers has one in software), or \
         compute on the CPU"
    )]
    NoDevice {
        /// What was found.
        reason: String,
    },
    /// The device has less memory than is asked for.
    #[error("the GPU has no room: {reason}; load fewer experts into it")]
    NoRoom {
        /// What did not fit.
        reason: String,
    },

    // The plugin.
    /// The plugin has no shader.
    #[error("the plugin carries no WGSL kernel; compute on the CPU, or use a plugin that has one")]
    NoShader,
    /// The shader was refused before it ran.
    #[error("the plugin's WGSL kernel is refused: {reason}; ask the publisher for a correct one")]
    ShaderRefused {
        /// Why.
        reason: String,
    },
    /// The process did not answer in time and was killed.
    #[error(
        "the GPU did not end {request} within {deadline:?} and its process was killed; the kernel runs away, or this GPU is \
         too slow for it"
    )]
    Killed {
        /// The request.
        request: &'static str,
        /// Time granted.
        deadline: Duration,
    },
    /// The process ended by itself.
    #[error("the GPU's process ended in {request} ({status}){}", told(stderr))]
    Crashed {
        /// The request.
        request: &'static str,
        /// Its exit status.
        status: String,
        /// The last lines that it wrote to its standard error.
        stderr: String,
    },
    /// The plugin failed too often.
    #[error(
        "plugin {plugin} {} and is no longer run on it; compute on the CPU, or use another version of the plugin",
        told_failures(*failures, "on this GPU")
    )]
    Quarantined {
        /// The plugin.
        plugin: PluginDigest,
        /// How often it failed; [`kvasir_kernel::UNREADABLE_FAILURES`] where that cannot be told.
        failures: u32,
    },
    /// The process failed a moment ago and is not started again yet.
    #[error("the GPU's process failed and is started again in {wait:?} at the earliest")]
    BackingOff {
        /// Time left.
        wait: Duration,
    },

    // The caller.
    /// The request makes no sense: a shape, a length, an expert that is not loaded.
    #[error("the GPU's process refuses {request}: {reason}")]
    Refused {
        /// The request.
        request: &'static str,
        /// Why.
        reason: String,
    },

    // Ourselves.
    /// An answer that breaks the protocol; the process was killed.
    #[error("the GPU's process broke the protocol in {request}: {reason}; use programs of one version")]
    BrokenProtocol {
        /// The request.
        request: &'static str,
        /// What was found.
        reason: String,
    },
}

fn told(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!(": {stderr}") }
}
