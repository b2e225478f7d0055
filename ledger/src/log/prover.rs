//! Inclusion and consistency proofs out of tiles, by the recursion of RFC 6962 sections 2.1.1 and 2.1.2.
//!
//! A subtree that is perfect is found in a tile of its level, so a proof reads a few tiles per level, not the leaves.
//! Tiles are believed here: whoever receives a proof verifies it against a signed root.

use std::cell::RefCell;
use std::collections::HashMap;

use kvasir_merkle::{Accumulator, ConsistencyProof, Hash, InclusionProof, ProofError};
use thiserror::Error;

use super::source::{Found, LogSource, SourceError, find_bundle, find_tile};
use super::tile::{
    BundleCoordinates, TILE_HASHES, TILE_HEIGHT, TileCoordinates, TileError, parse_bundle, parse_tile,
};

/// Most tiles that one prover keeps.
const MAX_CACHED_TILES: usize = 1024;

/// Makes proofs for the first `size` entries of a log.
pub struct Prover<'a> {
    source: &'a dyn LogSource,
    size: u64,
    tiles: RefCell<HashMap<TileCoordinates, Vec<Hash>>>,
}

/// Why a proof cannot be made.
#[derive(Debug, Error)]
pub enum ProverError {
    /// A file cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A file that the log's size demands is not there.
    #[error("the log has no {0}")]
    Missing(String),
    /// A file has other content than its path says.
    #[error("{path}: {source}")]
    Tile {
        /// Which file.
        path: String,
        /// What is wrong with it.
        source: TileError,
    },
    /// An index or a size outside the log.
    #[error(transparent)]
    Proof(#[from] ProofError),
}

impl<'a> Prover<'a> {
    /// For the first `size` entries of the log in `source`.
    pub fn new(source: &'a dyn LogSource, size: u64) -> Self {
        Self { source, size, tiles: RefCell::default() }
    }

    /// The root over all entries.
    pub fn root(&self) -> Result<Hash, ProverError> {
        if self.size == 0 { Ok(kvasir_merkle::EMPTY_ROOT) } else { self.range(0, self.size) }
    }

    /// Proof that the leaf at `index` is in the log.
    pub fn inclusion(&self, index: u64) -> Result<InclusionProof, ProverError> {
        if index >= self.size {
            return Err(ProofError::IndexOutside { index, size: self.size }.into());
        }
        let mut hashes = Vec::new();
        let (mut start, mut end) = (0, self.size);
        while end - start > 1 {
            let middle = start + split(end - start);
            if index < middle {
                hashes.push(self.range(middle, end)?);
                end = middle;
            } else {
                hashes.push(self.range(start, middle)?);
                start = middle;
            }
        }
        hashes.reverse();
        Ok(InclusionProof { index, size: self.size, hashes })
    }

    /// Proof that the log's first `old_size` entries are what they were.
    pub fn consistency(&self, old_size: u64) -> Result<ConsistencyProof, ProverError> {
        if old_size == 0 {
            return Err(ProofError::EmptyTree.into());
        }
        if old_size > self.size {
            return Err(ProofError::Shrinks { old_size, new_size: self.size }.into());
        }
        let mut hashes = Vec::new();
        let (mut start, mut end, mut whole) = (0, self.size, true);
        while end != old_size {
            let middle = start + split(end - start);
            if old_size <= middle {
                hashes.push(self.range(middle, end)?);
                end = middle;
            } else {
                hashes.push(self.range(start, middle)?);
                (start, whole) = (middle, false);
            }
        }
        if !whole {
            hashes.push(self.range(start, end)?);
        }
        hashes.reverse();
        Ok(ConsistencyProof { old_size, new_size: self.size, hashes })
    }

    /// The entry at `index`, as the log holds it.
    pub fn entry(&self, index: u64) -> Result<Vec<u8>, ProverError> {
        let outside = ProofError::IndexOutside { index, size: self.size };
        let bundle = BundleCoordinates::in_log(index / TILE_HASHES, self.size).ok_or(outside.clone())?;
        let Found { bytes, width, path } =
            find_bundle(self.source, &bundle)?.ok_or_else(|| ProverError::Missing(bundle.path()))?;
        let entries = parse_bundle(&bytes, width).map_err(|source| ProverError::Tile { path, source })?;
        let entry = usize::try_from(index % TILE_HASHES).ok().and_then(|at| entries.get(at));
        entry.map(|entry| entry.to_vec()).ok_or_else(|| outside.into())
    }

    /// The root over leaves `start .. end`, a subtree that the recursion of RFC 6962 meets; not empty.
    fn range(&self, start: u64, end: u64) -> Result<Hash, ProverError> {
        let count = end - start;
        if count.is_power_of_two() {
            return self.perfect(count.trailing_zeros(), start >> count.trailing_zeros());
        }
        let middle = start + split(count);
        Ok(kvasir_merkle::node_hash(&self.range(start, middle)?, &self.range(middle, end)?))
    }

    /// The root of the perfect subtree of `2^height` leaves at `position`.
    fn perfect(&self, height: u32, position: u64) -> Result<Hash, ProverError> {
        let (level, within) = (height / TILE_HEIGHT, height % TILE_HEIGHT);
        let first = position << within;
        let level = u8::try_from(level).unwrap_or(u8::MAX);
        let missing = || ProverError::Missing(format!("tile of level {level} that holds hash {first}"));
        let tile = TileCoordinates::in_tree(level, first / TILE_HASHES, self.size).ok_or_else(missing)?;
        let from = (first % TILE_HASHES) as usize;
        self.with_tile(tile, |hashes| {
            let hashes = hashes.get(from..from + (1 << within)).ok_or_else(missing)?;
            Ok(hashes.iter().copied().collect::<Accumulator>().root())
        })
    }

    fn with_tile<T>(
        &self,
        tile: TileCoordinates,
        then: impl FnOnce(&[Hash]) -> Result<T, ProverError>,
    ) -> Result<T, ProverError> {
        if let Some(hashes) = self.tiles.borrow().get(&tile) {
            return then(hashes);
        }
        let Found { bytes, width, path } =
            find_tile(self.source, &tile)?.ok_or_else(|| ProverError::Missing(tile.path()))?;
        let hashes = parse_tile(&bytes, width).map_err(|source| ProverError::Tile { path, source })?;
        let result = then(&hashes);
        let mut tiles = self.tiles.borrow_mut();
        if tiles.len() >= MAX_CACHED_TILES {
            tiles.clear();
        }
        tiles.insert(tile, hashes);
        result
    }
}

/// The largest power of two below `count`, which is at least 2.
fn split(count: u64) -> u64 {
    1 << (u64::BITS - 1 - (count - 1).leading_zeros())
}
