//! Walks the way of a worker to a backbone hop by hop and says at which one it ends: what was seen there, and what to do.
//!
//! Every hop is gone with the code that a worker dials with, taken apart, and has a deadline of its own
//! ([`Deadlines`]). What comes from outside is cut and masked ([`shown`]) before it gets into a [`Hop`]; tickets and keys
//! never do. The walk ends in order: a backbone that was offered is declined, no session begins and nothing is billed.

mod door;
mod hub;
mod keys;
mod network;
mod text;
mod tls;

use std::time::{Duration, Instant};

use kvasir_wire::handshake::WorkerOffer;
use kvasir_wire::key::SecretKey;
use kvasir_wire::ticket::Ticket;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

pub use keys::check_keys;
pub use text::shown;

use crate::WORKER_PATH;
use crate::dial::{Target, TlsTrust};
use crate::error::LinkError;

/// Whom to dial and what to show there.
pub struct Subject {
    /// `wss://HOST[:PORT]`, as a worker is given it.
    pub gateway: String,
    /// Whom to believe at the other end of TLS.
    pub trust: TlsTrust,
    /// The ticket; without one the walk ends before the upgrade.
    pub ticket: Option<Ticket>,
    /// The key of the ticket; without it the hub is not greeted.
    pub key: Option<SecretKey>,
    /// What a worker would offer; without it no backbone is asked for.
    pub offer: Option<WorkerOffer>,
    /// Name of the environment's variable that tells programs to use an HTTP proxy, if one is set.
    pub proxy_variable: Option<String>,
    /// Danger: be admitted although the ticket allows one link at a time, so that a worker that runs with it is sent
    /// away for good.
    pub replace_worker: bool,
}

/// How long each hop may take.
#[derive(Debug, Clone)]
pub struct Deadlines {
    /// The look-up of the name.
    pub dns: Duration,
    /// The connection as a worker makes it, over all addresses.
    pub tcp: Duration,
    /// One address, where that came to nothing and each is tried for itself.
    pub address: Duration,
    /// The TLS handshake.
    pub tls: Duration,
    /// From the request to the answer's head.
    pub upgrade: Duration,
    /// From the hello to the welcome.
    pub hub: Duration,
    /// From the welcome to a backbone.
    pub backbone: Duration,
    /// The orderly end.
    pub close: Duration,
}

/// A resolver asks twice within this, as resolv.conf(5) has it unless told otherwise.
pub const DNS_DEADLINE: Duration = Duration::from_secs(10);
/// A worker's own, for all addresses together.
pub const TCP_DEADLINE: Duration = Duration::from_secs(10);
/// Three attempts of TCP, at 0, 1 and 3 seconds.
pub const ADDRESS_DEADLINE: Duration = Duration::from_secs(4);
/// A worker's own.
pub const TLS_DEADLINE: Duration = Duration::from_secs(10);
/// A little longer than an edge takes at most, so that its answer is read.
pub const UPGRADE_DEADLINE: Duration = Duration::from_secs(12);
/// A worker's own.
pub const HUB_DEADLINE: Duration = Duration::from_secs(10);
/// A backbone has ten seconds to dial; one that declined is followed by the next.
pub const BACKBONE_DEADLINE: Duration = Duration::from_secs(20);
/// For last words and the other side's close.
pub const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

impl Default for Deadlines {
    fn default() -> Self {
        Deadlines {
            dns: DNS_DEADLINE,
            tcp: TCP_DEADLINE,
            address: ADDRESS_DEADLINE,
            tls: TLS_DEADLINE,
            upgrade: UPGRADE_DEADLINE,
            hub: HUB_DEADLINE,
            backbone: BACKBONE_DEADLINE,
            close: CLOSE_DEADLINE,
        }
    }
}

/// The hops, in the order in which they are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HopName {
    /// What the operator set: address, certificate authority.
    Settings,
    /// Ticket and key as they are on this machine.
    Keys,
    /// The kernel that a worker would offer.
    Plugin,
    /// Whether the environment asks for an HTTP proxy.
    Proxy,
    /// The gateway's name.
    Dns,
    /// A connection to one of its addresses.
    Tcp,
    /// TLS, and the certificate.
    Tls,
    /// An answer to the upgrade request, from a gateway.
    Upgrade,
    /// The ticket, as edge and hub see it.
    Ticket,
    /// Subprotocol and protocol version.
    Version,
    /// The hub's proof of its key, and its welcome.
    Hub,
    /// A backbone that wants this worker.
    Backbone,
}

impl HopName {
    /// Those that are gone here; the ones before them are the caller's to look at.
    pub const NETWORK: [HopName; 9] = [
        HopName::Proxy,
        HopName::Dns,
        HopName::Tcp,
        HopName::Tls,
        HopName::Upgrade,
        HopName::Ticket,
        HopName::Version,
        HopName::Hub,
        HopName::Backbone,
    ];

    /// The word in reports.
    pub const fn name(self) -> &'static str {
        match self {
            HopName::Settings => "settings",
            HopName::Keys => "keys",
            HopName::Plugin => "plugin",
            HopName::Proxy => "proxy",
            HopName::Dns => "dns",
            HopName::Tcp => "tcp",
            HopName::Tls => "tls",
            HopName::Upgrade => "upgrade",
            HopName::Ticket => "ticket",
            HopName::Version => "version",
            HopName::Hub => "hub",
            HopName::Backbone => "backbone",
        }
    }
}

/// How a hop went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is in order.
    Passed,
    /// The way ends here.
    Failed,
    /// Nothing is known of it.
    NotReached,
}

/// One hop of the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hop {
    /// Which.
    pub name: HopName,
    /// How it went.
    pub outcome: Outcome,
    /// Milliseconds that it took; none where it was not reached.
    pub ms: Option<u64>,
    /// What was seen; why it was not reached.
    pub seen: String,
    /// What to do where it failed, or advice where it passed.
    pub remedy: Option<String>,
}

impl Hop {
    /// A hop in order, since `began`.
    pub fn passed(name: HopName, began: Instant, seen: impl Into<String>) -> Hop {
        Hop { name, outcome: Outcome::Passed, ms: Some(since(began)), seen: seen.into(), remedy: None }
    }

    /// A hop at which the way ends, since `began`.
    pub fn failed(name: HopName, began: Instant, seen: impl Into<String>, remedy: impl Into<String>) -> Hop {
        let (ms, remedy) = (Some(since(began)), Some(remedy.into()));
        Hop { name, outcome: Outcome::Failed, ms, seen: seen.into(), remedy }
    }

    /// A hop of which nothing is known, and why.
    pub fn not_reached(name: HopName, why: impl Into<String>) -> Hop {
        Hop { name, outcome: Outcome::NotReached, ms: None, seen: why.into(), remedy: None }
    }

    /// With advice, if there is any.
    pub fn with_advice(mut self, advice: Option<String>) -> Hop {
        self.remedy = self.remedy.or(advice);
        self
    }
}

/// Checks the gateway's address as a worker does before it dials.
pub fn check_address(gateway: &str, trust: &TlsTrust) -> Hop {
    let began = Instant::now();
    match Target::parse(gateway, WORKER_PATH, trust) {
        Ok(target) => {
            let authorities = match trust {
                TlsTrust::WebRoots => "the web's certificate authorities are believed",
                TlsTrust::CaFile(_) => "one file of certificate authorities is believed and no other",
                TlsTrust::PlainText => "without TLS",
            };
            let seen = format!("{} port {}, {authorities}", shown(&target.host), target.port);
            Hop::passed(HopName::Settings, began, seen)
        }
        Err(error) => {
            // Not the address itself: a password may stand in it.
            let problem = match error {
                LinkError::Address { problem, .. } => problem,
                other => other.to_string(),
            };
            let seen = format!("the gateway's address cannot be used: {}", shown(&problem));
            let remedy = "give the address that the network's operator named: wss://HOST or wss://HOST:PORT";
            Hop::failed(HopName::Settings, began, seen, remedy)
        }
    }
}

/// Goes the way from the proxy to a backbone ([`HopName::NETWORK`]), tells each hop once it is over, and gives them all,
/// each of them once and in order. Needs a tokio runtime with I/O and time.
pub async fn examine(subject: &Subject, deadlines: &Deadlines, tell: &mut dyn FnMut(&Hop)) -> Vec<Hop> {
    let mut log = Log { hops: Vec::new(), tell };
    if let Err(Stop(why)) = walk(subject, deadlines, &mut log).await {
        log.leave_out_rest(&why);
    }
    log.hops
}

async fn walk(subject: &Subject, deadlines: &Deadlines, log: &mut Log<'_>) -> Result<(), Stop> {
    network::proxy(subject, log);
    let target = Target::parse(&subject.gateway, WORKER_PATH, &subject.trust)
        .map_err(|_| Stop("the gateway's address cannot be used".to_owned()))?;
    network::dns(&target, subject, deadlines, log).await?;
    let stream = network::tcp(&target, subject, deadlines, log).await?;
    match tls::wrap(stream, &target, &subject.trust, deadlines, log).await? {
        tls::Wrapped::Tls(stream) => beyond(*stream, &target, subject, deadlines, log).await,
        tls::Wrapped::Plain(stream) => beyond::<TcpStream>(stream, &target, subject, deadlines, log).await,
    }
}

/// From the upgrade on.
async fn beyond<S>(
    stream: S,
    target: &Target,
    subject: &Subject,
    deadlines: &Deadlines,
    log: &mut Log<'_>,
) -> Result<(), Stop>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(ticket) = &subject.ticket else { return Err(Stop("there is no ticket to show".to_owned())) };
    let socket = door::pass(stream, target, ticket, deadlines, log).await?;
    let Some(key) = &subject.key else {
        return Err(Stop("there is no key to prove".to_owned()));
    };
    let greeting = hub::Greeting { ticket, key, subject, deadlines };
    greeting.run(socket, log).await
}

/// Why the rest of the way was not gone.
struct Stop(String);

/// The hops so far.
struct Log<'a> {
    hops: Vec<Hop>,
    tell: &'a mut dyn FnMut(&Hop),
}

impl Log<'_> {
    fn push(&mut self, hop: Hop) {
        (self.tell)(&hop);
        self.hops.push(hop);
    }

    fn pass(&mut self, name: HopName, began: Instant, seen: impl Into<String>, advice: Option<String>) {
        self.push(Hop::passed(name, began, seen).with_advice(advice));
    }

    /// Notes a failure, after what lies between it and the last hop.
    fn fail(
        &mut self,
        name: HopName,
        began: Instant,
        seen: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Stop {
        let before = HopName::NETWORK.into_iter().take_while(|hop| *hop != name);
        let left_out: Vec<HopName> = before.filter(|hop| !self.has(*hop)).collect();
        for hop in left_out {
            self.push(Hop::not_reached(hop, format!("it was not asked: the way ended at {}", name.name())));
        }
        self.push(Hop::failed(name, began, seen, remedy));
        Stop(format!("the {} hop failed", name.name()))
    }

    fn leave_out(&mut self, name: HopName, why: impl Into<String>) {
        self.push(Hop::not_reached(name, why));
    }

    fn leave_out_rest(&mut self, why: &str) {
        for name in HopName::NETWORK {
            if !self.has(name) {
                self.leave_out(name, why);
            }
        }
    }

    fn has(&self, name: HopName) -> bool {
        self.hops.iter().any(|hop| hop.name == name)
    }
}

fn since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}
