//! The edge from outside: a TLS client on one side, a stand-in for the hub on the other.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod metric;

use std::{
    io::Write,
    net::SocketAddr,
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use kvasir_gateway::{
    accept::AcceptLimits,
    certificate::{self, Names},
    descriptors::DescriptorLimit,
    edge::{
        Certificates, Edge, EdgeControl, EdgeOptions, EdgeSettings, SlotLimits, SpliceLimits,
        pass_through::Routes, trusted::TrustedPeers,
    },
    http_head::MAX_HEAD_BYTES,
    http_refusal::RefusalBody,
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

const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\n\r\n";

struct Rig {
    edge: SocketAddr,
    hub: TcpListener,
    tls: TlsConnector,
    served: Arc<dyn Served>,
    control: EdgeControl,
    stop: Stopper,
    run: JoinHandle<()>,
    hub_key: SecretKey,
    edge_key: EdgeKey,
    _folder: tempfile::TempDir,
}

impl Rig {
    async fn start(change: impl FnOnce(&mut EdgeOptions)) -> Rig {
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

    async fn dial(&self) -> TlsStream<TcpStream> {
        self.dial_behind(b"").await
    }

    /// Dials as a proxy that sends this before it passes the client's bytes on.
    async fn dial_behind(&self, proxy_header: &[u8]) -> TlsStream<TcpStream> {
        let mut stream = TcpStream::connect(self.edge).await.unwrap();
        stream.write_all(proxy_header).await.unwrap();
        self.tls.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    }

    fn ticket(&self, change: impl FnOnce(&mut TicketClaims)) -> String {
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

    fn good_head(&self) -> String {
        head(&self.ticket(|_| {}))
    }

    /// The answer to a head that must not reach the hub.
    async fn refused(&self, head: &str) -> String {
        self.refused_behind(b"", head).await
    }

    async fn refused_behind(&self, proxy_header: &[u8], head: &str) -> String {
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
    async fn session_behind(&self, proxy_header: &[u8], head: &str) -> (TlsStream<TcpStream>, TcpStream) {
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
    async fn metric(&self, line: &str) {
        metric::appears(&*self.served, line).await;
    }

    async fn nothing_reached_the_hub(self) {
        self.stop.stop();
        self.run.await.unwrap();
        let waiting = tokio::time::timeout(Duration::from_millis(1), self.hub.accept()).await;
        assert!(waiting.is_err(), "the hub was dialled");
    }
}

fn head(ticket: &str) -> String {
    format!(
        "GET /v1/worker HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         Sec-WebSocket-Protocol: kvasir.v1\r\nX-Odd:   spaces  kept \r\nAuthorization: Bearer {ticket}\r\n\r\n"
    )
}

async fn read_head(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    head
}

#[tokio::test]
async fn a_session_is_spliced_byte_for_byte_with_half_close() {
    let rig = Rig::start(|_| {}).await;
    let head = rig.good_head();
    let mut client = rig.dial().await;
    client.write_all(head.as_bytes()).await.unwrap();
    let (mut hub, _) = rig.hub.accept().await.unwrap();
    assert_eq!(read_head(&mut hub).await, head.as_bytes(), "the head arrives as it was sent");
    hub.write_all(SWITCHED).await.unwrap();
    let mut answer = vec![0; SWITCHED.len()];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, SWITCHED);

    let bytes = |length: u32, seed: u32| -> Vec<u8> {
        (0..length).map(|index| (index.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    };
    let (up, down) = (bytes(1_000_003, 1), bytes(700_001, 2));
    let (mut client_reader, mut client_writer) = tokio::io::split(client);
    let (mut hub_reader, mut hub_writer) = hub.into_split();
    let sent = up.clone();
    let client_writes = tokio::spawn(async move {
        client_writer.write_all(&sent).await.unwrap();
        client_writer.shutdown().await.unwrap();
    });
    let mut got_up = Vec::new();
    hub_reader.read_to_end(&mut got_up).await.unwrap();
    assert!(got_up == up);
    client_writes.await.unwrap();
    // The client has half-closed; the hub's direction goes on.
    let sent = down.clone();
    let hub_writes = tokio::spawn(async move {
        hub_writer.write_all(&sent).await.unwrap();
        hub_writer.shutdown().await.unwrap();
    });
    let mut got_down = Vec::new();
    client_reader.read_to_end(&mut got_down).await.unwrap();
    assert!(got_down == down);
    hub_writes.await.unwrap();
    rig.stop.stop();
    rig.run.await.unwrap();
}

#[tokio::test]
async fn tickets_that_are_not_good_never_reach_the_hub() {
    let rig = Rig::start(|_| {}).await;
    let status = |answer: &str| answer[9..12].to_owned();
    let forged = {
        let other = Ticket::from_text(&rig.ticket(|_| {})).unwrap();
        let mut bytes = other.as_bytes().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        Ticket::from_bytes(&bytes).unwrap().to_text()
    };
    let expired = rig.ticket(|claims| claims.expires = claims.issued + 1);
    let future = rig.ticket(|claims| {
        claims.issued += 5_000;
        claims.expires += 5_000;
    });
    let elsewhere = rig.ticket(|claims| claims.network = "other".into());
    let backbone = rig.ticket(|claims| claims.role = Role::Backbone);
    for (ticket, expected, code) in [
        (forged.as_str(), "401", "bad_ticket"),
        (&expired, "401", "ticket_expired"),
        (&future, "401", "ticket_not_yet_valid"),
        (&elsewhere, "403", "unknown_network"),
        (&backbone, "403", "wrong_role"),
        ("kvasir-ticket-v1.!!!!", "401", "bad_ticket"),
        ("", "401", "ticket_missing"),
    ] {
        let answer = rig.refused(&head(ticket)).await;
        assert_eq!(status(&answer), expected, "{answer}");
        assert!(answer.contains(code), "{answer}");
    }
    rig.nothing_reached_the_hub().await;
}

#[tokio::test]
async fn heads_that_break_a_rule_never_reach_the_hub() {
    let rig = Rig::start(|_| {}).await;
    let good = rig.good_head();
    for (head, expected) in [
        (good.replace("/v1/worker", "/v1/backbone"), "404"),
        (good.replace("/v1/worker", "/"), "404"),
        (good.replace("Upgrade: websocket", "Upgrade: other"), "426"),
        (good.replace("kvasir.v1", "kvasir.v0"), "426"),
        (good.replace("GET", "G\u{0}T"), "400"),
        (good.replace("X-Odd: ", &format!("X-Odd: {}", "a".repeat(MAX_HEAD_BYTES))), "431"),
    ] {
        let answer = rig.refused(&head).await;
        assert_eq!(&answer[9..12], expected, "{answer}");
    }
    rig.nothing_reached_the_hub().await;
}

#[tokio::test]
async fn a_head_that_never_ends_and_a_silent_connection_are_cut_off() {
    // Long enough for TLS on a busy machine.
    let rig = Rig::start(|options| options.upgrade_deadline = Duration::from_secs(1)).await;
    let mut client = rig.dial().await;
    client.write_all(b"GET /v1/worker HTTP/1.1\r\nHost: slow").await.unwrap();
    let mut answer = Vec::new();
    // The edge closes; whether by an end or by a reset is its business.
    let _ = client.read_to_end(&mut answer).await;
    assert!(answer.is_empty());
    let mut silent = TcpStream::connect(rig.edge).await.unwrap();
    let _ = silent.read_to_end(&mut answer).await;
    assert!(answer.is_empty());
    rig.nothing_reached_the_hub().await;
}

#[tokio::test]
async fn what_is_not_tls_is_closed() {
    let rig = Rig::start(|_| {}).await;
    let mut client = TcpStream::connect(rig.edge).await.unwrap();
    client.write_all(rig.good_head().as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "no HTTP without TLS");
    rig.nothing_reached_the_hub().await;
}

#[tokio::test]
async fn a_hub_that_does_not_answer_is_a_503_with_a_time() {
    let rig = Rig::start(|options| options.hub = "127.0.0.1:1".into()).await;
    let answer = rig.refused(&rig.good_head()).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("Retry-After: "), "{answer}");
}

#[tokio::test]
async fn an_address_with_too_many_sessions_is_told() {
    let rig = Rig::start(|options| {
        options.slots = SlotLimits { per_address: 1, ..SlotLimits::default() };
    })
    .await;
    let head = rig.good_head();
    let mut first = rig.dial().await;
    first.write_all(head.as_bytes()).await.unwrap();
    let (mut hub, _) = rig.hub.accept().await.unwrap();
    read_head(&mut hub).await;
    hub.write_all(SWITCHED).await.unwrap();
    let answer = rig.refused(&head).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(answer.contains("Retry-After: "), "{answer}");
    // A free place is given again.
    drop((first, hub));
    let mut again = loop {
        let mut client = rig.dial().await;
        client.write_all(head.as_bytes()).await.unwrap();
        tokio::select! {
            accepted = rig.hub.accept() => break accepted.unwrap().0,
            _ = client.read_u8() => {}
        }
    };
    assert_eq!(read_head(&mut again).await, head.as_bytes());
}

#[tokio::test]
async fn of_connections_without_a_ticket_beyond_the_cap_the_oldest_makes_room() {
    let rig = Rig::start(|options| {
        options.slots = SlotLimits { unauthenticated: 1, ..SlotLimits::default() };
    })
    .await;
    let mut idle = TcpStream::connect(rig.edge).await.unwrap();
    let head = rig.good_head();
    let mut second = rig.dial().await;
    let mut answer = Vec::new();
    let _ = idle.read_to_end(&mut answer).await;
    assert!(answer.is_empty());
    rig.metric("kvasir_gateway_handshakes_total{result=\"evicted\"} 1").await;
    second.write_all(head.as_bytes()).await.unwrap();
    let (mut hub, _) = rig.hub.accept().await.unwrap();
    assert_eq!(read_head(&mut hub).await, head.as_bytes());
}

/// Whether a connection is closed without a word.
async fn closed_unread(edge: SocketAddr) -> bool {
    let mut client = TcpStream::connect(edge).await.unwrap();
    let mut answer = Vec::new();
    // An end or a reset: closed either way.
    let _ = client.read_to_end(&mut answer).await;
    answer.is_empty()
}

#[tokio::test]
async fn without_descriptors_to_spare_connections_are_closed_unread() {
    let rig = Rig::start(|options| options.accept.descriptors = DescriptorLimit::new(Some(1))).await;
    assert!(closed_unread(rig.edge).await);
    rig.metric("kvasir_gateway_refused_total{reason=\"descriptors\"} 1").await;
    rig.metric("kvasir_gateway_max_descriptors 1").await;
    rig.nothing_reached_the_hub().await;
}

#[tokio::test]
async fn connections_that_come_faster_than_they_may_are_closed_unread() {
    let rig = Rig::start(|options| {
        options.accept = AcceptLimits { burst: NonZeroU32::MIN, ..AcceptLimits::per_second(NonZeroU32::MIN) };
    })
    .await;
    // Fifty of them a second apart each would be let in; nobody is that slow.
    let mut kept = Vec::new();
    for _ in 0..50 {
        kept.push(TcpStream::connect(rig.edge).await.unwrap());
    }
    let refused = async {
        while !rig.served.metrics().contains("kvasir_gateway_refused_total{reason=\"accept_rate\"}") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), refused).await.unwrap();
    drop(kept);
    rig.nothing_reached_the_hub().await;
}

#[tokio::test]
async fn an_address_that_comes_fast_meets_its_share_before_all_are_shut_out() {
    let rig = Rig::start(|options| {
        let burst = NonZeroU32::new(400).unwrap();
        options.accept = AcceptLimits { burst, ..AcceptLimits::per_second(NonZeroU32::MIN) };
        options.slots = SlotLimits { per_address: 1, ..SlotLimits::default() };
    })
    .await;
    // Its share is fifty, and one a second.
    let mut kept = Vec::new();
    for _ in 0..150 {
        kept.push(TcpStream::connect(rig.edge).await.unwrap());
    }
    let refused = async {
        while !rig.served.metrics().contains("kvasir_gateway_refused_total{reason=\"address_rate\"}") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), refused).await.unwrap();
    assert!(!rig.served.metrics().contains("reason=\"accept_rate\""));
    // Another address gets in, and through. By chance it may have its share together with the first, but not all of these.
    #[cfg(target_os = "linux")] // where all of 127.0.0.0/8 is this machine
    {
        let head = rig.good_head();
        let dials = async {
            for last in 2..=5u8 {
                let socket = tokio::net::TcpSocket::new_v4().unwrap();
                socket.bind(([127, 0, 0, last], 0).into()).unwrap();
                let stream = socket.connect(rig.edge).await.unwrap();
                let Ok(mut client) =
                    rig.tls.connect(ServerName::try_from("localhost").unwrap(), stream).await
                else {
                    continue;
                };
                client.write_all(head.as_bytes()).await.unwrap();
                return client;
            }
            panic!("nobody else gets in")
        };
        let (mut client, hub) = tokio::join!(dials, rig.hub.accept());
        let (mut hub, _) = hub.unwrap();
        assert_eq!(read_head(&mut hub).await, head.as_bytes());
        hub.write_all(SWITCHED).await.unwrap();
        let mut answer = vec![0; SWITCHED.len()];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, SWITCHED);
    }
    drop(kept);
}

#[tokio::test]
async fn metrics_and_report_say_what_went_by() {
    let rig = Rig::start(|_| {}).await;
    let (mut client, mut hub) = rig.session_behind(b"", &rig.good_head()).await;
    rig.metric("kvasir_gateway_sessions_open 1").await;
    rig.metric("kvasir_gateway_splice_buffer_bytes 8192").await;
    client.write_all(b"up").await.unwrap();
    client.shutdown().await.unwrap();
    let mut up = Vec::new();
    hub.read_to_end(&mut up).await.unwrap();
    hub.write_all(b"down").await.unwrap();
    hub.shutdown().await.unwrap();
    let mut down = Vec::new();
    client.read_to_end(&mut down).await.unwrap();
    rig.refused(&head("kvasir-ticket-v1.!!!!")).await;
    for line in [
        "kvasir_gateway_sessions_closed_total{reason=\"closed\"} 1",
        "kvasir_gateway_sessions_open 0",
        "kvasir_gateway_splice_buffer_bytes 0",
        "kvasir_gateway_accepts_total 2",
        "kvasir_gateway_handshakes_total{result=\"spliced\"} 1",
        "kvasir_gateway_handshakes_total{result=\"refused\"} 1",
        "kvasir_gateway_refused_total{reason=\"bad_ticket\"} 1",
        "kvasir_gateway_bytes_total{direction=\"to_hub\"} 2",
        "kvasir_gateway_bytes_total{direction=\"to_worker\"} 4",
        "kvasir_gateway_connections_open 0",
    ] {
        rig.metric(line).await;
    }
    let report: serde_json::Value = serde_json::from_str(&rig.served.status()).unwrap();
    assert_eq!((&report["network"], &report["accepted"]), (&"atlas".into(), &2.into()));
    assert!(rig.served.ready().is_ok());
    assert!(rig.served.page().contains("ready"));
    rig.stop.stop();
    assert!(rig.served.ready().is_err());
    rig.run.await.unwrap();
}

#[tokio::test]
async fn report_and_page_say_of_whom_the_edge_refused_what_it_was_told_word_for_word() {
    let rig = Rig::start(|_| {}).await;
    let list = || -> Vec<serde_json::Value> {
        let report: serde_json::Value = serde_json::from_str(&rig.served.status()).unwrap();
        report["refusals"].as_array().unwrap().clone()
    };
    assert!(list().is_empty());
    let expired = rig.ticket(|claims| claims.expires = claims.issued + 1);
    for (number, head) in [head(&expired), head(""), head("kvasir-ticket-v1.!!!!")].iter().enumerate() {
        let answer = rig.refused(head).await;
        let told: RefusalBody = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert!(!told.message.is_empty() && !told.what_to_do.is_empty());
        // It is told first and noted then.
        rig.metric(&format!("kvasir_gateway_refused_total{{reason=\"{}\"}} 1", told.code)).await;
        patiently_is(|| list().len() == number + 1).await;
        let newest = list().remove(0);
        assert_eq!((&newest["whom"], &newest["code"]), (&"127.0.0.1".into(), &told.code.as_str().into()));
        assert_eq!(
            (&newest["message"], &newest["what_to_do"]),
            (&told.message.into(), &told.what_to_do.into())
        );
        let page = rig.served.page();
        for part in ["whom", "code", "message", "what_to_do"] {
            let words = escaped(newest[part].as_str().unwrap());
            assert!(page.contains(&words), "{words}\nin\n{page}");
        }
    }
    let secret = &expired["kvasir-ticket-v1.".len()..][..40];
    assert!(
        !rig.served.page().contains(secret) && !rig.served.status().contains(secret),
        "a ticket is shown"
    );
    rig.nothing_reached_the_hub().await;
}

/// Waits until something is so; a minute counts as never.
async fn patiently_is(mut is_so: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(60), async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain");
}

/// As a page has it.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

/// Whoever dials in these tests.
fn all_here() -> TrustedPeers {
    TrustedPeers::new(vec!["127.0.0.0/8".parse().unwrap()]).unwrap()
}

/// Whether the edge closes a connection that begins so without an answer.
async fn closed_at(edge: SocketAddr, first: &[u8]) -> bool {
    let mut client = TcpStream::connect(edge).await.unwrap();
    client.write_all(first).await.unwrap();
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer).await;
    answer.is_empty()
}

#[tokio::test]
async fn a_proxy_s_header_says_whose_connection_it_is_and_the_caps_are_the_client_s() {
    let rig = Rig::start(|options| {
        options.proxy_protocol_peers = all_here();
        options.slots = SlotLimits { per_address: 1, ..SlotLimits::default() };
    })
    .await;
    let head = rig.good_head();
    let of = |client: &str| format!("PROXY TCP4 {client} 10.0.0.1 1234 443\r\n").into_bytes();
    let mut binary = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    binary.extend_from_slice(&[203, 0, 113, 9, 10, 0, 0, 1, 4, 210, 1, 187]);
    let one = rig.session_behind(&of("203.0.113.7"), &head).await;
    let two = rig.session_behind(&of("203.0.113.8"), &head).await;
    let three = rig.session_behind(&binary, &head).await;
    let answer = rig.refused_behind(&of("203.0.113.9"), &head).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    // Who sends one always sends one: without it, its clients could write their own.
    assert!(closed_at(rig.edge, b"\x16\x03\x01").await);
    rig.metric("kvasir_gateway_handshakes_total{result=\"bad_proxy_header\"} 1").await;
    drop((one, two, three));
    rig.stop.stop();
    rig.run.await.unwrap();
}

#[tokio::test]
async fn a_proxy_that_only_looks_whether_the_edge_is_up_has_sent_no_bad_header() {
    let rig = Rig::start(|options| options.proxy_protocol_peers = all_here()).await;
    // Some close, some reset.
    drop(TcpStream::connect(rig.edge).await.unwrap());
    rig.metric("kvasir_gateway_handshakes_total{result=\"client_gone\"} 1").await;
    let reset = TcpStream::connect(rig.edge).await.unwrap();
    reset.set_zero_linger().unwrap();
    drop(reset);
    rig.metric("kvasir_gateway_handshakes_total{result=\"client_gone\"} 2").await;
    let metrics = rig.served.metrics();
    assert!(!metrics.contains("result=\"bad_proxy_header\"} 1"), "{metrics}");
    rig.nothing_reached_the_hub().await;
}

#[tokio::test]
async fn a_proxy_that_speaks_http_says_whose_connection_it_is_in_the_head_alone() {
    let rig = Rig::start(|options| {
        options.trusted_peers = all_here();
        options.slots = SlotLimits { per_address: 1, ..SlotLimits::default() };
    })
    .await;
    let head = rig.good_head();
    let with = |line: &str| head.replace("X-Odd:", &format!("X-Forwarded-For: {line}\r\nX-Odd:"));
    let four = rig.session_behind(b"", &with("6.6.6.6, 203.0.113.10")).await;
    let answer = rig.refused(&with("7.7.7.7, 203.0.113.10")).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    let answer = rig.refused(&with("203.0.113.11, nobody")).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    // Its clients' bytes may begin as they like.
    assert!(closed_at(rig.edge, b"PROXY TCP4 203.0.113.7 10.0.0.1 1234 443\r\n").await);
    rig.metric("kvasir_gateway_handshakes_total{result=\"bad_proxy_header\"} 1").await;
    drop(four);
    rig.stop.stop();
    rig.run.await.unwrap();
}

#[tokio::test]
async fn behind_a_proxy_the_oldest_of_the_client_that_has_too_many_makes_room() {
    let rig = Rig::start(|options| {
        options.proxy_protocol_peers = all_here();
        options.slots = SlotLimits { unauthenticated_per_address: 1, ..SlotLimits::default() };
    })
    .await;
    let mut silent = Vec::new();
    for client in ["203.0.113.7", "203.0.113.8", "203.0.113.7"] {
        let header = format!("PROXY TCP4 {client} 10.0.0.1 1234 443\r\n");
        silent.push(rig.dial_behind(header.as_bytes()).await);
    }
    rig.metric("kvasir_gateway_handshakes_total{result=\"evicted\"} 1").await;
    let mut answer = Vec::new();
    let _ = silent[0].read_to_end(&mut answer).await;
    assert!(answer.is_empty());
    let head = rig.good_head();
    for client in &mut silent[1..] {
        client.write_all(head.as_bytes()).await.unwrap();
        let (mut hub, _) = rig.hub.accept().await.unwrap();
        assert_eq!(read_head(&mut hub).await, head.as_bytes());
    }
}

#[tokio::test]
async fn changed_settings_hold_for_newcomers_and_touch_no_session() {
    let rig = Rig::start(|_| {}).await;
    let head = rig.good_head();
    let (mut client, mut hub) = rig.session_behind(b"", &head).await;
    let settings = EdgeSettings {
        accept: AcceptLimits::default(),
        slots: SlotLimits { per_address: 1, ..SlotLimits::default() },
        trusted_peers: TrustedPeers::default(),
        proxy_protocol_peers: TrustedPeers::default(),
        pass_through: Routes::default(),
    };
    rig.control.change(settings.clone());
    let answer = rig.refused(&head).await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("has 1 connections"), "{answer}");
    rig.control.change(EdgeSettings { proxy_protocol_peers: all_here(), ..settings });
    let behind = rig.session_behind(b"PROXY TCP4 203.0.113.7 10.0.0.1 1234 443\r\n", &head).await;
    client.write_all(b"still here").await.unwrap();
    let mut still = [0; 10];
    hub.read_exact(&mut still).await.unwrap();
    assert_eq!(&still, b"still here");
    drop(behind);
}

#[tokio::test]
async fn a_stranger_s_word_about_addresses_is_refused_or_not_looked_at() {
    let rig = Rig::start(|options| {
        options.slots = SlotLimits { per_address: 1, ..SlotLimits::default() };
    })
    .await;
    for header in [&b"PROXY TCP4 203.0.113.7 10.0.0.1 1234 443\r\n"[..], b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"] {
        assert!(closed_at(rig.edge, header).await);
    }
    rig.metric("kvasir_gateway_handshakes_total{result=\"bad_proxy_header\"} 2").await;
    let with = |line: &str| rig.good_head().replace("X-Odd:", &format!("X-Forwarded-For: {line}\r\nX-Odd:"));
    let one = rig.session_behind(b"", &with("203.0.113.1")).await;
    let answer = rig.refused(&with("203.0.113.2")).await;
    assert!(
        answer.starts_with("HTTP/1.1 429"),
        "another name for oneself is no way around the cap: {answer}"
    );
    drop(one);
}

/// A log that a test can read.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_ticket_is_logged_and_what_costs_a_stranger_nothing_is_no_line_unless_asked_for() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    // For all of this file: what a thread without a subscriber says first nobody would hear from another with one of its own.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let rig = Rig::start(|_| {}).await;
    let good = rig.ticket(|_| {});
    let expired = rig.ticket(|claims| claims.expires = claims.issued + 1);
    let (mut client, hub) = rig.session_behind(b"", &head(&good)).await;
    rig.refused(&head(&expired)).await;
    rig.refused(&head(&good).replace("/v1/worker", "/v1/worker?x")).await;
    drop(hub);
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest).await;
    drop(client);
    closed_at(rig.edge, b"this is no TLS").await;
    closed_at(rig.edge, b"PROXY TCP4 203.0.113.7 10.0.0.1 1234 443\r\n").await;
    rig.metric("kvasir_gateway_handshakes_total{result=\"tls_failed\"} 1").await;
    rig.metric("kvasir_gateway_handshakes_total{result=\"bad_proxy_header\"} 1").await;
    rig.stop.stop();
    rig.run.await.unwrap();
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("ticket_expired") && log.contains("session ended"), "{log}");
    // Of every connection of this file: whoever floods the edge does not flood the log with it.
    let levels = |level: &str, of: &str| -> usize {
        log.lines().filter(|line| line.contains(of) && line.contains(level)).count()
    };
    for cheap in
        ["not upgraded: TLS handshake", "not upgraded: not done within", "closed for a newer connection"]
    {
        assert_eq!(levels(" INFO ", cheap), 0, "{log}");
    }
    assert!(levels("DEBUG ", "not upgraded: TLS handshake") > 0, "{log}");
    assert!(levels(" INFO ", "ticket_expired") > 0, "{log}");
    for ticket in [good, expired] {
        // Everything behind the prefix, by its first letters.
        let secret = &ticket["kvasir-ticket-v1.".len()..][..40];
        assert!(!log.contains(secret), "a ticket is in the log");
    }
}

#[tokio::test]
async fn a_stop_ends_sessions_after_the_drain_time() {
    let rig = Rig::start(|options| {
        options.drain_time = Duration::from_millis(50);
        options.splice = SpliceLimits::default();
    })
    .await;
    let mut client = rig.dial().await;
    client.write_all(rig.good_head().as_bytes()).await.unwrap();
    let (mut hub, _) = rig.hub.accept().await.unwrap();
    read_head(&mut hub).await;
    hub.write_all(SWITCHED).await.unwrap();
    rig.stop.stop();
    rig.run.await.unwrap();
    let mut rest = Vec::new();
    assert!(matches!(hub.read_to_end(&mut rest).await, Ok(0) | Err(_)), "the hub's side ends too");
    assert!(TcpStream::connect(rig.edge).await.is_err(), "nobody listens any more");
}
