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
        let file = open_regular(path)?;
        // SAFETY: the mapping is private to reading and never written through. Rust's rule that the bytes behind a
        // shared slice do not change is kept only as long as nobody else changes the file; that hazard is documented
        // at the top of this file and in `Model::open`, and is the price of mapping at all.
        let map = unsafe { Mmap::map(&file) }
            .map_err(|cause| ModelError::Unreadable { path: path.to_owned(), cause })?;
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

/// Open a regular file, or a link to one. What it is is asked before it is opened, since opening a FIFO waits for a
/// writer and opening a device may do anything; and again of the open file, since the name may have changed hands.
pub(crate) fn open_regular(path: &Path) -> Result<File, ModelError> {
    let unreadable = |cause| ModelError::Unreadable { path: path.to_owned(), cause };
    let check = |found: &std::fs::Metadata| {
        let why = match found.is_file() {
            true => return Ok(()),
            false if found.is_dir() => "it is a folder, not a file",
            false => "it is not a regular file",
        };
        Err(ModelError::NotAModel { path: path.to_owned(), why: why.to_owned() })
    };
    check(&std::fs::metadata(path).map_err(unreadable)?)?;
    let file = File::open(path).map_err(unreadable)?;
    check(&file.metadata().map_err(unreadable)?)?;
    Ok(file)
}

/// Whether there is anything of that name, be it a link that leads nowhere: what is there is read or complained of,
/// never passed over.
pub(crate) fn is_there(path: &Path) -> Result<bool, ModelError> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(ModelError::Unreadable { path: path.to_owned(), cause }),
    }
}
