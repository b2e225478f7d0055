//! Who has been at the edge before resumes its TLS: an abbreviated handshake, by a ticket of TLS that the edge keeps nothing for.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod scene;

use std::sync::Arc;

use front::Front;
use rustls::HandshakeKind;
use scene::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// How the handshake went of a client that then asks for something and reads the answer, the ticket for the next time
/// before it.
async fn handshake(front: &Front, config: &Arc<rustls::ClientConfig>) -> HandshakeKind {
    let mut stream = front.dial(config.clone()).await;
    stream.write_all(b"GET /elsewhere HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    patiently(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    stream.get_ref().1.handshake_kind().unwrap()
}

#[tokio::test]
async fn a_second_handshake_is_abbreviated_and_after_a_restart_full_once() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let mut front = Front::start(&scene).await;
    let config = front.client_config();
    assert_eq!(handshake(&front, &config).await, HandshakeKind::Full);
    assert_eq!(handshake(&front, &config).await, HandshakeKind::Resumed);
    assert_eq!(handshake(&front, &config).await, HandshakeKind::Resumed, "each leaves a ticket for the next");
    // Another client has none.
    assert_eq!(handshake(&front, &front.client_config()).await, HandshakeKind::Full);

    // An edge that was started anew has other keys for its tickets: what it cannot read it does not hold against anybody.
    front.stop().await;
    front.again().await;
    assert_eq!(handshake(&front, &config).await, HandshakeKind::Full);
    assert_eq!(handshake(&front, &config).await, HandshakeKind::Resumed);
}
