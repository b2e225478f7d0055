//! The operator's own keys: the publisher key that signs packages, the root key that signs whom to trust; and public keys as people
//! name them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kvasir_plugin::{KeyId, MAX_KEY_FILE_BYTES, PublisherKey, RoleName, VerifiedRoot};
use kvasir_wire::key::SecretKey;

use crate::settings::Settings;
use crate::{files, key_file};

/// The publisher key of this user.
pub fn publisher_key(settings: &Settings) -> PathBuf {
    settings.configuration_folder.join("keys/publisher.key")
}

/// The root key of this user.
pub fn root_key(settings: &Settings) -> PathBuf {
    settings.configuration_folder.join("keys/root.key")
}

/// Where a new root key lies until the root names it.
pub fn next_root_key(settings: &Settings) -> PathBuf {
    settings.configuration_folder.join("keys/root-next.key")
}

/// The public half of a secret key, called `name`.
pub fn public(key: &SecretKey, name: &str) -> PublisherKey {
    PublisherKey { key: key.signing_key().verifying_key(), name: Some(name.to_owned()) }
}

/// A key that `root` trusts with `role`: the file `named`, else the user's root key, or the one that a rotation left half way.
///
/// # Errors
/// Where there is no such file, or its key is not one of the role.
pub fn signer(
    settings: &Settings,
    root: &VerifiedRoot,
    role: &RoleName,
    named: Option<&Path>,
) -> Result<SecretKey> {
    let usual = [root_key(settings), next_root_key(settings)];
    let candidates: Vec<&Path> = match named {
        Some(path) => vec![path],
        None => usual.iter().map(PathBuf::as_path).filter(|path| path.exists()).collect(),
    };
    let trusted = root.root().roles.get(role);
    for path in &candidates {
        let key = key_file::load(path)?;
        let id = KeyId::of(&key.signing_key().verifying_key());
        if trusted.is_some_and(|role| role.keys.contains(&id)) {
            return Ok(key);
        }
    }
    let where_to = root_key(settings);
    if candidates.is_empty() {
        bail!(
            "there is no key of the role {role} at {}: put it there, or name it with --root-key FILE",
            where_to.display()
        );
    }
    bail!(
        "{} is no key of the root's role {role}; `kvasir plugin trust show` lists its keys, --root-key FILE names another file",
        candidates.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and "),
    )
}

/// The public key that `text` means: `ed25519:...`, or a file with one such line.
///
/// # Errors
/// Where it is neither.
pub fn public_key(text: &str) -> Result<PublisherKey> {
    if text.starts_with("ed25519:") {
        return PublisherKey::parse(text).with_context(|| format!("{text:?} is no public key"));
    }
    let path = Path::new(text);
    let content = files::read_text_bounded(path, MAX_KEY_FILE_BYTES as u64).with_context(|| {
        format!("{text:?} is neither a public key (`ed25519:` and 64 hexadecimal digits) nor a file that holds one")
    })?;
    let mut lines =
        content.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    let (Some(line), None) = (lines.next(), lines.next()) else {
        bail!("{} does not hold exactly one key", path.display());
    };
    let mut key =
        PublisherKey::parse(line).with_context(|| format!("{} holds no public key", path.display()))?;
    key.name = key.name.or_else(|| Some(path.file_stem()?.to_string_lossy().into_owned()));
    Ok(key)
}
