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
use crate::limits::LOCK_PATIENCE;

/// Between two looks at a lock that another process holds.
const LOCK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);

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
    let failed = |source| StoreError::Write { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(failed(source)),
        Ok(metadata) => refuse_other_than_file(path, &metadata)?,
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut draft = tempfile::Builder::new().prefix(".store-").tempfile_in(folder).map_err(failed)?;
    draft.write_all(bytes).and_then(|()| draft.as_file().sync_all()).map_err(failed)?;
    draft.persist(path).map_err(|error| failed(error.error))?;
    sync_folder(folder).map_err(failed)
}

/// Writes `line` at the end of the file at `path`, which is made where it is missing, and flushes it.
pub fn append(path: &Path, line: &str) -> Result<(), StoreError> {
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
    if new { sync_folder(path.parent().unwrap_or(Path::new("."))).map_err(failed) } else { Ok(()) }
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

#[cfg(test)]
mod tests {
    use super::*;

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
        }
        assert_eq!(fs::read(&aim).unwrap(), b"x");
        assert!(Lock::take(&link).is_err());
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
