//! Carries plugin packages to and from OCI image layouts and registries. What comes back is bytes that nobody has verified yet.
//!
//! A package is pushed as what it is made of: the image, which `wkg`, `oras` and their kin know, and two manifests that refer to it
//! (the other files, and the signature). [`pull`] fetches the same and puts the package together again, byte for byte. Everything
//! that the other side says is checked against a limit and a digest on the way; that is no signature, and only
//! `kvasir_plugin::verify` makes a package trusted.
//!
//! The client is the small part of the OCI distribution specification 1.1 that this takes, over the HTTP and TLS that the
//! workspace has anyway.
#![cfg_attr(test, allow(clippy::unwrap_used))] // A test that cannot set itself up has failed.

mod bundle;
mod challenge;
mod client;
mod credentials;
mod document;
mod error;
mod folder;
mod limits;
mod plain_file;
mod reference;
mod remote;
mod repository;
mod resolver;

pub use client::Options;
pub use credentials::{Credentials, PASSWORD_VARIABLE, USER_VARIABLE};
pub use error::RegistryError;
pub use limits::*;
pub use reference::{Place, Reference, Version};

use kvasir_plugin::BlobDigest;

/// Carries `package` to `place` and returns the digest of its image, by which it can be pulled from there. That it is a whole
/// package is checked, its signature is not.
///
/// # Errors
/// What is wrong with the package, the place, or the way there. What was uploaded before a failure stays; no tag names it.
pub fn push(package: &[u8], place: &Place, options: &Options) -> Result<BlobDigest, RegistryError> {
    let bundle = bundle::Bundle::of(package)?;
    match place {
        Place::Folder { path, tag } => {
            folder::push(path, tag.as_deref(), &bundle, options.deadline.min(MAX_DEADLINE))?
        }
        Place::Registry(reference) => remote::push(reference, options, &bundle)?,
    }
    Ok(bundle.image)
}

/// Fetches the package at `place`: the bytes that were pushed. **Nothing about them is verified** but that they are what the place
/// says they are.
///
/// # Errors
/// What is wrong with the place, the way there, or what it gives; nothing is given out then.
pub fn pull(place: &Place, options: &Options) -> Result<Vec<u8>, RegistryError> {
    match place {
        Place::Folder { path, tag } => {
            let (mut source, found) = folder::open(path, tag.as_deref())?;
            bundle::package(&mut source, &found)
        }
        Place::Registry(reference) => {
            let (mut source, found) = remote::open(reference, options)?;
            bundle::package(&mut source, &found)
        }
    }
}
