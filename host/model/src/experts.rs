//! The routed experts of a layer: found by index, three byte ranges each, no weight read.

use crate::error::{ModelError, Place};
use crate::identity::LayerIndex;
use crate::limits::MAX_EXPERT_BLOB_BYTES;
use crate::tensor::{ExpertTensors, Stack, Tensor};

/// One layer's routed experts.
pub(crate) enum LayerExperts {
    /// Matrices stacked in one tensor per kind; gate and up may share one.
    Stacked {
        /// width x hidden each.
        gate: Stack,
        /// width x hidden each.
        up: Stack,
        /// hidden x width each.
        down: Stack,
    },
    /// A tensor for each matrix of each expert.
    Named(Vec<ExpertTensors>),
}

impl LayerExperts {
    /// Expert number `index`; `None` beyond the last.
    pub(crate) fn get(&self, index: usize) -> Option<Result<ExpertTensors, ModelError>> {
        match self {
            LayerExperts::Named(experts) => experts.get(index).cloned().map(Ok),
            LayerExperts::Stacked { gate, up, down } => {
                (index < gate.count()).then(|| stacked(gate, up, down, index))
            }
        }
    }

    /// Check what can be known without reading weights: row formats and sizes.
    pub(crate) fn check(&self, layer: u32) -> Result<(), ModelError> {
        match self {
            // All experts of a stack are alike.
            LayerExperts::Stacked { gate, up, down } => check_expert(layer, &stacked(gate, up, down, 0)?),
            LayerExperts::Named(experts) => experts.iter().try_for_each(|expert| check_expert(layer, expert)),
        }
    }
}

/// Refuse gate and up matrices that cannot read the same row.
pub(crate) fn check_row_formats(layer: u32, expert: &ExpertTensors) -> Result<(), ModelError> {
    let (gate, up) = (expert.gate.row_format(), expert.up.row_format());
    if gate != up {
        // Layers are at most MAX_LAYERS.
        return Err(ModelError::RowFormatsDiffer { layer: LayerIndex(layer as u16), gate, up });
    }
    Ok(())
}

fn stacked(gate: &Stack, up: &Stack, down: &Stack, index: usize) -> Result<ExpertTensors, ModelError> {
    Ok(ExpertTensors { gate: gate.matrix(index)?, up: up.matrix(index)?, down: down.matrix(index)? })
}

fn check_expert(layer: u32, expert: &ExpertTensors) -> Result<(), ModelError> {
    check_row_formats(layer, expert)?;
    let length = |tensor: &Tensor| tensor.bytes().len() as u64;
    let bytes = length(&expert.gate) + length(&expert.up) + length(&expert.down) + 48;
    if bytes > MAX_EXPERT_BLOB_BYTES {
        let at: Place = expert.gate.place();
        return Err(ModelError::OverLimit {
            at,
            what: "bytes of an expert",
            value: bytes,
            limit: MAX_EXPERT_BLOB_BYTES,
        });
    }
    Ok(())
}
