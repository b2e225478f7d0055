//! The model digest: an RFC 6962 tree over configuration, dense tensors and experts.
//!
//! Leaves in order, integers u32 little-endian, strings and bytes after their u32 length:
//! 1. the canonical configuration text, as a string;
//! 2. every dense tensor in ascending order of its name's bytes: name, format number, number of dimensions,
//!    dimensions outermost first, stored bytes;
//! 3. every expert, ascending by layer, then index: zero, layer, index, and its 32-byte `ExpertDigest`, so that a proof can
//!    be checked before the blob is fetched. The name is in it since a proof binds no place in the tree: without, whoever
//!    hands an expert over could hand over another one of the same model. The zero sets it apart from the other leaves,
//!    which begin with the length of a text that is not empty.

use kvasir_merkle::{Hash, InclusionProof, LeafHasher, inclusion_proof, leaf_hash, root};

use crate::config::Config;
use crate::error::ModelError;
use crate::identity::{ExpertDigest, ExpertIndex, LayerIndex, ModelDigest};
use crate::stored::StoredTensor;

/// The digests of a whole model. Computing them reads every weight once.
#[derive(Clone, Debug)]
pub struct ModelDigests {
    /// The model's digest.
    pub model: ModelDigest,
    experts: Vec<ExpertDigest>,
    experts_per_layer: usize,
    leaves: Vec<Hash>,
}

/// The leaf hash of the expert of this name in its model's tree.
pub fn expert_leaf(layer: LayerIndex, expert: ExpertIndex, digest: &ExpertDigest) -> Hash {
    let mut leaf = LeafHasher::new();
    leaf.update(&0u32.to_le_bytes());
    leaf.update(&u32::from(layer.0).to_le_bytes());
    leaf.update(&u32::from(expert.0).to_le_bytes());
    leaf.update(&digest.0);
    leaf.finish()
}

impl ModelDigests {
    /// Build the tree. `dense` must be in ascending order of names, `experts` ascending by layer, then index.
    pub(crate) fn compute(
        config: &Config,
        dense: &[StoredTensor],
        experts: Vec<ExpertDigest>,
    ) -> Result<ModelDigests, ModelError> {
        let mut leaves = Vec::with_capacity(1 + dense.len() + experts.len());
        leaves.push(configuration_leaf(&config.canonical_text()));
        for tensor in dense {
            leaves.push(dense_leaf(tensor)?);
        }
        let experts_per_layer = config.experts as usize;
        leaves.extend(experts.iter().enumerate().map(|(position, digest)| {
            // Both fit: a configuration has at most MAX_LAYERS layers of MAX_EXPERTS experts.
            let layer = LayerIndex((position / experts_per_layer) as u16);
            expert_leaf(layer, ExpertIndex((position % experts_per_layer) as u16), digest)
        }));
        let model = ModelDigest(root(&leaves).0);
        Ok(ModelDigests { model, experts, experts_per_layer, leaves })
    }

    /// Digest of one expert; `None` when the model has no such expert.
    pub fn expert(&self, layer: LayerIndex, expert: ExpertIndex) -> Option<ExpertDigest> {
        self.experts.get(self.expert_position(layer, expert)?).copied()
    }

    /// The leaf's number in the model's tree; `None` when the model has no such expert.
    pub fn expert_leaf_index(&self, layer: LayerIndex, expert: ExpertIndex) -> Option<u64> {
        let before = self.leaves.len() - self.experts.len();
        Some((before + self.expert_position(layer, expert)?) as u64)
    }

    /// Leaves of the model's tree.
    pub fn leaf_count(&self) -> u64 {
        self.leaves.len() as u64
    }

    /// Proof that the [`expert_leaf`] of this name and its digest is a leaf of the model; `None` when the model has no such
    /// expert. A holder of the model's digest checks it with `InclusionProof::verify`.
    pub fn proof(&self, layer: LayerIndex, expert: ExpertIndex) -> Option<InclusionProof> {
        inclusion_proof(&self.leaves, self.expert_leaf_index(layer, expert)?).ok()
    }

    fn expert_position(&self, layer: LayerIndex, expert: ExpertIndex) -> Option<usize> {
        let (layer, expert) = (usize::from(layer.0), usize::from(expert.0));
        (expert < self.experts_per_layer && layer < self.experts.len() / self.experts_per_layer)
            .then(|| layer * self.experts_per_layer + expert)
    }
}

fn configuration_leaf(text: &str) -> Hash {
    // The text is a few hundred bytes of our own making.
    leaf_hash(&[&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat())
}

fn dense_leaf(tensor: &StoredTensor) -> Result<Hash, ModelError> {
    let bytes = tensor.bytes();
    let length = u32::try_from(bytes.len()).map_err(|_| ModelError::TooLargeForDigest {
        tensor: tensor.name().to_owned(),
        bytes: bytes.len() as u64,
    })?;
    let mut leaf = LeafHasher::new();
    // Names are at most MAX_NAME_BYTES long, ranks at most MAX_RANK, dimensions at most MAX_DIMENSION.
    leaf.update(&(tensor.name().len() as u32).to_le_bytes());
    leaf.update(tensor.name().as_bytes());
    leaf.update(&tensor.format().number().to_le_bytes());
    leaf.update(&(tensor.shape().len() as u32).to_le_bytes());
    for dimension in tensor.shape() {
        leaf.update(&(*dimension as u32).to_le_bytes());
    }
    leaf.update(&length.to_le_bytes());
    leaf.update(bytes);
    Ok(leaf.finish())
}
