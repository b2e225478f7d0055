//! Connections that the edge passes through by the name in their ClientHello: what arrives at the backend, what does not, and
//! what the client is told.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod metric;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use kvasir_gateway::{
    accept::AcceptLimits,
    certificate::{self, CertificatePaths, Names},
    edge::{
        Certificates, Edge, EdgeControl, EdgeOptions, EdgeSettings, SlotLimits,
        client_hello::MAX_CLIENT_HELLO_BYTES,
        pass_through::{Route, Routes},
        proxy_header,
        trusted::TrustedPeers,
    },
    operations::Served,
    stop::{Stopper, switch},
};
use kvasir_wire::ticket::EdgeKey;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The name that is passed through.
const PASSED: &str = "hub.example";
/// The name of the edge's own certificate.
const OWN: &str = "localhost";
/// What a client that is refused reads: a fatal alert, and nothing else.
const fn alert(description: u8) -> [u8; 7] {
    [21, 3, 3, 0, 2, 2, description]
}
const DECODE_ERROR: u8 = 50;
const INTERNAL_ERROR: u8 = 80;
const MISSING_EXTENSION: u8 = 109;
const UNRECOGNIZED_NAME: u8 = 112;

struct Rig {
    edge: SocketAddr,
    backend: TcpListener,
    backend_files: CertificatePaths,
    own_files: CertificatePaths,
    served: Arc<dyn Served>,
    control: EdgeControl,
    stop: Stopper,
    run: JoinHandle<()>,
    _folders: [tempfile::TempDir; 2],
}

impl Rig {
    /// An edge that ends TLS for [`OWN`] and passes [`PASSED`] through.
    async fn start(change: impl FnOnce(&mut EdgeOptions, &mut Route)) -> Rig {
        Rig::start_with(true, change).await
    }

    /// An edge without a certificate.
    async fn start_without_tls(change: impl FnOnce(&mut EdgeOptions, &mut Route)) -> Rig {
        Rig::start_with(false, change).await
    }

    async fn start_with(ends_tls: bool, change: impl FnOnce(&mut EdgeOptions, &mut Route)) -> Rig {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let make = |folder: &tempfile::TempDir, name: &str| {
            certificate::make(folder.path(), &Names::parse(&[name.into()]).unwrap(), false).unwrap()
        };
        let (own_files, backend_files) = (make(&folders[0], OWN), make(&folders[1], PASSED));
        let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = backend.local_addr().unwrap().to_string();
        let mut route = Route { name: PASSED.into(), to, proxy_protocol: false };
        let listen = ([127, 0, 0, 1], 0).into();
        let mut options = match ends_tls {
            true => EdgeOptions::new(listen, "127.0.0.1:1".into(), "atlas".into()),
            false => EdgeOptions::pass_through_only(listen, Routes::default()),
        };
        change(&mut options, &mut route);
        options.pass_through = Routes::new(vec![route]).unwrap();
        let edge = match ends_tls {
            true => {
                let certificates = Certificates::load(&own_files.certificate, &own_files.key).unwrap();
                Edge::bind(options, EdgeKey::from_bytes([4; 32]), certificates).await.unwrap()
            }
            false => Edge::bind_pass_through(options).await.unwrap(),
        };
        let (stop, stopped) = switch();
        Rig {
            edge: edge.address(),
            backend,
            backend_files,
            own_files,
            served: edge.served(stopped.clone()),
            control: edge.control(),
            stop,
            run: tokio::spawn(edge.run(stopped)),
            _folders: folders,
        }
    }

    async fn dial(&self) -> TcpStream {
        TcpStream::connect(self.edge).await.unwrap()
    }

    /// A connection that has said this, and what arrived of it at the backend.
    async fn passed(&self, hello: &[u8]) -> (TcpStream, TcpStream) {
        let mut client = self.dial().await;
        client.write_all(hello).await.unwrap();
        let (mut backend, _) = patiently(self.backend.accept()).await.unwrap();
        let mut arrived = vec![0; hello.len()];
        patiently(backend.read_exact(&mut arrived)).await.unwrap();
        assert!(arrived == hello, "the hello arrives as it was sent");
        (client, backend)
    }

    /// All that a client reads which has said this.
    async fn answer(&self, said: &[u8]) -> Vec<u8> {
        let mut client = self.dial().await;
        client.write_all(said).await.unwrap();
        let mut answer = Vec::new();
        // The edge closes; whether by an end or by a reset is its business.
        let _ = patiently(client.read_to_end(&mut answer)).await;
        answer
    }

    /// Waits until the metrics have this line.
    async fn metric(&self, line: &str) {
        metric::appears(&*self.served, line).await;
    }

    async fn nothing_reached_the_backend(self) {
        self.stop.stop();
        self.run.await.unwrap();
        let waiting = tokio::time::timeout(Duration::from_millis(1), self.backend.accept()).await;
        assert!(waiting.is_err(), "the backend was dialled");
    }
}

/// For what must not hang a test.
async fn patiently<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it takes too long")
}

fn client_config(files: &CertificatePaths) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// A ClientHello for a name; for an address one without a name.
fn hello(rig: &Rig, name: &str) -> Vec<u8> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = rustls::ClientConnection::new(client_config(&rig.own_files), name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

fn bytes(length: u32, seed: u32) -> Vec<u8> {
    (0..length).map(|index| (index.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[tokio::test]
async fn tls_ends_at_the_backend_and_the_bytes_arrive_as_they_were() {
    let rig = Rig::start(|_, _| {}).await;
    let certificates = Certificates::load(&rig.backend_files.certificate, &rig.backend_files.key).unwrap();
    let acceptor = TlsAcceptor::from(certificates.server_config().unwrap());
    // The client believes the backend's authority alone, and rustls writes names in whatever case they are given.
    let connector = TlsConnector::from(client_config(&rig.backend_files));
    let name = ServerName::try_from("Hub.Example").unwrap();
    let dialled = async { connector.connect(name, rig.dial().await).await.unwrap() };
    let accepted = async { acceptor.accept(rig.backend.accept().await.unwrap().0).await.unwrap() };
    let (mut client, mut backend) = patiently(async { tokio::join!(dialled, accepted) }).await;

    let (up, down) = (bytes(1_000_003, 1), bytes(700_001, 2));
    let send = async {
        client.write_all(&up).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let mut got_up = Vec::new();
    let (_, read) = patiently(async { tokio::join!(send, backend.read_to_end(&mut got_up)) }).await;
    read.unwrap();
    assert!(got_up == up);
    // The client has half-closed; the backend's direction goes on.
    let send = async {
        backend.write_all(&down).await.unwrap();
        backend.shutdown().await.unwrap();
    };
    let mut got_down = Vec::new();
    let (_, read) = patiently(async { tokio::join!(send, client.read_to_end(&mut got_down)) }).await;
    read.unwrap();
    assert!(got_down == down);
    drop((client, backend));
    rig.metric("kvasir_gateway_handshakes_total{result=\"passed_through\"} 1").await;
    rig.metric("kvasir_gateway_passed_through_open 0").await;
    rig.metric("kvasir_gateway_bytes_total{direction=\"to_hub\"} 0").await;
    rig.metric("kvasir_gateway_connections_open 0").await;
    rig.stop.stop();
    rig.run.await.unwrap();
}

#[tokio::test]
async fn what_asks_for_no_listed_name_is_the_edge_s_own() {
    let rig = Rig::start(|_, _| {}).await;
    let connector = TlsConnector::from(client_config(&rig.own_files));
    let name = ServerName::try_from(OWN).unwrap();
    let mut client = connector.connect(name, rig.dial().await).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = patiently(client.read_to_end(&mut answer)).await;
    assert!(answer.starts_with(b"HTTP/1.1 404 "), "{}", String::from_utf8_lossy(&answer));
    // A name that nobody has, none at all, and no TLS: the edge's own TLS has an answer, or none.
    for name in ["other.example", "127.0.0.1"] {
        let mut client = rig.dial().await;
        client.write_all(&hello(&rig, name)).await.unwrap();
        let kind = patiently(client.read_u8()).await.unwrap();
        assert_eq!(kind, 22, "a ServerHello for {name}");
    }
    assert!(!rig.answer(b"GET /v1/worker HTTP/1.1\r\n\r\n").await.starts_with(b"HTTP"));
    rig.metric("kvasir_gateway_handshakes_total{result=\"tls_failed\"} 3").await;
    rig.nothing_reached_the_backend().await;
}

#[tokio::test]
async fn without_tls_of_its_own_the_edge_refuses_in_tls() {
    let rig = Rig::start_without_tls(|_, _| {}).await;
    assert_eq!(rig.answer(&hello(&rig, "other.example")).await, alert(UNRECOGNIZED_NAME));
    assert_eq!(rig.answer(&hello(&rig, "a.hub.example")).await, alert(UNRECOGNIZED_NAME));
    assert_eq!(rig.answer(&hello(&rig, "10.0.0.1")).await, alert(MISSING_EXTENSION));
    let mut malformed = hello(&rig, PASSED);
    malformed[9] = 9; // the version
    assert_eq!(rig.answer(&malformed).await, alert(DECODE_ERROR));
    // One byte of a long message in each record.
    let mut endless = [22, 3, 1, 0, 1, 1, 22, 3, 1, 0, 1, 0, 22, 3, 1, 0, 1, 0x20].to_vec();
    while endless.len() < MAX_CLIENT_HELLO_BYTES {
        endless.extend_from_slice(&[22, 3, 1, 0, 1, 0]);
    }
    assert_eq!(rig.answer(&endless[..MAX_CLIENT_HELLO_BYTES]).await, alert(DECODE_ERROR));
    assert!(rig.answer(b"GET / HTTP/1.1\r\n\r\n").await.is_empty(), "no alert to what speaks no TLS");
    rig.metric("kvasir_gateway_handshakes_total{result=\"unknown_name\"} 3").await;
    rig.metric("kvasir_gateway_handshakes_total{result=\"no_client_hello\"} 3").await;
    assert!(rig.served.ready().is_ok());
    rig.nothing_reached_the_backend().await;
}

#[tokio::test]
async fn a_listed_name_is_passed_through_without_tls_of_its_own_too() {
    let rig = Rig::start_without_tls(|_, _| {}).await;
    let (mut client, mut backend) = rig.passed(&hello(&rig, PASSED)).await;
    backend.write_all(b"answer").await.unwrap();
    let mut answer = [0; 6];
    patiently(client.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"answer");
    rig.metric("kvasir_gateway_passed_through_open 1").await;
    rig.metric("kvasir_gateway_connections_without_ticket 0").await;
    let status: serde_json::Value = serde_json::from_str(&rig.served.status()).unwrap();
    assert_eq!((&status["passed_through"], &status["sessions"]), (&1.into(), &0.into()));
}

#[tokio::test]
async fn a_hello_that_comes_in_pieces_with_more_behind_it_arrives_whole() {
    let rig = Rig::start(|_, _| {}).await;
    let hello = [&hello(&rig, PASSED)[..], b"what the client sends before it has an answer"].concat();
    let mut client = rig.dial().await;
    client.set_nodelay(true).unwrap();
    for piece in hello.chunks(7) {
        client.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    let (mut backend, _) = patiently(rig.backend.accept()).await.unwrap();
    let mut arrived = vec![0; hello.len()];
    patiently(backend.read_exact(&mut arrived)).await.unwrap();
    assert!(arrived == hello);
}

#[tokio::test]
async fn a_hello_that_does_not_come_to_its_end_is_given_up() {
    let rig = Rig::start(|options, _| options.client_hello_time = Duration::from_millis(200)).await;
    let hello = hello(&rig, PASSED);
    assert!(rig.answer(&hello[..hello.len() - 1]).await.is_empty());
    rig.metric("kvasir_gateway_handshakes_total{result=\"no_client_hello\"} 1").await;
    rig.nothing_reached_the_backend().await;
}

#[tokio::test]
async fn a_backend_that_wants_it_is_told_whose_connection_it_is() {
    let rig = Rig::start(|_, route| route.proxy_protocol = true).await;
    let hello = hello(&rig, PASSED);
    let mut client = rig.dial().await;
    client.write_all(&hello).await.unwrap();
    let (mut backend, _) = patiently(rig.backend.accept()).await.unwrap();
    let expected = proxy_header::encode(client.local_addr().unwrap(), rig.edge);
    let mut header = vec![0; expected.len()];
    patiently(backend.read_exact(&mut header)).await.unwrap();
    assert_eq!(header, expected);
    let mut arrived = vec![0; hello.len()];
    patiently(backend.read_exact(&mut arrived)).await.unwrap();
    assert!(arrived == hello);
}

#[tokio::test]
async fn a_backend_that_does_not_answer_is_no_fault_of_the_client_s() {
    let rig = Rig::start(|_, route| route.to = "127.0.0.1:1".into()).await;
    assert_eq!(rig.answer(&hello(&rig, PASSED)).await, alert(INTERNAL_ERROR));
    rig.metric("kvasir_gateway_handshakes_total{result=\"backend_unreachable\"} 1").await;
    rig.metric("kvasir_gateway_connections_open 0").await;
}

#[tokio::test]
async fn connections_that_are_passed_through_leave_half_of_the_places_and_are_not_evicted() {
    let rig = Rig::start(|options, _| {
        options.slots = SlotLimits { connections: 4, unauthenticated: 1, ..SlotLimits::default() };
    })
    .await;
    let hello = hello(&rig, PASSED);
    let (mut first, mut first_backend) = rig.passed(&hello).await;
    let second = rig.passed(&hello).await;
    rig.metric("kvasir_gateway_passed_through_open 2").await;
    assert_eq!(rig.answer(&hello).await, alert(INTERNAL_ERROR));
    rig.metric("kvasir_gateway_handshakes_total{result=\"pass_through_full\"} 1").await;
    rig.metric("kvasir_gateway_connections_open 2").await;
    // Newcomers that show nothing push out each other only.
    let silent = [rig.dial().await, rig.dial().await];
    rig.metric("kvasir_gateway_handshakes_total{result=\"evicted\"} 1").await;
    first_backend.write_all(b"still there").await.unwrap();
    let mut still = [0; 11];
    patiently(first.read_exact(&mut still)).await.unwrap();
    drop((silent, second));
    // A free place is given again.
    rig.metric("kvasir_gateway_passed_through_open 1").await;
    rig.metric("kvasir_gateway_connections_open 1").await;
    rig.passed(&hello).await;
}

#[tokio::test]
async fn the_cap_of_an_address_holds_for_what_is_passed_through() {
    let rig = Rig::start_without_tls(|options, _| {
        options.slots = SlotLimits { per_address: 1, ..SlotLimits::default() };
    })
    .await;
    let hello = hello(&rig, PASSED);
    let _one = rig.passed(&hello).await;
    assert_eq!(rig.answer(&hello).await, alert(INTERNAL_ERROR));
    rig.metric("kvasir_gateway_handshakes_total{result=\"pass_through_full\"} 1").await;
}

#[tokio::test]
async fn changed_names_and_caps_hold_for_newcomers_and_touch_nothing_that_is_passed_through() {
    let rig = Rig::start(|_, _| {}).await;
    let (mut client, mut backend) = rig.passed(&hello(&rig, PASSED)).await;
    let to = rig.backend.local_addr().unwrap().to_string();
    let other = Route { name: "other.example".into(), to, proxy_protocol: false };
    let settings = EdgeSettings {
        accept: AcceptLimits::default(),
        slots: SlotLimits { connections: 2, ..SlotLimits::default() },
        trusted_peers: TrustedPeers::default(),
        proxy_protocol_peers: TrustedPeers::default(),
        pass_through: Routes::new(vec![other]).unwrap(),
    };
    rig.control.change(settings.clone());
    let mut unlisted = rig.dial().await;
    unlisted.write_all(&hello(&rig, PASSED)).await.unwrap();
    assert_eq!(patiently(unlisted.read_u8()).await.unwrap(), 22, "a ServerHello of the edge's own");
    drop(unlisted);
    rig.metric("kvasir_gateway_connections_open 1").await;
    // Half of two places, and that one is taken.
    assert_eq!(rig.answer(&hello(&rig, "other.example")).await, alert(INTERNAL_ERROR));
    rig.metric("kvasir_gateway_handshakes_total{result=\"pass_through_full\"} 1").await;
    rig.control.change(EdgeSettings { slots: SlotLimits::default(), ..settings });
    let listed = rig.passed(&hello(&rig, "other.example")).await;
    client.write_all(b"still here").await.unwrap();
    let mut still = [0; 10];
    patiently(backend.read_exact(&mut still)).await.unwrap();
    assert_eq!(&still, b"still here");
    drop(listed);
}
