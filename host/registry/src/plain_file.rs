//! Files that a person or a layout names: read where they are plain files of a bounded size. A pipe would be waited for without end,
//! a device be read without end.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read as _, Result};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Opens a file that is a plain one. What is anything else is not opened.
pub(crate) fn open(path: &Path) -> Result<File> {
    let refuse = |metadata: &Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::InvalidInput, "it is no plain file")),
    };
    refuse(&std::fs::metadata(path)?)?;
    // Whoever puts a pipe there in between does not make the opening wait.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    refuse(&file.metadata()?)?;
    Ok(file)
}

/// At most one byte more than `limit`, by which the caller sees that there are more.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}
