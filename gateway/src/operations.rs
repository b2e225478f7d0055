//! The operations listener: what an operator and a monitoring system ask, on an address of its own.
//!
//! `GET /metrics` for Prometheus, `/ready` for a load balancer, `/v1/status` as JSON and `/status` as a page. It is off
//! unless an address is given, and belongs on the loopback or the LAN: it knows no credentials. What it says holds no
//! secret, but it names keys and addresses of peers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use kvasir_link::Congestion;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use crate::{
    http_head::{HeadError, RequestHead},
    http_refusal::{HttpRefusal, response},
    listen::{self, ListenError},
    metrics,
};

/// Path of the metrics.
pub const METRICS_PATH: &str = "/metrics";
/// Path that answers whether connections are taken.
pub const READY_PATH: &str = "/ready";
/// Path of the report as JSON.
pub const STATUS_PATH: &str = "/v1/status";
/// Path of the report as a page.
pub const PAGE_PATH: &str = "/status";
/// Path of the page's stylesheet.
pub const STYLE_PATH: &str = "/style.css";
const PATHS: [&str; 5] = [METRICS_PATH, READY_PATH, STATUS_PATH, PAGE_PATH, STYLE_PATH];

/// Connections that are answered at one time; more are closed unread.
pub const MAX_CONNECTIONS: usize = 32;
/// From accept to the end of the answer.
pub const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Most bytes that are read on behind a request, so that its answer is not lost to a reset.
const READ_ON_BYTES: u64 = 16 * 1024;

/// No script, nothing from elsewhere, nobody's frame.
const PAGE_HEADERS: &str = "Content-Security-Policy: default-src 'none'; style-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
    X-Frame-Options: DENY\r\n";
const STYLE: &str = include_str!("operations/style.css");

/// What a program has to say.
pub trait Served: Send + Sync + 'static {
    /// The metrics as text.
    fn metrics(&self) -> String;
    /// Whether connections are taken; else why not.
    fn ready(&self) -> Result<(), String>;
    /// The report as JSON.
    fn status(&self) -> String;
    /// The report as a page.
    fn page(&self) -> String;
}

/// An operations listener that is bound to its address.
#[derive(Debug)]
pub struct Operations {
    listener: TcpListener,
    address: SocketAddr,
}

impl Operations {
    /// Binds the address; it is answered once [`Operations::run`] is called.
    pub fn bind(address: SocketAddr) -> Result<Self, ListenError> {
        let listener = listen::bind(address, &Congestion::System)?;
        let address = listen::local_address(&listener)?;
        Ok(Operations { listener, address })
    }

    /// The address in use, with the port that the system chose if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until it is dropped. It goes on while the program drains: that is when an operator looks.
    pub async fn run(self, served: Arc<dyn Served>) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let Ok(place) = places.clone().try_acquire_owned() else { continue };
                    let served = served.clone();
                    tokio::spawn(async move {
                        match timeout(ANSWER_TIME, answer(stream, &*served)).await {
                            Ok(Ok(())) => {}
                            Ok(Err(error)) => tracing::debug!(%peer, "operations: {error}"),
                            Err(_) => tracing::debug!(%peer, "operations: not done within {ANSWER_TIME:?}"),
                        }
                        drop(place);
                    });
                }
                Err(error) => listen::accept_failed(&error).await,
            }
        }
    }
}

async fn answer(mut stream: TcpStream, served: &dyn Served) -> std::io::Result<()> {
    let bytes = match RequestHead::read(&mut stream).await {
        Ok(head) => answer_to(&head, served).unwrap_or_else(|refusal| refusal.to_response()),
        Err(HeadError::Refused(refusal)) => refusal.to_response(),
        Err(HeadError::Ended) => return Ok(()),
        Err(HeadError::Stream(error)) => return Err(error),
    };
    stream.write_all(&bytes).await?;
    stream.shutdown().await?;
    let mut rest = (&mut stream).take(READ_ON_BYTES);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await.map(|_| ())
}

fn answer_to(head: &RequestHead, served: &dyn Served) -> Result<Vec<u8>, HttpRefusal> {
    head.check_route(&PATHS)?;
    Ok(match head.path() {
        METRICS_PATH => response(200, metrics::CONTENT_TYPE, "", &served.metrics()),
        READY_PATH => ready_response(served.ready()),
        STATUS_PATH => response(200, "application/json", "", &served.status()),
        STYLE_PATH => response(200, "text/css; charset=utf-8", PAGE_HEADERS, STYLE),
        _ => response(200, "text/html; charset=utf-8", PAGE_HEADERS, &served.page()),
    })
}

/// The answer to whoever asks whether connections are taken.
pub fn ready_response(ready: Result<(), String>) -> Vec<u8> {
    let (status, body) = match ready {
        Ok(()) => (200, serde_json::json!({"ready": true})),
        Err(why) => (503, serde_json::json!({"ready": false, "why": why})),
    };
    response(status, "application/json", "", &body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Still(Result<(), String>);

    impl Served for Still {
        fn metrics(&self) -> String {
            "kvasir_gateway_accepts_total 1\n".into()
        }
        fn ready(&self) -> Result<(), String> {
            self.0.clone()
        }
        fn status(&self) -> String {
            "{}".into()
        }
        fn page(&self) -> String {
            "<!DOCTYPE html>".into()
        }
    }

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    fn start(served: Still) -> SocketAddr {
        let operations = Operations::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = operations.address();
        tokio::spawn(operations.run(Arc::new(served)));
        address
    }

    #[tokio::test]
    async fn each_path_has_its_type_and_others_are_refused() {
        let address = start(Still(Ok(())));
        for (path, expected) in [
            ("/metrics", "Content-Type: text/plain; version=0.0.4"),
            ("/ready", "{\"ready\":true}"),
            ("/v1/status", "Content-Type: application/json"),
            ("/status", "Content-Security-Policy: default-src 'none'"),
            ("/style.css", "Content-Type: text/css"),
            ("/", "HTTP/1.1 404"),
            ("/status?script", "HTTP/1.1 400"),
        ] {
            let answer = ask(address, &format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            assert!(answer.contains(expected), "{path}: {answer}");
        }
        let answer = ask(address, "POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nxx").await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }

    #[tokio::test]
    async fn who_is_not_ready_says_why() {
        let address = start(Still(Err("it is stopping".into())));
        let answer = ask(address, "GET /ready HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("it is stopping"), "{answer}");
    }

    #[tokio::test]
    async fn one_connection_too_many_is_closed_unread() {
        let address = start(Still(Ok(())));
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut one_more = TcpStream::connect(address).await.unwrap();
        // Let in, it would be answered.
        let _ = one_more.write_all(b"GET /ready HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let mut answer = Vec::new();
        // An end or a reset: closed either way.
        let _ = one_more.read_to_end(&mut answer).await;
        assert!(answer.is_empty());
        drop(silent);
    }
}
