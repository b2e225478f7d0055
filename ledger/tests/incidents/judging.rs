//! Who is counted, and how somebody is set back: by distinct keys, and never in silence.

use kvasir_ledger::log::{CosignatureError, CosignerKey, Policy, PolicyError, cosign, log_verifier};
use kvasir_ledger::store::Store;
use kvasir_merkle::{Hash, leaf_hash};
use kvasir_wire::account::{Appeal, Audit, AuditVerdict, Measure, Penalty, Statement};
use kvasir_wire::id::{ModelDigest, PluginDigest};
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::{KeyName, Note};

use crate::network::good_log::{LOG_SEED, head, origin, secret};
use crate::network::{Network, START, counters, leaf, post, post_at, prepared, refused};

/// A quorum counted places, one key filled most of them, and the signed text did not say which.
#[test]
fn a_key_that_signs_twice_or_under_another_name_is_one_witness() {
    let names: [KeyName; 3] = ["a.example", "b.example", "c.example"].map(|name| name.parse().unwrap());
    let keys = [11, 12, 13].map(secret);
    let log = log_verifier(&origin(), secret(LOG_SEED).public());
    let mut policy = format!("log {log}\n");
    for (name, key) in names.iter().zip(&keys) {
        let witness = CosignerKey::new(name.clone(), key.public());
        policy.push_str(&format!("witness {} {witness}\n", name.as_str().replace('.', "-")));
    }
    policy.push_str("group two 2 a-example b-example c-example\nquorum two\n");
    let policy = Policy::parse(&policy).unwrap();

    let signed = head(7, leaf_hash(b"root"));
    let signed_by = |lines: &[(&KeyName, &SecretKey, u64)]| {
        let lines = lines.iter().map(|(name, key, at)| cosign(signed.note().text(), name, key, *at));
        let note = signed.with_lines(lines).unwrap();
        policy.quorum(note.note()).map(|quorum| quorum.cosigned.len())
    };
    let [a, b, c] = [0, 1, 2].map(|place| (&names[place], &keys[place], START));
    assert_eq!(signed_by(&[a, b]).unwrap(), 2);
    assert_eq!(signed_by(&[a, b, c]).unwrap(), 3);
    // One key in the places of others, or the others in each other's.
    for lines in [[a, (b.0, a.1, START), (c.0, a.1, START)], [a, (b.0, c.1, START), (c.0, b.1, START)]] {
        let error = signed_by(&lines).unwrap_err();
        assert!(matches!(error, PolicyError::NoQuorum { cosigned: 1, known: 3, .. }), "{error}");
    }
    // Twice in its own, at another time.
    let error = signed_by(&[a, (a.0, a.1, START + 1)]).unwrap_err();
    assert!(matches!(error, PolicyError::Cosignature(CosignatureError::Twice(_))), "{error}");
}

fn finding(network: &Network, auditor: &SecretKey) -> Audit {
    let receipt = network.first(1, 100, 200);
    Audit {
        network: network.name.clone(),
        auditor: auditor.public(),
        session: receipt.terms.session,
        seq: 1,
        index: 0,
        work: receipt.counters.work,
        verdict: AuditVerdict::Convicted,
        expected: leaf_hash(b"right"),
        got: leaf_hash(b"wrong"),
        model: ModelDigest([7; 32]),
        plugin: PluginDigest([8; 32]),
        checkpoint: leaf_hash(b"checkpoint"),
        at: START + 20,
    }
}

/// Honest newcomers were set back by a rule that nobody told them of, and could not answer.
#[test]
fn no_measure_is_taken_without_reason_evidence_and_the_right_to_answer() {
    let (network, mut store) = prepared();
    let auditor = SecretKey::from_seed([77; 32]);
    let receipt = network.first(1, 100, 200);
    post(&mut store, &network.sign(&receipt)).unwrap();
    let finding = finding(&network, &auditor).sign(&auditor).unwrap();
    let send = |store: &mut Store, note: &Note| store.accept_note(note.to_string().as_bytes(), START + 30);
    let evidence = leaf(&send(&mut store, &finding).unwrap());
    let penalty = Penalty {
        network: network.name.clone(),
        worker: network.worker.public().digest(),
        measure: Measure::Excluded,
        reason: "three engines compute other rows".to_owned(),
        evidence,
        at: START + 30,
    };
    let size = store.answers().head().unwrap().0;

    // Without a reason, without evidence that everybody can read, without the treasury's name under it.
    let silent = |reason: &str| {
        let text = penalty.text().replacen(&penalty.reason, reason, 1);
        let mut note = Note::unsigned(text).unwrap();
        note.sign(Penalty::SIGNER.key_name(&network.name), &network.treasury).unwrap();
        note
    };
    let elsewhere = Penalty { evidence: Hash([1; 32]), ..penalty.clone() };
    for (note, code) in [
        (silent(""), "malformed_note"),
        (silent("   "), "malformed_note"),
        (elsewhere.sign(&network.treasury).unwrap(), "unknown_evidence"),
        (penalty.sign(&network.hub).unwrap(), "unknown_signer"),
        (penalty.sign(&auditor).unwrap(), "unknown_signer"),
    ] {
        assert_eq!(refused(send(&mut store, &note)).code, code, "{}", note.text());
    }
    assert_eq!(store.answers().head().unwrap().0, size);
    let note = penalty.sign(&network.treasury).unwrap();
    let taken = leaf(&send(&mut store, &note).unwrap());
    assert_eq!(store.answers().note(&taken).unwrap().note, note.to_string());

    // Whom it names can answer, and nobody in its place.
    let appeal = Appeal {
        network: network.name.clone(),
        worker: network.worker.public(),
        penalty: taken,
        reason: "the memory was bad, and is replaced".to_owned(),
        at: START + 40,
    };
    let another = Appeal { worker: network.wallet.public(), ..appeal.clone() };
    assert_eq!(refused(send(&mut store, &another.sign(&network.wallet).unwrap())).code, "unknown_penalty");
    let appeal = appeal.sign(&network.worker).unwrap();
    let answered = leaf(&send(&mut store, &appeal).unwrap());
    assert_eq!(store.answers().note(&answered).unwrap().note, appeal.to_string());

    // The ledger itself takes nothing away: what was and is served earns as before, until a correction says otherwise.
    let next = receipt.next(counters(200, 400), START + 50, false).unwrap();
    post_at(&mut store, &network.sign(&next), START + 50).unwrap();
    assert_eq!(store.answers().wallet(network.payee()).unwrap().unsettled_bytes, 600);
}
