//! A worker's link without the link crate: frames by hand, rules broken on purpose.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do
#![allow(dead_code)] // each test binary uses a part of it

use std::collections::VecDeque;

use futures_util::{SinkExt as _, StreamExt as _};
use kvasir_wire::{
    frame::{FrameError, Header, Kind, frames},
    handshake::{Admission, Features, HolderHandshake, Purpose, Welcome},
    id::Nonce,
    key::SecretKey,
    pairing::EndPairing,
    refusal::Refusal,
    ticket::{Role, Ticket},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use super::scene::{Scene, now, patiently, worker_expectation, worker_purpose};

/// A link without the link crate: frames by hand, rules broken on purpose.
pub struct RawLink<S = TcpStream> {
    pub socket: WebSocketStream<S>,
    sequence: u32,
    /// What came in one message with a frame that was received before.
    waiting: VecDeque<(Kind, Vec<u8>)>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> RawLink<S> {
    /// The upgrade over a stream that is open already.
    pub async fn over(stream: S, path: &str, ticket: &Ticket) -> RawLink<S> {
        let mut request = format!("ws://localhost{path}").into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert("Sec-WebSocket-Protocol", "kvasir.v1".parse().unwrap());
        headers.insert("Authorization", format!("Bearer {}", ticket.to_text()).parse().unwrap());
        let (socket, _) = client_async(request, stream).await.unwrap();
        RawLink { socket, sequence: 0, waiting: VecDeque::new() }
    }

    /// One frame on stream 0.
    pub fn frame(&mut self, kind: Kind, payload: &[u8]) -> Vec<u8> {
        let header =
            Header { kind, more: false, length: payload.len() as u32, stream: 0, sequence: self.sequence };
        self.sequence += 1;
        [header.encode().as_slice(), payload].concat()
    }

    pub async fn send(&mut self, kind: Kind, payload: &[u8]) {
        let frame = self.frame(kind, payload);
        self.send_bytes(frame).await;
    }

    pub async fn send_bytes(&mut self, bytes: Vec<u8>) {
        self.socket.send(Message::Binary(bytes.into())).await.unwrap();
    }

    /// The next frame of the hub's, kind and payload; `None` at the end of the link. Pings and counts of messages are left out: when
    /// they come depends on the clock.
    pub async fn receive(&mut self) -> Option<(Kind, Vec<u8>)> {
        loop {
            if let Some(frame) = self.waiting.pop_front() {
                return Some(frame);
            }
            match patiently(self.socket.next()).await? {
                Ok(Message::Binary(bytes)) => {
                    let all = frames(&bytes).unwrap().map(Result::unwrap);
                    let said = all.filter(|frame| !matches!(frame.header.kind, Kind::Ping | Kind::Ack));
                    self.waiting.extend(said.map(|frame| (frame.header.kind, frame.payload.to_vec())));
                }
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The payload of this kind that comes next; what else comes is passed over.
    pub async fn awaited(&mut self, kind: Kind) -> Vec<u8> {
        loop {
            let (found, payload) = self.receive().await.expect("the link ended");
            if found == kind {
                return payload;
            }
        }
    }

    pub async fn expect(&mut self, kind: Kind) -> Vec<u8> {
        let (found, payload) = self.receive().await.expect("the link ended");
        assert_eq!(found, kind);
        payload
    }

    /// The refusal that comes next, behind anything else.
    pub async fn refusal(&mut self) -> Refusal {
        loop {
            let (kind, payload) = self.receive().await.expect("the link ended without a refusal");
            if kind == Kind::Refuse {
                return Refusal::decode(&payload).unwrap();
            }
        }
    }

    /// The handshake's hello; what answers the challenge.
    pub async fn hello(&mut self, ticket: &Ticket, key: &SecretKey, nonce: Nonce) -> HolderHandshake {
        self.hello_for(worker_purpose(), Features::NONE, ticket, key, nonce).await
    }

    /// The same for any purpose.
    pub async fn hello_for(
        &mut self,
        purpose: Purpose,
        features: Features,
        ticket: &Ticket,
        key: &SecretKey,
        nonce: Nonce,
    ) -> HolderHandshake {
        let (handshake, hello) =
            HolderHandshake::start(ticket, key, purpose, features, nonce, now()).unwrap();
        self.send(Kind::Hello, &hello).await;
        handshake
    }
}

impl RawLink {
    pub async fn dial(scene: &Scene, path: &str, ticket: &Ticket) -> RawLink {
        RawLink::over(TcpStream::connect(scene.hub).await.unwrap(), path, ticket).await
    }

    /// A worker's link up to the admission and, if a backbone comes, the session.
    pub async fn worker(scene: &Scene, key: &SecretKey) -> (RawLink, Admission) {
        let ticket = scene.ticket(Role::Worker, key);
        let mut link = RawLink::dial(scene, "/v1/worker", &ticket).await;
        let handshake = link.hello(&ticket, key, Nonce([1; 32])).await;
        let challenge = link.expect(Kind::Challenge).await;
        let (admission, proof) = handshake.challenge(&challenge, key).unwrap();
        link.send(Kind::Proof, &proof).await;
        let welcome = link.expect(Kind::Welcome).await;
        assert!(matches!(Welcome::decode(&welcome).unwrap(), Welcome::Admitted { .. }));
        (link, admission)
    }

    /// Signs the transcript and is welcomed.
    pub async fn pair(&mut self, key: &SecretKey, admission: &Admission) {
        let transcript = self.expect(Kind::Transcript).await;
        let (pairing, signature) =
            EndPairing::transcript(&transcript, admission, key, &worker_expectation()).unwrap();
        self.send(Kind::Sign, &signature).await;
        let welcome = self.expect(Kind::Welcome).await;
        pairing.welcome(&welcome).unwrap();
    }
}

/// A frame on any stream.
pub fn raw_frame(kind: Kind, stream: u32, sequence: u32, more: bool, payload: &[u8]) -> Vec<u8> {
    let header = Header { kind, more, length: payload.len() as u32, stream, sequence };
    [header.encode().as_slice(), payload].concat()
}

/// Whether a message would pass the frame walk, so that a test knows what it sends.
pub fn walks(message: &[u8]) -> Result<usize, FrameError> {
    frames(message)?.try_fold(0, |count, frame| frame.map(|_| count + 1))
}
