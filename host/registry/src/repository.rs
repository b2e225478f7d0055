//! The requests of the OCI distribution specification (1.1) that carrying a package takes.

use kvasir_plugin::BlobDigest;
use ureq::http::Method;

use crate::client::{Answer, Ask, Client, Options};
use crate::document::{Descriptor, INDEX, Index, MANIFEST, shown};
use crate::error::RegistryError;
use crate::limits::*;
use crate::reference::Reference;

/// The header by which a registry says that it keeps lists of referrers itself.
const SUBJECT: &str = "oci-subject";

/// One repository of a registry.
pub(crate) struct Repository {
    client: Client,
    name: String,
    scope: String,
}

impl Repository {
    /// `actions` are `pull` or `pull,push`.
    pub fn new(reference: &Reference, options: &Options, actions: &str) -> Result<Self, RegistryError> {
        Ok(Repository {
            client: Client::new(&reference.host, options)?,
            name: reference.name.clone(),
            scope: format!("repository:{}:{actions}", reference.name),
        })
    }

    pub fn host(&self) -> &str {
        self.client.host()
    }

    /// The bytes of the manifest that `version` names and their media type.
    pub fn manifest(&mut self, version: &str) -> Result<Vec<u8>, RegistryError> {
        let what = format!("the manifest {version}");
        let answer = self.get(&format!("manifests/{version}"), MANIFEST, &what)?;
        if answer.status != 200 {
            return Err(self.client.refusal(answer));
        }
        self.expect_type(&answer, MANIFEST)?;
        let bytes = self.client.document(answer, MAX_DOCUMENT_BYTES)?;
        if let Some(digest) = BlobDigest::parse(version) {
            self.expect_digest(&what, &bytes, digest)?;
        }
        Ok(bytes)
    }

    /// Puts a manifest; whether the registry keeps its subject's list of referrers itself.
    pub fn put_manifest(
        &mut self,
        version: &str,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<bool, RegistryError> {
        let what = format!("the manifest {version}");
        let target = format!("/v2/{}/manifests/{version}", self.name);
        let headers = [("content-type", media_type)];
        let answer = self.send(Method::PUT, &target, &headers, Some(bytes), &what)?;
        match answer.status {
            201 => Ok(answer.headers.contains_key(SUBJECT)),
            _ => Err(self.client.refusal(answer)),
        }
    }

    pub fn has_blob(&mut self, digest: &BlobDigest) -> Result<bool, RegistryError> {
        let target = format!("/v2/{}/blobs/{digest}", self.name);
        let answer = self.send(Method::HEAD, &target, &[], None, &format!("the blob {digest}"))?;
        match answer.status {
            200 => Ok(true),
            404 => Ok(false),
            _ => Err(self.client.refusal(answer)),
        }
    }

    /// The blob of a descriptor: so many bytes, of that digest.
    pub fn blob(&mut self, named: &Descriptor) -> Result<Vec<u8>, RegistryError> {
        let what = format!("the blob {}", named.digest);
        let answer = self.get(&format!("blobs/{}", named.digest), "*/*", &what)?;
        if answer.status != 200 {
            return Err(self.client.refusal(answer));
        }
        let bytes = self.client.blob(answer, named.size)?;
        self.expect_digest(&what, &bytes, named.digest)?;
        Ok(bytes)
    }

    /// Uploads a blob in one piece.
    pub fn put_blob(&mut self, digest: &BlobDigest, bytes: &[u8]) -> Result<(), RegistryError> {
        let what = format!("the blob {digest}");
        let target = format!("/v2/{}/blobs/uploads/", self.name);
        let answer = self.send(Method::POST, &target, &[("content-length", "0")], None, &what)?;
        if answer.status != 202 {
            return Err(self.client.refusal(answer));
        }
        let place = answer.headers.get("location").and_then(|value| value.to_str().ok());
        let place = place.ok_or_else(|| self.broken(&what, "it does not say where to upload to"))?;
        let mark = if place.contains('?') { '&' } else { '?' };
        let target = format!("{place}{mark}digest={digest}");
        let headers = [("content-type", "application/octet-stream")];
        let answer = self.send(Method::PUT, &target, &headers, Some(bytes), &what)?;
        match answer.status {
            201 => Ok(()),
            _ => Err(self.client.refusal(answer)),
        }
    }

    /// What refers to `subject`, by the registry's own list or, where it keeps none, by the tag that stands in for one.
    pub fn referrers(&mut self, subject: &BlobDigest) -> Result<Vec<Descriptor>, RegistryError> {
        let what = format!("the list of referrers of {subject}");
        let answer = self.get(&format!("referrers/{subject}"), INDEX, &what)?;
        match answer.status {
            200 => {
                self.expect_type(&answer, INDEX)?;
                let bytes = self.client.document(answer, MAX_DOCUMENT_BYTES)?;
                Ok(Index::parse(&bytes, self.client.host())?.manifests)
            }
            // 404 says that it keeps no lists; some registries that do not know the request answer otherwise.
            400 | 404 | 405 | 501 => self.referrers_by_tag(subject),
            _ => Err(self.client.refusal(answer)),
        }
    }

    /// The list under the tag `sha256-<digits>`; empty where there is none.
    pub fn referrers_by_tag(&mut self, subject: &BlobDigest) -> Result<Vec<Descriptor>, RegistryError> {
        let tag = referrers_tag(subject);
        let answer = self.get(&format!("manifests/{tag}"), INDEX, &format!("the list {tag}"))?;
        match answer.status {
            200 => {
                self.expect_type(&answer, INDEX)?;
                let bytes = self.client.document(answer, MAX_DOCUMENT_BYTES)?;
                Ok(Index::parse(&bytes, self.client.host())?.manifests)
            }
            404 => Ok(Vec::new()),
            _ => Err(self.client.refusal(answer)),
        }
    }

    fn get(&mut self, path: &str, accept: &str, what: &str) -> Result<Answer, RegistryError> {
        let target = format!("/v2/{}/{path}", self.name);
        self.send(Method::GET, &target, &[("accept", accept)], None, what)
    }

    fn send(
        &mut self,
        method: Method,
        target: &str,
        headers: &[(&'static str, &str)],
        body: Option<&[u8]>,
        what: &str,
    ) -> Result<Answer, RegistryError> {
        self.client.ask(&Ask { method, target, headers, body, what, scope: &self.scope })
    }

    fn expect_type(&self, answer: &Answer, expected: &'static str) -> Result<(), RegistryError> {
        let found = answer.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or("");
        let found = found.split(';').next().unwrap_or("").trim();
        if found == expected {
            return Ok(());
        }
        let (place, what) = (self.client.host().to_owned(), answer.what.clone());
        Err(RegistryError::MediaType { place, what, found: shown(found), expected })
    }

    fn expect_digest(&self, what: &str, bytes: &[u8], expected: BlobDigest) -> Result<(), RegistryError> {
        let found = BlobDigest::of(bytes);
        if found == expected {
            return Ok(());
        }
        let (place, what) = (self.client.host().to_owned(), what.to_owned());
        Err(RegistryError::Digest { place, what, found: found.hex() })
    }

    fn broken(&self, what: &str, reason: &str) -> RegistryError {
        let (place, what) = (self.client.host().to_owned(), what.to_owned());
        RegistryError::Protocol { place, what, reason: reason.to_owned() }
    }
}

/// The tag under which a registry without lists of referrers keeps one.
pub(crate) fn referrers_tag(subject: &BlobDigest) -> String {
    format!("sha256-{}", subject.hex())
}
