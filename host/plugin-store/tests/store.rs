//! Install, activate, go back: what is active, what is recorded, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod scene;

use std::fs;

use kvasir_plugin::PluginError;
use kvasir_plugin_store::{Happened, StoreError};
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
