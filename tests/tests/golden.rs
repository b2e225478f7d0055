//! The forward pass against reference outputs of transformers, for every model file at hand.
//!
//! Files that lie in the project are always compared. Larger ones are compared where they are found: in
//! `$KVASIR_MODELS`, or beside the project in `shared/model`.

#![allow(clippy::unwrap_used, reason = "a test that fails to unwrap has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvasir_backbone::Experts;
use kvasir_model::Model;
use kvasir_tests::golden::{Golden, Rules, check_end_to_end, check_layer_by_layer, check_tokens};
use kvasir_tests::reference_experts::ReferenceExperts;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn tiny(file: &str) -> PathBuf {
    project().join("tests/data").join(file)
}

/// A file that is too large for the project; `None` says where it was looked for.
fn large(file: &str) -> Option<PathBuf> {
    let folder =
        std::env::var_os("KVASIR_MODELS").map_or_else(|| project().join("../shared/model"), PathBuf::from);
    let path = folder.join(file);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not there (set KVASIR_MODELS to a folder that holds {file})", path.display());
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

#[track_caller]
fn end_to_end(model: &Path, golden: &Path, rules: Rules) {
    let (opened, golden) = open(model, golden);
    match check_end_to_end(&opened, &golden, rules, &experts) {
        Ok(figures) => println!("{}: {figures:?}", model.display()),
        Err(faults) => panic!("{}:\n{faults}", model.display()),
    }
}

#[track_caller]
fn layer_by_layer(model: &Path, golden: &Path) {
    let (opened, golden) = open(model, golden);
    match check_layer_by_layer(&opened, &golden, &experts) {
        Ok(figures) => println!("{}: {figures:?}", model.display()),
        Err(faults) => panic!("{}:\n{faults}", model.display()),
    }
}

#[test]
fn atlas_q4_k_m() {
    let folder = project().join("models/atlas");
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
