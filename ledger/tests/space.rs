//! A disk that is running full: new notes are refused before anything is written, everything else goes on.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use kvasir_ledger::client::{Client, ClientError};
use kvasir_ledger::head::HeadFile;
use kvasir_ledger::publish::{LogFiles, Publisher};
use kvasir_ledger::server::{Beside, ServeLimits, listen, serve_beside};
use kvasir_ledger::space::{FreeSpace, SpaceMark};
use kvasir_ledger::store::Store;
use kvasir_wire::key::SecretKey;
use network::{Network, START};
use tokio::sync::oneshot;

const LEAST: u64 = 1_000_000;

/// A served ledger on a disk with as much space as `free` says.
struct Served {
    network: Network,
    client: Client,
    free: Arc<AtomicU64>,
    now: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Served {
    fn start(publishes: bool) -> Self {
        let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
        let path = folder.path().join("ledger.db");
        Store::create(&path, &network.name).unwrap();
        let mut store = Store::open(&path, &network.name, network.keys()).unwrap();
        network.prepare(&mut store);
        let log = publishes.then(|| {
            let head = folder.path().join("head.db");
            HeadFile::create(&head, &"kvasir.example/atlas/00000001".parse().unwrap()).unwrap();
            let files = LogFiles {
                store: path.clone(),
                network: network.name.clone(),
                head,
                folder: folder.path().join("log"),
                key: SecretKey::from_seed([41; 32]),
                witnesses: Vec::new(),
                quorum: 0,
            };
            Publisher::open(files).unwrap()
        });
        let (free, now) = (Arc::new(AtomicU64::new(LEAST)), Arc::new(AtomicU64::new(START + 20)));
        let probe: FreeSpace = {
            let (free, of) = (free.clone(), folder.path().to_owned());
            Arc::new(move |asked| {
                assert_eq!(asked, of, "the disk of the database is asked about");
                Ok(free.load(Ordering::SeqCst))
            })
        };
        let beside = Beside { log, space: Some(SpaceMark::new(&path, LEAST, probe)), ..Beside::default() };
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
                serve_beside(ServeLimits::default(), listener, store, name, clock, beside, stop)
                    .await
                    .unwrap();
            });
        });
        let client = Client::new(&format!("http://{}", told.recv().unwrap())).unwrap();
        let (stop, thread) = (Some(stop), Some(thread));
        Self { network, client, free, now, stop, thread, _folder: folder }
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
        ClientError::Refused { status, body } => (status, body.code, body.message),
        other => panic!("{other}"),
    }
}

#[test]
fn below_the_mark_notes_are_refused_and_questions_are_answered() {
    let served = Served::start(false);
    let (network, client) = (&served.network, &served.client);
    let first = network.sign(&network.first(1, 100, 200));
    client.post_receipt(&first).unwrap();
    let ready = client.ready().unwrap();
    assert_eq!((ready.free_bytes, ready.min_free_bytes), (Some(LEAST), Some(LEAST)));

    served.free.store(LEAST - 1, Ordering::SeqCst);
    let second = network.sign(&network.first(2, 100, 200));
    let numbers = |message: &str| message.contains("999999") && message.contains("1000000");
    for refused in [
        client.post_receipt(&second),
        client.post_note(&network.fund(5, 77)),
        // One that is there is not acknowledged either: whoever sends it sends it again later.
        client.post_receipt(&first),
    ] {
        let (status, code, message) = code(refused);
        assert_eq!((status, code.as_str()), (507, "disk_low"));
        assert!(numbers(&message), "{message}");
    }
    let (status, _, _) = code(client.settle_once(&network.name, &network.settler, START + 20));
    assert_eq!(status, 507);
    let (status, ready, message) = code(client.ready());
    assert_eq!((status, ready.as_str()), (503, "disk_low"));
    assert!(numbers(&message), "{message}");
    // Nothing was written, and everything can be read.
    assert_eq!(client.receipts(None, 10).unwrap().receipts.len(), 1);
    assert_eq!(client.wallet(&network.payee()).unwrap().unsettled_bytes, 300);

    served.free.store(LEAST, Ordering::SeqCst);
    assert_eq!(client.ready().unwrap().entries, 5);
    assert!(client.post_receipt(&first).unwrap().repeated);
    assert_eq!(client.post_receipt(&second).unwrap().index, 5);
}

#[test]
fn ready_says_how_far_the_log_is_published_and_since_when() {
    let served = Served::start(true);
    let (network, client) = (&served.network, &served.client);
    client.post_receipt(&network.sign(&network.first(1, 100, 200))).unwrap();
    let published = loop {
        let ready = client.ready().unwrap();
        assert_eq!(ready.entries, 5);
        match ready.published {
            Some(published) if published.size == 5 => break published,
            Some(published) => assert!(published.size < 5),
            None => {}
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    served.now.store(published.at + 77, Ordering::SeqCst);
    let later = client.ready().unwrap();
    assert_eq!(later.published.unwrap().age_seconds, 77);
    // A clock that is behind the file's time says nothing absurd.
    served.now.store(published.at - 1, Ordering::SeqCst);
    assert_eq!(client.ready().unwrap().published.unwrap().age_seconds, 0);
}
