//! Many workers that lose their links in the same moment and all come back: through one edge, from one address, with the
//! caps that an edge has.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod relay;
mod scene;

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use front::{Front, worker_through};
use kvasir_gateway::{descriptors::DescriptorLimit, edge::SlotLimits};
use kvasir_link::{Backoff, LinkOptions};
use kvasir_wire::{key::SecretKey, ticket::Role};
use relay::Relay;
use scene::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_workers_come_back_at_once() {
    // At most 64 connections of an address may be in their handshake, as it is; there is room for old ones that are on their way out.
    herd(200, SlotLimits { per_address: 1_000, ..SlotLimits::default() }).await;
}

/// Run by hand, for the figures: `cargo test -p kvasir-gateway --test herd -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute of two processors"]
async fn a_thousand_workers_come_back_at_once() {
    herd(1_000, SlotLimits { per_address: 2_000, ..SlotLimits::default() }).await;
}

async fn herd(count: usize, slots: SlotLimits) {
    // Both ends of every connection are this process's.
    DescriptorLimit::raise();
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let front = Front::start_with(&scene, |edge| edge.slots = slots).await;
    let relay = Relay::start(front.address).await;
    let (tries, served) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..count {
        let mut seed = [77; 32];
        seed[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let key = SecretKey::from_seed(seed);
        let ticket = scene.ticket(Role::Worker, &key);
        let (address, trust) = (relay.address, front.trust.clone());
        let (tries, served) = (tries.clone(), served.clone());
        workers.spawn(async move {
            let mut backoff = Backoff::new();
            loop {
                tries.fetch_add(1, Ordering::Relaxed);
                let link = worker_through(address, &trust, &ticket, &key, &LinkOptions::default()).await;
                let error = match link {
                    Ok(link) => {
                        served.fetch_add(1, Ordering::Relaxed);
                        link.sender.ended().await
                    }
                    Err(error) => error,
                };
                assert!(!error.is_permanent(), "worker {number} gives up: {error}");
                let asked = error.retry_after().map(|seconds| Duration::from_secs(seconds.into()));
                tokio::time::sleep(backoff.next_wait(getrandom::u64().unwrap(), asked)).await;
            }
        });
    }
    for (round, what) in [(1, "come"), (2, "come back")] {
        let start = Instant::now();
        patiently(async {
            while served.load(Ordering::Relaxed) < round * count || waiting(&scene).await < count {
                assert!(workers.try_join_next().is_none(), "a worker gave up");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        let (seconds, dials) = (start.elapsed().as_secs_f32(), tries.swap(0, Ordering::Relaxed));
        println!("{count} workers {what}: {seconds:.1} s, {dials} dials");
        if round == 1 {
            relay.reset();
        }
    }
    assert!(scene.closed.lock().unwrap().is_empty(), "nobody was paired");
}

/// Workers that wait at the hub; an old link of a key may be on its way out for a moment.
async fn waiting(scene: &Scene) -> usize {
    let answer = get(scene.hub, "/v1/status").await;
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    let waiting = status["waiting"].as_array().unwrap();
    waiting.iter().map(|worker| worker["key"].as_str().unwrap()).collect::<HashSet<_>>().len()
}
