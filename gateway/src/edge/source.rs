//! Where the edge's certificate comes from: files, or an ACME server.

use std::sync::Arc;

use rustls::ServerConfig;

use super::certificates::{CertificateError, Certificates, Changed, HTTP, server_config};
use crate::acme::{Acme, PROTOCOL};

/// Where it comes from; clones are the same.
#[derive(Clone, Debug)]
pub enum CertificateSource {
    /// From PEM files, which are looked at all the time.
    Files(Arc<Certificates>),
    /// By ACME.
    Acme(Arc<Acme>),
}

impl From<Arc<Certificates>> for CertificateSource {
    fn from(certificates: Arc<Certificates>) -> Self {
        CertificateSource::Files(certificates)
    }
}

impl From<Arc<Acme>> for CertificateSource {
    fn from(acme: Arc<Acme>) -> Self {
        CertificateSource::Acme(acme)
    }
}

impl CertificateSource {
    /// What a reload would take, without changing anything yet. Of a certificate by ACME there is nothing to read.
    pub fn look(&self) -> Result<Option<Changed>, CertificateError> {
        match self {
            CertificateSource::Files(certificates) => certificates.look(),
            CertificateSource::Acme(_) => Ok(None),
        }
    }

    /// A reload: takes what was found, and has an order by ACME that failed tried again at once.
    pub fn reload(&self, found: Option<Changed>) {
        match (self, found) {
            (CertificateSource::Files(certificates), Some(changed)) => certificates.take(changed),
            (CertificateSource::Files(_), None) => {}
            (CertificateSource::Acme(acme), _) => acme.try_now(),
        }
    }

    /// The TLS configuration of an edge that serves it. ACME servers have a protocol of their own, which nobody else may offer.
    pub(super) fn server_config(&self) -> Result<Arc<ServerConfig>, CertificateError> {
        match self {
            CertificateSource::Files(certificates) => certificates.server_config(),
            CertificateSource::Acme(acme) => server_config(acme.clone(), &[HTTP, PROTOCOL]),
        }
    }

    /// Keeps it up to date, for ever.
    pub(super) async fn keep(self) {
        match self {
            CertificateSource::Files(certificates) => certificates.watch().await,
            CertificateSource::Acme(acme) => acme.run().await,
        }
    }

    /// Whether there is a certificate to serve; else why not.
    pub(super) fn ready(&self) -> Result<(), String> {
        match self {
            // The edge would not have started.
            CertificateSource::Files(_) => Ok(()),
            CertificateSource::Acme(acme) => acme.ready(),
        }
    }

    /// Seconds until it expires, where there is one and that can be read.
    pub(super) fn seconds_left(&self) -> Option<i64> {
        match self {
            CertificateSource::Files(certificates) => certificates.seconds_left(),
            CertificateSource::Acme(acme) => acme.seconds_left(),
        }
    }

    /// Why the last order by ACME failed, or why what it brought cannot be kept.
    pub(super) fn last_failure(&self) -> Option<String> {
        self.acme().and_then(Acme::last_failure)
    }

    /// The one by ACME.
    pub(super) fn acme(&self) -> Option<&Acme> {
        match self {
            CertificateSource::Files(_) => None,
            CertificateSource::Acme(acme) => Some(acme),
        }
    }
}
