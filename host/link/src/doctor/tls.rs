//! The TLS hop: which side does not like what of the other, and what the certificate says.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::{CertificateError, Error, ProtocolVersion, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::text::date;
use super::{Deadlines, HopName, Log, Stop, shown};
use crate::dial::{Target, TlsTrust};
use crate::unix_now;

/// A certificate that ends within so many seconds should have been renewed: authorities on the web do so a month ahead.
const SOON_SECONDS: u64 = 7 * 24 * 3600;
/// Names of a certificate that are shown.
const NAMES_SHOWN: usize = 8;
/// A time that no certificate outlives: its check there names its end.
const FAR: u64 = 253_402_300_799;

/// The connection with TLS, or without where plain text was chosen.
pub(super) enum Wrapped {
    Tls(Box<TlsStream<TcpStream>>),
    Plain(TcpStream),
}

/// Makes the TLS connection as a worker does.
pub(super) async fn wrap(
    stream: TcpStream,
    target: &Target,
    trust: &TlsTrust,
    deadlines: &Deadlines,
    log: &mut Log<'_>,
) -> Result<Wrapped, Stop> {
    let (name, began) = (HopName::Tls, Instant::now());
    let (config, server) = match target.tls(trust) {
        Ok(Some(found)) => found,
        Ok(None) => {
            log.leave_out(name, "a ws:// address has no TLS");
            return Ok(Wrapped::Plain(stream));
        }
        Err(error) => {
            let remedy = "check the address, and the file given as certificate authority";
            return Err(log.fail(name, began, shown(&error.to_string()), remedy));
        }
    };
    match timeout(deadlines.tls, TlsConnector::from(config).connect(server.clone(), stream)).await {
        Ok(Ok(stream)) => {
            let (seen, advice) = describe(&stream, trust, &server);
            log.pass(name, began, seen, advice);
            Ok(Wrapped::Tls(Box::new(stream)))
        }
        Ok(Err(error)) => {
            let (seen, remedy) = explain(&error, &target.host, trust);
            Err(log.fail(name, began, seen, remedy))
        }
        Err(_) => {
            let seen = format!("connected, and then no TLS within {:?}", deadlines.tls);
            let remedy = "check the port; if it is right, something between takes connections and drops what they carry, or the gateway hangs: ask its operator";
            Err(log.fail(name, began, seen, remedy))
        }
    }
}

fn describe(
    stream: &TlsStream<TcpStream>,
    trust: &TlsTrust,
    server: &ServerName<'static>,
) -> (String, Option<String>) {
    let (_, state) = stream.get_ref();
    let version = match state.protocol_version() {
        Some(ProtocolVersion::TLSv1_3) => "TLS 1.3",
        Some(ProtocolVersion::TLSv1_2) => "TLS 1.2",
        _ => "TLS of an unknown version",
    };
    let chain = state.peer_certificates().unwrap_or_default();
    let mut seen = format!("{version}, certificate for {}, chain of {}", server.to_str(), chain.len());
    let mut advice = None;
    if let Some(end) = ends(chain, trust, server) {
        seen.push_str(&format!(", valid until {}", date(end)));
        if end.saturating_sub(unix_now()) < SOON_SECONDS {
            advice = Some("the certificate ends soon: tell the gateway's operator".to_owned());
        }
    }
    (seen, advice)
}

/// When the server's certificate ends: what the check that it passed says of a time far ahead.
fn ends(chain: &[CertificateDer<'_>], trust: &TlsTrust, server: &ServerName<'_>) -> Option<u64> {
    let (certificate, others) = chain.split_first()?;
    let roots: Arc<RootCertStore> = Arc::new(trust.roots().ok()??);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build().ok()?;
    let far = UnixTime::since_unix_epoch(std::time::Duration::from_secs(FAR));
    match verifier.verify_server_cert(certificate, others, server, &[], far) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Some(not_after.as_secs())
        }
        _ => None,
    }
}

/// What was seen, and a remedy.
fn explain(error: &io::Error, host: &str, trust: &TlsTrust) -> (String, String) {
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        let seen = match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted => {
                "the other side closed the connection in the TLS handshake".to_owned()
            }
            _ => format!("the connection was lost in the TLS handshake: {}", shown(&error.to_string())),
        };
        let remedy = "the gateway may have too many connections, or something between cuts TLS: try again, then from another network";
        return (seen, remedy.to_owned());
    };
    match error {
        Error::InvalidCertificate(fault) => certificate(fault, host, trust),
        Error::InvalidMessage(_) => (
            "what answers there does not speak TLS".to_owned(),
            "check the port; if it is right, a proxy or a portal of this network answers in the gateway's place".to_owned(),
        ),
        Error::AlertReceived(alert) => (
            format!("the other side ended TLS with the alert {alert:?}"),
            "check the gateway's name; it must be served with TLS 1.3 and http/1.1: ask its operator".to_owned(),
        ),
        other => (
            format!("no TLS: {}", shown(&other.to_string())),
            "the gateway must be served with TLS 1.3 and http/1.1: ask its operator".to_owned(),
        ),
    }
}

fn certificate(fault: &CertificateError, host: &str, trust: &TlsTrust) -> (String, String) {
    let clock = || format!("by this machine's clock it is {}", date(unix_now()));
    let renew = "if this machine's clock is right, the gateway's operator has to renew the certificate; else set the clock";
    match fault {
        CertificateError::NotValidForName => (
            format!("the certificate is not for {}", shown(host)),
            "dial a name that the certificate is for".to_owned(),
        ),
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<String> = presented.iter().take(NAMES_SHOWN).map(|name| shown(name)).collect();
            let names = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
            (
                format!("the certificate is for {names}, not for {}", shown(host)),
                "dial a name that the certificate is for; if that one is no name of the gateway, something else answers there".to_owned(),
            )
        }
        CertificateError::Expired => (format!("the certificate has expired; {}", clock()), renew.to_owned()),
        CertificateError::ExpiredContext { not_after, .. } => {
            (format!("the certificate expired {}; {}", date(not_after.as_secs()), clock()), renew.to_owned())
        }
        CertificateError::NotValidYet => {
            (format!("the certificate is not valid yet; {}", clock()), renew.to_owned())
        }
        CertificateError::NotValidYetContext { not_before, .. } => (
            format!("the certificate is valid from {}; {}", date(not_before.as_secs()), clock()),
            "set this machine's clock; if it is right, ask the gateway's operator".to_owned(),
        ),
        // The second: an authority of the same name, as a development certificate's former one is, with another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            let remedy = match trust {
                TlsTrust::CaFile(_) => {
                    "the file given as certificate authority is not the one that signed it: ask the gateway's operator for the current one"
                }
                _ => {
                    "for a development certificate name its authority with --ca; else something between (inspection by a company or a portal) answers in the gateway's place: try another network"
                }
            };
            ("no authority that is trusted here signed the certificate".to_owned(), remedy.to_owned())
        }
        other => (
            format!("the certificate is not accepted: {}", shown(&format!("{other:?}"))),
            "the gateway's operator has to replace the certificate".to_owned(),
        ),
    }
}
