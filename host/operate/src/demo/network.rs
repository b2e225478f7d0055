//! The demo's network: keys, ledger, hub, edge, settlement poller and workers, each a process of its own.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use kvasir_wire::note::Note;
use kvasir_wire::receipt::Receipt;
use serde::Serialize;
use serde_json::Value;

use super::audited::Audited;
use super::fields::{number, text};
use super::generation::Generation;
use super::programs::Programs;
use super::report::Steps;
use crate::choices::{AcceptChoice, DeviceChoice};
use crate::process::{Server, answer, report};
use crate::remote::PlacementChoice;
use crate::{delay, key_file};

/// Name of the demo's network, in every ticket, note and receipt.
pub const NETWORK: &str = "demo.kvasir.example";
/// What the payer's account is funded with: 1 KVR.
const FUND_NANOKVR: u64 = 1_000_000_000;
/// How long a worker may take until it is connected.
const WORKER_WITHIN: Duration = Duration::from_secs(60);
/// How long receipts may take to be credited after the last call.
const CREDIT_WITHIN: Duration = Duration::from_secs(60);
/// How long receipts that are credited may take to stand in the published log.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(30);
/// How often the settlement poller of the demo asks.
const SETTLE_INTERVAL: &str = "200ms";

/// Folder of the rows that the backbone keeps, for its own audit.
const KEPT_ROWS: &str = "kept-rows";

/// What the network is made of.
pub struct NetworkOptions {
    /// An empty folder for keys, ledger and logs.
    pub folder: PathBuf,
    /// The model that answers.
    pub model: PathBuf,
    /// Workers to start.
    pub workers: usize,
    /// Delay between workers and edge.
    pub round_trip: Option<Duration>,
    /// The first worker flips one bit of its first result.
    pub flip_bit: bool,
    /// What the workers compute on.
    pub device: DeviceChoice,
    /// Address of the edge.
    pub listen: Option<SocketAddr>,
}

/// What a worker said of its kernels when it had proven them.
#[derive(Debug, Clone, Serialize)]
pub struct WorkerKernel {
    /// The class of its results.
    pub class: String,
    /// The GPU, if it computes on one.
    pub device: Option<String>,
    /// Whether that is the processor in disguise.
    pub software: bool,
}

/// One wallet's credit.
#[derive(Debug, Clone, Serialize)]
pub struct WalletCredit {
    /// SHA-256 of the wallet's key.
    pub wallet: String,
    /// Bytes of its latest receipts.
    pub bytes: u64,
    /// Pending and posted.
    pub nanokvr: u64,
}

/// What the ledger says at the end.
#[derive(Debug, Clone, Serialize)]
pub struct Account {
    /// Bytes up and down over all sessions, by the latest receipts.
    pub metered_bytes: u64,
    /// Credited over all wallets.
    pub credited_nanokvr: u64,
    /// One entry a worker.
    pub wallets: Vec<WalletCredit>,
}

/// The running network.
pub struct Network {
    programs: Programs,
    folder: PathBuf,
    model: PathBuf,
    publisher: String,
    ledger: Server,
    hub: Server,
    edge: Server,
    settle: Server,
    workers: Vec<Server>,
    wallets: Vec<String>,
    deadline: Option<Duration>,
    /// What `--verify` is told.
    verify: &'static str,
    device: DeviceChoice,
    /// One entry a worker.
    pub kernels: Vec<WorkerKernel>,
}

impl Network {
    /// Make keys and start everything.
    ///
    /// # Errors
    /// The first program that does not start, with the end of its log.
    pub fn start(options: &NetworkOptions, steps: &Steps) -> Result<Network> {
        let programs = Programs::beside_this_one(&options.folder)?;
        let folder = &options.folder;
        for name in ["keys", "logs"] {
            fs::create_dir_all(folder.join(name))
                .with_context(|| format!("cannot make {}/{name}", folder.display()))?;
        }
        let logs = folder.join("logs");

        steps.step("making keys and a signed kernel");
        let setup = report(programs.kvasir().arg("setup"))?;
        let publisher = text(&setup, "publisher")?;
        for name in ["hub", "treasury", "settler", "backbone"] {
            key_file::create(&key(folder, name))?;
        }
        report(programs.gateway().args(["edge-key"]).arg(key(folder, "edge")))?;
        report(
            programs.gateway().args(["certificate", "--name", "localhost", "--out"]).arg(folder.join("tls")),
        )?;

        steps.step("starting the ledger");
        let ledger_folder = folder.join("ledger");
        report(
            programs
                .ledger()
                .arg("init")
                .arg(&ledger_folder)
                .args(["--network", NETWORK])
                .args(["--treasury", &public(folder, "treasury")?])
                .args(["--hub", &public(folder, "hub")?])
                .args(["--settler", &public(folder, "settler")?]),
        )?;
        let ledger = Server::start(
            "ledger",
            programs
                .ledger()
                .args(["serve", "--listen", "127.0.0.1:0", "--config"])
                .arg(ledger_folder.join("ledger.toml")),
            &logs,
        )?;
        let ledger_url = format!("http://{}", ledger.address);
        let at_ledger = ["--network", NETWORK, "--ledger", &ledger_url];
        report(
            programs.ledger().arg("price").args(at_ledger).arg("--treasury-key").arg(key(folder, "treasury")),
        )?;
        report(
            programs
                .ledger()
                .arg("fund")
                .args(at_ledger)
                .arg("--treasury-key")
                .arg(key(folder, "treasury"))
                .args(["--account", &public(folder, "backbone")?, "--nanokvr", &FUND_NANOKVR.to_string()]),
        )?;

        steps.step("starting hub, edge and settlement");
        let hub = Server::start(
            "hub",
            programs
                .gateway()
                .args([
                    "hub",
                    "--listen",
                    "127.0.0.1:0",
                    "--network",
                    NETWORK,
                    "--ledger",
                    &ledger_url,
                    "--hub-key",
                ])
                .arg(key(folder, "hub"))
                .arg("--edge-key")
                .arg(key(folder, "edge"))
                .arg("--spool")
                .arg(folder.join("spool")),
            &logs,
        )?;
        let edge_listen =
            options.listen.map_or_else(|| "127.0.0.1:0".to_owned(), |address| address.to_string());
        let edge = Server::start(
            "edge",
            programs
                .gateway()
                .args([
                    "edge",
                    "--listen",
                    &edge_listen,
                    "--network",
                    NETWORK,
                    "--hub",
                    &hub.address,
                    "--edge-key",
                ])
                .arg(key(folder, "edge"))
                .arg("--certificate")
                .arg(folder.join("tls/server.pem"))
                .arg("--certificate-key")
                .arg(folder.join("tls/server.key")),
            &logs,
        )?;
        let settle = Server::spawn(
            "settle",
            programs
                .gateway()
                .args([
                    "settle",
                    "--ledger",
                    &ledger_url,
                    "--network",
                    NETWORK,
                    "--interval",
                    SETTLE_INTERVAL,
                    "--settler-key",
                ])
                .arg(key(folder, "settler"))
                .arg("--cursor")
                .arg(folder.join("settle.cursor")),
            &logs,
        )?;

        let edge_address: SocketAddr =
            edge.address.parse().with_context(|| format!("the edge listens on {:?}", edge.address))?;
        let mut network = Network {
            programs,
            folder: folder.clone(),
            model: options.model.clone(),
            publisher,
            ledger,
            hub,
            edge,
            settle,
            workers: Vec::new(),
            wallets: Vec::new(),
            deadline: None,
            // Whoever uses this compares everything with what one machine says alone.
            verify: "none",
            device: options.device,
            kernels: Vec::new(),
        };
        let address = match options.round_trip {
            Some(round_trip) => delay::start(edge_address, round_trip)?,
            None => edge_address,
        };
        network.ticket("backbone", "backbone", None)?;
        steps.step("starting workers");
        for number in 0..options.workers {
            network.start_worker(number, address.port(), options.flip_bit && number == 0)?;
        }
        Ok(network)
    }

    /// One generation by a backbone process without any hub.
    ///
    /// # Errors
    /// Where it fails.
    pub fn run_local(&self, prompts: &[String], tokens: usize) -> Result<Generation> {
        self.run("local", prompts, tokens, |_| {})
    }

    /// One generation by a backbone process with the workers.
    ///
    /// # Errors
    /// Where it fails.
    pub fn run_remote(
        &self,
        prompts: &[String],
        tokens: usize,
        layers: &str,
        placement: PlacementChoice,
    ) -> Result<Generation> {
        self.run("remote", prompts, tokens, |command| {
            self.with_workers(command, layers, placement);
            command.arg("--keep-rows").arg(self.folder.join(KEPT_ROWS));
        })
    }

    /// A service by a backbone process with the workers, on a free port of loopback.
    ///
    /// # Errors
    /// Where it does not start.
    pub fn serve_remote(&self, layers: &str, placement: PlacementChoice) -> Result<Server> {
        let mut command = self.programs.kvasir();
        command.args(["serve", "--listen", "127.0.0.1:0", "--model"]).arg(&self.model);
        self.with_workers(&mut command, layers, placement);
        Server::start("serve", &mut command, &self.folder.join("logs"))
    }

    /// The flags of a backbone that asks the workers.
    fn with_workers(&self, command: &mut Command, layers: &str, placement: PlacementChoice) {
        command
            .args(["--hub", &format!("ws://{}", self.hub.address), "--ticket"])
            .arg(self.folder.join("backbone.ticket"))
            .arg("--key")
            .arg(key(&self.folder, "backbone"))
            .args(["--workers", &self.wallets.len().to_string()])
            .args(["--remote-layers", layers, "--placement", placement.name()])
            .args(["--accept", accept(self.device).name()])
            .args(["--verify", self.verify]);
        if let Some(deadline) = self.deadline {
            command.args(["--deadline", &format!("{}us", deadline.as_micros())]);
        }
    }

    /// Wait until every session of the generation has its final receipt and all receipts are credited; read the wallets.
    /// Where calls were recomputed a worker may have died, and no final receipt is waited for.
    ///
    /// # Errors
    /// Where that takes too long.
    pub fn settled(&self, remote: &Generation) -> Result<Account> {
        let url = format!("http://{}", self.ledger.address);
        let deadline = Instant::now() + CREDIT_WITHIN;
        loop {
            let (metered, finals) = self.metered(&url)?;
            let mut wallets = Vec::new();
            for wallet in &self.wallets {
                let value = report(self.programs.ledger().args(["wallet", wallet, "--ledger", &url]))?;
                wallets.push(WalletCredit {
                    wallet: wallet.clone(),
                    bytes: metered.iter().filter(|(payee, _)| payee == wallet).map(|(_, bytes)| bytes).sum(),
                    nanokvr: number(&value, "pending_nanokvr")? + number(&value, "posted_nanokvr")?,
                });
            }
            let account = Account {
                metered_bytes: metered.iter().map(|(_, bytes)| bytes).sum(),
                credited_nanokvr: wallets.iter().map(|wallet| wallet.nanokvr).sum(),
                wallets,
            };
            let closed = finals >= remote.sessions || remote.recomputed_calls > 0;
            if closed && account.metered_bytes > 0 && account.credited_nanokvr >= 7 * account.metered_bytes {
                return Ok(account);
            }
            if Instant::now() >= deadline {
                bail!(
                    "{} metered bytes were credited with {} nanoKVR within {CREDIT_WITHIN:?}; logs are in {}",
                    account.metered_bytes,
                    account.credited_nanokvr,
                    self.folder.join("logs").display()
                );
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Audit the log that the ledger publishes, and replay up to `items` of the calls whose rows the backbone kept.
    ///
    /// # Errors
    /// Where `kvasir audit` fails, or the receipts are not published in time.
    pub fn audit(&self, items: usize) -> Result<Audited> {
        let url = format!("http://{}", self.ledger.address);
        let deadline = Instant::now() + PUBLISHED_WITHIN;
        loop {
            let mut command = self.programs.kvasir();
            command.args(["audit", &url, "--replay", &items.to_string(), "--log-key"]);
            command.arg(self.folder.join("ledger/log.vkey")).arg("--probes").arg(self.folder.join(KEPT_ROWS));
            command.arg("--model").arg(&self.model);
            // Until the first head is published there is nothing to audit: no verdict.
            let answered = answer(&mut command).and_then(|(_, value)| match value.get("well") {
                Some(Value::Null) => bail!("kvasir audit {url}: {}", value["reason"]),
                _ => Ok(value),
            });
            let over = Instant::now() >= deadline;
            match answered {
                Ok(value) if number(&value, "faulty")? == 0 || over => return Audited::read(&value),
                Err(error) if over => return Err(error),
                _ => thread::sleep(Duration::from_millis(500)),
            }
        }
    }

    /// Have remote runs wait no longer than this for one call before they compute it themselves.
    pub fn set_deadline(&mut self, longest: Duration) {
        self.deadline = Some(longest);
    }

    /// Have remote runs check answers as they do in service.
    pub fn check_as_usual(&mut self) {
        self.verify = "usual";
    }

    /// Where the ledger answers.
    pub fn ledger_url(&self) -> String {
        format!("http://{}", self.ledger.address)
    }

    /// Hand the process of a worker to the caller, who may follow its events and end it at will; it remains part of
    /// the network, and its wallet of the account.
    pub fn give_away_worker(&mut self, number: usize) -> Option<Server> {
        (number < self.workers.len()).then(|| self.workers.remove(number))
    }

    /// Process numbers of the workers.
    pub fn worker_ids(&self) -> Vec<u32> {
        self.workers.iter().map(Server::id).collect()
    }

    /// Process number of the edge.
    pub fn edge_id(&self) -> u32 {
        self.edge.id()
    }

    /// Stop everything in order: ends first, the ledger last.
    pub fn stop(self) {
        for server in self.workers.into_iter().chain([self.edge, self.hub, self.settle, self.ledger]) {
            if let Err(error) = server.stop() {
                tracing::warn!("{error:#}");
            }
        }
    }

    /// For every session the payee and the bytes of its latest receipt (counters are cumulative), and how many are final.
    fn metered(&self, ledger: &str) -> Result<(Vec<(String, u64)>, usize)> {
        let mut latest = BTreeMap::new();
        let mut finals = 0;
        let mut after: Option<u64> = None;
        loop {
            let mut command = self.programs.ledger();
            command.args(["receipts", "--limit", "500", "--ledger", ledger]);
            if let Some(after) = after {
                command.args(["--after", &after.to_string()]);
            }
            let page = report(&mut command)?;
            let list = page
                .get("receipts")
                .and_then(Value::as_array)
                .ok_or_else(|| anyhow!("no receipts in {page}"))?;
            for stored in list {
                let note = Note::parse(text(stored, "note")?.as_bytes())?;
                let receipt = Receipt::parse(note.text())?;
                let bytes = receipt.counters.up.get().saturating_add(receipt.counters.down.get());
                finals += usize::from(receipt.is_final);
                latest.insert(receipt.terms.session, (receipt.terms.payee.to_string(), bytes));
                after = Some(number(stored, "index")?);
            }
            if list.is_empty() {
                return Ok((latest.into_values().collect(), finals));
            }
        }
    }

    fn start_worker(&mut self, number: usize, port: u16, flip_bit: bool) -> Result<()> {
        let name = format!("worker-{number}");
        let wallet = key_file::create(&key(&self.folder, &format!("wallet-{number}")))?
            .public()
            .wallet_digest()
            .to_string();
        key_file::create(&key(&self.folder, &name))?;
        report(
            self.programs
                .ledger()
                .arg("delegate")
                .args([
                    "--network",
                    NETWORK,
                    "--ledger",
                    &format!("http://{}", self.ledger.address),
                    "--wallet-key",
                ])
                .arg(key(&self.folder, &format!("wallet-{number}")))
                .args(["--worker", &public(&self.folder, &name)?]),
        )?;
        self.ticket(&name, "worker", Some(&wallet))?;
        let mut command = self.programs.kvasir();
        command
            .args(["worker", "--gateway", &format!("wss://localhost:{port}"), "--ticket"])
            .arg(self.folder.join(format!("{name}.ticket")))
            .arg("--key")
            .arg(key(&self.folder, &name))
            .arg("--ca")
            .arg(self.folder.join("tls/ca.pem"))
            .arg("--receipts")
            .arg(self.folder.join(format!("{name}-receipts")))
            .args(["--threads", "1", "--device", self.device.name()]);
        if flip_bit {
            command.args(["--danger-flip-bit-of-result", "1"]);
        }
        let mut worker = Server::spawn(&name, &mut command, &self.folder.join("logs"))?;
        let proven = worker.event("proven", WORKER_WITHIN)?;
        self.kernels.push(WorkerKernel {
            class: text(&proven, "class")?,
            device: proven.get("device").and_then(Value::as_str).map(str::to_owned),
            software: proven.get("software").and_then(Value::as_bool).unwrap_or(false),
        });
        worker.event("connected", WORKER_WITHIN)?;
        self.workers.push(worker);
        self.wallets.push(wallet);
        Ok(())
    }

    fn ticket(&self, name: &str, role: &str, wallet: Option<&str>) -> Result<()> {
        let mut command = self.programs.gateway();
        command
            .args([
                "ticket",
                "--role",
                role,
                "--network",
                NETWORK,
                "--expires",
                "1d",
                "--publisher",
                &self.publisher,
            ])
            .args(["--holder", &public(&self.folder, name)?, "--hub-key"])
            .arg(key(&self.folder, "hub"))
            .arg("--edge-key")
            .arg(key(&self.folder, "edge"));
        if let Some(wallet) = wallet {
            command.args(["--wallet", wallet]);
        }
        let value = report(&mut command)?;
        let ticket = text(&value, "ticket")?;
        let path = self.folder.join(format!("{name}.ticket"));
        fs::write(&path, format!("{ticket}\n")).with_context(|| format!("cannot write {}", path.display()))
    }

    fn run(
        &self,
        name: &str,
        prompts: &[String],
        tokens: usize,
        more: impl FnOnce(&mut Command),
    ) -> Result<Generation> {
        let logits = self.folder.join(format!("{name}.logits"));
        let mut command = self.programs.kvasir();
        command.arg("run").arg("--model").arg(&self.model).args(["--tokens", &tokens.to_string()]);
        command.arg("--logits").arg(&logits);
        more(&mut command);
        command.arg("--").args(prompts);
        Generation::read(&report(&mut command)?, &logits)
    }
}

/// What the backbone must accept for workers on this device.
fn accept(device: DeviceChoice) -> AcceptChoice {
    match device {
        DeviceChoice::Cpu => AcceptChoice::Exact,
        DeviceChoice::Gpu => AcceptChoice::Tolerance,
    }
}

fn key(folder: &Path, name: &str) -> PathBuf {
    folder.join("keys").join(format!("{name}.key"))
}

fn public(folder: &Path, name: &str) -> Result<String> {
    Ok(key_file::load(&key(folder, name))?.public().to_string())
}
