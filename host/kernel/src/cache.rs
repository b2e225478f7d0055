//! Compiled kernels on disk, for the next start. Nothing is loaded from there that this user's key has not authenticated: a file
//! that somebody else has put there, or moved from another plugin, is as good as none.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use kvasir_plugin::PluginDigest;
use sha2::Sha256;

use crate::compile::Artefact;
use crate::error::KernelError;

/// File of the key, in the folder.
const KEY_FILE: &str = "key";
/// Bytes of the key and of a tag.
const KEY_BYTES: usize = 32;
/// What is authenticated begins with this.
const LABEL: &[u8] = b"kvasir/compiled-kernel/v1";

/// A folder of compiled kernels.
#[derive(Debug)]
pub struct CompileCache {
    folder: PathBuf,
    key: [u8; KEY_BYTES],
}

impl CompileCache {
    /// Opens the folder, or makes it with mode 0700 and a key of mode 0600 in it.
    ///
    /// # Errors
    /// A folder or key that others may write or read, or the system's answer.
    pub fn open(folder: &Path) -> Result<Self, KernelError> {
        let failed = |reason: String| KernelError::Cache { folder: folder.to_owned(), reason };
        let system = |error: io::Error| failed(error.to_string());
        if !folder.exists() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(system)?;
        }
        let metadata = fs::symlink_metadata(folder).map_err(system)?;
        if !metadata.is_dir() {
            return Err(failed("it is no folder".to_owned()));
        }
        private(&metadata).map_err(failed)?;
        let path = folder.join(KEY_FILE);
        let key = match key(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_key(folder, &path).map_err(system)?;
                key(&path)
            }
            key => key,
        };
        Ok(CompileCache { folder: folder.to_owned(), key: key.map_err(system)? })
    }

    /// What was compiled of `plugin` by the engine `engine`, if it is there and ours. Anything else there is passed over, and
    /// replaced by the next [`CompileCache::keep`].
    pub fn find(&self, plugin: PluginDigest, engine: u64, largest: u64) -> Option<Artefact> {
        let path = self.path(plugin, engine);
        let mut bytes = Vec::new();
        let file = open_plain(&path).ok()?;
        file.take(largest.saturating_add(KEY_BYTES as u64)).read_to_end(&mut bytes).ok()?;
        let tag: [u8; KEY_BYTES] = bytes.get(..KEY_BYTES)?.try_into().ok()?;
        let code = bytes.split_off(KEY_BYTES);
        match self.mac(plugin, engine, &code).verify_slice(&tag) {
            Ok(()) => Some(Artefact::new(code)),
            Err(_) => {
                tracing::warn!(path = %path.display(), "not made by this user's key, so not used: compiled anew");
                None
            }
        }
    }

    /// Keeps compiled code; replaces what is there at once.
    ///
    /// # Errors
    /// The system's answer.
    pub fn keep(&self, plugin: PluginDigest, engine: u64, artefact: &Artefact) -> Result<(), KernelError> {
        let tag = self.mac(plugin, engine, artefact.bytes()).finalize().into_bytes();
        let write = || {
            // The number keeps programs that start together apart.
            let fresh = self.folder.join(format!("fresh-{}", std::process::id()));
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
            file.write_all(&tag)?;
            file.write_all(artefact.bytes())?;
            file.sync_all()?;
            fs::rename(&fresh, self.path(plugin, engine))
        };
        write().map_err(|error: io::Error| KernelError::Cache {
            folder: self.folder.clone(),
            reason: error.to_string(),
        })
    }

    /// Forgets what was compiled of `plugin` by `engine`.
    pub fn forget(&self, plugin: PluginDigest, engine: u64) {
        // What is not there need not be removed, and what cannot be removed is authenticated again.
        let _ = fs::remove_file(self.path(plugin, engine));
    }

    fn path(&self, plugin: PluginDigest, engine: u64) -> PathBuf {
        self.folder.join(format!("{plugin}-{engine:016x}.compiled"))
    }

    fn mac(&self, plugin: PluginDigest, engine: u64, code: &[u8]) -> Hmac<Sha256> {
        // Every length is a key to HMAC.
        #[allow(clippy::unwrap_used)]
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).unwrap();
        for part in [LABEL, &plugin.0, &engine.to_le_bytes(), code] {
            mac.update(part);
        }
        mac
    }
}

/// Refuses what others than the owner may touch, and what somebody else owns.
fn private(metadata: &fs::Metadata) -> Result<(), String> {
    // SAFETY: takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    match metadata.permissions().mode() & 0o077 {
        0 if metadata.uid() == user => Ok(()),
        0 => Err(format!("it belongs to user {}, this program runs as {user}", metadata.uid())),
        open => Err(format!("others may use it (mode {open:03o} of 077)")),
    }
}

/// A plain file, not followed through a link.
fn open_plain(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no plain file")) }
}

fn key(path: &Path) -> io::Result<[u8; KEY_BYTES]> {
    let mut file = open_plain(path)?;
    private(&file.metadata()?).map_err(|reason| io::Error::other(format!("the key file: {reason}")))?;
    let mut key = [0; KEY_BYTES];
    file.read_exact(&mut key).map_err(|_| io::Error::other("the key file is too short; remove it"))?;
    Ok(key)
}

/// Writes a key aside and links it into place, so that of two programs that start together one wins and both use its key.
fn make_key(folder: &Path, path: &Path) -> io::Result<()> {
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|error| io::Error::other(error.to_string()))?;
    let fresh = folder.join(format!("fresh-key-{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(&key)?;
    file.sync_all()?;
    let linked = fs::hard_link(&fresh, path);
    fs::remove_file(&fresh)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLUGIN: PluginDigest = PluginDigest([3; 32]);
    const LARGEST: u64 = 1 << 20;

    #[test]
    fn what_was_kept_is_found_under_its_own_names_alone() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("data/compiled");
        let cache = CompileCache::open(&folder).unwrap();
        assert!(cache.find(PLUGIN, 7, LARGEST).is_none());
        cache.keep(PLUGIN, 7, &Artefact::new(b"code".to_vec())).unwrap();
        let again = CompileCache::open(&folder).unwrap();
        assert_eq!(again.find(PLUGIN, 7, LARGEST).unwrap().bytes(), b"code");
        assert!(again.find(PLUGIN, 8, LARGEST).is_none());
        // Moved to another plugin, or to another engine.
        fs::copy(cache.path(PLUGIN, 7), cache.path(PLUGIN, 8)).unwrap();
        assert!(again.find(PLUGIN, 8, LARGEST).is_none());
        let other = PluginDigest([4; 32]);
        fs::copy(cache.path(PLUGIN, 7), cache.path(other, 7)).unwrap();
        assert!(again.find(other, 7, LARGEST).is_none());
        again.forget(PLUGIN, 7);
        assert!(again.find(PLUGIN, 7, LARGEST).is_none());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(KEY_FILE))), (0o700, 0o600));
    }

    #[test]
    fn a_changed_or_strange_entry_is_not_loaded() {
        let home = tempfile::tempdir().unwrap();
        let cache = CompileCache::open(&home.path().join("compiled")).unwrap();
        cache.keep(PLUGIN, 7, &Artefact::new(b"code".to_vec())).unwrap();
        let path = cache.path(PLUGIN, 7);
        let honest = fs::read(&path).unwrap();
        for at in 0..honest.len() {
            let mut changed = honest.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            assert!(cache.find(PLUGIN, 7, LARGEST).is_none(), "byte {at}");
        }
        for length in 0..honest.len() {
            fs::write(&path, &honest[..length]).unwrap();
            assert!(cache.find(PLUGIN, 7, LARGEST).is_none(), "{length} bytes");
        }
        fs::write(&path, &honest).unwrap();
        assert!(cache.find(PLUGIN, 7, 3).is_none(), "larger than any");
        assert!(cache.find(PLUGIN, 7, 4).is_some());
        // Through a link not even the right one.
        let elsewhere = home.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(cache.find(PLUGIN, 7, LARGEST).is_none());
        // Another user's key makes other tags.
        let theirs = CompileCache::open(&home.path().join("theirs")).unwrap();
        theirs.keep(PLUGIN, 7, &Artefact::new(b"code".to_vec())).unwrap();
        fs::remove_file(&path).unwrap();
        fs::copy(theirs.path(PLUGIN, 7), &path).unwrap();
        assert!(cache.find(PLUGIN, 7, LARGEST).is_none());
    }

    #[test]
    fn a_folder_or_key_that_others_may_use_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("compiled");
        CompileCache::open(&folder).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for (path, wrong, right) in [(folder.clone(), 0o755, 0o700), (folder.join(KEY_FILE), 0o640, 0o600)] {
            set(&path, wrong);
            assert!(
                matches!(CompileCache::open(&folder), Err(KernelError::Cache { .. })),
                "{}",
                path.display()
            );
            set(&path, right);
            CompileCache::open(&folder).unwrap();
        }
        fs::write(folder.join(KEY_FILE), [1; 31]).unwrap();
        assert!(CompileCache::open(&folder).unwrap_err().to_string().contains("too short"));
    }
}
