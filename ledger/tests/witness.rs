//! A witness in dialogue with logs that are honest, forgetful or dishonest.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use kvasir_ledger::log::*;
use kvasir_ledger::witness::{AddCheckpoint, MAX_REQUEST_BYTES, Witness, WitnessError, client, service};
use kvasir_merkle::{EMPTY_ROOT, Hash, Tree, leaf_hash};
use kvasir_wire::id::sha256;
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::KeyName;

const NOW: u64 = 1_790_000_000;

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

fn origin() -> KeyName {
    "log.example".parse().unwrap()
}

fn tree(leaves: u64, history: &str) -> Tree {
    (0..leaves).map(|index| leaf_hash(format!("{history} {index}").as_bytes())).collect()
}

fn head(size: u64, root: Hash, seed: u8) -> SignedCheckpoint {
    Checkpoint { origin: origin(), size, root }.sign(&key(seed)).unwrap()
}

fn request(old: u64, tree: &Tree) -> AddCheckpoint {
    let proof = if old == 0 || old >= tree.size() {
        Vec::new()
    } else {
        tree.consistency_proof(old, tree.size()).unwrap().hashes
    };
    AddCheckpoint { old, proof, checkpoint: head(tree.size(), tree.root(), 1).note().clone() }
}

fn witness(folder: &Path) -> Witness {
    let log = log_verifier(&origin(), key(1).public());
    Witness::open("w.example".parse().unwrap(), key(9), [log], folder.to_owned()).unwrap()
}

fn cosigner() -> CosignerKey {
    CosignerKey::new("w.example".parse().unwrap(), key(9).public())
}

/// A witness over HTTP, for as long as this value lives.
struct Served {
    url: String,
    _stop: tokio::sync::oneshot::Sender<()>,
    _runtime: tokio::runtime::Runtime,
}

fn serve(folder: &Path) -> Served {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let until = async move {
        let _ = stopped.await;
    };
    runtime.spawn(service::serve(listener, witness(folder), Arc::new(|| NOW), until));
    Served { url, _stop: stop, _runtime: runtime }
}

fn post(url: &str, body: impl Into<Vec<u8>>) -> (u16, String, String) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut answer = agent.post(format!("{url}/add-checkpoint")).send(body.into()).unwrap();
    let kind = answer.headers().get("content-type").map_or("", |kind| kind.to_str().unwrap()).to_owned();
    (answer.status().as_u16(), kind, answer.body_mut().read_to_string().unwrap())
}

#[test]
fn a_dialogue_in_the_codes_of_the_specification() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(folder.path());
    let (five, nine, other) = (tree(5, "a"), tree(9, "a"), tree(9, "b"));
    let unknown = Checkpoint { origin: "else.example".parse().unwrap(), size: 5, root: five.root() };
    let unknown =
        AddCheckpoint { old: 0, proof: vec![], checkpoint: unknown.sign(&key(1)).unwrap().note().clone() };
    let by_stranger =
        AddCheckpoint { checkpoint: head(5, five.root(), 2).note().clone(), ..request(0, &five) };
    let mut wrong_proof = request(5, &nine);
    wrong_proof.proof[0].0[0] ^= 1;
    let mut proof_from_nothing = request(0, &five);
    proof_from_nothing.proof.push(Hash([1; 32]));
    let empty_with_root = head(5, five.root(), 1).note().to_string().replacen("\n5\n", "\n0\n", 1);

    let steps: Vec<(&str, Vec<u8>, u16)> = vec![
        ("no request", b"hello\n".to_vec(), 400),
        ("no number", b"old 05\n\n".to_vec(), 400),
        ("too long", vec![b'a'; MAX_REQUEST_BYTES + 1], 413),
        ("another log", unknown.to_string().into(), 404),
        ("signed by a stranger", by_stranger.to_string().into(), 403),
        ("an empty log with a root", format!("old 0\n\n{empty_with_root}").into(), 422),
        ("a proof from nothing", proof_from_nothing.to_string().into(), 422),
        ("not from the start", request(5, &nine).to_string().into(), 409),
        ("the first head", request(0, &five).to_string().into(), 200),
        ("the first head again, from nothing", request(0, &five).to_string().into(), 409),
        ("the same head", request(5, &five).to_string().into(), 200),
        ("the same size, another history", request(5, &tree(5, "b")).to_string().into(), 422),
        ("a wrong proof", wrong_proof.to_string().into(), 422),
        ("another history", request(5, &other).to_string().into(), 422),
        ("old larger than new", request(5, &tree(4, "a")).to_string().into(), 400),
        ("a longer log", request(5, &nine).to_string().into(), 200),
        ("back to the shorter one", request(5, &five).to_string().into(), 409),
        ("the same, proven from a size of the past", request(4, &nine).to_string().into(), 409),
    ];
    let cosigner = cosigner();
    for (what, body, status) in steps {
        let text = String::from_utf8_lossy(&body).into_owned();
        let (found, kind, answer) = post(&served.url, body);
        assert_eq!(found, status, "{what}: {answer}");
        match status {
            200 => {
                let sent = AddCheckpoint::parse(text.as_bytes()).unwrap().checkpoint;
                let note = format!("{}\n{answer}", sent.text());
                let note = kvasir_wire::note::Note::parse(note.as_bytes()).unwrap();
                assert_eq!(cosigner.verify(&note).unwrap().unwrap().time, NOW, "{what}");
            }
            409 => {
                assert_eq!(kind, "text/x.tlog.size", "{what}");
                assert!(["0\n", "5\n", "9\n"].contains(&answer.as_str()), "{what}: {answer}");
            }
            _ => {}
        }
    }
}

#[test]
fn a_forged_line_beside_a_good_one_is_not_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let witness = witness(folder.path());
    let five = tree(5, "a");
    let mut forged = request(0, &five);
    let line = cosign(forged.checkpoint.text(), &"w.example".parse().unwrap(), &key(8), NOW);
    forged.checkpoint.append_unverified(line).unwrap();
    witness.add_checkpoint(forged.to_string().as_bytes(), NOW).unwrap();
    let seen = witness.seen(&origin()).unwrap().unwrap();
    assert_eq!(seen.note().signatures().len(), 1);
    let told = witness.cosigned(&Hash(sha256(&[b"log.example"])), NOW).unwrap().unwrap();
    let note = kvasir_wire::note::Note::parse(told.as_bytes()).unwrap();
    assert_eq!(witness.cosigner(), cosigner());
    assert!(cosigner().verify(&note).unwrap().is_some());
}

#[test]
fn what_was_recorded_before_a_crash_holds_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let (five, other) = (tree(5, "a"), tree(5, "b"));
    // Killed after the record, before the answer: the log sends the same again, and only the same.
    witness(folder.path()).add_checkpoint(request(0, &five).to_string().as_bytes(), NOW).unwrap();
    let again = witness(folder.path());
    assert!(again.add_checkpoint(request(0, &other).to_string().as_bytes(), NOW).is_err());
    assert!(again.add_checkpoint(request(5, &other).to_string().as_bytes(), NOW).is_err());
    again.add_checkpoint(request(5, &five).to_string().as_bytes(), NOW).unwrap();
    // A damaged record is never taken for none.
    let mut files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let record = files.find(|path| path.extension().is_some_and(|ending| ending == "checkpoint")).unwrap();
    let text = std::fs::read_to_string(&record).unwrap();
    for damaged in [text.replacen("\n5\n", "\n6\n", 1), String::new()] {
        std::fs::write(&record, damaged).unwrap();
        let error = again.add_checkpoint(request(0, &other).to_string().as_bytes(), NOW).unwrap_err();
        assert!(error.to_string().contains("not the head that was recorded"), "{error}");
    }
}

#[test]
fn of_two_histories_that_race_one_is_cosigned() {
    let folder = tempfile::tempdir().unwrap();
    let witness = witness(folder.path());
    let heads: Vec<String> =
        ["a", "b", "c", "d"].map(|history| request(0, &tree(7, history)).to_string()).into();
    let cosigned = std::thread::scope(|scope| {
        let asked: Vec<_> = heads
            .iter()
            .map(|head| scope.spawn(|| witness.add_checkpoint(head.as_bytes(), NOW).is_ok()))
            .collect();
        asked.into_iter().map(|asked| u32::from(asked.join().unwrap())).sum::<u32>()
    });
    assert_eq!(cosigned, 1);
}

#[test]
fn a_folder_has_one_witness_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let log = log_verifier(&origin(), key(1).public());
        Witness::open("w.example".parse().unwrap(), key(9), [log], folder.path().to_owned())
    };
    let first = open().unwrap();
    let Err(error) = open() else { panic!("two witnesses on one folder") };
    assert!(matches!(&error, WitnessError::InUse { folder: named } if named == folder.path()), "{error}");
    drop(first);
    open().unwrap();
}

#[test]
fn of_two_processes_on_one_folder_the_second_is_refused_until_the_first_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let program = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir-ledger"));
        command.current_dir(&folder).arg("witness").args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    assert!(program(&["init", "w", "--name", "w.example"]).status().unwrap().success());
    let serve = || program(&["serve", "w", "--listen", "127.0.0.1:0"]);
    let mut first = serve().spawn().unwrap();
    let mut line = String::new();
    BufReader::new(first.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "{line}");

    let second = serve().output().unwrap();
    let complaint = String::from_utf8(second.stderr).unwrap();
    assert_eq!((second.status.code(), second.stdout.len()), (Some(1), 0), "{complaint}");
    assert!(complaint.contains("w/seen: another process is this witness already"), "{complaint}");
    // Its public key can be asked for all the while.
    assert!(program(&["show", "w"]).status().unwrap().success());

    // SIGKILL: nothing gives the folder back but the system.
    first.kill().unwrap();
    first.wait().unwrap();
    let mut third = serve().spawn().unwrap();
    let mut line = String::new();
    BufReader::new(third.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "{line}");
    third.kill().unwrap();
    third.wait().unwrap();
}

/// Gives the tiles of a tree that is small enough for one tile.
struct OneTile(Tree);

impl LogSource for OneTile {
    fn read(&self, path: &str, _: usize) -> Result<Option<Vec<u8>>, SourceError> {
        let leaves: Vec<Hash> = (0..self.0.size()).map(|index| self.0.leaf(index).unwrap()).collect();
        Ok((path == format!("tile/0/000.p/{}", leaves.len())).then(|| encode_tile(&leaves)))
    }
}

#[test]
fn a_log_that_forgot_what_its_witness_saw_asks_again() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(folder.path());
    let cosigner = cosigner();
    let ask = |leaves, old| {
        let tree = tree(leaves, "a");
        let head = head(leaves, tree.root(), 1);
        client::ask(&served.url, &cosigner, &head, &OneTile(tree), old).map(|line| {
            cosigner.verify_line(head.note().text(), &line).unwrap();
        })
    };
    ask(5, 0).unwrap();
    ask(9, 5).unwrap();
    ask(12, 0).unwrap();
    ask(12, 12).unwrap();
    let error = ask(11, 11).unwrap_err();
    assert!(matches!(error, client::CosignError::AheadOfUs { seen: 12, size: 11, .. }), "{error}");
    let other = CosignerKey::new("w.example".parse().unwrap(), key(7).public());
    let tree = tree(13, "a");
    let signed = head(13, tree.root(), 1);
    let error = client::ask(&served.url, &other, &signed, &OneTile(tree), 12).unwrap_err();
    assert!(matches!(error, client::CosignError::BadAnswer { .. }), "{error}");
    assert_eq!(head(0, EMPTY_ROOT, 1).checkpoint().size, 0);
}

#[test]
fn a_witness_that_moved_is_not_followed() {
    use std::io::Write as _;
    let folder = tempfile::tempdir().unwrap();
    let served = serve(folder.path());
    let moved = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", moved.local_addr().unwrap());
    let elsewhere = format!("{}/add-checkpoint", served.url);
    std::thread::spawn(move || {
        for status in [307, 302] {
            let (mut stream, _) = moved.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).unwrap() > 2 {
                if let Some(number) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = number.trim().parse().unwrap();
                }
                line.clear();
            }
            std::io::Read::read_exact(&mut reader, &mut vec![0u8; length]).unwrap();
            let answer = format!(
                "HTTP/1.1 {status} x\r\nLocation: {elsewhere}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    for expected in [307, 302] {
        let tree = tree(5, "a");
        let head = head(5, tree.root(), 1);
        let error = client::ask(&url, &cosigner(), &head, &OneTile(tree), 0).unwrap_err();
        assert!(
            matches!(error, client::CosignError::Refused { status, .. } if status == expected),
            "{error}"
        );
    }
}

#[test]
fn a_witness_whose_record_is_gone_does_not_start_over() {
    let folder = tempfile::tempdir().unwrap();
    let ask =
        |request: AddCheckpoint| witness(folder.path()).add_checkpoint(request.to_string().as_bytes(), NOW);
    ask(request(0, &tree(5, "a"))).unwrap();
    let mut files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let record = files.find(|path| path.extension().is_some_and(|ending| ending == "checkpoint")).unwrap();
    let kept = std::fs::read(&record).unwrap();
    std::fs::remove_file(&record).unwrap();
    for of in [tree(5, "a"), tree(5, "b")] {
        let error = ask(request(0, &of)).unwrap_err().to_string();
        assert!(error.contains("although this log was cosigned"), "{error}");
    }
    assert!(witness(folder.path()).cosigned(&Hash(sha256(&[b"log.example"])), NOW).is_err());
    std::fs::write(&record, kept).unwrap();
    ask(request(5, &tree(9, "a"))).unwrap();
}
