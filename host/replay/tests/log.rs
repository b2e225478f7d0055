//! The log as an auditor reads it: whom it is believed for, what of the head decides the draw, and how a broken one is told.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

mod scene;

use std::path::Path;

use kvasir_ledger::log::CosignerKey;
use kvasir_replay::*;
use kvasir_wire::handshake::Class;
use kvasir_wire::id::{ModelDigest, PluginDigest};
use kvasir_wire::message::{Call, ExpertRows, Mode, RowFormat};
use scene::{Session, log_vkey, session, witness, write_log, write_probes};

/// A session of one call, and 300 other leaves around its own: one whole bundle and a part of another.
fn log() -> (Session, Vec<Vec<u8>>) {
    let rows = ExpertRows { expert: 0, rows: vec![0], weights: vec![1.0] };
    let (mode, row_format) = (Mode::Sum, RowFormat::Float32);
    let call = Call { call: 1, layer: 0, mode, row_format, rows: 1, experts: vec![rows], data: &[0; 32] };
    let answers = [(call.encode().unwrap(), vec![0; 32])];
    let session = session(1, ModelDigest([1; 32]), PluginDigest([2; 32]), Class::Exact, &answers);
    let mut leaves: Vec<Vec<u8>> = (0..300).map(|number| format!("leaf {number}").into_bytes()).collect();
    leaves.splice(250..250, session.leaves.clone());
    (session, leaves)
}

fn key() -> LogTrust {
    LogTrust::Key(log_vkey())
}

fn policy(known: &[u8], quorum: &str) -> LogTrust {
    let mut text = format!("log {}\n", log_vkey());
    for number in known {
        let (name, key) = witness(*number);
        text.push_str(&format!("witness w{number} {}\n", CosignerKey::new(name, key.public())));
    }
    let names: Vec<String> = known.iter().map(|number| format!("w{number}")).collect();
    text.push_str(&format!("group all-of-them all {}\nquorum {quorum}\n", names.join(" ")));
    LogTrust::Policy(text)
}

fn open(folder: &Path, trust: &LogTrust) -> Result<PublicLog, LogError> {
    PublicLog::open(folder.to_str().unwrap(), trust, None)
}

fn read(folder: &Path, trust: &LogTrust, session: &Session) -> Result<LoggedReceipts, LogError> {
    open(folder, trust)?.receipts([session.file.name()], &mut |_| {})
}

#[test]
fn receipts_come_out_of_a_folder_and_probe_records_beside_it() {
    let (session, leaves) = log();
    let folder = tempfile::tempdir().unwrap();
    write_log(folder.path(), &leaves, &[]);
    write_probes(&folder.path().join("probes"), &session.file);
    let log = open(folder.path(), &key()).unwrap();
    assert_eq!((log.size(), log.root()), scene::checkpoint(&leaves));
    let mut seen = Vec::new();
    let receipts = log.receipts([session.file.name()], &mut |leaves| seen.push(leaves)).unwrap();
    assert_eq!(seen, [256, 307]);
    assert_eq!(receipts.get(&session.file.name()).unwrap().leaf, 256);
    let probes = log.probes(None).unwrap();
    assert_eq!(probes.list().unwrap(), [session.file.name()]);
    let found = survey(probes.as_ref(), &receipts, &log.lot(), 10).unwrap();
    assert_eq!((found.records, found.faulty, found.drawn.len()), (1, 0, 1));
}

#[test]
fn the_draw_hangs_on_known_witnesses_and_on_no_other_line() {
    let (_, leaves) = log();
    let folder = tempfile::tempdir().unwrap();
    let lot = |witnesses: &[u8], trust: &LogTrust| {
        write_log(folder.path(), &leaves, witnesses);
        open(folder.path(), trust).unwrap().lot()
    };
    let alone = lot(&[], &key());
    assert_eq!(
        (alone.origin.as_str(), alone.size, alone.signatures.len()),
        (scene::origin().as_str(), 307, 1)
    );
    assert_eq!(alone.signatures[0].len(), 4 + 64);
    // Whoever serves the file can add lines of witnesses that nobody knows: they change nothing.
    assert_eq!(lot(&[7, 8, 9], &key()), alone);
    let two = lot(&[1, 2], &policy(&[1, 2], "all-of-them"));
    assert_eq!(two.signatures.iter().map(Vec::len).collect::<Vec<_>>(), [4 + 72, 4 + 72]);
    assert_eq!(lot(&[1, 2, 9], &policy(&[1, 2], "all-of-them")), two);
    assert_ne!(lot(&[1], &policy(&[1], "all-of-them")), two);
    // Witnesses that are known and did not sign: the log's own line, where the policy is content with it.
    assert_eq!(lot(&[], &policy(&[1, 2], "none")), alone);
}

#[test]
fn a_checkpoint_that_was_kept_draws_as_it_did() {
    let (session, leaves) = log();
    let folder = tempfile::tempdir().unwrap();
    write_log(folder.path(), &leaves[..260], &[]);
    let early = std::fs::read(folder.path().join("checkpoint")).unwrap();
    let lot = open(folder.path(), &key()).unwrap().lot();
    // The log has grown, and the partial bundle of then is gone.
    let mut grown = leaves.clone();
    grown.resize(600, b"more".to_vec());
    std::fs::remove_dir_all(folder.path().join("tile")).unwrap();
    write_log(folder.path(), &grown, &[]);
    let place = folder.path().to_str().unwrap();
    let log = PublicLog::open(place, &key(), Some(early)).unwrap();
    assert_eq!((log.size(), log.lot()), (260, lot));
    let receipts = log.receipts([session.file.name()], &mut |_| {}).unwrap();
    assert_eq!(receipts.get(&session.file.name()).unwrap().leaf, 256);
}

#[test]
fn broken_logs_and_wrong_keys_are_told_apart() {
    let (session, leaves) = log();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    let told = |trust: &LogTrust| read(place, trust, &session).unwrap_err().to_string();
    assert_eq!(told(&key()), "the log has no checkpoint; it is not whole, or this is not its address");
    write_log(place, &leaves, &[1]);
    assert!(told(&LogTrust::Key("no key".into())).contains("give the line of the file log.vkey"));
    assert!(told(&LogTrust::Policy("quorum none\n".into())).contains("at least one log"));
    let other = kvasir_wire::note::Verifier::new(scene::origin(), witness(1).1.public()).to_string();
    assert!(told(&LogTrust::Key(other)).starts_with("the log's head is not believed: "));
    assert!(told(&policy(&[1, 2], "all-of-them")).contains("cosigned by 1 of 2 witnesses"));
    read(place, &policy(&[1], "all-of-them"), &session).unwrap();

    let bundle = place.join("tile/entries/000");
    let good = std::fs::read(&bundle).unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    std::fs::write(&bundle, flipped).unwrap();
    assert!(told(&key()).starts_with("the 307 leaves that were read have the root "));
    std::fs::write(&bundle, &good[..good.len() - 1]).unwrap();
    assert!(told(&key()).starts_with("tile/entries/000: "));
    std::fs::remove_file(&bundle).unwrap();
    assert_eq!(told(&key()), "the log has no tile/entries/000; it is not whole, or this is not its address");
    assert!(open(Path::new("http://"), &key()).is_err());
}
