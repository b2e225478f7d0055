//! Making packages: [`pack`] signs at once, [`pack_unsigned`] and [`sign`] apart, [`add_signature`] where several must sign.
//! The same contents, validity and keys give the same bytes.

use std::collections::BTreeMap;

use ed25519_dalek::SigningKey;

use crate::envelope;
use crate::error::PluginError;
use crate::files::{self, COMPONENT, File, Files, MANIFEST, SBOM, SHADERS, VECTORS};
use crate::identity::{BlobDigest, sha256};
use crate::layout::{self, Parts};
use crate::limits::MAX_ENVELOPE_BYTES;
use crate::manifest::Manifest;
use crate::oci::Documents;
use crate::package::{Validity, check_contents, in_folder};
use crate::sbom;
use crate::shader::Shader;
use crate::statement::{IMAGE_MANIFEST, SignedFile, Statement};

/// What goes into a package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackageContents {
    /// The bytes of `plugin.toml`.
    pub manifest: Vec<u8>,
    /// The WebAssembly component.
    pub component: Vec<u8>,
    /// WGSL sources by plain name; what the manifest's table `[shader]` names, or nothing.
    pub shaders: BTreeMap<String, Vec<u8>>,
    /// Golden vector files by plain name (letters, digits, `.`, `-`, `_`).
    pub vectors: BTreeMap<String, Vec<u8>>,
    /// `sbom.cdx.json`; where it is empty, one that lists the files is written.
    pub sbom: Vec<u8>,
}

/// Makes a package of `contents`, signed by `key`. The result is not verified against any host version or clock: a publisher may
/// sign for the future.
pub fn pack(
    contents: &PackageContents,
    validity: Validity,
    key: &SigningKey,
) -> Result<Vec<u8>, PluginError> {
    assembled(contents, |manifest, files| {
        let image = Documents::of(manifest, files, None)?.image;
        let mut signed: BTreeMap<String, SignedFile> =
            files.iter().map(|(name, file)| (name.clone(), on(file.digest.0, file.bytes))).collect();
        signed.insert(IMAGE_MANIFEST.to_owned(), on(sha256(&image), &image));
        let Validity { not_before, expires } = validity;
        if expires <= not_before {
            return Err(PluginError::EmptyValidity { not_before, expires });
        }
        let payload = Statement::new(manifest, not_before, expires, &signed).encode()?;
        sized(envelope::seal(&payload, key)?).map(Some)
    })
}

/// Makes a package that nobody has signed yet, which [`crate::verify`] refuses.
pub fn pack_unsigned(contents: &PackageContents) -> Result<Vec<u8>, PluginError> {
    assembled(contents, |_, _| Ok(None))
}

/// Signs what [`pack_unsigned`] made. The package is taken apart and made anew, so that what is signed is canonical.
pub fn sign(package: &[u8], validity: Validity, key: &SigningKey) -> Result<Vec<u8>, PluginError> {
    let parts = Parts::read(package)?;
    if parts.envelope.is_some() {
        return Err(PluginError::AlreadySigned);
    }
    pack(&PackageContents::of(&parts.files), validity, key)
}

/// Adds the signature of `key` to a signed package; the statement, and so the plugin's digest, stays as it is. Whoever signs agrees
/// to all of it, so the statement must fit the package; the signatures that are there already are not checked.
pub fn add_signature(package: &[u8], key: &SigningKey) -> Result<Vec<u8>, PluginError> {
    let parts = Parts::read(package)?;
    let sealed = parts.envelope.ok_or(PluginError::NotSigned)?;
    let (payload, _) = envelope::unchecked(sealed)?;
    let (manifest, _) = check_contents(&parts, &Statement::parse(&payload)?)?;
    let sealed = sized(envelope::add_signature(sealed, key)?)?;
    layout::write(&parts.files, &Documents::of(&manifest, &parts.files, Some(&sealed))?, Some(&sealed))
}

impl PackageContents {
    /// The files that were found in a package.
    pub(crate) fn of(files: &Files<'_>) -> Self {
        let bytes = |name: &str| files.get(name).map(|file| file.bytes.to_vec()).unwrap_or_default();
        PackageContents {
            manifest: bytes(MANIFEST),
            component: bytes(COMPONENT),
            shaders: in_folder(files, SHADERS),
            vectors: in_folder(files, VECTORS),
            sbom: bytes(SBOM),
        }
    }
}

/// Checks contents, lets `seal` make an envelope of them, and puts all together.
fn assembled(
    contents: &PackageContents,
    seal: impl FnOnce(&Manifest, &Files<'_>) -> Result<Option<Vec<u8>>, PluginError>,
) -> Result<Vec<u8>, PluginError> {
    let manifest = Manifest::parse(&contents.manifest)?;
    let mut files = Files::new();
    let mut add =
        |name: String, bytes| files::add(&mut files, name, File { bytes, digest: BlobDigest::of(bytes) });
    add(MANIFEST.to_owned(), &contents.manifest)?;
    add(COMPONENT.to_owned(), &contents.component)?;
    for (folder, named) in [(SHADERS, &contents.shaders), (VECTORS, &contents.vectors)] {
        for (name, bytes) in named {
            add(format!("{folder}{name}"), bytes)?;
        }
    }
    let bill =
        if contents.sbom.is_empty() { sbom::of_files(&manifest, &files) } else { contents.sbom.clone() };
    sbom::check(&bill)?;
    files::add(&mut files, SBOM.to_owned(), File { bytes: &bill, digest: BlobDigest::of(&bill) })?;
    Shader::assemble(manifest.shader.as_ref(), &contents.shaders)?;
    let envelope = seal(&manifest, &files)?;
    layout::write(&files, &Documents::of(&manifest, &files, envelope.as_deref())?, envelope.as_deref())
}

fn on(sha256: [u8; 32], bytes: &[u8]) -> SignedFile {
    SignedFile { sha256, bytes: bytes.len() as u64 }
}

fn sized(envelope: Vec<u8>) -> Result<Vec<u8>, PluginError> {
    if envelope.len() > MAX_ENVELOPE_BYTES {
        let (name, bytes) = ("envelope".to_owned(), envelope.len() as u64);
        return Err(PluginError::FileTooLarge { name, bytes, limit: MAX_ENVELOPE_BYTES });
    }
    Ok(envelope)
}
