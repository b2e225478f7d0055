//! TLS-ALPN-01 from the server's side (RFC 8737, section 3).

use std::{net::SocketAddr, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls13_signature_with_raw_key},
};
use rustls_pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use x509_parser::extensions::GeneralName;

/// The protocol by ALPN.
const PROTOCOL: &[u8] = b"acme-tls/1";
/// Object identifier of `acmeIdentifier`.
const ACME_IDENTIFIER: &str = "1.3.6.1.5.5.7.1.31";

/// Believes whoever has the key of the certificate that it shows.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 alone".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // The library refuses to look at a certificate with a critical extension that it does not know, which is what this is.
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).unwrap();
        let key = SubjectPublicKeyInfoDer::from(parsed.public_key().raw);
        verify_tls13_signature_with_raw_key(
            message,
            &key,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A connection that offers these protocols and believes anybody.
pub async fn connect(
    edge: SocketAddr,
    name: &str,
    protocols: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let stream = TcpStream::connect(edge).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(name.to_owned()).unwrap(), stream).await
}

/// Whether the edge has what proves the name.
pub async fn look(edge: SocketAddr, name: &str, digest: &[u8]) -> Result<(), String> {
    let mut client = connect(edge, name, &[PROTOCOL]).await.map_err(|error| error.to_string())?;
    let shown = {
        let (_, connection) = client.get_ref();
        if connection.alpn_protocol() != Some(PROTOCOL) {
            return Err("another protocol was agreed on".into());
        }
        connection.peer_certificates().unwrap()[0].clone()
    };
    check(&shown, name, digest)?;
    // Nothing that is said in there is answered.
    let _ = client.write_all(b"GET /v1/worker HTTP/1.1\r\nHost: edge\r\n\r\n").await;
    let mut said = Vec::new();
    let _ = client.read_to_end(&mut said).await;
    match said.is_empty() {
        true => Ok(()),
        false => Err("the edge talks inside a challenge".into()),
    }
}

fn check(shown: &CertificateDer<'_>, name: &str, digest: &[u8]) -> Result<(), String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(shown).unwrap();
    let names = parsed.subject_alternative_name().unwrap().unwrap().value;
    if !matches!(names.general_names[..], [GeneralName::DNSName(found)] if found == name) {
        return Err(format!("the certificate is not for {name} alone"));
    }
    let mut extensions = parsed.extensions().iter();
    let identifier = extensions.find(|found| found.oid.to_id_string() == ACME_IDENTIFIER);
    let identifier = identifier.ok_or("there is no acmeIdentifier")?;
    // An octet string of 32 bytes.
    let expected = [&[4, 32][..], digest].concat();
    match identifier.critical && identifier.value == expected {
        true => Ok(()),
        false => Err("incorrect acmeIdentifier".into()),
    }
}
