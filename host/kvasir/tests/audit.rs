//! `kvasir audit` as people and scripts run it: logs and probe records as static files, in a folder and behind a web server.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

#[path = "../../replay/tests/scene/mod.rs"]
mod scene;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use kvasir_ledger::evidence::{Evidence, WorkFraud};
use kvasir_plugin::{PublisherKey, TrustStore, UnixSeconds, verify};
use kvasir_wire::account::{Audit, AuditVerdict};
use kvasir_wire::handshake::Class;
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::Note;
use kvasir_wire::probe::ProbeFile;
use scene::{Scene, Session, log_vkey, publisher, write_log, write_probes};
use serde_json::Value;
use tempfile::TempDir;

/// Everything that an auditor is given: a log, probe records, a package, a trusted key.
struct Place {
    folder: TempDir,
    scene: Scene,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let now = UnixSeconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs());
        let package = scene::package(now);
        let key = PublisherKey { key: publisher().verifying_key(), name: None };
        let trust = folder.path().join("trust");
        std::fs::create_dir(&trust).unwrap();
        std::fs::write(trust.join("publisher.pub"), key.line() + "\n").unwrap();
        std::fs::write(folder.path().join("swiglu.kvp"), &package).unwrap();
        std::fs::write(folder.path().join("log.vkey"), log_vkey()).unwrap();
        let mut scene = Scene::new();
        scene.plugin = verify(&package, &TrustStore::from_keys([key]).unwrap(), now).unwrap();
        Place { folder, scene }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Logs and publishes the sessions.
    fn publish(&self, sessions: &[&Session]) {
        // Sessions share what they rest on.
        let mut leaves: Vec<Vec<u8>> = Vec::new();
        for leaf in sessions.iter().flat_map(|session| &session.leaves) {
            if !leaves.contains(leaf) {
                leaves.push(leaf.clone());
            }
        }
        write_log(&self.path("log"), &leaves, &[]);
        sessions.iter().for_each(|session| write_probes(&self.path("log/probes"), &session.file));
    }

    /// Runs the program with these words; the model, the package and the folder of settings are always given.
    fn audit(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command.args(["audit", "--model"]).arg(scene::root().join("models/atlas/atlas-q4_k_m.gguf"));
        command.arg("--plugin").arg(self.path("swiglu.kvp")).arg("--trust").arg(self.path("trust"));
        command.arg("--home").arg(self.path("home")).args(words).current_dir(self.folder.path());
        command.output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
}

#[test]
fn an_honest_session_is_well_and_a_cheat_is_named_and_stated() {
    let place = Place::new();
    let honest = place.scene.session(1, Class::Exact, &place.scene.calls);
    place.publish(&[&honest]);
    let all = ["log", "--log-key", "log.vkey", "--replay", "100"];
    let output = place.audit(&all);
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{told}{}", text(&output.stderr));
    assert!(told.contains("all is well: 32 drawn, 32 right"), "{told}");
    assert!(told.contains("ledger in order: 7 entries, 1 receipts"), "{told}");

    // One call of sixteen is answered with zeros.
    let mut answers = place.scene.calls.clone();
    answers[5].1.fill(0);
    answers[20].1.fill(0);
    let cheat = place.scene.session(2, Class::Exact, &answers);
    place.publish(&[&honest, &cheat]);
    let key = SecretKey::from_seed([90; 32]);
    write_key(&place.path("auditor.key"), &key);
    let output = place.audit(
        &[&all[..], &["--sign-key", "auditor.key", "--statements", "found", "--evidence", "found", "--json"]]
            .concat(),
    );
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report = json(&output);
    assert_eq!(
        (&report["convicted"], &report["right"], &report["well"]),
        (&2.into(), &62.into(), &false.into())
    );
    assert_eq!(
        (&report["records"], &report["work_items"], &report["faulty"]),
        (&64.into(), &64.into(), &0.into())
    );
    let mut keys = None;
    let convicted: Vec<&Value> =
        report["drawn"].as_array().unwrap().iter().filter(|item| item["verdict"] == "convicted").collect();
    let head = Note::parse(&std::fs::read(place.path("log/checkpoint")).unwrap()).unwrap();
    for item in convicted {
        let index = item["index"].as_u64().unwrap();
        assert!(index == 5 || index == 20);
        let path = place.folder.path().join(item["statement"].as_str().unwrap());
        let note = Note::parse(&std::fs::read(path).unwrap()).unwrap();
        let audit = Audit::verify_own(&note).unwrap();
        assert_eq!(
            (audit.auditor, audit.verdict, audit.index),
            (key.public(), AuditVerdict::Convicted, index)
        );
        assert_eq!(audit.expected.0, kvasir_wire::id::sha256(&[&place.scene.calls[index as usize].1]));
        assert_eq!(audit.got.0, kvasir_wire::id::sha256(&[&answers[index as usize].1]));
        assert_eq!((audit.session, audit.seq), (cheat.file.session, 1));
        assert_eq!(audit.work, cheat.file.root);
        assert_eq!(audit.checkpoint.0, head.text_digest());
        // The file of evidence holds what it takes to compute the call again.
        let path = place.folder.path().join(item["evidence"].as_str().unwrap());
        let evidence = Evidence::parse(&std::fs::read(&path).unwrap()).unwrap();
        let proven = evidence.convict().unwrap();
        assert!(!proven.is_complete && proven.culprits[0].starts_with("atlas/worker ed25519:"), "{proven:?}");
        let Evidence::Work(work) = evidence else { panic!("it is about work") };
        assert_eq!(work.record.records, [cheat.file.records[index as usize].clone()]);
        // Who has the file and nothing else but model and plugin comes to the same.
        let output = place.audit(&["--evidence-file", path.to_str().unwrap(), "--json"]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        let told = json(&output);
        assert_eq!((&told["convicted"], &told["items"][0]["index"]), (&true.into(), &index.into()), "{told}");
        // Who names the log too can state it: the receipt has to stand there.
        let in_log = ["log", "--log-key", "log.vkey", "--evidence-file", path.to_str().unwrap(), "--json"];
        let stated =
            place.audit(&[&in_log[..], &["--sign-key", "auditor.key", "--statements", "stated"]].concat());
        assert_eq!(stated.status.code(), Some(1), "{}", text(&stated.stderr));
        let told = json(&stated);
        assert_eq!(told["log"]["checkpoint"], audit.checkpoint.to_string(), "{told}");
        let path = place.folder.path().join(told["items"][0]["statement"].as_str().unwrap());
        let again = Audit::verify_own(&Note::parse(&std::fs::read(path).unwrap()).unwrap()).unwrap();
        assert_eq!(Audit { at: audit.at, ..again }, audit, "the same as the log's audit says");
        keys = Some(work.keys);
    }

    // The same of an honest call, and of files that say nothing about a worker.
    let receipt = honest.receipt.note().clone();
    let record = ProbeFile { records: vec![honest.file.records[5].clone()], ..honest.file.clone() };
    let right = WorkFraud { keys: keys.unwrap(), receipt, record };
    let again = |work: WorkFraud| {
        std::fs::write(place.path("work.fraud"), Evidence::Work(work).to_string()).unwrap();
        place.audit(&["--evidence-file", "work.fraud"])
    };
    let output = again(right.clone());
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{told}{}", text(&output.stderr));
    assert!(told.contains("the work is right"), "{told}");
    // A log that does not have the receipt, no word on whom to believe, and a key without a log.
    let elsewhere = place.scene.session(3, Class::Exact, &place.scene.calls);
    write_log(&place.path("other"), &elsewhere.leaves, &[]);
    let in_other = ["other", "--log-key", "log.vkey", "--evidence-file", "work.fraud"];
    let output = place.audit(&in_other);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("no receipt with this session"), "{}", text(&output.stderr));
    assert_eq!(place.audit(&["log", "--evidence-file", "work.fraud"]).status.code(), Some(3));
    for of_a_log in ["--sign-key", "--log-key", "--policy", "--checkpoint"] {
        let alone = ["--evidence-file", "work.fraud", of_a_log, "auditor.key"];
        assert_eq!(place.audit(&alone).status.code(), Some(2), "{of_a_log} says nothing without a log");
    }
    let mut forged = right;
    forged.record.records[0].rows[0] ^= 1;
    assert_eq!(again(forged).status.code(), Some(3));
    assert_eq!(place.audit(&["--evidence-file", "gone"]).status.code(), Some(3));

    // The ledger is audited first: what is wrong there is named, and nothing is replayed.
    let mut leaves = honest.leaves.clone();
    leaves.swap(5, 6);
    write_log(&place.path("wrong"), &leaves, &[]);
    let output = place.audit(&["wrong", "--log-key", "log.vkey", "--replay", "1", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((&json(&output)["first_bad_index"], &json(&output)["well"]), (&5.into(), &false.into()));
    assert!(text(&output.stderr).contains("is not in order: entry 5: "), "{}", text(&output.stderr));

    // A party of the session states nothing: here the worker itself.
    write_key(&place.path("worker.key"), &SecretKey::from_seed([12; 32]));
    let output = place.audit(&[&all[..], &["--sign-key", "worker.key", "--statements", "found"]].concat());
    assert_eq!(output.status.code(), Some(1));
    // It ends no audit: everything drawn is judged and told.
    let told = text(&output.stdout);
    assert!(told.contains("the auditor is a party of the session"), "{told}");
}

#[test]
fn a_served_log_is_audited_as_a_folder_is_and_faults_of_records_are_told() {
    let place = Place::new();
    let honest = place.scene.session(1, Class::Exact, &place.scene.calls);
    place.publish(&[&honest]);
    // The list that a server makes; it names a file more than there are.
    let gone = kvasir_wire::probe::ProbeName { seq: 2, ..honest.file.name() };
    std::fs::write(place.path("log/probes/index"), honest.file.name().line()).unwrap();
    let address = serve(place.path("log"));
    let words = ["--log-key", "log.vkey", "--replay", "3"];
    let output = place.audit(&[&[address.as_str()], &words[..]].concat());
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{told}{}", text(&output.stderr));
    assert!(told.contains("3 drawn (9.38 % of the work)") && told.contains("3 right"), "{told}");
    let folder = place.audit(&[&["log"], &words[..], &["--json"]].concat());
    let served = place.audit(&[&[address.as_str()], &words[..], &["--json"]].concat());
    let items = |output: &Output| -> Vec<Value> {
        let items = json(output)["drawn"].as_array().unwrap().clone();
        items.iter().map(|item| item["index"].clone()).collect()
    };
    assert_eq!(items(&folder), items(&served));

    std::fs::write(place.path("log/probes/index"), honest.file.name().line() + &gone.line()).unwrap();
    let output = place.audit(&[&[address.as_str()], &words[..]].concat());
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("refused") && told.contains("all is not well"), "{told}");

    // Rows that a payer kept elsewhere are replayed the same way.
    write_probes(&place.path("kept-rows"), &honest.file);
    let output = place.audit(&[&["log"], &words[..], &["--probes", "kept-rows"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    std::fs::create_dir(place.path("none")).unwrap();
    let output = place.audit(&[&["log"], &words[..], &["--probes", "none"]].concat());
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stdout).contains("nothing to replay"), "{}", text(&output.stdout));
}

#[test]
fn what_is_missing_is_said_and_whom_to_believe_is_asked() {
    let place = Place::new();
    place.publish(&[&place.scene.session(1, Class::Exact, &place.scene.calls[..2])]);
    assert_eq!(place.audit(&["log", "--replay", "1"]).status.code(), Some(2));
    let output = place.audit(&["log", "--log-key", "nobody", "--replay", "1"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("give the line of the file log.vkey"), "{}", text(&output.stderr));
    // Without the plugin that the receipt names nothing is known, and nothing is well.
    let without = Place::new();
    without.publish(&[&place.scene.session(1, Class::Exact, &place.scene.calls[..2])]);
    std::fs::remove_file(without.path("swiglu.kvp")).unwrap();
    let output = without.audit(&["log", "--log-key", "log.vkey", "--replay", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("unknown"), "{}", text(&output.stdout));
}

#[test]
fn what_could_not_be_read_is_no_finding_and_a_file_that_a_signed_head_demands_is() {
    let place = Place::new();
    let honest = place.scene.session(1, Class::Exact, &place.scene.calls[..4]);
    place.publish(&[&honest]);
    let unread = |words: &[&str], reason: &str| {
        let words = [words, &["--log-key", "log.vkey", "--json"]].concat();
        let output = place.audit(&words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{words:?}: {said}");
        assert!(said.starts_with("kvasir: no verdict: ") && said.contains(reason), "{said}");
        let told = json(&output);
        assert!(told["well"].is_null() && told["reason"].as_str().unwrap().contains(reason), "{told}");
    };
    unread(&["elsewhere"], "the log has no checkpoint");
    unread(&["http://127.0.0.1:1"], "cannot be fetched");
    unread(&["log", "--checkpoint", "gone"], "gone");
    std::fs::write(place.path("torn"), "no head\n").unwrap();
    unread(&["log", "--checkpoint", "torn"], "that was kept is not believed");
    unread(&["log", "--treasury", "nobody"], "--treasury");
    unread(&["log", "--replay", "1", "--probes", "http://127.0.0.1:1"], "cannot be fetched");
    unread(&["log", "--replay", "1", "--probes", "gone"], "gone");

    // The log answers, signs, and has not what it signed.
    let finding = |reason: &str| {
        let output = place.audit(&["log", "--log-key", "log.vkey", "--json"]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        let told = json(&output);
        assert_eq!(told["well"], false);
        assert!(told["reason"].as_str().unwrap().contains(reason), "{told}");
        told["first_bad_index"].clone()
    };
    let bundle = std::fs::read_dir(place.path("log/tile/entries")).unwrap().next().unwrap().unwrap().path();
    std::fs::rename(&bundle, place.path("bundle")).unwrap();
    assert_eq!(finding("the log has no tile/entries/000"), 0);
    std::fs::rename(place.path("bundle"), &bundle).unwrap();
    let head = std::fs::read_to_string(place.path("log/checkpoint")).unwrap();
    std::fs::write(place.path("log/checkpoint"), "no head\n").unwrap();
    unread(&["log"], "there is no head of this log");
    // In the log's name, and not as its key signed it.
    let size = head.lines().nth(1).unwrap();
    std::fs::write(place.path("log/checkpoint"), head.replacen(size, &format!("{size}0"), 1)).unwrap();
    assert_eq!(finding("not believed"), Value::Null);
}

fn write_key(path: &Path, key: &SecretKey) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, key.to_text().as_bytes()).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Serves the files of a folder for as long as the test runs; gives the address.
fn serve(folder: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let Some(Ok(request)) = lines.next() else { continue };
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let path = request.split(' ').nth(1).unwrap().trim_start_matches('/').to_owned();
            let (status, body) = match std::fs::read(folder.join(path)) {
                Ok(body) => ("200 OK", body),
                Err(_) => ("404 Not Found", Vec::new()),
            };
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    address
}
