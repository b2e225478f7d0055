//! The forward pass against reference outputs of transformers, for every model file at hand.
//!
//! Files that lie in the project are always compared. Larger ones are compared where they are found: in
//! `$KVASIR_MODELS`, or beside the project in `shared/model`.

#![allow(clippy::unwrap_used, reason = "a test that fails to unwrap has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvasir_backbone::{Backbone, ExpertIndex, Experts};
use kvasir_model::Model;
use kvasir_tests::golden::{
    EndToEnd, Golden, Rules, Seen, Shape, check_end_to_end, check_layer_by_layer, check_tokens, judge,
    observe,
};
use kvasir_tests::reference_experts::ReferenceExperts;
use kvasir_tests::released_plugin::sandboxed;
use kvasir_tests::{root, skipped};

fn tiny(file: &str) -> PathBuf {
    root().join("tests/data").join(file)
}

/// A file that is too large for the project; `None` says where it was looked for.
fn large(file: &str) -> Option<PathBuf> {
    let folder =
        std::env::var_os("KVASIR_MODELS").map_or_else(|| root().join("../shared/model"), PathBuf::from);
    let path = folder.join(file);
    if path.exists() {
        return Some(path);
    }
    skipped("no larger models", &format!("{} is not there", path.display()));
    None
}

fn open(model: &Path, golden: &Path) -> (Arc<Model>, Golden) {
    let golden = Golden::read(golden).unwrap_or_else(|error| panic!("{error}"));
    let model = Model::open(model).unwrap_or_else(|error| panic!("{error}"));
    check_tokens(&model, &golden).unwrap_or_else(|error| panic!("{error}"));
    (Arc::new(model), golden)
}

fn experts(model: &Arc<Model>) -> Box<dyn Experts> {
    Box::new(ReferenceExperts::fast(model))
}

/// Judges the model twice: its experts by the exact arithmetic alone, and by the released plugin in the sandbox.
#[track_caller]
fn end_to_end(model: &Path, golden: &Path, rules: Rules) {
    let (opened, golden) = open(model, golden);
    let in_sandbox = sandboxed(&opened);
    let found = [&experts as &dyn Fn(&Arc<Model>) -> Box<dyn Experts>, &|_: &Arc<Model>| in_sandbox()]
        .map(|make_experts| check_end_to_end(&opened, &golden, rules, make_experts));
    for (way, found) in ["exact arithmetic", "released plugin"].into_iter().zip(found) {
        match found {
            Ok(figures) => println!("{}, {way}: {figures:?}", model.display()),
            Err(faults) => panic!("{}, {way}:\n{faults}", model.display()),
        }
    }
}

/// As [`end_to_end`], layer by layer.
#[track_caller]
fn layer_by_layer(model: &Path, golden: &Path) {
    let (opened, golden) = open(model, golden);
    let in_sandbox = sandboxed(&opened);
    let found = [&experts as &dyn Fn(&Arc<Model>) -> Box<dyn Experts>, &|_: &Arc<Model>| in_sandbox()]
        .map(|make_experts| check_layer_by_layer(&opened, &golden, make_experts));
    for (way, found) in ["exact arithmetic", "released plugin"].into_iter().zip(found) {
        match found {
            Ok(figures) => println!("{}, {way}: {figures:?}", model.display()),
            Err(faults) => panic!("{}, {way}:\n{faults}", model.display()),
        }
    }
}

#[test]
fn atlas_q4_k_m() {
    let folder = root().join("models/atlas");
    end_to_end(
        &folder.join("atlas-q4_k_m.gguf"),
        &folder.join("golden-atlas-q4_k_m.safetensors"),
        Rules::ATLAS_Q4_K_M,
    );
}

#[test]
fn atlas_q8_0() {
    if let (Some(model), Some(golden)) =
        (large("atlas/atlas-q8_0.gguf"), large("atlas/golden-atlas-q8_0.safetensors"))
    {
        end_to_end(&model, &golden, Rules::ATLAS_Q8_0);
    }
}

#[test]
fn atlas_f16() {
    if let (Some(model), Some(golden)) =
        (large("atlas/atlas-f16.gguf"), large("atlas/golden-atlas-f16.safetensors"))
    {
        end_to_end(&model, &golden, Rules::FLOAT);
    }
}

#[test]
fn atlas_hugging_face() {
    if let (Some(model), Some(golden)) = (large("atlas-hf"), large("atlas/golden-atlas-hf.safetensors")) {
        end_to_end(&model, &golden, Rules::FLOAT);
    }
}

#[test]
fn tiny_hugging_face() {
    end_to_end(&tiny("tiny-hf"), &tiny("tiny/golden-tiny-hf.safetensors"), Rules::FLOAT);
}

#[test]
fn tiny_as_published() {
    end_to_end(&tiny("tiny-published"), &tiny("tiny/golden-tiny-hf.safetensors"), Rules::FLOAT);
}

#[test]
fn tiny_f16() {
    end_to_end(&tiny("tiny/tiny-f16.gguf"), &tiny("tiny/golden-tiny-f16.safetensors"), Rules::FLOAT);
}

#[test]
fn tiny_bf16() {
    end_to_end(&tiny("tiny/tiny-bf16.gguf"), &tiny("tiny/golden-tiny-bf16.safetensors"), Rules::FLOAT);
}

#[test]
fn tiny_f16_with_a_prediction_block() {
    end_to_end(&tiny("tiny/tiny-mtp-f16.gguf"), &tiny("tiny/golden-tiny-f16.safetensors"), Rules::FLOAT);
}

#[test]
fn tiny_q8_0() {
    layer_by_layer(&tiny("tiny/tiny-q8_0.gguf"), &tiny("tiny/golden-tiny-q8_0.safetensors"));
}

#[test]
fn tiny_q4_0() {
    layer_by_layer(&tiny("tiny/tiny-q4_0.gguf"), &tiny("tiny/golden-tiny-q4_0.safetensors"));
}

#[test]
fn float_layers_agree_one_by_one_too() {
    layer_by_layer(&tiny("tiny/tiny-f16.gguf"), &tiny("tiny/golden-tiny-f16.safetensors"));
}

/// A check that cannot fail proves nothing: a reference that is wrong in one layer must be reported, by that layer.
#[test]
fn a_fault_is_found_and_its_layer_named() {
    let (model, mut golden) = open(&tiny("tiny/tiny-f16.gguf"), &tiny("tiny/golden-tiny-f16.safetensors"));
    let layers = model.config().layers as usize;
    let length = golden.stream.hidden.len() / layers;
    golden.stream.hidden[2 * length..3 * length].iter_mut().for_each(|value| *value *= 1.5);
    let faults = check_layer_by_layer(&model, &golden, &experts).unwrap_err();
    assert!(faults.contains("layer 1: median error"), "{faults}");

    golden.cases[0].logits.iter_mut().for_each(|value| *value = -*value);
    let faults = check_end_to_end(&model, &golden, Rules::FLOAT, &experts).unwrap_err();
    assert!(faults.contains("cosine -"), "{faults}");
}

/// A case's passes, to be damaged and judged.
fn observed() -> (Shape, Golden, Vec<Seen>) {
    let (model, golden) = open(&tiny("tiny/tiny-f16.gguf"), &tiny("tiny/golden-tiny-f16.safetensors"));
    let backbone = Backbone::new(model.clone(), None).unwrap();
    let seen = golden.cases.iter().map(|case| observe(&backbone, case, experts(&model).as_mut()).unwrap());
    (Shape::of(&model), golden.clone(), seen.collect())
}

fn shorten<T>(values: &mut Vec<T>) {
    values.truncate(values.len() - 1);
}

/// One way in which a check could see too little or something wrong, and what must be said of it.
type Damage = (&'static str, fn(&mut Vec<Seen>), &'static str);

#[test]
fn what_was_not_seen_or_is_wrong_fails() {
    let (shape, golden, seen) = observed();
    let EndToEnd { positions, routed, .. } = judge(shape, &golden, &seen, Rules::FLOAT).unwrap();
    assert_eq!(positions, golden.cases.iter().map(|case| case.tokens.len()).sum::<usize>());
    assert_eq!(routed, shape.layers * positions);
    let damages: &[Damage] = &[
        ("a tap that never fires", |seen| seen.iter_mut().for_each(|s| s.picks.clear()), "0 routed sets"),
        ("a layer without routing", |seen| shorten(&mut seen[1].picks), "routed sets were compared"),
        ("a position without routing", |seen| shorten(&mut seen[0].picks[2]), "routed sets were compared"),
        ("no logits", |seen| seen.iter_mut().for_each(|s| s.logits.clear()), "logits of 0 positions"),
        (
            "logits of the last position alone",
            |seen| drop(seen[0].logits.drain(1..)),
            "positions were compared",
        ),
        ("short logits", |seen| shorten(&mut seen[0].logits[3]), "position 3"),
        ("logits without end", |seen| seen[0].logits[3][0] = f32::NAN, "position 3: cosine NaN"),
        ("a prompt left out", |seen| shorten(seen), "prompts were computed"),
        ("no generation", |seen| seen[0].generated.clear(), "is continued with []"),
        ("another token", |seen| seen[0].generated[0].0 ^= 1, "is continued with"),
        ("a weight too large", |seen| seen[0].picks[1][2][0].weight += 0.01, "a gate weight differs by 0.0"),
        ("no weight", |seen| seen[0].picks[0][0][0].weight = f32::NAN, "a gate weight differs by NaN"),
        ("an expert too few", |seen| shorten(&mut seen[0].picks[1][2]), "layer 1, position 2: experts"),
        (
            "an expert twice",
            |seen| seen[0].picks[1][2][0].expert = seen[0].picks[1][2][1].expert,
            "layer 1, position 2: experts",
        ),
        (
            "an expert that does not exist",
            |seen| seen[0].picks[1][2][0].expert = ExpertIndex(999),
            "layer 1, position 2: experts",
        ),
    ];
    for (damage, apply, said) in damages {
        let mut damaged = seen.clone();
        apply(&mut damaged);
        let faults = judge(shape, &golden, &damaged, Rules::FLOAT).expect_err(damage);
        assert!(faults.contains(said), "{damage}: {faults}");
    }
}

#[test]
fn references_that_ask_for_nothing_fail() {
    let (shape, golden, seen) = observed();
    let mut never_sure = golden.clone();
    never_sure.cases.iter_mut().for_each(|case| case.logits.fill(1.0));
    let faults = judge(shape, &never_sure, &seen, Rules::FLOAT).unwrap_err();
    assert!(faults.contains("sure at 0 of") && faults.contains("no generated token"), "{faults}");

    let all_tied = Rules { most_near_ties: -1.0, ..Rules::FLOAT };
    assert!(judge(shape, &golden, &seen, all_tied).unwrap_err().contains("routed sets differ"));

    for damage in [
        (|golden: &mut Golden| golden.cases.clear()) as fn(&mut Golden),
        |golden| shorten(&mut golden.cases[0].logits),
        |golden| shorten(&mut golden.cases[0].experts),
        |golden| shorten(&mut golden.cases[0].weights),
        |golden| shorten(&mut golden.cases[0].router),
        |golden| shorten(&mut golden.stream.hidden),
        |golden| shorten(&mut golden.stream.expert_out),
        |golden| golden.cases[0].prompt = golden.cases[0].tokens.len(),
    ] {
        let mut short = golden.clone();
        damage(&mut short);
        assert!(judge(shape, &short, &seen, Rules::FLOAT).is_err());
        assert!(short.check_shape(shape).is_err());
    }
}
