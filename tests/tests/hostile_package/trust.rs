//! Hostile documents of trust, packages that a root, a history or a policy refuses, and what is expected of each. Each runs in a
//! process of its own.

use kvasir_plugin::*;

use crate::by_hand::{self, NOW, VALIDITY, id, key, public, signed_root, trust_document};

/// A name, and what gives the error found and the error expected.
pub struct Case {
    pub name: &'static str,
    pub run: fn() -> (String, String),
}

const LATER: u64 = NOW.0 + 1_000;

/// Every case.
pub const CASES: &[Case] = &[
    Case { name: "rollback", run: rollback },
    Case { name: "rollback-by-a-stripped-signature", run: stripped },
    Case { name: "fast-forward-by-a-leaked-key", run: fast_forward },
    Case { name: "revoked-key", run: revoked_key },
    Case { name: "revoked-package", run: revoked_package },
    Case { name: "revocations-withheld", run: withheld },
    Case { name: "revocations-by-a-publisher", run: revoked_by_publisher },
    Case { name: "threshold-with-a-repeated-key", run: repeated },
    Case { name: "threshold-with-a-stranger", run: with_stranger },
    Case { name: "publisher-of-another-namespace", run: other_namespace },
    Case { name: "trust-expired", run: trust_expired },
    Case { name: "root-signed-twice-by-one-key", run: root_repeated },
    Case { name: "root-with-one-key-under-two-ids", run: root_two_ids },
    Case { name: "root-with-a-weak-key", run: root_weak },
    Case { name: "root-of-an-unknown-scheme", run: root_scheme },
    Case { name: "root-with-threshold-zero", run: root_zero },
    Case { name: "root-key-twice", run: root_key_twice },
    Case { name: "root-altered", run: root_altered },
    Case { name: "root-not-signed-by-the-one-before", run: root_usurped },
    Case { name: "root-that-skips-a-version", run: root_skips },
    Case { name: "root-rolled-back", run: root_back },
    Case { name: "root-of-too-many-roles", run: root_crowded },
    Case { name: "revocations-as-root", run: revocations_as_root },
    Case { name: "asks-for-more-than-policy", run: asks_too_much },
    Case { name: "asks-for-wasi", run: asks_for_wasi },
];

fn pair(found: impl ToString, expected: impl ToString) -> (String, String) {
    (found.to_string(), expected.to_string())
}

/// Key 10 holds the root; 1 and 2 publish `kvasir`, `threshold` of them are needed; 3 publishes `other`.
fn root(threshold: u32) -> Root {
    let mut root = Root::new(UnixSeconds(LATER), public(10));
    let publisher = |name: &str| RoleName::Publisher(name.to_owned());
    root.grant(publisher("kvasir"), public(1));
    root.grant(publisher("kvasir"), public(2));
    root.roles.get_mut(&publisher("kvasir")).unwrap().threshold = threshold;
    root.grant(publisher("other"), public(3));
    root
}

fn verified(root: &Root) -> VerifiedRoot {
    VerifiedRoot::initial(&root.sign(&[&key(10)]).unwrap(), NOW).unwrap()
}

fn refused_root(document: &[u8]) -> DocumentError {
    VerifiedRoot::initial(document, NOW).unwrap_err()
}

fn package(revision: u64, seeds: &[u8]) -> Vec<u8> {
    let manifest = by_hand::MANIFEST.replace("kernel_revision = 4", &format!("kernel_revision = {revision}"));
    packed(&manifest, seeds)
}

fn packed(manifest: &str, seeds: &[u8]) -> Vec<u8> {
    let contents = PackageContents {
        manifest: manifest.into(),
        component: by_hand::KERNEL.to_vec(),
        ..Default::default()
    };
    let first = pack(&contents, VALIDITY, &key(seeds[0])).unwrap();
    seeds[1..].iter().fold(first, |package, &seed| add_signature(&package, &key(seed)).unwrap())
}

fn plugin(revision: u64, seeds: &[u8]) -> VerifiedPlugin {
    let trust = TrustStore::from_root(&verified(&root(1)), None);
    verify(&package(revision, seeds), &trust, NOW).unwrap()
}

fn rolled_back(revision: u64, seen: u64) -> PluginError {
    PluginError::Rollback { name: "kvasir:fixture".to_owned(), revision, seen }
}

fn rollback() -> (String, String) {
    let mut seen = Seen::default();
    seen.check_and_raise(&plugin(5, &[1])).unwrap();
    pair(seen.check_and_raise(&plugin(4, &[1])).unwrap_err(), rolled_back(4, 5))
}

fn stripped() -> (String, String) {
    let mut seen = Seen::default();
    seen.check_and_raise(&plugin(5, &[1, 2])).unwrap();
    pair(seen.check_and_raise(&plugin(4, &[1])).unwrap_err(), rolled_back(4, 5))
}

/// The leaked key bars what it signs, and nothing that others sign once it is revoked.
fn fast_forward() -> (String, String) {
    let mut seen = Seen::default();
    seen.check_and_raise(&plugin(u64::MAX, &[1])).unwrap();
    seen.check_and_raise(&plugin(5, &[2])).unwrap();
    let trust = revoking(|list| {
        list.keys.insert(id(1));
    });
    seen.check_and_raise(&verify(&package(6, &[1, 2]), &trust, NOW).unwrap()).unwrap();
    pair(seen.check_and_raise(&plugin(7, &[1])).unwrap_err(), rolled_back(7, u64::MAX))
}

fn revoking(change: impl FnOnce(&mut Revocations)) -> TrustStore {
    let root = verified(&root(1));
    let mut list = Revocations::new(UnixSeconds(LATER));
    change(&mut list);
    let list = VerifiedRevocations::verify(&list.sign(&[&key(10)]).unwrap(), &root, NOW).unwrap();
    TrustStore::from_root(&root, Some(&list))
}

fn revoked_key() -> (String, String) {
    let trust = revoking(|list| {
        list.keys.insert(id(1));
    });
    pair(verify(&package(4, &[1]), &trust, NOW).unwrap_err(), PluginError::RevokedKey { key: id(1) })
}

fn revoked_package() -> (String, String) {
    let digest = plugin(4, &[1]).digest();
    let trust = revoking(|list| {
        list.packages.insert(digest);
    });
    let found = verify(&package(4, &[2]), &trust, NOW).unwrap_err();
    pair(found, PluginError::RevokedPackage { plugin: digest })
}

fn withheld() -> (String, String) {
    let root = verified(&root(1));
    let list = Revocations::new(UnixSeconds(LATER)).sign(&[&key(10)]).unwrap();
    let list = VerifiedRevocations::verify(&list, &root, NOW).unwrap();
    let mut seen = Seen::default();
    seen.check_and_raise_trust(&root, Some(&list)).unwrap();
    let found = seen.check_and_raise_trust(&root, None).unwrap_err();
    pair(found, DocumentError::Rollback { what: "revoked.json", found: 0, seen: 1 })
}

fn revoked_by_publisher() -> (String, String) {
    let list = Revocations::new(UnixSeconds(LATER)).sign(&[&key(1), &key(2)]).unwrap();
    let found = VerifiedRevocations::verify(&list, &verified(&root(1)), NOW).unwrap_err();
    let role = "revocation".to_owned();
    pair(found, DocumentError::NotEnoughSignatures { what: "revoked.json", role, valid: 0, threshold: 1 })
}

fn repeated() -> (String, String) {
    let stages = by_hand::Stages::unsigned(by_hand::files()).signed(&[1, 1], |_| ());
    let trust = TrustStore::from_root(&verified(&root(2)), None);
    pair(verify(&stages.package(), &trust, NOW).unwrap_err(), PluginError::DuplicateKey { key: id(1) })
}

fn too_few(valid: usize, threshold: u32) -> PluginError {
    let role = RoleName::Publisher("kvasir".to_owned());
    PluginError::TooFewPublishers { name: "kvasir:fixture".to_owned(), role, valid, threshold }
}

fn with_stranger() -> (String, String) {
    let trust = TrustStore::from_root(&verified(&root(2)), None);
    pair(verify(&package(4, &[1, 3, 9]), &trust, NOW).unwrap_err(), too_few(1, 2))
}

fn other_namespace() -> (String, String) {
    let trust = TrustStore::from_root(&verified(&root(1)), None);
    pair(verify(&package(4, &[3]), &trust, NOW).unwrap_err(), too_few(0, 1))
}

fn trust_expired() -> (String, String) {
    let trust = TrustStore::from_root(&verified(&root(1)), None);
    let now = UnixSeconds(LATER);
    let found = verify(&package(4, &[1]), &trust, now).unwrap_err();
    pair(found, PluginError::TrustExpired { expires: now, now })
}

fn root_repeated() -> (String, String) {
    let document = trust_document(&signed_root(1, LATER, &[10, 11], &[], ""), &[10, 10]);
    pair(refused_root(&document), DocumentError::DuplicateSignature { what: "root.json", key: id(10) })
}

/// One key under two names could sign for two.
fn root_two_ids() -> (String, String) {
    let hex = |seed: u8| {
        key(seed).verifying_key().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let signed = signed_root(1, LATER, &[10, 11], &[], "").replace(&hex(11), &hex(10));
    let document = trust_document(&signed, &[10, 11]);
    pair(refused_root(&document), DocumentError::WrongKeyId { key: id(11), is: id(10) })
}

fn root_weak() -> (String, String) {
    // The all-zero key is a point of small order: anyone can sign for it.
    let weak = by_hand::hex(&[0; 32]);
    let key = format!(
        r#""{weak}":{{"keytype":"ed25519","keyval":{{"public":"{}"}},"scheme":"ed25519"}}"#,
        "0".repeat(64)
    );
    let signed = signed_root(1, LATER, &[10], &[], "");
    let (before, after) = signed.split_once("\"keys\":{").unwrap();
    let (own, after) = after.split_once("},\"roles\"").unwrap();
    let mut keys = [own.to_owned(), key];
    keys.sort();
    let signed = format!("{before}\"keys\":{{{}}},\"roles\"{after}", keys.join(","));
    let found = refused_root(&trust_document(&signed, &[10]));
    pair(found, DocumentError::WeakKey { key: KeyId::from_hex(&weak).unwrap() })
}

fn root_scheme() -> (String, String) {
    let signed =
        signed_root(1, LATER, &[10], &[], "").replace("\"scheme\":\"ed25519\"", "\"scheme\":\"none\"");
    let reason =
        format!("key {} is of type \"ed25519\" and scheme \"none\", only ed25519 is checked", id(10));
    pair(
        refused_root(&trust_document(&signed, &[10])),
        DocumentError::Unreadable { what: "root.json", reason },
    )
}

fn root_zero() -> (String, String) {
    let signed = signed_root(1, LATER, &[10], &[], "").replace("\"threshold\":1", "\"threshold\":0");
    let reason = "its threshold is 0, it has 1 keys".to_owned();
    let role = RoleName::Revocation;
    pair(refused_root(&trust_document(&signed, &[])), DocumentError::Role { role, reason })
}

fn root_key_twice() -> (String, String) {
    let role = r#""publisher/x":{"keyids":["ID"],"threshold":1},"#.replace("ID", &id(10).to_string());
    let signed = signed_root(1, LATER, &[10], &[], &role.repeat(2));
    pair(refused_root(&trust_document(&signed, &[10])), DocumentError::NotCanonical { what: "root.json" })
}

fn root_altered() -> (String, String) {
    let document = String::from_utf8(root(1).sign(&[&key(10)]).unwrap()).unwrap();
    let altered = document.replace(&format!("\"expires\":{LATER}"), &format!("\"expires\":{}", LATER + 1));
    pair(refused_root(altered.as_bytes()), DocumentError::BadSignature { what: "root.json", key: id(10) })
}

fn root_usurped() -> (String, String) {
    let mut usurper = Root::new(UnixSeconds(LATER), public(66));
    usurper.version = 2;
    let found = verified(&root(1)).update(&usurper.sign(&[&key(66)]).unwrap(), NOW).unwrap_err();
    let role = "the root before it (version 1)".to_owned();
    pair(found, DocumentError::NotEnoughSignatures { what: "root.json", role, valid: 0, threshold: 1 })
}

fn root_skips() -> (String, String) {
    let next = Root { version: 9, ..root(1) };
    let found = verified(&root(1)).update(&next.sign(&[&key(10)]).unwrap(), NOW).unwrap_err();
    pair(found, DocumentError::WrongVersion { what: "root.json", found: 9, expected: 2 })
}

fn root_back() -> (String, String) {
    let mut seen = Seen::default();
    seen.check_and_raise_trust(&verified(&Root { version: 2, ..root(1) }), None).unwrap();
    let found = seen.check_and_raise_trust(&verified(&root(1)), None).unwrap_err();
    pair(found, DocumentError::Rollback { what: "root.json", found: 1, seen: 2 })
}

fn root_crowded() -> (String, String) {
    let role =
        |index: usize| format!(r#""publisher/n{index:03}":{{"keyids":["{}"],"threshold":1}},"#, id(10));
    let roles: String = (0..MAX_ROLES).map(role).collect();
    let found = refused_root(&trust_document(&signed_root(1, LATER, &[10], &[], &roles), &[10]));
    let (count, limit) = (MAX_ROLES + 2, MAX_ROLES);
    pair(found, DocumentError::TooMany { what: "root.json", of: "roles", count, limit })
}

fn revocations_as_root() -> (String, String) {
    let list = Revocations::new(UnixSeconds(LATER)).sign(&[&key(10)]).unwrap();
    let found = refused_root(&list).to_string();
    let certain = "root.json cannot be read: unknown field `keyids`".to_owned();
    (found.get(..certain.len()).unwrap_or_default().to_owned(), certain)
}

fn asks_too_much() -> (String, String) {
    let manifest = by_hand::MANIFEST.replace("memory_bytes = 65536", "memory_bytes = 1000000000000");
    let plugin = verify(&packed(&manifest, &[1]), &by_hand::trust(&[1]), NOW).unwrap();
    let found = Policy::default().grant(&plugin).unwrap_err();
    let (asked, maximum, origin) = (1_000_000_000_000, 4 << 30, RuleSource::BuiltIn);
    pair(found, PolicyRefusal::AsksTooMuch { name: "memory_bytes", asked, maximum, origin })
}

fn asks_for_wasi() -> (String, String) {
    let manifest = by_hand::MANIFEST.replace("min_host", "wasi_inert = true\nmin_host");
    let plugin = verify(&packed(&manifest, &[1]), &by_hand::trust(&[1]), NOW).unwrap();
    let found = Policy::default().grant(&plugin).unwrap_err();
    pair(found, PolicyRefusal::Wasi { origin: RuleSource::BuiltIn })
}
