//! One decoder layer: `x += mixer(norm(x)); x += mixture(norm(x))`.

use std::sync::Arc;
use std::time::Instant;

use kvasir_model::{ExpertIndex, LayerIndex, Mixer, Model};
use kvasir_numerics::{InstructionSet, NotFinite, rms_norm};

use crate::attention::{Attention, AttentionTensors, KeyValueCache};
use crate::delta_net::{DeltaNet, DeltaNetState, DeltaNetTensors};
use crate::error::{BackboneError, Place};
use crate::experts::Experts;
use crate::mixture::Mixture;
use crate::observer::{Observer, Timing};
use crate::parallel::{Cost, pieces, share};
use crate::part::Part;
use crate::products::{add_product, transpose_rows};
use crate::rows::Rows;
use crate::scratch::Scratch;
use crate::sequence::LayerState;

/// Cost of one value of a norm, in multiply-adds.
const NORM_COST: usize = 4;

/// A layer's tensors, without its routed experts.
#[derive(Debug)]
pub(crate) struct Layer {
    index: LayerIndex,
    epsilon: f32,
    input_norm: Arc<[f32]>,
    post_attention_norm: Arc<[f32]>,
    mixer: LayerMixer,
    mixture: Mixture,
}

#[derive(Debug)]
enum LayerMixer {
    DeltaNet(DeltaNet),
    Attention(Attention),
}

impl Layer {
    pub(crate) fn new(model: &Model, index: LayerIndex) -> Result<Layer, BackboneError> {
        let config = model.config();
        let tensors = model.layer(index);
        let mixer = match tensors.mixer {
            Mixer::DeltaNet { qkv, z, beta, alpha, conv, a, dt_bias, norm, out } => {
                let tensors = DeltaNetTensors { qkv, z, beta, alpha, conv, a, dt_bias, norm, out };
                LayerMixer::DeltaNet(DeltaNet::new(config, tensors))
            }
            Mixer::Attention { q, k, v, output, q_norm, k_norm } => {
                let tensors = AttentionTensors { q, k, v, output, q_norm, k_norm };
                LayerMixer::Attention(Attention::new(config, tensors))
            }
        };
        // All experts of a layer read one row format: the model was refused otherwise.
        let row_format = model.expert(index, ExpertIndex(0))?.gate.row_format();
        let mixture = Mixture::new(
            config,
            index,
            row_format,
            tensors.router,
            tensors.shared_expert,
            tensors.shared_expert_gate,
        )?;
        Ok(Layer {
            index,
            epsilon: config.rms_epsilon,
            input_norm: tensors.input_norm,
            post_attention_norm: tensors.post_attention_norm,
            mixer,
            mixture,
        })
    }

    /// The state with which a sequence enters the layer.
    pub(crate) fn start(&self) -> LayerState {
        match &self.mixer {
            LayerMixer::DeltaNet(net) => LayerState::DeltaNet(DeltaNetState::new(net.shape)),
            LayerMixer::Attention(attention) => {
                LayerState::Attention(KeyValueCache::new(attention.kv_heads, attention.head))
            }
        }
    }

    /// Takes the residual stream (rows x hidden) through the layer.
    #[allow(clippy::too_many_arguments, reason = "what a pass carries from layer to layer, each of it once")]
    pub(crate) fn forward(
        &self,
        hidden: &mut [f32],
        parts: &mut [Part<'_>],
        scratch: &mut Scratch,
        experts: &mut dyn Experts,
        observer: &mut Observer<'_>,
        timing: &mut Timing,
        instructions: InstructionSet,
    ) -> Result<(), BackboneError> {
        let started = Instant::now();
        if let Some(tap) = &mut observer.tap {
            tap.hidden(self.index, hidden);
        }
        let not_finite = |NotFinite| BackboneError::NotFinite { place: Place::Mixer(self.index) };
        norm_rows(hidden, &self.input_norm, self.epsilon, &mut scratch.normed, instructions);
        let layer = usize::from(self.index.0);
        let Scratch { normed, mixer, rotations, .. } = scratch;
        match &self.mixer {
            LayerMixer::DeltaNet(net) => net.forward(layer, normed, parts, mixer, instructions),
            LayerMixer::Attention(attention) => {
                attention.forward(layer, normed, parts, rotations, mixer, instructions)
            }
        }
        .map_err(not_finite)?;
        if let Some(tap) = &mut observer.tap {
            let count = normed.count();
            let mut out = vec![0.0; mixer.block.len()];
            transpose_rows(&mixer.block, count, 0..count, &mut out);
            tap.mixer_out(self.index, mixer.mixed.values(), &mut out);
            hidden.iter_mut().zip(&out).for_each(|(value, add)| *value += add);
        } else {
            add_product(&mixer.block, normed.count(), hidden);
        }
        let mixed = Instant::now();
        timing.mixers += mixed - started;

        norm_rows(hidden, &self.post_attention_norm, self.epsilon, normed, instructions);
        timing.router += mixed.elapsed();
        self.mixture.forward(hidden, scratch, experts, observer, timing, instructions)
    }
}

/// RMS norm of every row of `values` into `normed`.
pub(crate) fn norm_rows(
    values: &[f32],
    weight: &[f32],
    epsilon: f32,
    normed: &mut Rows,
    instructions: InstructionSet,
) {
    let width = weight.len();
    let count = values.len() / width;
    let out = normed.reset(count, width);
    let task_values = count.div_ceil(pieces(values.len() * NORM_COST)) * width;
    if task_values == values.len() {
        return norm_stretch(&mut NormTask { values, out }, weight, epsilon, instructions);
    }
    let tasks = values.chunks(task_values).zip(out.chunks_mut(task_values));
    let mut tasks: Vec<NormTask<'_>> = tasks.map(|(values, out)| NormTask { values, out }).collect();
    share(&mut tasks, &|task| norm_stretch(task, weight, epsilon, instructions));
}

fn norm_stretch(task: &mut NormTask<'_>, weight: &[f32], epsilon: f32, instructions: InstructionSet) {
    let rows = task.values.chunks_exact(weight.len());
    for (row, out) in rows.zip(task.out.chunks_exact_mut(weight.len())) {
        rms_norm(instructions, row, weight, epsilon, out);
    }
}

/// A stretch of rows.
struct NormTask<'a> {
    values: &'a [f32],
    out: &'a mut [f32],
}

impl Cost for NormTask<'_> {
    fn cost(&self) -> usize {
        self.out.len() * NORM_COST
    }
}
