//! A temporary folder for the products of one build: gone with its owner, and where that was killed, with the next one that is made.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tempfile::TempDir;

/// What the folders' names begin with.
const PREFIX: &str = "kvasir-rebuild-";
/// How often a folder is made anew because another process took it for one that was left.
const TRIES: usize = 16;

/// The folder, locked as long as this lives: whoever finds it unlocked knows that nobody uses it. On a file system without locks nothing
/// is locked, and nothing swept.
pub(crate) struct Products {
    folder: TempDir,
    _lock: File,
}

impl Products {
    /// A new folder among the system's temporary ones.
    pub(crate) fn new() -> io::Result<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(parent: &Path) -> io::Result<Self> {
        for _ in 0..TRIES {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
            let lock = File::open(folder.path())?;
            let being_swept = matches!(lock.try_lock(), Err(TryLockError::WouldBlock));
            let made = lock.metadata()?;
            let still_there =
                fs::symlink_metadata(folder.path()).is_ok_and(|there| there.ino() == made.ino());
            if !being_swept && still_there {
                sweep(parent, made.uid());
                return Ok(Products { folder, _lock: lock });
            }
        }
        Err(io::Error::other("another program removes the folders that are made there"))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders of the user `owner` that nobody uses any more.
fn sweep(parent: &Path, owner: u32) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_one = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // The metadata of an entry are the link's own where it is a link.
        if !is_one || !entry.metadata().is_ok_and(|there| there.is_dir() && there.uid() == owner) {
            continue;
        }
        if File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_nobody_uses_any_more_go_with_the_next_and_those_in_use_stay() {
        let parent = tempfile::tempdir().unwrap();
        let in_use = Products::new_in(parent.path()).unwrap();
        let left = parent.path().join("kvasir-rebuild-a1B2c3");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("kernel.o"), "half").unwrap();
        let others = parent.path().join("kvasir-notes");
        fs::create_dir(&others).unwrap();
        std::os::unix::fs::symlink(&others, parent.path().join("kvasir-rebuild-link")).unwrap();
        drop(Products::new_in(parent.path()).unwrap());
        assert!(!left.exists() && in_use.path().exists() && others.exists());
        drop(in_use);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 2, "the other folder and the link");
    }
}
