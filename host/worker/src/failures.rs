//! How often a plugin may fail on this machine, in the process of its kernel and in the GPU's.

use std::sync::Arc;

use kvasir_experts::{Device, FailureHistory, Isolation};
use kvasir_plugin::PluginDigest;

/// Where failures are counted, and how many are too many. Counted nowhere, none is.
#[derive(Clone, Default)]
pub(crate) struct FailureBounds {
    bounds: Vec<(Arc<dyn FailureHistory>, u32)>,
}

impl FailureBounds {
    /// What the two ways of running a kernel say.
    pub(crate) fn new(device: &Device, isolation: &Isolation) -> Self {
        let mut bounds = Vec::new();
        if let Device::Gpu(gpu) = device {
            bounds.push((Arc::clone(&gpu.history), gpu.quarantine_after));
        }
        if let Isolation::Process(kernel) = isolation {
            bounds.push((Arc::clone(&kernel.history), kernel.quarantine_after));
        }
        FailureBounds { bounds }
    }

    /// Whether failures are counted at all.
    pub(crate) fn exist(&self) -> bool {
        !self.bounds.is_empty()
    }

    /// How often a plugin failed that failed too often.
    pub(crate) fn exceeded(&self, plugin: PluginDigest) -> Option<u32> {
        let counts = self.bounds.iter().map(|(history, most)| (history.failures(plugin), *most));
        counts.filter(|(failures, most)| failures >= most).map(|(failures, _)| failures).max()
    }
}
