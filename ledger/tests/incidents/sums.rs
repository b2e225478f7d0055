//! Totals, windows and numbers: what is paid is a sum of rows, whoever adds it up, and every digit of it counts.

use std::sync::Barrier;

use kvasir_ledger::store::Store;
use kvasir_wire::account::{PENDING_SECONDS, Statement};
use kvasir_wire::note::Signer;
use serde_json::Value;

use crate::network::{Network, START, leaf, post, refused};
use crate::{export, made};

/// Handles on one file, as of so many processes.
fn handles<const N: usize>(network: &Network, path: &std::path::Path) -> [Store; N] {
    std::array::from_fn(|_| Store::open(path, &network.name, network.keys()).unwrap())
}

/// Several processes kept a total each, and each added what it had to one that was shared.
#[test]
fn a_total_that_many_processes_know_is_the_sum_of_the_rows_and_nothing_else() {
    let network = Network::new();
    let (folder, mut first) = made(&network);
    network.prepare(&mut first);
    let path = folder.path().join("ledger.db");
    let grant = network.grant(1_000).to_string();
    let grant = leaf(&first.accept_note(grant.as_bytes(), START).unwrap());
    let receipt = |session, up| {
        let mut receipt = network.first(session, up, 0);
        receipt.terms.grant = grant;
        network.sign(&receipt)
    };
    let mut stores: [Store; 5] = handles(&network, &path);
    // Each process reads the grant's total, remembers it, and comes back after the others have added to it.
    for session in 1..=10 {
        post(&mut stores[usize::from(session) % 5], &receipt(session, 100)).unwrap();
    }
    for (session, store) in (20..).zip(&mut stores) {
        assert_eq!(refused(post(store, &receipt(session, 1))).code, "grant_exhausted");
    }
    let parts: Vec<_> = (1..=10).map(|session| (session, 1, 1, 100)).collect();
    let settlement = network.settlement(&parts, 0, START + 20);
    for store in &mut stores {
        network.settle(store, &settlement).unwrap();
    }
    // Those that were open all along, and new ones.
    for store in stores.iter().chain(&handles::<5>(&network, &path)) {
        let wallet = store.answers().wallet(network.payee()).unwrap();
        assert_eq!((wallet.pending_nanokvr, wallet.bytes, wallet.unsettled_bytes), (7_000, 1_000, 0));
        assert_eq!(store.answers().account(network.payer()).unwrap().spent_nanokvr, 7_000);
    }
}

/// A window's counter was set to zero by two processes at once, and the last one won.
#[test]
fn a_window_is_a_row_that_two_processes_close_once_and_no_total_is_ever_reset() {
    let network = Network::new();
    let (folder, mut store) = made(&network);
    network.prepare(&mut store);
    for session in [1, 2] {
        post(&mut store, &network.sign(&network.first(session, 1_000, 0))).unwrap();
    }
    // Two windows that overlap: each settlement has its own day.
    network.settle(&mut store, &network.settlement(&[(1, 1, 1, 1_000)], 0, START + 20)).unwrap();
    network.settle(&mut store, &network.settlement(&[(2, 1, 1, 1_000)], 7_000, START + 90)).unwrap();
    let mut pair: [Store; 2] = handles(&network, &folder.path().join("ledger.db"));
    let mut close_at_once = |now| {
        let ready = &Barrier::new(pair.len());
        std::thread::scope(|scope| {
            let close = |store: &mut Store| {
                ready.wait();
                store.sweep(now).unwrap()
            };
            let closing: Vec<_> = pair.iter_mut().map(|store| scope.spawn(move || close(store))).collect();
            closing.into_iter().map(|closed| closed.join().unwrap()).sum::<u64>()
        })
    };
    let credit = |store: &Store| {
        let wallet = store.answers().wallet(network.payee()).unwrap();
        (wallet.pending_nanokvr, wallet.posted_nanokvr, wallet.bytes)
    };
    assert_eq!(close_at_once(START + 20 + PENDING_SECONDS), 1);
    assert_eq!(credit(&store), (7_000, 7_000, 2_000));
    assert_eq!(close_at_once(START + 90 + PENDING_SECONDS), 1);
    assert_eq!(close_at_once(START + 91 + PENDING_SECONDS), 0);
    assert_eq!(credit(&store), (0, 14_000, 2_000));
}

/// Two counts that a double cannot tell apart had one signature, since what was signed was JSON.
#[test]
fn counts_that_a_double_cannot_tell_apart_stay_apart_wherever_they_are_written() {
    const COUNT: u64 = 1 << 53;
    assert_eq!(COUNT as f64, (COUNT + 1) as f64);
    let network = Network::new();
    let (folder, mut store) = made(&network);
    network.prepare(&mut store);
    let grant = network.grant(4 * COUNT).to_string();
    let grant = leaf(&store.accept_note(grant.as_bytes(), START).unwrap());
    let fund = network.fund(i64::MAX / 2, 9).to_string();
    store.accept_note(fund.as_bytes(), START).unwrap();
    let receipt = |session, up| {
        let mut receipt = network.first(session, up, 0);
        receipt.terms.grant = grant;
        receipt
    };
    // What is signed is the text, digit by digit.
    let (even, odd) = (receipt(1, COUNT), receipt(1, COUNT + 1));
    assert!(odd.text().contains("\nup 9007199254740993\n"), "{}", odd.text());
    assert_ne!(even.id(), odd.id());
    let payer = network.backbone.public();
    let signature = even.sign(&network.backbone);
    odd.verify_signature(Signer::Backbone, &payer, &signature).unwrap_err();
    post(&mut store, &network.sign(&even)).unwrap();
    assert_eq!(refused(post(&mut store, &network.sign(&odd))).code, "conflict");

    // What is added up, answered and exported.
    post(&mut store, &network.sign(&receipt(2, COUNT + 1))).unwrap();
    let wallet = serde_json::to_string(&store.answers().wallet(network.payee()).unwrap()).unwrap();
    assert!(wallet.contains("\"unsettled_bytes\":18014398509481985"), "{wallet}");
    assert!(wallet.contains("\"unsettled_nanokvr\":126100789566373895"), "{wallet}");
    let off_by_one = network.settlement(&[(2, 1, 1, COUNT)], 0, START + 20);
    assert_eq!(refused(network.settle(&mut store, &off_by_one)).code, "not_as_received");
    let settlement = network.settlement(&[(2, 1, 1, COUNT + 1)], 0, START + 20);
    assert!(settlement.text().contains("\nnanokvr 63050394783186951\n"), "{}", settlement.text());
    network.settle(&mut store, &settlement).unwrap();
    let wallet: Value = serde_json::to_value(store.answers().wallet(network.payee()).unwrap()).unwrap();
    assert_eq!(wallet["pending_nanokvr"], 63_050_394_783_186_951_i64);

    let receipts = export(&folder, "receipts", "json");
    for up in ["\"up\":9007199254740992,", "\"up\":9007199254740993,"] {
        assert!(receipts.contains(up), "{receipts}");
    }
    let receipts = export(&folder, "receipts", "csv");
    assert!(receipts.contains(",9007199254740992,0,") && receipts.contains(",9007199254740993,0,"));
    for format in ["json", "csv"] {
        for table in ["settlements", "postings"] {
            let rows = export(&folder, table, format);
            assert!(rows.contains("63050394783186951"), "{rows}");
        }
    }
}
