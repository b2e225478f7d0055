//! Packages: what is packed is verified, and everything else is refused with its own reason.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

use std::collections::BTreeMap;

use kvasir_plugin::*;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

#[path = "../../../tests/data/hostile-package/by_hand.rs"]
#[allow(dead_code, unused_qualifications)] // Shared with the hostile corpus.
mod by_hand;
use by_hand::{
    BILL, KERNEL, MANIFEST, NOW, Stages, VALIDITY, envelope, files, fixture, header, key, signature, tar,
    trust,
};

fn contents() -> PackageContents {
    PackageContents {
        manifest: MANIFEST.into(),
        component: KERNEL.to_vec(),
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

fn unsigned() -> Stages {
    Stages::unsigned(files())
}

fn statement() -> Value {
    unsigned().statement()
}

fn sealed(statement: &Value) -> String {
    let payload = serde_json::to_vec(statement).unwrap();
    envelope(&payload, &[signature(&payload, &key(1))])
}

fn with_envelope(envelope: &str) -> Vec<u8> {
    unsigned().with_envelope(envelope.as_bytes()).package()
}

/// The package with a statement changed by `change` and signed again.
fn stating(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    unsigned().signed(&[1], change).package()
}

fn named(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let owned: Vec<_> = entries.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
    tar(&owned)
}

#[test]
fn what_is_packed_is_verified() {
    let package = packed();
    let plugin = verify(&package, &trust(&[1, 2]), NOW).unwrap();
    assert_eq!((plugin.name(), plugin.version().to_string().as_str()), ("kvasir:fixture", "1.2.3"));
    assert_eq!(plugin.publisher(), by_hand::id(1));
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
    let id = by_hand::id(1);
    let unknown = verify(&packed(), &trust(&[2, 3]), NOW).unwrap_err();
    assert_eq!(unknown, PluginError::UnknownPublisher { found: id.to_string(), trusted: 2 });
    assert!(matches!(
        verify(&packed(), &TrustStore::default(), NOW),
        Err(PluginError::UnknownPublisher { .. })
    ));
    // Signed by the right key id with another key.
    let payload = serde_json::to_vec(&statement()).unwrap();
    let forged = signature(&payload, &key(2)).replace(&by_hand::id(2).to_string(), &id.to_string());
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
    assert_eq!(plugin.publisher(), by_hand::id(1));
    let id = by_hand::id(1);
    assert_eq!(refusal(&package(&[sign(1), sign(1)])), PluginError::DuplicateKey { key: id });
    // A trusted key whose signature does not hold condemns the package, whoever else signed.
    let broken = signature(b"another payload", &key(2));
    let error = verify(&package(&[sign(1), broken]), &trust(&[1, 2]), NOW).unwrap_err();
    assert_eq!(error, PluginError::BadSignature { key: by_hand::id(2) });
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
    let good = unsigned();
    let sealed = sealed(&good.statement());
    let with = |change: fn(&mut BTreeMap<String, Vec<u8>>)| {
        let mut files = files();
        change(&mut files);
        Stages::unsigned(files).with_envelope(sealed.as_bytes()).package()
    };
    assert_eq!(
        refusal(&with(|files| files.get_mut("kernel.wasm").unwrap()[5] = b'C')),
        PluginError::DigestMismatch {
            name: name("kernel.wasm"),
            signed: by_hand::hex(KERNEL),
            found: by_hand::hex(b"\0asm Component"),
        }
    );
    assert_eq!(
        refusal(&with(|files| files.get_mut("kernel.wasm").unwrap().truncate(4))),
        PluginError::SizeMismatch { name: name("kernel.wasm"), signed: 14, found: 4 }
    );
    assert_eq!(
        refusal(&with(|files| drop(files.remove("sbom.cdx.json")))),
        PluginError::SignedButMissing { name: name("sbom.cdx.json") }
    );
    assert_eq!(
        refusal(&with(|files| drop(files.insert("vectors/x".to_owned(), Vec::new())))),
        PluginError::Unsigned { name: name("vectors/x") }
    );
    for left_out in ["kernel.wasm", "image.manifest.json"] {
        // A statement that signs too little.
        let less = stating(|s| {
            let subject = s["subject"].as_array_mut().unwrap();
            subject.retain(|subject| subject["name"] != left_out);
            s["predicate"]["sizes"].as_object_mut().unwrap().remove(left_out);
        });
        assert_eq!(refusal(&less), PluginError::Unsigned { name: name(left_out) });
    }
    assert_eq!(refusal(&good.package()), PluginError::NotSigned);
    assert_eq!(refusal(&tar(&[])), PluginError::MissingFile { name: "oci-layout" });
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
fn a_bill_of_materials_must_be_there_and_be_one() {
    let mut lacking = files();
    lacking.remove("sbom.cdx.json");
    let lacking = Stages::unsigned(lacking).signed(&[1], |_| ()).package();
    assert_eq!(refusal(&lacking), PluginError::MissingFile { name: "sbom.cdx.json" });
    for text in
        ["", "[]", "{\"bomFormat\":\"SPDX\",\"specVersion\":\"1.6\"}", "{\"bomFormat\":\"CycloneDX\"}"]
    {
        let mut files = files();
        files.insert("sbom.cdx.json".to_owned(), text.as_bytes().to_vec());
        let package = Stages::unsigned(files).signed(&[1], |_| ()).package();
        assert!(matches!(refusal(&package), PluginError::Sbom { .. }), "{text}");
        let contents = PackageContents { sbom: text.as_bytes().to_vec(), ..contents() };
        assert_eq!(pack(&contents, VALIDITY, &key(1)).is_err(), !text.is_empty(), "{text}");
    }
    // One is written where there is none; one's own is carried as it is.
    let plugin = verify(&packed(), &trust(&[1]), NOW).unwrap();
    let bill: Value = serde_json::from_slice(plugin.sbom()).unwrap();
    assert_eq!(bill["components"].as_array().unwrap().len(), 4);
    let own = pack(&PackageContents { sbom: BILL.to_vec(), ..contents() }, VALIDITY, &key(1)).unwrap();
    assert_eq!(verify(&own, &trust(&[1]), NOW).unwrap().sbom(), BILL);
}

#[test]
fn packing_and_signing_apart_gives_the_same_bytes() {
    let unsigned = pack_unsigned(&contents()).unwrap();
    assert_eq!(refusal(&unsigned), PluginError::NotSigned);
    assert_eq!(add_signature(&unsigned, &key(1)), Err(PluginError::NotSigned));
    let signed = sign(&unsigned, VALIDITY, &key(1)).unwrap();
    assert_eq!(signed, packed());
    assert_eq!(sign(&signed, VALIDITY, &key(1)), Err(PluginError::AlreadySigned));
    assert_eq!(add_signature(&signed, &key(1)), Err(PluginError::DuplicateKey { key: by_hand::id(1) }));
    // In whatever order several sign.
    let both = add_signature(&signed, &key(2)).unwrap();
    let other = add_signature(&pack(&contents(), VALIDITY, &key(2)).unwrap(), &key(1)).unwrap();
    assert_eq!(both, other);
    let plugin = verify(&both, &trust(&[1, 2]), NOW).unwrap();
    assert_eq!(*plugin.publishers(), [by_hand::id(1), by_hand::id(2)].into());
    assert_eq!(plugin.digest(), verify(&signed, &trust(&[1]), NOW).unwrap().digest());
    // Nobody signs a statement that does not fit.
    let misfit = stating(|s| s["predicate"]["version"] = json!("9.9.9"));
    assert!(matches!(add_signature(&misfit, &key(2)), Err(PluginError::Disagreement { .. })));
    let mut full = signed;
    for seed in 2..=MAX_SIGNATURES as u8 {
        full = add_signature(&full, &key(seed)).unwrap();
    }
    assert!(matches!(add_signature(&full, &key(99)), Err(PluginError::TooManySignatures { .. })));
}

#[test]
fn a_layout_is_taken_apart_and_put_together() {
    let package = packed();
    let layout = layout::Layout::from_package(&package).unwrap();
    assert_eq!(layout.to_package(), package);
    let manifests = layout.manifests().unwrap();
    let again = layout::Layout::assemble(layout.blobs.clone(), manifests).unwrap();
    assert_eq!(again, layout);
    // The image is what other tools carry: a configuration and one layer, the component.
    let named = layout.named_by(&manifests.image).unwrap();
    assert_eq!(named.len(), 2);
    assert!(named.contains(&BlobDigest::of(KERNEL)));
    let all: Vec<BlobDigest> = [manifests.image, manifests.files, manifests.signature.unwrap()].into();
    let reached: std::collections::BTreeSet<BlobDigest> =
        all.iter().flat_map(|manifest| layout.named_by(manifest).unwrap()).chain(all.clone()).collect();
    assert_eq!(reached, layout.blobs.keys().copied().collect());
    let unsigned = layout::Layout::from_package(&pack_unsigned(&contents()).unwrap()).unwrap();
    assert_eq!(unsigned.manifests().unwrap().signature, None);
}

#[test]
fn documents_must_be_those_of_the_files() {
    let fixture = fixture();
    let changed = |what: &str, change: &dyn Fn(&mut Stages)| {
        let mut stages = fixture.clone();
        change(&mut stages);
        let error = refusal(&stages.package());
        (what.to_owned(), error)
    };
    let text = |bytes: &[u8], from: &str, to: &str| {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(text.contains(from), "{from} is not in {text}");
        text.replacen(from, to, 1).into_bytes()
    };
    // Another type for the same bytes.
    let (_, error) = changed("media type", &|stages| {
        stages.list = text(&stages.list, "application/toml", "text/plain");
        stages.index = by_hand::index(&stages.image, &stages.list, stages.signature.as_deref());
    });
    assert_eq!(error, PluginError::NotCanonical { what: "manifest of files" });
    let (_, error) = changed("space", &|stages| stages.index = text(&stages.index, "{", "{ "));
    assert_eq!(error, PluginError::NotCanonical { what: "index.json" });
    let (_, error) = changed("unknown field", &|stages| {
        stages.index = text(&stages.index, "{", "{\"more\":1,");
    });
    assert!(matches!(error, PluginError::Oci { what: "index.json", .. }), "{error}");
    let (_, error) = changed("field twice", &|stages| {
        stages.index = text(&stages.index, "{", "{\"schemaVersion\":2,");
    });
    assert!(matches!(error, PluginError::Oci { what: "index.json", .. }), "{error}");
    let (_, error) = changed("size", &|stages| {
        let size = format!("\"size\":{}", stages.image.len());
        stages.index = text(&stages.index, &size, "\"size\":7");
    });
    assert!(matches!(error, PluginError::BlobSize { by: "index.json", said: 7, .. }), "{error}");
    let (_, error) = changed("stray", &|stages| stages.stray.push(b"stray".to_vec()));
    assert_eq!(error, PluginError::BlobStray { digest: BlobDigest::of(b"stray") });
    let mut entries = fixture.entries();
    let (name, bytes) = entries.last_mut().unwrap();
    bytes[0] ^= 1;
    let found = BlobDigest::of(bytes);
    let name = BlobDigest::parse(&name.replace("blobs/sha256/", "sha256:")).unwrap();
    assert_eq!(refusal(&tar(&entries)), PluginError::BlobAltered { name, found });
    let mut entries = fixture.entries();
    entries.pop();
    assert!(matches!(refusal(&tar(&entries)), PluginError::BlobMissing { .. }));
    let mut entries = fixture.entries();
    entries[0].1.push(b' ');
    assert!(matches!(refusal(&tar(&entries)), PluginError::Oci { what: "oci-layout", .. }));
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
        let error = refusal(&entry(b"index.json", kind));
        assert_eq!(error, PluginError::NotAPlainFile { name: "index.json".to_owned(), kind: text });
    }
    for name in [
        &b"../index.json"[..],
        b"/etc/passwd",
        b"blobs/../index.json",
        b"blobs//x",
        b"blobs/",
        b"./index.json",
        b"blobs\\x",
        b"C:x",
        b"index.json\x1b",
        b"",
        b"\xff\xfe",
        &[b'a'; 100],
    ] {
        let error = refusal(&entry(name, b'0'));
        assert!(matches!(error, PluginError::UnsafePath { .. }), "{name:?}: {error:?}");
    }
    let upper = format!("blobs/sha256/{}", "A".repeat(64));
    for name in [
        "README.md",
        "blobs/sha256",
        "blobs/sha256/00",
        "blobs/sha512/00",
        "Index.json",
        "plugin.toml",
        &upper,
    ] {
        let error = refusal(&named(&[(name, b"")]));
        assert_eq!(error, PluginError::UnexpectedEntry { name: name.to_owned() });
    }
}

#[test]
fn layers_have_names_that_the_format_knows() {
    for name in [
        "README.md",
        "../plugin.toml",
        "/etc/passwd",
        "vectors/../../x",
        "shaders/x.spv",
        "shaders/deep/x.wgsl",
        "shaders/.wgsl",
        "vectors/deep/x",
        "vectors/.hidden",
        "Kernel.wasm",
    ] {
        let mut files = files();
        files.insert(name.to_owned(), b"x".to_vec());
        let package = Stages::unsigned(files).signed(&[1], |_| ()).package();
        assert_eq!(refusal(&package), PluginError::UnexpectedFile { name: name.to_owned() });
    }
    // The component once more, among the other files.
    let mut stages = unsigned();
    let layers = [("kernel.wasm", KERNEL), ("plugin.toml", MANIFEST.as_bytes()), ("sbom.cdx.json", BILL)]
        .map(|(name, bytes)| by_hand::layer(name, bytes));
    stages.list = by_hand::referrer(layout::FILES_TYPE, &layers.join(","), &stages.image);
    let package = stages.signed(&[1], |_| ()).package();
    assert_eq!(refusal(&package), PluginError::DuplicateFile { name: "kernel.wasm".to_owned() });
}

#[test]
fn archives_are_canonical() {
    let good = fixture().entries();
    let name = |index: usize| good[index].0.clone();
    let in_order = |order: &[usize]| {
        let entries: Vec<_> = order.iter().map(|&index| good[index].clone()).collect();
        refusal(&tar(&entries))
    };
    assert_eq!(in_order(&[0, 1, 2, 2]), PluginError::DuplicateFile { name: name(2) });
    assert_eq!(in_order(&[0, 1, 2, 3, 1]), PluginError::DuplicateFile { name: name(1) });
    assert_eq!(in_order(&[1, 0]), PluginError::OutOfOrder { name: name(0) });
    assert_eq!(in_order(&[0, 1, 3, 2]), PluginError::OutOfOrder { name: name(2) });
    // A mode that differs, with the checksum of the header as it stands.
    let good = fixture().package();
    let mut executable = good.clone();
    executable[104] = b'7';
    assert_eq!(refusal(&executable), PluginError::HeaderNotCanonical { offset: 104 });
    let mut size = good.clone();
    size[124] = b'9';
    assert_eq!(refusal(&size), PluginError::HeaderNotCanonical { offset: 124 });
    let mut padding = named(&[("oci-layout", b"x")]);
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
    let blob = format!("blobs/sha256/{}", "0".repeat(64));
    for (name, limit) in [
        ("oci-layout", MAX_OCI_LAYOUT_BYTES),
        ("index.json", MAX_INDEX_BYTES),
        (blob.as_str(), MAX_BLOB_BYTES),
    ] {
        // The size in the header is refused; there need not be so many bytes.
        let error = refusal(&header(name.as_bytes(), limit + 1, b'0'));
        assert_eq!(
            error,
            PluginError::FileTooLarge { name: name.to_owned(), bytes: limit as u64 + 1, limit }
        );
    }
    for (name, limit) in [
        ("plugin.toml", MAX_MANIFEST_BYTES),
        ("kernel.wasm", MAX_COMPONENT_BYTES),
        ("sbom.cdx.json", MAX_SBOM_BYTES),
        ("shaders/x.wgsl", MAX_SHADER_BYTES),
    ] {
        let mut files = files();
        files.insert(name.to_owned(), vec![b' '; limit + 1]);
        let error = refusal(&Stages::unsigned(files).package());
        assert_eq!(
            error,
            PluginError::FileTooLarge { name: name.to_owned(), bytes: limit as u64 + 1, limit }
        );
    }
    let large = vec![b' '; MAX_ENVELOPE_BYTES + 1];
    let error = refusal(&unsigned().with_envelope(&large).package());
    assert!(matches!(error, PluginError::FileTooLarge { limit: MAX_ENVELOPE_BYTES, .. }), "{error}");
    let mut document = unsigned();
    document.list.resize(MAX_OCI_DOCUMENT_BYTES + 1, b' ');
    document.index = by_hand::index(&document.image, &document.list, None);
    let error = refusal(&document.package());
    assert!(matches!(error, PluginError::FileTooLarge { limit: MAX_OCI_DOCUMENT_BYTES, .. }), "{error}");
    let vectors = |count: usize| PackageContents {
        vectors: (0..count).map(|index| (format!("{index:03}"), vec![index as u8])).collect(),
        ..contents()
    };
    // Manifest, component and bill of materials are files too.
    let most = pack(&vectors(MAX_FILES - 3), VALIDITY, &key(1)).unwrap();
    verify(&most, &trust(&[1]), NOW).unwrap();
    let error = pack(&vectors(MAX_FILES - 2), VALIDITY, &key(1)).unwrap_err();
    assert_eq!(error, PluginError::TooManyFiles { limit: MAX_FILES });
    let mut many = files();
    many.extend((0..MAX_FILES - 2).map(|index| (format!("vectors/{index}"), vec![])));
    assert_eq!(refusal(&Stages::unsigned(many).package()), PluginError::TooManyFiles { limit: MAX_FILES });
    let mut names: Vec<String> = (0..MAX_ENTRIES).map(|index| format!("blobs/sha256/{index:064}")).collect();
    names.splice(0..0, ["oci-layout".to_owned(), "index.json".to_owned()]);
    let entries: Vec<(String, Vec<u8>)> = names.into_iter().map(|name| (name, Vec::new())).collect();
    assert_eq!(refusal(&tar(&entries)), PluginError::TooManyEntries { limit: MAX_ENTRIES });
    // One blob under many names: a small package of many bytes.
    let mut bomb = files();
    bomb.extend((0..5).map(|index| (format!("vectors/{index}"), vec![0; MAX_VECTOR_BYTES])));
    let bomb = Stages::unsigned(bomb).package();
    assert!(bomb.len() < MAX_VECTOR_BYTES + 65_536);
    assert_eq!(refusal(&bomb), PluginError::UnpackedTooLarge { limit: MAX_PACKAGE_BYTES });
    let large = PackageContents { component: vec![0; MAX_COMPONENT_BYTES + 1], ..contents() };
    assert!(matches!(pack(&large, VALIDITY, &key(1)), Err(PluginError::FileTooLarge { .. })));
    let many_large = PackageContents {
        vectors: (0..4).map(|index| (format!("{index}"), vec![index; MAX_VECTOR_BYTES - 4096])).collect(),
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
    // Line breaks would stand as lines of their own in a report on the package.
    for (key, line) in [
        ("world", r#"world = "kvasir:expert/expert-kernel@0.1.0\nsigned    by everybody""#),
        ("formats", r#"formats = ["F32\nsigned    by everybody"]"#),
        ("license", r#"license = "MIT\u001b[2J""#),
        ("description", r#"description = "one\ntwo""#),
    ] {
        let others = MANIFEST.lines().filter(|other| !other.starts_with(key));
        let text: Vec<&str> = std::iter::once(line).chain(others).collect();
        let said = Manifest::parse(text.join("\n").as_bytes()).unwrap_err().to_string();
        assert!(said.contains(key) && said.contains("control character"), "{said}");
        assert!(!said.contains(char::is_control), "{said}");
    }
    let unknown = format!("\"a\\nsigned    by everybody\" = 1\n{MANIFEST}");
    let said = Manifest::parse(unknown.as_bytes()).unwrap_err().to_string();
    assert!(!said.lines().any(|line| line.starts_with("signed")), "{said}");
}
