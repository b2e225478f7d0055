//! An OCI image layout as a value, for whoever carries packages blob by blob: pure functions, no I/O, **nothing verified**.
//!
//! The documents of a layout must be looked at before any signature can be, since they say where the envelope is. They are read
//! by bounded, strict readers (size first; every field known; nothing twice where it would count), nothing is done on their word
//! but to find blobs by digest, and [`crate::verify`] later demands that they are byte for byte what the signed files give.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;

use crate::archive::{self, BLOBS, INDEX, OCI_LAYOUT};
use crate::error::{PluginError, one_line};
use crate::files::{self, COMPONENT, File, Files};
use crate::identity::BlobDigest;
use crate::limits::{
    MAX_ENVELOPE_BYTES, MAX_FILES, MAX_INDEX_BYTES, MAX_OCI_DOCUMENT_BYTES, MAX_PACKAGE_BYTES,
};
use crate::oci::{self, Descriptor, EMPTY, ImageManifest, Index, OCI_LAYOUT_TEXT};

pub use crate::oci::{
    EMPTY_TYPE, ENVELOPE_TYPE, FILES_TYPE, INDEX_TYPE, MANIFEST_TYPE, TITLE, WASM_CONFIG_TYPE,
};

/// Blobs by digest, and `index.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Every blob. [`Layout::from_package`] checked that each has the digest that it is called by; so must whoever makes one.
    pub blobs: BTreeMap<BlobDigest, Vec<u8>>,
    /// The bytes of `index.json`.
    pub index: Vec<u8>,
}

/// The manifests of a plugin's layout, by digest; each is one of the blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifests {
    /// The image: what a tag in a registry names.
    pub image: BlobDigest,
    /// The referrer with the files beside the component (artifact type [`FILES_TYPE`]).
    pub files: BlobDigest,
    /// The referrer with the envelope (artifact type [`ENVELOPE_TYPE`]); none where nobody has signed.
    pub signature: Option<BlobDigest>,
}

impl Layout {
    /// Takes a package apart. The archive's form and every blob's digest are checked, the documents are not looked at.
    ///
    /// # Errors
    /// What is wrong with the archive, or the blob that was altered.
    pub fn from_package(package: &[u8]) -> Result<Self, PluginError> {
        let found = Blobs::read(package)?;
        let blobs = found.blobs.iter().map(|(digest, bytes)| (*digest, bytes.to_vec())).collect();
        Ok(Layout { blobs, index: found.index.to_vec() })
    }

    /// The layout of these manifests: `blobs` holds them and all that they name. This is how a package is made again of what a
    /// registry holds.
    ///
    /// # Errors
    /// Where a manifest is not among the blobs.
    pub fn assemble(blobs: BTreeMap<BlobDigest, Vec<u8>>, manifests: Manifests) -> Result<Self, PluginError> {
        let blob = |digest: BlobDigest| {
            let missing = PluginError::BlobMissing { digest, by: "the list of manifests" };
            blobs.get(&digest).map(Vec::as_slice).ok_or(missing)
        };
        let signature = manifests.signature.map(blob).transpose()?;
        let index = oci::index(blob(manifests.image)?, blob(manifests.files)?, signature)?;
        Ok(Layout { blobs, index })
    }

    /// The package: one layout, one sequence of bytes. Sizes are not checked here; a reader does.
    pub fn to_package(&self) -> Vec<u8> {
        let mut entries: Vec<archive::File<'_>> =
            vec![(OCI_LAYOUT.to_owned(), OCI_LAYOUT_TEXT), (INDEX.to_owned(), &self.index)];
        entries.extend(
            self.blobs.iter().map(|(digest, bytes)| (format!("{BLOBS}{}", digest.hex()), &bytes[..])),
        );
        archive::write(&entries)
    }

    /// Which blobs are the manifests, by what `index.json` says.
    ///
    /// # Errors
    /// Where it is no index of a plugin.
    pub fn manifests(&self) -> Result<Manifests, PluginError> {
        manifests(&self.index)
    }

    /// Every blob that `manifest` names: its configuration and layers, not its subject.
    ///
    /// # Errors
    /// Where the blob is not there or no manifest.
    pub fn named_by(&self, manifest: &BlobDigest) -> Result<BTreeSet<BlobDigest>, PluginError> {
        let missing = PluginError::BlobMissing { digest: *manifest, by: "the caller" };
        let bytes = self.blobs.get(manifest).ok_or(missing)?;
        let manifest: ImageManifest = document("manifest", bytes, MAX_OCI_DOCUMENT_BYTES)?;
        Ok(manifest.layers.iter().chain([&manifest.config]).map(|named| named.digest).collect())
    }
}

/// The blobs of a package, borrowed.
struct Blobs<'a> {
    index: &'a [u8],
    blobs: BTreeMap<BlobDigest, &'a [u8]>,
}

impl<'a> Blobs<'a> {
    fn read(package: &'a [u8]) -> Result<Self, PluginError> {
        let mut entries = archive::read(package)?.into_iter().peekable();
        let mut take = |wanted: &'static str| {
            let (_, bytes) = entries
                .next_if(|(name, _)| name == wanted)
                .ok_or(PluginError::MissingFile { name: wanted })?;
            Ok::<_, PluginError>(bytes)
        };
        if take(OCI_LAYOUT)? != OCI_LAYOUT_TEXT {
            let reason = "it is not the one line of version 1.0.0".to_owned();
            return Err(PluginError::Oci { what: OCI_LAYOUT, reason });
        }
        let index = take(INDEX)?;
        let mut blobs = BTreeMap::new();
        for (name, bytes) in entries {
            let found = BlobDigest::of(bytes);
            let digits = name.strip_prefix(BLOBS).unwrap_or(&name);
            match BlobDigest::parse(&format!("sha256:{digits}")) {
                Some(digest) if digest == found => drop(blobs.insert(digest, bytes)),
                Some(name) => return Err(PluginError::BlobAltered { name, found }),
                None => return Err(PluginError::UnexpectedEntry { name }),
            }
        }
        Ok(Blobs { index, blobs })
    }

    /// The blob of a descriptor; `used` collects what was named.
    fn get(
        &self,
        named: &Descriptor,
        by: &'static str,
        used: &mut BTreeSet<BlobDigest>,
    ) -> Result<&'a [u8], PluginError> {
        let digest = named.digest;
        let bytes = *self.blobs.get(&digest).ok_or(PluginError::BlobMissing { digest, by })?;
        if bytes.len() as u64 != named.size {
            let (said, found) = (named.size, bytes.len() as u64);
            return Err(PluginError::BlobSize { digest, by, said, found });
        }
        used.insert(digest);
        Ok(bytes)
    }
}

/// A package's parts, found by the word of documents that nobody has verified.
pub(crate) struct Parts<'a> {
    pub files: Files<'a>,
    pub envelope: Option<&'a [u8]>,
    pub documents: RawDocuments<'a>,
}

/// The documents as they were found.
pub(crate) struct RawDocuments<'a> {
    pub config: &'a [u8],
    pub image: &'a [u8],
    pub files: &'a [u8],
    pub signature: Option<&'a [u8]>,
    pub index: &'a [u8],
}

const IMAGE: &str = "image manifest";
const FILES: &str = "manifest of files";
const SIGNATURE: &str = "signature's manifest";

impl<'a> Parts<'a> {
    /// Finds the files and the envelope. Every blob must be named, and every named blob be there with the stated size.
    pub fn read(package: &'a [u8]) -> Result<Self, PluginError> {
        let blobs = Blobs::read(package)?;
        let mut used = BTreeSet::new();
        let [image, files, signature] = listed(blobs.index)?;
        let image_bytes = blobs.get(&image.ok_or_else(|| lacks("an image"))?, INDEX, &mut used)?;
        let files_bytes = blobs.get(&files.ok_or_else(|| lacks(FILES_TYPE))?, INDEX, &mut used)?;
        let signature_bytes = signature.map(|named| blobs.get(&named, INDEX, &mut used)).transpose()?;

        let image: ImageManifest = document(IMAGE, image_bytes, MAX_OCI_DOCUMENT_BYTES)?;
        let config = blobs.get(&image.config, IMAGE, &mut used)?;
        if config.len() > MAX_OCI_DOCUMENT_BYTES {
            let (name, bytes) = ("configuration".to_owned(), config.len() as u64);
            return Err(PluginError::FileTooLarge { name, bytes, limit: MAX_OCI_DOCUMENT_BYTES });
        }
        let [component] = &image.layers[..] else {
            let reason = format!("it has {} layers, one is wanted: the component", image.layers.len());
            return Err(PluginError::Oci { what: IMAGE, reason });
        };
        let mut found = Files::new();
        let bytes = blobs.get(component, IMAGE, &mut used)?;
        files::add(&mut found, COMPONENT.to_owned(), File { bytes, digest: component.digest })?;

        let list: ImageManifest = document(FILES, files_bytes, MAX_OCI_DOCUMENT_BYTES)?;
        empty_config(&blobs, &list, FILES, &mut used)?;
        if list.layers.len() >= MAX_FILES {
            return Err(PluginError::TooManyFiles { limit: MAX_FILES });
        }
        for layer in &list.layers {
            let name = layer.annotations.get(TITLE).ok_or_else(|| PluginError::Oci {
                what: FILES,
                reason: format!("the layer {} has no {TITLE}", layer.digest),
            })?;
            let bytes = blobs.get(layer, FILES, &mut used)?;
            files::add(&mut found, name.clone(), File { bytes, digest: layer.digest })?;
        }

        let envelope = match signature_bytes {
            None => None,
            Some(bytes) => {
                let manifest: ImageManifest = document(SIGNATURE, bytes, MAX_OCI_DOCUMENT_BYTES)?;
                empty_config(&blobs, &manifest, SIGNATURE, &mut used)?;
                let [envelope] = &manifest.layers[..] else {
                    let reason =
                        format!("it has {} layers, one is wanted: the envelope", manifest.layers.len());
                    return Err(PluginError::Oci { what: SIGNATURE, reason });
                };
                let envelope = blobs.get(envelope, SIGNATURE, &mut used)?;
                if envelope.len() > MAX_ENVELOPE_BYTES {
                    let (name, bytes) = ("envelope".to_owned(), envelope.len() as u64);
                    return Err(PluginError::FileTooLarge { name, bytes, limit: MAX_ENVELOPE_BYTES });
                }
                Some(envelope)
            }
        };
        if let Some(digest) = blobs.blobs.keys().find(|digest| !used.contains(digest)) {
            return Err(PluginError::BlobStray { digest: *digest });
        }
        let documents = RawDocuments {
            config,
            image: image_bytes,
            files: files_bytes,
            signature: signature_bytes,
            index: blobs.index,
        };
        Ok(Parts { files: found, envelope, documents })
    }
}

/// Puts a package together of its files, documents and envelope.
pub(crate) fn write(
    files: &Files<'_>,
    documents: &oci::Documents,
    envelope: Option<&[u8]>,
) -> Result<Vec<u8>, PluginError> {
    let own = [&documents.config[..], &documents.image, &documents.files, EMPTY];
    let contents = files.values().map(|file| file.bytes);
    let blobs = own
        .into_iter()
        .chain(documents.signature.as_deref())
        .chain(envelope)
        .chain(contents)
        .map(|bytes| (BlobDigest::of(bytes), bytes.to_vec()))
        .collect();
    let package = Layout { blobs, index: documents.index.clone() }.to_package();
    if package.len() > MAX_PACKAGE_BYTES {
        return Err(PluginError::PackageTooLarge { bytes: package.len(), limit: MAX_PACKAGE_BYTES });
    }
    Ok(package)
}

fn manifests(index: &[u8]) -> Result<Manifests, PluginError> {
    let [image, files, signature] = listed(index)?;
    Ok(Manifests {
        image: image.ok_or_else(|| lacks("an image"))?.digest,
        files: files.ok_or_else(|| lacks(FILES_TYPE))?.digest,
        signature: signature.map(|named| named.digest),
    })
}

/// The descriptors of image, files and signature in `index.json`, each there once at most.
fn listed(index: &[u8]) -> Result<[Option<Descriptor>; 3], PluginError> {
    let index: Index = document(INDEX, index, MAX_INDEX_BYTES)?;
    let mut listed = [None, None, None];
    for named in index.manifests {
        let place = match named.artifact_type.as_deref() {
            None => 0,
            Some(FILES_TYPE) => 1,
            Some(ENVELOPE_TYPE) => 2,
            Some(other) => {
                let reason = format!("it lists a manifest of type {other:?}, which is no part of a plugin");
                return Err(PluginError::Oci { what: INDEX, reason });
            }
        };
        if listed[place].replace(named).is_some() {
            let reason = "it lists two manifests of one type".to_owned();
            return Err(PluginError::Oci { what: INDEX, reason });
        }
    }
    Ok(listed)
}

fn lacks(what: &str) -> PluginError {
    PluginError::Oci { what: INDEX, reason: format!("it does not list {what}") }
}

fn empty_config(
    blobs: &Blobs<'_>,
    manifest: &ImageManifest,
    by: &'static str,
    used: &mut BTreeSet<BlobDigest>,
) -> Result<(), PluginError> {
    if blobs.get(&manifest.config, by, used)? != EMPTY {
        return Err(PluginError::Oci { what: by, reason: "its configuration is not empty".to_owned() });
    }
    Ok(())
}

/// Reads a document that nobody has verified: no larger than `limit`, every field known.
fn document<T: DeserializeOwned>(what: &'static str, bytes: &[u8], limit: usize) -> Result<T, PluginError> {
    if bytes.len() > limit {
        return Err(PluginError::FileTooLarge { name: what.to_owned(), bytes: bytes.len() as u64, limit });
    }
    serde_json::from_slice(bytes).map_err(|error| PluginError::Oci { what, reason: one_line(error) })
}
