//! Gated full attention: query/key norms, partial rotation, grouped key/value heads, f32 caches, output gate.
//!
//! Scores, softmax and the sum of values run over ascending positions without tiles, so no bit depends on how many
//! rows a pass has.

use std::ops::Range;
use std::sync::Arc;

use kvasir_model::{Config, Tensor};
use kvasir_numerics::{
    InstructionSet, attention_scores, inverse_square_root, rms_norm, rope_table, rotate, sigmoid_multiply,
    softmax, weighted_sum,
};

use crate::error::BackboneError;
use crate::parallel::{Cost, share};
use crate::part::Part;
use crate::products::{Product, compute, transpose_rows};
use crate::scratch::Scratch;
use crate::sequence::{LayerState, reserve};

/// Cost of one value of a cached key and value pair for one query head, in multiply-adds.
const CACHED_COST: usize = 2;

/// An attention layer's tensors and shape.
#[derive(Debug)]
pub(crate) struct Attention {
    heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head: usize,
    epsilon: f32,
    /// What a product of query and key is multiplied by.
    scale: f32,
    pub(crate) tensors: AttentionTensors,
}

/// As in `kvasir_model::Mixer::Attention`.
#[derive(Debug)]
pub(crate) struct AttentionTensors {
    pub(crate) q: Tensor,
    pub(crate) k: Tensor,
    pub(crate) v: Tensor,
    pub(crate) output: Tensor,
    pub(crate) q_norm: Arc<[f32]>,
    pub(crate) k_norm: Arc<[f32]>,
}

/// Keys and values of all positions so far.
#[derive(Debug, Clone)]
pub(crate) struct KeyValueCache {
    /// Per key/value head: positions x head dimension.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    head: usize,
}

impl KeyValueCache {
    pub(crate) fn new(kv_heads: usize, head: usize) -> KeyValueCache {
        KeyValueCache { keys: vec![Vec::new(); kv_heads], values: vec![Vec::new(); kv_heads], head }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.keys.iter().chain(&self.values).map(|cache| cache.capacity() * size_of::<f32>()).sum()
    }

    /// Makes room for `positions` in all, never for more than `limit`.
    pub(crate) fn reserve(&mut self, positions: usize, limit: usize) -> Result<(), BackboneError> {
        for cache in self.keys.iter_mut().chain(&mut self.values) {
            reserve(cache, positions * self.head, limit * self.head, "a key/value cache")?;
        }
        Ok(())
    }
}

/// Cosines and sines of every row of a pass: they depend on its position alone, so all layers share them.
#[derive(Debug, Default)]
pub(crate) struct Rotations {
    cosines: Vec<f32>,
    sines: Vec<f32>,
    pairs: usize,
}

impl Rotations {
    /// Computes those of all rows of `parts`.
    pub(crate) fn prepare(&mut self, parts: &[Part<'_>], theta: f64, dimensions: usize) {
        self.pairs = dimensions / 2;
        let rows = parts.last().map_or(0, |part| part.rows.end);
        self.cosines.resize(rows * self.pairs, 0.0);
        self.sines.resize(rows * self.pairs, 0.0);
        let mut tables =
            self.cosines.chunks_exact_mut(self.pairs).zip(self.sines.chunks_exact_mut(self.pairs));
        for part in parts {
            for (at, (cosines, sines)) in (0..part.rows.len()).zip(&mut tables) {
                // Positions lie below the context limit, which is a u32.
                rope_table(theta, (part.first_position() + at) as u32, cosines, sines);
            }
        }
    }

    /// Moves the rows `rows` to where row `to` is, which lies before them.
    pub(crate) fn move_rows(&mut self, rows: Range<usize>, to: usize) {
        let (from, to) = (rows.start * self.pairs..rows.end * self.pairs, to * self.pairs);
        self.cosines.copy_within(from.clone(), to);
        self.sines.copy_within(from, to);
    }

    fn rotate(&self, row: usize, head: &mut [f32]) {
        let range = row * self.pairs..(row + 1) * self.pairs;
        rotate(head, &self.cosines[range.clone()], &self.sines[range]);
    }
}

impl Attention {
    pub(crate) fn new(config: &Config, tensors: AttentionTensors) -> Attention {
        let head = config.head_dimension as usize;
        Attention {
            heads: config.heads as usize,
            kv_heads: config.kv_heads as usize,
            head,
            epsilon: config.rms_epsilon,
            scale: inverse_square_root(head),
            tensors,
        }
    }

    /// Reads the normed rows of all parts and leaves the block's output in `scratch.mixer.block`, output-major.
    pub(crate) fn forward(
        &self,
        layer: usize,
        parts: &mut [Part<'_>],
        rotations: &Rotations,
        scratch: &mut Scratch,
        instructions: InstructionSet,
    ) {
        let AttentionTensors { q, k, v, output, .. } = &self.tensors;
        let Scratch { normed, mixer: scratch, faults, .. } = scratch;
        let count = normed.count();
        for tensor in [q, k, v] {
            normed.prepare(tensor.row_format(), faults);
        }
        let [q_product, k_product, v_product, _] = &mut scratch.products;
        compute(
            instructions,
            [
                Product::new(q.matrix(), normed.bytes(q.row_format()), count, q_product),
                Product::new(k.matrix(), normed.bytes(k.row_format()), count, k_product),
                Product::new(v.matrix(), normed.bytes(v.row_format()), count, v_product),
            ],
        );
        // Query and gate of each head, row by row; then keys, then values.
        let (kv_width, q_length) = (self.kv_heads * self.head, q_product.len());
        scratch.rows.resize(q_length + 2 * count * kv_width, 0.0);
        let (queries, others) = scratch.rows.split_at_mut(q_length);
        let (keys, values) = others.split_at_mut(count * kv_width);
        transpose_rows(q_product, count, 0..count, queries);
        transpose_rows(k_product, count, 0..count, keys);
        transpose_rows(v_product, count, 0..count, values);
        self.prepare_queries(queries, count, rotations, instructions);
        self.remember(layer, keys, values, parts, rotations, instructions);

        let mixed = scratch.mixed.reset(count, self.heads * self.head);
        self.attend(layer, queries, parts, mixed, instructions);
        scratch.mixed.prepare(output.row_format(), faults);
        let rows = scratch.mixed.bytes(output.row_format());
        compute(instructions, [Product::new(output.matrix(), rows, count, &mut scratch.block)]);
    }

    /// Norm and rotation of every query; the gates beside them stay.
    fn prepare_queries(
        &self,
        queries: &mut [f32],
        count: usize,
        rotations: &Rotations,
        instructions: InstructionSet,
    ) {
        let mut normed = vec![0.0; self.head];
        for (row, queries) in queries.chunks_exact_mut(queries.len() / count).enumerate() {
            for query_and_gate in queries.chunks_exact_mut(2 * self.head) {
                let query = &mut query_and_gate[..self.head];
                rms_norm(instructions, query, &self.tensors.q_norm, self.epsilon, &mut normed);
                rotations.rotate(row, &mut normed);
                query.copy_from_slice(&normed);
            }
        }
    }

    /// Appends keys, normed and rotated, and values to the caches.
    fn remember(
        &self,
        layer: usize,
        keys: &[f32],
        values: &[f32],
        parts: &mut [Part<'_>],
        rotations: &Rotations,
        instructions: InstructionSet,
    ) {
        let width = self.kv_heads * self.head;
        let mut normed = vec![0.0; self.head];
        for part in parts {
            let rows = part.rows.clone();
            let LayerState::Attention(cache) = &mut part.sequence.layers[layer] else {
                unreachable!("the backbone made this layer's state for attention");
            };
            for row in rows {
                let keys = keys[row * width..][..width].chunks_exact(self.head);
                let values = values[row * width..][..width].chunks_exact(self.head);
                for (((key, value), key_cache), value_cache) in
                    keys.zip(values).zip(&mut cache.keys).zip(&mut cache.values)
                {
                    rms_norm(instructions, key, &self.tensors.k_norm, self.epsilon, &mut normed);
                    rotations.rotate(row, &mut normed);
                    key_cache.extend_from_slice(&normed);
                    value_cache.extend_from_slice(value);
                }
            }
        }
    }

    /// Attention of every row over its sequence up to itself, gated; `mixed`: rows x (heads x head dimension).
    fn attend(
        &self,
        layer: usize,
        queries: &[f32],
        parts: &[Part<'_>],
        mixed: &mut [f32],
        instructions: InstructionSet,
    ) {
        let group = self.heads / self.kv_heads * self.head;
        let mut tasks = Vec::with_capacity(mixed.len() / group);
        let mut outs = mixed.chunks_exact_mut(group);
        let mut queries = queries.chunks_exact(2 * group);
        for part in parts {
            let LayerState::Attention(cache) = &part.sequence.layers[layer] else {
                unreachable!("the backbone made this layer's state for attention");
            };
            for at in 0..part.rows.len() {
                let positions = part.first_position() + at + 1;
                let seen = positions * self.head;
                for (((keys, values), out), queries) in
                    cache.keys.iter().zip(&cache.values).zip(&mut outs).zip(&mut queries)
                {
                    let (keys, values) = (&keys[..seen], &values[..seen]);
                    tasks.push(GroupTask { positions, queries, keys, values, out });
                }
            }
        }
        share(&mut tasks, &|task| self.attend_group(task, instructions));
    }

    /// The query heads that share one key/value head, for one row.
    fn attend_group(&self, task: &mut GroupTask<'_>, instructions: InstructionSet) {
        let mut scores = vec![0.0; task.positions];
        let queries = task.queries.chunks_exact(2 * self.head);
        for (query_and_gate, out) in queries.zip(task.out.chunks_exact_mut(self.head)) {
            let (query, gate) = query_and_gate.split_at(self.head);
            attention_scores(instructions, query, task.keys, self.scale, &mut scores);
            softmax(instructions, &mut scores);
            weighted_sum(instructions, &scores, task.values, out);
            sigmoid_multiply(instructions, out, gate);
        }
    }
}

/// One row and one key/value head.
struct GroupTask<'a> {
    positions: usize,
    /// Per query head: query, then gate.
    queries: &'a [f32],
    /// positions x head dimension.
    keys: &'a [f32],
    values: &'a [f32],
    /// query heads x head dimension.
    out: &'a mut [f32],
}

impl Cost for GroupTask<'_> {
    fn cost(&self) -> usize {
        self.out.len() * self.positions * CACHED_COST
    }
}
