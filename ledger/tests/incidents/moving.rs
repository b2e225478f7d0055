//! Crashes, moves, restores: what was promised can be found, proven and taken elsewhere.

use std::fs;

use kvasir_ledger::api::Accepted;
use kvasir_ledger::refusal::LedgerError;
use kvasir_ledger::store::{Store, VerifyError, open_for_reading};
use kvasir_wire::account::PENDING_SECONDS;
use kvasir_wire::key::SecretKey;
use rusqlite::Connection;
use serde_json::Value;

use crate::network::{Network, START, counters, post, post_at, refused};
use crate::scene::{Program, Scene, run};
use crate::{export, json, ledger, made, text};

const LATER: u64 = START + 90 * 86_400;

/// One row of `export entries`.
fn accept(store: &mut Store, row: &Value, now: u64) -> Result<Accepted, LedgerError> {
    let note = row["note"].as_str().unwrap().as_bytes();
    match row["kind"].as_str().unwrap() {
        "receipt" => store.accept_receipt(note, now),
        "settle" => store.accept_settlement(note, now),
        _ => store.accept_note(note, now),
    }
}

/// What had not been paid was forgotten when its holder moved, and what was handed in again was refused.
#[test]
fn receipts_move_to_another_ledger_in_any_order_however_late_and_twice_is_once() {
    let network = Network::new();
    let (folder, mut old) = made(&network);
    old.declare_keys(&SecretKey::from_seed([40; 32]), START).unwrap();
    network.prepare(&mut old);
    for session in [1, 2] {
        let mut receipt = network.first(session, 1_000, 2_000);
        for more in 2..=3 {
            post_at(&mut old, &network.sign(&receipt), START + 20).unwrap();
            receipt = receipt.next(counters(1_000 * more, 2_000), START + 20, false).unwrap();
        }
        post_at(&mut old, &network.sign(&receipt), START + 20).unwrap();
    }
    // In the order of sessions, not of arrival.
    let unpaid = |store: &Store| {
        let mut unpaid = store.answers().unsettled().unwrap();
        unpaid.parts.iter_mut().for_each(|part| part.sessions.sort_by(|a, b| a.session.cmp(&b.session)));
        unpaid
    };
    let before = unpaid(&old);
    let exported: Value = serde_json::from_str(&export(&folder, "entries", "json")).unwrap();
    let rows = exported["rows"].as_array().unwrap();
    // The old ledger's words about its own keys are its own; the new one has other words.
    let (own, rest): (Vec<&Value>, Vec<&Value>) = rows.iter().partition(|row| row["kind"] == "key");
    assert_eq!((own.len(), rest.len()), (4, 4 + 6));

    let mut new = Store::in_memory(&network.name, network.keys()).unwrap();
    new.declare_keys(&SecretKey::from_seed([41; 32]), LATER).unwrap();
    // Receipts come last to first.
    let (receipts, foundation): (Vec<&Value>, Vec<&Value>) =
        rest.into_iter().partition(|row| row["kind"] == "receipt");
    let in_order: Vec<&Value> = foundation.into_iter().chain(receipts.into_iter().rev()).collect();
    let first: Vec<Accepted> = in_order.iter().map(|row| accept(&mut new, row, LATER).unwrap()).collect();
    for (row, first) in in_order.iter().zip(&first) {
        assert_eq!(first.leaf, row["leaf"].as_str().unwrap());
        let again = accept(&mut new, row, LATER + 1).unwrap();
        assert_eq!(again, Accepted { repeated: true, ..first.clone() });
    }
    assert_eq!(unpaid(&new), before);
    // What nobody paid is paid now, once.
    let settlement = network.settlement(&[(1, 1, 3, 5_000), (2, 1, 3, 5_000)], 0, LATER + 2);
    network.settle(&mut new, &settlement).unwrap();
    assert_eq!(new.answers().unsettled().unwrap().parts, []);
    assert_eq!(new.answers().wallet(network.payee()).unwrap().pending_nanokvr, 70_000);
    // A settlement is of its own time and ledger, and is not taken for one of now.
    network.settle(&mut old, &network.settlement(&[(1, 1, 3, 5_000)], 0, START + 30)).unwrap();
    let exported: Value = serde_json::from_str(&export(&folder, "entries", "json")).unwrap();
    let paid = exported["rows"].as_array().unwrap().last().unwrap();
    assert_eq!(paid["kind"], "settle");
    refused(accept(&mut new, paid, LATER + 3));
    assert_eq!(new.answers().wallet(network.payee()).unwrap().pending_nanokvr, 70_000);
}

/// A log kept an entry, its sender crashed before it heard of it, and the retry was refused without a word of where it is.
#[test]
fn a_note_sent_again_after_a_crash_is_answered_with_its_index_and_can_be_proven() {
    let scene = Scene::new();
    let folder = scene.copy();
    let note = scene.receipt();
    let program = Program::start(&folder);
    let first = program.client.post_receipt(&note).unwrap();
    // SIGKILL.
    drop(program);
    let program = Program::start(&folder);
    let again = program.client.post_receipt(&note).unwrap();
    assert_eq!(again, Accepted { repeated: true, ..first });
    program.stop();
    assert!(run("publish", &folder).status.success());

    let (log, proof) = (folder.join("log"), folder.join("pay.tlog-proof"));
    let vkey = fs::read_to_string(folder.join("log.vkey")).unwrap();
    let index = again.index.to_string();
    json(&["prove", text(&log), "--log-key", &vkey, "--index", &index, "--output", text(&proof)]);
    let proven = json(&["check-proof", text(&proof), "--log-key", &vkey]);
    assert_eq!((&proven["entry"], &proven["index"]), (&note.to_string().into(), &again.index.into()));
}

/// An index was damaged: nothing opened any more, nothing could be read out, and nobody said from where on.
#[test]
fn whatever_is_not_a_note_can_be_made_again_from_the_notes_and_the_first_damage_is_named() {
    let network = Network::new();
    let (folder, mut store) = made(&network);
    network.prepare(&mut store);
    let one = network.first(1, 100, 200);
    let two = one.next(counters(150, 250), START + 20, true).unwrap();
    post(&mut store, &network.sign(&one)).unwrap();
    post_at(&mut store, &network.sign(&two), START + 20).unwrap();
    network.settle(&mut store, &network.settlement(&[(1, 1, 2, 400)], 0, START + 30)).unwrap();
    post_at(&mut store, &network.sign(&network.first(2, 10, 20)), START + 40).unwrap();
    let reversed = network.settlement(&[(2, 1, 1, 30)], 2_800, START + 50);
    network.settle(&mut store, &reversed).unwrap();
    let correction = network.correction(reversed.id(), START + 60).to_string();
    store.accept_note(correction.as_bytes(), START + 60).unwrap();
    let day = START + 30 + PENDING_SECONDS;
    store.sweep(day).unwrap();
    let what_is_said = |store: &Store| {
        let answers = store.answers();
        let wallet = answers.wallet(network.payee()).unwrap();
        (
            answers.head().unwrap(),
            wallet,
            answers.account(network.payer()).unwrap(),
            answers.unsettled().unwrap(),
        )
    };
    let before = what_is_said(&store);
    drop(store);

    let path = folder.path().join("ledger.db");
    let damaged = Connection::open(&path).unwrap();
    let names: Vec<String> = damaged
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let drops: String = names.iter().map(|name| format!("DROP TRIGGER {name};")).collect();
    damaged.execute_batch(&format!("PRAGMA foreign_keys = OFF; {drops}")).unwrap();
    let tables = ["postings", "settled_sessions", "settlements", "delegations", "receipts", "sessions"];
    damaged.execute_batch(&tables.map(|table| format!("DELETE FROM {table};")).concat()).unwrap();
    drop(damaged);

    // The first of all entries that lost something: the delegation.
    let verify = |path: &std::path::Path| {
        let connection = open_for_reading(path, &network.name).unwrap();
        Store::verify(&connection, path, &network.name, &network.keys(), &mut |_, _| {})
    };
    assert!(matches!(verify(&path), Err(VerifyError::Entry { index: 1, .. })));
    // The notes are all there, and are all that is needed.
    let exported: Value = serde_json::from_str(&export(&folder, "entries", "json")).unwrap();
    let again = folder.path().join("again.db");
    Store::create(&again, &network.name).unwrap();
    let mut store = Store::open(&again, &network.name, network.keys()).unwrap();
    for row in exported["rows"].as_array().unwrap() {
        accept(&mut store, row, row["received"].as_u64().unwrap()).unwrap();
    }
    store.sweep(day).unwrap();
    assert_eq!(what_is_said(&store), before);
    verify(&again).unwrap();
}

/// Two parts of a log counted from zero each, and a number alone named two entries.
#[test]
fn an_index_counts_from_zero_under_one_origin_and_a_restored_log_goes_on_under_another() {
    let scene = Scene::new();
    let folder = scene.copy();
    let (config, backup, restored) =
        (folder.join("ledger.toml"), folder.join("backup.db"), folder.join("restored"));
    let key = folder.join("ledger.key");
    json(&["backup", text(&backup), "--config", text(&config)]);
    let told = json(&[
        "restore",
        text(&backup),
        text(&restored),
        "--config",
        text(&config),
        "--ledger-key",
        text(&key),
    ]);
    let size = told["entries"].as_u64().unwrap();
    // Both go on: each with one more receipt, which the other has not at that place.
    let program = Program::start(&folder);
    let here = program.client.post_receipt(&scene.receipt()).unwrap();
    program.stop();
    let program = Program::start(&restored);
    let there = program.client.post_receipt(&scene.receipt()).unwrap();
    program.stop();
    assert_eq!((here.index, there.index), (size, size + 1), "the restored log has named the old one first");

    let published = [&folder, &restored].map(|folder| {
        let output = run("publish", folder);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    });
    let [old, new] =
        published.each_ref().map(|one| (one["origin"].as_str().unwrap(), one["vkey"].as_str().unwrap()));
    assert_ne!(old.0, new.0);
    assert_eq!((told["previous"].as_str(), told["origin"].as_str()), (Some(old.0), Some(new.0)));
    let proof = |folder: &std::path::Path, vkey: &str, index: u64| {
        let (log, file) = (folder.join("log"), folder.join(format!("{index}.tlog-proof")));
        json(&[
            "prove",
            text(&log),
            "--log-key",
            vkey,
            "--index",
            &index.to_string(),
            "--output",
            text(&file),
        ]);
        (json(&["check-proof", text(&file), "--log-key", vkey])["entry"].clone(), file)
    };
    // The number that the ledger gave is the number in its log: one space for all kinds, the entries of before included.
    for index in [0, size / 2, size - 1] {
        assert_eq!(proof(&folder, old.1, index).0, proof(&restored, new.1, index).0, "entry {index}");
    }
    let (note, file) = proof(&folder, old.1, here.index);
    assert_eq!(note, scene.receipt().to_string());
    assert_eq!(proof(&restored, new.1, there.index).0, note);
    // A place is a place under its own origin and under no other.
    let elsewhere = ledger(&["check-proof", text(&file), "--log-key", new.1]);
    assert_eq!(elsewhere.status.code(), Some(1), "{elsewhere:?}");
}
