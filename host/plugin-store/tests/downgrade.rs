//! Never below what was seen: not by an old package, not by an old file put back, not by a crash in between; and on purpose only
//! with the operator's signature.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod scene;

use std::fs;

use kvasir_plugin::{DocumentError, KeyId, PluginError, PublisherKey, RoleName, UnixSeconds};
use kvasir_plugin_store::{Happened, OVERRIDE_DAYS, Revocable, StoreError};
use scene::{NOW, Scene, key, package};

const DAY: u64 = 86_400;

#[test]
fn going_back_below_what_was_seen_takes_the_operators_signature_and_is_recorded() {
    let scene = Scene::new();
    let store = scene.store();
    let [one, two] = [1, 2].map(|revision| {
        let plugin = store.install(&scene.package(revision), NOW).unwrap().plugin;
        store.activate(plugin.digest(), &[], NOW).unwrap().digest()
    });
    let refused = store.rollback(&[], NOW).unwrap_err();
    assert!(matches!(refused, StoreError::Downgrade { revision: 1, seen: 2, .. }), "{refused:?}");
    assert!(refused.to_string().contains("--allow-downgrade"), "{refused}");
    assert_eq!(store.active_digest().unwrap(), Some(two));

    let stranger = store.rollback(&[&key(9)], NOW).unwrap_err();
    assert!(matches!(stranger, StoreError::Override { .. }), "{stranger:?}");
    store.rollback(&[&scene.root], NOW).unwrap();
    assert_eq!(store.active(NOW).unwrap().unwrap().digest(), one);
    let last = store.history().unwrap().entries.pop().unwrap().happened;
    assert!(matches!(last, Happened::RolledBack { overridden_revision: Some(2), change: 3, .. }), "{last:?}");

    // It closes by itself: when its time is over, and when a still higher revision is seen.
    let later = UnixSeconds(NOW.0 + OVERRIDE_DAYS * DAY);
    let refused = store.active(later).unwrap_err().to_string();
    assert!(refused.contains("expired"), "{refused}");
    let three = store.install(&scene.package(3), NOW).unwrap().plugin.digest();
    store.active(NOW).unwrap();
    store.load(three, NOW).unwrap();
    let refused = store.active(NOW).unwrap_err().to_string();
    assert!(refused.contains("3 was seen since"), "{refused}");
    // And forward again needs no permission.
    store.activate(three, &[], NOW).unwrap();
    assert!(matches!(store.activate(two, &[], NOW), Err(StoreError::Downgrade { seen: 3, .. })));
    store.activate(two, &[&scene.root], NOW).unwrap();
    let last = store.history().unwrap().entries.pop().unwrap().happened;
    assert!(matches!(last, Happened::Activated { overridden_revision: Some(3), .. }), "{last:?}");
}

#[test]
fn an_older_release_that_was_never_here_is_installed_by_permission() {
    let scene = Scene::new();
    let store = scene.store();
    let five = store.install(&scene.package(5), NOW).unwrap().plugin.digest();
    store.activate(five, &[], NOW).unwrap();
    let refused = store.install(&scene.package(3), NOW).unwrap_err().to_string();
    assert!(refused.contains("kvasir plugin install PACKAGE --allow-downgrade"), "{refused}");
    let stranger = store.install_permitted(&scene.package(3), &[&key(9)], NOW).unwrap_err();
    assert!(matches!(stranger, StoreError::Override { .. }), "{stranger:?}");
    assert_eq!(store.digests().unwrap(), [five]);
    let three = store.install_permitted(&scene.package(3), &[&scene.root], NOW).unwrap().plugin.digest();
    assert_eq!(store.active_digest().unwrap(), Some(five));
    store.activate(three, &[&scene.root], NOW).unwrap();
    assert_eq!(store.active(NOW).unwrap().unwrap().digest(), three);
    assert!(matches!(store.install(&scene.package(4), NOW), Err(StoreError::Downgrade { seen: 5, .. })));
}

#[test]
fn a_leaked_key_that_runs_ahead_bars_only_itself() {
    let scene = Scene::new();
    let store = scene.store();
    let other = PublisherKey { key: key(2).verifying_key(), name: None };
    store
        .change_root(&[&scene.root], "test", NOW, |root| {
            root.grant(RoleName::Publisher("*".to_owned()), other)
        })
        .unwrap();
    let ahead = store.install(&package(i64::MAX as u64, &key(2)), NOW).unwrap().plugin.digest();
    store.activate(ahead, &[], NOW).unwrap();
    store.install(&scene.package(1), NOW).unwrap();
    assert!(matches!(store.install(&package(9, &key(2)), NOW), Err(StoreError::Downgrade { .. })));
}

#[test]
fn what_is_used_is_written_down_as_seen_and_what_is_only_kept_or_looked_at_shuts_nothing_out() {
    let scene = Scene::new();
    let store = scene.store();
    let one = store.install(&scene.package(1), NOW).unwrap().plugin.digest();
    store.activate(one, &[], NOW).unwrap();
    let before = fs::read(store.places().active()).unwrap();
    let five = store.install(&scene.package(5), NOW).unwrap().plugin.digest();
    assert_eq!(store.examine(five, NOW).unwrap().digest(), five);
    store.active(NOW).unwrap();
    // A switch that cannot be recorded is none: what was active goes on, and nothing is shut out.
    let history = store.places().history();
    let kept = fs::read(&history).unwrap();
    fs::remove_file(&history).unwrap();
    fs::create_dir(&history).unwrap();
    assert!(store.activate(five, &[], NOW).is_err());
    fs::remove_dir(&history).unwrap();
    fs::write(&history, kept).unwrap();
    assert_eq!(store.active(NOW).unwrap().unwrap().digest(), one);
    store.install(&scene.package(4), NOW).unwrap();

    // Where the machine stopped once it was active and not yet seen, it is seen before it is used.
    let unseen = store.places().seen().map(|path| fs::read(path).unwrap());
    store.activate(five, &[], NOW).unwrap();
    for (path, bytes) in store.places().seen().iter().zip(unseen) {
        fs::write(path, bytes).unwrap();
    }
    store.active(NOW).unwrap();
    assert!(matches!(store.install(&scene.package(4), NOW), Err(StoreError::Downgrade { seen: 5, .. })));
    // And an old choice that is put back is refused as an old package is.
    fs::write(store.places().active(), before).unwrap();
    assert!(matches!(store.active(NOW), Err(StoreError::Downgrade { revision: 1, seen: 5, .. })));
    assert!(matches!(store.examine(one, NOW), Err(StoreError::Downgrade { revision: 1, seen: 5, .. })));
}

#[test]
fn an_old_copy_of_what_was_seen_lowers_nothing_and_losing_both_is_said() {
    let scene = Scene::new();
    let store = scene.store();
    let copies = store.places().seen();
    store.install(&scene.package(1), NOW).unwrap();
    let old = copies.each_ref().map(|path| fs::read(path).unwrap());
    let two = store.install(&scene.package(2), NOW).unwrap().plugin.digest();
    store.activate(two, &[], NOW).unwrap();
    for (path, old) in copies.iter().zip(&old) {
        let new = fs::read(path).unwrap();
        fs::write(path, old).unwrap();
        assert!(matches!(store.install(&scene.package(1), NOW), Err(StoreError::Downgrade { .. })));
        fs::remove_file(path).unwrap();
        assert!(matches!(store.install(&scene.package(1), NOW), Err(StoreError::Downgrade { .. })));
        fs::write(path, &new[..new.len() / 2]).unwrap();
        assert!(matches!(store.active(NOW), Err(StoreError::Corrupt { .. })));
        fs::write(path, new).unwrap();
    }
    for path in &copies {
        fs::remove_file(path).unwrap();
    }
    let refused = store.active(NOW).unwrap_err();
    assert!(matches!(refused, StoreError::SeenLost { .. }), "{refused:?}");
}

#[test]
fn old_or_missing_roots_and_revocations_are_refused() {
    let scene = Scene::new();
    let store = scene.store();
    let places = store.places();
    let first = fs::read(places.root()).unwrap();
    let one = store.install(&scene.package(1), NOW).unwrap().plugin;
    let grant =
        |seed| PublisherKey { key: key(seed).verifying_key(), name: Some(format!("publisher {seed}")) };
    let add = |seed| {
        store
            .change_root(&[&scene.root], "trusted", NOW, |root| {
                root.grant(RoleName::Publisher("demo".to_owned()), grant(seed))
            })
            .unwrap()
    };
    assert_eq!(add(1).unwrap().version(), 2);
    assert_eq!(add(1), None, "nothing to change");
    let second = fs::read(places.root()).unwrap();
    fs::write(places.root(), &first).unwrap();
    let refused = store.load(one.digest(), NOW).unwrap_err();
    let rollback = |error: &StoreError| match error {
        StoreError::Document { source: DocumentError::Rollback { what, found, seen }, .. } => {
            Some((*what, *found, *seen))
        }
        _ => None,
    };
    assert_eq!(rollback(&refused), Some(("root.json", 1, 2)), "{refused:?}");
    fs::remove_file(places.root()).unwrap();
    assert!(matches!(store.load(one.digest(), NOW), Err(StoreError::RootMissing { .. })));
    fs::write(places.root(), &second[..second.len() / 2]).unwrap();
    let refused = store.load(one.digest(), NOW).unwrap_err().to_string();
    assert!(refused.contains("plugins/root.json in the data folder is a copy"), "{refused}");
    fs::copy(places.accepted_root(), places.root()).unwrap();
    fs::write(places.root(), &second).unwrap();
    store.load(one.digest(), NOW).unwrap();

    let what = [Revocable::Package(one.digest())];
    store.revoke(&[], &[&scene.root], NOW).unwrap();
    let harmless = fs::read(places.revoked()).unwrap();
    let (revoked, new) = store.revoke(&what, &[&scene.root], NOW).unwrap();
    assert_eq!((revoked.version(), new), (2, true));
    assert!(!store.revoke(&what, &[&scene.root], NOW).unwrap().1);
    let refused = store.load(one.digest(), NOW).unwrap_err();
    assert!(
        matches!(&refused, StoreError::Refused { source: PluginError::RevokedPackage { .. }, .. }),
        "{refused:?}"
    );
    fs::write(places.revoked(), harmless).unwrap();
    assert_eq!(rollback(&store.load(one.digest(), NOW).unwrap_err()), Some(("revoked.json", 1, 2)));
    fs::remove_file(places.revoked()).unwrap();
    assert!(matches!(store.load(one.digest(), NOW), Err(StoreError::RevocationsMissing { .. })));
    // Without the copy too.
    fs::remove_file(places.accepted_revocations()).unwrap();
    assert_eq!(rollback(&store.load(one.digest(), NOW).unwrap_err()), Some(("revoked.json", 0, 2)));
}

#[test]
fn damaged_trust_is_refused_with_the_name_of_its_copy_which_puts_it_right() {
    let scene = Scene::new();
    let store = scene.store();
    let places = store.places();
    let one = store.install(&scene.package(1), NOW).unwrap().plugin.digest();
    let revoked = Revocable::Key(KeyId::of(&key(50).verifying_key()));
    store.revoke(&[revoked], &[&scene.root], NOW).unwrap();
    for (path, copy) in
        [(places.root(), places.accepted_root()), (places.revoked(), places.accepted_revocations())]
    {
        let name = format!("plugins/{} in the data folder is a copy", path.file_name().unwrap().display());
        let good = fs::read(&path).unwrap();
        assert_eq!(fs::read(&copy).unwrap(), good);
        let altered = String::from_utf8(good.clone()).unwrap().replace("\"version\":1", "\"version\":7");
        for bad in [&good[..good.len() / 2], b"", altered.as_bytes(), vec![b' '; 2 << 20].as_slice()] {
            fs::write(&path, bad).unwrap();
            let refused = store.load(one, NOW).unwrap_err().to_string();
            assert!(refused.contains(&name) && refused.contains("copy it back"), "{refused}");
            assert!(store.install(&scene.package(2), NOW).is_err());
            assert_eq!(fs::read(&copy).unwrap(), good, "damage is not copied");
        }
        fs::copy(&copy, &path).unwrap();
        store.load(one, NOW).unwrap();
    }
    assert_eq!(store.trust().unwrap().revocations().unwrap().revocations().keys.len(), 1);

    // A damaged copy is no trouble, and is made anew with the next change.
    fs::write(places.accepted_revocations(), "half").unwrap();
    store.load(one, NOW).unwrap();
    store.install(&scene.package(2), NOW).unwrap();
    assert_eq!(fs::read(places.accepted_revocations()).unwrap(), fs::read(places.revoked()).unwrap());
}

#[test]
fn a_root_key_is_replaced_and_not_revoked() {
    let scene = Scene::new();
    let store = scene.store();
    let own = Revocable::Key(KeyId::of(&scene.root.verifying_key()));
    let refused = store.revoke(&[own], &[&scene.root], NOW).unwrap_err();
    assert!(matches!(refused, StoreError::RevokesRootKey { .. }), "{refused:?}");
    assert!(refused.to_string().contains("trust rotate"), "{refused}");
    assert!(store.trust().unwrap().revocations().is_none());
    store.rotate_root(&scene.root, &key(101), &[], NOW).unwrap();
    store.revoke(&[own], &[&key(101)], NOW).unwrap();
}

#[test]
fn an_old_release_does_not_come_back_with_a_key_that_is_trusted_since() {
    let scene = Scene::new();
    let store = scene.store();
    let (second, by_both) =
        (key(2), |revision| kvasir_plugin::add_signature(&scene.package(revision), &key(2)).unwrap());
    for revision in [4, 5] {
        let plugin = store.install(&by_both(revision), NOW).unwrap().plugin.digest();
        store.activate(plugin, &[], NOW).unwrap();
    }
    assert!(matches!(store.install(&by_both(3), NOW), Err(StoreError::Downgrade { seen: 5, .. })));
    store.rollback(&[&scene.root], NOW).unwrap();
    let public = PublisherKey { key: second.verifying_key(), name: None };
    let edit =
        |root: &mut kvasir_plugin::Root| root.grant(RoleName::Publisher("*".to_owned()), public.clone());
    store.change_root(&[&scene.root], "trusted", NOW, edit).unwrap();
    assert!(matches!(store.install(&by_both(3), NOW), Err(StoreError::Downgrade { seen: 5, .. })));
    // The permission that was signed before goes on.
    assert_eq!(store.active(NOW).unwrap().unwrap().manifest().kernel_revision, 4);
}

#[test]
fn another_root_is_believed_only_through_a_chain_of_signatures() {
    let scene = Scene::new();
    let store = scene.store();
    let places = store.places();
    // Somebody else's root, signed by itself, of the same and of a higher version.
    for version in [1, 2, 9] {
        let theirs = PublisherKey { key: key(66).verifying_key(), name: None };
        let mut root = kvasir_plugin::Root::new(UnixSeconds(NOW.0 + DAY), theirs.clone());
        root.grant(RoleName::Publisher("*".to_owned()), theirs);
        root.version = version;
        let own = fs::read(places.root()).unwrap();
        fs::write(places.root(), root.sign(&[&key(66)]).unwrap()).unwrap();
        let refused = store.install(&package(1, &key(66)), NOW).unwrap_err();
        let expected = match version {
            1 => matches!(refused, StoreError::RootReplaced { version: 1, .. }),
            2 => matches!(
                refused,
                StoreError::Document { source: DocumentError::NotEnoughSignatures { .. }, .. }
            ),
            _ => matches!(refused, StoreError::RootStepMissing { version: 2, .. }),
        };
        assert!(expected, "{version}: {refused:?}");
        fs::write(places.root(), own).unwrap();
    }

    // A host that missed two versions follows them; one that misses a step does not.
    let behind = fs::read(places.accepted_root()).unwrap();
    for (old, new) in [(100, 101), (101, 102)] {
        store.rotate_root(&key(old), &key(new), &[], NOW).unwrap();
    }
    fs::write(places.accepted_root(), &behind).unwrap();
    assert_eq!(store.trust().unwrap().root().unwrap().version(), 3);
    fs::write(places.accepted_root(), &behind).unwrap();
    fs::remove_file(places.root_version(2)).unwrap();
    assert!(matches!(store.trust(), Err(StoreError::RootStepMissing { version: 2, .. })));
}

#[test]
fn a_new_root_key_takes_over_what_the_old_one_signed() {
    let scene = Scene::new();
    let store = scene.store();
    for revision in [1, 2] {
        let plugin = store.install(&scene.package(revision), NOW).unwrap().plugin;
        store.activate(plugin.digest(), &[], NOW).unwrap();
    }
    let one = store.rollback(&[&scene.root], NOW).unwrap();
    let revoked = Revocable::Key(KeyId::of(&key(50).verifying_key()));
    store.revoke(&[revoked], &[&scene.root], NOW).unwrap();
    let next = store.rotate_root(&scene.root, &key(101), &[], NOW).unwrap();
    assert_eq!(next.version(), 2);
    assert_eq!(store.active(NOW).unwrap().unwrap().digest(), one.digest());
    let trust = store.trust().unwrap();
    assert_eq!(trust.revocations().unwrap().revocations().keys.len(), 1);
    assert!(
        store.revoke(&[Revocable::Package(one.digest())], &[&scene.root], NOW).is_err(),
        "the old key signs nothing"
    );
    store.revoke(&[Revocable::Package(one.digest())], &[&key(101)], NOW).unwrap();
    assert!(matches!(
        store.rotate_root(&scene.root, &key(102), &[], NOW),
        Err(StoreError::NotARootKey { .. })
    ));
}

#[test]
fn an_expired_root_refuses_everything_until_it_is_signed_anew() {
    let scene = Scene::new();
    let store = scene.store();
    let one = store.install(&scene.package(1), NOW).unwrap().plugin;
    let later = UnixSeconds(NOW.0 + 731 * DAY);
    let refused = store.load(one.digest(), later).unwrap_err();
    assert!(
        matches!(&refused, StoreError::Refused { source: PluginError::TrustExpired { .. }, .. }),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("kvasir setup --renew"), "{refused}");
    store.change_root(&[&scene.root], "renewed", later, |_| true).unwrap();
    let refused = store.load(one.digest(), later).unwrap_err();
    assert!(
        matches!(&refused, StoreError::Refused { source: PluginError::Expired { .. }, .. }),
        "{refused:?}"
    );
}

#[test]
fn a_root_of_several_keys_is_changed_and_handed_on_by_as_many_as_it_demands() {
    let scene = Scene::new();
    let store = scene.store();
    let (second, third) = (key(101), key(102));
    let grow = |keys: &[&ed25519_dalek::SigningKey]| {
        store.change_root(keys, "two keys", NOW, |root| {
            for role in [RoleName::Root, RoleName::Revocation] {
                root.grant(role.clone(), PublisherKey { key: second.verifying_key(), name: None });
                root.roles.get_mut(&role).unwrap().threshold = 2;
            }
            true
        })
    };
    grow(&[&scene.root]).unwrap_err();
    grow(&[&scene.root, &second]).unwrap();
    for revision in [1, 2] {
        let plugin = store.install(&scene.package(revision), NOW).unwrap().plugin;
        store.activate(plugin.digest(), &[], NOW).unwrap();
    }
    store.rollback(&[&scene.root], NOW).unwrap_err();
    let one = store.rollback(&[&scene.root, &second], NOW).unwrap();
    let revoked = Revocable::Key(KeyId::of(&key(50).verifying_key()));
    store.revoke(&[revoked], &[&second], NOW).unwrap_err();
    store.revoke(&[revoked], &[&second, &scene.root], NOW).unwrap();

    store.rotate_root(&scene.root, &third, &[], NOW).unwrap_err();
    assert_eq!(store.active(NOW).unwrap().unwrap().digest(), one.digest());
    store.rotate_root(&scene.root, &third, &[&second], NOW).unwrap();
    assert_eq!(store.active(NOW).unwrap().unwrap().digest(), one.digest());
    store.revoke(&[], &[&scene.root, &second], NOW).unwrap_err();
    store.revoke(&[], &[&third, &second], NOW).unwrap();
}
