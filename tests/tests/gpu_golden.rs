//! Whole passes with experts on the GPU against the same passes with exact ones, teacher-forced: where the exact pass is sure of
//! a token the other says the same one, and logits point the same way everywhere.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use std::sync::Arc;

use kvasir_backbone::{Backbone, Experts, Feed, Wanted};
use kvasir_experts::{Device, ExpertRunner, KernelClass, LocalExperts, RunnerOptions};
use kvasir_model::Model;
use kvasir_tests::golden::{Case, Golden, cosine};
use kvasir_tests::gpu::gpu;
use kvasir_tests::released_plugin::verified;
use kvasir_tests::root;

/// From this distance on between the two largest logits the exact pass is sure.
const SURE: f32 = 0.25;
/// No position may fall below this cosine,
const LEAST_COSINE: f64 = 0.999;
/// and this share of them not below the next.
const SHARE: f64 = 0.95;
const USUAL_COSINE: f64 = 0.9999;

#[test]
fn atlas_says_the_same_with_experts_on_the_gpu() {
    compare("models/atlas/atlas-q4_k_m.gguf", "models/atlas/golden-atlas-q4_k_m.safetensors");
}

#[test]
fn tiny_says_the_same_with_every_expert_on_the_gpu() {
    compare("tests/data/tiny/tiny-q8_0.gguf", "tests/data/tiny/golden-tiny-q8_0.safetensors");
}

/// What was found over all positions of all prompts.
#[derive(Debug, Default)]
struct Found {
    positions: usize,
    sure: usize,
    /// Positions whose largest logit is another, sure or not.
    other_token: usize,
    identical: usize,
    cosines: Vec<f64>,
    /// The largest margin at which the token was another.
    worst_margin: f32,
    largest_difference: f32,
}

fn compare(model: &str, golden: &str) {
    let Some(options) = gpu() else { return };
    let model = Arc::new(Model::open(&root().join(model)).unwrap());
    let golden = Golden::read(&root().join(golden)).unwrap();
    let plugin = verified();
    let runner = |device| {
        let options = RunnerOptions { device, ..RunnerOptions::default() };
        Arc::new(ExpertRunner::new(&plugin, options).unwrap())
    };
    let (exact, on_gpu) = (runner(Device::Cpu), runner(Device::Gpu(options)));
    assert_eq!((exact.class(), on_gpu.class()), (KernelClass::Exact, KernelClass::Tolerance));
    let backbone = Backbone::new(model.clone(), None).unwrap();
    let mut found = Found::default();
    for case in &golden.cases {
        let due = logits(&backbone, case, &mut LocalExperts::new(model.clone(), exact.clone()));
        let own = logits(&backbone, case, &mut LocalExperts::new(model.clone(), on_gpu.clone()));
        found.take_in(&due, &own, model.config().vocabulary as usize);
    }
    found.cosines.sort_by(f64::total_cmp);
    let usual = found.cosines.iter().filter(|cosine| **cosine >= USUAL_COSINE).count();
    let share = usual as f64 / found.positions as f64;
    println!(
        "{} on {}: {} positions, {} sure, {} with another token (largest margin {}), {} identical to the bit; cosine: worst {:.9}, \
         median {:.9}, {:.1} % at least {USUAL_COSINE}; largest difference of a logit {:.3e}; failures of the process: {}",
        model.name(),
        on_gpu.adapter().unwrap(),
        found.positions,
        found.sure,
        found.other_token,
        found.worst_margin,
        found.identical,
        found.cosines[0],
        found.cosines[found.cosines.len() / 2],
        share * 100.0,
        found.largest_difference,
        on_gpu.failures(),
    );
    assert!(found.positions > 50 && found.sure * 2 > found.positions, "enough was compared: {found:?}");
    assert!(found.worst_margin < SURE, "another token where the exact pass is sure: {}", found.worst_margin);
    assert!(found.cosines[0] >= LEAST_COSINE, "worst cosine {}", found.cosines[0]);
    assert!(share >= SHARE, "{share} of the positions have a cosine of at least {USUAL_COSINE}");
}

fn logits(backbone: &Backbone, case: &Case, experts: &mut dyn Experts) -> Vec<f32> {
    let mut sequence = backbone.start();
    let mut feeds = [Feed { sequence: &mut sequence, tokens: &case.tokens, logits: Wanted::All }];
    backbone.forward(&mut feeds, experts).unwrap()[0].values().to_vec()
}

impl Found {
    fn take_in(&mut self, due: &[f32], own: &[f32], vocabulary: usize) {
        assert_eq!(due.len(), own.len());
        for (due, own) in due.chunks_exact(vocabulary).zip(own.chunks_exact(vocabulary)) {
            self.positions += 1;
            let (token, margin) = largest(due);
            self.sure += usize::from(margin >= SURE);
            if largest(own).0 != token {
                self.other_token += 1;
                self.worst_margin = self.worst_margin.max(margin);
            }
            self.identical += usize::from(due.iter().zip(own).all(|(a, b)| a.to_bits() == b.to_bits()));
            self.cosines.push(cosine(due, own));
            let differences = due.iter().zip(own).map(|(a, b)| (a - b).abs());
            self.largest_difference = differences.fold(self.largest_difference, f32::max);
        }
    }
}

/// The largest logit's number, and how far the next one is below.
fn largest(logits: &[f32]) -> (usize, f32) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    (order[0], logits[order[0]] - logits[order[1]])
}
