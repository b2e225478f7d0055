//! The edge's certificate: read from PEM files, and read again when they change, without touching a session.
//!
//! A changed file that cannot be used (half written, key and certificate apart) leaves the one in use in place and says so
//! in the log.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use kvasir_ledger::files::read_regular;
use kvasir_link::unix_now;
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::served_certificate::{ServedCertificate, Unusable};

/// Most bytes of a certificate or key file.
const MAX_PEM_BYTES: u64 = 1 << 20;
/// What workers speak inside TLS.
pub(super) const HTTP: &[u8] = b"http/1.1";
/// How often the files are looked at.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("reading {path}: {source}; give the path of a PEM file that this user may read")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is larger than a certificate chain can reasonably be.
    #[error("{path} is larger than {MAX_PEM_BYTES} bytes: it is not a PEM certificate or key")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A file holds no certificate or key, or none that parses.
    #[error("{path} holds no usable {what}: {detail}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
        /// What the parser said.
        detail: String,
    },
    /// TLS cannot be configured.
    #[error("configuring TLS 1.3: {0}")]
    Tls(#[from] rustls::Error),
}

/// The certificate in use, and the files it came from.
#[derive(Debug)]
pub struct Certificates {
    certificate_path: PathBuf,
    key_path: PathBuf,
    current: RwLock<Current>,
}

/// A certificate that was read and is not in use yet.
#[derive(Debug)]
pub struct Changed(Current);

#[derive(Debug)]
struct Current {
    served: ServedCertificate,
    /// The bytes that were read, to see a change by content: times lie on copies and on coarse clocks.
    seen: (Vec<u8>, Vec<u8>),
}

impl Certificates {
    /// Reads a certificate chain and its private key, both PEM, and checks that they belong together.
    pub fn load(certificate_path: &Path, key_path: &Path) -> Result<Arc<Self>, CertificateError> {
        let seen = (read(certificate_path)?, read(key_path)?);
        let served = served(certificate_path, key_path, &seen)?;
        Ok(Arc::new(Certificates {
            certificate_path: certificate_path.into(),
            key_path: key_path.into(),
            current: RwLock::new(Current { served, seen }),
        }))
    }

    /// Reads the files again if their content changed. Answers whether another certificate is in use now; on an error the
    /// old one stays.
    pub fn reload(&self) -> Result<bool, CertificateError> {
        let changed = self.look()?;
        let any = changed.is_some();
        if let Some(changed) = changed {
            self.take(changed);
        }
        Ok(any)
    }

    /// Reads the files, and changes nothing yet: what [`Certificates::take`] takes, if their content is another.
    pub fn look(&self) -> Result<Option<Changed>, CertificateError> {
        let seen = (read(&self.certificate_path)?, read(&self.key_path)?);
        if self.current.read().unwrap_or_else(PoisonError::into_inner).seen == seen {
            return Ok(None);
        }
        let served = served(&self.certificate_path, &self.key_path, &seen)?;
        Ok(Some(Changed(Current { served, seen })))
    }

    /// From now on this certificate is in use.
    pub fn take(&self, changed: Changed) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = changed.0;
    }

    /// Looks at the files every [`RELOAD_INTERVAL`], for ever. Errors are logged once per change of their text.
    pub async fn watch(self: Arc<Self>) {
        let mut last_error = String::new();
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let certificates = self.clone();
            let result = tokio::task::spawn_blocking(move || certificates.reload()).await;
            match result {
                Ok(Ok(false)) => last_error.clear(),
                Ok(Ok(true)) => {
                    last_error.clear();
                    tracing::info!(certificate = %self.certificate_path.display(), "certificate reloaded");
                }
                Ok(Err(error)) => {
                    let text = error.to_string();
                    if text != last_error {
                        tracing::error!("certificate not reloaded, the old one stays in use: {text}");
                        last_error = text;
                    }
                }
                Err(error) => tracing::error!("certificate reload stopped: {error}"),
            }
        }
    }

    /// The TLS configuration of an edge that serves it.
    pub fn server_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, CertificateError> {
        server_config(self.clone(), &[HTTP])
    }

    /// Seconds until the one in use expires, where that can be read.
    pub(super) fn seconds_left(&self) -> Option<i64> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.served.validity().map(|validity| validity.seconds_left(unix_now()))
    }
}

/// Plaintext in one TLS record. Who reads has nothing of a record before it has all of it, and the splice seals whatever it has
/// together: a ping's answer or the end of a call before a chunk of bulk would wait for 16 KiB of that, 6.6 ms at 20 Mbit/s.
const RECORD_BYTES: usize = 4096;

/// The TLS configuration of the edge: TLS 1.3 only, stateless session tickets so that a herd of reconnects is cheap, no early
/// data (it can be replayed). Of `protocols` (ALPN) the first that a client offers is agreed on.
pub(super) fn server_config(
    resolver: Arc<dyn ResolvesServerCert>,
    protocols: &[&[u8]],
) -> Result<Arc<ServerConfig>, CertificateError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(resolver);
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.ticketer = rustls::crypto::ring::Ticketer::new()?;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.max_early_data_size = 0;
    config.max_fragment_size = Some(RECORD_BYTES);
    Ok(Arc::new(config))
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().unwrap_or_else(PoisonError::into_inner).served.certified())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let unreadable = |source| CertificateError::Unreadable { path: path.into(), source };
    read_regular(path, MAX_PEM_BYTES).map_err(|source| match source.kind() {
        std::io::ErrorKind::FileTooLarge => CertificateError::TooLarge { path: path.into() },
        _ => unreadable(source),
    })
}

fn served(
    certificate_path: &Path,
    key_path: &Path,
    (certificate, key): &(Vec<u8>, Vec<u8>),
) -> Result<ServedCertificate, CertificateError> {
    ServedCertificate::from_pem(certificate, key).map_err(|unusable| {
        let (path, what, detail) = match unusable {
            Unusable::Certificate(detail) => (certificate_path, "certificate", detail),
            Unusable::Key(detail) => (key_path, "private key", detail),
        };
        CertificateError::Unusable { path: path.into(), what, detail }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::{Names, make};

    fn in_use_by(certificates: &Certificates) -> Arc<CertifiedKey> {
        certificates.current.read().unwrap().served.certified()
    }

    #[test]
    fn a_changed_certificate_is_used_and_a_broken_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let names = Names::parse(&["localhost".into(), "127.0.0.1".into()]).unwrap();
        let paths = make(folder.path(), &names, false).unwrap();
        let certificates = Certificates::load(&paths.certificate, &paths.key).unwrap();
        certificates.server_config().unwrap();
        assert!(!certificates.reload().unwrap(), "nothing changed");

        let other = tempfile::tempdir().unwrap();
        let newer = make(other.path(), &names, false).unwrap();
        std::fs::copy(&newer.certificate, &paths.certificate).unwrap();
        assert!(certificates.reload().is_err(), "a certificate without its key is refused");
        let in_use = in_use_by(&certificates);
        std::fs::copy(&newer.key, &paths.key).unwrap();
        let changed = certificates.look().unwrap().unwrap();
        assert_eq!(in_use.cert, in_use_by(&certificates).cert, "looking changes nothing");
        certificates.take(changed);
        assert!(!certificates.reload().unwrap(), "that is in use already");
        assert_ne!(in_use.cert, in_use_by(&certificates).cert);
        assert!(certificates.seconds_left().unwrap() > 0);

        std::fs::write(&paths.certificate, "-----BEGIN CERTIFICATE-----\nAAAA").unwrap();
        assert!(certificates.reload().is_err());
        std::fs::write(&paths.certificate, vec![b'a'; MAX_PEM_BYTES as usize + 1]).unwrap();
        assert!(matches!(certificates.reload(), Err(CertificateError::TooLarge { .. })));
    }
}
