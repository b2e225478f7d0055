//! A holder without the link crate: frames made by hand.

use futures_util::{SinkExt as _, StreamExt as _};
use kvasir_link::{Accepted, HubLink, LinkOptions, fresh_nonce, unix_now};
use kvasir_wire::frame::{HUB_STREAM, Header, Kind, frames};
use kvasir_wire::handshake::{Features, HolderHandshake, Purpose};
use kvasir_wire::key::SecretKey;
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::ticket::Role;
use tokio::io::DuplexStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::parties::*;

/// A worker without the link crate.
pub struct RawHolder {
    socket: WebSocketStream<DuplexStream>,
    sequence: u32,
}

impl RawHolder {
    /// One that has proved its key, and the hub's end.
    pub async fn greeted(
        purpose: Purpose,
        features: Features,
        key: &SecretKey,
    ) -> (RawHolder, Accepted<DuplexStream>) {
        let (socket, server) = sockets(32 * 1024).await;
        let mut holder = RawHolder { socket, sequence: 0 };
        let (ticket, nonce) = (ticket(Role::Worker, key), fresh_nonce().unwrap());
        let (state, hello) =
            HolderHandshake::start(&ticket, key, purpose, features, nonce, unix_now()).unwrap();
        let greeting = async {
            holder.send(Kind::Hello, &hello).await;
            let challenge = holder.receive(Kind::Challenge).await;
            let (_, proof) = state.challenge(&challenge, key).unwrap();
            holder.send(Kind::Proof, &proof).await;
        };
        let options = LinkOptions { bulk_connection: true, ..LinkOptions::default() };
        let (accepted, ()) = tokio::join!(accept_for_test(server, Role::Worker, &options), greeting);
        (holder, accepted.unwrap())
    }

    /// One on a link in a session, with the payload of its welcome.
    pub async fn admitted(features: Features, key: &SecretKey) -> (RawHolder, HubLink, Vec<u8>) {
        let (mut holder, accepted) = RawHolder::greeted(worker_purpose(), features, key).await;
        let link = accepted.admit().unwrap();
        let welcome = holder.receive(Kind::Welcome).await;
        (holder, link, welcome)
    }

    pub async fn send(&mut self, kind: Kind, payload: &[u8]) {
        let frame = self.frame(kind, payload);
        self.socket.send(Message::Binary(frame.into())).await.unwrap();
    }

    /// The same payload so many times, in one message.
    pub async fn send_together(&mut self, count: usize, kind: Kind, payload: &[u8]) {
        let frames: Vec<Vec<u8>> = (0..count).map(|_| self.frame(kind, payload)).collect();
        self.socket.send(Message::Binary(frames.concat().into())).await.unwrap();
    }

    /// One of WebSocket's own pings, up to its answer.
    pub async fn websocket_ping(&mut self) {
        self.socket.send(Message::Ping(Bytes::new())).await.unwrap();
        let answer = self.socket.next().await.unwrap().unwrap();
        assert!(matches!(answer, Message::Pong(_)), "{answer:?}");
    }

    fn frame(&mut self, kind: Kind, payload: &[u8]) -> Vec<u8> {
        let (length, sequence) = (payload.len() as u32, self.sequence);
        let header = Header { kind, more: false, length, stream: HUB_STREAM, sequence };
        self.sequence += 1;
        [header.encode().as_slice(), payload].concat()
    }

    /// The first payload of the next message, which is of this kind.
    pub async fn receive(&mut self, kind: Kind) -> Vec<u8> {
        let bytes = self.message().await;
        let frame = frames(&bytes).unwrap().next().unwrap().unwrap();
        assert_eq!(frame.header.kind, kind);
        frame.payload.to_vec()
    }

    /// The next message.
    pub async fn message(&mut self) -> Bytes {
        match self.socket.next().await.unwrap().unwrap() {
            Message::Binary(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    /// Why it is refused; it goes then.
    pub async fn refused(mut self) -> RefusalCode {
        Refusal::decode(&self.receive(Kind::Refuse).await).unwrap().code
    }
}
