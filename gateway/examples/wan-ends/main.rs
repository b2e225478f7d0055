//! Both ends of a session and the gateway between them, for `scripts/bench-wan`: dispatch and bulk over a wide-area link.
//!
//! `measure` runs backbone, hub and edge on one side of the link and prints one JSON object of what it measured; `worker`
//! runs on the other side. `abuse` is what `measure` starts to show that hostile peers do not slow down honest ones. `report`
//! joins such objects into the table, or into one object as every benchmark prints it.

mod abuse;
mod attackers;
mod backbone;
#[path = "../holders/mod.rs"]
mod holders;
mod hostile;
mod measure;
mod parties;
mod report;
mod worker;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Ends of a session over a wide-area link.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Backbone, hub and edge: measures.
    Measure(measure::Plan),
    /// The worker.
    Worker {
        /// Address of the edge.
        #[arg(long)]
        address: IpAddr,
        /// Folder that both ends see; the edge's certificate lies there.
        #[arg(long)]
        folder: PathBuf,
        #[command(flatten)]
        alike: parties::Alike,
    },
    /// Hostile peers, until standard input ends.
    Abuse(abuse::Attack),
    /// Joins what several runs of `measure` printed.
    Report {
        /// The files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// One JSON object instead of a table.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::WARN).init();
    // One thread, as few programs as cores: the link itself needs a core.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match Arguments::parse().role {
        Role::Measure(plan) => runtime.block_on(measure::run(plan)),
        Role::Worker { address, folder, alike } => {
            runtime.block_on(worker::run(address, &folder, alike.features()))
        }
        Role::Abuse(attack) => runtime.block_on(abuse::run(attack)),
        Role::Report { files, json } => report::run(&files, json),
    }
}
