//! One decoder layer: `x += mixer(norm(x)); x += mixture(norm(x))`.

use std::sync::Arc;
use std::time::Instant;

use kvasir_model::{ExpertIndex, LayerIndex, Mixer, Model, Tensor};
use kvasir_numerics::{InstructionSet, rms_norm};

use crate::attention::{Attention, AttentionTensors, KeyValueCache, Rotations};
use crate::delta_net::{DeltaNet, DeltaNetState, DeltaNetTensors};
use crate::error::BackboneError;
use crate::experts::Call;
use crate::mixture::Mixture;
use crate::observer::Watch;
use crate::parallel::{Cost, pieces, share};
use crate::part::Part;
use crate::products::{add_product, transpose_rows};
use crate::rows::Rows;
use crate::scratch::{Scratch, SharedOut};
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

    /// The first half: mixer and its norm, added to the residual stream (rows x hidden). Rows that are not finite are
    /// noted in the scratch's faults, here and below.
    pub(crate) fn mix(
        &self,
        hidden: &mut [f32],
        parts: &mut [Part<'_>],
        rotations: &Rotations,
        scratch: &mut Scratch,
        watch: &mut Watch<'_, '_>,
        instructions: InstructionSet,
    ) {
        let started = Instant::now();
        if let Some(tap) = &mut watch.observer.tap {
            tap.hidden(self.index, hidden);
        }
        norm_rows(hidden, &self.input_norm, self.epsilon, &mut scratch.normed, instructions);
        let layer = usize::from(self.index.0);
        match &self.mixer {
            LayerMixer::DeltaNet(net) => net.forward(layer, parts, scratch, instructions),
            LayerMixer::Attention(attention) => {
                attention.forward(layer, parts, rotations, scratch, instructions);
            }
        }
        let Scratch { normed, mixer, .. } = scratch;
        if let Some(tap) = &mut watch.observer.tap {
            let count = normed.count();
            let mut out = vec![0.0; mixer.block.len()];
            transpose_rows(&mixer.block, count, 0..count, &mut out);
            tap.mixer_out(self.index, mixer.mixed.values(), &mut out);
            hidden.iter_mut().zip(&out).for_each(|(value, add)| *value += add);
        } else {
            add_product(&mixer.block, normed.count(), hidden);
        }
        watch.timing.mixers += started.elapsed();
    }

    /// The call for the routed experts of the second half: norm, router, quantised rows. It depends on `hidden` alone.
    pub(crate) fn call(
        &self,
        hidden: &[f32],
        scratch: &mut Scratch,
        watch: &mut Watch<'_, '_>,
        instructions: InstructionSet,
    ) -> Call {
        let started = Instant::now();
        norm_rows(hidden, &self.post_attention_norm, self.epsilon, &mut scratch.normed, instructions);
        let call = self.mixture.call(scratch, watch.observer, instructions);
        watch.timing.router += started.elapsed();
        call
    }

    /// What there is to do while the call is out: the shared expert, for the rows that the call was made of.
    pub(crate) fn meanwhile(
        &self,
        scratch: &mut Scratch,
        shared: &mut SharedOut,
        watch: &mut Watch<'_, '_>,
        instructions: InstructionSet,
    ) {
        let started = Instant::now();
        self.mixture.shared_expert(scratch, shared, instructions);
        watch.timing.shared_experts += started.elapsed();
    }

    /// The end: adds what routed experts (`sums`, rows x hidden) and shared expert gave to the residual stream.
    pub(crate) fn take(
        &self,
        hidden: &mut [f32],
        sums: &[f32],
        shared: &SharedOut,
        scratch: &mut Scratch,
        watch: &mut Watch<'_, '_>,
    ) {
        if let Some(tap) = &mut watch.observer.tap {
            tap.expert_out(self.index, sums);
        }
        self.mixture.combine(sums, shared, hidden, &mut scratch.faults);
    }

    /// The matrices that a pass reads, in that order.
    pub(crate) fn matrices(&self) -> Vec<&Tensor> {
        let mut matrices = match &self.mixer {
            LayerMixer::DeltaNet(net) => {
                let DeltaNetTensors { qkv, z, beta, alpha, out, .. } = &net.tensors;
                vec![qkv, z, beta, alpha, out]
            }
            LayerMixer::Attention(attention) => {
                let AttentionTensors { q, k, v, output, .. } = &attention.tensors;
                vec![q, k, v, output]
            }
        };
        matrices.extend(self.mixture.matrices());
        matrices
    }

    pub(crate) fn index(&self) -> LayerIndex {
        self.index
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
