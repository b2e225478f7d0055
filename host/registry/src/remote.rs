//! Push to and pull from a registry.

use kvasir_plugin::BlobDigest;
use serde_json::{Value, json};

use crate::bundle::{Bundle, Found, Source};
use crate::client::Options;
use crate::document::{Descriptor, INDEX, MANIFEST};
use crate::error::RegistryError;
use crate::reference::{Reference, Version};
use crate::repository::{Repository, referrers_tag};

/// Uploads what the repository lacks: blobs, then the referrers, then the image, and its tag last, so that whoever finds the tag
/// finds everything.
pub(crate) fn push(reference: &Reference, options: &Options, bundle: &Bundle) -> Result<(), RegistryError> {
    if let Version::Digest(digest) = reference.version
        && digest != bundle.image
    {
        return Err(RegistryError::Layout {
            place: "the package".to_owned(),
            reason: format!("its image is {}, not {digest}; name a tag", bundle.image),
        });
    }
    let mut repository = Repository::new(reference, options, "pull,push")?;
    for digest in bundle.files() {
        if !repository.has_blob(&digest)? {
            repository.put_blob(&digest, bundle.blob(&digest))?;
        }
    }
    // The image first by its digest, since some registries refuse a referrer of what they do not have.
    let image = bundle.blob(&bundle.image);
    repository.put_manifest(&bundle.image.to_string(), MANIFEST, image)?;
    let mut listed = true;
    for (digest, _) in &bundle.referrers {
        listed &= repository.put_manifest(&digest.to_string(), MANIFEST, bundle.blob(digest))?;
    }
    if !listed {
        list_by_tag(&mut repository, bundle)?;
    }
    if let Version::Tag(tag) = &reference.version {
        repository.put_manifest(tag, MANIFEST, image)?;
    }
    Ok(())
}

/// Adds the referrers to the list that stands under a tag where a registry keeps none itself.
fn list_by_tag(repository: &mut Repository, bundle: &Bundle) -> Result<(), RegistryError> {
    let mut listed = repository.referrers_by_tag(&bundle.image)?;
    let known: Vec<BlobDigest> = listed.iter().map(|entry| entry.digest).collect();
    let new = bundle.referrers.iter().filter(|(digest, _)| !known.contains(digest));
    listed.extend(new.map(|(_, named)| named.clone()));
    let index: Value = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed});
    repository.put_manifest(&referrers_tag(&bundle.image), INDEX, index.to_string().as_bytes())?;
    Ok(())
}

/// A repository as a source of blobs, and what it holds under the reference's tag or digest.
pub(crate) fn open(reference: &Reference, options: &Options) -> Result<(Remote, Found), RegistryError> {
    let mut repository = Repository::new(reference, options, "pull")?;
    let image = repository.manifest(&reference.version.to_string())?;
    let referrers = repository.referrers(&BlobDigest::of(&image))?;
    Ok((Remote { repository }, Found { image, referrers }))
}

/// A repository that is read.
pub(crate) struct Remote {
    repository: Repository,
}

impl Source for Remote {
    fn place(&self) -> String {
        self.repository.host().to_owned()
    }

    fn manifest(&mut self, digest: &BlobDigest) -> Result<Vec<u8>, RegistryError> {
        self.repository.manifest(&digest.to_string())
    }

    fn blob(&mut self, named: &Descriptor) -> Result<Vec<u8>, RegistryError> {
        self.repository.blob(named)
    }
}
