//! Dialling: address, TCP, TLS, upgrade, handshake, each under a deadline.

use std::sync::Arc;

use http::Uri;
use kvasir_wire::handshake::{Features, Purpose, WorkerOffer};
use kvasir_wire::key::SecretKey;
use kvasir_wire::ticket::Ticket;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::WebSocketStream;

use crate::error::LinkError;
use crate::holder::{Connected, connect_with};
use crate::opening::within;
use crate::options::LinkOptions;
use crate::redial::Redial;
use crate::socket::{self, Congestion};
use crate::upgrade::upgrade;
use crate::{BACKBONE_PATH, WORKER_PATH};

/// Whom to believe at the other end of TLS.
#[derive(Debug, Clone)]
pub enum TlsTrust {
    /// The web's certificate authorities.
    WebRoots,
    /// The authorities in this PEM text, and no others: for development certificates.
    CaFile(Vec<u8>),
    /// No TLS. Only for a LAN or one machine: whoever is on the way reads rows and may break the link, though not
    /// forge an end.
    PlainText,
}

impl TlsTrust {
    /// Checks that the authorities can be read, before anything is dialled. The error is a sentence about the CA file.
    pub fn check(&self) -> Result<(), String> {
        self.roots().map(|_| ())
    }

    pub(crate) fn roots(&self) -> Result<Option<RootCertStore>, String> {
        let mut roots = RootCertStore::empty();
        match self {
            TlsTrust::PlainText => return Ok(None),
            TlsTrust::WebRoots => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            TlsTrust::CaFile(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    let certificate = certificate.map_err(|error| format!("the CA file: {error}"))?;
                    roots.add(certificate).map_err(|error| format!("the CA file: {error}"))?;
                }
                if roots.is_empty() {
                    return Err("the CA file holds no certificate".to_owned());
                }
            }
        }
        Ok(Some(roots))
    }
}

/// A worker's link: dials `wss://host[:port]` and is admitted as a worker. A path in the address is kept as a prefix of
/// [`WORKER_PATH`].
pub async fn connect_worker(
    url: &str,
    trust: &TlsTrust,
    ticket: &Ticket,
    key: &SecretKey,
    offer: WorkerOffer,
    features: Features,
    options: &LinkOptions,
) -> Result<Connected, LinkError> {
    connect(url, WORKER_PATH, trust, ticket, key, Purpose::Worker(offer), features, options).await
}

/// A backbone's link: dials the hub at `ws://host[:port]`, or at `wss://` with the web's authorities, for control or for
/// a session.
pub async fn connect_backbone(
    url: &str,
    ticket: &Ticket,
    key: &SecretKey,
    purpose: Purpose,
    features: Features,
    options: &LinkOptions,
) -> Result<Connected, LinkError> {
    let trust = if url.starts_with("wss:") { TlsTrust::WebRoots } else { TlsTrust::PlainText };
    connect(url, BACKBONE_PATH, &trust, ticket, key, purpose, features, options).await
}

#[allow(clippy::too_many_arguments)] // the two public functions give each argument a meaning
async fn connect(
    url: &str,
    path: &'static str,
    trust: &TlsTrust,
    ticket: &Ticket,
    key: &SecretKey,
    purpose: Purpose,
    features: Features,
    options: &LinkOptions,
) -> Result<Connected, LinkError> {
    let socket = open(url, path, trust, ticket, options).await?;
    let role = purpose.role();
    let redial = (features.contains(Features::RESUME) && !options.resume_within.is_zero()).then(|| Redial {
        url: url.to_owned(),
        path,
        trust: trust.clone(),
        ticket: ticket.clone(),
        key: key.clone(),
        role,
        options: options.clone(),
    });
    connect_with(socket, ticket, key, purpose, features, options, redial).await
}

/// A connection of bytes, whatever protects it.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Connection for S {}

/// Dials up to the open WebSocket.
pub(crate) async fn open(
    url: &str,
    path: &str,
    trust: &TlsTrust,
    ticket: &Ticket,
    options: &LinkOptions,
) -> Result<WebSocketStream<Box<dyn Connection>>, LinkError> {
    let target = Target::parse(url, path, trust)?;
    let tcp = within(options.connect, "the TCP connection", dial_tcp(&target, &options.congestion)).await?;
    let stream: Box<dyn Connection> = match target.tls(trust)? {
        None => Box::new(tcp),
        Some((config, name)) => {
            let tls = async {
                TlsConnector::from(config).connect(name, tcp).await.map_err(|error| LinkError::Tls {
                    host: target.authority.clone(),
                    problem: error.to_string(),
                })
            };
            Box::new(within(options.connect, "the TLS handshake", tls).await?)
        }
    };
    let text = ticket.to_text();
    let upgrade = upgrade(stream, &target.authority, &target.path, &text);
    within(options.handshake, "the answer to the upgrade request", upgrade).await
}

/// Where to dial.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Host and port as in the address, for the `Host` header and messages.
    pub(crate) authority: String,
    pub(crate) path: String,
}

impl Target {
    pub(crate) fn parse(url: &str, path: &str, trust: &TlsTrust) -> Result<Target, LinkError> {
        let bad = |problem: &str| LinkError::Address { url: url.to_owned(), problem: problem.to_owned() };
        let uri: Uri = url.parse().map_err(|_| bad("it is no URL"))?;
        let port = match (uri.scheme_str(), trust) {
            (Some("wss"), TlsTrust::WebRoots | TlsTrust::CaFile(_)) => 443,
            (Some("ws"), TlsTrust::PlainText) => 80,
            (Some("ws"), _) => return Err(bad("it must begin with wss://, unless plain text was allowed")),
            (Some("wss"), _) => return Err(bad("it asks for TLS, but plain text was chosen")),
            _ => return Err(bad("it must begin with wss:// or ws://")),
        };
        if uri.query().is_some() {
            return Err(bad("it must have no query; the ticket travels in a header"));
        }
        let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("it must not hold a user or password"));
        }
        let host = authority.host();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let prefix = uri.path().trim_end_matches('/');
        let path = if prefix.ends_with(path) { prefix.to_owned() } else { format!("{prefix}{path}") };
        Ok(Target {
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(port),
            authority: authority.as_str().to_owned(),
            path,
        })
    }

    pub(crate) fn tls(
        &self,
        trust: &TlsTrust,
    ) -> Result<Option<(Arc<ClientConfig>, ServerName<'static>)>, LinkError> {
        let fail = |problem: String| LinkError::Tls { host: self.authority.clone(), problem };
        let Some(roots) = trust.roots().map_err(fail)? else { return Ok(None) };
        let name = ServerName::try_from(self.host.clone())
            .map_err(|_| fail(format!("{} is no name that a certificate could carry", self.host)))?;
        // The provider is named, so that another crate's choice of provider cannot change it.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| fail(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Some((Arc::new(config), name)))
    }
}

pub(crate) async fn dial_tcp(target: &Target, congestion: &Congestion) -> Result<TcpStream, LinkError> {
    let stream = socket::connect((target.host.as_str(), target.port), congestion).await;
    stream.map_err(|error| LinkError::Connect {
        address: format!("{}:{}", target.host, target.port),
        error: Arc::new(error),
    })
}
