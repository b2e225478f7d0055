//! What `kvasir` says to input that cannot work: what, where, and what to do; never a panic.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvasir_tests::{program, root};

/// A home of its own with a kernel set up.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        let home = Home(tempfile::tempdir().unwrap());
        let (code, _, said) = home.kvasir(&["setup"]);
        assert_eq!(code, Some(0), "{said}");
        home
    }

    fn kvasir(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output = Command::new(program("kvasir"))
            .current_dir(root())
            .env("KVASIR_HOME", self.0.path())
            .args(arguments)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// The command fails with exit code 1, panics nowhere, and says all of `fragments`.
    fn refuses(&self, arguments: &[&str], fragments: &[&str]) {
        let (code, _, said) = self.kvasir(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        for fragment in fragments {
            assert!(said.contains(fragment), "{arguments:?} does not say {fragment:?}: {said}");
        }
    }

    /// The command succeeds and prints one JSON object.
    fn reports(&self, arguments: &[&str]) -> serde_json::Value {
        let (code, out, said) = self.kvasir(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// The package that setting up installed.
    fn package(&self) -> PathBuf {
        self.reports(&["--json", "setup"])["package"].as_str().unwrap().into()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn an_empty_prompt_is_refused() {
    Home::new().refuses(&["run", ""], &["prompt is empty"]);
}

#[test]
fn a_prompt_beyond_the_context_is_refused_with_both_figures() {
    let long = "France ".repeat(5000);
    Home::new().refuses(&["run", &long], &["tokens", "4096", "shorten"]);
}

#[test]
fn a_model_of_an_unknown_architecture_is_refused_by_name() {
    let home = Home::new();
    let atlas = fs::read(root().join("models/atlas/atlas-q4_k_m.gguf")).unwrap();
    let at = atlas.windows(9).position(|window| window == b"qwen35moe").unwrap();
    let mut other = atlas;
    other[at..at + 9].copy_from_slice(b"unknown00");
    let path = home.file("other.gguf", &other);
    home.refuses(&["run", "--model", text(&path), "x"], &["unknown00", "other.gguf"]);
}

#[test]
fn a_file_that_is_no_model_and_one_that_is_not_there_are_refused() {
    let home = Home::new();
    home.refuses(&["run", "--model", "README.md", "x"], &["README.md", "GGUF"]);
    home.refuses(&["run", "--model", "nowhere.gguf", "x"], &["nowhere.gguf"]);
}

#[test]
fn without_a_kernel_the_remedy_is_named() {
    let home = Home(tempfile::tempdir().unwrap());
    home.refuses(&["run", "x"], &["kvasir setup"]);
}

#[test]
fn a_package_with_one_flipped_byte_is_refused_before_anything_runs() {
    let home = Home::new();
    let good = fs::read(home.package()).unwrap();
    let component = good.windows(4).position(|window| window == b"\0asm").unwrap();
    for at in [component + 100, good.len() / 2, 600] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let path = home.file("bad.kvp", &bad);
        home.refuses(&["run", "--plugin", text(&path), "x"], &["bad.kvp", "refused"]);
    }
}

#[test]
fn a_package_of_an_unknown_publisher_is_refused() {
    let (one, other) = (Home::new(), Home::new());
    let package = one.package();
    other.refuses(&["run", "--plugin", text(&package), "x"], &["refused", "trust"]);
}

#[test]
fn a_key_that_others_can_read_is_refused_and_a_key_is_never_overwritten() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let path = home.0.path().join("k.key");
    assert_eq!(home.kvasir(&["key", "new", text(&path)]).0, Some(0));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    home.refuses(&["key", "new", text(&path)], &["never overwritten"]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    home.refuses(&["key", "show", text(&path)], &["chmod 600"]);
}

#[test]
fn a_file_that_is_no_ticket_is_named() {
    let home = Home::new();
    let key = home.0.path().join("k.key");
    assert_eq!(home.kvasir(&["key", "new", text(&key)]).0, Some(0));
    let ticket = home.file("t.ticket", b"not a ticket\n");
    home.refuses(
        &["run", "--hub", "ws://127.0.0.1:1", "--ticket", text(&ticket), "--key", text(&key), "x"],
        &["t.ticket", "no ticket"],
    );
}

#[test]
fn a_hub_that_is_not_there_is_named() {
    let home = Home::new();
    let path = |name: &str| home.0.path().join(name);
    let (hub_key, edge_key, key) = (path("hub.key"), path("edge.key"), path("backbone.key"));
    home.reports(&["--json", "key", "new", text(&hub_key)]);
    let holder = home.reports(&["--json", "key", "new", text(&key)]);
    let setup = home.reports(&["--json", "setup"]);
    let gateway = |arguments: &[&str]| {
        let output = Command::new(program("kvasir-gateway")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    gateway(&["edge-key", text(&edge_key)]);
    let issued = gateway(&[
        "--json",
        "ticket",
        "--role",
        "backbone",
        "--network",
        "test.kvasir.example",
        "--expires",
        "1h",
        "--publisher",
        setup["publisher"].as_str().unwrap(),
        "--holder",
        holder["public"].as_str().unwrap(),
        "--hub-key",
        text(&hub_key),
        "--edge-key",
        text(&edge_key),
    ]);
    let issued: serde_json::Value = serde_json::from_slice(&issued).unwrap();
    let ticket = home.file("t.ticket", issued["ticket"].as_str().unwrap().as_bytes());

    // A port that was free a moment ago, and nobody listens on.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hub = format!("ws://{nobody}");
    home.refuses(
        &["run", "--hub", &hub, "--ticket", text(&ticket), "--key", text(&key), "x"],
        &[&hub, "refused", "check that it runs"],
    );
}

#[test]
fn sampling_options_and_thread_counts_out_of_range_are_refused() {
    let home = Home::new();
    home.refuses(&["run", "--temperature", "-1", "x"], &["temperature"]);
    home.refuses(&["run", "--top-p", "2", "--temperature", "1", "x"], &["top"]);
    home.refuses(&["run", "--threads", "0", "x"], &["threads"]);
    home.refuses(&["run", "--prefill-chunk", "0", "x"], &["chunk"]);
}

#[test]
fn words_that_are_not_understood_exit_with_two() {
    let home = Home::new();
    assert_eq!(home.kvasir(&["run"]).0, Some(2));
    assert_eq!(home.kvasir(&["walk"]).0, Some(2));
    assert_eq!(home.kvasir(&["demo", "--rtt", "13"]).0, Some(2));
    for seconds in ["0", "86401", "9223372036854775807"] {
        let pull = ["plugin", "pull", "oci://127.0.0.1:1/x", "--timeout", seconds];
        assert_eq!(home.kvasir(&pull).0, Some(2), "{seconds}");
    }
}

#[test]
fn a_report_is_one_json_object_on_standard_output() {
    let home = Home::new();
    for arguments in [
        &["--json", "run", "--tokens", "2", "The capital of France is"][..],
        &["--json", "inspect"],
        &["--json", "plugin", "verify"],
        &["--json", "setup"],
        &["--json", "bench", "--runs", "1", "--tokens", "2", "--prompt-tokens", "2"],
    ] {
        let value = home.reports(arguments);
        assert!(value.is_object(), "{arguments:?}: {value}");
    }
}
