//! Figures of the ledger on this machine, as ratios beside raw SQLite and raw signature checks. `scripts/bench-ledger` runs it.
//!
//! Prints one JSON object: machine and `measured`, a list of {name, value, unit, aim, better, met, note}.
#![allow(clippy::unwrap_used)] // a figure that cannot be taken fails the run

mod audit;
mod figures;
#[path = "../../tests/network/mod.rs"]
mod network;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use figures::{Figures, timed};
use kvasir_ledger::store::{Incoming, MAX_GROUP, Store};
use kvasir_merkle::{Accumulator, leaf_hash};
use kvasir_wire::note::Note;
use kvasir_wire::receipt::SignedReceipt;
use network::{Network, START, counters};
use rusqlite::{Connection, TransactionBehavior, params};
use serde_json::json;

/// Receipts of one session.
const SESSION: usize = 100;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some(audit::CHILD) {
        return audit::child(&arguments.next().unwrap());
    }
    let receipts: usize = first.map_or(20_000, |count| count.parse().unwrap());
    let folder = tempfile::tempdir_in(std::env::var("BENCH_DIR").unwrap_or_else(|_| ".".into())).unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    let network = Network::new();
    eprintln!("signing {receipts} receipts");
    let notes = signed(&network, receipts, cores);
    let bytes: Vec<String> = notes.iter().map(Note::to_string).collect();
    let size: usize = bytes.iter().map(String::len).sum::<usize>() / receipts;
    let mut figures = Figures::default();

    eprintln!("signature checks");
    let checked: Vec<Note> = notes.iter().take(2_000).cloned().collect();
    let keys = kvasir_wire::receipt::ReceiptKeys {
        hub: network.hub.public(),
        worker: network.worker.public(),
        backbone: network.backbone.public(),
    };
    let (seconds, ()) = timed(|| {
        for note in &checked {
            SignedReceipt::verify(note.clone(), &keys).unwrap();
        }
    });
    let strict = {
        let message = checked[0].text().as_bytes().to_vec();
        let signature = network.hub.sign(&message);
        let count = 6_000;
        let (seconds, ()) =
            timed(|| (0..count).for_each(|_| network.hub.public().verify(&message, &signature).unwrap()));
        f64::from(count) / seconds
    };
    figures.plain(
        "strict signature checks",
        strict,
        "checks/s on one core",
        format!("{} byte texts", checked[0].text().len()),
    );
    let rate = checked.len() as f64 / seconds;
    figures.at_least(
        "receipts checked of raw signature checks",
        rate / (strict / 3.0),
        "of a third of the checks/s",
        0.9,
        format!("{rate:.0} receipts/s on one core: grammar, keys, three strict signatures"),
    );

    eprintln!("hashing");
    let mut tree = Accumulator::new();
    let (seconds, ()) = timed(|| bytes.iter().for_each(|note| tree.push(leaf_hash(note.as_bytes()))));
    figures.at_least(
        "leaves hashed",
        receipts as f64 / seconds,
        "leaves/s on one core",
        400_000.0,
        format!(
            "leaves of {size} bytes into a running root; {:.0} MB/s",
            (size * receipts) as f64 / seconds / 1e6
        ),
    );

    eprintln!("raw inserts");
    let raw = median(
        (0..3).map(|round| receipts as f64 / raw(&folder.path().join(format!("raw-{round}.db")), &bytes)),
    );
    figures.plain(
        "raw batched inserts",
        raw,
        "rows/s",
        format!("number and note, {size} bytes, {MAX_GROUP} a transaction, the ledger's pragmas"),
    );
    eprintln!("group commit");
    let path = folder.path().join("ledger.db");
    let stored = median((0..3).map(|round| {
        let path = folder.path().join(format!("ledger-{round}.db"));
        receipts as f64 / group(&network, &path, &notes, 0)
    }));
    figures.at_least(
        "durable receipts of raw inserts",
        stored / raw,
        "of raw inserts/s",
        0.5,
        format!(
            "{stored:.0} receipts/s with group commit, {MAX_GROUP} a transaction, signatures verified beforehand"
        ),
    );
    let seconds = group(&network, &path, &notes, cores);
    figures.plain(
        "durable receipts with signature checks",
        receipts as f64 / seconds,
        "receipts/s",
        format!(
            "checked on {cores} cores while the writer writes; the checks alone allow {:.0}",
            rate * cores as f64
        ),
    );
    let file = std::fs::metadata(&path).unwrap().len();
    figures.plain(
        "database",
        file as f64 / receipts as f64,
        "bytes a receipt",
        format!("{receipts} receipts of {size} bytes with their indexes"),
    );
    drop((notes, bytes));
    for per_session in [SESSION, 1] {
        audit::measure(&mut figures, folder.path(), receipts, per_session, strict);
    }
    let machine =
        json!({ "cores": cores, "os": std::env::consts::OS, "architecture": std::env::consts::ARCH });
    let report = json!({ "machine": machine, "receipts": receipts, "measured": figures.into_list() });
    println!("{}", serde_json::to_string_pretty(&report).unwrap());
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Good receipts, in the order of their sessions.
fn signed(network: &Network, count: usize, threads: usize) -> Vec<Note> {
    let sessions: Vec<usize> = (0..count.div_ceil(SESSION)).collect();
    let share = sessions.len().div_ceil(threads);
    let mut notes: Vec<Note> = std::thread::scope(|scope| {
        let parts: Vec<_> = sessions
            .chunks(share)
            .map(|part| {
                scope.spawn(move || part.iter().flat_map(|s| session(network, *s)).collect::<Vec<_>>())
            })
            .collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    });
    notes.truncate(count);
    notes
}

fn session(network: &Network, number: usize) -> Vec<Note> {
    let mut receipt = network.first(1, 10, 20);
    receipt.terms.session.0 = leaf_hash(&number.to_le_bytes()).0;
    let mut notes = vec![network.sign(&receipt)];
    for seq in 2..=SESSION as u64 {
        receipt = receipt.next(counters(10 * seq, 20 * seq), receipt.to, false).unwrap();
        notes.push(network.sign(&receipt));
    }
    notes
}

/// Seconds for the same bytes in one plain table.
fn raw(path: &Path, notes: &[String]) -> f64 {
    let mut connection = Connection::open(path).unwrap();
    for (pragma, value) in [
        ("page_size", "16384"),
        ("journal_mode", "WAL"),
        ("wal_autocheckpoint", "4096"),
        ("cache_size", "-65536"),
        ("synchronous", "FULL"),
        ("fullfsync", "1"),
        ("foreign_keys", "1"),
    ] {
        connection.pragma_update(None, pragma, value).unwrap();
    }
    connection
        .execute_batch("CREATE TABLE notes (number INTEGER PRIMARY KEY, note TEXT NOT NULL) STRICT")
        .unwrap();
    let write = || {
        let mut number = 0;
        for group in notes.chunks(MAX_GROUP) {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            {
                let mut insert = transaction.prepare_cached("INSERT INTO notes VALUES (?, ?)").unwrap();
                for note in group {
                    insert.execute(params![number, note]).unwrap();
                    number += 1;
                }
            }
            transaction.commit().unwrap();
        }
    };
    timed(write).0
}

/// Seconds for the ledger's own writer; `checkers` 0 verifies before the clock runs.
fn group(network: &Network, path: &Path, notes: &[Note], checkers: usize) -> f64 {
    Store::create(path, &network.name).unwrap();
    let mut store = Store::open(path, &network.name, network.keys()).unwrap();
    network.prepare(&mut store);
    let keys = network.keys();
    let check = |note: &Note| {
        let mut incoming = Incoming::receipt(note.to_string().as_bytes()).unwrap();
        incoming.check(&keys, |_| Some((network.backbone.public(), network.worker.public())));
        incoming
    };
    let mut put = |group: Vec<Incoming>| {
        for answer in store.accept_group(group, START + 10) {
            answer.unwrap();
        }
    };
    if checkers == 0 {
        let groups: Vec<Vec<Incoming>> =
            notes.chunks(MAX_GROUP).map(|group| group.iter().map(check).collect()).collect();
        return timed(|| groups.into_iter().for_each(&mut put)).0;
    }
    let check_and_write = || {
        let next = AtomicUsize::new(0);
        let groups: Vec<&[Note]> = notes.chunks(MAX_GROUP).collect();
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::sync_channel(2 * checkers);
            for _ in 0..checkers {
                let (tell, next, groups, check) = (tell.clone(), &next, &groups, &check);
                scope.spawn(move || {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(group) = groups.get(number) else { return };
                        tell.send((number, group.iter().map(check).collect::<Vec<_>>())).unwrap();
                    }
                });
            }
            drop(tell);
            // In order, since receipts of one session continue each other.
            let mut early = std::collections::BTreeMap::new();
            let mut due = 0;
            for (number, group) in told {
                early.insert(number, group);
                while let Some(group) = early.remove(&due) {
                    put(group);
                    due += 1;
                }
            }
        });
    };
    timed(check_and_write).0
}
