//! Opens the real files: every container of the tiny model and atlas, and compares what they hold with each other.

#![allow(clippy::unwrap_used)] // a test that panics has failed

mod forge;

use forge::{large_model, repository};
use kvasir_model::{
    ExpertBlob, ExpertIndex, Format, LayerIndex, LayerKind, Mixer, Model, Tensor, ValueHeadOrder,
};

fn open(path: &str) -> Model {
    Model::open(&repository(path)).unwrap()
}

fn layer(index: u16) -> LayerIndex {
    LayerIndex(index)
}

#[test]
fn atlas_is_what_its_card_says() {
    let model = open("models/atlas/atlas-q4_k_m.gguf");
    let config = model.config();
    assert_eq!(model.name(), "atlas");
    assert_eq!((config.layers, config.hidden, config.vocabulary), (4, 256, 2048));
    assert_eq!(
        (config.heads, config.kv_heads, config.head_dimension, config.rope_dimensions),
        (4, 2, 64, 16)
    );
    assert_eq!((config.experts, config.experts_per_token, config.expert_width), (16, 4, 256));
    assert_eq!((config.delta.key_heads, config.delta.value_heads, config.delta.channels()), (2, 4, 512));
    assert_eq!(
        config.layer_kinds,
        [LayerKind::DeltaNet, LayerKind::DeltaNet, LayerKind::DeltaNet, LayerKind::Attention]
    );
    assert_eq!(config.value_head_order, ValueHeadOrder::Tiled);
    assert_eq!((config.rope_theta, config.rms_epsilon), (1e7, 1e-6));
    assert_eq!(model.output().format(), Format::Q6K);
    assert_eq!(model.embedding().format(), Format::Q4K);
    let expert = model.expert(layer(2), ExpertIndex(15)).unwrap();
    assert_eq!(
        (expert.gate.format(), expert.up.format(), expert.down.format()),
        (Format::Q4K, Format::Q4K, Format::Q6K)
    );
    expert.check_weights().unwrap();
}

#[test]
fn experts_are_consecutive_slices_of_their_stack() {
    let model = open("tests/data/tiny/tiny-q8_0.gguf");
    let bytes = |expert| {
        let tensors = model.expert(layer(1), ExpertIndex(expert)).unwrap();
        assert_eq!((tensors.gate.rows(), tensors.gate.columns()), (32, 64));
        assert_eq!((tensors.down.rows(), tensors.down.columns()), (64, 32));
        tensors.gate.bytes().as_ptr() as usize
    };
    assert_eq!(bytes(7) - bytes(0), 7 * 32 * 68);
}

#[test]
fn experts_out_of_range_are_refused() {
    let model = open("tests/data/tiny/tiny-q8_0.gguf");
    for (wrong_layer, wrong_expert) in [(0, 8), (4, 0), (u16::MAX, u16::MAX)] {
        let error = model.expert(layer(wrong_layer), ExpertIndex(wrong_expert)).unwrap_err().to_string();
        assert!(error.contains("the model has 4 layers of 8 experts"), "{error}");
    }
}

/// The same model in five containers: one configuration, but for the order of value heads.
#[test]
fn containers_agree_on_the_configuration() {
    let grouped = open("tests/data/tiny-hf").config().canonical_text();
    assert_eq!(open("tests/data/tiny-published").config().canonical_text(), grouped);
    let tiled = grouped.replace("value_head_order grouped\n", "value_head_order tiled\n");
    assert_ne!(tiled, grouped);
    for file in ["f16", "bf16", "q8_0", "q4_0", "mtp-f16"] {
        let model = open(&format!("tests/data/tiny/tiny-{file}.gguf"));
        assert_eq!(model.config().canonical_text(), tiled, "{file}");
        assert_eq!(model.config().end_of_text, open("tests/data/tiny-hf").config().end_of_text, "{file}");
    }
}

#[test]
fn the_canonical_text_is_fixed() {
    let expected = "architecture qwen35moe\nattention_layers 3\ncontext_length 512\ndelta_conv_kernel 4\n\
        delta_head_dimension 16\ndelta_key_heads 2\ndelta_value_dimension 16\ndelta_value_heads 4\nexpert_width 32\n\
        experts 8\nexperts_per_token 2\nhead_dimension 32\nheads 2\nhidden 64\nkv_heads 1\nlayers 4\n\
        rms_epsilon 358637bd\nrope_dimensions 8\nrope_theta 4b189680\nshared_expert_width 96\n\
        value_head_order tiled\nvocabulary 512\n";
    assert_eq!(open("tests/data/tiny/tiny-f16.gguf").config().canonical_text(), expected);
}

/// Same weights in BF16 on both sides: experts are equal byte for byte, and so are their digests.
#[test]
fn experts_have_one_digest_whatever_the_container() {
    let gguf = open("tests/data/tiny/tiny-bf16.gguf");
    let folder = open("tests/data/tiny-hf");
    let published = open("tests/data/tiny-published");
    for index in gguf.config().layer_indices() {
        for expert in (0..8).map(ExpertIndex) {
            let digest = gguf.expert_digest(index, expert).unwrap();
            assert_eq!(folder.expert_digest(index, expert).unwrap(), digest);
            assert_eq!(published.expert_digest(index, expert).unwrap(), digest);
            let blob = folder.expert(index, expert).unwrap().blob();
            assert_eq!(ExpertBlob::digest(&blob), digest);
            assert_eq!(ExpertBlob::parse(&blob).unwrap().gate.format, Format::BF16);
        }
    }
}

/// Multi-token-prediction and vision tensors change nothing.
#[test]
fn what_is_left_aside_leaves_the_model_as_it_is() {
    let plain = open("tests/data/tiny/tiny-f16.gguf");
    let predicting = open("tests/data/tiny/tiny-mtp-f16.gguf");
    assert_eq!(predicting.digests().unwrap().model, plain.digests().unwrap().model);
    assert_eq!(predicting.digests().unwrap().leaf_count(), plain.digests().unwrap().leaf_count());
}

#[test]
fn folders_norms_and_decay_rates_become_what_gguf_stores() {
    let gguf = open("tests/data/tiny/tiny-bf16.gguf");
    let folder = open("tests/data/tiny-hf");
    // The converter adds 1 in f32 as well, and takes the exponential in f32 where we take it in f64.
    assert_eq!(folder.output_norm(), gguf.output_norm());
    for index in gguf.config().layer_indices() {
        let (ours, theirs) = (folder.layer(index), gguf.layer(index));
        assert_eq!(ours.input_norm, theirs.input_norm);
        assert_eq!(ours.post_attention_norm, theirs.post_attention_norm);
        match (ours.mixer, theirs.mixer) {
            (
                Mixer::DeltaNet { a, dt_bias, norm, .. },
                Mixer::DeltaNet { a: a_tiled, dt_bias: bias_tiled, norm: norm_tiled, .. },
            ) => {
                assert_eq!(norm, norm_tiled, "the delta net's own norm gets no 1 added");
                // Two key heads, four value heads: tiled order is 0 2 1 3 of grouped order.
                for (tiled, grouped) in [0, 2, 1, 3].into_iter().enumerate() {
                    assert!((a[grouped] - a_tiled[tiled]).abs() <= a[grouped].abs() * 1e-6);
                    assert!(a[grouped] < 0.0);
                    assert_eq!(dt_bias[grouped], bias_tiled[tiled]);
                }
            }
            (
                Mixer::Attention { q, q_norm, k_norm, .. },
                Mixer::Attention { q: q_gguf, q_norm: q_norm_gguf, k_norm: k_norm_gguf, .. },
            ) => {
                assert_eq!((q_norm, k_norm), (q_norm_gguf, k_norm_gguf));
                assert_eq!(q.bytes(), q_gguf.bytes());
            }
            _ => panic!("layer {index} has two kinds"),
        }
    }
}

/// The orders that `ValueHeadOrder` names are the ones in the files: head by head, the rows are the same.
#[test]
fn value_heads_lie_where_the_order_says() {
    let gguf = open("tests/data/tiny/tiny-bf16.gguf");
    let folder = open("tests/data/tiny-hf");
    let delta = gguf.config().delta;
    let rows = |tensor: &Tensor, head: u32| {
        let head_bytes = delta.value_dimension as usize * tensor.columns() * 2;
        tensor.bytes()[head as usize * head_bytes..][..head_bytes].to_vec()
    };
    let (Mixer::DeltaNet { z: grouped, .. }, Mixer::DeltaNet { z: tiled, .. }) =
        (folder.layer(layer(0)).mixer, gguf.layer(layer(0)).mixer)
    else {
        panic!("layer 0 is a delta net")
    };
    for head in 0..delta.value_heads {
        let key = ValueHeadOrder::Tiled.key_head(head, delta.key_heads, delta.value_heads);
        let same: Vec<u32> =
            (0..delta.value_heads).filter(|&other| rows(&grouped, other) == rows(&tiled, head)).collect();
        assert_eq!(same.len(), 1);
        assert_eq!(ValueHeadOrder::Grouped.key_head(same[0], delta.key_heads, delta.value_heads), key);
    }
}

#[test]
fn larger_files_open_and_hold_sane_weights() {
    for file in ["atlas/atlas-q8_0.gguf", "atlas/atlas-f16.gguf", "atlas-hf"] {
        let Some(path) = large_model(file) else { continue };
        let model = Model::open(&path).unwrap();
        assert_eq!(model.config().experts, 16);
        for index in model.config().layer_indices() {
            for expert in (0..16).map(ExpertIndex) {
                model.expert(index, expert).unwrap().check_weights().unwrap();
            }
        }
        let own = open("models/atlas/atlas-q4_k_m.gguf");
        let order = |text: String| text.replace("grouped", "tiled");
        assert_eq!(order(model.config().canonical_text()), own.config().canonical_text());
        assert_eq!(model.config().end_of_text, own.config().end_of_text);
    }
}
