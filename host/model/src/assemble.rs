//! From a directory of named tensors to the tensors of a model: the same for both containers, which differ in names
//! (`Layout::layer_name`), in what is stored for a norm and a decay rate, and in how experts are laid out.
//!
//! Every tensor's shape is checked against the configuration, and every tensor that is not used must be one that the
//! layout recognises as left aside.

use std::sync::Arc;

use crate::config::{Config, LayerKind};
use crate::error::{ModelError, Place};
use crate::experts::LayerExperts;
use crate::stored::{Directory, StoredTensor};
use crate::tensor::{ExpertTensors, LayerTensors, Mixer, Tensor};

/// A tensor of a layer beside its routed experts, whatever a container calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    InputNorm,
    PostAttentionNorm,
    Router,
    SharedGate,
    SharedUp,
    SharedDown,
    SharedExpertGate,
    DeltaQkv,
    DeltaZ,
    DeltaBeta,
    DeltaAlpha,
    DeltaConvolution,
    DeltaDecay,
    DeltaBias,
    DeltaNorm,
    DeltaOut,
    AttentionQ,
    AttentionK,
    AttentionV,
    AttentionOutput,
    QNorm,
    KNorm,
}

/// What the two containers do differently.
pub(crate) trait Layout {
    /// Name of the embedding.
    fn embedding(&self) -> String;
    /// Name of the final norm's weight.
    fn output_norm(&self) -> String;
    /// Name of the output matrix.
    fn output(&self) -> String;
    /// Whether the embedding serves as output matrix, given whether there is an output matrix.
    fn output_is_embedding(&self, stored: bool) -> bool;
    /// Name of a layer's tensor.
    fn layer_name(&self, layer: u32, part: Part) -> String;
    /// Name of a tensor that holds query, key and value rows of an attention layer in that order, where the container
    /// may have one.
    fn fused_attention(&self, layer: u32) -> Option<String>;
    /// Turn a stored norm weight (any but `DeltaNorm`) into the factor to multiply with.
    fn norm(&self, stored: Vec<f32>) -> Vec<f32>;
    /// Turn stored decay values into rates of at most 0.
    fn decay_rates(&self, stored: Vec<f32>) -> Vec<f32>;
    /// Take a layer's routed experts.
    fn experts(&self, layer: u32, config: &Config, taker: &mut Taker) -> Result<LayerExperts, ModelError>;
    /// Whether a tensor of this name is recognised and left aside (multi-token prediction, vision).
    fn left_aside(&self, name: &str) -> bool;
}

/// A model's tensors.
pub(crate) struct Tensors {
    pub(crate) embedding: Tensor,
    pub(crate) output_norm: Arc<[f32]>,
    pub(crate) output: Tensor,
    pub(crate) layers: Vec<LayerTensors>,
    pub(crate) experts: Vec<LayerExperts>,
    /// All but the routed experts, as in the file, ascending by name.
    pub(crate) dense: Vec<StoredTensor>,
    /// How many tensors were left aside.
    pub(crate) left_aside: usize,
}

/// Takes tensors out of a directory and remembers the dense ones.
pub(crate) struct Taker {
    pub(crate) directory: Directory,
    dense: Vec<StoredTensor>,
    matrices: Vec<Tensor>,
}

impl Taker {
    /// A dense matrix.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Tensor, ModelError> {
        let stored = self.directory.take(name)?;
        let tensor = stored.matrix(rows, columns)?;
        self.dense.push(stored);
        self.matrices.push(tensor.clone());
        Ok(tensor)
    }

    /// A dense vector (or small matrix) of floats.
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<(Vec<f32>, Place), ModelError> {
        let stored = self.directory.take(name)?;
        let floats = stored.floats(shape)?;
        let place = stored.place();
        self.dense.push(stored);
        Ok((floats, place))
    }
}

/// Take every tensor that the configuration calls for.
pub(crate) fn assemble(
    layout: &dyn Layout,
    config: &Config,
    directory: Directory,
) -> Result<Tensors, ModelError> {
    let mut taker = Taker { directory, dense: Vec::new(), matrices: Vec::new() };
    let (hidden, vocabulary) = (config.hidden as usize, config.vocabulary as usize);
    let embedding = taker.matrix(&layout.embedding(), vocabulary, hidden)?;
    let (output_norm, _) = taker.floats(&layout.output_norm(), &[hidden])?;
    let output = match layout.output_is_embedding(taker.directory.contains(&layout.output())) {
        true => embedding.clone(),
        false => taker.matrix(&layout.output(), vocabulary, hidden)?,
    };
    let mut layers = Vec::with_capacity(config.layer_kinds.len());
    let mut experts = Vec::with_capacity(config.layer_kinds.len());
    for (layer, kind) in (0..config.layers).zip(&config.layer_kinds) {
        layers.push(layer_tensors(layout, layer, *kind, config, &mut taker)?);
        let routed = layout.experts(layer, config, &mut taker)?;
        routed.check(layer)?;
        experts.push(routed);
    }
    let left_aside = taker.directory.finish(|name| layout.left_aside(name))?;
    check_weights(&taker.matrices)?;
    let mut dense = taker.dense;
    dense.sort_by(|a, b| a.name().as_bytes().cmp(b.name().as_bytes()));
    let output_norm = layout.norm(output_norm).into();
    Ok(Tensors { embedding, output_norm, output, layers, experts, dense, left_aside })
}

fn layer_tensors(
    layout: &dyn Layout,
    layer: u32,
    kind: LayerKind,
    config: &Config,
    taker: &mut Taker,
) -> Result<LayerTensors, ModelError> {
    let hidden = config.hidden as usize;
    let name = |part| layout.layer_name(layer, part);
    let norm = |taker: &mut Taker, part, len: usize| -> Result<Arc<[f32]>, ModelError> {
        Ok(layout.norm(taker.floats(&name(part), &[len])?.0).into())
    };
    let mixer = match kind {
        LayerKind::DeltaNet => {
            let delta = &config.delta;
            let (values, heads) = (delta.value_width(), delta.value_heads as usize);
            let kernel = delta.conv_kernel as usize;
            let (stored, place) = taker.floats(&name(Part::DeltaDecay), &[heads])?;
            let a = layout.decay_rates(stored);
            if let Some(rate) = a.iter().find(|rate| !rate.is_finite() || **rate > 0.0) {
                let why = format!("a decay rate of {rate}, which would let a state grow without bound");
                return Err(ModelError::Damaged { at: place, why });
            }
            Mixer::DeltaNet {
                qkv: taker.matrix(&name(Part::DeltaQkv), delta.channels(), hidden)?,
                z: taker.matrix(&name(Part::DeltaZ), values, hidden)?,
                beta: taker.matrix(&name(Part::DeltaBeta), heads, hidden)?,
                alpha: taker.matrix(&name(Part::DeltaAlpha), heads, hidden)?,
                conv: taker.floats(&name(Part::DeltaConvolution), &[delta.channels(), kernel])?.0.into(),
                a: a.into(),
                dt_bias: taker.floats(&name(Part::DeltaBias), &[heads])?.0.into(),
                norm: taker.floats(&name(Part::DeltaNorm), &[delta.value_dimension as usize])?.0.into(),
                out: taker.matrix(&name(Part::DeltaOut), hidden, values)?,
            }
        }
        LayerKind::Attention => {
            let head = config.head_dimension as usize;
            let queries = 2 * config.heads as usize * head;
            let keys = config.kv_heads as usize * head;
            let [q, k, v] = match layout.fused_attention(layer).filter(|name| taker.directory.contains(name))
            {
                Some(fused) => {
                    let all = taker.matrix(&fused, queries + 2 * keys, hidden)?;
                    let part = |from: usize, rows: usize| all.slice_rows(from..from + rows);
                    [part(0, queries)?, part(queries, keys)?, part(queries + keys, keys)?]
                }
                None => [
                    taker.matrix(&name(Part::AttentionQ), queries, hidden)?,
                    taker.matrix(&name(Part::AttentionK), keys, hidden)?,
                    taker.matrix(&name(Part::AttentionV), keys, hidden)?,
                ],
            };
            Mixer::Attention {
                q,
                k,
                v,
                output: taker.matrix(&name(Part::AttentionOutput), hidden, config.heads as usize * head)?,
                q_norm: norm(taker, Part::QNorm, head)?,
                k_norm: norm(taker, Part::KNorm, head)?,
            }
        }
    };
    let width = config.shared_expert_width as usize;
    let shared_expert = ExpertTensors {
        gate: taker.matrix(&name(Part::SharedGate), width, hidden)?,
        up: taker.matrix(&name(Part::SharedUp), width, hidden)?,
        down: taker.matrix(&name(Part::SharedDown), hidden, width)?,
    };
    crate::experts::check_row_formats(layer, &shared_expert)?;
    Ok(LayerTensors {
        input_norm: norm(taker, Part::InputNorm, hidden)?,
        post_attention_norm: norm(taker, Part::PostAttentionNorm, hidden)?,
        mixer,
        router: taker.matrix(&name(Part::Router), config.experts as usize, hidden)?,
        shared_expert,
        shared_expert_gate: taker.matrix(&name(Part::SharedExpertGate), 1, hidden)?,
    })
}

/// Check the weights of all dense matrices, on all cores: a large model holds some gigabytes of them.
fn check_weights(matrices: &[Tensor]) -> Result<(), ModelError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(matrices.len()).max(1);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let check = || -> Result<(), ModelError> {
        while let Some(tensor) = matrices.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            tensor.check_weights()?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|_| scope.spawn(check)).collect();
        let mut found = check();
        for worker in workers {
            // A check does not panic; were it to, the panic goes on in the thread that opens the model.
            let outcome = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            found = found.and(outcome);
        }
        found
    })
}
