//! A registry for tests: blobs and manifests in memory, as the OCI distribution specification 1.1 wants them, with lists of
//! referrers or without, with or without credentials. A test may answer any request in its place.
#![allow(dead_code, clippy::unwrap_used)] // Each test uses a part of this; a fixture that cannot be made is a failure.

pub mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use kvasir_plugin::{
    BlobDigest, PackageContents, PublisherKey, TrustStore, UnixSeconds, Validity, pack, verify,
};
use kvasir_registry::{Options, Place};
use serde_json::{Value, json};
use server::{Reply, Request};

pub const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// What the registry demands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Demand {
    #[default]
    Nothing,
    /// This value of `Authorization`.
    Basic(String),
    /// A bearer key, given for this value of `Authorization` or for none.
    Bearer(Option<String>),
}

#[derive(Default)]
pub struct State {
    pub blobs: BTreeMap<String, Vec<u8>>,
    pub manifests: BTreeMap<String, (String, Vec<u8>)>,
    pub requests: Vec<Request>,
}

pub type Before = Box<dyn Fn(&Request) -> Option<Reply> + Send + Sync>;

pub struct Settings {
    /// Whether it keeps lists of referrers.
    pub referrers: bool,
    pub demand: Demand,
    pub tls: bool,
    /// Answers in the registry's place, where it gives an answer.
    pub before: Before,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { referrers: true, demand: Demand::Nothing, tls: false, before: Box::new(|_| None) }
    }
}

pub struct Registry {
    pub host: String,
    pub state: Arc<Mutex<State>>,
    /// The certificate to trust, over TLS.
    pub pem: String,
}

impl Registry {
    pub fn start(settings: Settings) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let (tls, pem) = if settings.tls {
            let (config, pem) = server::certificate();
            (Some(config), pem)
        } else {
            (None, String::new())
        };
        let own = Arc::new(Mutex::new(String::new()));
        let (inside, address) = (state.clone(), own.clone());
        let handler = Arc::new(move |request: &Request| {
            let mut state = inside.lock().unwrap();
            state.requests.push(request.clone());
            if let Some(reply) = (settings.before)(request) {
                return reply;
            }
            let scheme = if settings.tls { "https" } else { "http" };
            let home = format!("{scheme}://{}", address.lock().unwrap());
            demanded(&settings.demand, request, &home)
                .unwrap_or_else(|| state.answer(request, settings.referrers))
        });
        let host = server::serve(handler, tls);
        own.lock().unwrap().clone_from(&host);
        Registry { host, state, pem }
    }

    /// A place in it: `kernel:1.0`, `kernel@sha256:..`.
    pub fn place(&self, name: &str) -> Place {
        format!("oci://{}/{name}", self.host).parse().unwrap()
    }

    pub fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }
}

fn demanded(demand: &Demand, request: &Request, home: &str) -> Option<Reply> {
    let given = request.authorization.as_deref();
    match demand {
        Demand::Nothing => None,
        Demand::Basic(wanted) if given == Some(wanted) => None,
        Demand::Basic(_) => Some(Reply::status(401).with("www-authenticate", "Basic realm=\"here\"")),
        Demand::Bearer(wanted) if request.target.starts_with("/keys") => {
            if wanted.is_some() && given != wanted.as_deref() {
                return Some(Reply::status(401));
            }
            let pushes = request.target.contains("push");
            let key = if pushes { "pushes" } else { "pulls" };
            Some(Reply::body(200, "application/json", json!({"token": key}).to_string().as_bytes()))
        }
        Demand::Bearer(_) => {
            let writes = !matches!(request.method.as_str(), "GET" | "HEAD");
            match given {
                Some("Bearer pushes") => None,
                Some("Bearer pulls") if !writes => None,
                _ => {
                    let challenge = format!("Bearer realm=\"{home}/keys\",service=\"tests\"");
                    Some(Reply::status(401).with("www-authenticate", &challenge))
                }
            }
        }
    }
}

impl State {
    fn answer(&mut self, request: &Request, referrers: bool) -> Reply {
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let Some(path) = path.strip_prefix("/v2/") else { return Reply::status(404) };
        let at = |word: &str| path.split_once(word).map(|(_, rest)| rest.to_owned());
        match request.method.as_str() {
            "POST" if path.ends_with("/blobs/uploads/") => {
                Reply::status(202).with("location", &format!("/v2/{path}1?state=x"))
            }
            "PUT" if path.contains("/blobs/uploads/") => {
                let digest = query.split_once("digest=").unwrap().1.to_owned();
                if digest != BlobDigest::of(&request.body).to_string() {
                    return Reply::body(
                        400,
                        "application/json",
                        b"{\"errors\":[{\"code\":\"DIGEST_INVALID\"}]}",
                    );
                }
                self.blobs.insert(digest, request.body.clone());
                Reply::status(201)
            }
            "PUT" => {
                let Some(version) = at("/manifests/") else { return Reply::status(404) };
                let digest = BlobDigest::of(&request.body).to_string();
                let manifest: Value = serde_json::from_slice(&request.body).unwrap();
                let stored = (request.content_type.clone(), request.body.clone());
                // A registry refuses a manifest whose blobs it lacks.
                for named in manifest["layers"].as_array().into_iter().flatten().chain([&manifest["config"]])
                {
                    if named.is_object() && !self.blobs.contains_key(named["digest"].as_str().unwrap()) {
                        return Reply::body(
                            404,
                            "application/json",
                            b"{\"errors\":[{\"code\":\"MANIFEST_BLOB_UNKNOWN\"}]}",
                        );
                    }
                }
                self.manifests.insert(digest, stored.clone());
                self.manifests.insert(version, stored);
                match manifest["subject"]["digest"].as_str() {
                    Some(subject) if referrers => Reply::status(201).with("oci-subject", subject),
                    _ => Reply::status(201),
                }
            }
            "GET" | "HEAD" => {
                if let Some(digest) = at("/blobs/") {
                    return match self.blobs.get(&digest) {
                        Some(bytes) => Reply::body(200, "application/octet-stream", bytes),
                        None => Reply::status(404),
                    };
                }
                if let Some(version) = at("/manifests/") {
                    return match self.manifests.get(&version) {
                        Some((media_type, bytes)) => Reply::body(200, media_type, bytes),
                        None => Reply::body(404, "application/json", b"{}"),
                    };
                }
                match at("/referrers/") {
                    Some(subject) if referrers => self.referrers(&subject),
                    _ => Reply::status(404),
                }
            }
            _ => Reply::status(405),
        }
    }

    fn referrers(&self, subject: &str) -> Reply {
        let mut listed = Vec::new();
        for (digest, (media_type, bytes)) in
            self.manifests.iter().filter(|(name, _)| name.starts_with("sha256:"))
        {
            let manifest: Value = serde_json::from_slice(bytes).unwrap();
            if manifest["subject"]["digest"] == subject {
                listed.push(json!({"mediaType": media_type, "digest": digest, "size": bytes.len(),
                    "artifactType": manifest["artifactType"]}));
            }
        }
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed});
        Reply::body(200, INDEX, index.to_string().as_bytes())
    }
}

/// The contents of a small plugin; `what` makes one differ from another.
pub fn contents(what: &str) -> PackageContents {
    let manifest = format!(
        "schema = 1\nname = \"kvasir:fixture\"\nversion = \"0.1.0\"\nkernel_revision = 1\n\
         world = \"kvasir:expert/expert-kernel@0.1.0\"\nclass = \"exact\"\nformats = [\"F32\"]\nmin_host = \"0.1.0\"\n\
         description = \"{what}\"\n[limits]\nmemory_bytes = 65536\nfuel_per_call = 1\nrows_per_call = 64\n"
    );
    PackageContents {
        manifest: manifest.into_bytes(),
        component: b"\0asm\x0d\0\x01\0 a component that nobody runs here".to_vec(),
        vectors: BTreeMap::from([
            ("one.vector".to_owned(), vec![1; 3000]),
            ("two.vector".to_owned(), vec![2; 70_000]),
        ]),
        ..PackageContents::default()
    }
}

pub fn key(number: u8) -> ed25519_dalek::SigningKey {
    ed25519_dalek::SigningKey::from_bytes(&[number; 32])
}

/// A signed package of `contents`, valid from `not_before` on.
pub fn signed(contents: &PackageContents, not_before: UnixSeconds) -> Vec<u8> {
    let validity = Validity { not_before, expires: UnixSeconds(not_before.0 + 1000) };
    pack(contents, validity, &key(7)).unwrap()
}

pub fn package() -> Vec<u8> {
    signed(&contents("a fixture"), NOW)
}

/// Whether a package verifies under the key that all fixtures are signed with.
pub fn verifies(package: &[u8]) -> bool {
    let trust = TrustStore::from_keys([PublisherKey { key: key(7).verifying_key(), name: None }]).unwrap();
    verify(package, &trust, NOW).is_ok()
}

/// Options with times that end a test that hangs.
pub fn patient() -> Options {
    let (deadline, silence) = (std::time::Duration::from_secs(120), std::time::Duration::from_secs(60));
    Options { deadline, silence, ..Options::default() }
}

/// Options with times that suit a test of silence.
pub fn hasty() -> Options {
    let (deadline, silence) = (std::time::Duration::from_secs(5), std::time::Duration::from_secs(1));
    Options { deadline, silence, ..Options::default() }
}
