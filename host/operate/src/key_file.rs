//! Secret key files: made once, readable by their owner alone, never overwritten.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kvasir_wire::key::SecretKey;
use serde_json::json;

use crate::files::{self, Draft};
use crate::output;

/// A key file holds one line; anything larger is not one.
const KEY_FILE_BYTES_MAX: u64 = 4096;

/// Make a new key and write it to `path`, which must not exist, in a folder that does. The file is readable by its owner alone.
///
/// # Errors
/// Where the file exists already (a key is never overwritten) or cannot be written.
pub fn create(path: &Path) -> Result<SecretKey> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed).context("the operating system gives no randomness")?;
    let key = SecretKey::from_seed(seed);
    let refused = || format!("cannot make the key file {} (a key is never overwritten)", path.display());
    if path.symlink_metadata().is_ok() {
        bail!("{}: it is there already", refused());
    }
    // In its place only once it is whole: half a key would be in the way of the next try.
    let mut draft = Draft::secret(path)?;
    draft.write_all(key.to_text().as_bytes()).and_then(|()| draft.finish_new()).with_context(refused)?;
    Ok(key)
}

/// Read a secret key.
///
/// # Errors
/// Where the file is missing, is no key, or is readable by others than its owner.
pub fn load(path: &Path) -> Result<SecretKey> {
    let unreadable = || format!("cannot read the key file {} (make one: kvasir key new)", path.display());
    let (file, metadata) = files::open_regular(path).with_context(unreadable)?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        bail!("{} can be read by others (mode {mode:o}); run: chmod 600 {}", path.display(), path.display());
    }
    let text =
        files::read_at_most(file, KEY_FILE_BYTES_MAX).and_then(files::text).with_context(unreadable)?;
    SecretKey::from_text(&text).with_context(|| format!("{} is no key file", path.display()))
}

/// Read the key at `path`, or make one (and its folder) where there is none. The flag says whether it is new.
///
/// # Errors
/// As [`load`] and [`create`].
pub fn load_or_create(path: &Path) -> Result<(SecretKey, bool)> {
    if path.exists() {
        return Ok((load(path)?, false));
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    match create(path) {
        Ok(key) => Ok((key, true)),
        // Somebody else made one at the same moment.
        Err(_) if path.exists() => Ok((load(path)?, false)),
        Err(error) => Err(error),
    }
}

/// `kvasir key new`.
///
/// # Errors
/// As [`create`].
pub fn command_new(path: &Path, json: bool) -> Result<()> {
    let key = create(path)?;
    // The key is there whatever becomes of its report.
    report(path, &key, json)
        .with_context(|| format!("the key file {} was made, for {}", path.display(), key.public()))
}

/// `kvasir key show`.
///
/// # Errors
/// As [`load`].
pub fn command_show(path: &Path, json: bool) -> Result<()> {
    report(path, &load(path)?, json)
}

fn report(path: &Path, key: &SecretKey, json: bool) -> Result<()> {
    let public = key.public();
    if json {
        output::object(&json!({
            "file": path.display().to_string(), "public": public.to_string(),
            "wallet": public.wallet_digest().to_string(),
        }))
    } else {
        output::line(format!("public key  {public}\nwallet      {}", public.wallet_digest()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_whole_private_and_never_overwritten() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("k.key");
        let key = create(&path).unwrap();
        assert_eq!(load(&path).unwrap().public(), key.public());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(create(&path).unwrap_err().to_string().contains("never overwritten"));
        assert_eq!(load_or_create(&path).unwrap().0.public(), key.public());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_is_too_large_or_no_plain_file_is_no_key() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("k.key");
        fs::write(&path, vec![b'a'; KEY_FILE_BYTES_MAX as usize + 1]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(format!("{:#}", load(&path).unwrap_err()).contains("4096"));
        assert!(format!("{:#}", load(place.path()).unwrap_err()).contains("a folder"));
    }
}
