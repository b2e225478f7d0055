//! The edge's certificate: read from PEM files, and read again when they change, without touching a session.
//!
//! A changed file that cannot be used (half written, key and certificate apart) leaves the one in use in place and says so
//! in the log. The private key never leaves this module but into the TLS library.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use kvasir_ledger::files::read_regular;
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// Most bytes of a certificate or key file.
const MAX_PEM_BYTES: u64 = 1 << 20;
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
    certified: Arc<CertifiedKey>,
    /// The bytes that were read, to see a change by content: times lie on copies and on coarse clocks.
    seen: (Vec<u8>, Vec<u8>),
}

impl Certificates {
    /// Reads a certificate chain and its private key, both PEM, and checks that they belong together.
    pub fn load(certificate_path: &Path, key_path: &Path) -> Result<Arc<Self>, CertificateError> {
        let seen = (read(certificate_path)?, read(key_path)?);
        let certified = Arc::new(certified_key(certificate_path, key_path, &seen)?);
        Ok(Arc::new(Certificates {
            certificate_path: certificate_path.into(),
            key_path: key_path.into(),
            current: RwLock::new(Current { certified, seen }),
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
        let certified = Arc::new(certified_key(&self.certificate_path, &self.key_path, &seen)?);
        Ok(Some(Changed(Current { certified, seen })))
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

    /// The TLS configuration of the edge: TLS 1.3 only, `http/1.1` by ALPN, stateless session tickets so that a herd of
    /// reconnects is cheap, no early data (it can be replayed).
    pub fn server_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, CertificateError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.ticketer = rustls::crypto::ring::Ticketer::new()?;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.max_early_data_size = 0;
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().unwrap_or_else(PoisonError::into_inner).certified.clone())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let unreadable = |source| CertificateError::Unreadable { path: path.into(), source };
    read_regular(path, MAX_PEM_BYTES).map_err(|source| match source.kind() {
        std::io::ErrorKind::FileTooLarge => CertificateError::TooLarge { path: path.into() },
        _ => unreadable(source),
    })
}

fn certified_key(
    certificate_path: &Path,
    key_path: &Path,
    (certificate, key): &(Vec<u8>, Vec<u8>),
) -> Result<CertifiedKey, CertificateError> {
    let unusable =
        |path: &Path, what, detail: String| CertificateError::Unusable { path: path.into(), what, detail };
    let chain = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unusable(certificate_path, "certificate", error.to_string()))?;
    if chain.is_empty() {
        return Err(unusable(certificate_path, "certificate", "no CERTIFICATE section".into()));
    }
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| unusable(key_path, "private key", error.to_string()))?;
    let signing = rustls::crypto::ring::sign::any_supported_type(&key)
        .map_err(|error| unusable(key_path, "private key", error.to_string()))?;
    let certified = CertifiedKey::new(chain, signing);
    certified.keys_match().map_err(|error| {
        unusable(
            key_path,
            "private key",
            format!("it does not belong to {}: {error}", certificate_path.display()),
        )
    })?;
    Ok(certified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::{Names, make};

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
        let in_use = certificates.current.read().unwrap().certified.clone();
        std::fs::copy(&newer.key, &paths.key).unwrap();
        let changed = certificates.look().unwrap().unwrap();
        assert_eq!(
            in_use.cert,
            certificates.current.read().unwrap().certified.cert,
            "looking changes nothing"
        );
        certificates.take(changed);
        assert!(!certificates.reload().unwrap(), "that is in use already");
        assert_ne!(in_use.cert, certificates.current.read().unwrap().certified.cert);

        std::fs::write(&paths.certificate, "-----BEGIN CERTIFICATE-----\nAAAA").unwrap();
        assert!(certificates.reload().is_err());
        std::fs::write(&paths.certificate, vec![b'a'; MAX_PEM_BYTES as usize + 1]).unwrap();
        assert!(matches!(certificates.reload(), Err(CertificateError::TooLarge { .. })));
    }
}
