//! A package as a whole: [`verify`], the one way to a [`VerifiedPlugin`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::envelope;
use crate::error::PluginError;
use crate::files::{COMPONENT, File, Files, MANIFEST, SBOM, SHADERS, VECTORS};
use crate::identity::{BlobDigest, KeyId, PluginDigest, UnixSeconds, sha256};
use crate::layout::{Parts, RawDocuments};
use crate::manifest::Manifest;
use crate::oci::Documents;
use crate::sbom;
use crate::shader::Shader;
use crate::statement::{IMAGE_MANIFEST, Predicate, SignedFile, Statement};
use crate::trust::TrustStore;
use crate::version::{HOST_VERSION, Version};

/// A plugin whose package was verified. Cheap to clone.
#[derive(Clone)]
pub struct VerifiedPlugin {
    contents: Arc<Verified>,
}

struct Verified {
    manifest: Manifest,
    digest: PluginDigest,
    publisher: KeyId,
    publishers: BTreeSet<KeyId>,
    threshold: u32,
    validity: Validity,
    component: Vec<u8>,
    sbom: Vec<u8>,
    shader: Option<Shader>,
    vectors: BTreeMap<String, Vec<u8>>,
}

/// When a package may be loaded: from `not_before` until just before `expires`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second at which it is valid.
    pub not_before: UnixSeconds,
    /// The first second at which it is no longer valid.
    pub expires: UnixSeconds,
}

impl VerifiedPlugin {
    /// The name in the manifest.
    pub fn name(&self) -> &str {
        &self.contents.manifest.name
    }

    /// The version in the manifest.
    pub fn version(&self) -> Version {
        self.contents.manifest.version
    }

    /// The digest that stands for the whole package in tickets, transcripts and receipts.
    pub fn digest(&self) -> PluginDigest {
        self.contents.digest
    }

    /// Every trusted key whose signature counts for it; one at least.
    pub fn publishers(&self) -> &BTreeSet<KeyId> {
        &self.contents.publishers
    }

    /// A trusted key that signed it: the lowest of [`VerifiedPlugin::publishers`].
    pub fn publisher(&self) -> KeyId {
        self.contents.publisher
    }

    /// How many trusted keys it took; not more than [`VerifiedPlugin::publishers`] has.
    pub(crate) fn threshold(&self) -> u32 {
        self.contents.threshold
    }

    /// When it may be loaded.
    pub fn validity(&self) -> Validity {
        self.contents.validity
    }

    /// The WebAssembly component. Its digest was checked; nothing else about it is known.
    pub fn component(&self) -> &[u8] {
        &self.contents.component
    }

    /// The bill of materials: CycloneDX in JSON.
    pub fn sbom(&self) -> &[u8] {
        &self.contents.sbom
    }

    /// The WGSL shader, if the plugin has one. Nothing of its text was looked at.
    pub fn shader(&self) -> Option<&Shader> {
        self.contents.shader.as_ref()
    }

    /// What `plugin.toml` says.
    pub fn manifest(&self) -> &Manifest {
        &self.contents.manifest
    }

    /// The golden vector files by name, without their folder.
    pub fn vectors(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.contents.vectors
    }
}

impl fmt::Debug for VerifiedPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifiedPlugin({} {} {})", self.name(), self.version(), self.digest())
    }
}

/// Checks `package` at the time `now` and returns its contents. The order is: the time of what is trusted; sizes, archive form and
/// blob digests; signatures; then the statement, who may publish that name, validity, host version, every file's size and digest;
/// and last the manifest, the bill of materials, the layout's own documents and what is said of a shader. Nothing is interpreted
/// before its bytes are known to be signed, but the archive's headers, the layout's documents and the envelope, which say where
/// the signature is: these are read by bounded and strict readers and nothing that they say is believed.
pub fn verify(package: &[u8], trust: &TrustStore, now: UnixSeconds) -> Result<VerifiedPlugin, PluginError> {
    trust.check_time(now)?;
    let parts = Parts::read(package)?;
    let signed = envelope::open(parts.envelope.ok_or(PluginError::NotSigned)?, trust)?;
    let statement = Statement::parse(&signed.payload)?;
    let digest = PluginDigest(sha256(&signed.payload));
    let (publishers, threshold) = trust.authorise(&statement.predicate.name, digest, &signed.signers)?;
    let publisher = *publishers.first().ok_or(PluginError::NotSigned)?;
    let validity = check_claims(&statement.predicate, now)?;
    let (manifest, shader) = check_contents(&parts, &statement)?;
    let bytes = |name: &str| parts.files.get(name).map(|file| file.bytes.to_vec()).unwrap_or_default();
    let contents = Verified {
        manifest,
        digest,
        publisher,
        publishers,
        threshold,
        validity,
        component: bytes(COMPONENT),
        sbom: bytes(SBOM),
        shader,
        vectors: in_folder(&parts.files, VECTORS),
    };
    Ok(VerifiedPlugin { contents: Arc::new(contents) })
}

/// What a statement says against what a package holds; also what somebody checks who signs a statement that others made.
pub(crate) fn check_contents(
    parts: &Parts<'_>,
    statement: &Statement,
) -> Result<(Manifest, Option<Shader>), PluginError> {
    check_files(parts, &statement.files()?)?;
    let file = |name: &'static str| parts.files.get(name).ok_or(PluginError::MissingFile { name });
    let manifest = Manifest::parse(file(MANIFEST)?.bytes)?;
    check_agreement(&manifest, &statement.predicate)?;
    sbom::check(file(SBOM)?.bytes)?;
    check_documents(&parts.documents, &Documents::of(&manifest, &parts.files, parts.envelope)?)?;
    let shader = Shader::assemble(manifest.shader.as_ref(), &in_folder(&parts.files, SHADERS))?;
    Ok((manifest, shader))
}

/// The files of a folder by plain name.
pub(crate) fn in_folder(files: &Files<'_>, folder: &str) -> BTreeMap<String, Vec<u8>> {
    let plain = |(name, file): (&String, &File<'_>)| {
        Some((name.strip_prefix(folder)?.to_owned(), file.bytes.to_vec()))
    };
    files.iter().filter_map(plain).collect()
}

fn check_claims(claims: &Predicate, now: UnixSeconds) -> Result<Validity, PluginError> {
    let validity =
        Validity { not_before: UnixSeconds(claims.not_before), expires: UnixSeconds(claims.expires) };
    if now < validity.not_before {
        return Err(PluginError::NotYetValid { not_before: validity.not_before, now });
    }
    if now >= validity.expires {
        return Err(PluginError::Expired { expires: validity.expires, now });
    }
    if claims.min_host > HOST_VERSION {
        return Err(PluginError::HostTooOld { min_host: claims.min_host, host: HOST_VERSION });
    }
    Ok(validity)
}

fn check_files(parts: &Parts<'_>, signed: &BTreeMap<&str, SignedFile>) -> Result<(), PluginError> {
    let image = parts.documents.image;
    let image = (IMAGE_MANIFEST, File { bytes: image, digest: BlobDigest::of(image) });
    for (name, found) in parts.files.iter().map(|(name, file)| (name.as_str(), *file)).chain([image]) {
        let name = || name.to_owned();
        let file = signed.get(name().as_str()).ok_or_else(|| PluginError::Unsigned { name: name() })?;
        if file.bytes != found.bytes.len() as u64 {
            let (signed, found) = (file.bytes, found.bytes.len() as u64);
            return Err(PluginError::SizeMismatch { name: name(), signed, found });
        }
        if found.digest.0 != file.sha256 {
            let (signed, found) = (hex::encode(file.sha256), found.digest.hex());
            return Err(PluginError::DigestMismatch { name: name(), signed, found });
        }
    }
    match signed.keys().find(|name| **name != IMAGE_MANIFEST && !parts.files.contains_key(**name)) {
        Some(name) => Err(PluginError::SignedButMissing { name: (*name).to_owned() }),
        None => Ok(()),
    }
}

/// The documents that were found must be the ones that follow from the signed files.
fn check_documents(found: &RawDocuments<'_>, expected: &Documents) -> Result<(), PluginError> {
    let pairs = [
        ("configuration", Some(found.config), Some(&expected.config)),
        ("image manifest", Some(found.image), Some(&expected.image)),
        ("manifest of files", Some(found.files), Some(&expected.files)),
        ("signature's manifest", found.signature, expected.signature.as_ref()),
        ("index.json", Some(found.index), Some(&expected.index)),
    ];
    match pairs.into_iter().find(|(_, found, expected)| *found != expected.map(Vec::as_slice)) {
        Some((what, ..)) => Err(PluginError::NotCanonical { what }),
        None => Ok(()),
    }
}

fn check_agreement(manifest: &Manifest, claims: &Predicate) -> Result<(), PluginError> {
    let pairs = [
        ("name", manifest.name.clone(), claims.name.clone()),
        ("version", manifest.version.to_string(), claims.version.to_string()),
        ("kernel_revision", manifest.kernel_revision.to_string(), claims.kernel_revision.to_string()),
        ("min_host", manifest.min_host.to_string(), claims.min_host.to_string()),
        ("limits", format!("{:?}", manifest.limits), format!("{:?}", claims.limits)),
    ];
    match pairs.into_iter().find(|(_, manifest, statement)| manifest != statement) {
        Some((field, manifest, statement)) => Err(PluginError::Disagreement { field, manifest, statement }),
        None => Ok(()),
    }
}
