//! Files of a project: read where they are plain files of a bounded size. A compiler that meets a pipe waits for ever, and reads a
//! device until the memory is full; so what is neither is refused before a compiler is started.

use std::fs::{Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::error::AuthorError;

/// The whole of a plain file of at most `limit` bytes.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, AuthorError> {
    let unreadable = |source| AuthorError::file("read", path)(source);
    let refuse = |metadata: &Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::InvalidInput, "it is no plain file")),
    };
    std::fs::metadata(path).and_then(|metadata| refuse(&metadata)).map_err(unreadable)?;
    // Whoever puts a pipe there in between does not make the opening wait.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(unreadable)?;
    file.metadata().and_then(|metadata| refuse(&metadata)).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > limit {
        let what = format!("the size of {} in bytes", path.display());
        let value = std::fs::metadata(path).map_or(limit + 1, |metadata| metadata.len());
        return Err(AuthorError::OverLimit { what, value, limit });
    }
    Ok(bytes)
}

/// As [`read`], for text.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<String, AuthorError> {
    String::from_utf8(read(path, limit)?).map_err(|_| AuthorError::Malformed {
        file: path.to_owned(),
        reason: "it is not UTF-8 text".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_a_device_and_a_file_over_the_limit_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        std::fs::write(path("f"), "12345").unwrap();
        assert_eq!(read(&path("f"), 5).unwrap(), b"12345");
        let error = read(&path("f"), 4).unwrap_err();
        assert!(matches!(error, AuthorError::OverLimit { value: 5, limit: 4, .. }), "{error}");
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", path("zero")).unwrap();
        for name in ["pipe", "zero", "."] {
            let error = read(&path(name), 4).unwrap_err();
            assert!(error.to_string().contains("no plain file"), "{name}: {error}");
        }
    }
}
