//! Hub, edge, a backbone and workers that dial through whatever is named, for `scripts/check-proxies`. Not part of the
//! product: the keys are numbers that everybody knows, and the ledger is a list in memory.
//!
//! ```text
//! proxy-scene FOLDER PING_SECONDS
//! ```
//!
//! Writes `ca.pem`, `server.pem` and `server.key` for `localhost` into FOLDER and prints the edge's address. Then standard
//! input, read to its end, holds lines `NAME ADDRESS IDLE_SECONDS`: for each a worker dials `wss://ADDRESS`, is paired, answers
//! a call, is left idle, and answers another; in the end it prints `NAME survived` or `NAME ended: WHY`. PING_SECONDS is the
//! silence after which links ping; 0 turns pings off, on both sides.
#![allow(clippy::unwrap_used)] // stops at the first surprise

#[path = "../tests/front/mod.rs"]
mod front;
#[path = "../tests/scene/mod.rs"]
mod scene;

use std::{io::Write as _, path::PathBuf, sync::Arc, time::Duration};

use front::{Front, worker_through};
use kvasir_link::{LinkError, LinkOptions};
use kvasir_wire::{frame::Kind, receipt::CUT_SECONDS, ticket::Role};
use scene::*;
use tokio::{task::JoinSet, time::sleep};

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: proxy-scene FOLDER PING_SECONDS";
    let folder = PathBuf::from(arguments.next().expect(usage));
    let ping = arguments.next().expect(usage).parse().expect(usage);
    let ping = if ping == 0 { Duration::from_secs(86_400) } else { Duration::from_secs(ping) };
    let options = LinkOptions { ping_after: ping, ..LinkOptions::default() };

    let scene = Scene::start_with(Arc::new(MemoryLedger::default()), |hub| hub.link = options.clone()).await;
    let front = Front::start(&scene).await;
    for file in [&front.files.authority, &front.files.certificate, &front.files.key] {
        std::fs::copy(file, folder.join(file.file_name().unwrap())).unwrap();
    }
    println!("{}", front.address);
    std::io::stdout().flush().unwrap();

    let backbone = key(3);
    let mut control = scene.control(&backbone).await;
    let lines = tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin()));
    let lines = lines.await.unwrap().unwrap();
    let mut sessions = JoinSet::new();
    let mut number = 100;
    for line in lines.lines() {
        let [name, address, idle] = line.split(' ').collect::<Vec<_>>().try_into().expect("three words");
        let (name, idle) = (name.to_owned(), Duration::from_secs(idle.parse().unwrap()));
        number += 1;
        let worker = key(number);
        let ticket = scene.ticket(Role::Worker, &worker);
        let address = address.parse().expect("an address");
        let link = match worker_through(address, &front.trust, &ticket, &worker, &options).await {
            Ok(link) => link,
            Err(error) => {
                println!("{name} ended: {error}");
                continue;
            }
        };
        let pairing = {
            let worker = worker.clone();
            tokio::spawn(async move { link.pair(&worker, &worker_expectation()).await.unwrap() })
        };
        // The backbone's own link pings as well; it goes straight to the hub, where no proxy counts.
        let backbone = patiently(scene.take_offer(&mut control, &backbone)).await;
        let worker = WorkerEnd { session: patiently(pairing).await.unwrap(), key: worker };
        sessions.spawn(async move {
            match hold(worker, backbone, idle).await {
                Ok(()) => format!("{name} survived"),
                Err(why) => format!("{name} ended: {why}"),
            }
        });
    }
    while let Some(said) = sessions.join_next().await {
        println!("{}", said.unwrap());
    }
}

/// A call, a long silence, another call.
async fn hold(mut worker: WorkerEnd, mut backbone: BackboneEnd, idle: Duration) -> Result<(), LinkError> {
    backbone.grant().await;
    one_call(&mut worker, &mut backbone, 1).await?;
    backbone.take(1, ROWS, &pattern(ANSWER, 1)).await;
    // Its receipt comes by time, which a short silence does not reach; once it is signed nothing is due until the next call.
    if idle.as_secs() >= CUT_SECONDS {
        let cut = backbone.cut().await;
        backbone.countersign(cut, &[], |_| {}).await;
        worker.countersign().await;
        tokio::join!(worker.complete(), backbone.complete());
    }
    tokio::select! {
        () = sleep(idle) => {}
        error = worker.session.sender.ended() => return Err(error),
    }
    one_call(&mut worker, &mut backbone, 2).await?;
    // A receipt may be due by now, and may come before the result.
    while backbone.session.receiver.recv().await?.kind != Kind::Result {}
    Ok(())
}

const ROWS: usize = 100_000;
const ANSWER: usize = 50_000;

/// A call that the worker gets whole and answers.
async fn one_call(worker: &mut WorkerEnd, backbone: &mut BackboneEnd, call: u64) -> Result<(), LinkError> {
    let rows = pattern(ROWS, call + 7);
    backbone.session.sender.send(Kind::Call, (call * 2) as u32, rows.clone()).await?;
    let payload = worker.session.receiver.recv().await?;
    assert!(payload.kind == Kind::Call && payload.bytes == rows, "the call arrived changed");
    worker.session.sender.send(Kind::Result, payload.stream, pattern(ANSWER, call)).await
}
