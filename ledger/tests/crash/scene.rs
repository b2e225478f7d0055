//! A ledger's folder, copied for each try, and the real program on it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use kvasir_ledger::client::Client;
use kvasir_wire::account::Statement;
use kvasir_wire::note::Note;

use crate::network::{Network, counters};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_kvasir-ledger");
/// What the treasury put in.
pub const FUNDED: i64 = 1_000_000_000_000;

/// A folder with a ledger: foundation, one receipt of 1,000 bytes in session 1, all published.
pub struct Scene {
    pub network: Network,
    template: tempfile::TempDir,
    tries: tempfile::TempDir,
}

impl Scene {
    pub fn new() -> Self {
        let network = Network::new();
        let template = tempfile::tempdir().unwrap();
        let keys = network.keys();
        let made = Command::new(PROGRAM)
            .args(["init", "--json", "--network", "atlas"])
            .args(["--hub", &keys.hubs[0].to_string(), "--treasury", &keys.treasury[0].to_string()])
            .args(["--settler", &keys.settlers[0].to_string()])
            .arg(template.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let program = Program::start(template.path());
        for note in network.foundation() {
            program.client.post_note(&note).unwrap();
        }
        program.client.post_receipt(&network.sign(&network.first(1, 1_000, 0))).unwrap();
        program.stop();
        Self { network, template, tries: tempfile::tempdir().unwrap() }
    }

    /// A copy to be broken.
    pub fn copy(&self) -> PathBuf {
        let to = self.tries.path().join("ledger");
        let _ = fs::remove_dir_all(&to);
        copy(self.template.path(), &to);
        to
    }

    pub fn list(&self) -> PathBuf {
        self.tries.path().join("strace.list")
    }

    /// The second receipt of session 1: 2,000 bytes in all.
    pub fn receipt(&self) -> Note {
        let first = self.network.first(1, 1_000, 0);
        self.network.sign(&first.next(counters(2_000, 0), first.to, false).unwrap())
    }

    /// A settlement of the first receipt.
    pub fn settlement(&self, at: u64) -> Note {
        self.network.settlement(&[(1, 1, 1, 1_000)], 0, at).sign(&self.network.settler).unwrap()
    }
}

/// The program, serving.
pub struct Program {
    child: Child,
    pub client: Client,
}

impl Program {
    pub fn start(folder: &Path) -> Self {
        Self::try_start(folder).unwrap_or_else(|| panic!("the ledger in {} does not start", folder.display()))
    }

    pub fn try_start(folder: &Path) -> Option<Self> {
        let mut child = Command::new(PROGRAM)
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"])
            .arg(folder.join("ledger.toml"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
        let Ok(told) = serde_json::from_str::<serde_json::Value>(&line) else {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        };
        let client = Client::new(&format!("http://{}", told["listening"].as_str()?)).ok()?;
        Some(Self { child, client })
    }

    /// The thread of this name.
    pub fn thread(&self, name: &str) -> u32 {
        // It listens before its threads run.
        self.client.ready().unwrap();
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let named = |task: &fs::DirEntry| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        let task = tasks.filter_map(Result::ok).find(named).unwrap();
        task.file_name().to_string_lossy().parse().unwrap()
    }

    /// Whether it still runs.
    pub fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Whether it ends by itself within a moment.
    pub fn dies(&mut self) -> bool {
        let since = std::time::Instant::now();
        while self.lives() && since.elapsed() < std::time::Duration::from_secs(2) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        !self.lives()
    }

    /// SIGTERM, and waits.
    pub fn stop(mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `kvasir-ledger verb --config folder/ledger.toml --json`.
pub fn run(verb: &str, folder: &Path) -> Output {
    let config = folder.join("ledger.toml");
    Command::new(PROGRAM).args([verb, "--json", "--config"]).arg(config).output().unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}
