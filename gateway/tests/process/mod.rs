//! Hub and edge as processes of their own, so that their memory is theirs and not the test's.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do
#![allow(dead_code)] // each test binary uses a part of it

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
};

use kvasir_gateway::{
    certificate::{self, Names},
    secret_file,
};
use kvasir_link::TlsTrust;
use kvasir_wire::{
    key::SecretKey,
    ticket::{EdgeKey, Role, Ticket, TicketClaims, TicketLimits},
};

use super::scene::{NETWORK, PLUGIN, key, now};

/// A hub and an edge before it. Without a ledger no worker is paired, since there is no price; all wait.
pub struct Gateway {
    pub hub: Running,
    pub edge: Running,
    pub trust: TlsTrust,
    pub folder: tempfile::TempDir,
    pub hub_key: SecretKey,
    edge_key: EdgeKey,
}

impl Gateway {
    /// Starts both; each may be given more flags. What they log, errors alone, is in `hub.log` and `edge.log`.
    pub fn start(hub_flags: &[&str], edge_flags: &[&str]) -> Gateway {
        Gateway::start_with(hub_flags, edge_flags, &[])
    }

    /// The same with a ledger that names a price, so that workers are paired.
    pub fn priced(hub_flags: &[&str], edge_flags: &[&str]) -> Gateway {
        Gateway::beside(&ledger_with_a_price(), hub_flags, edge_flags, &[])
    }

    /// The same with more variables for both; their values are files of the folder.
    pub fn start_with(hub_flags: &[&str], edge_flags: &[&str], variables: &[(&str, &str)]) -> Gateway {
        Gateway::beside("http://127.0.0.1:1", hub_flags, edge_flags, variables)
    }

    fn beside(ledger: &str, hub_flags: &[&str], edge_flags: &[&str], variables: &[(&str, &str)]) -> Gateway {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let (hub_key, edge_key) = (key(1), EdgeKey::from_bytes([4; 32]));
        secret_file::write(&path.join("hub.key"), hub_key.to_text().as_bytes(), false).unwrap();
        secret_file::write(&path.join("edge.key"), edge_key.to_text().as_bytes(), false).unwrap();
        let names = Names::parse(&["127.0.0.1".into()]).unwrap();
        let files = certificate::make(path, &names, false).unwrap();
        let hub = ["hub", "--hub-key", "hub.key", "--ledger", ledger];
        let hub = Running::start(path, &[&hub[..], hub_flags].concat(), variables);
        let address = hub.address.to_string();
        let edge =
            ["edge", "--hub", &address, "--certificate", "server.pem", "--certificate-key", "server.key"];
        let edge = Running::start(path, &[&edge[..], edge_flags].concat(), variables);
        let trust = TlsTrust::CaFile(std::fs::read(files.authority).unwrap());
        Gateway { hub, edge, trust, folder, hub_key, edge_key }
    }

    /// A worker's ticket.
    pub fn ticket(&self, holder: &SecretKey) -> Ticket {
        self.ticket_of(Role::Worker, holder)
    }

    pub fn ticket_of(&self, role: Role, holder: &SecretKey) -> Ticket {
        let claims = TicketClaims {
            network: NETWORK.into(),
            role,
            holder: holder.public(),
            hub: self.hub_key.public(),
            wallet: (role == Role::Worker).then(|| key(9).public().wallet_digest()),
            plugins: vec![PLUGIN],
            publishers: Vec::new(),
            limits: TicketLimits { sessions: 1, session_bytes: 0 },
            issued: now() - 10,
            expires: now() + 3600,
        };
        Ticket::issue(&claims, &self.hub_key, &self.edge_key).unwrap()
    }
}

/// A ledger that names a price and nothing else; it lasts as long as the test.
fn ledger_with_a_price() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let leaf = "77".repeat(32);
    let body = format!(r#"{{"leaf":"{leaf}","nanokvr_per_byte":7,"from":0,"note":""}}"#);
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            // What asks is small enough for one read; who goes away meanwhile is answered in vain.
            if stream.read(&mut request).is_ok_and(|count| count > 0) {
                let _ = stream.write_all(answer.as_bytes());
            }
        }
    });
    format!("http://{address}")
}

/// A process of `kvasir-gateway`; ended when dropped.
pub struct Running {
    pub address: SocketAddr,
    child: Child,
}

impl Running {
    /// Starts it in a folder with these arguments; the variables' values are files of the folder.
    pub fn start(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir-gateway"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KVASIR_")) {
            command.env_remove(name);
        }
        for (name, file) in variables {
            command.env(name, folder.join(file));
        }
        let log = File::create(folder.join(format!("{}.log", arguments[0]))).unwrap();
        let mut child = command
            .current_dir(folder)
            .args(["--json", "--log", "error"])
            .args(arguments)
            .args(["--listen", "127.0.0.1:0", "--network", NETWORK, "--edge-key", "edge.key"])
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let report: serde_json::Value = serde_json::from_str(&line).unwrap();
        Running { address: report["listening"].as_str().unwrap().parse().unwrap(), child }
    }

    /// Sends it a signal, such as `-TERM`.
    pub fn signal(&self, name: &str) {
        let process = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &process]).status().unwrap().success());
    }

    /// Whether it has ended; nobody but this one's drop asks how.
    pub fn has_ended(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        stat.rsplit_once(')').unwrap().1.trim_start().starts_with('Z')
    }

    /// Resident memory, KiB.
    pub fn resident(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// The most resident memory that it ever had, KiB.
    pub fn peak(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// Descriptors that it holds.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
