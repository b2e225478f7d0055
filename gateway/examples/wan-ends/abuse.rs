//! Hostile peers of edge and hub, for as long as standard input is open: what honest dispatch is measured beside.
//!
//! Each kind is bounded by a rate or by what the gateway takes, so that two runs do the same. They come from several addresses of
//! one machine: from one alone the edge's share for an address would end most of it at the door.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use kvasir_gateway::descriptors::DescriptorLimit;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use crate::hostile::{HostileLink, Target, broken_messages};

/// TLS handshakes a second that are left once the edge has answered the ClientHello.
const HANDSHAKES_PER_SECOND: u32 = 200;
/// Connections a second that say nothing.
const SILENT_PER_SECOND: u32 = 400;
/// Silent connections that are held: beyond what an edge holds of them.
const SILENT_HELD: usize = 1_000;
/// Connections that say a byte a second.
const DRIPS: u32 = 512;
/// How long an attacker waits for anything before it tries anew.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between two tries that failed.
const AGAIN: Duration = Duration::from_millis(100);
/// Between two bytes of a drip.
const SECOND: Duration = Duration::from_secs(1);
/// A TLS record of 16 KiB with a ClientHello of nearly as much: whole after hours of a byte a second, and not wrong before.
const UNENDING_HELLO: [u8; 9] = [0x16, 0x03, 0x01, 0x40, 0x00, 0x01, 0x00, 0x3f, 0xfc];
/// A request whose first header goes on.
const UNENDING_HEAD: &[u8] = b"GET /v1/worker HTTP/1.1\r\nX: ";

/// What hostile peers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Abuse {
    /// 200 TLS handshakes a second, left in the middle.
    Handshakes,
    /// 512 connections that say a byte a second, in the ClientHello and in the request.
    Drips,
    /// 400 connections a second that say nothing.
    Silence,
    /// A worker with a ticket that sends pings as fast as they are taken, and reads nothing.
    Pings,
    /// A worker with a ticket that breaks a rule of the framing, and comes again at once.
    BrokenFrames,
    /// All of these together.
    All,
}

impl Abuse {
    /// As in a table.
    pub fn words(self) -> &'static str {
        match self {
            Abuse::Handshakes => "dropped handshakes",
            Abuse::Drips => "a byte a second",
            Abuse::Silence => "silent connections",
            Abuse::Pings => "a flood of pings",
            Abuse::BrokenFrames => "broken frames",
            Abuse::All => "all of these",
        }
    }

    /// As on a command line.
    pub fn argument(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// Whether it needs a ticket.
    fn is_a_holder_s(self) -> bool {
        matches!(self, Abuse::Pings | Abuse::BrokenFrames | Abuse::All)
    }

    fn parts(self) -> Vec<Abuse> {
        match self {
            Abuse::All => {
                vec![Abuse::Handshakes, Abuse::Drips, Abuse::Silence, Abuse::Pings, Abuse::BrokenFrames]
            }
            one => vec![one],
        }
    }
}

/// What the attackers did.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Did {
    /// TCP connections that they opened.
    pub connections: u64,
    /// How often one of them was admitted by the hub.
    pub admitted: u64,
    /// Bytes that they sent after that.
    pub bytes: u64,
}

/// Whom to attack, and how.
#[derive(Debug, clap::Args)]
pub struct Attack {
    /// Address of the edge.
    #[arg(long)]
    address: IpAddr,
    /// Folder with the edge's certificate.
    #[arg(long)]
    folder: PathBuf,
    /// What to do.
    #[arg(long, value_enum)]
    kind: Abuse,
    /// Addresses to come from.
    #[arg(long, value_delimiter = ',', required = true)]
    from: Vec<IpAddr>,
}

/// Says `begun` once it has, goes on until standard input ends, and prints what it did.
pub async fn run(attack: Attack) -> anyhow::Result<()> {
    DescriptorLimit::raise();
    let target = Arc::new(Target::new(attack.address, &attack.folder, attack.from)?);
    let mut attackers = JoinSet::new();
    for part in attack.kind.parts() {
        start(part, &target, &mut attackers);
    }
    println!("begun");
    let (ends, mut ended) = oneshot::channel();
    // A thread of its own: one that reads would keep the runtime from ending.
    std::thread::spawn(move || {
        let _ = std::io::read_to_string(std::io::stdin());
        let _ = ends.send(());
    });
    tokio::select! {
        _ = &mut ended => {}
        Some(over) = attackers.join_next() => bail!("an attacker has ended: {over:?}"),
    }
    attackers.abort_all();
    let did = target.did();
    ensure!(did.connections > 0, "no connection came about: there was no attack");
    ensure!(did.admitted > 0 || !attack.kind.is_a_holder_s(), "nobody was admitted: there was no attack");
    println!("{}", serde_json::to_string(&did)?);
    Ok(())
}

/// Starts the attackers of one kind; none of them ends by itself.
fn start(part: Abuse, target: &Arc<Target>, attackers: &mut JoinSet<()>) {
    let target = target.clone();
    match part {
        Abuse::Handshakes => drop(attackers.spawn(handshakes(target))),
        Abuse::Silence => drop(attackers.spawn(silence(target))),
        Abuse::Pings => drop(attackers.spawn(again_and_again(target, pings))),
        Abuse::BrokenFrames => drop(attackers.spawn(again_and_again(target, broken_frames))),
        Abuse::Drips => {
            for number in 0..DRIPS {
                attackers.spawn(drips(target.clone(), number));
            }
        }
        Abuse::All => {}
    }
}

/// Does something without end; where it fails, after a moment.
async fn again_and_again<A, F>(target: Arc<Target>, attack: A)
where
    A: Fn(Arc<Target>) -> F,
    F: Future<Output = anyhow::Result<()>>,
{
    loop {
        if let Err(error) = attack(target.clone()).await {
            tracing::debug!("{error:#}");
            sleep(AGAIN).await;
        }
    }
}

/// Handshakes that end once the edge has done its part of the work.
async fn handshakes(target: Arc<Target>) {
    let mut tick = interval(SECOND / HANDSHAKES_PER_SECOND);
    loop {
        tick.tick().await;
        let target = target.clone();
        tokio::spawn(timeout(PATIENCE, async move {
            let mut stream = target.dial().await?;
            stream.write_all(target.client_hello()).await?;
            stream.read_u8().await
        }));
    }
}

async fn silence(target: Arc<Target>) {
    let mut held = VecDeque::new();
    let mut tick = interval(SECOND / SILENT_PER_SECOND);
    loop {
        tick.tick().await;
        if let Ok(Ok(stream)) = timeout(SECOND, target.dial()).await {
            held.push_back(stream);
        }
        if held.len() > SILENT_HELD {
            held.pop_front();
        }
    }
}

/// One connection after the other that says a byte a second: half of them in the ClientHello, half in the request.
async fn drips(target: Arc<Target>, number: u32) {
    // Not all in the same moment.
    sleep(SECOND * number / DRIPS).await;
    loop {
        if let Err(error) = drip(&target, number.is_multiple_of(2)).await {
            tracing::debug!("{error:#}");
        }
        sleep(SECOND).await;
    }
}

async fn drip(target: &Target, in_hello: bool) -> anyhow::Result<()> {
    let mut stream = timeout(PATIENCE, target.dial()).await.context("dialling")??;
    if in_hello {
        stream.write_all(&UNENDING_HELLO).await?;
        return Ok(byte_by_byte(stream, 0).await?);
    }
    let mut stream = timeout(PATIENCE, target.protect(stream)).await.context("TLS")??;
    stream.write_all(UNENDING_HEAD).await?;
    stream.flush().await?;
    Ok(byte_by_byte(stream, b'a').await?)
}

/// Until the other side ends it.
async fn byte_by_byte<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, byte: u8) -> std::io::Result<()> {
    let mut answer = [0; 512];
    loop {
        tokio::select! {
            count = stream.read(&mut answer) => {
                if count? == 0 {
                    return Ok(());
                }
            }
            () = sleep(SECOND) => {
                stream.write_all(&[byte]).await?;
                stream.flush().await?;
            }
        }
    }
}

/// A worker that pings and does not read, until the hub has had enough of it.
async fn pings(target: Arc<Target>) -> anyhow::Result<()> {
    let admitted = timeout(PATIENCE, HostileLink::admitted(&target, 0)).await;
    let mut link = admitted.context("being admitted")??;
    loop {
        let message = link.pings();
        let sent = link.send_unread(&message).await;
        sent.context("the hub ended it")?;
        target.has_sent(message.len());
    }
}

/// A worker that sends what it must not, each time something else, and waits to be sent away.
async fn broken_frames(target: Arc<Target>) -> anyhow::Result<()> {
    for bytes in broken_messages() {
        let admitted = timeout(PATIENCE, HostileLink::admitted(&target, 1)).await;
        let mut link = admitted.context("being admitted")??;
        link.send_unread(&bytes).await?;
        target.has_sent(bytes.len());
        timeout(PATIENCE, link.ended()).await.context("the hub does not end a link with broken frames")?;
    }
    Ok(())
}
