//! A backbone's calls answered by the released plugin, in the sandbox, from a model's files: the same bits as the exact
//! arithmetic without plugin or sandbox, for every format of the test models.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_backbone::{Experts as _, ExpertsError, Pick, Progress, call_blocking};
use kvasir_experts::{
    Call, ConformanceError, ExpertIndex, ExpertRunner, Isolation, KernelLimits, LayerIndex, LocalExperts,
    PROOF_TIME, RunnerOptions, conformance, conformance_within,
};
use kvasir_model::Model;
use kvasir_numerics::quantise_row;
use kvasir_plugin::{PluginError, TrustStore, UnixSeconds, verify};
use kvasir_tests::reference_experts::ReferenceExperts;
use kvasir_tests::released_plugin::{NOW, fresh_key, package, trust, verified};
use kvasir_tests::root;

fn options(instances: usize) -> RunnerOptions {
    RunnerOptions { instances: NonZeroUsize::new(instances).unwrap(), ..RunnerOptions::default() }
}

fn tiny(file: &str) -> Arc<Model> {
    Arc::new(Model::open(&root().join("tests/data").join(file)).unwrap())
}

/// A call of `count` rows for `layer`, every row with its own picks.
fn call(model: &Model, layer: LayerIndex, count: usize, seed: usize) -> Call {
    let config = model.config();
    let (hidden, experts) = (config.hidden as usize, config.experts as usize);
    let picked = config.experts_per_token as usize;
    let row_format = model.expert(layer, ExpertIndex(0)).unwrap().gate.row_format();
    let row_bytes = row_format.row_bytes(hidden).unwrap();
    let mut rows = vec![0; count * row_bytes];
    for (row, out) in rows.chunks_exact_mut(row_bytes).enumerate() {
        let value = |index: usize| ((index * 37 + row * 101 + seed * 13) % 211) as f32 / 53.0 - 2.0;
        let values: Vec<f32> = (0..hidden).map(value).collect();
        quantise_row(&values, row_format, out).unwrap();
    }
    let picks = (0..count)
        .map(|row| {
            (0..picked)
                .map(|pick| Pick {
                    expert: ExpertIndex(((row * 5 + seed + pick * (experts / picked)) % experts) as u16),
                    weight: (picked - pick) as f32 / (picked * (picked + 1) / 2) as f32,
                })
                .collect()
        })
        .collect();
    Call { layer, row_format, rows: Arc::from(rows), picks }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn local_experts_equal_the_exact_arithmetic_in_every_format() {
    let plugin = verified();
    for file in
        ["tiny/tiny-f16.gguf", "tiny/tiny-bf16.gguf", "tiny/tiny-q4_0.gguf", "tiny/tiny-q8_0.gguf", "tiny-hf"]
    {
        let model = tiny(file);
        let runner = Arc::new(ExpertRunner::new(&plugin, options(3)).unwrap());
        let mut local = LocalExperts::new(model.clone(), runner.clone());
        let mut reference = ReferenceExperts::plain(&model);
        for layer in 0..model.config().layers as u16 {
            for count in [1, 2, 7] {
                let call = call(&model, LayerIndex(layer), count, usize::from(layer) + count);
                let found = call_blocking(&mut local, call.clone()).unwrap().sums;
                let due = call_blocking(&mut reference, call).unwrap().sums;
                assert_eq!(bits(&found), bits(&due), "{file}, layer {layer}, {count} rows");
            }
        }
        assert_eq!(runner.failures(), 0);
    }
}

#[test]
fn little_memory_changes_no_bit() {
    let model = tiny("tiny/tiny-q8_0.gguf");
    let plugin = verified();
    let one = model.expert(LayerIndex(0), ExpertIndex(0)).unwrap().stored_bytes() as u64;
    // Two lanes of two experts each: every call throws out what an earlier one brought.
    let few = RunnerOptions { held_bytes: Some(4 * one), ..options(2) };
    let few = Arc::new(ExpertRunner::new(&plugin, few).unwrap());
    let mut small = LocalExperts::new(model.clone(), few.clone());
    let mut large =
        LocalExperts::new(model.clone(), Arc::new(ExpertRunner::new(&plugin, options(8)).unwrap()));
    for turn in 0..3 {
        for layer in 0..model.config().layers as u16 {
            let call = call(&model, LayerIndex(layer), 5, turn);
            let found = call_blocking(&mut small, call.clone()).unwrap().sums;
            assert_eq!(bits(&found), bits(&call_blocking(&mut large, call).unwrap().sums));
            assert!(few.held_bytes() <= 4 * one);
        }
    }
}

#[test]
fn calls_are_answered_in_order_once_unless_cancelled() {
    let model = tiny("tiny/tiny-q4_0.gguf");
    let runner = Arc::new(ExpertRunner::new(&verified(), options(2)).unwrap());
    let mut local = LocalExperts::new(model.clone(), runner);
    assert!(matches!(local.poll(None), Err(ExpertsError::NothingInFlight)));
    let ids: Vec<_> =
        (0..3).map(|seed| local.submit(call(&model, LayerIndex(0), 2, seed)).unwrap()).collect();
    local.cancel(ids[1]);
    let mut answered = Vec::new();
    while let Ok(Progress::Completed(completed)) = local.poll(Some(Instant::now())) {
        answered.push(completed.call);
    }
    assert_eq!(answered, [ids[0], ids[2]]);
    // A call that contradicts the model is refused before anything is computed.
    let mut broken = call(&model, LayerIndex(0), 2, 0);
    broken.picks[0][0].expert = ExpertIndex(9_999);
    assert!(matches!(local.submit(broken), Err(ExpertsError::MalformedCall { .. })));
    let nowhere = Call { layer: LayerIndex(999), ..call(&model, LayerIndex(0), 1, 0) };
    assert!(local.submit(nowhere).is_err());
    assert!(matches!(local.poll(None), Err(ExpertsError::NothingInFlight)));
}

#[test]
fn a_proof_ends_when_its_time_is_up() {
    let plugin = verified();
    let prove = |time| conformance_within(&plugin, &Isolation::InProcess, KernelLimits::default(), time);
    let error = prove(Duration::ZERO).unwrap_err();
    assert!(matches!(error, ConformanceError::TooSlow { limit: Duration::ZERO, .. }), "{error}");
    assert_eq!(prove(PROOF_TIME).unwrap(), conformance(&plugin).unwrap());
}

#[test]
fn a_flipped_bit_anywhere_in_the_released_package_is_refused_before_anything_runs() {
    let key = fresh_key();
    let (package, trust) = (package(&key), trust(&key));
    assert!(verify(&package, &trust, NOW).is_ok());
    // Every region: headers, statement, manifest, component, vectors, paddings, end mark; a step that hits them all.
    let headers = (0..package.len()).step_by(512);
    let spread = (0..package.len()).step_by(8_191);
    let edges = [package.len() - 1, package.len() - 1024];
    for offset in headers.take(40).chain(spread).chain(edges) {
        let mut damaged = package.clone();
        damaged[offset] ^= 0x10;
        assert!(verify(&damaged, &trust, NOW).is_err(), "byte {offset}");
    }
    let untrusted = verify(&package, &TrustStore::default(), NOW).unwrap_err();
    assert!(matches!(untrusted, PluginError::UnknownPublisher { .. }));
    let late = verify(&package, &trust, UnixSeconds(NOW.0 + 1)).unwrap_err();
    assert!(matches!(late, PluginError::Expired { .. }));
}

#[test]
fn the_released_component_is_what_its_build_record_says() {
    let folder = root().join("plugins/swiglu/release");
    let component = std::fs::read(folder.join("swiglu-0.2.0.wasm")).unwrap();
    let facts = kvasir_sandbox::inspect(&component).unwrap();
    assert_eq!(facts.exports, ["kvasir:expert/kernel@0.1.0"]);
    assert!(facts.relaxed_dots > 0, "an exact kernel without the dot products is a slow one");
    let record = std::fs::read_to_string(folder.join("BUILD")).unwrap();
    let digest = record.lines().find_map(|line| line.strip_prefix("sha256 ")).unwrap();
    let found = <sha2::Sha256 as sha2::Digest>::digest(&component);
    assert_eq!(hex::encode(found), digest);
    let report = conformance(&verified()).unwrap();
    let files = std::fs::read_dir(Path::new(&root()).join("plugins/swiglu/vectors")).unwrap().count();
    assert_eq!(report.vectors, files);
}
