//! Small files of operators, read and written so that neither a wrong path nor a full disk does harm. The gateway uses
//! it too. What the files hold is not looked at.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether a file that is there already may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and writing fails with [`io::ErrorKind::AlreadyExists`].
    Keep,
    /// It is replaced as a whole; where writing fails it stays as it was.
    Replace,
}

/// Who may read a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Its owner only.
    Owner,
    /// Whom the process's umask lets.
    Anyone,
}

/// Reads a regular file of at most `most` bytes. A pipe or device is not opened at all: it could wait or go on for ever.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] where it is no regular file, [`io::ErrorKind::FileTooLarge`], and what the system says.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let other = |metadata: fs::Metadata| {
        if metadata.is_file() {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
        }
    };
    other(fs::metadata(path)?)?;
    let file = File::open(path)?;
    // Once more: another file may have taken its place.
    other(file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let message = format!("it is larger than {most} bytes, so not the file that is meant");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// The same for text.
///
/// # Errors
/// Also [`io::ErrorKind::InvalidData`] where it is not UTF-8.
pub fn read_regular_text(path: &Path, most: u64) -> io::Result<String> {
    let bytes = read_regular(path, most)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Writes a file that appears under its name only once it is whole and on the disk. Where it fails nothing new is left,
/// so that nothing stands in the way of the next try.
///
/// # Errors
/// What the system says.
pub fn write_whole(path: &Path, bytes: &[u8], existing: Existing, readers: Readers) -> io::Result<()> {
    if existing == Existing::Keep && path.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let draft = draft_of(path)?;
    let result = write_draft(&draft, bytes, readers).and_then(|()| match existing {
        Existing::Replace => fs::rename(&draft, path),
        Existing::Keep => put_in_place(&draft, path),
    });
    // After a rename it is gone, which is what is wanted.
    let _ = fs::remove_file(&draft);
    result?;
    sync_folder(path)
}

fn write_draft(draft: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if readers == Readers::Owner {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    #[cfg(not(unix))]
    let _ = readers;
    let mut file = options.open(draft)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Gives the draft its name without ever replacing a file: a link fails where there is one.
fn put_in_place(draft: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(draft, path) {
        // Some file systems know no links.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
                && path.symlink_metadata().is_err() =>
        {
            fs::rename(draft, path)
        }
        other => other,
    }
}

/// A name of this process's own beside the file.
fn draft_of(path: &Path) -> io::Result<PathBuf> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name =
        path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it names no file"))?;
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut draft = std::ffi::OsString::from(".");
    draft.push(name);
    draft.push(format!(".{}-{number}.partial", std::process::id()));
    let draft = path.with_file_name(draft);
    // What an earlier process of the same number left.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(draft),
    }
}

#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_path: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_is_whole_or_not_there_and_only_replaced_on_demand() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write_whole(&path, b"one", Existing::Keep, Readers::Owner).unwrap();
        let error = write_whole(&path, b"two", Existing::Keep, Readers::Owner).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        write_whole(&path, b"two", Existing::Replace, Readers::Owner).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(names(folder.path()), ["key"], "no draft is left");
        // A file cannot take a folder's place: what is written is cleared away again.
        fs::create_dir(folder.path().join("taken")).unwrap();
        write_whole(&folder.path().join("taken"), b"x", Existing::Replace, Readers::Anyone).unwrap_err();
        assert_eq!(names(folder.path()).len(), 2);
        let missing = folder.path().join("none").join("key");
        let error = write_whole(&missing, b"x", Existing::Keep, Readers::Owner).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn pipes_devices_folders_and_large_files_are_refused_unopened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe.as_path(), Path::new("/dev/zero"), folder.path()] {
            let error = read_regular(path, 10).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
        let file = folder.path().join("file");
        fs::write(&file, "12345").unwrap();
        assert_eq!(read_regular_text(&file, 5).unwrap(), "12345");
        assert_eq!(read_regular(&file, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
