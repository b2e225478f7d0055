//! From an auditor's finding to the credit that goes back: who may find, about what, and what the treasury does with it.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use kvasir_ledger::api::Accepted;
use kvasir_ledger::refusal::LedgerError;
use kvasir_ledger::store::Store;
use kvasir_merkle::{Hash, leaf_hash};
use kvasir_wire::account::{Audit, AuditVerdict, Correction, PENDING_SECONDS, Statement};
use kvasir_wire::id::{ModelDigest, PluginDigest, SessionId};
use kvasir_wire::key::SecretKey;
use kvasir_wire::receipt::Class;
use network::{Network, START, post, prepared, refused};

fn auditor() -> SecretKey {
    SecretKey::from_seed([77; 32])
}

fn finding(network: &Network, session: u8) -> Audit {
    Audit {
        network: network.name.clone(),
        auditor: auditor().public(),
        session: SessionId([session; 32]),
        seq: 1,
        index: 2,
        work: leaf_hash(b"work"),
        verdict: AuditVerdict::Convicted,
        expected: leaf_hash(b"right"),
        got: leaf_hash(b"wrong"),
        model: ModelDigest([7; 32]),
        plugin: PluginDigest([8; 32]),
        checkpoint: leaf_hash(b"checkpoint"),
        at: START + 30,
    }
}

fn find(store: &mut Store, audit: &Audit, key: &SecretKey) -> Result<Accepted, LedgerError> {
    store.accept_note(audit.sign(key).unwrap().to_string().as_bytes(), START + 30)
}

#[test]
fn convicted_work_is_reversed_before_it_posts() {
    let (network, mut store) = prepared();
    let available = |store: &Store| store.answers().account(network.payer()).unwrap().available_nanokvr;
    let before = available(&store);
    post(&mut store, &network.sign(&network.first(1, 1_000, 2_000))).unwrap();
    let settled =
        network.settle(&mut store, &network.settlement(&[(1, 1, 1, 3_000)], 0, START + 20)).unwrap();
    assert_eq!(store.answers().wallet(network.payee()).unwrap().pending_nanokvr, 21_000);

    let found = find(&mut store, &finding(&network, 1), &auditor()).unwrap();
    assert_eq!(found.kind, "audit");
    // A finding alone moves nothing, and is answered alike when it is sent again.
    assert_eq!(store.answers().wallet(network.payee()).unwrap().pending_nanokvr, 21_000);
    let again = find(&mut store, &finding(&network, 1), &auditor()).unwrap();
    assert_eq!(again, Accepted { repeated: true, ..found.clone() });
    let kept = store.answers().note(&found.leaf.parse::<Hash>().unwrap()).unwrap();
    assert_eq!(kept.note, finding(&network, 1).sign(&auditor()).unwrap().to_string());

    let correction = Correction {
        network: network.name.clone(),
        settlement: settled.settlement.unwrap().parse().unwrap(),
        reason: format!("convicted by replay: audit {}", found.leaf),
        at: START + 40,
    };
    let note = correction.sign(&network.treasury).unwrap();
    store.accept_note(note.to_string().as_bytes(), START + 40).unwrap();
    let wallet = store.answers().wallet(network.payee()).unwrap();
    assert_eq!((wallet.pending_nanokvr, wallet.posted_nanokvr), (0, 0));
    assert_eq!(available(&store), before);
    // What is reversed never posts.
    store.sweep(START + 21 + PENDING_SECONDS).unwrap();
    assert_eq!(store.answers().wallet(network.payee()).unwrap().posted_nanokvr, 0);
}

#[test]
fn a_finding_is_refused_from_a_party_and_about_what_is_not_here() {
    let (network, mut store) = prepared();
    post(&mut store, &network.sign(&network.first(1, 1_000, 2_000))).unwrap();
    let mut loose = network.first(2, 1_000, 2_000);
    loose.terms.class = Class::Tolerance;
    post(&mut store, &network.sign(&loose)).unwrap();
    let size = store.answers().head().unwrap();
    let good = || finding(&network, 1);

    let parties = [&network.hub, &network.worker, &network.backbone, &network.wallet];
    for (key, role) in parties.into_iter().zip(["hub", "worker", "backbone", "payee"]) {
        let refusal = refused(find(&mut store, &Audit { auditor: key.public(), ..good() }, key));
        assert_eq!((refusal.status, refusal.code), (403, "own_work"));
        assert!(refusal.message.contains(role), "{}", refusal.message);
    }
    let elsewhere = Audit { network: "other".parse().unwrap(), ..good() };
    let cases = [
        (Audit { session: SessionId([3; 32]), ..good() }, "unknown_receipt"),
        (Audit { seq: 2, ..good() }, "unknown_receipt"),
        (Audit { work: leaf_hash(b"other"), ..good() }, "other_receipt"),
        (Audit { model: ModelDigest([1; 32]), ..good() }, "other_receipt"),
        (Audit { plugin: PluginDigest([1; 32]), ..good() }, "other_receipt"),
        (finding(&network, 2), "class_tolerance"),
        (elsewhere, "other_network"),
    ];
    for (audit, code) in cases {
        assert_eq!(refused(find(&mut store, &audit, &auditor())).code, code, "{audit:?}");
    }
    let forged = refused(find(&mut store, &good(), &SecretKey::from_seed([78; 32])));
    assert_eq!((forged.status, forged.code), (403, "unknown_signer"));
    assert_eq!(store.answers().head().unwrap(), size);

    // A plugin that is not defined is a finding in either class.
    let plugin = Audit { verdict: AuditVerdict::Plugin, ..finding(&network, 2) };
    find(&mut store, &plugin, &auditor()).unwrap();
}
