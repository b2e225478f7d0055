//! The operator's hand on a running worker: another plugin is to take over.

use std::sync::Arc;

use kvasir_experts::{KernelLimits, VerifiedPlugin};
use tokio::sync::watch;

/// Offers plugins to a running worker. Clones offer to the same one.
///
/// Nothing about an offer is trusted but its signature, which made it a [`VerifiedPlugin`]: the worker compiles it, proves it
/// on its golden vectors, lets it compute live calls beside the plugin in use, and only then opens sessions with it. An
/// upgrade and a rollback are the same to it.
#[derive(Debug, Clone)]
pub struct PluginSwitch(Arc<watch::Sender<Option<Offer>>>);

/// A plugin that is to take over, and what its kernels may use.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) plugin: VerifiedPlugin,
    pub(crate) limits: KernelLimits,
}

impl PluginSwitch {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::channel(None).0))
    }

    /// Offers a plugin, within these limits of each of its instances. The worker looks at the latest offer once it is done with an earlier one; that it is the plugin in
    /// use already is no error. What comes of it is told in events.
    pub fn offer(&self, plugin: VerifiedPlugin, limits: KernelLimits) {
        self.0.send_replace(Some(Offer { plugin, limits }));
    }

    pub(crate) fn offers(&self) -> watch::Receiver<Option<Offer>> {
        self.0.subscribe()
    }
}
