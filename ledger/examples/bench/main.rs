//! Figures of the ledger on this machine, as ratios beside raw SQLite and raw signature checks. `scripts/bench-ledger` runs it.
//!
//! Prints one JSON object: machine and `measured`, a list of {name, value, unit, aim, better, met, note}.
#![allow(clippy::unwrap_used)] // a figure that cannot be taken fails the run

mod audit;
mod checks;
mod figures;
#[path = "../../tests/network/mod.rs"]
mod network;
mod writing;

use figures::Figures;
use network::Network;
use serde_json::json;

/// Receipts of one session.
const SESSION: usize = 100;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (receipts, all) = match arguments[..] {
        [audit::CHILD, place] => return audit::child(place),
        [] => (20_000, true),
        [count] => (count.parse().unwrap(), true),
        [count, "audit"] => (count.parse().unwrap(), false),
        _ => panic!("usage: bench [RECEIPTS [audit]]"),
    };
    let folder = tempfile::tempdir_in(std::env::var("BENCH_DIR").unwrap_or_else(|_| ".".into())).unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    let network = Network::new();
    let mut figures = Figures::default();
    let checks = checks::measure(&mut figures, &network, cores);
    if all {
        writing::measure(&mut figures, &network, folder.path(), receipts, &checks);
    }
    for per_session in [SESSION, 1] {
        audit::measure(&mut figures, folder.path(), receipts, per_session, &checks);
    }
    let machine =
        json!({ "cores": cores, "os": std::env::consts::OS, "architecture": std::env::consts::ARCH });
    let report = json!({ "machine": machine, "receipts": receipts, "measured": figures.into_list() });
    println!("{}", serde_json::to_string_pretty(&report).unwrap());
}
