//! Who the workers are: as somebody says, or as a running swarm tells (`GET /v1/swarm` of `kvasir serve`).

use std::io::{Read, stdin};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kvasir_serve::api::SwarmReport;
use kvasir_serve::prediction::{Computing, Shape, Worker};

use crate::files;
use crate::memory::MEBIBYTE;

/// Workers that are planned with at most.
pub const MOST_WORKERS: usize = 64;
/// A picture of a swarm may not be larger.
const REPORT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// What is said about workers; all of them are alike unless a swarm tells who they are.
#[derive(Debug, Clone, Default)]
pub struct WorkerFigures {
    /// From here to a worker and back.
    pub round_trip: Option<Duration>,
    /// Bytes a second, each way; nothing where they cost no time.
    pub bandwidth: Option<f64>,
    /// How many there are; nothing means one.
    pub count: Option<usize>,
    /// MiB for experts that each has; nothing where it is enough.
    pub memory_mebibytes: Option<u64>,
    /// How fast they compute, this machine being 1; nothing means as fast.
    pub speed: Option<f64>,
    /// What a call takes beyond round trip, bytes and computing; nothing means the usual.
    pub overhead: Option<Duration>,
    /// Whether they compute on this machine's processor.
    pub are_here: bool,
    /// What `GET /v1/swarm` said: a file, or `-` for standard input.
    pub swarm: Option<PathBuf>,
}

/// The workers to plan with.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Described {
    pub(super) workers: Vec<Worker>,
    /// Bytes for experts that each has.
    pub(super) memory: Vec<Option<u64>>,
    /// What each holds already: a layer, and how many of its experts.
    pub(super) holds: Vec<Vec<(u16, u32)>>,
    /// What they are called; empty where they have no names.
    pub(super) names: Vec<String>,
    /// Who was left out, and why.
    pub(super) left_out: Vec<String>,
}

impl WorkerFigures {
    /// Checks what was said by itself.
    ///
    /// # Errors
    /// Where a number is out of bounds.
    pub fn check(&self) -> Result<()> {
        let count = self.count.unwrap_or(1);
        if !(1..=MOST_WORKERS).contains(&count) {
            bail!("--workers is {count}; 1 to {MOST_WORKERS} are allowed");
        }
        let speed = self.speed.unwrap_or(1.0);
        if !(0.001..=1000.0).contains(&speed) {
            bail!("--worker-speed is {speed}; 0.001 to 1000 are allowed, this machine being 1");
        }
        Ok(())
    }

    /// One worker as it is said that they are, `round_trip` away.
    pub(super) fn worker(&self, round_trip: f64) -> Worker {
        let rate = self.bandwidth.unwrap_or(f64::INFINITY);
        Worker {
            up: rate,
            down: rate,
            overhead: self.overhead.map_or(Worker::OVERHEAD, |overhead| overhead.as_secs_f64()),
            speed: self.speed.unwrap_or(1.0),
            is_here: self.are_here,
            ..Worker::at(round_trip)
        }
    }

    /// The workers. `computing` and `shape` say what of a measured wait a worker computed in.
    ///
    /// # Errors
    /// Where the picture of the swarm cannot be read, or nobody in it can be planned with.
    pub(super) fn describe(&self, computing: &Computing, shape: Shape) -> Result<Described> {
        let memory = self.memory_mebibytes.map(|mebibytes| mebibytes.saturating_mul(MEBIBYTE));
        if let Some(path) = &self.swarm {
            let report = read(path)?;
            let found = self.of_swarm(&report, computing, shape, memory);
            if found.workers.is_empty() {
                let why = if found.left_out.is_empty() {
                    "nobody is there".to_owned()
                } else {
                    found.left_out.join("; ")
                };
                bail!("no worker of the swarm can be planned with: {why}");
            }
            return Ok(found);
        }
        let Some(round_trip) = self.round_trip else { return Ok(Described::default()) };
        let count = self.count.unwrap_or(1);
        Ok(Described {
            workers: vec![self.worker(round_trip.as_secs_f64()); count],
            memory: vec![memory; count],
            ..Described::default()
        })
    }

    /// Those of a swarm's workers that have answered, the nearest first.
    fn of_swarm(
        &self,
        report: &SwarmReport,
        computing: &Computing,
        shape: Shape,
        memory: Option<u64>,
    ) -> Described {
        let mut found = Vec::new();
        let mut left_out = Vec::new();
        for worker in &report.workers {
            let name: String = worker.name.chars().take(12).collect();
            if !matches!(worker.state.as_str(), "serving" | "late" | "away" | "joining") {
                left_out.push(format!("{name} is {}", worker.state));
                continue;
            }
            let Some(wait) = worker.round_trip_ms.filter(|wait| wait.is_finite() && *wait >= 0.0) else {
                left_out.push(format!("{name} has answered no call yet"));
                continue;
            };
            // What was measured ends with the answer: the worker's computing is in it, and so is every program on the way.
            let rows = (worker.rows as f64 / worker.calls.max(1) as f64).max(1.0);
            let speed = self.speed.unwrap_or(1.0);
            let computed = computing.experts.at(rows) / shape.layers.max(1) as f64 / speed;
            let round_trip = (wait / 1e3 - computed).max(0.0);
            let told = Worker { overhead: 0.0, ..self.worker(round_trip) };
            let holds =
                worker.holds.iter().filter_map(|held| Some((u16::try_from(held.layer).ok()?, held.experts)));
            found.push((told, holds.collect::<Vec<_>>(), name));
        }
        found.sort_by(|one, other| one.0.round_trip.total_cmp(&other.0.round_trip));
        for (_, _, name) in found.drain(found.len().min(MOST_WORKERS)..) {
            left_out.push(format!("{name} is beyond the {MOST_WORKERS} that are planned with"));
        }
        let memory = vec![memory; found.len()];
        let mut described = Described { memory, left_out, ..Described::default() };
        for (worker, holds, name) in found {
            described.workers.push(worker);
            described.holds.push(holds);
            described.names.push(name);
        }
        described
    }
}

fn read(path: &Path) -> Result<SwarmReport> {
    let whose = || format!("the swarm's report {}", path.display());
    let text = if path.as_os_str() == "-" {
        let mut text = String::new();
        stdin()
            .take(REPORT_BYTES_MAX + 1)
            .read_to_string(&mut text)
            .context("cannot read the swarm's report from standard input")?;
        if text.len() as u64 > REPORT_BYTES_MAX {
            bail!("the swarm's report on standard input is longer than {REPORT_BYTES_MAX} bytes");
        }
        text
    } else {
        files::read_text_bounded(path, REPORT_BYTES_MAX)
            .with_context(|| format!("cannot read {}", whose()))?
    };
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not what GET /v1/swarm of kvasir serve answers", whose()))
}

#[cfg(test)]
mod tests {
    use kvasir_serve::api::{Held, SwarmWorker};
    use kvasir_serve::prediction::Curve;

    use super::*;

    const SHAPE: Shape = Shape { layers: 4, hidden: 256, experts: 16, picks: 4, row_bytes: 260 };

    fn computing() -> Computing {
        let curve = |seconds: f64| Curve::new([(1, seconds), (64, seconds)]).unwrap();
        Computing { pass: curve(0.010), experts: curve(0.008), shared: curve(0.0) }
    }

    fn worker(name: &str, state: &str, round_trip_ms: Option<f64>) -> SwarmWorker {
        SwarmWorker {
            name: name.to_owned(),
            state: state.to_owned(),
            round_trip_ms,
            holds: vec![Held { layer: 2, experts: 16 }],
            calls: 10,
            rows: 80,
            ..SwarmWorker::default()
        }
    }

    fn of(workers: Vec<SwarmWorker>, figures: &WorkerFigures) -> Result<Described> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("swarm.json");
        let report = SwarmReport { workers, ..SwarmReport::default() };
        std::fs::write(&path, serde_json::json!(report).to_string()).unwrap();
        WorkerFigures { swarm: Some(path), ..figures.clone() }.describe(&computing(), SHAPE)
    }

    #[test]
    fn workers_are_alike_where_somebody_says_what_they_are() {
        let figures = WorkerFigures {
            round_trip: Some(Duration::from_millis(13)),
            bandwidth: Some(12.5e6),
            count: Some(2),
            memory_mebibytes: Some(3),
            are_here: true,
            ..WorkerFigures::default()
        };
        figures.check().unwrap();
        let found = figures.describe(&computing(), SHAPE).unwrap();
        assert_eq!(found.workers.len(), 2);
        let one = found.workers[0];
        assert_eq!((one.round_trip, one.up, one.overhead), (0.013, 12.5e6, Worker::OVERHEAD));
        assert!(one.is_here);
        assert_eq!(found.memory, [Some(3 * MEBIBYTE); 2]);
        let nobody = WorkerFigures::default().describe(&computing(), SHAPE).unwrap();
        assert_eq!(nobody, Described::default());
    }

    #[test]
    fn of_a_swarm_those_count_that_are_there_less_what_they_computed() {
        let workers = vec![
            worker("far", "serving", Some(52.0)),
            worker("near", "late", Some(15.0)),
            worker("new", "serving", None),
            worker("liar", "quarantined", Some(1.0)),
        ];
        let found = of(workers, &WorkerFigures::default()).unwrap();
        assert_eq!(found.names, ["near", "far"]);
        // A layer's experts take 2 ms of it.
        assert!((found.workers[0].round_trip - 0.013).abs() < 1e-9, "{found:?}");
        assert_eq!(found.workers[0].overhead, 0.0);
        assert_eq!(found.holds[0], [(2, 16)]);
        assert_eq!(found.left_out.len(), 2, "{found:?}");
    }

    #[test]
    fn a_swarm_of_nobody_and_what_is_no_swarm_are_refused() {
        let error = of(vec![worker("gone", "gone", Some(1.0))], &WorkerFigures::default()).unwrap_err();
        assert!(error.to_string().contains("gone is gone"), "{error}");
        assert!(of(Vec::new(), &WorkerFigures::default()).is_err());
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x.json");
        std::fs::write(&path, "[]").unwrap();
        assert!(format!("{:#}", read(&path).unwrap_err()).contains("/v1/swarm"));
        std::fs::write(&path, vec![b' '; REPORT_BYTES_MAX as usize + 1]).unwrap();
        assert!(format!("{:#}", read(&path).unwrap_err()).contains("4194304"));
    }

    #[test]
    fn figures_out_of_bounds_are_refused_by_name() {
        let none = WorkerFigures::default;
        for count in [0, MOST_WORKERS + 1] {
            let error = WorkerFigures { count: Some(count), ..none() }.check().unwrap_err().to_string();
            assert!(error.contains("--workers"), "{error}");
        }
        for speed in [0.0, -1.0, f64::NAN, 1e9] {
            let error = WorkerFigures { speed: Some(speed), ..none() }.check().unwrap_err().to_string();
            assert!(error.contains("--worker-speed"), "{error}");
        }
        let many = (0..MOST_WORKERS + 3).map(|at| worker(&format!("w{at}"), "serving", Some(at as f64)));
        let found = of(many.collect(), &none()).unwrap();
        assert_eq!((found.workers.len(), found.left_out.len()), (MOST_WORKERS, 3));
    }
}
