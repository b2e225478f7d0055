//! Files that hold a secret: written for their owner only, and refused when others may read them.

use std::{
    io,
    path::{Path, PathBuf},
};

use kvasir_ledger::files::{Existing, Readers, read_regular_text, write_whole};

/// Most bytes of a secret file.
const MAX_SECRET_BYTES: u64 = 4096;

/// Why a secret cannot be had from a file.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// The file cannot be read.
    #[error("reading {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others than the owner may read it.
    #[error("{path} may be read by others (mode {mode:03o}); run: chmod 600 {path}")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The permission bits.
        mode: u32,
    },
    /// It does not hold what it should.
    #[error("{path} does not hold {what}: {detail}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was expected.
        what: &'static str,
        /// What was found wrong; never the content.
        detail: String,
    },
}

/// Reads a text file that holds a secret; one that others may read is refused.
pub fn read(path: &Path) -> Result<String, SecretFileError> {
    read_up_to(path, MAX_SECRET_BYTES)
}

/// The same for a secret that may be as long as this.
pub(crate) fn read_up_to(path: &Path, most: u64) -> Result<String, SecretFileError> {
    let unreadable = |source| SecretFileError::Unreadable { path: path.into(), source };
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(path).map_err(unreadable)?.permissions().mode() & 0o777;
        let handed_over = is_credential(path, std::env::var_os("CREDENTIALS_DIRECTORY").as_deref());
        if mode & 0o077 != 0 && !handed_over {
            return Err(SecretFileError::Exposed { path: path.into(), mode });
        }
    }
    read_regular_text(path, most).map_err(|source| match source.kind() {
        io::ErrorKind::FileTooLarge => {
            let detail = format!("it is longer than {most} bytes");
            SecretFileError::Malformed { path: path.into(), what: "a secret", detail }
        }
        _ => unreadable(source),
    })
}

/// Whether systemd handed the file over to this service (`LoadCredential=`). The service's user alone can read it, by an
/// access list, whose bits the mode shows as those of a group.
#[cfg(unix)]
fn is_credential(path: &Path, folder: Option<&std::ffi::OsStr>) -> bool {
    folder.is_some_and(|folder| !folder.is_empty() && path.parent() == Some(Path::new(folder)))
}

/// Writes a file that only its owner may read, whole or not at all. Without `replace` an existing file is an error; with
/// it the old one stays until the new one is on the disk.
pub fn write(path: &Path, content: &[u8], replace: bool) -> io::Result<()> {
    let existing = if replace { Existing::Replace } else { Existing::Keep };
    write_whole(path, content, existing, Readers::Owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write(&path, b"secret\n", false).unwrap();
        assert_eq!(read(&path).unwrap(), "secret\n");
        assert!(write(&path, b"other", false).is_err(), "never overwritten by chance");
        write(&path, b"other", true).unwrap();
        assert_eq!(read(&path).unwrap(), "other");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
            assert!(matches!(read(&path), Err(SecretFileError::Exposed { mode: 0o640, .. })));
        }
    }

    #[cfg(unix)]
    #[test]
    fn only_files_that_were_handed_over_to_the_service_may_look_as_if_a_group_could_read_them() {
        let folder = Some(std::ffi::OsStr::new("/run/credentials/kvasir-hub.service"));
        assert!(is_credential(Path::new("/run/credentials/kvasir-hub.service/hub.key"), folder));
        assert!(!is_credential(Path::new("/run/credentials/kvasir-hub.service/../hub.key"), folder));
        assert!(!is_credential(Path::new("/etc/kvasir/hub.key"), folder));
        assert!(!is_credential(Path::new("hub.key"), Some(std::ffi::OsStr::new(""))));
        assert!(!is_credential(Path::new("/run/credentials/kvasir-hub.service/hub.key"), None));
    }

    #[test]
    fn a_secret_has_a_largest_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write(&path, &[b'a'; MAX_SECRET_BYTES as usize + 1], false).unwrap();
        assert!(matches!(read(&path), Err(SecretFileError::Malformed { .. })));
    }
}
