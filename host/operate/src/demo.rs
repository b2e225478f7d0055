//! `kvasir demo`: the whole path on loopback, once with local experts and once with remote ones, and the two compared.
//!
//! Gateway, hub, ledger, settlement poller, both backbones and every worker are processes of their own, driven through the
//! command lines that people use. Keys, certificate, ledger and logs are made anew in a temporary folder.

pub mod audited;
pub mod compare;
mod fields;
pub mod generation;
pub mod network;
mod programs;
pub mod report;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::compare::Comparison;
use self::network::{Network, NetworkOptions};
use self::report::DemoReport;
use crate::choices::DeviceChoice;
use crate::remote::PlacementChoice;
use crate::settings::Settings;

/// What is asked where no prompt is named; the first continues with " Paris."
const PROMPTS: &[&str] =
    &["The capital of France is", "Die Hauptstadt von Norwegen ist", "Ibu kota Jepang adalah"];

/// Calls that the payer draws and computes again.
const REPLAYED: usize = 24;
/// Under the negative control: all of them, so that the wrong one is among them.
const ALL: usize = 100_000;

/// What `kvasir demo` may be told.
pub struct DemoOptions {
    /// Model instead of atlas.
    pub model: Option<PathBuf>,
    /// Prompts instead of the built-in ones.
    pub prompts: Vec<String>,
    /// Tokens to generate for each.
    pub tokens: usize,
    /// Workers to start.
    pub workers: usize,
    /// Layers whose experts are remote, as `kvasir run` takes them.
    pub remote_layers: String,
    /// How experts are dealt over workers.
    pub placement: PlacementChoice,
    /// Round trip to put between workers and edge.
    pub round_trip: Option<Duration>,
    /// Negative control: the first worker flips one bit of its first result.
    pub flip_bit: bool,
    /// What the workers compute on. On a GPU their results are of class tolerance, which the backbone then accepts.
    pub device: DeviceChoice,
    /// Address of the edge instead of a free loopback port.
    pub listen: Option<SocketAddr>,
    /// Folder to keep instead of a temporary one.
    pub keep: Option<PathBuf>,
}

/// `kvasir demo`. The exit code is a failure where local and remote differ (with workers on a GPU: in a token) or a replayed
/// call is wrong, and under `flip_bit` where they do not or not exactly one is.
///
/// # Errors
/// Where a program is missing, does not start, or fails; its log is part of the message.
pub fn command(options: &DemoOptions, json: bool) -> Result<ExitCode> {
    if options.tokens == 0 {
        bail!("--tokens is at least 1: without a token there is nothing to compare");
    }
    if options.flip_bit && options.device == DeviceChoice::Gpu {
        bail!(
            "--flip-bit is a control of bits that are equal; those of a GPU are not: leave out one of the two"
        );
    }
    let temporary = tempfile::tempdir().context("no temporary folder")?;
    let folder = match &options.keep {
        Some(folder) => empty_folder(folder)?,
        None => temporary.path().to_path_buf(),
    };
    let settings = Settings::load(None, Some(&folder))?;
    let model = settings.model(options.model.as_deref())?;
    let prompts = if options.prompts.is_empty() {
        PROMPTS.iter().map(|prompt| (*prompt).to_owned()).collect()
    } else {
        options.prompts.clone()
    };
    let steps = report::Steps::new(json);

    let network = Network::start(
        &NetworkOptions {
            folder: folder.clone(),
            model,
            workers: options.workers,
            round_trip: options.round_trip,
            flip_bit: options.flip_bit,
            device: options.device,
            listen: options.listen,
        },
        &steps,
    )?;
    steps.step("generating with local experts");
    let local = network.run_local(&prompts, options.tokens)?;
    steps.step("generating with remote experts");
    let remote = network.run_remote(&prompts, options.tokens, &options.remote_layers, options.placement)?;
    steps.step("waiting for receipts and credit");
    let account = network.settled(&remote)?;
    steps.step("computing drawn calls again on three engines");
    let audited = network.audit(if options.flip_bit { ALL } else { REPLAYED })?;
    steps.finish();

    let comparison = Comparison::of(&local, &remote)?;
    let kernels = network.kernels.clone();
    let report = DemoReport::new(options, &local, &remote, &comparison, &account, &kernels, &audited);
    network.stop();
    report.print(json)?;
    let as_promised = match options.device {
        DeviceChoice::Cpu => comparison.identical() != options.flip_bit,
        // Bits may move within the tolerance; no token of these prompts may.
        DeviceChoice::Gpu => comparison.identical_tokens && report.classes_are("tolerance"),
    };
    let audit_as_promised = if options.flip_bit { audited.convicted == 1 } else { audited.is_well() };
    Ok(if !as_promised || !audit_as_promised || !report.credit_is_exact() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// A folder to keep must be new or empty: keys and a ledger from an earlier demo are not mixed with this one's.
fn empty_folder(folder: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let mut entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    if entries.next().is_some() {
        bail!("{} is not empty: name a new folder with --keep", folder.display());
    }
    folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))
}
