//! A model's configuration, the same whatever container it came in, with every value checked against the others.
//!
//! The readers of GGUF keys and of config.json build a `RawConfig`; only `RawConfig::check` makes a `Config`.

use std::fmt::Write as _;
use std::path::Path;

use crate::error::ModelError;
use crate::identity::{LayerIndex, TokenId};
use crate::limits;

/// A Qwen3.5-MoE text model (trunk only: multi-token prediction and vision are left aside).
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `qwen35moe`, whatever the container calls it.
    pub architecture: String,
    /// Decoder layers of the trunk.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Rows of the embedding.
    pub vocabulary: u32,
    /// Query heads of an attention layer.
    pub heads: u32,
    /// Key and value heads of an attention layer; divides `heads`.
    pub kv_heads: u32,
    /// Dimension of a query, key or value head.
    pub head_dimension: u32,
    /// Leading dimensions of a head that are rotated by position; even.
    pub rope_dimensions: u32,
    /// Base of the rotation. An f32 widened, since GGUF keeps an f32 and both containers must give the same bits.
    pub rope_theta: f64,
    /// Epsilon of every RMS norm.
    pub rms_epsilon: f32,
    /// Positions that the model was made for.
    pub context_length: u32,
    /// Routed experts of a layer.
    pub experts: u32,
    /// Experts that a row is routed to.
    pub experts_per_token: u32,
    /// Width of a routed expert.
    pub expert_width: u32,
    /// Width of the shared expert.
    pub shared_expert_width: u32,
    /// Shape of the gated delta net layers.
    pub delta: DeltaConfig,
    /// What each layer's mixer is, `layers` long.
    pub layer_kinds: Vec<LayerKind>,
    /// Which value heads share a key head.
    pub value_head_order: ValueHeadOrder,
    /// Tokens that end a text, ascending. Not part of the canonical text: like the vocabulary they change no tensor.
    pub end_of_text: Vec<TokenId>,
}

/// Shape of a gated delta net layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaConfig {
    /// Query and key heads.
    pub key_heads: u32,
    /// Value heads; a multiple of `key_heads`.
    pub value_heads: u32,
    /// Dimension of a query or key head.
    pub head_dimension: u32,
    /// Dimension of a value head.
    pub value_dimension: u32,
    /// Taps of the convolution.
    pub conv_kernel: u32,
}

/// A layer's mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Gated delta net.
    DeltaNet,
    /// Gated full attention.
    Attention,
}

/// How value heads share key heads (K key heads, V value heads).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueHeadOrder {
    /// Value head j uses key head j / (V / K): Hugging Face.
    Grouped,
    /// Value head j uses key head j mod K: GGUF.
    Tiled,
}

impl ValueHeadOrder {
    /// The key head that value head `value_head` uses.
    pub fn key_head(self, value_head: u32, key_heads: u32, value_heads: u32) -> u32 {
        match self {
            ValueHeadOrder::Grouped => value_head / (value_heads / key_heads),
            ValueHeadOrder::Tiled => value_head % key_heads,
        }
    }

    fn word(self) -> &'static str {
        match self {
            ValueHeadOrder::Grouped => "grouped",
            ValueHeadOrder::Tiled => "tiled",
        }
    }
}

impl DeltaConfig {
    /// Width of the query part, and of the key part, of `qkv`.
    pub fn key_width(&self) -> usize {
        self.key_heads as usize * self.head_dimension as usize
    }

    /// Width of the value part of `qkv`, of `z` and of the input of `out`.
    pub fn value_width(&self) -> usize {
        self.value_heads as usize * self.value_dimension as usize
    }

    /// Channels of the convolution: query, key and value parts together.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }
}

impl Config {
    /// What the mixer of `layer` is; `None` beyond the last layer.
    pub fn layer_kind(&self, layer: LayerIndex) -> Option<LayerKind> {
        self.layer_kinds.get(usize::from(layer.0)).copied()
    }

    /// The layers of the trunk in order.
    pub fn layer_indices(&self) -> impl Iterator<Item = LayerIndex> + use<> {
        // `layers` is at most MAX_LAYERS, which fits u16.
        (0..self.layers as u16).map(LayerIndex)
    }

    /// The text whose digest binds a model to its configuration: one `key value` line per value, sorted by key, each
    /// ended by a line feed; integers in decimal, floats as eight hexadecimal digits of their f32 bits.
    pub fn canonical_text(&self) -> String {
        let float = |value: f32| format!("{:08x}", value.to_bits());
        let attention: Vec<String> = (self.layer_kinds.iter().enumerate())
            .filter(|(_, kind)| **kind == LayerKind::Attention)
            .map(|(index, _)| index.to_string())
            .collect();
        let mut lines = vec![
            ("architecture", self.architecture.clone()),
            ("attention_layers", attention.join(",")),
            ("context_length", self.context_length.to_string()),
            ("delta_conv_kernel", self.delta.conv_kernel.to_string()),
            ("delta_head_dimension", self.delta.head_dimension.to_string()),
            ("delta_key_heads", self.delta.key_heads.to_string()),
            ("delta_value_dimension", self.delta.value_dimension.to_string()),
            ("delta_value_heads", self.delta.value_heads.to_string()),
            ("expert_width", self.expert_width.to_string()),
            ("experts", self.experts.to_string()),
            ("experts_per_token", self.experts_per_token.to_string()),
            ("head_dimension", self.head_dimension.to_string()),
            ("heads", self.heads.to_string()),
            ("hidden", self.hidden.to_string()),
            ("kv_heads", self.kv_heads.to_string()),
            ("layers", self.layers.to_string()),
            ("rms_epsilon", float(self.rms_epsilon)),
            ("rope_dimensions", self.rope_dimensions.to_string()),
            ("rope_theta", float(self.rope_theta as f32)),
            ("shared_expert_width", self.shared_expert_width.to_string()),
            ("value_head_order", self.value_head_order.word().to_owned()),
            ("vocabulary", self.vocabulary.to_string()),
        ];
        lines.sort();
        lines.iter().fold(String::new(), |mut text, (key, value)| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{key} {value}");
            text
        })
    }
}

/// A value as a container spells it: the key to blame and the number.
#[derive(Clone, Debug)]
pub(crate) struct Stated<T> {
    pub(crate) key: String,
    pub(crate) value: T,
}

/// A configuration as read, before any value was compared with another. Integers are as wide as the file's.
pub(crate) struct RawConfig {
    pub(crate) layers: Stated<u64>,
    pub(crate) hidden: Stated<u64>,
    pub(crate) vocabulary: Stated<u64>,
    pub(crate) heads: Stated<u64>,
    pub(crate) kv_heads: Stated<u64>,
    pub(crate) head_dimension: Stated<u64>,
    pub(crate) rope_dimensions: Stated<u64>,
    pub(crate) rope_theta: Stated<f64>,
    pub(crate) rms_epsilon: Stated<f64>,
    pub(crate) context_length: Stated<u64>,
    pub(crate) experts: Stated<u64>,
    pub(crate) experts_per_token: Stated<u64>,
    pub(crate) expert_width: Stated<u64>,
    pub(crate) shared_expert_width: Stated<u64>,
    pub(crate) delta_key_heads: Stated<u64>,
    pub(crate) delta_value_heads: Stated<u64>,
    pub(crate) delta_head_dimension: Stated<u64>,
    pub(crate) delta_value_dimension: Stated<u64>,
    pub(crate) delta_conv_kernel: Stated<u64>,
    pub(crate) layer_kinds: Stated<Vec<LayerKind>>,
    pub(crate) value_head_order: ValueHeadOrder,
}

impl RawConfig {
    /// Check every value against its limit and against the others. `file` is named in errors. `end_of_text` is left
    /// empty: it depends on the tokenizer.
    pub(crate) fn check(self, file: &Path) -> Result<Config, ModelError> {
        let complaint = |key: &str, value: String, why: String| ModelError::Configuration {
            file: file.to_owned(),
            key: key.to_owned(),
            value,
            why,
        };
        // Every integer is at least 1 (nothing may divide by zero later) and at most a named limit (so that products
        // of two of them fit a usize, and all of them a u32).
        let within = |stated: &Stated<u64>, limit: u64| {
            if (1..=limit).contains(&stated.value) {
                Ok(stated.value as u32)
            } else {
                Err(complaint(&stated.key, stated.value.to_string(), format!("must be from 1 to {limit}")))
            }
        };
        let against = |stated: &Stated<u64>, holds: bool, why: String| {
            if holds { Ok(()) } else { Err(complaint(&stated.key, stated.value.to_string(), why)) }
        };

        let config = Config {
            architecture: ARCHITECTURE.to_owned(),
            layers: within(&self.layers, limits::MAX_LAYERS)?,
            hidden: within(&self.hidden, limits::MAX_WIDTH)?,
            vocabulary: within(&self.vocabulary, limits::MAX_VOCABULARY)?,
            heads: within(&self.heads, limits::MAX_HEADS)?,
            kv_heads: within(&self.kv_heads, limits::MAX_HEADS)?,
            head_dimension: within(&self.head_dimension, limits::MAX_WIDTH)?,
            rope_dimensions: within(&self.rope_dimensions, limits::MAX_WIDTH)?,
            rope_theta: f64::from(self.rope_theta.value as f32),
            rms_epsilon: self.rms_epsilon.value as f32,
            context_length: within(&self.context_length, limits::MAX_CONTEXT)?,
            experts: within(&self.experts, limits::MAX_EXPERTS)?,
            experts_per_token: within(&self.experts_per_token, limits::MAX_EXPERTS)?,
            expert_width: within(&self.expert_width, limits::MAX_WIDTH)?,
            shared_expert_width: within(&self.shared_expert_width, limits::MAX_WIDTH)?,
            delta: DeltaConfig {
                key_heads: within(&self.delta_key_heads, limits::MAX_HEADS)?,
                value_heads: within(&self.delta_value_heads, limits::MAX_HEADS)?,
                head_dimension: within(&self.delta_head_dimension, limits::MAX_WIDTH)?,
                value_dimension: within(&self.delta_value_dimension, limits::MAX_WIDTH)?,
                conv_kernel: within(&self.delta_conv_kernel, limits::MAX_CONVOLUTION_TAPS)?,
            },
            layer_kinds: self.layer_kinds.value,
            value_head_order: self.value_head_order,
            end_of_text: Vec::new(),
        };

        against(
            &self.kv_heads,
            config.heads.is_multiple_of(config.kv_heads),
            format!("must divide the number of heads, {}", config.heads),
        )?;
        against(
            &self.rope_dimensions,
            config.rope_dimensions <= config.head_dimension && config.rope_dimensions.is_multiple_of(2),
            format!("must be even and at most the head dimension, {}", config.head_dimension),
        )?;
        against(
            &self.experts_per_token,
            config.experts_per_token <= config.experts,
            format!("must be at most the number of experts, {}", config.experts),
        )?;
        against(
            &self.delta_value_heads,
            config.delta.value_heads.is_multiple_of(config.delta.key_heads),
            format!("must be a multiple of the number of key heads, {}", config.delta.key_heads),
        )?;
        if config.layer_kinds.len() != config.layers as usize {
            let why = format!("must tell the kind of each of {} layers", config.layers);
            return Err(complaint(
                &self.layer_kinds.key,
                format!("{} entries", config.layer_kinds.len()),
                why,
            ));
        }
        let theta = config.rope_theta;
        if !theta.is_finite() || theta < 1.0 {
            let why = "must be a number of at least 1".to_owned();
            return Err(complaint(&self.rope_theta.key, self.rope_theta.value.to_string(), why));
        }
        let epsilon = config.rms_epsilon;
        if !epsilon.is_finite() || epsilon <= 0.0 || epsilon >= 1.0 {
            let why = "must lie between 0 and 1".to_owned();
            return Err(complaint(&self.rms_epsilon.key, self.rms_epsilon.value.to_string(), why));
        }
        Ok(config)
    }
}

/// The one architecture known here, as GGUF names it.
pub(crate) const ARCHITECTURE: &str = "qwen35moe";

/// The kinds of `layers` layers where every `interval`-th is full attention.
pub(crate) fn kinds_by_interval(layers: u64, interval: u64) -> Vec<LayerKind> {
    (0..layers.min(limits::MAX_LAYERS))
        .map(|index| match (index + 1).checked_rem(interval) {
            Some(0) => LayerKind::Attention,
            _ => LayerKind::DeltaNet,
        })
        .collect()
}
