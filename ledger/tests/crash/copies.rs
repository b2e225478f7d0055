//! One backup and one restore, ended or failing at every system call: there is a whole copy or none, and the same command again
//! finishes what was begun.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::scene::{PROGRAM, Scene};
use crate::strace::{self, Fault, Point, calls, points, sample, sample_and};
use crate::{Count, SAMPLE, scene};

/// The program, under strace where there is a point.
fn run(scene: &Scene, point: Option<&Point>, arguments: &[&Path]) -> Output {
    let mut command = strace::command(PROGRAM.as_ref(), point, &scene.list());
    command.args(arguments).arg("--json").output().unwrap()
}

fn said(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What `verify` says of the database that these settings name, or of another one.
fn verified(scene: &Scene, config: &Path, store: Option<&Path>) -> serde_json::Value {
    let mut arguments = vec![Path::new("verify"), "--config".as_ref(), config];
    arguments.extend(store.into_iter().flat_map(|store| [Path::new("--store"), store]));
    said(&run(scene, None, &arguments))
}

/// Everything that could be tried of a command that was run once under strace.
fn every(scene: &Scene, folder: &Path) -> (usize, Vec<Point>) {
    let calls = calls(&scene.list(), folder, "ledger.toml");
    assert!(calls.iter().any(|call| call.name.ends_with("sync")), "nothing was synced: {calls:?}");
    (calls.len(), points(&calls))
}

#[test]
fn one_backup() {
    let Some(scene) = scene() else { return };
    let (copies, folder) = (tempfile::tempdir().unwrap(), scene.copy());
    let config = folder.join("ledger.toml");
    let backup = |file: &Path, point: Option<&Point>| {
        run(&scene, point, &[Path::new("backup"), file, "--config".as_ref(), &config])
    };
    let first = said(&backup(&copies.path().join("b.db"), None));
    let (all, every) = every(&scene, copies.path());
    let mut count = Count::default();
    for (number, point) in sample(every.clone(), SAMPLE).into_iter().enumerate() {
        let file = copies.path().join(format!("{number}.db"));
        let output = backup(&file, Some(&point));
        count.add(point.fault, output.status.success(), strace::fired(&scene.list(), point.fault));
        assert!(!output.status.success() || file.exists(), "{point:?}: said to be there");
        if !file.exists() {
            said(&backup(&file, None));
        }
        let copy = verified(&scene, &config, Some(&file));
        assert_eq!((&copy["entries"], &copy["root"]), (&first["entries"], &first["root"]), "{point:?}");
        assert!(drafts(copies.path()).is_empty() || may_leave_drafts(&point), "{point:?}: a draft is left");
        for draft in drafts(copies.path()) {
            std::fs::remove_file(draft).unwrap();
        }
    }
    count.print("one backup", all, every.len());
}

#[test]
fn one_restore() {
    let Some(scene) = scene() else { return };
    let (copies, folder) = (tempfile::tempdir().unwrap(), scene.copy());
    let (config, key) = (folder.join("ledger.toml"), folder.join("ledger.key"));
    let file = copies.path().join("b.db");
    let backup = said(&run(&scene, None, &[Path::new("backup"), &file, "--config".as_ref(), &config]));
    let balances = verified(&scene, &config, Some(&file))["balances"].clone();
    let restore = |to: &Path, point: Option<&Point>| {
        let arguments =
            [Path::new("restore"), &file, to, "--config".as_ref(), &config, "--ledger-key".as_ref(), &key];
        run(&scene, point, &arguments)
    };
    said(&restore(&copies.path().join("new"), None));
    let (all, every) = every(&scene, copies.path());
    let mut count = Count::default();
    // A copy has no write-ahead log: the change to one is the only transaction that a journal could roll back.
    let in_journal =
        |point: &Point| point.fault == Fault::Kill && point.call.file.ends_with("ledger.db-journal");
    assert!(every.iter().any(in_journal), "nothing was written under a journal");
    for (number, point) in sample_and(every.clone(), SAMPLE, in_journal).into_iter().enumerate() {
        let to = copies.path().join(number.to_string());
        let output = restore(&to, Some(&point));
        count.add(point.fault, output.status.success(), strace::fired(&scene.list(), point.fault));
        let settings = to.join("ledger.toml");
        assert!(!output.status.success() || settings.exists(), "{point:?}: said to be restored");
        // Settings that are there are the last step: then it is a ledger already.
        if !settings.exists() {
            said(&restore(&to, None));
        }
        let restored = verified(&scene, &settings, None);
        let entries = backup["entries"].as_u64().unwrap() + 1;
        assert_eq!((&restored["entries"], &restored["balances"]), (&entries.into(), &balances), "{point:?}");
        assert!(drafts(&to).is_empty() || may_leave_drafts(&point), "{point:?}: a draft is left");
        let vkey = std::fs::read_to_string(to.join("log.vkey")).unwrap();
        said(&run(&scene, None, &[Path::new("publish"), "--config".as_ref(), &settings]));
        let audit = [Path::new("audit"), &to.join("log"), "--log-key".as_ref(), vkey.trim().as_ref()];
        assert_eq!(said(&run(&scene, None, &audit))["entries"], entries, "{point:?}");
    }
    count.print("one restore", all, every.len());
}

/// A program that was killed, or whose attempt to remove a draft failed.
fn may_leave_drafts(point: &Point) -> bool {
    point.fault == Fault::Kill || point.call.name.starts_with("unlink")
}

fn drafts(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.to_string_lossy().contains(".partial")).collect()
}
