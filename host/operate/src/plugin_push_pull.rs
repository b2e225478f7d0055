//! `kvasir plugin push` and `pull`: packages to and from OCI layouts and registries.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use kvasir_plugin::Unverified;
use kvasir_registry::{Credentials, Options, Place};
use serde_json::json;

use crate::output;
use crate::plugin_pack::{read_package, replaces_only_itself, stem, writable};
use crate::standing::{self, Standing};

/// Longest time for a whole push or pull that may be asked for, in seconds.
pub const TIMEOUT_SECONDS_MAX: u64 = kvasir_registry::MAX_DEADLINE.as_secs();

/// How a registry is reached.
pub struct RegistryOptions {
    /// Plain HTTP to a host other than this machine.
    pub plain_http: bool,
    /// A file of certificates in PEM to trust in place of the usual ones; TLS on this machine too.
    pub certificates: Option<PathBuf>,
    /// Time for the whole, in seconds.
    pub timeout: u64,
}

/// What `kvasir plugin pull` may be told.
pub struct PullOptions {
    /// Where the package is.
    pub source: String,
    /// File to write; `<name>-<version>.kvp` where none is named.
    pub out: Option<PathBuf>,
    /// Replace a file that is there and has other bytes.
    pub force: bool,
    /// How a registry is reached.
    pub registry: RegistryOptions,
}

impl RegistryOptions {
    fn resolve(&self, place: &Place) -> Result<Options> {
        let credentials = match place {
            Place::Registry(reference) => Credentials::find(&reference.host)?,
            Place::Folder { .. } => None,
        };
        Ok(Options {
            credentials,
            plain_http: self.plain_http,
            loopback_tls: self.certificates.is_some(),
            certificates: self.certificates.clone(),
            deadline: Duration::from_secs(self.timeout),
            ..Options::default()
        })
    }
}

/// `kvasir plugin push`: the package as an image and what refers to it.
///
/// # Errors
/// Where the package or the place is none, or the way there fails; no tag names a half-pushed package.
pub fn push(package: &Path, destination: &str, options: &RegistryOptions, json: bool) -> Result<()> {
    let place: Place = destination.parse()?;
    let bytes = read_package(package)?;
    let image = kvasir_registry::push(&bytes, &place, &options.resolve(&place)?)
        .with_context(|| format!("{} was not pushed", package.display()))?;
    if json {
        output::object(&json!({
            "package": package.display().to_string(), "bytes": bytes.len(), "place": place.to_string(),
            "image": image.to_string(),
        }))
    } else {
        output::line(format!("{place}: {} bytes, image {image}", bytes.len()))
    }
}

/// `kvasir plugin pull`: the package that was pushed, byte for byte. Nothing is verified; what is written is data until `verify`
/// or `install` checked it.
///
/// # Errors
/// Where the place is none, the way there fails, or what is there makes no package; nothing is written then.
pub fn pull(options: &PullOptions, json: bool) -> Result<()> {
    let place: Place = options.source.parse()?;
    let package = kvasir_registry::pull(&place, &options.registry.resolve(&place)?)
        .with_context(|| format!("nothing was pulled from {place}"))?;
    let found = Unverified::read(&package).with_context(|| format!("{place} holds no package"))?;
    let manifest = &found.manifest;
    let signed_by: Vec<String> = match &found.claims {
        Some(claims) => claims.signed_by.iter().map(ToString::to_string).collect(),
        None => Vec::new(),
    };
    let out = match &options.out {
        Some(out) => out.clone(),
        None => PathBuf::from(format!("{}.kvp", stem(manifest))),
    };
    let there = Standing::at(&out)?;
    writable(&out, &[], options.force)?;
    replaces_only_itself(&out, &package, options.force)?;
    standing::write_over(&out, &there, &package)?;
    if json {
        output::object(&json!({
            "package": out.display().to_string(), "bytes": package.len(), "place": place.to_string(),
            "image": found.image.to_string(), "name": manifest.name, "version": manifest.version.to_string(),
            "plugin": found.claims.as_ref().map(|claims| claims.digest.to_string()), "signed_by": signed_by,
            "verified": false,
        }))
    } else {
        let signed = match signed_by.is_empty() {
            true => "not signed".to_owned(),
            false => format!("says it is signed by {}", signed_by.join(", ")),
        };
        output::line(format!(
            "{}: {} {}, {} bytes, {signed}; not verified yet: kvasir plugin verify {}",
            out.display(),
            manifest.name,
            manifest.version,
            package.len(),
            out.display()
        ))
    }
}
