//! One hub a spool: what one keeps there, another would file and remove, and the first would take it for lost.

use std::{
    fs::{self, File},
    io,
    path::Path,
    time::Duration,
};

use tokio::time::{sleep, timeout};

use crate::hub::HubError;

/// Between two looks whether another hub is gone.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The spool folder is this hub's until this is dropped, or its process ends in whatever way.
#[derive(Debug)]
pub struct SpoolHold {
    /// The folder, locked; none where the system has no such locks.
    _folder: Option<File>,
}

impl SpoolHold {
    /// Takes the folder, which is made if it is missing.
    pub fn take(spool: &Path) -> Result<Self, HubError> {
        let taken = attempt(spool).map_err(|source| HubError::Spool { path: spool.into(), source })?;
        taken.ok_or_else(|| HubError::SpoolInUse { path: spool.into() })
    }

    /// Takes the folder once another hub, which is about to finish, has given it back. One that does not within this time is not
    /// about to.
    pub async fn take_over(spool: &Path, within: Duration) -> Result<Self, HubError> {
        let free = async {
            loop {
                match SpoolHold::take(spool) {
                    Err(HubError::SpoolInUse { .. }) => sleep(LOOK_INTERVAL).await,
                    taken => return taken,
                }
            }
        };
        timeout(within, free).await.unwrap_or_else(|_| Err(HubError::SpoolInUse { path: spool.into() }))
    }
}

#[cfg(unix)]
fn attempt(spool: &Path) -> io::Result<Option<SpoolHold>> {
    use std::fs::TryLockError;

    fs::create_dir_all(spool)?;
    let folder = File::open(spool)?;
    match folder.try_lock() {
        Ok(()) => Ok(Some(SpoolHold { _folder: Some(folder) })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
            tracing::warn!(spool = %spool.display(), "nothing keeps a second hub out of this folder: {error}");
            Ok(Some(SpoolHold { _folder: None }))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(not(unix))]
fn attempt(spool: &Path) -> io::Result<Option<SpoolHold>> {
    fs::create_dir_all(spool)?;
    Ok(Some(SpoolHold { _folder: None }))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// More than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_spool_is_one_hub_s_until_it_gives_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let spool = folder.path().join("made/on/the/way");
        let first = SpoolHold::take(&spool).unwrap();
        let error = SpoolHold::take(&spool).unwrap_err();
        assert!(matches!(error, HubError::SpoolInUse { .. }));
        assert!(error.to_string().contains("--spool"), "{error}");
        let waiting = {
            let spool = spool.clone();
            tokio::spawn(async move { SpoolHold::take_over(&spool, PATIENCE).await })
        };
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        let second = waiting.await.unwrap().unwrap();
        assert!(SpoolHold::take(&spool).is_err());
        drop(second);
        SpoolHold::take(&spool).unwrap();
    }

    #[tokio::test]
    async fn a_hub_that_keeps_its_spool_is_not_waited_for_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let _first = SpoolHold::take(folder.path()).unwrap();
        let waited = SpoolHold::take_over(folder.path(), 2 * LOOK_INTERVAL).await;
        assert!(matches!(waited, Err(HubError::SpoolInUse { .. })));
    }

    #[tokio::test]
    async fn a_spool_that_cannot_be_made_is_said_at_once() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let spool = folder.path().join("file/spool");
        assert!(matches!(SpoolHold::take_over(&spool, PATIENCE).await, Err(HubError::Spool { .. })));
    }
}
