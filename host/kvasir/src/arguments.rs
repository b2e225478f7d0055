//! The words of the command line, and how they become the options of `kvasir-operate`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use kvasir_operate as operate;

use crate::audit_arguments::AuditArguments;
use crate::bench_arguments::BenchCommand;
use crate::plan_arguments::PlanArguments;
use crate::plugin_arguments::PluginCommand;
use crate::serve_arguments::ServeArguments;

/// A mixture-of-experts model on whatever hardware turns up.
#[derive(Parser)]
#[command(
    name = "kvasir",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  kvasir setup                                    make a publisher key of your own, sign the bundled kernel, trust it
  kvasir run \"The capital of France is\"           answer on this machine
  kvasir demo                                     the whole path on loopback: gateway, hub, ledger, two workers

Settings: flags, then KVASIR_* variables, then config.toml in the configuration folder."
)]
pub struct CommandLine {
    /// Print one JSON object on standard output; everything else goes to standard error.
    #[arg(long, global = true)]
    pub json: bool,
    /// Say more on standard error (twice: everything). KVASIR_LOG=crate=level picks by crate.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Say only errors on standard error.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Settings file instead of config.toml in the configuration folder.
    #[arg(long, global = true, env = "KVASIR_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder for settings, keys and packages instead of the user's own.
    #[arg(long, global = true, env = "KVASIR_HOME", value_name = "FOLDER")]
    pub home: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Make a publisher key of your own, sign the bundled kernel with it, and trust it. Safe to repeat.
    #[command(after_help = "Example:\n  kvasir setup")]
    Setup(SetupArguments),
    /// Answer a prompt, with local experts or with workers behind a hub.
    #[command(after_help = "\
Examples:
  kvasir run \"The capital of France is\"
  kvasir run --tokens 64 --temperature 0.8 --top-p 0.95 --seed 7 \"Kenya is\"
  kvasir run --hub ws://127.0.0.1:7301 --ticket backbone.ticket --key backbone.key --workers 2 \"Ibu kota Jepang adalah\"
  kvasir run --hub ws://127.0.0.1:7301 --ticket backbone.ticket --key backbone.key --probes probes --keep-rows mine \"Oslo is\"
  echo \"Die Hauptstadt von Norwegen ist\" | kvasir run -")]
    Run(RunArguments),
    /// Serve a model to many clients over HTTP, in the form of OpenAI's API, with local experts or with workers behind a hub.
    #[command(after_help = "\
Examples:
  kvasir serve
  kvasir serve --listen 0.0.0.0:8080 --api-keys keys.txt
  kvasir serve --hub ws://127.0.0.1:7301 --ticket backbone.ticket --key backbone.key --workers 2 --remote-layers all

Then: curl http://127.0.0.1:8080/v1/completions -H 'content-type: application/json' \\
        -d '{\"model\": \"atlas\", \"prompt\": \"The capital of Norway is\", \"temperature\": 0}'

SIGTERM: nothing new is taken, and what is being written is written to its end, for 30 s at most.")]
    Serve(ServeArguments),
    /// Predict how fast texts would be written with some experts elsewhere, and say what to place where, and why. Refuses what
    /// memory cannot hold, and what loses against this machine alone.
    #[command(after_help = "\
Examples:
  kvasir plan --measure --round-trip 13ms --bandwidth 100mbit --workers 2
  kvasir plan --measure --round-trip 13ms --remote-layers 1 --streams 32
  kvasir plan --measure --json > measured.json
  curl -s http://127.0.0.1:8080/v1/swarm | kvasir plan --measured measured.json --swarm - --for capacity --write experts.list
  kvasir plan --measured measured.json --check fabric.json

Exit code: 0 the plan may be, or everything stays here; 1 the placement is refused. --check judges nothing: 0.")]
    Plan(PlanArguments),
    /// Lend this machine: hold experts and compute them for a backbone, over one outbound connection.
    #[command(after_help = "\
Example:
  kvasir worker --gateway wss://gateway.example --ticket worker.ticket --key worker.key")]
    Worker(WorkerArguments),
    /// Go a worker's way to a backbone hop by hop, and say at which one it ends and what to do. Serves nothing.
    #[command(after_help = "\
Examples:
  kvasir doctor --gateway wss://gateway.example --ticket worker.ticket --key worker.key
  kvasir doctor --gateway wss://localhost:7443 --ca tls/ca.pem --ticket worker.ticket --key worker.key --json

Hops: settings, keys, plugin, proxy, dns, tcp, tls, upgrade, ticket, version, hub, backbone.
Exit code: 0 no hop failed, 1 one did.")]
    Doctor(DoctorArguments),
    /// Show the whole path on loopback: one prompt answered by local and by remote experts, compared bit for bit.
    #[command(after_help = "\
Examples:
  kvasir demo
  kvasir demo --rtt 13ms --remote-layers 0,1
  kvasir demo --flip-bit            negative control: one worker flips one bit of one result, and it is noticed")]
    Demo(DemoArguments),
    /// Audit a ledger's public log, and compute the work behind it again: published calls, byte for byte, on three engines.
    #[command(after_help = "\
Examples:
  kvasir audit https://ledger.example --log-key log.vkey --replay 100 --model models/atlas/atlas-q4_k_m.gguf
  kvasir audit ./log --policy witnesses.policy --probes ./kept-rows --replay 20 --model atlas.gguf --plugin swiglu.kvp --json
  kvasir audit ./log --log-key log.vkey --replay 100 --model atlas.gguf --sign-key auditor.key --statements ./findings
  kvasir audit --evidence-file work-5e000000-1-5.fraud --model models/atlas/atlas-q4_k_m.gguf --plugin swiglu.kvp
  kvasir audit ./log --log-key log.vkey --evidence-file work-5e000000-1-5.fraud --model atlas.gguf --sign-key auditor.key

Exit code: 0 all is well, 1 a finding or something drawn that could not be judged, 3 no verdict: the log or something else that is
needed could not be read. A file that the log's signed head demands and that is missing where the log answers is a finding.
With --evidence-file: 0 the work is right, 1 its worker is convicted, 3 neither is known.")]
    Audit(AuditArguments),
    /// Measure tokens per second of prefill and decode on a model; or the experts alone.
    #[command(
        after_help = "Examples:\n  kvasir bench --prompt-tokens 512 --tokens 128 --threads 2\n  kvasir bench kernels"
    )]
    Bench(BenchArguments),
    /// Show what a model file holds: shape, formats, digest.
    #[command(after_help = "Example:\n  kvasir inspect models/atlas/atlas-q4_k_m.gguf")]
    Inspect {
        /// GGUF file or Hugging Face folder.
        #[arg(env = "KVASIR_MODEL")]
        model: Option<PathBuf>,
    },
    /// Make and show keys.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Make, check, install and trust kernel packages.
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Print completions for a shell.
    #[command(after_help = "Example:\n  kvasir completions bash > /etc/bash_completion.d/kvasir")]
    Completions { shell: clap_complete::Shell },
}

#[derive(Subcommand)]
pub enum KeyCommand {
    /// Make a secret key file (mode 600; never overwrites) and print its public key.
    #[command(after_help = "Example:\n  kvasir key new worker.key")]
    New { path: PathBuf },
    /// Print the public key and the wallet number of a secret key file.
    #[command(after_help = "Example:\n  kvasir key show wallet.key")]
    Show { path: PathBuf },
}

#[derive(Args)]
pub struct SetupArguments {
    /// Sign again with the publisher key that is there, for instance when the signature has expired.
    #[arg(long)]
    pub renew: bool,
    /// Secret root key file, where it is not keys/root.key; once for each, where the root takes several.
    #[arg(long, env = "KVASIR_ROOT_KEY", value_name = "FILE")]
    pub root_key: Vec<PathBuf>,
}

/// What every command that computes needs.
#[derive(Args, Clone)]
pub struct ComputeArguments {
    /// GGUF file or Hugging Face folder.
    #[arg(short, long, env = "KVASIR_MODEL", value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Package of the expert kernel.
    #[arg(long, env = "KVASIR_PLUGIN", value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// Folder of trusted publishers' public keys.
    #[arg(long, env = "KVASIR_TRUST", value_name = "FOLDER")]
    pub trust: Option<PathBuf>,
    /// Threads that compute [default: one a core].
    #[arg(short, long, env = "KVASIR_THREADS", value_name = "N")]
    pub threads: Option<usize>,
    /// Most memory for experts in the sandbox, in MiB [default: half of what is free].
    #[arg(long, env = "KVASIR_MEMORY", value_name = "MIB")]
    pub memory: Option<u64>,
    /// What computes experts on this machine [default: cpu].
    #[arg(long, env = "KVASIR_DEVICE", value_name = "DEVICE")]
    pub device: Option<DeviceArgument>,
}

#[derive(Args)]
pub struct RunArguments {
    /// The prompt (several are answered in turn); `-` reads one from standard input.
    #[arg(required = true)]
    pub prompts: Vec<String>,
    #[command(flatten)]
    pub compute: ComputeArguments,
    /// Most tokens to generate for each prompt.
    #[arg(short = 'n', long, default_value_t = 32)]
    pub tokens: usize,
    /// 0 is greedy.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Sample among the k likeliest tokens only.
    #[arg(long)]
    pub top_k: Option<usize>,
    /// Sample among the likeliest tokens that make up this much probability.
    #[arg(long, allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Seed of the sampler.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Prompt tokens computed at once.
    #[arg(long, default_value_t = 512)]
    pub prefill_chunk: usize,
    /// Treat the prompt as the user's message and apply the model's chat template.
    #[arg(long)]
    pub chat: bool,
    /// Write the logits of every generated position to this file: raw f32, little-endian.
    #[arg(long, value_name = "FILE")]
    pub logits: Option<PathBuf>,
    #[command(flatten)]
    pub swarm: SwarmArguments,
    #[command(flatten)]
    pub probes: ProbeArguments,
}

/// How a backbone finds workers.
#[derive(Args)]
pub struct SwarmArguments {
    /// Hub that brings workers: ws://HOST:PORT. Without it every expert is computed here.
    #[arg(long, env = "KVASIR_HUB", requires_all = ["ticket", "key"])]
    pub hub: Option<String>,
    /// Ticket file for the hub.
    #[arg(long, env = "KVASIR_TICKET", value_name = "FILE")]
    pub ticket: Option<PathBuf>,
    /// Secret key file that the ticket names.
    #[arg(long, env = "KVASIR_KEY", value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Wait for this many workers before the first prompt.
    #[arg(long, default_value_t = 1, requires = "hub")]
    pub workers: usize,
    /// Layers whose experts are remote: `all`, or numbers and ranges such as `0,2-3`.
    #[arg(long, default_value = "all", requires = "hub")]
    pub remote_layers: String,
    /// Experts that are remote, in a file as `kvasir plan --write` makes it, in place of --remote-layers.
    #[arg(long, value_name = "FILE", requires = "hub", conflicts_with = "remote_layers")]
    pub experts: Option<PathBuf>,
    /// How experts are dealt over workers.
    #[arg(long, default_value = "layers", requires = "hub")]
    pub placement: PlacementArgument,
    /// Further workers that hold each expert, and are asked where the first is late or fails; fewer than --workers.
    #[arg(long, default_value_t = 0, value_name = "N", requires = "hub")]
    pub copies: usize,
    /// Longest wait for one call before somebody else does it, such as 500ms [default: from measured latency].
    #[arg(long, value_parser = parse_duration, requires = "hub")]
    pub deadline: Option<Duration>,
    /// Loosest class of results to accept from workers [default: exact].
    #[arg(long, env = "KVASIR_ACCEPT", value_name = "CLASS")]
    pub accept: Option<AcceptArgument>,
    /// Which answers of workers are computed again here before they are used: all, none, or the first answers of each worker
    /// and then one in so many at random, as FIRST,ONE_IN [default: 256,64].
    #[arg(long, env = "KVASIR_VERIFY", value_name = "WHICH")]
    pub verify: Option<operate::choices::VerifyChoice>,
}

/// What can be replayed later. All of it concerns calls to workers, that is `--hub`.
#[derive(Args)]
pub struct ProbeArguments {
    /// Mix probes in, public prompts that workers cannot tell from yours, and write their calls to this folder for anybody
    /// to replay [default: no probes]. They cost time and credit like any other call.
    #[arg(long, env = "KVASIR_PROBES", value_name = "FOLDER")]
    pub probes: Option<PathBuf>,
    /// Passes of probes for each pass of your own text, 0 to 1 [default: 0.02].
    #[arg(long, env = "KVASIR_PROBE_RATE", value_name = "RATE")]
    pub probe_rate: Option<operate::probes::ProbeRate>,
    /// Prompts for probes instead of the bundled ones, one a line.
    #[arg(long, env = "KVASIR_PROBE_PROMPTS", value_name = "FILE")]
    pub probe_prompts: Option<PathBuf>,
    /// Write all calls to this folder, for your own replay. They are derived from your prompts: only you can read the files
    /// [default: keep none].
    #[arg(long, env = "KVASIR_KEEP_ROWS", value_name = "FOLDER")]
    pub keep_rows: Option<PathBuf>,
    /// Folder for a file of evidence against each worker whose answer is found wrong. It holds rows of calls, from which text can be
    /// recovered: only you can read it. An empty value ('') keeps none [default: `evidence` in the data folder].
    #[arg(long, env = "KVASIR_EVIDENCE", value_name = "FOLDER", value_parser = folder_or_none())]
    pub evidence: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum DeviceArgument {
    /// The processor, by the kernel in WASM: results are exact, bit for bit.
    Cpu,
    /// A GPU, by the kernel in WGSL, in a process of its own: results are within the kernel's stated tolerance.
    Gpu,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum IsolationArgument {
    /// In a process of the kernel's own, without network, files or keys, with bounded memory.
    Process,
    /// In this program's process, behind the WebAssembly engine alone.
    None,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum AcceptArgument {
    /// Equal bit for bit to what this machine computes: workers that compute on a GPU are refused.
    Exact,
    /// Also within the kernel's stated tolerance: logits move a little, and a token where two are close.
    Tolerance,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum PlacementArgument {
    /// Whole layers, in turn: a worker returns one summed row.
    Layers,
    /// The experts of every layer, in turn: workers return their experts' rows one by one.
    Experts,
}

#[derive(Args)]
pub struct WorkerArguments {
    /// Gateway to dial: `wss://HOST` or `wss://HOST:PORT`.
    #[arg(long, env = "KVASIR_GATEWAY")]
    pub gateway: String,
    /// Ticket file from the network's operator.
    #[arg(long, env = "KVASIR_TICKET", value_name = "FILE")]
    pub ticket: PathBuf,
    /// Secret key file that the ticket names.
    #[arg(long, env = "KVASIR_KEY", value_name = "FILE")]
    pub key: PathBuf,
    /// Certificate authority to trust instead of the public ones, in PEM.
    #[arg(long, env = "KVASIR_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Local copy of the model: experts are read from it, after their digests were checked, instead of being sent.
    #[arg(short, long, env = "KVASIR_MODEL", value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Package of the expert kernel.
    #[arg(long, env = "KVASIR_PLUGIN", value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// Folder of trusted publishers' public keys.
    #[arg(long, env = "KVASIR_TRUST", value_name = "FOLDER")]
    pub trust: Option<PathBuf>,
    /// What computes experts [default: cpu].
    #[arg(long, env = "KVASIR_DEVICE", value_name = "DEVICE")]
    pub device: Option<DeviceArgument>,
    /// In which process kernels compute [default: process].
    #[arg(long, env = "KVASIR_ISOLATION", value_name = "ISOLATION")]
    pub isolation: Option<IsolationArgument>,
    /// Threads that compute [default: one a core].
    #[arg(short, long, env = "KVASIR_THREADS", value_name = "N")]
    pub threads: Option<usize>,
    /// Most memory for experts, in MiB [default: half of what is free].
    #[arg(long, env = "KVASIR_MEMORY", value_name = "MIB")]
    pub memory: Option<u64>,
    /// Folder to keep signed receipts in [default: receipts in the data folder].
    #[arg(long, value_name = "FOLDER")]
    pub receipts: Option<PathBuf>,
    /// Open a second outbound connection to the same gateway for weights, where it offers that: helps where packets are lost.
    #[arg(long, env = "KVASIR_BULK_CONNECTION")]
    pub bulk_connection: bool,
    /// Danger: send the ticket unencrypted to a ws:// gateway on another machine.
    #[arg(long, hide_short_help = true)]
    pub danger_plain_text: bool,
    /// Danger, for demonstrations: flip one bit of this result (counted from 1).
    #[arg(long, value_name = "RESULT", hide_short_help = true)]
    pub danger_flip_bit_of_result: Option<u64>,
}

#[derive(Args)]
pub struct DoctorArguments {
    /// Gateway to dial: `wss://HOST` or `wss://HOST:PORT`.
    #[arg(long, env = "KVASIR_GATEWAY")]
    pub gateway: String,
    /// Ticket file from the network's operator.
    #[arg(long, env = "KVASIR_TICKET", value_name = "FILE")]
    pub ticket: PathBuf,
    /// Secret key file that the ticket names.
    #[arg(long, env = "KVASIR_KEY", value_name = "FILE")]
    pub key: PathBuf,
    /// Certificate authority to trust instead of the public ones, in PEM.
    #[arg(long, env = "KVASIR_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Package of the expert kernel.
    #[arg(long, env = "KVASIR_PLUGIN", value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// Folder of trusted publishers' public keys.
    #[arg(long, env = "KVASIR_TRUST", value_name = "FOLDER")]
    pub trust: Option<PathBuf>,
    /// What the worker computes experts on [default: cpu].
    #[arg(long, env = "KVASIR_DEVICE", value_name = "DEVICE")]
    pub device: Option<DeviceArgument>,
    /// In which process the worker computes kernels [default: process].
    #[arg(long, env = "KVASIR_ISOLATION", value_name = "ISOLATION")]
    pub isolation: Option<IsolationArgument>,
    /// Most memory for experts that the worker offers, in MiB [default: half of what is free].
    #[arg(long, env = "KVASIR_MEMORY", value_name = "MIB")]
    pub memory: Option<u64>,
    /// Danger: send the ticket unencrypted to a ws:// gateway on another machine.
    #[arg(long, hide_short_help = true)]
    pub danger_plain_text: bool,
    /// Danger: be admitted with a ticket of one session too, which ends a worker that runs with it.
    #[arg(long, hide_short_help = true)]
    pub danger_replace_worker: bool,
}

#[derive(Args)]
pub struct DemoArguments {
    /// GGUF file or Hugging Face folder.
    #[arg(short, long, env = "KVASIR_MODEL", value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Prompts instead of the built-in ones.
    #[arg(long = "prompt", value_name = "TEXT")]
    pub prompts: Vec<String>,
    /// Tokens to generate for each prompt.
    #[arg(short = 'n', long, default_value_t = 8)]
    pub tokens: usize,
    /// Workers to start.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub workers: u16,
    /// Layers whose experts are remote: `all`, or numbers and ranges such as `0,2-3`.
    #[arg(long, default_value = "all")]
    pub remote_layers: String,
    /// How experts are dealt over workers.
    #[arg(long, default_value = "layers")]
    pub placement: PlacementArgument,
    /// Round trip to put between the workers and the gateway, such as 13ms.
    #[arg(long, value_parser = parse_duration)]
    pub rtt: Option<Duration>,
    /// Negative control: one worker flips one bit of one result; exit 0 where the difference is noticed.
    #[arg(long)]
    pub flip_bit: bool,
    /// What the workers compute on; on a GPU tokens must be identical, and logits may differ within the kernel's tolerance.
    #[arg(long, env = "KVASIR_DEVICE", value_name = "DEVICE", default_value = "cpu")]
    pub device: DeviceArgument,
    /// Address of the public edge [default: a free port on loopback].
    #[arg(long)]
    pub listen: Option<SocketAddr>,
    /// Keep keys, ledger and logs in this folder instead of a temporary one.
    #[arg(long, value_name = "FOLDER")]
    pub keep: Option<PathBuf>,
}

#[derive(Args)]
pub struct BenchArguments {
    #[command(subcommand)]
    pub experts: Option<BenchCommand>,
    #[command(flatten)]
    pub compute: ComputeArguments,
    /// Tokens of the prefill.
    #[arg(long, default_value_t = 512)]
    pub prompt_tokens: usize,
    /// Tokens of the decode.
    #[arg(short = 'n', long, default_value_t = 128)]
    pub tokens: usize,
    /// Runs; the best and the median are reported.
    #[arg(long, default_value_t = 5)]
    pub runs: usize,
}

impl From<&SetupArguments> for operate::setup::SetupOptions {
    fn from(arguments: &SetupArguments) -> Self {
        operate::setup::SetupOptions { renew: arguments.renew, root_keys: arguments.root_key.clone() }
    }
}

impl From<&ComputeArguments> for operate::local::ComputeOptions {
    fn from(arguments: &ComputeArguments) -> Self {
        operate::local::ComputeOptions {
            model: arguments.model.clone(),
            plugin: arguments.plugin.clone(),
            trust: arguments.trust.clone(),
            threads: arguments.threads,
            memory_mebibytes: arguments.memory,
            device: arguments.device.map(Into::into),
        }
    }
}

impl From<PlacementArgument> for operate::remote::PlacementChoice {
    fn from(argument: PlacementArgument) -> Self {
        match argument {
            PlacementArgument::Layers => operate::remote::PlacementChoice::Layers,
            PlacementArgument::Experts => operate::remote::PlacementChoice::Experts,
        }
    }
}

impl From<DeviceArgument> for operate::choices::DeviceChoice {
    fn from(argument: DeviceArgument) -> Self {
        match argument {
            DeviceArgument::Cpu => operate::choices::DeviceChoice::Cpu,
            DeviceArgument::Gpu => operate::choices::DeviceChoice::Gpu,
        }
    }
}

impl From<IsolationArgument> for operate::choices::IsolationChoice {
    fn from(argument: IsolationArgument) -> Self {
        match argument {
            IsolationArgument::Process => operate::choices::IsolationChoice::Process,
            IsolationArgument::None => operate::choices::IsolationChoice::None,
        }
    }
}

impl From<AcceptArgument> for operate::choices::AcceptChoice {
    fn from(argument: AcceptArgument) -> Self {
        match argument {
            AcceptArgument::Exact => operate::choices::AcceptChoice::Exact,
            AcceptArgument::Tolerance => operate::choices::AcceptChoice::Tolerance,
        }
    }
}

impl From<&ProbeArguments> for operate::probes::ProbeOptions {
    fn from(arguments: &ProbeArguments) -> Self {
        operate::probes::ProbeOptions {
            folder: arguments.probes.clone(),
            rate: arguments.probe_rate,
            prompts: arguments.probe_prompts.clone(),
            rows: arguments.keep_rows.clone(),
            evidence: arguments.evidence.clone(),
        }
    }
}

impl SwarmArguments {
    /// The swarm to join, where a hub is named.
    pub fn remote(
        &self,
        probes: operate::probes::ProbeOptions,
    ) -> anyhow::Result<Option<operate::remote::RemoteOptions>> {
        match (&self.hub, &self.ticket, &self.key) {
            (Some(hub), Some(ticket), Some(key)) => Ok(Some(operate::remote::RemoteOptions {
                hub: hub.clone(),
                ticket: ticket.clone(),
                key: key.clone(),
                workers: self.workers,
                layers: self.remote_layers.parse()?,
                experts: self.experts.clone(),
                placement: self.placement.into(),
                copies: self.copies,
                deadline: self.deadline,
                accept: self.accept.map(Into::into),
                verify: self.verify,
                probes,
            })),
            _ => Ok(None),
        }
    }
}

impl TryFrom<&RunArguments> for operate::run::RunOptions {
    type Error = anyhow::Error;

    fn try_from(arguments: &RunArguments) -> anyhow::Result<Self> {
        let remote = arguments.swarm.remote((&arguments.probes).into())?;
        Ok(operate::run::RunOptions {
            compute: (&arguments.compute).into(),
            prompts: arguments.prompts.clone(),
            tokens: arguments.tokens,
            temperature: arguments.temperature,
            top_k: arguments.top_k,
            top_p: arguments.top_p,
            seed: arguments.seed,
            prefill_chunk: arguments.prefill_chunk,
            chat: arguments.chat,
            logits: arguments.logits.clone(),
            remote,
        })
    }
}

impl From<&WorkerArguments> for operate::serve_worker::WorkerSettings {
    fn from(arguments: &WorkerArguments) -> Self {
        operate::serve_worker::WorkerSettings {
            gateway: arguments.gateway.clone(),
            ticket: arguments.ticket.clone(),
            key: arguments.key.clone(),
            certificate_authority: arguments.ca.clone(),
            model: arguments.model.clone(),
            plugin: arguments.plugin.clone(),
            trust: arguments.trust.clone(),
            device: arguments.device.map(Into::into),
            isolation: arguments.isolation.map(Into::into),
            threads: arguments.threads,
            memory_mebibytes: arguments.memory,
            receipts: arguments.receipts.clone(),
            bulk_connection: arguments.bulk_connection,
            plain_text: arguments.danger_plain_text,
            flip_bit_of_result: arguments.danger_flip_bit_of_result,
        }
    }
}

impl From<&DoctorArguments> for operate::doctor::DoctorOptions {
    fn from(arguments: &DoctorArguments) -> Self {
        operate::doctor::DoctorOptions {
            gateway: arguments.gateway.clone(),
            ticket: arguments.ticket.clone(),
            key: arguments.key.clone(),
            certificate_authority: arguments.ca.clone(),
            plugin: arguments.plugin.clone(),
            trust: arguments.trust.clone(),
            device: arguments.device.map(Into::into),
            isolation: arguments.isolation.map(Into::into),
            memory_mebibytes: arguments.memory,
            plain_text: arguments.danger_plain_text,
            replace_worker: arguments.danger_replace_worker,
        }
    }
}

impl TryFrom<&DemoArguments> for operate::demo::DemoOptions {
    type Error = anyhow::Error;

    fn try_from(arguments: &DemoArguments) -> anyhow::Result<Self> {
        let _: operate::remote::LayerSelection = arguments.remote_layers.parse()?;
        Ok(operate::demo::DemoOptions {
            model: arguments.model.clone(),
            prompts: arguments.prompts.clone(),
            tokens: arguments.tokens,
            workers: usize::from(arguments.workers),
            remote_layers: arguments.remote_layers.clone(),
            placement: arguments.placement.into(),
            round_trip: arguments.rtt,
            flip_bit: arguments.flip_bit,
            device: arguments.device.into(),
            listen: arguments.listen,
            keep: arguments.keep.clone(),
        })
    }
}

impl From<&BenchArguments> for operate::bench::BenchOptions {
    fn from(arguments: &BenchArguments) -> Self {
        operate::bench::BenchOptions {
            compute: (&arguments.compute).into(),
            prompt_tokens: arguments.prompt_tokens,
            tokens: arguments.tokens,
            runs: arguments.runs,
        }
    }
}

/// A folder, or an empty value, which says that there shall be none: what reads paths refuses that.
pub fn folder_or_none() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// `13ms`, `1.5s`, `250us`; at most an hour.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or("name a unit: 13ms, 1.5s, 250us")?;
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        _ => return Err(format!("the unit {unit:?} is not known; use us, ms or s")),
    };
    if !(0.0..=3600.0).contains(&seconds) {
        return Err(format!("{text} is not between 0 and an hour"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn an_empty_folder_of_evidence_is_a_value_and_no_other_folder_may_be_empty() {
        let evidence = |words: &[&str]| {
            let line =
                CommandLine::try_parse_from([&["kvasir"], words].concat()).map_err(|error| error.to_string());
            match line.map(|line| line.command) {
                Ok(Command::Run(arguments)) => arguments.probes.evidence,
                Ok(Command::Serve(arguments)) => arguments.evidence,
                Ok(_) => panic!("another command"),
                Err(error) => panic!("{error}"),
            }
        };
        for words in [&["run", "hello", "--evidence"][..], &["serve", "--evidence"][..]] {
            for folder in ["", "here"] {
                assert_eq!(evidence(&[words, &[folder]].concat()), Some(PathBuf::from(folder)), "{words:?}");
            }
        }
        let empty = ["kvasir", "run", "hello", "--keep-rows", ""];
        assert!(CommandLine::try_parse_from(empty).is_err());
    }

    #[test]
    fn durations_have_units_and_bounds() {
        assert_eq!(parse_duration("13ms"), Ok(Duration::from_millis(13)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        for wrong in ["13", "ms", "13min", "-1s", "1e9s", "NaNs"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
