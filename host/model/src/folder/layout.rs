//! Hugging Face's tensor names and conventions. Norm weights are stored less 1 (but for the delta net's own), decay
//! rates as logarithms; value heads are grouped (`ValueHeadOrder::Grouped`).

use kvasir_numerics::decay_rate_from_log;

use crate::assemble::{Layout, Part, Taker};
use crate::config::Config;
use crate::error::ModelError;
use crate::experts::LayerExperts;
use crate::stored::Directory;
use crate::tensor::ExpertTensors;

/// Names of a published checkpoint's text model begin so.
const NESTED: &str = "model.language_model.";
/// Names of a flat checkpoint begin so.
const FLAT: &str = "model.";

const OUTPUT: &str = "lm_head.weight";

/// How a folder lays a model out.
pub(super) struct FolderLayout {
    prefix: &'static str,
    tied: bool,
}

impl FolderLayout {
    /// Tell the names from the tensors that are there.
    pub(super) fn of(directory: &Directory, tied: bool) -> FolderLayout {
        let prefix = if directory.any_starts_with(NESTED) { NESTED } else { FLAT };
        FolderLayout { prefix, tied }
    }
}

impl Layout for FolderLayout {
    fn embedding(&self) -> String {
        format!("{}embed_tokens.weight", self.prefix)
    }

    fn output_norm(&self) -> String {
        format!("{}norm.weight", self.prefix)
    }

    fn output(&self) -> String {
        OUTPUT.to_owned()
    }

    fn output_is_embedding(&self, _stored: bool) -> bool {
        self.tied
    }

    fn layer_name(&self, layer: u32, part: Part) -> String {
        let name = match part {
            Part::InputNorm => "input_layernorm.weight",
            Part::PostAttentionNorm => "post_attention_layernorm.weight",
            Part::Router => "mlp.gate.weight",
            Part::SharedGate => "mlp.shared_expert.gate_proj.weight",
            Part::SharedUp => "mlp.shared_expert.up_proj.weight",
            Part::SharedDown => "mlp.shared_expert.down_proj.weight",
            Part::SharedExpertGate => "mlp.shared_expert_gate.weight",
            Part::DeltaQkv => "linear_attn.in_proj_qkv.weight",
            Part::DeltaZ => "linear_attn.in_proj_z.weight",
            Part::DeltaBeta => "linear_attn.in_proj_b.weight",
            Part::DeltaAlpha => "linear_attn.in_proj_a.weight",
            Part::DeltaConvolution => "linear_attn.conv1d.weight",
            Part::DeltaDecay => "linear_attn.A_log",
            Part::DeltaBias => "linear_attn.dt_bias",
            Part::DeltaNorm => "linear_attn.norm.weight",
            Part::DeltaOut => "linear_attn.out_proj.weight",
            Part::AttentionQ => "self_attn.q_proj.weight",
            Part::AttentionK => "self_attn.k_proj.weight",
            Part::AttentionV => "self_attn.v_proj.weight",
            Part::AttentionOutput => "self_attn.o_proj.weight",
            Part::QNorm => "self_attn.q_norm.weight",
            Part::KNorm => "self_attn.k_norm.weight",
        };
        format!("{}layers.{layer}.{name}", self.prefix)
    }

    fn fused_attention(&self, _layer: u32) -> Option<String> {
        None
    }

    fn norm(&self, stored: Vec<f32>) -> Vec<f32> {
        stored.into_iter().map(|weight| 1.0 + weight).collect()
    }

    fn decay_rates(&self, stored: Vec<f32>) -> Vec<f32> {
        stored.into_iter().map(decay_rate_from_log).collect()
    }

    /// `gate_up_proj` (gate rows first) and `down_proj` for all experts, or a tensor for each matrix of each expert.
    fn experts(&self, layer: u32, config: &Config, taker: &mut Taker) -> Result<LayerExperts, ModelError> {
        let (experts, hidden) = (config.experts as usize, config.hidden as usize);
        let width = config.expert_width as usize;
        let name = |rest: &str| format!("{}layers.{layer}.mlp.experts.{rest}", self.prefix);
        let directory = &mut taker.directory;
        if directory.contains(&name("gate_up_proj")) {
            let fused = directory.take(&name("gate_up_proj"))?.stack(experts, 2 * width, hidden)?;
            let down = directory.take(&name("down_proj"))?.stack(experts, hidden, width)?;
            return Ok(LayerExperts::Stacked {
                gate: fused.rows(0..width),
                up: fused.rows(width..2 * width),
                down,
            });
        }
        let mut take = |expert: usize, part: &str, rows, columns| {
            directory.take(&name(&format!("{expert}.{part}.weight")))?.matrix(rows, columns)
        };
        (0..experts)
            .map(|expert| {
                Ok(ExpertTensors {
                    gate: take(expert, "gate_proj", width, hidden)?,
                    up: take(expert, "up_proj", width, hidden)?,
                    down: take(expert, "down_proj", hidden, width)?,
                })
            })
            .collect::<Result<_, ModelError>>()
            .map(LayerExperts::Named)
    }

    fn left_aside(&self, name: &str) -> bool {
        let other_models = ["mtp.", "model.visual.", "visual."];
        other_models.iter().any(|prefix| name.starts_with(prefix)) || (self.tied && name == OUTPUT)
    }
}
