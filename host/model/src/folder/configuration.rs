//! config.json to a configuration: flat, or nested under `text_config` as published. What would change the arithmetic
//! and is not known here is refused by name rather than ignored.

use serde_json::Value;

use super::json::{JsonFile, Object};
use crate::config::{Config, LayerKind, RawConfig, Stated, ValueHeadOrder, kinds_by_interval};
use crate::error::ModelError;

/// Model types of this architecture, nested and flat.
const MODEL_TYPES: [&str; 2] = ["qwen3_5_moe", "qwen3_5_moe_text"];
/// Every fourth layer is full attention where the file does not say otherwise.
const DEFAULT_INTERVAL: u64 = 4;
/// The part of a head that is rotated where the file does not say otherwise.
const DEFAULT_ROTATED: f64 = 0.25;

/// What config.json says.
pub(super) struct FolderConfig {
    pub(super) config: Config,
    /// Whether the embedding serves as output matrix.
    pub(super) tied: bool,
    /// `eos_token_id`.
    pub(super) end_of_text: Vec<u64>,
}

/// Read and check the configuration.
pub(super) fn read(file: &JsonFile) -> Result<FolderConfig, ModelError> {
    let root = file.root()?;
    let text = root.object("text_config", "text_config.")?.unwrap_or(root);
    for object in [root, text] {
        let model_type = object.optional_string("model_type")?.ok_or_else(|| object.missing("model_type"))?;
        if !MODEL_TYPES.contains(&model_type) {
            let what = format!("model type {model_type:?} (only {} is)", MODEL_TYPES.join(" or "));
            return Err(object.unsupported("model_type", what));
        }
        refuse_other_arithmetic(object)?;
    }

    let layers = text.integer("num_hidden_layers")?;
    let layer_kinds = layer_kinds(text, layers.value)?;
    let head_dimension = text.integer("head_dim")?;
    let (rope_theta, rotated) = rope(text)?;
    let rope_dimensions = rope_dimensions(text, head_dimension.value, &rotated)?;
    let tied = match text.optional_bool("tie_word_embeddings")? {
        Some(tied) => tied,
        None => root.optional_bool("tie_word_embeddings")?.unwrap_or(false),
    };
    let mut end_of_text = text.integers("eos_token_id")?;
    end_of_text.extend(root.integers("eos_token_id")?);

    let config = RawConfig {
        hidden: text.integer("hidden_size")?,
        vocabulary: text.integer("vocab_size")?,
        heads: text.integer("num_attention_heads")?,
        kv_heads: text.integer("num_key_value_heads")?,
        head_dimension,
        rope_dimensions,
        rope_theta,
        rms_epsilon: text.float("rms_norm_eps")?,
        context_length: text.integer("max_position_embeddings")?,
        experts: text.integer("num_experts")?,
        experts_per_token: text.integer("num_experts_per_tok")?,
        expert_width: text.integer("moe_intermediate_size")?,
        shared_expert_width: text.integer("shared_expert_intermediate_size")?,
        delta_key_heads: text.integer("linear_num_key_heads")?,
        delta_value_heads: text.integer("linear_num_value_heads")?,
        delta_head_dimension: text.integer("linear_key_head_dim")?,
        delta_value_dimension: text.integer("linear_value_head_dim")?,
        delta_conv_kernel: text.integer("linear_conv_kernel_dim")?,
        layers,
        layer_kinds,
        value_head_order: ValueHeadOrder::Grouped,
    }
    .check(file.path())?;
    Ok(FolderConfig { config, tied, end_of_text })
}

/// `layer_types`, else `full_attention_interval`.
fn layer_kinds(text: Object<'_>, layers: u64) -> Result<Stated<Vec<LayerKind>>, ModelError> {
    if let Some(types) = text.optional_list("layer_types")? {
        let kind = |value: &Value| match value.as_str() {
            Some("linear_attention") => Ok(LayerKind::DeltaNet),
            Some("full_attention") => Ok(LayerKind::Attention),
            _ => Err(text.unsupported("layer_types", format!("layer type {value}"))),
        };
        let value = types.iter().map(kind).collect::<Result<_, _>>()?;
        return Ok(Stated { key: "layer_types".to_owned(), value });
    }
    let key = "full_attention_interval";
    let interval = text.optional_integer(key)?.unwrap_or(DEFAULT_INTERVAL);
    if interval == 0 {
        return Err(text.complaint(key, interval, "must be at least 1".to_owned()));
    }
    Ok(Stated { key: key.to_owned(), value: kinds_by_interval(layers, interval) })
}

/// Base of the rotation and the part of a head that is rotated: under `rope_parameters`, or as older files have them.
fn rope(text: Object<'_>) -> Result<(Stated<f64>, Stated<f64>), ModelError> {
    let rope = text.object("rope_parameters", "rope_parameters.")?;
    for scaling in [rope, text.object("rope_scaling", "rope_scaling.")?].into_iter().flatten() {
        for key in ["rope_type", "type"] {
            if let Some(kind) = scaling.optional_string(key)?.filter(|kind| *kind != "default") {
                return Err(scaling.unsupported(key, format!("rope type {kind:?}")));
            }
        }
    }
    let rope = rope.unwrap_or(text);
    let key = "partial_rotary_factor";
    let rotated = match rope.optional_float(key)? {
        Some(value) => value,
        None => text.optional_float(key)?.unwrap_or(DEFAULT_ROTATED),
    };
    Ok((rope.float("rope_theta")?, Stated { key: key.to_owned(), value: rotated }))
}

fn rope_dimensions(
    text: Object<'_>,
    head_dimension: u64,
    rotated: &Stated<f64>,
) -> Result<Stated<u64>, ModelError> {
    let dimensions = head_dimension as f64 * rotated.value;
    let whole = dimensions.fract() == 0.0 && dimensions >= 1.0 && dimensions <= head_dimension as f64;
    if !whole {
        let why = format!("must leave a whole number of a head's {head_dimension} dimensions");
        return Err(text.complaint(&rotated.key, rotated.value, why));
    }
    Ok(Stated { key: rotated.key.clone(), value: dimensions as u64 })
}

/// Keys that the reference implementation obeys and that would give other numbers than exact-v1 does.
fn refuse_other_arithmetic(object: Object<'_>) -> Result<(), ModelError> {
    if let Some(quantised) = object.get("quantization_config") {
        let method = quantised.get("quant_method").and_then(Value::as_str).unwrap_or("unnamed");
        let what = format!("a checkpoint quantised by {method} (safetensors must hold F32, F16 or BF16)");
        return Err(object.unsupported("quantization_config", what));
    }
    if let Some(function) = object.optional_string("hidden_act")?.filter(|function| *function != "silu") {
        return Err(object.unsupported("hidden_act", format!("activation {function:?}")));
    }
    if object.optional_bool("attention_bias")? == Some(true) {
        return Err(object.unsupported("attention_bias", "attention with biases".to_owned()));
    }
    if object.optional_bool("attn_output_gate")? == Some(false) {
        return Err(object.unsupported("attn_output_gate", "attention without an output gate".to_owned()));
    }
    if object.optional_list("mlp_only_layers")?.is_some_and(|layers| !layers.is_empty()) {
        return Err(object.unsupported("mlp_only_layers", "a layer without experts".to_owned()));
    }
    if let Some(step) = object.optional_integer("decoder_sparse_step")?.filter(|step| *step != 1) {
        return Err(
            object.unsupported("decoder_sparse_step", format!("experts in every {step}th layer only"))
        );
    }
    Ok(())
}
