//! A store in a folder of its own, and packages to put into it.
#![allow(dead_code, reason = "each test uses some of it")]

use std::path::PathBuf;

use ed25519_dalek::SigningKey;
use kvasir_plugin::{PackageContents, PublisherKey, UnixSeconds, Validity};
use kvasir_plugin_store::Store;

/// The moment at which everything happens, unless a test says otherwise.
pub const NOW: UnixSeconds = UnixSeconds(1_800_000_000);

/// How long a package is valid.
pub const PACKAGE_DAYS: u64 = 100;

pub struct Scene {
    pub folder: tempfile::TempDir,
    pub publisher: SigningKey,
    pub root: SigningKey,
}

impl Scene {
    /// A store whose root trusts one publisher with plugins of any name.
    pub fn new() -> Self {
        let scene = Scene::empty();
        let own = PublisherKey { key: scene.publisher.verifying_key(), name: None };
        assert!(scene.store().create_root(&scene.root, vec![own], NOW).unwrap());
        scene
    }

    /// Its keys, and nothing in its folder.
    pub fn empty() -> Self {
        Scene { folder: tempfile::tempdir().unwrap(), publisher: key(1), root: key(100) }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn store(&self) -> Store {
        Store::open(&self.file("data"), &self.file("config"))
    }

    /// A package of revision `revision`, signed by the scene's publisher.
    pub fn package(&self, revision: u64) -> Vec<u8> {
        package(revision, &self.publisher)
    }
}

pub fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

pub fn package(revision: u64, key: &SigningKey) -> Vec<u8> {
    let manifest = format!(
        "schema = 1\nname = \"demo:kernel\"\nversion = \"0.{}.0\"\nkernel_revision = {revision}\n\
         world = \"kvasir:expert/expert-kernel@0.1.0\"\nclass = \"exact\"\nformats = [\"Q8_0\"]\nmin_host = \"0.1.0\"\n\
         [limits]\nmemory_bytes = 1048576\nfuel_per_call = 1000\nrows_per_call = 8\n",
        revision % 1000
    );
    let contents = PackageContents {
        manifest: manifest.into_bytes(),
        component: b"\0asm never run here".to_vec(),
        ..PackageContents::default()
    };
    let validity =
        Validity { not_before: UnixSeconds(NOW.0 - 10), expires: UnixSeconds(NOW.0 + PACKAGE_DAYS * 86_400) };
    kvasir_plugin::pack(&contents, validity, key).unwrap()
}
