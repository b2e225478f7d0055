//! Keys of a GGUF file that contradict each other, or ask for what is not supported.

use super::Cases;
use super::forge::{Gguf, Value};

pub fn config_cases(cases: &mut Cases) {
    let c = "Configuration";
    fn set(key: &'static str, value: u32) -> impl FnOnce(&mut Gguf) {
        move |gguf| {
            gguf.set(&format!("qwen35moe.{key}"), Value::U32(value));
        }
    }
    cases.config(
        "architecture-other.gguf",
        |g| {
            g.text("general.architecture", "llama");
        },
        "Unsupported",
        &["architecture \"llama\" (only qwen35moe is) is not supported yet"],
    );
    cases.config(
        "architecture-missing.gguf",
        |g| {
            g.remove_key("general.architecture");
        },
        "MissingKey",
        &["key general.architecture is missing"],
    );
    cases.config(
        "key-missing.gguf",
        |g| {
            g.remove_key("qwen35moe.ssm.state_size");
        },
        "MissingKey",
        &["key qwen35moe.ssm.state_size is missing"],
    );
    cases.config(
        "key-negative.gguf",
        |g| {
            g.set("qwen35moe.embedding_length", Value::I32(-1));
        },
        "WrongType",
        &["found integer -1", "key qwen35moe.embedding_length"],
    );
    cases.config(
        "key-text.gguf",
        |g| {
            g.text("qwen35moe.embedding_length", "32");
        },
        "WrongType",
        &["found a string"],
    );
    cases.config(
        "key-float.gguf",
        |g| {
            g.set("qwen35moe.expert_count", Value::F32(2.0));
        },
        "WrongType",
        &["found float 2"],
    );
    cases.config("layers-0.gguf", set("block_count", 0), c, &["qwen35moe.block_count = 0"]);
    cases.config("layers-too-many.gguf", set("block_count", 100_000), c, &["must be from 1 to 1024"]);
    cases.config(
        "layers-all-predicting.gguf",
        set("nextn_predict_layers", 2),
        c,
        &["must exceed the number of multi-token-prediction blocks, 2"],
    );
    cases.config(
        "layers-more-predicting.gguf",
        set("nextn_predict_layers", u32::MAX),
        c,
        &["block_count = 2"],
    );
    cases.config(
        "heads-0.gguf",
        set("attention.head_count", 0),
        c,
        &["attention.head_count = 0: must be from 1"],
    );
    cases.config(
        "kv-heads-0.gguf",
        set("attention.head_count_kv", 0),
        c,
        &["attention.head_count_kv = 0: must be from 1"],
    );
    cases.config(
        "kv-heads-not-dividing.gguf",
        set("attention.head_count_kv", 3),
        c,
        &["must divide the number of heads, 2"],
    );
    cases.config(
        "value-length-other.gguf",
        set("attention.value_length", 8),
        c,
        &["must equal qwen35moe.attention.key_length, 4"],
    );
    cases.config(
        "head-dimension-0.gguf",
        |g| {
            set("attention.value_length", 0)(g);
            set("attention.key_length", 0)(g);
        },
        c,
        &["attention.key_length = 0"],
    );
    cases.config(
        "rope-beyond-head.gguf",
        set("rope.dimension_count", 6),
        c,
        &["rope.dimension_count = 6: must be even and at most the head dimension, 4"],
    );
    cases.config("rope-odd.gguf", set("rope.dimension_count", 3), c, &["must be even"]);
    cases.config("rope-0.gguf", set("rope.dimension_count", 0), c, &["rope.dimension_count = 0"]);
    cases.config(
        "rope-scaled.gguf",
        |g| {
            g.text("qwen35moe.rope.scaling.type", "yarn");
        },
        "Unsupported",
        &["rope scaling \"yarn\""],
    );
    cases.config(
        "rope-base-nan.gguf",
        |g| {
            g.set("qwen35moe.rope.freq_base", Value::F32(f32::NAN));
        },
        c,
        &["rope.freq_base = NaN"],
    );
    cases.config(
        "rope-base-0.gguf",
        |g| {
            g.set("qwen35moe.rope.freq_base", Value::F32(0.0));
        },
        c,
        &["a number of at least 1"],
    );
    cases.config(
        "epsilon-0.gguf",
        |g| {
            g.set("qwen35moe.attention.layer_norm_rms_epsilon", Value::F32(0.0));
        },
        c,
        &["must lie between 0 and 1"],
    );
    cases.config(
        "epsilon-infinite.gguf",
        |g| {
            g.set("qwen35moe.attention.layer_norm_rms_epsilon", Value::F32(f32::INFINITY));
        },
        c,
        &["layer_norm_rms_epsilon = inf"],
    );
    cases.config("experts-0.gguf", set("expert_count", 0), c, &["expert_count = 0"]);
    cases.config("experts-too-many.gguf", set("expert_count", u32::MAX), c, &["must be from 1 to 4096"]);
    cases.config("experts-used-0.gguf", set("expert_used_count", 0), c, &["expert_used_count = 0"]);
    cases.config(
        "experts-used-too-many.gguf",
        set("expert_used_count", 3),
        c,
        &["must be at most the number of experts, 2"],
    );
    cases.config("key-heads-0.gguf", set("ssm.group_count", 0), c, &["ssm.group_count = 0"]);
    cases.config(
        "value-heads-0.gguf",
        set("ssm.time_step_rank", 0),
        c,
        &["must be a multiple of qwen35moe.ssm.time_step_rank, 0"],
    );
    cases.config(
        "value-heads-not-multiple.gguf",
        |g| {
            set("ssm.group_count", 4)(g);
        },
        c,
        &["must be a multiple of the number of key heads, 4"],
    );
    cases.config(
        "inner-size-broken.gguf",
        set("ssm.inner_size", 5),
        c,
        &["ssm.inner_size = 5: must be a multiple"],
    );
    cases.config("convolution-0.gguf", set("ssm.conv_kernel", 0), c, &["ssm.conv_kernel = 0"]);
    cases.config(
        "interval-0.gguf",
        set("full_attention_interval", 0),
        c,
        &["full_attention_interval = 0: must be at least 1"],
    );
    cases.config(
        "recurrent-too-few.gguf",
        |g| {
            g.set("qwen35moe.attention.recurrent_layers", Value::Array(7, vec![Value::Bool(true)]));
        },
        c,
        &["recurrent_layers = 1 values"],
    );
    cases.config(
        "recurrent-numbers.gguf",
        |g| {
            g.set("qwen35moe.attention.recurrent_layers", Value::Array(4, vec![Value::U32(1); 2]));
        },
        "WrongType",
        &["expected an array of bool, found an array of 2 u32"],
    );
    cases.config("router-sigmoid.gguf", set("expert_gating_func", 2), "Unsupported", &["router function 2"]);
    cases.config(
        "router-not-normal.gguf",
        |g| {
            g.set("qwen35moe.expert_weights_norm", Value::Bool(false));
        },
        "Unsupported",
        &["a router that does not renormalise"],
    );
    cases.config(
        "router-scaled.gguf",
        |g| {
            g.set("qwen35moe.expert_weights_scale", Value::F32(2.5));
        },
        "Unsupported",
        &["scaling of expert weights by 2.5"],
    );
    cases.config(
        "width-huge.gguf",
        set("embedding_length", u32::MAX),
        c,
        &["embedding_length = 4294967295: must be from 1 to 1048576"],
    );
    cases.config(
        "heads-too-many.gguf",
        set("attention.head_count", 4097),
        c,
        &["head_count = 4097: must be from 1 to 4096"],
    );
    cases.config(
        "context-too-long.gguf",
        set("context_length", u32::MAX),
        c,
        &["must be from 1 to 16777216"],
    );
    cases.config(
        "taps-too-many.gguf",
        set("ssm.conv_kernel", 65),
        c,
        &["ssm.conv_kernel = 65: must be from 1 to 64"],
    );
    cases.config(
        "split-unnamed.gguf",
        |g| {
            g.set("split.count", Value::U32(4));
        },
        c,
        &["split.count = 4: the model is split; name its files"],
    );
}
