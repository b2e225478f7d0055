//! The verbs of an operator, through the program: install, upgrade, go back, trust, revoke, explain; and what the other commands then
//! use.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "plugin_store/packages.rs"]
mod packages;
#[path = "plugin_store/trust.rs"]
mod trust;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ed25519_dalek::SigningKey;
use kvasir_operate::{key_file, setup};
use kvasir_plugin::{KeyId, PackageContents, Validity};
use kvasir_tests::{program, root, skipped};
use serde_json::Value;

/// A home of its own.
struct Home(tempfile::TempDir);

impl Home {
    /// With a kernel set up.
    fn new() -> Home {
        let home = Home(tempfile::tempdir().unwrap());
        home.reports(&["setup"]);
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("kvasir"));
        command.current_dir(root()).env("KVASIR_HOME", self.0.path()).arg("--json").args(arguments);
        command
    }

    fn reports(&self, arguments: &[&str]) -> Value {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
        serde_json::from_slice(&stdout).unwrap()
    }

    /// Fails with exit code 1, panics nowhere, and says all of `fragments`.
    fn refuses(&self, arguments: &[&str], fragments: &[&str]) {
        let output = self.command(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
        for fragment in fragments {
            assert!(said.contains(fragment), "{arguments:?} does not say {fragment:?}: {said}");
        }
    }

    /// What `policy explain` reports of a plugin that would be refused, which it says with exit code 1 as well.
    fn explains_refusal(&self, what: &[&str]) -> Value {
        let output = self.command(&[&["plugin", "policy", "explain"], what].concat()).output().unwrap();
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let failed = told["failed"].as_str().unwrap();
        assert_eq!((output.status.code(), &told["admitted"]), (Some(1), &false.into()), "{told}");
        assert!(said.contains(&format!("would be refused at the check \"{failed}\"")), "{said}");
        told
    }

    /// The bundled kernel as `version` with `revision`, signed by this home's publisher key.
    fn package(&self, version: &str, revision: u64) -> PathBuf {
        let key = key_file::load(&self.path("config/keys/publisher.key")).unwrap();
        self.package_by(version, revision, key.signing_key())
    }

    fn package_by(&self, version: &str, revision: u64, key: &SigningKey) -> PathBuf {
        self.package_valid(version, revision, key, setup::validity(1))
    }

    fn package_valid(&self, version: &str, revision: u64, key: &SigningKey, validity: Validity) -> PathBuf {
        let bundled = setup::bundled_kernel();
        let lines = |line: &str| match line.split_once(" = ").map(|(name, _)| name) {
            Some("version") => format!("version = \"{version}\""),
            Some("kernel_revision") => format!("kernel_revision = {revision}"),
            _ => line.to_owned(),
        };
        let manifest: Vec<String> =
            String::from_utf8(bundled.manifest.clone()).unwrap().lines().map(lines).collect();
        // One vector is proof enough here, and quick.
        let vectors = bundled.vectors.iter().filter(|(name, _)| {
            name.starts_with("q8_0.") || name.starts_with("q4_k.") || name.starts_with("f16.")
        });
        let contents = PackageContents {
            manifest: manifest.join("\n").into_bytes(),
            vectors: vectors.map(|(name, bytes)| (name.clone(), bytes.clone())).collect(),
            ..bundled
        };
        let path = self.path(&format!("swiglu-{version}-{revision}.kvp"));
        fs::write(&path, kvasir_plugin::pack(&contents, validity, key).unwrap()).unwrap();
        path
    }

    fn run(&self) -> Value {
        self.reports(&["run", "--tokens", "1", "x"])
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn upgrade_and_rollback_change_what_run_uses_and_are_recorded() {
    let home = Home::new();
    let first = home.run()["plugin"].clone();
    let newer = home.package("9.0.0", 900);
    let upgraded = home.reports(&["plugin", "upgrade", text(&newer)]);
    assert_eq!(
        (&upgraded["active"], &upgraded["former"], &upgraded["revision"]),
        (&true.into(), &first, &900.into())
    );
    assert_eq!(home.run()["plugin"], upgraded["plugin"]);
    home.refuses(&["plugin", "upgrade", text(&newer)], &["not newer"]);
    // What is no upgrade is not kept either.
    home.refuses(&["plugin", "upgrade", text(&home.package("8.9.0", 900))], &["not newer"]);
    assert_eq!(home.reports(&["plugin", "list"])["plugins"].as_array().unwrap().len(), 2);

    home.refuses(&["plugin", "rollback"], &["900 was seen", "--allow-downgrade"]);
    assert_eq!(home.run()["plugin"], upgraded["plugin"]);
    let back = home.reports(&["plugin", "rollback", "--allow-downgrade"]);
    assert_eq!(back["plugin"], first);
    assert_eq!(home.run()["plugin"], first);
    home.refuses(&["plugin", "rollback"], &["no former version"]);
    let history = home.reports(&["plugin", "history"]);
    let last = history["entries"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["event"], &last["overridden_revision"]), (&"rolled_back".into(), &900.into()));

    let digest = upgraded["plugin"].as_str().unwrap();
    home.reports(&["plugin", "activate", &digest[..8]]);
    let list = home.reports(&["plugin", "list"]);
    let states: Vec<_> =
        list["plugins"].as_array().unwrap().iter().map(|plugin| plugin["state"].as_str().unwrap()).collect();
    assert_eq!(states.iter().filter(|state| **state == "active").count(), 1, "{list}");
    assert_eq!(list["active"], digest);
}

#[test]
fn a_revoked_active_plugin_is_not_used_and_the_way_out_is_said() {
    let home = Home::new();
    let newer = home.package("9.0.0", 900);
    let plugin = home.reports(&["plugin", "install", text(&newer)])["plugin"].as_str().unwrap().to_owned();
    let revoked = home.reports(&["plugin", "revoke", &plugin]);
    assert!(revoked["active_is_refused"].as_str().unwrap().contains("rollback"), "{revoked}");
    home.refuses(&["run", "x"], &["is revoked", "kvasir plugin rollback"]);
    home.refuses(&["plugin", "install", text(&newer)], &["is revoked"]);
    home.refuses(&["run", "--plugin", text(&newer), "x"], &["is revoked"]);
    assert_eq!(home.explains_refusal(&[])["failed"], "package-revocation");
    assert_eq!(home.explains_refusal(&[text(&newer)])["failed"], "package-revocation");
    assert_eq!(
        home.reports(&["plugin", "list"])["plugins"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|plugin| plugin["state"] == "revoked")
            .count(),
        1
    );
    home.reports(&["plugin", "rollback", "--allow-downgrade"]);
    home.run();
}

#[test]
fn trust_is_given_taken_and_handed_to_a_new_root_key() {
    let home = Home::new();
    let (foreign, key) = (home.path("foreign.key"), SigningKey::from_bytes(&[9; 32]));
    home.reports(&["key", "new", text(&foreign)]);
    let foreign = key_file::load(&foreign).unwrap();
    let package = home.package_by("9.0.0", 900, foreign.signing_key());
    let public = foreign.public().to_string();
    home.refuses(&["plugin", "install", text(&package)], &["does not trust"]);
    let added = home.reports(&["plugin", "trust", "add", &public, "--namespace", "kvasir"]);
    assert_eq!((&added["added"], &added["root_version"]), (&true.into(), &2.into()));
    assert_eq!(home.reports(&["plugin", "trust", "add", &public, "--namespace", "kvasir"])["added"], false);
    home.reports(&["plugin", "install", text(&package), "--no-activate"]);

    let before = fs::read(home.path("config/keys/root.key")).unwrap();
    let rotated = home.reports(&["plugin", "trust", "rotate"]);
    assert_eq!(rotated["root_version"], 3);
    assert_ne!(fs::read(home.path("config/keys/root.key")).unwrap(), before);
    assert_eq!(fs::read(rotated["former"].as_str().unwrap()).unwrap(), before);
    let removed = home.reports(&["plugin", "trust", "remove", &public]);
    assert_eq!(removed["root_version"], 4);
    home.refuses(&["plugin", "install", text(&package)], &["does not trust"]);
    let shown = home.reports(&["plugin", "trust", "show"]);
    assert_eq!(shown["root"]["version"], 4);

    // A stranger's root in the place of one's own is no root here.
    let theirs = kvasir_plugin::PublisherKey { key: key.verifying_key(), name: None };
    let mut root = kvasir_plugin::Root::new(kvasir_plugin::UnixSeconds(u64::MAX / 2), theirs);
    root.version = 5;
    let own = fs::read(home.path("config/trust/root.json")).unwrap();
    fs::write(home.path("config/trust/root.json"), root.sign(&[&key]).unwrap()).unwrap();
    home.refuses(&["run", "x"], &["root.json"]);
    fs::write(home.path("config/trust/root.json"), own).unwrap();
    home.run();
}

#[test]
fn the_policy_bounds_what_runs_and_explains_itself() {
    let home = Home::new();
    let policy = home.path("config/policy.toml");
    fs::write(&policy, "[default]\nmemory_bytes = 1048576\n").unwrap();
    let told = home.reports(&["plugin", "policy", "explain"]);
    assert_eq!((&told["admitted"], &told["grant"]["memory_bytes"]), (&true.into(), &1_048_576.into()));
    fs::write(&policy, "[default]\nrows_per_call = 7\n").unwrap();
    let told = home.reports(&["plugin", "policy", "explain"]);
    assert_eq!(told["grant"]["rows_per_call"], 7, "{told}");
    fs::write(&policy, "[default]\nmemory_bytes = 1048576\n").unwrap();
    // So little memory that the model's experts do not fit: the limit is what the sandbox enforces.
    home.refuses(&["run", "x"], &["memory"]);
    fs::write(&policy, "[default.maximum]\nmemory_bytes = 1048576\n").unwrap();
    home.refuses(&["run", "x"], &["the policy's maximum is 1048576", "policy.toml"]);
    assert_eq!(home.explains_refusal(&[])["failed"], "policy");
    fs::write(&policy, "[defualt]\n").unwrap();
    home.refuses(&["run", "x"], &["policy.toml", "defualt"]);
    for (table, limit, range) in [
        ("[default]", "deadline_ms = 0", "1 to 3600000"),
        ("[default]", "deadline_ms = 9000000000000000000", "1 to 3600000"),
        ("[namespace.kvasir.maximum]", "memory_bytes = 0", "65536 to 4294967296"),
    ] {
        fs::write(&policy, format!("{table}\n{limit}\n")).unwrap();
        home.refuses(&["run", "x"], &[limit, table, range]);
        home.refuses(&["plugin", "policy", "show"], &[limit, range]);
        assert_eq!(home.explains_refusal(&[])["failed"], "policy");
    }
    fs::remove_file(&policy).unwrap();
    assert_eq!(home.reports(&["plugin", "policy", "show"])["there"], false);
}

#[test]
fn a_kernel_in_quarantine_is_explained_and_lifted() {
    let home = Home::new();
    let plugin = home.run()["plugin"].as_str().unwrap().to_owned();
    let failures = home.path("data/kernel-failures");
    let explained = || home.reports(&["plugin", "policy", "explain"]);
    assert_eq!(explained()["admitted"], true);
    assert!(!failures.exists(), "asking makes nothing");
    fs::create_dir_all(&failures).unwrap();
    let file = failures.join(format!("{plugin}.failures"));
    fs::write(&file, "1 trapped\n2 trapped\n").unwrap();
    assert_eq!(explained()["admitted"], true);
    fs::write(&file, "1 trapped\n2 trapped\n3 trapped\n").unwrap();
    let told = home.explains_refusal(&[]);
    assert_eq!((&told["failed"], &told["grant"]), (&"quarantine".into(), &Value::Null), "{told}");
    home.reports(&["plugin", "quarantine", "--lift", &plugin]);
    assert_eq!(explained()["admitted"], true);
}

#[test]
fn a_folder_of_keys_still_says_who_is_trusted() {
    let home = Home::new();
    let key = SigningKey::from_bytes(&[9; 32]);
    let package = home.package_by("9.0.0", 900, &key);
    let trust = home.path("keys");
    fs::create_dir(&trust).unwrap();
    let public = kvasir_plugin::PublisherKey { key: key.verifying_key(), name: None };
    fs::write(trust.join("them.pub"), public.line()).unwrap();
    home.refuses(&["run", "--plugin", text(&package), "x"], &["does not trust"]);
    home.reports(&["run", "--tokens", "1", "--plugin", text(&package), "--trust", text(&trust), "x"]);
}

#[test]
fn two_processes_that_install_at_once_lose_nothing() {
    let home = Home::new();
    let packages: Vec<PathBuf> = (1..=4).map(|step| home.package(&format!("9.0.{step}"), 900)).collect();
    let children: Vec<_> = packages
        .iter()
        .map(|package| {
            home.command(&["plugin", "install", text(package)]).stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let list = home.reports(&["plugin", "list"]);
    assert_eq!(list["plugins"].as_array().unwrap().len(), 5, "{list}");
    let state: Value =
        serde_json::from_slice(&fs::read(home.path("data/plugins/active.json")).unwrap()).unwrap();
    assert_eq!(state["change"], 5);
    home.run();
}

#[test]
fn a_disk_that_fills_up_half_way_leaves_what_was_active() {
    let home = Home::new();
    let before = home.run()["plugin"].clone();
    let newer = home.package("9.0.0", 900);
    // No file may grow beyond 64 KiB: the package is not written.
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
    let output = Command::new("bash")
        .args(["-c", script, "bash", text(&program("kvasir")), "plugin", "install", text(&newer)])
        .env("KVASIR_HOME", home.0.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write") && said.contains("make room"), "{said}");
    assert_eq!(home.run()["plugin"], before);
    let left: Vec<_> = fs::read_dir(home.path("data/plugins/packages")).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing is left of the package");
    home.reports(&["plugin", "install", text(&newer)]);
    home.refuses(&["plugin", "install", text(&home.package("8.0.0", 899))], &["900 was seen"]);
}

#[test]
fn a_foreign_kernel_is_tried_in_a_process_of_its_own_and_within_the_policy() {
    let home = Home::new();
    let newer = home.package("9.0.0", 900);
    let [verify, sign, upgrade] = ["verify", "sign", "upgrade"].map(|verb| ["plugin", verb, text(&newer)]);
    let before = fs::read(&newer).unwrap();
    for words in [verify, sign, upgrade] {
        let output =
            home.command(&words).env("KVASIR_KERNEL_PROGRAM", "/nowhere/kvasir-kernel").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains("/nowhere/kvasir-kernel"), "{words:?}: {said}");
    }
    let policy = home.path("config/policy.toml");
    fs::write(&policy, "[default]\nfuel_per_call = 1000\n").unwrap();
    for words in [verify, sign, upgrade] {
        home.refuses(&words, &["1000", "fuel"]);
    }
    fs::remove_file(&policy).unwrap();
    assert!(fs::read(&newer).unwrap() == before);
    home.reports(&verify);
    assert_eq!(home.reports(&upgrade)["active"], true);
}

#[test]
fn a_package_is_tried_within_the_rules_for_those_who_signed_it_before_another_signs_too() {
    let home = Home::new();
    let (other, stranger) = (home.path("other.key"), SigningKey::from_bytes(&[9; 32]));
    home.reports(&["key", "new", text(&other)]);
    let own = key_file::load(&home.path("config/keys/publisher.key")).unwrap();
    let policy = home.path("config/policy.toml");
    for key in [own.signing_key(), &stranger] {
        let package = home.package_by("9.0.0", 900, key);
        let sign = ["plugin", "sign", text(&package), "--key", text(&other)];
        let rule = format!("[publisher.{}]\nfuel_per_call = 1000\n", KeyId::of(&key.verifying_key()));
        fs::write(&policy, rule).unwrap();
        home.refuses(&sign, &["1000", "fuel"]);
        fs::remove_file(&policy).unwrap();
        home.reports(&sign);
    }
    // Whom nobody trusts gets no more than anybody, whatever a rule gives that key.
    let package = home.package_by("9.0.1", 901, &stranger);
    let rule = format!(
        "[default]\nfuel_per_call = 1000\n[publisher.{}]\nfuel_per_call = 1000000000000\n",
        KeyId::of(&stranger.verifying_key())
    );
    fs::write(&policy, rule).unwrap();
    home.refuses(&["plugin", "sign", text(&package), "--key", text(&other)], &["1000", "fuel"]);
}

#[test]
fn a_shader_stays_off_the_gpu_that_the_policy_does_not_grant() {
    let home = Home::new();
    let package = home.package("9.0.0", 900);
    let verify = ["plugin", "verify", text(&package)];
    let proof = |told: &Value| told["shader"]["checked"]["proof"].clone();
    let with = home.reports(&verify);
    fs::write(home.path("config/policy.toml"), "[default]\ngpu = false\n").unwrap();
    let without = home.reports(&verify);
    if without["shader"]["checked"].is_null() {
        skipped("kvasir-gpu is not built", "no shader is checked");
        return;
    }
    let refusal = "the policy does not grant the GPU";
    assert_eq!(proof(&without)["skipped"], refusal, "{without}");
    assert_ne!(proof(&with)["skipped"], refusal, "{with}");
}

#[test]
fn what_the_machine_does_not_give_is_not_called_a_fault_of_the_kernel() {
    let home = Home::new();
    let newer = home.package("9.0.0", 900);
    let verify = |limit: &str| {
        Command::new("bash")
            .args(["-c", &format!("ulimit {limit}; exec \"$@\""), "bash", text(&program("kvasir"))])
            .args(["plugin", "verify", text(&newer)])
            .env("KVASIR_HOME", home.0.path())
            .output()
            .unwrap()
    };
    let less = verify("-f 200000 -d 4000000");
    assert!(less.status.success(), "{}", String::from_utf8_lossy(&less.stderr));
    let output = verify("-v 3000000");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("its kernel cannot be tried") && !said.contains("its own vectors"), "{said}");
}

#[test]
fn every_verb_shows_an_example() {
    let home = Home(tempfile::tempdir().unwrap());
    let help = |verb: &str| {
        let mut words = vec!["plugin"];
        words.extend(verb.split_whitespace());
        words.push("--help");
        let output = home.command(&words).output().unwrap();
        assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let mut verbs = Vec::new();
    for word in words_below(&help("")) {
        let below = words_below(&help(&word));
        if below.is_empty() {
            verbs.push(word);
        } else {
            verbs.extend(below.iter().map(|other| format!("{word} {other}")));
        }
    }
    for known in [
        "new",
        "build",
        "test",
        "bench",
        "component",
        "pack",
        "unpack",
        "sign",
        "verify",
        "inspect",
        "push",
        "pull",
        "install",
        "list",
        "upgrade",
        "activate",
        "rollback",
        "remove",
        "history",
        "revoke",
        "trust add",
        "trust remove",
        "trust rotate",
        "trust show",
        "policy explain",
        "policy show",
        "quarantine",
    ] {
        assert!(verbs.iter().any(|verb| verb == known), "{known} is not listed: {verbs:?}");
    }
    for verb in &verbs {
        let help = help(verb);
        let examples = help.split_once("\nExample:").or_else(|| help.split_once("\nExamples:"));
        let shown = examples.is_some_and(|(_, after)| after.contains(&format!("kvasir plugin {verb}")));
        assert!(shown, "{verb}: {help}");
    }
}

/// The words that a help lists under "Commands:"; none where there is no such list.
fn words_below(help: &str) -> Vec<String> {
    help.lines()
        .skip_while(|line| line.trim_end() != "Commands:")
        .skip(1)
        .take_while(|line| !line.trim().is_empty())
        // What is indented further goes on with a description.
        .filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|word| *word != "help")
        .map(str::to_owned)
        .collect()
}
