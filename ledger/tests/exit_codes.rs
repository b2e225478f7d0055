//! Exit codes are part of the contract: 0 right, 1 wrong, 2 asked wrongly, 3 nothing known. Somebody's script pays by them.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvasir_ledger::evidence::{Evidence, ReceiptFraud};
use kvasir_wire::receipt::ReceiptKeys;
use network::Network;
use network::good_log::{entries, policy, published};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a good log in `log` and the policy that it satisfies.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Place(tempfile::tempdir().unwrap());
        place.publish("log", &entries(&Network::new(), 300, 3));
        place.write("policy.txt", policy());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn publish(&self, folder: &str, entries: &[Vec<u8>]) {
        for (path, bytes) in published(entries).0 {
            self.write(&format!("{folder}/{path}"), bytes);
        }
    }

    /// Exit code, the object on standard output, and the words on standard error.
    fn run(&self, words: &[&str]) -> (i32, Value, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_kvasir-ledger"))
            .current_dir(&self.0)
            .args(words)
            .arg("--json")
            .output()
            .unwrap();
        let told = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (output.status.code().unwrap(), told, String::from_utf8(output.stderr).unwrap())
    }

    fn audit(&self, log: &str, more: &[&str]) -> (i32, Value, String) {
        self.run(&[&["audit", log, "--at", "1790001000", "--policy", "policy.txt"], more].concat())
    }
}

fn expect((code, told, said): (i32, Value, String), wanted: i32, words: &str) {
    assert_eq!(code, wanted, "{said}{told}");
    assert!(said.contains(words), "`{words}` is not in: {said}");
    assert_eq!(said.starts_with("kvasir-ledger: no verdict: "), code == 3, "{said}");
    if code == 1 {
        assert_eq!(told.get("ok"), Some(&Value::Bool(false)), "{told}");
    }
    if code == 3 {
        // Neither true nor false, and why.
        assert_eq!((told.get("ok"), told.get("first_bad_index")), (Some(&Value::Null), None), "{told}");
        assert!(told["reason"].as_str().unwrap().contains(words), "{told}");
    }
}

/// Serves a folder, but answers with this status where there is one; gives the address.
fn serve(folder: PathBuf, status: fn(&str) -> Option<u16>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let Some(Ok(request)) = lines.next() else { continue };
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let path = request.split(' ').nth(1).unwrap().trim_start_matches('/');
            let (status, body) = match (status(path), fs::read(folder.join(path))) {
                // As servers do, with a page for people.
                (Some(status), _) => (status, b"<p>See <a href=\"/\">here</a>.</p>\n".to_vec()),
                (None, Ok(body)) => (200, body),
                (None, Err(_)) => (404, Vec::new()),
            };
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status} x\r\nLocation: /elsewhere\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    address
}

#[test]
fn an_audit_says_apart_what_is_wrong_and_what_could_not_be_read() {
    let place = Place::new();
    expect(place.audit("log", &[]), 0, "");
    expect(place.audit(&serve(place.path("log"), |_| None), &[]), 0, "");
    expect(place.run(&["audit", "log"]), 2, "--log-key");
    expect(place.audit("log", &["--threads", "none"]), 2, "--threads");

    // Nobody there; an error at once, or in the middle; an address that is none.
    expect(place.audit("http://127.0.0.1:1", &[]), 3, "cannot be fetched");
    expect(place.audit(&serve(place.path("log"), |_| Some(500)), &[]), 3, "500");
    let halfway = |path: &str| path.starts_with("tile/entries/001").then_some(503);
    expect(place.audit(&serve(place.path("log"), halfway), &[]), 3, "503");
    // A log that moved, or a page in its place: what comes with it is no head and no tile.
    let answers: [fn(&str) -> Option<u16>; 4] = [|_| Some(301), |_| Some(302), |_| Some(307), |_| Some(203)];
    for status in answers {
        expect(place.audit(&serve(place.path("log"), status), &[]), 3, "cannot be fetched");
    }
    let moved = |path: &str| path.starts_with("tile/0/").then_some(301);
    expect(place.audit(&serve(place.path("log"), moved), &[]), 3, "status 301");
    expect(place.audit("http://", &[]), 3, "no log's address");
    let (code, told, said) = place.audit("http://user:secret@127.0.0.1:1", &[]);
    assert!(code == 3 && !said.contains("secret") && !told.to_string().contains("secret"), "{said}{told}");
    // No head, so nobody has promised anything.
    expect(place.audit("elsewhere", &[]), 3, "no file `checkpoint`");
    expect(place.audit(&serve(place.path("log"), |_| Some(404)), &[]), 3, "no file `checkpoint`");
    // What the system does not let us read: here a folder in a file's place.
    let tile = place.path("log/tile/0/000");
    fs::remove_file(&tile).unwrap();
    fs::create_dir(&tile).unwrap();
    expect(place.audit("log", &[]), 3, "tile/0/000 cannot be read");
    fs::remove_dir(&tile).unwrap();

    // Under a signed head every file is owed: it answers, and has not what it signed.
    let (code, told, said) = place.audit("log", &[]);
    assert_eq!((code, &told["ok"], &told["first_bad_index"]), (1, &false.into(), &0.into()), "{said}");
    expect(place.audit(&serve(place.path("log"), |_| None), &[]), 1, "entry 0: the log has no tile/0/000");
    place.write("log/tile/0/000", [0; 8193]);
    expect(place.audit("log", &[]), 1, "entry 0: log/tile/0/000 has more than 8192 bytes");
    // Something lies there that is nobody's head: a page for people, nothing at all, half a head, more than a head, another log's.
    let head = fs::read_to_string(place.path("log/checkpoint")).unwrap();
    let (text, lines) = head.split_once("\n\n").unwrap();
    for page in
        ["<html>Sign in</html>\n", "", &head[..head.len() / 2], &head.replacen("00000001\n", "00000009\n", 1)]
    {
        place.write("stranger/checkpoint", page);
        expect(place.audit("stranger", &[]), 3, "no head of this log");
    }
    place.write("stranger/checkpoint", vec![b'a'; 1 << 20]);
    expect(place.audit("stranger", &[]), 3, "has more than");
    // A head in its name that it did not sign is no accident.
    place.write("stranger/checkpoint", format!("{}\n\n{lines}", text.replacen('\n', "\n1", 1)));
    expect(place.audit("stranger", &[]), 1, "the head");
}

#[test]
fn what_an_auditor_brings_along_accuses_nobody() {
    let place = Place::new();
    expect(place.audit("log", &["--state", "seen"]), 0, "");
    // The log is shorter than what was remembered: that is its fault, and told as such.
    place.publish("shorter", &entries(&Network::new(), 200, 3));
    expect(place.audit("shorter", &["--state", "seen"]), 1, "rolled back");
    // Through a link, what it leads to is kept.
    #[cfg(unix)]
    {
        place.publish("prefix", &entries(&Network::new(), 300, 3)[..200]);
        std::os::unix::fs::symlink("behind", place.path("link")).unwrap();
        place.write("behind", fs::read(place.path("prefix/checkpoint")).unwrap());
        expect(place.audit("log", &["--state", "link"]), 0, "");
        assert!(place.path("link").is_symlink());
        assert_eq!(fs::read(place.path("behind")).unwrap(), fs::read(place.path("log/checkpoint")).unwrap());
    }
    // A state that cannot be read or written, a policy that is missing or none, a key that is none.
    fs::create_dir(place.path("folder")).unwrap();
    expect(place.audit("log", &["--state", "folder"]), 3, "folder: cannot be read");
    expect(place.audit("log", &["--state", "nowhere/seen"]), 3, "nowhere/seen: cannot be written");
    place.write("torn", "half a head");
    expect(place.audit("log", &["--state", "torn"]), 3, "torn");
    expect(place.run(&["audit", "log", "--policy", "none.txt"]), 3, "none.txt: cannot be read");
    place.write("other.txt", "quorum none\n");
    expect(place.run(&["audit", "log", "--policy", "other.txt"]), 3, "at least one log");
    expect(place.run(&["audit", "log", "--log-key", "nobody"]), 3, "log key `nobody`");
    assert_eq!(fs::read(place.path("seen")).unwrap(), fs::read(place.path("log/checkpoint")).unwrap());
}

#[test]
fn a_proof_and_evidence_that_cannot_be_read_prove_nothing_either_way() {
    let place = Place::new();
    let trust = ["--policy", "policy.txt"];
    let prove = ["prove", "log", "--index", "20", "--output", "good.tlog-proof"];
    assert_eq!(place.run(&[&prove[..], &trust].concat()).0, 0);
    let check = |file: &str| place.run(&[&["check-proof", file][..], &trust].concat());
    let good = fs::read_to_string(place.path("good.tlog-proof")).unwrap();
    place.write("other-place.tlog-proof", good.replacen("index 20\n", "index 21\n", 1));
    place.write("no-proof.tlog-proof", "anything\n");
    let lines = good.split_inclusive('\n').filter(|line| !line.starts_with("extra "));
    place.write("bare.tlog-proof", lines.collect::<String>());
    expect(check("good.tlog-proof"), 0, "");
    expect(check("other-place.tlog-proof"), 1, "");
    expect(check("no-proof.tlog-proof"), 1, "");
    expect(place.run(&["check-proof", "good.tlog-proof"]), 2, "--log-key");
    expect(check("gone.tlog-proof"), 3, "gone.tlog-proof: cannot be read");
    expect(check("bare.tlog-proof"), 3, "--entry");
    expect(place.run(&["check-proof", "good.tlog-proof", "--policy", "none.txt"]), 3, "none.txt");

    let network = Network::new();
    let sign = |up| network.sign(&network.first(1, up, 20));
    let keys = ReceiptKeys {
        hub: network.hub.public(),
        worker: network.worker.public(),
        backbone: network.backbone.public(),
    };
    let evidence = |second| Evidence::Receipts(ReceiptFraud { keys, first: sign(10), second: sign(second) });
    place.write("guilty.fraud", evidence(11).to_string());
    place.write("same.fraud", evidence(10).to_string());
    expect(place.run(&["convict", "guilty.fraud"]), 0, "");
    expect(place.run(&["convict", "same.fraud"]), 1, "");
    expect(place.run(&["convict", "policy.txt"]), 1, "");
    expect(place.run(&["convict"]), 2, "FILE");
    expect(place.run(&["convict", "gone.fraud"]), 3, "gone.fraud: cannot be read");
}

#[test]
fn a_database_that_is_wrong_is_told_from_one_that_is_not_there() {
    let place = Place::new();
    let network = Network::new();
    assert_eq!(place.run(&["init", ".", "--network", "atlas"]).0, 0);
    let path = place.path("ledger.db");
    let keys = format!("\"{}\"", network.treasury.public());
    let settings = fs::read_to_string(place.path("ledger.toml")).unwrap();
    place.write("ledger.toml", settings.replace("treasury = []", &format!("treasury = [{keys}]")));
    let mut store = kvasir_ledger::store::Store::open(&path, &network.name, network.keys()).unwrap();
    network.prepare(&mut store);
    drop(store);
    let verify = |more: &[&str]| place.run(&[&["verify"], more].concat());
    expect(verify(&[]), 0, "");
    expect(verify(&["--nothing"]), 2, "--nothing");
    expect(verify(&["--store", "gone.db"]), 3, "no such file");
    expect(verify(&["--config", "gone.toml"]), 3, "gone.toml");
    place.write("letter.db", vec![b'x'; 10_000]);
    expect(verify(&["--store", "letter.db"]), 3, "letter.db");
    // A ledger that was cut off is one, and wrong.
    rusqlite::Connection::open(&path)
        .unwrap()
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    let whole = fs::read(&path).unwrap();
    place.write("half.db", &whole[..whole.len() / 8192 * 4096]);
    expect(verify(&["--store", "half.db"]), 1, "NOT in order");
    change(&path, "UPDATE postings SET nanokvr = nanokvr + 1");
    let (code, told, said) = verify(&[]);
    assert_eq!((code, &told["ok"], &told["first_bad_index"]), (1, &false.into(), &3.into()), "{said}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let unread = Command::new(env!("CARGO_BIN_EXE_kvasir-ledger"))
        .current_dir(&place.0)
        .args(["verify", "--json"])
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!(unread.status.code(), Some(1), "{unread:?}");
}

#[test]
fn a_fault_is_told_by_the_exit_code_whether_anybody_reads_the_rest_or_not() {
    let place = Place::new();
    fs::remove_file(place.path("log/tile/0/000")).unwrap();
    for more in [&["--json"][..], &[]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_kvasir-ledger"))
            .current_dir(&place.0)
            .args(["audit", "log", "--at", "1790001000", "--policy", "policy.txt"])
            .args(more)
            .stdout(writer)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("entry 0"), "{said}");
    }
}

/// Changes a database as somebody can who has the file.
fn change(path: &Path, statement: &str) {
    let file = rusqlite::Connection::open(path).unwrap();
    file.execute_batch(&format!("DROP TRIGGER no_UPDATE_of_postings; {statement}")).unwrap();
}
