//! The hub's door: one HTTP request head, then the link handshake, under one deadline.
//!
//! What comes out is a link whose holder has proved the key of a ticket that is good here. Everything else was told why,
//! as an HTTP refusal before the upgrade and as a `refuse` frame after it.

use kvasir_link::{
    Accepted, BACKBONE_PATH, Fragments, LinkError, LinkOptions, Paced, SUBPROTOCOL, WORKER_PATH, accept,
    fresh_nonce, unix_now, websocket_config,
};
use kvasir_wire::{
    handshake::HubIdentity,
    ticket::{Role, Ticket},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::derive_accept_key, protocol::Role as WebSocketRole},
};

use crate::{
    http_head::{HeadError, RequestHead},
    http_refusal::HttpRefusal,
    operations::{READY_PATH, STATUS_PATH},
    ticket_check,
};

const PATHS: [&str; 4] = [WORKER_PATH, BACKBONE_PATH, READY_PATH, STATUS_PATH];

/// A connection that was upgraded. Small fragments of messages have the pace of a link there.
pub type Upgraded = Paced<TcpStream, Fragments>;

/// What a connection turned out to be.
pub enum Visit {
    /// A holder that proved its key; the hub has still to admit it.
    Link(Box<Accepted<Upgraded>>),
    /// Someone asks whether the hub takes connections; the answer is the caller's to write.
    Ready(TcpStream),
    /// Someone asks for the status report.
    Status(TcpStream),
}

/// Why a connection came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// Refused before the upgrade; told.
    #[error("{0}")]
    Refused(HttpRefusal),
    /// No request head.
    #[error("{0}")]
    Head(HeadError),
    /// The handshake failed; a holder at fault was told.
    #[error("in the handshake: {0}")]
    Link(#[from] LinkError),
    /// The connection failed.
    #[error("{0}")]
    Stream(#[from] std::io::Error),
}

impl DoorError {
    /// A word for programs: the code of a refusal, the hub's or the holder's, else `handshake`.
    pub fn code(&self) -> &'static str {
        match self {
            DoorError::Refused(refusal) => refusal.code(),
            DoorError::Link(LinkError::RefusedPeer(refusal) | LinkError::Refused(refusal)) => {
                refusal.code.name()
            }
            DoorError::Head(_) | DoorError::Link(_) | DoorError::Stream(_) => "handshake",
        }
    }
}

/// Takes one connection through the door.
pub async fn enter(
    mut stream: TcpStream,
    identity: &HubIdentity,
    options: &LinkOptions,
) -> Result<Visit, DoorError> {
    stream.set_nodelay(true)?;
    let head = match RequestHead::read(&mut stream).await {
        Ok(head) => head,
        Err(HeadError::Refused(refusal)) => {
            stream.write_all(&refusal.to_response()).await?;
            stream.shutdown().await?;
            return Err(DoorError::Refused(refusal));
        }
        Err(error) => return Err(DoorError::Head(error)),
    };
    match head.path() {
        READY_PATH => return Ok(Visit::Ready(stream)),
        STATUS_PATH => return Ok(Visit::Status(stream)),
        _ => {}
    }
    let (answer_key, ticket, role) = match check_head(&head, identity) {
        Ok(checked) => checked,
        Err(refusal) => {
            stream.write_all(&refusal.to_response()).await?;
            stream.shutdown().await?;
            return Err(DoorError::Refused(refusal));
        }
    };
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {answer_key}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await?;
    let rest = head.rest().to_vec();
    let stream = Upgraded::new(stream, &rest);
    let socket =
        WebSocketStream::from_partially_read(stream, rest, WebSocketRole::Server, Some(websocket_config()))
            .await;
    let accepted = accept(socket, identity, role, Some(&ticket), fresh_nonce()?, options).await?;
    Ok(Visit::Link(Box::new(accepted)))
}

fn check_head(head: &RequestHead, identity: &HubIdentity) -> Result<(String, Ticket, Role), HttpRefusal> {
    head.check_route(&PATHS)?;
    let answer_key = derive_accept_key(head.check_upgrade()?);
    let role = if head.path() == WORKER_PATH { Role::Worker } else { Role::Backbone };
    let hub = identity.key.public();
    let ticket =
        ticket_check::at_hub(head.bearer()?, &hub, &identity.edge, &identity.network, unix_now(), role)?;
    Ok((answer_key, ticket, role))
}
