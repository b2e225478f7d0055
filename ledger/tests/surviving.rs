//! Killed processes, full disks, wrong paths: what was acknowledged is there, what was not can be sent again.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kvasir_ledger::api::Accepted;
use kvasir_ledger::client::Client;
use kvasir_ledger::refusal::LedgerError;
use kvasir_ledger::server::system_clock;
use kvasir_ledger::store::{Keys, Store};
use kvasir_wire::key::SecretKey;
use network::{Network, START, counters, post, post_at, refused};

/// The program, serving the ledger in `folder`.
struct Program {
    child: Child,
    client: Client,
}

impl Program {
    fn start(folder: &Path, flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvasir-ledger"))
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"])
            .arg(folder.join("ledger.toml"))
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        let client = Client::new(&format!("http://{}", told["listening"].as_str().unwrap())).unwrap();
        Self { child, client }
    }

    /// SIGKILL: no handler runs.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn init(network: &Network, folder: &Path) {
    let keys = network.keys();
    let status = Command::new(env!("CARGO_BIN_EXE_kvasir-ledger"))
        .arg("init")
        .arg(folder)
        .args(["--json", "--network", "atlas"])
        .args(["--hub", &keys.hubs[0].to_string(), "--treasury", &keys.treasury[0].to_string()])
        .args(["--settler", &keys.settlers[0].to_string()])
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn killed_between_receipt_and_settlement_nothing_is_lost() {
    let network = Network::new();
    let folder = tempfile::tempdir().unwrap();
    init(&network, folder.path());
    let program = Program::start(folder.path(), &[]);
    for note in network.foundation() {
        program.client.post_note(&note).unwrap();
    }
    let mut receipt = network.first(1, 1_000, 0);
    let mut acknowledged = vec![program.client.post_receipt(&network.sign(&receipt)).unwrap()];
    program.kill();
    for number in 2..=4 {
        let program = Program::start(folder.path(), &[]);
        receipt = receipt.next(counters(1_000 * number, 0), receipt.to, false).unwrap();
        acknowledged.push(program.client.post_receipt(&network.sign(&receipt)).unwrap());
        program.kill();
    }
    let program = Program::start(folder.path(), &[]);
    let kept = program.client.receipts(None, 100).unwrap().receipts;
    let ids = |index: usize| (kept[index].index, kept[index].id.clone());
    assert_eq!(kept.len(), acknowledged.len());
    for (place, accepted) in acknowledged.iter().enumerate() {
        assert_eq!(ids(place), (accepted.index, accepted.id.clone()));
    }
    // The hub did not hear the last answer: it asks again.
    let again = Accepted { repeated: true, ..acknowledged.last().unwrap().clone() };
    assert_eq!(program.client.post_receipt(&network.sign(&receipt)).unwrap(), again);
    let now = system_clock()();
    let outcomes = program.client.settle_once(&network.name, &network.settler, now).unwrap();
    assert_eq!(outcomes.len(), 1);
    program.kill();
    let program = Program::start(folder.path(), &[]);
    assert!(program.client.settle_once(&network.name, &network.settler, now).unwrap().is_empty());
    assert_eq!(program.client.wallet(&network.payee()).unwrap().pending_nanokvr, 7 * 4_000);
}

#[test]
fn a_kill_in_the_middle_of_many_receipts_loses_no_acknowledged_one() {
    let network = Network::new();
    let folder = tempfile::tempdir().unwrap();
    init(&network, folder.path());
    let program = Program::start(folder.path(), &[]);
    for note in network.foundation() {
        program.client.post_note(&note).unwrap();
    }
    let client = program.client.clone();
    let notes: Vec<_> = (1..=200u8).map(|session| network.sign(&network.first(session, 10, 20))).collect();
    let acknowledged = std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let sender = scope.spawn(|| {
            let tell = tell;
            let mut acknowledged = Vec::new();
            for note in &notes {
                match client.post_receipt(note) {
                    Ok(accepted) => acknowledged.push(accepted),
                    Err(_) => break,
                }
                let _ = tell.send(());
            }
            acknowledged
        });
        // Killed while the sender goes on.
        told.iter().take(20).for_each(drop);
        program.kill();
        sender.join().unwrap()
    });
    assert!(acknowledged.len() >= 20);
    let path = folder.path().join("ledger.db");
    let mut store = Store::open(&path, &network.name, network.keys()).unwrap();
    for (note, accepted) in notes.iter().zip(&acknowledged) {
        assert_eq!(post(&mut store, note).unwrap(), Accepted { repeated: true, ..accepted.clone() });
    }
    for note in &notes {
        post(&mut store, note).unwrap();
    }
    assert_eq!(store.answers().receipts(None, 500).unwrap().receipts.len(), notes.len());
}

#[test]
fn a_full_disk_refuses_and_damages_nothing() {
    let network = Network::new();
    let folder = tempfile::tempdir().unwrap();
    init(&network, folder.path());
    let program = Program::start(folder.path(), &["--max-store-bytes", "200000"]);
    for note in network.foundation() {
        program.client.post_note(&note).unwrap();
    }
    let mut acknowledged = 0;
    let refused = loop {
        let note = network.sign(&network.first(acknowledged + 1, 10, 20));
        match program.client.post_receipt(&note) {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), Some("disk_full"));
    assert!(refused.is_passing());
    let text = refused.to_string();
    assert!(
        text.contains("ledger.db") && text.contains("free space") && text.contains("not stored"),
        "{text}"
    );
    assert!(acknowledged > 5, "{acknowledged}");
    // Questions are still answered.
    assert_eq!(program.client.receipts(None, 500).unwrap().receipts.len(), usize::from(acknowledged));
    drop(program);
    let program = Program::start(folder.path(), &[]);
    assert_eq!(program.client.receipts(None, 500).unwrap().receipts.len(), usize::from(acknowledged));
    program.client.post_receipt(&network.sign(&network.first(acknowledged + 1, 10, 20))).unwrap();
}

#[test]
fn a_wrong_path_never_becomes_a_ledger() {
    let network = Network::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("typo.db");
    let reason = |result: Result<Store, LedgerError>| match result {
        Err(LedgerError::NotALedger { reason, .. }) => reason,
        other => panic!("{:?}", other.map(|_| ())),
    };
    assert!(reason(Store::open(&path, &network.name, network.keys())).contains("no such file"));
    assert!(!path.exists());
    std::fs::write(&path, b"").unwrap();
    assert!(reason(Store::open(&path, &network.name, network.keys())).contains("not a ledger"));
    std::fs::remove_file(&path).unwrap();
    Store::create(&path, &network.name).unwrap();
    assert!(matches!(Store::create(&path, &network.name), Err(LedgerError::NotALedger { .. })));
    let other = "other".parse().unwrap();
    assert!(reason(Store::open(&path, &other, network.keys())).contains("network atlas"));
    std::fs::write(&path, vec![b'x'; 10_000]).unwrap();
    assert!(Store::open(&path, &network.name, network.keys()).is_err());
}

#[test]
fn two_processes_on_one_file_continue_one_tree() {
    let network = Network::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    Store::create(&path, &network.name).unwrap();
    let open = || Store::open(&path, &network.name, network.keys()).unwrap();
    let (mut one, mut two) = (open(), open());
    network.prepare(&mut one);
    for session in 1..=3 {
        post_at(&mut one, &network.sign(&network.first(2 * session, 1, 1)), START + 10).unwrap();
        post_at(&mut two, &network.sign(&network.first(2 * session + 1, 1, 1)), START + 10).unwrap();
    }
    let report = Store::verify(
        &kvasir_ledger::store::open_for_reading(&path, &network.name).unwrap(),
        &path,
        &network.name,
        &network.keys(),
        &mut |_, _| {},
    );
    assert_eq!(report.unwrap().receipts, 6);
}

#[test]
fn two_servers_with_different_settings_never_contradict_each_other() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    init(&network, folder.path());
    let program = Program::start(folder.path(), &[]);
    let other = SecretKey::from_seed([70; 32]);
    let second = Command::new(env!("CARGO_BIN_EXE_kvasir-ledger"))
        .args(["serve", "--listen", "127.0.0.1:0", "--treasury", &other.public().to_string(), "--config"])
        .arg(folder.path().join("ledger.toml"))
        .output()
        .unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("process {}", program.child.id())), "{said}");
    program.client.post_note(&network.price()).unwrap();
    // Killed, it leaves nothing that stands in the way of the next.
    program.kill();
    Program::start(folder.path(), &[]).client.post_note(&network.delegation()).unwrap();
}

#[test]
fn a_key_that_another_process_wrote_down_as_retired_signs_nothing_more() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("ledger.db");
    Store::create(&path, &network.name).unwrap();
    let ledger = SecretKey::from_seed([71; 32]);
    let mut one = Store::open(&path, &network.name, network.keys()).unwrap();
    one.declare_keys(&ledger, START).unwrap();
    let new = SecretKey::from_seed([70; 32]);
    let keys = Keys { treasury: vec![new.public()], ..network.keys() };
    let mut two = Store::open(&path, &network.name, keys).unwrap();
    assert_eq!(two.declare_keys(&ledger, START).unwrap(), 2, "one believed, one retired");
    let price = network.price().to_string();
    assert_eq!(refused(one.accept_note(price.as_bytes(), START)).code, "unknown_signer");
    // Whom both believe, both go on to believe; and what is written down anew is believed anew.
    assert_eq!(one.declare_keys(&ledger, START + 1).unwrap(), 2);
    one.accept_note(price.as_bytes(), START + 1).unwrap();
}
