//! Mistakes that other ledgers made, named by their cause, where no test of this crate's duties holds them already. `docs/log.md`
//! lists all causes and the test of each.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

#[path = "../network/mod.rs"]
mod network;
#[allow(dead_code)] // the crash suite's; not all of it is needed here
#[path = "../crash/scene.rs"]
mod scene;

mod judging;
mod moving;
mod sums;

use std::path::Path;
use std::process::{Command, Output};

use kvasir_ledger::store::Store;
use network::Network;
use serde_json::Value;
use tempfile::TempDir;

/// Runs `kvasir-ledger`.
fn ledger(words: &[&str]) -> Output {
    Command::new(scene::PROGRAM).args(words).output().unwrap()
}

/// What it prints with `--json`, where it succeeds.
fn json(words: &[&str]) -> Value {
    let output = ledger(&[words, &["--json"]].concat());
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A folder as `init` makes it, and its database.
fn made(network: &Network) -> (TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let [hub, treasury, settler] =
        [&network.hub, &network.treasury, &network.settler].map(|key| key.public().to_string());
    let keys = ["--hub", &hub, "--treasury", &treasury, "--settler", &settler];
    json(&[&["init", text(folder.path()), "--network", "atlas"][..], &keys].concat());
    let store = Store::open(&folder.path().join("ledger.db"), &network.name, network.keys()).unwrap();
    (folder, store)
}

/// `export` of a table.
fn export(folder: &TempDir, table: &str, format: &str) -> String {
    let config = folder.path().join("ledger.toml");
    let output = ledger(&["export", table, "--format", format, "--config", text(&config)]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}
