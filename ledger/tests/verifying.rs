//! `verify` finds every change of the file and names the first bad index.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use std::path::{Path, PathBuf};

use kvasir_ledger::store::{Keys, Store, VerifyError, VerifyReport, open_for_reading};
use kvasir_wire::account::PENDING_SECONDS;
use kvasir_wire::key::SecretKey;
use network::{Network, START, counters, post_at, refused};
use rusqlite::Connection;

/// Entries: 0 price, 1 delegation, 2 grant, 3 fund, 4 and 5 receipts of one session, 6 settlement of both, 7 receipt,
/// 8 settlement, 9 correction of 8, 10 receipt, 11 settlement. 6 is posted. One conflict against 4.
fn ledger(network: &Network, folder: &Path) -> PathBuf {
    let path = folder.join("ledger.db");
    Store::create(&path, &network.name).unwrap();
    let mut store = Store::open(&path, &network.name, network.keys()).unwrap();
    network.prepare(&mut store);
    let one = network.first(1, 100, 200);
    let two = one.next(counters(150, 250), START + 20, true).unwrap();
    post_at(&mut store, &network.sign(&one), START + 20).unwrap();
    refused(post_at(&mut store, &network.sign(&network.first(1, 100, 201)), START + 20));
    post_at(&mut store, &network.sign(&two), START + 20).unwrap();
    network.settle(&mut store, &network.settlement(&[(1, 1, 2, 400)], 0, START + 30)).unwrap();
    let day = START + 30 + PENDING_SECONDS;
    assert_eq!(store.sweep(day).unwrap(), 1);
    post_at(&mut store, &network.sign(&network.first(2, 10, 20)), day).unwrap();
    let reversed = network.settlement(&[(2, 1, 1, 30)], 2_800, day + 1);
    network.settle(&mut store, &reversed).unwrap();
    store.accept_note(network.correction(reversed.id(), day + 2).to_string().as_bytes(), day + 2).unwrap();
    post_at(&mut store, &network.sign(&network.first(3, 11, 22)), day + 3).unwrap();
    network.settle(&mut store, &network.settlement(&[(3, 1, 1, 33)], 2_800, day + 4)).unwrap();
    path
}

fn verify(network: &Network, path: &Path, keys: &Keys) -> Result<VerifyReport, VerifyError> {
    let connection = open_for_reading(path, &network.name).unwrap();
    Store::verify(&connection, path, &network.name, keys, &mut |_, _| {})
}

/// Drops the triggers and runs `change`, as somebody with the file and any SQLite can.
fn tamper(path: &Path, change: &str) {
    let connection = Connection::open(path).unwrap();
    let names: Vec<String> = {
        let mut find = connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'trigger'").unwrap();
        find.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    };
    let drops: String = names.iter().map(|name| format!("DROP TRIGGER {name};")).collect();
    connection.execute_batch(&format!("PRAGMA foreign_keys = OFF; {drops} {change};")).unwrap();
    assert!(connection.changes() > 0, "nothing changed: {change}");
}

#[test]
fn a_ledger_in_order() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let path = ledger(&network, folder.path());
    let report = verify(&network, &path, &network.keys()).unwrap();
    assert_eq!((report.entries, report.receipts, report.settlements, report.conflicts), (12, 4, 3, 1));
    let balance = |kind: &str| report.balances.iter().find(|balance| balance.kind == kind).unwrap().nanokvr;
    assert_eq!((balance("posted"), balance("pending")), (7 * 400, 7 * 33));
    assert_eq!(balance("payer"), 1_000_000_000_000 - 7 * 433);
    assert_eq!(report.balances.iter().map(|balance| balance.nanokvr).sum::<i64>(), 0);
    let store = Store::open(&path, &network.name, network.keys()).unwrap();
    assert_eq!(store.answers().head().unwrap().1.to_string(), report.root);
}

#[test]
fn every_change_is_found_and_its_index_named() {
    let network = Network::new();
    for (change, expected) in [
        ("UPDATE entries SET note = replace(note, 'up 100', 'up 900') WHERE number = 4", Some(4)),
        ("UPDATE entries SET note = replace(note, 'nanokvr 1000000000000', 'nanokvr 9000000000000') WHERE number = 3", Some(3)),
        ("UPDATE entries SET note = CAST(x'6bff' AS TEXT) WHERE number = 5", Some(5)),
        ("UPDATE entries SET leaf = zeroblob(32) WHERE number = 5", Some(5)),
        ("UPDATE entries SET id = zeroblob(32) WHERE number = 5", Some(5)),
        ("UPDATE entries SET root = zeroblob(32) WHERE number = 11", Some(11)),
        ("UPDATE entries SET kind = 'settle' WHERE number = 4", Some(4)),
        ("UPDATE entries SET received = received - 1000000 WHERE number = 7", Some(7)),
        ("DELETE FROM entries WHERE number = 5", Some(5)),
        ("DELETE FROM entries WHERE number = 0", Some(0)),
        ("UPDATE entries SET number = 99 WHERE number = 11", Some(11)),
        ("UPDATE receipts SET billed = billed + 1 WHERE entry = 5", Some(5)),
        ("UPDATE sessions SET payee = zeroblob(32) WHERE entry = 10", Some(10)),
        ("DELETE FROM receipts WHERE entry = 4", Some(4)),
        ("DELETE FROM delegations", Some(1)),
        ("UPDATE settlements SET payee = zeroblob(32) WHERE entry = 11", Some(11)),
        ("UPDATE settlements SET pending_until = 0 WHERE entry = 11", Some(11)),
        ("UPDATE settled_sessions SET bytes = 0 WHERE entry = 6", Some(6)),
        ("DELETE FROM settled_sessions WHERE entry = 8", Some(8)),
        ("UPDATE postings SET nanokvr = nanokvr * 2 WHERE cause = 6 AND step = 'settle'", Some(6)),
        ("UPDATE postings SET nanokvr = nanokvr * 2 WHERE cause = 6 AND step = 'post'", Some(6)),
        ("UPDATE postings SET nanokvr = nanokvr + 1 WHERE cause = 3", Some(3)),
        ("DELETE FROM postings WHERE cause = 3", Some(3)),
        ("UPDATE postings SET debit = credit, credit = debit WHERE cause = 11", Some(11)),
        ("DELETE FROM postings WHERE step = 'reverse'", Some(8)),
        ("UPDATE postings SET step = 'reverse' WHERE step = 'post'", Some(6)),
        ("UPDATE postings SET at = at - 90000 WHERE step = 'post'", Some(6)),
        // Posted before its time, and posted although reversed.
        (
            "INSERT INTO postings (cause, step, debit, credit, nanokvr, at) SELECT 11, 'post', debit, credit, 231, at
             FROM postings WHERE step = 'post'",
            Some(11),
        ),
        (
            "INSERT INTO postings (cause, step, debit, credit, nanokvr, at) SELECT 8, 'post', debit, credit, 210,
             at + 1000000 FROM postings WHERE step = 'post'",
            Some(8),
        ),
        // Credit from nowhere.
        (
            "INSERT INTO postings (cause, step, debit, credit, nanokvr, at) SELECT 0, 'fund', debit, credit, 5, at
             FROM postings WHERE step = 'fund'",
            Some(0),
        ),
        ("UPDATE accounts SET owner = zeroblob(32) WHERE kind = 'posted'", Some(6)),
        ("INSERT INTO sessions SELECT 500, zeroblob(32), worker, payer, payee, grant_leaf, price_leaf FROM sessions LIMIT 1", None),
        ("INSERT INTO receipts VALUES (500, 4, 77, 9)", None),
        ("INSERT INTO unsettled VALUES (10)", Some(10)),
        ("UPDATE grants SET payer = zeroblob(32)", Some(2)),
        ("UPDATE delegations SET ends = ends + 1", Some(1)),
        ("UPDATE conflicts SET note = (SELECT note FROM entries WHERE number = 5)", Some(4)),
        ("UPDATE conflicts SET note = note; DROP TABLE conflicts", None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = ledger(&network, folder.path());
        tamper(&path, change);
        match (verify(&network, &path, &network.keys()), expected) {
            (Err(VerifyError::Entry { index, .. }), Some(expected)) => assert_eq!(index, expected, "{change}"),
            (Err(VerifyError::File(_)), None) => {}
            (found, _) => panic!("{change}: {found:?}"),
        }
    }
}

#[test]
fn a_flipped_bit_of_the_file_is_found_or_changes_nothing_that_is_told() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let path = ledger(&network, folder.path());
    // All of it in one file, none in the write-ahead log.
    Connection::open(&path).unwrap().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let good = verify(&network, &path, &network.keys()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    // Most of a small ledger's pages is empty; what is not zero is in use, or was.
    let used: Vec<usize> = (0..bytes.len()).filter(|place| bytes[*place] != 0).collect();
    let mut found = 0;
    for nth in 0..200 {
        let copy = tempfile::tempdir().unwrap();
        let path = copy.path().join("ledger.db");
        let mut damaged = bytes.clone();
        damaged[used[nth * used.len() / 200]] ^= 1 << (nth % 8);
        std::fs::write(&path, damaged).unwrap();
        let told = Store::open(&path, &network.name, network.keys())
            .map(drop)
            .map_err(|error| error.to_string())
            .and_then(|()| open_for_reading(&path, &network.name).map_err(|error| error.to_string()))
            .and_then(|connection| {
                Store::verify(&connection, &path, &network.name, &network.keys(), &mut |_, _| {})
                    .map_err(|error| error.to_string())
            });
        match told {
            Ok(report) => assert_eq!(report, good, "byte {nth}"),
            Err(_) => found += 1,
        }
    }
    assert!(found >= 50, "{found} of 200 found");
}

#[test]
fn a_damaged_page_is_refused_when_the_ledger_is_opened() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let path = ledger(&network, folder.path());
    let (page_bytes, root_page): (usize, usize) = {
        let connection = Connection::open(&path).unwrap();
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        let page = connection.query_row("PRAGMA page_size", [], |row| row.get::<_, i64>(0)).unwrap();
        let find = "SELECT rootpage FROM sqlite_schema WHERE name = 'postings'";
        (page as usize, connection.query_row(find, [], |row| row.get::<_, i64>(0)).unwrap() as usize)
    };
    let mut bytes = std::fs::read(&path).unwrap();
    // The cells of the page's index point elsewhere.
    bytes[(root_page - 1) * page_bytes + 8..][..16].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    let error = Store::open(&path, &network.name, network.keys()).map(drop).unwrap_err().to_string();
    assert!(error.contains("the file is damaged") && error.contains("backup"), "{error}");
}

#[test]
fn hashes_made_to_fit_do_not_help_without_the_keys() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let path = ledger(&network, folder.path());
    // The last entry, with leaf, id and root recomputed over the changed note.
    let connection = open_for_reading(&path, &network.name).unwrap();
    let (note, leaves): (String, Vec<[u8; 32]>) = {
        let mut find = connection.prepare("SELECT leaf FROM entries ORDER BY number").unwrap();
        let leaves = find.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
        let note = "SELECT note FROM entries WHERE number = 11";
        (connection.query_row(note, [], |row| row.get(0)).unwrap(), leaves)
    };
    drop(connection);
    let changed = note.replace("bytes 33", "bytes 34");
    let parsed = kvasir_wire::note::Note::parse(changed.as_bytes()).unwrap();
    let mut tree: Vec<kvasir_merkle::Hash> = leaves.into_iter().map(kvasir_merkle::Hash).collect();
    tree[11] = parsed.leaf_hash();
    let hex = |bytes: [u8; 32]| kvasir_merkle::Hash(bytes).to_string();
    tamper(
        &path,
        &format!(
            "UPDATE entries SET note = '{changed}', leaf = x'{}', id = x'{}', root = x'{}' WHERE number = 11",
            hex(parsed.leaf_hash().0),
            hex(parsed.text_digest()),
            hex(kvasir_merkle::root(&tree).0),
        ),
    );
    assert!(matches!(verify(&network, &path, &network.keys()), Err(VerifyError::Entry { index: 11, .. })));
}

#[test]
fn the_file_refuses_changes_by_itself() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let path = ledger(&network, folder.path());
    let connection = Connection::open(&path).unwrap();
    for table in [
        "entries",
        "sessions",
        "receipts",
        "postings",
        "settlements",
        "settled_sessions",
        "accounts",
        "conflicts",
        "about",
    ] {
        for change in [format!("DELETE FROM {table}"), format!("UPDATE {table} SET rowid = rowid")] {
            let error = connection.execute(&change, []).unwrap_err().to_string();
            assert!(error.contains("only grows"), "{change}: {error}");
        }
    }
}

#[test]
fn a_replaced_key_verifies_the_past_and_accepts_nothing_new() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let path = ledger(&network, folder.path());
    let new_hub = SecretKey::from_seed([60; 32]);
    let replaced = Keys { hubs: vec![new_hub.public()], ..network.keys() };
    assert!(matches!(verify(&network, &path, &replaced), Err(VerifyError::Entry { index: 4, .. })));
    let retired = Keys { retired: vec![network.hub.public()], ..replaced };
    verify(&network, &path, &retired).unwrap();
    let mut store = Store::open(&path, &network.name, retired).unwrap();
    let note = network.sign(&network.first(9, 1, 1));
    assert_eq!(refused(post_at(&mut store, &note, START + 200_000)).code, "unknown_hub");
}
