//! The public log as a stranger sees it: after every kind of accident it is whole, or nothing has changed.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use kvasir_ledger::head::HeadFile;
use kvasir_ledger::log::*;
use kvasir_ledger::publish::{KnownWitness, LogFiles, Publisher};
use kvasir_ledger::store::Store;
use kvasir_ledger::witness::{Witness, service};
use kvasir_merkle::{Tree, leaf_hash};
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::KeyName;
use network::{Network, post};

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

fn origin() -> KeyName {
    "kvasir.example/atlas/00000001".parse().unwrap()
}

struct Scene {
    folder: tempfile::TempDir,
    network: Network,
    store: Store,
    /// Where receipts stand in their session.
    seq: u64,
    witnesses: Vec<KnownWitness>,
    quorum: usize,
}

impl Scene {
    fn new() -> Self {
        let (folder, network) = (tempfile::tempdir().unwrap(), Network::new());
        let path = folder.path().join("ledger.db");
        Store::create(&path, &network.name).unwrap();
        HeadFile::create(&folder.path().join("head.db"), &origin()).unwrap();
        let mut store = Store::open(&path, &network.name, network.keys()).unwrap();
        store.declare_keys(&key(40), network::START).unwrap();
        network.prepare(&mut store);
        Self { folder, network, store, seq: 0, witnesses: Vec::new(), quorum: 0 }
    }

    fn files(&self) -> LogFiles {
        LogFiles {
            store: self.path("ledger.db"),
            network: self.network.name.clone(),
            head: self.path("head.db"),
            folder: self.path("log"),
            key: key(41),
            witnesses: self.witnesses.clone(),
            quorum: self.quorum,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn publisher(&self) -> Publisher {
        Publisher::open(self.files()).unwrap()
    }

    /// Stores `count` more receipts, each a session of its own.
    fn grow(&mut self, count: u64) {
        for _ in 0..count {
            self.seq += 1;
            let mut receipt = self.network.first(1, 1, 2);
            receipt.terms.session.0[..8].copy_from_slice(&self.seq.to_le_bytes());
            receipt.terms.session.0[8] = 0xff;
            post(&mut self.store, &self.network.sign(&receipt)).unwrap();
        }
    }

    /// Everything that is published, checked from outside: tiles, bundles, root, signature. Gives the head.
    fn check(&self) -> Checkpoint {
        let source = FolderSource(self.path("log"));
        let log = log_verifier(&origin(), key(41).public());
        let bytes = source.read(CHECKPOINT_PATH, MAX_CHECKPOINT_BYTES).unwrap().unwrap();
        let head = SignedCheckpoint::verify(&bytes, &log).unwrap().checkpoint().clone();
        let prover = Prover::new(&source, head.size);
        let tree: Tree = (0..head.size).map(|index| leaf_hash(&prover.entry(index).unwrap())).collect();
        assert_eq!(tree.root(), head.root);
        assert_eq!(prover.root().unwrap(), head.root);
        for tile in tiles_of(0, head.size) {
            assert!(source.read(&tile.path(), 8192).unwrap().is_some(), "{}", tile.path());
        }
        head
    }
}

#[test]
fn what_is_durable_is_published_and_grows_consistently() {
    let mut scene = Scene::new();
    let mut publisher = scene.publisher();
    let mut heads = Vec::new();
    for count in [0, 1, 7, 240, 1, 3, 300, 0] {
        scene.grow(count);
        let published = publisher.publish().unwrap();
        let head = scene.check();
        assert_eq!((head.size, head.root), (published.size, published.root));
        heads.push(head);
    }
    let last = heads.last().unwrap();
    assert_eq!(last.size, scene.store.answers().head().unwrap().0);
    let source = FolderSource(scene.path("log"));
    let prover = Prover::new(&source, last.size);
    for old in &heads {
        prover.consistency(old.size).unwrap().verify(&old.root, &last.root).unwrap();
    }
    // Partial files of what is full by now are gone; those of the last tile are there.
    assert!(!scene.path("log/tile/0/000.p").exists() && scene.path("log/tile/0/002.p").exists());
}

#[test]
fn a_publisher_that_was_ended_anywhere_goes_on() {
    let mut scene = Scene::new();
    scene.grow(250);
    scene.publisher().publish().unwrap();
    scene.grow(10);
    let whole = scene.publisher().publish().unwrap();
    let partial = |folder: &str| format!("{folder}/001.p/{}", whole.size - TILE_HASHES);
    let names = ["checkpoint", "tile/0/000", "tile/entries/000", "tile/1/000.p/1"].map(str::to_owned);
    let files: Vec<String> = names.into_iter().chain([partial("tile/entries"), partial("tile/0")]).collect();
    // The checkpoint was not put in place, or files of the head were lost with it: as ended after any step.
    for lost in 0..1 << files.len() {
        for (at, name) in files.iter().enumerate() {
            if lost & (1 << at) != 0 {
                fs::remove_file(scene.path("log").join(name)).unwrap();
            }
        }
        assert_eq!(scene.publisher().publish().unwrap(), whole, "{lost:b}");
        assert_eq!(scene.check().size, whole.size);
    }
    // Drafts of files that were cut off are nobody's business.
    fs::write(scene.path("log/tile/0/draft.partial"), b"half").unwrap();
    scene.grow(1);
    assert_eq!(scene.publisher().publish().unwrap().size, whole.size + 1);
    scene.check();
}

#[test]
fn the_head_is_swapped_by_one_publisher_only() {
    let mut scene = Scene::new();
    let mut head = HeadFile::open(&scene.path("head.db")).unwrap();
    let (mut one, mut other) = (scene.publisher(), scene.publisher());
    one.publish().unwrap();
    let before = head.read().unwrap();
    scene.grow(3);
    other.publish().unwrap();
    // Whoever still holds the old head cannot go on from it.
    let stale = kvasir_ledger::head::Head { size: before.size + 9, ..before.clone() };
    assert!(!head.swap(&before, &stale).unwrap());
    scene.grow(2);
    one.publish().unwrap();
    scene.check();
    // A head that is taken back is never accepted.
    let now = head.read().unwrap();
    assert!(!head.swap(&now, &before).unwrap());
}

#[test]
fn a_store_that_lost_or_changed_entries_is_not_signed() {
    let mut scene = Scene::new();
    scene.grow(20);
    let vouched = scene.publisher().publish().unwrap();
    let damage = |statement: &str, expected: &str| {
        let file = rusqlite::Connection::open(scene.path("ledger.db")).unwrap();
        file.pragma_update(None, "wal_checkpoint", "TRUNCATE").unwrap();
        let before = fs::read(scene.path("ledger.db")).unwrap();
        file.pragma_update(None, "foreign_keys", false).unwrap();
        file.execute_batch(&format!(
            "DROP TRIGGER no_UPDATE_of_entries; DROP TRIGGER no_DELETE_of_entries; DROP TRIGGER no_DELETE_of_receipts; {statement};
             PRAGMA wal_checkpoint(TRUNCATE);"
        ))
        .unwrap();
        drop(file);
        let error = scene.publisher().publish().unwrap_err().to_string();
        assert!(error.contains(expected), "{statement}: {error}");
        fs::write(scene.path("ledger.db"), before).unwrap();
        assert_eq!(scene.publisher().publish().unwrap(), vouched);
    };
    let last = vouched.size - 1;
    damage(
        &format!("DELETE FROM receipts WHERE entry = {last}; DELETE FROM entries WHERE number = {last}"),
        "vouched for",
    );
    damage(
        "UPDATE entries SET note = replace(note, 'up 1', 'up 7') WHERE number = 12",
        "entry 12 is damaged",
    );
    damage("UPDATE entries SET leaf = zeroblob(32) WHERE number = 9", "entry 9 is damaged");
    damage(
        &format!("UPDATE entries SET root = zeroblob(32) WHERE number = {last}"),
        &format!("entry {last} is damaged"),
    );
    damage("UPDATE entries SET number = 1000 WHERE number = 11", "entry 11 is damaged");
}

#[test]
fn a_published_file_that_holds_other_bytes_is_never_overwritten() {
    let mut scene = Scene::new();
    scene.grow(300);
    scene.publisher().publish().unwrap();
    let tile = scene.path("log/tile/0/000");
    let mut bytes = fs::read(&tile).unwrap();
    bytes[40] ^= 1;
    fs::write(&tile, &bytes).unwrap();
    let error = scene.publisher().publish().unwrap_err().to_string();
    assert!(error.contains("tile/0/000") && error.contains("never change"), "{error}");
    assert_eq!(fs::read(&tile).unwrap(), bytes);
}

#[test]
fn witnesses_cosign_and_one_that_is_away_is_asked_again() {
    let mut scene = Scene::new();
    let log = log_verifier(&origin(), key(41).public());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let seen = tempfile::tempdir().unwrap();
    let name = "w.example".parse().unwrap();
    let witness = Witness::open(name, key(50), [log.clone()], seen.path().to_owned()).unwrap();
    let known = witness.cosigner();
    let away = CosignerKey::new("away.example".parse().unwrap(), key(51).public());
    scene.witnesses = vec![
        KnownWitness { url: format!("http://{address}"), key: known.clone() },
        // Nothing listens there.
        KnownWitness { url: "http://127.0.0.1:1".into(), key: away },
    ];
    let mut publisher = scene.publisher();
    // Accepted only once it is served: the listener's queue holds the question until then.
    runtime.spawn(service::serve(listener, witness, Arc::new(|| network::START), std::future::pending()));
    assert_eq!(publisher.publish().unwrap().witnesses, ["w.example"]);
    scene.grow(5);
    assert_eq!(publisher.publish().unwrap().witnesses, ["w.example"]);
    let policy = Policy::parse(&format!("log {log}\nwitness w {known}\nquorum w\n")).unwrap();
    let bytes = fs::read(scene.path("log/checkpoint")).unwrap();
    let (head, quorum) = policy.verify(&bytes).unwrap();
    assert_eq!((head.checkpoint().size, quorum.cosigned.len()), (scene.check().size, 1));
}

#[test]
fn below_the_quorum_readers_keep_the_head_before() {
    let mut scene = Scene::new();
    let log = log_verifier(&origin(), key(41).public());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let seen = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let known: Vec<KnownWitness> = (0..2u8)
        .map(|number| {
            let folder = seen[usize::from(number)].path().to_owned();
            let name = format!("w{number}.example").parse().unwrap();
            let witness = Witness::open(name, key(50 + number), [log.clone()], folder).unwrap();
            let key = witness.cosigner();
            let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            runtime.spawn(service::serve(
                listener,
                witness,
                Arc::new(|| network::START),
                std::future::pending(),
            ));
            KnownWitness { url, key }
        })
        .collect();
    (scene.witnesses, scene.quorum) = (known.clone(), 2);
    let first = scene.publisher().publish().unwrap();
    assert_eq!(first.witnesses, ["w0.example", "w1.example"]);
    let shown = fs::read(scene.path("log/checkpoint")).unwrap();

    // One is away, the log grows past a tile: readers keep the old head, and everything under it.
    scene.witnesses[1].url = "http://127.0.0.1:1".into();
    let mut publisher = scene.publisher();
    for _ in 0..2 {
        scene.grow(150);
        let error = publisher.publish().unwrap_err().to_string();
        assert!(error.contains("1 of the 2 cosignatures"), "{error}");
        assert_eq!(fs::read(scene.path("log/checkpoint")).unwrap(), shown);
        assert_eq!(scene.check().size, first.size);
    }
    // With two out of three it goes on without the one that is away.
    let third = CosignerKey::new("w2.example".parse().unwrap(), key(52).public());
    let away = KnownWitness { url: "http://127.0.0.1:1".into(), key: third };
    scene.witnesses = vec![known[0].clone(), away, known[1].clone()];
    let published = scene.publisher().publish().unwrap();
    assert_eq!(published.witnesses, ["w0.example", "w1.example"]);
    assert_eq!((scene.check().size, published.size), (first.size + 300, first.size + 300));
}

#[test]
fn a_key_that_is_not_the_log_s_signs_nothing() {
    let mut scene = Scene::new();
    let vkey = log_verifier(&origin(), key(41).public());
    let wrong = |scene: &Scene| LogFiles { key: key(77), ..scene.files() };
    // Before the first head, what auditors were given says whose log it is.
    fs::write(scene.path("log.vkey"), format!("{vkey}\n")).unwrap();
    let error = Publisher::open(wrong(&scene)).err().unwrap().to_string();
    assert!(error.contains("log.vkey") && error.contains("right log.key"), "{error}");
    scene.publisher().publish().unwrap();
    // Afterwards, the head does.
    fs::remove_file(scene.path("log.vkey")).unwrap();
    let (head, shown) =
        (fs::read(scene.path("head.db")).unwrap(), fs::read(scene.path("log/checkpoint")).unwrap());
    scene.grow(1);
    let error = Publisher::open(wrong(&scene)).err().unwrap().to_string();
    assert!(error.contains("not signed by the log.key"), "{error}");
    assert_eq!(
        (fs::read(scene.path("head.db")).unwrap(), fs::read(scene.path("log/checkpoint")).unwrap()),
        (head, shown)
    );
    scene.publisher().publish().unwrap();
    scene.check();
}

#[test]
fn a_witness_that_never_answers_keeps_no_head_from_readers() {
    let mut scene = Scene::new();
    // It takes the question, and says nothing until it is told to hang up.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let witness = CosignerKey::new("silent.example".parse().unwrap(), key(51).public());
    scene.witnesses = vec![KnownWitness { url, key: witness }];
    let (mut publisher, checkpoint) = (scene.publisher(), scene.path("log/checkpoint"));
    let publishing = std::thread::spawn(move || publisher.publish());
    let (mut asked, _) = silent.accept().unwrap();
    std::io::Read::read_exact(&mut asked, &mut [0; 1]).unwrap();
    // While it is waited for, readers have the head.
    while !checkpoint.exists() {
        assert!(!publishing.is_finished());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(!publishing.is_finished());
    drop(asked);
    assert!(publishing.join().unwrap().unwrap().witnesses.is_empty());
    assert_eq!(scene.check().size, scene.store.answers().head().unwrap().0);
}
