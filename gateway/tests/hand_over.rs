//! A new process takes the port over while the old one finishes: nobody is refused, and the edge's sessions go on.
#![cfg(target_os = "linux")] // /proc says who is there
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod process;
mod scene;

use std::{
    fs,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use front::worker_through;
use kvasir_link::{Connected, LinkOptions};
use kvasir_wire::key::SecretKey;
use process::Gateway;
use scene::*;
use tokio::net::UnixDatagram;

/// Hub and edge, and what a service manager has: a socket on which it hears which process a service is.
struct Rig {
    gateway: Arc<Gateway>,
    manager: UnixDatagram,
}

/// A process that took over; ended when dropped.
struct Successor(String);

impl Drop for Successor {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-KILL", &self.0]).status();
    }
}

impl Rig {
    fn start() -> Rig {
        let gateway = Arc::new(Gateway::start_with(&[], &[], &[("NOTIFY_SOCKET", "manager")]));
        let manager = UnixDatagram::bind(gateway.folder.path().join("manager")).unwrap();
        Rig { gateway, manager }
    }

    /// Waits until the manager hears of a new process.
    async fn successor(&self) -> Successor {
        let mut message = [0; 100];
        let length = patiently(self.manager.recv(&mut message)).await.unwrap();
        let message = std::str::from_utf8(&message[..length]).unwrap();
        Successor(message.strip_prefix("MAINPID=").unwrap().trim_end().to_owned())
    }
}

/// A worker that has come through the edge and waits at the hub.
async fn admitted(gateway: &Gateway, number: u64) -> Connected {
    let mut seed = [99; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let key = SecretKey::from_seed(seed);
    let ticket = gateway.ticket(&key);
    let options = LinkOptions::default();
    patiently(worker_through(gateway.edge.address, &gateway.trust, &ticket, &key, &options)).await.unwrap()
}

async fn until(what: impl Fn() -> bool) {
    patiently(async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_hands_its_port_over_and_nobody_is_refused() {
    let rig = Rig::start();
    let session = admitted(&rig.gateway, 0).await;
    // Workers come all the time, one after the other; each must get in.
    let (more, came) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let dialling = {
        let (gateway, more, came) = (rig.gateway.clone(), more.clone(), came.clone());
        tokio::spawn(async move {
            while more.load(Ordering::Relaxed) {
                let number = 1 + came.load(Ordering::Relaxed) as u64;
                drop(admitted(&gateway, number).await);
                came.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    until(|| came.load(Ordering::Relaxed) >= 3).await;
    rig.gateway.edge.signal("-USR2");
    let successor = rig.successor().await;
    let so_far = came.load(Ordering::Relaxed);
    until(|| came.load(Ordering::Relaxed) >= so_far + 5).await;
    more.store(false, Ordering::Relaxed);
    dialling.await.unwrap();
    assert!(session.sender.is_open() && !rig.gateway.edge.has_ended(), "the old one has a session still");

    // With its last session it is done; the new one serves on.
    drop(session);
    until(|| rig.gateway.edge.has_ended()).await;
    admitted(&rig.gateway, 0).await;
    let program = |process: &str| fs::read_link(format!("/proc/{process}/exe")).unwrap();
    assert_eq!(program(&successor.0), fs::canonicalize(env!("CARGO_BIN_EXE_kvasir-gateway")).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_that_dies_is_replaced_while_the_old_one_has_a_session_and_one_that_is_stopped_is_not() {
    let rig = Rig::start();
    let session = admitted(&rig.gateway, 0).await;
    rig.gateway.edge.signal("-USR2");
    let first = rig.successor().await;
    let number = first.0.clone();
    // It is killed.
    drop(first);
    let second = rig.successor().await;
    assert_ne!(second.0, number);
    drop(admitted(&rig.gateway, 1).await);
    assert!(session.sender.is_open() && !rig.gateway.edge.has_ended());

    assert!(Command::new("kill").args(["-TERM", &second.0]).status().unwrap().success());
    // Who dials is told that nobody listens, and does not wait for somebody who will not come.
    until(|| std::net::TcpStream::connect(rig.gateway.edge.address).is_err()).await;
    assert!(session.sender.is_open() && !rig.gateway.edge.has_ended());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_that_dies_after_it_has_handed_over_itself_is_not_replaced() {
    let rig = Rig::start();
    let session = admitted(&rig.gateway, 0).await;
    rig.gateway.edge.signal("-USR2");
    let second = rig.successor().await;
    // It needs a session, or it ends in order once it has handed over. The first one may take one more before it stops.
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", second.0)).unwrap().count();
    let before = descriptors();
    let mut held = Vec::new();
    while descriptors() < before + 2 {
        held.push(admitted(&rig.gateway, 1 + held.len() as u64).await);
    }
    assert!(Command::new("kill").args(["-USR2", &second.0]).status().unwrap().success());
    let third = rig.successor().await;
    assert_ne!(third.0, second.0);
    // It is killed; what it had ends with it.
    drop(second);
    patiently(held.pop().unwrap().sender.ended()).await;
    let log = rig.gateway.folder.path().join("edge.log");
    until(|| fs::read_to_string(&log).unwrap().contains("the one after it goes on")).await;
    assert!(session.sender.is_open() && !rig.gateway.edge.has_ended());
    let mut message = [0; 100];
    assert!(rig.manager.try_recv(&mut message).is_err(), "no other one was started");
    admitted(&rig.gateway, 99).await;
    assert!(fs::metadata(format!("/proc/{}", third.0)).is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_whose_successor_cannot_start_goes_on_as_it_was() {
    let rig = Rig::start();
    let session = admitted(&rig.gateway, 0).await;
    let folder = rig.gateway.folder.path();
    fs::remove_file(folder.join("edge.key")).unwrap();
    rig.gateway.edge.signal("-USR2");
    until(|| fs::read_to_string(folder.join("edge.log")).unwrap().contains("not handed over")).await;
    assert!(session.sender.is_open());
    admitted(&rig.gateway, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_hands_over_once_its_links_are_told_and_newcomers_wait_for_the_next_one() {
    let rig = Rig::start();
    let waiting = admitted(&rig.gateway, 0).await;
    rig.gateway.hub.signal("-USR2");
    let _successor = rig.successor().await;
    patiently(waiting.sender.ended()).await;
    // The spool changes hands once the old one is through; until then this one's connection waits.
    let newcomer = admitted(&rig.gateway, 1).await;
    until(|| rig.gateway.hub.has_ended()).await;
    assert!(newcomer.sender.is_open());
    assert!(get(rig.gateway.hub.address, "/v1/status").await.starts_with("HTTP/1.1 200"));
}
