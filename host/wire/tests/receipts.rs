//! receipt@v1: the golden note, its grammar, its signatures, and what may follow what.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use kvasir_merkle::{Hash, leaf_hash};
use kvasir_wire::id::{ModelDigest, PluginDigest, SessionId};
use kvasir_wire::key::SecretKey;
use kvasir_wire::money::{MAX_NUMBER, MeteredBytes};
use kvasir_wire::note::{Note, NoteError, Signer};
use kvasir_wire::receipt::{
    Class, ContinuityError, Counters, Receipt, ReceiptError, ReceiptId, ReceiptKeys, ReceiptSignatures,
    SignedReceipt, Terms,
};
use proptest::prelude::*;

/// The bytes of the first receipt below, signatures included. `up` and `down` differ: swapping them must show.
const GOLDEN: &str = include_str!("receipts/receipt-v1.note");

fn hub() -> SecretKey {
    SecretKey::from_seed([1; 32])
}
fn worker() -> SecretKey {
    SecretKey::from_seed([2; 32])
}
fn backbone() -> SecretKey {
    SecretKey::from_seed([3; 32])
}
fn keys() -> ReceiptKeys {
    ReceiptKeys { hub: hub().public(), worker: worker().public(), backbone: backbone().public() }
}

fn terms() -> Terms {
    Terms {
        network: "atlas".parse().unwrap(),
        session: SessionId([0x11; 32]),
        grant: leaf_hash(b"grant"),
        hub: hub().public().digest(),
        worker: worker().public().digest(),
        backbone: backbone().public().digest(),
        payee: SecretKey::from_seed([4; 32]).public().wallet_digest(),
        model: ModelDigest([0x22; 32]),
        plugin: PluginDigest([0x33; 32]),
        class: Class::Exact,
        price: leaf_hash(b"price"),
        from: 1_790_000_000,
    }
}

fn counters(up: u64, down: u64) -> Counters {
    let bytes = |number| MeteredBytes::new(number).unwrap();
    Counters { up: bytes(up), down: bytes(down), calls: 12, rows: 34, work: leaf_hash(b"work") }
}

fn first() -> Receipt {
    Receipt::first(terms(), counters(425_984, 851_968), 1_790_000_009, false).unwrap()
}

fn sign(receipt: &Receipt) -> ReceiptSignatures {
    ReceiptSignatures {
        hub: receipt.sign(&hub()),
        worker: receipt.sign(&worker()),
        backbone: receipt.sign(&backbone()),
    }
}

fn signed(receipt: &Receipt) -> SignedReceipt {
    SignedReceipt::assemble(receipt.clone(), &keys(), &sign(receipt)).unwrap()
}

#[test]
fn the_golden_note() {
    assert_eq!(signed(&first()).note().to_string(), GOLDEN);
    let read = SignedReceipt::verify(Note::parse(GOLDEN.as_bytes()).unwrap(), &keys()).unwrap();
    assert_eq!(*read.receipt(), first());
    assert_eq!(read.receipt().billed().get(), 1_277_952);
    assert_eq!(read.receipt().id().to_string(), GOLDEN_ID);
}
const GOLDEN_ID: &str = "b5bc3d5e480b6283d611352cd8434245538c28df6a04d862d5dc7f7fd017dc09";

#[test]
fn the_document_shows_the_golden_note() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ledger.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(GOLDEN) && page.contains(GOLDEN_ID));
}

#[test]
fn up_and_down_cannot_be_swapped() {
    let (up, down) = ("up 425984\n", "down 851968\n");
    let swapped = GOLDEN.replace(up, "up 851968\n").replace(down, "down 425984\n");
    let result = SignedReceipt::verify(Note::parse(swapped.as_bytes()).unwrap(), &keys());
    assert!(matches!(result, Err(ReceiptError::Note(NoteError::BadSignature { .. }))));
    let lines_swapped = GOLDEN.replace(&format!("{up}{down}"), &format!("{down}{up}"));
    let result = SignedReceipt::verify(Note::parse(lines_swapped.as_bytes()).unwrap(), &keys());
    assert!(matches!(result, Err(ReceiptError::Field(_))));
}

#[test]
fn every_line_is_fixed() {
    let text = first().text();
    assert_eq!(Receipt::parse(&text).unwrap(), first());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 22);
    let join = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    for place in 0..lines.len() {
        let mut without = lines.clone();
        without.remove(place);
        assert!(Receipt::parse(&join(&without)).is_err(), "line {place} removed");
        let mut twice = lines.clone();
        twice.insert(place, lines[place]);
        assert!(Receipt::parse(&join(&twice)).is_err(), "line {place} doubled");
        if place > 0 {
            let mut swapped = lines.clone();
            swapped.swap(place - 1, place);
            assert!(Receipt::parse(&join(&swapped)).is_err(), "line {place} swapped");
        }
        for change in [
            format!("{} ", lines[place]),
            format!(" {}", lines[place]),
            lines[place].replacen(' ', "  ", 1),
            lines[place].to_uppercase(),
        ] {
            let mut changed = lines.clone();
            changed[place] = &change;
            if change != lines[place] {
                assert!(Receipt::parse(&join(&changed)).is_err(), "{change:?} accepted");
            }
        }
    }
    for (from, to) in [
        ("seq 1\n", "seq 01\n"),
        ("seq 1\n", "seq 0\n"),
        ("seq 1\n", "seq 2\n"), // with prev of zeros
        ("up 425984\n", "up +425984\n"),
        ("up 425984\n", "up 9223372036854775808\n"),
        ("up 425984\n", "up 9223372036854775807\n"), // the sum overflows
        ("class exact\n", "class Exact\n"),
        ("final 0\n", "final 2\n"),
        ("final 0\n", "final \n"),
        ("calls 12\n", "calls 0\n"),
        ("calls 12\n", "calls 35\n"),
        ("to 1790000009\n", "to 1789999999\n"),
        ("receipt@v1\n", "receipt@v2\n"),
    ] {
        assert!(text.contains(from));
        assert!(Receipt::parse(&text.replace(from, to)).is_err(), "{to:?} accepted");
    }
}

#[test]
fn a_receipt_can_never_be_read_as_a_checkpoint() {
    // A checkpoint's second line is a decimal size; ours starts with a letter.
    assert!(first().text().lines().nth(1).unwrap().starts_with("network "));
}

#[test]
fn signatures_are_three_in_order_by_the_named_keys() {
    let note = Note::parse(GOLDEN.as_bytes()).unwrap();
    let lines: Vec<String> = note.signatures().iter().map(ToString::to_string).collect();
    let with = |lines: &[&String]| {
        let all: String = lines.iter().map(|line| line.as_str()).collect();
        SignedReceipt::verify(Note::parse(format!("{}\n{all}", note.text()).as_bytes()).unwrap(), &keys())
    };
    assert!(with(&[&lines[0], &lines[1], &lines[2]]).is_ok());
    for wrong in [
        vec![&lines[0], &lines[1]],
        vec![&lines[1], &lines[2]],
        vec![&lines[1], &lines[0], &lines[2]],
        vec![&lines[0], &lines[2], &lines[1]],
        vec![&lines[0], &lines[1], &lines[2], &lines[2]],
        vec![&lines[0], &lines[0], &lines[2]],
    ] {
        assert!(matches!(with(&wrong), Err(ReceiptError::Note(NoteError::Signers { .. }))));
    }
    // Somebody else's key in a role.
    let stranger = ReceiptKeys { worker: SecretKey::from_seed([9; 32]).public(), ..keys() };
    let result = SignedReceipt::verify(note.clone(), &stranger);
    assert!(matches!(result, Err(ReceiptError::OtherKey("worker"))));
    // The worker's line made by the hub's key.
    let mut signatures = sign(&first());
    signatures.worker = signatures.hub;
    assert!(SignedReceipt::assemble(first(), &keys(), &signatures).is_err());
}

#[test]
fn single_signatures_are_checked_against_the_named_key() {
    let receipt = first();
    let signature = receipt.sign(&worker());
    assert!(receipt.verify_signature(Signer::Worker, &worker().public(), &signature).is_ok());
    let other_role = receipt.verify_signature(Signer::Hub, &worker().public(), &signature);
    assert!(matches!(other_role, Err(ReceiptError::OtherKey("hub"))));
    let later = receipt.next(counters(500_000, 900_000), 1_790_000_010, false).unwrap();
    assert!(later.verify_signature(Signer::Worker, &worker().public(), &signature).is_err());
    assert!(receipt.verify_signature(Signer::Treasury, &worker().public(), &signature).is_err());
}

#[test]
fn the_payers_signature_covers_every_field() {
    let text = first().text();
    let (payer, signature) = (backbone().public(), first().sign(&backbone()));
    let digest = "7".repeat(64);
    let changes = [
        ("network", "other"),
        ("session", digest.as_str()),
        ("grant", &digest),
        ("seq", "2"),
        ("prev", &digest),
        ("hub", &digest),
        ("worker", &digest),
        ("backbone", &digest),
        ("payee", &digest),
        ("model", &digest),
        ("plugin", &digest),
        ("class", "tolerance"),
        ("up", "425985"),
        ("down", "851967"),
        ("calls", "13"),
        ("rows", "33"),
        ("work", &digest),
        ("price", &digest),
        ("from", "1789999999"),
        ("to", "1790000010"),
        ("final", "1"),
    ];
    // No line is left out, whatever a later version adds.
    let names: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, changes.map(|(name, _)| name));
    let set = |text: &str, name: &str, value: &str| -> String {
        let lead = format!("{name} ");
        let line = |line: &str| match line.starts_with(&lead) {
            true => format!("{lead}{value}\n"),
            false => format!("{line}\n"),
        };
        text.lines().map(line).collect()
    };
    assert_eq!(first().verify_signature(Signer::Backbone, &payer, &signature), Ok(()));
    for (name, value) in changes {
        let mut changed = set(&text, name, value);
        // Only the first receipt of a session has no other before it.
        match name {
            "seq" => changed = set(&changed, "prev", &digest),
            "prev" => changed = set(&changed, "seq", "2"),
            _ => {}
        }
        let changed = Receipt::parse(&changed).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_ne!(changed, first(), "{name}");
        let result = changed.verify_signature(Signer::Backbone, &payer, &signature);
        match name {
            "backbone" => assert_eq!(result, Err(ReceiptError::OtherKey("backbone"))),
            _ => assert!(matches!(result, Err(ReceiptError::Key(_))), "{name}: {result:?}"),
        }
    }
}

#[test]
fn what_follows_what() {
    let one = first();
    let two = one.next(counters(425_984, 851_968), one.to, false).unwrap();
    assert_eq!(two.prev, Some(one.id()));
    assert_eq!(two.continues(&one), Ok(()));
    let three = two.next(counters(500_000, 900_000), one.to + 10, true).unwrap();

    // A missing receipt in between: not the next one, but it may stand there.
    assert_eq!(three.continues(&one), Err(ContinuityError::Seq { expected: 2, found: 3 }));
    assert_eq!(three.follows(&one), Ok(()));
    assert_eq!(one.follows(&three), Err(ContinuityError::Seq { expected: 4, found: 1 }));

    assert!(matches!(
        three.next(counters(500_000, 900_000), one.to + 20, false),
        Err(ReceiptError::Continuity(ContinuityError::AfterFinal(3)))
    ));
    let fell = ContinuityError::Fell { field: "down", before: 851_968, after: 851_967 };
    assert!(
        matches!(one.next(counters(425_984, 851_967), one.to, false), Err(ReceiptError::Continuity(e)) if e == fell)
    );
    let backwards = ContinuityError::ClockRanBackwards { before: one.to, after: one.to - 1 };
    let error = one.next(counters(425_984, 851_968), one.to - 1, false).unwrap_err();
    assert!(error.to_string().contains("1790000009") && error.to_string().contains("1790000008"), "{error}");
    assert!(matches!(error, ReceiptError::Continuity(e) if e == backwards));

    let mut forked = two.clone();
    forked.prev = Some(ReceiptId([7; 32]));
    assert!(matches!(forked.continues(&one), Err(ContinuityError::Prev { .. })));
}

#[test]
fn no_term_may_change_within_a_session() {
    let one = first();
    let two = one.next(counters(425_984, 851_968), one.to, false).unwrap();
    type Change = (&'static str, fn(&mut Terms));
    let changes: [Change; 12] = [
        ("network", |terms| terms.network = "other".parse().unwrap()),
        ("session", |terms| terms.session.0[0] ^= 1),
        ("grant", |terms| terms.grant.0[0] ^= 1),
        ("hub", |terms| terms.hub.0[0] ^= 1),
        ("worker", |terms| terms.worker.0[0] ^= 1),
        ("backbone", |terms| terms.backbone.0[0] ^= 1),
        ("payee", |terms| terms.payee.0[0] ^= 1),
        ("model", |terms| terms.model.0[0] ^= 1),
        ("plugin", |terms| terms.plugin.0[0] ^= 1),
        ("class", |terms| terms.class = Class::Tolerance),
        ("price", |terms| terms.price.0[0] ^= 1),
        ("from", |terms| terms.from -= 1),
    ];
    for (field, change) in changes {
        let mut changed = two.clone();
        change(&mut changed.terms);
        assert_eq!(changed.continues(&one), Err(ContinuityError::TermsChanged(field)));
    }
}

proptest! {
    #[test]
    fn texts_round_trip(
        up in 0..MAX_NUMBER / 2, down in 0..MAX_NUMBER / 2, rows in 1..=MAX_NUMBER, seq in 1..=MAX_NUMBER,
        work: [u8; 32], prev: [u8; 32], is_final: bool,
    ) {
        let mut receipt = first();
        receipt.seq = seq;
        receipt.prev = (seq > 1 && prev != [0; 32]).then_some(ReceiptId(prev));
        prop_assume!((seq == 1) == receipt.prev.is_none());
        receipt.is_final = is_final;
        let bytes = |number| MeteredBytes::new(number).unwrap();
        receipt.counters = Counters { up: bytes(up), down: bytes(down), calls: 1, rows, work: Hash(work) };
        prop_assert_eq!(Receipt::parse(&receipt.text()).unwrap(), receipt);
    }

    #[test]
    fn texts_that_parse_are_written_back(place in any::<prop::sample::Index>(), byte: u8) {
        let mut text = first().text().into_bytes();
        let place = place.index(text.len());
        text[place] = byte;
        if let Ok(text) = String::from_utf8(text) && let Ok(receipt) = Receipt::parse(&text) {
            prop_assert_eq!(receipt.text(), text);
        }
    }
}
