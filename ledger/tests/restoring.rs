//! Backup and restore as an operator does them: the copy is whole, the restored ledger is a new log with the same balances,
//! and strangers can audit it.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use kvasir_ledger::config::read_secret;
use kvasir_ledger::store::Store;
use kvasir_wire::account::{OriginChange, Statement};
use kvasir_wire::note::Note;
use network::{Network, START, counters, post};
use serde_json::Value;

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir-ledger"));
    for name in ["CONFIG", "STORE", "NETWORK", "HUBS", "TREASURY", "SETTLERS", "LISTEN", "URL"] {
        command.env_remove(format!("KVASIR_LEDGER_{name}"));
    }
    command.current_dir(folder).args(arguments).output().unwrap()
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let output = run(folder, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn open(network: &Network, folder: &Path) -> Store {
    Store::open(&folder.join("ledger.db"), &network.name, network.keys()).unwrap()
}

/// A ledger in `old` with credit that is pending, posted and reversed, published; a backup of it in `b.db`; then one receipt
/// more, published too, that the backup does not have.
fn backed_up(network: &Network, folder: &Path) -> Value {
    let keys = network.keys();
    let (hub, treasury, settler) =
        (keys.hubs[0].to_string(), keys.treasury[0].to_string(), keys.settlers[0].to_string());
    json(
        folder,
        &["init", "old", "--network", "atlas", "--hub", &hub, "--treasury", &treasury, "--settler", &settler],
    );
    let old = folder.join("old");
    let mut store = open(network, &old);
    store.declare_keys(&read_secret(&old.join("ledger.key")).unwrap(), START).unwrap();
    network.prepare(&mut store);
    let mut before = 0;
    for (session, at) in [(1, START + 20), (2, START + 90_000), (3, START + 90_001)] {
        store.sweep(at).unwrap();
        post(&mut store, &network.sign(&network.first(session, 100, u64::from(session)))).unwrap();
        let settlement = network.settlement(&[(session, 1, 1, 100 + u64::from(session))], before, at);
        network.settle(&mut store, &settlement).unwrap();
        if session == 2 {
            let note = network.correction(settlement.id(), at);
            store.accept_note(note.to_string().as_bytes(), at).unwrap();
        } else {
            before += settlement.amount.get();
        }
    }
    json(folder, &["publish", "--config", "old/ledger.toml"]);
    let backup = json(folder, &["backup", "b.db", "--config", "old/ledger.toml"]);
    let late = network.first(4, 1, 1);
    store.accept_receipt(network.sign(&late).to_string().as_bytes(), START + 90_010).unwrap();
    json(folder, &["publish", "--config", "old/ledger.toml"]);
    backup
}

fn restore<'a>(to: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let first = ["restore", "b.db", to, "--config", "old/ledger.toml", "--ledger-key", "old/ledger.key"];
    [&first, rest].concat()
}

fn audit(folder: &Path, log: &str, vkey: &Value) -> Value {
    let at = (START + 90_100).to_string();
    json(folder, &["audit", log, "--log-key", vkey.as_str().unwrap(), "--at", &at])
}

#[test]
fn a_backup_is_whole_and_overwrites_nothing() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let backup = backed_up(&network, folder);
    assert_eq!(names(folder), ["b.db", "old"], "no draft is left");
    let verified = json(folder, &["verify", "--config", "old/ledger.toml", "--store", "b.db"]);
    assert_eq!((&verified["entries"], &verified["root"]), (&backup["entries"], &backup["root"]));

    let bytes = fs::read(folder.join("b.db")).unwrap();
    assert!(
        complaint(&run(folder, &["backup", "b.db", "--config", "old/ledger.toml"])).contains("overwrites")
    );
    assert_eq!(fs::read(folder.join("b.db")).unwrap(), bytes);
    // Nor what only looks like nothing.
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("nowhere", folder.join("link.db")).unwrap();
        let said = complaint(&run(folder, &["backup", "link.db", "--config", "old/ledger.toml"]));
        assert!(said.contains("overwrites") && !folder.join("nowhere").exists(), "{said}");
    }
    complaint(&run(folder, &["backup", "none/b.db", "--config", "old/ledger.toml"]));
}

#[test]
fn a_restored_ledger_is_a_new_log_with_the_same_balances_that_strangers_can_audit() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let backup = backed_up(&network, folder);
    let restored = json(folder, &restore("new", &[]));
    assert_eq!((&restored["entries"], &restored["root"]), (&backup["entries"], &backup["root"]));
    let balances =
        |store: &str| json(folder, &["export", "balances", "--store", store, "--network", "atlas"]);
    assert_eq!(balances("new/ledger.db"), balances("b.db"));
    let amounts = balances("b.db");
    let amounts = amounts["rows"].as_array().unwrap();
    assert_eq!(amounts.iter().map(|row| row["nanokvr"].as_i64().unwrap()).sum::<i64>(), 0);
    assert_eq!(amounts.len(), 4, "treasury, payer, pending and posted");

    // The entry after the backup's names both logs, the size and the root.
    let entries = json(folder, &["export", "entries", "--config", "new/ledger.toml"]);
    let last = entries["rows"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["index"], &last["kind"]), (&backup["entries"], &"origin".into()));
    let note = Note::parse(last["note"].as_str().unwrap().as_bytes()).unwrap();
    let ledger_key = read_secret(&folder.join("old/ledger.key")).unwrap().public();
    let (change, _) = OriginChange::verify(&note, &[ledger_key]).unwrap();
    assert_eq!((change.size, change.root.to_string()), (15, backup["root"].as_str().unwrap().to_owned()));
    assert_eq!(change.origin.to_string(), restored["origin"].as_str().unwrap());
    let old_key = fs::read_to_string(folder.join("old/log.vkey")).unwrap();
    assert!(old_key.starts_with(&format!("{}+", change.previous)) && change.origin != change.previous);

    // It goes on from there: the receipt that the backup missed is taken again, and everything is audited.
    let mut store = open(&network, &folder.join("new"));
    assert_eq!(store.declare_keys(&read_secret(&folder.join("new/ledger.key")).unwrap(), START).unwrap(), 0);
    let late = network.first(4, 1, 1);
    let next = late.next(counters(2, 2), late.to, false).unwrap();
    for receipt in [&late, &next] {
        store.accept_receipt(network.sign(receipt).to_string().as_bytes(), START + 90_020).unwrap();
    }
    drop(store);
    json(folder, &["publish", "--config", "new/ledger.toml"]);
    let audited = audit(folder, "new/log", &restored["vkey"]);
    assert_eq!((&audited["ok"], &audited["entries"]), (&true.into(), &(change.size + 3).into()));
    let audited = audited["balances"].as_array().unwrap();
    for row in amounts {
        let found = audited.iter().find(|one| (&one["kind"], &one["owner"]) == (&row["kind"], &row["owner"]));
        assert_eq!(found.unwrap()["nanokvr"], row["nanokvr"], "{row}");
    }
    // Neither log's key vouches for the other.
    let wrong = run(folder, &["audit", "new/log", "--log-key", old_key.trim(), "--json"]);
    assert_ne!(wrong.status.code(), Some(0));
    json(folder, &["verify", "--config", "new/ledger.toml"]);
    assert!(complaint(&run(folder, &restore("new", &[]))).contains("never touches an existing ledger"));
}

#[test]
fn a_ledger_key_is_replaced_by_a_restore() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    backed_up(&network, folder);
    let restored = json(folder, &restore("new", &["--replace-ledger-key"]));
    let [old, new] = ["old/ledger.key", "new/ledger.key"].map(|key| read_secret(&folder.join(key)).unwrap());
    assert_ne!(old.public(), new.public());
    assert_eq!(restored["ledger_key"], new.public().to_string());
    // What the settings say from now on is written down with the new key, and auditors take it.
    let mut store = open(&network, &folder.join("new"));
    assert_eq!(store.declare_keys(&new, START + 90_100).unwrap(), 0);
    drop(store);
    let mut keys = network.keys();
    keys.retired = std::mem::replace(&mut keys.hubs, vec![network.worker.public()]);
    let mut store = Store::open(&folder.join("new/ledger.db"), &network.name, keys).unwrap();
    assert_eq!(store.declare_keys(&new, START + 90_100).unwrap(), 2, "one hub more, one retired");
    let stranger = kvasir_wire::key::SecretKey::from_seed([77; 32]);
    assert!(store.declare_keys(&stranger, START).unwrap_err().to_string().contains("right ledger.key"));
    drop(store);
    json(folder, &["publish", "--config", "new/ledger.toml"]);
    let audited = audit(folder, "new/log", &restored["vkey"]);
    let believed = audited["keys"].as_array().unwrap();
    assert!(believed.iter().any(|key| key["role"] == "ledger" && key["key"] == new.public().to_string()));

    // One that was cut off with the flag is not finished without it, and the other way round.
    fs::remove_file(folder.join("new/ledger.toml")).unwrap();
    assert!(complaint(&run(folder, &restore("new", &[]))).contains("another key than --ledger-key"));
    json(folder, &restore("plain", &[]));
    fs::remove_file(folder.join("plain/ledger.toml")).unwrap();
    let said = complaint(&run(folder, &restore("plain", &["--replace-ledger-key"])));
    assert!(said.contains("remove it and restore again"), "{said}");
    fs::remove_file(folder.join("plain/ledger.key")).unwrap();
    json(folder, &restore("plain", &["--replace-ledger-key"]));
}

#[test]
fn a_restore_that_was_cut_off_is_finished_by_the_next_and_takes_nothing_else_for_one() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    backed_up(&network, folder);
    let first = json(folder, &restore("new", &[]));
    let new = folder.join("new");
    let again = || {
        fs::remove_file(new.join("ledger.toml")).unwrap();
        json(folder, &restore("new", &[]))
    };
    // Only the settings were missing: nothing is added.
    assert_eq!(again(), first);
    // The database was not copied yet, and drafts were left.
    fs::remove_file(new.join("ledger.db")).unwrap();
    fs::write(new.join(".ledger.db.12-0.partial"), "half").unwrap();
    fs::write(new.join(".head.db.12-0.partial-journal"), "half").unwrap();
    let third = again();
    assert_eq!((&third["vkey"], &third["index"]), (&first["vkey"], &first["index"]));
    assert_eq!(names(&new), ["head.db", "ledger.db", "ledger.key", "ledger.toml", "log.key", "log.vkey"]);

    // Another backup's copy, a ledger that went on, a log that was published: none is an unfinished restore.
    fs::remove_file(new.join("ledger.toml")).unwrap();
    fs::copy(folder.join("old/ledger.db"), new.join("ledger.db")).unwrap();
    let said = complaint(&run(folder, &restore("new", &[])));
    assert!(said.contains("not in the backup"), "{said}");
    fs::remove_file(new.join("ledger.db")).unwrap();
    Store::create(&new.join("ledger.db"), &network.name).unwrap();
    let said = complaint(&run(folder, &restore("new", &[])));
    assert!(said.contains("no copy of this backup"), "{said}");
    fs::remove_file(new.join("ledger.db")).unwrap();
    json(folder, &restore("new", &[]));
    json(folder, &["publish", "--config", "new/ledger.toml"]);
    fs::remove_file(new.join("ledger.toml")).unwrap();
    let said = complaint(&run(folder, &restore("new", &[])));
    assert!(said.contains("vouched for 16 entries"), "{said}");
}

/// Changes a copy of the backup as somebody can who has the file; gives its name.
fn tampered(folder: &Path, name: &str, change: &str) -> String {
    let path = folder.join(name);
    fs::copy(folder.join("b.db"), &path).unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch(change).unwrap();
    name.to_owned()
}

#[test]
fn a_backup_that_was_changed_becomes_no_ledger() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    backed_up(&network, folder);
    let trigger = |table: &str| {
        format!(
            "CREATE TRIGGER no_UPDATE_of_{table} BEFORE UPDATE ON {table} BEGIN SELECT RAISE(ABORT, '{table} only grows'); END;"
        )
    };
    let change = |table: &str, what: &str| {
        format!("DROP TRIGGER no_UPDATE_of_{table}; UPDATE {table} SET {what}; {}", trigger(table))
    };
    let multiplies = "CREATE TRIGGER more AFTER INSERT ON postings WHEN new.step = 'fund' BEGIN INSERT INTO postings
         (cause, step, debit, credit, nanokvr, at) VALUES (0, 'post', new.debit, new.credit, 999 * new.nanokvr, new.at); END";
    for (name, change, words) in [
        ("amount.db", change("postings", "nanokvr = nanokvr + 1 WHERE step = 'fund'"), "entry 7 is wrong"),
        (
            "note.db",
            change("entries", "note = replace(note, 'up 100', 'up 900') WHERE number = 8"),
            "entry 8 is wrong",
        ),
        ("kind.db", change("entries", "kind = 'grant' WHERE number = 3"), "entry 3 is wrong"),
        ("trigger.db", multiplies.to_owned(), "trigger `more` is not the ledger's"),
        (
            "bare.db",
            "DROP TRIGGER no_DELETE_of_entries".to_owned(),
            "trigger `no_DELETE_of_entries` is missing",
        ),
    ] {
        let backup = tampered(folder, name, &change);
        let words_of = |arguments: &[&str]| complaint(&run(folder, arguments));
        let config = ["--config", "old/ledger.toml", "--ledger-key", "old/ledger.key"];
        let said = words_of(&[&["restore", &backup, "new"][..], &config].concat());
        assert!(said.contains(words), "{name}: {said}");
        assert!(!folder.join("new").exists(), "{name}: nothing is made");
        let said = words_of(&["verify", "--config", "old/ledger.toml", "--store", &backup]);
        assert!(said.contains(words), "{name}: {said}");
    }
    // What runs by itself is seen before anything is written.
    let error = Store::open(&folder.join("trigger.db"), &network.name, network.keys()).err().unwrap();
    assert!(error.to_string().contains("`more`"), "{error}");
}

#[test]
fn a_restore_goes_by_the_backup_and_writes_down_what_it_was_told() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    backed_up(&network, folder);
    let keys = network.keys();
    // Another ledger of the same network: neither its key nor its settings are this backup's.
    json(folder, &["init", "a", "--network", "atlas"]);
    let key = ["--ledger-key", "a/ledger.key"];
    let said = complaint(&run(
        folder,
        &[&["restore", "b.db", "new", "--config", "old/ledger.toml"][..], &key].concat(),
    ));
    assert!(said.contains("give that one's ledger.key"), "{said}");
    let key = ["--ledger-key", "old/ledger.key"];
    let said = complaint(&run(
        folder,
        &[&["restore", "b.db", "new", "--config", "a/ledger.toml"][..], &key].concat(),
    ));
    assert!(said.contains("the settings of the ledger that was backed up"), "{said}");
    assert!(!folder.join("new").exists(), "nothing is made");
    // Without any settings, the backup itself says which log it was, and what the flags say is kept.
    let (hub, treasury) = (keys.hubs[0].to_string(), keys.treasury[0].to_string());
    let settler = keys.settlers[0].to_string();
    let flags =
        ["--store", "x", "--network", "atlas", "--hub", &hub, "--treasury", &treasury, "--settler", &settler];
    let restored = json(folder, &[&["restore", "b.db", "new"][..], &key, &flags].concat());
    let vkey = fs::read_to_string(folder.join("old/log.vkey")).unwrap();
    assert!(vkey.starts_with(&format!("{}+", restored["previous"].as_str().unwrap())));
    let settings = fs::read_to_string(folder.join("new/ledger.toml")).unwrap();
    for told in [&hub, &treasury, &settler, "network = \"atlas\""] {
        assert!(settings.contains(told), "{told} is not in {settings}");
    }
    json(folder, &["verify", "--config", "new/ledger.toml"]);
}
