//! Durable receipts: the ledger's own writer beside plain tables with the same bytes.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvasir_ledger::store::{Incoming, MAX_GROUP, Store};
use kvasir_merkle::{Accumulator, leaf_hash};
use kvasir_wire::note::Note;
use rusqlite::{Connection, TransactionBehavior, params};

use crate::SESSION;
use crate::checks::Checks;
use crate::figures::{Figures, timed};
use crate::network::{Network, START, counters};

pub fn measure(figures: &mut Figures, network: &Network, folder: &Path, receipts: usize, checks: &Checks) {
    let cores = checks.cores;
    eprintln!("signing {receipts} receipts");
    let notes = signed(network, receipts, cores);
    let bytes: Vec<String> = notes.iter().map(Note::to_string).collect();
    let size: usize = bytes.iter().map(String::len).sum::<usize>() / receipts;

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
    let raw_rate = |unique: bool| {
        let path = |round| folder.join(format!("raw-{unique}-{round}.db"));
        median((0..3).map(|round| receipts as f64 / raw(&path(round), &bytes, unique)))
    };
    let (raw, raw_unique) = (raw_rate(false), raw_rate(true));
    figures.plain(
        "raw batched inserts",
        raw,
        "rows/s",
        format!("number and note, {size} bytes, {MAX_GROUP} a transaction, the ledger's pragmas"),
    );
    figures.plain(
        "raw batched inserts with unique digests",
        raw_unique,
        "rows/s",
        "as above, with the digests of text and note as unique keys".to_owned(),
    );
    eprintln!("group commit");
    let path = folder.join("ledger.db");
    // Checking signatures beforehand takes most of the time: a large log is written once.
    let rounds = if receipts > 100_000 { 1 } else { 3 };
    let stored = median((0..rounds).map(|round| {
        let path = folder.join(format!("ledger-{round}.db"));
        receipts as f64 / group(network, &path, &notes, 0)
    }));
    figures.at_least(
        "durable receipts of raw inserts",
        stored / raw,
        "of raw inserts/s",
        0.5,
        format!(
            "{stored:.0} receipts/s with group commit, {MAX_GROUP} a transaction, signatures verified beforehand; {:.2} of raw \
             inserts with unique digests",
            stored / raw_unique
        ),
    );
    let seconds = group(network, &path, &notes, cores);
    figures.plain(
        "durable receipts with signature checks",
        receipts as f64 / seconds,
        "receipts/s",
        format!(
            "checked on {cores} cores while the writer writes; the checks alone allow {:.0}",
            checks.receipts * cores as f64
        ),
    );
    let file = std::fs::metadata(&path).unwrap().len();
    figures.plain(
        "database",
        file as f64 / receipts as f64,
        "bytes a receipt",
        format!("{receipts} receipts of {size} bytes with their indexes"),
    );
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

/// The receipts of one session.
pub fn session(network: &Network, number: usize) -> Vec<Note> {
    let mut receipt = network.first(1, 10, 20);
    receipt.terms.session.0 = leaf_hash(&number.to_le_bytes()).0;
    let mut notes = vec![network.sign(&receipt)];
    for seq in 2..=SESSION as u64 {
        receipt = receipt.next(counters(10 * seq, 20 * seq), receipt.to, false).unwrap();
        notes.push(network.sign(&receipt));
    }
    notes
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds for the same bytes in one plain table, with their two digests as keys if `unique`.
fn raw(path: &Path, notes: &[String], unique: bool) -> f64 {
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
        .execute_batch(
            "CREATE TABLE notes (number INTEGER PRIMARY KEY, note TEXT NOT NULL) STRICT;
             CREATE TABLE keys (number INTEGER PRIMARY KEY, id BLOB UNIQUE, leaf BLOB UNIQUE, note TEXT NOT NULL) STRICT;",
        )
        .unwrap();
    let digests: Vec<([u8; 32], [u8; 32])> =
        notes.iter().map(|note| (leaf_hash(&note.as_bytes()[1..]).0, leaf_hash(note.as_bytes()).0)).collect();
    let write = || {
        let mut number = 0i64;
        for group in notes.chunks(MAX_GROUP) {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            {
                let mut insert = transaction.prepare_cached("INSERT INTO notes VALUES (?, ?)").unwrap();
                let mut insert_keys =
                    transaction.prepare_cached("INSERT INTO keys VALUES (?, ?, ?, ?)").unwrap();
                for note in group {
                    if unique {
                        let (id, leaf) = digests[number as usize];
                        insert_keys.execute(params![number, id, leaf, note]).unwrap();
                    } else {
                        insert.execute(params![number, note]).unwrap();
                    }
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
