//! Free space on the ledger's disk, and the mark below which nothing new is taken.
//!
//! SQLite refuses what does not fit, and nothing is damaged by that. But a full disk also stops what keeps a ledger whole:
//! pending credit that is to be posted, heads that are to be signed, logs, other programs. So new notes stop earlier.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

/// Bytes that stay free unless told otherwise: 256 MiB.
pub const DEFAULT_MIN_FREE_BYTES: u64 = 256 * 1024 * 1024;

/// Reads how many bytes this process can still write on the disk that holds a folder; tests hand in their own.
pub type FreeSpace = Arc<dyn Fn(&Path) -> io::Result<u64> + Send + Sync>;

/// What the system says.
pub fn free_space() -> FreeSpace {
    Arc::new(of_system)
}

#[cfg(unix)]
fn of_system(folder: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(folder)?;
    // What is kept for the superuser alone is not free for us.
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(not(unix))]
fn of_system(_folder: &Path) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The disk has less free space than the operator keeps.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {free} bytes are free, fewer than the {least} of `min_free_bytes`", .folder.display())]
pub struct DiskLow {
    /// Folder of the database.
    pub folder: PathBuf,
    /// Bytes free.
    pub free: u64,
    /// Bytes that must be.
    pub least: u64,
}

/// The mark.
#[derive(Clone)]
pub struct SpaceMark {
    folder: PathBuf,
    /// Bytes.
    least: u64,
    probe: FreeSpace,
}

impl SpaceMark {
    /// New notes need `least` bytes free on the disk that holds the database file `store`.
    pub fn new(store: &Path, least: u64, probe: FreeSpace) -> Self {
        let folder = store.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Self { folder: folder.to_owned(), least, probe }
    }

    /// Bytes that must stay free.
    pub fn least(&self) -> u64 {
        self.least
    }

    /// Bytes that are free now; none where the system cannot say.
    ///
    /// # Errors
    /// Below the mark. A system that cannot say is no reason to stop: SQLite still refuses what does
    /// not fit.
    pub fn check(&self) -> Result<Option<u64>, DiskLow> {
        let Ok(free) = (self.probe)(&self.folder) else { return Ok(None) };
        if free < self.least {
            return Err(DiskLow { folder: self.folder.clone(), free, least: self.least });
        }
        Ok(Some(free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::LedgerError;

    #[test]
    fn the_mark_itself_is_enough_and_an_unknown_size_stops_nothing() {
        let mark = |free: io::Result<u64>| {
            let free = free.ok();
            let probe: FreeSpace = Arc::new(move |_| free.ok_or(io::ErrorKind::Unsupported.into()));
            SpaceMark::new(Path::new("ledger.db"), 1_000, probe).check()
        };
        assert_eq!(mark(Ok(1_000)).unwrap(), Some(1_000));
        assert_eq!(mark(Err(io::ErrorKind::Other.into())).unwrap(), None);
        let (status, body) = LedgerError::from(mark(Ok(999)).unwrap_err()).answer();
        assert_eq!((status, body.code.as_str()), (507, "disk_low"));
        assert!(body.message.contains("999") && body.message.contains("1000"), "{}", body.message);
    }

    #[cfg(unix)]
    #[test]
    fn the_system_says_how_much_is_free() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_space()(folder.path()).unwrap() > 0);
        assert!(free_space()(&folder.path().join("none")).is_err());
    }
}
