//! The shader of a package: what is packed is read back, and everything else is refused with its own reason.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

use std::collections::BTreeMap;

use ed25519_dalek::SigningKey;
use kvasir_plugin::*;

const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
const VALIDITY: Validity = Validity { not_before: UnixSeconds(NOW.0 - 10), expires: UnixSeconds(NOW.0 + 10) };
const SOURCE: &str = "// äußerst kurz\n@compute @workgroup_size(64) fn main() {}\n";
const MANIFEST: &str = r#"schema = 1
name = "kvasir:fixture"
version = "1.2.3"
kernel_revision = 4
world = "kvasir:expert/expert-kernel@0.1.0"
class = "exact"
formats = ["Q4_K", "Q8_0", "F16"]
min_host = "0.1.0"

[limits]
memory_bytes = 65536
fuel_per_call = 1000
rows_per_call = 16
"#;
const TABLE: &str = r#"
[shader]
file = "fixture.wgsl"
formats = ["Q8_0", "Q4_K"]

[shader.tolerance.Q4_K]
max_abs = 1e-3
max_rel = 2e-3
cosine = 0.9999

[shader.tolerance.Q8_0]
max_abs = 0
max_rel = 0.001
cosine = 1
"#;

fn key() -> SigningKey {
    SigningKey::from_bytes(&[1; 32])
}

fn contents(table: &str, shaders: &[(&str, &[u8])]) -> PackageContents {
    PackageContents {
        manifest: format!("{MANIFEST}{table}").into_bytes(),
        component: b"\0asm component".to_vec(),
        shaders: shaders.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect(),
        vectors: BTreeMap::from([("a.vector".to_owned(), vec![2; 512])]),
        ..Default::default()
    }
}

fn verified(package: &[u8]) -> Result<VerifiedPlugin, PluginError> {
    let own = PublisherKey { key: key().verifying_key(), name: None };
    verify(package, &TrustStore::from_keys([own]).unwrap(), NOW)
}

fn packed(contents: &PackageContents) -> Result<Vec<u8>, PluginError> {
    pack(contents, VALIDITY, &key())
}

#[test]
fn a_shader_is_read_back_as_it_was_packed() {
    let package = packed(&contents(TABLE, &[("fixture.wgsl", SOURCE.as_bytes())])).unwrap();
    let plugin = verified(&package).unwrap();
    let shader = plugin.shader().unwrap();
    assert_eq!((shader.file(), shader.source()), ("fixture.wgsl", SOURCE));
    assert_eq!(shader.formats(), ["Q8_0", "Q4_K"]);
    assert_eq!(shader.tolerance("Q4_K"), Some(Tolerance { max_abs: 1e-3, max_rel: 2e-3, cosine: 0.9999 }));
    assert_eq!(shader.tolerance("Q8_0"), Some(Tolerance { max_abs: 0.0, max_rel: 0.001, cosine: 1.0 }));
    assert_eq!(shader.tolerance("F16"), None);
    assert!(plugin.vectors().contains_key("a.vector") && plugin.vectors().len() == 1);
    // The signature covers every byte of it.
    let at = package.windows(SOURCE.len()).position(|window| window == SOURCE.as_bytes()).unwrap();
    let mut altered = package.clone();
    altered[at] ^= 1;
    let name = BlobDigest::of(SOURCE.as_bytes());
    assert!(matches!(verified(&altered), Err(PluginError::BlobAltered { name: blob, .. }) if blob == name));
    // Another shader is another plugin.
    let other = packed(&contents(TABLE, &[("fixture.wgsl", b"// another\n")])).unwrap();
    assert_ne!(verified(&other).unwrap().digest(), plugin.digest());
}

#[test]
fn a_package_needs_no_shader() {
    let plugin = verified(&packed(&contents("", &[])).unwrap()).unwrap();
    assert!(plugin.shader().is_none() && plugin.manifest().shader.is_none());
}

#[test]
fn table_and_file_belong_together() {
    let source = ("fixture.wgsl", SOURCE.as_bytes());
    let name = |name: &str| name.to_owned();
    for (table, shaders, expected) in [
        (TABLE, &[][..], PluginError::ShaderMissing { name: name("shaders/fixture.wgsl") }),
        ("", &[source][..], PluginError::ShaderNotNamed { name: name("shaders/fixture.wgsl") }),
        (
            TABLE,
            &[source, ("more.wgsl", b"".as_slice())][..],
            PluginError::ShaderNotNamed { name: name("shaders/more.wgsl") },
        ),
        (
            TABLE,
            &[("fixture.wgsl", b"// \xff".as_slice())][..],
            PluginError::ShaderNotUtf8 { name: name("shaders/fixture.wgsl"), offset: 3 },
        ),
        (
            TABLE,
            &[source, ("../x.wgsl", b"".as_slice())][..],
            PluginError::UnexpectedFile { name: name("shaders/../x.wgsl") },
        ),
    ] {
        assert_eq!(packed(&contents(table, shaders)).unwrap_err(), expected);
    }
    let most = vec![b' '; MAX_SHADER_BYTES];
    packed(&contents(TABLE, &[("fixture.wgsl", &most)])).unwrap();
    let large = vec![b' '; MAX_SHADER_BYTES + 1];
    assert_eq!(
        packed(&contents(TABLE, &[("fixture.wgsl", &large)])).unwrap_err(),
        PluginError::FileTooLarge {
            name: name("shaders/fixture.wgsl"),
            bytes: MAX_SHADER_BYTES as u64 + 1,
            limit: MAX_SHADER_BYTES
        }
    );
}

#[test]
fn tables_say_what_is_known_and_within_range() {
    for (from, to, said) in [
        ("file = \"fixture.wgsl\"", "file = \"../fixture.wgsl\"", "plain name"),
        ("file = \"fixture.wgsl\"", "file = \"fixture.spv\"", ".wgsl"),
        ("file = \"fixture.wgsl\"", "file = \"\"", "plain name"),
        ("file = \"fixture.wgsl\"", "", "missing field"),
        ("file = \"fixture.wgsl\"", "file = \"fixture.wgsl\"\nentry = \"main\"", "unknown field"),
        ("[\"Q8_0\", \"Q4_K\"]", "[]", "empty"),
        ("[\"Q8_0\", \"Q4_K\"]", "[\"Q8_0\", \"Q4_K\", \"Q5_K\"]", "Q5_K"),
        ("[\"Q8_0\", \"Q4_K\"]", "[\"Q8_0\", \"Q4_K\", \"Q8_0\"]", "twice"),
        ("[\"Q8_0\", \"Q4_K\"]", "[\"Q8_0\", \"Q4_K\", \"F16\"]", "shader.tolerance.F16"),
        ("[\"Q8_0\", \"Q4_K\"]", "[\"Q8_0\"]", "shader.tolerance.Q4_K"),
        ("max_abs = 1e-3", "max_abs = -1e-3", "max_abs"),
        ("max_abs = 1e-3", "max_abs = 1.5", "max_abs"),
        ("max_abs = 1e-3", "max_abs = nan", "max_abs"),
        ("max_abs = 1e-3", "max_abs = inf", "max_abs"),
        ("max_abs = 1e-3", "", "max_abs"),
        ("max_rel = 2e-3", "max_rel = 0.2", "max_rel"),
        ("cosine = 0.9999", "cosine = 0.98", "cosine"),
        ("cosine = 0.9999", "cosine = 1.01", "cosine"),
        ("cosine = 0.9999", "cosine = 0.9999\nmean = 1", "unknown field"),
    ] {
        assert!(TABLE.contains(from));
        let text = format!("{MANIFEST}{}", TABLE.replace(from, to));
        let error = Manifest::parse(text.as_bytes()).unwrap_err();
        let PluginError::Manifest { reason } = &error else { panic!("{to}: {error:?}") };
        assert!(reason.contains(said), "{to}: {reason}");
    }
}
