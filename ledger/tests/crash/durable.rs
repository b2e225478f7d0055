//! A sync that fails is told, and nothing is taken for durable until one has succeeded: what a witness cosigns, what `init` made.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kvasir_ledger::log::{Checkpoint, log_verifier};
use kvasir_ledger::witness::AddCheckpoint;
use kvasir_merkle::leaf_hash;
use kvasir_wire::key::SecretKey;

use crate::scene;
use crate::scene::PROGRAM;
use crate::strace::{self, Call, Fault, Point};

/// A program under strace that is ended with this value.
struct Traced(Child);

impl Drop for Traced {
    fn drop(&mut self) {
        // strace ends when the program ends that it started.
        let id = self.0.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        for child in children.split_whitespace() {
            let _ = Command::new("kill").args(["-KILL", child]).status();
        }
        if children.is_empty() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

fn post(url: &str, body: &str) -> u16 {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    agent.post(format!("{url}/add-checkpoint")).send(body.as_bytes()).unwrap().status().as_u16()
}

fn syncs(list: &Path, folder: &Path) -> usize {
    let calls = strace::calls(list, folder, "");
    calls.iter().filter(|call| call.is_sync() && Path::new(&call.file).starts_with(folder)).count()
}

#[test]
fn a_witness_cosigns_no_head_whose_record_may_be_lost() {
    if scene().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (witness, list) = (folder.path().join("w"), folder.path().join("strace.list"));
    let log = SecretKey::from_seed([1; 32]);
    let origin = "log.example".parse().unwrap();
    let vkey = log_verifier(&origin, log.public()).to_string();
    let made = Command::new(PROGRAM)
        .args(["witness", "init", "--name", "w.example", "--log", &vkey])
        .arg(&witness)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let signed = Checkpoint { origin, size: 1, root: leaf_hash(b"one") }.sign(&log).unwrap();
    let request = |old| AddCheckpoint { old, proof: vec![], checkpoint: signed.note().clone() }.to_string();

    let start = |point: Option<&Point>| {
        let mut child = strace::command(PROGRAM.as_ref(), point, &list)
            .args(["witness", "serve", "--listen", "127.0.0.1:0"])
            .arg(&witness)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = format!("http://{}", line.trim().strip_prefix("listening on ").unwrap());
        (Traced(child), url)
    };
    // The record is whole and has its name; the folder that says so cannot be synced.
    let call = Call::named("fsync", 2);
    let (traced, url) = start(Some(&Point { call, fault: Fault::Eio }));
    assert_eq!(post(&url, &request(0)), 500);
    assert!(strace::fired(&list, Fault::Eio));
    // The record is there, so it is asked for from its size. strace counts for each thread: another one may meet the fault too.
    let mut before = syncs(&list, &witness);
    while post(&url, &request(1)) != 200 {
        assert!(syncs(&list, &witness) >= before + 2, "refused for another reason than the fault");
        before = syncs(&list, &witness);
    }
    assert_eq!(syncs(&list, &witness), before + 4, "the file and its folder again, and the list of logs");
    assert_eq!(post(&url, &request(1)), 200);
    assert_eq!(syncs(&list, &witness), before + 4, "once is enough");
    drop(traced);

    // A process that starts does not know how the one before it ended.
    let (_traced, url) = start(None);
    assert_eq!(post(&url, &request(1)), 200);
    assert_eq!(syncs(&list, &witness), 4);
}

#[test]
fn an_init_is_done_when_its_folder_is_on_the_disk() {
    if scene().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (ledger, list) = (folder.path().join("l"), folder.path().join("strace.list"));
    let init = |point: Option<&Point>| {
        let mut command = strace::command(PROGRAM.as_ref(), point, &list);
        command.args(["init", "--network", "atlas"]).arg(&ledger).output().unwrap()
    };
    assert!(init(None).status.success());
    let calls = strace::calls(&list, &ledger, "");
    let renamed = calls.iter().rposition(|call| call.name.starts_with("rename")).unwrap();
    let synced = calls[renamed..].iter().find(|call| call.is_sync() && Path::new(&call.file) == ledger);
    let synced = synced.unwrap_or_else(|| panic!("the settings' name was not synced: {calls:?}"));

    std::fs::remove_dir_all(&ledger).unwrap();
    let failed = init(Some(&Point { call: synced.clone(), fault: Fault::Eio }));
    assert!(!failed.status.success() && strace::fired(&list, Fault::Eio), "{failed:?}");
    assert!(String::from_utf8_lossy(&failed.stderr).contains("run the same `init` again"), "{failed:?}");
    assert!(init(None).status.success(), "the next one finishes it");
}
