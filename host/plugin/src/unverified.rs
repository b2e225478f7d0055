//! Looking into a package that nobody has verified: for `inspect` and `unpack`, and for tools that show what somebody sent. Nothing
//! here is a reason to use what is in it; only [`crate::verify`] gives that.

use crate::envelope;
use crate::error::PluginError;
use crate::files::MANIFEST;
use crate::identity::{BlobDigest, KeyId, PluginDigest, UnixSeconds, sha256};
use crate::layout::Parts;
use crate::manifest::{Limits, Manifest};
use crate::pack::PackageContents;
use crate::package::{Validity, check_contents};
use crate::statement::Statement;
use crate::version::Version;

/// What a package holds and claims, none of it verified.
#[derive(Clone, Debug)]
pub struct Unverified {
    /// Every file.
    pub files: Vec<FileFacts>,
    /// The digest by which a registry knows the image.
    pub image: BlobDigest,
    /// `plugin.toml`.
    pub manifest: Manifest,
    /// What the signed statement claims, and whose signatures it carries; none where nobody has signed.
    pub claims: Option<Claims>,
    /// The files' bytes.
    pub contents: PackageContents,
}

/// One file of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Its name in the package.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The SHA-256 of its bytes, computed here.
    pub sha256: BlobDigest,
}

/// What the statement of a package claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The plugin's digest.
    pub digest: PluginDigest,
    /// Key ids of the signatures that are there; whether they hold takes the keys.
    pub signed_by: Vec<KeyId>,
    /// Name.
    pub name: String,
    /// Version.
    pub version: Version,
    /// Kernel revision.
    pub kernel_revision: u64,
    /// When it may be loaded.
    pub validity: Validity,
    /// The oldest host that may run it.
    pub min_host: Version,
    /// The limits asked for.
    pub limits: Limits,
    /// Where the statement does not fit the package's files: why.
    pub misfit: Option<PluginError>,
}

impl Unverified {
    /// Takes `package` apart.
    ///
    /// # Errors
    /// Where it has not the form of a package, or its manifest cannot be read.
    pub fn read(package: &[u8]) -> Result<Self, PluginError> {
        let parts = Parts::read(package)?;
        let files = parts.files.iter().map(|(name, file)| FileFacts {
            name: name.clone(),
            bytes: file.bytes.len() as u64,
            sha256: file.digest,
        });
        let manifest = parts.files.get(MANIFEST).ok_or(PluginError::MissingFile { name: MANIFEST })?;
        Ok(Unverified {
            files: files.collect(),
            image: BlobDigest::of(parts.documents.image),
            manifest: Manifest::parse(manifest.bytes)?,
            claims: parts.envelope.map(|envelope| Claims::read(envelope, &parts)).transpose()?,
            contents: PackageContents::of(&parts.files),
        })
    }
}

impl Claims {
    fn read(sealed: &[u8], parts: &Parts<'_>) -> Result<Self, PluginError> {
        let (payload, signed_by) = envelope::unchecked(sealed)?;
        let statement = Statement::parse(&payload)?;
        let misfit = check_contents(parts, &statement).err();
        let claims = statement.predicate;
        Ok(Claims {
            digest: PluginDigest(sha256(&payload)),
            signed_by,
            name: claims.name,
            version: claims.version,
            kernel_revision: claims.kernel_revision,
            validity: Validity {
                not_before: UnixSeconds(claims.not_before),
                expires: UnixSeconds(claims.expires),
            },
            min_host: claims.min_host,
            limits: claims.limits,
            misfit,
        })
    }
}
