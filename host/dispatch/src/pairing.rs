//! From the hub's `pair` to a session: dial, be admitted, sign the transcript, check the worker's signature, grant,
//! assign.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use kvasir_link::{LinkError, connect_backbone};
use kvasir_wire::account::{AccountError, Grant, Statement as _};
use kvasir_wire::frame::{HUB_STREAM, Kind};
use kvasir_wire::handshake::{Features, Purpose};
use kvasir_wire::id::ModelDigest;
use kvasir_wire::money::{MAX_NUMBER, MeteredBytes};
use kvasir_wire::note::{NetworkName, Note, NoteError};
use kvasir_wire::pairing::{Expectation, PairRequest};
use kvasir_wire::receipt::{ReceiptKeys, Terms};
use kvasir_wire::refusal::{Refusal, RefusalCode};

use crate::books::Books;
use crate::control::link_options;
use crate::placement::ExpertAddress;
use crate::serve_blobs::{BlobServer, assignment};
use crate::session::Session;
use crate::session_task::SessionTask;
use crate::swarm::Shared;

/// Dials the data link of a session and serves it to its end.
pub(crate) async fn dial(shared: Arc<Shared>, request: PairRequest, slot: usize, share: Vec<ExpertAddress>) {
    let session = request.session;
    match pair(&shared, request, slot, share).await {
        Ok(task) => task.run().await,
        Err(error) => {
            tracing::warn!(session = %session.short(), %error, "pairing came to nothing");
            shared.release(slot, session.0, format!("pairing in session {}: {error}", session.short()));
        }
    }
}

async fn pair(
    shared: &Arc<Shared>,
    request: PairRequest,
    slot: usize,
    share: Vec<ExpertAddress>,
) -> Result<SessionTask, LinkError> {
    let options = &shared.options;
    let (ticket, key) = (&options.ticket, &options.key);
    let purpose = Purpose::Session(request.session);
    // The link packs every bulk frame alone, so the hub may send the worker's over a connection of their own.
    let features = Features::RESUME.with(Features::BULK_CONNECTION);
    let connected =
        connect_backbone(&options.hub, ticket, key, purpose, features, &link_options(shared)).await?;
    let expectation = Expectation {
        plugins: if options.plugins.contains(&request.plugin) { vec![request.plugin] } else { Vec::new() },
        model: Some(ModelDigest(shared.model_digest)),
        class: Some(request.class),
        peer: Some(request.worker),
        session: Some(request.session),
    };
    let within = options.connect_timeout;
    let link = tokio::time::timeout(within, connected.pair(key, &expectation))
        .await
        .map_err(|_| LinkError::TimedOut { what: "the pairing with the worker", within })??;

    let refuse = |error: String, what_to_do: &str| {
        let refusal = Refusal::new(RefusalCode::Internal, error, what_to_do).about(request.session);
        link.sender.refuse(refusal.clone());
        LinkError::RefusedPeer(refusal)
    };
    let (note, terms) = grant(shared, &request)
        .map_err(|error| refuse(error.to_string(), "check the backbone's clock and options"))?;
    link.sender.send(Kind::Grant, HUB_STREAM, note.to_string().into_bytes()).await?;

    let share = fitting(shared, share, request.memory_bytes);
    let assigned = assignment(&shared.model, &share)
        .map_err(|error| refuse(error.to_string(), "check the backbone's model file"))?;
    let keys = ReceiptKeys { hub: ticket.claims().hub, worker: request.worker, backbone: key.public() };
    let session = Arc::new(Session::new(&request, slot, link.sender.clone()));
    let blobs = BlobServer::start(Arc::clone(&shared.model), Arc::clone(&session));
    session.assign(assigned);
    if !shared.take_seat(&session) {
        return Err(refuse("this backbone is ending".to_owned(), "connect again to meet another"));
    }
    tracing::info!(
        session = %request.session.short(), worker = %request.worker, experts = share.len(), "session began"
    );
    Ok(SessionTask {
        shared: Arc::clone(shared),
        session,
        receiver: link.receiver,
        books: Books::new(terms, keys, Arc::clone(&shared.wrong)),
        key: key.clone(),
        blobs,
        pending_cut: None,
        patience: None,
    })
}

#[derive(Debug, thiserror::Error)]
enum GrantError {
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error(transparent)]
    Note(#[from] NoteError),
}

/// The session's grant, signed, and the terms that all of its receipts repeat.
fn grant(shared: &Shared, request: &PairRequest) -> Result<(Note, Terms), GrantError> {
    let options = &shared.options;
    let claims = options.ticket.claims();
    let network: NetworkName = claims.network.parse()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let bytes = MeteredBytes::new(options.grant.bytes.min(MAX_NUMBER)).unwrap_or(MeteredBytes::MAX);
    let grant = Grant {
        network: network.clone(),
        session: Some(request.session),
        hub: claims.hub.digest(),
        worker: Some(request.worker.digest()),
        backbone: options.key.public(),
        price: request.price,
        bytes,
        // The hub's clock may be behind this one.
        from: now.saturating_sub(kvasir_wire::limits::CLOCK_SKEW_SECONDS),
        until: now.saturating_add(options.grant.lasts.as_secs()).min(MAX_NUMBER),
    };
    let note = grant.sign(&options.key)?;
    let terms = Terms {
        network,
        session: request.session,
        grant: note.leaf_hash(),
        hub: grant.hub,
        worker: request.worker.digest(),
        backbone: options.key.public().digest(),
        payee: request.payee,
        model: ModelDigest(shared.model_digest),
        plugin: request.plugin,
        // In the expectation, so in the transcript.
        class: request.class,
        price: request.price,
        from: 0,
    };
    Ok((note, terms))
}

/// As many experts of a share as the worker offers memory for, in order; the rest stays here.
fn fitting(shared: &Shared, share: Vec<ExpertAddress>, memory_bytes: u64) -> Vec<ExpertAddress> {
    let mut left = memory_bytes;
    let mut fits = Vec::with_capacity(share.len());
    for address in share {
        let bytes = shared.blob_bytes(address);
        if bytes > left {
            break;
        }
        left -= bytes;
        fits.push(address);
    }
    fits
}
