//! The hops below TLS: the environment's proxy, the name, the connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::{Deadlines, HopName, Log, Stop, Subject, shown};
use crate::LinkError;
use crate::dial::{Target, dial_tcp};
use crate::socket::Congestion;

/// Addresses of one name that are shown, and tried for themselves where none could be reached.
const ADDRESSES_MAX: usize = 8;

/// Says whether the environment asks for a proxy. It fails nobody: whether the direct way works is for the next hops to
/// show.
pub(super) fn proxy(subject: &Subject, log: &mut Log<'_>) {
    let began = Instant::now();
    let (seen, advice) = match &subject.proxy_variable {
        None => ("none is set in the environment; the gateway is dialled directly".to_owned(), None),
        // Not its value: a password may stand in it.
        Some(name) => (
            format!("{} is set; it is not used, the gateway is dialled directly", shown(name)),
            Some("where the network lets programs out through its proxy alone, ask for a direct way to the gateway's port".to_owned()),
        ),
    };
    log.pass(HopName::Proxy, began, seen, advice);
}

/// Looks the name up.
pub(super) async fn dns(
    target: &Target,
    subject: &Subject,
    deadlines: &Deadlines,
    log: &mut Log<'_>,
) -> Result<(), Stop> {
    let (name, began) = (HopName::Dns, Instant::now());
    let host = shown(&target.host);
    if target.host.parse::<IpAddr>().is_ok() {
        log.pass(name, began, format!("{host} is an address; there is no name to look up"), None);
        return Ok(());
    }
    let remedy = || {
        let remedy =
            "check the gateway's name for typing errors, and this machine's resolver (/etc/resolv.conf)";
        with_proxy(remedy, subject)
    };
    match timeout(deadlines.dns, addresses(target)).await {
        Err(_) => {
            let seen = format!("{host} was not resolved within {:?}", deadlines.dns);
            Err(log.fail(name, began, seen, remedy()))
        }
        Ok(Err(error)) => {
            let seen = format!("{host} was not resolved: {}", shown(&error.to_string()));
            Err(log.fail(name, began, seen, remedy()))
        }
        Ok(Ok(found)) if found.is_empty() => {
            Err(log.fail(name, began, format!("{host} has no address"), remedy()))
        }
        Ok(Ok(found)) => {
            let list: Vec<String> = found.iter().map(|address| address.ip().to_string()).collect();
            log.pass(name, began, format!("{host} is {}", list.join(", ")), None);
            Ok(())
        }
    }
}

/// Connects as a worker does; where that comes to nothing, tries each address for itself to say how each fails.
pub(super) async fn tcp(
    target: &Target,
    subject: &Subject,
    deadlines: &Deadlines,
    log: &mut Log<'_>,
) -> Result<TcpStream, Stop> {
    let (name, began) = (HopName::Tcp, Instant::now());
    let problem = match timeout(deadlines.tcp, dial_tcp(target, &Congestion::from_environment())).await {
        Ok(Ok(stream)) => {
            let ends = (stream.local_addr(), stream.peer_addr());
            let seen = match ends {
                (Ok(here), Ok(there)) => format!("connected to {there} from {here}"),
                _ => "connected".to_owned(),
            };
            log.pass(name, began, seen, None);
            return Ok(stream);
        }
        Ok(Err(error)) => reason(&error),
        Err(_) => format!("no connection within {:?}", deadlines.tcp),
    };
    let each = each_address(target, deadlines).await;
    let listed: Vec<String> = each.iter().map(|(address, told)| format!("{address}: {told}")).collect();
    let seen = if listed.is_empty() { problem } else { format!("{problem} ({})", listed.join("; ")) };
    let remedy = if each.iter().any(|(_, told)| told == CONNECTED) {
        "one address of the name works and another does not: tell the gateway's operator, or dial the one that works"
    } else if each.iter().any(|(_, told)| told == REFUSED) {
        "nothing listens there: check the port, and ask the gateway's operator whether the edge runs"
    } else {
        "a firewall drops it, or the machine is off: check that this network lets connections out to that port, then ask the gateway's operator"
    };
    Err(log.fail(name, began, seen, with_proxy(remedy, subject)))
}

const CONNECTED: &str = "connected";
const REFUSED: &str = "refused";

async fn each_address(target: &Target, deadlines: &Deadlines) -> Vec<(SocketAddr, String)> {
    let Ok(Ok(found)) = timeout(deadlines.dns, addresses(target)).await else { return Vec::new() };
    let mut told = Vec::new();
    for address in found {
        let one = Target {
            host: address.ip().to_string(),
            port: target.port,
            authority: String::new(),
            path: String::new(),
        };
        let outcome = match timeout(deadlines.address, dial_tcp(&one, &Congestion::from_environment())).await
        {
            Ok(Ok(_)) => CONNECTED.to_owned(),
            Ok(Err(error)) => reason(&error),
            Err(_) => format!("no answer within {:?}", deadlines.address),
        };
        told.push((address, outcome));
    }
    told
}

async fn addresses(target: &Target) -> io::Result<Vec<SocketAddr>> {
    Ok(lookup_host((target.host.as_str(), target.port)).await?.take(ADDRESSES_MAX).collect())
}

/// What the system said, in its usual words.
fn reason(error: &LinkError) -> String {
    let LinkError::Connect { error, .. } = error else { return shown(&error.to_string()) };
    match error.kind() {
        io::ErrorKind::ConnectionRefused => REFUSED.to_owned(),
        io::ErrorKind::NetworkUnreachable => "no route to that network".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to that host".to_owned(),
        _ => shown(&error.to_string()),
    }
}

fn with_proxy(remedy: &str, subject: &Subject) -> String {
    match &subject.proxy_variable {
        None => remedy.to_owned(),
        Some(name) => format!(
            "{remedy}; {} is set, but proxies are not used: the way to the gateway must be direct",
            shown(name)
        ),
    }
}
