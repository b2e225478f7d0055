//! A package between its two forms: the manifests and blobs that travel, and the one sequence of bytes that they make.

use std::collections::{BTreeMap, BTreeSet};

use kvasir_plugin::layout::{Layout, Manifests};
use kvasir_plugin::{BlobDigest, MAX_ENVELOPE_BYTES, MAX_PACKAGE_BYTES, Unverified};

use crate::document::{Descriptor, ENVELOPE_TYPE, FILES_TYPE, MANIFEST, Manifest};
use crate::error::RegistryError;
use crate::limits::{MAX_BLOB_BYTES, MAX_BLOBS, MAX_DOCUMENT_BYTES, MAX_REFERRERS};

/// Where documents and blobs come from: a registry or a folder.
pub(crate) trait Source {
    /// The place, for error messages.
    fn place(&self) -> String;
    /// The manifest of a digest: at most [`MAX_DOCUMENT_BYTES`], and its digest checked.
    fn manifest(&mut self, digest: &BlobDigest) -> Result<Vec<u8>, RegistryError>;
    /// The blob of a descriptor: size and digest checked.
    fn blob(&mut self, named: &Descriptor) -> Result<Vec<u8>, RegistryError>;
}

/// What a registry or folder holds of one plugin: its image, and the referrers of ours, of which there may be several where
/// a plugin was signed or packed anew.
pub(crate) struct Found {
    pub image: Vec<u8>,
    pub referrers: Vec<Descriptor>,
}

/// Fetches what `found` names and makes the package. Of several signatures the one that fits the files and begins last is
/// taken; whether it holds is for `verify` to say.
pub(crate) fn package(source: &mut dyn Source, found: &Found) -> Result<Vec<u8>, RegistryError> {
    let place = source.place();
    let mut fetch = Fetch { source, place: place.clone(), blobs: BTreeMap::new(), bytes: 0 };
    let image = fetch.take(found.image.clone())?;
    fetch.all(&found.image)?;
    let (mut files, mut signatures) = (BTreeSet::new(), BTreeSet::new());
    for named in &found.referrers {
        let list = match named.artifact_type.as_deref() {
            Some(FILES_TYPE) => &mut files,
            Some(ENVELOPE_TYPE) => &mut signatures,
            // Others may refer to an image as they like.
            _ => continue,
        };
        list.insert(named.digest);
        if files.len() + signatures.len() > MAX_REFERRERS {
            let what = "manifests of files and signatures for one image";
            return Err(RegistryError::TooMany { place, what, limit: MAX_REFERRERS });
        }
    }
    // Others may use the same types, as for a statement on where an image came from: what has not the form of ours is passed over.
    let mut parts = BTreeMap::new();
    for digest in files.iter().chain(&signatures) {
        let bytes = fetch.source.manifest(digest)?;
        let Ok(manifest) = Manifest::parse(&bytes, &place) else { continue };
        let refers = manifest.subject.as_ref().is_some_and(|subject| subject.digest == image);
        let fits = match &manifest.layers[..] {
            [envelope] if signatures.contains(digest) => envelope.size <= MAX_ENVELOPE_BYTES as u64,
            _ => files.contains(digest),
        };
        if refers && fits {
            fetch.take(bytes.clone())?;
            fetch.all(&bytes)?;
            parts.insert(*digest, bytes);
        }
    }
    let present = |set: BTreeSet<BlobDigest>| -> Vec<BlobDigest> {
        set.into_iter().filter(|digest| parts.contains_key(digest)).collect()
    };
    let (files, signatures) = (present(files), present(signatures));
    if files.is_empty() {
        let reason = format!("nothing of type {FILES_TYPE} refers to the image {image}");
        return Err(RegistryError::Layout { place, reason });
    }
    newest(&fetch.blobs, image, &files, &signatures).ok_or_else(|| RegistryError::Layout {
        place,
        reason: "no signature fits the files that are there".to_owned(),
    })
}

/// The package of one manifest of files and one signature, or of none where there is none.
fn assemble(blobs: &BTreeMap<BlobDigest, Vec<u8>>, manifests: Manifests) -> Option<Vec<u8>> {
    // Only what these three name: a package holds nothing else.
    let mut wanted = BTreeSet::from([manifests.image, manifests.files]);
    wanted.extend(manifests.signature);
    let documents = Layout { blobs: blobs.clone(), index: Vec::new() };
    for digest in wanted.clone() {
        wanted.extend(documents.named_by(&digest).ok()?);
    }
    let blobs = documents.blobs.into_iter().filter(|(digest, _)| wanted.contains(digest)).collect();
    Some(Layout::assemble(blobs, manifests).ok()?.to_package())
}

/// Of all pairs that fit: the one whose signature begins last, then the one of the highest digest.
fn newest(
    blobs: &BTreeMap<BlobDigest, Vec<u8>>,
    image: BlobDigest,
    files: &[BlobDigest],
    signatures: &[BlobDigest],
) -> Option<Vec<u8>> {
    if let ([files], [] | [_]) = (files, signatures) {
        let manifests = Manifests { image, files: *files, signature: signatures.first().copied() };
        return assemble(blobs, manifests);
    }
    if signatures.is_empty() {
        return None;
    }
    let mut best = None;
    for files in files {
        for signature in signatures {
            let manifests = Manifests { image, files: *files, signature: Some(*signature) };
            let Some(package) = assemble(blobs, manifests) else { continue };
            let claims = Unverified::read(&package).ok().and_then(|looked_at| looked_at.claims);
            let Some(claims) = claims.filter(|claims| claims.misfit.is_none()) else { continue };
            let rank = (claims.validity.not_before, *signature, *files);
            if best.as_ref().is_none_or(|(best, _)| *best < rank) {
                best = Some((rank, package));
            }
        }
    }
    best.map(|(_, package)| package)
}

struct Fetch<'a> {
    source: &'a mut dyn Source,
    place: String,
    blobs: BTreeMap<BlobDigest, Vec<u8>>,
    bytes: usize,
}

impl Fetch<'_> {
    /// Every blob that a manifest names, each once. What they say of their sizes is added up before the first is fetched.
    fn all(&mut self, manifest: &[u8]) -> Result<(), RegistryError> {
        let manifest = Manifest::parse(manifest, &self.place)?;
        let mut total = self.bytes as u64;
        for named in manifest.blobs() {
            if named.size > MAX_BLOB_BYTES {
                return Err(self.too_large(format!("the blob {}", named.digest), MAX_BLOB_BYTES));
            }
            total += named.size;
        }
        if total > MAX_PACKAGE_BYTES as u64 {
            return Err(self.too_large("a package".to_owned(), MAX_PACKAGE_BYTES as u64));
        }
        for named in manifest.blobs() {
            if !self.blobs.contains_key(&named.digest) {
                let bytes = self.source.blob(named)?;
                self.take(bytes)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: Vec<u8>) -> Result<BlobDigest, RegistryError> {
        if self.blobs.len() == MAX_BLOBS {
            let place = self.place.clone();
            return Err(RegistryError::TooMany { place, what: "blobs", limit: MAX_BLOBS });
        }
        self.bytes += bytes.len();
        let digest = BlobDigest::of(&bytes);
        self.blobs.insert(digest, bytes);
        Ok(digest)
    }

    fn too_large(&self, what: String, limit: u64) -> RegistryError {
        RegistryError::TooLarge { place: self.place.clone(), what, limit }
    }
}

/// A package taken apart for travel.
pub(crate) struct Bundle {
    pub layout: Layout,
    pub image: BlobDigest,
    /// The manifests that refer to the image, files first.
    pub referrers: Vec<(BlobDigest, Descriptor)>,
}

impl Bundle {
    /// Takes `package` apart; that it is one, whole and within limits, is checked, its signature is not.
    pub fn of(package: &[u8]) -> Result<Self, RegistryError> {
        Unverified::read(package)?;
        let layout = Layout::from_package(package)?;
        let Manifests { image, files, signature } = layout.manifests()?;
        let mut referrers = Vec::new();
        for (kind, digest) in [(FILES_TYPE, Some(files)), (ENVELOPE_TYPE, signature)] {
            let Some(digest) = digest else { continue };
            let size = layout.blobs.get(&digest).map_or(0, |bytes| bytes.len() as u64);
            let named = Descriptor {
                media_type: MANIFEST.to_owned(),
                digest,
                size,
                artifact_type: Some(kind.to_owned()),
                annotations: serde_json::Map::new(),
            };
            referrers.push((digest, named));
        }
        Ok(Bundle { layout, image, referrers })
    }

    /// The manifests: referrers, then the image.
    pub fn manifests(&self) -> impl Iterator<Item = BlobDigest> {
        self.referrers.iter().map(|(digest, _)| *digest).chain([self.image])
    }

    /// The bytes of a blob.
    pub fn blob(&self, digest: &BlobDigest) -> &[u8] {
        self.layout.blobs.get(digest).map_or(&[], Vec::as_slice)
    }

    /// Blobs that are no manifests.
    pub fn files(&self) -> Vec<BlobDigest> {
        let manifests: BTreeSet<BlobDigest> = self.manifests().collect();
        self.layout.blobs.keys().filter(|digest| !manifests.contains(digest)).copied().collect()
    }
}

/// Refuses a document that is too long for one.
pub(crate) fn within_document(bytes: u64, place: &str, what: &str) -> Result<(), RegistryError> {
    if bytes > MAX_DOCUMENT_BYTES {
        let (place, what) = (place.to_owned(), what.to_owned());
        return Err(RegistryError::TooLarge { place, what, limit: MAX_DOCUMENT_BYTES });
    }
    Ok(())
}
