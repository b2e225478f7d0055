//! `Model`: what a checkpoint holds, whatever container it came in.

use std::path::Path;
use std::sync::Arc;

use crate::config::Config;
use crate::digest::ModelDigests;
use crate::error::ModelError;
use crate::identity::{ExpertDigest, ExpertIndex, LayerIndex};
use crate::template::ChatTemplate;
use crate::tensor::{ExpertTensors, LayerTensors, Tensor};
use crate::tokenizer::Tokenizer;

/// An opened model. Holds its files mapped; share it in an `Arc`.
pub struct Model {
    name: String,
    config: Config,
    tokenizer: Tokenizer,
    chat_template: Option<ChatTemplate>,
    embedding: Tensor,
    output_norm: Arc<[f32]>,
    output: Tensor,
    layers: Vec<LayerTensors>,
}

impl Model {
    /// Open a `.gguf` file (the first part of a split model finds the others beside it) or a Hugging Face folder.
    ///
    /// Checks the directory, the configuration, every tensor's shape, and the weights of all dense tensors; routed
    /// experts are not read (`ExpertTensors::check_weights` does that for one). The files stay mapped: they must not be
    /// changed or truncated while the model lives, or reading the lost part ends the process.
    pub fn open(path: &Path) -> Result<Model, ModelError> {
        todo!("{path:?}")
    }

    /// The model's name: `general.name` in GGUF, else the file's or folder's.
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
        self.embedding.clone()
    }

    /// Weight of the final norm, hidden long, ready to multiply.
    pub fn output_norm(&self) -> &[f32] {
        &self.output_norm
    }

    /// The output matrix, vocabulary x hidden; the embedding where the model ties them.
    pub fn output(&self) -> Tensor {
        self.output.clone()
    }

    /// Tensors of a layer. Panics if `layer` is not below `config().layers`, like an index.
    pub fn layer(&self, layer: LayerIndex) -> LayerTensors {
        self.layers[usize::from(layer.0)].clone()
    }

    /// One routed expert: three byte ranges. Reads no weight.
    pub fn expert(&self, layer: LayerIndex, expert: ExpertIndex) -> Result<ExpertTensors, ModelError> {
        todo!("{layer} {expert}")
    }

    /// Digest of one routed expert. Reads its weights, and no others.
    pub fn expert_digest(&self, layer: LayerIndex, expert: ExpertIndex) -> Result<ExpertDigest, ModelError> {
        Ok(self.expert(layer, expert)?.digest())
    }

    /// All digests. The first call reads every weight of the model; later calls return what it found.
    pub fn digests(&self) -> Result<&ModelDigests, ModelError> {
        todo!()
    }
}
