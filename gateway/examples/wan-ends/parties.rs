//! A gateway for the two ends of the measurement, and what both processes have to agree on.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use kvasir_gateway::certificate::{self, Names};
use kvasir_gateway::edge::{Certificates, Edge, EdgeOptions};
use kvasir_gateway::hub::filing::{Ledger, LedgerError};
use kvasir_gateway::hub::{HubOptions, HubServer, SessionClosed};
use kvasir_gateway::operations::Served;
use kvasir_gateway::stop::{Stopper, switch};
use kvasir_wire::handshake::{Features, HubIdentity};
use kvasir_wire::note::Note;
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::holders::{edge_key, hub_key};

pub const NETWORK: &str = "wan-bench";
/// Port of the edge, and of the plain echo that the floor is measured with.
pub const EDGE_PORT: u16 = 7443;
pub const ECHO_PORT: u16 = 7444;

/// What both ends of the session are told alike.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Alike {
    /// A session ends with its connection, as with ends of an older release.
    #[arg(long)]
    no_resume: bool,
    /// Bulk goes over a second connection of the worker's.
    #[arg(long, conflicts_with = "no_resume")]
    bulk_connection: bool,
}

impl Alike {
    /// Whether a session outlives its connections.
    pub fn resume(self) -> bool {
        !self.no_resume
    }

    /// Whether bulk has a connection of its own.
    pub fn bulk_connection(self) -> bool {
        self.bulk_connection
    }

    /// What an end asks for: as the product's ends do, unless told otherwise.
    pub fn features(self) -> Features {
        match (self.no_resume, self.bulk_connection) {
            (true, _) => Features::NONE,
            (false, true) => Features::RESUME.with(Features::BULK_CONNECTION),
            (false, false) => Features::RESUME,
        }
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
    edge: Arc<dyn Served>,
    _stoppers: [Stopper; 2],
}

impl Gateway {
    /// Connections that the edge has accepted so far, those closed unread included.
    pub fn accepted(&self) -> anyhow::Result<u64> {
        let status: Value = serde_json::from_str(&self.edge.status())?;
        status["accepted"].as_u64().context("the edge's report does not say how many it accepted")
    }
}

/// Starts a hub on the loopback and an edge before it on `address`; its certificates lie in `folder` then. `apart`: on two
/// threads of their own, as in programs of their own, instead of the caller's.
pub async fn start_gateway(
    address: IpAddr,
    folder: &Path,
    alike: Alike,
    apart: bool,
) -> anyhow::Result<Gateway> {
    if !apart {
        return start_here(address, folder, alike).await;
    }
    let folder = folder.to_owned();
    let (sender, started) = oneshot::channel();
    std::thread::spawn(move || match Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime.block_on(async move {
            let _ = sender.send(start_here(address, &folder, alike).await);
            // What serves are tasks of this runtime.
            std::future::pending::<()>().await;
        }),
        Err(error) => {
            let _ = sender.send(Err(error.into()));
        }
    });
    started.await.context("the gateway's threads ended")?
}

async fn start_here(address: IpAddr, folder: &Path, alike: Alike) -> anyhow::Result<Gateway> {
    let identity = HubIdentity { network: NETWORK.to_owned(), key: hub_key(), edge: edge_key() };
    let mut options = HubOptions::new(([127, 0, 0, 1], 0).into(), identity, folder.join("spool"));
    options.link.bulk_connection = alike.bulk_connection();
    let hub = HubServer::bind(options, Arc::new(NoLedger), Box::new(|_: &SessionClosed| {})).await?;
    let at = hub.address();
    let names = Names::parse(&[address.to_string()])?;
    let files = certificate::make(folder, &names, true)?;
    let certificates = Certificates::load(&files.certificate, &files.key)?;
    let options = EdgeOptions::new((address, EDGE_PORT).into(), at.to_string(), NETWORK.to_owned());
    let edge = Edge::bind(options, edge_key(), certificates).await?;
    let ((hub_stopper, hub_stop), (edge_stopper, edge_stop)) = (switch(), switch());
    let served = edge.served(edge_stop.clone());
    tokio::spawn(hub.run(hub_stop));
    tokio::spawn(edge.run(edge_stop));
    Ok(Gateway { hub: at, edge: served, _stoppers: [hub_stopper, edge_stopper] })
}

/// The certificate authority that [`start_gateway`] wrote.
pub fn authority(folder: &Path) -> anyhow::Result<Vec<u8>> {
    let path = folder.join("ca.pem");
    std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
}
