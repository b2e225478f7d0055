//! Plugin packages by another hand than the crate that reads them: every layer of one can be changed before the next is put around
//! it, and what has to be signed again is. Text of the documents is written out here, so that a reader is not tested by its own
//! writer. Included by the tests of the package and by the hostile corpus.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer as _, SigningKey};
use kvasir_plugin::*;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The time at which the fixtures are checked.
pub const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
/// When the fixtures are valid.
pub const VALIDITY: Validity =
    Validity { not_before: UnixSeconds(NOW.0 - 10), expires: UnixSeconds(NOW.0 + 10) };
/// The fixture's plugin.toml.
pub const MANIFEST: &str = r#"schema = 1
name = "kvasir:fixture"
version = "1.2.3"
kernel_revision = 4
world = "kvasir:expert/expert-kernel@0.1.0"
class = "exact"
formats = ["Q4_K"]
min_host = "0.1.0"
license = "MIT"

[limits]
memory_bytes = 65536
fuel_per_call = 1000
rows_per_call = 16
"#;
/// The fixture's kernel, which no sandbox would take.
pub const KERNEL: &[u8] = b"\0asm component";
/// A bill of materials, as short as it can be.
pub const BILL: &[u8] = br#"{"bomFormat":"CycloneDX","specVersion":"1.6","version":1}"#;

pub const IMAGE_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
pub const ENVELOPE_TYPE: &str = "application/vnd.dsse.envelope.v1+json";
const FILES_TYPE: &str = "application/vnd.kvasir.plugin.files.v1";

/// The key made of a seed.
pub fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

/// The public half of a seed's key.
pub fn public(seed: u8) -> PublisherKey {
    PublisherKey { key: key(seed).verifying_key(), name: Some(format!("publisher {seed}")) }
}

/// The id of a seed's key.
pub fn id(seed: u8) -> KeyId {
    KeyId::of(&key(seed).verifying_key())
}

/// A store that trusts these seeds' keys with everything.
pub fn trust(seeds: &[u8]) -> TrustStore {
    TrustStore::from_keys(seeds.iter().map(|&seed| public(seed))).unwrap()
}

/// Every stage of a package.
#[derive(Clone)]
pub struct Stages {
    /// Files by name.
    pub files: BTreeMap<String, Vec<u8>>,
    pub config: Vec<u8>,
    pub image: Vec<u8>,
    pub list: Vec<u8>,
    pub envelope: Option<Vec<u8>>,
    pub signature: Option<Vec<u8>>,
    pub index: Vec<u8>,
    /// Blobs that nothing names.
    pub stray: Vec<Vec<u8>>,
}

/// The fixture's files.
pub fn files() -> BTreeMap<String, Vec<u8>> {
    [("plugin.toml", MANIFEST.as_bytes()), ("kernel.wasm", KERNEL), ("sbom.cdx.json", BILL)]
        .map(|(name, bytes)| (name.to_owned(), bytes.to_vec()))
        .into()
}

impl Stages {
    /// Documents for `files`, not signed.
    pub fn unsigned(files: BTreeMap<String, Vec<u8>>) -> Self {
        let kernel = &files["kernel.wasm"];
        let config = format!(
            r#"{{"created":"1970-01-01T00:00:00Z","architecture":"wasm","os":"wasip2","layerDigests":["{}"],"component":{{"exports":["kvasir:expert/kernel@0.1.0"],"imports":[],"target":"kvasir:expert/expert-kernel@0.1.0"}}}}"#,
            digest(kernel)
        )
        .into_bytes();
        let image = format!(
            r#"{{"schemaVersion":2,"mediaType":"{IMAGE_TYPE}","config":{},"layers":[{}],"annotations":{{"org.opencontainers.image.licenses":"MIT","org.opencontainers.image.title":"kvasir:fixture","org.opencontainers.image.version":"1.2.3"}}}}"#,
            descriptor("application/vnd.wasm.config.v0+json", &config, ""),
            layer("kernel.wasm", kernel),
        )
        .into_bytes();
        let layers: Vec<String> = files
            .iter()
            .filter(|(name, _)| *name != "kernel.wasm")
            .map(|(name, bytes)| layer(name, bytes))
            .collect();
        let list = referrer(FILES_TYPE, &layers.join(","), &image);
        let index = index(&image, &list, None);
        Stages { files, config, image, list, envelope: None, signature: None, index, stray: Vec::new() }
    }

    /// Puts `envelope` in.
    pub fn with_envelope(mut self, envelope: &[u8]) -> Self {
        let signature = referrer(ENVELOPE_TYPE, &descriptor(ENVELOPE_TYPE, envelope, ""), &self.image);
        self.index = index(&self.image, &self.list, Some(&signature));
        (self.envelope, self.signature) = (Some(envelope.to_vec()), Some(signature));
        self
    }

    /// A statement on what is in it.
    pub fn statement(&self) -> Value {
        let all = self.files.iter().map(|(name, bytes)| (name.as_str(), bytes));
        let all: BTreeMap<&str, &Vec<u8>> = all.chain([("image.manifest.json", &self.image)]).collect();
        let subject: Vec<Value> =
            all.iter().map(|(name, bytes)| json!({"name": name, "digest": {"sha256": hex(bytes)}})).collect();
        let sizes: BTreeMap<&str, usize> = all.iter().map(|(name, bytes)| (*name, bytes.len())).collect();
        json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": subject,
            "predicateType": "urn:kvasir:plugin:v2",
            "predicate": {
                "name": "kvasir:fixture", "version": "1.2.3", "kernel_revision": 4,
                "not_before": VALIDITY.not_before.0, "expires": VALIDITY.expires.0, "min_host": "0.1.0",
                "limits": {"memory_bytes": 65536, "fuel_per_call": 1000, "rows_per_call": 16},
                "sizes": sizes,
            },
        })
    }

    /// The entries of the archive, in order.
    pub fn entries(&self) -> Vec<(String, Vec<u8>)> {
        let mut blobs: Vec<&[u8]> = vec![&self.config, &self.image, &self.list, b"{}"];
        blobs.extend(self.envelope.iter().chain(&self.signature).map(Vec::as_slice));
        blobs.extend(self.files.values().chain(&self.stray).map(Vec::as_slice));
        let blobs: BTreeMap<String, Vec<u8>> =
            blobs.into_iter().map(|blob| (format!("blobs/sha256/{}", hex(blob)), blob.to_vec())).collect();
        let mut entries = vec![
            ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
            ("index.json".to_owned(), self.index.clone()),
        ];
        entries.extend(blobs);
        entries
    }

    /// The package.
    pub fn package(&self) -> Vec<u8> {
        tar(&self.entries())
    }

    /// The package, signed by `seeds` on the statement that `change` makes of the right one.
    pub fn signed(self, seeds: &[u8], change: impl FnOnce(&mut Value)) -> Self {
        let mut statement = self.statement();
        change(&mut statement);
        let payload = serde_json::to_vec(&statement).unwrap();
        let signatures: Vec<String> = seeds.iter().map(|&seed| signature(&payload, &key(seed))).collect();
        self.with_envelope(envelope(&payload, &signatures).as_bytes())
    }
}

/// The fixture, signed by the first key.
pub fn fixture() -> Stages {
    Stages::unsigned(files()).signed(&[1], |_| ())
}

/// The fixture with plugin.toml changed and statement and documents to fit, where they repeat what was changed.
pub fn manifest_with(from: &str, to: &str) -> Stages {
    assert!(MANIFEST.contains(from));
    let mut files = files();
    files.insert("plugin.toml".to_owned(), MANIFEST.replacen(from, to, 1).into_bytes());
    Stages::unsigned(files)
}

/// `index.json` of three manifests.
pub fn index(image: &[u8], list: &[u8], signature: Option<&[u8]>) -> Vec<u8> {
    let typed = |kind: &str, bytes| descriptor(IMAGE_TYPE, bytes, &format!(r#","artifactType":"{kind}""#));
    let mut manifests = vec![descriptor(IMAGE_TYPE, image, ""), typed(FILES_TYPE, list)];
    manifests.extend(signature.map(|bytes| typed(ENVELOPE_TYPE, bytes)));
    format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{}]}}"#,
        manifests.join(",")
    )
    .into_bytes()
}

/// A manifest that refers to the image.
pub fn referrer(kind: &str, layers: &str, image: &[u8]) -> Vec<u8> {
    format!(
        r#"{{"schemaVersion":2,"mediaType":"{IMAGE_TYPE}","artifactType":"{kind}","config":{},"layers":[{layers}],"subject":{}}}"#,
        descriptor("application/vnd.oci.empty.v1+json", b"{}", ""),
        descriptor(IMAGE_TYPE, image, ""),
    )
    .into_bytes()
}

/// A descriptor with the file's title.
pub fn layer(name: &str, bytes: &[u8]) -> String {
    let kind = match name {
        "plugin.toml" => "application/toml",
        "kernel.wasm" => "application/wasm",
        "sbom.cdx.json" => "application/vnd.cyclonedx+json",
        _ if name.starts_with("shaders/") => "text/wgsl",
        _ => "application/vnd.kvasir.vector.v1",
    };
    descriptor(kind, bytes, &format!(r#","annotations":{{"org.opencontainers.image.title":"{name}"}}"#))
}

/// A descriptor; `more` is further JSON before the closing bracket.
pub fn descriptor(kind: &str, bytes: &[u8], more: &str) -> String {
    format!(r#"{{"mediaType":"{kind}","digest":"{}","size":{}{more}}}"#, digest(bytes), bytes.len())
}

/// One signature of a DSSE envelope.
pub fn signature(payload: &[u8], signer: &SigningKey) -> String {
    let mut message = format!("DSSEv1 28 application/vnd.in-toto+json {} ", payload.len()).into_bytes();
    message.extend_from_slice(payload);
    let id = hex(signer.verifying_key().as_bytes());
    let signature = STANDARD.encode(signer.sign(&message).to_bytes());
    format!(r#"{{"scheme":"ed25519","keyid":"{id}","sig":"{signature}"}}"#)
}

/// A DSSE envelope.
pub fn envelope(payload: &[u8], signatures: &[String]) -> String {
    let (body, signatures) = (STANDARD.encode(payload), signatures.join(","));
    format!(
        r#"{{"payloadType":"application/vnd.in-toto+json","payload":"{body}","signatures":[{signatures}]}}"#
    )
}

/// A tar header.
pub fn header(name: &[u8], size: usize, kind: u8) -> Vec<u8> {
    let mut block = vec![0u8; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name);
    put(100, b"0000644\x000000000\x000000000\0");
    put(124, format!("{size:011o}").as_bytes());
    put(136, b"00000000000\0        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    put(329, b"0000000\x000000000\0");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// A tar of plain files, in the order given.
pub fn tar(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, bytes) in entries {
        archive.extend(header(name.as_bytes(), bytes.len(), b'0'));
        archive.extend_from_slice(bytes);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

/// SHA-256 in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 as OCI writes it.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

/// A root.json or revoked.json of this signed part, with one signature for each seed in the order given.
pub fn trust_document(signed: &str, seeds: &[u8]) -> Vec<u8> {
    let signatures: Vec<String> = seeds
        .iter()
        .map(|&seed| {
            let bytes = key(seed).sign(signed.as_bytes()).to_bytes();
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!(r#"{{"keyid":"{}","sig":"{digits}"}}"#, id(seed))
        })
        .collect();
    format!(r#"{{"signed":{signed},"signatures":[{}]}}"#, signatures.join(",")).into_bytes()
}

/// The signed part of a root: `holders` are the seeds of the root role's keys; the last argument is JSON between the brackets of
/// `roles` before the roles `revocation` and `root`, with a comma at its end, or nothing.
pub fn signed_root(
    version: u64,
    expires: u64,
    holders: &[u8],
    publishers: &[u8],
    publisher_role: &str,
) -> String {
    let written = |seed: &u8| {
        (
            id(*seed).to_string(),
            format!(
                r#""{}":{{"keytype":"ed25519","keyval":{{"public":"{}"}},"scheme":"ed25519"}}"#,
                id(*seed),
                key(*seed)
                    .verifying_key()
                    .as_bytes()
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect::<String>()
            ),
        )
    };
    let keys: BTreeMap<String, String> = holders.iter().chain(publishers).map(written).collect();
    let keys: Vec<String> = keys.into_values().collect();
    let mut ids: Vec<String> = holders.iter().map(|seed| format!("\"{}\"", id(*seed))).collect();
    ids.sort();
    let role = format!(r#"{{"keyids":[{}],"threshold":{}}}"#, ids.join(","), holders.len());
    format!(
        r#"{{"_type":"root","expires":{expires},"keys":{{{}}},"roles":{{{publisher_role}"revocation":{role},"root":{role}}},"spec_version":"1.0.0","version":{version}}}"#,
        keys.join(",")
    )
}
