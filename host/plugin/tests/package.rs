//! Packages: what is packed is verified, and everything else is refused with its own reason.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer as _, SigningKey};
use kvasir_plugin::*;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
const VALIDITY: Validity = Validity { not_before: UnixSeconds(NOW.0 - 10), expires: UnixSeconds(NOW.0 + 10) };
const MANIFEST: &str = r#"schema = 1
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

fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn trust(seeds: &[u8]) -> TrustStore {
    let named =
        |&seed: &u8| PublisherKey { key: key(seed).verifying_key(), name: Some(format!("publisher {seed}")) };
    TrustStore::from_keys(seeds.iter().map(named)).unwrap()
}

fn contents() -> PackageContents {
    PackageContents {
        manifest: MANIFEST.into(),
        component: b"\0asm component".to_vec(),
        vectors: BTreeMap::from([
            ("b.vector".to_owned(), vec![1; 600]),
            ("a.vector".to_owned(), vec![2; 512]),
        ]),
        ..Default::default()
    }
}

fn packed() -> Vec<u8> {
    pack(&contents(), VALIDITY, &key(1)).unwrap()
}

fn refusal(package: &[u8]) -> PluginError {
    verify(package, &trust(&[1]), NOW).unwrap_err()
}

// A tar of our own, so that the reader is not tested by its own writer.

fn header(name: &[u8], size: usize, kind: u8) -> Vec<u8> {
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

fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, bytes) in files {
        archive.extend(header(name.as_bytes(), bytes.len(), b'0'));
        archive.extend_from_slice(bytes);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

const FILES: [(&str, &[u8]); 2] = [("plugin.toml", MANIFEST.as_bytes()), ("kernel.wasm", b"\0asm component")];

/// A statement on `FILES`.
fn statement() -> Value {
    let subject: Vec<Value> = FILES
        .iter()
        .map(|(name, bytes)| json!({"name": name, "digest": {"sha256": hex::encode(Sha256::digest(bytes))}}))
        .collect();
    let sizes: BTreeMap<&str, usize> = FILES.iter().map(|(name, bytes)| (*name, bytes.len())).collect();
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subject,
        "predicateType": "urn:kvasir:plugin:v1",
        "predicate": {
            "name": "kvasir:fixture", "version": "1.2.3", "kernel_revision": 4,
            "not_before": VALIDITY.not_before.0, "expires": VALIDITY.expires.0, "min_host": "0.1.0",
            "limits": {"memory_bytes": 65536, "fuel_per_call": 1000, "rows_per_call": 16},
            "sizes": sizes,
        },
    })
}

fn signature(payload: &[u8], signer: &SigningKey) -> String {
    let mut message = format!("DSSEv1 28 application/vnd.in-toto+json {} ", payload.len()).into_bytes();
    message.extend_from_slice(payload);
    let id = hex::encode(Sha256::digest(signer.verifying_key().as_bytes()));
    let signature = STANDARD.encode(signer.sign(&message).to_bytes());
    format!(r#"{{"scheme":"ed25519","keyid":"{id}","sig":"{signature}"}}"#)
}

fn envelope(payload: &[u8], signatures: &[String]) -> String {
    let (body, signatures) = (STANDARD.encode(payload), signatures.join(","));
    format!(
        r#"{{"payloadType":"application/vnd.in-toto+json","payload":"{body}","signatures":[{signatures}]}}"#
    )
}

fn sealed(statement: &Value) -> String {
    let payload = serde_json::to_vec(statement).unwrap();
    envelope(&payload, &[signature(&payload, &key(1))])
}

fn with_envelope(envelope: &str) -> Vec<u8> {
    tar(&[&[("statement.dsse.json", envelope.as_bytes())], &FILES[..]].concat())
}

/// The package with a statement changed by `change` and signed again.
fn stating(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut statement = statement();
    change(&mut statement);
    with_envelope(&sealed(&statement))
}

#[test]
fn what_is_packed_is_verified() {
    let package = packed();
    let plugin = verify(&package, &trust(&[1, 2]), NOW).unwrap();
    assert_eq!((plugin.name(), plugin.version().to_string().as_str()), ("kvasir:fixture", "1.2.3"));
    assert_eq!(plugin.publisher(), KeyId::of(&key(1).verifying_key()));
    assert_eq!(plugin.component(), contents().component);
    assert_eq!(*plugin.vectors(), contents().vectors);
    assert_eq!(plugin.validity(), VALIDITY);
    assert_eq!(plugin.manifest().class, Class::Exact);
    assert_eq!(plugin.manifest().limits.rows_per_call, 16);
    // Deterministic, and the digest stands for the contents, not for who signed.
    assert_eq!(packed(), package);
    let other = verify(&pack(&contents(), VALIDITY, &key(2)).unwrap(), &trust(&[2]), NOW).unwrap();
    assert_eq!(other.digest(), plugin.digest());
    let mut changed = contents();
    changed.component.push(0);
    let changed = verify(&pack(&changed, VALIDITY, &key(1)).unwrap(), &trust(&[1]), NOW).unwrap();
    assert_ne!(changed.digest(), plugin.digest());
}

#[test]
fn a_package_written_by_another_hand_is_read() {
    let plugin = verify(&stating(|_| ()), &trust(&[1]), NOW).unwrap();
    let payload = serde_json::to_vec(&statement()).unwrap();
    assert_eq!(plugin.digest().0, <[u8; 32]>::from(Sha256::digest(payload)));
}

#[test]
fn no_bit_of_a_package_is_without_meaning() {
    let package = packed();
    for offset in 0..package.len() {
        for bit in [0x01, 0x20, 0x80] {
            let mut damaged = package.clone();
            damaged[offset] ^= bit;
            assert!(verify(&damaged, &trust(&[1]), NOW).is_err(), "byte {offset} ^ {bit:#x} was accepted");
        }
    }
}

#[test]
fn a_package_cut_short_is_refused_everywhere() {
    let package = packed();
    for length in 0..package.len() {
        let error = refusal(&package[..length]);
        assert_eq!(error, PluginError::Truncated { offset: length });
    }
    let longer = [&package[..], &[0; 512]].concat();
    assert_eq!(refusal(&longer), PluginError::StrayBytes { offset: package.len() });
}

#[test]
fn validity_begins_and_ends() {
    let at = |now| verify(&packed(), &trust(&[1]), UnixSeconds(now));
    let (from, until) = (VALIDITY.not_before, VALIDITY.expires);
    assert!(at(from.0).is_ok() && at(until.0 - 1).is_ok());
    let early = UnixSeconds(from.0 - 1);
    assert_eq!(at(early.0).unwrap_err(), PluginError::NotYetValid { not_before: from, now: early });
    assert_eq!(at(until.0).unwrap_err(), PluginError::Expired { expires: until, now: until });
    let never = Validity { not_before: until, expires: until };
    assert!(matches!(pack(&contents(), never, &key(1)), Err(PluginError::EmptyValidity { .. })));
}

#[test]
fn publishers_must_be_trusted() {
    let id = KeyId::of(&key(1).verifying_key());
    let unknown = verify(&packed(), &trust(&[2, 3]), NOW).unwrap_err();
    assert_eq!(unknown, PluginError::UnknownPublisher { found: id.to_string(), trusted: 2 });
    assert!(matches!(
        verify(&packed(), &TrustStore::default(), NOW),
        Err(PluginError::UnknownPublisher { .. })
    ));
    // Signed by the right key id with another key.
    let payload = serde_json::to_vec(&statement()).unwrap();
    let forged = signature(&payload, &key(2))
        .replace(&KeyId::of(&key(2).verifying_key()).to_string(), &id.to_string());
    assert_eq!(
        refusal(&with_envelope(&envelope(&payload, &[forged]))),
        PluginError::BadSignature { key: id }
    );
    assert_eq!(refusal(&with_envelope(&envelope(&payload, &[]))), PluginError::NotSigned);
}

#[test]
fn several_signatures_count_by_key() {
    let payload = serde_json::to_vec(&statement()).unwrap();
    let sign = |seed| signature(&payload, &key(seed));
    let package = |signatures: &[String]| with_envelope(&envelope(&payload, signatures));
    // An unknown key beside a known one: a publisher that changes keys.
    let plugin = verify(&package(&[sign(9), sign(1)]), &trust(&[1]), NOW).unwrap();
    assert_eq!(plugin.publisher(), KeyId::of(&key(1).verifying_key()));
    let id = KeyId::of(&key(1).verifying_key());
    assert_eq!(refusal(&package(&[sign(1), sign(1)])), PluginError::DuplicateKey { key: id });
    // A trusted key whose signature does not hold condemns the package, whoever else signed.
    let broken = signature(b"another payload", &key(2));
    let error = verify(&package(&[sign(1), broken]), &trust(&[1, 2]), NOW).unwrap_err();
    assert_eq!(error, PluginError::BadSignature { key: KeyId::of(&key(2).verifying_key()) });
    let many: Vec<String> = (1..=MAX_SIGNATURES as u8 + 1).map(sign).collect();
    let (count, limit) = (MAX_SIGNATURES + 1, MAX_SIGNATURES);
    assert_eq!(refusal(&package(&many)), PluginError::TooManySignatures { count, limit });
    assert!(verify(&package(&many[..MAX_SIGNATURES]), &trust(&[1]), NOW).is_ok());
}

#[test]
fn schemes_and_types_must_be_known() {
    let good = sealed(&statement());
    let scheme = good.replace("\"ed25519\"", "\"ecdsa\"");
    assert_eq!(refusal(&with_envelope(&scheme)), PluginError::UnknownScheme { scheme: "ecdsa".to_owned() });
    let other = good.replace("vnd.in-toto+json", "vnd.other+json");
    assert!(matches!(refusal(&with_envelope(&other)), PluginError::PayloadType { .. }));
    for broken in [
        good.replace("\"payload\"", "\"payloads\""),
        good.replace("{\"scheme\"", "{\"more\":1,\"scheme\""),
        good.replace(",\"signatures\"", ", \"signatures\""),
        good.replace("==\"", "=\""),
        String::new(),
        "[".repeat(100_000),
    ] {
        if broken != good {
            assert!(matches!(refusal(&with_envelope(&broken)), PluginError::Envelope { .. }), "{broken:.80}");
        }
    }
}

#[test]
fn statements_must_be_of_a_plugin() {
    type Change = fn(&mut Value);
    let changes: [Change; 9] = [
        |s| s["_type"] = json!("https://in-toto.io/Statement/v0.1"),
        |s| s["predicateType"] = json!("https://slsa.dev/provenance/v1"),
        |s| s["predicate"]["more"] = json!(1),
        |s| s["predicate"]["version"] = json!("1.2"),
        |s| s["subject"][0]["digest"]["sha256"] = json!("00"),
        |s| s["subject"][0]["digest"]["md5"] = json!("00"),
        |s| s["subject"].as_array_mut().unwrap().push(statement()["subject"][0].clone()),
        |s| s["predicate"]["sizes"]["other"] = json!(1),
        |s| drop(s["predicate"]["sizes"].as_object_mut().unwrap().remove("kernel.wasm")),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let error = refusal(&stating(change));
        assert!(matches!(error, PluginError::Statement { .. }), "change {index}: {error:?}");
    }
    let payload = b"not even JSON";
    let error = refusal(&with_envelope(&envelope(payload, &[signature(payload, &key(1))])));
    assert!(matches!(error, PluginError::Statement { .. }));
}

#[test]
fn old_hosts_are_told() {
    let error = refusal(&stating(|s| s["predicate"]["min_host"] = json!("99.0.0")));
    assert_eq!(
        error,
        PluginError::HostTooOld { min_host: Version { major: 99, minor: 0, patch: 0 }, host: HOST_VERSION }
    );
}

#[test]
fn files_and_statement_must_match() {
    let name = |name: &str| name.to_owned();
    let (good, envelope) = (statement(), sealed(&statement()));
    let package =
        |files: &[(&str, &[u8])]| tar(&[&[("statement.dsse.json", envelope.as_bytes())], files].concat());
    let [manifest, kernel] = FILES;
    assert_eq!(
        refusal(&package(&[manifest, ("kernel.wasm", b"\0asm Component")])),
        PluginError::DigestMismatch {
            name: name("kernel.wasm"),
            signed: good["subject"][1]["digest"]["sha256"].as_str().unwrap().to_owned(),
            found: hex::encode(Sha256::digest(b"\0asm Component")),
        }
    );
    assert_eq!(
        refusal(&package(&[manifest, ("kernel.wasm", b"\0asm")])),
        PluginError::SizeMismatch { name: name("kernel.wasm"), signed: 14, found: 4 }
    );
    assert_eq!(refusal(&package(&[manifest])), PluginError::SignedButMissing { name: name("kernel.wasm") });
    assert_eq!(
        refusal(&package(&[manifest, kernel, ("vectors/x", b"")])),
        PluginError::Unsigned { name: name("vectors/x") }
    );
    // A statement that signs too little.
    let less = stating(|s| {
        s["subject"].as_array_mut().unwrap().pop();
        s["predicate"]["sizes"].as_object_mut().unwrap().remove("kernel.wasm");
    });
    assert_eq!(refusal(&less), PluginError::Unsigned { name: name("kernel.wasm") });
    assert_eq!(refusal(&tar(&FILES)), PluginError::MissingFile { name: "statement.dsse.json" });
    assert_eq!(refusal(&tar(&[])), PluginError::MissingFile { name: "statement.dsse.json" });
    for (field, value) in [
        ("name", json!("kvasir:other")),
        ("version", json!("1.2.4")),
        ("kernel_revision", json!(5)),
        ("min_host", json!("0.0.9")),
        ("limits", json!({"memory_bytes": 65537, "fuel_per_call": 1000, "rows_per_call": 16})),
    ] {
        let error = refusal(&stating(|s| s["predicate"][field] = value));
        assert!(
            matches!(error, PluginError::Disagreement { field: found, .. } if found == field),
            "{field}: {error}"
        );
    }
}

#[test]
fn archives_hold_plain_files_alone() {
    let entry = |name: &[u8], kind| [header(name, 0, kind), vec![0; 1024]].concat();
    for (kind, text) in [
        (b'1', "a hard link"),
        (b'2', "a symbolic link"),
        (b'3', "a device"),
        (b'5', "a folder"),
        (b'6', "a pipe"),
        (b'L', "an extension record"),
        (b'x', "an extension record"),
        (b'g', "an extension record"),
        (0, "of an unknown kind"),
        (b'7', "of an unknown kind"),
    ] {
        let error = refusal(&entry(b"kernel.wasm", kind));
        assert_eq!(error, PluginError::NotAPlainFile { name: "kernel.wasm".to_owned(), kind: text });
    }
    for name in [
        &b"../kernel.wasm"[..],
        b"/etc/passwd",
        b"vectors/../kernel.wasm",
        b"vectors//x",
        b"vectors/",
        b"./kernel.wasm",
        b"vectors\\x",
        b"C:x",
        b"kernel.wasm\x1b",
        b"",
        b"\xff\xfe",
        &[b'a'; 100],
    ] {
        let error = refusal(&entry(name, b'0'));
        assert!(matches!(error, PluginError::UnsafePath { .. }), "{name:?}: {error:?}");
    }
    for name in [
        "README.md",
        "shaders/x.spv",
        "shaders/deep/x.wgsl",
        "shaders/.wgsl",
        "vectors/deep/x",
        "vectors/.hidden",
        "Kernel.wasm",
    ] {
        let error = refusal(&tar(&[(name, b"")]));
        assert_eq!(error, PluginError::UnexpectedFile { name: name.to_owned() });
    }
}

#[test]
fn archives_are_canonical() {
    let envelope = sealed(&statement());
    let sealed = ("statement.dsse.json", envelope.as_bytes());
    let [manifest, kernel] = FILES;
    let name = |name: &str| name.to_owned();
    let twice = tar(&[sealed, manifest, kernel, kernel]);
    assert_eq!(refusal(&twice), PluginError::DuplicateFile { name: name("kernel.wasm") });
    let twice_apart = tar(&[sealed, manifest, kernel, manifest]);
    assert_eq!(refusal(&twice_apart), PluginError::DuplicateFile { name: name("plugin.toml") });
    assert_eq!(
        refusal(&tar(&[manifest, sealed])),
        PluginError::OutOfOrder { name: name("statement.dsse.json") }
    );
    // A mode that differs, with the checksum of the header as it stands.
    let good = tar(&[sealed, manifest, kernel]);
    let mut executable = good.clone();
    executable[104] = b'7';
    assert_eq!(refusal(&executable), PluginError::HeaderNotCanonical { offset: 104 });
    let mut size = good.clone();
    size[124] = b'9';
    assert_eq!(refusal(&size), PluginError::HeaderNotCanonical { offset: 124 });
    let mut padding = tar(&[("plugin.toml", b"x")]);
    padding[600] = 1;
    assert_eq!(refusal(&padding), PluginError::StrayBytes { offset: 600 });
    let mut end = tar(&[]);
    end[700] = 1;
    assert_eq!(refusal(&end), PluginError::StrayBytes { offset: 700 });
}

#[test]
fn sizes_are_limited() {
    let too_large = vec![0; MAX_PACKAGE_BYTES + 1];
    let (bytes, limit) = (MAX_PACKAGE_BYTES + 1, MAX_PACKAGE_BYTES);
    assert_eq!(refusal(&too_large), PluginError::PackageTooLarge { bytes, limit });
    for (name, limit) in [
        ("statement.dsse.json", MAX_ENVELOPE_BYTES),
        ("plugin.toml", MAX_MANIFEST_BYTES),
        ("kernel.wasm", MAX_COMPONENT_BYTES),
        ("shaders/x.wgsl", MAX_SHADER_BYTES),
        ("vectors/x", MAX_VECTOR_BYTES),
    ] {
        // The size in the header is refused; there need not be so many bytes.
        let error = refusal(&header(name.as_bytes(), limit + 1, b'0'));
        assert_eq!(
            error,
            PluginError::FileTooLarge { name: name.to_owned(), bytes: limit as u64 + 1, limit }
        );
    }
    let vectors = |count: usize| PackageContents {
        vectors: (0..count).map(|index| (format!("{index:03}"), Vec::new())).collect(),
        ..contents()
    };
    // Statement, manifest and component are files too.
    let most = pack(&vectors(MAX_FILES - 3), VALIDITY, &key(1)).unwrap();
    verify(&most, &trust(&[1]), NOW).unwrap();
    let error = pack(&vectors(MAX_FILES - 2), VALIDITY, &key(1)).unwrap_err();
    assert_eq!(error, PluginError::TooManyFiles { limit: MAX_FILES });
    let names: Vec<String> = (0..MAX_FILES).map(|index| format!("vectors/{index:03}")).collect();
    let mut files: Vec<(&str, &[u8])> = vec![("statement.dsse.json", b"")];
    files.extend(names.iter().map(|name| (name.as_str(), &b""[..])));
    assert_eq!(refusal(&tar(&files)), PluginError::TooManyFiles { limit: MAX_FILES });
    let large = PackageContents { component: vec![0; MAX_COMPONENT_BYTES + 1], ..contents() };
    assert!(matches!(pack(&large, VALIDITY, &key(1)), Err(PluginError::FileTooLarge { .. })));
    let many_large = PackageContents {
        vectors: (0..5).map(|index| (format!("{index}"), vec![0; MAX_VECTOR_BYTES])).collect(),
        ..contents()
    };
    assert!(matches!(pack(&many_large, VALIDITY, &key(1)), Err(PluginError::PackageTooLarge { .. })));
    let unsafe_name =
        PackageContents { vectors: BTreeMap::from([("../x".to_owned(), vec![])]), ..contents() };
    assert!(matches!(pack(&unsafe_name, VALIDITY, &key(1)), Err(PluginError::UnexpectedFile { .. })));
}

#[test]
fn manifests_say_what_is_known_and_nothing_else() {
    assert!(Manifest::parse(MANIFEST.as_bytes()).is_ok());
    for (from, to) in [
        ("schema = 1", "schema = 2"),
        ("schema = 1", "schema = 1\nnetwork = true"),
        ("memory_bytes = 65536", "memory_bytes = 0"),
        ("memory_bytes = 65536", "memory_bytes = -1"),
        ("[limits]", "[limits]\nfiles = 1"),
        ("kvasir:fixture", "Kvasir:fixture"),
        ("kvasir:fixture", "a:b:c"),
        ("kvasir:fixture", "../x"),
        ("\"exact\"", "\"almost\""),
        ("[\"Q4_K\"]", "[]"),
        ("\"1.2.3\"", "\"1.2\""),
        ("min_host", "max_host"),
    ] {
        assert!(MANIFEST.contains(from));
        let text = MANIFEST.replace(from, to);
        let error = Manifest::parse(text.as_bytes()).unwrap_err();
        assert!(matches!(error, PluginError::Manifest { .. }), "{to}: {error:?}");
    }
    assert!(matches!(Manifest::parse(b"\xff"), Err(PluginError::Manifest { .. })));
}
