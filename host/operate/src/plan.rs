//! `kvasir plan`: how fast texts would be written with some experts elsewhere, what would go where and why; and whether
//! memory holds it. The prediction itself is `kvasir_serve::prediction`; here figures are gathered and results told.

mod check;
mod measure;
mod report;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use kvasir_model::Model;
use kvasir_serve::prediction::{Footprint, Kind, Needs, Plan, Planned, Purpose, Question, Shape, plan};
use kvasir_serve::scheduler::WaveOptions;

use crate::expert_list::ExpertList;
use crate::files;
use crate::local::{ComputeOptions, Local, open_model, threads};
use crate::memory::{MEBIBYTE, expert_bytes};
use crate::remote::{LayerSelection, PlacementChoice};
use crate::settings::Settings;

pub use check::CheckOptions;
pub use measure::{MeasuredPass, Measurement};
pub use workers::{MOST_WORKERS, WorkerFigures};

/// Texts at once where nobody says.
pub const DEFAULT_STREAMS: usize = 8;
/// Tokens of each where nobody says, and the model's context is not shorter.
pub const DEFAULT_CONTEXT: usize = 4096;

/// What `kvasir plan` may be told.
#[derive(Debug, Clone)]
pub struct PlanOptions {
    /// Model, kernel, threads.
    pub compute: ComputeOptions,
    /// Measure how long this machine computes.
    pub measure: bool,
    /// A measurement of before: a file.
    pub measured: Option<PathBuf>,
    /// Who the workers are.
    pub workers: WorkerFigures,
    /// Layers to judge; nothing looks for the best placement.
    pub layers: Option<LayerSelection>,
    /// Experts to judge, one by one: a file.
    pub experts: Option<PathBuf>,
    /// How experts are dealt over workers.
    pub placement: PlacementChoice,
    /// Further workers that hold each expert.
    pub copies: usize,
    /// Texts at once.
    pub streams: usize,
    /// Tokens of each, its prompt included; nothing means the usual.
    pub context: Option<usize>,
    /// Passes under way at most.
    pub most_waves: usize,
    /// MiB that this machine has; nothing means what is free.
    pub memory_mebibytes: Option<u64>,
    /// Whether room is the point.
    pub capacity: bool,
    /// File for the experts of the plan.
    pub write: Option<PathBuf>,
    /// Compare predictions with what was measured, in place of planning.
    pub check: Option<CheckOptions>,
}

/// `kvasir plan`. Exit code 1 where a placement is refused.
///
/// # Errors
/// Where a figure is missing or out of bounds, a file cannot be used, or a measurement fails.
pub fn command(settings: &Settings, options: &PlanOptions, json: bool) -> Result<ExitCode> {
    let within = Bounds::of(options)?;
    let path = settings.model(options.compute.model.as_deref())?;
    let model = open_model(&path)?;
    let footprint = Footprint::of(&model).context("cannot size the model's experts")?;
    let shape = Shape::of(&model).context("cannot size the model's experts")?;
    let cores = threads(settings, options.compute.threads)?.get();
    let context = context(&model, options.context)?;
    if options.check.is_none()
        && let Some(refusal) = beyond_any_placement(&footprint, &within, options.streams, context)
    {
        let told = report::Refused { model: &model, footprint: &footprint, context, options, refusal };
        report::refused(&told, json)?;
        return Ok(ExitCode::FAILURE);
    }
    let asked = asked(options, &model, &footprint)?;
    let measured = measured(settings, options, &model)?;
    if let Some(check) = &options.check {
        let computing = measured.as_ref().map(Measurement::computing).transpose()?;
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let subject = check::Subject {
            names: std::iter::once(model.name().to_owned()).chain(stem).collect(),
            shape,
            footprint: &footprint,
            measured: computing.as_ref(),
            cores,
            most_waves: within.most_waves,
        };
        let table = check::read(&check.file)?;
        let compared = check::compare(&table, &subject, &options.workers, check)?;
        report::compared(&table, &compared, measured.is_some(), json)?;
        return Ok(ExitCode::SUCCESS);
    }

    let Some(measured) = measured else {
        bail!(
            "how long this machine computes is not known: add --measure, or --measured FILE with what an earlier \
             kvasir plan --measure --json printed"
        );
    };
    let computing = measured.computing()?;
    let described = options.workers.describe(&computing, shape)?;
    let picks = measured.picks().filter(|picks| picks.fit(&footprint));
    if asked.is_some() && described.workers.is_empty() {
        bail!("nobody is there to hold remote experts: say who with --round-trip 13ms, or --swarm FILE");
    }
    if options.copies > 0 && options.copies >= described.workers.len() {
        bail!(
            "--copies is {}: {} workers hold an expert {} times more at most",
            options.copies,
            described.workers.len(),
            described.workers.len().saturating_sub(1)
        );
    }
    let question = Question {
        computing: &computing,
        cores,
        shape,
        footprint: &footprint,
        picks: picks.as_ref(),
        workers: &described.workers,
        worker_memory: &described.memory,
        holds: &described.holds,
        memory: within.memory,
        texts: options.streams,
        context,
        most_waves: within.most_waves,
        prompt_rows: WaveOptions::PREFILL_ROWS,
        copies: options.copies,
        copied: asked.as_ref().and_then(|asked| asked.copied.as_ref()),
        purpose: if options.capacity { Purpose::Capacity } else { Purpose::Speed },
        asked: asked.as_ref().map(|asked| (asked.kind, asked.experts.as_slice())),
    };
    let found = plan(&question);
    let chosen = chosen(&found, asked.is_some());
    let is_refused = chosen.is_none_or(|chosen| chosen.verdict.is_refusal());
    let told = report::Told {
        model: &model,
        path: &path,
        options,
        context,
        footprint: &footprint,
        measured: &measured,
        described: &described,
        memory: within.memory,
        found: &found,
        chosen,
    };
    report::plan(&told, json)?;
    if let (Some(path), Some(chosen), false) = (&options.write, chosen, is_refused) {
        write(path, chosen)?;
    }
    Ok(if is_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Figures of the command line within their bounds.
struct Bounds {
    most_waves: usize,
    memory: u64,
}

impl Bounds {
    fn of(options: &PlanOptions) -> Result<Bounds> {
        options.workers.check()?;
        if !(1..=WaveOptions::MOST_TEXTS).contains(&options.streams) {
            bail!("--streams is {}; 1 to {} are allowed", options.streams, WaveOptions::MOST_TEXTS);
        }
        if !(1..=WaveOptions::MOST_WAVES).contains(&options.most_waves) {
            bail!("--max-waves is {}; 1 to {} are allowed", options.most_waves, WaveOptions::MOST_WAVES);
        }
        let memory = match options.memory_mebibytes {
            Some(mebibytes) => mebibytes.saturating_mul(MEBIBYTE),
            // Half of what is free, twice.
            None => expert_bytes(None).saturating_mul(2),
        };
        Ok(Bounds { most_waves: options.most_waves, memory })
    }
}

/// Tokens that each text may have.
fn context(model: &Model, named: Option<usize>) -> Result<usize> {
    let longest = model.config().context_length as usize;
    match named {
        Some(0) => bail!("a context of 0 tokens holds nothing"),
        Some(tokens) if tokens > longest => {
            bail!("--context is {tokens}; the model was made for {longest} tokens")
        }
        Some(tokens) => Ok(tokens),
        None => Ok(DEFAULT_CONTEXT.min(longest)),
    }
}

/// What would be needed even with every expert elsewhere, where memory does not hold that.
fn beyond_any_placement(
    footprint: &Footprint,
    within: &Bounds,
    streams: usize,
    context: usize,
) -> Option<(Needs, u64)> {
    let needs = footprint.needs(footprint.all_experts(), streams, context, (1, WaveOptions::PREFILL_ROWS));
    (needs.total() > within.memory).then_some((needs, within.memory))
}

fn measured(settings: &Settings, options: &PlanOptions, model: &Model) -> Result<Option<Measurement>> {
    if let Some(path) = &options.measured {
        return Measurement::read(path, model).map(Some);
    }
    if !options.measure {
        return Ok(None);
    }
    let local = Local::open(settings, &options.compute)?;
    measure::measure(&local, options.streams).map(Some)
}

/// The placement to judge.
#[derive(Debug, PartialEq)]
struct Asked {
    kind: Kind,
    experts: Vec<(u16, u16)>,
    /// Those that copies are made of, where not of all.
    copied: Option<BTreeSet<(u16, u16)>>,
}

/// What is asked about, where the model has it.
fn asked(options: &PlanOptions, model: &Model, footprint: &Footprint) -> Result<Option<Asked>> {
    let kind = match options.placement {
        PlacementChoice::Layers => Kind::Layers,
        PlacementChoice::Experts => Kind::Dealt,
    };
    if let Some(path) = &options.experts {
        let list = ExpertList::read(path)?;
        let copied = list.copied();
        let experts: Vec<(u16, u16)> = list.experts.into_iter().collect();
        let is_there = |&(layer, expert): &(u16, u16)| {
            footprint.experts.get(usize::from(layer)).is_some_and(|layer| usize::from(expert) < layer.len())
        };
        if let Some((layer, expert)) = experts.iter().find(|expert| !is_there(expert)) {
            bail!("{}: the model has no expert {expert} in a layer {layer}", path.display());
        }
        return Ok(Some(Asked { kind, experts, copied }));
    }
    let Some(layers) = &options.layers else { return Ok(None) };
    let layers = layers.of(model.config().layers)?;
    let of_layer = |layer: u16| {
        let count = footprint.experts.get(usize::from(layer)).map_or(0, Vec::len);
        (0..count).map(move |expert| (layer, expert as u16))
    };
    Ok(Some(Asked { kind, experts: layers.into_iter().flat_map(of_layer).collect(), copied: None }))
}

/// The placement that was asked about, or the best that was found.
fn chosen(found: &Plan, was_asked: bool) -> Option<&Planned> {
    if was_asked { found.others.first() } else { found.best() }
}

/// Writes the experts of a placement as `kvasir run` and `kvasir serve` read them.
fn write(path: &Path, chosen: &Planned) -> Result<()> {
    if chosen.experts.is_empty() {
        bail!("nothing is given away by the plan, so {} is not written", path.display());
    }
    let mut list = ExpertList { experts: chosen.experts.iter().copied().collect(), ..ExpertList::default() };
    if chosen.copies_some {
        let mut times: BTreeMap<(u16, u16), usize> = BTreeMap::new();
        for expert in chosen.held.iter().flat_map(|held| &held.experts) {
            *times.entry(*expert).or_default() += 1;
        }
        list.once = times.into_iter().filter(|(_, times)| *times == 1).map(|(expert, _)| expert).collect();
    }
    files::write_whole(path, list.text().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> PlanOptions {
        PlanOptions {
            compute: ComputeOptions::default(),
            measure: false,
            measured: None,
            workers: WorkerFigures::default(),
            layers: None,
            experts: None,
            placement: PlacementChoice::Layers,
            copies: 0,
            streams: DEFAULT_STREAMS,
            context: None,
            most_waves: WaveOptions::WAVES,
            memory_mebibytes: Some(1024),
            capacity: false,
            write: None,
            check: None,
        }
    }

    fn tiny() -> Model {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tiny/tiny-q8_0.gguf");
        Model::open(&path).unwrap()
    }

    #[test]
    fn figures_out_of_bounds_are_refused_by_name() {
        assert_eq!(Bounds::of(&options()).unwrap().memory, 1 << 30);
        let refused = |options: PlanOptions| Bounds::of(&options).err().unwrap().to_string();
        for streams in [0, WaveOptions::MOST_TEXTS + 1] {
            assert!(refused(PlanOptions { streams, ..options() }).contains("--streams"));
        }
        assert!(refused(PlanOptions { most_waves: 0, ..options() }).contains("--max-waves"));
        let workers = WorkerFigures { count: Some(0), ..WorkerFigures::default() };
        assert!(refused(PlanOptions { workers, ..options() }).contains("--workers"));
    }

    #[test]
    fn a_context_beyond_the_models_is_refused() {
        let model = tiny();
        let longest = model.config().context_length as usize;
        assert_eq!(context(&model, None).unwrap(), DEFAULT_CONTEXT.min(longest));
        assert_eq!(context(&model, Some(longest)).unwrap(), longest);
        assert!(context(&model, Some(longest + 1)).unwrap_err().to_string().contains("--context"));
        assert!(context(&model, Some(0)).is_err());
    }

    #[test]
    fn layers_and_lists_become_experts_that_are_there() {
        let model = tiny();
        let footprint = Footprint::of(&model).unwrap();
        let experts = model.config().experts as usize;
        assert_eq!(asked(&options(), &model, &footprint).unwrap(), None);
        let some = PlanOptions { layers: Some("1,3".parse().unwrap()), ..options() };
        let Asked { kind, experts: found, copied } = asked(&some, &model, &footprint).unwrap().unwrap();
        assert_eq!(
            (kind, found.len(), found[0], found[experts], copied),
            (Kind::Layers, 2 * experts, (1, 0), (3, 0), None)
        );
        let beyond = PlanOptions { layers: Some("4".parse().unwrap()), ..options() };
        assert!(asked(&beyond, &model, &footprint).is_err());
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("list");
        std::fs::write(&path, "0 1,2\n3 0 once\n").unwrap();
        let listed =
            PlanOptions { experts: Some(path.clone()), placement: PlacementChoice::Experts, ..options() };
        let found = asked(&listed, &model, &footprint).unwrap().unwrap();
        assert_eq!((found.kind, found.experts), (Kind::Dealt, vec![(0, 1), (0, 2), (3, 0)]));
        assert_eq!(found.copied, Some(BTreeSet::from([(0, 1), (0, 2)])));
        std::fs::write(&path, "0 99\n").unwrap();
        let error = asked(&listed, &model, &footprint).unwrap_err().to_string();
        assert!(error.contains("no expert 99"), "{error}");
    }

    #[test]
    fn texts_that_no_placement_makes_room_for_are_found_beforehand() {
        let footprint = Footprint::of(&tiny()).unwrap();
        let within = Bounds { most_waves: 1, memory: 10_000_000 };
        assert_eq!(beyond_any_placement(&footprint, &within, 1, 16), None);
        let (needs, there) = beyond_any_placement(&footprint, &within, 2048, 512).unwrap();
        assert_eq!((needs.experts, there), (0, 10_000_000));
        assert_eq!(needs.texts, 2048 * footprint.text.bytes(512));
    }
}
