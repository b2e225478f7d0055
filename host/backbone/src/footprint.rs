//! What a sequence and a row cost in memory, by the configuration alone: for whoever admits sequences.

use kvasir_model::{Config, LayerKind};

use crate::delta_net::state_values;

/// Bytes that a sequence takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceCost {
    /// From its first token on: the states of its delta nets.
    pub fixed: u64,
    /// For each token that it may hold: keys and values.
    pub token: u64,
}

impl SequenceCost {
    /// That of a model's sequences.
    pub fn of(config: &Config) -> SequenceCost {
        let layers = |kind| config.layer_kinds.iter().filter(|of| **of == kind).count();
        let keys = config.kv_heads as usize * config.head_dimension as usize;
        SequenceCost {
            fixed: floats(layers(LayerKind::DeltaNet) * state_values(&config.delta)),
            token: floats(layers(LayerKind::Attention) * 2 * keys),
        }
    }

    /// What a sequence started by [`crate::Backbone::start_within`] with `tokens` takes at most.
    pub fn bytes(&self, tokens: usize) -> u64 {
        self.fixed.saturating_add(self.token.saturating_mul(tokens as u64))
    }
}

/// Bytes, about, that a row takes while it is in a [`crate::Pass`]: residual stream, shared expert, the call and its
/// answer, angles and picks. What is needed only while a layer is computed is not in it: passes share that.
pub fn pass_row_bytes(config: &Config) -> u64 {
    let picks = config.experts_per_token as usize * size_of::<crate::Pick>();
    floats(4 * config.hidden as usize + config.rope_dimensions as usize) + picks as u64
}

fn floats(count: usize) -> u64 {
    (count * size_of::<f32>()) as u64
}

#[cfg(test)]
mod tests {
    use kvasir_model::{DeltaConfig, ValueHeadOrder};

    use super::*;

    /// Qwen3.5-122B-A10B.
    fn large() -> Config {
        let kind = |layer: u32| if layer % 4 == 3 { LayerKind::Attention } else { LayerKind::DeltaNet };
        Config {
            architecture: "qwen35moe".to_owned(),
            layers: 48,
            hidden: 3072,
            vocabulary: 248_320,
            heads: 32,
            kv_heads: 2,
            head_dimension: 256,
            rope_dimensions: 64,
            rope_theta: 1e7,
            rms_epsilon: 1e-6,
            context_length: 262_144,
            experts: 256,
            experts_per_token: 8,
            expert_width: 1024,
            shared_expert_width: 1024,
            delta: DeltaConfig {
                key_heads: 16,
                value_heads: 64,
                head_dimension: 128,
                value_dimension: 128,
                conv_kernel: 4,
            },
            layer_kinds: (0..48).map(kind).collect(),
            value_head_order: ValueHeadOrder::Tiled,
            end_of_text: Vec::new(),
        }
    }

    #[test]
    fn a_sequence_of_the_large_model_costs_156_megabytes_and_49_kilobytes_a_token() {
        let cost = SequenceCost::of(&large());
        assert_eq!(cost, SequenceCost { fixed: 156_303_360, token: 49_152 });
        assert_eq!(cost.bytes(4096), 156_303_360 + 4096 * 49_152);
        assert_eq!(cost.bytes(usize::MAX), u64::MAX);
        assert!(pass_row_bytes(&large()) > 4 * 3072 * 4);
    }
}
