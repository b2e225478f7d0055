//! A worker as an operator runs it: one outbound connection, no listening socket.
//!
//! Reads /proc, so it runs on Linux alone.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kvasir_operate::choices::DeviceChoice;
use kvasir_operate::demo::network::{Network, NetworkOptions};
use kvasir_operate::demo::report::Steps;
use kvasir_tests::build_programs;

/// `st` of a listening TCP socket in /proc/net/tcp (include/net/tcp_states.h).
const LISTEN: &str = "0A";
/// ... and of an established one.
const ESTABLISHED: &str = "01";

#[test]
fn a_worker_has_one_outbound_connection_and_listens_on_nothing() {
    build_programs();
    let folder = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/atlas/atlas-q4_k_m.gguf");
    let network = Network::start(
        &NetworkOptions {
            folder: folder.path().to_path_buf(),
            model,
            workers: 1,
            round_trip: None,
            flip_bit: false,
            device: DeviceChoice::Cpu,
            listen: None,
        },
        &Steps::new(true),
    )
    .unwrap();
    // The worker has said that it is connected. The edge, looked at in the same way, shows that the look finds listeners.
    let worker = network.worker_ids()[0];
    assert_eq!(sockets(worker, LISTEN), 0, "a worker listens on nothing");
    assert_eq!(sockets(worker, ESTABLISHED), 1, "a worker has one connection");
    assert!(sockets(network.edge_id(), LISTEN) > 0, "the edge listens, or this test looks wrongly");
    network.stop();
}

/// TCP sockets of the process in the given state; UDP sockets of any state count as listening.
fn sockets(process: u32, state: &str) -> usize {
    let held: BTreeSet<String> = fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter_map(|target| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = |name: &str| fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap_or_default();
    let count = |text: &str, any_state: bool| {
        text.lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter(|fields| {
                fields.len() > 9 && (any_state || fields[3] == state) && held.contains(fields[9])
            })
            .count()
    };
    let datagrams =
        if state == LISTEN { count(&table("udp"), true) + count(&table("udp6"), true) } else { 0 };
    count(&table("tcp"), false) + count(&table("tcp6"), false) + datagrams
}
