//! A hostile peer's connections, and a worker's link of which every byte is made by hand: no rule is kept that is not to be.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::{Context as _, ensure};
use futures_util::{SinkExt as _, StreamExt as _};
use kvasir_link::{SUBPROTOCOL, WORKER_PATH, fresh_nonce, unix_now};
use kvasir_wire::frame::{HUB_STREAM, Header, Kind, frames};
use kvasir_wire::handshake::{Features, HolderHandshake, Purpose};
use kvasir_wire::limits::{HEADER_BYTES, MAX_MESSAGE_BYTES};
use kvasir_wire::message::Ping;
use kvasir_wire::ticket::Role;
use rustls_pki_types::ServerName;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest as _};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::abuse::Did;
use crate::holders::{client_hello, client_tls, one_of_many, ticket, worker_offer};
use crate::parties::{EDGE_PORT, NETWORK, authority};

/// First byte of a WebSocket frame that is a whole binary message.
const BINARY: u8 = 0x82;

/// The edge that is attacked, the addresses that attackers have, and what they did.
pub struct Target {
    edge: SocketAddr,
    name: ServerName<'static>,
    tls: TlsConnector,
    client_hello: Vec<u8>,
    from: Vec<IpAddr>,
    next: AtomicUsize,
    connections: AtomicU64,
    admitted: AtomicU64,
    bytes: AtomicU64,
}

impl Target {
    /// The edge at `address`, whose certificate lies in `folder`. `from` must not be empty.
    pub fn new(address: IpAddr, folder: &Path, from: Vec<IpAddr>) -> anyhow::Result<Target> {
        ensure!(!from.is_empty(), "attackers need an address");
        let config = client_tls(&authority(folder)?)?;
        let name = ServerName::from(address);
        let client_hello = client_hello(&config, name.clone())?;
        Ok(Target {
            edge: SocketAddr::new(address, EDGE_PORT),
            name,
            tls: TlsConnector::from(config),
            client_hello,
            from,
            next: AtomicUsize::new(0),
            connections: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// A connection from the next of the addresses.
    pub async fn dial(&self) -> std::io::Result<TcpStream> {
        self.dial_as(self.next.fetch_add(1, Ordering::Relaxed)).await
    }

    /// A connection from one of the addresses: there are fewer of them than numbers.
    async fn dial_as(&self, number: usize) -> std::io::Result<TcpStream> {
        let from = self.from[number % self.from.len()];
        let socket = if from.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.bind(SocketAddr::new(from, 0))?;
        let stream = socket.connect(self.edge).await?;
        stream.set_nodelay(true)?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(stream)
    }

    /// A TLS handshake to its end.
    pub async fn protect(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        self.tls.connect(self.name.clone(), stream).await
    }

    /// A whole ClientHello.
    pub fn client_hello(&self) -> &[u8] {
        &self.client_hello
    }

    /// Counts what an admitted attacker has sent.
    pub fn has_sent(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// What there was so far.
    pub fn did(&self) -> Did {
        Did {
            connections: self.connections.load(Ordering::Relaxed),
            admitted: self.admitted.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// The link of a worker with a ticket, through the edge.
pub struct HostileLink {
    socket: WebSocketStream<TlsStream<TcpStream>>,
    /// Of the next frame to the hub.
    sequence: u32,
    pings: u64,
}

impl HostileLink {
    /// Up to the hub's welcome. Each `number` has a key, and an address, of its own.
    pub async fn admitted(target: &Target, number: usize) -> anyhow::Result<HostileLink> {
        let key = one_of_many(number as u64);
        let ticket = ticket(NETWORK, Role::Worker, &key)?;
        let stream = target.protect(target.dial_as(number).await?).await?;
        let mut request = format!("wss://{}{WORKER_PATH}", target.edge).into_client_request()?;
        let headers = request.headers_mut();
        headers.insert("Sec-WebSocket-Protocol", SUBPROTOCOL.parse()?);
        headers.insert("Authorization", format!("Bearer {}", ticket.to_text()).parse()?);
        let (socket, _) = client_async(request, stream).await?;
        let mut link = HostileLink { socket, sequence: 0, pings: 0 };
        let purpose = Purpose::Worker(worker_offer());
        let (handshake, hello) =
            HolderHandshake::start(&ticket, &key, purpose, Features::NONE, fresh_nonce()?, unix_now())?;
        link.send(Kind::Hello, &hello).await?;
        let challenge = link.receive(Kind::Challenge).await?;
        let (_, proof) = handshake.challenge(&challenge, &key)?;
        link.send(Kind::Proof, &proof).await?;
        link.receive(Kind::Welcome).await?;
        target.admitted.fetch_add(1, Ordering::Relaxed);
        Ok(link)
    }

    async fn send(&mut self, kind: Kind, payload: &[u8]) -> anyhow::Result<()> {
        let frame = self.frame(kind, payload);
        Ok(self.socket.send(Message::Binary(frame.into())).await?)
    }

    /// One frame on the hub's stream.
    fn frame(&mut self, kind: Kind, payload: &[u8]) -> Vec<u8> {
        let (length, sequence) = (payload.len() as u32, self.sequence);
        self.sequence = sequence.wrapping_add(1);
        let header = Header { kind, more: false, length, stream: HUB_STREAM, sequence };
        [header.encode().as_slice(), payload].concat()
    }

    /// The payload of this kind that comes next, behind pings.
    async fn receive(&mut self, kind: Kind) -> anyhow::Result<Vec<u8>> {
        loop {
            let message = self.socket.next().await.context("the link ended")??;
            let Message::Binary(bytes) = message else { continue };
            let frame = frames(&bytes)?.next().context("a message without a frame")??;
            let found = frame.header.kind;
            if found != Kind::Ping {
                ensure!(found == kind, "a {} came, not a {}", found.name(), kind.name());
                return Ok(frame.payload.to_vec());
            }
        }
    }

    /// A message full of pings, as bytes for [`HostileLink::send_unread`].
    pub fn pings(&mut self) -> Vec<u8> {
        let mut message = Vec::with_capacity(MAX_MESSAGE_BYTES);
        loop {
            let ping = Ping { number: self.pings }.encode();
            if message.len() + HEADER_BYTES + ping.len() > MAX_MESSAGE_BYTES {
                return websocket_frame(BINARY, &message);
            }
            message.extend(self.frame(Kind::Ping, &ping));
            self.pings += 1;
        }
    }

    /// Sends bytes as they are, and reads nothing, whatever comes.
    pub async fn send_unread(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let stream = self.socket.get_mut();
        stream.write_all(bytes).await?;
        stream.flush().await
    }

    /// Reads until the other side ends the link, by a close or otherwise.
    pub async fn ended(&mut self) {
        while let Some(Ok(message)) = self.socket.next().await {
            if message.is_close() {
                return;
            }
        }
    }
}

/// What a worker that has been admitted must not send, each enough to end its link.
pub fn broken_messages() -> Vec<Vec<u8>> {
    let header = Header { kind: Kind::Ping, more: false, length: 8, stream: HUB_STREAM, sequence: 2 };
    let ping = [header.encode().as_slice(), &[0_u8; 8]].concat();
    // Offsets of the header, by `kvasir_wire::frame`.
    let with = |place: usize, byte: u8| {
        let mut broken = ping.clone();
        broken[place] = byte;
        websocket_frame(BINARY, &broken)
    };
    vec![
        with(0, 200),                   // a kind that is none
        with(2, 1),                     // a ping on the lane of calls
        with(3, 9),                     // a version of frames that is none
        with(4, 200),                   // more bytes than come
        with(12, 77),                   // a number out of order
        websocket_frame(BINARY, b""),   // a message without a frame
        websocket_frame(0xf2, &ping),   // reserved bits of the WebSocket
        websocket_frame(0x83, &ping),   // an opcode that is none
        websocket_frame(0x81, b"text"), // a text message
        websocket_frame(BINARY, &vec![0; 1 + MAX_MESSAGE_BYTES]),
    ]
}

/// One WebSocket frame with a client's mask, of zeros, which changes nothing; `first` holds FIN, reserved bits and opcode.
fn websocket_frame(first: u8, payload: &[u8]) -> Vec<u8> {
    const MASKED: u8 = 0x80;
    let mut frame = match u16::try_from(payload.len()) {
        Ok(length @ 0..=125) => vec![first, MASKED | length as u8],
        Ok(length) => [[first, MASKED | 126], length.to_be_bytes()].concat(),
        Err(_) => [&[first, MASKED | 127][..], &(payload.len() as u64).to_be_bytes()].concat(),
    };
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}
