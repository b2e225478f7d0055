//! The control link: the hub tells of workers, this side dials a data link for each that it wants.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_link::{Backoff, Connected, LinkError, LinkOptions, SessionNumbers, connect_backbone};
use kvasir_wire::frame::{HUB_STREAM, Kind};
use kvasir_wire::handshake::{BackboneOffer, Features, Purpose};
use kvasir_wire::id::ModelDigest;
use kvasir_wire::pairing::PairRequest;
use kvasir_wire::refusal::{Refusal, RefusalCode};

use crate::options::SwarmError;
use crate::pairing;
use crate::swarm::Shared;

/// Dials the control link, once.
pub(crate) async fn connect(shared: &Shared) -> Result<Connected, SwarmError> {
    let hub = shared.options.hub.clone();
    dial(shared).await.map_err(|error| match error {
        LinkError::Refused(refusal) | LinkError::RefusedPeer(refusal) => SwarmError::Refused { hub, refusal },
        error => SwarmError::Unreachable { hub, reason: error.to_string() },
    })
}

/// Serves the control link, and dials it again when it is lost, until the swarm ends or the hub refuses for good.
/// Sessions live on links of their own and outlast it.
pub(crate) async fn run(shared: Arc<Shared>, mut link: Connected) {
    let mut backoff = Backoff::new();
    loop {
        let begun = Instant::now();
        let mut error = serve(&shared, &mut link).await;
        backoff.lasted(begun.elapsed());
        loop {
            if shared.is_closing() {
                return;
            }
            let for_good = error.is_permanent();
            shared.control_trouble(format!("control link to {}: {error}", shared.options.hub), for_good);
            if for_good {
                tracing::error!(%error, "the hub refuses this backbone; no further workers will join");
                return;
            }
            let asked = error.retry_after().map(|seconds| Duration::from_secs(seconds.into()));
            let wait = backoff.next_wait(random(), asked);
            tracing::warn!(%error, ?wait, "control link lost");
            tokio::time::sleep(wait).await;
            match dial(&shared).await {
                Ok(connected) => {
                    link = connected;
                    break;
                }
                Err(again) => error = again,
            }
        }
    }
}

/// Deadlines of this swarm's links.
pub(crate) fn link_options(shared: &Shared) -> LinkOptions {
    let within = shared.options.connect_timeout;
    LinkOptions { connect: within, handshake: within, pairing: within, ..LinkOptions::default() }
}

async fn dial(shared: &Shared) -> Result<Connected, LinkError> {
    let options = &shared.options;
    let purpose = Purpose::Control(BackboneOffer {
        model: ModelDigest(shared.model_digest),
        plugins: options.plugins.clone(),
        formats: shared.formats.clone(),
        accepts: options.accepts,
    });
    connect_backbone(
        &options.hub,
        &options.ticket,
        &options.key,
        purpose,
        Features::NONE,
        &link_options(shared),
    )
    .await
}

async fn serve(shared: &Arc<Shared>, link: &mut Connected) -> LinkError {
    loop {
        let payload = match link.receiver.recv().await {
            Ok(payload) => payload,
            Err(error) => return error,
        };
        match payload.kind {
            Kind::Pair => match PairRequest::decode(&payload.bytes) {
                Ok(request) => consider(shared, link, request).await,
                Err(error) => {
                    let refusal = Refusal::from(error);
                    link.sender.refuse(refusal.clone());
                    return LinkError::RefusedPeer(refusal);
                }
            },
            Kind::Refuse => match Refusal::decode(&payload.bytes) {
                Ok(refusal) => shared.control_trouble(format!("the hub {refusal}"), false),
                Err(error) => return LinkError::BadPayload { kind: Kind::Refuse, error },
            },
            Kind::Drain => tracing::info!("the hub stops; sessions go on until it closes them"),
            other => tracing::debug!(kind = other.name(), "ignored on the control link"),
        }
    }
}

/// Takes the worker if a slot is free and it can compute what is given away; else says why not.
async fn consider(shared: &Arc<Shared>, link: &Connected, request: PairRequest) {
    let missing = shared.formats.iter().find(|format| !request.formats.contains(format));
    let declined = if let Some(format) = missing {
        Err(Refusal::new(
            RefusalCode::NothingInCommon,
            format!(
                "the model's experts hold tensors of GGUF format {format}, which the worker's kernels do not take"
            ),
            "run the worker with a plugin that takes this format",
        ))
    } else if let Some(why) = shared.quarantined(&request.worker) {
        Err(Refusal::new(
            RefusalCode::WrongResult,
            format!("this backbone asks the worker nothing more: {why}"),
            "have the machine's memory and the kernel looked at (kvasir plugin test); another backbone may take it",
        ))
    } else if !shared.options.accepts.accepts(request.class) {
        // The hub should not have asked: what this side told it is not what it goes by.
        Err(Refusal::new(
            RefusalCode::ClassNotAccepted,
            format!(
                "the worker's results are of class {}, this backbone accepts class {} alone",
                request.class.name(),
                shared.options.accepts.name()
            ),
            "run the worker on the CPU (kvasir worker --device cpu), or let the backbone accept the class (kvasir run \
             --accept tolerance)",
        ))
    } else if shared.numbers.has(request.session) {
        // Under a number that was declined nothing was signed: it may come again.
        Err(SessionNumbers::refusal(request.session))
    } else {
        let (session, memory) = (request.session.0, request.memory_bytes);
        let place = shared.reserve(session, &request.worker, request.plugin, memory).ok_or_else(|| {
            let sentence = format!("all {} places of this backbone are taken", shared.options.workers);
            Refusal::new(
                RefusalCode::Declined,
                sentence,
                "wait until one is free, or raise the backbone's number of workers",
            )
            .retry_after(RETRY_SECONDS)
        });
        if place.is_ok() {
            shared.numbers.begin(request.session);
        }
        place
    };
    match declined {
        Ok((slot, share)) => {
            tokio::spawn(pairing::dial(Arc::clone(shared), request, slot, share));
        }
        Err(refusal) => {
            // Who found no place is offered again every few seconds.
            if refusal.code == RefusalCode::Declined {
                tracing::debug!(worker = %request.worker, %refusal, "declined a worker");
            } else {
                tracing::info!(worker = %request.worker, %refusal, "declined a worker");
            }
            let refusal = refusal.about(request.session);
            if let Err(error) = link.sender.send(Kind::Refuse, HUB_STREAM, refusal.encode()).await {
                tracing::debug!(%error, "the refusal did not reach the hub");
            }
        }
    }
}

/// After which a declined worker may ask again.
const RETRY_SECONDS: u32 = 5;

/// A number for jitter. Without randomness the waits are merely not spread.
fn random() -> u64 {
    getrandom::u64().unwrap_or(u64::MAX / 2)
}
