//! Ends that come back: another connection for a link of a session that goes on, and what the other end hears meanwhile. And a
//! second connection beside a worker's, for bulk.

use std::{convert::Infallible, sync::Arc, time::Duration};

use kvasir_link::{Accepted, HubResumer, HubSender};
use kvasir_wire::{
    frame::Kind,
    handshake::{BulkConnection, Resumption},
    id::SessionId,
    key::PublicKey,
    message::Pause,
    refusal::{Refusal, RefusalCode},
    ticket::Role,
};

use super::{Hub, door::Upgraded, meter::SessionMeter};

/// The links of a session whose ends may come back over another connection.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    pub(super) worker: HubResumer,
    pub(super) backbone: HubResumer,
    pub(super) meter: Arc<SessionMeter>,
    /// Whether the worker may open a second connection for bulk.
    pub(super) takes_bulk: bool,
}

impl Ends {
    fn link(&self, role: Role) -> &HubResumer {
        match role {
            Role::Worker => &self.worker,
            Role::Backbone => &self.backbone,
        }
    }
}

/// Hands a connection to the link that it is for, or sends it away.
pub(super) async fn serve(hub: &Hub, accepted: Accepted<Upgraded>, resumption: Resumption) {
    let Resumption { role, session, received } = resumption;
    let key = accepted.admission.holder;
    let ends = match ends_for(hub, session, role, &key) {
        Ok(ends) => ends,
        Err(refusal) => {
            hub.note_refusal(key.to_string(), &refusal);
            let error = accepted.refuse(refusal).await;
            tracing::info!(%role, %key, session = %session.short(), "not resumed: {error}");
            return;
        }
    };
    match accepted.resume(ends.link(role), received).await {
        Ok(()) => {
            ends.meter.resumed_by(role);
            tracing::info!(%role, %key, session = %session.short(), "session resumed");
        }
        Err(error) => tracing::info!(%role, %key, session = %session.short(), "not resumed: {error}"),
    }
}

/// Has a worker's bulk go over this connection, or sends it away.
pub(super) async fn carry_bulk(hub: &Hub, accepted: Accepted<Upgraded>, bulk: BulkConnection) {
    let BulkConnection { session, connection } = bulk;
    let key = accepted.admission.holder;
    let ends = match ends_for(hub, session, Role::Worker, &key).and_then(|ends| offered(ends, session)) {
        Ok(ends) => ends,
        Err(refusal) => {
            hub.note_refusal(key.to_string(), &refusal);
            let error = accepted.refuse(refusal).await;
            tracing::info!(%key, session = %session.short(), "no second connection: {error}");
            return;
        }
    };
    let taken = || {
        ends.meter.bulk_connection();
        tracing::info!(%key, session = %session.short(), connection, "a second connection for bulk");
    };
    match accepted.carry_bulk(&ends.worker, connection, taken).await {
        Ok(()) => tracing::info!(%key, session = %session.short(), connection, "it is over"),
        Err(error) => tracing::info!(%key, session = %session.short(), connection, "not taken: {error}"),
    }
}

fn offered(ends: Ends, session: SessionId) -> Result<Ends, Refusal> {
    if ends.takes_bulk {
        return Ok(ends);
    }
    Err(Refusal::new(
        RefusalCode::ProtocolError,
        format!("no second connection was offered for session {}", session.short()),
        "dial one only where the hub's welcome and the transcript offer it",
    ))
}

/// The ends of a session in which the holder of `key` has this role.
fn ends_for(hub: &Hub, session: SessionId, role: Role, key: &PublicKey) -> Result<Ends, Refusal> {
    hub.registry.resumable(session).filter(|ends| ends.link(role).holder == *key).ok_or_else(|| {
        Refusal::new(
            RefusalCode::UnknownSession,
            format!("session {} is over, or was never this key's", session.short()),
            "connect again for another session; the receipts of this one stay valid",
        )
    })
}

/// Tells the backbone when its worker's connection is gone and when there is another one, as long as the session lasts.
pub(super) async fn tell_pauses(
    session: SessionId,
    worker: &HubSender,
    backbone: &HubSender,
    wait: Duration,
) -> Infallible {
    let mut standing = worker.standing();
    let mut told = true;
    loop {
        let is_whole = standing.borrow_and_update().is_whole;
        if is_whole != told {
            told = is_whole;
            let for_ms = match is_whole {
                true => 0,
                false => u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).max(1),
            };
            tracing::info!(session = %session.short(), for_ms, "the worker's connection is gone, or (0) there is another");
            // A link that ends right now ends the session too.
            let _ = backbone.send(Kind::Pause, Pause { for_ms }.encode());
        }
        if standing.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}
