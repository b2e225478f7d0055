//! A worker whose processors are all busy is healthy: its link answers in time, and its session goes on. Alone in its file,
//! since it takes the processors from whatever runs beside it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::hint::spin_loop;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{available_parallelism, scope, sleep};
use std::time::Duration;

use kvasir_dispatch::Placement;
use kvasir_tests::swarm_scene::*;
use kvasir_worker::Event;
use serde_json::Value;

const TOKENS: usize = 3;
/// The worker pings after so much silence, and takes the link for dead after so much more. An answer takes some
/// milliseconds, and some tens of them where four threads want each processor.
const PING_AFTER: Duration = Duration::from_millis(200);
const DEAD_AFTER: Duration = Duration::from_secs(5);
/// Longer than both together: who could not answer meanwhile would be taken for dead.
const BUSY: Duration = Duration::from_secs(8);

#[test]
fn a_worker_without_a_processor_to_spare_keeps_its_session() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let scene = Scene::new();
    let mut options = scene.worker_options(30);
    (options.link.ping_after, options.link.dead_after) = (PING_AFTER, DEAD_AFTER);
    let worker = RunningWorker::start(options);
    let swarm = join(&host, scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model)));
    let before = session(&scene);

    let stop = AtomicBool::new(false);
    scope(|threads| {
        for _ in 0..4 * available_parallelism().unwrap().get() {
            threads.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        sleep(BUSY);
        stop.store(true, Ordering::Relaxed);
    });

    let after = session(&scene);
    assert_eq!(after["session"], before["session"], "it is the same session");
    assert_eq!(after["resumed"], 0, "over the same connection: {after:#}");
    let events = worker.log.events();
    let ended = |event: &Event| matches!(event, Event::Reconnecting { .. } | Event::Refused { .. });
    assert!(!events.iter().any(ended), "{events:#?}");
    assert_eq!(host.say(&mut swarm.experts(host.local()), TOKENS), local);
    assert_eq!(swarm.finish().links_lost, 0);
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
