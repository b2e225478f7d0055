//! The store's way to the disk: plain files of a bounded size, replaced whole, and one lock for who changes them.
//!
//! Nothing here follows a symbolic link at the name itself, waits for a pipe or reads a device; what a reader finds is either the
//! old content or all of the new one, also after the machine lost its power between any two steps.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::error::StoreError;
use crate::limits::{LOCK_PATIENCE, MAX_PACKAGES};

/// Between two looks at a lock that another process holds.
const LOCK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);
/// What the names of files in the making begin with.
const DRAFT: &str = ".store-draft-";

/// The plain file at `path`, which is at most `limit` bytes, or none where there is nothing.
pub fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(file) = open(path)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|source| read_error(path, source))?;
    if bytes.len() as u64 > limit {
        return Err(StoreError::TooLarge { path: path.to_owned(), limit });
    }
    Ok(Some(bytes))
}

/// As [`read`], for a file that the operator writes and may keep elsewhere: the name may be a link to a plain file.
pub fn read_through_links(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
    match path.canonicalize() {
        Ok(target) => read(&target, limit),
        // A link to nothing is a mistake, not a file that is not there.
        Err(_) => read(path, limit),
    }
}

/// Whether anything is at `path`, of whatever kind.
pub fn exists(path: &Path) -> Result<bool, StoreError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(read_error(path, source)),
    }
}

/// The plain file at `path` opened for reading, or none where there is nothing.
pub fn open(path: &Path) -> Result<Option<File>, StoreError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(read_error(path, source)),
        Ok(metadata) => refuse_other_than_file(path, &metadata)?,
    }
    // Whoever puts a pipe or a link there in between gains nothing.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(|source| read_error(path, source))?;
    let metadata = file.metadata().map_err(|source| read_error(path, source))?;
    refuse_other_than_file(path, &metadata)?;
    Ok(Some(file))
}

/// Puts `bytes` at `path` instead of what is there: written beside it, flushed to the disk, renamed, and the folder flushed.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    Draft::write(path, bytes)?.put()
}

/// A file that is whole and on the disk, but not in its place yet; dropped, it leaves nothing.
pub struct Draft {
    path: PathBuf,
    file: tempfile::NamedTempFile,
}

impl Draft {
    /// Writes `bytes` beside `path`, where nothing or a plain file may be.
    pub fn write(path: &Path, bytes: &[u8]) -> Result<Self, StoreError> {
        may_stop(path)?;
        let failed = |source| StoreError::Write { path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(failed(source)),
            Ok(metadata) => refuse_other_than_file(path, &metadata)?,
        }
        let mut file = tempfile::Builder::new().prefix(DRAFT).tempfile_in(folder_of(path)).map_err(failed)?;
        file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
        Ok(Draft { path: path.to_owned(), file })
    }

    /// Puts it in its place, instead of what is there. This takes no room on the disk.
    pub fn put(self) -> Result<(), StoreError> {
        may_stop(&self.path)?;
        let Draft { path, file } = self;
        let failed = |source| StoreError::Write { path: path.clone(), source };
        file.persist(&path).map_err(|error| failed(error.error))?;
        sync_folder(folder_of(&path)).map_err(failed)
    }
}

/// Removes the drafts in `folder` that processes left which were ended half way. Only the holder of the lock does, since there is
/// no other writer then; what cannot be removed stays, and is in nobody's way.
pub fn sweep(folder: &Path, _lock: &Lock) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    // Whoever fills the folder does not make each command slow.
    for entry in entries.flatten().take(2 * MAX_PACKAGES) {
        let is_draft = entry.file_name().to_str().is_some_and(|name| name.starts_with(DRAFT));
        if is_draft && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes the plain file at `path`, and flushes the folder.
pub fn remove(path: &Path) -> Result<(), StoreError> {
    may_stop(path)?;
    let failed = |source| StoreError::Write { path: path.to_owned(), source };
    refuse_other_than_file(path, &fs::symlink_metadata(path).map_err(failed)?)?;
    fs::remove_file(path).and_then(|()| sync_folder(folder_of(path))).map_err(failed)
}

/// Writes `line` at the end of the file at `path`, which is made where it is missing, and flushes it.
pub fn append(path: &Path, line: &str) -> Result<(), StoreError> {
    may_stop(path)?;
    let failed = |source| StoreError::Write { path: path.to_owned(), source };
    let new = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(source) => return Err(failed(source)),
        Ok(metadata) => refuse_other_than_file(path, &metadata).map(|()| false)?,
    };
    let mut file = OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    refuse_other_than_file(path, &file.metadata().map_err(failed)?)?;
    // A line that a crash cut short ends here, so that it spoils no other.
    let text =
        if ends_mid_line(&mut file).map_err(failed)? { format!("\n{line}\n") } else { format!("{line}\n") };
    file.write_all(text.as_bytes()).and_then(|()| file.sync_data()).map_err(failed)?;
    if new { sync_folder(folder_of(path)).map_err(failed) } else { Ok(()) }
}

fn ends_mid_line(file: &mut File) -> io::Result<bool> {
    use std::io::{Seek, SeekFrom};
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// Makes the folder `path` and those above it. One that others than its owner may write is not made: mode 700.
pub fn make_folder(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::DirBuilderExt;
    let failed = |source| StoreError::Write { path: path.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let metadata = fs::symlink_metadata(path).map_err(failed)?;
    if metadata.is_dir() {
        return Ok(());
    }
    Err(StoreError::NotPlain { path: path.to_owned(), kind: kind(&metadata), wanted: "folder" })
}

/// What keeps other processes from changing the store until it is dropped.
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock file at `path`, waiting for another process for [`LOCK_PATIENCE`]. The operating system gives it back when
    /// its holder ends, however that ends.
    pub fn take(path: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Write { path: path.to_owned(), source };
        // Opening these fails with errors that say nothing of what is there.
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(failed(source)),
            Ok(metadata) => refuse_other_than_file(path, &metadata)?,
        }
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        refuse_other_than_file(path, &file.metadata().map_err(failed)?)?;
        let begin = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(TryLockError::Error(source)) => return Err(failed(source)),
                Err(TryLockError::WouldBlock) if begin.elapsed() < LOCK_PATIENCE => {
                    std::thread::sleep(LOCK_INTERVAL);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Locked { path: path.to_owned(), waited: LOCK_PATIENCE });
                }
            }
        }
    }
}

/// The plain files directly in `folder` whose names end in `.extension`, in order of their names; at most `limit`.
pub fn files_in(folder: &Path, extension: &str, limit: usize) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|source| read_error(folder, source))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| read_error(folder, source))?.path();
        if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
        if files.len() > limit {
            return Err(StoreError::TooManyFiles { path: folder.to_owned(), limit });
        }
    }
    files.sort();
    Ok(files)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn refuse_other_than_file(path: &Path, metadata: &fs::Metadata) -> Result<(), StoreError> {
    if metadata.is_file() {
        return Ok(());
    }
    Err(StoreError::NotPlain { path: path.to_owned(), kind: kind(metadata), wanted: "plain file" })
}

fn kind(metadata: &fs::Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    let kind = metadata.file_type();
    match () {
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_file() => "a file",
        () => "a device",
    }
}

fn read_error(path: &Path, source: io::Error) -> StoreError {
    StoreError::Read { path: path.to_owned(), source }
}

/// Every change of the disk passes here first, so that a test can let the machine stop before any one of them.
#[cfg(not(test))]
fn may_stop(_path: &Path) -> Result<(), StoreError> {
    Ok(())
}

#[cfg(test)]
pub use tests::{may_stop, stop_after};

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Changes of the disk that this thread may still make; none means any number.
        static CHANGES_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// Lets this thread make `changes` more changes of the disk and then fail at every further one, as a process fails that is no
    /// more; none lets it make any number.
    pub fn stop_after(changes: Option<u32>) {
        CHANGES_LEFT.set(changes);
    }

    pub fn may_stop(path: &Path) -> Result<(), StoreError> {
        match CHANGES_LEFT.get() {
            None => Ok(()),
            Some(0) => {
                let source = io::Error::other("the machine stopped");
                Err(StoreError::Write { path: path.to_owned(), source })
            }
            Some(left) => {
                CHANGES_LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }

    #[test]
    fn a_file_is_read_to_its_limit_and_replaced_whole() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("f");
        assert!(read(&path, 3).unwrap().is_none());
        replace(&path, b"abc").unwrap();
        assert_eq!(read(&path, 3).unwrap().unwrap(), b"abc");
        replace(&path, b"abcd").unwrap();
        assert!(matches!(read(&path, 3), Err(StoreError::TooLarge { limit: 3, .. })));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn links_folders_and_pipes_are_neither_read_nor_replaced() {
        let place = tempfile::tempdir().unwrap();
        let aim = place.path().join("aim");
        fs::write(&aim, "x").unwrap();
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&aim, &link).unwrap();
        let pipe = place.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name is a string that ends in zero and lives through the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for path in [link.as_path(), place.path(), pipe.as_path()] {
            assert!(matches!(read(path, 9), Err(StoreError::NotPlain { .. })), "{}", path.display());
            assert!(matches!(replace(path, b"y"), Err(StoreError::NotPlain { .. })), "{}", path.display());
            assert!(matches!(append(path, "y"), Err(StoreError::NotPlain { .. })), "{}", path.display());
            assert!(matches!(remove(path), Err(StoreError::NotPlain { .. })), "{}", path.display());
            assert!(matches!(Lock::take(path), Err(StoreError::NotPlain { .. })), "{}", path.display());
        }
        assert_eq!(fs::read(&aim).unwrap(), b"x");
    }

    #[test]
    fn drafts_that_were_left_are_removed_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::write(path(".store-draft-a1B2c3"), "half").unwrap();
        fs::write(path(".store-mine"), "kept").unwrap();
        fs::create_dir(path(".store-draft-folder")).unwrap();
        std::os::unix::fs::symlink(path(".store-mine"), path(".store-draft-link")).unwrap();
        sweep(place.path(), &Lock::take(&path("lock")).unwrap());
        let mut left: Vec<_> =
            fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".store-draft-folder", ".store-draft-link", ".store-mine", "lock"]);
        sweep(&path("nowhere"), &Lock::take(&path("lock2")).unwrap());
    }

    #[test]
    fn a_line_after_one_that_was_cut_short_stands_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("h");
        append(&path, "one").unwrap();
        fs::write(&path, "one\ntw").unwrap();
        append(&path, "three").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntw\nthree\n");
    }
}
