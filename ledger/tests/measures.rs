//! What a penalty may rest on: every kind of entry, for the store and for the audit alike.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use kvasir_ledger::audit::{AuditOptions, audit};
use kvasir_ledger::log::Policy;
use kvasir_ledger::store::{Entry, Store, Stretch};
use kvasir_merkle::Hash;
use kvasir_wire::account::{Appeal, Audit, AuditVerdict, Measure, OriginChange, Penalty, Statement};
use kvasir_wire::note::Note;
use network::good_log::{LEDGER_SEED, policy, published, secret};
use network::{Network, START, leaf, post, refused};

fn penalty(network: &Network, evidence: Hash, at: u64) -> Note {
    let worker = network.worker.public().digest();
    let (network, treasury) = (network.name.clone(), &network.treasury);
    let reason = "a test".to_owned();
    Penalty { network, worker, measure: Measure::Watched, reason, evidence, at }.sign(treasury).unwrap()
}

fn accept(store: &mut Store, note: &Note) -> Hash {
    leaf(&store.accept_note(note.to_string().as_bytes(), START + 40).unwrap())
}

/// A ledger with entries of every kind.
fn ledger(network: &Network) -> Store {
    let mut store = Store::in_memory(&network.name, network.keys()).unwrap();
    store.declare_keys(&secret(LEDGER_SEED), START).unwrap();
    network.prepare(&mut store);
    let receipt = network.first(1, 100, 200);
    post(&mut store, &network.sign(&receipt)).unwrap();
    let settlement = network.settlement(&[(1, 1, 1, 300)], 0, START + 20);
    network.settle(&mut store, &settlement).unwrap();
    accept(&mut store, &network.correction(settlement.id(), START + 40));
    let finding = Audit {
        network: network.name.clone(),
        auditor: secret(60).public(),
        session: receipt.terms.session,
        seq: 1,
        index: 0,
        work: receipt.counters.work,
        verdict: AuditVerdict::Convicted,
        expected: Hash([1; 32]),
        got: Hash([2; 32]),
        model: receipt.terms.model,
        plugin: receipt.terms.plugin,
        checkpoint: Hash([3; 32]),
        at: START + 40,
    };
    let finding = accept(&mut store, &finding.sign(&secret(60)).unwrap());
    let penalty = accept(&mut store, &penalty(network, finding, START + 40));
    let (worker, reason) = (network.worker.public(), "not me".to_owned());
    let appeal = Appeal { network: network.name.clone(), worker, penalty, reason, at: START + 40 };
    accept(&mut store, &appeal.sign(&network.worker).unwrap());
    let (size, root) = store.answers().head().unwrap();
    let change = OriginChange {
        network: network.name.clone(),
        origin: "kvasir.example/atlas/00000002".parse().unwrap(),
        previous: "kvasir.example/atlas/00000001".parse().unwrap(),
        size,
        root,
        at: START + 40,
    };
    let change = change.sign(&secret(LEDGER_SEED)).unwrap();
    store.accept_own(change.to_string().as_bytes(), START + 40).unwrap();
    store
}

fn entries(store: &Store) -> Vec<Entry> {
    let mut entries = store.answers().entries_page(None, Stretch::Latest, 200).unwrap();
    entries.reverse();
    entries
}

#[test]
fn a_penalty_may_rest_on_any_entry_and_every_audit_agrees() {
    let network = Network::new();
    let mut store = ledger(&network);
    let before = entries(&store);
    let kinds: BTreeSet<&str> = before.iter().map(|entry| entry.kind.as_str()).collect();
    let all = [
        "appeal", "audit", "correct", "delegate", "fund", "grant", "key", "origin", "penalty", "price",
        "receipt", "settle",
    ];
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), all);
    for (at, entry) in (START + 41..).zip(&before) {
        accept(&mut store, &penalty(&network, entry.leaf, at));
    }
    let nothing = penalty(&network, Hash([9; 32]), START + 41);
    let refusal = refused(store.accept_note(nothing.to_string().as_bytes(), START + 41));
    assert_eq!((refusal.status, refusal.code), (422, "unknown_evidence"));

    let published =
        published(&entries(&store).into_iter().map(|entry| entry.note.into_bytes()).collect::<Vec<_>>());
    let options = AuditOptions {
        policy: Policy::parse(&policy()).unwrap(),
        treasury: None,
        remembered: None,
        now: START + 100,
        clock: START + 100,
        threads: NonZeroUsize::MIN,
    };
    let report = audit(&published, &options, &mut |_, _| {}).unwrap();
    assert_eq!(report.entries, 2 * before.len() as u64);
}
