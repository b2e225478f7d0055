//! Files that convict by themselves, and files that convict nobody; the commands around log, witness, audit and proof.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use kvasir_ledger::evidence::{
    Evidence, EvidenceError, LogFraud, MAX_EVIDENCE_BYTES, ReceiptFraud, TwoLeaves, WorkFraud,
};
use kvasir_ledger::log::{Checkpoint, log_verifier};
use kvasir_merkle::{Hash, Tree, leaf_hash};
use kvasir_wire::id::sha256;
use kvasir_wire::message::{Call, ExpertRows, Mode, RowFormat};
use kvasir_wire::probe::{ProbeFile, ProbeRecord};
use kvasir_wire::receipt::ReceiptKeys;
use kvasir_wire::work::WorkItem;
use network::good_log::{LOG_SEED, entries, origin, policy, published, secret, session};
use network::{Network, counters};

fn receipts() -> ReceiptFraud {
    let network = Network::new();
    let sign = |up| network.sign(&network.first(1, up, 20));
    ReceiptFraud {
        keys: ReceiptKeys {
            hub: network.hub.public(),
            worker: network.worker.public(),
            backbone: network.backbone.public(),
        },
        first: sign(10),
        second: sign(11),
    }
}

/// A result of one call, two columns wide, under a receipt that all three signed.
fn work() -> WorkFraud {
    let network = Network::new();
    let experts = vec![ExpertRows { expert: 1, rows: vec![0], weights: Vec::new() }];
    let (mode, row_format) = (Mode::Each, RowFormat::Float32);
    let payload =
        Call { call: 1, layer: 3, mode, row_format, rows: 1, experts, data: &[0; 8] }.encode().unwrap();
    let rows = vec![0; 8];
    let item = WorkItem { call: 1, layer: 3, mode: 0, payload: sha256(&[&payload]), rows: sha256(&[&rows]) };
    let tree: Tree = [item.leaf()].into_iter().collect();
    let mut receipt = network.first(1, 10, 20);
    receipt.counters.work = tree.root();
    let record = ProbeRecord { index: 0, item: item.encode(), proof: Vec::new(), payload, rows };
    WorkFraud {
        keys: receipts().keys,
        receipt: network.sign(&receipt),
        record: ProbeFile {
            session: receipt.terms.session,
            seq: receipt.seq,
            receipt: receipt.id(),
            size: 1,
            root: tree.root(),
            records: vec![record],
        },
    }
}

fn tree(leaves: u64, odd: u64) -> Tree {
    (0..leaves).map(|index| leaf_hash(if index == odd { b"odd" } else { b"even" })).collect()
}

fn log_fraud(sizes: (u64, u64)) -> LogFraud {
    let (one, other) = (tree(sizes.0, 3), tree(sizes.1, 4));
    let log = log_verifier(&origin(), secret(LOG_SEED).public());
    let leaves = (sizes.0 != sizes.1).then(|| TwoLeaves {
        index: 3,
        first: one.leaf(3).unwrap(),
        first_proof: one.inclusion_proof(3).unwrap().hashes,
        second: other.leaf(3).unwrap(),
        second_proof: other.inclusion_proof(3).unwrap().hashes,
    });
    // The log's signature alone: lines of others mean nothing here, so a torn one would not matter.
    let head = |tree: &Tree| Checkpoint { origin: origin(), size: tree.size(), root: tree.root() };
    let [first, second] =
        [&one, &other].map(|tree| head(tree).sign(&secret(LOG_SEED)).unwrap().note().clone());
    LogFraud { log, first, second, leaves }
}

#[test]
fn a_file_convicts_whoever_signed_two_things_that_cannot_both_be() {
    for evidence in
        [Evidence::Receipts(receipts()), Evidence::Log(log_fraud((7, 7))), Evidence::Log(log_fraud((7, 300)))]
    {
        let text = evidence.to_string();
        let read = Evidence::parse(text.as_bytes()).unwrap();
        assert_eq!(read, evidence);
        let proven = read.convict().unwrap();
        assert!(proven.is_complete && !proven.culprits.is_empty(), "{proven:?}");
        // Every byte counts: what was changed is refused, or says the same as before.
        for place in (0..text.len()).step_by(7) {
            let mut torn = text.clone().into_bytes();
            torn[place] ^= 1;
            assert!(Evidence::parse(&torn).map_or(true, |torn| torn.convict().is_err()), "byte {place}");
        }
    }
}

#[test]
fn what_is_no_contradiction_convicts_nobody() {
    let nobody = |evidence: Evidence| {
        let error = evidence.convict().unwrap_err();
        assert!(matches!(error, EvidenceError::NoContradiction(_)), "{error}");
    };
    let network = Network::new();
    nobody(Evidence::Receipts(ReceiptFraud { second: receipts().first, ..receipts() }));
    let later = network.first(1, 10, 20).next(counters(20, 40), network::START + 20, false).unwrap();
    nobody(Evidence::Receipts(ReceiptFraud { second: network.sign(&later), ..receipts() }));
    let fraud = log_fraud((7, 7));
    nobody(Evidence::Log(LogFraud { second: fraud.first.clone(), ..fraud }));
    nobody(Evidence::Log(LogFraud { leaves: None, ..log_fraud((7, 300)) }));
    // Another worker's key convicts nobody either, nor does a stranger's log.
    let framed =
        ReceiptFraud { keys: ReceiptKeys { worker: secret(9).public(), ..receipts().keys }, ..receipts() };
    assert!(matches!(Evidence::Receipts(framed).convict(), Err(EvidenceError::Receipt(_))));
    let framed = LogFraud { log: log_verifier(&origin(), secret(9).public()), ..log_fraud((7, 7)) };
    assert!(matches!(Evidence::Log(framed).convict(), Err(EvidenceError::Checkpoint(_))));
    let mut wrong = log_fraud((7, 300));
    wrong.leaves.as_mut().unwrap().first = Hash([1; 32]);
    assert!(matches!(Evidence::Log(wrong).convict(), Err(EvidenceError::Proof(_))));
}

#[test]
fn files_of_another_form_are_refused() {
    let good = Evidence::Receipts(receipts()).to_string();
    for (from, to) in [
        ("fraud@v1", "fraud@v2"),
        ("kind receipts", "kind other"),
        ("kind receipts", "kind log"),
        ("\nhub ", "\nHub "),
        ("\nfirst ", "\nfirst  "),
        ("\nsecond ", "\nsecond =="),
    ] {
        assert!(Evidence::parse(good.replacen(from, to, 1).as_bytes()).is_err(), "{to}");
    }
    assert!(Evidence::parse(format!("{good}more 1\n").as_bytes()).is_err());
    assert!(matches!(Evidence::parse(&[0xff]), Err(EvidenceError::NotText)));
    let long = vec![b'a'; MAX_EVIDENCE_BYTES + 1];
    assert!(matches!(Evidence::parse(&long), Err(EvidenceError::TooLong(_))));
}

fn run(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvasir-ledger")).current_dir(folder).args(words).output().unwrap()
}

fn json(folder: &Path, words: &[&str]) -> serde_json::Value {
    let output = run(folder, &[words, &["--json"]].concat());
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn an_auditor_with_a_folder_audits_proves_and_convicts() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let write = |prefix: &str, entries: &[Vec<u8>]| {
        for (path, bytes) in published(entries).0 {
            let path = folder.join(prefix).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    };
    let network = Network::new();
    let good = entries(&network, 300, 3);
    write("log", &good);
    fs::write(folder.join("policy.txt"), policy()).unwrap();
    let trust = ["--policy", "policy.txt"];
    let audit = [&["audit", "log", "--state", "seen", "--at", "1790001000"][..], &trust].concat();
    let audited = json(folder, &audit);
    assert_eq!((&audited["ok"], &audited["receipts"]), (&true.into(), &300.into()));
    assert_eq!(json(folder, &audit)["remembered"], good.len());

    // A paystub by number, one by session; checked offline, from the file alone.
    json(folder, &[&["prove", "log", "--index", "20"][..], &trust].concat());
    let session = session(2).to_string();
    let by_session = ["prove", "log", "--session", &session, "--seq", "5", "--output", "pay.tlog-proof"];
    let proven = json(folder, &[&by_session[..], &trust].concat());
    let checked = json(folder, &[&["check-proof", "pay.tlog-proof"][..], &trust].concat());
    assert_eq!(
        (&checked["index"], &checked["kind"]),
        (&proven["index"], &"kvasir.example/receipt@v1".into())
    );
    assert!(checked["entry"].as_str().unwrap().contains("\nseq 5\n"));
    let mut torn = fs::read_to_string(folder.join("entry-20.tlog-proof")).unwrap();
    torn = torn.replacen("index 20", "index 21", 1);
    fs::write(folder.join("torn.tlog-proof"), torn).unwrap();
    assert!(!run(folder, &[&["check-proof", "torn.tlog-proof"][..], &trust].concat()).status.success());

    // A fork: the audit names it by what it remembered, and the two heads convict the log.
    let mut forked = good.clone();
    forked.remove(150);
    write("fork", &forked);
    let fork = [&["audit", "fork", "--state", "seen"][..], &trust].concat();
    let refused = run(folder, &fork);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("rolled back"), "{refused:?}");
    let log = log_verifier(&origin(), secret(LOG_SEED).public()).to_string();
    let heads = ["fraud", "log", "log/checkpoint", "fork/checkpoint", "--log-key", &log];
    assert!(!run(folder, &heads).status.success(), "sizes differ: leaves are needed");
    let places = ["--first-log", "log", "--second-log", "fork", "--index", "150"];
    let evidence = run(folder, &[&heads[..], &places].concat());
    fs::write(folder.join("log.fraud"), &evidence.stdout).unwrap();
    assert_eq!(json(folder, &["convict", "log.fraud"])["convicted"], true);
    assert!(!run(folder, &["convict", "policy.txt"]).status.success());

    // A fault in the files is named by its entry, for people and for programs.
    let tile = folder.join("log/tile/0/000");
    let mut bytes = fs::read(&tile).unwrap();
    bytes[32 * 77] ^= 1;
    fs::write(&tile, bytes).unwrap();
    let found = run(folder, &[&audit[..], &["--json"]].concat());
    let object: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!((&object["ok"], &object["first_bad_index"]), (&false.into(), &77.into()));
    assert_eq!(run(folder, &["audit", "log"]).status.code(), Some(2), "nobody is believed without a key");
}

#[test]
fn a_result_is_neither_guilty_nor_innocent_before_it_is_computed_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let good = work();
    let proven = Evidence::Work(good.clone()).convict().unwrap();
    assert!(!proven.is_complete, "{proven:?}");
    fs::write(folder.join("work.fraud"), Evidence::Work(good.clone()).to_string()).unwrap();
    let output = run(folder, &["convict", "work.fraud", "--json"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("no verdict: ") && said.contains("compute the call again"), "{said}");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["ok"], serde_json::Value::Null);
    assert!(told["reason"].as_str().unwrap().contains("kvasir audit"), "{told}");

    // A file that is none is told from it: here the rows are not those that were signed.
    let mut forged = good;
    forged.record.records[0].rows[0] = 1;
    fs::write(folder.join("forged.fraud"), Evidence::Work(forged).to_string()).unwrap();
    assert_eq!(run(folder, &["convict", "forged.fraud"]).status.code(), Some(1));
}
