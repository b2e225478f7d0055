//! Serves eleven days of a small network until its standard input ends, for `scripts/check-explorer` and for people who work
//! on the pages. Not part of the product: the keys are numbers that everybody knows.
#![allow(clippy::unwrap_used)] // stops at the first surprise

#[path = "../tests/network/mod.rs"]
mod network;
#[path = "../tests/network/scene.rs"]
mod scene;

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use kvasir_ledger::server::{ServeLimits, listen, serve_log};
use kvasir_ledger::store::Store;

fn main() {
    let folder = PathBuf::from(std::env::args().nth(1).expect("usage: explorer-scene FOLDER"));
    let network = network::Network::new();
    let path = folder.join("ledger.db");
    Store::create(&path, &network.name).unwrap();
    let mut store = Store::open(&path, &network.name, network.keys()).unwrap();
    let played = scene::play(&mut store);
    let mut publisher = scene::publisher(&folder);
    publisher.publish().unwrap();
    let last = store.answers().head().unwrap().0 - 1;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let pages = [
            ("overview", "/".to_owned()),
            ("receipts", "/receipts".to_owned()),
            ("settlements", "/settlements".to_owned()),
            ("wallets", "/wallets".to_owned()),
            ("entries", "/entries".to_owned()),
            ("log", "/log".to_owned()),
            ("wallet", format!("/wallet/{}", played.networks[0].payee())),
            ("account", format!("/account/{}", played.networks[0].payer())),
            ("session", format!("/session/{}", played.conflict.0.terms.session)),
            ("receipt", format!("/digest/{}", played.conflict.0.id())),
            ("settlement", format!("/digest/{}", played.reversed.id())),
            ("correction", "/entries?kind=correct".to_owned()),
            ("appeals", "/entries?kind=appeal".to_owned()),
            ("appeal", format!("/entry/{last}")),
            ("worker", format!("/digest/{}", played.networks[0].worker.public().digest())),
            ("missing", "/entry/999999".to_owned()),
        ];
        let mut lines = format!("http://{address}\n");
        for (name, path) in pages {
            lines.push_str(&format!("{name} {path}\n"));
        }
        std::io::stdout().write_all(lines.as_bytes()).unwrap();
        std::io::stdout().write_all(b"\n").unwrap();
        std::io::stdout().flush().unwrap();
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        let stop = async {
            let _ = ended.await;
        };
        let limits = ServeLimits::default();
        let clock = Arc::new(|| scene::END);
        serve_log(limits, listener, store, network.name.clone(), clock, Some(publisher), stop).await.unwrap();
    });
}
