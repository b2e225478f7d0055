//! Files that hold a secret: written for their owner only, and refused when others may read them.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

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
    let unreadable = |source| SecretFileError::Unreadable { path: path.into(), source };
    let file = File::open(path).map_err(unreadable)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = file.metadata().map_err(unreadable)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(SecretFileError::Exposed { path: path.into(), mode });
        }
    }
    let mut text = String::new();
    file.take(MAX_SECRET_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_SECRET_BYTES {
        let detail = format!("it is longer than {MAX_SECRET_BYTES} bytes");
        return Err(SecretFileError::Malformed { path: path.into(), what: "a secret", detail });
    }
    Ok(text)
}

/// Writes a file that only its owner may read. Without `replace` an existing file is an error.
pub fn write(path: &Path, content: &[u8], replace: bool) -> io::Result<()> {
    if replace && path.exists() {
        // Removed first, so that the mode below applies and a link is not followed.
        fs::remove_file(path)?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let mut file = options.open(path)?;
    file.write_all(content)?;
    file.sync_all()
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
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
            assert!(matches!(read(&path), Err(SecretFileError::Exposed { mode: 0o640, .. })));
        }
    }

    #[test]
    fn a_secret_has_a_largest_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write(&path, &[b'a'; MAX_SECRET_BYTES as usize + 1], false).unwrap();
        assert!(matches!(read(&path), Err(SecretFileError::Malformed { .. })));
    }
}
