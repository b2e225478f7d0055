//! The commands that run until they are stopped: edge, hub, settle.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use kvasir_ledger::{client::Client, plain_text::one_line};
use kvasir_link::Congestion;
use kvasir_wire::handshake::HubIdentity;
use tokio::{runtime::Runtime, sync::Notify, time::sleep};

use super::{
    EdgeArgs, HubArgs, SettleArgs, Source,
    hand_over::{HandOver, Watch},
    print_line,
    reload::Hangups,
    settings::{self, CertificateFrom, EdgeSetup, HubSetup, network},
};
use crate::{
    acme::Acme,
    config::{ConfigError, needed},
    credentials::{Span, read_edge_key, read_secret_key},
    descriptors::DescriptorLimit,
    edge::{CertificateSource, Certificates, DRAIN_TIME, Edge, EdgeOptions, HAND_OVER_TIME},
    hub::{HubError, HubOptions, HubServer, SessionClosed, TAKE_OVER_TIME, filing::SpoolHold},
    listen::{self, ListenError, Listening},
    operations::{Operations, Served},
    settle::{DEFAULT_INTERVAL, Poller},
    stop::{Stop, stop_signal, switch},
};

/// Exit status of a process that was told twice to stop.
pub(super) const STOPPED_AT_ONCE: i32 = 130;
/// Between two looks whether an address is free that the process before this one still has.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn edge(args: EdgeArgs, source: Source, json: bool) -> anyhow::Result<()> {
    let file = source.start()?;
    raise_descriptors();
    let EdgeSetup { fixed, settings } = settings::edge(args.clone(), file.edge)?;
    let own = match &fixed.own {
        Some(own) => {
            let certificates: CertificateSource = match &own.certificate {
                CertificateFrom::Files { certificate, key } => Certificates::load(certificate, key)?.into(),
                CertificateFrom::Acme(options) => Acme::open(options.clone())?.into(),
            };
            Some((read_edge_key(&own.edge_key)?, certificates))
        }
        None => {
            tracing::info!("no certificate: connections are passed through by name, and no worker is taken");
            None
        }
    };
    run(async move {
        let hangups = Hangups::watch();
        let Listening { listener, takes_over } = listen_at(fixed.listen, "edge.listen")?;
        let hand_over = HandOver::of(&listener, json).context("preparing to hand over")?;
        let address = listen::local_address(&listener)?;
        let options = match &fixed.own {
            Some(own) => EdgeOptions::new(address, own.hub.clone(), own.network.clone()),
            None => EdgeOptions::pass_through_only(address, settings.pass_through.clone()),
        };
        let options = options.with(settings);
        let certificates = own.as_ref().map(|(_, certificates)| certificates.clone());
        let edge = match own {
            Some((edge_key, certificates)) => Edge::over(listener, options, edge_key, certificates)?,
            None => Edge::pass_through_over(listener, options)?,
        };
        let operations = bind_operations(fixed.operations, takes_over)?;
        let (control, released) = (edge.control(), Arc::new(Notify::new()));
        let stop = stop_on_signal(Some(hand_over), {
            let (control, released) = (control.clone(), released.clone());
            move || {
                control.set_drain_time(HAND_OVER_TIME);
                released.notify_one();
            }
        });
        hangups.reload(move || {
            let file = source.read()?;
            let new = settings::edge(args.clone(), file.edge)?;
            let filter = source.log.of_file(file.log.as_deref())?;
            let changed = certificates.as_ref().map(CertificateSource::look).transpose()?.flatten();
            source.log.change(filter)?;
            // From here on nothing fails: all is changed, or nothing is.
            if let Some(certificates) = &certificates {
                certificates.reload(changed);
            }
            control.change(new.settings);
            Ok(fixed.differences(&new.fixed))
        });
        announce(address, operations.as_ref().map(|operations| operations.address), json)?;
        answer(operations, edge.served(stop.clone()), released);
        edge.run(stop).await;
        Ok(())
    })
}

pub(super) fn hub(args: HubArgs, source: Source, json: bool) -> anyhow::Result<()> {
    let file = source.start()?;
    raise_descriptors();
    let HubSetup { fixed, settings } = settings::hub(args.clone(), file.hub)?;
    let (key, edge) = (read_secret_key(&fixed.hub_key)?, read_edge_key(&fixed.edge_key)?);
    let identity = HubIdentity { network: fixed.network.clone(), key, edge };
    tracing::info!(key = %identity.key.public(), network = identity.network, "this hub");
    let ledger = Arc::new(Client::new(&fixed.ledger)?);
    run(async move {
        let hangups = Hangups::watch();
        let Listening { listener, takes_over } = listen_at(fixed.listen, "hub.listen")?;
        let hand_over = HandOver::of(&listener, json).context("preparing to hand over")?;
        let address = listen::local_address(&listener)?;
        if !is_local(address) {
            tracing::warn!(%address, "the hub speaks plain HTTP and belongs on the LAN: let no one outside reach this address");
        }
        let mut options = HubOptions::new(address, identity, fixed.spool.clone()).with(settings);
        options.link.bulk_connection = fixed.bulk_connection;
        let released = Arc::new(Notify::new());
        let stop = stop_on_signal(Some(hand_over), {
            let released = released.clone();
            move || released.notify_one()
        });
        let taken = match SpoolHold::take(&fixed.spool) {
            Ok(hold) => Some(hold),
            Err(HubError::SpoolInUse { .. }) if takes_over => None,
            Err(error) => return Err(error.into()),
        };
        let announced = taken.is_none();
        let hold = match taken {
            Some(hold) => hold,
            // The hub that hands over has the spool until it has finished, which it begins once it hears that this one listens.
            // Whoever comes meanwhile waits in the socket's queue.
            None => {
                announce(address, fixed.operations, json)?;
                let mut stop = stop.clone();
                tokio::select! {
                    hold = SpoolHold::take_over(&fixed.spool, TAKE_OVER_TIME) => hold?,
                    () = stop.stopped() => return Ok(()),
                }
            }
        };
        let hub = HubServer::over(listener, hold, options, ledger, Box::new(log_session))?;
        let operations = bind_operations(fixed.operations, takes_over)?;
        if !announced {
            announce(address, operations.as_ref().map(|operations| operations.address), json)?;
        }
        let control = hub.control();
        hangups.reload(move || {
            let file = source.read()?;
            let new = settings::hub(args.clone(), file.hub)?;
            let filter = source.log.of_file(file.log.as_deref())?;
            source.log.change(filter)?;
            control.change(new.settings);
            Ok(fixed.differences(&new.fixed))
        });
        answer(operations, hub.served(stop.clone()), released);
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
        poller.run(interval, stop_on_signal(None, || {})).await;
        Ok(())
    })
}

fn run(program: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    Runtime::new().context("starting the runtime")?.block_on(program)
}

/// A stop at the first SIGTERM or interrupt; a second one ends the process at once. A hand-over is a stop as well, which nobody
/// has asked this process for yet.
fn stop_on_signal(hand_over: Option<HandOver>, on_hand_over: impl FnOnce() + Send + 'static) -> Stop {
    let (stopper, stop) = switch();
    tokio::spawn(async move {
        let watch = tokio::select! {
            () = next_stop_signal() => None,
            watch = handed_over(hand_over) => Some(watch),
        };
        if watch.is_some() {
            on_hand_over();
        }
        stopper.stop();
        next_stop_signal().await;
        if let Some(watch) = watch {
            // Who is told to stop starts nobody any more.
            watch.end();
            tracing::info!(
                seconds = DRAIN_TIME.as_secs(),
                "stopping: what is left of the sessions is cut then"
            );
            tokio::select! {
                () = next_stop_signal() => {}
                () = sleep(DRAIN_TIME) => std::process::exit(0),
            }
        }
        tracing::warn!("second signal: ending at once");
        std::process::exit(STOPPED_AT_ONCE);
    });
    stop
}

/// Returns at the next SIGTERM or interrupt.
async fn next_stop_signal() {
    if let Err(error) = stop_signal().await {
        tracing::error!("waiting for signals: {error}; the process can only be killed");
        std::future::pending::<()>().await;
    }
}

async fn handed_over(hand_over: Option<HandOver>) -> Watch {
    match hand_over {
        Some(hand_over) => hand_over.done().await,
        None => std::future::pending().await,
    }
}

/// The socket at standard input, or a new one.
fn listen_at(address: Option<SocketAddr>, key: &'static str) -> anyhow::Result<Listening> {
    let listening = listen::inherit_or_bind(address, &Congestion::from_environment())?;
    let missing = ConfigError::Missing { flag: "--listen", variable: "KVASIR_GATEWAY_LISTEN", key };
    Ok(listening.ok_or(missing)?)
}

/// Raises the limit on descriptors, within which connections are accepted.
fn raise_descriptors() {
    let limit = DescriptorLimit::raise();
    tracing::info!(%limit, "descriptors that this process may have open");
}

/// The operations listener that is wanted.
struct OperationsAt {
    address: SocketAddr,
    /// None while another process, which hands over, has the address.
    bound: Option<Operations>,
}

/// Binds the operations listener, where one is wanted.
fn bind_operations(address: Option<SocketAddr>, takes_over: bool) -> anyhow::Result<Option<OperationsAt>> {
    let Some(address) = address else { return Ok(None) };
    if !is_local(address) {
        tracing::warn!(%address, "the operations listener asks for no credentials: let no one outside reach this address");
    }
    match Operations::bind(address) {
        Ok(bound) => Ok(Some(OperationsAt { address: bound.address(), bound: Some(bound) })),
        Err(ListenError::InUse { .. }) if takes_over => Ok(Some(OperationsAt { address, bound: None })),
        Err(error) => Err(error).context("the address of --operations"),
    }
}

/// Answers there until the program ends, its drain included, or until the address is released for another process.
fn answer(operations: Option<OperationsAt>, served: Arc<dyn Served>, released: Arc<Notify>) {
    let Some(OperationsAt { address, bound }) = operations else { return };
    tokio::spawn(async move {
        let answering = async {
            let operations = match bound {
                Some(operations) => operations,
                None => bind_when_free(address).await,
            };
            operations.run(served).await;
        };
        tokio::select! {
            () = answering => {}
            () = released.notified() => {}
        }
    });
}

async fn bind_when_free(address: SocketAddr) -> Operations {
    loop {
        match Operations::bind(address) {
            Ok(operations) => return operations,
            Err(error) => tracing::debug!("waiting for the operations address: {error}"),
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// Standard output says where a server listens: one JSON object, or a line for each address. All in one write: whoever waits for
/// it may read no further than the first line.
fn announce(address: SocketAddr, operations: Option<SocketAddr>, json: bool) -> io::Result<()> {
    let text = if json {
        let mut report = serde_json::json!({"listening": address.to_string()});
        if let Some(operations) = operations {
            report["operations"] = operations.to_string().into();
        }
        format!("{report}\n")
    } else {
        let operations = operations.map(|address| format!("operations on {address}\n"));
        format!("listening on {address}\n{}", operations.unwrap_or_default())
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
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
