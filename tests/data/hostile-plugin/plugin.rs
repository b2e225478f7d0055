//! Makes plugins of the text in this folder: components in signed packages, as a publisher would. Included by path into
//! the tests of several crates.
#![allow(dead_code, clippy::unwrap_used)] // Each test uses a part of this; a fixture that cannot be made is a failure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ed25519_dalek::SigningKey;
use kvasir_plugin::{
    PackageContents, PublisherKey, TrustStore, UnixSeconds, Validity, VerifiedPlugin, pack, verify,
};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};

/// When the tests take place.
pub const NOW: UnixSeconds = UnixSeconds(1_800_000_000);

/// The root of the checkout.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().find(|path| path.join("wit/0.1.0").is_dir()).unwrap().to_owned()
}

/// The publisher of all fixtures.
pub fn publisher() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

/// A trust store that trusts [`publisher`].
pub fn trust() -> TrustStore {
    TrustStore::from_keys([PublisherKey { key: publisher().verifying_key(), name: None }]).unwrap()
}

/// A manifest that asks for `memory_bytes` and `fuel` a call.
pub fn manifest(memory_bytes: u64, fuel: u64) -> Vec<u8> {
    format!(
        "schema = 1\nname = \"kvasir:fixture\"\nversion = \"0.1.0\"\nkernel_revision = 1\n\
         world = \"kvasir:expert/expert-kernel@0.1.0\"\nclass = \"exact\"\nformats = [\"F32\"]\nmin_host = \"0.1.0\"\n\
         [limits]\nmemory_bytes = {memory_bytes}\nfuel_per_call = {fuel}\nrows_per_call = 64\n"
    )
    .into_bytes()
}

/// A signed and verified plugin around `component`, with generous limits of its own.
pub fn plugin(component: Vec<u8>) -> VerifiedPlugin {
    let contents = PackageContents {
        manifest: manifest(4 << 30, i64::MAX as u64),
        component,
        ..PackageContents::default()
    };
    verified(&contents)
}

/// Every file of `folder` by name; none where there is no such folder.
pub fn folder_files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeMap::new() };
    entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

/// Packs, signs and verifies `contents`.
pub fn verified(contents: &PackageContents) -> VerifiedPlugin {
    let validity = Validity { not_before: UnixSeconds(NOW.0 - 1), expires: UnixSeconds(NOW.0 + 1) };
    let package = pack(contents, validity, &publisher()).unwrap();
    verify(&package, &trust(), NOW).unwrap()
}

/// The kernel `NAME.wat` as a component for the released contract.
pub fn kernel(name: &str) -> Vec<u8> {
    kernel_of(name, &root().join("wit/0.1.0/expert.wit"))
}

/// The kernel `NAME.wat` as a component for the contract in the file `contract`.
pub fn kernel_of(name: &str, contract: &Path) -> Vec<u8> {
    let mut resolve = wit_parser::Resolve::new();
    let package = resolve.push_str("expert.wit", &std::fs::read_to_string(contract).unwrap()).unwrap();
    let version = resolve.packages[package].name.version.clone().unwrap();
    let prelude = text("prelude.wat").replace("@0.1.0", &format!("@{version}"));
    let body = text(&format!("{name}.wat"));
    let prelude = match body.starts_with(";; ---- replaces load") {
        true => prelude.split(";; ---- load").next().unwrap(),
        false => &prelude,
    };
    let mut module = wat::parse_str(format!("(module {prelude} {body})")).unwrap();
    let world = resolve.select_world(&[package], Some("expert-kernel")).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
    ComponentEncoder::default().validate(true).module(&module).unwrap().encode().unwrap()
}

/// The component `refused/NAME.wat`.
pub fn refused(name: &str) -> Vec<u8> {
    wat::parse_str(text(&format!("refused/{name}.wat"))).unwrap()
}

fn text(file: &str) -> String {
    let path = root().join("tests/data/hostile-plugin").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
