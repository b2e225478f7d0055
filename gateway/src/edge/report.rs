//! What the edge tells an operator.

use std::sync::Arc;

use kvasir_link::unix_now;
use maud::html;
use serde::Serialize;

use super::{CertificateSource, Shared, refusals};
use crate::{
    hub::RefusalReport,
    operations::Served,
    page::{Tile, page, span, tiles},
    stop::Stop,
};

/// The edge's report, `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EdgeStatus {
    /// The network that tickets must be for; empty where the edge only passes connections through.
    pub network: String,
    /// Whether connections are taken.
    pub ready: bool,
    /// Sessions open now.
    pub sessions: i64,
    /// Connections open now, those in handshake included.
    pub connections: usize,
    /// Those among them that have shown no ticket yet.
    pub without_ticket: usize,
    /// Connections passed through to backends, open now.
    pub passed_through: i64,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Bytes moved to the hub since the start.
    pub bytes_to_hub: u64,
    /// Bytes moved to workers since the start.
    pub bytes_to_worker: u64,
    /// Seconds until the certificate expires, below zero behind it; nothing where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_seconds_left: Option<i64>,
    /// Why the last order of a certificate by ACME failed, or why what it brought cannot be kept; nothing where all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_failure: Option<String>,
    /// The latest refusals of this edge, the newest first; `whom` is an address. What the hub refused is not among them.
    pub refusals: Vec<RefusalReport>,
}

/// What an edge tells.
pub(super) struct EdgeReport {
    shared: Arc<Shared>,
    stop: Stop,
}

impl EdgeReport {
    pub(super) fn new(shared: Arc<Shared>, stop: Stop) -> Self {
        EdgeReport { shared, stop }
    }

    fn certificates(&self) -> Option<&CertificateSource> {
        self.shared.own.as_ref().map(|own| &own.certificates)
    }

    fn report(&self) -> EdgeStatus {
        let metrics = &self.shared.metrics;
        let (connections, without_ticket) = self.shared.gate.counts();
        EdgeStatus {
            network: self.shared.options.network.clone(),
            ready: self.ready().is_ok(),
            sessions: metrics.door.sessions_open(),
            connections,
            without_ticket,
            passed_through: metrics.passages_open(),
            accepted: metrics.door.accepts.get(),
            bytes_to_hub: metrics.splice.forward.get(),
            bytes_to_worker: metrics.splice.backward.get(),
            certificate_seconds_left: self.certificates().and_then(CertificateSource::seconds_left),
            certificate_failure: self.certificates().and_then(CertificateSource::last_failure),
            refusals: self.shared.refusals.latest(),
        }
    }
}

impl Served for EdgeReport {
    fn metrics(&self) -> String {
        let metrics = &self.shared.metrics;
        metrics.door.look(self.shared.gate.counts(), self.shared.accept.get().descriptors);
        metrics.look(self.certificates());
        metrics.text()
    }

    fn ready(&self) -> Result<(), String> {
        match self.stop.is_stopped() {
            true => Err("it is stopping: sessions may finish, new connections are not taken".into()),
            false => self.certificates().map_or(Ok(()), CertificateSource::ready),
        }
    }

    fn status(&self) -> String {
        serde_json::to_string(&self.report()).unwrap_or_default()
    }

    fn page(&self) -> String {
        let report = self.report();
        let body = html! {
            (tiles(&[
                Tile::count("Sessions", report.sessions.unsigned_abs()),
                Tile::count("Connections", report.connections as u64),
                Tile::count("Without a ticket", report.without_ticket as u64),
                Tile::count("Passed through", report.passed_through.unsigned_abs()),
                Tile::count("Accepted", report.accepted),
                Tile::bytes("To the hub", report.bytes_to_hub),
                Tile::bytes("To workers", report.bytes_to_worker),
            ]))
            @if let Some(left) = report.certificate_seconds_left {
                @match u64::try_from(left) {
                    Ok(left) => p.soft { "The certificate holds for another " (span(left)) "." },
                    Err(_) => p { "The certificate has expired." },
                }
            }
            @if let Some(failure) = &report.certificate_failure {
                p { "What failed last about the certificate: " (failure) }
            }
            (refusals::list(&report.refusals, unix_now()))
            p.soft {
                "The edge does not look into sessions. Who is connected, and why somebody was refused behind it, is on the "
                "hub's page."
            }
        };
        page("edge", &report.network, &self.ready(), body)
    }
}
