//! A worker is healthy while it computes and its processors are all busy: its link answers in time, and its session goes on. Alone
//! in its file, since it takes the processors from whatever runs beside it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::hint::spin_loop;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{available_parallelism, scope};
use std::time::{Duration, Instant};

use kvasir_dispatch::Placement;
use kvasir_tests::swarm_scene::*;
use kvasir_worker::{Event, Fault};
use serde_json::Value;

const TOKENS: usize = 3;
/// Worker and hub ping after so much silence, and take the link for dead after so much more. An answer takes some milliseconds,
/// and some tens of them where four threads want each processor.
const PING_AFTER: Duration = Duration::from_millis(200);
const DEAD_AFTER: Duration = Duration::from_secs(5);
/// Longer than both together: a worker that answered no ping while it computes would be taken for dead by the hub.
const BUSY: Duration = Duration::from_secs(8);

#[test]
fn a_worker_without_a_processor_to_spare_keeps_its_session() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::with(|hub| (hub.link.ping_after, hub.link.dead_after) = (PING_AFTER, DEAD_AFTER));
    let mut options = scene.worker_options(30);
    (options.link.ping_after, options.link.dead_after) = (PING_AFTER, DEAD_AFTER);
    // The first call keeps the thread that computes for so long; other threads want the processors meanwhile.
    options.danger_fault = Some(Fault::Late { result: 1, by: BUSY });
    let worker = RunningWorker::start(options);
    let mut options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    options.deadlines = NO_HURRY;
    let swarm = join(&host, options);
    let before = session(&scene);

    let stop = AtomicBool::new(false);
    let (said, took) = scope(|threads| {
        let _at_the_end = Stops(&stop);
        for _ in 0..4 * available_parallelism().unwrap().get() {
            threads.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        let begun = Instant::now();
        (host.say(&mut swarm.experts(host.local()), TOKENS), begun.elapsed())
    });

    assert_eq!(said, local);
    // A sleep is never shorter than it was asked for.
    assert!(took >= BUSY, "the worker was not busy for as long as it was to be");
    let after = session(&scene);
    assert_eq!(after["session"], before["session"], "it is the same session");
    assert_eq!(after["resumed"], 0, "over the same connection: {after:#}");
    let events = worker.log.events();
    let ended = |event: &Event| matches!(event, Event::Reconnecting { .. } | Event::Refused { .. });
    assert!(!events.iter().any(ended), "{events:#?}");
    let statistics = swarm.finish();
    assert_eq!((statistics.links_lost, statistics.failovers), (0, 0), "the worker gave every answer");
}

/// Ends the threads that spin, also where the test fails.
struct Stops<'flag>(&'flag AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The one session that the hub has.
fn session(scene: &Scene) -> Value {
    let mut stream = TcpStream::connect(scene.address.strip_prefix("ws://").unwrap()).unwrap();
    stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: hub\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let sessions = status["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 1, "{status:#}");
    sessions[0].clone()
}
