//! What a sequence remembers between forward passes: delta-net states and key/value caches.
//!
//! Memory is bounded by the context limit and asked for before a pass computes anything, so a pass that begins has
//! all the room it needs.

use std::ops::Range;

use crate::attention::KeyValueCache;
use crate::delta_net::DeltaNetState;
use crate::error::BackboneError;

/// One text being read and written. A clone is a snapshot: both continue from here, independently.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// Which backbone made it.
    pub(crate) backbone: u64,
    pub(crate) layers: Vec<LayerState>,
    held: usize,
    limit: usize,
    spoiled: bool,
    /// The layers that it runs through, fixed by its first pass: caches of other layers hold nothing.
    through: Option<Range<usize>>,
}

#[derive(Debug, Clone)]
pub(crate) enum LayerState {
    DeltaNet(DeltaNetState),
    Attention(KeyValueCache),
}

impl Sequence {
    pub(crate) fn new(backbone: u64, limit: usize, layers: Vec<LayerState>) -> Sequence {
        Sequence { backbone, layers, held: 0, limit, spoiled: false, through: None }
    }

    /// Tokens read so far; also the position of the next one.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Whether no token was read yet.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Tokens that fit at most.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes of its caches and states now.
    pub fn bytes(&self) -> usize {
        self.layers
            .iter()
            .map(|layer| match layer {
                LayerState::DeltaNet(state) => state.bytes(),
                LayerState::Attention(cache) => cache.bytes(),
            })
            .sum()
    }

    /// Checks that `fed` more tokens may pass through `layers` and makes room for them.
    pub(crate) fn reserve(&mut self, fed: usize, layers: &Range<usize>) -> Result<(), BackboneError> {
        if self.spoiled {
            return Err(BackboneError::SpoiledSequence);
        }
        if let Some(through) = self.through.as_ref().filter(|through| *through != layers) {
            let what = format!("the sequence runs through layers {through:?}, not {layers:?}");
            return Err(BackboneError::WrongInput { what });
        }
        let needed = self
            .held
            .checked_add(fed)
            .filter(|&needed| needed <= self.limit)
            .ok_or(BackboneError::ContextFull { held: self.held, fed, limit: self.limit })?;
        for layer in &mut self.layers[layers.clone()] {
            match layer {
                LayerState::DeltaNet(state) => state.reserve()?,
                LayerState::Attention(cache) => cache.reserve(needed, self.limit)?,
            }
        }
        Ok(())
    }

    /// From here until [`Sequence::advance`] the sequence counts as spoiled: layers change one after the other, and a
    /// pass that fails half way leaves caches that disagree.
    pub(crate) fn begin(&mut self, layers: &Range<usize>) {
        self.through = Some(layers.clone());
        self.spoiled = true;
    }

    /// All layers have read `fed` more tokens.
    pub(crate) fn advance(&mut self, fed: usize) {
        self.held += fed;
        self.spoiled = false;
    }
}

/// Makes room for `needed` values in all, at most `most`, growing by doubling so that decoding does not copy a cache
/// at every token.
pub(crate) fn reserve(
    values: &mut Vec<f32>,
    needed: usize,
    most: usize,
    what: &'static str,
) -> Result<(), BackboneError> {
    if needed <= values.capacity() {
        return Ok(());
    }
    let capacity = needed.max(values.capacity().saturating_mul(2)).min(most);
    values
        .try_reserve_exact(capacity - values.len())
        .map_err(|_| BackboneError::OutOfMemory { what, bytes: capacity.saturating_mul(size_of::<f32>()) })
}
