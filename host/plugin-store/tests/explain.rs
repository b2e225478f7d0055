//! What `policy explain` finds: for each refusal the check at which a load stops, and nothing written.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod scene;

use std::fs;

use kvasir_plugin::{KeyId, PublisherKey, RoleName, UnixSeconds};
use kvasir_plugin_store::{Explanation, Outcome, Revocable, Subject};
use scene::{NOW, Scene, key, package};

const CHECKS: [&str; 14] = [
    "trust",
    "installed",
    "trust-validity",
    "form",
    "signature",
    "key-revocation",
    "statement",
    "package-revocation",
    "publisher",
    "validity",
    "host",
    "files",
    "revision",
    "policy",
];

/// Every check is there once, passed up to the one that failed and not reached after it.
fn failed(told: &Explanation) -> Option<&'static str> {
    assert_eq!(told.checks.iter().map(|check| check.name).collect::<Vec<_>>(), CHECKS);
    let failed = told.failed().map(|check| check.name);
    let at = failed.map_or(CHECKS.len(), |name| CHECKS.iter().position(|check| *check == name).unwrap());
    for (index, check) in told.checks.iter().enumerate() {
        let expected = match index.cmp(&at) {
            std::cmp::Ordering::Less => Outcome::Passed,
            std::cmp::Ordering::Equal => Outcome::Failed,
            std::cmp::Ordering::Greater => Outcome::NotReached,
        };
        assert_eq!(check.outcome, expected, "{check:?}");
        assert!(!check.said.is_empty());
    }
    assert_eq!(told.grant.is_some(), failed.is_none());
    failed
}

#[test]
fn each_refusal_is_found_where_a_load_stops() {
    let scene = Scene::new();
    let store = scene.store();
    let explain = |package: &[u8], now| store.explain(Subject::Package(package), now).unwrap();
    let good = scene.package(2);
    let told = explain(&good, NOW);
    assert_eq!((failed(&told), told.active), (None, false));
    assert_eq!(told.plugin.as_ref().unwrap().revision, 2);
    assert_eq!(failed(&explain(&scene.package(1), NOW)), None, "asking writes nothing down as seen");

    assert_eq!(failed(&explain(&good[..good.len() / 2], NOW)), Some("form"));
    assert_eq!(failed(&explain(&package(1, &key(9)), NOW)), Some("signature"));
    assert_eq!(failed(&explain(&good, UnixSeconds(NOW.0 - 100))), Some("validity"));
    assert_eq!(failed(&explain(&good, UnixSeconds(NOW.0 + 731 * 86_400))), Some("trust-validity"));
    store.load(store.install(&good, NOW).unwrap().plugin.digest(), NOW).unwrap();
    let told = explain(&scene.package(1), NOW);
    assert_eq!(failed(&told), Some("revision"));
    assert!(told.failed().unwrap().said.contains("--allow-downgrade"));
    fs::write(store.places().policy(), "[publisher.0000]\n").unwrap();
    assert_eq!(failed(&explain(&good, NOW)), Some("policy"));
    fs::remove_file(store.places().policy()).unwrap();

    let other = PublisherKey { key: key(2).verifying_key(), name: None };
    let edit = |root: &mut kvasir_plugin::Root| root.grant(RoleName::Publisher("demo".to_owned()), other);
    store.change_root(&[&scene.root], "test", NOW, edit).unwrap();
    assert_eq!(failed(&explain(&good, NOW)), Some("publisher"));
    let theirs = package(7, &key(2));
    let digest = store.install(&theirs, NOW).unwrap().plugin.digest();
    store.activate(digest, &[], NOW).unwrap();
    let told = store.explain(Subject::Installed(digest), NOW).unwrap();
    assert_eq!((failed(&told), told.active), (None, true));
    store.revoke(&[Revocable::Package(digest)], &[&scene.root], NOW).unwrap();
    assert_eq!(failed(&explain(&theirs, NOW)), Some("package-revocation"));
    store.revoke(&[Revocable::Key(KeyId::of(&key(2).verifying_key()))], &[&scene.root], NOW).unwrap();
    let told = store.explain(Subject::Installed(digest), NOW).unwrap();
    assert_eq!(failed(&told), Some("key-revocation"));
    assert!(told.failed().unwrap().said.contains("kvasir plugin rollback"), "{:?}", told.failed());

    let nowhere = kvasir_plugin::PluginDigest([1; 32]);
    assert_eq!(failed(&store.explain(Subject::Installed(nowhere), NOW).unwrap()), Some("installed"));
    fs::write(store.places().root(), "{}").unwrap();
    assert_eq!(failed(&explain(&good, NOW)), Some("trust"));
}
