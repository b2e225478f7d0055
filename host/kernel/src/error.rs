//! What can go wrong between the host and a kernel's process, by whose fault it is.

use std::path::PathBuf;
use std::time::Duration;

use kvasir_plugin::PluginDigest;

use crate::history::told_failures;

/// Why a kernel's process gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    // The machine.
    /// The program that runs kernels is not there.
    #[error(
        "the program kvasir-kernel is neither in {} nor in the folder above; install it beside this program, or name it in \
         KVASIR_KERNEL_PROGRAM",
        beside.display()
    )]
    NoProgram {
        /// The folder of this program.
        beside: PathBuf,
    },
    /// The program could not be started, or the memory shared with it not be made.
    #[error("cannot start {}: {reason}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The compile cache cannot be used.
    #[error("the compile cache in {} cannot be used: {reason}; remove the folder or mend its rights", folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// Why.
        reason: String,
    },

    /// A process cannot be set up with what this machine gives it: its walls do not stand, or it has less than it needs.
    #[error(
        "a kernel's process cannot be set up on this machine: {reason}; see what limits this program (`ulimit -Ha`, or Limit..= of a \
         systemd unit)"
    )]
    Setup {
        /// What the process said, or which limit is too low.
        reason: String,
    },

    // The plugin.
    /// The compiler's process exceeded one of its limits and was ended.
    #[error(
        "compiling the kernel exceeded its {limit} and was ended; the plugin stays unused, ask its publisher for a smaller kernel"
    )]
    CompileLimit {
        /// Which limit, with its value.
        limit: String,
    },
    /// The compiler's process ended by itself.
    #[error("the compiler's process ended ({status}){}; the plugin stays unused", told(stderr))]
    CompilerCrashed {
        /// Its exit status.
        status: String,
        /// The last that it wrote to its standard error.
        stderr: String,
    },
    /// The kernel failed, and its process says how: what `kvasir_sandbox::SandboxError` makes of itself.
    #[error("the kernel failed")]
    Failed {
        /// The account, to be decoded by who knows the sandbox.
        report: Vec<u8>,
        /// Whether the instance is gone.
        fatal: bool,
    },
    /// The process did not answer in time and was killed.
    #[error("the kernel's process did not end {request} within {deadline:?} and was killed")]
    Killed {
        /// The request.
        request: &'static str,
        /// Time granted.
        deadline: Duration,
    },
    /// The process ended by itself.
    #[error("the kernel's process ended in {request} ({status}){}", told(stderr))]
    Crashed {
        /// The request.
        request: &'static str,
        /// Its exit status.
        status: String,
        /// The last that it wrote to its standard error.
        stderr: String,
    },
    /// The plugin failed too often.
    #[error(
        "plugin {plugin} {} and is not run any more; use another version of the plugin",
        told_failures(*failures, "on this machine")
    )]
    Quarantined {
        /// The plugin.
        plugin: PluginDigest,
        /// How often it failed; [`crate::UNREADABLE_FAILURES`] where that cannot be told.
        failures: u32,
    },
    /// The kernel failed a moment ago and is not started again yet.
    #[error("the kernel failed and is started again in {wait:?} at the earliest")]
    BackingOff {
        /// Time left.
        wait: Duration,
    },

    // The caller.
    /// The request makes no sense: a lane that is not there, an expert that is larger than any.
    #[error("{request} is not possible: {reason}")]
    Refused {
        /// The request.
        request: &'static str,
        /// Why.
        reason: String,
    },

    // Ourselves.
    /// The compiled code is not of the engine that should run it.
    #[error("the compiled kernel does not fit the engine of kvasir-kernel; use programs of one version")]
    ForeignArtefact,
    /// An answer that breaks the protocol; the process was killed.
    #[error("the kernel's process broke the protocol in {request}: {reason}; use programs of one version")]
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
