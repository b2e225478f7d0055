//! Install, activate, go back: what is active, what is recorded, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod scene;

use std::fs;

use kvasir_plugin::{PluginDigest, PluginError, PublisherKey, RoleName, add_signature};
use kvasir_plugin_store::{Happened, MAX_PACKAGES, StoreError};
use scene::{NOW, PACKAGE_DAYS, Scene, key, package};

#[test]
fn what_is_installed_becomes_active_only_when_asked_and_the_change_can_be_polled() {
    let scene = Scene::new();
    let store = scene.store();
    assert_eq!((store.active_digest().unwrap(), store.active_state().unwrap().change), (None, 0));
    let one = store.install(&scene.package(1), NOW).unwrap();
    assert_eq!((one.already, store.active_digest().unwrap()), (false, None));
    store.activate(one.plugin.digest(), &[], NOW).unwrap();
    assert_eq!(store.active_state().unwrap().change, 1);
    assert_eq!(store.active(NOW).unwrap().unwrap().digest(), one.plugin.digest());
    assert!(store.install(&scene.package(1), NOW).unwrap().already);
    store.activate(one.plugin.digest(), &[], NOW).unwrap();
    assert_eq!(store.active_state().unwrap().change, 1, "nothing changed");
    assert_eq!(store.digests().unwrap(), [one.plugin.digest()]);
    let events: Vec<_> = store.history().unwrap().entries.into_iter().map(|entry| entry.happened).collect();
    assert!(
        matches!(events[1..], [Happened::Installed { .. }, Happened::Activated { change: 1, .. }]),
        "{events:?}"
    );
}

#[test]
fn a_package_of_a_stranger_leaves_no_trace() {
    let scene = Scene::new();
    let refused = scene.store().install(&package(1, &key(9)), NOW).unwrap_err();
    assert!(matches!(refused, StoreError::Package(PluginError::UnknownPublisher { .. })), "{refused:?}");
    assert!(scene.store().digests().unwrap().is_empty());
    assert_eq!(scene.store().history().unwrap().entries.len(), 1, "the root alone");
}

#[test]
fn an_installed_package_is_verified_again_whenever_it_is_loaded() {
    let scene = Scene::new();
    let store = scene.store();
    let [one, two] = [1, 2].map(|revision| store.install(&scene.package(revision), NOW).unwrap().plugin);
    store.activate(two.digest(), &[], NOW).unwrap();
    let later = kvasir_plugin::UnixSeconds(NOW.0 + PACKAGE_DAYS * 86_400);
    let refused = store.active(later).unwrap_err();
    assert!(
        matches!(&refused, StoreError::Refused { source: PluginError::Expired { .. }, .. }),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("rollback"), "{refused}");

    // Another package under its name, though a valid one, is not it.
    fs::copy(store.places().package(one.digest()), store.places().package(two.digest())).unwrap();
    let refused = store.active(NOW).unwrap_err();
    assert!(matches!(refused, StoreError::WrongContent { found, .. } if found == one.digest()));
    fs::remove_file(store.places().package(two.digest())).unwrap();
    assert!(matches!(store.active(NOW), Err(StoreError::NotInstalled { .. })));
}

#[test]
fn the_same_plugin_with_fewer_signatures_does_not_take_the_place_of_one_with_more() {
    let scene = Scene::new();
    let store = scene.store();
    let second = PublisherKey { key: key(2).verifying_key(), name: None };
    let edit =
        |root: &mut kvasir_plugin::Root| root.grant(RoleName::Publisher("*".to_owned()), second.clone());
    store.change_root(&[&scene.root], "trusted", NOW, edit).unwrap();
    let (by_one, by_both) = (scene.package(1), add_signature(&scene.package(1), &key(2)).unwrap());
    let first = store.install(&by_one, NOW).unwrap();
    assert_eq!((first.already, first.plugin.publishers().len()), (false, 1));
    let digest = first.plugin.digest();
    for (package, already) in [(&by_both, false), (&by_one, true), (&by_both, true)] {
        let installed = store.install(package, NOW).unwrap();
        assert_eq!((installed.already, installed.plugin.publishers().len()), (already, 2));
        assert_eq!(store.package(digest).unwrap(), by_both);
    }
    // What does not hold is no package with more of them.
    let place = store.places().package(digest);
    fs::write(&place, &by_both[..by_both.len() - 1024]).unwrap();
    assert!(!store.install(&by_one, NOW).unwrap().already);
    assert_eq!(fs::read(place).unwrap(), by_one);
}

#[test]
fn a_package_is_removed_unless_it_is_active_or_was_the_one_before() {
    let scene = Scene::new();
    let store = scene.store();
    let [one, two, three] = [1, 2, 3].map(|revision| {
        let plugin = store.install(&scene.package(revision), NOW).unwrap().plugin;
        store.activate(plugin.digest(), &[], NOW).unwrap().digest()
    });
    for needed in [two, three] {
        let refused = store.remove(needed, NOW).unwrap_err();
        assert!(matches!(refused, StoreError::Needed { .. }), "{refused:?}");
    }
    // Also one that nobody could load.
    fs::write(store.places().package(one), "damaged").unwrap();
    store.remove(one, NOW).unwrap();
    assert_eq!(store.active_state().unwrap().former, [two]);
    assert!(!store.holds(one).unwrap());
    assert!(matches!(store.remove(one, NOW), Err(StoreError::NotInstalled { .. })));
    let last = store.history().unwrap().entries.pop().unwrap().happened;
    assert_eq!(last, Happened::Removed { plugin: one.to_string() });
    // What was seen stays seen.
    assert!(matches!(store.install(&scene.package(1), NOW), Err(StoreError::Downgrade { seen: 3, .. })));

    store.rollback(&[&scene.root], NOW).unwrap();
    store.activate(three, &[], NOW).unwrap();
    store.activate(store.install(&scene.package(4), NOW).unwrap().plugin.digest(), &[], NOW).unwrap();
    assert!(store.places().override_of(two).exists());
    store.remove(two, NOW).unwrap();
    assert!(!store.places().override_of(two).exists());
}

#[test]
fn a_full_store_takes_no_more_until_one_is_removed() {
    let scene = Scene::new();
    let store = scene.store();
    store.install(&scene.package(1), NOW).unwrap();
    let filler = |index: usize| {
        let mut digest = [0xee; 32];
        digest[..8].copy_from_slice(&index.to_be_bytes());
        PluginDigest(digest)
    };
    for index in 1..MAX_PACKAGES {
        fs::write(store.places().package(filler(index)), "").unwrap();
    }
    let refused = store.install(&scene.package(2), NOW).unwrap_err();
    assert!(matches!(refused, StoreError::Full { limit: MAX_PACKAGES, .. }), "{refused:?}");
    assert!(store.install(&scene.package(1), NOW).unwrap().already);
    store.remove(filler(1), NOW).unwrap();
    store.install(&scene.package(2), NOW).unwrap();
    // One that is overfull, by other hands, is emptied the same way.
    fs::write(store.places().package(filler(1)), "").unwrap();
    assert!(matches!(store.digests(), Err(StoreError::TooManyFiles { .. })));
    store.remove(filler(1), NOW).unwrap();
    assert_eq!(store.digests().unwrap().len(), MAX_PACKAGES);
}
