//! GGUF's keys of the architecture to a configuration. What would change the arithmetic and is not known here is
//! refused by name rather than ignored.

use super::keys::Keys;
use crate::config::{ARCHITECTURE, Config, LayerKind, RawConfig, Stated, ValueHeadOrder, kinds_by_interval};
use crate::error::ModelError;
use crate::limits;

/// Every fourth layer is full attention where the file does not say otherwise.
const DEFAULT_INTERVAL: u64 = 4;
/// The router's function as ggml numbers it: softmax.
const GATING_SOFTMAX: u64 = 1;

/// Read and check the configuration. Also returns how many multi-token-prediction blocks follow the trunk.
pub(super) fn read(keys: &Keys<'_>) -> Result<(Config, u32), ModelError> {
    let architecture = keys.string("general.architecture")?;
    if architecture != ARCHITECTURE {
        let what = format!("architecture {architecture:?} (only {ARCHITECTURE} is)");
        return Err(keys.unsupported("general.architecture", what));
    }
    refuse_other_arithmetic(keys)?;

    let blocks = keys.integer(&key("block_count"))?;
    let predicting = keys.optional_integer(&key("nextn_predict_layers"))?.unwrap_or(0);
    let layers = blocks.value.checked_sub(predicting).filter(|&layers| layers > 0).ok_or_else(|| {
        let why = format!("must exceed the number of multi-token-prediction blocks, {predicting}");
        keys.configuration(&blocks.key, blocks.value, &why)
    })?;

    let head_dimension = keys.integer(&key("attention.key_length"))?;
    let value_length = keys.integer(&key("attention.value_length"))?;
    if value_length.value != head_dimension.value {
        let why = format!("must equal {}, {}", head_dimension.key, head_dimension.value);
        return Err(keys.configuration(&value_length.key, value_length.value, &why));
    }

    let value_heads = keys.integer(&key("ssm.time_step_rank"))?;
    let inner = keys.integer(&key("ssm.inner_size"))?;
    let value_dimension = match inner.value.checked_div(value_heads.value) {
        Some(width) if inner.value.is_multiple_of(value_heads.value) => width,
        _ => {
            let why = format!("must be a multiple of {}, {}", value_heads.key, value_heads.value);
            return Err(keys.configuration(&inner.key, inner.value, &why));
        }
    };

    let tokens = keys.strings("tokenizer.ggml.tokens")?.len() as u64;
    let config = RawConfig {
        layers: Stated { key: blocks.key.clone(), value: layers },
        hidden: keys.integer(&key("embedding_length"))?,
        vocabulary: Stated { key: "tokenizer.ggml.tokens".to_owned(), value: tokens },
        heads: keys.integer(&key("attention.head_count"))?,
        kv_heads: keys.integer(&key("attention.head_count_kv"))?,
        head_dimension,
        rope_dimensions: keys.integer(&key("rope.dimension_count"))?,
        rope_theta: keys.float(&key("rope.freq_base"))?,
        rms_epsilon: keys.float(&key("attention.layer_norm_rms_epsilon"))?,
        context_length: keys.integer(&key("context_length"))?,
        experts: keys.integer(&key("expert_count"))?,
        experts_per_token: keys.integer(&key("expert_used_count"))?,
        expert_width: keys.integer(&key("expert_feed_forward_length"))?,
        shared_expert_width: keys.integer(&key("expert_shared_feed_forward_length"))?,
        delta_key_heads: keys.integer(&key("ssm.group_count"))?,
        delta_value_heads: value_heads,
        delta_head_dimension: keys.integer(&key("ssm.state_size"))?,
        delta_value_dimension: Stated { key: inner.key, value: value_dimension },
        delta_conv_kernel: keys.integer(&key("ssm.conv_kernel"))?,
        layer_kinds: layer_kinds(keys, layers, blocks.value)?,
        value_head_order: ValueHeadOrder::Tiled,
    }
    .check(keys.path())?;
    let predicting =
        u32::try_from(predicting).ok().filter(|&count| u64::from(count) <= limits::MAX_LAYERS).ok_or_else(
            || keys.configuration(&key("nextn_predict_layers"), predicting, "must be a few at most"),
        )?;
    Ok((config, predicting))
}

fn key(rest: &str) -> String {
    format!("{ARCHITECTURE}.{rest}")
}

/// `attention.recurrent_layers` (true: delta net) for the trunk or for all blocks, else `full_attention_interval`.
fn layer_kinds(keys: &Keys<'_>, layers: u64, blocks: u64) -> Result<Stated<Vec<LayerKind>>, ModelError> {
    let listed = key("attention.recurrent_layers");
    if let Some(recurrent) = keys.optional_bools(&listed)? {
        let count = recurrent.len() as u64;
        if count != layers && count != blocks {
            let why = format!("must hold one value per layer, {layers}");
            return Err(keys.configuration(&listed, format!("{count} values"), &why));
        }
        let kind = |&recurrent: &bool| if recurrent { LayerKind::DeltaNet } else { LayerKind::Attention };
        let value = recurrent.iter().take(layers as usize).map(kind).collect();
        return Ok(Stated { key: listed, value });
    }
    let interval_key = key("full_attention_interval");
    let interval = keys.optional_integer(&interval_key)?.unwrap_or(DEFAULT_INTERVAL);
    if interval == 0 {
        return Err(keys.configuration(&interval_key, interval, "must be at least 1"));
    }
    Ok(Stated { key: interval_key, value: kinds_by_interval(layers, interval) })
}

/// Keys that other readers obey and that would give other numbers than exact-v1 does.
fn refuse_other_arithmetic(keys: &Keys<'_>) -> Result<(), ModelError> {
    let scaling = key("rope.scaling.type");
    if let Some(kind) = keys.optional_string(&scaling)?.filter(|kind| *kind != "none") {
        return Err(keys.unsupported(&scaling, format!("rope scaling {kind:?}")));
    }
    let gating = key("expert_gating_func");
    if let Some(number) = keys.optional_integer(&gating)?.filter(|number| *number != GATING_SOFTMAX) {
        return Err(keys.unsupported(&gating, format!("router function {number} (only softmax, 1, is)")));
    }
    let scale = key("expert_weights_scale");
    if let Some(factor) = keys.optional_float(&scale)?.filter(|factor| *factor != 1.0 && *factor != 0.0) {
        return Err(keys.unsupported(&scale, format!("scaling of expert weights by {factor}")));
    }
    let norm = key("expert_weights_norm");
    if keys.optional_bool(&norm)? == Some(false) {
        return Err(keys.unsupported(&norm, "a router that does not renormalise".to_owned()));
    }
    Ok(())
}
