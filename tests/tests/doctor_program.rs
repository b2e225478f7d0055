//! `kvasir doctor` as an operator or a script runs it: exit codes, the JSON object, the words, and no secret in any of them or
//! in what it and `kvasir worker` log.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use kvasir_gateway::credentials::PublisherName;
use kvasir_gateway::secret_file;
use kvasir_tests::program;
use kvasir_tests::swarm_scene::{PATIENCE, Scene, key, plugin};
use kvasir_wire::ticket::{EdgeKey, Role, Ticket};
use serde_json::Value;
use tokio::net::TcpSocket;

/// The order in which a worker's way is gone.
const HOPS: [&str; 12] = [
    "settings", "keys", "plugin", "proxy", "dns", "tcp", "tls", "upgrade", "ticket", "version", "hub",
    "backbone",
];

/// A worker's machine: home folder with a kernel, ticket and key.
struct Machine {
    home: tempfile::TempDir,
    ticket: Ticket,
}

impl Machine {
    fn new(scene: &Scene) -> Self {
        let home = tempfile::tempdir().unwrap();
        let setup = kvasir(home.path()).args(["--json", "setup"]).output().unwrap();
        assert!(setup.status.success(), "{}", String::from_utf8_lossy(&setup.stderr));
        let setup: Value = serde_json::from_slice(&setup.stdout).unwrap();
        let PublisherName(publisher) = setup["publisher"].as_str().unwrap().parse().unwrap();
        // With one session the doctor does not ask to be admitted, so no backbone is needed.
        let ticket = scene.ticket_with(Role::Worker, key(2).public(), plugin(), |claims| {
            claims.publishers = vec![publisher];
            claims.limits.sessions = 1;
        });
        let machine = Machine { home, ticket };
        secret_file::write(&machine.path("worker.key"), key(2).to_text().as_bytes(), false).unwrap();
        machine.hold(&machine.ticket);
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn hold(&self, ticket: &Ticket) {
        std::fs::write(self.path("worker.ticket"), ticket.to_text() + "\n").unwrap();
    }

    /// A command that is told where the gateway is by a variable, and all it does is logged.
    fn command(&self, gateway: &str, arguments: &[&str]) -> Command {
        let mut command = kvasir(self.home.path());
        command.env("KVASIR_GATEWAY", gateway).env("KVASIR_LOG", "trace").args(arguments);
        command.arg("--ticket").arg(self.path("worker.ticket")).arg("--key").arg(self.path("worker.key"));
        command
    }

    fn doctor(&self, gateway: &str, arguments: &[&str]) -> Output {
        let output = self.command(gateway, arguments).output().unwrap();
        for said in [&output.stdout, &output.stderr] {
            self.holds_no_secret(&String::from_utf8_lossy(said));
        }
        output
    }

    fn holds_no_secret(&self, said: &str) {
        let (ticket, key) = (self.ticket.to_text(), key(2).to_text());
        for secret in [ticket.as_str(), key.trim_end()] {
            // The end of it: how it begins is the same for all of a kind.
            assert!(!said.contains(&secret[secret.len() - 24..]), "a secret is said");
        }
    }
}

/// The program, with a home of its own and none of the caller's settings.
fn kvasir(home: &Path) -> Command {
    let mut command = Command::new(program("kvasir"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_uppercase();
        if text.starts_with("KVASIR_") || text.ends_with("_PROXY") {
            command.env_remove(&name);
        }
    }
    command.arg("--home").arg(home);
    command
}

#[test]
fn a_way_without_a_fault_exits_with_0_and_one_that_ends_with_1_and_the_hop() {
    let scene = Scene::new();
    let machine = Machine::new(&scene);
    let address = scene.address.clone();

    let output = machine.doctor(&address, &["--json", "doctor"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert_eq!((&report["passed"], &report["failed"]), (&Value::Bool(true), &Value::Null), "{report:#}");
    let hops = report["hops"].as_array().unwrap();
    let names: Vec<&str> = hops.iter().map(|hop| hop["name"].as_str().unwrap()).collect();
    assert_eq!(names, HOPS);
    for hop in hops {
        // There is no TLS on this way, and a ticket for one session is not spent on a look.
        let expected = match hop["name"].as_str().unwrap() {
            "tls" | "backbone" => "not_reached",
            _ => "passed",
        };
        assert_eq!(hop["outcome"], expected, "{hop:#}");
    }
    assert!(report["machine"].is_array(), "{report:#}");

    let output = machine.doctor(&address, &["doctor"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(HOPS.iter().all(|hop| said.contains(hop)) && said.contains("no hop failed"), "{said}");

    // A ticket that another edge key sealed.
    let forged =
        Ticket::issue(machine.ticket.claims(), &scene.hub_key, &EdgeKey::from_bytes([9; 32])).unwrap();
    machine.hold(&forged);
    let output = machine.doctor(&address, &["--json", "doctor"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["failed"]), (Some(1), &"ticket".into()), "{report:#}");
    let hop = &report["hops"][8];
    assert!(hop["name"] == "ticket" && !hop["what_to_do"].as_str().unwrap().is_empty(), "{hop:#}");
    machine.hold(&machine.ticket);

    // Nobody listens, and nobody else can at this address meanwhile.
    scene.kill();
    let nobody = TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = format!("ws://{}", nobody.local_addr().unwrap());
    let output = machine.doctor(&gone, &["doctor"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("FAILED tcp") && said.contains("the way ends at the hop tcp"), "{said}");

    let output = machine.doctor(&gone, &["doctor", "--no-such-flag"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_worker_that_logs_everything_logs_no_secret() {
    let scene = Scene::new();
    let machine = Machine::new(&scene);
    let log = machine.path("log");
    let mut worker = machine
        .command(&scene.address, &["--json", "worker"])
        .stdout(Stdio::piped())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let out = worker.stdout.take().unwrap();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || BufReader::new(out).lines().try_for_each(|line| tell.send(line.unwrap())));
    let (begun, mut said) = (Instant::now(), String::new());
    while !said.contains("\"connected\"") {
        // It ends here too where the worker does.
        match told.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) {
            Ok(line) => said += &line,
            Err(_) => break,
        }
    }
    worker.kill().unwrap();
    worker.wait().unwrap();
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("\"connected\""), "{said}\n{log}");
    machine.holds_no_secret(&said);
    machine.holds_no_secret(&log);
}
