//! `Model`: what a checkpoint holds, whatever container it came in.

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use crate::assemble::Tensors;
use crate::config::Config;
use crate::digest::ModelDigests;
use crate::error::ModelError;
use crate::identity::{ExpertDigest, ExpertIndex, LayerIndex};
use crate::template::ChatTemplate;
use crate::tensor::{ExpertTensors, LayerTensors, Tensor};
use crate::tokenizer::Tokenizer;
use crate::visible::without_controls;
use crate::{folder, gguf};

/// An opened model. Holds its files mapped; share it in an `Arc`.
pub struct Model {
    name: String,
    config: Config,
    tokenizer: Tokenizer,
    chat_template: Option<ChatTemplate>,
    tensors: Tensors,
    digests: OnceLock<ModelDigests>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.name)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// What the reader of a container hands over.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) config: Config,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) chat_template: Option<ChatTemplate>,
    pub(crate) tensors: Tensors,
}

impl Model {
    /// Open a `.gguf` file (the first part of a split model finds the others beside it) or a Hugging Face folder.
    ///
    /// Checks the directory, the configuration, every tensor's shape, and the weights of all dense tensors; routed
    /// experts are not read (`ExpertTensors::check_weights` does that for one). The files stay mapped: they must not be
    /// changed or truncated while the model lives, or reading the lost part ends the process.
    pub fn open(path: &Path) -> Result<Model, ModelError> {
        let parts = match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => folder::open(path)?,
            Ok(_) => gguf::open(path)?,
            Err(cause) => return Err(ModelError::Unreadable { path: path.to_owned(), cause }),
        };
        let Parts { name, config, tokenizer, chat_template, tensors } = parts;
        let name = without_controls(&name);
        tracing::debug!(
            %name,
            layers = config.layers,
            experts = config.experts,
            dense_tensors = tensors.dense.len(),
            tensors_left_aside = tensors.left_aside,
            "model opened"
        );
        Ok(Model { name, config, tokenizer, chat_template, tensors, digests: OnceLock::new() })
    }

    /// The model's name: `general.name` in GGUF, else the file's or folder's. Control characters, on which a terminal
    /// would act, are replaced by U+FFFD.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Its chat template, where it has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat_template.as_ref()
    }

    /// The embedding, vocabulary x hidden.
    pub fn embedding(&self) -> Tensor {
        self.tensors.embedding.clone()
    }

    /// Weight of the final norm, hidden long, ready to multiply.
    pub fn output_norm(&self) -> &[f32] {
        &self.tensors.output_norm
    }

    /// The output matrix, vocabulary x hidden; the embedding where the model ties them.
    pub fn output(&self) -> Tensor {
        self.tensors.output.clone()
    }

    /// Tensors of a layer. Panics if `layer` is not below `config().layers`, like an index.
    pub fn layer(&self, layer: LayerIndex) -> LayerTensors {
        self.tensors.layers[usize::from(layer.0)].clone()
    }

    /// One routed expert: three byte ranges. Reads no weight.
    pub fn expert(&self, layer: LayerIndex, expert: ExpertIndex) -> Result<ExpertTensors, ModelError> {
        let layer_experts = self.tensors.experts.get(usize::from(layer.0));
        layer_experts.and_then(|experts| experts.get(usize::from(expert.0))).unwrap_or_else(|| {
            Err(ModelError::NoSuchExpert {
                layer,
                expert,
                layers: self.config.layers,
                experts: self.config.experts,
            })
        })
    }

    /// Digest of one routed expert. Reads its weights, and no others.
    pub fn expert_digest(&self, layer: LayerIndex, expert: ExpertIndex) -> Result<ExpertDigest, ModelError> {
        Ok(self.expert(layer, expert)?.digest())
    }

    /// All digests. The first call reads every weight of the model; later calls return what it found.
    pub fn digests(&self) -> Result<&ModelDigests, ModelError> {
        if let Some(digests) = self.digests.get() {
            return Ok(digests);
        }
        // Two threads may both get here and compute; they find the same.
        let digests = ModelDigests::compute(&self.config, &self.tensors.dense, self.all_expert_digests()?)?;
        Ok(self.digests.get_or_init(|| digests))
    }

    /// Digests of all experts, ascending by layer, then index; hashed on all cores.
    fn all_expert_digests(&self) -> Result<Vec<ExpertDigest>, ModelError> {
        let per_layer = self.config.experts as usize;
        let count = self.config.layers as usize * per_layer;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let chunk = count.div_ceil(threads).max(1);
        let digest_range = |start: usize| -> Result<Vec<ExpertDigest>, ModelError> {
            // Layers and experts are at most MAX_LAYERS and MAX_EXPERTS, which fit u16.
            (start..count.min(start + chunk))
                .map(|at| {
                    let (layer, expert) = (at / per_layer, at % per_layer);
                    self.expert_digest(LayerIndex(layer as u16), ExpertIndex(expert as u16))
                })
                .collect()
        };
        let parts = std::thread::scope(|scope| {
            let workers: Vec<_> =
                (0..count).step_by(chunk).map(|start| scope.spawn(move || digest_range(start))).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect::<Result<Vec<_>, _>>()
        })?;
        Ok(parts.concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_may_be_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Model>();
    }
}
