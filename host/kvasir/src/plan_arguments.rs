//! The words of `kvasir plan`, and how they become options.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use kvasir_operate::plan::{CheckOptions, DEFAULT_STREAMS, PlanOptions, WorkerFigures};
use kvasir_operate::remote::LayerSelection;

use crate::arguments::{ComputeArguments, PlacementArgument, parse_duration};

#[derive(Args)]
pub struct PlanArguments {
    #[command(flatten)]
    pub compute: ComputeArguments,
    /// Measure for some seconds how long this machine computes, with every expert here.
    #[arg(long, conflicts_with = "measured")]
    pub measure: bool,
    /// What an earlier `kvasir plan --measure --json` printed for this model, instead of measuring.
    #[arg(long, value_name = "FILE")]
    pub measured: Option<PathBuf>,
    /// From here to a worker and back, such as 13ms.
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    pub round_trip: Option<Duration>,
    /// What a worker's link carries each way, such as 100mbit [default: bytes cost no time].
    #[arg(long, value_parser = parse_bandwidth, value_name = "RATE")]
    pub bandwidth: Option<f64>,
    /// Workers [default: 1].
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// Memory for experts that each worker has, in MiB [default: enough].
    #[arg(long, value_name = "MIB")]
    pub worker_memory: Option<u64>,
    /// How fast workers compute, this machine being 1 [default: 1].
    #[arg(long, value_name = "FACTOR")]
    pub worker_speed: Option<f64>,
    /// What a call takes beyond round trip, bytes and computing [default: 300us].
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    pub call_overhead: Option<Duration>,
    /// Workers compute on this machine's processor, as in a trial of everything on one machine.
    #[arg(long)]
    pub same_machine: bool,
    /// What GET /v1/swarm of a running `kvasir serve` answered: a file, or `-` for standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["round_trip", "workers"])]
    pub swarm: Option<PathBuf>,
    /// Layers to judge: `all`, or numbers and ranges such as `0,2-3` [default: the best placement is looked for].
    #[arg(long, value_name = "LAYERS")]
    pub remote_layers: Option<String>,
    /// Experts to judge, in a file as --write makes it.
    #[arg(long, value_name = "FILE", conflicts_with = "remote_layers")]
    pub experts: Option<PathBuf>,
    /// How the experts to judge are dealt over workers.
    #[arg(long, default_value = "layers")]
    pub placement: PlacementArgument,
    /// Further workers that hold each expert; fewer than --workers.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub copies: usize,
    /// Texts at once that are predicted for beside a single one.
    #[arg(long, default_value_t = DEFAULT_STREAMS, value_name = "N")]
    pub streams: usize,
    /// Tokens that each text may have, its prompt included [default: 4096, or the model's].
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Groups of texts of which one computes while others wait for workers, at most, as in `kvasir serve`.
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub max_waves: usize,
    /// Memory that this machine has for all of it, in MiB [default: what is free].
    #[arg(long, value_name = "MIB")]
    pub machine_memory: Option<u64>,
    /// What a placement is for.
    #[arg(long = "for", default_value = "speed", value_name = "PURPOSE")]
    pub purpose: PurposeArgument,
    /// Write the experts that the plan gives away to this file, for `kvasir serve --experts`.
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Compare predictions with what `scripts/bench-fabric` measured, instead of planning.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["swarm", "remote_layers", "experts", "write", "round_trip", "workers"])]
    pub check: Option<PathBuf>,
    /// Cells of this model [default: those that are called as the model or its file].
    #[arg(long, value_name = "NAME", requires = "check")]
    pub cells: Option<String>,
    /// Learn what a call takes, for each round trip, from the cells of one text, which then do not count.
    #[arg(long, requires = "check")]
    pub calibrate: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum PurposeArgument {
    /// Tokens a second: what loses against this machine alone is refused.
    Speed,
    /// Room: what loses is taken all the same.
    Capacity,
}

impl TryFrom<&PlanArguments> for PlanOptions {
    type Error = anyhow::Error;

    fn try_from(arguments: &PlanArguments) -> anyhow::Result<Self> {
        Ok(PlanOptions {
            compute: (&arguments.compute).into(),
            measure: arguments.measure,
            measured: arguments.measured.clone(),
            workers: WorkerFigures {
                round_trip: arguments.round_trip,
                bandwidth: arguments.bandwidth,
                count: arguments.workers,
                memory_mebibytes: arguments.worker_memory,
                speed: arguments.worker_speed,
                overhead: arguments.call_overhead,
                are_here: arguments.same_machine,
                swarm: arguments.swarm.clone(),
            },
            layers: arguments.remote_layers.as_deref().map(str::parse::<LayerSelection>).transpose()?,
            experts: arguments.experts.clone(),
            placement: arguments.placement.into(),
            copies: arguments.copies,
            streams: arguments.streams,
            context: arguments.context,
            most_waves: arguments.max_waves,
            memory_mebibytes: arguments.machine_memory,
            capacity: matches!(arguments.purpose, PurposeArgument::Capacity),
            write: arguments.write.clone(),
            check: arguments.check.clone().map(|file| CheckOptions {
                file,
                cells: arguments.cells.clone(),
                calibrate: arguments.calibrate,
            }),
        })
    }
}

/// `100mbit`, `2.5gbit`, `512kbit`: bits a second, thousands of thousands; in bytes a second.
fn parse_bandwidth(text: &str) -> Result<f64, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or("name a unit: 512kbit, 100mbit, 1gbit")?;
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    let bits = match unit {
        "kbit" => number * 1e3,
        "mbit" => number * 1e6,
        "gbit" => number * 1e9,
        _ => return Err(format!("the unit {unit:?} is not known; use kbit, mbit or gbit")),
    };
    if !(1e3..=1e13).contains(&bits) {
        return Err(format!("{text} is not between 1kbit and 10000gbit"));
    }
    Ok(bits / 8.0)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Command, CommandLine};

    #[test]
    fn bandwidths_have_units_and_bounds() {
        assert_eq!(parse_bandwidth("100mbit"), Ok(12.5e6));
        assert_eq!(parse_bandwidth("0.5gbit"), Ok(62.5e6));
        assert_eq!(parse_bandwidth("8kbit"), Ok(1e3));
        for wrong in ["100", "mbit", "100mb", "0mbit", "-1mbit", "1e9gbit", "NaNmbit", "0.1kbit"] {
            assert!(parse_bandwidth(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_become_options() {
        let words = "kvasir plan --measure --round-trip 13ms --bandwidth 100mbit --workers 2 --remote-layers 1 --for capacity";
        let line = CommandLine::try_parse_from(words.split(' ')).map_err(|error| error.to_string());
        let Ok(CommandLine { command: Command::Plan(arguments), .. }) = line else { panic!("no plan") };
        let Ok(options) = PlanOptions::try_from(&arguments) else { panic!("no options") };
        assert!(options.measure && options.capacity && options.check.is_none());
        assert_eq!(options.workers.round_trip, Some(Duration::from_millis(13)));
        assert_eq!((options.workers.bandwidth, options.workers.count), (Some(12.5e6), Some(2)));
        assert_eq!(options.layers, "1".parse::<LayerSelection>().ok());
        assert_eq!(options.streams, DEFAULT_STREAMS);
    }

    #[test]
    fn words_that_contradict_each_other_are_refused() {
        for wrong in [
            "--measure --measured m.json",
            "--swarm s.json --round-trip 13ms",
            "--remote-layers 1 --experts list",
            "--check t.json --remote-layers 1",
            "--calibrate",
            "--cells atlas",
            "--for fun",
        ] {
            let words = ["kvasir", "plan"].into_iter().chain(wrong.split(' '));
            assert!(CommandLine::try_parse_from(words).is_err(), "{wrong}");
        }
        assert!(CommandLine::try_parse_from(["kvasir", "plan", "--check", "t.json", "--calibrate"]).is_ok());
    }
}
