//! A certificate chain and its private key as TLS serves them: whether they belong together, from when until when they hold, and
//! for which names. Read from PEM; the key never leaves here but into the TLS library.

use std::sync::Arc;

use rustls::{client::verify_server_name, server::ParsedCertificate, sign::CertifiedKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};

/// A chain and the key of its first certificate.
#[derive(Clone, Debug)]
pub(crate) struct ServedCertificate {
    certified: Arc<CertifiedKey>,
    validity: Option<Validity>,
}

/// When a certificate holds, in unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) from: i64,
    pub(crate) until: i64,
}

/// Why PEM text is no certificate that could be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    /// The chain is not one.
    #[error("no usable certificate: {0}")]
    Certificate(String),
    /// The key is none, or another certificate's.
    #[error("no usable private key: {0}")]
    Key(String),
}

impl ServedCertificate {
    /// Reads a chain and its private key, and checks that they belong together.
    pub(crate) fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, Unusable> {
        let chain = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| Unusable::Certificate(error.to_string()))?;
        let first = chain.first().ok_or_else(|| Unusable::Certificate("no CERTIFICATE section".into()))?;
        let validity = validity(first);
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| Unusable::Key(error.to_string()))?;
        let signing = rustls::crypto::ring::sign::any_supported_type(&key)
            .map_err(|error| Unusable::Key(error.to_string()))?;
        let certified = CertifiedKey::new(chain, signing);
        certified
            .keys_match()
            .map_err(|error| Unusable::Key(format!("it does not belong to the certificate: {error}")))?;
        Ok(ServedCertificate { certified: Arc::new(certified), validity })
    }

    /// What TLS serves.
    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }

    /// When it holds; nothing where that cannot be read.
    pub(crate) fn validity(&self) -> Option<Validity> {
        self.validity
    }

    /// Whether a client that asks for this name would take it.
    pub(crate) fn is_for(&self, name: &str) -> bool {
        let Ok(name) = ServerName::try_from(name) else { return false };
        let first = self.certified.cert.first().and_then(|first| ParsedCertificate::try_from(first).ok());
        first.is_some_and(|certificate| verify_server_name(&certificate, &name).is_ok())
    }
}

impl Validity {
    /// Seconds from now to its end; below zero behind it.
    pub(crate) fn seconds_left(self, now: u64) -> i64 {
        self.until.saturating_sub(i64::try_from(now).unwrap_or(i64::MAX))
    }
}

fn validity(certificate: &CertificateDer<'_>) -> Option<Validity> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let validity = parsed.validity();
    Some(Validity { from: validity.not_before.timestamp(), until: validity.not_after.timestamp() })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kvasir_link::unix_now;

    use super::*;
    use crate::certificate::{Names, VALID_FOR, make};

    #[test]
    fn names_and_time_are_those_of_the_first_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let names = Names::parse(&["edge.example".into(), "127.0.0.1".into()]).unwrap();
        let files = make(folder.path(), &names, false).unwrap();
        let (chain, key) = (fs::read(&files.certificate).unwrap(), fs::read(&files.key).unwrap());
        let served = ServedCertificate::from_pem(&chain, &key).unwrap();
        for name in ["edge.example", "EDGE.example", "127.0.0.1"] {
            assert!(served.is_for(name), "{name}");
        }
        for name in ["example", "a.edge.example", "127.0.0.2", "", "a b"] {
            assert!(!served.is_for(name), "{name}");
        }
        let validity = served.validity().unwrap();
        assert_eq!(u64::try_from(validity.until - validity.from).unwrap(), VALID_FOR.as_secs());
        assert!(validity.seconds_left(unix_now()) > 0);
        assert!(validity.seconds_left(u64::MAX) < 0);
    }

    #[test]
    fn a_chain_and_a_key_apart_are_refused() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [one, other] = folders.each_ref().map(|folder| {
            let names = Names::parse(&["localhost".into()]).unwrap();
            let files = make(folder.path(), &names, false).unwrap();
            (fs::read(files.certificate).unwrap(), fs::read(files.key).unwrap())
        });
        assert!(matches!(ServedCertificate::from_pem(&one.0, &other.1), Err(Unusable::Key(_))));
        assert!(matches!(ServedCertificate::from_pem(b"", &one.1), Err(Unusable::Certificate(_))));
        assert!(matches!(ServedCertificate::from_pem(&one.1, &one.1), Err(Unusable::Certificate(_))));
        assert!(matches!(ServedCertificate::from_pem(&one.0, b"x"), Err(Unusable::Key(_))));
    }
}
