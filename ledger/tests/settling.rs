//! Credit: each byte once, from a funded account, pending and then posted.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use kvasir_ledger::api::Accepted;
use kvasir_ledger::store::{Store, open_for_reading};
use kvasir_wire::account::{PENDING_SECONDS, Statement};
use kvasir_wire::money::NanoKvr;
use network::{Network, START, counters, post, post_at, prepared, refused};
use proptest::prelude::*;

fn credit(network: &Network, store: &Store) -> (i64, i64) {
    let wallet = store.answers().wallet(network.payee()).unwrap();
    (wallet.pending_nanokvr, wallet.posted_nanokvr)
}

fn available(network: &Network, store: &Store) -> i64 {
    store.answers().account(network.payer()).unwrap().available_nanokvr
}

#[test]
fn credited_is_seven_times_the_bytes() {
    let (network, mut store) = prepared();
    post(&mut store, &network.sign(&network.first(1, 425_984, 851_968))).unwrap();
    let waiting = store.answers().wallet(network.payee()).unwrap();
    assert_eq!((waiting.unsettled_bytes, waiting.unsettled_nanokvr), (1_277_952, 8_945_664));
    assert_eq!(store.answers().account(network.payer()).unwrap().unsettled_nanokvr, 8_945_664);

    let before = available(&network, &store);
    network.settle(&mut store, &network.settlement(&[(1, 1, 1, 1_277_952)], 0, START + 20)).unwrap();
    let wallet = store.answers().wallet(network.payee()).unwrap();
    assert_eq!((wallet.pending_nanokvr, wallet.posted_nanokvr), (8_945_664, 0));
    assert_eq!((wallet.units.as_str(), wallet.kvr.as_str()), ("1.277952", "0.00895 KVR"));
    assert_eq!((wallet.bytes, wallet.unsettled_bytes), (1_277_952, 0));
    assert_eq!(wallet.next_posting, Some(START + 20 + PENDING_SECONDS));
    assert_eq!(available(&network, &store), before - 8_945_664);
    assert_eq!(store.answers().account(network.payer()).unwrap().spent_nanokvr, 8_945_664);
}

#[test]
fn settlements_are_idempotent_and_overlap_with_nothing() {
    let (network, mut store) = prepared();
    let one = network.first(1, 1_000, 2_000);
    let two = one.next(counters(1_500, 2_500), START + 10, false).unwrap();
    post(&mut store, &network.sign(&one)).unwrap();
    let settlement = network.settlement(&[(1, 1, 1, 3_000)], 0, START + 20);
    let first = network.settle(&mut store, &settlement).unwrap();
    assert_eq!(
        network.settle(&mut store, &settlement).unwrap(),
        Accepted { repeated: true, ..first.clone() }
    );
    assert_eq!(first.settlement, Some(settlement.id().to_string()));
    // The same receipts with another content.
    let other = network.settlement(&[(1, 1, 1, 3_000)], 21_000, START + 21);
    let refusal = refused(network.settle(&mut store, &other));
    assert_eq!((refusal.status, refusal.code), (409, "conflict"));
    assert_eq!(refusal.evidence.unwrap().note, settlement.sign(&network.settler).unwrap().to_string());
    assert_eq!(credit(&network, &store), (21_000, 0));

    post_at(&mut store, &network.sign(&two), START + 21).unwrap();
    // The whole session again, a stretch that leaves one out, and too many bytes.
    for (parts, code) in [
        ((1, 1, 2, 4_000), "conflict"),
        ((1, 3, 3, 1_000), "conflict"),
        ((1, 2, 3, 1_000), "unknown_receipt"),
        ((1, 2, 2, 1_001), "not_as_received"),
        ((1, 2, 2, 4_000), "not_as_received"),
        ((2, 1, 1, 1_000), "unknown_receipt"),
        ((2, 2, 2, 1_000), "conflict"),
    ] {
        let refusal = refused(network.settle(&mut store, &network.settlement(&[parts], 21_000, START + 22)));
        assert_eq!(refusal.code, code, "{parts:?}");
    }
    let moved = network.settlement(&[(1, 2, 2, 1_000)], 20_999, START + 22);
    assert_eq!(refused(network.settle(&mut store, &moved)).code, "balance_moved");
    network.settle(&mut store, &network.settlement(&[(1, 2, 2, 1_000)], 21_000, START + 22)).unwrap();
    assert_eq!(credit(&network, &store), (28_000, 0));
    assert_eq!(store.answers().unsettled().unwrap().parts, []);
}

#[test]
fn an_overdrawn_payer_is_refused_and_nothing_moves() {
    let network = Network::new();
    let mut store = Store::in_memory(&network.name, network.keys()).unwrap();
    let [price, delegation, grant, _] = network.foundation();
    for note in [price, delegation, grant, network.fund(6_999, 1)] {
        store.accept_note(note.to_string().as_bytes(), START).unwrap();
    }
    post(&mut store, &network.sign(&network.first(1, 400, 600))).unwrap();
    let settlement = network.settlement(&[(1, 1, 1, 1_000)], 0, START + 20);
    let refusal = refused(network.settle(&mut store, &settlement));
    assert_eq!((refusal.status, refusal.code), (402, "payer_short"));
    assert!(refusal.message.contains("6999") && refusal.message.contains("7000"), "{}", refusal.message);
    assert_eq!((credit(&network, &store), available(&network, &store)), ((0, 0), 6_999));
    // One nanoKVR more, and the very same settlement passes.
    store.accept_note(network.fund(1, 2).to_string().as_bytes(), START + 20).unwrap();
    network.settle(&mut store, &settlement).unwrap();
    assert_eq!((credit(&network, &store), available(&network, &store)), ((7_000, 0), 0));
}

#[test]
fn pending_credit_posts_after_a_day_once() {
    let (network, mut store) = prepared();
    post(&mut store, &network.sign(&network.first(1, 400, 600))).unwrap();
    network.settle(&mut store, &network.settlement(&[(1, 1, 1, 1_000)], 0, START + 20)).unwrap();
    let due = START + 20 + PENDING_SECONDS;
    assert_eq!(store.sweep(due - 1).unwrap(), 0);
    assert_eq!(credit(&network, &store), (7_000, 0));
    assert_eq!(store.sweep(due).unwrap(), 1);
    assert_eq!(store.sweep(due + 1).unwrap(), 0);
    assert_eq!(credit(&network, &store), (0, 7_000));
    assert_eq!(store.answers().wallet(network.payee()).unwrap().next_posting, None);
}

#[test]
fn a_correction_gives_pending_credit_back_once_and_posted_credit_never() {
    let (network, mut store) = prepared();
    let before = available(&network, &store);
    post(&mut store, &network.sign(&network.first(1, 400, 600))).unwrap();
    post(&mut store, &network.sign(&network.first(2, 100, 100))).unwrap();
    let wrong = network.settlement(&[(1, 1, 1, 1_000)], 0, START + 20);
    network.settle(&mut store, &wrong).unwrap();
    let correct =
        |store: &mut Store, id, at| store.accept_note(network.correction(id, at).to_string().as_bytes(), at);
    let first = correct(&mut store, wrong.id(), START + 30).unwrap();
    assert_eq!(
        correct(&mut store, wrong.id(), START + 30).unwrap(),
        Accepted { repeated: true, ..first.clone() }
    );
    assert_eq!(refused(correct(&mut store, wrong.id(), START + 31)).code, "not_pending");
    assert_eq!((credit(&network, &store), available(&network, &store)), ((0, 0), before));
    let wallet = store.answers().wallet(network.payee()).unwrap();
    assert_eq!((wallet.bytes, wallet.next_posting), (0, None));
    // What was reversed is neither settled again nor posted.
    let again = network.settlement(&[(1, 1, 1, 1_000)], 0, START + 32);
    assert_eq!(refused(network.settle(&mut store, &again)).code, "conflict");

    let right = network.settlement(&[(2, 1, 1, 200)], 0, START + 40);
    network.settle(&mut store, &right).unwrap();
    let due = START + 40 + PENDING_SECONDS;
    // One that says itself that it came too late is refused by any audit, so it never gets into the log.
    let late = network.correction(right.id(), due).to_string();
    assert_eq!(refused(store.accept_note(late.as_bytes(), due - 1)).code, "not_pending");
    // The day is over although no sweep has run yet.
    assert_eq!(refused(correct(&mut store, right.id(), due)).code, "not_pending");
    assert_eq!(store.sweep(due).unwrap(), 1);
    assert_eq!(refused(correct(&mut store, right.id(), due + 1)).code, "not_pending");
    assert_eq!(credit(&network, &store), (0, 1_400));
}

/// What goes through an account may be more than 63 bits hold, what it holds may not.
#[test]
fn sums_that_do_not_fit_keep_nobody_from_settling_while_balances_fit() {
    let network = Network::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    Store::create(&path, &network.name).unwrap();
    let mut store = Store::open(&path, &network.name, network.keys()).unwrap();
    let large = network.grant(i64::MAX as u64);
    for note in
        [network.price(), network.delegation(), large.clone(), network.fund(5_000_000_000_000_000_000, 0)]
    {
        store.accept_note(note.to_string().as_bytes(), START).unwrap();
    }
    let bytes = 700_000_000_000_000_000;
    let mut before = 0;
    for session in 1..=5 {
        let mut receipt = network.first(session, bytes, 0);
        receipt.terms.grant = large.leaf_hash();
        let at = START + 10 * u64::from(session);
        post_at(&mut store, &network.sign(&receipt), at).unwrap();
        let settlement = network.settlement(&[(session, 1, 1, bytes)], before, at);
        network.settle(&mut store, &settlement).unwrap();
        let note = network.correction(settlement.id(), at).to_string();
        store.accept_note(note.as_bytes(), at).unwrap();
        assert_eq!(available(&network, &store), 5_000_000_000_000_000_000);
        before = store.answers().wallet(network.payee()).unwrap().pending_nanokvr;
        store.answers().unsettled().unwrap();
    }
    let connection = open_for_reading(&path, &network.name).unwrap();
    let report = Store::verify(&connection, &path, &network.name, &network.keys(), &mut |_, _| {}).unwrap();
    assert_eq!(report.balances.iter().map(|balance| balance.nanokvr).sum::<i64>(), 0);

    // All of it together is no more than one account could hold.
    let left = i64::MAX - 5_000_000_000_000_000_000;
    let mut fund =
        |amount, nonce| store.accept_note(network.fund(amount, nonce).to_string().as_bytes(), START + 60);
    assert_eq!(refused(fund(left + 1, 1)).code, "amount_out_of_range");
    fund(left, 2).unwrap();
    assert_eq!(refused(fund(1, 3)).code, "amount_out_of_range");
    let connection = open_for_reading(&path, &network.name).unwrap();
    let report = Store::verify(&connection, &path, &network.name, &network.keys(), &mut |_, _| {}).unwrap();
    let treasury = report.balances.iter().find(|balance| balance.kind == "treasury").unwrap();
    assert_eq!(treasury.nanokvr, -i64::MAX);
}

#[test]
fn clocks_must_agree_and_the_ledger_s_must_not_run_backwards() {
    let (network, mut store) = prepared();
    post(&mut store, &network.sign(&network.first(1, 400, 600))).unwrap();
    let settlement = network.settlement(&[(1, 1, 1, 1_000)], 0, START + 20);
    let note = settlement.sign(&network.settler).unwrap().to_string();
    let mut settle = |now| store.accept_settlement(note.as_bytes(), now);
    assert_eq!(refused(settle(START + 20 + 121)).code, "clock_skew");
    let backwards = refused(settle(START + 9));
    assert_eq!((backwards.status, backwards.code), (503, "clock_backwards"));
    let (now, latest) = (START + 9, START + 10);
    assert!(backwards.message.contains(&now.to_string()) && backwards.message.contains(&latest.to_string()));
    let first = settle(START + 20 + 120).unwrap();
    // What is there gets its first answer, whatever the clock says.
    for now in [START + 9, START + 5_000_000] {
        assert_eq!(settle(now).unwrap(), Accepted { repeated: true, ..first.clone() });
    }
}

#[test]
fn a_correction_is_of_now_and_not_dated_back_into_the_day_of_objections() {
    let (network, mut store) = prepared();
    post(&mut store, &network.sign(&network.first(1, 400, 600))).unwrap();
    let settlement = network.settlement(&[(1, 1, 1, 1_000)], 0, START + 20);
    network.settle(&mut store, &settlement).unwrap();
    let mut correct =
        |at, now| store.accept_note(network.correction(settlement.id(), at).to_string().as_bytes(), now);
    for (at, now) in [(START + 879, START + 1_000), (START + 1_121, START + 1_000)] {
        let refusal = refused(correct(at, now));
        assert_eq!((refusal.status, refusal.code), (422, "clock_skew"));
        assert!(refusal.message.contains(&at.to_string()) && refusal.message.contains(&now.to_string()));
    }
    let first = correct(START + 880, START + 1_000).unwrap();
    // Sent again it gets its first answer, however late.
    let late = correct(START + 880, START + 90_000).unwrap();
    assert_eq!(late, Accepted { repeated: true, ..first });
}

#[test]
fn what_waits_is_listed_until_it_is_settled_and_again_when_more_comes() {
    let (network, mut store) = prepared();
    let waiting = |store: &Store| -> Vec<(u64, u64, u64)> {
        let parts = store.answers().unsettled().unwrap().parts;
        let sessions = parts.into_iter().flat_map(|part| part.sessions);
        sessions.map(|session| (session.from_seq, session.to_seq, session.bytes)).collect()
    };
    let one = network.first(1, 1_000, 0);
    let two = one.next(counters(2_000, 0), START + 10, false).unwrap();
    let three = two.next(counters(3_000, 0), START + 10, false).unwrap();
    let four = three.next(counters(4_000, 0), START + 10, false).unwrap();
    // A gap is left, and settled over.
    for receipt in [&one, &three] {
        post(&mut store, &network.sign(receipt)).unwrap();
    }
    network.settle(&mut store, &network.settlement(&[(1, 1, 1, 1_000)], 0, START + 20)).unwrap();
    assert_eq!(waiting(&store), [(2, 3, 2_000)], "not all of it was settled");
    network.settle(&mut store, &network.settlement(&[(1, 2, 3, 2_000)], 7_000, START + 20)).unwrap();
    assert_eq!(waiting(&store), []);
    // What fills the gap is paid already, what comes after it is not.
    post_at(&mut store, &network.sign(&two), START + 20).unwrap();
    assert_eq!(waiting(&store), []);
    post_at(&mut store, &network.sign(&four), START + 20).unwrap();
    assert_eq!(waiting(&store), [(4, 4, 1_000)]);
    let wallet = store.answers().wallet(network.payee()).unwrap();
    assert_eq!((wallet.unsettled_bytes, wallet.unsettled_nanokvr), (1_000, 7_000));
}

#[test]
fn a_settlement_that_is_final_before_the_last_sweep_is_posted_all_the_same() {
    let (network, mut store) = prepared();
    post(&mut store, &network.sign(&network.first(1, 400, 600))).unwrap();
    // The clock was ahead when nothing was due, and is set right.
    assert_eq!(store.sweep(START + 10 * PENDING_SECONDS).unwrap(), 0);
    network.settle(&mut store, &network.settlement(&[(1, 1, 1, 1_000)], 0, START + 20)).unwrap();
    assert_eq!(store.sweep(START + 20 + PENDING_SECONDS - 1).unwrap(), 0);
    assert_eq!(store.sweep(START + 20 + PENDING_SECONDS).unwrap(), 1);
}

#[test]
fn only_the_settler_settles() {
    let (network, mut store) = prepared();
    post(&mut store, &network.sign(&network.first(1, 400, 600))).unwrap();
    let settlement = network.settlement(&[(1, 1, 1, 1_000)], 0, START + 20);
    for key in [&network.treasury, &network.hub, &network.wallet] {
        let note = settlement.sign(key).unwrap().to_string();
        let refusal = refused(store.accept_settlement(note.as_bytes(), START + 20));
        assert_eq!((refusal.status, refusal.code), (403, "unknown_signer"));
    }
    assert_eq!(credit(&network, &store), (0, 0));
}

#[test]
fn unsettled_names_exactly_what_a_settlement_takes() {
    let (network, mut store) = prepared();
    for session in 1..=70 {
        post(&mut store, &network.sign(&network.first(session, 10, 0))).unwrap();
    }
    let parts = store.answers().unsettled().unwrap().parts;
    assert_eq!(parts.iter().map(|part| part.sessions.len()).collect::<Vec<_>>(), [64, 6]);
    let mut before = 0;
    for part in parts {
        let stretch = |part: &kvasir_ledger::api::UnsettledSession| {
            let session = u8::from_str_radix(&part.session[..2], 16).unwrap();
            (session, part.from_seq, part.to_seq, part.bytes)
        };
        let sessions: Vec<_> = part.sessions.iter().map(stretch).collect();
        network.settle(&mut store, &network.settlement(&sessions, before, START + 20)).unwrap();
        before += 7 * sessions.iter().map(|(.., bytes)| *bytes as i64).sum::<i64>();
    }
    assert_eq!(credit(&network, &store), (4_900, 0));
    assert_eq!(store.answers().unsettled().unwrap().parts, []);
}

#[test]
fn what_can_be_paid_is_named_first_and_apart() {
    let network = Network::new();
    let mut store = Store::in_memory(&network.name, network.keys()).unwrap();
    let [price, delegation, grant, _] = network.foundation();
    for note in [price, delegation, grant, network.fund(7 * 1_000, 1)] {
        store.accept_note(note.to_string().as_bytes(), START).unwrap();
    }
    // 600 and 300 bytes fit into the account, 500 do not fit beside them.
    for (session, bytes) in [(1, 600), (2, 500), (3, 300)] {
        post(&mut store, &network.sign(&network.first(session, bytes, 0))).unwrap();
    }
    let parts = store.answers().unsettled().unwrap().parts;
    let bytes: Vec<Vec<u64>> =
        parts.iter().map(|part| part.sessions.iter().map(|s| s.bytes).collect()).collect();
    assert_eq!(bytes, [vec![600, 300], vec![500]]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Whatever order receipts, settlements, sweeps and corrections come in: no credit appears or vanishes.
    #[test]
    fn credit_is_conserved(steps in prop::collection::vec((0u8..5, 1u8..4, 1u64..5_000), 1..25)) {
        let (network, mut store) = prepared();
        let funded = available(&network, &store);
        let mut latest: std::collections::HashMap<u8, kvasir_wire::receipt::Receipt> = Default::default();
        let (mut now, mut settled) = (START + 10, Vec::new());
        for (step, session, bytes) in steps {
            now += bytes;
            match step {
                0 | 1 => {
                    let receipt = match latest.get(&session) {
                        None => network.first(session, bytes, 0),
                        Some(last) => last.next(counters(last.counters.up.get() + bytes, 0), last.to, false).unwrap(),
                    };
                    post_at(&mut store, &network.sign(&receipt), now).unwrap();
                    latest.insert(session, receipt);
                }
                2 => for part in store.answers().unsettled().unwrap().parts {
                    let sessions: Vec<_> = part.sessions.iter().map(|part| {
                        (u8::from_str_radix(&part.session[..2], 16).unwrap(), part.from_seq, part.to_seq, part.bytes)
                    }).collect();
                    let settlement = network.settlement(&sessions, part.before_nanokvr, now);
                    network.settle(&mut store, &settlement).unwrap();
                    settled.push(settlement.id());
                },
                3 => { now += 30_000; store.sweep(now).unwrap(); }
                _ => if let Some(id) = settled.pop() {
                    let _ = store.accept_note(network.correction(id, now).to_string().as_bytes(), now);
                },
            }
            let (pending, posted) = credit(&network, &store);
            prop_assert_eq!(available(&network, &store) + pending + posted, funded);
            prop_assert!(pending >= 0 && posted >= 0);
            let billed: u64 = latest.values().map(|receipt| receipt.billed().get()).sum();
            prop_assert!(NanoKvr::new(pending + posted).get() <= 7 * billed as i64);
        }
    }
}
