//! The commands that run until they are stopped: edge, hub, settle.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
};

use anyhow::Context as _;
use kvasir_ledger::{client::Client, plain_text::one_line};
use kvasir_wire::{handshake::HubIdentity, ticket::check_network};
use tokio::runtime::Runtime;

use super::{EdgeArgs, HubArgs, SettleArgs, print_line};
use crate::{
    accept::{ACCEPTS_PER_SECOND, AcceptLimits},
    config::{EdgeTable, HubTable, SettleTable, needed},
    credentials::{Span, read_edge_key, read_secret_key},
    descriptors::DescriptorLimit,
    edge::{Certificates, Edge, EdgeOptions, pass_through::Routes, trusted::TrustedPeers},
    hub::{HubOptions, HubServer, SessionClosed},
    operations::{Operations, Served},
    settle::{DEFAULT_INTERVAL, Poller},
    stop::{Stop, stop_signal, switch},
};

/// Folder of the hub's spool unless told otherwise.
const DEFAULT_SPOOL: &str = "hub-spool";

pub(super) fn edge(args: EdgeArgs, file: EdgeTable, json: bool) -> anyhow::Result<()> {
    let listen = needed(args.listen, file.listen, "--listen", "KVASIR_GATEWAY_LISTEN", "edge.listen")?;
    let routes = Routes::new(file.pass_through)?;
    let certificates = [&args.certificate, &file.certificate, &args.certificate_key, &file.certificate_key];
    let (mut options, own) = if !routes.is_empty() && certificates.iter().all(|path| path.is_none()) {
        tracing::info!("no certificate: connections are passed through by name, and no worker is taken");
        (EdgeOptions::pass_through_only(listen, routes), None)
    } else {
        let hub = needed(args.hub, file.hub, "--hub", "KVASIR_GATEWAY_HUB", "edge.hub")?;
        let network = network(args.network, file.network, "edge.network")?;
        let certificate = needed(
            args.certificate,
            file.certificate,
            "--certificate",
            "KVASIR_GATEWAY_CERTIFICATE",
            "edge.certificate",
        )?;
        let key = needed(
            args.certificate_key,
            file.certificate_key,
            "--certificate-key",
            "KVASIR_GATEWAY_CERTIFICATE_KEY",
            "edge.certificate_key",
        )?;
        let edge_key =
            needed(args.edge_key, file.edge_key, "--edge-key", "KVASIR_GATEWAY_EDGE_KEY", "edge.edge_key")?;
        let options = EdgeOptions { pass_through: routes, ..EdgeOptions::new(listen, hub, network) };
        (options, Some((read_edge_key(&edge_key)?, Certificates::load(&certificate, &key)?)))
    };
    for (cap, given) in [
        (&mut options.slots.connections, args.max_connections.or(file.max_connections)),
        (&mut options.slots.unauthenticated, args.max_unauthenticated.or(file.max_unauthenticated)),
        (&mut options.slots.per_address, args.max_per_address.or(file.max_per_address)),
    ] {
        *cap = given.map_or(*cap, NonZeroUsize::get);
    }
    options.accept = accept_limits(args.max_accepts_per_second.or(file.max_accepts_per_second));
    let trusted = if args.trusted_peers.is_empty() { file.trusted_peers } else { args.trusted_peers };
    options.trusted_peers = TrustedPeers::new(trusted)?;
    let operations = args.operations.or(file.operations);
    run(async move {
        let edge = match own {
            Some((edge_key, certificates)) => Edge::bind(options, edge_key, certificates).await?,
            None => Edge::bind_pass_through(options).await?,
        };
        let operations = bind_operations(operations)?;
        announce(edge.address(), operations.as_ref(), json)?;
        let stop = stop_on_signal();
        answer(operations, edge.served(stop.clone()));
        edge.run(stop).await;
        Ok(())
    })
}

pub(super) fn hub(args: HubArgs, file: HubTable, json: bool) -> anyhow::Result<()> {
    let listen = needed(args.listen, file.listen, "--listen", "KVASIR_GATEWAY_LISTEN", "hub.listen")?;
    let network = network(args.network, file.network, "hub.network")?;
    let ledger = needed(args.ledger, file.ledger, "--ledger", "KVASIR_GATEWAY_LEDGER", "hub.ledger")?;
    let hub_key = needed(args.hub_key, file.hub_key, "--hub-key", "KVASIR_GATEWAY_HUB_KEY", "hub.hub_key")?;
    let edge_key =
        needed(args.edge_key, file.edge_key, "--edge-key", "KVASIR_GATEWAY_EDGE_KEY", "hub.edge_key")?;
    let spool = args.spool.or(file.spool).unwrap_or_else(|| DEFAULT_SPOOL.into());
    let identity = HubIdentity { network, key: read_secret_key(&hub_key)?, edge: read_edge_key(&edge_key)? };
    tracing::info!(key = %identity.key.public(), network = identity.network, "this hub");
    if !is_local(listen) {
        tracing::warn!(%listen, "the hub speaks plain HTTP and belongs on the LAN: let no one outside reach this address");
    }
    let mut options = HubOptions::new(listen, identity, spool);
    let most = args.max_connections.or(file.max_connections);
    options.connections = most.map_or(options.connections, NonZeroUsize::get);
    options.accept = accept_limits(args.max_accepts_per_second.or(file.max_accepts_per_second));
    let operations = args.operations.or(file.operations);
    let ledger = Arc::new(Client::new(&ledger)?);
    run(async move {
        let hub = HubServer::bind(options, ledger, Box::new(log_session)).await?;
        let operations = bind_operations(operations)?;
        announce(hub.address(), operations.as_ref(), json)?;
        let stop = stop_on_signal();
        answer(operations, hub.served(stop.clone()));
        hub.run(stop).await;
        Ok(())
    })
}

pub(super) fn settle(args: SettleArgs, file: SettleTable, json: bool) -> anyhow::Result<()> {
    let ledger = needed(args.ledger, file.ledger, "--ledger", "KVASIR_GATEWAY_LEDGER", "settle.ledger")?;
    let network = network(args.network, file.network, "settle.network")?;
    let network =
        network.parse().map_err(|error| anyhow::anyhow!("the network name {network:?}: {error}"))?;
    let key = needed(
        args.settler_key,
        file.settler_key,
        "--settler-key",
        "KVASIR_GATEWAY_SETTLER_KEY",
        "settle.settler_key",
    )?;
    let interval = match (args.interval, &file.interval) {
        (Some(Span(interval)), _) => interval,
        (None, Some(text)) => {
            text.parse::<Span>()
                .map_err(|error| anyhow::anyhow!("settle.interval in gateway.toml: {error}"))?
                .0
        }
        (None, None) => DEFAULT_INTERVAL,
    };
    let cursor = args.cursor.or(file.cursor);
    let mut poller = Poller::new(Client::new(&ledger)?, network, read_secret_key(&key)?, cursor.as_deref())?;
    if args.once {
        let look = poller.look()?;
        if json {
            print_line(&serde_json::to_string(&look)?)?;
        } else {
            print_line(&format!(
                "{} settlements over {} bytes credited {} nanoKVR; {} already credited; {} refused",
                look.settlements,
                look.bytes,
                look.credited_nanokvr,
                look.already_credited,
                look.refused.len()
            ))?;
        }
        return Ok(());
    }
    run(async move {
        tracing::info!(ledger, ?interval, "settling");
        poller.run(interval, stop_on_signal()).await;
        Ok(())
    })
}

fn network(given: Option<String>, from_file: Option<String>, key: &'static str) -> anyhow::Result<String> {
    let name = needed(given, from_file, "--network", "KVASIR_GATEWAY_NETWORK", key)?;
    check_network(&name).map_err(|error| anyhow::anyhow!("the network name {name:?}: {error}"))?;
    Ok(name)
}

fn run(program: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    Runtime::new().context("starting the runtime")?.block_on(program)
}

/// A stop at the first SIGTERM or interrupt. A second one ends the process at once: the default action is back.
fn stop_on_signal() -> Stop {
    let (stopper, stop) = switch();
    tokio::spawn(async move {
        if let Err(error) = stop_signal().await {
            tracing::error!("waiting for signals: {error}; the process can only be killed");
            std::future::pending::<()>().await;
        }
        stopper.stop();
        if stop_signal().await.is_ok() {
            tracing::warn!("second signal: ending at once");
            std::process::exit(130);
        }
    });
    stop
}

/// Raises the limit on descriptors, and says what is accepted within it.
fn accept_limits(per_second: Option<NonZeroU32>) -> AcceptLimits {
    let limit = DescriptorLimit::raise();
    tracing::info!(%limit, "descriptors that this process may have open");
    AcceptLimits::per_second(per_second.unwrap_or(ACCEPTS_PER_SECOND))
}

/// Binds the operations listener, where one is wanted.
fn bind_operations(address: Option<SocketAddr>) -> anyhow::Result<Option<Operations>> {
    let Some(address) = address else { return Ok(None) };
    if !is_local(address) {
        tracing::warn!(%address, "the operations listener asks for no credentials: let no one outside reach this address");
    }
    Ok(Some(Operations::bind(address).context("the address of --operations")?))
}

/// Answers there until the program ends, its drain included.
fn answer(operations: Option<Operations>, served: Arc<dyn Served>) {
    if let Some(operations) = operations {
        tokio::spawn(operations.run(served));
    }
}

/// Standard output says where a server listens: one JSON object, or a line for each address.
fn announce(address: SocketAddr, operations: Option<&Operations>, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let operations = operations.map(Operations::address);
    if json {
        let mut report = serde_json::json!({"listening": address.to_string()});
        if let Some(operations) = operations {
            report["operations"] = operations.to_string().into();
        }
        writeln!(out, "{report}")?;
    } else {
        writeln!(out, "listening on {address}")?;
        if let Some(operations) = operations {
            writeln!(out, "operations on {operations}")?;
        }
    }
    out.flush()
}

/// One line of JSON for each session that ended, on the log.
fn log_session(closed: &SessionClosed) {
    if let Ok(line) = serde_json::to_string(closed) {
        // A log that cannot be written must not end a session's task.
        let _ = writeln!(io::stderr().lock(), "{}", one_line(&line));
    }
}

/// Whether an address is one of this machine or of a private network.
fn is_local(address: SocketAddr) -> bool {
    match address.ip().to_canonical() {
        std::net::IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        std::net::IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_lan_are_told_from_others() {
        for address in
            ["127.0.0.1:1", "10.1.2.3:1", "192.168.0.1:1", "[::1]:1", "[fd00::1]:1", "[::ffff:10.0.0.1]:1"]
        {
            assert!(is_local(address.parse().unwrap()), "{address}");
        }
        for address in ["0.0.0.0:1", "8.8.8.8:1", "[::]:1", "[2001:db8::1]:1"] {
            assert!(!is_local(address.parse().unwrap()), "{address}");
        }
    }
}
