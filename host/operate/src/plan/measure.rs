//! Short measurements on this machine with the real file: how long a pass of some rows takes with every expert here, how
//! much of it is experts, and which of them are picked.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kvasir_backbone::{
    Feed, LayerIndex, Observer, Pick, Sequence, SequenceCost, Tap, Timing, TokenId, Wanted, greedy,
};
use kvasir_model::Model;
use kvasir_serve::prediction::{Computing, Curve, Picks};
use serde::{Deserialize, Serialize};

use crate::bench::machine;
use crate::files;
use crate::local::Local;
use crate::memory::expert_bytes;
use crate::probes::prompts;
use crate::progress::{LateLine, Spinner};

/// Rows of the passes that are measured.
const ROWS: [usize; 3] = [1, 8, 64];
/// More rows than this are not measured: from the others the rest is a line.
const ROWS_MAX: usize = 256;
/// Passes of a size before it is measured: they load experts and warm caches.
const WARM: usize = 3;
/// Passes that are measured at least, and at most.
const LEAST_PASSES: usize = 5;
const MOST_PASSES: usize = 120;
/// After this, and the least number of passes, a size is done.
const TIME: Duration = Duration::from_millis(1500);
/// After this a size is done as soon as one of its passes is measured.
const LONGEST: Duration = Duration::from_secs(20);
/// Tokens of public prompts by which picks are counted, and the time for it.
const PICK_TOKENS: usize = 2048;
const PICK_TIME: Duration = Duration::from_secs(5);
/// Tokens of one such prompt that are read at most.
const PROMPT_TOKENS: usize = 256;
/// A file of measurements may not be larger.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Sizes of passes in a file at most.
const PASSES_MAX: usize = 64;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The model's name.
    pub model: String,
    /// Its layers.
    pub layers: u32,
    /// On which machine.
    pub machine: String,
    /// Threads that computed.
    pub threads: usize,
    /// Passes with every expert here.
    pub passes: Vec<MeasuredPass>,
    /// How often each expert was picked, by layer and number; empty where that was not counted.
    #[serde(default)]
    pub picks: Vec<Vec<u64>>,
    /// What was not measured, and why.
    #[serde(default)]
    pub skipped: Vec<String>,
}

/// Medians of passes with so many rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPass {
    /// Rows, each of a text of its own.
    pub rows: usize,
    /// A pass and the choice of its tokens.
    pub seconds: f64,
    /// Of it, routed experts.
    pub expert_seconds: f64,
    /// Of it, shared experts.
    pub shared_seconds: f64,
}

impl Measurement {
    /// What predictions are made of.
    ///
    /// # Errors
    /// Where the figures are none.
    pub fn computing(&self) -> Result<Computing> {
        let curve = |seconds: fn(&MeasuredPass) -> f64| {
            Curve::new(self.passes.iter().map(|pass| (pass.rows, seconds(pass))))
                .context("the measurement holds no passes, or times that are none")
        };
        let computing = Computing {
            pass: curve(|pass| pass.seconds)?,
            experts: curve(|pass| pass.expert_seconds)?,
            shared: curve(|pass| pass.shared_seconds)?,
        };
        let parts = |pass: &MeasuredPass| pass.expert_seconds + pass.shared_seconds;
        if let Some(wrong) = self.passes.iter().find(|pass| parts(pass) > pass.seconds * 1.001) {
            bail!("in a pass of {} rows experts take longer than the pass", wrong.rows);
        }
        Ok(computing)
    }

    /// How often experts were picked, where that was counted.
    pub fn picks(&self) -> Option<Picks> {
        (!self.picks.is_empty()).then(|| Picks(self.picks.clone()))
    }

    /// Reads what `kvasir plan --measure --json` printed, or the object `measured` of it alone.
    ///
    /// # Errors
    /// Where the file cannot be read, is no such thing, or is of another model.
    pub fn read(path: &Path, model: &Model) -> Result<Measurement> {
        let whose = || format!("the measurement {}", path.display());
        let text = files::read_text_bounded(path, FILE_BYTES_MAX)
            .with_context(|| format!("cannot read {}", whose()))?;
        let mut value: serde_json::Value =
            serde_json::from_str(&text).with_context(|| format!("{} is not JSON", whose()))?;
        if let Some(measured) = value.get_mut("measured") {
            value = measured.take();
        }
        let found: Measurement = serde_json::from_value(value)
            .with_context(|| format!("{} is not what kvasir plan --measure --json prints", whose()))?;
        if found.passes.len() > PASSES_MAX {
            bail!("{} has {} sizes of passes; {PASSES_MAX} are allowed", whose(), found.passes.len());
        }
        if found.model != model.name() || found.layers != model.config().layers {
            bail!(
                "{} is of {:?} with {} layers, and the model is {:?} with {}: measure anew with --measure",
                whose(),
                found.model,
                found.layers,
                model.name(),
                model.config().layers
            );
        }
        Ok(found)
    }
}

/// Measures. `streams`: texts at once that somebody asks about.
///
/// # Errors
/// Where a pass fails.
pub fn measure(local: &Local, streams: usize) -> Result<Measurement> {
    let what = "measuring how long this machine computes";
    let (spinner, late) = (Spinner::new(what), LateLine::new(what));
    let mut sizes: Vec<usize> = ROWS.into_iter().chain([streams.min(ROWS_MAX)]).collect();
    // The largest first: it loads most experts.
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    sizes.dedup();
    let (mut passes, mut skipped) = (Vec::new(), Vec::new());
    let config = local.model.config();
    let tokens = (WARM + MOST_PASSES).min(local.backbone.context_limit());
    let cost = SequenceCost::of(config).bytes(tokens);
    // Of what is free the other half is for experts.
    let free = expert_bytes(None);
    for rows in sizes {
        let needed = cost.saturating_mul(rows as u64);
        if needed > free && rows > 1 {
            skipped
                .push(format!("a pass of {rows} rows: its texts take {needed} bytes, and {free} are free"));
            continue;
        }
        spinner.say(format!("{what}: {rows} rows"));
        passes.push(passes_of(local, rows, tokens).with_context(|| format!("a pass of {rows} rows"))?);
    }
    passes.reverse();
    spinner.say("counting which experts are picked");
    let picks = count_picks(local).context("while counting which experts are picked")?;
    drop((spinner, late));
    Ok(Measurement {
        model: local.model.name().to_owned(),
        layers: config.layers,
        machine: machine(),
        threads: local.backbone.threads(),
        passes,
        picks,
        skipped,
    })
}

/// Medians of passes in which each of `rows` texts is given a token and writes one.
fn passes_of(local: &Local, rows: usize, most_tokens: usize) -> Result<MeasuredPass> {
    let vocabulary = local.model.config().vocabulary;
    let mut experts = local.experts();
    let mut sequences: Vec<Sequence> = (0..rows).map(|_| local.backbone.start_within(most_tokens)).collect();
    // Far apart, so that texts differ and go to different experts.
    let mut tokens: Vec<TokenId> =
        (0..rows).map(|row| TokenId((row as u32).wrapping_mul(2_654_435_761) % vocabulary)).collect();
    let (mut whole, mut routed, mut shared) = (Vec::new(), Vec::new(), Vec::new());
    let warm = WARM.min(most_tokens.saturating_sub(1));
    let begun = Instant::now();
    local.backbone.within(|| -> Result<()> {
        for pass in 0..most_tokens {
            let (measured, elapsed) = (whole.len(), begun.elapsed());
            let is_enough =
                (measured >= LEAST_PASSES && elapsed > TIME) || (measured > 0 && elapsed > LONGEST);
            if is_enough {
                break;
            }
            let mut timing = Timing::default();
            let started = Instant::now();
            let mut feeds: Vec<Feed<'_>> = sequences
                .iter_mut()
                .zip(&tokens)
                .map(|(sequence, token)| Feed {
                    sequence,
                    tokens: std::slice::from_ref(token),
                    logits: Wanted::Last,
                })
                .collect();
            let mut observer = Observer { timing: Some(&mut timing), ..Observer::default() };
            let logits = local.backbone.forward_observed(&mut feeds, &mut experts, &mut observer)?;
            let chosen = logits.iter().filter_map(|logits| logits.last().map(greedy)).collect();
            let took = started.elapsed();
            drop(feeds);
            tokens = chosen;
            if pass >= warm {
                whole.push(took.as_secs_f64());
                // The shared expert is computed between the submission of a call and its answer.
                routed.push(timing.routed_experts.saturating_sub(timing.shared_experts).as_secs_f64());
                shared.push(timing.shared_experts.as_secs_f64());
            }
        }
        Ok(())
    })?;
    Ok(MeasuredPass {
        rows,
        seconds: median(&mut whole).context("the context holds too few tokens to measure a pass")?,
        expert_seconds: median(&mut routed).unwrap_or_default(),
        shared_seconds: median(&mut shared).unwrap_or_default(),
    })
}

/// The middle one, the upper of two; nothing of nothing.
pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Counts the picks of a model's router.
struct Counter(Vec<Vec<u64>>);

impl Tap for Counter {
    fn routed(&mut self, layer: LayerIndex, _probabilities: &[f32], picks: &[Vec<Pick>]) {
        let Some(counts) = self.0.get_mut(usize::from(layer.0)) else { return };
        for pick in picks.iter().flatten() {
            if let Some(count) = counts.get_mut(usize::from(pick.expert.0)) {
                *count += 1;
            }
        }
    }
}

/// How often experts are picked while the public prompts that come with the program are read.
fn count_picks(local: &Local) -> Result<Vec<Vec<u64>>> {
    let config = local.model.config();
    let mut counter = Counter(vec![vec![0; config.experts as usize]; config.layers as usize]);
    let (mut experts, mut read) = (local.experts(), 0);
    let begun = Instant::now();
    for prompt in prompts(None)? {
        let mut tokens = local.model.tokenizer().encode_bounded(&prompt, usize::MAX)?;
        tokens.truncate(PROMPT_TOKENS.min(local.backbone.context_limit()));
        if tokens.is_empty() {
            continue;
        }
        let mut sequence = local.backbone.start_within(tokens.len());
        let mut observer = Observer { tap: Some(&mut counter), ..Observer::default() };
        let mut feeds = [Feed { sequence: &mut sequence, tokens: &tokens, logits: Wanted::None }];
        local.backbone.forward_observed(&mut feeds, &mut experts, &mut observer)?;
        read += tokens.len();
        if read >= PICK_TOKENS || begun.elapsed() > PICK_TIME {
            break;
        }
    }
    Ok(counter.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> Model {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tiny/tiny-q8_0.gguf");
        Model::open(&path).unwrap()
    }

    fn measurement(model: &Model) -> Measurement {
        let pass = |rows: usize| MeasuredPass {
            rows,
            seconds: 1e-3 * rows as f64,
            expert_seconds: 4e-4 * rows as f64,
            shared_seconds: 1e-4 * rows as f64,
        };
        Measurement {
            model: model.name().to_owned(),
            layers: model.config().layers,
            machine: "a test".to_owned(),
            threads: 2,
            passes: [1, 8].map(pass).into(),
            picks: Vec::new(),
            skipped: Vec::new(),
        }
    }

    #[test]
    fn a_measurement_reads_back_alone_and_out_of_a_report() {
        let (place, model) = (tempfile::tempdir().unwrap(), tiny());
        let path = place.path().join("m.json");
        let due = measurement(&model);
        for text in [serde_json::json!(due), serde_json::json!({ "model": "x", "measured": due })] {
            std::fs::write(&path, text.to_string()).unwrap();
            assert_eq!(Measurement::read(&path, &model).unwrap(), due);
        }
        let computing = due.computing().unwrap();
        assert_eq!((computing.pass.at(8.0), computing.experts.at(8.0)), (8e-3, 4.0 * 8e-4));
        assert_eq!(due.picks(), None);
    }

    #[test]
    fn what_is_no_measurement_of_this_model_is_refused() {
        let (place, model) = (tempfile::tempdir().unwrap(), tiny());
        let path = place.path().join("m.json");
        let said = |text: String| {
            std::fs::write(&path, text).unwrap();
            format!("{:#}", Measurement::read(&path, &model).unwrap_err())
        };
        let due = measurement(&model);
        assert!(said("{".to_owned()).contains("not JSON"));
        assert!(said("{\"measured\": null}".to_owned()).contains("kvasir plan --measure"));
        let other = Measurement { model: "other".to_owned(), ..due.clone() };
        assert!(said(serde_json::json!(other).to_string()).contains("measure anew"));
        let many = Measurement { passes: vec![due.passes[0]; PASSES_MAX + 1], ..due.clone() };
        assert!(said(serde_json::json!(many).to_string()).contains("65 sizes"));
        let empty = Measurement { passes: Vec::new(), ..due.clone() };
        assert!(empty.computing().is_err());
        let mut wrong = due;
        wrong.passes[1].expert_seconds = 9.0;
        assert!(wrong.computing().unwrap_err().to_string().contains("8 rows"));
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0]), Some(4.0));
        assert_eq!(median(&mut []), None);
    }
}
