//! Output that cannot be written and files that are not what they are named for: nothing is destroyed, nothing hangs, and never a
//! panic.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kvasir_operate::key_file;
use kvasir_plugin::{KeyId, Unverified};
use kvasir_tests::{program, root};

/// Far beyond what anything here takes; what waits for a pipe would wait for ever.
const PATIENCE: Duration = Duration::from_secs(120);

/// A home of its own with a kernel set up.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        let home = Home(tempfile::tempdir().unwrap());
        let (code, said) = home.ends(&mut home.kvasir(&["setup"]));
        assert_eq!(code, Some(0), "{said}");
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn kvasir<W: AsRef<OsStr>>(&self, arguments: &[W]) -> Command {
        let mut command = Command::new(program("kvasir"));
        command.current_dir(root()).env("KVASIR_HOME", self.0.path()).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// The exit code and standard error of a command, which must end in time and not panic.
    fn ends(&self, command: &mut Command) -> (Option<i32>, String) {
        let mut child = command.spawn().unwrap();
        let mut errors = child.stderr.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            errors.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() >= deadline {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{command:?} does not end");
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let said = reader.join().unwrap();
        assert!(!said.contains("panicked"), "{command:?}: {said}");
        (status.code(), said)
    }

    /// The command fails with exit code 1 and says all of `fragments`.
    fn refuses<W: AsRef<OsStr>>(&self, arguments: &[W], fragments: &[&str]) {
        let mut command = self.kvasir(arguments);
        let (code, said) = self.ends(&mut command);
        assert_eq!(code, Some(1), "{command:?}: {said}");
        for fragment in fragments {
            assert!(said.contains(fragment), "{command:?} does not say {fragment:?}: {said}");
        }
    }

    fn succeeds<W: AsRef<OsStr>>(&self, arguments: &[W]) {
        let mut command = self.kvasir(arguments);
        let (code, said) = self.ends(&mut command);
        assert_eq!(code, Some(0), "{command:?}: {said}");
    }

    fn key(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        self.succeeds(&[OsStr::new("key"), OsStr::new("new"), path.as_os_str()]);
        path
    }

    /// A folder that `kvasir plugin pack` can pack.
    fn kernel_folder(&self) -> PathBuf {
        let (folder, plugin) = (self.path("kernel"), root().join("plugins/swiglu"));
        fs::create_dir_all(&folder).unwrap();
        fs::copy(plugin.join("plugin.toml"), folder.join("plugin.toml")).unwrap();
        fs::copy(plugin.join("release/swiglu-0.2.0.wasm"), folder.join("kernel.wasm")).unwrap();
        for part in ["vectors", "shaders"] {
            fs::create_dir_all(folder.join(part)).unwrap();
            for file in fs::read_dir(plugin.join(part)).unwrap() {
                let file = file.unwrap();
                fs::copy(file.path(), folder.join(part).join(file.file_name())).unwrap();
            }
        }
        folder
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn full() -> Stdio {
    fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

const REPORTS: &[&[&str]] = &[
    &["setup"],
    &["inspect"],
    &["plugin", "verify"],
    &["completions", "bash"],
    &["--help"],
    &["--json", "setup"],
    &["run", "--tokens", "2", "The capital of France is"],
    &["--json", "run", "--tokens", "2", "The capital of France is"],
    &["bench", "--runs", "1", "--tokens", "2", "--prompt-tokens", "2"],
];

#[test]
fn a_full_standard_output_is_a_failure_with_a_reason() {
    let home = Home::new();
    for arguments in REPORTS {
        let (code, said) = home.ends(home.kvasir(arguments).stdout(full()));
        assert_eq!(code, Some(1), "{arguments:?}: {said}");
        assert!(said.contains("No space left"), "{arguments:?}: {said}");
    }
}

#[test]
fn a_reader_that_went_away_ends_the_program_quietly() {
    let home = Home::new();
    for arguments in REPORTS {
        let mut command = home.kvasir(arguments);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, said) = home.ends(command.stdout(writer));
        assert_eq!(code, Some(141), "{arguments:?}: {said}");
        assert_eq!(said, "", "{arguments:?}");
    }
}

#[test]
fn a_reader_that_goes_away_in_the_middle_of_a_text_ends_it_quietly() {
    let home = Home::new();
    let mut command = home.kvasir(&["run", "--tokens", "4000", "The capital of France is"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_full_standard_error_changes_no_exit_code() {
    let home = Home::new();
    for (arguments, expected) in [
        (&["run", "--tokens", "2", "x"][..], 0),
        (&["--verbose", "run", "--tokens", "2", "x"], 0),
        (&["run", ""], 1),
    ] {
        let status = home.kvasir(arguments).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(expected), "{arguments:?}");
    }
}

#[test]
fn a_key_whose_report_is_lost_is_named_with_its_public_half() {
    let home = Home::new();
    let path = home.path("k.key");
    let (code, said) = home.ends(home.kvasir(&["key", "new", text(&path)]).stdout(full()));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("k.key") && said.contains("ed25519:"), "{said}");
    home.succeeds(&["key", "show", text(&path)]);
}

#[test]
fn an_output_replaces_no_key_no_device_no_link_and_no_other_file() {
    let home = Home::new();
    let (folder, key, signer) = (home.kernel_folder(), home.key("wallet.key"), home.key("signer.key"));
    let (letter, link) = (home.path("letter.txt"), home.path("link.kvp"));
    fs::write(&letter, "Dear Ada").unwrap();
    fs::write(home.path("out.new"), "mine").unwrap();
    std::os::unix::fs::symlink(&letter, &link).unwrap();
    let secret = fs::read(&key).unwrap();
    let pack = |out: &Path, further: &[&'static str]| {
        let words = ["plugin", "pack", text(&folder), "--key", text(&signer), "--out", text(out)];
        words.iter().chain(further).map(|word| (*word).to_owned()).collect::<Vec<String>>()
    };
    for further in [&[][..], &["--force"]] {
        home.refuses(&pack(&key, further), &["secret key"]);
        home.refuses(&pack(&signer, further), &["itself"]);
        home.refuses(&pack(&folder.join("plugin.toml"), further), &["itself"]);
        home.refuses(&pack(Path::new("/dev/full"), further), &["a device"]);
        home.refuses(&pack(&link, further), &["a link"]);
        home.refuses(&pack(&home.path("nowhere/out.kvp"), further), &["no folder"]);
    }
    home.refuses(&pack(&letter, &[]), &["letter.txt", "--force"]);
    assert_eq!(fs::read_to_string(&letter).unwrap(), "Dear Ada");
    assert_eq!(fs::read(&key).unwrap(), secret);
    assert!(!home.path("nowhere").exists());

    let out = home.path("out.kvp");
    home.succeeds(&pack(&out, &[]));
    home.succeeds(&pack(&out, &[]));
    home.succeeds(&pack(&letter, &["--force"]));
    assert_eq!(fs::read_to_string(home.path("out.new")).unwrap(), "mine");
    home.refuses(
        &["plugin", "component", text(&folder.join("kernel.wasm")), text(&folder.join("kernel.wasm"))],
        &["itself"],
    );
}

#[test]
fn a_signature_that_cannot_be_made_again_here_is_not_written_over() {
    let home = Home::new();
    let (folder, mine, theirs) = (home.kernel_folder(), home.key("mine.key"), home.key("theirs.key"));
    let out = home.path("out.kvp");
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
    let pack = words(&["plugin", "pack", text(&folder), "--out", text(&out)]);
    let sign_by =
        |key: &Path| words(&["plugin", "sign", text(&folder), "--key", text(key), "--out", text(&out)]);
    let pack_by = |key: &Path| [&pack[..], &words(&["--key", text(key)])].concat();
    home.succeeds(&pack);
    home.succeeds(&sign_by(&mine));
    // By the same key again: nothing is lost that could not be made again.
    home.succeeds(&sign_by(&mine));
    home.succeeds(&pack_by(&mine));
    let before = fs::read(&out).unwrap();
    home.refuses(&pack, &["out.kvp is signed by", "--out", "--force", "kvasir plugin sign"]);
    home.refuses(&pack_by(&theirs), &["out.kvp is signed by"]);
    home.refuses(&sign_by(&theirs), &["out.kvp is signed by"]);
    assert!(fs::read(&out).unwrap() == before);
    // What it says to do keeps both.
    home.succeeds(&["plugin", "sign", text(&out), "--key", text(&theirs)]);
    let both = fs::read(&out).unwrap();
    for refused in [&pack, &pack_by(&mine), &sign_by(&mine), &sign_by(&theirs)] {
        home.refuses(refused, &["out.kvp is signed by"]);
    }
    let unsigned = home.path("unsigned.kvp");
    home.succeeds(&words(&["plugin", "pack", text(&folder), "--out", text(&unsigned)]));
    let onto = words(&["plugin", "sign", text(&unsigned), "--key", text(&mine), "--out", text(&out)]);
    home.refuses(&onto, &["out.kvp is signed by"]);
    let layout = home.path("layout");
    home.succeeds(&words(&["plugin", "push", text(&unsigned), text(&layout)]));
    let pull = words(&["plugin", "pull", text(&layout), "--out", text(&out)]);
    home.refuses(&pull, &["out.kvp is there already and is another package", "--out", "--force"]);
    assert!(fs::read(&out).unwrap() == both);
    home.succeeds(&[&pull[..], &words(&["--force"])].concat());
    assert!(fs::read(&out).unwrap() == fs::read(&unsigned).unwrap());
    // The same bytes once more lose nothing.
    home.succeeds(&pull);
    // Nor is a package replaced that nobody can read any more: it may be half of one that others signed.
    fs::write(&out, &both[..both.len() / 2]).unwrap();
    for refused in [&pack, &pack_by(&mine), &sign_by(&mine), &onto, &pull] {
        home.refuses(refused, &["out.kvp is there already"]);
    }
    assert!(fs::read(&out).unwrap() == both[..both.len() / 2]);
}

#[test]
fn two_who_sign_at_once_lose_no_signature() {
    let home = Home::new();
    let (folder, first) = (home.kernel_folder(), home.key("first.key"));
    let package = home.path("p.kvp");
    home.succeeds(&["plugin", "sign", text(&folder), "--key", text(&first), "--out", text(&package)]);
    let keys = ["a.key", "b.key"].map(|name| home.key(name));
    let sign = |key: &Path| home.kvasir(&["plugin", "sign", text(&package), "--key", text(key)]);
    let begun = keys.each_ref().map(|key| sign(key).spawn().unwrap());
    let done = begun.map(|child| child.wait_with_output().unwrap());
    let mut due = vec![key_id(&first)];
    for (key, output) in keys.iter().zip(&done) {
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => due.push(key_id(key)),
            code => assert!(code == Some(1) && said.contains("in the meantime"), "{said}"),
        }
    }
    assert!(due.len() > 1, "one of the two comes first");
    let claims = Unverified::read(&fs::read(&package).unwrap()).unwrap().claims.unwrap();
    let mut found = claims.signed_by;
    found.sort();
    due.sort();
    assert_eq!(found, due);
}

fn key_id(path: &Path) -> KeyId {
    KeyId::of(&key_file::load(path).unwrap().signing_key().verifying_key())
}

#[test]
fn a_package_takes_the_place_of_nothing_that_it_is_made_of() {
    let home = Home::new();
    let (folder, signer) = (home.kernel_folder(), home.key("signer.key"));
    for part in ["src", "build"] {
        fs::create_dir(folder.join(part)).unwrap();
    }
    let made = ["src/kernel.c", "kvasir-build.toml", "Cargo.toml", "Cargo.lock"];
    fs::copy(folder.join("kernel.wasm"), folder.join("build/kernel.wasm")).unwrap();
    for file in &made {
        fs::write(folder.join(file), "# mine\n").unwrap();
    }
    let first = |part: &str| fs::read_dir(folder.join(part)).unwrap().next().unwrap().unwrap().path();
    let mut inputs: Vec<PathBuf> = made.iter().map(|file| folder.join(file)).collect();
    inputs.extend(["plugin.toml", "kernel.wasm", "build/kernel.wasm"].map(|file| folder.join(file)));
    inputs.extend([first("vectors"), first("shaders"), signer.clone()]);
    let before: Vec<Vec<u8>> = inputs.iter().map(|input| fs::read(input).unwrap()).collect();
    for input in &inputs {
        for verb in ["pack", "sign"] {
            let words =
                ["plugin", verb, text(&folder), "--key", text(&signer), "--force", "--out", text(input)];
            home.refuses(&words, &["write to another"]);
        }
    }
    // Nor does it become one of them.
    let new = folder.join("vectors/new.kvp");
    home.refuses(&["plugin", "pack", text(&folder), "--out", text(&new)], &["new.kvp", "every file belongs"]);
    assert!(!new.exists());
    let after: Vec<Vec<u8>> = inputs.iter().map(|input| fs::read(input).unwrap()).collect();
    assert!(before == after);
    home.succeeds(&["plugin", "pack", text(&folder), "--out", text(&folder.join("build/out.kvp"))]);
}

#[test]
fn naming_the_keys_of_a_signed_package_does_not_let_another_take_its_place() {
    let home = Home::new();
    let (folder, mine, theirs) = (home.kernel_folder(), home.key("mine.key"), home.key("theirs.key"));
    let (genuine, other, layout) = (home.path("genuine.kvp"), home.path("other.kvp"), home.path("layout"));
    let sign = |out: &Path| {
        let words = ["plugin", "sign", text(&folder), "--key", text(&theirs), "--out", text(out)];
        words.map(str::to_owned)
    };
    home.succeeds(&sign(&genuine));
    let before = fs::read(&genuine).unwrap();
    // Another package that names the same key: what a forgery looks like to whoever does not check its signature.
    let manifest = fs::read_to_string(folder.join("plugin.toml")).unwrap();
    fs::write(folder.join("plugin.toml"), format!("{manifest}\n# another\n")).unwrap();
    home.succeeds(&sign(&other));
    home.succeeds(&["plugin", "push", text(&other), text(&layout)]);
    home.refuses(
        &["plugin", "pull", text(&layout), "--out", text(&genuine)],
        &["genuine.kvp is there already and is another package"],
    );
    home.refuses(
        &["plugin", "sign", text(&other), "--key", text(&mine), "--out", text(&genuine)],
        &["genuine.kvp is signed by"],
    );
    assert!(fs::read(&genuine).unwrap() == before);
    // A signature beside the first, in its own place and in that of the same bytes elsewhere.
    let copy = home.path("copy.kvp");
    fs::write(&copy, &before).unwrap();
    home.succeeds(&["plugin", "sign", text(&genuine), "--key", text(&mine), "--out", text(&copy)]);
    home.succeeds(&["plugin", "sign", text(&genuine), "--key", text(&mine)]);
    assert!(fs::read(&genuine).unwrap() == fs::read(&copy).unwrap());
}

#[test]
fn what_would_not_verify_is_not_packed() {
    let home = Home::new();
    let (folder, signer, out) = (home.kernel_folder(), home.key("signer.key"), home.path("out.kvp"));
    let pack = ["plugin", "pack", text(&folder), "--key", text(&signer), "--out", text(&out)];
    let manifest = fs::read_to_string(folder.join("plugin.toml")).unwrap();
    fs::write(folder.join("plugin.toml"), manifest.replace("schema", "shcema")).unwrap();
    home.refuses(&pack, &[text(&folder), "plugin.toml", "shcema"]);
    fs::write(folder.join("plugin.toml"), &manifest).unwrap();
    fs::remove_dir_all(folder.join("vectors")).unwrap();
    home.refuses(&pack, &["no golden vectors"]);
    assert!(!out.exists());
}

#[test]
fn logits_replace_neither_the_model_nor_the_kernel() {
    let home = Home::new();
    let model = home.path("m.gguf");
    fs::copy(root().join("models/atlas/atlas-q4_k_m.gguf"), &model).unwrap();
    let linked = home.path("linked");
    fs::hard_link(&model, &linked).unwrap();
    let before = fs::read(&model).unwrap();
    let mut packages = fs::read_dir(home.path("data/plugins/packages")).unwrap();
    let package = packages.next().unwrap().unwrap().path();
    let run = |out: &Path| {
        let words = ["run", "--tokens", "1", "--model", text(&model), "--logits", text(out), "x"];
        words.map(str::to_owned)
    };
    for out in [&model, &linked, &package] {
        home.refuses(&run(out), &["itself"]);
    }
    home.refuses(&run(home.0.path()), &["a folder"]);
    home.refuses(&run(Path::new("/dev/full")), &["No space left"]);
    assert!(fs::read(&model).unwrap() == before);
    let logits = home.path("l.f32");
    home.succeeds(&run(&logits));
    assert!(fs::metadata(&logits).unwrap().len() > 0);
}

#[test]
fn pipes_and_devices_are_not_read_as_files() {
    let home = Home::new();
    let pipe = home.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (path, kind) in [(text(&pipe), "pipe"), ("/dev/zero", "device")] {
        home.refuses(&["run", "--model", path, "x"], &["plain file"]);
        home.refuses(&["run", "--plugin", path, "x"], &[kind]);
        home.refuses(&["--config", path, "run", "x"], &[kind]);
        home.refuses(&["key", "show", path], &[kind]);
        home.refuses(&["plugin", "verify", path], &[kind]);
        let hub = ["run", "--hub", "ws://127.0.0.1:1", "--ticket", path, "--key", path, "x"];
        home.refuses(&hub, &[kind]);
    }
    let trust = home.path("trust");
    fs::create_dir(&trust).unwrap();
    fs::rename(&pipe, trust.join("p.pub")).unwrap();
    home.refuses(&["run", "--trust", text(&trust), "x"], &["p.pub", "plain file"]);
}

#[test]
fn paths_that_are_not_utf8_are_reported_all_the_same() {
    let home = Home::new();
    let model = home.0.path().join(OsStr::from_bytes(b"m\xff.gguf"));
    fs::copy(root().join("models/atlas/atlas-q4_k_m.gguf"), &model).unwrap();
    let key = home.0.path().join(OsStr::from_bytes(b"k\xff.key"));
    let word = OsStr::new;
    home.succeeds(&[word("--json"), word("inspect"), model.as_os_str()]);
    home.succeeds(&[word("--json"), word("key"), word("new"), key.as_os_str()]);
    home.succeeds(&[word("--json"), word("key"), word("show"), key.as_os_str()]);
    let elsewhere = home.0.path().join(OsStr::from_bytes(b"home\xff"));
    home.succeeds(&[word("--json"), word("--home"), elsewhere.as_os_str(), word("setup")]);
    home.succeeds(&[word("--json"), word("--home"), elsewhere.as_os_str(), word("plugin"), word("verify")]);
}

#[test]
fn complaints_move_no_cursor() {
    let home = Home::new();
    home.refuses(&["inspect", "nowhere\x1b[2J.gguf"], &["nowhere\\u{1b}[2J.gguf"]);
}

#[test]
fn setting_up_keeps_its_own_key_under_whatever_name_it_is_trusted() {
    let home = Home::new();
    let trust = home.path("keys");
    fs::write(home.path("config/config.toml"), format!("trust = {:?}\n", text(&trust))).unwrap();
    home.succeeds(&["setup"]);
    fs::rename(trust.join("own.pub"), trust.join("me.pub")).unwrap();
    home.succeeds(&["setup"]);
    assert!(!trust.join("own.pub").exists());
}

#[test]
fn several_set_ups_at_once_agree() {
    let home = Home(tempfile::tempdir().unwrap());
    let children: Vec<_> =
        (0..4).map(|_| home.kvasir(&["--json", "setup"]).stdout(Stdio::piped()).spawn().unwrap()).collect();
    let publishers: Vec<String> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            report["publisher"].as_str().unwrap().to_owned()
        })
        .collect();
    assert!(publishers.iter().all(|publisher| *publisher == publishers[0]), "{publishers:?}");
    home.succeeds(&["plugin", "verify"]);
}

#[test]
fn a_count_that_cannot_work_is_named_with_its_option() {
    let home = Home::new();
    home.refuses(&["demo", "--tokens", "0"], &["--tokens", "at least 1"]);
    home.refuses(&["bench", "--tokens", "100000"], &["--tokens 100000", "4096"]);
}

#[test]
fn a_worker_that_could_not_keep_receipts_does_not_begin() {
    let home = Home::new();
    let (file, key) = (home.path("file"), home.key("k.key"));
    fs::write(&file, "x").unwrap();
    let receipts = file.join("receipts");
    let worker =
        ["worker", "--gateway", "wss://gateway.example", "--ticket", text(&file), "--key", text(&key)];
    home.refuses(&[&worker[..], &["--receipts", text(&receipts)]].concat(), &["receipts", text(&file)]);
}
