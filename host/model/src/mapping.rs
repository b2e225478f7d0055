//! Files mapped into memory, read-only: a 70 GB model is opened without being read.
//!
//! The one hazard that stays: if another program truncates or overwrites a file while it is mapped, a later read of
//! the lost pages ends this process (SIGBUS), and overwritten bytes are seen as they change. Model files must not be
//! changed in place while in use; replace them by renaming a new file over the old one, which leaves a mapping intact.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::ModelError;

/// One mapped file.
pub(crate) struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Map a whole regular file. An empty file maps to no bytes.
    pub(crate) fn open(path: &Path) -> Result<MappedFile, ModelError> {
        let unreadable = |source| ModelError::Unreadable { path: path.to_owned(), source };
        let file = File::open(path).map_err(unreadable)?;
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(ModelError::NotAModel {
                path: path.to_owned(),
                why: "it is not a regular file".to_owned(),
            });
        }
        // SAFETY: the mapping is private to reading and never written through. Rust's rule that the bytes behind a
        // shared slice do not change is kept only as long as nobody else changes the file; that hazard is documented
        // at the top of this file and in `Model::open`, and is the price of mapping at all.
        let map = unsafe { Mmap::map(&file) }.map_err(unreadable)?;
        Ok(MappedFile { path: path.to_owned(), map })
    }

    /// Where the file lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes; reading them loads pages.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }
}
