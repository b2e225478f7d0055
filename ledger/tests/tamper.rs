//! One fault at a time in a good log of 1,000 receipts: the audit finds every one, and names the entry.
//!
//! Faults are of two kinds. Some are in the files alone: a disk, a mirror, a clumsy hand. Others are a dishonest log's, which
//! changes entries, makes the tree anew and signs it, with a witness that cosigns whatever it is given. Faults in the
//! database are `verifying.rs`'s.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use std::num::NonZeroUsize;
use std::sync::OnceLock;

use kvasir_ledger::audit::{AuditError, AuditOptions, AuditReport, audit, hash_only};
use kvasir_ledger::log::{
    CHECKPOINT_PATH, Checkpoint, CosignerKey, LogSource, Policy, SourceError, cosign, log_verifier,
};
use kvasir_merkle::{Hash, leaf_hash};
use kvasir_wire::account::{
    Appeal, Audit, AuditVerdict, Correction, Delegation, Fund, KeyBelief, KeyRole, KeyState, Measure,
    OriginChange, Penalty, SettledSession, Settlement, Statement,
};
use kvasir_wire::key::SecretKey;
use kvasir_wire::limits::CLOCK_SKEW_SECONDS;
use kvasir_wire::money::{MeteredBytes, NanoKvr, PricePerByte};
use kvasir_wire::note::{Note, Signer};
use kvasir_wire::receipt::{Receipt, ReceiptId};
use network::good_log::{
    FOUNDATION, Files, LEDGER_SEED, LOG_SEED, SEEN_AT, entries, head, note_of, origin, policy, published,
    secret, session, settlement, witness_key,
};
use network::{Network, START};

const RECEIPTS: u64 = 1000;
const SESSIONS: u64 = 10;
/// 100 receipts, then a settlement.
const STRETCH: u64 = 101;
/// In the middle of a session's receipts, and of a tile.
const MIDDLE: usize = 400;

struct Scene {
    network: Network,
    entries: Vec<Vec<u8>>,
}

impl Scene {
    fn new() -> Self {
        static GOOD: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
        let network = Network::new();
        let entries = GOOD.get_or_init(|| entries(&network, RECEIPTS, SESSIONS)).clone();
        Self { network, entries }
    }

    fn receipt(&self, at: usize) -> Receipt {
        Receipt::parse(note_of(&self.entries[at]).text()).unwrap()
    }

    /// The receipt at `at` made anew by all three, who collude.
    fn collude(&mut self, at: usize, change: impl FnOnce(&mut Receipt)) -> u64 {
        let mut receipt = self.receipt(at);
        change(&mut receipt);
        self.entries[at] = self.network.sign(&receipt).to_string().into_bytes();
        at as u64
    }

    /// The entry's text edited, its signatures left as they are.
    fn edit(&mut self, at: usize, from: &str, to: &str) -> u64 {
        let text = String::from_utf8(self.entries[at].clone()).unwrap();
        assert!(text.contains(from), "{text}");
        self.entries[at] = text.replacen(from, to, 1).into_bytes();
        at as u64
    }

    /// The settlement at `at` made anew by the settler.
    fn resettle(&mut self, at: usize, change: impl FnOnce(&mut Settlement)) -> u64 {
        let mut settlement = Settlement::parse(note_of(&self.entries[at]).text()).unwrap();
        change(&mut settlement);
        let mut note = Note::unsigned(settlement.text()).unwrap();
        note.sign(Signer::Settler.key_name(&self.network.name), &self.network.settler).unwrap();
        self.entries[at] = note.to_string().into_bytes();
        at as u64
    }

    fn append(&mut self, note: Note) -> u64 {
        self.entries.push(note.to_string().into_bytes());
        self.entries.len() as u64 - 1
    }

    fn first_settlement(&self) -> usize {
        (FOUNDATION + STRETCH - 1) as usize
    }

    fn belief(&self, role: KeyRole, key: &SecretKey, state: KeyState) -> KeyBelief {
        KeyBelief { network: self.network.name.clone(), role, key: key.public(), state, at: START }
    }

    fn finding(&self, auditor: &SecretKey) -> Audit {
        let receipt = self.receipt(MIDDLE);
        Audit {
            network: self.network.name.clone(),
            auditor: auditor.public(),
            session: receipt.terms.session,
            seq: receipt.seq,
            index: 3,
            work: receipt.counters.work,
            verdict: AuditVerdict::Convicted,
            expected: Hash([1; 32]),
            got: Hash([2; 32]),
            model: receipt.terms.model,
            plugin: receipt.terms.plugin,
            checkpoint: Hash([3; 32]),
            at: START + 1000,
        }
    }

    fn penalty(&self, evidence: Hash) -> Note {
        let penalty = Penalty {
            network: self.network.name.clone(),
            worker: self.network.worker.public().digest(),
            measure: Measure::Excluded,
            reason: "a test".into(),
            evidence,
            at: START,
        };
        penalty.sign(&self.network.treasury).unwrap()
    }

    fn correction(&self, at: u64) -> Correction {
        let text = note_of(&self.entries[self.first_settlement()]);
        let settlement = Settlement::parse(text.text()).unwrap().id();
        Correction { network: self.network.name.clone(), settlement, reason: "a test".into(), at }
    }
}

fn options() -> AuditOptions {
    AuditOptions {
        policy: Policy::parse(&policy()).unwrap(),
        treasury: None,
        remembered: None,
        now: START + 1000,
        clock: START + 1000,
        threads: NonZeroUsize::new(2).unwrap(),
    }
}

fn run(files: &Files, options: &AuditOptions) -> Result<AuditReport, AuditError> {
    audit(files, options, &mut |_, _| {})
}

fn checkpoint(files: &Files) -> Checkpoint {
    let note = Note::parse(&files.0[CHECKPOINT_PATH]).unwrap();
    Checkpoint::parse(note.text()).unwrap()
}

#[test]
fn a_good_log_is_in_order_and_its_balances_are_exact() {
    let mut scene = Scene::new();
    scene.append(scene.correction(START + 2000).sign(&scene.network.treasury).unwrap());
    let finding = scene.finding(&secret(60)).sign(&secret(60)).unwrap();
    let evidence = finding.leaf_hash();
    scene.append(finding);
    let penalty = Penalty {
        network: scene.network.name.clone(),
        worker: scene.network.worker.public().digest(),
        measure: Measure::Watched,
        reason: "a wrong result".into(),
        evidence,
        at: START + 3000,
    };
    let penalty = penalty.sign(&scene.network.treasury).unwrap();
    let appeal = Appeal {
        network: scene.network.name.clone(),
        worker: scene.network.worker.public(),
        penalty: penalty.leaf_hash(),
        reason: "the memory was bad".into(),
        at: START + 4000,
    };
    scene.append(penalty);
    scene.append(appeal.sign(&scene.network.worker).unwrap());
    // A receipt's hash is not kept: it is looked for once more.
    scene.append(scene.penalty(leaf_hash(&scene.entries[MIDDLE])));
    // A hub's key is replaced: what it signed stands.
    scene.append(
        scene.belief(KeyRole::Hub, &secret(61), KeyState::Believed).sign(&secret(LEDGER_SEED)).unwrap(),
    );
    let hub = scene.network.hub.clone();
    scene.append(scene.belief(KeyRole::Hub, &hub, KeyState::Retired).sign(&secret(LEDGER_SEED)).unwrap());

    let report = run(&published(&scene.entries), &options()).unwrap();
    assert_eq!((report.receipts, report.settlements, report.reversed), (RECEIPTS, 10, 1));
    assert_eq!((report.witnesses.as_slice(), report.cosigned_at), (&["w".to_owned()][..], Some(SEEN_AT)));
    // 10 receipts of 10 sessions of 30 bytes at 7 nanoKVR are 21,000 a settlement.
    let balance = |kind: &str| report.balances.iter().find(|one| one.kind == kind).unwrap().nanokvr;
    assert_eq!((balance("pending"), balance("posted")), (9 * 21_000, 0));
    assert_eq!((balance("treasury"), balance("payer")), (-1_000_000_000_000, 1_000_000_000_000 - 9 * 21_000));
    assert_eq!(report.signatures, 3 * RECEIPTS + 8 + 10 + 7);
    let later = AuditOptions { now: START + 1000 + 24 * 3600, ..options() };
    let report = run(&published(&scene.entries), &later).unwrap();
    assert_eq!(report.balances.iter().find(|one| one.kind == "posted").unwrap().nanokvr, 9 * 21_000);
    // It extends what was audited before, at any size.
    for size in [1, 255, 256, 257, 700] {
        let remembered = Some(checkpoint(&published(&scene.entries[..size])));
        run(&published(&scene.entries), &AuditOptions { remembered, ..options() }).unwrap();
    }
    assert!(report.gaps.is_empty());
}

#[test]
fn faults_in_the_files_are_named_by_the_first_entry_that_they_touch() {
    type Fault = (&'static str, fn(&mut Files), u64);
    fn file<'a>(files: &'a mut Files, path: &str) -> &'a mut Vec<u8> {
        files.0.get_mut(path).unwrap()
    }
    /// Where entry `at` begins in its bundle, its two bytes of length first.
    fn place(bundle: &[u8], at: usize) -> usize {
        (0..at).fold(0, |place, _| {
            place + 2 + usize::from(u16::from_be_bytes([bundle[place], bundle[place + 1]]))
        })
    }
    let faults: Vec<Fault> = vec![
        (
            "a bit of an entry",
            |files| {
                let bundle = file(files, "tile/entries/001");
                let place = place(bundle, 44) + 90;
                bundle[place] ^= 1;
            },
            300,
        ),
        (
            "a bit of a signature",
            |files| {
                let bundle = file(files, "tile/entries/001");
                let place = place(bundle, 45) - 9;
                bundle[place] ^= 1;
            },
            300,
        ),
        ("an entry's length", |files| file(files, "tile/entries/001")[1] ^= 1, 256),
        ("a bundle cut off", |files| file(files, "tile/entries/001").truncate(5000), 256),
        ("bytes after a bundle", |files| file(files, "tile/entries/001").push(0), 256),
        ("a bundle gone", |files| drop(files.0.remove("tile/entries/001")), 256),
        (
            "a bundle for another",
            |files| {
                let other = files.0["tile/entries/000"].clone();
                files.0.insert("tile/entries/001".into(), other);
            },
            256,
        ),
        (
            "a bundle too long to be one",
            |files| {
                files.0.insert("tile/entries/001".into(), vec![0; kvasir_ledger::log::MAX_BUNDLE_BYTES + 1]);
            },
            256,
        ),
        ("a bit of a leaf's hash", |files| file(files, "tile/0/001")[32 * 44 + 7] ^= 0x80, 300),
        ("a tile cut off", |files| file(files, "tile/0/002").truncate(8191), 512),
        ("a tile gone", |files| drop(files.0.remove("tile/0/002")), 512),
        ("a bit of an upper tile", |files| file(files, "tile/1/000.p/3")[32 * 2] ^= 4, 512),
        ("an upper tile gone", |files| drop(files.0.remove("tile/1/000.p/3")), 0),
        (
            "two entries in each other's place",
            |files| {
                let bundle = file(files, "tile/entries/001");
                let (first, second, end) = (place(bundle, 10), place(bundle, 11), place(bundle, 12));
                let (one, two) = (bundle[first..second].to_vec(), bundle[second..end].to_vec());
                bundle.splice(first..end, two.into_iter().chain(one));
            },
            266,
        ),
        (
            "an entry twice instead of the next",
            |files| {
                let bundle = file(files, "tile/entries/001");
                let (first, second, end) = (place(bundle, 10), place(bundle, 11), place(bundle, 12));
                let one = bundle[first..second].to_vec();
                bundle.splice(second..end, one);
            },
            267,
        ),
        (
            "an entry and its hash",
            |files| {
                let bundle = file(files, "tile/entries/001");
                let (first, second) = (place(bundle, 10), place(bundle, 11));
                bundle[first + 60] ^= 1;
                let leaf = leaf_hash(&bundle[first + 2..second]);
                file(files, "tile/0/001")[320..352].copy_from_slice(leaf.as_bytes());
            },
            // A text that was changed together with its hash is wrong by itself, before its tile is.
            266,
        ),
    ];
    let good = published(&Scene::new().entries);
    run(&good, &options()).unwrap();
    for (what, fault, index) in faults {
        let mut files = good.clone();
        fault(&mut files);
        let error = run(&files, &options()).unwrap_err();
        assert_eq!(error.index(), Some(index), "{what}: {error}");
    }
}

/// The third line of a head.
fn root_line(text: &str) -> &str {
    text.lines().nth(2).unwrap()
}

#[test]
fn faults_of_the_head_are_found() {
    let scene = Scene::new();
    let good = published(&scene.entries);
    let text = String::from_utf8(good.0[CHECKPOINT_PATH].clone()).unwrap();
    let size = scene.entries.len() as u64;
    let root = checkpoint(&good).root;
    let unsigned = Checkpoint { origin: origin(), size, root };
    let signed = unsigned.sign(&secret(LOG_SEED)).unwrap();
    let with = |line| signed.with_lines([line]).unwrap().note().to_string();
    let other_witness = cosign(signed.note().text(), witness_key().name(), &secret(51), SEEN_AT);
    let mut later = head(size, root).note().signatures()[1].clone();
    later.signature[7] ^= 1;
    let mut torn = text.clone();
    let place = torn.rfind("w.example ").unwrap() + 40;
    torn.replace_range(place..=place, if &torn[place..=place] == "A" { "B" } else { "A" });
    let by_stranger = unsigned.sign(&secret(42)).unwrap().note().to_string();
    let other_origin = Checkpoint { origin: "kvasir.example/atlas/00000002".parse().unwrap(), size, root };
    let other_origin = other_origin.sign(&secret(LOG_SEED)).unwrap().note().to_string();
    let elsewhere = head(size, Hash([7; 32])).note().to_string();
    let namesake = CosignerKey::new(witness_key().name().clone(), secret(51).public());
    assert_ne!(namesake.id(), witness_key().id());
    for (what, head) in [
        ("another size", text.replacen(&format!("\n{size}\n"), &format!("\n{}\n", size - 1), 1)),
        (
            "another size, with a zero before it",
            text.replacen(&format!("\n{size}\n"), &format!("\n0{size}\n"), 1),
        ),
        ("another root", text.replacen(root_line(&text), root_line(&elsewhere), 1)),
        ("a root that is none", text.replacen("=\n", "A\n", 1)),
        ("another name", text.replacen("00000001\n", "00000003\n", 1)),
        ("signed by a stranger", by_stranger),
        ("another log's", other_origin),
        ("no witness", signed.note().to_string()),
        ("a witness of the same name with another key", with(other_witness)),
        ("another time in the cosignature", with(later)),
        ("a torn cosignature", torn),
        ("the signature's other form", malleated(&text, 0)),
        ("the cosignature's other form", malleated(&text, 1)),
        ("line ends of another system", text.replace('\n', "\r\n")),
        ("no last line feed", text.trim_end().to_owned()),
        ("a line of its own", text.replacen("=\n\n", "=\nmore\n\n", 1)),
        ("nothing", String::new()),
    ] {
        let mut files = good.clone();
        assert_ne!(head, text, "{what}");
        files.0.insert(CHECKPOINT_PATH.into(), head.into_bytes());
        let error = run(&files, &options()).unwrap_err();
        // What is no note in this log's name is nobody's word.
        let nobodys =
            ["another name", "another log's", "line ends of another system", "no last line feed", "nothing"];
        match error {
            AuditError::Head(_) => assert!(error.is_fault() && !nobodys.contains(&what), "{what}: {error}"),
            AuditError::NoHead(_) => assert!(!error.is_fault() && nobodys.contains(&what), "{what}: {error}"),
            error => panic!("{what}: {error}"),
        }
    }
    let mut files = good.clone();
    files.0.remove(CHECKPOINT_PATH);
    assert!(matches!(run(&files, &options()), Err(AuditError::NoLog)));

    // A log that signs what its entries are not.
    let mut files = good.clone();
    files.0.insert(CHECKPOINT_PATH.into(), head(size, Hash([7; 32])).note().to_string().into_bytes());
    assert!(matches!(run(&files, &options()), Err(AuditError::Root { size: named, .. }) if named == size));
    // A log that was longer, and one with another past, against what was remembered.
    let remembered = Some(checkpoint(&good));
    let shorter = published(&scene.entries[..700]);
    let error = run(&shorter, &AuditOptions { remembered: remembered.clone(), ..options() }).unwrap_err();
    assert!(
        matches!(error, AuditError::RolledBack { size: 700, remembered } if remembered == size),
        "{error}"
    );
    let mut other = Scene::new();
    other.collude(MIDDLE + 1, |receipt| receipt.counters.rows += 1);
    let past = Some(checkpoint(&published(&other.entries[..MIDDLE + 2])));
    let error = run(&good, &AuditOptions { remembered: past, ..options() }).unwrap_err();
    assert!(matches!(error, AuditError::SplitView { size: 402, .. }), "{error}");
    let elsewhere = Some(Checkpoint { origin: "x.example".parse().unwrap(), size: 1, root });
    let error = run(&good, &AuditOptions { remembered: elsewhere, ..options() }).unwrap_err();
    assert!(matches!(error, AuditError::OtherLog { .. }), "{error}");
}

#[test]
fn a_source_that_shows_another_tile_at_the_second_look_convinces_nobody() {
    /// The log as it is, but a leaf that a penalty rests on stands in this tile whenever it is read again.
    struct Turning(Files, Hash, std::sync::atomic::AtomicUsize);
    impl LogSource for Turning {
        fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, SourceError> {
            let mut file = self.0.read(path, limit)?;
            if let Some(tile) = file.as_mut().filter(|_| path == "tile/0/001")
                && self.2.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 0
            {
                tile[..32].copy_from_slice(self.1.as_bytes());
            }
            Ok(file)
        }
    }
    let mut scene = Scene::new();
    let nothing = Hash([1; 32]);
    let at = scene.append(scene.penalty(nothing));
    let source = Turning(published(&scene.entries), nothing, Default::default());
    let error = audit(&source, &options(), &mut |_, _| {}).unwrap_err();
    assert_eq!(error.index(), Some(at), "{error}");
    assert!(error.to_string().contains("read again"), "{error}");
}

#[test]
fn a_source_that_fails_at_the_second_look_hides_no_entry_that_is_wrong() {
    struct Failing(Files, std::sync::atomic::AtomicUsize);
    impl LogSource for Failing {
        fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, SourceError> {
            if path == "tile/0/001" && self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 0 {
                return Err(SourceError::File {
                    place: path.into(),
                    source: std::io::Error::other("not now"),
                });
            }
            self.0.read(path, limit)
        }
    }
    let mut scene = Scene::new();
    scene.append(scene.penalty(leaf_hash(&scene.entries[MIDDLE])));
    scene.entries.push(b"no note\n".to_vec());
    let wrong = scene.entries.len() as u64 - 1;
    let source = Failing(published(&scene.entries), Default::default());
    let error = audit(&source, &options(), &mut |_, _| {}).unwrap_err();
    assert_eq!((error.index(), error.is_fault()), (Some(wrong), true), "{error}");
}

#[test]
fn faults_of_a_dishonest_log_are_named_by_their_entry() {
    type Fault = (&'static str, fn(&mut Scene) -> u64, &'static str);
    let faults: Vec<Fault> = vec![
        (
            "up and down in each other's place",
            |scene| {
                let receipt = scene.receipt(FOUNDATION as usize);
                let Receipt { counters, .. } = &receipt;
                scene.edit(
                    FOUNDATION as usize,
                    &format!("up {}\ndown {}\n", counters.up, counters.down),
                    &format!("up {}\ndown {}\n", counters.down, counters.up),
                )
            },
            "does not verify",
        ),
        (
            "more bytes, signed by the hub alone",
            |scene| {
                let mut receipt = scene.receipt(MIDDLE);
                receipt.counters.down = MeteredBytes::new(receipt.counters.down.get() + 1).unwrap();
                let mut note = Note::unsigned(receipt.text()).unwrap();
                note.sign(Signer::Hub.key_name(&scene.network.name), &scene.network.hub).unwrap();
                for line in &note_of(&scene.entries[MIDDLE]).signatures()[1..] {
                    note.append_unverified(line.clone()).unwrap();
                }
                scene.entries[MIDDLE] = note.to_string().into_bytes();
                MIDDLE as u64
            },
            "does not verify",
        ),
        (
            "a signature's other form",
            |scene| {
                let text = String::from_utf8(scene.entries[MIDDLE].clone()).unwrap();
                scene.entries[MIDDLE] = malleated(&text, 1).into_bytes();
                MIDDLE as u64
            },
            "does not verify",
        ),
        (
            "signatures in another order",
            |scene| {
                let note = note_of(&scene.entries[MIDDLE]);
                let mut turned = Note::unsigned(note.text()).unwrap();
                note.signatures()
                    .iter()
                    .rev()
                    .for_each(|line| turned.append_unverified(line.clone()).unwrap());
                scene.entries[MIDDLE] = turned.to_string().into_bytes();
                MIDDLE as u64
            },
            "signature line 1",
        ),
        (
            "a signature more",
            |scene| {
                let mut note = note_of(&scene.entries[MIDDLE]);
                note.sign(Signer::Auditor.key_name(&scene.network.name), &secret(60)).unwrap();
                scene.entries[MIDDLE] = note.to_string().into_bytes();
                MIDDLE as u64
            },
            "signature line 4",
        ),
        (
            "a signature less",
            |scene| {
                let text = String::from_utf8(scene.entries[MIDDLE].clone()).unwrap();
                let end = text.trim_end().rfind('\n').unwrap();
                scene.entries[MIDDLE] = text.as_bytes()[..=end].to_vec();
                MIDDLE as u64
            },
            "signature line 3",
        ),
        (
            "a signature in other letters",
            |scene| {
                let text = String::from_utf8(scene.entries[MIDDLE].clone()).unwrap();
                scene.entries[MIDDLE] = text
                    .trim_end()
                    .strip_suffix('=')
                    .map_or(text.replace("=\n", "\n"), |text| format!("{text}\n"))
                    .into_bytes();
                MIDDLE as u64
            },
            "base64",
        ),
        (
            "a number with a zero before it",
            |scene| scene.edit(MIDDLE, "\nup ", "\nup 0"),
            "without leading zeros",
        ),
        ("a line more", |scene| scene.edit(MIDDLE, "final 0\n", "final 0\nmore 1\n"), "line"),
        (
            "no note at all",
            |scene| {
                scene.entries[MIDDLE] = b"anything".to_vec();
                MIDDLE as u64
            },
            "a note is text",
        ),
        (
            "a kind that nobody knows",
            |scene| scene.edit(MIDDLE, "receipt@v1", "receipt@v2"),
            "no kind of entry",
        ),
        (
            "the same receipt twice",
            |scene| {
                let copy = scene.entries[MIDDLE].clone();
                scene.entries.push(copy);
                scene.entries.len() as u64 - 1
            },
            "there already",
        ),
        (
            "two receipts of one number",
            |scene| {
                let mut receipt = scene.receipt(MIDDLE);
                receipt.counters.rows += 1;
                scene.append(scene.network.sign(&receipt))
            },
            "there already",
        ),
        (
            "the same funding twice",
            |scene| {
                let copy = scene.entries[7].clone();
                scene.entries.push(copy);
                scene.entries.len() as u64 - 1
            },
            "an earlier entry says",
        ),
        (
            "a receipt left out that was settled",
            |scene| {
                let at = scene.first_settlement();
                scene.entries.remove(at - 1);
                at as u64 - 1
            },
            "has no receipt",
        ),
        (
            "the price left out",
            |scene| {
                scene.entries.remove(4);
                5
            },
            "price is not in the log",
        ),
        (
            "the ledger's key left out",
            |scene| {
                scene.entries.remove(0);
                0
            },
            "the ledger's own key",
        ),
        (
            "a settlement before what it settles",
            |scene| {
                let at = scene.first_settlement();
                scene.entries.swap(at, at - 1);
                at as u64 - 1
            },
            "has no receipt",
        ),
        (
            "a receipt before its grant",
            |scene| {
                scene.entries.swap(6, 8);
                6
            },
            "grant is not in the log",
        ),
        ("a receipt dated back", |scene| scene.collude(MIDDLE, |receipt| receipt.to = START + 1), "clock"),
        (
            "a counter that falls",
            |scene| scene.collude(MIDDLE, |receipt| receipt.counters.rows = receipt.counters.calls),
            "fell",
        ),
        (
            "another receipt before it",
            |scene| scene.collude(MIDDLE, |receipt| receipt.prev = Some(ReceiptId([1; 32]))),
            "prev",
        ),
        (
            "another model within a session",
            |scene| scene.collude(MIDDLE, |receipt| receipt.terms.model.0[0] ^= 1),
            "model",
        ),
        (
            "another worker within a session",
            |scene| {
                // It earns for the same wallet, too: alone it would be fine.
                let other = secret(61);
                let delegation = Delegation {
                    worker: other.public(),
                    ..Delegation::parse(scene.network.delegation().text()).unwrap()
                };
                let note = delegation.sign(&scene.network.wallet).unwrap();
                scene.entries.insert(FOUNDATION as usize, note.to_string().into_bytes());
                scene.network.worker = other;
                let digest = scene.network.worker.public().digest();
                scene.collude(MIDDLE + 1, |receipt| receipt.terms.worker = digest)
            },
            "`worker`",
        ),
        (
            "a receipt after the last one",
            |scene| {
                let at = MIDDLE as u64 + SESSIONS;
                scene.collude(MIDDLE, |receipt| receipt.is_final = true);
                // A settlement may stand between the two.
                let session = scene.receipt(MIDDLE).terms.session;
                let follows = |at: &usize| {
                    Receipt::parse(note_of(&scene.entries[*at]).text())
                        .is_ok_and(|next| next.terms.session == session)
                };
                ((MIDDLE + 1)..=(at as usize + 1)).find(follows).unwrap() as u64
            },
            "final one",
        ),
        (
            "more than the grant allows",
            |scene| {
                let mut receipt = network::good_log::next(&scene.network, 77, None);
                receipt.counters.down = MeteredBytes::new(1_000_000_000).unwrap();
                scene.append(scene.network.sign(&receipt))
            },
            "which allows",
        ),
        (
            "a receipt after its grant's end",
            |scene| {
                let mut receipt = network::good_log::next(&scene.network, 77, None);
                receipt.to = START + 1_000_001;
                scene.append(scene.network.sign(&receipt))
            },
            "its grant holds",
        ),
        (
            "a hub that is not believed",
            |scene| {
                let stranger = secret(61);
                let mut receipt = network::good_log::next(&scene.network, 77, None);
                receipt.terms.hub = stranger.public().digest();
                scene.network.hub = stranger;
                scene.append(scene.network.sign(&receipt))
            },
            "hub",
        ),
        (
            "a hub that was retired before",
            |scene| {
                let retired = scene.belief(KeyRole::Hub, &scene.network.hub, KeyState::Retired);
                scene
                    .entries
                    .insert(MIDDLE, retired.sign(&secret(LEDGER_SEED)).unwrap().to_string().into_bytes());
                MIDDLE as u64 + 1
            },
            "hub is not believed",
        ),
        (
            "a key believed by a stranger's word",
            |scene| {
                let belief = scene.belief(KeyRole::Hub, &secret(61), KeyState::Believed);
                scene.append(belief.sign(&secret(62)).unwrap())
            },
            "not signed by a ledger key",
        ),
        (
            "a weak key",
            |scene| {
                let key = format!("ed25519:{}", hex::encode(scene.network.hub.public().as_bytes()));
                scene.edit(2, &key, &format!("ed25519:01{}", "00".repeat(31)))
            },
            "not a weak key",
        ),
        (
            "another amount for the same bytes",
            |scene| {
                let at = scene.first_settlement();
                scene.resettle(at, |made| {
                    made.amount = NanoKvr::new(made.amount.get() + 7);
                    made.after = NanoKvr::new(made.after.get() + 7);
                })
            },
            "earn",
        ),
        (
            "a price that was changed later",
            |scene| {
                let dearer = kvasir_wire::account::Price {
                    network: scene.network.name.clone(),
                    per_byte: PricePerByte::new(8).unwrap(),
                    from: START,
                };
                let note = dearer.sign(&scene.network.treasury).unwrap();
                let at = scene.first_settlement() + 1;
                scene.entries.insert(8, note.to_string().into_bytes());
                scene.resettle(at, |made| {
                    made.price = note.leaf_hash();
                    made.amount = NanoKvr::new(made.bytes.get() as i64 * 8);
                    made.after = NanoKvr::new(made.amount.get());
                })
            },
            "another price",
        ),
        (
            "a balance edited",
            |scene| {
                let at = scene.first_settlement() + STRETCH as usize;
                scene.resettle(at, |made| {
                    made.before = NanoKvr::new(made.before.get() + 1_000_000);
                    made.after = NanoKvr::new(made.after.get() + 1_000_000);
                })
            },
            "it says",
        ),
        (
            "a receipt of a time to come",
            |scene| {
                let mut receipt = network::good_log::next(&scene.network, 77, None);
                receipt.to = SEEN_AT + 2 * CLOCK_SKEW_SECONDS + 1;
                scene.append(scene.network.sign(&receipt))
            },
            "a time to come",
        ),
        (
            "a settlement of a time to come",
            |scene| {
                let at = scene.first_settlement();
                scene.resettle(at, |made| made.at = SEEN_AT + 2 * CLOCK_SKEW_SECONDS + 1)
            },
            "a time to come",
        ),
        (
            "a settlement dated back a day, which is final at once",
            |scene| {
                let at = scene.first_settlement();
                scene.resettle(at, |made| made.at -= 24 * 3600)
            },
            "dated back",
        ),
        (
            "a settlement dated back to before the one before it",
            |scene| {
                let at = scene.first_settlement() + STRETCH as usize;
                // Its receipts end before: what stands against it is the time of the first settlement.
                scene.resettle(at, |made| made.at -= 2 * CLOCK_SKEW_SECONDS + 1)
            },
            "dated back",
        ),
        (
            "bytes that no receipt added",
            |scene| {
                let at = scene.first_settlement();
                scene.resettle(at, |made| {
                    made.sessions[0].bytes = MeteredBytes::new(made.sessions[0].bytes.get() + 1).unwrap();
                    made.bytes = MeteredBytes::new(made.bytes.get() + 1).unwrap();
                    made.amount = NanoKvr::new(made.amount.get() + 7);
                    made.after = NanoKvr::new(made.after.get() + 7);
                })
            },
            "add",
        ),
        (
            "the same receipts settled twice",
            |scene| {
                let part = SettledSession {
                    session: session(0),
                    from_seq: 1,
                    to_seq: 10,
                    bytes: MeteredBytes::new(300).unwrap(),
                };
                let made = settlement(&scene.network, &[part], 210_000);
                scene.append(made.sign(&scene.network.settler).unwrap())
            },
            "is settled up to",
        ),
        (
            "a settlement by a stranger",
            |scene| {
                let at = scene.first_settlement();
                scene.network.settler = secret(61);
                scene.resettle(at, |_| {})
            },
            "not signed by a settler key",
        ),
        (
            "a funding by a stranger",
            |scene| {
                let fund = Fund {
                    network: scene.network.name.clone(),
                    account: scene.network.payer(),
                    amount: NanoKvr::new(5),
                    nonce: [9; 32],
                    at: START,
                };
                scene.append(fund.sign(&secret(61)).unwrap())
            },
            "not signed by a treasury key",
        ),
        (
            "an account that pays what it has not",
            |scene| {
                // The funding is gone: the first settlement has nothing to take.
                let at = scene.first_settlement();
                scene.entries[7] = scene.network.fund(20_999, 3).to_string().into_bytes();
                at as u64
            },
            "holds 20999",
        ),
        (
            "a reversal after the time for it",
            |scene| {
                scene
                    .append(scene.correction(START + 1000 + 24 * 3600).sign(&scene.network.treasury).unwrap())
            },
            "was final",
        ),
        (
            "a reversal dated back into the time for it",
            |scene| {
                // Final after a day, and the log has gone on beyond it.
                let mut late = network::good_log::next(&scene.network, 77, None);
                late.to = START + 1000 + 24 * 3600;
                scene.append(scene.network.sign(&late));
                scene.append(scene.correction(START + 2000).sign(&scene.network.treasury).unwrap())
            },
            "dated back",
        ),
        (
            "a reversal twice",
            |scene| {
                scene.append(scene.correction(START + 2000).sign(&scene.network.treasury).unwrap());
                scene.append(scene.correction(START + 2001).sign(&scene.network.treasury).unwrap())
            },
            "reversed already",
        ),
        (
            "a finding by a party",
            |scene| {
                let worker = scene.network.worker.clone();
                scene.append(scene.finding(&worker).sign(&worker).unwrap())
            },
            "auditor is the worker",
        ),
        ("a penalty on nothing", |scene| scene.append(scene.penalty(Hash([1; 32]))), "rests on"),
        (
            "a penalty on nothing, and a wrong entry after it",
            |scene| {
                let at = scene.append(scene.penalty(Hash([1; 32])));
                scene.entries.push(b"anything".to_vec());
                at
            },
            "rests on",
        ),
        (
            "a penalty on a receipt that comes after it",
            |scene| {
                let penalty = scene.penalty(leaf_hash(&scene.entries[MIDDLE]));
                scene.entries.insert(FOUNDATION as usize, penalty.to_string().into_bytes());
                FOUNDATION
            },
            "rests on",
        ),
        (
            "another network's note",
            |scene| {
                let fund = Fund {
                    network: "other".parse().unwrap(),
                    account: scene.network.payer(),
                    amount: NanoKvr::new(5),
                    nonce: [9; 32],
                    at: START,
                };
                scene.append(fund.sign(&scene.network.treasury).unwrap())
            },
            "for network other",
        ),
        (
            "a log that continues what it does not",
            |scene| {
                let change = OriginChange {
                    network: scene.network.name.clone(),
                    origin: origin(),
                    previous: "kvasir.example/atlas/00000000".parse().unwrap(),
                    size: 3,
                    root: Hash([1; 32]),
                    at: START,
                };
                scene.append(change.sign(&secret(LEDGER_SEED)).unwrap())
            },
            "continues a log",
        ),
    ];
    assert_eq!(faults.len(), 52, "docs/log.md says how many faults there are");
    let mut missed = Vec::new();
    for (what, fault, reason) in faults {
        let mut scene = Scene::new();
        let index = fault(&mut scene);
        match run(&published(&scene.entries), &options()) {
            Err(error) if error.index() == Some(index) && error.to_string().contains(reason) => {}
            other => missed.push(format!("{what}: expected entry {index} and `{reason}`, got {other:?}")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn clocks_that_differ_as_far_as_the_ledger_takes_it_are_no_fault() {
    let mut scene = Scene::new();
    // The first settlement may have been ahead of the ledger's clock by as much as this one was behind.
    let at = scene.first_settlement() + STRETCH as usize;
    scene.resettle(at, |made| made.at -= 2 * CLOCK_SKEW_SECONDS);
    run(&published(&scene.entries), &options()).unwrap();
    // So may a receipt that ended ahead of it.
    let mut receipt = network::good_log::next(&scene.network, 77, None);
    receipt.to = START + 1000 + 2 * CLOCK_SKEW_SECONDS;
    scene.entries.insert(at, scene.network.sign(&receipt).to_string().into_bytes());
    scene.resettle(at + 1, |made| made.at = START + 1000);
    run(&published(&scene.entries), &options()).unwrap();
    scene.resettle(at + 1, |made| made.at -= 1);
    assert_eq!(run(&published(&scene.entries), &options()).unwrap_err().index(), Some(at as u64 + 1));
}

#[test]
fn of_two_faults_the_earlier_is_named_wherever_they_are() {
    let mut scene = Scene::new();
    let index = scene.edit(MIDDLE, "\nclass exact\n", "\nclass tolerance\n");
    let mut files = published(&scene.entries);
    // Later entries of the same bundle, of another one in the same batch, and of a file that is gone.
    for place in [450, 560] {
        let tile = files.0.get_mut(&format!("tile/0/{:03}", place / 256)).unwrap();
        tile[32 * (place % 256)] ^= 1;
    }
    files.0.remove("tile/entries/003.p/250");
    assert_eq!(run(&files, &options()).unwrap_err().index(), Some(index));
    // And an earlier one in the files before a later one in what was signed.
    files.0.get_mut("tile/0/001").unwrap()[32 * 44] ^= 1;
    assert_eq!(run(&files, &options()).unwrap_err().index(), Some(300));
}

#[test]
fn a_size_that_no_log_has_costs_nothing() {
    let good = published(&Scene::new().entries);
    for size in [1 << 32, 1 << 50, i64::MAX as u64] {
        let mut files = good.clone();
        let signed = head(size, checkpoint(&good).root);
        files.0.insert(CHECKPOINT_PATH.into(), signed.note().to_string().into_bytes());
        let error = run(&files, &options()).unwrap_err();
        assert_eq!(error.index(), Some(768), "{error}");
        assert!(hash_only(&files, &options()).is_err());
    }
}

#[test]
fn another_treasury_than_the_pinned_one_is_not_believed() {
    let scene = Scene::new();
    let pinned = |key: &SecretKey| AuditOptions { treasury: Some(key.public()), ..options() };
    run(&published(&scene.entries), &pinned(&scene.network.treasury)).unwrap();
    let error = run(&published(&scene.entries), &pinned(&secret(61))).unwrap_err();
    assert_eq!(error.index(), Some(1), "{error}");
}

#[test]
fn a_receipt_that_was_left_out_is_told_as_a_gap() {
    let mut scene = Scene::new();
    scene.entries.remove(MIDDLE);
    let report = run(&published(&scene.entries), &options()).unwrap();
    assert_eq!(report.gaps.len(), 1);
    // With what was seen before, it is a fault.
    let remembered = Some(checkpoint(&published(&Scene::new().entries)));
    assert!(run(&published(&scene.entries), &AuditOptions { remembered, ..options() }).is_err());
}

#[test]
fn a_log_by_the_store_is_in_order_for_the_audit() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    kvasir_ledger::store::Store::create(&path, &scene.network.name).unwrap();
    let mut store =
        kvasir_ledger::store::Store::open(&path, &scene.network.name, scene.network.keys()).unwrap();
    for (index, entry) in scene.entries.iter().enumerate() {
        let kind = note_of(entry).text().lines().next().unwrap().to_owned();
        let accepted = match kind.as_str() {
            "kvasir.example/key@v1" => store.accept_own(entry, START),
            "kvasir.example/receipt@v1" => store.accept_receipt(entry, START + 1000),
            "kvasir.example/settle@v1" => store.accept_settlement(entry, START + 1000),
            _ => store.accept_note(entry, START),
        };
        assert_eq!(accepted.unwrap().index, index as u64);
    }
    kvasir_ledger::head::HeadFile::create(&folder.path().join("head.db"), &origin()).unwrap();
    let files = kvasir_ledger::publish::LogFiles {
        store: path,
        network: scene.network.name.clone(),
        head: folder.path().join("head.db"),
        folder: folder.path().join("log"),
        key: secret(LOG_SEED),
        witnesses: Vec::new(),
        quorum: 0,
    };
    kvasir_ledger::publish::Publisher::open(files).unwrap().publish().unwrap();
    let source = kvasir_ledger::log::FolderSource(folder.path().join("log"));
    let log = log_verifier(&origin(), secret(LOG_SEED).public());
    let report =
        audit(&source, &AuditOptions { policy: Policy::of_log(log), ..options() }, &mut |_, _| {}).unwrap();
    assert_eq!(
        report,
        AuditReport {
            witnesses: vec![],
            cosigned_at: None,
            checkpoint: report.checkpoint.clone(),
            ..run(&published(&scene.entries), &options()).unwrap()
        }
    );
    // And what the store says of the wallet is what the audit found.
    let wallet = store.answers().wallet(scene.network.payee()).unwrap();
    let pending = report.balances.iter().find(|one| one.kind == "pending").unwrap();
    assert_eq!((wallet.pending_nanokvr, &wallet.payee), (pending.nanokvr, &pending.owner));
}

/// The note with `S + L` instead of `S` in signature line `line`: the other form of the same signature.
fn malleated(note: &str, line: usize) -> String {
    /// The order of the group, little-endian.
    const L: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let parsed = Note::parse(note.as_bytes()).unwrap();
    let mut changed = Note::unsigned(parsed.text()).unwrap();
    for (at, old) in parsed.signatures().iter().enumerate() {
        let mut new = old.clone();
        if at == line {
            let start = new.signature.len() - 32;
            let mut carry = 0u16;
            for (byte, order) in new.signature[start..].iter_mut().zip(L) {
                let sum = u16::from(*byte) + u16::from(order) + carry;
                (*byte, carry) = (sum as u8, sum >> 8);
            }
        }
        changed.append_unverified(new).unwrap();
    }
    changed.to_string()
}
