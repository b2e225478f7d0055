//! What is measured over one link: echoes of dispatch, after a pause, beside bulk, under abuse; and bulk alone.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kvasir_gateway::descriptors::DescriptorLimit;
use kvasir_link::{Congestion, socket_for};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::abuse::{Abuse, Did};
use crate::attackers::Attackers;
use crate::backbone::Backbone;
use crate::parties::{Alike, ECHO_PORT, Gateway, start_gateway};

/// Time between the beginnings of two echoes, unless one takes longer.
const PACE: Duration = Duration::from_millis(20);
/// The pause of the cells after a pause: longer than any retransmission timeout, so that the kernel forgets the path.
const PAUSE: Duration = Duration::from_millis(400);
/// Echoes before a cell that do not count.
const WARM_UP: usize = 10;
/// One echo after a pause for so many others: they take half a second each and show a median, no p99.
const FEWER_AFTER_A_PAUSE: usize = 20;
/// Fewest echoes after a pause.
const LEAST_AFTER_A_PAUSE: usize = 20;
/// From the beginning of an abuse until echoes count: what the gateway allows at once has come by then.
const ABUSE_BEGINS: Duration = Duration::from_secs(3);
/// From its end until the next cell: nothing of it is open any more.
const ABUSE_ENDS: Duration = Duration::from_secs(2);

/// What to measure, over a link that the caller has set up.
#[derive(Debug, clap::Args)]
pub struct Plan {
    /// Address of this side.
    #[arg(long)]
    address: IpAddr,
    /// Folder that both ends see.
    #[arg(long)]
    folder: PathBuf,
    /// The link's rate towards the worker and back, Mbit/s.
    #[arg(long)]
    megabits: f64,
    /// Its round trip, ms.
    #[arg(long)]
    round_trip: f64,
    /// Packets of a million that it loses, each way.
    #[arg(long, default_value_t = 0)]
    loss: u32,
    /// The queue before its slowest hop, KiB.
    #[arg(long)]
    queue: u32,
    /// Echoes a cell.
    #[arg(long)]
    samples: usize,
    /// Dispatch payloads, KiB.
    #[arg(long, value_delimiter = ',', default_value = "12,48,96")]
    sizes: Vec<usize>,
    /// Also after a pause of 400 ms each: a twentieth of the samples, 20 at least.
    #[arg(long)]
    pause: bool,
    /// Also beside saturating bulk.
    #[arg(long)]
    bulk: bool,
    /// The kernel restarts slowly after a pause here, as it does unless told otherwise.
    #[arg(long)]
    idle_restart: bool,
    /// Also while hostile peers do this to edge and hub, one after the other.
    #[arg(long, value_enum, value_delimiter = ',', requires = "hostile")]
    abuse: Vec<Abuse>,
    /// This side's addresses that they come from.
    #[arg(long, value_delimiter = ',')]
    hostile: Vec<IpAddr>,
    /// Edge and hub have threads of their own, as in programs of their own; else all of this side is on one.
    #[arg(long)]
    apart: bool,
    #[command(flatten)]
    alike: Alike,
}

/// What was measured over one link.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    pub megabits: f64,
    pub round_trip_ms: f64,
    pub loss_per_million: u32,
    pub queue_kib: u32,
    pub idle_restart: bool,
    /// Whether a session outlives its connections.
    pub resume: bool,
    /// Whether bulk has a connection of its own.
    pub bulk_connection: bool,
    /// Whether edge and hub have threads of their own.
    pub apart: bool,
    /// Median echo of 64 bytes over plain TCP, ms: the round trip as it is.
    pub floor_ms: f64,
    /// Bulk without dispatch beside it, Mbit/s.
    pub bulk_alone: Option<f64>,
    pub cells: Vec<Cell>,
}

/// One row of figures.
#[derive(Debug, Serialize, Deserialize)]
pub struct Cell {
    pub kib: usize,
    pub paused: bool,
    pub samples: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Beside bulk: its Mbit/s, and that of bulk and calls together.
    pub bulk: Option<f64>,
    pub carried: Option<f64>,
    /// Beside an abuse: what there was of it.
    pub under: Option<Under>,
}

/// An abuse that went on while a cell was measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Under {
    pub abuse: Abuse,
    /// Connections that the edge accepted meanwhile, those closed unread included.
    pub accepted: u64,
    /// From the abuse's beginning to its end, as the attackers tell it.
    pub did: Did,
}

/// Measures and prints.
pub async fn run(plan: Plan) -> anyhow::Result<()> {
    // As the programs do at their start.
    DescriptorLimit::raise();
    let gateway = start_gateway(plan.address, &plan.folder, plan.alike, plan.apart).await?;
    let floor_ms = plain_floor(plan.address, plan.samples.min(200)).await?;
    eprintln!("  64 bytes over plain TCP: p50 {floor_ms:.1} ms");
    let backbone = Backbone::start(gateway.hub, plan.alike.features()).await?;
    let mut cells = Vec::new();
    for kib in &plan.sizes {
        cells.push(echoes(&backbone, *kib, plan.samples, PACE, Duration::ZERO).await?.said());
        if plan.pause {
            let samples = plan.samples.div_ceil(FEWER_AFTER_A_PAUSE).max(LEAST_AFTER_A_PAUSE);
            cells.push(echoes(&backbone, *kib, samples, Duration::ZERO, PAUSE).await?.said());
        }
        for abuse in &plan.abuse {
            cells.push(under(&backbone, &gateway, &plan, *kib, *abuse).await?.said());
        }
    }
    let mut bulk_alone = None;
    if plan.bulk {
        backbone.start_bulk();
        // The window grows by a quarter a round trip, the kernel's by more: 60 round trips are plenty.
        tokio::time::sleep(Duration::from_secs_f64(3.0 + plan.round_trip * 0.06)).await;
        let seconds = 3.0 + plan.samples as f64 / 80.0;
        let (before, began) = (backbone.bulk_sent(), Instant::now());
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        let alone = megabits(backbone.bulk_sent() - before, began.elapsed());
        eprintln!("  bulk alone: {alone:.1} Mbit/s");
        bulk_alone = Some(alone);
        for kib in &plan.sizes {
            cells.push(beside_bulk(&backbone, *kib, plan.samples).await?.said());
        }
        backbone.stop_bulk().await;
    }
    let measured = Measured {
        megabits: plan.megabits,
        round_trip_ms: plan.round_trip,
        loss_per_million: plan.loss,
        queue_kib: plan.queue,
        idle_restart: plan.idle_restart,
        resume: plan.alike.resume(),
        bulk_connection: plan.alike.bulk_connection(),
        apart: plan.apart,
        floor_ms,
        bulk_alone,
        cells,
    };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

impl Cell {
    /// What a row of figures is of.
    pub fn name(&self) -> String {
        let what = match (&self.under, self.bulk) {
            (Some(under), _) => format!(" under {}", under.abuse.words()),
            (None, Some(_)) => " beside bulk".to_owned(),
            (None, None) if self.paused => " after 400 ms".to_owned(),
            (None, None) => String::new(),
        };
        format!("{} KiB{what}", self.kib)
    }

    /// Shows that something was measured.
    fn said(self) -> Cell {
        let (name, samples, p50, p99) = (self.name(), self.samples, self.p50_ms, self.p99_ms);
        let bulk = self.bulk.map_or(String::new(), |bulk| format!(", bulk {bulk:.1} Mbit/s"));
        eprintln!("  {name}: p50 {p50:.1} ms, p99 {p99:.1} ms of {samples}{bulk}");
        self
    }
}

/// Echoes while hostile peers are at work.
async fn under(
    backbone: &Backbone,
    gateway: &Gateway,
    plan: &Plan,
    kib: usize,
    abuse: Abuse,
) -> anyhow::Result<Cell> {
    let attackers = Attackers::start(plan.address, &plan.folder, &plan.hostile, abuse).await?;
    tokio::time::sleep(ABUSE_BEGINS).await;
    let before = gateway.accepted()?;
    let mut cell = echoes(backbone, kib, plan.samples, PACE, Duration::ZERO).await?;
    let accepted = gateway.accepted()? - before;
    cell.under = Some(Under { abuse, accepted, did: attackers.stop().await? });
    tokio::time::sleep(ABUSE_ENDS).await;
    Ok(cell)
}

async fn beside_bulk(backbone: &Backbone, kib: usize, samples: usize) -> anyhow::Result<Cell> {
    for _ in 0..WARM_UP {
        backbone.echo(kib * 1024).await?;
    }
    let (before, began) = (backbone.bulk_sent(), Instant::now());
    let mut cell = echoes_now(backbone, kib, samples, PACE, Duration::ZERO).await?;
    let (bulk, time) = (backbone.bulk_sent() - before, began.elapsed());
    cell.bulk = Some(megabits(bulk, time));
    cell.carried = Some(megabits(bulk + (samples * kib * 1024) as u64, time));
    Ok(cell)
}

async fn echoes(
    backbone: &Backbone,
    kib: usize,
    samples: usize,
    pace: Duration,
    pause: Duration,
) -> anyhow::Result<Cell> {
    for _ in 0..WARM_UP {
        backbone.echo(kib * 1024).await?;
    }
    echoes_now(backbone, kib, samples, pace, pause).await
}

async fn echoes_now(
    backbone: &Backbone,
    kib: usize,
    samples: usize,
    pace: Duration,
    pause: Duration,
) -> anyhow::Result<Cell> {
    let mut times = Vec::with_capacity(samples);
    for _ in 0..samples {
        tokio::time::sleep(pause).await;
        let next = tokio::time::Instant::now() + pace;
        times.push(backbone.echo(kib * 1024).await?);
        tokio::time::sleep_until(next).await;
    }
    let (p50_ms, p99_ms) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
    let paused = !pause.is_zero();
    Ok(Cell { kib, paused, samples, p50_ms, p99_ms, bulk: None, carried: None, under: None })
}

/// Median echo of 64 bytes over plain TCP: waits for the worker's end to dial.
async fn plain_floor(address: IpAddr, samples: usize) -> anyhow::Result<f64> {
    let address = (address, ECHO_PORT).into();
    let socket = socket_for(address, &Congestion::from_environment())?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(8)?;
    let accepted = tokio::time::timeout(Duration::from_secs(20), listener.accept()).await;
    let (mut stream, _) = accepted.context("the worker's end did not dial within 20 s")??;
    let mut times = Vec::with_capacity(samples);
    for _ in 0..samples {
        let began = Instant::now();
        stream.write_all(&[0; 64]).await?;
        stream.read_exact(&mut [0; 64]).await?;
        times.push(began.elapsed());
    }
    Ok(quantile(&mut times, 0.5))
}

fn quantile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let place = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
    times.get(place).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

fn megabits(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / 1e6 / time.as_secs_f64()
}
