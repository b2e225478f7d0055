//! Crash suite: the real program is killed, or its disk fails, at every system call of one append, one settlement and one
//! publication; then it is started again. Nothing acknowledged is lost, nothing counted twice, balances are conserved,
//! `kvasir-ledger verify` passes.
//!
//! `strace` lists the calls and injects the faults, one a try. By default a sample of the points is tried; all of them with
//! `scripts/crash-ledger` (`KVASIR_CRASH=all`). How many were tried is printed.
#![cfg(all(feature = "server", target_os = "linux"))]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod copies;
mod durable;
#[path = "../network/mod.rs"]
mod network;
mod scene;
mod strace;

use std::io::Write as _;
use std::path::Path;

use kvasir_ledger::api::Accepted;
use kvasir_ledger::client::ClientError;
use kvasir_ledger::log::{CHECKPOINT_PATH, Checkpoint, FolderSource, Prover};
use kvasir_ledger::server::system_clock;
use kvasir_wire::note::Note;
use scene::{FUNDED, Program, Scene, run};
use strace::{Attached, Fault, Point, calls, points, sample_and};

/// Points of each kind of run that the default test tries.
const SAMPLE: usize = 100;
/// Bytes of session 1 before and after the second receipt.
const NANOKVR_PER_BYTE: i64 = 7;

/// What a try came to, for the line that is printed.
#[derive(Default)]
struct Count {
    kills: usize,
    errors: usize,
    acknowledged: usize,
    refused: usize,
    /// Tries whose fault happened: a run may take fewer calls than the one that was listed.
    fired: usize,
}

impl Count {
    fn add(&mut self, fault: Fault, acknowledged: bool, fired: bool) {
        self.fired += usize::from(fired);
        *(if fault == Fault::Kill { &mut self.kills } else { &mut self.errors }) += 1;
        *(if acknowledged { &mut self.acknowledged } else { &mut self.refused }) += 1;
    }

    fn print(&self, what: &str, calls: usize, all: usize) {
        println!(
            "crash suite, {what}: {calls} system calls, {all} points, tried {} ({} kills, {} failing calls), of which {} happened; {} \
             acknowledged before or in spite of it, {} not",
            self.kills + self.errors,
            self.kills,
            self.errors,
            self.fired,
            self.acknowledged,
            self.refused
        );
        assert!(10 * self.fired >= 9 * (self.kills + self.errors), "{what}: too few faults happened");
    }
}

#[test]
fn one_receipt() {
    let Some(scene) = scene() else { return };
    let note = || scene.receipt();
    append(&scene, "one receipt", note, |program, note| program.client.post_receipt(note));
}

#[test]
fn one_settlement() {
    let Some(scene) = scene() else { return };
    // Dated anew for each try: a settlement must be of now.
    let note = || scene.settlement(system_clock()());
    append(&scene, "one settlement", note, |program, note| program.client.post_settlement(note));
}

fn scene() -> Option<Scene> {
    match strace::unavailable() {
        Some(reason) => {
            // To the handle: what is printed is shown for failed tests alone.
            let line = format!("skipped: no system call can be traced ({reason})\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            None
        }
        None => Some(Scene::new()),
    }
}

/// Tries every point of the writer's thread while it stores one note.
fn append(
    scene: &Scene,
    what: &str,
    make: impl Fn() -> Note,
    send: impl Fn(&Program, &Note) -> Result<Accepted, ClientError>,
) {
    let folder = scene.copy();
    let program = Program::start(&folder);
    let tracing = Attached::to(program.thread("ledger-writer"), None, &scene.list()).unwrap();
    send(&program, &make()).unwrap();
    tracing.end();
    drop(program);
    let calls = calls(&scene.list(), &folder, "");
    let every = points(&calls);
    assert!(calls.iter().any(|call| call.name.ends_with("sync")), "nothing was synced: {calls:?}");
    let mut count = Count::default();
    // SQLite passes over an error of a folder's sync, and never over one of its log.
    let must_fail = |point: &Point| {
        point.fault != Fault::Kill && point.call.is_sync() && point.call.file.ends_with("ledger.db-wal")
    };
    assert!(every.iter().any(must_fail), "the log of the database was not synced: {calls:?}");
    for point in sample_and(every.clone(), SAMPLE, must_fail) {
        let folder = scene.copy();
        let mut program = Program::start(&folder);
        let tracing = Attached::to(program.thread("ledger-writer"), Some(&point), &scene.list()).unwrap();
        let note = make();
        let answer = send(&program, &note);
        if point.fault != Fault::Kill {
            // The disk is well again: the running program may go on or not, but what it says must hold.
            let again = send(&program, &note);
            if let (Ok(first), Ok(again)) = (&answer, &again) {
                assert_eq!((first.index, &first.id), (again.index, &again.id), "{point:?}");
            }
            assert!(program.lives(), "{point:?}: the program ended");
        }
        let died = point.fault == Fault::Kill && program.dies();
        drop(program);
        tracing.end();
        assert!(!must_fail(&point) || answer.is_err(), "{point:?}: acknowledged, and not on the disk");
        let fired = died || point.fault != Fault::Kill && strace::fired(&scene.list(), point.fault);
        count.add(point.fault, answer.is_ok(), fired);
        after_restart(scene, &folder, &note, answer.ok(), &send, &point);
    }
    count.print(what, calls.len(), every.len());
}

/// What must hold whatever happened: restart, send again, settle, verify.
fn after_restart(
    scene: &Scene,
    folder: &Path,
    note: &Note,
    acknowledged: Option<Accepted>,
    send: &impl Fn(&Program, &Note) -> Result<Accepted, ClientError>,
    point: &Point,
) {
    let program = Program::start(folder);
    let before = program.client.ready().unwrap().entries;
    if let Some(accepted) = &acknowledged {
        let kept =
            program.client.note(&note.leaf_hash()).unwrap_or_else(|error| panic!("{point:?}: lost: {error}"));
        assert_eq!(kept.index, accepted.index, "{point:?}");
    }
    let again = send(&program, note).unwrap_or_else(|error| panic!("{point:?}: {error}"));
    if let Some(accepted) = acknowledged {
        assert_eq!(again, Accepted { repeated: true, ..accepted }, "{point:?}");
    }
    // One entry more than before, however often it was sent.
    let entries = program.client.ready().unwrap().entries;
    assert_eq!(entries, before + u64::from(!again.repeated), "{point:?}");
    assert_eq!(entries, again.index + 1, "{point:?}");

    let network = &scene.network;
    program.client.settle_once(&network.name, &network.settler, system_clock()()).unwrap();
    let billed = i64::try_from(program.client.wallet(&network.payee()).unwrap().bytes).unwrap();
    let pending = program.client.wallet(&network.payee()).unwrap().pending_nanokvr;
    let available = program.client.account(&network.payer()).unwrap().available_nanokvr;
    let receipts = program.client.receipts(None, 10).unwrap().receipts.len() as i64;
    assert_eq!(billed, 1_000 * receipts, "{point:?}: each receipt added 1,000 bytes");
    assert_eq!((pending, available + pending), (NANOKVR_PER_BYTE * billed, FUNDED), "{point:?}");
    program.stop();
    verify(folder, point);
}

fn verify(folder: &Path, point: &Point) {
    let verified = run("verify", folder);
    assert!(verified.status.success(), "{point:?}: {}", String::from_utf8_lossy(&verified.stderr));
    let report: serde_json::Value = serde_json::from_slice(&verified.stdout).unwrap();
    let balances = report["balances"].as_array().unwrap();
    assert_eq!(
        balances.iter().filter_map(|balance| balance["nanokvr"].as_i64()).sum::<i64>(),
        0,
        "{point:?}"
    );
}

#[test]
fn one_publication() {
    let Some(scene) = scene() else { return };
    // One receipt that is durable and not published: stored while nobody publishes.
    let unpublished = |folder: &Path| {
        let network = &scene.network;
        let mut store =
            kvasir_ledger::store::Store::open(&folder.join("ledger.db"), &network.name, network.keys())
                .unwrap();
        store.accept_receipt(scene.receipt().to_string().as_bytes(), system_clock()()).unwrap();
    };
    let publish = |folder: &Path, point: Option<&Point>| {
        let mut command = strace::command(scene::PROGRAM.as_ref(), point, &scene.list());
        command.args(["publish", "--json", "--config"]).arg(folder.join("ledger.toml")).output().unwrap()
    };
    let folder = scene.copy();
    unpublished(&folder);
    let old = checkpoint(&folder);
    assert!(publish(&folder, None).status.success());
    let calls = calls(&scene.list(), &folder, "ledger.toml");
    let every = points(&calls);
    assert!(calls.iter().any(|call| call.name.starts_with("rename")), "nothing was put in place: {calls:?}");
    assert_eq!(checkpoint(&folder).size, old.size + 1);
    // What the program writes itself: every sync that fails is told, and done again by the next run before it says anything.
    let log = folder.join("log");
    let must_fail = |point: &Point| {
        point.fault == Fault::Eio && point.call.is_sync() && Path::new(&point.call.file).starts_with(&log)
    };
    let folders = ["tile/0", "tile/entries", ""].map(|name| log.join(name).display().to_string());
    for name in folders.iter().map(|name| name.trim_end_matches('/')) {
        assert!(every.iter().any(|point| must_fail(point) && point.call.file == name), "{name}: not synced");
    }
    let mut count = Count::default();
    for point in sample_and(every.clone(), SAMPLE, must_fail) {
        let folder = scene.copy();
        unpublished(&folder);
        let said = publish(&folder, Some(&point));
        count.add(point.fault, said.status.success(), strace::fired(&scene.list(), point.fault));
        if must_fail(&point) {
            assert!(!said.status.success(), "{point:?}: said to be published, and not on the disk");
        }
        // What readers see at any time is whole: the old head or the new one, and everything that it stands for.
        let seen = checkpoint(&folder);
        whole(&folder, &seen, &old, &point);
        assert!(!said.status.success() || seen.size == old.size + 1, "{point:?}: said to be published");
        let again = publish(&folder, None);
        assert!(again.status.success(), "{point:?}: {}", String::from_utf8_lossy(&again.stderr));
        // A draft is written anew under another name.
        if must_fail(&point) && !point.call.file.contains(".partial") {
            let again = strace::calls(&scene.list(), &folder, "");
            let synced = again.iter().any(|call| call.is_sync() && call.file == point.call.file);
            assert!(synced, "{point:?}: its error was lost between two runs");
        }
        let new = checkpoint(&folder);
        assert_eq!(new.size, old.size + 1, "{point:?}");
        whole(&folder, &new, &seen, &point);
        verify(&folder, &point);
    }
    count.print("one publication", calls.len(), every.len());
}

fn checkpoint(folder: &Path) -> Checkpoint {
    let text = std::fs::read(folder.join("log").join(CHECKPOINT_PATH)).unwrap();
    Checkpoint::parse(Note::parse(&text).unwrap().text()).unwrap()
}

/// The tiles give the head's root, and it continues the earlier head.
fn whole(folder: &Path, head: &Checkpoint, earlier: &Checkpoint, point: &Point) {
    let source = FolderSource(folder.join("log"));
    let prover = Prover::new(&source, head.size);
    assert_eq!(prover.root().unwrap(), head.root, "{point:?}");
    for index in 0..head.size {
        prover.entry(index).unwrap_or_else(|error| panic!("{point:?}: entry {index}: {error}"));
    }
    assert!(earlier.size <= head.size, "{point:?}: the head went back");
    let proof = prover.consistency(earlier.size).unwrap();
    proof.verify(&earlier.root, &head.root).unwrap();
}
