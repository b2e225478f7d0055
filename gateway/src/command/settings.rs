//! Flags, environment and file put together: what is fixed for the life of a process, and what a reload may change.

use std::{
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
};

use kvasir_wire::ticket::check_network;

use super::{EdgeArgs, HubArgs};
use crate::{
    accept::{ACCEPTS_PER_SECOND, AcceptLimits},
    config::{EdgeTable, HubTable, needed},
    edge::{
        EdgeSettings, SlotLimits,
        pass_through::Routes,
        trusted::{Network, TrustedPeers},
    },
    hub::HubSettings,
};

/// Folder of the hub's spool unless told otherwise.
const DEFAULT_SPOOL: &str = "hub-spool";

/// An edge's part of it.
pub(super) struct EdgeSetup {
    pub(super) fixed: EdgeFixed,
    pub(super) settings: EdgeSettings,
}

/// What an edge is for its life.
#[derive(Clone)]
pub(super) struct EdgeFixed {
    pub(super) listen: Option<SocketAddr>,
    /// Nothing where connections are only passed through.
    pub(super) own: Option<EdgeOwn>,
    pub(super) operations: Option<SocketAddr>,
}

/// What an edge needs to be the end of TLS, and to let workers to the hub.
#[derive(Clone)]
pub(super) struct EdgeOwn {
    pub(super) hub: String,
    pub(super) network: String,
    pub(super) certificate: PathBuf,
    pub(super) certificate_key: PathBuf,
    pub(super) edge_key: PathBuf,
}

impl EdgeFixed {
    /// The file's keys whose values differ.
    pub(super) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let (own, others) = (self.own.as_ref(), other.own.as_ref());
        differences([
            ("edge.listen", self.listen == other.listen),
            ("edge.hub", own.map(|own| &own.hub) == others.map(|own| &own.hub)),
            ("edge.network", own.map(|own| &own.network) == others.map(|own| &own.network)),
            ("edge.certificate", own.map(|own| &own.certificate) == others.map(|own| &own.certificate)),
            (
                "edge.certificate_key",
                own.map(|own| &own.certificate_key) == others.map(|own| &own.certificate_key),
            ),
            ("edge.edge_key", own.map(|own| &own.edge_key) == others.map(|own| &own.edge_key)),
            ("edge.operations", self.operations == other.operations),
        ])
    }
}

/// A hub's part of it.
pub(super) struct HubSetup {
    pub(super) fixed: HubFixed,
    pub(super) settings: HubSettings,
}

/// What a hub is for its life.
#[derive(Clone)]
pub(super) struct HubFixed {
    pub(super) listen: Option<SocketAddr>,
    pub(super) network: String,
    pub(super) ledger: String,
    pub(super) hub_key: PathBuf,
    pub(super) edge_key: PathBuf,
    pub(super) spool: PathBuf,
    pub(super) bulk_connection: bool,
    pub(super) operations: Option<SocketAddr>,
}

impl HubFixed {
    /// The file's keys whose values differ.
    pub(super) fn differences(&self, other: &Self) -> Vec<&'static str> {
        differences([
            ("hub.listen", self.listen == other.listen),
            ("hub.network", self.network == other.network),
            ("hub.ledger", self.ledger == other.ledger),
            ("hub.hub_key", self.hub_key == other.hub_key),
            ("hub.edge_key", self.edge_key == other.edge_key),
            ("hub.spool", self.spool == other.spool),
            ("hub.bulk_connection", self.bulk_connection == other.bulk_connection),
            ("hub.operations", self.operations == other.operations),
        ])
    }
}

fn differences<const KEYS: usize>(keys: [(&'static str, bool); KEYS]) -> Vec<&'static str> {
    keys.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
}

/// Puts an edge's settings together. With names to pass through and no certificate it ends no TLS, and needs no hub.
pub(super) fn edge(args: EdgeArgs, file: EdgeTable) -> anyhow::Result<EdgeSetup> {
    let pass_through = Routes::new(file.pass_through)?;
    let certificates = [&args.certificate, &file.certificate, &args.certificate_key, &file.certificate_key];
    let passes_only = !pass_through.is_empty() && certificates.iter().all(|path| path.is_none());
    let own = if passes_only {
        None
    } else {
        Some(EdgeOwn {
            hub: needed(args.hub, file.hub, "--hub", "KVASIR_GATEWAY_HUB", "edge.hub")?,
            network: network(args.network, file.network, "edge.network")?,
            certificate: needed(
                args.certificate,
                file.certificate,
                "--certificate",
                "KVASIR_GATEWAY_CERTIFICATE",
                "edge.certificate",
            )?,
            certificate_key: needed(
                args.certificate_key,
                file.certificate_key,
                "--certificate-key",
                "KVASIR_GATEWAY_CERTIFICATE_KEY",
                "edge.certificate_key",
            )?,
            edge_key: edge_key(args.edge_key, file.edge_key, "edge.edge_key")?,
        })
    };
    let fixed = EdgeFixed {
        listen: args.listen.or(file.listen),
        own,
        operations: args.operations.or(file.operations),
    };
    let mut slots = SlotLimits::default();
    for (cap, given) in [
        (&mut slots.connections, args.max_connections.or(file.max_connections)),
        (&mut slots.unauthenticated, args.max_unauthenticated.or(file.max_unauthenticated)),
        (&mut slots.per_address, args.max_per_address.or(file.max_per_address)),
    ] {
        *cap = given.map_or(*cap, NonZeroUsize::get);
    }
    let peers =
        |given: Vec<Network>, from_file| TrustedPeers::new(if given.is_empty() { from_file } else { given });
    let settings = EdgeSettings {
        accept: accept(args.max_accepts_per_second.or(file.max_accepts_per_second)),
        slots,
        trusted_peers: peers(args.trusted_peers, file.trusted_peers)?,
        proxy_protocol_peers: peers(args.proxy_protocol_peers, file.proxy_protocol_peers)?,
        pass_through,
    };
    Ok(EdgeSetup { fixed, settings })
}

/// Puts a hub's settings together.
pub(super) fn hub(args: HubArgs, file: HubTable) -> anyhow::Result<HubSetup> {
    let fixed = HubFixed {
        listen: args.listen.or(file.listen),
        network: network(args.network, file.network, "hub.network")?,
        ledger: needed(args.ledger, file.ledger, "--ledger", "KVASIR_GATEWAY_LEDGER", "hub.ledger")?,
        hub_key: needed(args.hub_key, file.hub_key, "--hub-key", "KVASIR_GATEWAY_HUB_KEY", "hub.hub_key")?,
        edge_key: edge_key(args.edge_key, file.edge_key, "hub.edge_key")?,
        spool: args.spool.or(file.spool).unwrap_or_else(|| DEFAULT_SPOOL.into()),
        bulk_connection: args.bulk_connection || file.bulk_connection.unwrap_or(false),
        operations: args.operations.or(file.operations),
    };
    let most = args.max_connections.or(file.max_connections);
    let settings = HubSettings {
        accept: accept(args.max_accepts_per_second.or(file.max_accepts_per_second)),
        connections: most.map_or(SlotLimits::default().connections, NonZeroUsize::get),
    };
    Ok(HubSetup { fixed, settings })
}

/// A network's name, checked.
pub(super) fn network(
    given: Option<String>,
    from_file: Option<String>,
    key: &'static str,
) -> anyhow::Result<String> {
    let name = needed(given, from_file, "--network", "KVASIR_GATEWAY_NETWORK", key)?;
    check_network(&name).map_err(|error| anyhow::anyhow!("the network name {name:?}: {error}"))?;
    Ok(name)
}

fn edge_key(
    given: Option<PathBuf>,
    from_file: Option<PathBuf>,
    key: &'static str,
) -> anyhow::Result<PathBuf> {
    Ok(needed(given, from_file, "--edge-key", "KVASIR_GATEWAY_EDGE_KEY", key)?)
}

fn accept(per_second: Option<NonZeroU32>) -> AcceptLimits {
    AcceptLimits::per_second(per_second.unwrap_or(ACCEPTS_PER_SECOND))
}
