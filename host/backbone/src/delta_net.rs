//! The gated delta net of the linear-attention layers: convolution, recurrent delta rule, gated norm.
//!
//! Always the recurrent form, token by token, in prefill too: the chunked form would make bits depend on how a prompt
//! is cut. The arithmetic is exact-v1's; this file feeds it and keeps the state.

use std::ops::Range;
use std::sync::Arc;

use kvasir_model::{Config, DeltaConfig, Tensor, ValueHeadOrder};
use kvasir_numerics::{
    InstructionSet, convolve, decay, delta_step, gated_rms_norm, inverse_square_root, l2_normalise, sigmoid,
    silu_in_place,
};

use crate::error::BackboneError;
use crate::parallel::{Cost, pieces, share};
use crate::part::Part;
use crate::products::{Product, compute, transpose_rows};
use crate::scratch::Scratch;
use crate::sequence::{LayerState, reserve};

/// Cost of one channel of one row in convolution, silu and norm, in multiply-adds.
const CHANNEL_COST: usize = 16;

/// Cost of one element of a state for one row, in multiply-adds: two passes that read and write it as f32.
const STATE_COST: usize = 4;

/// A delta-net layer's tensors and shape.
#[derive(Debug)]
pub(crate) struct DeltaNet {
    pub(crate) shape: DeltaConfig,
    order: ValueHeadOrder,
    epsilon: f32,
    /// What a normalised query is multiplied by.
    query_scale: f32,
    pub(crate) tensors: DeltaNetTensors,
}

/// As in `kvasir_model::Mixer::DeltaNet`.
#[derive(Debug)]
pub(crate) struct DeltaNetTensors {
    pub(crate) qkv: Tensor,
    pub(crate) z: Tensor,
    pub(crate) beta: Tensor,
    pub(crate) alpha: Tensor,
    pub(crate) conv: Arc<[f32]>,
    pub(crate) a: Arc<[f32]>,
    pub(crate) dt_bias: Arc<[f32]>,
    pub(crate) norm: Arc<[f32]>,
    pub(crate) out: Tensor,
}

/// What a delta-net layer remembers of a sequence.
#[derive(Debug, Clone)]
pub(crate) struct DeltaNetState {
    shape: DeltaConfig,
    /// The last taps - 1 inputs of the convolution, oldest first, each all channels. Empty until first used.
    history: Vec<f32>,
    /// Per value head: key dimension x value dimension. Empty until first used.
    heads: Vec<f32>,
}

impl DeltaNetState {
    pub(crate) fn new(shape: DeltaConfig) -> DeltaNetState {
        DeltaNetState { shape, history: Vec::new(), heads: Vec::new() }
    }

    pub(crate) fn bytes(&self) -> usize {
        (self.history.capacity() + self.heads.capacity()) * size_of::<f32>()
    }

    /// Allocates the state, all zero, on first use.
    pub(crate) fn reserve(&mut self) -> Result<(), BackboneError> {
        let history = history_rows(&self.shape) * self.shape.channels();
        let heads = self.shape.value_heads as usize * head_state(&self.shape);
        for (values, length) in [(&mut self.history, history), (&mut self.heads, heads)] {
            if values.len() != length {
                reserve(values, length, length, "a delta-net state")?;
                values.resize(length, 0.0);
            }
        }
        Ok(())
    }
}

impl DeltaNet {
    pub(crate) fn new(config: &Config, tensors: DeltaNetTensors) -> DeltaNet {
        DeltaNet {
            shape: config.delta,
            order: config.value_head_order,
            epsilon: config.rms_epsilon,
            query_scale: inverse_square_root(config.delta.head_dimension as usize),
            tensors,
        }
    }

    /// Reads the normed rows of all parts and leaves the block's output in `scratch.mixer.block`, output-major.
    pub(crate) fn forward(
        &self,
        layer: usize,
        parts: &mut [Part<'_>],
        scratch: &mut Scratch,
        instructions: InstructionSet,
    ) {
        let DeltaNetTensors { qkv, z, beta, alpha, out, .. } = &self.tensors;
        let Scratch { normed, mixer: scratch, faults, .. } = scratch;
        let count = normed.count();
        for tensor in [qkv, z, beta, alpha] {
            normed.prepare(tensor.row_format(), faults);
        }
        let [qkv_product, z_product, beta_product, alpha_product] = &mut scratch.products;
        compute(
            instructions,
            [
                Product::new(qkv.matrix(), normed.bytes(qkv.row_format()), count, qkv_product),
                Product::new(z.matrix(), normed.bytes(z.row_format()), count, z_product),
                Product::new(beta.matrix(), normed.bytes(beta.row_format()), count, beta_product),
                Product::new(alpha.matrix(), normed.bytes(alpha.row_format()), count, alpha_product),
            ],
        );
        self.slide(layer, qkv_product, count, parts, &mut scratch.window);
        self.convolve(&scratch.window, count, parts, &mut scratch.rows, instructions);

        scratch.gates.resize(z_product.len(), 0.0);
        transpose_rows(z_product, count, 0..count, &mut scratch.gates);
        let inputs = HeadInputs {
            rows: &scratch.rows,
            gates: &scratch.gates,
            beta: beta_product,
            alpha: alpha_product,
            count,
        };
        self.recur(layer, inputs, parts, &mut scratch.heads, instructions);

        let mixed = scratch.mixed.reset(count, self.shape.value_width());
        self.gather_heads(&scratch.heads, parts, mixed);
        scratch.mixed.prepare(out.row_format(), faults);
        let rows = scratch.mixed.bytes(out.row_format());
        compute(instructions, [Product::new(out.matrix(), rows, count, &mut scratch.block)]);
    }

    /// Lays the inputs of the convolution out row by row, each part behind the rows that its sequence remembers, and
    /// renews what it remembers.
    fn slide(
        &self,
        layer: usize,
        product: &[f32],
        count: usize,
        parts: &mut [Part<'_>],
        window: &mut Vec<f32>,
    ) {
        let channels = self.shape.channels();
        let history = history_rows(&self.shape) * channels;
        window.resize(parts.len() * history + count * channels, 0.0);
        let mut rest = window.as_mut_slice();
        for part in parts {
            let length = part.rows.len() * channels;
            let (window, later) = rest.split_at_mut(history + length);
            rest = later;
            transpose_rows(product, count, part.rows.clone(), &mut window[history..]);
            let state = state_of(part, layer);
            window[..history].copy_from_slice(&state.history);
            state.history.copy_from_slice(&window[length..]);
        }
    }

    /// Convolution, silu, and the norms of queries and keys; `out` becomes rows x channels.
    fn convolve(
        &self,
        window: &[f32],
        count: usize,
        parts: &[Part<'_>],
        out: &mut Vec<f32>,
        instructions: InstructionSet,
    ) {
        let channels = self.shape.channels();
        let history = history_rows(&self.shape) * channels;
        out.resize(count * channels, 0.0);
        let task_rows = count.div_ceil(pieces(count * channels * CHANNEL_COST));
        let mut tasks = Vec::with_capacity(parts.len() + count / task_rows);
        let (mut windows, mut outs) = (window, out.as_mut_slice());
        for part in parts {
            let length = part.rows.len() * channels;
            let (window, later_windows) = windows.split_at(history + length);
            let (out, later_outs) = outs.split_at_mut(length);
            (windows, outs) = (later_windows, later_outs);
            for (at, out) in out.chunks_mut(task_rows * channels).enumerate() {
                let from = at * task_rows * channels;
                tasks.push(ConvolveTask { window: &window[from..from + history + out.len()], out });
            }
        }
        let key_width = self.shape.key_width();
        let key = self.shape.head_dimension as usize;
        share(&mut tasks, &|task| {
            for (row, out) in task.out.chunks_exact_mut(channels).enumerate() {
                let (history, current) =
                    task.window[row * channels..][..history + channels].split_at(history);
                convolve(instructions, &self.tensors.conv, history, current, out);
                silu_in_place(instructions, out);
                let (queries, others) = out.split_at_mut(key_width);
                for query in queries.chunks_exact_mut(key) {
                    l2_normalise(instructions, query);
                    query.iter_mut().for_each(|value| *value *= self.query_scale);
                }
                for key in others[..key_width].chunks_exact_mut(key) {
                    l2_normalise(instructions, key);
                }
            }
        });
    }

    /// The delta rule and the gated norm. `out`: part by part, head by head, rows x value dimension.
    fn recur(
        &self,
        layer: usize,
        inputs: HeadInputs<'_>,
        parts: &mut [Part<'_>],
        out: &mut Vec<f32>,
        instructions: InstructionSet,
    ) {
        let (state_length, value) = (head_state(&self.shape), self.shape.value_dimension as usize);
        out.resize(inputs.count * self.shape.value_width(), 0.0);
        let mut tasks = Vec::with_capacity(parts.len() * self.shape.value_heads as usize);
        let mut rest = out.as_mut_slice();
        for part in parts {
            let rows = part.rows.clone();
            for (head, state) in state_of(part, layer).heads.chunks_exact_mut(state_length).enumerate() {
                let (out, later) = rest.split_at_mut(rows.len() * value);
                rest = later;
                tasks.push(HeadTask { head, rows: rows.clone(), state, out });
            }
        }
        share(&mut tasks, &|task| self.recur_head(inputs, task, instructions));
    }

    fn recur_head(&self, inputs: HeadInputs<'_>, task: &mut HeadTask<'_>, instructions: InstructionSet) {
        let DeltaConfig { key_heads, value_heads, .. } = self.shape;
        let (key, value) = (self.shape.head_dimension as usize, self.shape.value_dimension as usize);
        let key_head = self.order.key_head(task.head as u32, key_heads, value_heads) as usize;
        let (channels, key_width) = (self.shape.channels(), self.shape.key_width());
        let (a, dt_bias) = (self.tensors.a[task.head], self.tensors.dt_bias[task.head]);
        let mut read = vec![0.0; value];
        for (row, out) in task.rows.clone().zip(task.out.chunks_exact_mut(value)) {
            let (queries, others) = inputs.rows[row * channels..][..channels].split_at(key_width);
            let (keys, values) = others.split_at(key_width);
            let at = task.head * inputs.count + row;
            delta_step(
                instructions,
                task.state,
                &queries[key_head * key..][..key],
                &keys[key_head * key..][..key],
                &values[task.head * value..][..value],
                sigmoid(inputs.beta[at]),
                decay(a, inputs.alpha[at], dt_bias),
                &mut read,
            );
            let gate = &inputs.gates[row * self.shape.value_width() + task.head * value..][..value];
            gated_rms_norm(instructions, &read, &self.tensors.norm, gate, self.epsilon, out);
        }
    }

    /// From part by part and head by head to row by row.
    fn gather_heads(&self, heads: &[f32], parts: &[Part<'_>], mixed: &mut [f32]) {
        let (value, width) = (self.shape.value_dimension as usize, self.shape.value_width());
        let mut heads = heads.chunks_exact(value);
        for part in parts {
            for head in 0..self.shape.value_heads as usize {
                for (row, values) in part.rows.clone().zip(&mut heads) {
                    mixed[row * width + head * value..][..value].copy_from_slice(values);
                }
            }
        }
    }
}

/// Rows that the convolution looks back.
fn history_rows(shape: &DeltaConfig) -> usize {
    shape.conv_kernel as usize - 1
}

/// All values that a layer of this shape remembers of a sequence.
pub(crate) fn state_values(shape: &DeltaConfig) -> usize {
    history_rows(shape) * shape.channels() + shape.value_heads as usize * head_state(shape)
}

/// Elements of one value head's state.
fn head_state(shape: &DeltaConfig) -> usize {
    shape.head_dimension as usize * shape.value_dimension as usize
}

fn state_of<'a>(part: &'a mut Part<'_>, layer: usize) -> &'a mut DeltaNetState {
    match &mut part.sequence.layers[layer] {
        LayerState::DeltaNet(state) => state,
        LayerState::Attention(_) => unreachable!("the backbone made this layer's state for a delta net"),
    }
}

/// What all heads read.
#[derive(Clone, Copy)]
struct HeadInputs<'a> {
    /// rows x channels: normalised queries and keys, then values.
    rows: &'a [f32],
    /// rows x (value heads x value dimension).
    gates: &'a [f32],
    /// value heads x rows.
    beta: &'a [f32],
    /// value heads x rows.
    alpha: &'a [f32],
    count: usize,
}

/// A stretch of rows of one part.
struct ConvolveTask<'a> {
    /// From the first row's oldest tap on: history + rows, each all channels.
    window: &'a [f32],
    /// rows x channels.
    out: &'a mut [f32],
}

impl Cost for ConvolveTask<'_> {
    fn cost(&self) -> usize {
        self.out.len() * CHANNEL_COST
    }
}

/// One value head of one part.
struct HeadTask<'a> {
    head: usize,
    rows: Range<usize>,
    state: &'a mut [f32],
    /// rows x value dimension.
    out: &'a mut [f32],
}

impl Cost for HeadTask<'_> {
    fn cost(&self) -> usize {
        self.rows.len() * self.state.len() * STATE_COST
    }
}
