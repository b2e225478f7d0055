//! Backbones at the hub: the control link, on which workers are offered, and the data links that they dial in answer.

use kvasir_link::{Accepted, HubLink, Incoming};
use kvasir_wire::{
    frame::Kind,
    handshake::BackboneOffer,
    id::SessionId,
    message::Report,
    refusal::{Refusal, RefusalCode},
    ticket::Role,
};

use super::{
    Hub,
    door::Upgraded,
    meter::RoundTrip,
    pairing::{restarting, unexpected},
    session::LINGER,
};
use crate::stop::Stop;

/// Serves a backbone's control link until it ends.
pub(super) async fn serve_control(hub: &Hub, mut link: HubLink, offer: BackboneOffer, mut stop: Stop) {
    let key = link.admission.holder;
    tracing::info!(backbone = %key, model = %offer.model, "backbone connected");
    let round_trip = RoundTrip::watch(&link.sender, Role::Backbone, hub);
    let number = hub.registry.add_control(&link.admission, offer, link.sender.clone(), round_trip);
    let why = loop {
        let incoming = tokio::select! {
            biased;
            () = stop.stopped() => {
                let _ = link.sender.send(Kind::Drain, restarting().encode());
                link.sender.close();
                break "the hub stops".to_owned();
            }
            incoming = link.receiver.next() => incoming,
        };
        let refusal = match incoming {
            Err(error) => break error.to_string(),
            Ok(Incoming::Relay(_)) => unexpected("a message for a worker"),
            Ok(Incoming::Own(payload)) => match payload.kind {
                Kind::Refuse => match Refusal::decode(&payload.bytes) {
                    Ok(refusal) => {
                        // One that comes too late is about an offer that is forgotten.
                        if let Some(session) = refusal.session {
                            hub.registry.decline(session, &key, refusal);
                        }
                        continue;
                    }
                    Err(error) => error.into(),
                },
                Kind::Report => match Report::decode(&payload.bytes) {
                    Ok(report) => {
                        tracing::warn!(backbone = %key, session = %report.session.short(), "report: {}", report.sentence);
                        continue;
                    }
                    Err(error) => error.into(),
                },
                Kind::Drain => {
                    link.sender.close();
                    break "it asked to leave".to_owned();
                }
                other => unexpected(other.name()),
            },
        };
        let why = refusal.to_string();
        link.sender.refuse(refusal);
        break why;
    };
    hub.registry.remove_control(number);
    tracing::info!(backbone = %key, why, "backbone left");
    link.receiver.linger(LINGER).await;
}

/// Hands a data link to the worker's task that waits for it, or sends it away.
pub(super) async fn serve_data_link(hub: &Hub, accepted: Accepted<Upgraded>, session: SessionId) {
    let key = accepted.admission.holder;
    let answer = match hub.registry.claim(session, &key) {
        Ok(answer) => answer,
        Err(refusal) => {
            hub.note_refusal(key.to_string(), &refusal);
            let error = accepted.refuse(refusal).await;
            tracing::info!(backbone = %key, session = %session.short(), "data link not taken: {error}");
            return;
        }
    };
    let link = match accepted.admit() {
        Ok(link) => link,
        Err(error) => {
            let sentence = format!("the data link ended at once: {error}");
            let _ = answer.send(Err(Refusal::new(RefusalCode::PeerLost, sentence, "connect again")));
            return;
        }
    };
    if let Err(Ok(link)) = answer.send(Ok(link)) {
        let sentence = "the worker went away while the data link was dialled";
        link.sender.refuse(Refusal::new(RefusalCode::PeerLost, sentence, "wait for the hub's next offer"));
        link.receiver.linger(LINGER).await;
    }
}
