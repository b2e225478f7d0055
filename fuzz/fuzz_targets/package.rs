//! The package reader, before its signature and behind it.
//!
//! The first byte chooses. `r`: the rest is a package, raw. Anything else: the rest is a list of edits to the parts of a valid
//! package. After them every digest that a document states is made right again, from the files up to the index, and the statement
//! is signed by the trusted key: so the readers behind digests and signature see what was edited, and not the fuzzer's failure to
//! forge it.
#![no_main]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer as _, SigningKey};
use kvasir_plugin::layout::Layout;
use kvasir_plugin::{
    BlobDigest, KeyId, PackageContents, PublisherKey, TrustStore, UnixSeconds, Unverified, Validity, pack, verify,
};
use libfuzzer_sys::fuzz_target;

const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
const TYPE: &str = "application/vnd.in-toto+json";

static KEY: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::from_bytes(&[7; 32]));
static TRUST: LazyLock<TrustStore> = LazyLock::new(|| {
    let key = PublisherKey { key: KEY.verifying_key(), name: None };
    TrustStore::from_keys([key]).expect("one key")
});
static VALID: LazyLock<Layout> = LazyLock::new(|| {
    let manifest = include_bytes!("../../plugins/swiglu/plugin.toml");
    let file = |name: &str, bytes: &[u8]| BTreeMap::from([(name.to_owned(), bytes.to_vec())]);
    let contents = PackageContents {
        manifest: manifest.to_vec(),
        component: b"\0asm\x0d\0\x01\0".to_vec(),
        shaders: file("swiglu.wgsl", b"// no shader"),
        vectors: file("one.vector", &[1; 32]),
        ..PackageContents::default()
    };
    let validity = Validity { not_before: NOW, expires: UnixSeconds(NOW.0 + 1) };
    let package = pack(&contents, validity, &KEY).expect("the contents are in order");
    verify(&package, &TRUST, NOW).expect("what was packed");
    Layout::from_package(&package).expect("what was packed")
});

fuzz_target!(|bytes: &[u8]| {
    match bytes.split_first() {
        None => {}
        Some((b'r', package)) => look(package),
        Some((_, edits)) => look(&edited(edits)),
    }
});

/// Every reader of packages, and what must hold of what they accept.
fn look(package: &[u8]) {
    let verified = verify(package, &TRUST, NOW);
    let unverified = Unverified::read(package);
    if let Ok(layout) = Layout::from_package(package) {
        assert_eq!(layout.to_package(), package, "a package has one form");
    }
    if let Ok(plugin) = verified {
        let looked_at = unverified.expect("what was verified can be looked into");
        assert_eq!(looked_at.contents.component, plugin.component());
        assert_eq!(&looked_at.contents.vectors, plugin.vectors());
        let claims = looked_at.claims.expect("what was verified is signed");
        assert_eq!(claims.digest, plugin.digest());
        assert_eq!(claims.misfit, None);
        // The same contents with the same envelope are the same package: nothing of it is without meaning.
        let again = Layout::from_package(package).expect("what was verified has the form of a package");
        let manifests = again.manifests().expect("and lists its manifests");
        assert_eq!(Layout::assemble(again.blobs, manifests).map(|layout| layout.to_package()).as_deref(), Ok(package));
    }
}

/// The valid package with edits: `part, kind, offset (two bytes), count, bytes`, over and over.
fn edited(mut edits: &[u8]) -> Vec<u8> {
    let valid = &*VALID;
    let manifests = valid.manifests().expect("it is valid");
    let signature = manifests.signature.expect("it is signed");
    let named = |manifest: &BlobDigest| valid.named_by(manifest).expect("it is there");
    let envelope_digest = *named(&signature).iter().find(|digest| valid.blobs[digest].starts_with(b"{\"payload")).expect("one");
    let envelope = String::from_utf8(valid.blobs[&envelope_digest].clone()).expect("JSON");
    let payload = envelope.split("\"payload\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a payload");
    let payload = STANDARD.decode(payload).expect("base64");

    // From what names nothing up to what names all: files, image, list of files, statement, signature's manifest, index.
    let documents = [manifests.image, manifests.files, signature, envelope_digest];
    let mut parts: Vec<(Option<BlobDigest>, Vec<u8>)> = Vec::new();
    let files = valid.blobs.iter().filter(|(digest, _)| !documents.contains(digest));
    parts.extend(files.map(|(digest, bytes)| (Some(*digest), bytes.clone())));
    parts.push((Some(manifests.image), valid.blobs[&manifests.image].clone()));
    parts.push((Some(manifests.files), valid.blobs[&manifests.files].clone()));
    let statement = parts.len();
    parts.push((Some(envelope_digest), payload));
    parts.push((Some(signature), valid.blobs[&signature].clone()));
    parts.push((None, valid.index.clone()));

    while let [part, kind, high, low, count, rest @ ..] = edits {
        let (bytes, rest) = rest.split_at(usize::from(*count).min(rest.len()));
        let index = usize::from(*part) % parts.len();
        let target = &mut parts[index].1;
        let offset = usize::from(u16::from_be_bytes([*high, *low])) % (target.len() + 1);
        let end = (offset + bytes.len()).min(target.len());
        match kind % 4 {
            0 => target[offset..end].copy_from_slice(&bytes[..end - offset]),
            1 => drop(target.splice(offset..offset, bytes.iter().copied())),
            2 => drop(target.drain(offset..(offset + usize::from(*count)).min(target.len()))),
            _ => drop(target.splice(offset..end, bytes.iter().copied())),
        }
        edits = rest;
    }

    let mut blobs = BTreeMap::new();
    let mut index = Vec::new();
    for position in 0..parts.len() {
        let (old, mut bytes) = parts[position].clone();
        if position == statement {
            bytes = sealed(&bytes);
        }
        let Some(old) = old else {
            index = bytes;
            break;
        };
        let new = BlobDigest::of(&bytes);
        let before = valid.blobs[&old].len();
        for (_, later) in &mut parts[position + 1..] {
            replace(later, &format!("{old}\",\"size\":{before}"), &format!("{new}\",\"size\":{}", bytes.len()));
            replace(later, &old.hex(), &new.hex());
        }
        blobs.insert(new, bytes);
    }
    Layout { blobs, index }.to_package()
}

/// The statement in an envelope signed by the trusted key.
fn sealed(payload: &[u8]) -> Vec<u8> {
    let mut message = format!("DSSEv1 {} {TYPE} {} ", TYPE.len(), payload.len()).into_bytes();
    message.extend_from_slice(payload);
    format!(
        "{{\"payloadType\":\"{TYPE}\",\"payload\":\"{}\",\"signatures\":[{{\"scheme\":\"ed25519\",\"keyid\":\"{}\",\"sig\":\"{}\"}}]}}",
        STANDARD.encode(payload),
        KeyId::of(&KEY.verifying_key()),
        STANDARD.encode(KEY.sign(&message).to_bytes())
    )
    .into_bytes()
}

fn replace(text: &mut Vec<u8>, from: &str, to: &str) {
    let found: Vec<usize> = memchr::memmem::find_iter(text, from).collect();
    for place in found.into_iter().rev() {
        text.splice(place..place + from.len(), to.bytes());
    }
}
