//! Keys, tickets and what every client sends first, all from fixed seeds.

use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use kvasir_gateway::{
    certificate::{self, Names},
    secret_file,
};
use kvasir_link::unix_now;
use kvasir_wire::{
    id::PluginDigest,
    key::SecretKey,
    ticket::{EdgeKey, Role, Ticket, TicketClaims, TicketLimits},
};
use rustls::{ClientConfig, ClientConnection, RootCertStore, client::Resumption};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use tokio_rustls::TlsConnector;

/// The network of the tickets.
pub const NETWORK: &str = "splice-bench";
/// The plugin that the tickets allow.
pub const PLUGIN: PluginDigest = PluginDigest([5; 32]);
/// The name of the certificate.
const OWN_NAME: &str = "localhost";
/// The name that a passed ClientHello asks for.
pub const PASSED_NAME: &str = "hub.example";
/// Longer than any run.
const SECONDS: u64 = 12 * 3600;

fn hub_key() -> SecretKey {
    SecretKey::from_seed([1; 32])
}

fn edge_key() -> EdgeKey {
    EdgeKey::from_bytes([4; 32])
}

/// What clients send and whom they trust.
pub struct Ends {
    /// For connections whose TLS ends at the proxy.
    pub tls: TlsConnector,
    /// The name of the proxy's certificate.
    pub name: ServerName<'static>,
    /// A request head with a ticket that an edge takes; to others it is a header like any.
    pub head: String,
    /// A whole ClientHello that asks for [`PASSED_NAME`].
    pub hello: Vec<u8>,
}

impl Ends {
    /// Writes keys and certificates into a folder, and prepares what clients send.
    pub fn make(folder: &Path) -> anyhow::Result<Ends> {
        secret_file::write(&folder.join("hub.key"), hub_key().to_text().as_bytes(), true)?;
        secret_file::write(&folder.join("edge.key"), edge_key().to_text().as_bytes(), true)?;
        let files = certificate::make(folder, &Names::parse(&[OWN_NAME.to_owned()])?, true)?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&files.authority).context("the authority's certificate")?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Each connection pays the whole handshake, with every proxy alike.
        config.resumption = Resumption::disabled();
        let config = Arc::new(config);

        let mut connection = ClientConnection::new(config.clone(), ServerName::try_from(PASSED_NAME)?)?;
        let mut hello = Vec::new();
        while connection.wants_write() {
            connection.write_tls(&mut hello)?;
        }
        let ticket = ticket(&SecretKey::from_seed([2; 32]))?.to_text();
        let head = format!(
            "GET /v1/worker HTTP/1.1\r\nHost: {OWN_NAME}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             Sec-WebSocket-Protocol: {}\r\nAuthorization: Bearer {ticket}\r\n\r\n",
            kvasir_link::SUBPROTOCOL
        );
        Ok(Ends { tls: TlsConnector::from(config), name: ServerName::try_from(OWN_NAME)?, head, hello })
    }
}

/// A worker's ticket.
pub fn ticket(holder: &SecretKey) -> anyhow::Result<Ticket> {
    let claims = TicketClaims {
        network: NETWORK.to_owned(),
        role: Role::Worker,
        holder: holder.public(),
        hub: hub_key().public(),
        wallet: Some(SecretKey::from_seed([9; 32]).public().wallet_digest()),
        plugins: vec![PLUGIN],
        publishers: Vec::new(),
        limits: TicketLimits { sessions: 1, session_bytes: 0 },
        issued: unix_now() - 10,
        expires: unix_now() + SECONDS,
    };
    Ok(Ticket::issue(&claims, &hub_key(), &edge_key())?)
}
