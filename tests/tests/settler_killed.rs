//! The settlement poller as a process that dies: SIGKILL at system calls all over one look - between reading receipts, posting
//! settlements and keeping the cursor -, another poller beside it, and a ledger whose clock is set back and forth. Each byte is
//! credited once, and none is lost.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "../../ledger/tests/network/mod.rs"]
mod network;
#[path = "../../ledger/tests/crash/strace.rs"]
#[allow(dead_code, reason = "the suite of the ledger uses the rest")]
mod strace;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use kvasir_ledger::client::Client;
use kvasir_ledger::server;
use kvasir_ledger::store::Store;
use kvasir_tests::program;
use kvasir_wire::receipt::Receipt;
use network::{Network, counters};
use strace::{Fault, Point, calls, points, sample};

/// Points of one look that are tried; all of them where `KVASIR_CRASH=all`.
const SAMPLE: usize = 60;
/// Sessions whose receipts wait at each try.
const SESSIONS: u8 = 3;
/// Ends a process without a handler.
const SIGKILL: i32 = 9;
/// What the treasury put in.
const FUNDED: i64 = 1_000_000_000_000;
/// How far the ledger's clock is from the poller's, try by try. Behind its latest entry, or more than 120 seconds from the
/// poller's clock, the ledger takes no settlement: they wait.
const STEPS: [i64; 7] = [0, 0, -90, 0, 5_000, 0, -5_000];
/// A step ahead at which settlements are taken, and none any more when the clock is set back.
const AHEAD: i64 = 100;

/// A ledger in this process, and the program that settles it.
struct Scene {
    network: Network,
    folder: tempfile::TempDir,
    url: String,
    client: Client,
    /// Seconds that are added to the ledger's clock.
    step: Arc<AtomicI64>,
    gateway: PathBuf,
    /// Receipts so far, the latest of each session.
    latest: Vec<Option<Receipt>>,
    bytes: u64,
}

impl Scene {
    fn new() -> Self {
        let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
        let path = folder.path().join("ledger.db");
        Store::create(&path, &network.name).unwrap();
        let store = Store::open(&path, &network.name, network.keys()).unwrap();
        let step = Arc::new(AtomicI64::new(0));
        let clock: server::Clock = {
            let (step, system) = (step.clone(), server::system_clock());
            Arc::new(move || system().saturating_add_signed(step.load(Ordering::SeqCst)))
        };
        let (tell, told) = std::sync::mpsc::channel();
        let name = network.name.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (listener, address) = server::listen(([127, 0, 0, 1], 0).into()).await.unwrap();
                tell.send(address).unwrap();
                server::serve(listener, store, name, clock, std::future::pending()).await.unwrap();
            });
        });
        let url = format!("http://{}", told.recv().unwrap());
        let client = Client::new(&url).unwrap();
        for note in network.foundation() {
            client.post_note(&note).unwrap();
        }
        let key = network.settler.to_text();
        kvasir_gateway::secret_file::write(&folder.path().join("settler.key"), key.as_bytes(), false)
            .unwrap();
        let latest = vec![None; usize::from(SESSIONS)];
        let gateway = program("kvasir-gateway");
        Self { network, folder, url, client, step, gateway, latest, bytes: 0 }
    }

    /// One more receipt in every session.
    fn serve_more(&mut self) {
        for (session, latest) in (1..).zip(&mut self.latest) {
            let next = match latest.take() {
                None => self.network.first(session, 1_000, 0),
                Some(receipt) => {
                    let up = receipt.counters.up.get() + 1_000;
                    receipt.next(counters(up, 0), receipt.to, false).unwrap()
                }
            };
            self.client.post_receipt(&self.network.sign(&next)).unwrap();
            self.bytes += 1_000;
            *latest = Some(next);
        }
    }

    /// Arguments of one look.
    fn look(&self, cursor: &str) -> Vec<OsString> {
        let path = |name: &str| self.folder.path().join(name).into_os_string();
        let mut arguments: Vec<OsString> =
            ["--json", "settle", "--once", "--network", "atlas", "--ledger"].map(OsString::from).into();
        arguments.push(self.url.clone().into());
        arguments.extend(["--settler-key".into(), path("settler.key"), "--cursor".into(), path(cursor)]);
        arguments
    }

    fn beside(&self, cursor: &str) -> Child {
        let mut command = Command::new(&self.gateway);
        command.args(self.look(cursor)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// One look of the poller under strace, killed at `point`.
    fn traced(&self, point: Option<&Point>) -> ExitStatus {
        let mut command = strace::command(self.gateway.as_os_str(), point, &self.list());
        let status =
            command.args(self.look("killed.cursor")).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.unwrap()
    }

    fn list(&self) -> PathBuf {
        self.folder.path().join("strace.list")
    }

    /// What must hold at any time: nothing is credited beyond what was served, and no credit came from nowhere.
    fn check(&self, what: &dyn std::fmt::Debug) -> u64 {
        let wallet = self.client.wallet(&self.network.payee()).unwrap();
        let account = self.client.account(&self.network.payer()).unwrap();
        let credit = wallet.pending_nanokvr + wallet.posted_nanokvr;
        assert_eq!(wallet.bytes + wallet.unsettled_bytes, self.bytes, "{what:?}");
        assert_eq!(credit, 7 * i64::try_from(wallet.bytes).unwrap(), "{what:?}");
        assert_eq!(account.available_nanokvr + credit, FUNDED, "{what:?}");
        wallet.bytes
    }
}

#[test]
fn a_poller_that_is_killed_anywhere_credits_once_and_loses_nothing() {
    if let Some(reason) = strace::unavailable() {
        kvasir_tests::skipped("no system call can be traced", reason);
        return;
    }
    let mut scene = Scene::new();
    scene.serve_more();
    assert!(scene.traced(None).success());
    assert_eq!(scene.check(&"undisturbed"), scene.bytes);
    let calls = calls(&scene.list(), scene.folder.path(), "settler.key");
    let of_cursor = |call: &&strace::Call| call.name.starts_with("rename");
    assert!(calls.iter().any(|call| of_cursor(&call)), "no cursor was put in place: {calls:?}");
    let kills: Vec<Point> = points(&calls).into_iter().filter(|point| point.fault == Fault::Kill).collect();
    let every = kills.len();
    let (mut tried, mut alone, mut killed, mut credited_before) = (0, 0, 0, 0);
    for (point, step) in sample(kills, SAMPLE).into_iter().zip(STEPS.into_iter().cycle()) {
        scene.serve_more();
        scene.step.store(step, Ordering::SeqCst);
        let mut other = (tried % 2 == 0).then(|| scene.beside("other.cursor"));
        alone += usize::from(step == 0 && other.is_none());
        killed += usize::from(scene.traced(Some(&point)).signal() == Some(SIGKILL));
        // Its end is of no interest: at some steps of the clock the ledger refuses.
        other.iter_mut().for_each(|other| assert!(other.wait().is_ok()));
        let credited = scene.check(&point);
        credited_before += usize::from(credited == scene.bytes);
        // The next start of the same poller, when the clock is right again.
        scene.step.store(0, Ordering::SeqCst);
        assert!(scene.traced(None).success(), "{point:?}");
        assert_eq!(scene.check(&point), scene.bytes, "{point:?}: what was served is credited");
        tried += 1;
    }
    println!(
        "settlement poller: {} system calls, {every} points, tried {tried}, killed {killed}; {credited_before} times all was \
         credited before the next start",
        calls.len()
    );
    // Where the ledger's clock is wrong it refuses, and a poller beside may be first: then this one may end by itself before its
    // point, how often is chance. Of the others the most are killed, whatever the threads of a process do in which order.
    assert!(killed > alone / 2 && credited_before > 0 && credited_before < tried, "{alone} undisturbed");
    // A cursor that says more than there is, less, or nothing at all costs a question, never a byte.
    for text in ["{\"last_receipt\":999999}", "{\"last_receipt\":0}", "{\"last_rec", ""] {
        scene.serve_more();
        std::fs::write(scene.folder.path().join("killed.cursor"), text).unwrap();
        assert!(scene.traced(None).success());
        assert_eq!(scene.check(&text), scene.bytes);
    }
    // Credited while the ledger's clock ran ahead; set back, it credits nothing until it has caught up.
    for (step, credits) in [(AHEAD, true), (0, false), (AHEAD, true)] {
        scene.step.store(step, Ordering::SeqCst);
        scene.serve_more();
        let looked = scene.traced(None);
        assert_eq!((looked.success(), scene.check(&step) == scene.bytes), (credits, credits), "{step}");
    }
    verified(&scene.network, scene.folder.path());
}

/// The books as `verify` sees them.
fn verified(network: &Network, folder: &Path) {
    let path = folder.join("ledger.db");
    let connection = kvasir_ledger::store::open_for_reading(&path, &network.name).unwrap();
    let report = Store::verify(&connection, &path, &network.name, &network.keys(), &mut |_, _| {}).unwrap();
    assert_eq!(report.balances.iter().map(|balance| balance.nanokvr).sum::<i64>(), 0);
}
