//! Whether a worker and a backbone fit: a plugin that both have and both tickets may allow, a tensor format in common, and
//! results of a class that the backbone accepts.

use kvasir_wire::{
    handshake::{Admission, BackboneOffer, WorkerOffer},
    id::PluginDigest,
    refusal::{Refusal, RefusalCode},
    ticket::TicketClaims,
};

/// Seconds after which a worker that fits no backbone may look again: another backbone may have come.
const RETRY_SECONDS: u32 = 60;

/// The first plugin of the backbone's list that the worker has too and that both tickets may allow.
pub(super) fn common_plugin(
    worker: &Admission,
    offer: &WorkerOffer,
    backbone: &Admission,
    wanted: &BackboneOffer,
) -> Result<PluginDigest, Refusal> {
    let common: Vec<&PluginDigest> =
        wanted.plugins.iter().filter(|plugin| offer.plugins.contains(plugin)).collect();
    if common.is_empty() {
        return Err(Refusal::new(
            RefusalCode::NothingInCommon,
            format!(
                "the worker runs the plugins {}, the backbone asks for {}",
                short_list(&offer.plugins),
                short_list(&wanted.plugins)
            ),
            "install a plugin on the worker that the backbone asks for",
        )
        .retry_after(RETRY_SECONDS));
    }
    if !wanted.formats.iter().any(|format| offer.formats.contains(format)) {
        return Err(Refusal::new(
            RefusalCode::NothingInCommon,
            format!(
                "the worker's kernels take the tensor formats {:?}, the model's experts are in {:?} (GGUF type numbers)",
                offer.formats, wanted.formats
            ),
            "run the worker with a plugin that takes these formats",
        )
        .retry_after(RETRY_SECONDS));
    }
    if !wanted.accepts.accepts(offer.class) {
        return Err(Refusal::new(
            RefusalCode::ClassNotAccepted,
            format!(
                "the worker's results are of class {}, the backbone accepts class {} alone",
                offer.class.name(),
                wanted.accepts.name()
            ),
            "run the worker on the CPU (kvasir worker --device cpu), or let the backbone accept the class (kvasir run \
             --accept tolerance)",
        )
        .retry_after(RETRY_SECONDS));
    }
    let allowed = |claims: &TicketClaims, plugin: &PluginDigest| claims.may_allow(plugin);
    let found = common
        .iter()
        .find(|plugin| allowed(worker.ticket.claims(), plugin) && allowed(backbone.ticket.claims(), plugin));
    found.map(|plugin| **plugin).ok_or_else(|| {
        Refusal::new(
            RefusalCode::PluginNotAllowed,
            format!("a ticket allows none of the plugins that both ends have: {}", short_list(&wanted.plugins)),
            "ask the operator for tickets that name the plugin or its publisher (kvasir-gateway ticket --plugin)",
        )
    })
}

/// A few digests, short, for a sentence.
fn short_list(plugins: &[PluginDigest]) -> String {
    let shown: Vec<String> =
        plugins.iter().take(4).map(|plugin| plugin.to_string()[..12].to_owned()).collect();
    match (shown.len(), plugins.len()) {
        (0, _) => "(none)".into(),
        (shown_count, all) if all > shown_count => {
            format!("{} and {} more", shown.join(", "), all - shown_count)
        }
        _ => shown.join(", "),
    }
}
