//! An edge between a TLS client on one side and a stand-in for the hub on the other.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do
#![allow(dead_code)] // each test binary uses a part of it

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use kvasir_gateway::{
    certificate::{self, Names},
    edge::{Certificates, Edge, EdgeControl, EdgeOptions, trusted::TrustedPeers},
    operations::Served,
    stop::{Stopper, switch},
};
use kvasir_wire::{
    id::WalletDigest,
    key::SecretKey,
    ticket::{EdgeKey, Role, Ticket, TicketClaims, TicketLimits},
};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::metric;

pub const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\n\r\n";

pub struct Rig {
    pub edge: SocketAddr,
    pub hub: TcpListener,
    pub tls: TlsConnector,
    pub served: Arc<dyn Served>,
    pub control: EdgeControl,
    pub stop: Stopper,
    pub run: JoinHandle<()>,
    pub hub_key: SecretKey,
    pub edge_key: EdgeKey,
    _folder: tempfile::TempDir,
}

impl Rig {
    pub async fn start(change: impl FnOnce(&mut EdgeOptions)) -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let names = Names::parse(&["localhost".into()]).unwrap();
        let files = certificate::make(folder.path(), &names, false).unwrap();
        let hub = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hub_address = hub.local_addr().unwrap().to_string();
        let mut options = EdgeOptions::new(([127, 0, 0, 1], 0).into(), hub_address, "atlas".into());
        change(&mut options);
        let edge_key = EdgeKey::from_bytes([4; 32]);
        let certificates = Certificates::load(&files.certificate, &files.key).unwrap();
        let edge = Edge::bind(options, edge_key.clone(), certificates).await.unwrap();
        let address = edge.address();
        let (stop, stopped) = switch();
        let (served, control) = (edge.served(stopped.clone()), edge.control());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&files.authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Rig {
            edge: address,
            hub,
            tls: TlsConnector::from(Arc::new(config)),
            served,
            control,
            stop,
            run: tokio::spawn(edge.run(stopped)),
            hub_key: SecretKey::from_seed([1; 32]),
            edge_key,
            _folder: folder,
        }
    }

    pub async fn dial(&self) -> TlsStream<TcpStream> {
        self.dial_behind(b"").await
    }

    /// Dials as a proxy that sends this before it passes the client's bytes on.
    pub async fn dial_behind(&self, proxy_header: &[u8]) -> TlsStream<TcpStream> {
        let mut stream = TcpStream::connect(self.edge).await.unwrap();
        stream.write_all(proxy_header).await.unwrap();
        self.tls.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    }

    pub fn ticket(&self, change: impl FnOnce(&mut TicketClaims)) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let mut claims = TicketClaims {
            network: "atlas".into(),
            role: Role::Worker,
            holder: SecretKey::from_seed([2; 32]).public(),
            hub: self.hub_key.public(),
            wallet: Some(WalletDigest([3; 32])),
            plugins: Vec::new(),
            publishers: Vec::new(),
            limits: TicketLimits::default(),
            issued: now - 1000,
            expires: now + 1000,
        };
        change(&mut claims);
        Ticket::issue(&claims, &self.hub_key, &self.edge_key).unwrap().to_text()
    }

    pub fn good_head(&self) -> String {
        head(&self.ticket(|_| {}))
    }

    /// The answer to a head that must not reach the hub.
    pub async fn refused(&self, head: &str) -> String {
        self.refused_behind(b"", head).await
    }

    pub async fn refused_behind(&self, proxy_header: &[u8], head: &str) -> String {
        let mut client = self.dial_behind(proxy_header).await;
        client.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        for part in ["\"code\":", "\"message\":", "\"what_to_do\":"] {
            assert!(answer.contains(part), "{answer}");
        }
        answer
    }

    /// A session behind a proxy that has begun: its two ends.
    pub async fn session_behind(&self, proxy_header: &[u8], head: &str) -> (TlsStream<TcpStream>, TcpStream) {
        let mut client = self.dial_behind(proxy_header).await;
        client.write_all(head.as_bytes()).await.unwrap();
        let (mut hub, _) = self.hub.accept().await.unwrap();
        read_head(&mut hub).await;
        hub.write_all(SWITCHED).await.unwrap();
        let mut answer = vec![0; SWITCHED.len()];
        client.read_exact(&mut answer).await.unwrap();
        (client, hub)
    }

    /// Waits until the metrics have this line.
    pub async fn metric(&self, line: &str) {
        metric::appears(&*self.served, line).await;
    }

    pub async fn nothing_reached_the_hub(self) {
        self.stop.stop();
        self.run.await.unwrap();
        let waiting = tokio::time::timeout(Duration::from_millis(1), self.hub.accept()).await;
        assert!(waiting.is_err(), "the hub was dialled");
    }
}

pub fn head(ticket: &str) -> String {
    format!(
        "GET /v1/worker HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         Sec-WebSocket-Protocol: kvasir.v1\r\nX-Odd:   spaces  kept \r\nAuthorization: Bearer {ticket}\r\n\r\n"
    )
}

pub async fn read_head(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    head
}

/// Whoever dials in these tests.
pub fn all_here() -> TrustedPeers {
    TrustedPeers::new(vec!["127.0.0.0/8".parse().unwrap()]).unwrap()
}

/// Whether the edge closes a connection that begins so without an answer.
pub async fn closed_at(edge: SocketAddr, first: &[u8]) -> bool {
    let mut client = TcpStream::connect(edge).await.unwrap();
    client.write_all(first).await.unwrap();
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer).await;
    answer.is_empty()
}
