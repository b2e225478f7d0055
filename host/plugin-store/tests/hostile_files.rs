//! Files of the store that somebody else wrote, cut short or replaced, and disks that take nothing: each a refusal that says what
//! to do, and a store that works again once it is done.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod scene;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use kvasir_plugin::PolicyRefusal;
use kvasir_plugin_store::{Store, StoreError};
use scene::{NOW, Scene};

/// A scene with an active plugin.
fn active() -> (Scene, Store) {
    let scene = Scene::new();
    let store = scene.store();
    let one = store.install(&scene.package(1), NOW).unwrap().plugin;
    store.activate(one.digest(), &[], NOW).unwrap();
    (scene, store)
}

#[test]
fn every_file_that_is_cut_short_garbage_huge_or_a_link_is_refused_by_name() {
    let (scene, store) = active();
    let places = store.places();
    let digest = store.active_digest().unwrap().unwrap();
    let files = [
        places.active(),
        places.seen()[0].clone(),
        places.seen()[1].clone(),
        places.root(),
        places.accepted_root(),
        places.package(digest),
    ];
    let elsewhere = scene.file("elsewhere");
    for path in &files {
        let good = fs::read(path).unwrap();
        fs::write(&elsewhere, &good).unwrap();
        let huge = fs::File::create(scene.file("huge")).unwrap();
        huge.set_len(65 << 20).unwrap();
        let cases: [(&str, &dyn Fn()); 6] = [
            ("cut", &|| fs::write(path, &good[..good.len() / 2]).unwrap()),
            ("empty", &|| fs::write(path, "").unwrap()),
            ("garbage", &|| fs::write(path, [0xff; 300]).unwrap()),
            ("huge", &|| assert!(fs::copy(scene.file("huge"), path).unwrap() > 0)),
            ("link", &|| symlink(&elsewhere, path).unwrap()),
            ("folder", &|| fs::create_dir(path).unwrap()),
        ];
        for (name, make) in cases {
            fs::remove_file(path).unwrap();
            make();
            let refused = store.active(NOW).err().unwrap_or_else(|| panic!("{name} {}", path.display()));
            let whole = format!(
                "{refused} {}",
                std::error::Error::source(&refused).map_or(String::new(), ToString::to_string)
            );
            let file = path.file_name().unwrap().to_str().unwrap();
            assert!(
                whole.contains(file) || whole.contains(&digest.to_string()),
                "{name} {}: {whole}",
                path.display()
            );
            if path.is_dir() {
                fs::remove_dir(path).unwrap()
            } else {
                fs::remove_file(path).unwrap()
            }
            fs::write(path, &good).unwrap();
            store.active(NOW).unwrap().unwrap();
        }
    }
}

#[test]
fn links_in_place_of_folders_are_not_followed_when_something_is_written() {
    let (scene, store) = active();
    let aim = scene.file("aim");
    fs::create_dir(&aim).unwrap();
    for folder in [store.places().packages(), store.places().plugins()] {
        let aside = scene.file("aside");
        fs::rename(&folder, &aside).unwrap();
        symlink(&aim, &folder).unwrap();
        let refused = store.install(&scene.package(2), NOW).unwrap_err();
        assert!(matches!(refused, StoreError::NotPlain { kind: "a symbolic link", .. }), "{refused:?}");
        assert_eq!(fs::read_dir(&aim).unwrap().count(), 0, "nothing was written through the link");
        fs::remove_file(&folder).unwrap();
        fs::rename(&aside, &folder).unwrap();
    }
    store.install(&scene.package(2), NOW).unwrap();
}

#[test]
fn a_history_full_of_garbage_stops_nothing() {
    let (scene, store) = active();
    fs::write(store.places().history(), vec![0xfe; 3 << 20]).unwrap();
    let two = store.install(&scene.package(2), NOW).unwrap().plugin;
    store.activate(two.digest(), &[], NOW).unwrap();
    let history = store.history().unwrap();
    assert_eq!((history.entries.len(), history.cut), (2, true));
}

#[test]
fn a_disk_that_takes_nothing_is_said_and_loading_writes_nothing() {
    let (_scene, store) = active();
    let inodes = || store.places().seen().map(|path| fs::metadata(path).unwrap().ino());
    let before = inodes();
    store.active(NOW).unwrap().unwrap();
    assert_eq!(
        inodes(),
        before,
        "a plugin that was seen is loaded without a write, also from a read-only disk"
    );

    // No folder can be made in /proc.
    let nowhere = Store::open(Path::new("/proc/kvasir"), Path::new("/proc/kvasir"));
    let refused = nowhere.create_root(&scene::key(1), Vec::new(), NOW).unwrap_err();
    assert!(matches!(refused, StoreError::Write { .. }), "{refused:?}");
    assert!(refused.to_string().contains("nothing was changed"), "{refused}");
}

#[test]
fn what_the_policy_refuses_is_neither_installed_nor_loaded() {
    let (scene, store) = active();
    fs::write(store.places().policy(), "[default.maximum]\nmemory_bytes = 65536\n").unwrap();
    for refused in [store.install(&scene.package(2), NOW).map(drop), store.active(NOW).map(drop)] {
        let source = match refused {
            Err(StoreError::Policy { source, .. }) => source,
            other => panic!("{other:?}"),
        };
        assert!(matches!(
            source,
            PolicyRefusal::AsksTooMuch { name: "memory_bytes", asked: 1_048_576, maximum: 65_536, .. }
        ));
    }
    fs::write(store.places().policy(), "[default]\nmemory_bytes = 65536\n").unwrap();
    let plugin = store.active(NOW).unwrap().unwrap();
    assert_eq!(store.grant(&plugin).unwrap().limits.memory_bytes, 65_536);
    for bad in ["[default", "[defalt]\n", "[default]\nmemory_bytes = -1\n"] {
        fs::write(store.places().policy(), bad).unwrap();
        assert!(matches!(store.active(NOW), Err(StoreError::PolicyFile { .. })), "{bad}");
    }
}

#[test]
fn two_who_install_at_once_both_succeed_and_nothing_is_lost() {
    let (scene, store) = active();
    std::thread::scope(|scope| {
        for revision in 2..6 {
            let (store, package) = (scene.store(), scene.package(revision));
            scope.spawn(move || match store.install(&package, NOW) {
                Ok(installed) => drop(store.activate(installed.plugin.digest(), &[], NOW)),
                Err(StoreError::Downgrade { .. }) => {}
                Err(other) => panic!("{other:?}"),
            });
        }
    });
    let history = store.history().unwrap();
    assert_eq!((history.unreadable, history.cut), (0, false));
    let state = store.active_state().unwrap();
    let changes = history
        .entries
        .iter()
        .filter(|entry| matches!(entry.happened, kvasir_plugin_store::Happened::Activated { .. }));
    assert_eq!(state.change, changes.count() as u64);
    assert!(matches!(store.install(&scene.package(4), NOW), Err(StoreError::Downgrade { seen: 5, .. })));
    assert!(store.digests().unwrap().contains(&state.digest.unwrap()));
}

#[test]
fn who_asks_for_the_active_plugin_while_newer_ones_take_over_is_never_refused() {
    let (scene, store) = active();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                scene.store().active(NOW).unwrap().unwrap();
            }
        });
        for revision in 2..40 {
            let next = store.install(&scene.package(revision), NOW).unwrap().plugin;
            store.activate(next.digest(), &[], NOW).unwrap();
        }
        over.store(true, Ordering::Relaxed);
        asker.join().unwrap();
    });
}

#[test]
fn what_a_process_left_that_was_ended_half_way_is_gone_with_the_next_change() {
    let (scene, store) = active();
    let places = store.places();
    let litter = [places.plugins(), places.packages(), places.trust()]
        .map(|folder| folder.join(".store-draft-a1B2c3"));
    litter.iter().for_each(|path| fs::write(path, "half").unwrap());
    store.active(NOW).unwrap();
    assert!(litter.iter().all(|path| path.exists()), "looking removes nothing");
    store.install(&scene.package(2), NOW).unwrap();
    assert!(!litter.iter().any(|path| path.exists()));
}
