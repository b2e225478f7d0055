//! The kernel that an author tests or measures: a folder that was built, or a package whoever signed it.
//!
//! It runs in the sandbox and its results go nowhere, so its signature decides nothing here: what is examined is signed anew by a key
//! that is made for the occasion and kept by nobody.

use std::path::Path;

use anyhow::{Context, Result, bail};
use kvasir_plugin::{PackageContents, Unverified, VerifiedPlugin};

use crate::plugin_pack::{Folder, read_package, signed_for_the_occasion};
use crate::setup;

/// Days that such a signature would hold.
const DAYS: u64 = 1;

/// Reads a folder or a package.
///
/// # Errors
/// Where it is neither, the folder was not built, or the manifest is malformed.
pub fn read(target: &Path) -> Result<VerifiedPlugin> {
    let contents = match target.is_dir() {
        true => folder(target)?,
        false => package(target)?,
    };
    signed_for_the_occasion(&contents, setup::validity(DAYS))
        .with_context(|| format!("{} is no kernel to be run", target.display()))
}

/// The bundled kernel, in the same way.
///
/// # Errors
/// On a machine without randomness.
pub fn bundled() -> Result<VerifiedPlugin> {
    signed_for_the_occasion(&setup::bundled_kernel(), setup::validity(DAYS))
}

fn folder(folder: &Path) -> Result<PackageContents> {
    if !folder.join("plugin.toml").is_file() {
        bail!(
            "{} has no plugin.toml: it is no kernel's folder; `kvasir plugin new NAME` makes one",
            folder.display()
        );
    }
    Ok(Folder::read(folder)?.contents)
}

fn package(path: &Path) -> Result<PackageContents> {
    let bytes = read_package(path)?;
    let found = Unverified::read(&bytes)
        .with_context(|| format!("{} is neither a kernel's folder nor a package", path.display()))?;
    Ok(found.contents)
}
