//! The walk to a backbone: for each hop a stand-in at which it ends, and one at which nothing is wrong.

use std::sync::Arc;
use std::time::Duration;

use kvasir_link::doctor::{Deadlines, Hop, HopName, Outcome, Subject, check_address, examine};
use kvasir_link::{
    Accepted, Incoming, LinkError, LinkOptions, TlsTrust, accept, fresh_nonce, websocket_config,
};
use kvasir_wire::frame::Kind;
use kvasir_wire::handshake::{Class, Features};
use kvasir_wire::id::ModelDigest;
use kvasir_wire::pairing::{Transcript, TranscriptEnd};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::ticket::{EdgeKey, Role, Ticket, TicketLimits};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

use crate::parties::*;

/// How long a stand-in that says nothing is waited for.
const SHORT: Duration = Duration::from_millis(200);

fn subject(gateway: String, trust: TlsTrust) -> Subject {
    Subject {
        gateway,
        trust,
        ticket: Some(ticket(Role::Worker, &key(2))),
        key: Some(key(2)),
        offer: Some(worker_offer()),
        proxy_variable: None,
        replace_worker: false,
    }
}

/// Far beyond what anything takes, so that only what is silent meets its deadline.
fn patient() -> Deadlines {
    let long = Duration::from_secs(60);
    Deadlines {
        dns: long,
        tcp: long,
        address: long,
        tls: long,
        upgrade: long,
        hub: long,
        backbone: long,
        close: Duration::from_secs(2),
    }
}

/// Walks, and checks what every report has to keep to.
async fn walk(subject: &Subject, deadlines: &Deadlines) -> Vec<Hop> {
    let mut told = Vec::new();
    let hops = examine(subject, deadlines, &mut |hop| told.push(hop.clone())).await;
    assert_eq!(told, hops, "each hop is told as it is reported");
    let names: Vec<HopName> = hops.iter().map(|hop| hop.name).collect();
    assert_eq!(names, HopName::NETWORK, "each hop once and in order");
    let secret = subject.ticket.as_ref().map(Ticket::to_text).unwrap_or_default();
    for hop in &hops {
        for text in [Some(&hop.seen), hop.remedy.as_ref()].into_iter().flatten() {
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!(text.len() < 4096, "{} bytes", text.len());
            assert!(secret.is_empty() || !text.contains(&secret[20..60]), "the ticket is not shown");
        }
        assert_eq!(hop.ms.is_some(), hop.outcome != Outcome::NotReached, "{hop:?}");
    }
    hops
}

/// The hop that failed: one alone, with a remedy, and nothing behind it was reached.
fn failed(hops: &[Hop]) -> &Hop {
    let mut from = hops.iter().skip_while(|hop| hop.outcome != Outcome::Failed);
    let failed = from.next().unwrap_or_else(|| panic!("nothing failed: {hops:#?}"));
    assert!(failed.remedy.is_some(), "{failed:?}");
    assert!(from.all(|hop| hop.outcome == Outcome::NotReached), "{hops:#?}");
    failed
}

fn outcome(hops: &[Hop], name: HopName) -> Outcome {
    hops.iter().find(|hop| hop.name == name).unwrap().outcome
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[tokio::test]
async fn a_name_that_is_none_fails_at_dns() {
    // Longer than a label may be, so that no resolver is asked.
    let gateway = format!("ws://{}.example", "x".repeat(70));
    let hops = walk(&subject(gateway, TlsTrust::PlainText), &patient()).await;
    assert_eq!(failed(&hops).name, HopName::Dns);
}

#[tokio::test]
async fn a_port_on_which_nothing_listens_fails_at_tcp() {
    let (listener, port) = listener().await;
    drop(listener);
    let mut subject = subject(format!("ws://127.0.0.1:{port}"), TlsTrust::PlainText);
    subject.proxy_variable = Some("HTTPS_PROXY".to_owned());
    let hops = walk(&subject, &patient()).await;
    let hop = failed(&hops);
    assert_eq!(hop.name, HopName::Tcp);
    assert!(hop.seen.contains("refused"), "{hop:?}");
    assert!(hop.remedy.as_ref().unwrap().contains("HTTPS_PROXY"), "{hop:?}");
    assert!(hops[0].seen.contains("HTTPS_PROXY") && hops[0].outcome == Outcome::Passed, "{hops:?}");
}

#[test]
fn an_address_is_checked_and_a_password_in_it_not_shown() {
    let fault = check_address("wss://user:secret@gateway.example", &TlsTrust::WebRoots);
    assert_eq!((fault.name, fault.outcome), (HopName::Settings, Outcome::Failed));
    assert!(!format!("{fault:?}").contains("secret"), "{fault:?}");
    assert_eq!(check_address("wss://gateway.example", &TlsTrust::WebRoots).outcome, Outcome::Passed);
    assert_eq!(check_address("ws://gateway.example", &TlsTrust::WebRoots).outcome, Outcome::Failed);
}

/// A server that takes connections and says nothing; it keeps them open.
fn silent(listener: TcpListener) {
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
        }
    });
}

#[tokio::test]
async fn silence_is_named_at_the_hop_where_it_begins() {
    let (listener, port) = listener().await;
    silent(listener);
    let deadlines = Deadlines { tls: SHORT, upgrade: SHORT, ..patient() };
    let (pem, _) = certificate(&["localhost"], |_| {});
    let with_tls = subject(format!("wss://localhost:{port}"), TlsTrust::CaFile(pem));
    let hops = walk(&with_tls, &deadlines).await;
    assert_eq!(failed(&hops).name, HopName::Tls);
    let plain = subject(format!("ws://localhost:{port}"), TlsTrust::PlainText);
    let hops = walk(&plain, &deadlines).await;
    assert_eq!(failed(&hops).name, HopName::Upgrade);
    assert_eq!(outcome(&hops, HopName::Tls), Outcome::NotReached);
}

/// A certificate that is its own authority, after `change`: PEM and a TLS acceptor.
fn certificate(names: &[&str], change: impl FnOnce(&mut rcgen::CertificateParams)) -> (Vec<u8>, TlsAcceptor) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    change(&mut params);
    let key = rcgen::KeyPair::generate().unwrap();
    let made = params.self_signed(&key).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.der().clone()], key)
        .unwrap();
    (made.pem().into_bytes(), TlsAcceptor::from(Arc::new(config)))
}

/// The walk to a server with this certificate, believing `pem`.
async fn walk_to_certificate(acceptor: TlsAcceptor, pem: Vec<u8>) -> Vec<Hop> {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let _ = acceptor.accept(stream).await;
    });
    walk(&subject(format!("wss://localhost:{port}"), TlsTrust::CaFile(pem)), &patient()).await
}

#[tokio::test]
async fn a_certificate_says_why_it_is_not_accepted() {
    let (pem, acceptor) = certificate(&["elsewhere.example"], |_| {});
    let hops = walk_to_certificate(acceptor, pem).await;
    let hop = failed(&hops);
    assert_eq!(hop.name, HopName::Tls);
    assert!(hop.seen.contains("elsewhere.example") && hop.seen.contains("localhost"), "{hop:?}");

    let (pem, acceptor) =
        certificate(&["localhost"], |params| params.not_after = rcgen::date_time_ymd(2001, 2, 3));
    let hops = walk_to_certificate(acceptor, pem).await;
    let hop = failed(&hops);
    assert_eq!(hop.name, HopName::Tls);
    assert!(hop.seen.contains("expired") && hop.seen.contains("03 Feb 2001"), "{hop:?}");
    assert!(hop.remedy.as_ref().unwrap().contains("clock"), "{hop:?}");

    let (pem, acceptor) =
        certificate(&["localhost"], |params| params.not_before = rcgen::date_time_ymd(2299, 2, 3));
    let hops = walk_to_certificate(acceptor, pem).await;
    assert_eq!(failed(&hops).name, HopName::Tls);
    assert!(failed(&hops).seen.contains("2299"), "{hops:?}");

    let (_, acceptor) = certificate(&["localhost"], |_| {});
    let (other, _) = certificate(&["localhost"], |_| {});
    let hops = walk_to_certificate(acceptor, other).await;
    assert_eq!(failed(&hops).name, HopName::Tls);
}

/// A server on plain TCP that reads a request and answers with these bytes; `{request}` stands for what it was sent.
async fn answering(answer: Vec<u8>) -> u16 {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 8192];
        let count = stream.read(&mut request).await.unwrap();
        let parts = String::from_utf8_lossy(&answer).into_owned();
        let answer = parts.replace("{request}", &String::from_utf8_lossy(&request[..count]));
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
        // Closing with unread bytes would take the answer away again.
        while stream.read(&mut request).await.is_ok_and(|count| count > 0) {}
    });
    port
}

async fn walk_to_answer(answer: impl Into<Vec<u8>>) -> Vec<Hop> {
    let port = answering(answer.into()).await;
    walk(&subject(format!("ws://127.0.0.1:{port}"), TlsTrust::PlainText), &patient()).await
}

#[tokio::test]
async fn plain_http_where_tls_was_due_fails_at_tls() {
    let port = answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec()).await;
    let (pem, _) = certificate(&["localhost"], |_| {});
    let hops = walk(&subject(format!("wss://localhost:{port}"), TlsTrust::CaFile(pem)), &patient()).await;
    let hop = failed(&hops);
    assert_eq!(hop.name, HopName::Tls);
    assert!(hop.seen.contains("does not speak TLS"), "{hop:?}");
}

#[tokio::test]
async fn a_portal_s_page_is_shown_without_its_escape_codes_and_without_the_ticket() {
    let page = "<html><title>Sign\x1b[2J in</title><body>{request}";
    let hops = walk_to_answer(format!("HTTP/1.1 200 OK\r\nServer: por\x1ftal\r\n\r\n{page}")).await;
    // A control character in a header is no HTTP at all.
    assert_eq!(failed(&hops).name, HopName::Upgrade);
    let hops = walk_to_answer(format!("HTTP/1.1 200 OK\r\nServer: portal\r\n\r\n{page}")).await;
    let hop = failed(&hops);
    assert_eq!(hop.name, HopName::Upgrade);
    assert!(hop.seen.contains("Sign\\u{1b}[2J in") && hop.seen.contains("portal"), "{hop:?}");
    assert!(hop.remedy.as_ref().unwrap().contains("log in"), "{hop:?}");
    let hops = walk_to_answer("HTTP/1.1 200 OK\r\n\r\nyou sent {request}").await;
    assert!(failed(&hops).seen.contains("[ticket]"), "{hops:?}");
    let hops = walk_to_answer("HTTP/1.1 302 Found\r\nLocation: http://portal.example/login\r\n\r\n").await;
    assert!(failed(&hops).seen.contains("portal.example"), "{hops:?}");
}

#[tokio::test]
async fn a_status_of_a_middlebox_fails_at_the_upgrade() {
    for (status, word) in [(403, "forbids"), (426, "Upgrade"), (429, "wait"), (503, "does not reach")] {
        let answer = format!("HTTP/1.1 {status} No\r\nRetry-After: 17\r\nContent-Length: 2\r\n\r\nno");
        let hops = walk_to_answer(answer).await;
        let hop = failed(&hops);
        assert_eq!(hop.name, HopName::Upgrade);
        assert!(hop.seen.contains(&status.to_string()) && hop.seen.contains("17 s"), "{hop:?}");
        assert!(hop.remedy.as_ref().unwrap().contains(word), "{hop:?}");
    }
}

#[tokio::test]
async fn a_gateway_s_refusal_fails_at_the_hop_that_it_is_about() {
    let cases = [
        (401, "ticket_expired", HopName::Ticket, Outcome::NotReached),
        (403, "unknown_network", HopName::Ticket, Outcome::NotReached),
        (401, "ticket_missing", HopName::Ticket, Outcome::NotReached),
        (426, "unsupported_version", HopName::Version, Outcome::NotReached),
        (503, "unavailable", HopName::Hub, Outcome::Passed),
        (429, "too_many_connections", HopName::Upgrade, Outcome::NotReached),
    ];
    for (status, code, name, ticket) in cases {
        let body = format!(
            r#"{{"code":"{code}","message":"a sentence\u001b[2J","what_to_do":"ask the\u0007 operator"}}"#
        );
        let head = format!("HTTP/1.1 {status} No\r\nContent-Length: {}\r\n\r\n", body.len());
        let hops = walk_to_answer(head + &body).await;
        let hop = failed(&hops);
        assert_eq!(hop.name, name, "{code}");
        assert!(hop.seen.contains(code) && hop.seen.contains("a sentence"), "{hop:?}");
        assert!(hop.remedy.as_ref().unwrap().contains("operator"), "{hop:?}");
        if name != HopName::Ticket {
            assert_eq!(outcome(&hops, HopName::Ticket), ticket, "{code}");
        }
    }
}

#[tokio::test]
async fn a_head_without_end_is_not_read_for_ever() {
    let endless = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'a'; 100_000]].concat();
    let hops = walk_to_answer(endless).await;
    let hop = failed(&hops);
    assert_eq!(hop.name, HopName::Upgrade);
    assert!(hop.seen.contains("8 KiB"), "{hop:?}");

    // A byte now and then.
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        while stream.write_all(b"H").await.is_ok() {
            tokio::time::sleep(SHORT).await;
        }
    });
    let gateway = format!("ws://127.0.0.1:{port}");
    let deadlines = Deadlines { upgrade: SHORT, ..patient() };
    let hops = walk(&subject(gateway, TlsTrust::PlainText), &deadlines).await;
    assert_eq!(failed(&hops).name, HopName::Upgrade);
}

#[tokio::test]
async fn an_answer_for_another_request_fails_at_the_upgrade() {
    let hops = walk_to_answer(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: kvasir.v1\r\n\r\n",
    )
    .await;
    assert_eq!(failed(&hops).name, HopName::Upgrade);
}

/// Takes an upgrade and answers with this subprotocol.
async fn upgraded<S>(stream: S, subprotocol: Option<&'static str>) -> WebSocketStream<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    #[allow(clippy::result_large_err)] // the callback's type is the library's
    let callback = |_: &Request, mut response: Response| {
        if let Some(subprotocol) = subprotocol {
            response.headers_mut().insert("sec-websocket-protocol", subprotocol.parse().unwrap());
        }
        Ok(response)
    };
    let config = Some(websocket_config());
    tokio_tungstenite::accept_hdr_async_with_config(stream, callback, config).await.unwrap()
}

#[tokio::test]
async fn another_subprotocol_fails_at_the_version() {
    for subprotocol in [None, Some("chat"), Some("kvasir.v9")] {
        let (listener, port) = listener().await;
        tokio::spawn(async move {
            let _socket = upgraded(listener.accept().await.unwrap().0, subprotocol).await;
            std::future::pending::<()>().await;
        });
        let gateway = format!("ws://127.0.0.1:{port}");
        let hops = walk(&subject(gateway, TlsTrust::PlainText), &patient()).await;
        let hop = failed(&hops);
        assert_eq!(hop.name, HopName::Version);
        assert_eq!(outcome(&hops, HopName::Upgrade), Outcome::Passed);
        assert_eq!(outcome(&hops, HopName::Ticket), Outcome::NotReached);
        assert!(subprotocol.is_none_or(|word| hop.seen.contains(word)), "{hop:?}");
    }
}

/// A holder that proved its key at a hub on plain TCP.
async fn at_hub(listener: &TcpListener) -> Result<Accepted<TcpStream>, LinkError> {
    let socket = upgraded(listener.accept().await.unwrap().0, Some("kvasir.v1")).await;
    accept(socket, &identity(), Role::Worker, None, fresh_nonce().unwrap(), &LinkOptions::default()).await
}

#[tokio::test]
async fn a_refusal_of_the_hub_fails_at_the_hub_or_at_the_version() {
    for (code, name) in [
        (RefusalCode::LimitReached, HopName::Hub),
        (RefusalCode::Draining, HopName::Hub),
        (RefusalCode::UnsupportedVersion, HopName::Version),
    ] {
        let (listener, port) = listener().await;
        let hub = tokio::spawn(async move {
            let refusal = Refusal::new(code, "the hub says no", "ask again").retry_after(9);
            at_hub(&listener).await.unwrap().refuse(refusal).await;
        });
        let gateway = format!("ws://127.0.0.1:{port}");
        let hops = walk(&subject(gateway, TlsTrust::PlainText), &patient()).await;
        let hop = failed(&hops);
        assert_eq!(hop.name, name);
        assert!(hop.seen.contains("the hub says no"), "{hop:?}");
        assert!(hop.remedy.as_ref().unwrap().contains("ask again (again in 9 s)"), "{hop:?}");
        assert_eq!(outcome(&hops, HopName::Ticket), Outcome::Passed);
        hub.await.unwrap();
    }
}

#[tokio::test]
async fn a_hub_that_says_nothing_fails_at_the_hub() {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        let _socket = upgraded(listener.accept().await.unwrap().0, Some("kvasir.v1")).await;
        std::future::pending::<()>().await;
    });
    let deadlines = Deadlines { hub: SHORT, close: SHORT, ..patient() };
    let gateway = format!("ws://127.0.0.1:{port}");
    let hops = walk(&subject(gateway, TlsTrust::PlainText), &deadlines).await;
    assert_eq!(failed(&hops).name, HopName::Hub);
}

#[tokio::test]
async fn without_a_backbone_it_fails_there_with_the_hub_s_words_if_there_are_any() {
    for refusal in
        [None, Some(Refusal::new(RefusalCode::NothingInCommon, "no plugin in common", "install another"))]
    {
        let (listener, port) = listener().await;
        let (quiet, words) = (refusal.is_none(), refusal.as_ref().map(|refusal| refusal.sentence.clone()));
        tokio::spawn(async move {
            let mut link = at_hub(&listener).await.unwrap().admit().unwrap();
            if let Some(refusal) = refusal {
                link.sender.refuse(refusal);
            }
            while link.receiver.next().await.is_ok() {}
            link.receiver.linger(Duration::from_secs(2)).await;
        });
        let deadlines = if quiet { Deadlines { backbone: SHORT, ..patient() } } else { patient() };
        let gateway = format!("ws://127.0.0.1:{port}");
        let hops = walk(&subject(gateway, TlsTrust::PlainText), &deadlines).await;
        let hop = failed(&hops);
        assert_eq!(hop.name, HopName::Backbone);
        assert!(words.is_none_or(|words| hop.seen.contains(&words)), "{hop:?}");
        assert_eq!(outcome(&hops, HopName::Hub), Outcome::Passed);
    }
}

#[tokio::test]
async fn a_ticket_of_one_link_is_shown_and_not_used_up() {
    let (listener, port) = listener().await;
    let hub = tokio::spawn(async move { at_hub(&listener).await.map(|_| ()) });
    let mut subject = subject(format!("ws://127.0.0.1:{port}"), TlsTrust::PlainText);
    let mut claims = ticket(Role::Worker, &key(2)).claims().clone();
    claims.limits = TicketLimits { sessions: 1, session_bytes: 0 };
    subject.ticket = Some(Ticket::issue(&claims, &key(1), &EdgeKey::from_bytes([5; 32])).unwrap());
    let hops = walk(&subject, &patient()).await;
    assert_eq!(outcome(&hops, HopName::Hub), Outcome::Passed);
    assert_eq!(outcome(&hops, HopName::Backbone), Outcome::NotReached);
    let advice = hops.iter().find(|hop| hop.name == HopName::Hub).unwrap().remedy.clone().unwrap();
    assert!(advice.contains("--danger-replace-worker"), "{advice}");
    assert!(hub.await.unwrap().is_err(), "the hub had no proof and admitted nobody");
}

#[tokio::test]
async fn without_ticket_or_key_the_way_is_gone_as_far_as_it_can_be() {
    let (listener, port) = listener().await;
    silent(listener);
    let mut subject = subject(format!("ws://127.0.0.1:{port}"), TlsTrust::PlainText);
    subject.ticket = None;
    let hops = walk(&subject, &patient()).await;
    assert_eq!(outcome(&hops, HopName::Tcp), Outcome::Passed);
    assert!(hops[4..].iter().all(|hop| hop.outcome == Outcome::NotReached), "{hops:?}");
}

#[tokio::test]
async fn where_nothing_is_wrong_every_hop_passes_and_the_backbone_is_declined() {
    let (pem, acceptor) = certificate(&["localhost"], |_| {});
    let (listener, port) = listener().await;
    let hub = tokio::spawn(async move {
        let stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
        let socket = upgraded(stream, Some("kvasir.v1")).await;
        let options = LinkOptions::default();
        let nonce = fresh_nonce().unwrap();
        let accepted = accept(socket, &identity(), Role::Worker, None, nonce, &options).await.unwrap();
        let mut link = accepted.admit().unwrap();
        let transcript = Transcript {
            version: link.admission.version,
            network: NETWORK.to_owned(),
            session: SESSION,
            worker: (&link.admission).into(),
            backbone: TranscriptEnd { key: key(3).public(), ..(&link.admission).into() },
            plugin: PLUGIN,
            model: ModelDigest([0x22; 32]),
            class: Class::Exact,
            features: Features::NONE,
        };
        link.sender.send(Kind::Transcript, transcript.encode()).unwrap();
        let said = link.receiver.next().await;
        link.receiver.linger(Duration::from_secs(2)).await;
        said
    });
    let subject = subject(format!("wss://localhost:{port}"), TlsTrust::CaFile(pem));
    let hops = walk(&subject, &patient()).await;
    assert!(hops.iter().all(|hop| hop.outcome == Outcome::Passed), "{hops:#?}");
    let tls = &hops[3].seen;
    assert!(tls.contains("TLS 1.3") && tls.contains("valid until"), "{tls}");
    match hub.await.unwrap() {
        Err(LinkError::Refused(refusal)) => {
            assert_eq!((refusal.code, refusal.session), (RefusalCode::Declined, Some(SESSION)));
        }
        Ok(Incoming::Own(payload)) => panic!("{} instead of a refusal", payload.kind.name()),
        other => panic!("{other:?}"),
    }
}
