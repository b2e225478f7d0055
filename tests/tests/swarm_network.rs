//! What a network does to a swarm of real workers and backbones: tokens and logits are those that this machine computes alone,
//! to the last bit, and no byte is billed twice. A cut in the middle of a call costs a reconnect and no more. Each fault prints
//! what it cost as a line of JSON; `scripts/bench-faults` gathers them.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "../../gateway/tests/relay/mod.rs"]
mod relay;
#[path = "swarm_network/rig.rs"]
mod rig;

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvasir_dispatch::{Deadlines, Pauses, Statistics, WorkerStatistics};
use kvasir_gateway::hub::SessionClosed;
use kvasir_link::LinkOptions;
use kvasir_tests::swarm_scene::*;
use kvasir_wire::receipt::Receipt;
use kvasir_wire::refusal::RefusalCode;
use kvasir_wire::ticket::Role;
use kvasir_worker::{Event, WorkerError};
use relay::Flow;
use rig::{Rig, RunningEdge, Struck, Ways, deadlines, link_options, tell};

const TOKENS: usize = 8;
/// The call that is struck: of the second of four layers, in the fifth token. By then a call's usual time is known.
const STRUCK: usize = 4 * 4 + 1;
/// Long enough for a relay to do what it was told, and for bytes to be where it holds them. Were it not, a later call would be
/// struck instead.
const ON_THE_WAY: Duration = Duration::from_millis(100);

/// The last receipt of every session at the ledger, which has one text for each number, and no session but these.
fn receipts(rig: &Rig, swarms: &[&Statistics]) -> BTreeMap<String, Receipt> {
    let mut seen = HashMap::new();
    for note in rig.scene.ledger.receipts.lock().unwrap().iter() {
        let receipt = Receipt::parse(note.text()).unwrap();
        let number = (receipt.terms.session.to_string(), receipt.seq);
        // A hub that died may file again what the one before it had filed.
        let first = seen.entry(number).or_insert_with(|| note.to_string());
        assert_eq!(*first, note.to_string(), "two receipts under one number");
    }
    let receipts = rig.scene.ledger.last_receipts();
    for (session, receipt) in &receipts {
        let mut workers = swarms.iter().flat_map(|swarm| &swarm.workers);
        let worker = workers.find(|worker| worker.session == *session).expect("a session of these swarms");
        assert!(receipt.billed().get() <= worker.bytes_up + worker.bytes_down, "{worker:#?}");
        assert!(receipt.counters.calls <= worker.accepted, "{worker:#?}");
    }
    receipts
}

/// A session of the last of these swarms has ended in order, and all of its bytes are billed, once.
fn is_billed_whole(rig: &Rig, swarms: &[&Statistics], worker: &WorkerStatistics) -> SessionClosed {
    let bytes = worker.bytes_up + worker.bytes_down;
    assert_eq!((worker.calls, worker.receipted_bytes), (worker.accepted, bytes), "{worker:#?}");
    let closed = rig.scene.closed_session(&worker.session);
    assert_eq!(closed.reason_code, "finished", "{closed:#?}");
    assert_eq!((closed.bytes_up, closed.bytes_down), (worker.bytes_up, worker.bytes_down));
    assert_eq!((closed.calls, closed.receipted_bytes), (worker.calls, bytes));
    let receipt = final_receipt(rig, swarms, worker);
    assert_eq!((receipt.billed().get(), receipt.counters.calls), (bytes, worker.calls));
    closed
}

/// What the ledger holds of a session that ended in order; the ends may have it a moment earlier.
fn final_receipt(rig: &Rig, swarms: &[&Statistics], worker: &WorkerStatistics) -> Receipt {
    let is_filed =
        || rig.scene.ledger.last_receipts().get(&worker.session).is_some_and(|receipt| receipt.is_final);
    eventually("the final receipt at the ledger", is_filed);
    receipts(rig, swarms)[&worker.session].clone()
}

/// Says something with one worker, while the network fails in the middle of a call: `before` it is asked, and once it is
/// (`strike`, which gives the time of the fault). One session goes on, the worker that was asked answers, and is paid once.
fn goes_on(
    host: &Host,
    rig: &mut Rig,
    fault: &str,
    before: impl FnOnce(&Ways) + Send,
    strike: impl FnOnce(&Ways, &mut RunningEdge) -> Instant + Send,
) -> SessionClosed {
    let local = host.say(host.local().as_mut(), TOKENS);
    let swarm = join(host, rig.swarm_options(host, 1));
    let (ways, edge) = (&rig.ways, &mut rig.edge);
    let before = || {
        before(ways);
        sleep(ON_THE_WAY);
    };
    let mut experts = Struck::new(host, (&swarm, 1), STRUCK, before, || strike(ways, edge));
    assert_eq!(host.say(&mut experts, TOKENS), local, "{fault}");
    let recovered = experts.recovered();
    drop(experts);
    ways.worker.set(Flow::Pass, Flow::Pass);
    let statistics = swarm.finish();
    assert_eq!(statistics.failovers, 0, "{fault}: {statistics:#?}");
    assert_eq!(statistics.workers.len(), 1, "{fault}: {statistics:#?}");
    let closed = is_billed_whole(rig, &[&statistics], &statistics.workers[0]);
    tell(fault, recovered, &statistics, closed.resumed);
    closed
}

/// The same where the session goes on over another connection.
fn costs_a_reconnect(
    host: &Host,
    fault: &str,
    before: impl FnOnce(&Ways) + Send,
    strike: impl FnOnce(&Ways, &mut RunningEdge) -> Instant + Send,
) {
    let mut rig = Rig::start();
    let _worker = rig.worker(30);
    let closed = goes_on(host, &mut rig, fault, before, strike);
    assert!(closed.resumed >= 1, "{fault}: {closed:#?}");
}

#[test]
fn a_reset_in_the_middle_of_a_call_costs_a_reconnect() {
    let host = Host::new(tiny());
    let hold_calls = |ways: &Ways| ways.worker.set(Flow::Pass, Flow::Hold);
    let hold_answers = |ways: &Ways| ways.worker.set(Flow::Hold, Flow::Pass);
    let reset = |ways: &Ways, _: &mut RunningEdge| {
        sleep(ON_THE_WAY);
        ways.worker.reset();
        Instant::now()
    };
    costs_a_reconnect(&host, "reset, a call lost", hold_calls, reset);
    costs_a_reconnect(&host, "reset, an answer lost", hold_answers, reset);
    let hold = |ways: &Ways| ways.backbone.set(Flow::Hold, Flow::Pass);
    let reset = |ways: &Ways, _: &mut RunningEdge| {
        sleep(ON_THE_WAY);
        ways.backbone.reset();
        Instant::now()
    };
    costs_a_reconnect(&host, "reset at the backbone", hold, reset);
}

/// What is open stays as it is for ever, new connections pass.
fn forget(ways: &Ways, _: &mut RunningEdge) -> Instant {
    ways.worker.forget();
    Instant::now()
}

#[test]
fn a_connection_that_a_middlebox_forgot_costs_a_reconnect() {
    let host = Host::new(tiny());
    let vanish = |ways: &Ways| ways.worker.set(Flow::Vanish, Flow::Vanish);
    costs_a_reconnect(&host, "silent drop", vanish, forget);
}

#[test]
fn a_direction_that_stalls_costs_a_reconnect() {
    let host = Host::new(tiny());
    // Heard by the worker, which is not heard: the hub finds it.
    let up = |ways: &Ways| ways.worker.set(Flow::Hold, Flow::Pass);
    costs_a_reconnect(&host, "stall towards the hub", up, forget);
    // The worker finds it, and takes the place of a connection that the hub hears well.
    let down = |ways: &Ways| ways.worker.set(Flow::Pass, Flow::Hold);
    costs_a_reconnect(&host, "stall towards the worker", down, forget);
}

#[test]
fn a_slow_reader_is_waited_for_on_the_connection_that_it_has() {
    let host = Host::new(tiny());
    // However slow this machine is, nobody gives it up.
    let mut rig = Rig::start_with(Ipv4Addr::LOCALHOST.into(), LinkOptions::default());
    let _worker = rig.worker(30);
    let slow = |ways: &Ways| ways.worker.set(Flow::Pass, Flow::Slow(8));
    let closed = goes_on(&host, &mut rig, "slow reader", slow, |_, _| Instant::now());
    assert_eq!(closed.resumed, 0);
}

#[test]
fn a_worker_that_comes_from_another_address_goes_on() {
    let host = Host::new(tiny());
    let vanish = |ways: &Ways| ways.worker.set(Flow::Vanish, Flow::Vanish);
    costs_a_reconnect(&host, "NAT rebinding", vanish, |ways, _| {
        ways.worker.come_from(Ipv4Addr::new(127, 0, 0, 9).into());
        ways.worker.forget();
        Instant::now()
    });
}

/// The same with the kernel's own TCP: the worker's address is taken away under an open connection, and it gets another.
#[test]
#[ignore = "changes addresses of the network namespace that it runs in; scripts/bench-faults makes one"]
fn a_worker_whose_address_is_taken_away_goes_on() {
    let own = std::env::var("KVASIR_TEST_NAMESPACE");
    assert_eq!(
        own.as_deref(),
        Ok("own"),
        "run it by scripts/bench-faults, in a network namespace of its own"
    );
    // Of two addresses of one machine each would be reached from itself, were it not for the source that the route names.
    ip("link set lo up");
    ip("addr add 10.99.0.1/32 dev lo");
    ip("addr add 10.99.0.2/32 dev lo");
    ip("route replace local 10.99.0.1 dev lo table local src 10.99.0.2");
    let host = Host::new(tiny());
    let mut rig = Rig::start_with(Ipv4Addr::new(10, 99, 0, 1).into(), link_options());
    let _worker = RunningWorker::start(rig.worker_options_at(30, rig.edge.address));
    let fault = "NAT rebinding, in the kernel";
    let closed = goes_on(
        &host,
        &mut rig,
        fault,
        |_| {},
        |_, _| {
            ip("addr add 10.99.0.3/32 dev lo");
            ip("route replace local 10.99.0.1 dev lo table local src 10.99.0.3");
            ip("addr del 10.99.0.2/32 dev lo");
            Instant::now()
        },
    );
    assert!(closed.resumed >= 1, "{closed:#?}");
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}: {status}");
}

#[test]
fn an_edge_that_dies_and_starts_again_costs_a_reconnect() {
    let host = Host::new(tiny());
    let hold = |ways: &Ways| ways.worker.set(Flow::Pass, Flow::Hold);
    costs_a_reconnect(&host, "edge restart", hold, |ways, edge| {
        let since = Instant::now();
        edge.die();
        edge.again();
        ways.worker.forget();
        ways.worker.reset_forgotten();
        since
    });
}

#[test]
fn what_this_machine_computes_while_a_worker_is_away_is_not_paid_for() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let rig = Rig::start();
    let _worker = rig.worker(30);
    let mut options = rig.swarm_options(&host, 1);
    options.deadlines = match deadlines() {
        "product" => Deadlines::default(),
        // Long enough for calls that are not struck, and over before the connection is found dead.
        _ => Deadlines { floor: Duration::from_secs(1), ..Deadlines::default() },
    };
    // Whoever was late is tried at once: else this machine might have said all before it is asked again.
    let soon = Duration::from_millis(10);
    options.pauses = Pauses { first: soon, longest: soon };
    let swarm = join(&host, options);
    let ways = &rig.ways;
    let before = || {
        ways.worker.set(Flow::Vanish, Flow::Vanish);
        sleep(ON_THE_WAY);
    };
    let strike = || {
        ways.worker.forget();
        Instant::now()
    };
    let mut experts = Struck::new(&host, (&swarm, 1), STRUCK, before, strike);
    assert_eq!(host.say(&mut experts, TOKENS), local);
    let recovered = experts.recovered();
    drop(experts);
    let statistics = swarm.finish();
    let [worker] = &statistics.workers[..] else { panic!("one session: {statistics:#?}") };
    // The answer that came after all is in the books of all three, and in nobody's bill.
    assert!(statistics.failovers >= 1 && worker.excluded >= 1, "{statistics:#?}");
    assert_eq!(worker.calls, worker.accepted + worker.excluded, "{worker:#?}");
    let receipt = final_receipt(&rig, &[&statistics], worker);
    assert_eq!((receipt.counters.calls, receipt.billed().get()), (worker.accepted, worker.receipted_bytes));
    assert!(worker.receipted_bytes < worker.bytes_up + worker.bytes_down, "{worker:#?}");
    let closed = rig.scene.closed_session(&worker.session);
    assert_eq!((closed.calls, closed.receipted_bytes), (worker.calls, worker.receipted_bytes));
    assert!(closed.resumed >= 1, "{closed:#?}");
    tell("silent drop, computed here meanwhile", recovered, &statistics, closed.resumed);
}

/// Says something while the hub ends in the middle of a call, and another one takes its place. Gives what the swarm counted.
fn another_hub(host: &Host, rig: &mut Rig, fault: &str, end: impl FnOnce(&mut Scene) + Send) -> Statistics {
    let local = host.say(host.local().as_mut(), TOKENS);
    let swarm = join(host, rig.swarm_options(host, 1));
    let scene = &mut rig.scene;
    let strike = || {
        let since = Instant::now();
        end(scene);
        scene.again();
        since
    };
    let mut experts = Struck::new(host, (&swarm, 1), STRUCK, || {}, strike);
    assert_eq!(host.say(&mut experts, TOKENS), local, "{fault}");
    let recovered = experts.recovered();
    drop(experts);
    let statistics = swarm.finish();
    assert!(statistics.workers.len() >= 2, "{fault}: {statistics:#?}");
    let closed = is_billed_whole(rig, &[&statistics], statistics.workers.last().unwrap());
    tell(fault, recovered, &statistics, closed.resumed);
    statistics
}

#[test]
fn a_hub_that_dies_costs_its_sessions_and_no_token() {
    let host = Host::new(tiny());
    let mut rig = Rig::start();
    let _worker = rig.worker(30);
    let statistics = another_hub(&host, &mut rig, "hub restart, killed", Scene::die);
    let closed = rig.scene.closed_session(&statistics.workers[0].session);
    assert_eq!(closed.reason_code, "dropped", "{closed:#?}");
}

#[test]
fn a_hub_that_stops_has_the_call_answered_and_paid_for() {
    let host = Host::new(tiny());
    let mut rig = Rig::start();
    let _worker = rig.worker(30);
    let statistics = another_hub(&host, &mut rig, "hub restart, in order", Scene::stop);
    assert_eq!(statistics.failovers, 0, "{statistics:#?}");
    is_billed_whole(&rig, &[&statistics], &statistics.workers[0]);
}

#[test]
fn a_backbone_that_dies_finds_its_worker_again() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let rig = Rig::start();
    let _worker = rig.worker(30);
    let first = join(&host, rig.swarm_options(&host, 1));
    host.say(&mut first.experts(host.local()), TOKENS / 2);
    let before = first.statistics();
    let since = Instant::now();
    drop(first);
    let second = join(&host, rig.swarm_options(&host, 1));
    let mut experts = Struck::already(&host, &second, since);
    assert_eq!(host.say(&mut experts, TOKENS), local);
    let recovered = experts.recovered();
    drop(experts);
    let statistics = second.finish();
    let swarms = [&before, &statistics];
    let closed = is_billed_whole(&rig, &swarms, statistics.workers.last().unwrap());
    let old = rig.scene.closed_session(&before.workers[0].session);
    assert_ne!(old.reason_code, "finished", "{old:#?}");
    let paid = receipts(&rig, &swarms).get(&old.session).map_or(0, |receipt| receipt.billed().get());
    assert_eq!(paid, old.receipted_bytes);
    tell("backbone restart", recovered, &statistics, closed.resumed);
}

#[test]
fn of_two_workers_with_one_key_the_newer_one_serves() {
    let host = Host::new(tiny());
    let local = host.say(host.local().as_mut(), TOKENS);
    let rig = Rig::start();
    let of_one_key = || {
        let mut options = rig.worker_options(30);
        options.ticket = rig.scene.ticket_with(Role::Worker, options.key.public(), plugin(), |claims| {
            claims.limits.sessions = 1;
        });
        options
    };
    let first = RunningWorker::start(of_one_key());
    let swarm = join(&host, rig.swarm_options(&host, 1));
    let (told, options) = (first.log.clone(), of_one_key());
    let mut newer = None;
    let before = || {
        newer = Some(RunningWorker::start(options));
        let replaced = RefusalCode::SessionReplaced.name();
        let is_it = |event: &Event| matches!(event, Event::Refused { code, .. } if code == replaced);
        told.wait_for(|event| is_it(event).then_some(()));
    };
    let mut experts = Struck::new(&host, (&swarm, 1), STRUCK, before, Instant::now);
    assert_eq!(host.say(&mut experts, TOKENS), local);
    let recovered = experts.recovered();
    drop(experts);
    let statistics = swarm.finish();
    match first.join() {
        // For good: else two machines with one key would push each other out for ever.
        Err(WorkerError::Refused(refusal)) => assert_eq!(refusal.code, RefusalCode::SessionReplaced),
        other => panic!("{other:?}"),
    }
    let closed = is_billed_whole(&rig, &[&statistics], statistics.workers.last().unwrap());
    let old = rig.scene.closed_session(&statistics.workers[0].session);
    assert_eq!(old.reason_code, RefusalCode::SessionReplaced.name(), "{old:#?}");
    tell("duplicate identity", recovered, &statistics, closed.resumed);
    drop(newer);
}
