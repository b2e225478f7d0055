//! The commands that run until they are stopped: edge, hub, settle.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    sync::Arc,
};

use anyhow::Context as _;
use kvasir_ledger::{client::Client, plain_text::one_line};
use kvasir_wire::handshake::HubIdentity;
use tokio::runtime::Runtime;

use super::{
    EdgeArgs, HubArgs, SettleArgs, Source, print_line,
    reload::on_hangup,
    settings::{self, EdgeOwn, EdgeSetup, HubFixed, HubSetup, network},
};
use crate::{
    config::needed,
    credentials::{Span, read_edge_key, read_secret_key},
    descriptors::DescriptorLimit,
    edge::{Certificates, Edge, EdgeOptions},
    hub::{HubOptions, HubServer, SessionClosed},
    operations::{Operations, Served},
    settle::{DEFAULT_INTERVAL, Poller},
    stop::{Stop, stop_signal, switch},
};

pub(super) fn edge(args: EdgeArgs, source: Source, json: bool) -> anyhow::Result<()> {
    let file = source.start()?;
    raise_descriptors();
    let EdgeSetup { fixed, settings } = settings::edge(args.clone(), file.edge)?;
    let (listen, operations) = (fixed.listen, fixed.operations);
    let (options, own) =
        if let Some(EdgeOwn { hub, network, certificate, certificate_key, edge_key }) = &fixed.own {
            let own = (read_edge_key(edge_key)?, Certificates::load(certificate, certificate_key)?);
            (EdgeOptions::new(listen, hub.clone(), network.clone()), Some(own))
        } else {
            tracing::info!("no certificate: connections are passed through by name, and no worker is taken");
            (EdgeOptions::pass_through_only(listen, settings.pass_through.clone()), None)
        };
    let options = options.with(settings);
    run(async move {
        let certificates = own.as_ref().map(|(_, certificates)| certificates.clone());
        let edge = match own {
            Some((edge_key, certificates)) => Edge::bind(options, edge_key, certificates).await?,
            None => Edge::bind_pass_through(options).await?,
        };
        let operations = bind_operations(operations)?;
        let control = edge.control();
        on_hangup(move || {
            let file = source.read()?;
            let new = settings::edge(args.clone(), file.edge)?;
            let filter = source.log.of_file(file.log.as_deref())?;
            if let Some(certificates) = &certificates {
                certificates.reload()?;
            }
            source.log.change(filter)?;
            control.change(new.settings);
            Ok(fixed.differences(&new.fixed))
        });
        announce(edge.address(), operations.as_ref(), json)?;
        let stop = stop_on_signal();
        answer(operations, edge.served(stop.clone()));
        edge.run(stop).await;
        Ok(())
    })
}

pub(super) fn hub(args: HubArgs, source: Source, json: bool) -> anyhow::Result<()> {
    let file = source.start()?;
    raise_descriptors();
    let HubSetup { fixed, settings } = settings::hub(args.clone(), file.hub)?;
    let HubFixed { listen, network, operations, .. } = fixed.clone();
    let (key, edge) = (read_secret_key(&fixed.hub_key)?, read_edge_key(&fixed.edge_key)?);
    let identity = HubIdentity { network, key, edge };
    tracing::info!(key = %identity.key.public(), network = identity.network, "this hub");
    if !is_local(listen) {
        tracing::warn!(%listen, "the hub speaks plain HTTP and belongs on the LAN: let no one outside reach this address");
    }
    let options = HubOptions::new(listen, identity, fixed.spool.clone()).with(settings);
    let ledger = Arc::new(Client::new(&fixed.ledger)?);
    run(async move {
        let hub = HubServer::bind(options, ledger, Box::new(log_session)).await?;
        let operations = bind_operations(operations)?;
        let control = hub.control();
        on_hangup(move || {
            let file = source.read()?;
            let new = settings::hub(args.clone(), file.hub)?;
            let filter = source.log.of_file(file.log.as_deref())?;
            source.log.change(filter)?;
            control.change(new.settings);
            Ok(fixed.differences(&new.fixed))
        });
        announce(hub.address(), operations.as_ref(), json)?;
        let stop = stop_on_signal();
        answer(operations, hub.served(stop.clone()));
        hub.run(stop).await;
        Ok(())
    })
}

pub(super) fn settle(args: SettleArgs, source: &Source, json: bool) -> anyhow::Result<()> {
    let file = source.start()?.settle;
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

/// Raises the limit on descriptors, within which connections are accepted.
fn raise_descriptors() {
    let limit = DescriptorLimit::raise();
    tracing::info!(%limit, "descriptors that this process may have open");
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
