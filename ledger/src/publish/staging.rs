//! Tiles and bundles on their way to the disk. A file that is there already must hold the same bytes; none is overwritten.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use kvasir_merkle::{Accumulator, Hash, leaf_hash};
use rusqlite::Connection;

use super::failed;
use crate::files::{Existing, Readers, sync_folder_of, write_whole};
use crate::log::{
    BundleCoordinates, FolderSource, LogSource as _, MAX_BUNDLE_BYTES, TILE_HASHES, TileCoordinates,
    encode_bundle, encode_tile, tiles_of,
};
use crate::refusal::LedgerError;
use crate::store::entries_between;

/// Levels above the leaves that a log can have.
const UPPER_LEVELS: usize = 7;

/// The staged part of a log: its running root, and what is needed to write the next tiles.
pub(super) struct Staging {
    folder: PathBuf,
    tree: Accumulator,
    /// Leaf hashes under the last tile of level 0 that is not full.
    leaves: Vec<Hash>,
    /// Entries of the last bundle that is not full.
    entries: Vec<Vec<u8>>,
    /// `upper[n]` holds the hashes of level `n + 1`.
    upper: [Vec<Hash>; UPPER_LEVELS],
    /// Folders of partial files whose full file is there.
    replaced: Vec<PathBuf>,
    /// Folders that are on the disk under their names, as far as this value knows.
    folders: HashSet<PathBuf>,
}

impl Staging {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            tree: Accumulator::new(),
            leaves: Vec::new(),
            entries: Vec::new(),
            upper: Default::default(),
            replaced: Vec::new(),
            folders: HashSet::new(),
        }
    }

    pub(super) fn root(&self) -> Hash {
        self.tree.root()
    }

    /// Reads entries up to `size` and writes their files; when it returns they are on the disk. Where the log vouched for
    /// `known_size` entries they must have `known_root`, and their files are on the disk since then.
    pub(super) fn extend_to(
        &mut self,
        connection: &Connection,
        store: &Path,
        size: u64,
        known_size: u64,
        known_root: &Hash,
    ) -> Result<(), LedgerError> {
        let old = self.tree.size();
        while self.tree.size() < size {
            let from = self.tree.size();
            let to = size.min((from / TILE_HASHES + 1) * TILE_HASHES);
            for (index, note, leaf) in entries_between(connection, store, from, to)? {
                // The kept leaf was computed when the note came; this one from what the disk gives now.
                let computed = leaf_hash(&note);
                let damaged = |reason| LedgerError::Damaged { path: store.to_owned(), index, reason };
                if index != self.tree.size() {
                    let index = self.tree.size();
                    let reason = "it is missing".to_owned();
                    return Err(LedgerError::Damaged { path: store.to_owned(), index, reason });
                }
                if computed != leaf {
                    return Err(damaged(format!(
                        "the note has leaf hash {computed}, the kept one is {leaf}"
                    )));
                }
                self.tree.push(computed);
                self.leaves.push(computed);
                self.entries.push(note);
                if self.tree.size() == known_size && self.tree.root() != *known_root {
                    let root = self.tree.root();
                    return Err(damaged(format!(
                        "up to here the root is {root}, the log vouched for {known_root}"
                    )));
                }
            }
            if self.tree.size() != to {
                let reason = format!("it is missing; the database says that there are {size}");
                return Err(LedgerError::Damaged { path: store.to_owned(), index: self.tree.size(), reason });
            }
            self.write_leaves(to, to > known_size)?;
        }
        self.write_upper(old, size, known_size)
    }

    /// Removes partial files that a full one has replaced. Nothing depends on it.
    pub(super) fn sweep(&mut self) {
        for folder in self.replaced.drain(..) {
            let _ = fs::remove_dir_all(&folder);
            self.folders.remove(&folder);
        }
    }

    /// The bundle and the tile of level 0 that end at `size`.
    fn write_leaves(&mut self, size: u64, is_new: bool) -> Result<(), LedgerError> {
        let index = (size - 1) / TILE_HASHES;
        let missing = || failed(&self.folder, &"a tile without hashes");
        let bundle = BundleCoordinates::in_log(index, size).ok_or_else(missing)?;
        let tile = TileCoordinates::in_tree(0, index, size).ok_or_else(missing)?;
        let bytes = encode_bundle(self.entries.iter().map(Vec::as_slice))
            .map_err(|error| failed(&self.folder, &error))?;
        self.write(&bundle.path(), &bytes, is_new)?;
        let bytes = encode_tile(&self.leaves);
        self.write(&tile.path(), &bytes, is_new)?;
        if tile.is_full() {
            let mut carried = self.leaves.drain(..).collect::<Accumulator>().root();
            self.entries.clear();
            for level in &mut self.upper {
                level.push(carried);
                if !(level.len() as u64).is_multiple_of(TILE_HASHES) {
                    break;
                }
                let last = level.len() - TILE_HASHES as usize;
                carried = level[last..].iter().copied().collect::<Accumulator>().root();
            }
            self.replaced.push(partials(&self.folder.join(bundle.path())));
            self.replaced.push(partials(&self.folder.join(tile.path())));
        }
        Ok(())
    }

    fn write_upper(&mut self, old: u64, size: u64, known_size: u64) -> Result<(), LedgerError> {
        for tile in tiles_of(old, size).filter(|tile| tile.level > 0) {
            let first = usize::try_from(tile.index * TILE_HASHES).unwrap_or(usize::MAX);
            let hashes = self
                .upper
                .get(usize::from(tile.level) - 1)
                .and_then(|level| level.get(first..first + usize::from(tile.width)));
            let hashes = hashes.ok_or_else(|| failed(&self.folder, &"a tile without hashes"))?;
            let bytes = encode_tile(hashes);
            self.write(&tile.path(), &bytes, size > known_size)?;
            if tile.is_full() {
                self.replaced.push(partials(&self.folder.join(tile.path())));
            }
        }
        Ok(())
    }

    /// Writes a file. What is there already is put on the disk too where it `is_new`: whoever wrote it may have ended, or been
    /// told of an error, before that was done, and the log must not vouch for it until it is.
    fn write(&mut self, name: &str, bytes: &[u8], is_new: bool) -> Result<(), LedgerError> {
        let path = self.folder.join(name);
        let there = FolderSource(self.folder.clone()).read(name, MAX_BUNDLE_BYTES);
        match there.map_err(|error| failed(&path, &error))? {
            Some(there) if there == bytes => {
                let synced = if is_new { self.sync(&path) } else { Ok(()) };
                return synced.map_err(|error| failed(&path, &error));
            }
            Some(_) => {
                let reason = "holds other bytes than the entries give; published files never change: move it away only if it was damaged";
                return Err(failed(&path, &reason));
            }
            None => {}
        }
        self.make_folder_of(&path)
            .and_then(|()| write_whole(&path, bytes, Existing::Keep, Readers::Anyone))
            .map_err(|error| failed(&path, &error))
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        self.make_folder_of(path)?;
        File::open(path)?.sync_all()?;
        sync_folder_of(path)
    }

    /// Has the folder of a file on the disk, and every one above it up to the log's own.
    fn make_folder_of(&mut self, path: &Path) -> io::Result<()> {
        let folder = path.parent().filter(|folder| folder.starts_with(&self.folder));
        let Some(folder) = folder.filter(|folder| !self.folders.contains(*folder)) else { return Ok(()) };
        self.make_folder_of(folder)?;
        match fs::create_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => sync_folder_of(folder)?,
        }
        self.folders.insert(folder.to_owned());
        Ok(())
    }
}

/// The folder of the partial files of a full one.
fn partials(full: &Path) -> PathBuf {
    let mut name = full.as_os_str().to_owned();
    name.push(".p");
    name.into()
}
