//! Hostile packages: every one is refused with the exact error, within ceilings on resident memory and wall time.
//!
//! `tests/data/hostile-package/README.md` lists them; the test fails where that table and the cases here differ. A package that a
//! trust folder is enough for goes through the real program (`kvasir plugin verify` and `inspect`); what needs a root, a history
//! or a policy goes through the library in a process of its own (this test, started again).
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvasir_plugin::*;
use kvasir_tests::{program, root};

#[path = "../data/hostile-package/by_hand.rs"]
#[allow(dead_code, unused_qualifications)] // Shared with the tests of the package.
mod by_hand;
#[path = "hostile_package/packages.rs"]
mod packages;
#[path = "hostile_package/trust.rs"]
mod trust;

/// Most resident memory of a process that refuses. The largest input has 64 MiB and is held once; a refusal of the smaller ones
/// takes under 20 MiB.
const MEMORY_MAX_BYTES: u64 = 160 << 20;
/// Longest that a refusal may take: a guard against hanging, for machines that are slow and busy. Measured are 10 to 400 ms.
const WALL_MAX: Duration = Duration::from_secs(10);
/// Names the case that this program is started again for.
const CASE: &str = "KVASIR_HOSTILE_PACKAGE";

/// What a process did and took.
struct Ended {
    code: Option<i32>,
    said: String,
    resident_bytes: u64,
    took: Duration,
}

/// Runs `command` to its end, or kills it at [`WALL_MAX`].
#[allow(clippy::zombie_processes, reason = "wait4 waits for it, and says how much memory it had")]
fn ended(command: &mut Command) -> Ended {
    let began = Instant::now();
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let readers = [thread::spawn(move || lossy(&mut out)), thread::spawn(move || lossy(&mut err))];
    let (status, usage) = loop {
        let mut status = 0;
        // SAFETY: a zeroed rusage is a valid one; wait4 writes to both places, which outlive the call. The child is waited for
        // nowhere else.
        let (waited, usage) = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            (libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage), usage)
        };
        if waited == pid {
            break (status, usage);
        }
        assert_eq!(waited, 0, "waiting for {command:?}");
        if began.elapsed() > WALL_MAX {
            // SAFETY: the process is a child of this one that was not waited for, so its number is still its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        thread::sleep(Duration::from_millis(2));
    };
    let took = began.elapsed();
    let said = readers.map(|reader| reader.join().unwrap()).concat();
    let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
    // Linux counts the resident maximum in KiB.
    Ended { code, said, resident_bytes: u64::try_from(usage.ru_maxrss).unwrap() * 1024, took }
}

fn lossy(from: &mut dyn Read) -> String {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Wrapping of a long error over lines is the terminal's business.
fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn within_ceilings(name: &str, ended: &Ended) {
    assert!(ended.took < WALL_MAX, "{name}: took {:?}", ended.took);
    assert!(ended.resident_bytes < MEMORY_MAX_BYTES, "{name}: {} bytes resident", ended.resident_bytes);
    assert!(!ended.said.contains("panicked"), "{name}: {}", ended.said);
}

fn now() -> UnixSeconds {
    UnixSeconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs())
}

fn kvasir(home: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program("kvasir"));
    command.arg("--home").arg(home).args(words).env_remove("KVASIR_TRUST");
    command
}

fn trust_folder(home: &Path, seeds: &[u8]) {
    let folder = home.join("publishers");
    fs::create_dir_all(&folder).unwrap();
    for &seed in seeds {
        fs::write(folder.join(format!("{seed}.pub")), by_hand::public(seed).line()).unwrap();
    }
}

#[test]
fn hostile_packages_are_refused_by_the_program() {
    let home = tempfile::tempdir().unwrap();
    trust_folder(home.path(), &[1, 2]);
    let (folder, file) = (home.path().join("publishers"), home.path().join("x.kvp"));
    let (mut resident, mut took) = (0, Duration::ZERO);
    for case in packages::cases(now()) {
        fs::write(&file, &case.package).unwrap();
        let words = ["plugin", "verify", file.to_str().unwrap(), "--trust", folder.to_str().unwrap()];
        let verify = ended(&mut kvasir(home.path(), &words));
        within_ceilings(case.name, &verify);
        assert_eq!(verify.code, Some(1), "{}: {}", case.name, verify.said);
        let (said, expected) = (on_one_line(&verify.said), on_one_line(&case.expected));
        assert!(said.contains(&expected), "{}:\n  said     {said}\n  expected {expected}", case.name);
        // Looking into it is not refused everywhere, and is as safe.
        let inspect =
            ended(&mut kvasir(home.path(), &["--json", "plugin", "inspect", file.to_str().unwrap()]));
        within_ceilings(case.name, &inspect);
        assert!(matches!(inspect.code, Some(0 | 1)), "{}: {}", case.name, inspect.said);
        for ended in [verify, inspect] {
            (resident, took) = (resident.max(ended.resident_bytes), took.max(ended.took));
        }
    }
    println!("at most {} KiB resident and {took:?}", resident / 1024);
}

#[test]
fn hostile_trust_is_refused_by_the_library() {
    let this = std::env::current_exe().unwrap();
    let (mut resident, mut took) = (0, Duration::ZERO);
    for case in trust::CASES {
        let mut command = Command::new(&this);
        command.args(["--exact", "in_a_process_of_its_own", "--ignored", "--nocapture"]).env(CASE, case.name);
        let ended = ended(&mut command);
        within_ceilings(case.name, &ended);
        assert_eq!(ended.code, Some(0), "{}: {}", case.name, ended.said);
        assert!(ended.said.contains("refused as expected"), "{}: {}", case.name, ended.said);
        (resident, took) = (resident.max(ended.resident_bytes), took.max(ended.took));
    }
    println!("at most {} KiB resident and {took:?}", resident / 1024);
}

#[test]
#[ignore = "run by hostile_trust_is_refused_by_the_library, in a process of its own"]
fn in_a_process_of_its_own() {
    let Ok(name) = std::env::var(CASE) else {
        println!("skipped: no case is named in {CASE}");
        return;
    };
    let case = trust::CASES.iter().find(|case| case.name == name).unwrap();
    let (refused, expected) = (case.run)();
    assert_eq!(refused, expected);
    println!("refused as expected");
}

/// The same program and folder accept an honest package, so the refusals above are not for some other reason.
#[test]
fn an_honest_package_is_accepted() {
    let home = tempfile::tempdir().unwrap();
    trust_folder(home.path(), &[1]);
    let validity = Validity { not_before: UnixSeconds(now().0 - 60), expires: UnixSeconds(now().0 + 600) };
    let package = pack(&kvasir_tests::released_plugin::contents(), validity, &by_hand::key(1)).unwrap();
    let file = home.path().join("x.kvp");
    fs::write(&file, &package).unwrap();
    let folder = home.path().join("publishers");
    let words = ["plugin", "verify", file.to_str().unwrap(), "--trust", folder.to_str().unwrap()];
    let output = kvasir(home.path(), &words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output =
        kvasir(home.path(), &["--json", "plugin", "inspect", file.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["verified"], false);
    assert_eq!(said["kernel"]["imports"], serde_json::json!([]));
    assert_eq!(said["claims"]["signed_by"][0], by_hand::id(1).to_string());
    // Taken apart and packed again: the same files, so the same image.
    let (out, again) = (home.path().join("out"), home.path().join("again.kvp"));
    let unpack = kvasir(home.path(), &["plugin", "unpack", file.to_str().unwrap(), out.to_str().unwrap()]);
    let pack = ["plugin", "pack", out.to_str().unwrap(), "--out", again.to_str().unwrap()];
    for mut command in [unpack, kvasir(home.path(), &pack)] {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let image = |bytes: &[u8]| Unverified::read(bytes).unwrap().image;
    assert_eq!(image(&fs::read(&again).unwrap()), image(&package));
    // Signed with one's own key, made for it, and then by a second one.
    let second = home.path().join("second.key");
    let words: [&[&str]; 3] = [
        &["plugin", "sign", again.to_str().unwrap()],
        &["key", "new", second.to_str().unwrap()],
        &["plugin", "sign", again.to_str().unwrap(), "--key", second.to_str().unwrap()],
    ];
    for words in words {
        let output = kvasir(home.path(), words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let claims = Unverified::read(&fs::read(&again).unwrap()).unwrap().claims.unwrap();
    assert_eq!((claims.signed_by.len(), claims.misfit), (2, None));
}

#[test]
fn the_table_lists_every_case() {
    let table = fs::read_to_string(root().join("tests/data/hostile-package/README.md")).unwrap();
    let listed: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name))
        .collect();
    let cases = packages::cases(now());
    let mut named: BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
    named.extend(trust::CASES.iter().map(|case| case.name));
    assert_eq!(listed, named);
    assert!(named.len() >= 40);
}
