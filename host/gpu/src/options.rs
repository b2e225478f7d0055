//! How the GPU is used, and what it turned out to be.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvasir_kernel::{FailureHistory, MemoryHistory};

/// The environment variable that names the program `kvasir-gpu`.
pub const PROGRAM_VARIABLE: &str = "KVASIR_GPU_PROGRAM";

/// How a host uses its GPU.
#[derive(Clone)]
pub struct GpuOptions {
    /// The program; `None`: what `KVASIR_GPU_PROGRAM` names, else `kvasir-gpu` beside the running program or one folder above.
    pub program: Option<PathBuf>,
    /// Which device is wanted.
    pub adapter: AdapterChoice,
    /// Longest waits; at their end the process is killed.
    pub deadlines: Deadlines,
    /// Most bytes of device memory for weights; `None`: as much as the device gives.
    pub memory_bytes: Option<u64>,
    /// Largest binding of a storage buffer; `None`: what the device allows. Larger matrices are split.
    pub binding_bytes: Option<u32>,
    /// Time until the first restart after a failure; it doubles with each further one.
    pub backoff: Duration,
    /// Failures after which a plugin is no longer run.
    pub quarantine_after: u32,
    /// Where failures are remembered.
    pub history: Arc<dyn FailureHistory>,
}

/// Longest waits for the GPU's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From the start of the program until it describes its device.
    pub start: Duration,
    /// Checking and compiling a shader.
    pub shader: Duration,
    /// Taking one expert into device memory, or freeing it.
    pub load: Duration,
    /// One call, however many messages it takes.
    pub call: Duration,
    /// All calls of a proof together. Drivers compile late, at the first use, so a first call may take what a later one may not.
    pub proof: Duration,
}

/// Which device is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdapterChoice {
    /// The strongest there is: discrete, integrated, virtual, else software.
    #[default]
    Any,
    /// Any but one in software.
    Hardware,
    /// One in software, for tests.
    Software,
}

/// What kind of device an adapter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the processor's memory.
    Integrated,
    /// A GPU lent by a virtual machine's host.
    Virtual,
    /// The processor itself.
    Software,
    /// None of these.
    Other,
}

/// The device in use, as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The device's name.
    pub name: String,
    /// The driver's name and version.
    pub driver: String,
    /// What it is.
    pub kind: AdapterKind,
    /// Largest binding of a storage buffer in bytes, as granted.
    pub binding_bytes: u64,
    /// Largest buffer in bytes, as granted.
    pub buffer_bytes: u64,
}

impl Adapter {
    /// Before one is known.
    pub(crate) fn none() -> Self {
        Adapter {
            name: String::new(),
            driver: String::new(),
            kind: AdapterKind::Other,
            binding_bytes: 0,
            buffer_bytes: 0,
        }
    }
}

impl Default for GpuOptions {
    fn default() -> Self {
        GpuOptions {
            program: None,
            adapter: AdapterChoice::Any,
            deadlines: Deadlines::default(),
            memory_bytes: None,
            binding_bytes: None,
            backoff: Duration::from_secs(1),
            quarantine_after: 3,
            history: Arc::new(MemoryHistory::default()),
        }
    }
}

impl Default for Deadlines {
    /// A minute to start and to compile, two to prove, ten seconds for a call as in the sandbox, thirty for a load.
    fn default() -> Self {
        Deadlines {
            start: Duration::from_secs(60),
            shader: Duration::from_secs(60),
            load: Duration::from_secs(30),
            call: Duration::from_secs(10),
            proof: Duration::from_secs(120),
        }
    }
}

impl fmt::Debug for GpuOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuOptions")
            .field("program", &self.program)
            .field("adapter", &self.adapter)
            .field("deadlines", &self.deadlines)
            .field("memory_bytes", &self.memory_bytes)
            .field("binding_bytes", &self.binding_bytes)
            .field("backoff", &self.backoff)
            .field("quarantine_after", &self.quarantine_after)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for AdapterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AdapterKind::Discrete => "discrete GPU",
            AdapterKind::Integrated => "integrated GPU",
            AdapterKind::Virtual => "virtual GPU",
            AdapterKind::Software => "software",
            AdapterKind::Other => "other",
        })
    }
}

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.kind, self.driver)
    }
}
