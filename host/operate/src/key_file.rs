//! Secret key files: made once, readable by their owner alone, never overwritten.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use kvasir_wire::key::SecretKey;
use serde_json::json;

/// A key file holds one line; anything larger is not one.
const KEY_FILE_BYTES_MAX: u64 = 4096;

/// Make a new key and write it to `path`, which must not exist. The file is readable by its owner alone.
///
/// # Errors
/// Where the file exists already (a key is never overwritten) or cannot be written.
pub fn create(path: &Path) -> Result<SecretKey> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed).context("the operating system gives no randomness")?;
    let key = SecretKey::from_seed(seed);
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).with_context(|| {
            format!("cannot make the key file {} (a key is never overwritten)", path.display())
        })?;
    file.write_all(key.to_text().as_bytes())
        .and_then(|()| file.sync_all())
        .with_context(|| format!("cannot write the key file {}", path.display()))?;
    Ok(key)
}

/// Read a secret key.
///
/// # Errors
/// Where the file is missing, is no key, or is readable by others than its owner.
pub fn load(path: &Path) -> Result<SecretKey> {
    let metadata = fs::metadata(path)
        .with_context(|| format!("cannot read the key file {} (make one: kvasir key new)", path.display()))?;
    if metadata.len() > KEY_FILE_BYTES_MAX {
        bail!(
            "{} is no key file: {} bytes, a key has under {KEY_FILE_BYTES_MAX}",
            path.display(),
            metadata.len()
        );
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        bail!("{} can be read by others (mode {mode:o}); run: chmod 600 {}", path.display(), path.display());
    }
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read the key file {}", path.display()))?;
    SecretKey::from_text(&text).with_context(|| format!("{} is no key file", path.display()))
}

/// Read the key at `path`, or make one where there is none. The flag says whether it is new.
///
/// # Errors
/// As [`load`] and [`create`].
pub fn load_or_create(path: &Path) -> Result<(SecretKey, bool)> {
    if path.exists() { Ok((load(path)?, false)) } else { Ok((create(path)?, true)) }
}

/// `kvasir key new`.
///
/// # Errors
/// As [`create`].
pub fn command_new(path: &Path, json: bool) -> Result<()> {
    let key = create(path)?;
    report(path, &key, json);
    Ok(())
}

/// `kvasir key show`.
///
/// # Errors
/// As [`load`].
pub fn command_show(path: &Path, json: bool) -> Result<()> {
    report(path, &load(path)?, json);
    Ok(())
}

fn report(path: &Path, key: &SecretKey, json: bool) {
    let public = key.public();
    if json {
        println!(
            "{}",
            json!({"file": path, "public": public.to_string(), "wallet": public.wallet_digest().to_string()})
        );
    } else {
        println!("public key  {public}\nwallet      {}", public.wallet_digest());
    }
}
