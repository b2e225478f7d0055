//! Edge, hub, ledger and settlement poller together, all real, in one process: bytes that passed become credit, once.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "../../gateway/tests/scene/mod.rs"]
mod scene;

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kvasir_gateway::{
    certificate::{self, Names},
    edge::{Certificates, Edge, EdgeOptions},
    hub::filing::FilingTimes,
    settle::Poller,
    stop::{Stopper, switch},
};
use kvasir_ledger::{
    client::Client,
    server,
    store::{Keys, Store},
};
use kvasir_link::TlsTrust;
use kvasir_wire::{
    account::{Delegation, Fund, Price, Statement},
    money::{NanoKvr, PricePerByte},
    note::{NetworkName, Note},
    ticket::Role,
};
use scene::{
    NETWORK, PLUGIN, Scene, WorkerEnd, key, now, patiently, whole_session, worker_at, worker_expectation,
};
use tokio::{sync::oneshot, task::JoinHandle};

const TREASURY: u8 = 20;
const SETTLER: u8 = 21;
const WALLET: u8 = 9;
const WORKER: u8 = 2;
const BACKBONE: u8 = 3;

/// A ledger on a socket of its own.
struct LedgerServer {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    run: JoinHandle<()>,
}

impl LedgerServer {
    async fn start(folder: &Path, listen: SocketAddr) -> LedgerServer {
        LedgerServer::start_by(folder, listen, server::system_clock()).await
    }

    /// One that goes by another clock.
    async fn start_by(folder: &Path, listen: SocketAddr, clock: server::Clock) -> LedgerServer {
        let network: NetworkName = NETWORK.parse().unwrap();
        let keys = Keys {
            hubs: vec![key(1).public()],
            treasury: vec![key(TREASURY).public()],
            settlers: vec![key(SETTLER).public()],
            retired: Vec::new(),
        };
        let path = folder.join("ledger.sqlite");
        if !path.exists() {
            Store::create(&path, &network).unwrap();
        }
        let store = Store::open(&path, &network, keys).unwrap();
        let (listener, address) = server::listen(listen).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let run = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            server::serve(listener, store, network, clock, stopped).await.unwrap();
        });
        LedgerServer { address, stop, run }
    }

    fn client(&self) -> Client {
        Client::new(&format!("http://{}", self.address)).unwrap()
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        patiently(self.run).await.unwrap();
    }
}

/// A price, a funded backbone, a wallet that has delegated to the worker.
fn notes() -> Vec<Note> {
    let network: NetworkName = NETWORK.parse().unwrap();
    let price = Price { network: network.clone(), per_byte: PricePerByte::FOUNDING, from: now() - 1000 };
    let fund = Fund {
        network: network.clone(),
        account: key(BACKBONE).public().digest(),
        amount: NanoKvr::new(1_000_000_000),
        nonce: [1; 32],
        at: now(),
    };
    let delegation = Delegation {
        network,
        wallet: key(WALLET).public(),
        worker: key(WORKER).public(),
        from: now() - 100,
        until: now() + 10_000,
    };
    vec![
        price.sign(&key(TREASURY)).unwrap(),
        fund.sign(&key(TREASURY)).unwrap(),
        delegation.sign(&key(WALLET)).unwrap(),
    ]
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// An edge in front of a hub, and what a worker needs to trust it.
async fn start_edge(scene: &Scene, folder: &Path) -> (SocketAddr, TlsTrust, Stopper) {
    let files =
        certificate::make(&folder.join("tls"), &Names::parse(&["localhost".into()]).unwrap(), false).unwrap();
    let options = EdgeOptions::new(([127, 0, 0, 1], 0).into(), scene.hub.to_string(), NETWORK.into());
    let certificates = Certificates::load(&files.certificate, &files.key).unwrap();
    let edge = Edge::bind(options, scene.edge_key.clone(), certificates).await.unwrap();
    let address = edge.address();
    let (stopper, stop) = switch();
    tokio::spawn(edge.run(stop));
    (address, TlsTrust::CaFile(std::fs::read(files.authority).unwrap()), stopper)
}

fn poller(ledger: &LedgerServer, cursor: Option<&Path>) -> Poller {
    Poller::new(ledger.client(), NETWORK.parse().unwrap(), key(SETTLER), cursor).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_through_the_edge_become_credit_exactly_once() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = LedgerServer::start(folder.path(), ([127, 0, 0, 1], 0).into()).await;
    let client = ledger.client();
    blocking(move || notes().iter().for_each(|note| drop(client.post_note(note).unwrap()))).await;
    let scene = Scene::start(Arc::new(ledger.client())).await;
    let (edge, trust, _edge_stopper) = start_edge(&scene, folder.path()).await;

    // The worker dials the edge by TLS, the backbone the hub.
    let (worker_key, backbone_key) = (key(WORKER), key(BACKBONE));
    let mut control = scene.control(&backbone_key).await;
    let ticket = scene.ticket(Role::Worker, &worker_key);
    let url = format!("wss://localhost:{}", edge.port());
    let link = worker_at(&url, &trust, &ticket, &worker_key, vec![PLUGIN]).await.unwrap();
    let pairing = {
        let worker_key = worker_key.clone();
        tokio::spawn(async move { link.pair(&worker_key, &worker_expectation()).await.unwrap() })
    };
    let mut backbone = scene.take_offer(&mut control, &backbone_key).await;
    let mut worker = WorkerEnd { session: pairing.await.unwrap(), key: worker_key };
    let calls = [(500_000, 400_000), (12_288, 98_304), (700_000, 1)];
    let receipt = whole_session(&mut worker, &mut backbone, &calls).await;
    let bytes: u64 = calls.iter().map(|(up, down)| (up + down) as u64).sum();
    assert_eq!(receipt.billed().get(), bytes);

    // Two pollers at once, each looking again and again; one of them dies before it can remember anything.
    let cursor = folder.path().join("settle.cursor");
    let mut first = poller(&ledger, Some(&cursor));
    let mut second = poller(&ledger, None);
    let (one, two) = tokio::join!(
        blocking(move || (0..3).map(|_| first.look().unwrap()).collect::<Vec<_>>()),
        blocking(move || (0..3).map(|_| second.look().unwrap()).collect::<Vec<_>>()),
    );
    // Both may have sent the very same settlement: one is told that it is credited already, so the reports add up.
    let credited: i64 = one.iter().chain(&two).map(|look| look.credited_nanokvr).sum();
    assert_eq!(credited, 7 * bytes as i64, "{one:?} {two:?}");
    std::fs::remove_file(&cursor).unwrap();
    let mut third = poller(&ledger, Some(&cursor));
    let again = blocking(move || third.look().unwrap()).await;
    assert_eq!((again.settlements, again.credited_nanokvr), (0, 0), "nothing is credited twice: {again:?}");
    assert!(cursor.exists());

    let client = ledger.client();
    let wallet = blocking(move || client.wallet(&key(WALLET).public().wallet_digest()).unwrap()).await;
    assert_eq!(wallet.pending_nanokvr + wallet.posted_nanokvr, 7 * bytes as i64);
    assert_eq!((wallet.bytes, wallet.unsettled_bytes), (bytes, 0));
    drop(control);
    scene.stop().await;
    ledger.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_outlive_a_ledger_that_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = LedgerServer::start(folder.path(), ([127, 0, 0, 1], 0).into()).await;
    let client = ledger.client();
    blocking(move || notes().iter().for_each(|note| drop(client.post_note(note).unwrap()))).await;
    let address = ledger.address;
    let scene = Scene::start(Arc::new(ledger.client())).await;
    let (mut worker, mut backbone, control) = scene.pair(&key(WORKER), &key(BACKBONE)).await;

    // The ledger goes; the session goes on and ends in order: its receipt is on the hub's disk.
    ledger.stop().await;
    let receipt = whole_session(&mut worker, &mut backbone, &[(1000, 2000)]).await;
    assert_eq!(receipt.billed().get(), 3000);
    assert_eq!(spooled(&scene), 2, "the grant and the receipt");

    // It comes back, and gets both.
    let ledger = LedgerServer::start(folder.path(), address).await;
    all_filed(&scene).await;
    let mut settler = poller(&ledger, None);
    let look = blocking(move || settler.look().unwrap()).await;
    assert_eq!(look.credited_nanokvr, 21_000);
    drop(control);
    scene.stop().await;
    ledger.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_of_a_hub_whose_clock_runs_ahead_are_paid_once_the_clock_is_set() {
    let folder = tempfile::tempdir().unwrap();
    // The hub is 200 seconds ahead of the ledger, which takes no receipt from more than 120 seconds ahead.
    let behind = Arc::new(AtomicU64::new(200));
    let clock = {
        let behind = behind.clone();
        Arc::new(move || now() - behind.load(Ordering::SeqCst))
    };
    let ledger = LedgerServer::start_by(folder.path(), ([127, 0, 0, 1], 0).into(), clock).await;
    let client = ledger.client();
    blocking(move || notes().iter().for_each(|note| drop(client.post_note(note).unwrap()))).await;
    let scene = start_impatient(&ledger).await;
    let (mut worker, mut backbone, control) = scene.pair(&key(WORKER), &key(BACKBONE)).await;
    // The session ends in order: all three have the signed receipt, and the hub keeps it.
    whole_session(&mut worker, &mut backbone, &[(1000, 2000)]).await;
    assert_eq!(spooled(&scene), 1);
    behind.store(0, Ordering::SeqCst);
    all_filed(&scene).await;
    let mut settler = poller(&ledger, None);
    let look = blocking(move || settler.look().unwrap()).await;
    assert_eq!(look.credited_nanokvr, 21_000);
    drop(control);
    scene.stop().await;
    ledger.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegation_that_arrives_late_pays_what_was_served_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = LedgerServer::start(folder.path(), ([127, 0, 0, 1], 0).into()).await;
    let client = ledger.client();
    let [price, fund, delegation] = <[Note; 3]>::try_from(notes()).unwrap();
    blocking(move || [price, fund].iter().for_each(|note| drop(client.post_note(note).unwrap()))).await;
    let scene = start_impatient(&ledger).await;
    let (mut worker, mut backbone, control) = scene.pair(&key(WORKER), &key(BACKBONE)).await;
    whole_session(&mut worker, &mut backbone, &[(1000, 2000)]).await;
    // The hub stops before the wallet's owner has signed: its next start finds the receipt.
    let spool = scene.spool.path().to_owned();
    assert_eq!(spooled(&scene), 1);
    drop((control, worker, backbone));
    let kept = scene.stop_and_keep_spool().await;
    let client = ledger.client();
    blocking(move || drop(client.post_note(&delegation).unwrap())).await;
    let scene = Scene::start_with(Arc::new(ledger.client()), |options| options.spool = spool.clone()).await;
    patiently(async {
        while std::fs::read_dir(&spool).unwrap().any(|entry| entry.unwrap().path().is_file()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let mut settler = poller(&ledger, None);
    let look = blocking(move || settler.look().unwrap()).await;
    assert_eq!(look.credited_nanokvr, 21_000);
    scene.stop().await;
    drop(kept);
    ledger.stop().await;
}

/// A hub that sends postponed receipts again at once, and lets sessions go on meanwhile.
async fn start_impatient(ledger: &LedgerServer) -> Scene {
    Scene::start_with(Arc::new(ledger.client()), |options| {
        options.filing = FilingTimes { retry: Duration::from_millis(20), cure: Duration::from_secs(600) };
    })
    .await
}

fn spooled(scene: &Scene) -> usize {
    let files = std::fs::read_dir(scene.spool.path()).unwrap();
    files.filter(|entry| entry.as_ref().unwrap().path().is_file()).count()
}

async fn all_filed(scene: &Scene) {
    patiently(async {
        while spooled(scene) > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
