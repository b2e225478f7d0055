//! Tiles and entry bundles: how a log lies in static files.
//!
//! A tile of level `L` holds up to 256 hashes, each the root of a perfect subtree of `256^L` leaves. A bundle holds the
//! up to 256 entries under one tile of level 0. A tile that is not full has its width in its path and is made only for a
//! size that a checkpoint commits to; a full one never changes.

use std::fmt;

use kvasir_merkle::Hash;
use thiserror::Error;

/// Levels of the tree in one tile.
pub const TILE_HEIGHT: u32 = 8;
/// Hashes in a full tile, entries in a full bundle.
pub const TILE_HASHES: u64 = 1 << TILE_HEIGHT;
/// Longest entry: its length travels as 16 bits.
pub const MAX_ENTRY_BYTES: usize = u16::MAX as usize;
/// Longest bundle.
pub const MAX_BUNDLE_BYTES: usize = TILE_HASHES as usize * (MAX_ENTRY_BYTES + 2);
/// Levels that a tree of 2^63 leaves needs.
const LEVELS: u8 = 8;

/// Which tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TileCoordinates {
    /// 0 holds leaf hashes.
    pub level: u8,
    /// Position within the level.
    pub index: u64,
    /// Hashes in it, 1 to 256.
    pub width: u16,
}

/// Which entry bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BundleCoordinates {
    /// Position: entries from `index * 256`.
    pub index: u64,
    /// Entries in it, 1 to 256.
    pub width: u16,
}

/// Why bytes are no tile or bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TileError {
    /// A tile holds as many hashes as its path says.
    #[error("a tile of {width} hashes has {expected} bytes, this one {found}", expected = usize::from(*.width) * 32)]
    TileLength {
        /// Hashes that the path says.
        width: u16,
        /// Bytes found.
        found: usize,
    },
    /// An entry's two bytes of length, or the entry, go beyond the end.
    #[error("the bundle ends within entry {entry} of {width}")]
    Truncated {
        /// Entry within the bundle, from 0.
        entry: u16,
        /// Entries that the path says.
        width: u16,
    },
    /// Bytes follow the last entry.
    #[error("{bytes} bytes follow the last of {width} entries")]
    Trailing {
        /// Bytes too many.
        bytes: usize,
        /// Entries that the path says.
        width: u16,
    },
    /// An entry that a bundle cannot hold.
    #[error("an entry has at most {MAX_ENTRY_BYTES} bytes, this one {0}")]
    EntryLength(usize),
}

impl TileCoordinates {
    /// The tile of `level` and `index` in a tree of `size` leaves; nothing where that tree has none there.
    pub fn in_tree(level: u8, index: u64, size: u64) -> Option<Self> {
        let hashes = hashes_of_level(level, size).checked_sub(index.checked_mul(TILE_HASHES)?)?;
        let width = u16::try_from(hashes.min(TILE_HASHES)).ok().filter(|width| *width > 0)?;
        Some(Self { level, index, width })
    }

    /// Its path below the log's prefix.
    pub fn path(&self) -> String {
        format!("tile/{}/{}{}", self.level, Groups(self.index), Partial(self.width))
    }

    /// The same tile when it is full.
    pub fn full(&self) -> Self {
        Self { width: TILE_HASHES as u16, ..*self }
    }

    /// Whether nothing can be added to it.
    pub fn is_full(&self) -> bool {
        u64::from(self.width) == TILE_HASHES
    }
}

impl BundleCoordinates {
    /// The bundle at `index` in a log of `size` entries; nothing where there is none.
    pub fn in_log(index: u64, size: u64) -> Option<Self> {
        TileCoordinates::in_tree(0, index, size).map(|tile| Self { index, width: tile.width })
    }

    /// Its path below the log's prefix.
    pub fn path(&self) -> String {
        format!("tile/entries/{}{}", Groups(self.index), Partial(self.width))
    }

    /// The same bundle when it is full.
    pub fn full(&self) -> Self {
        Self { width: TILE_HASHES as u16, ..*self }
    }

    /// Whether nothing can be added to it.
    pub fn is_full(&self) -> bool {
        u64::from(self.width) == TILE_HASHES
    }

    /// Index of its first entry.
    pub fn first_entry(&self) -> u64 {
        self.index.saturating_mul(TILE_HASHES)
    }
}

/// All tiles of a tree of `size` leaves whose content differs from those of `old_size`: level by level, ascending.
pub fn tiles_of(old_size: u64, size: u64) -> impl Iterator<Item = TileCoordinates> {
    (0..LEVELS).flat_map(move |level| {
        let (old, new) = (hashes_of_level(level, old_size), hashes_of_level(level, size));
        let range = if new > old { old / TILE_HASHES..new.div_ceil(TILE_HASHES) } else { 0..0 };
        range.filter_map(move |index| TileCoordinates::in_tree(level, index, size))
    })
}

/// All bundles of a log of `size` entries that differ from those of `old_size`, ascending.
pub fn bundles_of(old_size: u64, size: u64) -> impl Iterator<Item = BundleCoordinates> {
    let range = if size > old_size { old_size / TILE_HASHES..size.div_ceil(TILE_HASHES) } else { 0..0 };
    range.filter_map(move |index| BundleCoordinates::in_log(index, size))
}

/// The bytes of a tile.
pub fn encode_tile(hashes: &[Hash]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| hash.as_bytes()).copied().collect()
}

/// Reads a tile of exactly `width` hashes.
pub fn parse_tile(bytes: &[u8], width: u16) -> Result<Vec<Hash>, TileError> {
    let (hashes, rest) = bytes.as_chunks::<32>();
    if hashes.len() != usize::from(width) || !rest.is_empty() {
        return Err(TileError::TileLength { width, found: bytes.len() });
    }
    Ok(hashes.iter().map(|hash| Hash(*hash)).collect())
}

/// The bytes of a bundle.
pub fn encode_bundle<'a>(entries: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>, TileError> {
    let mut bytes = Vec::new();
    for entry in entries {
        let length = u16::try_from(entry.len()).map_err(|_| TileError::EntryLength(entry.len()))?;
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(entry);
    }
    Ok(bytes)
}

/// Reads a bundle of exactly `width` entries.
pub fn parse_bundle(bytes: &[u8], width: u16) -> Result<Vec<&[u8]>, TileError> {
    let mut rest = bytes;
    let entries = (0..width)
        .map(|entry| {
            let truncated = TileError::Truncated { entry, width };
            let (length, after) = rest.split_first_chunk::<2>().ok_or(truncated)?;
            let (content, after) =
                after.split_at_checked(usize::from(u16::from_be_bytes(*length))).ok_or(truncated)?;
            rest = after;
            Ok(content)
        })
        .collect::<Result<Vec<_>, TileError>>()?;
    if rest.is_empty() { Ok(entries) } else { Err(TileError::Trailing { bytes: rest.len(), width }) }
}

/// Complete subtrees of `256^level` leaves.
fn hashes_of_level(level: u8, size: u64) -> u64 {
    size.checked_shr(TILE_HEIGHT * u32::from(level)).unwrap_or(0)
}

/// A number in groups of three digits, all but the last marked with an `x`.
struct Groups(u64);

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= 1000 {
            Further(self.0 / 1000).fmt(f)?;
        }
        write!(f, "{:03}", self.0 % 1000)
    }
}

struct Further(u64);

impl fmt::Display for Further {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= 1000 {
            Further(self.0 / 1000).fmt(f)?;
        }
        write!(f, "x{:03}/", self.0 % 1000)
    }
}

/// The end of the path of a tile that is not full.
struct Partial(u16);

impl fmt::Display for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if u64::from(self.0) == TILE_HASHES { Ok(()) } else { write!(f, ".p/{}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_specification() {
        let tile = |level, index, width| TileCoordinates { level, index, width }.path();
        assert_eq!(tile(0, 0, 256), "tile/0/000");
        assert_eq!(tile(1, 1_234_067, 256), "tile/1/x001/x234/067");
        assert_eq!(tile(0, 273, 112), "tile/0/273.p/112");
        assert_eq!(BundleCoordinates { index: 1000, width: 1 }.path(), "tile/entries/x001/000.p/1");
    }

    #[test]
    fn a_tree_has_the_tiles_that_its_size_demands() {
        let all: Vec<_> =
            tiles_of(0, 70_000).filter(|tile| !tile.is_full()).map(|tile| tile.path()).collect();
        assert_eq!(all, ["tile/0/273.p/112", "tile/1/001.p/17", "tile/2/000.p/1"]);
        let grown: Vec<_> = tiles_of(255, 257).map(|tile| tile.path()).collect();
        assert_eq!(grown, ["tile/0/000", "tile/0/001.p/1", "tile/1/000.p/1"]);
        assert_eq!(tiles_of(0, 0).count() + tiles_of(5, 5).count() + bundles_of(9, 9).count(), 0);
        assert_eq!(bundles_of(256, 600).map(|bundle| bundle.width).collect::<Vec<_>>(), [256, 88]);
    }

    #[test]
    fn a_bundle_is_read_in_one_way_only() {
        let entries: [&[u8]; 3] = [b"one", b"", b"three"];
        let bytes = encode_bundle(entries).unwrap();
        assert_eq!(parse_bundle(&bytes, 3).unwrap(), entries);
        assert_eq!(parse_bundle(&bytes, 2), Err(TileError::Trailing { bytes: 7, width: 2 }));
        assert_eq!(parse_bundle(&bytes, 4), Err(TileError::Truncated { entry: 3, width: 4 }));
        for end in 0..bytes.len() {
            assert!(parse_bundle(&bytes[..end], 3).is_err());
        }
        let long = vec![0; MAX_ENTRY_BYTES + 1];
        assert_eq!(encode_bundle([long.as_slice()]), Err(TileError::EntryLength(65_536)));
        assert_eq!(parse_tile(&[0; 33], 1), Err(TileError::TileLength { width: 1, found: 33 }));
    }
}
