//! Dialling over TCP: TLS with a CA file, refusals before the upgrade, addresses that cannot be used.

use std::sync::Arc;

use kvasir_link::{
    LinkError, LinkOptions, TlsTrust, accept, connect_backbone, connect_worker, fresh_nonce, websocket_config,
};
use kvasir_wire::handshake::{Features, Purpose};
use kvasir_wire::refusal::RefusalCode;
use kvasir_wire::ticket::{Role, Ticket};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

use crate::parties::*;

/// Takes one upgrade and one handshake, checking path, subprotocol and header; keeps the link until it ends.
async fn hub_on<S>(stream: S, role: Role, path: &'static str)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut header = None;
    #[allow(clippy::result_large_err)] // the callback's type is the library's
    let callback = |request: &Request, mut response: Response| {
        assert_eq!(request.uri().path(), path);
        assert_eq!(request.uri().query(), None);
        let authorization = request.headers()["authorization"].to_str().unwrap();
        header = Some(Ticket::from_authorization(authorization).unwrap());
        assert_eq!(request.headers()["sec-websocket-protocol"], "kvasir.v1");
        response.headers_mut().insert("sec-websocket-protocol", "kvasir.v1".parse().unwrap());
        Ok(response)
    };
    let config = Some(websocket_config());
    let socket = tokio_tungstenite::accept_hdr_async_with_config(stream, callback, config).await.unwrap();
    let options = LinkOptions::default();
    let nonce = fresh_nonce().unwrap();
    let accepted = accept(socket, &identity(), role, header.as_ref(), nonce, &options).await.unwrap();
    let mut link = accepted.admit().unwrap();
    let _ = link.receiver.next().await;
}

#[tokio::test]
async fn a_backbone_dials_the_hub_on_the_lan() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let hub = tokio::spawn(async move {
        hub_on(listener.accept().await.unwrap().0, Role::Backbone, "/v1/backbone").await;
    });
    let holder = key(3);
    let ticket = ticket(Role::Backbone, &holder);
    let purpose = Purpose::Session(SESSION);
    let link =
        connect_backbone(&url, &ticket, &holder, purpose, Features::NONE, &LinkOptions::default()).await;
    let link = link.unwrap();
    assert_eq!(link.admission.holder, holder.public());
    assert!(link.hub_time.abs_diff(kvasir_link::unix_now()) < 60);
    drop(link);
    hub.await.unwrap();
}

/// A certificate for `localhost` that is its own authority: PEM and a TLS acceptor.
fn certificate() -> (Vec<u8>, tokio_rustls::TlsAcceptor) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    (made.cert.pem().into_bytes(), tokio_rustls::TlsAcceptor::from(Arc::new(config)))
}

#[tokio::test]
async fn a_worker_dials_through_tls_and_believes_only_its_ca_file() {
    let (pem, acceptor) = certificate();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("wss://localhost:{}/prefix/", listener.local_addr().unwrap().port());
    let hub = tokio::spawn(async move {
        let tls = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
        hub_on(tls, Role::Worker, "/prefix/v1/worker").await;
        // The second dialler believes another authority and gives up.
        let refused = acceptor.accept(listener.accept().await.unwrap().0).await;
        assert!(refused.is_err());
    });
    let holder = key(2);
    let ticket = ticket(Role::Worker, &holder);
    let options = LinkOptions::default();
    let dial = |trust: TlsTrust| {
        let (url, ticket, holder, options) = (url.clone(), ticket.clone(), holder.clone(), options.clone());
        async move {
            connect_worker(&url, &trust, &ticket, &holder, worker_offer(), Features::NONE, &options).await
        }
    };
    let link = dial(TlsTrust::CaFile(pem)).await.unwrap();
    drop(link);
    let (other_pem, _) = certificate();
    let error = dial(TlsTrust::CaFile(other_pem)).await.unwrap_err();
    assert!(matches!(error, LinkError::Tls { .. }), "{error}");
    let error = dial(TlsTrust::CaFile(b"no certificate".to_vec())).await;
    assert!(error.is_err());
    hub.await.unwrap();
}

#[test]
fn a_ca_file_is_checked_without_dialling() {
    let (pem, _) = certificate();
    assert_eq!(TlsTrust::CaFile(pem).check(), Ok(()));
    assert_eq!(TlsTrust::WebRoots.check(), Ok(()));
    for wrong in
        [&b""[..], b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
    {
        assert!(TlsTrust::CaFile(wrong.to_vec()).check().unwrap_err().contains("the CA file"));
    }
}

/// A server that reads the request and answers with `parts`, one write each.
async fn answer(parts: Vec<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 8192];
        let _ = stream.read(&mut request).await.unwrap();
        for part in parts {
            stream.write_all(&part).await.unwrap();
            stream.flush().await.unwrap();
            tokio::task::yield_now().await;
        }
        let _ = stream.shutdown().await;
        let _ = stream.read(&mut request).await;
    });
    url
}

async fn dial_error(parts: Vec<Vec<u8>>) -> LinkError {
    let url = answer(parts).await;
    let holder = key(3);
    let ticket = ticket(Role::Backbone, &holder);
    let purpose = Purpose::Session(SESSION);
    connect_backbone(&url, &ticket, &holder, purpose, Features::NONE, &LinkOptions::default())
        .await
        .unwrap_err()
}

#[tokio::test]
async fn a_refusal_before_the_upgrade_is_typed() {
    let body = br#"{"code":"too_many_sessions","message":"two sessions are open","what_to_do":"close one"}"#;
    let head = format!(
        "HTTP/1.1 429 Too Many Requests\r\nContent-Length: {}\r\nRetry-After: 20\r\n\r\n",
        body.len()
    );
    // The body comes apart from the head, in two pieces.
    let parts = vec![head.into_bytes(), body[..20].to_vec(), body[20..].to_vec()];
    match dial_error(parts).await {
        LinkError::Refused(refusal) => {
            assert_eq!(refusal.code, RefusalCode::TooManySessions);
            assert_eq!(refusal.sentence, "two sessions are open");
            assert_eq!(refusal.what_to_do, "close one");
            assert_eq!(refusal.retry_after, Some(20));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn other_answers_are_named_for_what_they_are() {
    let error =
        dial_error(vec![b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\n\r\nhello".to_vec()]).await;
    assert!(matches!(&error, LinkError::Http { status: 502, body, .. } if body == "hello"), "{error}");
    assert_eq!(error.retry_after(), None);
    let busy = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(dial_error(vec![busy.to_vec()]).await.retry_after(), Some(7));
    let error = dial_error(vec![b"SSH-2.0-OpenSSH\r\n\r\n".to_vec()]).await;
    assert!(matches!(error, LinkError::Unexpected { .. }), "{error}");
    let error = dial_error(vec![]).await;
    assert!(matches!(error, LinkError::Lost(_)), "{error}");
    let wrong =
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: AAAA\r\n\r\n";
    let error = dial_error(vec![wrong.to_vec()]).await;
    assert!(matches!(error, LinkError::Unexpected { .. }), "{error}");
    let endless = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'a'; 20_000]].concat();
    let error = dial_error(vec![endless]).await;
    assert!(matches!(error, LinkError::Unexpected { .. }), "{error}");
}

#[tokio::test]
async fn addresses_that_cannot_be_used_are_refused_before_dialling() {
    let holder = key(2);
    let ticket = ticket(Role::Worker, &holder);
    for (url, trust) in [
        ("ws://example.com", TlsTrust::WebRoots),
        ("wss://example.com", TlsTrust::PlainText),
        ("https://example.com", TlsTrust::WebRoots),
        ("wss://example.com/?ticket=x", TlsTrust::WebRoots),
        ("wss://user@example.com", TlsTrust::WebRoots),
        ("not a url", TlsTrust::WebRoots),
        ("/v1/worker", TlsTrust::WebRoots),
    ] {
        let options = LinkOptions::default();
        let result =
            connect_worker(url, &trust, &ticket, &holder, worker_offer(), Features::NONE, &options).await;
        match result {
            Err(error @ LinkError::Address { .. }) => assert!(error.is_permanent()),
            other => panic!("{url}: {other:?}"),
        }
    }
}
