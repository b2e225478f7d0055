//! Group commit: each note stands or falls alone, the disk decides over all of them; and what was verified before the
//! writer counts only with the keys that the writer would take.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use kvasir_ledger::api::Accepted;
use kvasir_ledger::refusal::LedgerError;
use kvasir_ledger::store::{Incoming, Keys, Store, open_for_reading};
use kvasir_wire::account::Statement;
use kvasir_wire::note::Note;
use network::{Network, START, counters, post, prepared, refused};

fn receipt(note: &Note) -> Incoming {
    Incoming::receipt(note.to_string().as_bytes()).unwrap()
}

#[test]
fn each_note_of_a_group_stands_or_falls_alone() {
    let (network, mut store) = prepared();
    let one = network.first(1, 100, 0);
    let two = one.next(counters(200, 0), one.to, false).unwrap();
    let other_two = one.next(counters(300, 0), one.to, false).unwrap();
    let fell = two.next(counters(300, 0), two.to, false).unwrap();
    let mut without_line = network.sign(&network.first(3, 1, 1)).to_string();
    let cut = without_line.trim_end().rfind('\n').unwrap();
    without_line.truncate(cut + 1);
    let group = vec![
        receipt(&network.sign(&one)),
        receipt(&network.sign(&two)),
        receipt(&network.sign(&one)),
        receipt(&network.sign(&other_two)),
        Incoming::receipt(without_line.as_bytes()).unwrap(),
        Incoming::note(network.fund(5, 1).to_string().as_bytes()).unwrap(),
        Incoming::settlement(
            network
                .settlement(&[(1, 1, 2, 200)], 0, START + 10)
                .sign(&network.settler)
                .unwrap()
                .to_string()
                .as_bytes(),
        )
        .unwrap(),
        receipt(&network.sign(&fell)),
    ];
    let answers = store.accept_group(group, START + 10);
    let codes: Vec<_> = answers
        .iter()
        .map(|answer| match answer {
            Ok(accepted) => (accepted.index, if accepted.repeated { "before" } else { "now" }),
            Err(error) => match error {
                LedgerError::Refused(refusal) => (0, refusal.code),
                other => panic!("{other}"),
            },
        })
        .collect();
    assert_eq!(
        codes,
        [
            (4, "now"),
            (5, "now"),
            (4, "before"),
            (0, "conflict"),
            (0, "bad_signature"),
            (6, "now"),
            (7, "now"),
            (8, "now")
        ]
    );
    // The one that was refused with evidence has left it, the other no trace.
    assert_eq!(store.answers().head().unwrap().0, 9);
    assert_eq!(store.answers().wallet(network.payee()).unwrap().pending_nanokvr, 7 * 200);
    assert_eq!(refused(post(&mut store, &network.sign(&other_two))).code, "conflict");
}

#[test]
fn a_group_that_cannot_be_committed_acknowledges_nothing() {
    let network = Network::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    Store::create(&path, &network.name).unwrap();
    let mut store = Store::open(&path, &network.name, network.keys()).unwrap();
    network.prepare(&mut store);
    let bytes = std::fs::metadata(&path).unwrap().len() + 60_000;
    store.limit_size(bytes).unwrap();
    let before = store.answers().head().unwrap();
    let notes: Vec<_> = (1..=200).map(|session| network.sign(&network.first(session, 1, 1))).collect();
    let answers = store.accept_group(notes.iter().map(receipt).collect(), START + 10);
    assert_eq!(answers.len(), notes.len());
    for answer in answers {
        assert_eq!(answer.unwrap_err().answer().1.code, "disk_full");
    }
    assert_eq!(store.answers().head().unwrap(), before);
    // With room they are taken, each once, and the file is in order.
    store.limit_size(u64::MAX).unwrap();
    for (place, answer) in
        store.accept_group(notes.iter().map(receipt).collect(), START + 10).into_iter().enumerate()
    {
        assert_eq!(answer.unwrap().index, before.0 + place as u64);
    }
    let connection = open_for_reading(&path, &network.name).unwrap();
    let report = Store::verify(&connection, &path, &network.name, &network.keys(), &mut |_, _| {}).unwrap();
    assert_eq!(report.receipts, 200);
}

#[test]
fn what_was_verified_with_other_keys_is_verified_again() {
    let (network, mut store) = prepared();
    let stranger = Network::new();
    let find = |_: &_| Some((network.backbone.public(), network.worker.public()));

    // A good verdict, reached with a treasury that this ledger does not believe.
    let mut forged = network.fund(5, 9);
    forged = Note::unsigned(forged.text()).unwrap();
    forged.sign("atlas/treasury".parse().unwrap(), &network.settler).unwrap();
    let mut incoming = Incoming::note(forged.to_string().as_bytes()).unwrap();
    let wrong = Keys { treasury: vec![network.settler.public()], ..network.keys() };
    incoming.check(&wrong, find);
    assert_eq!(refused(store.accept(incoming, START + 10)).code, "unknown_signer");

    // A bad verdict, reached with the wrong worker: the right one is asked.
    let note = network.sign(&network.first(1, 1, 1));
    let mut incoming = receipt(&note);
    incoming.check(&network.keys(), |_| Some((network.backbone.public(), stranger.hub.public())));
    let accepted = store.accept(incoming, START + 10).unwrap();
    assert_eq!((accepted.index, accepted.repeated), (4, false));

    // A verdict with the right keys stands, good or bad, and says the same as verifying in the writer.
    let mut incoming = receipt(&network.sign(&network.first(2, 1, 1)));
    incoming.check(&network.keys(), find);
    assert_eq!(store.accept(incoming, START + 10).unwrap().index, 5);
    let swapped = network.sign(&network.first(3, 1, 1)).to_string().replace("atlas/hub", "atlas/hux");
    let [mut checked, plain] = [0, 1].map(|_| Incoming::receipt(swapped.as_bytes()).unwrap());
    checked.check(&network.keys(), find);
    let answer = |result: Result<Accepted, LedgerError>| refused(result);
    assert_eq!(answer(store.accept(checked, START + 10)), answer(store.accept(plain, START + 10)));
}

#[test]
fn a_note_that_breaks_off_takes_no_other_with_it() {
    let network = Network::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    Store::create(&path, &network.name).unwrap();
    let mut store = Store::open(&path, &network.name, network.keys()).unwrap();
    network.prepare(&mut store);
    // Fails when the note's entry is written already.
    let breaking = "CREATE TRIGGER breaking BEFORE INSERT ON receipts WHEN NEW.seq = 2
                    BEGIN SELECT RAISE(ABORT, 'made to fail'); END";
    rusqlite::Connection::open(&path).unwrap().execute_batch(breaking).unwrap();
    let first = network.first(1, 100, 0);
    let broken = first.next(counters(200, 0), first.to, false).unwrap();
    let other = network.first(2, 100, 0);
    let group = || [&first, &broken, &other].map(|one| receipt(&network.sign(one))).into();
    let answers = store.accept_group(group(), START + 10);
    let indexes = |answers: &[Result<Accepted, LedgerError>]| {
        answers.iter().map(|answer| answer.as_ref().ok().map(|one| one.index)).collect::<Vec<_>>()
    };
    assert_eq!(indexes(&answers), [Some(4), None, Some(5)]);
    assert_eq!(store.answers().head().unwrap().0, 6);
    // What is remembered of the session is what the file says.
    rusqlite::Connection::open(&path).unwrap().execute_batch("DROP TRIGGER breaking").unwrap();
    assert_eq!(indexes(&store.accept_group(group(), START + 10)), [Some(4), Some(6), Some(5)]);
    let connection = open_for_reading(&path, &network.name).unwrap();
    let report = Store::verify(&connection, &path, &network.name, &network.keys(), &mut |_, _| {}).unwrap();
    assert_eq!((report.entries, report.receipts), (7, 3));
}
