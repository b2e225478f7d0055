//! Keys, certificates and what every client sends first.

use std::path::Path;

use kvasir_gateway::{
    certificate::{self, Names},
    secret_file,
};
use kvasir_wire::ticket::Role;
use rustls_pki_types::ServerName;
use tokio_rustls::TlsConnector;

use crate::holders::{client_hello, client_tls, edge_key, holder, hub_key, ticket};

/// The network of the tickets.
pub const NETWORK: &str = "splice-bench";
/// The name of the certificate.
const OWN_NAME: &str = "localhost";
/// The name that a passed ClientHello asks for.
pub const PASSED_NAME: &str = "hub.example";

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
        // Each connection pays the whole handshake, with every proxy alike.
        let config = client_tls(&std::fs::read(&files.authority)?)?;
        let hello = client_hello(&config, ServerName::try_from(PASSED_NAME)?)?;
        let ticket = ticket(NETWORK, Role::Worker, &holder(Role::Worker))?.to_text();
        let head = format!(
            "GET /v1/worker HTTP/1.1\r\nHost: {OWN_NAME}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             Sec-WebSocket-Protocol: {}\r\nAuthorization: Bearer {ticket}\r\n\r\n",
            kvasir_link::SUBPROTOCOL
        );
        Ok(Ends { tls: TlsConnector::from(config), name: ServerName::try_from(OWN_NAME)?, head, hello })
    }
}
