//! What the edge counts. It is blind behind the head, so it counts bytes by direction and knows no lanes.

use std::sync::Arc;

use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

use super::{source::CertificateSource, splice::SpliceMeter};
use crate::metrics::{DoorMetrics, Label, Register};

/// The edge's figures.
#[derive(Debug)]
pub(super) struct EdgeMetrics {
    register: Register,
    /// What every door counts.
    pub(super) door: DoorMetrics,
    /// What every worker's splice adds to.
    pub(super) splice: SpliceMeter,
    /// What every splice with a backend adds to.
    pub(super) passed: SpliceMeter,
    passed_open: Gauge,
    /// Nothing where the edge ends no TLS.
    certificate_seconds_left: Option<Gauge>,
}

/// A connection that is passed through. Dropping it ends it, once.
#[derive(Debug)]
pub(super) struct OpenPassage(Gauge);

impl Drop for OpenPassage {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl EdgeMetrics {
    /// `certificates` where the edge ends TLS.
    pub(super) fn new(certificates: Option<&CertificateSource>) -> Arc<Self> {
        let mut register = Register::new();
        let door = DoorMetrics::new(&mut register);
        let bytes: Family<Label, Counter> = register.add(
            "bytes",
            "Bytes moved by direction, those of sessions with TLS taken off",
            Family::default(),
        );
        let toward = |direction| bytes.get_or_create_owned(&[("direction", direction)]);
        let buffers: Gauge = register.add(
            "splice_buffer_bytes",
            "Bytes of memory that buffers of sessions and passages take now",
            Gauge::default(),
        );
        let meter = |forward, backward| SpliceMeter {
            forward: toward(forward),
            backward: toward(backward),
            buffers: buffers.clone(),
        };
        let (splice, passed) = (meter("to_hub", "to_worker"), meter("to_backend", "from_backend"));
        let passed_open: Gauge = register.add(
            "passed_through_open",
            "Connections passed through to backends, open now",
            Gauge::default(),
        );
        let certificate_seconds_left: Option<Gauge> = certificates.map(|_| {
            register.add(
                "certificate_seconds_left",
                "Seconds until the certificate expires, below zero behind it; 0 also where there is none",
                Gauge::default(),
            )
        });
        if let Some(acme) = certificates.and_then(CertificateSource::acme) {
            let figures = acme.figures().clone();
            register.add("acme_issued", "Certificates that the ACME server issued", figures.issued);
            register.add("acme_failed", "Orders that brought no certificate", figures.failed);
            register.add(
                "acme_last_failure_timestamp_seconds",
                "When the last order failed, in unix seconds; 0: it succeeded, or there was none",
                figures.last_failure,
            );
        }
        Arc::new(EdgeMetrics { register, door, splice, passed, passed_open, certificate_seconds_left })
    }

    /// Brings what is asked for only now up to date.
    pub(super) fn look(&self, certificates: Option<&CertificateSource>) {
        if let (Some(gauge), Some(certificates)) = (&self.certificate_seconds_left, certificates) {
            gauge.set(certificates.seconds_left().unwrap_or(0));
        }
    }

    /// A connection is passed through; until the guard is dropped.
    pub(super) fn passage(&self) -> OpenPassage {
        self.passed_open.inc();
        OpenPassage(self.passed_open.clone())
    }

    /// Connections passed through, open now.
    pub(super) fn passages_open(&self) -> i64 {
        self.passed_open.get()
    }

    pub(super) fn text(&self) -> String {
        self.register.text()
    }
}
