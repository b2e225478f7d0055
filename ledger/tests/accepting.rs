//! What the store takes and what it refuses: receipts, the notes they rest on, and their limits.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use kvasir_ledger::api::Accepted;
use kvasir_ledger::store::Store;
use kvasir_wire::account::{Delegation, Grant, Price, Statement};
use kvasir_wire::key::SecretKey;
use kvasir_wire::money::{MeteredBytes, PricePerByte};
use kvasir_wire::note::{Note, Signer};
use kvasir_wire::receipt::{Receipt, ReceiptId};
use network::{Network, START, counters, post, post_at, prepared, refused};

#[test]
fn a_receipt_sent_again_gets_the_first_answer_byte_for_byte() {
    let (network, mut store) = prepared();
    let note = network.sign(&network.first(1, 100, 200));
    let first = serde_json::to_vec(&post(&mut store, &note).unwrap()).unwrap();
    for later in [START + 11, START + 900_000, START + 90_000_000] {
        // Long after grant and delegation have ended.
        let again = post_at(&mut store, &note, later).unwrap();
        assert_eq!(serde_json::to_vec(&again).unwrap(), first);
    }
    assert_eq!(store.answers().receipts(None, 10).unwrap().receipts.len(), 1);
}

#[test]
fn another_receipt_with_the_same_number_is_a_conflict_with_evidence() {
    let (network, mut store) = prepared();
    let first = network.sign(&network.first(1, 100, 200));
    post(&mut store, &first).unwrap();
    let second = network.sign(&network.first(1, 100, 201));
    for _ in 0..2 {
        let refusal = refused(post(&mut store, &second));
        assert_eq!((refusal.status, refusal.code), (409, "conflict"));
        assert_eq!(refusal.evidence.unwrap().note, first.to_string());
    }
    // The session goes on from the first one.
    let next = network.first(1, 100, 200).next(counters(150, 200), START + 20, false).unwrap();
    post_at(&mut store, &network.sign(&next), START + 20).unwrap();
}

#[test]
fn forged_missing_and_misordered_signatures_are_refused() {
    let (network, mut store) = prepared();
    let receipt = network.first(1, 425_984, 851_968);
    let good = network.sign(&receipt);
    let lines: Vec<String> = good.signatures().iter().map(ToString::to_string).collect();
    let note =
        |lines: &[&str]| Note::parse(format!("{}\n{}", good.text(), lines.concat()).as_bytes()).unwrap();
    let forge = |signer: Signer, place: usize| {
        // A line under the right name and key id that another key made.
        let mut forged = Note::unsigned(receipt.text()).unwrap();
        forged.sign(signer.key_name(&network.name), &SecretKey::from_seed([99; 32])).unwrap();
        let made = forged.signatures()[0].signature.clone();
        let mut line = good.signatures()[place].clone();
        line.signature = made;
        let mut all = lines.clone();
        all[place] = line.to_string();
        note(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for (why, bad) in [
        ("hub forged", forge(Signer::Hub, 0)),
        ("worker forged", forge(Signer::Worker, 1)),
        ("backbone forged", forge(Signer::Backbone, 2)),
        ("backbone missing", note(&[&lines[0], &lines[1]])),
        ("worker missing", note(&[&lines[0], &lines[2]])),
        ("hub missing", note(&[&lines[1], &lines[2]])),
        ("misordered", note(&[&lines[1], &lines[0], &lines[2]])),
        ("one twice", note(&[&lines[0], &lines[1], &lines[1]])),
        ("a fourth", note(&[&lines[0], &lines[1], &lines[2], &lines[0]])),
    ] {
        let refusal = refused(post(&mut store, &bad));
        assert_eq!((refusal.status, refusal.code), (403, "bad_signature"), "{why}");
    }
    // Swapped counters are another text, which nobody signed.
    let swapped = good.to_string().replace("up 425984", "up 851968").replace("down 851968", "down 425984");
    let refusal = refused(post(&mut store, &Note::parse(swapped.as_bytes()).unwrap()));
    assert_eq!(refusal.code, "bad_signature");
    assert_eq!(store.answers().receipts(None, 10).unwrap().receipts, []);
    post(&mut store, &good).unwrap();
}

#[test]
fn a_receipt_rests_on_notes_that_are_here() {
    let network = Network::new();
    let mut store = Store::in_memory(&network.name, network.keys()).unwrap();
    let receipt = network.sign(&network.first(1, 100, 200));
    let [price, delegation, grant, _] = network.foundation();
    let give =
        |store: &mut Store, note: &Note| store.accept_note(note.to_string().as_bytes(), START).unwrap();
    assert_eq!(refused(post(&mut store, &receipt)).code, "unknown_grant");
    let early = store.accept_note(grant.to_string().as_bytes(), START);
    assert_eq!(refused(early).code, "unknown_price");
    give(&mut store, &price);
    give(&mut store, &grant);
    assert_eq!(refused(post(&mut store, &receipt)).code, "unknown_delegation");
    give(&mut store, &delegation);
    post(&mut store, &receipt).unwrap();
}

#[test]
fn what_the_receipt_says_must_fit_grant_delegation_and_clock() {
    let (network, mut store) = prepared();
    let changed = |change: fn(&mut Receipt)| {
        let mut receipt = network.first(1, 100, 200);
        change(&mut receipt);
        network.sign(&receipt)
    };
    let late = START + 1_000_001;
    for (code, note, now) in [
        ("unknown_grant", changed(|receipt| receipt.terms.grant.0[0] ^= 1), START),
        ("grant_mismatch", changed(|receipt| receipt.terms.price.0[0] ^= 1), START),
        ("unknown_delegation", changed(|receipt| receipt.terms.payee.0[0] ^= 1), START),
        ("grant_expired", changed(|receipt| receipt.to += 1_000_001), late),
        ("clock_ahead", changed(|receipt| receipt.to += 200), START),
    ] {
        assert_eq!(refused(post_at(&mut store, &note, now)).code, code);
    }
    // A hub that the ledger does not believe.
    let other = Network { hub: SecretKey::from_seed([50; 32]), ..Network::new() };
    let mut grant = network.grant_text(1_000_000_000);
    grant.hub = other.hub.public().digest();
    let grant = grant.sign(&network.backbone).unwrap();
    store.accept_note(grant.to_string().as_bytes(), START).unwrap();
    let mut receipt = other.first(1, 100, 200);
    receipt.terms.grant = grant.leaf_hash();
    assert_eq!(refused(post(&mut store, &other.sign(&receipt))).code, "unknown_hub");
    // Another network's receipt.
    let other = Network { name: "other".parse().unwrap(), ..Network::new() };
    assert_eq!(refused(post(&mut store, &other.sign(&other.first(1, 100, 200)))).code, "other_network");
}

#[test]
fn a_grant_caps_all_sessions_under_it() {
    let (network, mut store) = prepared();
    let grant = network.grant(1_000);
    store.accept_note(grant.to_string().as_bytes(), START).unwrap();
    let receipt = |session, up, down| {
        let mut receipt = network.first(session, up, down);
        receipt.terms.grant = grant.leaf_hash();
        receipt
    };
    let one = receipt(1, 300, 300);
    post(&mut store, &network.sign(&one)).unwrap();
    assert_eq!(refused(post(&mut store, &network.sign(&receipt(2, 401, 0)))).code, "grant_exhausted");
    post(&mut store, &network.sign(&receipt(2, 400, 0))).unwrap();
    // Cumulative: the same bytes again cost nothing, one more is too much.
    let same = one.next(counters(300, 300), START + 10, false).unwrap();
    post(&mut store, &network.sign(&same)).unwrap();
    let more = same.next(counters(301, 300), START + 10, false).unwrap();
    assert_eq!(refused(post(&mut store, &network.sign(&more))).code, "grant_exhausted");
}

#[test]
fn a_grant_for_one_session_and_worker_is_for_no_other() {
    let (network, mut store) = prepared();
    let fits = Grant { session: Some([1; 32].into()), ..network.grant_text(5_000) };
    let other_worker = Grant { worker: Some([9; 32].into()), ..network.grant_text(5_000) };
    for (grant, session, accepted) in [(&fits, 1, true), (&fits, 2, false), (&other_worker, 3, false)] {
        let grant = grant.sign(&network.backbone).unwrap();
        store.accept_note(grant.to_string().as_bytes(), START).unwrap();
        let mut receipt = network.first(session, 100, 200);
        receipt.terms.grant = grant.leaf_hash();
        let result = post(&mut store, &network.sign(&receipt));
        if accepted {
            result.unwrap();
        } else {
            assert_eq!(refused(result).code, "grant_mismatch");
        }
    }
}

#[test]
fn counters_and_clock_never_fall_and_gaps_may_be_filled_later() {
    let (network, mut store) = prepared();
    let one = network.first(1, 100, 200);
    let two = one.next(counters(200, 300), START + 20, false).unwrap();
    let three = two.next(counters(300, 400), START + 30, false).unwrap();
    post_at(&mut store, &network.sign(&one), START + 30).unwrap();
    // Receipt 2 is late: 3 stands without it,
    post_at(&mut store, &network.sign(&three), START + 30).unwrap();
    // a false 2 does not fit before 3,
    let mut false_two = two.clone();
    false_two.counters.up = MeteredBytes::new(201).unwrap();
    let refusal = refused(post_at(&mut store, &network.sign(&false_two), START + 30));
    assert_eq!((refusal.status, refusal.code), (409, "discontinuous"));
    // and the true one does.
    post_at(&mut store, &network.sign(&two), START + 30).unwrap();

    let wrong = |change: fn(&mut Receipt)| {
        let mut four = three.next(counters(300, 400), START + 30, false).unwrap();
        change(&mut four);
        network.sign(&four)
    };
    let fell = refused(post_at(&mut store, &wrong(|four| four.counters = counters(299, 500)), START + 40));
    assert_eq!(fell.code, "discontinuous");
    assert!(fell.message.contains("300") && fell.message.contains("299"), "{}", fell.message);
    let fork = refused(post_at(&mut store, &wrong(|four| four.prev = Some(ReceiptId([1; 32]))), START + 40));
    assert_eq!(fork.code, "discontinuous");
    let clock = refused(post_at(&mut store, &wrong(|four| four.to -= 1), START + 40));
    assert_eq!(clock.code, "clock_backwards");
    let (before, after) = (START + 30, START + 29);
    assert!(clock.message.contains(&before.to_string()) && clock.message.contains(&after.to_string()));
    assert_eq!(clock.evidence.unwrap().note, network.sign(&three).to_string());

    let last = three.next(counters(300, 400), START + 30, true).unwrap();
    post_at(&mut store, &network.sign(&last), START + 40).unwrap();
    let mut after_end = last.clone();
    (after_end.seq, after_end.prev, after_end.is_final) = (5, Some(last.id()), false);
    assert_eq!(refused(post_at(&mut store, &network.sign(&after_end), START + 40)).code, "discontinuous");
}

#[test]
fn a_funding_counts_once_whatever_its_signature_lines_look_like() {
    let (network, mut store) = prepared();
    let available = |store: &Store| store.answers().account(network.payer()).unwrap().available_nanokvr;
    let before = available(&store);
    let note = network.fund(5_000, 7);
    let first = store.accept_note(note.to_string().as_bytes(), START).unwrap();
    let again = Accepted { repeated: true, ..first };
    assert_eq!(store.accept_note(note.to_string().as_bytes(), START).unwrap(), again);
    // The same text with another line beside the treasury's is another leaf, but the same funding.
    let mut dressed_up = note.clone();
    dressed_up.sign("somebody".parse().unwrap(), &SecretKey::from_seed([77; 32])).unwrap();
    assert_ne!(dressed_up.leaf_hash(), note.leaf_hash());
    assert_eq!(store.accept_note(dressed_up.to_string().as_bytes(), START).unwrap(), again);
    assert_eq!(available(&store), before + 5_000);
    // Not the treasury's key, and more than 63 bits.
    let mut forged = Note::unsigned(network.fund(5_000, 8).text()).unwrap();
    forged.sign(Signer::Treasury.key_name(&network.name), &network.settler).unwrap();
    let refusal = refused(store.accept_note(forged.to_string().as_bytes(), START));
    assert_eq!((refusal.status, refusal.code), (403, "unknown_signer"));
    let huge = network.fund(i64::MAX, 9);
    assert_eq!(refused(store.accept_note(huge.to_string().as_bytes(), START)).code, "amount_out_of_range");
    assert_eq!(available(&store), before + 5_000);
}

#[test]
fn only_known_kinds_and_exact_bytes_are_notes() {
    let (network, mut store) = prepared();
    let mut other = Note::unsigned("kvasir.example/loan@v1\nnetwork atlas\n").unwrap();
    other.sign("atlas/treasury".parse().unwrap(), &network.treasury).unwrap();
    assert_eq!(refused(store.accept_note(other.to_string().as_bytes(), START)).code, "unknown_kind");
    for bytes in [&b""[..], b"\n", b"\xff\xfe", &[b'x'; 20_000]] {
        let refusal = refused(store.accept_note(bytes, START));
        assert_eq!((refusal.status, refusal.code), (400, "malformed_note"));
    }
    let receipt = network.sign(&network.first(1, 1, 1));
    assert_eq!(refused(store.accept_note(receipt.to_string().as_bytes(), START)).code, "unknown_kind");
    let price = network.price();
    assert_eq!(
        refused(store.accept_settlement(receipt.to_string().as_bytes(), START)).code,
        "malformed_note"
    );
    assert!(store.accept_note(price.to_string().as_bytes(), START).is_ok());
}

#[test]
fn the_price_is_the_latest_that_has_begun() {
    let (network, mut store) = prepared();
    let set = |store: &mut Store, per_byte, from| {
        let per_byte = PricePerByte::new(per_byte).unwrap();
        let note = Price { network: network.name.clone(), per_byte, from }.sign(&network.treasury).unwrap();
        store.accept_note(note.to_string().as_bytes(), START).unwrap();
    };
    set(&mut store, 9, START + 50);
    // Of two from the same time the one that was stored last.
    set(&mut store, 5, START - 50);
    set(&mut store, 8, START - 50);
    let price = |now| store.answers().price(now).map(|price| price.nanokvr_per_byte);
    assert_eq!(price(START).unwrap(), 8);
    assert_eq!(price(START + 50).unwrap(), 9);
    assert_eq!(price(START + 49).unwrap(), 8);
    assert_eq!(price(START - 60).unwrap(), 7);
    assert_eq!(refused(price(START - 101)).code, "no_price");
}

#[test]
fn one_wallet_and_one_account_without_credit_can_append_only_so_much() {
    let network = Network::new();
    let mut store = Store::in_memory(&network.name, network.keys()).unwrap();
    let mut send = |note: Note| store.accept_note(note.to_string().as_bytes(), START);
    send(network.price()).unwrap();
    let (wallet, worker) = (network.wallet.public(), network.worker.public());
    let delegation = |worker, until| {
        let delegation = Delegation { network: network.name.clone(), wallet, worker, from: START, until };
        delegation.sign(&network.wallet).unwrap()
    };
    // The first is the only one that holds for long, so that it is found among all of them.
    send(delegation(worker, START + 1_000_000)).unwrap();
    for number in 1..1_024 {
        send(delegation(worker, START + number)).unwrap();
    }
    let refusal = refused(send(delegation(worker, START + 2_000_000)));
    assert_eq!((refusal.status, refusal.code), (422, "too_many_delegations"));
    assert!(refusal.message.contains("1024"), "{refusal}");
    // Another worker's are others, and one that is there gets its first answer.
    send(delegation(network.hub.public(), START + 1)).unwrap();
    assert!(send(delegation(worker, START + 1_000_000)).unwrap().repeated);

    for number in 1..=255 {
        send(network.grant(number)).unwrap();
    }
    send(network.grant(1_000_000_000)).unwrap();
    let refusal = refused(send(network.grant(256)));
    assert_eq!((refusal.status, refusal.code), (422, "account_unfunded"));
    send(network.fund(1, 0)).unwrap();
    send(network.grant(256)).unwrap();
    let late = network.first(1, 1, 1);
    post_at(&mut store, &network.sign(&late), late.to).unwrap();
}
