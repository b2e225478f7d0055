//! GGUF's tensor names and conventions. Norm weights and decay rates stand as they are to be used; value heads are
//! tiled (`ValueHeadOrder::Tiled`), which is the forward pass's to mind: no weight is moved.

use crate::assemble::{Layout, Part, Taker};
use crate::config::Config;
use crate::error::ModelError;
use crate::experts::LayerExperts;

/// How GGUF lays a model out.
pub(super) struct GgufLayout {
    /// Trunk layers; blocks from this number on hold multi-token prediction.
    pub(super) layers: u32,
    /// All blocks that the file declares.
    pub(super) blocks: u32,
}

impl Layout for GgufLayout {
    fn embedding(&self) -> String {
        "token_embd.weight".to_owned()
    }

    fn output_norm(&self) -> String {
        "output_norm.weight".to_owned()
    }

    fn output(&self) -> String {
        "output.weight".to_owned()
    }

    fn output_is_embedding(&self, stored: bool) -> bool {
        !stored
    }

    fn layer_name(&self, layer: u32, part: Part) -> String {
        let name = match part {
            Part::InputNorm => "attn_norm.weight",
            Part::PostAttentionNorm => "post_attention_norm.weight",
            Part::Router => "ffn_gate_inp.weight",
            Part::SharedGate => "ffn_gate_shexp.weight",
            Part::SharedUp => "ffn_up_shexp.weight",
            Part::SharedDown => "ffn_down_shexp.weight",
            Part::SharedExpertGate => "ffn_gate_inp_shexp.weight",
            Part::DeltaQkv => "attn_qkv.weight",
            Part::DeltaZ => "attn_gate.weight",
            Part::DeltaBeta => "ssm_beta.weight",
            Part::DeltaAlpha => "ssm_alpha.weight",
            Part::DeltaConvolution => "ssm_conv1d.weight",
            Part::DeltaDecay => "ssm_a",
            Part::DeltaBias => "ssm_dt.bias",
            Part::DeltaNorm => "ssm_norm.weight",
            Part::DeltaOut => "ssm_out.weight",
            Part::AttentionQ => "attn_q.weight",
            Part::AttentionK => "attn_k.weight",
            Part::AttentionV => "attn_v.weight",
            Part::AttentionOutput => "attn_output.weight",
            Part::QNorm => "attn_q_norm.weight",
            Part::KNorm => "attn_k_norm.weight",
        };
        format!("blk.{layer}.{name}")
    }

    fn fused_attention(&self, layer: u32) -> Option<String> {
        Some(format!("blk.{layer}.attn_qkv.weight"))
    }

    fn norm(&self, stored: Vec<f32>) -> Vec<f32> {
        stored
    }

    fn decay_rates(&self, stored: Vec<f32>) -> Vec<f32> {
        stored
    }

    fn experts(&self, layer: u32, config: &Config, taker: &mut Taker) -> Result<LayerExperts, ModelError> {
        let (experts, hidden) = (config.experts as usize, config.hidden as usize);
        let width = config.expert_width as usize;
        let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps.weight");
        let directory = &mut taker.directory;
        let (gate, up) = if directory.contains(&name("gate_up")) {
            let fused = directory.take(&name("gate_up"))?.stack(experts, 2 * width, hidden)?;
            (fused.rows(0..width), fused.rows(width..2 * width))
        } else {
            let gate = directory.take(&name("gate"))?.stack(experts, width, hidden)?;
            (gate, directory.take(&name("up"))?.stack(experts, width, hidden)?)
        };
        let down = directory.take(&name("down"))?.stack(experts, hidden, width)?;
        Ok(LayerExperts::Stacked { gate, up, down })
    }

    fn left_aside(&self, name: &str) -> bool {
        // Precomputed rope frequencies are not used: exact-v1 computes its own. They are written only for scaled rope,
        // which is refused by its key, so a file that has them here would differ: not left aside.
        let block = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map(|(number, _)| number);
        block
            .and_then(|number| number.parse::<u32>().ok())
            .is_some_and(|n| (self.layers..self.blocks).contains(&n))
    }
}
