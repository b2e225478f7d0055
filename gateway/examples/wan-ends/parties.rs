//! Keys, tickets and a gateway for the two ends of the measurement: all from fixed seeds, so that both processes agree.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use kvasir_gateway::certificate::{self, Names};
use kvasir_gateway::edge::{Certificates, Edge, EdgeOptions};
use kvasir_gateway::hub::filing::{Ledger, LedgerError};
use kvasir_gateway::hub::{HubOptions, HubServer, SessionClosed};
use kvasir_gateway::stop::{Stopper, switch};
use kvasir_link::unix_now;
use kvasir_wire::handshake::{Features, HubIdentity};
use kvasir_wire::id::{ModelDigest, PluginDigest};
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::Note;
use kvasir_wire::ticket::{EdgeKey, Role, Ticket, TicketClaims, TicketLimits};

pub const NETWORK: &str = "wan-bench";
pub const PLUGIN: PluginDigest = PluginDigest([5; 32]);
pub const MODEL: ModelDigest = ModelDigest([6; 32]);
pub const FORMAT: u32 = 12;
/// Port of the edge, and of the plain echo that the floor is measured with.
pub const EDGE_PORT: u16 = 7443;
pub const ECHO_PORT: u16 = 7444;
/// Longer than any run.
pub const SECONDS: u64 = 12 * 3600;

fn hub_key() -> SecretKey {
    SecretKey::from_seed([1; 32])
}

fn edge_key() -> EdgeKey {
    EdgeKey::from_bytes([4; 32])
}

pub fn holder(role: Role) -> SecretKey {
    SecretKey::from_seed(if role == Role::Worker { [2; 32] } else { [3; 32] })
}

pub fn ticket(role: Role) -> anyhow::Result<Ticket> {
    let wallet = SecretKey::from_seed([9; 32]).public().wallet_digest();
    let claims = TicketClaims {
        network: NETWORK.to_owned(),
        role,
        holder: holder(role).public(),
        hub: hub_key().public(),
        wallet: (role == Role::Worker).then_some(wallet),
        plugins: vec![PLUGIN],
        publishers: Vec::new(),
        limits: TicketLimits { sessions: 1, session_bytes: 0 },
        issued: unix_now() - 10,
        expires: unix_now() + SECONDS,
    };
    Ok(Ticket::issue(&claims, &hub_key(), &edge_key())?)
}

/// What both ends ask for: nothing, or what a second connection for bulk needs.
pub fn features(bulk_connection: bool) -> Features {
    match bulk_connection {
        true => Features::RESUME.with(Features::BULK_CONNECTION),
        false => Features::NONE,
    }
}

/// A ledger that takes everything and keeps nothing.
struct NoLedger;

impl Ledger for NoLedger {
    fn post_receipt(&self, _: &Note) -> Result<(), LedgerError> {
        Ok(())
    }

    fn post_grant(&self, _: &Note) -> Result<(), LedgerError> {
        Ok(())
    }

    fn price(&self) -> Result<String, LedgerError> {
        Ok("77".repeat(32))
    }
}

/// A running edge and hub; they end with the process.
pub struct Gateway {
    pub hub: SocketAddr,
    _stoppers: [Stopper; 2],
}

/// Starts a hub on the loopback and an edge before it on `address`; its certificates lie in `folder` then.
pub async fn start_gateway(address: IpAddr, folder: &Path, bulk_connection: bool) -> anyhow::Result<Gateway> {
    let identity = HubIdentity { network: NETWORK.to_owned(), key: hub_key(), edge: edge_key() };
    let mut options = HubOptions::new(([127, 0, 0, 1], 0).into(), identity, folder.join("spool"));
    options.link.bulk_connection = bulk_connection;
    let hub = HubServer::bind(options, Arc::new(NoLedger), Box::new(|_: &SessionClosed| {})).await?;
    let at = hub.address();
    let names = Names::parse(&[address.to_string()])?;
    let files = certificate::make(folder, &names, true)?;
    let certificates = Certificates::load(&files.certificate, &files.key)?;
    let options = EdgeOptions::new((address, EDGE_PORT).into(), at.to_string(), NETWORK.to_owned());
    let edge = Edge::bind(options, edge_key(), certificates).await?;
    let ((hub_stopper, hub_stop), (edge_stopper, edge_stop)) = (switch(), switch());
    tokio::spawn(hub.run(hub_stop));
    tokio::spawn(edge.run(edge_stop));
    Ok(Gateway { hub: at, _stoppers: [hub_stopper, edge_stopper] })
}

/// The certificate authority that [`start_gateway`] wrote.
pub fn authority(folder: &Path) -> anyhow::Result<Vec<u8>> {
    let path = folder.join("ca.pem");
    std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
}
