//! The edge behind proxies: whose connection it takes one for, and whom it believes.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod edge_scene;
mod metric;

use kvasir_gateway::edge::SlotLimits;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use edge_scene::*;

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
