//! Comparing a forward pass with reference outputs that transformers computed in float32.
//!
//! The rules are those that come with the reference outputs: teacher forcing; the largest logit where the reference
//! is sure of it; the cosine of the logits at every position; the routed sets but for near ties. The checks take any
//! `Experts`, so one set of references judges every way to compute them. A failed check names layer and position.

#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "written so that a NaN is a fault, too")]

use std::fmt::Write as _;
use std::sync::Arc;

use kvasir_backbone::{Backbone, Experts, Feed, LayerIndex, Observer, Pick, Tap, Wanted};
use kvasir_model::{DeltaConfig, Mixer, Model, ValueHeadOrder};

use measure::{best_and_margin, largest, product_in_order, relative_errors};

pub use measure::cosine;
pub use reference::{Case, Golden, Stream};

mod measure;
mod reference;

/// Experts exchanged against the reference are forgiven where its probabilities differ by less than this.
const NEAR_TIE: f32 = 5e-3;

/// Makes the experts that a check runs with.
pub type MakeExperts<'a> = &'a dyn Fn(&Arc<Model>) -> Box<dyn Experts>;

/// What end-to-end figures must satisfy.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// The reference is sure of its largest logit where the next is at least this much smaller.
    pub sure_margin: f32,
    /// Least cosine of the logits at any position.
    pub least_cosine: f64,
    /// Least cosine at 95 % of all positions.
    pub usual_cosine: f64,
}

impl Rules {
    /// For weights in F32, F16 and BF16.
    pub const FLOAT: Rules = Rules { sure_margin: 0.05, least_cosine: 0.999, usual_cosine: 0.999 };
    /// For atlas in Q4_K_M.
    pub const ATLAS_Q4_K_M: Rules = Rules { sure_margin: 0.25, least_cosine: 0.999, usual_cosine: 0.999 };
    /// For atlas in Q8_0.
    pub const ATLAS_Q8_0: Rules = Rules { sure_margin: 0.25, least_cosine: 0.995, usual_cosine: 0.9999 };
}

/// What an end-to-end check found.
#[derive(Debug, Clone, Copy)]
pub struct EndToEnd {
    /// Positions compared.
    pub positions: usize,
    /// Positions where the reference was sure of its largest logit.
    pub sure: usize,
    /// The smallest cosine of logits.
    pub worst_cosine: f64,
    /// The cosine that 95 % of positions reach.
    pub usual_cosine: f64,
    /// Routed sets that differ, by near ties.
    pub near_ties: usize,
    /// Routed sets compared.
    pub routed: usize,
    /// Largest difference of a weight where the sets agree.
    pub worst_weight: f32,
}

/// What a check of single layers found; errors are relative, per position.
#[derive(Debug, Clone, Copy)]
pub struct LayerByLayer {
    /// Median over the positions, of the worst layer.
    pub worst_median: f64,
    /// Least share of positions within 1e-5 in any layer.
    pub least_share: f64,
    /// Largest error of any position and layer.
    pub worst: f64,
    /// Largest error of the logits.
    pub worst_logits: f64,
}

/// Compares the tokens that the model's tokenizer makes of every prompt.
pub fn check_tokens(model: &Model, golden: &Golden) -> Result<(), String> {
    for case in &golden.cases {
        let tokens = model.tokenizer().encode(&case.text).map_err(|error| error.to_string())?;
        if tokens != case.tokens[..case.prompt] {
            return Err(format!(
                "{:?} gives tokens {tokens:?}, the reference {:?}",
                case.text,
                &case.tokens[..case.prompt]
            ));
        }
    }
    Ok(())
}

/// Compares logits and routing of every prompt, all tokens fed. A fault comes with a report on each layer alone.
pub fn check_end_to_end(
    model: &Arc<Model>,
    golden: &Golden,
    rules: Rules,
    make_experts: MakeExperts<'_>,
) -> Result<EndToEnd, String> {
    let backbone = Backbone::new(model.clone(), None).map_err(|error| error.to_string())?;
    let mut cosines = Vec::new();
    let mut figures = EndToEnd {
        positions: 0,
        sure: 0,
        worst_cosine: 1.0,
        usual_cosine: 1.0,
        near_ties: 0,
        routed: 0,
        worst_weight: 0.0,
    };
    let mut faults = String::new();
    for case in &golden.cases {
        let mut recorder = Recorder::default();
        let mut sequence = backbone.start();
        let mut feeds = [Feed { sequence: &mut sequence, tokens: &case.tokens, logits: Wanted::All }];
        let mut observer = Observer { tap: Some(&mut recorder), timing: None };
        let logits = backbone
            .forward_observed(&mut feeds, make_experts(model).as_mut(), &mut observer)
            .map_err(|error| format!("{:?}: {error}", case.text))?;
        compare_routing(model, case, &recorder, &mut figures, &mut faults);
        let vocabulary = logits[0].vocabulary();
        for (position, (ours, reference)) in
            logits[0].rows().zip(case.logits.chunks_exact(vocabulary)).enumerate()
        {
            figures.positions += 1;
            let cosine = cosine(ours, reference);
            cosines.push(cosine);
            if !(cosine >= rules.least_cosine) {
                let _ = writeln!(faults, "{:?}, position {position}: cosine {cosine}", case.text);
            }
            let (best, margin) = best_and_margin(reference);
            if margin >= rules.sure_margin {
                figures.sure += 1;
                let (ours, _) = best_and_margin(ours);
                if ours != best {
                    let _ = writeln!(
                        faults,
                        "{:?}, position {position}: token {ours} instead of {best}, margin {margin}",
                        case.text
                    );
                }
            }
        }
        check_greedy(&backbone, case, rules, make_experts(model).as_mut(), &mut faults)?;
    }
    cosines.sort_by(f64::total_cmp);
    figures.worst_cosine = cosines[0];
    figures.usual_cosine = cosines[cosines.len() / 20];
    if !(figures.usual_cosine >= rules.usual_cosine) {
        let _ = writeln!(faults, "95 % of cosines reach only {}", figures.usual_cosine);
    }
    if faults.is_empty() {
        return Ok(figures);
    }
    Err(format!("{faults}{}", layer_report(&backbone, golden, make_experts)?))
}

/// Compares every layer alone, fed with the reference's values; then the last layer with norm and output matrix.
pub fn check_layer_by_layer(
    model: &Arc<Model>,
    golden: &Golden,
    make_experts: MakeExperts<'_>,
) -> Result<LayerByLayer, String> {
    let backbone = Backbone::new(model.clone(), None).map_err(|error| error.to_string())?;
    let layers = model.config().layers as usize;
    let mut figures = LayerByLayer { worst_median: 0.0, least_share: 1.0, worst: 0.0, worst_logits: 0.0 };
    let mut faults = String::new();
    for layer in 0..layers {
        let found = run_layer(&backbone, golden, layer, make_experts)?;
        let width = model.config().hidden as usize;
        if layer + 1 == layers {
            let logits = backbone.output(&found.hidden).map_err(|error| error.to_string())?;
            let vocabulary = logits.vocabulary();
            figures.worst_logits =
                largest(&relative_errors(logits.values(), &golden.cases[0].logits, vocabulary));
            if !(figures.worst_logits <= 1e-5) {
                let _ = writeln!(faults, "logits behind layer {layer}: error {}", figures.worst_logits);
            }
            break;
        }
        let mut errors = relative_errors(&found.hidden, hidden_of(golden, layers, layer + 1), width);
        errors.sort_by(f64::total_cmp);
        let median = errors[errors.len() / 2];
        let share = errors.iter().filter(|&&error| error <= 1e-5).count() as f64 / errors.len() as f64;
        let worst = largest(&errors);
        figures.worst_median = figures.worst_median.max(median);
        figures.least_share = figures.least_share.min(share);
        figures.worst = figures.worst.max(worst);
        if !(median <= 1e-6 && share >= 0.75 && worst <= 2e-2) {
            let _ = writeln!(
                faults,
                "layer {layer}: median error {median:e}, {:.0} % within 1e-5, worst {worst:e}",
                share * 100.0
            );
        }
    }
    if faults.is_empty() {
        return Ok(figures);
    }
    Err(format!("{faults}{}", layer_report(&backbone, golden, make_experts)?))
}

/// Generates greedily from the prompt alone; the text must agree as far as the reference is sure of every token.
fn check_greedy(
    backbone: &Backbone,
    case: &Case,
    rules: Rules,
    experts: &mut dyn Experts,
    faults: &mut String,
) -> Result<(), String> {
    use kvasir_backbone::{GenerateOptions, generate};
    let vocabulary = case.logits.len() / case.tokens.len();
    let wanted = &case.tokens[case.prompt..];
    let sure = (case.prompt - 1..case.tokens.len() - 1)
        .take_while(|&at| {
            best_and_margin(&case.logits[at * vocabulary..][..vocabulary]).1 >= rules.sure_margin
        })
        .count();
    let mut options = GenerateOptions::greedy(backbone, wanted.len());
    options.stop.clear();
    let mut sequence = backbone.start();
    let prompt = &case.tokens[..case.prompt];
    let said = generate(backbone, &mut sequence, prompt, &options, experts, &mut |_| {
        std::ops::ControlFlow::Continue(())
    })
    .map_err(|error| format!("{:?}: {error}", case.text))?;
    if said.tokens[..sure] != wanted[..sure] {
        let _ = writeln!(
            faults,
            "{:?} is continued with {:?}, the reference says {:?} and is sure of {sure}",
            case.text, said.tokens, wanted
        );
    }
    Ok(())
}

fn compare_routing(
    model: &Model,
    case: &Case,
    recorder: &Recorder,
    figures: &mut EndToEnd,
    faults: &mut String,
) {
    let (experts, per_token) = (model.config().experts as usize, model.config().experts_per_token as usize);
    let positions = case.tokens.len();
    for (layer, picks) in recorder.picks.iter().enumerate() {
        for (position, picks) in picks.iter().enumerate() {
            let at = layer * positions + position;
            let reference = &case.experts[at * per_token..][..per_token];
            let weights = &case.weights[at * per_token..][..per_token];
            let probabilities = &case.router[at * experts..][..experts];
            figures.routed += 1;
            let ours: Vec<u16> = picks.iter().map(|pick| pick.expert.0).collect();
            let added: Vec<u16> = ours.iter().copied().filter(|expert| !reference.contains(expert)).collect();
            let missing = reference.iter().filter(|expert| !ours.contains(expert));
            let gap = missing
                .flat_map(|&missing| added.iter().map(move |&added| (missing, added)))
                .map(|(missing, added)| {
                    (probabilities[usize::from(missing)] - probabilities[usize::from(added)]).abs()
                })
                .fold(0.0, f32::max);
            if added.is_empty() {
                for (expert, weight) in reference.iter().zip(weights) {
                    let ours = picks.iter().find(|pick| pick.expert.0 == *expert);
                    let difference = ours.map_or(1.0, |pick| (pick.weight - weight).abs());
                    figures.worst_weight = figures.worst_weight.max(difference);
                }
            } else {
                figures.near_ties += 1;
                if !(gap < NEAR_TIE) {
                    let _ = writeln!(
                        faults,
                        "{:?}, layer {layer}, position {position}: experts {ours:?} instead of {reference:?}",
                        case.text
                    );
                }
            }
        }
    }
}

/// How far each layer alone strays from the reference: the part that fails first is to blame.
fn layer_report(
    backbone: &Backbone,
    golden: &Golden,
    make_experts: MakeExperts<'_>,
) -> Result<String, String> {
    let config = backbone.model().config();
    let (layers, width) = (config.layers as usize, config.hidden as usize);
    let length = golden.stream.hidden.len() / layers;
    let mut report =
        String::from("each layer alone, fed with the reference's values (largest relative errors):\n");
    for layer in 0..layers {
        let found = run_layer(backbone, golden, layer, make_experts)?;
        let at = layer * length..(layer + 1) * length;
        let into = largest(&relative_errors(&found.expert_in, &golden.stream.expert_in[at.clone()], width));
        let out = largest(&relative_errors(&found.expert_out, &golden.stream.expert_out[at], width));
        let _ = write!(report, "layer {layer}: behind the mixer {into:.1e}, routed experts {out:.1e}");
        if layer + 1 < layers {
            let next = hidden_of(golden, layers, layer + 1);
            let _ =
                write!(report, ", whole layer {:.1e}", largest(&relative_errors(&found.hidden, next, width)));
        }
        report.push('\n');
    }
    Ok(report)
}

fn run_layer(
    backbone: &Backbone,
    golden: &Golden,
    layer: usize,
    make_experts: MakeExperts<'_>,
) -> Result<Recorder, String> {
    let layers = backbone.model().config().layers as usize;
    let mut hidden = hidden_of(golden, layers, layer).to_vec();
    let mut recorder = Recorder { regroup: Some(backbone.model().clone()), ..Recorder::default() };
    let mut observer = Observer { tap: Some(&mut recorder), timing: None };
    backbone
        .forward_layers(
            layer..layer + 1,
            &mut backbone.start(),
            &mut hidden,
            make_experts(backbone.model()).as_mut(),
            &mut observer,
        )
        .map_err(|error| error.to_string())?;
    if !(recorder.worst_product <= 1e-6) {
        let error = recorder.worst_product;
        return Err(format!("layer {layer}: the product of the mixer's output matrix strays by {error:e}"));
    }
    recorder.hidden = hidden;
    Ok(recorder)
}

fn hidden_of(golden: &Golden, layers: usize, layer: usize) -> &[f32] {
    let length = golden.stream.hidden.len() / layers;
    &golden.stream.hidden[layer * length..][..length]
}

/// Keeps what a pass shows: picks of every layer, and the last layer's values.
#[derive(Default)]
struct Recorder {
    picks: Vec<Vec<Vec<Pick>>>,
    expert_in: Vec<f32>,
    expert_out: Vec<f32>,
    /// Behind the last layer; filled in by the caller.
    hidden: Vec<f32>,
    /// Where set, outputs of delta nets are replaced by what the reference makes of the same rows.
    regroup: Option<Arc<Model>>,
    /// Largest relative error of a delta net's output product against the same product in f64.
    worst_product: f64,
}

impl Tap for Recorder {
    fn mixer_out(&mut self, layer: LayerIndex, rows: &[f32], out: &mut [f32]) {
        let Some(model) = &self.regroup else { return };
        let Mixer::DeltaNet { out: matrix, .. } = model.layer(layer).mixer else { return };
        let file_order = |head: usize| head;
        let product = product_in_order(&matrix, rows, &model.config().delta, &file_order);
        self.worst_product = largest(&relative_errors(out, &product, matrix.rows())).max(self.worst_product);
        if model.config().value_head_order == ValueHeadOrder::Tiled {
            let DeltaConfig { key_heads, value_heads, .. } = model.config().delta;
            let (key_heads, served) = (key_heads as usize, (value_heads / key_heads) as usize);
            let grouped = |head: usize| head % key_heads * served + head / key_heads;
            out.copy_from_slice(&product_in_order(&matrix, rows, &model.config().delta, &grouped));
        }
    }

    fn routed(&mut self, _: LayerIndex, _: &[f32], picks: &[Vec<Pick>]) {
        self.picks.push(picks.to_vec());
    }

    fn expert_in(&mut self, _: LayerIndex, rows: &[f32]) {
        self.expert_in = rows.to_vec();
    }

    fn expert_out(&mut self, _: LayerIndex, sums: &[f32]) {
        self.expert_out = sums.to_vec();
    }
}
