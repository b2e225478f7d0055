//! `kvasir plugin sign`: a kernel's folder into a signed package, or one more signature on a package.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kvasir_plugin::{KeyId, Unverified, Validity};
use kvasir_wire::key::SecretKey;
use serde_json::json;

use crate::plugin_pack::{self, Checked, Folder, Others};
use crate::settings::Settings;
use crate::standing::{self, Standing};
use crate::{key_file, output, setup};

/// What `kvasir plugin sign` may be told.
pub struct SignOptions {
    /// The folder of a kernel, or a package.
    pub target: PathBuf,
    /// Secret key file; one's own publisher key, made where there is none, if none is named.
    pub key: Option<PathBuf>,
    /// Package to write; `<name>-<version>.kvp` in the folder, or the package itself, where none is named.
    pub out: Option<PathBuf>,
    /// Days until the signature expires. A signature that is added keeps the days of the first.
    pub days: u32,
    /// Replace a file that is no package, or a package that others signed.
    pub force: bool,
}

/// `kvasir plugin sign`.
///
/// # Errors
/// Where the folder or package is unfit, the package is not valid now, or the key cannot be used; nothing is written then.
pub fn sign(settings: &Settings, options: &SignOptions, json: bool) -> Result<()> {
    let target = &options.target;
    let (key, key_path, new_key) = key(settings, options.key.as_deref())?;
    let own = KeyId::of(&key.signing_key().verifying_key());
    let validity = setup::validity(u64::from(options.days));
    let unfit = || format!("{} cannot be signed", target.display());
    let (out, there, package, checked) = if target.is_dir() {
        let kernel = Folder::read(target)?;
        let out = match &options.out {
            Some(out) => out.clone(),
            None => target.join(plugin_pack::file_name(&kernel.contents)?),
        };
        let there = Standing::at(&out)?;
        kernel.writable(&out, Some(&key_path), options.force)?;
        plugin_pack::keeps_signatures(&out, &[own], None, options.force)?;
        let checked = plugin_pack::check(kernel.contents, validity, None).with_context(unfit)?;
        let package = kvasir_plugin::pack(&checked.contents, validity, key.signing_key());
        (out, there, package.with_context(unfit)?, checked)
    } else {
        let out = options.out.as_ref().unwrap_or(target).clone();
        // Before the package is read: whoever signs it in the meantime is not to lose that signature.
        let there = Standing::at(&out)?;
        plugin_pack::writable(&out, &[&key_path], options.force)?;
        let bytes = plugin_pack::read_package(target)?;
        let found = Unverified::read(&bytes).with_context(unfit)?;
        plugin_pack::keeps_signatures(&out, &[own], Some(&bytes), options.force)?;
        if let Some(claims) = &found.claims {
            is_valid_now(claims.validity).with_context(unfit)?;
        }
        // Whoever signs vouches, so what is in it is tried first, whoever signed before.
        let signed_by = found.claims.as_ref().map(|claims| claims.signed_by.clone()).unwrap_or_default();
        let others = Others { settings, package: &bytes, signed_by };
        let checked = plugin_pack::check(found.contents, validity, Some(&others)).with_context(unfit)?;
        let package = match found.claims {
            Some(_) => kvasir_plugin::add_signature(&bytes, key.signing_key()),
            None => kvasir_plugin::sign(&bytes, validity, key.signing_key()),
        };
        (out, there, package.with_context(unfit)?, checked)
    };
    standing::write_over(&out, &there, &package)?;
    report(&Signed { out: &out, package: &package, key: &key, key_path: &key_path, new_key }, &checked, json)
}

/// Refuses a statement that no host would accept now: a further signature leaves its time as it is.
fn is_valid_now(validity: Validity) -> Result<()> {
    let now = setup::now();
    if now >= validity.expires {
        bail!(
            "it expired at {}, it is now {now}, and a further signature does not lengthen that: sign its sources anew, and check this \
             machine's clock",
            validity.expires
        );
    }
    if now < validity.not_before {
        bail!(
            "it is valid only from {}, it is now {now}: check this machine's clock, or sign it then",
            validity.not_before
        );
    }
    Ok(())
}

struct Signed<'a> {
    out: &'a Path,
    package: &'a [u8],
    key: &'a SecretKey,
    key_path: &'a Path,
    new_key: bool,
}

fn report(signed: &Signed<'_>, checked: &Checked, json: bool) -> Result<()> {
    let Signed { out, package, key, key_path, new_key } = signed;
    let claims = Unverified::read(package)?.claims.context("the package that was just signed is not")?;
    let keys: Vec<String> = claims.signed_by.iter().map(ToString::to_string).collect();
    let id = KeyId::of(&key.signing_key().verifying_key());
    if json {
        output::object(&json!({
            "package": out.display().to_string(), "bytes": package.len(), "plugin": claims.digest.to_string(),
            "publisher": key.public().to_string(), "key_id": id.to_string(), "key_file": key_path.display().to_string(),
            "new_key": new_key, "signatures": keys, "expires": claims.validity.expires.0,
            "vectors": checked.proven.vectors,
        }))
    } else {
        output::line(format!(
            "{}: {} bytes, {}\nplugin      {}\nsigned by   {} ({}{})\nsignatures  {}\nvalid until {}",
            out.display(),
            package.len(),
            plugin_pack::proof(checked),
            claims.digest,
            key.public(),
            key_path.display(),
            if *new_key { ", new" } else { "" },
            keys.join(", "),
            claims.validity.expires
        ))
    }
}

/// The key named, or one's own publisher key.
fn key(settings: &Settings, named: Option<&Path>) -> Result<(SecretKey, PathBuf, bool)> {
    match named {
        Some(path) => Ok((key_file::load(path)?, path.to_owned(), false)),
        None => {
            let path = settings.configuration_folder.join("keys/publisher.key");
            let (key, new) = key_file::load_or_create(&path)?;
            Ok((key, path, new))
        }
    }
}
