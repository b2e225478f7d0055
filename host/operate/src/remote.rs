//! Remote experts: which layers leave the house, how they are dealt over workers, and what came of it.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kvasir_backbone::LayerIndex;
use kvasir_dispatch::{
    Deadlines, KeepOptions, Placement, RemoteExperts, Swarm, SwarmOptions, Verify, Watcher,
};
use kvasir_wire::id::PluginDigest;
use kvasir_wire::ticket::Ticket;
use serde::Serialize;

use crate::choices::{AcceptChoice, VerifyChoice};
use crate::evidence;
use crate::expert_list::ExpertList;
use crate::files;
use crate::key_file;
use crate::local::Local;
use crate::probes::ProbeOptions;
use crate::progress::{LateLine, Spinner};
use crate::settings::Settings;
use crate::watch_store::accepted;

/// Layer numbers beyond this are a typing error; no model has as many.
const LAYER_NUMBER_MAX: u16 = 4095;
/// A ticket file holds one line; anything larger is not one.
const TICKET_FILE_BYTES_MAX: u64 = 64 * 1024;
/// How long workers may take until they hold what they were assigned: gigabytes may have to travel.
const WORKERS_WITHIN: Duration = Duration::from_secs(600);

/// How a backbone finds workers.
#[derive(Debug, Clone)]
pub struct RemoteOptions {
    /// `ws://HOST:PORT` of the hub.
    pub hub: String,
    /// Ticket file.
    pub ticket: PathBuf,
    /// Secret key file that the ticket names.
    pub key: PathBuf,
    /// Workers to wait for before the first prompt.
    pub workers: usize,
    /// Layers whose experts are remote.
    pub layers: LayerSelection,
    /// Experts that are remote, in place of all those of `layers`: a file.
    pub experts: Option<PathBuf>,
    /// How experts are dealt over workers.
    pub placement: PlacementChoice,
    /// Further workers that hold each expert.
    pub copies: usize,
    /// Longest wait for one call; none means from measured latency.
    pub deadline: Option<Duration>,
    /// The loosest class of results that is accepted; none means the settings file's, or exact.
    pub accept: Option<AcceptChoice>,
    /// Which answers are computed again here; none means the settings file's, or the usual ones.
    pub verify: Option<VerifyChoice>,
    /// What is probed, and what is kept for replay; the settings file fills the gaps.
    pub probes: ProbeOptions,
}

/// How experts are dealt over workers, as named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementChoice {
    /// Whole layers in turn.
    Layers,
    /// The experts of every layer in turn.
    Experts,
}

impl PlacementChoice {
    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            PlacementChoice::Layers => "layers",
            PlacementChoice::Experts => "experts",
        }
    }
}

impl From<PlacementChoice> for Placement {
    fn from(choice: PlacementChoice) -> Placement {
        match choice {
            PlacementChoice::Layers => Placement::WholeLayers,
            PlacementChoice::Experts => Placement::Experts,
        }
    }
}

/// `all`, or numbers and ranges: `0,2-3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerSelection {
    /// Every layer.
    All,
    /// These, ascending.
    Some(BTreeSet<u16>),
}

impl FromStr for LayerSelection {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<LayerSelection> {
        if text == "all" {
            return Ok(LayerSelection::All);
        }
        let mut layers = BTreeSet::new();
        for part in text.split(',') {
            let number = |text: &str| -> Result<u16> {
                let number = text.trim().parse::<u16>().with_context(|| {
                    format!("{part:?} is no layer: write all, or numbers and ranges such as 0,2-3")
                })?;
                if number > LAYER_NUMBER_MAX {
                    bail!("layer {number} is beyond {LAYER_NUMBER_MAX}");
                }
                Ok(number)
            };
            match part.split_once('-') {
                None => {
                    layers.insert(number(part)?);
                }
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        bail!("the range {part:?} runs backwards");
                    }
                    layers.extend(first..=last);
                }
            }
        }
        Ok(LayerSelection::Some(layers))
    }
}

impl LayerSelection {
    /// The selected layers of a model that has `layers`, ascending.
    ///
    /// # Errors
    /// Where a selected layer does not exist.
    pub fn of(&self, layers: u32) -> Result<Vec<u16>> {
        match self {
            LayerSelection::All => {
                (0..layers).map(|layer| u16::try_from(layer).context("too many layers")).collect()
            }
            LayerSelection::Some(selected) => {
                if let Some(missing) = selected.iter().find(|layer| u32::from(**layer) >= layers) {
                    bail!(
                        "the model has layers 0 to {}; there is no layer {missing}",
                        layers.saturating_sub(1)
                    );
                }
                Ok(selected.iter().copied().collect())
            }
        }
    }
}

/// Numbers as they are written on the command line, ascending ones as ranges: `0,2-3`.
pub fn ranges(numbers: &[u16]) -> String {
    let runs = numbers.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let words = runs.filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    words.collect::<Vec<String>>().join(",")
}

/// A backbone's membership in a swarm, for one `kvasir run` or `kvasir serve`.
pub struct Membership(Swarm);

impl Membership {
    /// Join the hub and wait until the wanted number of workers hold their experts.
    ///
    /// # Errors
    /// Where a file cannot be read, the hub refuses, or too few workers come.
    pub fn join(settings: &Settings, options: &RemoteOptions, local: &Local) -> Result<Membership> {
        let layers = options.layers.of(local.model.config().layers)?;
        let workers =
            NonZeroUsize::new(options.workers).context("0 workers cannot be waited for; leave out --hub")?;
        if options.copies >= workers.get() {
            bail!(
                "--copies is {}: {workers} workers hold an expert {} times more at most",
                options.copies,
                workers.get() - 1
            );
        }
        let list = options.experts.as_deref().map(ExpertList::read).transpose()?;
        let mut deadlines = Deadlines::default();
        if let Some(deadline) = options.deadline {
            deadlines = Deadlines { floor: deadlines.floor.min(deadline), ceiling: deadline };
        }
        let verify = match local.runner.adapter() {
            None => settings.verify(options.verify).0,
            Some(adapter) => {
                if options.verify.is_some() {
                    tracing::warn!(
                        "no answer is checked: what {adapter} computes is not exact, so it cannot judge others"
                    );
                }
                Verify::NONE
            }
        };
        let probes = settings.probes(&options.probes);
        let keep = KeepOptions {
            probes: probes.folder,
            rows: probes.rows,
            evidence: probes.evidence.map(evidence::into_folder),
        };
        let swarm = Swarm::join(
            Arc::clone(&local.model),
            SwarmOptions {
                placement: options.placement.into(),
                remote_layers: layers.into_iter().map(LayerIndex).collect(),
                copied: list.as_ref().and_then(ExpertList::copied),
                chosen: list.map(|list| list.experts),
                workers,
                copies: options.copies,
                deadlines,
                verify,
                accepts: settings.accept(options.accept).into(),
                plugins: accepted(settings, &local.plugin),
                keep,
                ..SwarmOptions::new(
                    options.hub.as_str(),
                    read_ticket(&options.ticket)?,
                    key_file::load(&options.key)?,
                    PluginDigest(local.plugin.digest().0),
                )
            },
        )?;
        let what = format!("waiting for {workers} workers behind {}", options.hub);
        let (spinner, late) = (Spinner::new(what.clone()), LateLine::new(what));
        swarm.wait_for_workers(workers.get(), WORKERS_WITHIN)?;
        drop((spinner, late));
        Ok(Membership(swarm))
    }

    /// Routed experts, computed by the workers, and here where they fail.
    pub fn experts(&self, local: &Local) -> RemoteExperts {
        self.0.experts(Box::new(local.experts()))
    }

    /// Looks at what the workers do.
    pub fn watcher(&self) -> Watcher {
        self.0.watcher()
    }

    /// Leave in order, with final receipts. `tokens` were generated, and so many passes of probes computed in so much time.
    pub fn finish(self, tokens: usize, (passes, took): (u64, Duration)) -> RemoteReport {
        let statistics = self.0.finish();
        let records = statistics.records.clone();
        RemoteReport {
            replay: ReplayReport {
                probe_passes: passes,
                probe_calls: records.probe_calls,
                probe_seconds: took.as_secs_f64(),
                records: records.written,
                files: records.files,
                evidence: records.evidence,
                dropped: records.dropped,
                failure: records.failure,
            },
            calls: statistics.accepted,
            hedged: statistics.hedges,
            recomputed: statistics.failovers,
            checked: statistics.answers_checked,
            wrong: statistics.answers_wrong,
            round_trips: statistics.round_trips,
            round_trips_per_token: statistics.round_trips_per_token(tokens as u64),
            bytes_up: statistics.bytes_up,
            bytes_down: statistics.bytes_down,
            workers: statistics
                .workers
                .iter()
                .map(|worker| WorkerReport {
                    worker: worker.worker.clone(),
                    session: worker.session.clone(),
                    plugin: worker.plugin.clone(),
                    class: worker.class,
                    experts: worker.experts,
                    calls: worker.accepted,
                    receipted_bytes: worker.receipted_bytes,
                    receipts: worker.receipts,
                    last_failure: worker.last_failure.clone(),
                    ended: worker.ended.clone(),
                })
                .collect(),
        }
    }
}

/// What the workers did.
#[derive(Debug, Serialize)]
pub struct RemoteReport {
    /// Answers of workers that were accepted.
    pub calls: u64,
    /// Parts of calls that another worker was asked for after one was late or failed.
    pub hedged: u64,
    /// Parts of calls that were computed here after all.
    pub recomputed: u64,
    /// Answers that were computed again here before they were used.
    pub checked: u64,
    /// Of these: wrong ones; their workers were asked nothing more.
    pub wrong: u64,
    /// Calls that waited for a remote answer.
    pub round_trips: u64,
    /// ... for each generated token.
    pub round_trips_per_token: f64,
    /// Payload bytes of calls.
    pub bytes_up: u64,
    /// Payload bytes of results.
    pub bytes_down: u64,
    /// Probes, and what was kept for replay.
    pub replay: ReplayReport,
    /// One entry a session.
    pub workers: Vec<WorkerReport>,
}

/// Probes, and what was written down so that it can be computed again.
#[derive(Debug, Default, Serialize)]
pub struct ReplayReport {
    /// Forward passes of probes.
    pub probe_passes: u64,
    /// Messages to workers that were probes; paid for like any other.
    pub probe_calls: u64,
    /// Time that one's own text waited for them.
    pub probe_seconds: f64,
    /// Records written, a probe's once in each of its files.
    pub records: u64,
    /// Files written.
    pub files: u64,
    /// Files of evidence written, each against one worker.
    pub evidence: u64,
    /// Accepted calls without a record: too many bytes waited for a receipt.
    pub dropped: u64,
    /// What went wrong when a file was last not written.
    pub failure: Option<String>,
}

/// What one worker did.
#[derive(Debug, Serialize)]
pub struct WorkerReport {
    /// Its public key.
    pub worker: String,
    /// Its session.
    pub session: String,
    /// The plugin that it computed with; a worker that changed over has a session with each.
    pub plugin: String,
    /// The class of its results: `exact` or `tolerance`.
    pub class: &'static str,
    /// Experts it holds.
    pub experts: usize,
    /// Accepted answers.
    pub calls: u64,
    /// Bytes of its latest receipt.
    pub receipted_bytes: u64,
    /// Receipts that the ledger keeps.
    pub receipts: u64,
    /// What it said when it last refused a call.
    pub last_failure: Option<String>,
    /// Why its session ended, if it did before the end.
    pub ended: Option<String>,
}

impl fmt::Display for RemoteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls answered remotely, {} recomputed here, {:.2} round trips a token",
            self.calls, self.recomputed, self.round_trips_per_token
        )?;
        if self.checked > 0 {
            write!(f, "\n{} answers checked, {} wrong", self.checked, self.wrong)?;
        }
        let replay = &self.replay;
        if replay.probe_passes > 0 || replay.files > 0 {
            write!(
                f,
                "\n{} passes of probes ({} calls) in {:.2} s; {} records in {} files",
                replay.probe_passes, replay.probe_calls, replay.probe_seconds, replay.records, replay.files
            )?;
        }
        if replay.evidence > 0 {
            write!(f, "\n{} files of evidence", replay.evidence)?;
        }
        if replay.dropped > 0 {
            write!(f, "\n{} calls left no record: they came faster than receipts", replay.dropped)?;
        }
        if let Some(failure) = &replay.failure {
            write!(f, "\nrecords or evidence were not written: {failure}")?;
        }
        for worker in &self.workers {
            write!(
                f,
                "\n{} ({}): {} experts, {} calls, {} bytes receipted",
                worker.worker, worker.class, worker.experts, worker.calls, worker.receipted_bytes
            )?;
            if let Some(failure) = &worker.last_failure {
                write!(f, "\n  last refusal: {failure}")?;
            }
        }
        Ok(())
    }
}

/// Read a ticket file.
///
/// # Errors
/// Where it is missing or holds no ticket.
pub fn read_ticket(path: &Path) -> Result<Ticket> {
    let text = files::read_text_bounded(path, TICKET_FILE_BYTES_MAX).with_context(|| {
        format!("cannot read the ticket {} (the network's operator issues one)", path.display())
    })?;
    Ticket::from_text(text.trim()).with_context(|| format!("{} is no ticket", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranges_are_gathered_in_order() {
        let selection: LayerSelection = "3,0-1,1".parse().unwrap();
        assert_eq!(selection.of(4).unwrap(), [0, 1, 3]);
        assert_eq!("all".parse::<LayerSelection>().unwrap().of(3).unwrap(), [0, 1, 2]);
    }

    #[test]
    fn numbers_are_written_as_they_are_read() {
        let cases: [(&[u16], &str); 4] =
            [(&[], ""), (&[3], "3"), (&[0, 2, 3], "0,2-3"), (&[0, 1, 7, 9, 10, 11, 12], "0-1,7,9-12")];
        for (numbers, text) in cases {
            assert_eq!(ranges(numbers), text);
        }
        assert_eq!(ranges(&[u16::MAX]), "65535");
    }

    #[test]
    fn what_is_no_selection_or_not_there_is_refused() {
        for wrong in ["", "x", "1-", "3-1", "0-70000", "4096", "1,,2"] {
            assert!(wrong.parse::<LayerSelection>().is_err(), "{wrong:?}");
        }
        let beyond: LayerSelection = "4".parse().unwrap();
        assert!(beyond.of(4).unwrap_err().to_string().contains("0 to 3"));
    }
}
