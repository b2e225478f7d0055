//! A whole pass and a whole generation against the reference.

#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "written so that a NaN is a fault, too")]

use std::fmt::Write as _;
use std::ops::ControlFlow;

use kvasir_backbone::{
    Backbone, Experts, Feed, GenerateOptions, LayerIndex, Observer, Pick, Tap, TokenId, Wanted, generate,
};

use super::measure::{best_and_margin, cosine};
use super::reference::{Case, Golden, Shape};

/// Experts exchanged against the reference are forgiven where its probabilities differ by less than this.
const NEAR_TIE: f32 = 5e-3;

/// What end-to-end figures must satisfy.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// The reference is sure of its largest logit where the next is at least this much smaller.
    pub sure_margin: f32,
    /// Least share of positions where it is: else the references would ask for nothing.
    pub least_sure: f64,
    /// Least cosine of the logits at any position.
    pub least_cosine: f64,
    /// Least cosine at 95 % of all positions.
    pub usual_cosine: f64,
    /// Largest share of routed sets that may differ by near ties.
    pub most_near_ties: f64,
    /// Largest difference of a gate weight where the routed sets agree.
    pub worst_weight: f32,
}

impl Rules {
    /// For weights in F32, F16 and BF16.
    pub const FLOAT: Rules = Rules {
        sure_margin: 0.05,
        least_sure: 0.5,
        least_cosine: 0.999,
        usual_cosine: 0.999,
        most_near_ties: 0.02,
        worst_weight: 1e-3,
    };
    /// For atlas in Q4_K_M.
    pub const ATLAS_Q4_K_M: Rules = Rules { sure_margin: 0.25, worst_weight: 1e-2, ..Rules::FLOAT };
    /// For atlas in Q8_0.
    pub const ATLAS_Q8_0: Rules = Rules {
        sure_margin: 0.25,
        least_cosine: 0.995,
        usual_cosine: 0.9999,
        worst_weight: 1e-2,
        ..Rules::FLOAT
    };
}

/// What an end-to-end check found.
#[derive(Debug, Clone, Copy)]
pub struct EndToEnd {
    /// Positions compared.
    pub positions: usize,
    /// Positions where the reference was sure of its largest logit.
    pub sure: usize,
    /// Generated tokens compared: those before the first of which the reference was not sure.
    pub generated: usize,
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

/// What one case's tokens gave. T tokens, L layers.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Logits of every position, all tokens fed: T rows.
    pub logits: Vec<Vec<f32>>,
    /// What the tap was shown of each layer: L x T x picks.
    pub picks: Vec<Vec<Vec<Pick>>>,
    /// The prompt's continuation, greedily.
    pub generated: Vec<TokenId>,
}

/// Feeds all tokens of `case`, then generates as many as the reference did from its prompt alone.
pub fn observe(backbone: &Backbone, case: &Case, experts: &mut dyn Experts) -> Result<Seen, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{:?}: {error}", case.text);
    let mut recorder = Recorder::default();
    let mut sequence = backbone.start();
    let mut feeds = [Feed { sequence: &mut sequence, tokens: &case.tokens, logits: Wanted::All }];
    let mut observer = Observer { tap: Some(&mut recorder), timing: None };
    let logits =
        backbone.forward_observed(&mut feeds, experts, &mut observer).map_err(|error| failed(&error))?;

    let mut options = GenerateOptions::greedy(backbone, case.tokens.len() - case.prompt);
    options.stop.clear();
    let prompt = &case.tokens[..case.prompt];
    let said = generate(backbone, &mut backbone.start(), prompt, &options, experts, &mut |_| {
        ControlFlow::Continue(())
    })
    .map_err(|error| failed(&error))?;
    Ok(Seen {
        logits: logits[0].rows().map(<[f32]>::to_vec).collect(),
        picks: recorder.picks,
        generated: said.tokens,
    })
}

/// Holds what was seen of every case against the reference.
///
/// # Errors
/// Every fault, one a line: also where less was seen than the reference holds.
pub fn judge(shape: Shape, golden: &Golden, seen: &[Seen], rules: Rules) -> Result<EndToEnd, String> {
    golden.check_shape(shape)?;
    if seen.len() != golden.cases.len() {
        return Err(format!("{} of {} prompts were computed", seen.len(), golden.cases.len()));
    }
    let mut figures = EndToEnd {
        positions: 0,
        sure: 0,
        generated: 0,
        worst_cosine: 1.0,
        usual_cosine: 1.0,
        near_ties: 0,
        routed: 0,
        worst_weight: 0.0,
    };
    let mut faults = String::new();
    let mut cosines = Vec::new();
    for (case, seen) in golden.cases.iter().zip(seen) {
        compare_logits(shape, case, seen, rules, &mut figures, &mut cosines, &mut faults);
        compare_routing(shape, case, seen, &mut figures, &mut faults);
        compare_generated(shape, case, seen, rules, &mut figures, &mut faults);
    }
    let tokens: usize = golden.cases.iter().map(|case| case.tokens.len()).sum();
    if figures.positions != tokens {
        let _ =
            writeln!(faults, "logits of {} positions were compared, there are {tokens}", figures.positions);
    }
    if figures.routed != shape.layers * tokens {
        let _ = writeln!(
            faults,
            "{} routed sets were compared, there are {} layers x {tokens} positions",
            figures.routed, shape.layers
        );
    }
    cosines.sort_by(f64::total_cmp);
    figures.worst_cosine = cosines.first().copied().unwrap_or(f64::NAN);
    figures.usual_cosine = cosines.get(cosines.len() / 20).copied().unwrap_or(f64::NAN);
    if !(figures.usual_cosine >= rules.usual_cosine) {
        let _ = writeln!(faults, "95 % of cosines reach only {}", figures.usual_cosine);
    }
    let share = |part: usize, all: usize| part as f64 / all as f64;
    if !(share(figures.sure, tokens) >= rules.least_sure) {
        let _ = writeln!(faults, "the reference is sure at {} of {tokens} positions only", figures.sure);
    }
    if figures.generated == 0 {
        faults.push_str("no generated token was compared\n");
    }
    if !(share(figures.near_ties, figures.routed) <= rules.most_near_ties) {
        let _ = writeln!(faults, "{} of {} routed sets differ", figures.near_ties, figures.routed);
    }
    if !(figures.worst_weight <= rules.worst_weight) {
        let _ = writeln!(
            faults,
            "a gate weight differs by {}, at most {} is right",
            figures.worst_weight, rules.worst_weight
        );
    }
    if faults.is_empty() { Ok(figures) } else { Err(faults) }
}

fn compare_logits(
    shape: Shape,
    case: &Case,
    seen: &Seen,
    rules: Rules,
    figures: &mut EndToEnd,
    cosines: &mut Vec<f64>,
    faults: &mut String,
) {
    let reference = case.logits.chunks_exact(shape.vocabulary);
    for (position, (ours, reference)) in seen.logits.iter().zip(reference).enumerate() {
        if ours.len() != reference.len() {
            let _ = writeln!(faults, "{:?}, position {position}: {} logits", case.text, ours.len());
            continue;
        }
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
}

fn compare_routing(shape: Shape, case: &Case, seen: &Seen, figures: &mut EndToEnd, faults: &mut String) {
    let Shape { layers, experts, per_token, .. } = shape;
    let positions = case.tokens.len();
    for (layer, picks) in seen.picks.iter().enumerate().take(layers) {
        for (position, picks) in picks.iter().enumerate().take(positions) {
            let at = layer * positions + position;
            let reference = &case.experts[at * per_token..][..per_token];
            let weights = &case.weights[at * per_token..][..per_token];
            let probabilities = &case.router[at * experts..][..experts];
            figures.routed += 1;
            let ours: Vec<u16> = picks.iter().map(|pick| pick.expert.0).collect();
            let added: Vec<u16> = ours.iter().copied().filter(|expert| !reference.contains(expert)).collect();
            let missing: Vec<u16> =
                reference.iter().copied().filter(|expert| !ours.contains(expert)).collect();
            let probability =
                |expert: u16| probabilities.get(usize::from(expert)).copied().unwrap_or(f32::NAN);
            let mut gaps = missing.iter().flat_map(|missing| {
                added.iter().map(|added| (probability(*missing) - probability(*added)).abs())
            });
            let near_tie = gaps.all(|gap| gap < NEAR_TIE);
            // Every expert once: as many picked as the reference has, and as many added as are missing.
            if ours.len() != per_token || added.len() != missing.len() || !near_tie {
                let _ = writeln!(
                    faults,
                    "{:?}, layer {layer}, position {position}: experts {ours:?} instead of {reference:?}",
                    case.text
                );
            } else if added.is_empty() {
                for (expert, weight) in reference.iter().zip(weights) {
                    let ours = picks.iter().find(|pick| pick.expert.0 == *expert);
                    let difference = ours.map_or(1.0, |pick| (pick.weight - weight).abs());
                    // A NaN stays: `f32::max` would drop it.
                    if !(difference <= figures.worst_weight || figures.worst_weight.is_nan()) {
                        figures.worst_weight = difference;
                    }
                }
            } else {
                figures.near_ties += 1;
            }
        }
    }
}

/// The text must agree as far as the reference is sure of every token.
fn compare_generated(
    shape: Shape,
    case: &Case,
    seen: &Seen,
    rules: Rules,
    figures: &mut EndToEnd,
    faults: &mut String,
) {
    let vocabulary = shape.vocabulary;
    let wanted = &case.tokens[case.prompt..];
    let sure = (case.prompt - 1..case.tokens.len() - 1)
        .take_while(|&at| {
            best_and_margin(&case.logits[at * vocabulary..][..vocabulary]).1 >= rules.sure_margin
        })
        .count();
    figures.generated += sure;
    if seen.generated.len() != wanted.len() || seen.generated[..sure] != wanted[..sure] {
        let _ = writeln!(
            faults,
            "{:?} is continued with {:?}, the reference says {wanted:?} and is sure of {sure}",
            case.text, seen.generated
        );
    }
}

/// Keeps the picks of every layer.
#[derive(Default)]
struct Recorder {
    picks: Vec<Vec<Vec<Pick>>>,
}

impl Tap for Recorder {
    fn routed(&mut self, layer: LayerIndex, _: &[f32], picks: &[Vec<Pick>]) {
        // A layer shown out of its turn leaves a gap, which is counted.
        let in_turn = usize::from(layer.0) == self.picks.len();
        self.picks.push(if in_turn { picks.to_vec() } else { Vec::new() });
    }
}
