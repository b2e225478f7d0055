//! The documents of OCI's image format as far as they are read here: descriptors, manifests, indexes.
//!
//! Fields that are not read are left as they are: a document travels as its bytes, never rewritten.

use kvasir_plugin::BlobDigest;
pub use kvasir_plugin::layout::{ENVELOPE_TYPE, FILES_TYPE, INDEX_TYPE as INDEX, MANIFEST_TYPE as MANIFEST};
use serde::{Deserialize, Serialize};

use crate::error::RegistryError;
use crate::limits::MAX_BLOBS;

/// The annotation that holds a tag in a layout's index.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// What names a blob: digest, size and kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is.
    pub media_type: String,
    /// Its digest.
    pub digest: BlobDigest,
    /// Its bytes.
    pub size: u64,
    /// What a manifest is for, in lists of referrers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Words for people and tools.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub annotations: serde_json::Map<String, serde_json::Value>,
}

/// A manifest, as far as it is read.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// What it says it is.
    #[serde(default)]
    pub media_type: Option<String>,
    /// What it is for.
    #[serde(default)]
    pub artifact_type: Option<String>,
    /// Its configuration.
    pub config: Descriptor,
    /// Its files.
    #[serde(default)]
    pub layers: Vec<Descriptor>,
    /// The manifest that it refers to: a signature's is the plugin's.
    #[serde(default)]
    pub subject: Option<Descriptor>,
}

/// An index, or a list of referrers.
#[derive(Clone, Debug, Deserialize)]
pub struct Index {
    /// What is in it.
    #[serde(default)]
    pub manifests: Vec<Descriptor>,
}

impl Manifest {
    /// Reads a manifest that came from `place`.
    pub fn parse(bytes: &[u8], place: &str) -> Result<Self, RegistryError> {
        let manifest: Manifest = parse(bytes, place, "a manifest")?;
        if let Some(found) = manifest.media_type.as_ref().filter(|found| *found != MANIFEST) {
            return Err(RegistryError::MediaType {
                place: place.to_owned(),
                what: "a manifest".to_owned(),
                found: shown(found),
                expected: MANIFEST,
            });
        }
        if manifest.layers.len() > MAX_BLOBS {
            return Err(RegistryError::TooMany { place: place.to_owned(), what: "files", limit: MAX_BLOBS });
        }
        Ok(manifest)
    }

    /// What it is for: its own word, or its configuration's kind.
    pub fn kind(&self) -> &str {
        self.artifact_type.as_deref().unwrap_or(&self.config.media_type)
    }

    /// Every blob that belongs to it.
    pub fn blobs(&self) -> impl Iterator<Item = &Descriptor> {
        std::iter::once(&self.config).chain(&self.layers)
    }
}

impl Index {
    /// Reads an index that came from `place`.
    pub fn parse(bytes: &[u8], place: &str) -> Result<Self, RegistryError> {
        parse(bytes, place, "an index")
    }
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8], place: &str, what: &str) -> Result<T, RegistryError> {
    serde_json::from_slice(bytes).map_err(|error| RegistryError::Protocol {
        place: place.to_owned(),
        what: what.to_owned(),
        reason: shown(&error.to_string()),
    })
}

/// A text of the other side as it is shown: plain and short.
pub(crate) fn shown(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().filter(|c| !c.is_control()).take(crate::limits::MAX_REFUSAL_CHARACTERS).collect()
}
