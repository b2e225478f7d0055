//! The released plugin as an operator has it: its component packed, signed by a publisher that is trusted, verified.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use ed25519_dalek::SigningKey;
use kvasir_backbone::Experts;
use kvasir_experts::{ExpertRunner, LocalExperts, RunnerOptions, VerifiedPlugin};
use kvasir_model::Model;
use kvasir_plugin::{PackageContents, PublisherKey, TrustStore, UnixSeconds, Validity, pack, verify};

use crate::root;

/// When packages of this module are valid, and not one second earlier or later.
pub const NOW: UnixSeconds = UnixSeconds(1_800_000_000);

/// Lanes of a runner: more than the threads of any test, and not a divisor of the test models' numbers of experts.
const LANES: NonZeroUsize = NonZeroUsize::new(3).unwrap();

/// What is in the released package.
pub fn contents() -> PackageContents {
    let folder = root().join("plugins/swiglu");
    let read = |file: &str| std::fs::read(folder.join(file)).unwrap();
    PackageContents {
        manifest: read("plugin.toml"),
        component: read("release/swiglu-0.2.0.wasm"),
        shaders: folder_files(&folder.join("shaders")),
        vectors: folder_files(&folder.join("vectors")),
        sbom: Vec::new(),
    }
}

/// Every file of `folder` by name; none where there is no such folder.
fn folder_files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeMap::new() };
    entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

/// A key that nobody had before.
pub fn fresh_key() -> SigningKey {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).unwrap();
    SigningKey::from_bytes(&seed)
}

/// The released plugin, packed and signed by `key`.
pub fn package(key: &SigningKey) -> Vec<u8> {
    let validity = Validity { not_before: UnixSeconds(NOW.0 - 1), expires: UnixSeconds(NOW.0 + 1) };
    pack(&contents(), validity, key).unwrap()
}

/// A store that trusts the holder of `key` alone.
pub fn trust(key: &SigningKey) -> TrustStore {
    TrustStore::from_keys([PublisherKey { key: key.verifying_key(), name: None }]).unwrap()
}

/// The released plugin, signed by a fresh key and verified.
pub fn verified() -> VerifiedPlugin {
    let key = fresh_key();
    verify(&package(&key), &trust(&key), NOW).unwrap()
}

/// Experts of `model` computed by the released plugin in the sandbox. All that the closure makes share one runner, so
/// that the plugin is compiled and proved once.
pub fn sandboxed(model: &Arc<Model>) -> impl Fn() -> Box<dyn Experts> + use<> {
    let options = RunnerOptions { instances: LANES, ..RunnerOptions::default() };
    let runner = Arc::new(ExpertRunner::new(&verified(), options).unwrap());
    let model = model.clone();
    move || Box::new(LocalExperts::new(model.clone(), runner.clone()))
}
