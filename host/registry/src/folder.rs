//! A folder that holds an OCI image layout: `oci-layout`, `index.json`, `blobs/sha256/<digits>`, as every tool of that world reads
//! and writes it. It may hold several plugins by tag, and things of others, which are left alone.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvasir_plugin::BlobDigest;
use serde_json::{Value, json};

use crate::bundle::{Bundle, Found, Source, within_document};
use crate::document::{Descriptor, ENVELOPE_TYPE, FILES_TYPE, INDEX, Index, MANIFEST, Manifest, REF_NAME};
use crate::error::RegistryError;
use crate::limits::{MAX_DOCUMENT_BYTES, MAX_LISTED, MAX_REFERRERS};
use crate::plain_file;

const LAYOUT_FILE: &str = "oci-layout";
const INDEX_FILE: &str = "index.json";
const LAYOUT_TEXT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
/// What the names of files in the making begin with; no other command makes such.
const DRAFT: &str = ".kvasir-push-";
/// How often a folder that another push holds is tried anew.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// Writes `bundle` into the layout at `path`, which is made where there is none. A tag names the image; without one the layout is
/// to hold this plugin alone, and one that holds another is refused. Another push into it is waited for, no longer than `patience`.
pub(crate) fn push(
    path: &Path,
    tag: Option<&str>,
    bundle: &Bundle,
    patience: Duration,
) -> Result<(), RegistryError> {
    let place = path.display().to_string();
    let blobs = path.join("blobs/sha256");
    fs::create_dir_all(path).map_err(|source| unwritable(path, source))?;
    // From before the index is read until it is written, so that no push writes over what another has listed.
    let lock = locked(path, patience)?;
    if lock.is_exclusive {
        [path, blobs.as_path()].into_iter().for_each(sweep);
    }
    let mut index = match read(&path.join(INDEX_FILE), MAX_DOCUMENT_BYTES, &place) {
        Ok(bytes) => parse(&bytes, &place)?,
        Err(RegistryError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
            refuse_other_folder(path, &place)?;
            json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": []})
        }
        Err(error) => return Err(error),
    };
    let broken = |reason: &str| RegistryError::Layout { place: place.clone(), reason: reason.to_owned() };
    let listed = index.get_mut("manifests").and_then(Value::as_array_mut);
    let listed = listed.ok_or_else(|| broken("its index lists nothing"))?;
    let image = bundle.image.to_string();
    let is = |entry: &Value, digest: &str| entry["digest"] == digest;
    match tag {
        // The tag moves: whatever had it keeps its blobs and loses the name.
        Some(tag) => listed.retain(|entry| entry["annotations"][REF_NAME] != tag),
        None if listed.iter().any(|entry| entry["artifactType"].is_null() && !is(entry, &image)) => {
            return Err(broken(
                "it holds something else; name a tag to put this one beside it: oci:PATH:TAG",
            ));
        }
        None => {}
    }
    let mut entry = json!({"mediaType": MANIFEST, "digest": image, "size": bundle.blob(&bundle.image).len()});
    if let Some(tag) = tag {
        entry["annotations"] = json!({ REF_NAME: tag });
    }
    if tag.is_some() || !listed.iter().any(|entry| is(entry, &image)) {
        listed.push(entry);
    }
    for (digest, named) in &bundle.referrers {
        if !listed.iter().any(|entry| is(entry, &digest.to_string())) {
            listed.push(serde_json::to_value(named).map_err(|error| broken(&error.to_string()))?);
        }
    }
    let text = serde_json::to_vec(&index).map_err(|error| broken(&error.to_string()))?;
    within_document(text.len() as u64, &place, INDEX_FILE)?;

    // What makes the folder a layout first: where this push ends half way, the next one finds its own.
    write(&path.join(LAYOUT_FILE), LAYOUT_TEXT.as_bytes())?;
    fs::create_dir_all(&blobs).map_err(|source| unwritable(&blobs, source))?;
    for (digest, bytes) in &bundle.layout.blobs {
        write(&blobs.join(digest.hex()), bytes)?;
    }
    // The index last: what it lists is there.
    write(&path.join(INDEX_FILE), &text)
}

/// The layout at `path` as a source of blobs, and what it holds under `tag`, or its only plugin.
pub(crate) fn open(path: &Path, tag: Option<&str>) -> Result<(Folder, Found), RegistryError> {
    let place = path.display().to_string();
    let mut folder = Folder { path: path.to_owned() };
    let index = Index::parse(&read(&path.join(INDEX_FILE), MAX_DOCUMENT_BYTES, &place)?, &place)?;
    let named = |entry: &&Descriptor| match tag {
        Some(tag) => entry.annotations.get(REF_NAME).is_some_and(|name| name == tag),
        None => entry.artifact_type.is_none() && entry.media_type == MANIFEST,
    };
    let mut images: Vec<BlobDigest> =
        index.manifests.iter().filter(named).map(|entry| entry.digest).collect();
    images.sort();
    images.dedup();
    let reason = match (&images[..], tag) {
        ([image], _) => {
            let image = folder.manifest(image)?;
            let found = Found { referrers: referrers(&mut folder, &index, &image)?, image };
            return Ok((folder, found));
        }
        ([], Some(tag)) => format!("nothing in it has the tag {tag:?}"),
        ([], None) => "its index lists no image".to_owned(),
        _ => "it holds several images; name one by its tag: oci:PATH:TAG".to_owned(),
    };
    Err(RegistryError::Layout { place, reason })
}

/// What the index lists as a referrer of `image`. Other tools write no `artifactType` there, so the manifests are looked at.
fn referrers(folder: &mut Folder, index: &Index, image: &[u8]) -> Result<Vec<Descriptor>, RegistryError> {
    let digest = BlobDigest::of(image);
    let mut found = Vec::new();
    let ours = |entry: &Descriptor| match entry.artifact_type.as_deref() {
        None => false,
        Some(kind) => kind == FILES_TYPE || kind == ENVELOPE_TYPE,
    };
    if index.manifests.len() > MAX_LISTED {
        return Err(RegistryError::TooMany { place: folder.place(), what: "manifests", limit: MAX_LISTED });
    }
    for entry in &index.manifests {
        let others = entry.artifact_type.is_some() && !ours(entry);
        if entry.media_type != MANIFEST || entry.digest == digest || others {
            continue;
        }
        // What is not said to be ours may be missing or damaged without being missed.
        let bytes = match folder.manifest(&entry.digest) {
            Ok(bytes) => bytes,
            Err(_) if !ours(entry) => continue,
            Err(error) => return Err(error),
        };
        // Another's manifest may be of any form.
        let Ok(manifest) = Manifest::parse(&bytes, "") else { continue };
        if manifest.subject.as_ref().is_some_and(|subject| subject.digest == digest) {
            if found.len() == 4 * MAX_REFERRERS {
                let place = folder.place();
                return Err(RegistryError::TooMany {
                    place,
                    what: "referrers of one image",
                    limit: found.len(),
                });
            }
            let artifact_type = Some(manifest.kind().to_owned());
            found.push(Descriptor { artifact_type, ..entry.clone() });
        }
    }
    Ok(found)
}

/// A layout that is read.
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    fn file(&self, digest: &BlobDigest) -> PathBuf {
        self.path.join("blobs/sha256").join(digest.hex())
    }

    fn checked(&self, digest: &BlobDigest, bytes: Vec<u8>) -> Result<Vec<u8>, RegistryError> {
        let found = BlobDigest::of(&bytes);
        if found == *digest {
            return Ok(bytes);
        }
        let what = format!("the blob {digest}");
        Err(RegistryError::Digest { place: self.place(), what, found: found.hex() })
    }
}

impl Source for Folder {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn manifest(&mut self, digest: &BlobDigest) -> Result<Vec<u8>, RegistryError> {
        let bytes = read(&self.file(digest), MAX_DOCUMENT_BYTES, &self.place())?;
        self.checked(digest, bytes)
    }

    fn blob(&mut self, named: &Descriptor) -> Result<Vec<u8>, RegistryError> {
        let path = self.file(&named.digest);
        let unreadable = |source| RegistryError::File { action: "read", path: path.clone(), source };
        let mut bytes = Vec::new();
        plain_file::open(&path)
            .map_err(unreadable)?
            .take(named.size + 1)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        if bytes.len() as u64 != named.size {
            return Err(RegistryError::Size {
                place: self.place(),
                what: format!("the blob {}", named.digest),
                found: bytes.len() as u64,
                expected: named.size,
            });
        }
        self.checked(&named.digest, bytes)
    }
}

/// A folder that is there and holds files, but no layout, is not written into.
fn refuse_other_folder(path: &Path, place: &str) -> Result<(), RegistryError> {
    let mut entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(unwritable(path, source)),
    };
    if entries.next().is_some() && !path.join(LAYOUT_FILE).exists() {
        let reason = "the folder holds files and no layout; name a new or empty one".to_owned();
        return Err(RegistryError::Layout { place: place.to_owned(), reason });
    }
    Ok(())
}

fn parse(bytes: &[u8], place: &str) -> Result<Value, RegistryError> {
    serde_json::from_slice(bytes).map_err(|error| RegistryError::Layout {
        place: place.to_owned(),
        reason: format!("its index is no JSON: {error}"),
    })
}

fn read(path: &Path, limit: u64, place: &str) -> Result<Vec<u8>, RegistryError> {
    let unreadable = |source| RegistryError::File { action: "read", path: path.to_owned(), source };
    let bytes = plain_file::read(path, limit).map_err(unreadable)?;
    within_document(bytes.len() as u64, place, &path.file_name().unwrap_or_default().to_string_lossy())?;
    Ok(bytes)
}

/// A folder that one push holds.
struct Lock {
    /// Whether the file system has locks; where it has none, nobody is kept out.
    is_exclusive: bool,
    _folder: File,
}

/// Holds `folder` until what is returned is dropped. The folder itself is locked, so that no file of ours stays in the layout.
fn locked(folder: &Path, patience: Duration) -> Result<Lock, RegistryError> {
    let file = File::open(folder).map_err(|source| unwritable(folder, source))?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Lock { is_exclusive: true, _folder: file }),
            Err(TryLockError::WouldBlock) if begun.elapsed() < patience => std::thread::sleep(LOCK_RETRY),
            Err(TryLockError::WouldBlock) => {
                return Err(RegistryError::Busy { path: folder.to_owned(), limit: patience });
            }
            Err(TryLockError::Error(_)) => return Ok(Lock { is_exclusive: false, _folder: file }),
        }
    }
}

/// Removes the drafts of pushes that were killed: whoever holds the lock knows that nobody writes them any more.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let is_draft = entry.file_name().to_str().is_some_and(|name| name.starts_with(DRAFT));
        if is_draft && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Writes beside the file and renames, so that nobody reads half of it. The permissions are those of new files: others may be meant to
/// read the folder.
fn write(path: &Path, bytes: &[u8]) -> Result<(), RegistryError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let result = (|| {
        let mut file = tempfile::Builder::new()
            .prefix(DRAFT)
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    })();
    result.map_err(|source| unwritable(path, source))
}

fn unwritable(path: &Path, source: std::io::Error) -> RegistryError {
    RegistryError::File { action: "write", path: path.to_owned(), source }
}
