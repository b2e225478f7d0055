//! The in-toto statement (v1) that a publisher signs: every file and the image manifest with their digests, and what the
//! package claims.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{PluginError, one_line};
use crate::identity::{UnixSeconds, digest_from_hex};
use crate::limits::MAX_FILES;
use crate::manifest::{Limits, Manifest};
use crate::version::Version;

const TYPE: &str = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE: &str = "urn:kvasir:plugin:v2";
/// The subject that stands for the OCI image manifest, by whose digest registries know the plugin.
pub const IMAGE_MANIFEST: &str = "image.manifest.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<Subject>,
    #[serde(rename = "predicateType")]
    predicate_type: String,
    pub predicate: Predicate,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Subject {
    name: String,
    digest: SubjectDigest,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubjectDigest {
    sha256: String,
}

/// What the statement claims beside the digests. Repeats what `plugin.toml` says, so that an index or an auditor needs
/// only the envelope.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicate {
    pub name: String,
    pub version: Version,
    pub kernel_revision: u64,
    pub not_before: u64,
    pub expires: u64,
    pub min_host: Version,
    pub limits: Limits,
    pub sizes: BTreeMap<String, u64>,
}

/// One signed file.
#[derive(Clone, Copy)]
pub struct SignedFile {
    pub sha256: [u8; 32],
    pub bytes: u64,
}

impl Statement {
    /// A statement on `files`: every file, and the image manifest under [`IMAGE_MANIFEST`].
    pub fn new(
        manifest: &Manifest,
        not_before: UnixSeconds,
        expires: UnixSeconds,
        files: &BTreeMap<String, SignedFile>,
    ) -> Self {
        let subject = files
            .iter()
            .map(|(name, file)| Subject {
                name: name.clone(),
                digest: SubjectDigest { sha256: hex::encode(file.sha256) },
            })
            .collect();
        Statement {
            kind: TYPE.to_owned(),
            subject,
            predicate_type: PREDICATE_TYPE.to_owned(),
            predicate: Predicate {
                name: manifest.name.clone(),
                version: manifest.version,
                kernel_revision: manifest.kernel_revision,
                not_before: not_before.0,
                expires: expires.0,
                min_host: manifest.min_host,
                limits: manifest.limits,
                sizes: files.iter().map(|(name, file)| (name.clone(), file.bytes)).collect(),
            },
        }
    }

    /// The bytes that are signed.
    pub fn encode(&self) -> Result<Vec<u8>, PluginError> {
        serde_json::to_vec(self).map_err(|error| unreadable(error.to_string()))
    }

    /// Parses verified bytes.
    pub fn parse(payload: &[u8]) -> Result<Self, PluginError> {
        let statement: Statement =
            serde_json::from_slice(payload).map_err(|error| unreadable(one_line(error)))?;
        for (what, found, expected) in
            [("_type", &statement.kind, TYPE), ("predicateType", &statement.predicate_type, PREDICATE_TYPE)]
        {
            if found != expected {
                return Err(unreadable(format!("{what} is {found:?}, not {expected:?}")));
            }
        }
        Ok(statement)
    }

    /// The signed files by name.
    pub fn files(&self) -> Result<BTreeMap<&str, SignedFile>, PluginError> {
        if self.subject.len() > MAX_FILES + 1 {
            return Err(PluginError::TooManyFiles { limit: MAX_FILES });
        }
        let mut files = BTreeMap::new();
        for subject in &self.subject {
            let name = subject.name.as_str();
            let sha256 = digest_from_hex(&subject.digest.sha256).ok_or_else(|| {
                unreadable(format!("the digest of {name} is not 64 lower-case hexadecimal digits"))
            })?;
            let bytes =
                *self.predicate.sizes.get(name).ok_or_else(|| {
                    unreadable(format!("the size of {name} is missing from predicate.sizes"))
                })?;
            if files.insert(name, SignedFile { sha256, bytes }).is_some() {
                return Err(unreadable(format!("{name} is a subject twice")));
            }
        }
        if files.len() != self.predicate.sizes.len() {
            return Err(unreadable("predicate.sizes names a file that is no subject".to_owned()));
        }
        Ok(files)
    }
}

fn unreadable(reason: String) -> PluginError {
    PluginError::Statement { reason }
}
