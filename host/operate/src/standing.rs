//! A file that takes the place of another only as long as that is the one that was looked at: of two commands that read a package and
//! write it back at once, none loses what the other wrote.

use std::fs::{File, Metadata, TryLockError};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::files::{Draft, folder_of, what_is_at};

/// How long a folder may be locked by another program; each holds it for the writing of one file.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// How often it is tried in that time.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// What stands at a place at one moment, to be seen again: which file, how long, and when it was last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing(Option<[i64; 7]>);

impl Standing {
    /// What stands at `path` now.
    ///
    /// # Errors
    /// As [`crate::files::write_whole`].
    pub fn at(path: &Path) -> Result<Standing> {
        let facts = |file: Metadata| {
            let (device, inode) = (file.dev().cast_signed(), file.ino().cast_signed());
            [
                device,
                inode,
                file.len().cast_signed(),
                file.mtime(),
                file.mtime_nsec(),
                file.ctime(),
                file.ctime_nsec(),
            ]
        };
        Ok(Standing(what_is_at(path)?.map(facts)))
    }
}

/// As [`crate::files::write_whole`], but in the place of what stood there when `there` was taken, and of nothing else. Of two commands that do so at
/// once the second one fails.
///
/// # Errors
/// Where something else is there by now; else as [`crate::files::write_whole`].
pub fn write_over(path: &Path, there: &Standing, bytes: &[u8]) -> Result<()> {
    let mut draft = Draft::begin(path)?;
    draft.write_all(bytes).with_context(|| format!("cannot write {}", path.display()))?;
    // From the last look until the file is in its place.
    let _lock = lock_folder(folder_of(path))?;
    if Standing::at(path)? != *there {
        bail!(
            "{} was changed by another program in the meantime and is left as it is: repeat the command, which reads it anew",
            path.display()
        );
    }
    draft.finish()
}

/// The folder, locked until the file is closed; none where the file system has no locks, or the folder may be written and not read. The
/// folder itself is locked, so that no file is left in it.
fn lock_folder(folder: &Path) -> Result<Option<File>> {
    let Ok(file) = File::open(folder) else { return Ok(None) };
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::Error(_)) => return Ok(None),
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_RETRY);
            }
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "cannot lock the folder {}: another program has held it for {} seconds",
                    folder.display(),
                    LOCK_PATIENCE.as_secs()
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_another_wrote_in_the_meantime_is_not_written_over() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("p.kvp");
        let empty = Standing::at(&path).unwrap();
        write_over(&path, &empty, b"one").unwrap();
        let one = Standing::at(&path).unwrap();
        // Two that both saw nothing, and two that both saw the first.
        assert!(write_over(&path, &empty, b"two").unwrap_err().to_string().contains("in the meantime"));
        write_over(&path, &one, b"by A").unwrap();
        assert!(write_over(&path, &one, b"by B").unwrap_err().to_string().contains("in the meantime"));
        assert_eq!(fs::read(&path).unwrap(), b"by A");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        fs::remove_file(&path).unwrap();
        assert!(write_over(&path, &one, b"by B").is_err());
    }
}
