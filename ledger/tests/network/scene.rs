//! Eleven days of a small network, for tests of what people look at: four wallets, two payers, sessions that go on,
//! settlements that are pending, posted and reversed, receipts that contradict each other, an audit with a penalty and an
//! appeal, hostile reasons, and the log with a witness.
#![allow(clippy::unwrap_used, dead_code)] // test support: a failure should fail the test; not every test uses all of it

use std::path::Path;
use std::sync::Arc;

use kvasir_ledger::head::HeadFile;
use kvasir_ledger::log::{
    Checkpoint, CosignerKey, bundles_of, cosign, encode_bundle, encode_tile, log_verifier, tiles_of,
};
use kvasir_ledger::publish::{KnownWitness, LogFiles, Publisher};
use kvasir_ledger::server::listen;
use kvasir_ledger::store::{Entry, Store, Stretch};
use kvasir_ledger::witness::{Witness, service};
use kvasir_merkle::Hash;
use kvasir_wire::account::{
    Appeal, Audit, AuditVerdict, Correction, Measure, Penalty, Settlement, Statement,
};
use kvasir_wire::id::{ModelDigest, PluginDigest};
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::KeyName;
use kvasir_wire::receipt::{Receipt, Terms};

use super::network::{Network, START, counters};

pub const DAY: u64 = 86_400;
pub const DAYS: u64 = 11;
pub const WALLETS: u8 = 4;
/// The clock when everything has happened.
pub const END: u64 = START + (DAYS - 1) * DAY + 7_200;
/// What a stranger may put into a note.
pub const HOSTILE: &str =
    "<script>alert(1)</script><img src=x onerror=alert(2)> \u{202e}desrever\u{202c} & \"quoted\" 'too'";

pub struct Scene {
    /// One network for each wallet; hub, treasury and settler are the same in all.
    pub networks: Vec<Network>,
    /// The settlement that was reversed.
    pub reversed: Settlement,
    /// The receipt that another one contradicts, and that other one.
    pub conflict: (Receipt, Receipt),
}

const LEDGER_KEY: u8 = 92;
const AUDITOR_KEY: u8 = 95;

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed([number; 32])
}

/// The network of one wallet.
pub fn network(wallet: u8) -> Network {
    let (wallet_key, worker, backbone) = (key(50 + wallet), key(60 + wallet), key(70 + wallet % 2));
    Network { wallet: wallet_key, worker, backbone, ..Network::new() }
}

/// Number of a wallet's session on a day.
pub fn session(wallet: u8, day: u64) -> u8 {
    1 + wallet + WALLETS * u8::try_from(day).unwrap()
}

/// Lets it all happen in `store`.
pub fn play(store: &mut Store) -> Scene {
    store.declare_keys(&key(LEDGER_KEY), START).unwrap();
    let networks: Vec<Network> = (0..WALLETS).map(network).collect();
    for (nonce, network) in (1..).zip(&networks) {
        let fund = network.fund(40_000_000_000 * i64::from(nonce), nonce);
        for note in [network.price(), network.delegation(), network.grant(1_000_000_000), fund] {
            store.accept_note(note.to_string().as_bytes(), START).unwrap();
        }
    }
    let mut credit = [0i64; WALLETS as usize];
    let (mut reversed, mut conflict) = (None, None);
    for day in 0..DAYS {
        let morning = START + day * DAY;
        let evening = morning + 3_600;
        store.sweep(morning).unwrap();
        for (wallet, network) in (0..WALLETS).zip(&networks) {
            // The last wallet joins late, the second one rests sometimes.
            if (wallet == 3 && day < 6) || (wallet == 1 && day % 3 == 1) {
                continue;
            }
            let number = session(wallet, day);
            let served = (day * 7 + u64::from(wallet) * 3) % 11 + 1;
            let (up, down) = (served * 212_992, served * 425_984 + 8);
            let first = first(network, number, morning, (up, down));
            let second = first.next(counters(up * 2, down * 2), morning + 600, false).unwrap();
            let last = second.next(counters(up * 3, down * 3), morning + 1_200, day < DAYS - 1).unwrap();
            for receipt in [&first, &second, &last] {
                let note = network.sign(receipt);
                store.accept_receipt(note.to_string().as_bytes(), receipt.to).unwrap();
            }
            if (wallet, day) == (0, 8) {
                let other = first.next(counters(up * 2 + 1, down * 2), morning + 600, false).unwrap();
                let note = network.sign(&other);
                store.accept_receipt(note.to_string().as_bytes(), evening).unwrap_err();
                conflict = Some((second.clone(), other));
            }
            // The latest session of the last wallet waits.
            if wallet == 3 && day == DAYS - 1 {
                continue;
            }
            let bytes = last.billed().get();
            let part = (number, 1, 3, bytes);
            let before = &mut credit[usize::from(wallet)];
            let settlement = network.settlement(&[part], *before, evening);
            *before += settlement.amount.get();
            network.settle(store, &settlement).unwrap();
            if (wallet, day) == (2, 4) {
                let (of, reason) = (settlement.id(), HOSTILE.to_owned());
                let correction =
                    Correction { network: network.name.clone(), settlement: of, reason, at: evening + 60 };
                let note = correction.sign(&network.treasury).unwrap();
                store.accept_note(note.to_string().as_bytes(), evening + 60).unwrap();
                *before -= settlement.amount.get();
                reversed = Some(settlement);
            }
        }
    }
    judge(store, &networks[0], &conflict.as_ref().unwrap().0);
    Scene { networks, reversed: reversed.unwrap(), conflict: conflict.unwrap() }
}

/// An auditor convicts the worker of a receipt, the treasury acts on it, the worker appeals.
fn judge(store: &mut Store, of: &Network, receipt: &Receipt) {
    let (network, at) = (of.name.clone(), END - 600);
    let audit = Audit {
        network: network.clone(),
        auditor: key(AUDITOR_KEY).public(),
        session: receipt.terms.session,
        seq: receipt.seq,
        index: 1,
        work: receipt.counters.work,
        verdict: AuditVerdict::Convicted,
        expected: Hash([1; 32]),
        got: Hash([2; 32]),
        model: receipt.terms.model,
        plugin: receipt.terms.plugin,
        checkpoint: Hash([3; 32]),
        at,
    };
    let audit = audit.sign(&key(AUDITOR_KEY)).unwrap();
    let penalty = Penalty {
        network: network.clone(),
        worker: of.worker.public().digest(),
        measure: Measure::Watched,
        reason: "its rows differ from those that three engines compute".to_owned(),
        evidence: audit.leaf_hash(),
        at,
    };
    let penalty = penalty.sign(&of.treasury).unwrap();
    let reason = HOSTILE.to_owned();
    let appeal = Appeal { network, worker: of.worker.public(), penalty: penalty.leaf_hash(), reason, at };
    for note in [audit, penalty, appeal.sign(&of.worker).unwrap()] {
        store.accept_note(note.to_string().as_bytes(), at).unwrap();
    }
}

/// The publisher of the ledger in `folder`. It asks a witness that a thread serves while the process lives, and one where
/// nobody is.
pub fn publisher(folder: &Path) -> Publisher {
    let origin: KeyName = "kvasir.example/atlas/00000001".parse().unwrap();
    HeadFile::create(&folder.join("head.db"), &origin).unwrap();
    let log = log_verifier(&origin, key(90).public());
    let seen = folder.join("seen");
    std::fs::create_dir(&seen).unwrap();
    let witness = Witness::open("witness.example/first".parse().unwrap(), key(91), [log], seen).unwrap();
    let known = witness.cosigner();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
            tell.send(address).unwrap();
            service::serve(listener, witness, Arc::new(|| END - 2), std::future::pending()).await;
        });
    });
    let away = CosignerKey::new("witness.example/away".parse().unwrap(), key(93).public());
    Publisher::open(LogFiles {
        store: folder.join("ledger.db"),
        network: Network::new().name,
        head: folder.join("head.db"),
        folder: folder.join("log"),
        key: key(90),
        witnesses: vec![
            KnownWitness { url: format!("http://{}", told.recv().unwrap()), key: known },
            KnownWitness { url: "http://127.0.0.1:1".to_owned(), key: away },
        ],
        quorum: 0,
    })
    .unwrap()
}

fn first(network: &Network, session: u8, from: u64, (up, down): (u64, u64)) -> Receipt {
    let terms = Terms {
        from,
        model: ModelDigest([7; 32]),
        plugin: PluginDigest([8 + session % 2; 32]),
        ..network.terms(session)
    };
    Receipt::first(terms, counters(up, down), from + 10, false).unwrap()
}

/// Publishes the first `size` entries (at most 256) in the folder `log` beside the database, as another process would.
pub fn publish(store: &Store, folder: &Path, size: u64) {
    let mut entries: Vec<Entry> = store.answers().entries_page(None, Stretch::Before(size), 256).unwrap();
    entries.reverse();
    let last = entries.last().unwrap();
    assert_eq!((entries[0].number, last.number), (0, size - 1), "one tile holds them all");
    let log = folder.join("log");
    let write = |path: String, bytes: Vec<u8>| {
        let path = log.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    let leaves: Vec<_> = entries.iter().map(|entry| entry.leaf).collect();
    for tile in tiles_of(0, size) {
        write(tile.path(), encode_tile(&leaves));
    }
    for bundle in bundles_of(0, size) {
        write(bundle.path(), encode_bundle(entries.iter().map(|entry| entry.note.as_bytes())).unwrap());
    }
    let origin: KeyName = "kvasir.example/atlas/0badcafe".parse().unwrap();
    let signed = Checkpoint { origin: origin.clone(), size, root: last.root }.sign(&key(90)).unwrap();
    let text = signed.checkpoint().text();
    let witness = cosign(&text, &"witness.example/first".parse().unwrap(), &key(91), END - 2);
    write("checkpoint".to_owned(), signed.with_lines([witness]).unwrap().note().to_string().into_bytes());
    let vkey = log_verifier(&origin, key(90).public()).to_string();
    std::fs::write(folder.join("log.vkey"), format!("{vkey}\n")).unwrap();
}
