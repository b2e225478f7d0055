//! What the edge tells its operator: metrics, report, page and log.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod edge_scene;
mod metric;

use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use kvasir_gateway::{edge::SlotLimits, http_refusal::RefusalBody};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use edge_scene::*;

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
    let late = Rig::start(|options| options.upgrade_deadline = Duration::from_millis(50)).await;
    closed_at(late.edge, b"").await;
    late.metric("kvasir_gateway_handshakes_total{result=\"timed_out\"} 1").await;
    let full = Rig::start(|options| {
        options.slots = SlotLimits { unauthenticated: 1, ..SlotLimits::default() };
    })
    .await;
    let kept = [TcpStream::connect(full.edge).await.unwrap(), TcpStream::connect(full.edge).await.unwrap()];
    full.metric("kvasir_gateway_handshakes_total{result=\"evicted\"} 1").await;
    drop(kept);
    for Rig { stop, run, .. } in [rig, late, full] {
        stop.stop();
        run.await.unwrap();
    }
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("ticket_expired") && log.contains("session ended"), "{log}");
    // Of every connection of this file: whoever floods the edge does not flood the log with it.
    let levels = |level: &str, of: &str| -> usize {
        log.lines().filter(|line| line.contains(of) && line.contains(level)).count()
    };
    for cheap in
        ["not upgraded: TLS handshake", "not upgraded: not done within", "closed for a newer connection"]
    {
        assert_eq!((levels(" INFO ", cheap), levels("DEBUG ", cheap) > 0), (0, true), "{cheap}\n{log}");
    }
    assert!(levels(" INFO ", "ticket_expired") > 0, "{log}");
    for ticket in [good, expired] {
        // Everything behind the prefix, by its first letters.
        let secret = &ticket["kvasir-ticket-v1.".len()..][..40];
        assert!(!log.contains(secret), "a ticket is in the log");
    }
}
