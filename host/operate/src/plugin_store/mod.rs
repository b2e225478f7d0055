//! `kvasir plugin install`, `list`, `upgrade`, `rollback`, `trust`, `revoke`, `policy`: what an operator decides about plugins, on top
//! of `kvasir-plugin-store`.

pub mod explain;
pub mod keys;
pub mod packages;
pub mod revoke;
pub mod trust;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kvasir_experts::{Device, KernelLimits, VerifiedPlugin};
use kvasir_plugin::{Grant, PluginDigest, TrustStore};
use kvasir_plugin_store::Store;

use crate::choices::DeviceChoice;
use crate::local::PACKAGE_BYTES_MAX;
use crate::settings::Settings;
use crate::{files, setup};

/// Fewest digits that stand for a whole digest.
const DIGEST_PREFIX_MIN: usize = 6;

/// A kernel to use, and what the operator's policy grants it.
pub struct Granted {
    /// The kernel, verified now.
    pub plugin: VerifiedPlugin,
    /// The lesser of what it asks for and what the policy allows.
    pub grant: Grant,
}

impl Granted {
    /// The limits for the sandbox.
    pub fn limits(&self) -> KernelLimits {
        limits_of(&self.grant)
    }

    /// The device `wanted`, for a runner.
    ///
    /// # Errors
    /// Where it is the GPU, which the policy does not grant; or as [`DeviceChoice::open`].
    pub fn device(&self, wanted: DeviceChoice, settings: &Settings) -> Result<Device> {
        if wanted == DeviceChoice::Gpu && self.plugin.shader().is_some() && !self.grant.gpu {
            bail!(
                "the policy does not let {} run on the GPU: use --device cpu, or set `gpu = true` in {}",
                self.plugin.name(),
                settings.store().places().policy().display()
            );
        }
        wanted.open(settings)
    }
}

/// What a grant is for the sandbox.
pub(crate) fn limits_of(grant: &Grant) -> KernelLimits {
    KernelLimits {
        memory_bytes: grant.limits.memory_bytes,
        fuel_per_call: grant.limits.fuel_per_call,
        rows_per_call: grant.limits.rows_per_call,
        deadline: grant.deadline,
    }
}

/// The kernel to use: the package `plugin` if one is named (or stands in the settings file), else the active one. Its publisher must
/// be trusted: by the keys of the folder `trust` if one is named (or stands in the settings file), else by the root, in which case its
/// revision is written down as seen.
///
/// # Errors
/// Where there is none, or it is refused; the message says what to do.
pub fn granted(settings: &Settings, plugin: Option<&Path>, trust: Option<&Path>) -> Result<Granted> {
    let store = settings.store();
    let plugin = match (settings.plugin(plugin), settings.trust_folder(trust)) {
        (Some(path), None) => {
            store.admit(&read_package(&path)?, setup::now()).with_context(|| refused(Some(&path)))?
        }
        _ => verified(settings, plugin, trust)?,
    };
    let grant = store.grant(&plugin)?;
    Ok(Granted { plugin, grant })
}

/// As [`granted`], without the policy; and of a package that is named nothing is written down. To look at it, not to run it.
///
/// # Errors
/// As [`granted`].
pub fn verified(settings: &Settings, plugin: Option<&Path>, trust: Option<&Path>) -> Result<VerifiedPlugin> {
    let store = settings.store();
    let now = setup::now();
    let named = settings.plugin(plugin);
    let bytes = named.as_deref().map(read_package).transpose()?;
    let Some(folder) = settings.trust_folder(trust) else {
        let Some(bytes) = bytes else {
            return store.active(now).context("the active kernel cannot be used")?.with_context(no_active);
        };
        let trust = store.trust()?;
        return kvasir_plugin::verify(&bytes, trust.publishers(), now)
            .with_context(|| refused(named.as_deref()));
    };
    let keys = TrustStore::load_folder(&folder)
        .with_context(|| format!("cannot use the trusted keys in {}", folder.display()))?;
    let bytes = match bytes {
        Some(bytes) => bytes,
        None => store.package(store.active_digest()?.with_context(no_active)?)?,
    };
    kvasir_plugin::verify(&bytes, &keys, now).with_context(|| refused(named.as_deref()))
}

fn refused(named: Option<&Path>) -> String {
    match named {
        Some(path) => format!("the kernel package {} is refused", path.display()),
        None => "the active kernel is refused".to_owned(),
    }
}

/// The package file that is meant: the one named, on the command line or in the settings file, else the active plugin's.
///
/// # Errors
/// Where none is named and none is active.
pub fn named_or_active(settings: &Settings, named: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = settings.plugin(named) {
        return Ok(path);
    }
    let store = settings.store();
    Ok(store.places().package(store.active_digest()?.with_context(no_active)?))
}

fn no_active() -> String {
    "no kernel is active: run `kvasir setup`, or name a package".to_owned()
}

/// Reads a package file; nothing of it is verified.
pub(crate) fn read_package(path: &Path) -> Result<Vec<u8>> {
    if !path.exists() {
        bail!(
            "there is no kernel package at {}: name one that is there (`kvasir setup` installs the bundled one)",
            path.display()
        );
    }
    files::read_bounded(path, PACKAGE_BYTES_MAX)
        .with_context(|| format!("cannot read the kernel package {}", path.display()))
}

/// The package that is meant: `named`, or the newest `*.kvp` in the working folder.
pub(crate) fn package_file(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = named {
        return Ok(path.to_path_buf());
    }
    let unreadable = || "cannot read the working folder".to_owned();
    let mut newest = None;
    for entry in std::fs::read_dir(".").with_context(unreadable)? {
        let path = entry.with_context(unreadable)?.path();
        if path.extension().is_none_or(|extension| extension != "kvp") {
            continue;
        }
        // A folder or a pipe of that name is no package, however new.
        let Some(metadata) = path.metadata().ok().filter(std::fs::Metadata::is_file) else { continue };
        let candidate = (metadata.modified().ok(), path);
        newest = newest.max(Some(candidate));
    }
    newest.map(|(_, path)| path.strip_prefix(".").map_or(path.clone(), Path::to_path_buf)).context(
        "there is no package (*.kvp) in the working folder: name one, or make one with `kvasir plugin sign`",
    )
}

/// The digest that `text` means: all 64 digits, or the first six or more of exactly one installed plugin.
pub(crate) fn digest(store: &Store, text: &str) -> Result<PluginDigest> {
    if let Some(digest) = PluginDigest::from_hex(text) {
        return Ok(digest);
    }
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if text.len() < DIGEST_PREFIX_MIN || !plain {
        bail!(
            "{text:?} is no plugin digest: give 64 lower-case hexadecimal digits, or the first {DIGEST_PREFIX_MIN} or more of an \
             installed one"
        );
    }
    let mut fitting = store.digests()?;
    fitting.retain(|digest| digest.to_string().starts_with(text));
    match fitting[..] {
        [digest] => Ok(digest),
        [] => bail!("no installed plugin's digest begins with {text}; `kvasir plugin list` shows them"),
        _ => bail!("{} installed plugins' digests begin with {text}: give more digits", fitting.len()),
    }
}
