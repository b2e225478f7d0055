//! The machine stops before each change of the disk in turn. Whatever was half done then: what was active goes on or its successor
//! has taken over, nothing was used that is not written down as seen, and doing it again does it.

use kvasir_plugin::{PluginDigest, PublisherKey, RoleName};

use crate::scene::{NOW, Scene, key, package};
use crate::{Happened, Revocable, Store, StoreError, disk};

/// Does `change` in one scene of `begin` after the other, stopped one change of the disk later each time, until nothing stops it any
/// more; after each stop, and at the end, `holds` looks. Returns the changes of the disk that it took.
fn stopped_everywhere(
    begin: impl Fn() -> Scene,
    change: impl Fn(&Scene) -> Result<(), StoreError>,
    mut holds: impl FnMut(&Scene),
) -> u32 {
    for changes in 0..100 {
        let scene = begin();
        disk::stop_after(Some(changes));
        let done = change(&scene);
        disk::stop_after(None);
        holds(&scene);
        if done.is_ok() {
            return changes;
        }
    }
    panic!("it does not end");
}

fn use_revision(store: &Store, package: &[u8]) -> Result<(), StoreError> {
    let digest = store.install(package, NOW)?.plugin.digest();
    store.activate(digest, &[], NOW).map(drop)
}

fn active_revision(store: &Store) -> Option<u64> {
    store.active(NOW).unwrap().map(|plugin| plugin.manifest().kernel_revision)
}

/// A scene in which revisions 1 and 2 were active in turn.
fn two_used() -> Scene {
    let scene = Scene::new();
    for revision in [1, 2] {
        use_revision(&scene.store(), &scene.package(revision)).unwrap();
    }
    scene
}

#[test]
fn an_install_leaves_what_was_active_or_what_took_over() {
    let mut active = Vec::new();
    let took = stopped_everywhere(
        two_used,
        |scene| use_revision(&scene.store(), &scene.package(5)),
        |scene| {
            let store = scene.store();
            let revision = active_revision(&store).unwrap();
            active.push(revision);
            // What is used is written down as seen, also where the stop was before that.
            let below = store.install(&scene.package(revision - 1), NOW);
            assert!(
                matches!(below, Err(StoreError::Downgrade { seen, .. }) if seen == revision),
                "{below:?}"
            );
            use_revision(&store, &scene.package(5)).unwrap();
            assert_eq!(active_revision(&store), Some(5));
            assert!(matches!(
                store.install(&scene.package(4), NOW),
                Err(StoreError::Downgrade { seen: 5, .. })
            ));
        },
    );
    // History, package; then draft, twin drafts, history, and three files put in their places.
    assert!(took >= 9, "{took}");
    let turn = active.iter().position(|revision| *revision == 5).unwrap();
    assert!(active[..turn].iter().all(|revision| *revision == 2) && turn > 3, "{active:?}");
    assert!(active[turn..].iter().all(|revision| *revision == 5) && active.len() - turn > 2, "{active:?}");
}

#[test]
fn the_first_install_of_a_home_with_nothing_but_keys_can_be_done_again() {
    let begin = || {
        let scene = Scene::empty();
        std::fs::create_dir_all(scene.store().places().trust()).unwrap();
        let own = PublisherKey { key: scene.publisher.verifying_key(), name: None };
        std::fs::write(scene.store().places().trust().join("own.pub"), own.line()).unwrap();
        scene
    };
    let install = |scene: &Scene| use_revision(&scene.store(), &scene.package(1));
    stopped_everywhere(begin, install, |scene| {
        assert!(matches!(active_revision(&scene.store()), None | Some(1)));
        install(scene).unwrap();
        assert_eq!(active_revision(&scene.store()), Some(1));
    });
}

#[test]
fn going_back_by_permission_and_forward_again_leave_one_of_both() {
    let back = |scene: &Scene| scene.store().rollback(&[&scene.root], NOW).map(drop);
    stopped_everywhere(two_used, back, |scene| {
        let store = scene.store();
        if active_revision(&store) == Some(2) {
            back(scene).unwrap();
        }
        assert_eq!(active_revision(&store), Some(1));
    });
    let gone_back = || {
        let scene = two_used();
        back(&scene).unwrap();
        scene
    };
    let forward = |scene: &Scene| use_revision(&scene.store(), &scene.package(2));
    stopped_everywhere(gone_back, forward, |scene| {
        assert!(matches!(active_revision(&scene.store()), Some(1 | 2)));
        forward(scene).unwrap();
        assert_eq!(active_revision(&scene.store()), Some(2));
    });
}

#[test]
fn a_removal_leaves_what_is_active_and_what_can_be_gone_back_to() {
    let begin = || {
        let scene = two_used();
        use_revision(&scene.store(), &scene.package(3)).unwrap();
        scene
    };
    let oldest = |scene: &Scene| {
        let named =
            scene.store().history().unwrap().entries.into_iter().find_map(|entry| match entry.happened {
                Happened::Installed { plugin, .. } => PluginDigest::from_hex(&plugin.plugin),
                _ => None,
            });
        named.unwrap()
    };
    let remove = |scene: &Scene| scene.store().remove(oldest(scene), NOW);
    stopped_everywhere(begin, remove, |scene| {
        let store = scene.store();
        assert_eq!(active_revision(&store), Some(3));
        match remove(scene) {
            Ok(()) | Err(StoreError::NotInstalled { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
        assert_eq!(store.digests().unwrap().len(), 2);
        store.rollback(&[&scene.root], NOW).unwrap();
        assert_eq!(active_revision(&store), Some(2));
    });
}

#[test]
fn changes_of_trust_leave_a_trust_under_which_the_active_plugin_runs() {
    let other = PublisherKey { key: key(2).verifying_key(), name: None };
    let add = |scene: &Scene| {
        let edit =
            |root: &mut kvasir_plugin::Root| root.grant(RoleName::Publisher("*".to_owned()), other.clone());
        scene.store().change_root(&[&scene.root], "added", NOW, edit).map(drop)
    };
    stopped_everywhere(two_used, add, |scene| {
        assert_eq!(active_revision(&scene.store()), Some(2));
        add(scene).unwrap();
        scene.store().install(&package(1, &key(2)), NOW).unwrap();
    });
    let revoke = |scene: &Scene| {
        let one = scene.store().digests().unwrap();
        let active = scene.store().active_digest().unwrap();
        let former = one.into_iter().find(|digest| Some(*digest) != active).unwrap();
        scene.store().revoke(&[Revocable::Package(former)], &[&scene.root], NOW).map(drop)
    };
    stopped_everywhere(two_used, revoke, |scene| {
        assert_eq!(active_revision(&scene.store()), Some(2));
        revoke(scene).unwrap();
        let refused = scene.store().rollback(&[&scene.root], NOW).unwrap_err();
        assert!(matches!(refused, StoreError::Refused { .. }), "{refused:?}");
    });
    let revoked = || {
        let scene = two_used();
        revoke(&scene).unwrap();
        scene
    };
    let rotate = |scene: &Scene| scene.store().rotate_root(&scene.root, &key(101), &[], NOW).map(drop);
    stopped_everywhere(revoked, rotate, |scene| {
        let store = scene.store();
        assert_eq!(active_revision(&store), Some(2));
        match rotate(scene) {
            Ok(()) | Err(StoreError::NotARootKey { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
        store.revoke(&[], &[&key(101)], NOW).unwrap();
        assert_eq!(active_revision(&store), Some(2));
    });
    let create = |scene: &Scene| {
        let own = PublisherKey { key: scene.publisher.verifying_key(), name: None };
        scene.store().create_root(&scene.root, vec![own], NOW).map(drop)
    };
    stopped_everywhere(Scene::empty, create, |scene| {
        create(scene).unwrap();
        use_revision(&scene.store(), &scene.package(1)).unwrap();
    });
}
