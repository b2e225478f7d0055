//! Small files of operators, read and written so that neither a wrong path nor a full disk does harm. The gateway uses
//! it too. What the files hold is not looked at.

use std::fs::{self, File, OpenOptions, TryLockError};
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
    make_whole(path, existing, |draft| write_draft(draft, bytes, readers))
}

/// The same for a file that something else writes: `write` makes it under the name that it is given, in the same folder, and
/// has it on the disk when it returns. A process that is ended meanwhile leaves that draft, `.NAME.<process>-<n>.partial`,
/// which [`remove_drafts`] removes.
///
/// # Errors
/// What `write` or the system says.
pub fn make_whole<E: From<io::Error>>(
    path: &Path,
    existing: Existing,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    if existing == Existing::Keep && path.symlink_metadata().is_ok() {
        return Err(io::Error::from(io::ErrorKind::AlreadyExists).into());
    }
    let draft = draft_of(path)?;
    let result = write(&draft).and_then(|()| {
        Ok(match existing {
            Existing::Replace => fs::rename(&draft, path),
            Existing::Keep => put_in_place(&draft, path),
        }?)
    });
    // After a rename it is gone, which is what is wanted.
    let _ = fs::remove_file(&draft);
    result?;
    Ok(sync_folder_of(path)?)
}

/// Holds the file `path`, which is made where there is none, as long as the value that it gives lives: no other process can hold
/// it meanwhile. The system gives it back when this process ends, however that ends.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] where another process holds it, with that one's number, and what the system says.
pub fn hold(path: &Path) -> io::Result<File> {
    // It is never removed: whoever opened it before would hold a lock that nobody else sees.
    let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
    match file.try_lock() {
        Ok(()) => {
            // Who holds it is only told: a full disk is no reason not to.
            let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.take(20).read_to_string(&mut holder);
            let holder = holder
                .trim()
                .parse::<u32>()
                .map_or("another process".to_owned(), |number| format!("process {number}"));
            Err(io::Error::new(io::ErrorKind::WouldBlock, format!("{holder} holds it")))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Removes what processes that were ended left of a file: every draft of it, so nobody else may be writing it now.
///
/// # Errors
/// What the system says.
pub fn remove_drafts(path: &Path) -> io::Result<()> {
    let name = path.file_name().map(std::ffi::OsStr::to_string_lossy).unwrap_or_default();
    let lead = format!(".{name}.");
    let folder = folder_of(path);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let found = entry.file_name();
        // What SQLite keeps beside a database, such as its journal, has a longer ending.
        let is_draft = found.to_str().is_some_and(|found| {
            found.strip_prefix(&lead).and_then(|rest| rest.split_once(".partial")).is_some_and(
                |(middle, _)| {
                    !middle.is_empty() && middle.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
                },
            )
        });
        if is_draft {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
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

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Has the name of a file on the disk: what is new, gone or renamed in its folder.
///
/// # Errors
/// What the system says.
#[cfg(unix)]
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

/// Has the name of a file on the disk: nothing that could be asked for here.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn sync_folder_of(_path: &Path) -> io::Result<()> {
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

    #[test]
    fn what_an_ended_process_left_of_a_file_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let others = ["a.db", ".a.db.partial", ".a.db.x-1.partial", ".b.db.1-1.partial", "a.db.1-1.partial"];
        for name in others.into_iter().chain([".a.db.1-0.partial", ".a.db.23-1.partial-journal"]) {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        remove_drafts(&folder.path().join("a.db")).unwrap();
        let mut left = names(folder.path());
        left.sort();
        let mut others = others.to_vec();
        others.sort_unstable();
        assert_eq!(left, others);
    }

    #[test]
    fn a_file_is_held_once_and_says_by_whom() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        fs::write(&path, "what an earlier process of a long number left: 123456789\n").unwrap();
        let held = hold(&path).unwrap();
        let error = hold(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(error.to_string(), format!("process {} holds it", std::process::id()));
        drop(held);
        hold(&path).unwrap();
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
