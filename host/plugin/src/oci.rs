//! The documents of a plugin's OCI layout (image-spec 1.1), as they are written.
//!
//! Three manifests: the **image**, which is what the tools of the WebAssembly world carry (configuration
//! `application/vnd.wasm.config.v0+json`, exactly one layer `application/wasm`: they refuse a second one); the **files**, a
//! referrer of the image with every other file as a layer; and the **signature**, a referrer of the image whose layer is the DSSE
//! envelope. All five documents follow from the files and the envelope, so a reader that holds these can demand the very bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::PluginError;
use crate::files::{COMPONENT, Files, media_type};
use crate::identity::BlobDigest;
use crate::manifest::Manifest;

/// Media type of every manifest.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of the index.
pub const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of the image's configuration.
pub const WASM_CONFIG_TYPE: &str = "application/vnd.wasm.config.v0+json";
/// Media type of the configuration of a manifest that needs none.
pub const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
/// Artifact type of the manifest of the other files.
pub const FILES_TYPE: &str = "application/vnd.kvasir.plugin.files.v1";
/// Artifact type of the signature's manifest, and media type of its layer.
pub const ENVELOPE_TYPE: &str = "application/vnd.dsse.envelope.v1+json";
/// The annotation that names a layer's file.
pub const TITLE: &str = "org.opencontainers.image.title";
/// The whole of `oci-layout`.
pub const OCI_LAYOUT_TEXT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
/// The configuration of a manifest that needs none.
pub const EMPTY: &[u8] = b"{}";

/// Annotations of a descriptor or manifest.
pub type Annotations = BTreeMap<String, String>;

/// What one document says of a blob. Field order is the written order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Descriptor {
    pub media_type: String,
    pub digest: BlobDigest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    #[serde(default, skip_serializing_if = "Annotations::is_empty")]
    pub annotations: Annotations,
}

/// An image manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ImageManifest {
    pub schema_version: u32,
    pub media_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    #[serde(default, skip_serializing_if = "Annotations::is_empty")]
    pub annotations: Annotations,
}

/// `index.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Index {
    pub schema_version: u32,
    pub media_type: String,
    pub manifests: Vec<Descriptor>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WasmConfig {
    created: &'static str,
    architecture: &'static str,
    os: &'static str,
    layer_digests: Vec<String>,
    component: WasmComponent,
}

#[derive(Serialize)]
struct WasmComponent {
    exports: Vec<String>,
    imports: Vec<String>,
    target: String,
}

/// The documents of one plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Documents {
    pub config: Vec<u8>,
    pub image: Vec<u8>,
    pub files: Vec<u8>,
    /// None where nobody has signed.
    pub signature: Option<Vec<u8>>,
    pub index: Vec<u8>,
}

impl Documents {
    /// The documents of `files`, among which are `manifest` and a component, and of `envelope`.
    pub fn of(manifest: &Manifest, files: &Files<'_>, envelope: Option<&[u8]>) -> Result<Self, PluginError> {
        let component = files.get(COMPONENT).ok_or(PluginError::MissingFile { name: COMPONENT })?;
        let config = encode(
            "configuration",
            &WasmConfig {
                // A time would make equal packages differ.
                created: "1970-01-01T00:00:00Z",
                architecture: "wasm",
                os: "wasip2",
                layer_digests: vec![component.digest.to_string()],
                component: WasmComponent {
                    exports: exports(&manifest.world),
                    imports: Vec::new(),
                    target: manifest.world.clone(),
                },
            },
        )?;
        let image = encode(
            "image manifest",
            &ImageManifest {
                schema_version: 2,
                media_type: MANIFEST_TYPE.to_owned(),
                artifact_type: None,
                config: descriptor(WASM_CONFIG_TYPE, &config),
                layers: vec![layer(COMPONENT, component.digest, component.bytes.len())],
                subject: None,
                annotations: annotations(manifest),
            },
        )?;
        let others = files.iter().filter(|(name, _)| *name != COMPONENT);
        let layers = others.map(|(name, file)| layer(name, file.digest, file.bytes.len())).collect();
        let files = encode("manifest of files", &referrer(FILES_TYPE, layers, &image))?;
        let signature = match envelope {
            Some(envelope) => {
                let layers = vec![descriptor(ENVELOPE_TYPE, envelope)];
                Some(encode("signature's manifest", &referrer(ENVELOPE_TYPE, layers, &image))?)
            }
            None => None,
        };
        let index = index(&image, &files, signature.as_deref())?;
        Ok(Documents { config, image, files, signature, index })
    }
}

/// `index.json` of a layout with these three manifests.
pub fn index(image: &[u8], files: &[u8], signature: Option<&[u8]>) -> Result<Vec<u8>, PluginError> {
    let typed = |kind: &str, bytes: &[u8]| Descriptor {
        artifact_type: Some(kind.to_owned()),
        ..descriptor(MANIFEST_TYPE, bytes)
    };
    let mut manifests = vec![descriptor(MANIFEST_TYPE, image), typed(FILES_TYPE, files)];
    manifests.extend(signature.map(|bytes| typed(ENVELOPE_TYPE, bytes)));
    encode("index.json", &Index { schema_version: 2, media_type: INDEX_TYPE.to_owned(), manifests })
}

fn encode<T: Serialize>(what: &'static str, document: &T) -> Result<Vec<u8>, PluginError> {
    serde_json::to_vec(document).map_err(|error| PluginError::Oci { what, reason: error.to_string() })
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: BlobDigest::of(bytes),
        size: bytes.len() as u64,
        artifact_type: None,
        annotations: Annotations::new(),
    }
}

fn layer(name: &str, digest: BlobDigest, bytes: usize) -> Descriptor {
    Descriptor {
        media_type: media_type(name).to_owned(),
        digest,
        size: bytes as u64,
        artifact_type: None,
        annotations: Annotations::from([(TITLE.to_owned(), name.to_owned())]),
    }
}

fn referrer(artifact_type: &str, layers: Vec<Descriptor>, image: &[u8]) -> ImageManifest {
    ImageManifest {
        schema_version: 2,
        media_type: MANIFEST_TYPE.to_owned(),
        artifact_type: Some(artifact_type.to_owned()),
        config: descriptor(EMPTY_TYPE, EMPTY),
        layers,
        subject: Some(descriptor(MANIFEST_TYPE, image)),
        annotations: Annotations::new(),
    }
}

/// What registries show of an image.
fn annotations(manifest: &Manifest) -> Annotations {
    let mut annotations = Annotations::from([
        (TITLE.to_owned(), manifest.name.clone()),
        ("org.opencontainers.image.version".to_owned(), manifest.version.to_string()),
    ]);
    for (key, value) in [("licenses", &manifest.license), ("description", &manifest.description)] {
        if let Some(value) = value {
            annotations.insert(format!("org.opencontainers.image.{key}"), value.clone());
        }
    }
    annotations
}

/// What a component of `world` exports: the contract's interface of the same version. Nothing looks into the component here.
fn exports(world: &str) -> Vec<String> {
    world
        .strip_prefix("kvasir:expert/expert-kernel@")
        .map(|version| format!("kvasir:expert/kernel@{version}"))
        .into_iter()
        .collect()
}
