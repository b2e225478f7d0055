//! Files that a person names: read only where they are plain files of a bounded size, written whole or not at all.
//!
//! Nothing here follows the name of another: an output is made beside its place under a random name and then renamed, so that
//! whatever goes wrong leaves the old file and no litter. Where a process is killed half way, the next one that writes into that
//! folder removes what it left: a draft is locked as long as somebody makes it. Models are not read here; they are mapped.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::NamedTempFile;

/// What a file begins with is enough to tell a key, a package or a model.
const HEAD_BYTES: usize = 512;
/// What the names of files in the making begin with; longer than a name that a person would choose.
const DRAFT: &str = ".kvasir-draft-";
/// Most names of a folder among which drafts are looked for that were left there.
const SWEPT_NAMES_MAX: usize = 10_000;
/// How often a draft is begun anew because another process took it for one that was left.
const DRAFT_TRIES: usize = 16;

/// Read a whole file of at most `limit` bytes.
///
/// # Errors
/// Where it is missing, unreadable, larger, or no plain file: a pipe could wait for ever, a device never end. The caller names
/// the file.
pub fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_at_most(open_regular(path)?.0, limit)
}

/// As [`read_bounded`], for text.
///
/// # Errors
/// As [`read_bounded`], and where the bytes are not UTF-8.
pub fn read_text_bounded(path: &Path, limit: u64) -> io::Result<String> {
    text(read_bounded(path, limit)?)
}

/// The bytes as text.
///
/// # Errors
/// Where they are not UTF-8.
pub fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Open a plain file for reading. What is anything else is not opened.
///
/// # Errors
/// Where it is missing, unreadable or no plain file.
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    let refuse = |metadata: &Metadata| {
        if metadata.is_file() {
            return Ok(());
        }
        let kind = kind(metadata);
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}, not a plain file")))
    };
    refuse(&fs::metadata(path)?)?;
    // Whoever puts a pipe there in between does not make the opening wait.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    refuse(&metadata)?;
    Ok((file, metadata))
}

/// Read the rest of `file`, which must be at most `limit` bytes.
///
/// # Errors
/// Where there are more, or reading fails.
pub fn read_at_most(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than {limit} bytes, the most that are read"),
        ));
    }
    Ok(bytes)
}

/// What stands where something is to be written, and may be replaced by it.
pub struct Replaceable<'a> {
    /// Files that are being read: never replaced.
    pub inputs: &'a [&'a Path],
    /// Whether a file that begins like this may be replaced without being asked.
    pub may: fn(&[u8]) -> bool,
    /// What such a file is called: "kernel package".
    pub what: &'a str,
    /// Replace whatever else it is, a secret key and the inputs excepted.
    pub force: bool,
}

impl Replaceable<'_> {
    /// Check the place `path` of an output before the work begins.
    ///
    /// # Errors
    /// Where the folder is missing, or something stands there that is not to be replaced.
    pub fn check(&self, path: &Path) -> Result<()> {
        let Some(there) = what_is_at(path)? else { return Ok(()) };
        for input in self.inputs {
            if fs::metadata(input).is_ok_and(|input| same_file(&input, &there)) {
                bail!(
                    "{} is among the files that this command itself reads: write to another file",
                    path.display()
                );
            }
        }
        let head = head(path).with_context(|| format!("cannot tell what {} is", path.display()))?;
        if is_secret(&head) {
            bail!("{} is a secret key, which is never overwritten: write to another file", path.display());
        }
        if !self.force && !head.is_empty() && !(self.may)(&head) {
            bail!(
                "{} is there already and is no {}: write to another file, or remove it",
                path.display(),
                self.what
            );
        }
        Ok(())
    }
}

/// Begins as a kernel package does: a tar of an OCI layout, or as the earliest packages did, which no host reads any more.
pub fn is_package(head: &[u8]) -> bool {
    let first = |name: &[u8]| head.starts_with(name);
    head.get(257..262) == Some(b"ustar") && (first(b"oci-layout\0") || first(b"statement.dsse.json\0"))
}

/// Begins as a WebAssembly component does.
pub fn is_component(head: &[u8]) -> bool {
    head.starts_with(b"\0asm\x0d\0\x01\0")
}

/// Begins as none of the files do that this program reads.
pub fn is_foreign(head: &[u8]) -> bool {
    !is_package(head) && !head.starts_with(b"\0asm") && !head.starts_with(b"GGUF")
}

fn is_secret(head: &[u8]) -> bool {
    head.starts_with(b"kvasir-secret") || head.starts_with(b"-----BEGIN")
}

/// Write a file so that a reader finds either the old bytes or all of the new ones. Does not make folders.
///
/// # Errors
/// Where something else than a plain file is there, or the folder cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut draft = Draft::begin(path)?;
    draft.write_all(bytes).with_context(|| format!("cannot write {}", path.display()))?;
    draft.finish()
}

/// A file in the making; dropped, it leaves nothing.
pub struct Draft {
    path: PathBuf,
    file: NamedTempFile,
}

impl Draft {
    /// Begin a file that will stand at `path`, with the permissions that new files have.
    ///
    /// # Errors
    /// As [`write_whole`].
    pub fn begin(path: &Path) -> Result<Draft> {
        what_is_at(path)?;
        Draft::with_mode(path, 0o666)
    }

    /// Begin a file that its owner alone may read.
    ///
    /// # Errors
    /// Where the folder cannot be written.
    pub fn secret(path: &Path) -> Result<Draft> {
        Draft::with_mode(path, 0o600)
    }

    fn with_mode(path: &Path, mode: u32) -> Result<Draft> {
        let folder = folder_of(path);
        sweep(folder);
        let file = new_draft(folder, mode).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Draft { path: path.to_path_buf(), file })
    }

    /// Put it in its place, instead of what is there.
    ///
    /// # Errors
    /// Where the disk is full or the folder cannot be written.
    pub fn finish(self) -> Result<()> {
        let Draft { path, file } = self;
        let failed = || format!("cannot write {}", path.display());
        file.as_file().sync_all().with_context(failed)?;
        file.persist(&path).map_err(|error| error.error).with_context(failed)?;
        sync_folder(&path);
        Ok(())
    }

    /// Put it in its place, where nothing may be.
    ///
    /// # Errors
    /// `AlreadyExists` where something is there; else as [`Draft::finish`].
    pub fn finish_new(self) -> io::Result<()> {
        let Draft { path, file } = self;
        file.as_file().sync_all()?;
        file.persist_noclobber(&path).map_err(|error| error.error)?;
        sync_folder(&path);
        Ok(())
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_file_mut().flush()
    }
}

/// Check that files can be made in `folder`, which is made where it is missing.
///
/// # Errors
/// Where they cannot.
pub fn writable_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    sweep(folder);
    new_draft(folder, 0o600).with_context(|| format!("cannot write to the folder {}", folder.display()))?;
    Ok(())
}

/// A new file in `folder`, locked until it is closed: whoever finds it unlocked knows that nobody will finish it. On a file system
/// without locks nothing is locked, and nothing swept.
fn new_draft(folder: &Path, mode: u32) -> io::Result<NamedTempFile> {
    for _ in 0..DRAFT_TRIES {
        let draft = tempfile::Builder::new()
            .prefix(DRAFT)
            .permissions(fs::Permissions::from_mode(mode))
            .tempfile_in(folder)?;
        let being_swept = matches!(draft.as_file().try_lock(), Err(TryLockError::WouldBlock));
        let made = draft.as_file().metadata()?;
        if !being_swept && fs::symlink_metadata(draft.path()).is_ok_and(|there| same_file(&there, &made)) {
            return Ok(draft);
        }
    }
    Err(io::Error::other("another program removes what is written there"))
}

/// Removes the drafts in `folder` that nobody is making any more. What cannot be read or removed stays, and is in nobody's way.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().take(SWEPT_NAMES_MAX) {
        let is_draft = entry.file_name().to_str().is_some_and(|name| name.starts_with(DRAFT));
        if !is_draft || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let draft = OpenOptions::new().read(true).custom_flags(flags).open(entry.path());
        if draft.is_ok_and(|draft| draft.try_lock().is_ok()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The plain file that stands at `path`, or none. Links are not followed: a device or a file elsewhere is not meant.
pub(crate) fn what_is_at(path: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata)),
        Ok(metadata) => bail!("{} is {}: name a plain file", path.display(), kind(&metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = folder_of(path);
            if !folder.is_dir() {
                bail!("cannot write {}: there is no folder {}", path.display(), folder.display());
            }
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
    }
}

fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    open_regular(path)?.0.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

fn same_file(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// The folder in which `path` stands.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The name lasts as well as the bytes. A file system that cannot do this has done what it can.
fn sync_folder(path: &Path) {
    let _ = File::open(folder_of(path)).and_then(|folder| folder.sync_all());
}

fn kind(metadata: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => "a folder",
        () if kind.is_symlink() => "a link",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "no plain file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaceable<'a>(inputs: &'a [&'a Path], force: bool) -> Replaceable<'a> {
        Replaceable { inputs, may: is_component, what: "component", force }
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_over_the_limit_a_folder_and_a_device_are_not_read() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("f");
        fs::write(&path, b"12345").unwrap();
        assert_eq!(read_bounded(&path, 5).unwrap(), b"12345");
        assert!(read_bounded(&path, 4).unwrap_err().to_string().contains("more than 4 bytes"));
        assert!(read_bounded(place.path(), 4).unwrap_err().to_string().contains("a folder"));
        assert!(read_bounded(Path::new("/dev/zero"), 4).unwrap_err().to_string().contains("a device"));
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("k.wasm");
        fs::write(place.path().join("k.new"), b"mine").unwrap();
        write_whole(&path, b"one").unwrap();
        write_whole(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(names(place.path()), ["k.new", "k.wasm"]);
        assert_eq!(fs::read(place.path().join("k.new")).unwrap(), b"mine");
    }

    #[test]
    fn a_dropped_draft_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let mut draft = Draft::begin(&place.path().join("f")).unwrap();
        draft.write_all(b"half").unwrap();
        drop(draft);
        assert!(names(place.path()).is_empty());
    }

    #[test]
    fn drafts_that_nobody_makes_any_more_are_removed_by_the_next_and_nothing_else_is() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let mut other = Draft::secret(&path("other.key")).unwrap();
        for (name, mode) in [(".kvasir-draft-a1B2c3", 0o600), (".kvasir-draft-public", 0o644)] {
            fs::write(path(name), b"half a key").unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::write(path(".kvasir-rows"), b"mine").unwrap();
        std::os::unix::fs::symlink(path(".kvasir-rows"), path(".kvasir-draft-link")).unwrap();
        fs::create_dir(path(".kvasir-draft-folder")).unwrap();
        write_whole(&path("one"), b"1").unwrap();
        writable_folder(place.path()).unwrap();
        other.write_all(b"2").unwrap();
        other.finish().unwrap();
        let left = [".kvasir-draft-folder", ".kvasir-draft-link", ".kvasir-rows", "one", "other.key"];
        assert_eq!(names(place.path()), left);
        assert_eq!(fs::read(path("other.key")).unwrap(), b"2");
    }

    #[test]
    fn a_device_a_link_a_folder_and_a_missing_folder_are_no_place_to_write_to() {
        let place = tempfile::tempdir().unwrap();
        let (target, link) = (place.path().join("target"), place.path().join("link"));
        fs::write(&target, b"x").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let nowhere = place.path().join("nowhere/f");
        for (path, said) in [
            (Path::new("/dev/full"), "a device"),
            (&link, "a link"),
            (place.path(), "a folder"),
            (&nowhere, "no folder"),
        ] {
            for error in
                [write_whole(path, b"y").unwrap_err(), replaceable(&[], true).check(path).unwrap_err()]
            {
                assert!(error.to_string().contains(said), "{error:#}");
            }
        }
        assert_eq!(fs::read(&target).unwrap(), b"x");
        assert!(!place.path().join("nowhere").exists());
    }

    #[test]
    fn an_input_and_a_secret_key_are_not_replaced_even_by_force() {
        let place = tempfile::tempdir().unwrap();
        let (input, linked, key) =
            (place.path().join("i"), place.path().join("same"), place.path().join("k"));
        fs::write(&input, b"\0asm\x0d\0\x01\0").unwrap();
        fs::hard_link(&input, &linked).unwrap();
        fs::write(&key, b"kvasir-secret-v1 AAAA\n").unwrap();
        let inputs = [input.as_path()];
        for (path, said) in [(&input, "itself"), (&linked, "itself"), (&key, "secret key")] {
            let error = replaceable(&inputs, true).check(path).unwrap_err();
            assert!(error.to_string().contains(said), "{error:#}");
        }
        assert!(replaceable(&[], false).check(&input).is_ok(), "a component may be replaced by one");
    }

    #[test]
    fn another_file_is_replaced_by_force_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("letter.txt");
        fs::write(&path, b"Dear Ada").unwrap();
        let error = replaceable(&[], false).check(&path).unwrap_err();
        assert!(error.to_string().contains("no component"), "{error:#}");
        assert!(replaceable(&[], true).check(&path).is_ok());
    }
}
