//! The generator of hostile packages: each name, the bytes and the error. What is signed is made here; what is only an archive of
//! evil form lies beside the table as a file.

use std::collections::BTreeMap;
use std::fs;

use kvasir_plugin::*;
use kvasir_tests::root;
use serde_json::{Value, json};

use crate::by_hand::{self, Stages, files, id, key, tar};

/// A package and what `kvasir plugin verify` says of it, with keys 1 and 2 trusted.
pub struct Case {
    pub name: &'static str,
    pub package: Vec<u8>,
    pub expected: String,
}

/// Every case; packages are valid around `now` where they are not made to be otherwise.
pub fn cases(now: UnixSeconds) -> Vec<Case> {
    let mut cases = archives();
    cases.extend(cut_and_mixed(now));
    cases.extend(documents(now));
    cases.extend(envelopes(now));
    cases.extend(statements(now));
    cases
}

fn case(name: &'static str, package: Vec<u8>, expected: PluginError) -> Case {
    Case { name, package, expected: expected.to_string() }
}

/// For errors that quote a parser or the clock: what is certain of them.
fn saying(name: &'static str, package: Vec<u8>, expected: &str) -> Case {
    Case { name, package, expected: expected.to_owned() }
}

fn name(text: &str) -> String {
    text.to_owned()
}

/// Signed by `seeds` on a statement that is valid now and then changed.
fn signed(stages: Stages, now: UnixSeconds, seeds: &[u8], change: impl FnOnce(&mut Value)) -> Stages {
    stages.signed(seeds, |statement| {
        valid(statement, now);
        change(statement);
    })
}

fn valid(statement: &mut Value, now: UnixSeconds) {
    statement["predicate"]["not_before"] = json!(now.0 - 3_600);
    statement["predicate"]["expires"] = json!(now.0 + 3_600);
}

fn fixture(now: UnixSeconds) -> Stages {
    signed(Stages::unsigned(files()), now, &[1], |_| ())
}

fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    text.replacen(from, to, 1).into_bytes()
}

/// The files of the corpus: archives of evil form.
fn archives() -> Vec<Case> {
    let kind = |name: &str, kind| PluginError::NotAPlainFile { name: name.to_owned(), kind };
    let path = |text: &str| PluginError::UnsafePath { name: name(text) };
    let offset = 1024 + 124;
    [
        ("hard-link", kind("index.json", "a hard link")),
        ("symbolic-link", kind("index.json", "a symbolic link")),
        ("device", kind("index.json", "a device")),
        ("folder", kind("blobs/", "a folder")),
        ("pipe", kind("index.json", "a pipe")),
        ("long-name", kind("././@LongLink", "an extension record")),
        ("pax-header", kind("PaxHeaders/x", "an extension record")),
        ("sparse", kind("index.json", "of an unknown kind")),
        ("gzip", kind("\u{1f}\u{fffd}\u{8}", "of an unknown kind")),
        ("traversal", path("../../etc/cron.d/x")),
        ("absolute", path("/etc/passwd")),
        ("backslash", path("blobs\\..\\x")),
        (
            "claims-8-gib",
            PluginError::FileTooLarge {
                name: name("index.json"),
                bytes: (1 << 33) - 1,
                limit: MAX_INDEX_BYTES,
            },
        ),
        ("negative-size", PluginError::HeaderNotCanonical { offset }),
        ("earlier-format", PluginError::UnexpectedEntry { name: name("statement.dsse.json") }),
        ("zeros", PluginError::MissingFile { name: "oci-layout" }),
        ("empty", PluginError::Truncated { offset: 0 }),
    ]
    .into_iter()
    .map(|(name, expected)| {
        let path = root().join(format!("tests/data/hostile-package/{name}.kvp"));
        case(name, fs::read(path).unwrap(), expected)
    })
    .collect()
}

/// Truncated, lengthened, re-ordered, altered, mixed.
fn cut_and_mixed(now: UnixSeconds) -> Vec<Case> {
    let good = fixture(now);
    let package = good.package();
    let entries = good.entries();
    let cut = |length: usize| package[..length].to_vec();
    let ordered =
        |order: &[usize]| tar(&order.iter().map(|&index| entries[index].clone()).collect::<Vec<_>>());
    let entry = |index: usize| entries[index].0.clone();
    let blob = |index: usize| BlobDigest::parse(&entry(index).replace("blobs/sha256/", "sha256:")).unwrap();
    let flipped = |index: usize| {
        let mut entries = entries.clone();
        entries[index].1[0] ^= 1;
        (
            tar(&entries),
            PluginError::BlobAltered { name: blob(index), found: BlobDigest::of(&entries[index].1) },
        )
    };
    let (altered, altered_error) = flipped(4);
    let mut padding = package.clone();
    padding[600] = 1;
    let mut stray = good.clone();
    stray.stray.push(b"stray".to_vec());
    let mut lacking = entries.clone();
    let lost = by_hand::hex(by_hand::KERNEL);
    lacking.retain(|(name, _)| !name.ends_with(&lost));
    let many: Vec<(String, Vec<u8>)> = ["oci-layout".to_owned(), "index.json".to_owned()]
        .into_iter()
        .chain((0..MAX_ENTRIES).map(|index| format!("blobs/sha256/{index:064}")))
        .map(|name| (name, Vec::new()))
        .collect();
    vec![
        case("cut-in-a-header", cut(700), PluginError::Truncated { offset: 700 }),
        case("cut-in-a-blob", cut(3_082), PluginError::Truncated { offset: 3_082 }),
        case(
            "cut-in-the-end-mark",
            cut(package.len() - 1),
            PluginError::Truncated { offset: package.len() - 1 },
        ),
        case(
            "bytes-after-the-end",
            [&package[..], b"x"].concat(),
            PluginError::StrayBytes { offset: package.len() },
        ),
        case("bytes-in-the-padding", padding, PluginError::StrayBytes { offset: 600 }),
        case("index-before-layout", ordered(&[1, 0, 2]), PluginError::OutOfOrder { name: entry(0) }),
        case("blobs-re-ordered", ordered(&[0, 1, 3, 2]), PluginError::OutOfOrder { name: entry(2) }),
        case("entry-twice", ordered(&[0, 1, 2, 2]), PluginError::DuplicateFile { name: entry(2) }),
        case("too-many-entries", tar(&many), PluginError::TooManyEntries { limit: MAX_ENTRIES }),
        case("blob-altered", altered, altered_error),
        case(
            "blob-missing",
            tar(&lacking),
            PluginError::BlobMissing { digest: BlobDigest::of(by_hand::KERNEL), by: "image manifest" },
        ),
        case("blob-added", stray.package(), PluginError::BlobStray { digest: BlobDigest::of(b"stray") }),
        saying("over-64-mib", vec![0; MAX_PACKAGE_BYTES + 1], "it has more than 67108864 bytes"),
    ]
}

/// The layout's own documents, which are read before anything is verified.
fn documents(now: UnixSeconds) -> Vec<Case> {
    let good = fixture(now);
    let index = |to: Vec<u8>| Stages { index: to, ..good.clone() }.package();
    let listing = |list: Vec<u8>| {
        let mut stages = Stages { list, ..good.clone() };
        stages.index = by_hand::index(&stages.image, &stages.list, stages.signature.as_deref());
        stages.package()
    };
    let two_layers = {
        let layer = by_hand::layer("kernel.wasm", by_hand::KERNEL);
        let image = replaced(&good.image, &layer, &format!("{layer},{layer}"));
        let index = by_hand::index(&image, &good.list, good.signature.as_deref());
        Stages { image, index, ..good.clone() }.package()
    };
    let titled = |title: &str| {
        let mut files = files();
        files.insert(title.to_owned(), b"x".to_vec());
        signed(Stages::unsigned(files), now, &[1], |_| ()).package()
    };
    let bomb = {
        let stages = Stages::unsigned(files());
        let zeros = vec![0; MAX_VECTOR_BYTES - 1];
        let one = by_hand::layer("vectors/0", &zeros);
        let mut layers = vec![
            by_hand::layer("plugin.toml", by_hand::MANIFEST.as_bytes()),
            by_hand::layer("sbom.cdx.json", by_hand::BILL),
        ];
        layers.extend((0..100).map(|index| one.replace("vectors/0", &format!("vectors/{index}"))));
        let list = by_hand::referrer(layout::FILES_TYPE, &layers.join(","), &stages.image);
        let index = by_hand::index(&stages.image, &list, None);
        Stages { list, index, stray: vec![zeros], ..stages }.package()
    };
    let mut crowd: BTreeMap<String, Vec<u8>> = files();
    crowd.extend((0..MAX_FILES).map(|index| (format!("vectors/{index}"), Vec::new())));
    let one = by_hand::descriptor(by_hand::IMAGE_TYPE, &good.image, "");
    let manifests = vec![one; 60].join(",");
    let many = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{manifests}]}}"#
    );
    let oci = |what, reason: &str| PluginError::Oci { what, reason: reason.to_owned() };
    vec![
        saying(
            "index-key-twice",
            index(replaced(&good.index, "{", r#"{"schemaVersion":2,"#)),
            "the package's index.json cannot be read: duplicate field `schemaVersion`",
        ),
        saying(
            "index-deeply-nested",
            index("[".repeat(MAX_INDEX_BYTES).into_bytes()),
            "the package's index.json cannot be read: ",
        ),
        saying(
            "index-unknown-key",
            index(replaced(&good.index, "{", r#"{"more":1,"#)),
            "the package's index.json cannot be read: unknown field `more`",
        ),
        case(
            "index-of-sixty-images",
            index(many.into_bytes()),
            oci("index.json", "it lists two manifests of one type"),
        ),
        case(
            "index-with-a-space",
            index(replaced(&good.index, "{", "{ ")),
            PluginError::NotCanonical { what: "index.json" },
        ),
        case(
            "media-type-confused",
            listing(replaced(&good.list, "application/toml", "application/wasm")),
            PluginError::NotCanonical { what: "manifest of files" },
        ),
        case(
            "two-components",
            two_layers,
            oci("image manifest", "it has 2 layers, one is wanted: the component"),
        ),
        case(
            "too-many-files",
            Stages::unsigned(crowd).package(),
            PluginError::TooManyFiles { limit: MAX_FILES },
        ),
        case("one-blob-under-many-names", bomb, PluginError::UnpackedTooLarge { limit: MAX_PACKAGE_BYTES }),
        case(
            "title-that-leaves-the-folder",
            titled("../../x"),
            PluginError::UnexpectedFile { name: name("../../x") },
        ),
        case(
            "title-of-a-precompiled-kernel",
            titled("kernel.cwasm"),
            PluginError::UnexpectedFile { name: name("kernel.cwasm") },
        ),
    ]
}

/// Signatures and who made them.
fn envelopes(now: UnixSeconds) -> Vec<Case> {
    let unsigned = || Stages::unsigned(files());
    let mut statement = unsigned().statement();
    valid(&mut statement, now);
    let payload = serde_json::to_vec(&statement).unwrap();
    let sign = |seed: u8| by_hand::signature(&payload, &key(seed));
    let envelope = |signatures: &[String]| by_hand::envelope(&payload, signatures);
    let with = |envelope: &str| unsigned().with_envelope(envelope.as_bytes()).package();
    let good = envelope(&[sign(1)]);
    // Signed by somebody else under the name of a trusted key.
    let forged = sign(9).replace(&id(9).to_string(), &id(1).to_string());
    // A trusted key's signature on other bytes.
    let moved = by_hand::signature(b"another statement", &key(1));
    let nine: Vec<String> = (1..=MAX_SIGNATURES as u8 + 1).map(sign).collect();
    let payload_type = good.replace("vnd.in-toto+json", "vnd.oci.image.manifest.v1+json");
    let weak = sign(1).replace(&id(1).to_string(), &"0".repeat(64));
    vec![
        case("not-signed", unsigned().package(), PluginError::NotSigned),
        case("no-signatures", with(&envelope(&[])), PluginError::NotSigned),
        case(
            "signed-by-a-stranger",
            with(&envelope(&[sign(9)])),
            PluginError::UnknownPublisher { found: id(9).to_string(), trusted: 2 },
        ),
        case(
            "re-signed-in-a-trusted-name",
            with(&envelope(&[forged])),
            PluginError::BadSignature { key: id(1) },
        ),
        case(
            "signature-of-other-bytes",
            with(&envelope(std::slice::from_ref(&moved))),
            PluginError::BadSignature { key: id(1) },
        ),
        case(
            "one-good-and-one-bad-signature",
            with(&envelope(&[sign(2), moved])),
            PluginError::BadSignature { key: id(1) },
        ),
        case(
            "signed-twice-by-one-key",
            with(&envelope(&[sign(1), sign(1)])),
            PluginError::DuplicateKey { key: id(1) },
        ),
        case(
            "nine-signatures",
            with(&envelope(&nine)),
            PluginError::TooManySignatures { count: MAX_SIGNATURES + 1, limit: MAX_SIGNATURES },
        ),
        case(
            "unknown-scheme",
            with(&good.replace("\"ed25519\"", "\"none\"")),
            PluginError::UnknownScheme { scheme: name("none") },
        ),
        case(
            "payload-type-confused",
            with(&payload_type),
            PluginError::PayloadType {
                found: name("application/vnd.oci.image.manifest.v1+json"),
                expected: "application/vnd.in-toto+json",
            },
        ),
        case(
            "signed-by-a-weak-key",
            with(&envelope(&[weak])),
            PluginError::UnknownPublisher { found: "0".repeat(64), trusted: 2 },
        ),
        saying(
            "envelope-key-twice",
            with(&good.replacen('{', r#"{"payload":"","#, 1)),
            "the package's signature envelope cannot be read: duplicate field `payload`",
        ),
        saying(
            "envelope-deeply-nested",
            with(&"[".repeat(100_000)),
            "the package's signature envelope cannot be read: ",
        ),
        case(
            "envelope-over-its-limit",
            with(&" ".repeat(MAX_ENVELOPE_BYTES + 1)),
            PluginError::FileTooLarge {
                name: name("envelope"),
                bytes: MAX_ENVELOPE_BYTES as u64 + 1,
                limit: MAX_ENVELOPE_BYTES,
            },
        ),
    ]
}

/// The files of a package by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Signed by a trusted key, and refused for what is said or carried.
fn statements(now: UnixSeconds) -> Vec<Case> {
    let unsigned = || Stages::unsigned(files());
    let stating =
        |change: &dyn Fn(&mut Value)| signed(unsigned(), now, &[1], |statement| change(statement)).package();
    let envelope = fixture(now).envelope.unwrap();
    // The documents are made anew for the changed files; the envelope is the old one.
    let swapped = |change: &dyn Fn(&mut Files)| {
        let mut files = files();
        change(&mut files);
        Stages::unsigned(files).with_envelope(&envelope).package()
    };
    let of_another_release = {
        let newer = by_hand::manifest_with("version = \"1.2.3\"", "version = \"1.2.4\"");
        signed(newer, now, &[1], |statement| statement["predicate"]["version"] = json!("1.2.4"))
            .envelope
            .unwrap()
    };
    let newer = by_hand::MANIFEST.replace("1.2.3", "1.2.4");
    let twice = {
        let mut statement = unsigned().statement();
        valid(&mut statement, now);
        let text = statement.to_string().replacen("\"expires\":", "\"expires\":99999999999,\"expires\":", 1);
        let payload = text.into_bytes();
        let signature = by_hand::signature(&payload, &key(1));
        unsigned().with_envelope(by_hand::envelope(&payload, &[signature]).as_bytes()).package()
    };
    let root_as_statement = {
        let payload = by_hand::signed_root(1, now.0 + 10, &[1], &[], "").into_bytes();
        let signature = by_hand::signature(&payload, &key(1));
        unsigned().with_envelope(by_hand::envelope(&payload, &[signature]).as_bytes()).package()
    };
    let with_file = |file: &str, bytes: &[u8]| {
        let mut files = files();
        files.insert(file.to_owned(), bytes.to_vec());
        signed(Stages::unsigned(files), now, &[1], |_| ()).package()
    };
    let keys = format!("a{} = 1\n", ".a".repeat(MAX_MANIFEST_BYTES / 2 - 10));
    let arrays = format!("a = {}\n", "[".repeat(MAX_MANIFEST_BYTES - 10));
    vec![
        case(
            "kernel-swapped",
            swapped(&|files| files.get_mut("kernel.wasm").unwrap()[5] = b'C'),
            PluginError::DigestMismatch {
                name: name("kernel.wasm"),
                signed: by_hand::hex(by_hand::KERNEL),
                found: by_hand::hex(b"\0asm Component"),
            },
        ),
        case(
            "file-added",
            swapped(&|files| drop(files.insert("vectors/x".to_owned(), b"x".to_vec()))),
            PluginError::Unsigned { name: name("vectors/x") },
        ),
        case(
            "file-removed",
            swapped(&|files| drop(files.remove("sbom.cdx.json"))),
            PluginError::SignedButMissing { name: name("sbom.cdx.json") },
        ),
        case(
            "envelope-of-another-release",
            unsigned().with_envelope(&of_another_release).package(),
            PluginError::DigestMismatch {
                name: name("plugin.toml"),
                signed: by_hand::hex(newer.as_bytes()),
                found: by_hand::hex(by_hand::MANIFEST.as_bytes()),
            },
        ),
        saying(
            "expired",
            stating(&|s| s["predicate"]["expires"] = json!(now.0 - 1)),
            &format!("the package expired at {}, it is now", UnixSeconds(now.0 - 1)),
        ),
        saying(
            "not-yet-valid",
            stating(&|s| s["predicate"]["not_before"] = json!(now.0 + 3_000)),
            &format!("the package is valid only from {}, it is now", UnixSeconds(now.0 + 3_000)),
        ),
        case(
            "for-a-newer-host",
            stating(&|s| s["predicate"]["min_host"] = json!("99.0.0")),
            PluginError::HostTooOld { min_host: "99.0.0".parse().unwrap(), host: HOST_VERSION },
        ),
        case(
            "statement-and-manifest-disagree",
            stating(&|s| s["predicate"]["kernel_revision"] = json!(5)),
            PluginError::Disagreement { field: "kernel_revision", manifest: name("4"), statement: name("5") },
        ),
        saying(
            "statement-of-another-kind",
            stating(&|s| s["predicateType"] = json!("https://slsa.dev/provenance/v1")),
            "the package's signed statement cannot be read: predicateType is \"https://slsa.dev/provenance/v1\"",
        ),
        saying(
            "statement-key-twice",
            twice,
            "the package's signed statement cannot be read: duplicate field `expires`",
        ),
        saying("root-as-statement", root_as_statement, "the package's signed statement cannot be read: "),
        saying(
            "statement-without-the-image",
            stating(&|s| {
                s["subject"].as_array_mut().unwrap().retain(|s| s["name"] != "image.manifest.json");
                s["predicate"]["sizes"].as_object_mut().unwrap().remove("image.manifest.json");
            }),
            "the package's file image.manifest.json is not covered by the signature",
        ),
        case(
            "kernel-over-its-limit",
            with_file("kernel.wasm", &vec![0; MAX_COMPONENT_BYTES + 1]),
            PluginError::FileTooLarge {
                name: name("kernel.wasm"),
                bytes: MAX_COMPONENT_BYTES as u64 + 1,
                limit: MAX_COMPONENT_BYTES,
            },
        ),
        saying(
            "manifest-of-deep-keys",
            with_file("plugin.toml", keys.as_bytes()),
            "plugin.toml cannot be used: ",
        ),
        saying(
            "manifest-of-deep-arrays",
            with_file("plugin.toml", arrays.as_bytes()),
            "plugin.toml cannot be used: ",
        ),
        saying(
            "bill-deeply-nested",
            with_file("sbom.cdx.json", "{\"a\":".repeat(100_000).as_bytes()),
            "sbom.cdx.json cannot be used: ",
        ),
        case(
            "shader-not-named",
            with_file("shaders/x.wgsl", b"fn f() {}"),
            PluginError::ShaderNotNamed { name: name("shaders/x.wgsl") },
        ),
    ]
}
