//! Flags, environment and file put together: what is fixed for the life of a process, and what a reload may change.

use std::{
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    path::{Path, PathBuf},
};

use anyhow::bail;
use kvasir_wire::ticket::check_network;

use super::{EdgeArgs, HubArgs};
use crate::{
    accept::{ACCEPTS_PER_SECOND, AcceptLimits},
    acme::AcmeOptions,
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
    pub(super) certificate: CertificateFrom,
    pub(super) edge_key: PathBuf,
}

/// Where its certificate is from.
#[derive(Clone)]
pub(super) enum CertificateFrom {
    Files { certificate: PathBuf, key: PathBuf },
    Acme(AcmeOptions),
}

impl EdgeOwn {
    fn certificate(&self) -> Option<&Path> {
        match &self.certificate {
            CertificateFrom::Files { certificate, .. } => Some(certificate),
            CertificateFrom::Acme(_) => None,
        }
    }

    fn certificate_key(&self) -> Option<&Path> {
        match &self.certificate {
            CertificateFrom::Files { key, .. } => Some(key),
            CertificateFrom::Acme(_) => None,
        }
    }

    fn acme(&self) -> Option<&AcmeOptions> {
        match &self.certificate {
            CertificateFrom::Files { .. } => None,
            CertificateFrom::Acme(options) => Some(options),
        }
    }
}

impl EdgeFixed {
    /// The file's keys whose values differ.
    pub(super) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let (own, others) = (self.own.as_ref(), other.own.as_ref());
        differences([
            ("edge.listen", self.listen == other.listen),
            ("edge.hub", own.map(|own| &own.hub) == others.map(|own| &own.hub)),
            ("edge.network", own.map(|own| &own.network) == others.map(|own| &own.network)),
            ("edge.certificate", own.and_then(EdgeOwn::certificate) == others.and_then(EdgeOwn::certificate)),
            (
                "edge.certificate_key",
                own.and_then(EdgeOwn::certificate_key) == others.and_then(EdgeOwn::certificate_key),
            ),
            ("edge.acme", own.and_then(EdgeOwn::acme) == others.and_then(EdgeOwn::acme)),
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

fn differences<const COUNT: usize>(keys: [(&'static str, bool); COUNT]) -> Vec<&'static str> {
    keys.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
}

/// Puts an edge's settings together. With names to pass through and no certificate it ends no TLS, and needs no hub.
pub(super) fn edge(args: EdgeArgs, file: EdgeTable) -> anyhow::Result<EdgeSetup> {
    let pass_through = Routes::new(file.pass_through)?;
    let acme = args.acme.over(file.acme)?;
    let certificates = [&args.certificate, &file.certificate, &args.certificate_key, &file.certificate_key];
    let no_files = certificates.iter().all(|path| path.is_none());
    let own = if !pass_through.is_empty() && no_files && acme.is_none() {
        None
    } else {
        if !no_files && acme.is_some() {
            bail!(
                "a certificate is asked for twice, from files (certificate, certificate_key) and by ACME (acme): leave one \
                 out of flags, environment and gateway.toml"
            );
        }
        if let Some(name) = acme.iter().flat_map(AcmeOptions::domains).find(|name| pass_through.has(name)) {
            bail!(
                "edge.acme.domains has {name}, which is passed through: whoever is to prove it would reach the backend, not \
                 this edge"
            );
        }
        Some(EdgeOwn {
            hub: needed(args.hub, file.hub, "--hub", "KVASIR_GATEWAY_HUB", "edge.hub")?,
            network: network(args.network, file.network, "edge.network")?,
            certificate: match acme {
                Some(options) => CertificateFrom::Acme(options),
                None => CertificateFrom::Files {
                    certificate: needed(
                        args.certificate,
                        file.certificate,
                        "--certificate (or --acme-domain)",
                        "KVASIR_GATEWAY_CERTIFICATE",
                        "edge.certificate",
                    )?,
                    key: needed(
                        args.certificate_key,
                        file.certificate_key,
                        "--certificate-key",
                        "KVASIR_GATEWAY_CERTIFICATE_KEY",
                        "edge.certificate_key",
                    )?,
                },
            },
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
