//! Predictions against what then happened: the cells that `scripts/bench-fabric` measured.
//!
//! A cell is one run: so many remote layers, a round trip, so many texts. What this machine computes alone is taken from the
//! cells themselves, which hold the local rate of the same number of texts; the part of it that experts are comes from a
//! measurement of the model, or else from the bytes that a token reads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kvasir_serve::prediction::{Computing, Curve, Footprint, Prediction, RemoteLayer, Scene, Shape, predict};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::measure::median;
use super::workers::{MOST_WORKERS, WorkerFigures};
use crate::files;

/// A table may not be larger.
const TABLE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Cells of a table at most.
const CELLS_MAX: usize = 10_000;
/// Texts of a cell at most.
const STREAMS_MAX: usize = 65_536;
/// What predictions are to keep: the median of the errors, and the part of the cells that are within a bound of them.
pub(super) const MEDIAN_AIM: f64 = 0.10;
pub(super) const WITHIN: f64 = 0.15;
pub(super) const WITHIN_AIM: f64 = 0.9;

/// What `kvasir plan --check` may be told beside what a plan may be.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// The table.
    pub file: PathBuf,
    /// Cells of this model; nothing means those whose model is the file's.
    pub cells: Option<String>,
    /// Learn what a call takes beyond round trip, bytes and computing, for each round trip, from the cells of one text, which
    /// then count for nothing.
    pub calibrate: bool,
}

/// What `scripts/bench-fabric` prints, as far as it is read here.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Table {
    #[serde(default)]
    pub(super) machine: Value,
    pub(super) cells: Vec<Cell>,
}

/// One run.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Cell {
    pub(super) model: String,
    pub(super) remote_layers: usize,
    pub(super) layers: usize,
    pub(super) round_trip_ms: f64,
    /// The link's own, where it was measured.
    #[serde(default)]
    pub(super) link_round_trip_ms: Option<f64>,
    pub(super) streams: usize,
    pub(super) workers: usize,
    pub(super) tokens_per_second: f64,
    pub(super) local_tokens_per_second: f64,
}

/// A cell beside its prediction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Compared {
    pub(super) remote_layers: usize,
    pub(super) round_trip_ms: f64,
    pub(super) streams: usize,
    pub(super) workers: usize,
    pub(super) waves: usize,
    pub(super) measured: f64,
    pub(super) predicted: f64,
    /// Predicted over measured, less one.
    pub(super) error: f64,
    pub(super) bound: String,
    /// Whether the call's overhead was learnt from it.
    pub(super) calibrates: bool,
}

/// All of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Comparison {
    pub(super) cells: Vec<Compared>,
    /// Seconds that a call is taken to take beyond round trip, bytes and computing; where it was learnt, the median.
    pub(super) overhead: f64,
    /// Cells of other models: their names, and how many.
    pub(super) others: BTreeMap<String, usize>,
}

impl Comparison {
    /// The cells that count.
    fn counted(&self) -> impl Iterator<Item = &Compared> {
        self.cells.iter().filter(|cell| !cell.calibrates)
    }

    /// How many count.
    pub(super) fn count(&self) -> usize {
        self.counted().count()
    }

    /// The median of the errors, whatever their sign.
    pub(super) fn median_error(&self) -> Option<f64> {
        median(&mut self.counted().map(|cell| cell.error.abs()).collect::<Vec<f64>>())
    }

    /// The part of the cells whose error is at most [`WITHIN`].
    pub(super) fn share_within(&self) -> Option<f64> {
        let (count, within) =
            (self.count(), self.counted().filter(|cell| cell.error.abs() <= WITHIN).count());
        if count > 0 { Some(within as f64 / count as f64) } else { None }
    }
}

/// The model that cells are compared with.
pub(super) struct Subject<'a> {
    /// Names by which cells may call it.
    pub(super) names: Vec<String>,
    pub(super) shape: Shape,
    pub(super) footprint: &'a Footprint,
    /// What a measurement says, where there is one.
    pub(super) measured: Option<&'a Computing>,
    pub(super) cores: usize,
    pub(super) most_waves: usize,
}

/// Reads a table.
///
/// # Errors
/// Where it is missing, too large, no table, or holds what cannot be.
pub(super) fn read(path: &Path) -> Result<Table> {
    let whose = || format!("the table {}", path.display());
    let text = files::read_text_bounded(path, TABLE_BYTES_MAX)
        .with_context(|| format!("cannot read {}", whose()))?;
    let table: Table = serde_json::from_str(&text)
        .with_context(|| format!("{} is not what scripts/bench-fabric prints", whose()))?;
    if table.cells.len() > CELLS_MAX {
        bail!("{} has {} cells; {CELLS_MAX} are read", whose(), table.cells.len());
    }
    for (number, cell) in table.cells.iter().enumerate() {
        cell.check().with_context(|| format!("cell {} of {}", number + 1, whose()))?;
    }
    Ok(table)
}

impl Cell {
    /// Seconds.
    fn round_trip(&self) -> f64 {
        self.link_round_trip_ms.unwrap_or(self.round_trip_ms) / 1e3
    }

    fn check(&self) -> Result<()> {
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        if !is_rate(self.tokens_per_second) || !is_rate(self.local_tokens_per_second) {
            bail!("tokens_per_second and local_tokens_per_second have to be more than 0");
        }
        let trips =
            [("round_trip_ms", Some(self.round_trip_ms)), ("link_round_trip_ms", self.link_round_trip_ms)];
        for (name, trip) in trips {
            if trip.is_some_and(|trip| !(0.0..=3_600_000.0).contains(&trip)) {
                bail!("{name} is {}; 0 to an hour are allowed", trip.unwrap_or_default());
            }
        }
        if !(1..=STREAMS_MAX).contains(&self.streams) {
            bail!("streams is {}; 1 to {STREAMS_MAX} are allowed", self.streams);
        }
        if self.remote_layers > self.layers {
            bail!("{} of {} layers are remote", self.remote_layers, self.layers);
        }
        if !(usize::from(self.remote_layers > 0)..=MOST_WORKERS).contains(&self.workers) {
            bail!("workers is {}; 1 to {MOST_WORKERS} are allowed", self.workers);
        }
        Ok(())
    }
}

/// Compares the cells of one model with what is predicted for them. Cells without a remote layer are left out: there is nothing
/// to predict.
///
/// # Errors
/// Where no cell is of the model.
pub(super) fn compare(
    table: &Table,
    subject: &Subject<'_>,
    figures: &WorkerFigures,
    options: &CheckOptions,
) -> Result<Comparison> {
    let is_its = |cell: &Cell| match &options.cells {
        Some(name) => cell.model == *name,
        None => subject.is_called(&cell.model),
    };
    let mut others: BTreeMap<String, usize> = BTreeMap::new();
    let mut cells = Vec::new();
    for cell in &table.cells {
        if is_its(cell) && cell.layers == subject.shape.layers {
            cells.push(cell);
        } else {
            *others.entry(format!("{} with {} layers", cell.model, cell.layers)).or_default() += 1;
        }
    }
    let remote: Vec<&Cell> = cells.iter().copied().filter(|cell| cell.remote_layers > 0).collect();
    if remote.is_empty() {
        let seen: Vec<&str> = others.keys().map(String::as_str).collect();
        bail!(
            "no cell with a remote layer is of {} with {} layers; the table has {}: name the model's file with --model, or \
             its cells with --cells",
            subject.names.join(" or "),
            subject.shape.layers,
            if seen.is_empty() { "no others".to_owned() } else { seen.join(", ") }
        );
    }
    let computing = subject.computing(&cells)?;
    let figures = WorkerFigures { are_here: true, ..figures.clone() };
    let calibrates = |cell: &Cell| options.calibrate && cell.streams == 1;
    let learnt = if options.calibrate {
        let learnt = Learnt::of(subject, &computing, &figures, &remote);
        Some(learnt.context("--calibrate learns from cells of one text, and there is none")?)
    } else {
        None
    };
    let compared = remote.iter().map(|cell| {
        let figures = match &learnt {
            Some(learnt) => learnt.figures(&figures, cell.round_trip_ms),
            None => figures.clone(),
        };
        let prediction = subject.predict(&computing, &figures, cell);
        Compared {
            remote_layers: cell.remote_layers,
            round_trip_ms: cell.round_trip_ms,
            streams: cell.streams,
            workers: cell.workers,
            waves: prediction.waves,
            measured: cell.tokens_per_second,
            predicted: prediction.tokens_per_second,
            error: prediction.tokens_per_second / cell.tokens_per_second - 1.0,
            bound: prediction.bound.words(),
            calibrates: calibrates(cell),
        }
    });
    let cells: Vec<Compared> = compared.collect();
    let overhead = learnt.map_or(figures.worker(0.0).overhead, |learnt| learnt.median);
    Ok(Comparison { cells, overhead, others })
}

/// What the cells of one text say that a call takes beyond round trip, bytes and computing, in seconds.
struct Learnt {
    /// Medians over the cells of a round trip, in milliseconds: how late a link is has to do with how long it is.
    by_round_trip: Vec<(f64, f64)>,
    /// The median over all of them.
    median: f64,
}

impl Learnt {
    /// Nothing where no cell is of one text.
    fn of(
        subject: &Subject<'_>,
        computing: &Computing,
        figures: &WorkerFigures,
        cells: &[&Cell],
    ) -> Option<Learnt> {
        let nothing = WorkerFigures { overhead: Some(Duration::ZERO), ..figures.clone() };
        let alone = cells.iter().filter(|cell| cell.streams == 1);
        let mut found: Vec<(f64, f64)> = alone
            .map(|cell| {
                let step = subject.predict(computing, &nothing, cell).step;
                let beyond = (1.0 / cell.tokens_per_second - step) / cell.remote_layers as f64;
                (cell.round_trip_ms, beyond.clamp(0.0, 1.0))
            })
            .collect();
        found.sort_by(|one, other| one.0.total_cmp(&other.0));
        let middle =
            |cells: &[(f64, f64)]| median(&mut cells.iter().map(|cell| cell.1).collect::<Vec<f64>>());
        let of_one_trip = found.chunk_by(|one, other| one.0 == other.0);
        Some(Learnt {
            by_round_trip: of_one_trip.filter_map(|cells| Some((cells.first()?.0, middle(cells)?))).collect(),
            median: middle(&found)?,
        })
    }

    /// The figures with what a call takes over a link of so many milliseconds.
    fn figures(&self, figures: &WorkerFigures, round_trip_ms: f64) -> WorkerFigures {
        let its = self.by_round_trip.iter().find(|(trip, _)| *trip == round_trip_ms);
        let overhead = its.map_or(self.median, |(_, overhead)| *overhead);
        WorkerFigures { overhead: Some(Duration::from_secs_f64(overhead)), ..figures.clone() }
    }
}

impl Subject<'_> {
    /// Whether a cell's model is this one: by its name, or by how its file's name begins.
    fn is_called(&self, model: &str) -> bool {
        let asked = model.to_lowercase();
        !asked.is_empty() && self.names.iter().any(|name| name.to_lowercase().starts_with(&asked))
    }

    fn predict(&self, computing: &Computing, figures: &WorkerFigures, cell: &Cell) -> Prediction {
        let workers = vec![figures.worker(cell.round_trip()); cell.workers];
        let layer = |turn: usize| RemoteLayer { share: 1.0, workers: vec![turn % cell.workers.max(1)] };
        let remote: Vec<RemoteLayer> = (0..cell.remote_layers).map(layer).collect();
        let scene = Scene {
            computing,
            cores: self.cores,
            shape: self.shape,
            workers: &workers,
            remote: &remote,
            most_waves: self.most_waves,
        };
        predict(&scene, cell.streams)
    }

    /// What the machine of the cells computes alone: the local rates of the cells, and of them the parts that experts are.
    fn computing(&self, cells: &[&Cell]) -> Result<Computing> {
        let mut by_streams: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for cell in cells {
            let seconds = cell.streams as f64 / cell.local_tokens_per_second;
            by_streams.entry(cell.streams).or_default().push(seconds);
        }
        let points: Vec<(usize, f64)> = by_streams
            .into_iter()
            .filter_map(|(streams, mut seconds)| Some((streams, median(&mut seconds)?)))
            .collect();
        let estimated = self.footprint.shares(self.shape.picks);
        let shares = |rows: f64| match self.measured {
            Some(measured) if measured.pass.at(rows) > 0.0 => {
                let pass = measured.pass.at(rows);
                (measured.experts.at(rows) / pass, measured.shared.at(rows) / pass)
            }
            _ => estimated,
        };
        let curve = |part: &dyn Fn(f64) -> f64| {
            let points = points.iter().map(|&(streams, seconds)| (streams, seconds * part(streams as f64)));
            Curve::new(points).context("the table has no cell of this model")
        };
        Ok(Computing {
            pass: curve(&|_| 1.0)?,
            experts: curve(&|rows| shares(rows).0)?,
            shared: curve(&|rows| shares(rows).1)?,
        })
    }
}

#[cfg(test)]
mod tests;
