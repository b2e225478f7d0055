//! Both ends of one hop, for `scripts/bench-splice`: clients on one side of a proxy, an upstream on the other, and the same
//! bytes whatever the proxy is. Not part of the product: the keys are numbers that everybody knows.
//!
//! ```text
//! splice-load FOLDER
//! ```
//!
//! Writes keys and a certificate for `localhost` into FOLDER and prints one line of JSON: the addresses of the upstream and of a
//! ledger's stand-in, the network, and the name that a passed ClientHello asks for. Then each line of standard input is an order,
//! and each is answered with one line: what was measured, or `{"error": WHY}`.

mod client;
mod crowd;
#[path = "../holders/mod.rs"]
mod holders;
mod ledger;
mod parties;
mod upstream;

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

use anyhow::Context as _;
use clap::Parser;
use kvasir_wire::handshake::Features;
use serde::Deserialize;
use serde_json::{Value, json};

use client::{Towards, Way};
use crowd::Crowd;
use parties::Ends;

/// What an order may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(600);

/// Both ends of one hop.
#[derive(Parser)]
struct Arguments {
    /// Folder for keys and certificates
    folder: PathBuf,
}

/// One line of standard input.
#[derive(Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
enum Order {
    /// Messages of `bytes` on one connection, each answered with as many before the next.
    Echo { way: Way, address: SocketAddr, bytes: usize, samples: usize },
    /// So many bytes on one connection, one way.
    Bulk { way: Way, address: SocketAddr, towards: Towards, bytes: u64 },
    /// So many more connections, each used once and then held.
    Hold { way: Way, address: SocketAddr, sessions: usize },
    /// So many more workers, admitted by a hub and then held.
    HoldAtHub { address: SocketAddr, sessions: usize, resume: bool },
    /// So many more sessions of workers with a backbone, held at a hub.
    HoldSessionsAtHub { address: SocketAddr, sessions: usize, resume: bool },
    /// Says how many of those held are still there, and closes them.
    Release,
}

fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(io::stderr).with_max_level(tracing::Level::WARN).init();
    let ends = Ends::make(&Arguments::parse().folder)?;
    let (upstream, ledger) = (upstream::start()?, ledger::start()?);
    say(&json!({
        "upstream": upstream.to_string(), "ledger": format!("http://{ledger}"), "network": parties::NETWORK,
        "passed_name": parties::PASSED_NAME,
    }))?;
    // One thread for the clients and one for the upstream: of the two only one is at work at a time, but for bulk.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut crowd = Crowd::default();
        while let Some(order) = next_order().await? {
            let answer = match tokio::time::timeout(PATIENCE, carry_out(&ends, &mut crowd, order)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => json!({"error": format!("{error:#}")}),
                Err(_) => json!({"error": format!("not done within {} s", PATIENCE.as_secs())}),
            };
            say(&answer)?;
        }
        Ok(())
    })
}

async fn carry_out(ends: &Ends, crowd: &mut Crowd, order: Order) -> anyhow::Result<Value> {
    match order {
        Order::Echo { way, address, bytes, samples } => {
            let mut times = client::echoes(ends, way, address, bytes, samples).await?;
            times.sort_unstable();
            let at = |share: f64| {
                let place = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
                times.get(place).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
            };
            Ok(json!({"p50_us": at(0.5), "p99_us": at(0.99)}))
        }
        Order::Bulk { way, address, towards, bytes } => {
            let rate = client::bulk(ends, way, address, towards, bytes).await?;
            Ok(json!({"bytes_per_second": rate}))
        }
        Order::Hold { way, address, sessions } => {
            crowd.hold(ends, way, address, sessions).await?;
            Ok(json!({"held": crowd.held()}))
        }
        Order::HoldAtHub { address, sessions, resume } => {
            crowd.hold_at_hub(address, sessions, features(resume)).await?;
            Ok(json!({"held": crowd.held()}))
        }
        Order::HoldSessionsAtHub { address, sessions, resume } => {
            crowd.hold_sessions_at_hub(address, sessions, features(resume)).await?;
            Ok(json!({"held": crowd.held()}))
        }
        Order::Release => {
            let alive = crowd.alive().await;
            let held = crowd.held();
            *crowd = Crowd::default();
            Ok(json!({"held": held, "alive": alive}))
        }
    }
}

/// What both ends ask for.
fn features(resume: bool) -> Features {
    if resume { Features::RESUME } else { Features::NONE }
}

/// The next line, or nothing at the end. What is held goes on meanwhile.
async fn next_order() -> anyhow::Result<Option<Order>> {
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        io::stdin().read_line(&mut line).map(|_| line)
    });
    let line = line.await??;
    if line.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).with_context(|| format!("no order: {}", line.trim_end()))
}

fn say(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")?;
    out.flush()
}
