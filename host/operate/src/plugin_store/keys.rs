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

/// As many keys of `role` as `root` demands: those in the files `named`, then the user's root key, and the one that a rotation left
/// half way. All that are named sign.
///
/// # Errors
/// Where a file that is named holds no key of the role, or there are too few.
pub fn signers(
    settings: &Settings,
    root: &VerifiedRoot,
    role: &RoleName,
    named: &[PathBuf],
) -> Result<Vec<SecretKey>> {
    let trusted = root.root().roles.get(role);
    let due = trusted.map_or(1, |role| role.threshold as usize);
    let usual = [root_key(settings), next_root_key(settings)];
    let usual: Vec<&PathBuf> = usual.iter().filter(|path| path.exists()).collect();
    let mut signers: Vec<SecretKey> = Vec::new();
    for (index, path) in named.iter().chain(usual.iter().copied()).enumerate() {
        let is_named = index < named.len();
        if !is_named && signers.len() >= due {
            break;
        }
        let key = key_file::load(path)?;
        let id = KeyId::of(&key.signing_key().verifying_key());
        if !trusted.is_some_and(|role| role.keys.contains(&id)) {
            if is_named {
                bail!("{}; `kvasir plugin trust show` lists its keys", no_key_of(role, &[path]));
            }
        } else if signers.iter().all(|other| other.public() != key.public()) {
            signers.push(key);
        }
    }
    match signers.len() {
        found if found >= due => Ok(signers),
        0 if usual.is_empty() => bail!(
            "there is no key of the role {role} at {}: put it there, or name it with --root-key FILE",
            root_key(settings).display()
        ),
        0 => bail!(
            "{}; `kvasir plugin trust show` lists its keys, --root-key FILE names another file",
            no_key_of(role, &usual)
        ),
        found => bail!(
            "the role {role} takes the signatures of {due} keys, and {found} of them {} here: bring the key files of the others to \
             this machine and name each with a --root-key FILE of its own",
            if found == 1 { "is" } else { "are" }
        ),
    }
}

fn no_key_of(role: &RoleName, paths: &[&PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    format!("{} is no key of the root's role {role}", paths.join(" and "))
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
