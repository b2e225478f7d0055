//! The binary as a person or a script uses it.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use std::{
    io::{BufRead, BufReader, Read, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Output, Stdio},
};

use kvasir_wire::{
    key::SecretKey,
    ticket::{Role, Ticket},
};

fn gateway(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir-gateway"));
    command.current_dir(folder).args(arguments);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KVASIR_")) {
        command.env_remove(name);
    }
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    gateway(folder, arguments).output().unwrap()
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: hub\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn secret(folder: &Path, name: &str, seed: u8) -> SecretKey {
    let key = SecretKey::from_seed([seed; 32]);
    kvasir_gateway::secret_file::write(&folder.join(name), key.to_text().as_bytes(), false).unwrap();
    key
}

#[test]
fn a_ticket_is_made_from_files_and_flags_and_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(run(folder, &["edge-key", "edge.key"]).status.success());
    assert!(!run(folder, &["edge-key", "edge.key"]).status.success(), "a key is not replaced by chance");
    let hub = secret(folder, "hub.key", 1);
    let holder = SecretKey::from_seed([2; 32]).public();
    let (holder_text, wallet, plugin) = (holder.to_string(), "ab".repeat(32), "cd".repeat(32));
    let order = [
        "--json",
        "ticket",
        "--role",
        "worker",
        "--network",
        "atlas",
        "--holder",
        &holder_text,
        "--wallet",
        &wallet,
        "--plugin",
        &plugin,
        "--hub-key",
        "hub.key",
        "--edge-key",
        "edge.key",
    ];
    let output = run(folder, &order);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let ticket = Ticket::from_text(report["ticket"].as_str().unwrap()).unwrap();
    ticket.check_as_holder(&holder, Role::Worker, ticket.claims().issued).unwrap();
    assert_eq!(ticket.claims().hub, hub.public());

    // A ticket that allows nothing, or a worker's without a wallet, is of no use and is not made.
    let without = |name: &str| {
        let at = order.iter().position(|argument| *argument == name).unwrap();
        let mut rest = order.to_vec();
        rest.drain(at..at + 2);
        run(folder, &rest)
    };
    assert!(!without("--plugin").status.success());
    assert!(String::from_utf8_lossy(&without("--wallet").stderr).contains("wallet"));
}

#[test]
fn the_log_is_set_by_one_variable_and_a_bad_filter_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        gateway(folder.path(), &["edge-key", "edge.key"]).env("KVASIR_LOG", "a=b=c").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("KVASIR_LOG"), "{output:?}");
    assert!(!folder.path().join("edge.key").exists());
}

#[cfg(unix)]
#[test]
fn a_secret_that_others_may_read_is_refused_with_the_remedy() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(run(folder, &["edge-key", "edge.key"]).status.success());
    secret(folder, "hub.key", 1);
    std::fs::set_permissions(folder.join("hub.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = run(
        folder,
        &[
            "hub",
            "--listen",
            "127.0.0.1:0",
            "--network",
            "atlas",
            "--ledger",
            "http://127.0.0.1:1",
            "--hub-key",
            "hub.key",
            "--edge-key",
            "edge.key",
        ],
    );
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("chmod 600 hub.key"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_hub_reads_its_file_says_where_it_listens_and_ends_on_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(run(folder, &["edge-key", "edge.key"]).status.success());
    secret(folder, "hub.key", 1);
    let file = "[hub]\nlisten = \"127.0.0.1:0\"\nnetwork = \"from-the-file\"\nhub_key = \"hub.key\"\nedge_key = \"edge.key\"\n";
    std::fs::write(folder.join("gateway.toml"), file).unwrap();
    // The ledger is missing in the file: the error names all three places.
    let output = run(folder, &["hub"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("--ledger") && error.contains("KVASIR_GATEWAY_LEDGER") && error.contains("hub.ledger"),
        "{error}"
    );

    let mut hub = gateway(folder, &["--json", "hub"])
        .env("KVASIR_GATEWAY_LEDGER", "http://127.0.0.1:1")
        .env("KVASIR_GATEWAY_OPERATIONS", "127.0.0.1:0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(hub.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let report: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address: std::net::SocketAddr = report["listening"].as_str().unwrap().parse().unwrap();
    assert_ne!(address.port(), 0);
    let operations = report["operations"].as_str().unwrap();
    assert!(get(operations, "/metrics").contains("kvasir_gateway_max_descriptors "));
    assert!(get(operations, "/ready").starts_with("HTTP/1.1 503"), "it has no ledger");
    assert!(get(operations, "/status").contains("from-the-file"));

    // Its port is taken now.
    let second =
        gateway(folder, &["hub", "--listen", &address.to_string(), "--ledger", "http://127.0.0.1:1"]);
    let output = { second }.output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("in use"));

    let killed = Command::new("kill").args(["-TERM", &hub.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert!(hub.wait().unwrap().success());
    let mut log = String::new();
    hub.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("from-the-file"), "{log}");
}

/// Reads lines until one has all of these words.
#[cfg(unix)]
fn line_with(log: &mut impl BufRead, words: &[&str]) -> String {
    let mut seen = String::new();
    loop {
        let mut line = String::new();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "no line with {words:?} in:\n{seen}");
        if words.iter().all(|word| line.contains(word)) {
            return line;
        }
        seen.push_str(&line);
    }
}

#[cfg(unix)]
#[test]
fn a_hangup_reads_the_file_again_and_a_broken_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(run(folder, &["edge-key", "edge.key"]).status.success());
    secret(folder, "hub.key", 1);
    let write = |log: &str, hub: &str| {
        let file = format!(
            "{log}\n[hub]\nnetwork = \"atlas\"\nledger = \"http://127.0.0.1:1\"\nhub_key = \"hub.key\"\n\
             edge_key = \"edge.key\"\n{hub}\n"
        );
        std::fs::write(folder.join("gateway.toml"), file).unwrap();
    };
    write("", "listen = \"127.0.0.1:0\"");
    let mut hub =
        gateway(folder, &["--json", "hub"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(hub.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let report: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = report["listening"].as_str().unwrap().to_owned();
    let mut log = BufReader::new(hub.stderr.take().unwrap());
    let pid = hub.id().to_string();
    let signal = |name: &str| {
        let killed = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(killed.success());
    };

    write("", "listen = \"127.0.0.1:0\"\nmax_connections = 100");
    signal("-HUP");
    line_with(&mut log, &["INFO", "settings reloaded"]);
    write("", "listen = \"127.0.0.1:0\"\nmax_conections = 100");
    signal("-HUP");
    line_with(&mut log, &["settings not reloaded", "max_conections"]);
    write("log = \"a=b=c\"", "listen = \"127.0.0.1:0\"");
    signal("-HUP");
    line_with(&mut log, &["settings not reloaded", "log in gateway.toml"]);
    assert!(get(&address, "/v1/status").starts_with("HTTP/1.1 200"));
    // What is fixed is named; from here on the log holds warnings and worse.
    write("log = \"warn\"", "listen = \"127.0.0.1:1\"\nspool = \"another\"\nbulk_connection = true");
    signal("-HUP");
    line_with(&mut log, &["WARN", "hub.listen, hub.spool, hub.bulk_connection"]);
    signal("-TERM");
    assert!(hub.wait().unwrap().success());
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("INFO"), "{rest}");
}

#[cfg(unix)]
#[test]
fn a_hangup_changes_what_is_passed_through_but_starts_no_tls() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let write = |own: &str, name: &str| {
        let file = format!(
            "[edge]\nlisten = \"127.0.0.1:0\"\n{own}\n[[edge.pass_through]]\nname = \"{name}\"\nto = \"127.0.0.1:1\"\n"
        );
        std::fs::write(folder.join("gateway.toml"), file).unwrap();
    };
    write("", "a.example");
    let mut edge =
        gateway(folder, &["--json", "edge"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(edge.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("listening"), "{line}");
    let mut log = BufReader::new(edge.stderr.take().unwrap());
    let pid = edge.id().to_string();
    let hangup = || assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());

    write("", "b.example");
    hangup();
    line_with(&mut log, &["INFO", "settings reloaded"]);
    write("", "b.example.");
    hangup();
    line_with(&mut log, &["settings not reloaded", "edge.pass_through"]);
    write(
        "hub = \"127.0.0.1:1\"\nnetwork = \"atlas\"\ncertificate = \"server.pem\"\n\
         certificate_key = \"server.key\"\nedge_key = \"edge.key\"",
        "b.example",
    );
    hangup();
    line_with(&mut log, &["WARN", "edge.hub", "edge.certificate", "restart"]);
    edge.kill().unwrap();
    edge.wait().unwrap();
}

#[test]
fn an_edge_with_names_and_no_certificate_starts_without_hub_and_keys() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let names = |to: &str| {
        let file = format!(
            "[edge]\nlisten = \"127.0.0.1:0\"\n[[edge.pass_through]]\nname = \"a.b\"\nto = \"{to}\"\n"
        );
        std::fs::write(folder.join("gateway.toml"), file).unwrap();
    };
    names("127.0.0.1:1");
    let mut edge =
        gateway(folder, &["--json", "edge"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(edge.stdout.take().unwrap()).read_line(&mut line).unwrap();
    edge.kill().unwrap();
    edge.wait().unwrap();
    let report: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert!(report["listening"].as_str().unwrap().starts_with("127.0.0.1:"));

    // One of the two files of a certificate says that TLS is to end here, and the rest is asked for.
    let output = run(folder, &["edge", "--certificate", "server.pem"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--hub"), "{output:?}");
    names("127.0.0.1");
    let output = run(folder, &["edge"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("edge.pass_through") && error.contains("host:port"), "{error}");
}

#[test]
fn a_certificate_by_acme_is_asked_for_whole_and_not_beside_files() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let edge = ["edge", "--hub", "127.0.0.1:1", "--network", "atlas", "--acme-domain", "a.example"];
    let terms = "--acme-accept-terms";
    let cases: [(&[&str], &str); 5] = [
        (&[], terms),
        (&[terms, "--certificate", "server.pem"], "asked for twice"),
        (&[terms, "--acme-directory", "http://ca.example/directory"], "https://"),
        (&[terms, "--acme-domain", "*.example"], "wildcard"),
        (&[terms], "--edge-key"),
    ];
    for (more, words) in cases {
        let output = run(folder, &[&edge[..], more].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && error.contains(words), "{more:?}: {error}");
    }
    let passed = "[[edge.pass_through]]\nname = \"a.example\"\nto = \"127.0.0.1:1\"\n";
    std::fs::write(folder.join("gateway.toml"), passed).unwrap();
    let output = run(folder, &[&edge[..], &[terms]].concat());
    assert!(String::from_utf8_lossy(&output.stderr).contains("passed through"), "{output:?}");
}

#[cfg(unix)]
#[test]
fn a_hangup_has_an_order_that_failed_tried_again_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(run(folder, &["edge-key", "edge.key"]).status.success());
    let write = |name: &str| {
        let file = format!(
            "[edge]\nlisten = \"127.0.0.1:0\"\nhub = \"127.0.0.1:1\"\nnetwork = \"atlas\"\nedge_key = \"edge.key\"\n\
             operations = \"127.0.0.1:0\"\n[edge.acme]\ndomains = [\"{name}\"]\ncache = \"acme\"\naccept_terms = true\n\
             directory = \"https://127.0.0.1:1/directory\"\n"
        );
        std::fs::write(folder.join("gateway.toml"), file).unwrap();
    };
    write("a.example");
    let mut edge =
        gateway(folder, &["--json", "edge"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(edge.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let report: serde_json::Value = serde_json::from_str(&line).unwrap();
    let mut log = BufReader::new(edge.stderr.take().unwrap());
    let pid = edge.id().to_string();
    let hangup = || assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());

    line_with(&mut log, &["WARN", "no certificate yet"]);
    line_with(&mut log, &["ERROR", "no certificate was issued"]);
    let ready = get(report["operations"].as_str().unwrap(), "/ready");
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("no certificate yet"), "{ready}");
    // By itself it would come after a minute at the soonest.
    hangup();
    line_with(&mut log, &["ERROR", "no certificate was issued"]);
    write("b.example");
    hangup();
    line_with(&mut log, &["WARN", "edge.acme", "restart"]);
    edge.kill().unwrap();
    edge.wait().unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_or_closed_standard_output_is_said_or_ends_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for arguments in [&["completions", "zsh"][..], &["edge-key", "edge.key", "--replace"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = gateway(folder, arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("standard output cannot be written"), "{error}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = gateway(folder, arguments).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn odd_paths_pipes_and_devices_neither_panic_nor_hang() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let odd = std::ffi::OsStr::from_bytes(b"odd-\xff");
    let mut commands = [
        gateway(folder, &["--json", "edge-key"]),
        gateway(folder, &["--json", "certificate", "--name", "localhost", "--out"]),
    ];
    for command in &mut commands {
        let output = command.arg(odd).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
        let _ = std::fs::remove_file(folder.join(odd));
    }
    assert!(Command::new("mkfifo").args(["-m", "600"]).arg(folder.join("pipe")).status().unwrap().success());
    let settle =
        ["settle", "--once", "--ledger", "http://127.0.0.1:1", "--network", "atlas", "--settler-key"];
    secret(folder, "settler.key", 1);
    for arguments in [
        &["--config", "pipe", "hub"][..],
        &["--config", "/dev/zero", "hub"],
        &[&settle[..], &["pipe"]].concat(),
        &[&settle[..], &["settler.key", "--cursor", "/dev/zero"]].concat(),
        &[&settle[..], &["settler.key", "--cursor", "pipe"]].concat(),
    ] {
        // It hangs for ever where the pipe is opened.
        let output = run(folder, arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("not a regular file"), "{error}");
    }
    assert_eq!(run(folder, &["hub", "--max-connections", "0"]).status.code(), Some(2));
}
