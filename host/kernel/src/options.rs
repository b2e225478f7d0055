//! How kernels' processes are used.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::history::{FailureHistory, MemoryHistory};

/// The environment variable that names the program `kvasir-kernel`.
pub const PROGRAM_VARIABLE: &str = "KVASIR_KERNEL_PROGRAM";

/// How a host runs kernels in processes of their own.
#[derive(Clone)]
pub struct KernelOptions {
    /// The program; `None`: what `KVASIR_KERNEL_PROGRAM` names, else `kvasir-kernel` beside the running program or one folder above.
    pub program: Option<PathBuf>,
    /// Folder of the compile cache, made with mode 0700; `None`: compiled anew at every start.
    pub cache: Option<PathBuf>,
    /// What the compiler's process may use.
    pub compile: CompileLimits,
    /// Most private memory of the running process in bytes, experts included; `None`: no bound beyond each instance's own.
    pub memory_bytes: Option<u64>,
    /// Longest wait from the start of the program until it can answer.
    pub start: Duration,
    /// Wait beyond a call's own deadline, which the process keeps itself, before it is killed.
    pub grace: Duration,
    /// Time until a new instance is made after the first failure; it doubles with each further one.
    pub backoff: Duration,
    /// Failures after which a plugin is no longer run.
    pub quarantine_after: u32,
    /// Where failures are remembered.
    pub history: Arc<dyn FailureHistory>,
}

/// What the compiler's process may use; beyond any of these it is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileLimits {
    /// Private memory in bytes.
    pub memory_bytes: u64,
    /// Address space in bytes.
    pub address_bytes: u64,
    /// Processor time in seconds, all threads together.
    pub processor_seconds: u64,
    /// Wall clock.
    pub wall_clock: Duration,
    /// Largest result in bytes.
    pub artefact_bytes: u64,
}

impl Default for CompileLimits {
    /// A kernel of 100 KB takes a second and 100 MB; ten times that and more.
    fn default() -> Self {
        CompileLimits {
            memory_bytes: 2 << 30,
            address_bytes: 8 << 30,
            processor_seconds: 60,
            wall_clock: Duration::from_secs(120),
            artefact_bytes: 256 << 20,
        }
    }
}

impl Default for KernelOptions {
    fn default() -> Self {
        KernelOptions {
            program: None,
            cache: None,
            compile: CompileLimits::default(),
            memory_bytes: None,
            start: Duration::from_secs(60),
            grace: Duration::from_secs(2),
            backoff: Duration::from_secs(1),
            quarantine_after: 3,
            history: Arc::new(MemoryHistory::default()),
        }
    }
}

impl fmt::Debug for KernelOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelOptions")
            .field("program", &self.program)
            .field("cache", &self.cache)
            .field("compile", &self.compile)
            .field("memory_bytes", &self.memory_bytes)
            .field("quarantine_after", &self.quarantine_after)
            .finish_non_exhaustive()
    }
}
