//! A package as a whole: [`verify`] and [`pack`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ed25519_dalek::SigningKey;

use crate::archive::{self, COMPONENT, ENVELOPE, MANIFEST, SHADERS, VECTORS};
use crate::envelope;
use crate::error::PluginError;
use crate::identity::{KeyId, PluginDigest, UnixSeconds, sha256};
use crate::limits::{MAX_FILES, MAX_PACKAGE_BYTES};
use crate::manifest::Manifest;
use crate::shader::Shader;
use crate::statement::{Predicate, SignedFile, Statement};
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
    validity: Validity,
    component: Vec<u8>,
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

/// What goes into a package.
#[derive(Clone, Debug, Default)]
pub struct PackageContents {
    /// The bytes of `plugin.toml`.
    pub manifest: Vec<u8>,
    /// The WebAssembly component.
    pub component: Vec<u8>,
    /// WGSL sources by plain name; what the manifest's table `[shader]` names, or nothing.
    pub shaders: BTreeMap<String, Vec<u8>>,
    /// Golden vector files by plain name (letters, digits, `.`, `-`, `_`).
    pub vectors: BTreeMap<String, Vec<u8>>,
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

    /// When it may be loaded.
    pub fn validity(&self) -> Validity {
        self.contents.validity
    }

    /// The WebAssembly component. Its digest was checked; nothing else about it is known.
    pub fn component(&self) -> &[u8] {
        &self.contents.component
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

/// Checks `package` at the time `now` and returns its contents. The order is: sizes and archive form, signature, then the
/// statement, validity, host version, every file's size and digest, and last the manifest and what it says of a shader; nothing is interpreted before
/// its bytes are known to be signed, the envelope itself and the archive's headers excepted.
pub fn verify(package: &[u8], trust: &TrustStore, now: UnixSeconds) -> Result<VerifiedPlugin, PluginError> {
    trust.check_time(now)?;
    let mut files: BTreeMap<String, &[u8]> = archive::read(package)?.into_iter().collect();
    let sealed = files.remove(ENVELOPE).ok_or(PluginError::MissingFile { name: ENVELOPE })?;
    let signed = envelope::open(sealed, trust)?;
    let statement = Statement::parse(&signed.payload)?;
    let digest = PluginDigest(sha256(&signed.payload));
    let publishers = trust.authorise(&statement.predicate.name, digest, &signed.signers)?;
    let validity = check_claims(&statement.predicate, now)?;
    check_files(&files, &statement.files()?)?;
    let mut take = |name: &'static str| files.remove(name).ok_or(PluginError::MissingFile { name });
    let manifest = Manifest::parse(take(MANIFEST)?)?;
    let component = take(COMPONENT)?.to_vec();
    check_agreement(&manifest, &statement.predicate)?;
    let (mut shaders, mut vectors) = (BTreeMap::new(), BTreeMap::new());
    for (name, bytes) in files {
        if let Some(plain) = name.strip_prefix(SHADERS) {
            shaders.insert(plain.to_owned(), bytes.to_vec());
        } else {
            vectors.insert(name.strip_prefix(VECTORS).unwrap_or(&name).to_owned(), bytes.to_vec());
        }
    }
    let shader = Shader::assemble(manifest.shader.as_ref(), &shaders)?;
    let publisher = *publishers.first().ok_or(PluginError::NotSigned)?;
    let contents = Verified { manifest, digest, publisher, publishers, validity, component, shader, vectors };
    Ok(VerifiedPlugin { contents: Arc::new(contents) })
}

/// Makes a package of `contents`, signed by `key`. The same arguments give the same bytes. The result is not verified
/// against any host version or clock: a publisher may sign for the future.
pub fn pack(
    contents: &PackageContents,
    validity: Validity,
    key: &SigningKey,
) -> Result<Vec<u8>, PluginError> {
    if validity.expires <= validity.not_before {
        let Validity { not_before, expires } = validity;
        return Err(PluginError::EmptyValidity { not_before, expires });
    }
    let manifest = Manifest::parse(&contents.manifest)?;
    let mut files = vec![
        (MANIFEST.to_owned(), contents.manifest.as_slice()),
        (COMPONENT.to_owned(), contents.component.as_slice()),
    ];
    files.extend(contents.shaders.iter().map(|(name, bytes)| (format!("{SHADERS}{name}"), bytes.as_slice())));
    files.extend(contents.vectors.iter().map(|(name, bytes)| (format!("{VECTORS}{name}"), bytes.as_slice())));
    if files.len() >= MAX_FILES {
        return Err(PluginError::TooManyFiles { limit: MAX_FILES });
    }
    let mut signed = BTreeMap::new();
    for (name, bytes) in &files {
        check_size(name, bytes)?;
        signed.insert(name.clone(), SignedFile { sha256: sha256(bytes), bytes: bytes.len() as u64 });
    }
    Shader::assemble(manifest.shader.as_ref(), &contents.shaders)?;
    let payload = Statement::new(&manifest, validity.not_before, validity.expires, &signed).encode()?;
    let sealed = envelope::seal(&payload, key)?;
    check_size(ENVELOPE, &sealed)?;
    files.insert(0, (ENVELOPE.to_owned(), &sealed));
    let package = archive::write(&files);
    if package.len() > MAX_PACKAGE_BYTES {
        return Err(PluginError::PackageTooLarge { bytes: package.len(), limit: MAX_PACKAGE_BYTES });
    }
    Ok(package)
}

fn check_size(name: &str, bytes: &[u8]) -> Result<(), PluginError> {
    let limit = archive::size_limit(name)?;
    if bytes.len() > limit {
        return Err(PluginError::FileTooLarge { name: name.to_owned(), bytes: bytes.len() as u64, limit });
    }
    Ok(())
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

fn check_files(
    files: &BTreeMap<String, &[u8]>,
    signed: &BTreeMap<&str, SignedFile>,
) -> Result<(), PluginError> {
    for (name, bytes) in files {
        let file = signed.get(name.as_str()).ok_or_else(|| PluginError::Unsigned { name: name.clone() })?;
        if file.bytes != bytes.len() as u64 {
            let (signed, found) = (file.bytes, bytes.len() as u64);
            return Err(PluginError::SizeMismatch { name: name.clone(), signed, found });
        }
        let found = sha256(bytes);
        if found != file.sha256 {
            let (signed, found) = (hex::encode(file.sha256), hex::encode(found));
            return Err(PluginError::DigestMismatch { name: name.clone(), signed, found });
        }
    }
    match signed.keys().find(|name| !files.contains_key(**name)) {
        Some(name) => Err(PluginError::SignedButMissing { name: (*name).to_owned() }),
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
