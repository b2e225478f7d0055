//! Another connection for a link at the hub, by holders whose frames are made by hand.

use futures_util::{SinkExt as _, StreamExt as _};
use kvasir_link::{Accepted, HubLink, Incoming, LinkError, LinkOptions, fresh_nonce, unix_now};
use kvasir_wire::frame::{HUB_STREAM, Header, Kind, frames};
use kvasir_wire::handshake::{Features, HolderHandshake, Purpose, Resumption};
use kvasir_wire::key::SecretKey;
use kvasir_wire::limits::MAX_REPLAY_BYTES;
use kvasir_wire::message::Ack;
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::ticket::Role;
use tokio::io::DuplexStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::parties::*;

/// A worker without the link crate.
struct RawHolder {
    socket: WebSocketStream<DuplexStream>,
    sequence: u32,
}

impl RawHolder {
    /// One that has proved its key, and the hub's end.
    async fn greeted(purpose: Purpose, key: &SecretKey) -> (RawHolder, Accepted<DuplexStream>) {
        let (socket, server) = sockets(32 * 1024).await;
        let mut holder = RawHolder { socket, sequence: 0 };
        let (ticket, nonce) = (ticket(Role::Worker, key), fresh_nonce().unwrap());
        let (state, hello) =
            HolderHandshake::start(&ticket, key, purpose, Features::RESUME, nonce, unix_now()).unwrap();
        let greeting = async {
            holder.send(Kind::Hello, &hello).await;
            let challenge = holder.receive(Kind::Challenge).await;
            let (_, proof) = state.challenge(&challenge, key).unwrap();
            holder.send(Kind::Proof, &proof).await;
        };
        let options = LinkOptions::default();
        let (accepted, ()) = tokio::join!(accept_for_test(server, Role::Worker, &options), greeting);
        (holder, accepted.unwrap())
    }

    /// One on a link in a session; it has the welcome.
    async fn in_session(key: &SecretKey) -> (RawHolder, HubLink) {
        let (mut holder, accepted) = RawHolder::greeted(worker_purpose(), key).await;
        let link = accepted.admit().unwrap();
        holder.receive(Kind::Welcome).await;
        (holder, link)
    }

    /// One that comes back and says that it has so many messages.
    async fn back(key: &SecretKey, received: u64) -> (RawHolder, Accepted<DuplexStream>) {
        let resumption = Resumption { role: Role::Worker, session: SESSION, received };
        RawHolder::greeted(Purpose::Resume(resumption), key).await
    }

    async fn send(&mut self, kind: Kind, payload: &[u8]) {
        let (length, sequence) = (payload.len() as u32, self.sequence);
        let header = Header { kind, more: false, length, stream: HUB_STREAM, sequence };
        self.sequence += 1;
        let bytes = [header.encode().as_slice(), payload].concat();
        self.socket.send(Message::Binary(bytes.into())).await.unwrap();
    }

    /// The first payload of the next message, which is of this kind.
    async fn receive(&mut self, kind: Kind) -> Vec<u8> {
        match self.socket.next().await.unwrap().unwrap() {
            Message::Binary(bytes) => {
                let frame = frames(&bytes).unwrap().next().unwrap().unwrap();
                assert_eq!(frame.header.kind, kind);
                frame.payload.to_vec()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Why it is refused; it goes then.
    async fn refused(mut self) -> RefusalCode {
        Refusal::decode(&self.receive(Kind::Refuse).await).unwrap().code
    }
}

#[tokio::test]
async fn a_holder_that_lacks_what_is_kept_no_longer_is_told_so_and_the_link_ends() {
    let worker = key(2);
    let (mut holder, mut link) = RawHolder::in_session(&worker).await;
    let resumer = link.resumable(SESSION).unwrap();
    // It reads all of that and acknowledges nothing.
    let mut read = 0;
    while read <= MAX_REPLAY_BYTES {
        link.sender.send(Kind::Receipt, vec![7; 10_000]).unwrap();
        read += holder.receive(Kind::Receipt).await.len();
    }
    let (late, accepted) = RawHolder::back(&worker, 1).await;
    let (resumed, refused) = tokio::join!(accepted.resume(&resumer, 1), late.refused());
    assert!(matches!(resumed, Err(LinkError::RefusedPeer(_))), "{resumed:?}");
    assert_eq!(refused, RefusalCode::UnknownSession);
    let ended = link.receiver.next().await.unwrap_err();
    assert!(matches!(ended, LinkError::Lost(_)), "{ended}");
}

#[tokio::test]
async fn a_holder_that_lacks_what_it_had_acknowledged_is_an_older_attempt_and_ends_nothing() {
    let worker = key(2);
    let (mut holder, mut link) = RawHolder::in_session(&worker).await;
    let resumer = link.resumable(SESSION).unwrap();
    link.sender.send(Kind::Receipt, vec![7; 100]).unwrap();
    holder.receive(Kind::Receipt).await;
    holder.send(Kind::Ack, &Ack { received: 2 }.encode()).await;
    holder.send(Kind::Countersign, &[7; 100]).await;
    assert!(matches!(link.receiver.next().await, Ok(Incoming::Own(_))), "and the ack before it");

    let (late, accepted) = RawHolder::back(&worker, 1).await;
    let (resumed, refused) = tokio::join!(accepted.resume(&resumer, 1), late.refused());
    assert!(resumed.is_err());
    assert_eq!(refused, RefusalCode::UnknownSession);
    link.sender.send(Kind::Receipt, vec![8; 100]).unwrap();
    assert_eq!(holder.receive(Kind::Receipt).await, [8; 100]);
}
