//! A ledger that must not write yet: its keys are not in public, or its clock cannot be believed. Questions are answered, what is
//! sent is refused and can be sent again, and nothing that was kept out is in the log later.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kvasir_ledger::audit::{AuditOptions, audit};
use kvasir_ledger::client::{Client, ClientError};
use kvasir_ledger::clock_watch::{ClockWatch, MAX_IDLE_SECONDS};
use kvasir_ledger::log::Policy;
use kvasir_ledger::server::{Beside, ServeLimits, listen, serve_beside};
use kvasir_ledger::store::{Store, Stretch};
use kvasir_wire::account::PENDING_SECONDS;
use network::good_log::{LEDGER_SEED, policy, published, secret};
use network::{Network, START, post};
use tokio::sync::oneshot;

/// Longer than the writer waits for another process, several times over.
const PATIENCE: Duration = Duration::from_secs(60);

/// A served ledger with a clock of its own, and one that nobody sets.
struct Served {
    network: Network,
    client: Client,
    path: PathBuf,
    now: Arc<AtomicU64>,
    passed: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Served {
    /// `fill` is what the ledger holds before it is served at `now`.
    fn start(now: u64, is_declared: bool, fill: impl FnOnce(&Network, &mut Store)) -> Self {
        let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
        let path = folder.path().join("ledger.db");
        Store::create(&path, &network.name).unwrap();
        let mut store = Store::open(&path, &network.name, network.keys()).unwrap();
        fill(&network, &mut store);
        let (now, passed) = (Arc::new(AtomicU64::new(now)), Arc::new(AtomicU64::new(0)));
        let steady = passed.clone();
        let steady = Arc::new(move || Duration::from_secs(steady.load(Ordering::SeqCst)));
        let beside = Beside {
            watch: Some(ClockWatch::new(steady, false)),
            undeclared: (!is_declared).then(|| secret(LEDGER_SEED)),
            ..Beside::default()
        };
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let (name, clock) = (network.name.clone(), now.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
                tell.send(address).unwrap();
                let stop = async {
                    let _ = stopped.await;
                };
                let clock = Arc::new(move || clock.load(Ordering::SeqCst));
                let limits = ServeLimits { request_time: PATIENCE, ..ServeLimits::default() };
                serve_beside(limits, listener, store, name, clock, beside, stop).await.unwrap();
            });
        });
        let client = Client::with_timeout(&format!("http://{}", told.recv().unwrap()), PATIENCE).unwrap();
        let (stop, thread) = (Some(stop), Some(thread));
        Self { network, client, path, now, passed, stop, thread, _folder: folder }
    }

    fn go_on(&self, seconds: u64) {
        self.passed.fetch_add(seconds, Ordering::SeqCst);
        self.now.fetch_add(seconds, Ordering::SeqCst);
    }

    /// What anybody finds who audits what would be published.
    fn audit(&self) {
        let store = Store::open(&self.path, &self.network.name, self.network.keys()).unwrap();
        let mut entries = store.answers().entries_page(None, Stretch::Latest, 200).unwrap();
        entries.reverse();
        let entries: Vec<_> = entries.into_iter().map(|entry| entry.note.into_bytes()).collect();
        let options = AuditOptions {
            policy: Policy::parse(&policy()).unwrap(),
            treasury: None,
            remembered: None,
            now: START,
            clock: START,
            threads: NonZeroUsize::MIN,
        };
        let report = audit(&published(&entries), &options, &mut |_, _| {}).unwrap();
        assert_eq!(report.entries, entries.len() as u64);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
        let _ = self.thread.take().unwrap().join();
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> (u16, String, String) {
    match result.unwrap_err() {
        ClientError::Refused { status, body } => {
            (status, body.code, format!("{}; {}", body.message, body.what_to_do))
        }
        other => panic!("{other}"),
    }
}

/// A settlement that is pending, and a receipt that waits for one.
fn settled(network: &Network, store: &mut Store) {
    store.declare_keys(&secret(LEDGER_SEED), START).unwrap();
    network.prepare(store);
    post(store, &network.sign(&network.first(1, 400, 600))).unwrap();
    post(store, &network.sign(&network.first(3, 10, 20))).unwrap();
    network.settle(store, &network.settlement(&[(1, 1, 1, 1_000)], 0, START + 20)).unwrap();
}

#[test]
fn nothing_is_taken_before_the_keys_that_it_rests_on_are_in_the_log() {
    let served = Served::start(START, false, |_, _| {});
    let (network, client) = (&served.network, &served.client);
    // Another process holds the file: nothing can be written down.
    let other = rusqlite::Connection::open(&served.path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (status, code, _) = code(client.post_note(&network.price()));
    assert_eq!((status, code.as_str()), (503, "store_busy"));
    other.execute_batch("ROLLBACK").unwrap();
    for note in network.foundation() {
        client.post_note(&note).unwrap();
    }
    client.post_receipt(&network.sign(&network.first(1, 100, 200))).unwrap();
    assert_eq!(client.ready().unwrap().entries, 4 + 4 + 1, "four keys before all else");
    served.audit();
}

#[test]
fn a_clock_that_is_set_ahead_posts_nothing_and_stops_nothing_for_good() {
    let served = Served::start(START + 30, true, settled);
    let (network, client) = (&served.network, &served.client);
    client.ready().unwrap();
    let receipt = network.sign(&network.first(2, 100, 200));
    served.now.store(START + 30 + 365 * 24 * 3600, Ordering::SeqCst);
    for refused in [
        code(client.post_receipt(&receipt)),
        code(client.post_note(&network.fund(5, 77))),
        code(client.settle_once(&network.name, &network.settler, START + 30)),
        code(client.ready()),
    ] {
        let (status, code, text) = refused;
        assert_eq!((status, code.as_str()), (503, "clock_jumped"));
        assert!(text.contains(&(START + 30).to_string()) && text.contains("restart"), "{text}");
    }
    assert_eq!(client.wallet(&network.payee()).unwrap().pending_nanokvr, 7_000);
    // The clock is set right: as if nothing had been.
    served.now.store(START + 31, Ordering::SeqCst);
    client.ready().unwrap();
    assert!(!client.post_receipt(&receipt).unwrap().repeated);
    client.settle_once(&network.name, &network.settler, START + 31).unwrap();
    // A machine that was away for long, by both clocks, is believed.
    served.go_on(100 * 24 * 3600);
    client.ready().unwrap();
    served.audit();
}

#[test]
fn a_start_long_after_the_latest_entry_waits_for_somebody_to_look() {
    let after = START + 20 + MAX_IDLE_SECONDS;
    // The first sweep comes with the start, and would post what is pending.
    let served = Served::start(after + 1, true, settled);
    let (network, client) = (&served.network, &served.client);
    let (status, code, text) = code(client.ready());
    assert_eq!((status, code.as_str()), (503, "clock_jumped"));
    assert!(text.contains("--trust-clock"), "{text}");
    assert_eq!(client.wallet(&network.payee()).unwrap().posted_nanokvr, 0);
    served.now.store(START + 30, Ordering::SeqCst);
    client.ready().unwrap();
    drop(served);

    let idle = Served::start(START + 20 + PENDING_SECONDS * 7, true, settled);
    idle.client.ready().unwrap();
    assert_eq!(idle.client.wallet(&idle.network.payee()).unwrap().posted_nanokvr, 7_000);
}
