//! The proof that a name is this edge's, TLS-ALPN-01 (RFC 8737): who asks for the name and offers `acme-tls/1` alone is shown a
//! certificate of our own making, which holds the digest that the ACME server expects. Nothing is said inside that TLS.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::{server::ClientHello, sign::CertifiedKey};
use rustls_pki_types::PrivateKeyDer;

/// The protocol that a client of such a connection offers, by ALPN.
pub(crate) const PROTOCOL: &[u8] = b"acme-tls/1";
/// Bytes of the digest that is shown.
const DIGEST_BYTES: usize = 32;

/// Why a challenge cannot be answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("the digest of a challenge has {0} bytes instead of {DIGEST_BYTES}")]
    Digest(usize),
    #[error("making a challenge's certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("using a challenge's certificate: {0}")]
    Tls(#[from] rustls::Error),
}

/// The challenges that are open now, by name.
#[derive(Debug, Default)]
pub(super) struct Challenges(Mutex<HashMap<String, Arc<CertifiedKey>>>);

/// Challenges of one order. Dropping it has none answered any more.
pub(super) struct Open<'a>(&'a Challenges);

/// How a connection offers that protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    /// As an ACME server does, and nobody else.
    Alone,
    /// As nobody does who means it. Agreed on, it would count as a challenge that was answered.
    BesideOthers,
    /// Not at all.
    Not,
}

/// How a connection offers that protocol.
pub(super) fn offered(hello: &ClientHello<'_>) -> Offered {
    hello.alpn().map_or(Offered::Not, of_protocols)
}

fn of_protocols<'a>(protocols: impl Iterator<Item = &'a [u8]>) -> Offered {
    let (mut count, mut found) = (0_usize, false);
    for protocol in protocols {
        count += 1;
        found |= protocol == PROTOCOL;
    }
    match (found, count) {
        (true, 1) => Offered::Alone,
        (true, _) => Offered::BesideOthers,
        (false, _) => Offered::Not,
    }
}

impl Challenges {
    /// None is open; there is one order at a time.
    pub(super) fn open(&self) -> Open<'_> {
        Open(self)
    }

    /// What is shown to who asks for a name; nothing where no challenge of it is open.
    pub(super) fn find(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.lock().get(&name.to_ascii_lowercase()).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<CertifiedKey>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open<'_> {
    /// From now on a challenge is answered: the digest of its key authorization is shown under the name.
    pub(super) fn answer(&self, name: &str, digest: &[u8]) -> Result<(), AnswerError> {
        // The library would panic.
        if digest.len() != DIGEST_BYTES {
            return Err(AnswerError::Digest(digest.len()));
        }
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.distinguished_name = DistinguishedName::new();
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let signing = rustls::crypto::ring::sign::any_supported_type(&key)?;
        let shown = CertifiedKey::new(vec![certificate.der().clone()], signing);
        self.0.lock().insert(name.to_ascii_lowercase(), Arc::new(shown));
        Ok(())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Object identifier of the extension `acmeIdentifier` (RFC 8737, section 6.1).
    const ACME_IDENTIFIER: &str = "1.3.6.1.5.5.7.1.31";
    const HTTP: &[u8] = b"http/1.1";
    const OTHER: &[u8] = b"acme-tls/2";

    #[test]
    fn an_acme_server_offers_its_protocol_alone() {
        let of = |protocols: &[&'static [u8]]| of_protocols(protocols.iter().copied());
        assert_eq!(of(&[PROTOCOL]), Offered::Alone);
        for beside in [[PROTOCOL, HTTP], [HTTP, PROTOCOL], [PROTOCOL, PROTOCOL]] {
            assert_eq!(of(&beside), Offered::BesideOthers);
        }
        for other in [[HTTP, HTTP], [OTHER, HTTP]] {
            assert_eq!(of(&other), Offered::Not);
        }
        assert_eq!(of(&[]), Offered::Not);
    }

    #[test]
    fn a_challenge_is_shown_as_long_as_it_is_open() {
        let challenges = Challenges::default();
        let open = challenges.open();
        open.answer("edge.example", &[7; 32]).unwrap();
        let shown = challenges.find("Edge.Example").unwrap();
        assert!(challenges.find("other.example").is_none());
        let (_, parsed) = x509_parser::parse_x509_certificate(&shown.cert[0]).unwrap();
        let mut extensions = parsed.extensions().iter();
        let identifier = extensions.find(|found| found.oid.to_id_string() == ACME_IDENTIFIER).unwrap();
        assert!(identifier.critical);
        assert_eq!((&identifier.value[..2], &identifier.value[2..]), (&[4, 32][..], &[7; 32][..]));
        assert!(matches!(open.answer("edge.example", &[7; 31]), Err(AnswerError::Digest(31))));
        drop(open);
        assert!(challenges.find("edge.example").is_none());
    }
}
